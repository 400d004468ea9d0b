# SPDX-License-Identifier: Apache-2.0
"""peft_cases.py - adapters and bases written from a description, and what a push makes of them.

A description is JSON: bases have a config and the shapes of their tensors, cases a base, an
adapter_config and the shapes of the adapter's tensors, and what PEFT makes of the two: the SHA-256
of the merged tensors, or why it refuses. All numbers come from the names: small integers in
factors, sixteenths in bases, so that every sum of fp32 is exact. peft_oracle.py makes descriptions.
"""
import collections
import functools
import hashlib
import json
import os
import random
import re
import struct
import subprocess
import sys

import lib

sys.path.insert(0, os.path.join(lib.TREE, "tests", "cli"))
SIZE = {"F32": 4, "BF16": 2}


def count(shape):
    return functools.reduce(lambda a, b: a * b, shape, 1)


def numbers(seed, name, n, factor):
    r = random.Random("%s/%s" % (seed, name))
    most = 3 if factor else 32
    return [float(x) if factor else x / 16 for x in r.choices(range(-most, most + 1), k=n)]


def pack(dtype, values):
    raw = struct.pack("<%df" % len(values), *values)
    if dtype == "F32":
        return raw
    return b"".join(raw[i + 2:i + 4] for i in range(0, len(raw), 4))  # bf16 has all of the bits


def is_factor(name):
    return ".lora_" in name


def tensors_of(case, base):
    """name -> (dtype, shape, bytes) of an adapter. "=NAME": the base's; "^NAME": another's of the
    adapter, its axes exchanged."""
    out = {}
    for name, (shape, what) in case["tensors"].items():
        if what.startswith("="):
            dtype, shape, data = base[what[1:]]
            out[name] = dtype, shape, data
            continue
        # "+NAME": the numbers of another tensor
        values = numbers(case["seed"], what[1:] or name, count(shape), is_factor(name))
        if what.startswith("^"):
            rows, cols = shape
            values = [values[j * rows + i] for i in range(rows) for j in range(cols)]
        out[name] = "F32", shape, pack("F32", values)
    return out


def base_tensors(base):
    return {name: (base["dtype"], shape, pack(base["dtype"], numbers("base", name, count(shape),
                                                                     False)))
            for name, shape in base["tensors"].items()}


def write(path, tensors):
    header, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        f.write(b"".join(t[2] for t in tensors.values()))


def read(path):
    with open(path, "rb") as f:
        data = f.read()
    size, = struct.unpack_from("<Q", data)
    return {name: (t["dtype"], t["shape"], data[8 + size + t["data_offsets"][0]:
                                                8 + size + t["data_offsets"][1]])
            for name, t in json.loads(data[8:8 + size]).items() if name != "__metadata__"}


def read_all(directory):
    out = {}
    for name in sorted(os.listdir(directory)):
        if name.endswith(".safetensors"):
            out.update(read(os.path.join(directory, name)))
    return out


def write_json(path, value):
    with open(path, "w") as f:
        json.dump(value, f)


# ---- descriptions ----

def usual_config(cases):
    """For each key the value that most adapters have: a description says it once."""
    values = collections.defaultdict(collections.Counter)
    for case in cases:
        for key, value in case["config"].items():
            values[key][json.dumps(value)] += 1
    return {key: json.loads(found.most_common(1)[0][0]) for key, found in values.items()}


def write_description(path, bases, cases):
    usual = usual_config(cases)
    lines = []
    for case in cases:
        config = case["config"]
        own = {k: v for k, v in config.items() if json.dumps(v) != json.dumps(usual[k])}
        lacks = sorted(usual.keys() - config.keys())
        lines.append(json.dumps(dict(case, config=own, **({"lacks": lacks} if lacks else {})),
                                separators=(",", ":")))
    with open(path, "w") as f:
        f.write('{"bases": {\n')
        f.write(",\n".join("%s: %s" % (json.dumps(k), json.dumps(v)) for k, v in bases.items()))
        f.write('},\n"config": %s,\n"cases": [\n' % json.dumps(usual))
        f.write(",\n".join(lines))
        f.write("]}\n")


def read_description(path):
    with open(path) as f:
        data = json.load(f)
    for case in data["cases"]:
        case["config"] = {k: v for k, v in dict(data["config"], **case["config"]).items()
                          if k not in case.get("lacks", ())}
    return data


def program(name, *args):
    return subprocess.run([os.path.join(lib.BUILD, "bin", name), *args], capture_output=True,
                          text=True, timeout=lib.PATIENCE, env=lib.push_env())


