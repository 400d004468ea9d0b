# SPDX-License-Identifier: Apache-2.0
"""wsync-verify weights against real torch: its numbers where its checksums are not ours."""
import json
import os
import struct
import sys

import lib
import mkst

TENSORS = [("model.embed_tokens.weight", "BF16", (300, 24)), ("model.norm.weight", "F32", (24,)),
           ("lm_head.weight", "F16", (300, 24)), ("step", "I64", (3,)), ("mask", "BOOL", (4, 4))]
TENSORS += [("model.layers.%d.mlp.up_proj.weight" % i, dtype, (40, 24))
            for i, dtype in enumerate(("BF16", "F16", "F32", "F64"))]
# All patterns of a type, in pieces of which a sample shows all.
PATTERNS = [("patterns.%d.%s" % (i, dtype), dtype, (16, 1024))
            for dtype in ("BF16", "F16") for i in range(4)]
FLOAT8 = [("patterns.0.%s" % dtype, dtype, (16, 16)) for dtype in ("F8_E4M3", "F8_E5M2")]

suite = lib.Suite("bin/wsync-verify")


def poke(path, name, data, at=0):
    """Overwrites bytes of a tensor."""
    with open(path, "r+b") as f:
        size, = struct.unpack("<Q", f.read(8))
        f.seek(8 + size + json.loads(f.read(size))[name]["data_offsets"][0] + at)
        f.write(data)


def make(name, tensors, seed):
    path = lib.scratch(name)
    mkst.write(path, tensors, seed)
    # A byte that is neither 0 nor 1 is no boolean, and torch shows any such as 1.
    poke(path, "mask", bytes(i % 3 == 0 for i in range(16)))
    for tensor, dtype, _ in tensors:
        if tensor.startswith("patterns."):
            first = int(tensor.split(".")[1]) << 14
            poke(path, tensor, bytes(range(256)) if dtype.startswith("F8") else
                 struct.pack("<16384H", *range(first, first + 16384)))
    return path


class Fixture:
    """Torch that keeps tensors, torch that keeps SHA-256 only, two checkpoints of the same
    names."""

    def __init__(self):
        self.numbers = lib.Receivers("1.13", [1, 2], options=["--keep", "memory"])
        self.hashes = lib.Receivers("1.13", [1])
        self.first, self.second = (make("%d.safetensors" % i, TENSORS, i) for i in (1, 2))


def verify(endpoints, path, *options):
    return lib.run_program("wsync-verify", ["weights", path, "--json", *options], endpoints)


def answers(result):
    return [(e["answer"], e["means"]) for e in result.of("weights")]


@suite.case("every type is the numbers that torch shows, all patterns of 16 bits among them")
def numbers(fix):
    endpoints = fix.numbers.choose(1, 2)
    path = make("patterns.safetensors", TENSORS + PATTERNS, 4)
    result = lib.push(endpoints, [path])
    assert result.rc == 0, result
    result = verify(endpoints, path, "--samples", "100")
    assert result.rc == 0, result
    assert answers(result) == [("yes", "samples")] * 2, result.events
    for e in result.of("weights"):
        assert e["equal"] == len(TENSORS + PATTERNS) and not e["unanswered"], e
        assert e["algorithm"] == "sha256", e


@suite.case("another checkpoint is another, parameter by parameter")
def differs(fix):
    endpoints = fix.numbers.choose(1)
    assert lib.push(endpoints, [fix.first]).rc == 0
    result = verify(endpoints, fix.second, "--samples", "100")
    assert result.rc == 1 and answers(result) == [("no", "samples")], result
    # The mask is the same in both.
    assert {m["name"] for m in result.of("mismatch")} == {t[0]
                                                          for t in TENSORS} - {"mask"}, \
                                                              result.events
    assert all(m["kind"] == "value" and " at [" in m["expected"] for m in result.of("mismatch"))


@suite.case("one element of one parameter is found and placed")
def one_element(fix):
    endpoints = fix.numbers.choose(1)
    assert lib.push(endpoints, [fix.first]).rc == 0
    path = make("flipped.safetensors", TENSORS, 1)
    poke(path, "model.norm.weight", struct.pack("<f", 0.5), at=4 * 17)
    result = verify(endpoints, path, "--samples", "100")
    assert result.rc == 1, result
    wrong, = result.of("mismatch")
    assert wrong["name"] == "model.norm.weight" and wrong["expected"] == "0.5 at [17]", wrong
    assert "1 of 24 numbers differ" in wrong["found"], wrong


@suite.case("checksums of a kind of its own and no numbers: exit 11, and --twice is recommended")
def nothing(fix):
    endpoints = fix.hashes.choose(1)
    assert lib.push(endpoints, [fix.first]).rc == 0
    result = verify(endpoints, fix.first)
    assert result.rc == 11 and answers(result) == [("unknown", "none")], result
    assert "its checksums are sha256" in result.stderr and "--twice" in result.stderr, result


@suite.case("--twice compares such checksums with each other")
def twice(fix):
    endpoints = fix.hashes.choose(1)
    assert lib.push(endpoints, [fix.first]).rc == 0
    result = verify(endpoints, fix.first, "--twice")
    assert result.rc == 0 and answers(result) == [("yes", "twice")], result
    # What it held was not this, so all of it changes, and the hint says what to think of.
    result = verify(endpoints, fix.second, "--twice")
    assert result.rc == 1 and "most of it changed" in result.stderr, result
    assert {m["kind"] for m in result.of("mismatch")} == {"changed"}, result.events
    result = verify(endpoints, fix.second, "--twice")
    assert result.rc == 0, result


@suite.case("the codes of float8 are numbers too")
def float8(fix):
    if not os.path.isdir(lib.torch_root("2.6")):
        raise lib.Skip("no torch 2.6; tests/peers/chroot.sh 2.6 makes it")
    peers = lib.Receivers("2.6", [1], options=["--keep", "memory"])
    path = make("float8.safetensors", TENSORS + FLOAT8, 3)
    assert lib.push(peers.endpoints, [path]).rc == 0
    result = verify(peers.endpoints, path, "--samples", "100")
    assert result.rc == 0 and result.of("weights")[0]["equal"] == len(TENSORS + FLOAT8), result
    peers.stop()


sys.exit(suite.main(Fixture))
