#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""mkst.py - write a safetensors file: mkst.py OUT [--seed N] [--holes] NAME:DTYPE:DIM,DIM,...

Contents are random bytes drawn from the seed, which repeat after 16 MiB but for 8 bytes; with
--holes they are zeros that take no disk. The layout: u64 length of the header, the header in JSON
padded with spaces to a multiple of 8, then the tensors back to back in the order given.
"""
import argparse
import json
import math
import random
import struct

SIZE = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "I16": 2, "F16": 2, "BF16": 2,
        "I32": 4, "F32": 4, "I64": 8, "F64": 8}
CHUNK = 16 << 20


def write(path, tensors, seed=0, holes=False):
    """tensors: (name, safetensors dtype, shape)."""
    header, at = {}, 0
    for name, dtype, shape in tensors:
        size = SIZE[dtype] * math.prod(shape)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        if holes:
            f.truncate(f.tell() + at)
            return
        # One chunk of random bytes, told apart by its number: a gigabyte must not take seconds.
        block = bytearray(random.Random(seed).randbytes(min(at, CHUNK)))
        for done in range(0, at, CHUNK):
            if done:
                struct.pack_into("<Q", block, 0, done)
            f.write(block[:at - done])


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("out")
    p.add_argument("tensors", nargs="+", metavar="NAME:DTYPE:DIMS")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--holes", action="store_true")
    args = p.parse_args()
    tensors = []
    for text in args.tensors:
        name, dtype, dims = text.rsplit(":", 2)
        tensors.append((name, dtype, [int(d) for d in dims.split(",") if d]))
    write(args.out, tensors, args.seed, args.holes)


if __name__ == "__main__":
    main()
