# SPDX-License-Identifier: Apache-2.0
"""trace_rows.py FILE EXPRESSION: reads a trace strictly, and prints the expression over it.

names: rows by number; rows: spans by name of row, in time; spans: all of them; other: otherData.
of(PREFIX): the spans of the rows whose names begin so; total(PREFIX): their bytes."""
import json
import sys

EVENT = {"M": {"ph", "pid", "tid", "name", "args"},
         "X": {"ph", "pid", "tid", "ts", "dur", "name", "cat", "args"}}
CATEGORIES = ["push", "phases", "buckets", "read", "transform", "copy", "wire", "starved", "apply",
              "HTTP", "verify"]


def no_twice(pairs):
    keys = [k for k, _ in pairs]
    assert len(keys) == len(set(keys)), f"a key twice: {keys}"
    return dict(pairs)


def thousandths(text):
    whole, dot, rest = text.partition(".")
    assert dot and len(rest) == 3 and not text.startswith("-"), \
        f"no microseconds with three digits: {text}"
    return int(whole) * 1000 + int(rest)


with open(sys.argv[1], encoding="utf-8") as file:
    trace = json.load(file, object_pairs_hook=no_twice, parse_float=thousandths)
assert list(trace) == ["displayTimeUnit", "otherData", "traceEvents"], list(trace)
assert trace["displayTimeUnit"] == "ms"
other = trace["otherData"]
names, order, spans = {}, {}, []
for e in trace["traceEvents"]:
    assert set(e) == EVENT[e["ph"]], e
    if e["ph"] == "X":
        assert e["cat"] in CATEGORIES and e["dur"] >= 0, e
        assert e["tid"] in names, f"a span before its row: {e}"
        assert names[e["tid"]].startswith(e["cat"]), e
        spans.append(e)
    elif e["name"] == "thread_name":
        names[e["tid"]] = e["args"]["name"]
    elif e["name"] == "thread_sort_index":
        order[e["tid"]] = e["args"]["sort_index"]
assert len({e["pid"] for e in trace["traceEvents"]}) == 1
assert len(set(names.values())) == len(names), "two rows of one name"
shown = [names[tid] for tid in sorted(names, key=order.get)]
kinds = [CATEGORIES.index(n.split()[0]) for n in shown]
assert kinds == sorted(kinds), f"rows out of order: {shown}"
rows = {}
for e in sorted(spans, key=lambda e: (e["ts"], e["dur"])):
    rows.setdefault(names[e["tid"]], []).append(e)
for name, row in rows.items():
    for a, b in zip(row, row[1:]):
        assert a["ts"] + a["dur"] <= b["ts"], f"{name}: {a} and {b} overlap"


def of(prefix):
    return [e for name, row in rows.items() if name.startswith(prefix) for e in row]


def total(prefix):
    return sum(e["args"].get("bytes", 0) for e in of(prefix))


print(eval(sys.argv[2]))
