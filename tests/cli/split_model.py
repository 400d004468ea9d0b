#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""split_model.py - a checkpoint as the processes that trained it save it: split_model.py DIR N OUT.

Writes OUT1 ... OUTN with the config. Experts go to their rank, in order; the rest to the first, but
for norms, which all have."""
import json
import os
import re
import shutil
import struct
import sys


def read(path):
    with open(path, "rb") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        head = json.loads(f.read(n))
        data = f.read()
    head.pop("__metadata__", None)
    return [(name, t["dtype"], t["shape"], data[slice(*t["data_offsets"])]) for name,
            t in head.items()]


def write(path, tensors):
    head, at = {}, 0
    for name, dtype, shape, data in tensors:
        head[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(head).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(t[3] for t in tensors))


def main():
    source, n, out = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    tensors = read(source + "/model.safetensors")
    experts = 1 + max(int(m[1]) for m in (re.search(r"\.experts\.(\d+)\.", t[0]) for t in tensors)
                      if m)
    for i in range(n):
        def mine(name):
            m = re.search(r"\.experts\.(\d+)\.", name)
            return int(m[1]) * n // experts == i if m else i == 0 or "norm" in name
        os.makedirs(f"{out}{i + 1}", exist_ok=True)
        shutil.copy(source + "/config.json", f"{out}{i + 1}/config.json")
        write(f"{out}{i + 1}/model.safetensors", [t for t in tensors if mine(t[0])])


if __name__ == "__main__":
    main()
