# SPDX-License-Identifier: Apache-2.0
"""exposition.py FILE EXPRESSION: reads Prometheus' text format 0.0.4 strictly, and prints the
expression.

v(NAME, label=value...): the value of the sample that has exactly these labels, as its text; None:
there is none. names: all of them; types: of each; samples: {name: {frozenset of (label, value):
text}}."""
import re
import sys

NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?")


def take(pattern, line, at):
    m = pattern.match(line, at)
    assert m, f"column {at + 1} of {line!r}"
    return m.group(), m.end()


def take_value(line, at):
    assert line[at] == '"', line
    text, at = "", at + 1
    while line[at] != '"':
        if line[at] == "\\":
            text += {"\\": "\\", '"': '"', "n": "\n"}[line[at + 1]]
            at += 2
        else:
            assert line[at] >= " ", f"a control character: {line!r}"
            text += line[at]
            at += 1
    return text, at + 1


def take_labels(line, at):
    labels = {}
    if line[at] != "{":
        return labels, at
    at += 1
    while True:
        label, at = take(LABEL, line, at)
        assert label not in labels and not label.startswith("__") and line[at] == "=", line
        labels[label], at = take_value(line, at + 1)
        if line[at] == "}":
            return labels, at + 1
        assert line[at] == ",", line
        at += 1


with open(sys.argv[1], "rb") as file:
    raw = file.read()
assert raw.endswith(b"\n") and b"\r" not in raw and b"\n\n" not in raw
samples, types, helps, current = {}, {}, {}, None
for line in raw.decode("utf-8").split("\n")[:-1]:
    if line.startswith("# "):
        word, name, rest = line[2:].split(" ", 2)
        assert NAME.fullmatch(name) and rest, line
        if word == "HELP":
            assert name not in helps and "\\" not in rest, line
            helps[name] = rest
        else:
            assert word == "TYPE" and rest in ("gauge", "counter") and name not in types, line
            assert name in helps and name not in samples, f"{name}: its head comes too late"
            assert (rest == "counter") == name.endswith("_total"), name
            types[name], current = rest, name
            samples[name] = {}
        continue
    name, at = take(NAME, line, 0)
    assert name == current, f"{name} stands among {current}"
    labels, at = take_labels(line, at)
    assert line[at] == " ", line
    value, at = take(NUMBER, line, at + 1)
    assert at == len(line), line
    key = frozenset(labels.items())
    assert key not in samples[name], f"twice: {line}"
    samples[name][key] = value
assert helps.keys() == types.keys()
names = sorted(types)


def v(name, **labels):
    return samples.get(name, {}).get(frozenset(labels.items()))


print(eval(sys.argv[2]))
