#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""wsync-push of a trainer's own GPU memory (cuda-ipc:MANIFEST.json), the trainer being a real torch on the GPU
that is here (on_torch.py). It reads its weights from a file, which is what must arrive."""
import os
import subprocess
import sys
import time

import on_torch
from on_torch import ON_CPU, OVER, PYTHON, lib
import mkst

PLAIN = [("embed.weight", "F32", (2000, 300)), ("w", "BF16", (513, 1025)), ("turned.weight", "BF16", (300, 77)),
         ("f8", "F8_E4M3", (130, 7)), ("h", "F16", (513, 77)), ("i", "I64", (31, 3)), ("odd", "U8", (13,)),
         ("one", "U8", (1,)), ("s", "F32", ()), ("empty", "F32", (0, 7))]
LARGE = [("model.layers.%d.mlp.up_proj.weight" % i, "BF16", (4096, 4096)) for i in range(32)]  # 1 GiB
TRAINER = """
import json, struct, sys, torch
sys.path.insert(0, sys.argv[1])
from wsync_manifest import export
path, manifest, device = sys.argv[2:5]
TYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16, "I64": torch.int64, "U8": torch.uint8,
         "F8_E4M3": torch.float8_e4m3fn}
data = torch.frombuffer(bytearray(open(path, "rb").read()), dtype=torch.uint8)
size, = struct.unpack("<Q", bytes(data[:8].tolist()))
header = json.loads(bytes(data[8:8 + size].tolist()))
state = {}
for name, t in header.items():
    begin, end = (8 + size + x for x in t["data_offsets"])
    x = data[begin:end].to(device, copy=True).view(TYPES[t["dtype"]]).reshape(t["shape"])
    state[name] = x.t().contiguous().t() if name.startswith("turned") else x
keep = export(state, manifest)
print("exported", flush=True)
for line in sys.stdin:
    for t in keep.values():
        t.view(-1).view(torch.uint8).bitwise_xor_(1)
    torch.cuda.synchronize()
    print("changed", flush=True)
"""

suite = lib.Suite(600)


class Trainer:
    def __init__(self, name, tensors):
        self.path, self.manifest = lib.scratch(name + ".safetensors"), lib.scratch(name + ".json")
        mkst.write(self.path, tensors, seed=5)
        self.each_byte(lambda b: b & 0xbf)  # no bfloat16 is NaN or infinite then
        self.child = lib.start([PYTHON, "-c", TRAINER, os.path.join(lib.TREE, "cmd/python"), self.path, self.manifest,
                                on_torch.DEVICE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                               stderr=open(lib.scratch(name + "-trainer.err"), "w", encoding="utf-8"))
        assert self.child.stdout.readline() == "exported\n", "the trainer does not export"

    def change(self):
        """Every byte of every tensor, in place; and in the file."""
        self.child.stdin.write("go on\n")
        self.child.stdin.flush()
        assert self.child.stdout.readline() == "changed\n", "the trainer does not change its weights"
        self.each_byte(lambda b: b ^ 1)

    def each_byte(self, change):
        table = bytes(change(b) for b in range(256))
        with open(self.path, "r+b") as f:
            at = 8 + int.from_bytes(f.read(8), "little")
            f.seek(at)
            data = f.read()
            f.seek(at)
            f.write(data.translate(table))

    def stop(self):
        lib.stop(self.child)


def push(trainer, endpoints, *options, seconds=180):
    return lib.push(endpoints, ["cuda-ipc:" + trainer.manifest], *options, seconds=seconds)


@suite.case("a trainer's tensors arrive over NCCL, also such as do not lie in order")
def nccl(fix):
    for form in (["--load-format", "flattened_bucket"], ["--bucket-size", "1MiB"]):
        result = push(fix.trainer, fix.peers.endpoints, *OVER, *form)
        assert result.rc == 0, result
        lib.check_held(fix.peers.endpoints, lib.oracle(fix.trainer.path))


@suite.case("and over gloo, verified by hash")
def gloo(fix):
    with lib.Embedded("--keep", "hash") as e:
        result = push(fix.trainer, [e], "--verify", "hash")
        assert result.rc == 0, result


@suite.case("made FP8 on their way they are what a file of them becomes")
def quantized(fix):
    found = []
    for source in "cuda-ipc:" + fix.large.manifest, fix.large.path:
        result = lib.push(fix.peers.endpoints, [source], *OVER, "--quantize", "fp8", seconds=240)
        assert result.rc == 0, result
        found.append([e.get("/received") for e in fix.peers.endpoints])
    assert found[0] == found[1], "from memory and from the file they differ"


@suite.case("weights changed in place are what the next push of the same manifest sends")
def changed(fix):
    fix.trainer.change()
    result = push(fix.trainer, fix.peers.endpoints, *OVER)
    assert result.rc == 0, result
    lib.check_held(fix.peers.endpoints, lib.oracle(fix.trainer.path))


@suite.case("a gigabyte, and how fast")
def speed(fix):
    for source in "cuda-ipc:" + fix.large.manifest, fix.large.path:
        result = lib.push(fix.peers.endpoints[:1], [source], *OVER, seconds=240)
        assert result.rc == 0, result
        print("# from %s: 1 GiB to one rank in %.2f s of transfer" % (
            source.split("/")[-1], result.end["ns"]["transfer"] / 1e9), flush=True)


@suite.case("a trainer that is gone is told of, and nobody is left paused")
def gone(fix):
    fix.trainer.stop()
    before = [len(e.steps()) for e in fix.peers.endpoints]
    began = time.monotonic()
    result = push(fix.trainer, fix.peers.endpoints, *OVER)
    assert result.rc in (3, 7) and time.monotonic() - began < 30, result
    assert fix.trainer.manifest in result.stderr or "process" in result.stderr, result
    for e, n in zip(fix.peers.endpoints, before):
        steps = e.steps(n)
        assert steps.count("/continue_generation") >= steps.count("/pause_generation"), steps


class Fixture:
    def __init__(self):
        on_torch.begin()
        if ON_CPU:
            raise lib.Skip("only a GPU has memory of this kind")
        self.trainer, self.large = Trainer("plain", PLAIN), Trainer("large", LARGE)
        self.peers = on_torch.receivers([1, 2])


sys.exit(suite.main(Fixture))
