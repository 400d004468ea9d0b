#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What this machine can do at all, by torch and its NCCL alone, on the GPU that is here
(on_torch.py): where one of these fails the other tests may too, and that is not wsync's doing. What
they measure is told, not judged.
"""
import json
import re
import subprocess
import sys

import on_torch
from on_torch import DEVICE, ON_CPU, PYTHON, lib

# Two of these: rank, device, port of the store (0: it has it).
JOIN = """
import json, os, sys, time
rank, device, port = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
os.environ["NCCL_HOSTID"] = "machine-%d" % rank
import torch
import torch.distributed as dist
store = dist.TCPStore("127.0.0.1", port, 2, rank == 0, wait_for_workers=False)
print(json.dumps(store.port), flush=True)
wait = torch.cuda.synchronize if device != "cpu" else lambda: None
dist.init_process_group("gloo" if device == "cpu" else "nccl", store=store, rank=rank, world_size=2)
x = torch.full((1 << 26,), 7 if rank == 0 else 0, dtype=torch.uint8, device=device)
took = []
for _ in range(4):
    wait()
    began = time.perf_counter()
    dist.broadcast(x, src=0)
    wait()
    took.append(time.perf_counter() - began)
print(json.dumps({"right": bool((x == 7).all()), "first": took[0], "best": min(took)}), flush=True)
sys.stdin.read()
dist.destroy_process_group()
"""
SHOW = """
import json, pickle, sys, torch
from torch.multiprocessing import reductions
x = torch.arange(1 << 20, device=sys.argv[1])
torch.cuda.synchronize()
rebuild, args = reductions.reduce_tensor(x)
with open(sys.argv[2], "wb") as f:
    pickle.dump(args, f)
print(json.dumps({"arguments": len(args), "handle": args[7][:2].hex(), "bytes": len(args[7]),
                  "uuid": str(torch.cuda.get_device_properties(0).uuid)}), flush=True)
sys.stdin.read()
"""
SEE = """
import json, pickle, sys, torch
from torch.multiprocessing import reductions
torch.zeros(1, device=sys.argv[1])
with open(sys.argv[2], "rb") as f:
    x = reductions.rebuild_cuda_tensor(*pickle.load(f))
print(json.dumps(bool((x == torch.arange(1 << 20, device=sys.argv[1])).all())), flush=True)
"""
COPY = """
import json, sys, time, torch
n, device = 1 << 30, sys.argv[1]
a, b = (torch.empty(n, dtype=torch.uint8, device=device) for _ in range(2))
began = time.perf_counter()
host = torch.empty(n, dtype=torch.uint8, pin_memory=True)
told = {"pinning": (n, time.perf_counter() - began)}
def best(copy, moved):
    took = []
    for _ in range(20):
        torch.cuda.synchronize()
        began = time.perf_counter()
        copy()
        torch.cuda.synchronize()
        took.append(time.perf_counter() - began)
    return moved, min(took)
told["on the GPU, read and written"] = best(lambda: b.copy_(a), 2 * n)
told["to the GPU"] = best(lambda: a.copy_(host, non_blocking=True), n)
told["from the GPU"] = best(lambda: host.copy_(a, non_blocking=True), n)
print(json.dumps(told))
"""

suite = lib.Suite()


class Child:
    """A program of that interpreter, whose lines of JSON are awaited and whose last words are
    kept."""

    def __init__(self, name, code, *args, env=None):
        self.err = open(lib.scratch(name + ".err"), "w+", encoding="utf-8", errors="replace")
        self.child = lib.start([PYTHON, "-c", code, *map(str, args)], env, stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, stderr=self.err)
        self.lines = lib.Lines(self.child.stdout)

    def next(self):
        said = self.lines.next()
        assert said is not None, "it died"  # its stderr is shown
        return said

    def __enter__(self):
        return self

    def __exit__(self, *_):
        lib.stop(self.child)
        self.err.close()


def tell_nccl(path):
    """Of what NCCL said: its version, and how the ranks reach each other."""
    with open(path, encoding="utf-8", errors="replace") as f:
        lines = [re.sub(r"^.*NCCL INFO ", "", line.strip()) for line in f]
    for wanted in "NCCL version", "Using network", "via NET", "via P2P", "via SHM", \
            "coll channels", "Init COMPLETE":
        for line in [line for line in lines if wanted in line][:1]:
            print("# NCCL: " + line, flush=True)


@suite.case("two processes of torch broadcast on one GPU, as ranks of two machines")
def broadcast(_fix):
    env = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": lib.scratch("machine-nccl-0.err")}
    with Child("machine-0", JOIN, 0, DEVICE, 0, env=env) as first:
        port = first.next()
        env["NCCL_DEBUG_FILE"] = lib.scratch("machine-nccl-1.err")
        with Child("machine-1", JOIN, 1, DEVICE, port, env=env) as second:
            second.next()
            told = [child.next() for child in (first, second)]
    print("# 64 MiB in %.1f ms, the first in %.1f ms: %.2f GB/s" % (
        told[1]["best"] * 1e3, told[1]["first"] * 1e3, (1 << 26) / told[1]["best"] / 1e9))
    if not ON_CPU:
        tell_nccl(lib.scratch("machine-nccl-0.err"))
    assert all(t["right"] for t in told), told


@suite.case("memory of one process of torch opens in another")
def ipc(_fix):
    if ON_CPU:
        raise lib.Skip("only a GPU's memory is opened so")
    path = lib.scratch("tensor.pickle")
    with Child("shows", SHOW, DEVICE, path) as shows:
        print("# torch shows it by %s" % json.dumps(shows.next()))
        with Child("sees", SEE, DEVICE, path) as sees:
            assert sees.next() is True, "other bytes"


@suite.case("copies of 1 GiB, best of 20")
def copies(_fix):
    if ON_CPU:
        raise lib.Skip("only a GPU has two memories")
    with Child("copies", COPY, DEVICE) as child:
        for name, (moved, seconds) in child.next().items():
            print("# %-30s %8.1f GB/s" % (name, moved / seconds / 1e9))


sys.exit(suite.main(on_torch.begin))
