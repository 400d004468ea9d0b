#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""wsync-push into a real vLLM on a GPU, by every data plane that it takes there.

WSYNC_TEST_PYTHON names an interpreter that has vLLM for CUDA, 0.27 or later (python3). Two servers
are started on two checkpoints, one after the other on the same GPU; after a push of the other's
checkpoint a server must compute the bits that the other one did. With WSYNC_TEST_DEVICE=cpu the
vLLM of tests/peers/vllm.sh is used, which takes weights from disk and over gloo; that tries the
cases themselves.
"""
import subprocess
import sys

from on_torch import ON_CPU, PYTHON, lib
import vllm_server
from vllm_server import logprobs, make

FAMILIES = ("qwen3",) if ON_CPU else ("qwen3", "llama")
LEGAL = """
import importlib.util as u
assert u.find_spec('vllm'), 'it has no vLLM'
import torch
assert torch.cuda.is_available(), 'its torch sees no GPU'
print(torch.cuda.device_count())
"""


def server(family, seed, engine):
    if ON_CPU:
        return vllm_server.Server(make(family, seed), engine=engine)
    # The engine "ipc" unpickles what requests contain, and vLLM wants to be told that it may.
    device = {"CUDA_VISIBLE_DEVICES": "0", "VLLM_ALLOW_INSECURE_SERIALIZATION": "1"}
    options = ["--gpu-memory-utilization", "0.1"]
    return vllm_server.Server(make(family, seed), engine=engine, command=PYTHON, device=device,
                              options=options)


def compute(family, seed):
    with server(family, seed, "nccl") as fresh:
        return logprobs(fresh)


def check(fix, engine, ways):
    """Each way brings both checkpoints into a server, in turn."""
    for family in FAMILIES:
        want = {seed: fix.want(family, seed) for seed in (1, 2)}
        assert want[1] != want[2], "the prompts do not tell the checkpoints apart"
        with server(family, 1, engine) as s:
            assert logprobs(s) == want[1], "two fresh starts differ"
            for way in ways:
                for seed in (2, 1):
                    done = lib.push([s], [make(family, seed)], "--weight-version", str(seed), *way)
                    assert done.rc == 0, done
                    assert logprobs(s) == want[seed], "%s %s: not the bits of a fresh start" % (
                        family, " ".join(way))
                    assert s.get("/weight_info")[1]["weight_version"] == str(seed)


class Fix:
    def __init__(self, gpus):
        self.gpus, self.known = gpus, {}

    def want(self, family, seed):
        if (family, seed) not in self.known:
            self.known[family, seed] = compute(family, seed)
        return self.known[family, seed]


suite = lib.Suite()


@suite.case("from disk, and over gloo by the worker extension: packed, in many buckets, one by one")
def without_a_gpu_here(fix):
    check(fix, "nccl", [["--backend", "disk"], ["--backend", "gloo"],
                        ["--backend", "gloo", "--bucket-size", "16KiB"],
                        ["--backend", "gloo", "--load-format", "none"]])


@suite.case("from our memory of its GPU, in one bucket and in many")
def shared(fix):
    if not fix.gpus:
        raise lib.Skip("needs a GPU")
    lib.need("ipc")
    check(fix, "ipc", [["--backend", "ipc"], ["--backend", "ipc", "--bucket-size", "16KiB"],
                       ["--backend", "ipc", "--verify", "hash"]])


@suite.case("over NCCL from another GPU: packed, in many buckets, one by one")
def over_nccl(fix):
    if fix.gpus < 2:
        raise lib.Skip("needs two GPUs: NCCL takes one rank of each")
    ways = [[], ["--bucket-size", "16KiB"], ["--load-format", "none"], ["--verify", "hash"]]
    check(fix, "nccl", [["--backend", "nccl", "--gpu", "1", "--nccl-from", PYTHON, *way]
                        for way in ways])


def set_up():
    if ON_CPU:
        vllm_server.python()
        return Fix(0)
    try:
        done = subprocess.run([PYTHON, "-c", LEGAL], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, timeout=lib.PATIENCE, check=False)
    except OSError as e:
        raise lib.Skip("%s: %s" % (PYTHON, e.strerror)) from e
    if done.returncode:
        raise lib.Skip("%s: %s" % (PYTHON, done.stderr.strip().split("\n")[-1].split(": ")[-1]))
    return Fix(int(done.stdout.split()[-1]))


if __name__ == "__main__":
    sys.exit(suite.main(set_up))
