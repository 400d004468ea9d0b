#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""numbers.py: the numbers in a safetensors file.

    numbers.py put FILE TENSOR ROW COLUMN VALUE     makes one of them VALUE: nan, inf, -inf, 1e30
    numbers.py copy FILE TENSOR FILE TENSOR         gives the second the bytes of the first
    numbers.py tame FILE                            makes all of them finite, and less than two"""
import json
import struct
import sys

SIZE = {"F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1}


def put(path, name, row, column, value):
    with open(path, "r+b") as f:
        n, = struct.unpack("<Q", f.read(8))
        t = json.loads(f.read(n))[name]
        raw = {"F32": lambda: struct.pack("<f", value), "F16": lambda: struct.pack("<e", value),
               "BF16": lambda: struct.pack("<f", value)[2:]}[t["dtype"]]()
        f.seek(8 + n + t["data_offsets"][0] + (row * t["shape"][-1] + column) * len(raw))
        f.write(raw)


def place(path, name):
    with open(path, "rb") as f:
        n, = struct.unpack("<Q", f.read(8))
        begin, end = json.loads(f.read(n))[name]["data_offsets"]
        f.seek(8 + n + begin)
        return 8 + n + begin, f.read(end - begin)


def copy(path, name, to, other):
    data = place(path, name)[1]
    at, old = place(to, other)
    assert len(data) == len(old)
    with open(to, "r+b") as f:
        f.seek(at)
        f.write(data)


def tame(path):
    with open(path, "r+b") as f:
        n, = struct.unpack("<Q", f.read(8))
        for name, t in json.loads(f.read(n)).items():
            if name == "__metadata__" or t["dtype"] not in SIZE:
                continue
            begin, end = t["data_offsets"]
            f.seek(8 + n + begin)
            raw = bytearray(f.read(end - begin))
            high = slice(SIZE[t["dtype"]] - 1, None, SIZE[t["dtype"]])
            raw[high] = bytes(b & 0xBF for b in raw[high])  # the highest bit of the exponent
            f.seek(8 + n + begin)
            f.write(raw)


if sys.argv[1] == "put":
    put(sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]), float(sys.argv[6]))
elif sys.argv[1] == "copy":
    copy(*sys.argv[2:6])
else:
    tame(sys.argv[2])