def write_base(directory, base):
    """Writes a base; returns its tensors as a merge sees them."""
    os.makedirs(directory)
    if base.get("packed"):
        import packed_model  # noqa: PLC0415  # of tests/cli
        flat = directory + ".flat"
        subprocess.run([sys.executable, packed_model.__file__, directory + ".made",
                        base["packed"]], check=True, capture_output=True)
        os.rmdir(directory)
        os.rename(os.path.join(directory + ".made", "packed"), directory)
        done = program("wsync-push", "--write", flat, directory, "--unpack")
        assert done.returncode == 0, done.stderr
        return read_all(flat)
    tensors = base_tensors(base)
    write_json(os.path.join(directory, "config.json"), base["config"])
    names = list(tensors)
    if not base.get("sharded"):
        write(os.path.join(directory, "model.safetensors"), tensors)
        return tensors
    index = {}
    for i in range(2):
        file = "model-%05d-of-00002.safetensors" % (i + 1)
        write(os.path.join(directory, file), {n: tensors[n] for n in names[i::2]})
        index.update(dict.fromkeys(names[i::2], file))
    write_json(os.path.join(directory, "model.safetensors.index.json"),
               {"metadata": {}, "weight_map": index})
    return tensors


def write_adapter(directory, case, base):
    os.makedirs(directory)
    write_json(os.path.join(directory, "adapter_config.json"), case["config"])
    write(os.path.join(directory, "adapter_model.safetensors"), tensors_of(case, base))


# ---- the result ----

def joined(name, shape, out):
    """A stack over experts, of the parts that a push sends; None: they are not there."""
    m = re.fullmatch(r"(.*\.experts)\.(gate_up_proj|gate_proj|up_proj|down_proj)", name)
    if not m or len(shape) != 3:
        return None
    leaves = ("gate_proj", "up_proj") if m[2] == "gate_up_proj" else (m[2],)
    names = ["%s.%d.%s.weight" % (m[1], e, leaf) for e in range(shape[0]) for leaf in leaves]
    if not all(n in out for n in names):
        return None
    return out[names[0]][0], shape, b"".join(out.pop(n)[2] for n in names)


def digest(tensors):
    h = hashlib.sha256()
    for name in sorted(tensors):
        dtype, shape, data = tensors[name]
        h.update(json.dumps([name, dtype, list(shape)]).encode() + data)
    return h.hexdigest()[:32]


def result_of(out, base, tied):
    """The digest of what was written, under the base's names. A tied head must be the embedding."""
    out, named = dict(out), {}
    if tied and "lm_head.weight" in out:
        body = next(n for n in ("model.embed_tokens.weight", "transformer.wte.weight") if n in out)
        assert out.pop("lm_head.weight")[2] == out[body][2], "the head is not the embedding"
    for name, (_, shape, _) in base.items():
        t = out.pop(name, None) or joined(name, shape, out)
        assert t, "%s was not written" % name
        named[name] = t
    assert not out, "more than the base has: %s" % sorted(out)
    return digest(named)


class Bases:
    """Bases are written when they are first asked for."""

    def __init__(self, descriptions, directory):
        self.descriptions, self.directory, self.made = descriptions, directory, {}

    def get(self, name):
        if name not in self.made:
            path = os.path.join(self.directory, name)
            self.made[name] = path, write_base(path, self.descriptions[name])
        return self.made[name]


def push(case, bases, directory):
    """("merged", digest), ("refused", why) or ("wrong", what)."""
    path, base = bases.get(case["base"])
    adapter, out = os.path.join(directory, "adapter"), os.path.join(directory, "out")
    write_adapter(adapter, case, base)
    done = program("wsync-push", "--write", out, path, "--lora", adapter,
                   "--lora-rounding", case["rounding"])
    if done.returncode in (1, 3):
        return "refused", done.stderr.strip()
    if done.returncode:
        return "wrong", "exit %d: %s" % (done.returncode, done.stderr)
    try:
        return "merged", result_of(read_all(out), base, bases.descriptions[case["base"]]["tied"])
    except AssertionError as e:
        return "wrong", str(e)


def judge(case, verdict):
    """None, or what is wrong: other numbers than PEFT's, or a refusal of what is plain LoRA."""
    what, detail = verdict
    if what == "wrong":
        return detail
    if what == "refused":
        return "refused: " + detail if case["must"] and case["want"] else None
    if case["want"] is None:
        return "merged, but PEFT: %s" % case["why"]
    return None if detail == case["want"] else "merged otherwise than PEFT does"
