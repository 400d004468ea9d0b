#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Staged updates into a real torch, with the routes of both xorl servers: until the word every rank
holds its old weights and answers, and afterwards all of them hold the new ones.
"""
import contextlib
import os
import signal
import sys
import threading
import time

import lib
import mkst

suite = lib.Suite()
VERSION = os.environ.get("PEERS_TORCH", "2.6")
TENSORS = [("model.layers.%d.%s.weight" % (i, n), "F32", (300 + i, 511))
           for i in range(6) for n in ("a", "b")] + [("codes", "U8", (3, 100003)),
                                                     ("one", "F32", (1,))]
ROUTES = ("/prepare_weights_update", "/complete_weights_update", "/pause_generation",
          "/continue_generation", "/destroy_weights_update_group")
AT_STAGE = ["/prepare_weights_update"]
AT_WORD = ["/pause_generation", "/complete_weights_update", "/continue_generation",
           "/destroy_weights_update_group"]


class Fixture:
    def __init__(self):
        options = ["--remember", "--join", "20", "--lineage"]
        self.legacy = lib.Receivers(VERSION, [1, 2, 1], options=[*options, "xorl-legacy"])
        self.xorl = lib.Receivers(VERSION, [1, 2, 1, 1], options=[*options, "xorl"])
        self.files = []
        for seed in (1, 2):
            self.files.append(lib.scratch("staged-%d.safetensors" % seed))
            mkst.write(self.files[-1], TENSORS, seed)


def ctl(*args):
    return lib.run_program("wsync-ctl", [*args, "--json"], [])


@contextlib.contextmanager
def watched(endpoint, expected):
    """Meanwhile it is asked again and again, and every answer is that it holds the same."""
    over, seen = threading.Event(), []

    def watch():
        while not over.is_set():
            held = endpoint.get("/received")
            seen.append(all({n: t["sha256"] for n, t in rank.items()} ==
                            {n: t["sha256"] for n, t in expected.items()} for rank in held))
            time.sleep(0.005)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        lib.await_true(lambda: seen, "a first answer")
        yield seen
        before = len(seen)
        lib.await_true(lambda: len(seen) > before, "an answer after it")
    finally:
        over.set()
        thread.join()
    assert len(seen) > 1 and all(seen), "%d answers, %d of them other weights" % (
        len(seen), seen.count(False))


def staged(name, tps, *options):
    @suite.case("%s, tp %s%s" % (name, " and ".join(map(str, tps)),
                                 "".join(", " + o.strip("-") for o in options)))
    def check(fix):
        endpoints = getattr(fix, name).choose(*tps)
        old, new = fix.files
        result = lib.push(endpoints, [old], "--protocol", "update", "--weight-version", "old")
        assert result.rc == 0, result
        before = [len(e.journal()) for e in endpoints]
        with watched(endpoints[0], lib.oracle(old)):
            result = lib.push(endpoints, [new], "--stage", "--bucket-size", "1MiB",
                              "--weight-version", "new", *options)
            assert result.rc == 0 and result.end["buckets"] > 3, result
            assert all(e["staged"] and e["state"] == "untouched"
                       for e in result.end["endpoints"]), result
        lib.check_held(endpoints, lib.oracle(old))
        for e, n in zip(endpoints, before):
            assert [s for s in e.steps(n) if s in ROUTES] == AT_STAGE, e.steps(n)
            assert e.get("/model_info")["weight_version"] == "old"
        before = [len(e.journal()) for e in endpoints]
        result = ctl("complete")
        assert result.rc == 0, result
        assert all(e["state"] == "committed" and e["paused_ns"] > 0
                   for e in result.end["endpoints"]), result
        lib.check_held(endpoints, lib.oracle(new))
        for e, n in zip(endpoints, before):
            assert [s for s in e.steps(n) if s in ROUTES] == AT_WORD, e.steps(n)
            assert e.get("/model_info")["weight_version"] == "new"
        result = lib.push(endpoints, [old], "--protocol", "two-phase", "--bucket-size", "1MiB")
        assert result.rc == 0, result
        lib.check_held(endpoints, lib.oracle(old))


for where, sizes in (("legacy", ([1], [2], [1, 2], [2, 1, 1])), ("xorl", ([2], [2, 1], [1, 2, 1]))):
    for of_them in sizes:
        staged(where, of_them)
    staged(where, [1], "--load-format", "none")


@suite.case("xorl: one of two dies between stage and complete; the other gets the new weights")
def dies(fix):
    old, new = fix.files
    victim, other = fix.xorl.endpoints.pop(), fix.xorl.choose(2)[0]
    result = lib.push([victim, other], [new], "--stage", "--weight-version", "new")
    assert result.rc == 0, result
    os.kill(victim.pid, signal.SIGKILL)
    result = ctl("complete")
    assert result.rc == 9, result
    states = {e["url"]: e["state"] for e in result.end["endpoints"]}
    assert states == {victim.url: "untouched", other.url: "committed"}, result
    assert result.end["error"]["endpoint"] == victim.url, result
    lib.check_held([other], lib.oracle(new))
    lib.forget([victim])


@suite.case("legacy: it cannot drop an update; the next push ends it")
def next_push(fix):
    old, new = fix.files
    endpoint = fix.legacy.choose(2)[0]
    result = lib.push([endpoint], [new], "--stage")
    assert result.rc == 0, result
    result = ctl("discard")
    assert result.rc == 5 and "cannot drop" in result.end["error"]["message"], result
    result = lib.push([endpoint], [old], "--protocol", "two-phase", "--bucket-size", "1MiB")
    assert result.rc == 0, result
    lib.check_held([endpoint], lib.oracle(old))
    result = ctl("discard")
    assert result.rc == 0, result


sys.exit(suite.main(Fixture))
