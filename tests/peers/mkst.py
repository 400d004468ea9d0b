#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""mkst.py - write a safetensors file: mkst.py OUT [--seed N] [--holes] NAME:DTYPE:DIM,DIM,...

Contents are random bytes drawn from the seed, which repeat after 16 MiB but for 8 bytes; with
--holes they are zeros that take no disk. The layout: u64 length of the header, the header in JSON
padded with spaces to a multiple of 8, then the tensors back to back in the order given.

It is started so often that its imports count: argparse, json and random take twice as long as the
rest.
"""
import math
import struct
import sys
from _json import encode_basestring_ascii as quoted
from _random import Random

SIZE = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "I16": 2, "F16": 2, "BF16": 2,
        "I32": 4, "F32": 4, "I64": 8, "F64": 8}
CHUNK = 16 << 20


def write(path, tensors, seed=0, holes=False):
    """tensors: (name, safetensors dtype, shape)."""
    header, at = [], 0
    for name, dtype, shape in tensors:
        size = SIZE[dtype] * math.prod(shape)
        header.append('%s: {"dtype": "%s", "shape": %s, "data_offsets": %s}' % (
            quoted(name), dtype, list(shape), [at, at + size]))
        at += size
    text = b"{%s}" % ", ".join(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        if holes:
            f.truncate(f.tell() + at)
            return
        # One chunk of random bytes, told apart by its number: a gigabyte must not take seconds.
        random, size = Random(), min(at, CHUNK)
        random.seed(seed)
        block = bytearray(random.getrandbits(8 * size).to_bytes(size, "little"))
        for done in range(0, at, CHUNK):
            if done:
                struct.pack_into("<Q", block, 0, done)
            f.write(block[:at - done])


def main(args):
    holes, seed = "--holes" in args, 0
    if holes:
        args.remove("--holes")
    if "--seed" in args:
        at = args.index("--seed")
        seed = int(args[at + 1])
        del args[at:at + 2]
    out, *texts = args
    assert texts, __doc__
    parts = [text.rsplit(":", 2) for text in texts]
    write(out, [(name, dtype, [int(d) for d in dims.split(",") if d])
                for name, dtype, dims in parts], seed, holes)


if __name__ == "__main__":
    main(sys.argv[1:])
