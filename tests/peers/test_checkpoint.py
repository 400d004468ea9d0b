# SPDX-License-Identifier: Apache-2.0
"""Reads checkpoints that mkcheckpoint wrote, with nothing but struct and json."""
import json
import os
import struct
import subprocess
import sys
import tempfile

SIZES = {"U8": 1, "BF16": 2, "F32": 4, "I64": 8}
# Element sizes in the order that misaligns everything unless the writer puts them right.
TENSORS = {"a.odd": ("U8", [3]), "b": ("F32", [2, 3]), "c.\u00e9\"\\": ("BF16", [5]),
           "d": ("I64", []),
           "f": ("U8", [1, 1, 7])}
done = 0


def check(ok, what):
    global done
    done += 1
    print(("ok" if ok else "not ok"), done, "-", what, flush=True)


def count(shape):
    n = 1
    for d in shape:
        n *= d
    return n


def write(path, tensors):
    header, data = {}, b""
    for i, (name, (dtype, shape)) in enumerate(tensors.items()):
        raw = bytes((i * 37 + k) % 251 for k in range(count(shape) * SIZES[dtype]))
        header[name] = {"dtype": dtype, "shape": shape,
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def read(path):
    """{name: (dtype, shape, bytes)} and whether the file is laid out as the format wants it."""
    with open(path, "rb") as f:
        raw = f.read()
    (n,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8:8 + n])
    sound = n % 8 == 0 and raw[8:9] == b"{" and header.pop("__metadata__") == {"format": "pt"}
    at, tensors = 0, {}
    for name, t in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = t["data_offsets"]
        sound = sound and begin == at and end - begin == count(t["shape"]) * SIZES[t["dtype"]]
        sound = sound and begin % SIZES[t["dtype"]] == 0
        tensors[name] = (t["dtype"], t["shape"], raw[8 + n + begin:8 + n + end])
        at = end
    return tensors, sound and 8 + n + at == len(raw)


def mkcheckpoint(*args):
    tool = os.path.join(os.environ.get("BUILD", "build"), "tests/tools/mkcheckpoint")
    return subprocess.run([tool, *args], timeout=1200, stderr=subprocess.PIPE, text=True)


def main():
    with tempfile.TemporaryDirectory() as tmp:
        source = os.path.join(tmp, "x.safetensors")
        write(source, TENSORS)
        want = {}
        with open(source, "rb") as f:
            raw = f.read()
        (n,) = struct.unpack("<Q", raw[:8])
        for name, t in json.loads(raw[8:8 + n]).items():
            begin, end = t["data_offsets"]
            want[name] = (t["dtype"], t["shape"], raw[8 + n + begin:8 + n + end])

        one = os.path.join(tmp, "one")
        check(mkcheckpoint(source, one).returncode == 0, "one file is written")
        check(os.listdir(one) == ["model.safetensors"], "nothing else is left there")
        got, sound = read(os.path.join(one, "model.safetensors"))
        check(sound, "it is padded, tiled and aligned")
        check(got == want, "it holds the same names, shapes and bytes")

        many = os.path.join(tmp, "many")
        check(mkcheckpoint(one, many, "24").returncode == 0, "shards are written")
        with open(os.path.join(many, "model.safetensors.index.json")) as f:
            index = json.load(f)
        shards = sorted(set(index["weight_map"].values()))
        check(shards == ["model-%05d-of-%05d.safetensors" % (i + 1, len(shards))
                         for i in range(len(shards))]
              and len(shards) > 1, "the index names them all")
        check(index["metadata"]["total_size"] == sum(len(b) for _, _, b in want.values()),
              "and their size")
        together, sound = {}, True
        for shard in shards:
            got, fine = read(os.path.join(many, shard))
            sound = sound and fine and all(index["weight_map"][name] == shard for name in got)
            together.update(got)
        check(sound, "each is padded, tiled, aligned and as the index says")
        check(together == want, "together they hold the same")

        bad = mkcheckpoint("synthetic:qwen3-0.7b", os.path.join(tmp, "no"))
        check(bad.returncode == 2 and "did you mean synthetic:qwen3-0.6b?" in bad.stderr,
              "an unknown model is refused")
    print("1..%d" % done)


main()
sys.exit(0)
