#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""wsync-push --backend nccl into endpoints of a real torch, all ranks on the GPU that is here
(on_torch.py)."""
import os
import signal
import sys
import time

import on_torch
from on_torch import ON_CPU, OVER, lib
import mkst

PLAIN = [("embed.weight", "F32", (2000, 300)), ("layers.0.w", "F32", (513, 1025)),
         ("layers.1.q", "U8", (3, 100003)), ("layers.1.h", "F16", (513, 77)),
         ("layers.1.i", "I64", (31, 3)), ("odd", "U8", (13,)), ("one", "U8", (1,)),
         ("s", "F32", ())]
BFLOAT = [("model.layers.%d.mlp.%s.weight" % (i, n), "BF16", (300 + i, 511))
          for i in range(6) for n in ("gate_proj", "up_proj", "down_proj")]
FLOAT8 = [("a.weight", "F8_E4M3", (1000, 77)), ("a.weight_scale_inv", "F32", (8, 1)),
          ("b.weight", "F8_E4M3", (33, 3)), ("b.weight_scale_inv", "F32", (1, 1)),
          ("b.bias", "BF16", (33,))]
FLAT = ("--load-format", "flattened_bucket", "--bucket-size", "1MiB")
EACH = ("--load-format", "none", "--bucket-size", "1MiB")

suite = lib.Suite()


def make(name, tensors, seed=0):
    path = lib.scratch(name + ".safetensors")
    mkst.write(path, tensors, seed)
    return path


def check(endpoints, name, tensors, *options):
    path = make(name, tensors, seed=len(options))
    result = lib.push(endpoints, [path], *OVER, *options)
    assert result.rc == 0 and result.end["ok"], result
    lib.check_held(endpoints, lib.oracle(path))
    return result


@suite.case("lazy servers, flattened buckets, ranks 1 to 3")
def lazy_flat(fix):
    check(fix.lazy.choose(1, 2), "plain", PLAIN, *FLAT)


@suite.case("lazy servers, a broadcast for each tensor")
def lazy_each(fix):
    check(fix.lazy.choose(1, 2), "plain", PLAIN, *EACH)


@suite.case("bfloat16 and pairs of FP8, flattened")
def small_types(fix):
    check(fix.lazy.choose(2), "bfloat", BFLOAT, *FLAT)
    if not ON_CPU:  # whose torch may be too old for them
        check(fix.lazy.choose(1), "float8", FLOAT8, *FLAT)


@suite.case("bfloat16 and pairs of FP8, one by one")
def small_types_each(fix):
    if ON_CPU:
        raise lib.Skip("gloo broadcasts none of them")
    check(fix.lazy.choose(2), "bfloat", BFLOAT, *EACH)
    check(fix.lazy.choose(1), "float8", FLOAT8, *EACH)


@suite.case("a tensor much larger than a bucket and than the pinned ring")
def big(fix):
    result = check(fix.lazy.choose(1), "big", [("big", "F32", (1 << 16, 1024)), ("s", "U8", (5,))],
                   *FLAT)
    assert result.end["bytes"] == (1 << 28) + 5


@suite.case("eager servers, which join while they are invited")
def eager(fix):
    if ON_CPU:
        raise lib.Skip("only NCCL has them")
    peers = fix.receivers([1, 2], "--eager")
    check(peers.endpoints, "plain", PLAIN, *FLAT)
    check(peers.endpoints, "bfloat", BFLOAT, *EACH)
    peers.stop()


@suite.case("three pushes through one group")
def session(fix):
    endpoints = fix.lazy.choose(1, 2)
    session = lib.Session(endpoints, *OVER, *FLAT)
    for i in range(3):
        path = make("push%d" % i, PLAIN, seed=100 + i)
        result = session.push(path)
        assert result and result["ok"], result
        lib.check_held(endpoints, lib.oracle(path))
    rc, end = session.close()
    assert rc == 0 and end["ok"], end


@suite.case("a peer that dies ends the push in seconds, and says so")
def death(fix):
    peers = fix.receivers([1, 2])
    path = lib.scratch("holes.safetensors")
    mkst.write(path, [("w%d" % i, "F32", (1 << 16, 1024)) for i in range(16)], holes=True)
    push = lib.Running(peers.endpoints, [path], *OVER, "--on-partial", "resume", "--bucket-size",
                       "256MiB", "--bucket-timeout", "60" if ON_CPU else "30")
    lib.await_true(lambda: "/update_weights_from_distributed" in peers.endpoints[0].steps(),
                   "a bucket")
    time.sleep(0.3)
    os.kill(peers.endpoints[1].ranks[1], signal.SIGKILL)
    result = push.wait()
    assert result.rc in (5, 6, 9, 10), result  # 5: the other server was faster to say it
    assert result.end["error"]["message"], result
    peers.stop()


class Fixture:
    def __init__(self):
        on_torch.begin()
        self.lazy = self.receivers([1, 2])

    receivers = staticmethod(on_torch.receivers)


sys.exit(suite.main(Fixture))
