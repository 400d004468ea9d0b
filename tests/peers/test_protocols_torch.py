#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two-phase, receive and session into a real torch, with the routes of the forks that have them:
the right bytes when it works, and no server in the middle of a protocol when it does not.
"""
import contextlib
import json
import os
import signal
import sys
import urllib.request

import lib
import mkst

suite = lib.Suite()
# numbers: of a bucket that takes a while, of one beyond the sockets' buffers
HUGE, LARGE = 64 << 20, 4 << 20
TENSORS = [("model.layers.%d.%s.weight" % (i, n), "F32", (300 + i, 511))
           for i in range(6) for n in ("a", "b")] + [("odd", "F32", (13,)), ("one", "F32", (1,))]
BYTES = TENSORS + [("codes", "U8", (3, 100003))]
VERSION = os.environ.get("PEERS_TORCH", "2.6")
TWO_PHASE = ("/prepare_weights_update", "/complete_weights_update")


class Fixture:
    def __init__(self):
        self.hold = lib.scratch("hold")
        held = ["--hold", self.hold, "--lineage"]
        self.legacy = lib.Receivers(VERSION, [1, 2, 1, 1], options=[*held, "xorl-legacy"])
        self.xorl = lib.Receivers(VERSION, [1, 2, 1, 1], options=[*held, "xorl", "--join", "30"])
        self.session = lib.Receivers(VERSION, [1, 2], options=["--lineage", "session"])
        self.plain = lib.Receivers(VERSION, [1])
        self.floats, self.bytes = lib.scratch("floats.safetensors"), \
            lib.scratch("bytes.safetensors")
        self.huge, self.large = lib.scratch("huge.safetensors"), lib.scratch("large.safetensors")
        mkst.write(self.floats, TENSORS, 1)
        mkst.write(self.bytes, BYTES, 2)
        for path, n in ((self.huge, HUGE), (self.large, LARGE)):
            mkst.write(path, [("a", "F32", (n,)), ("b", "F32", (n,))], holes=True)


def plan_of(result):
    return result.of("plan")[-1]["protocol"]


def steps_of(endpoint, before, wanted):
    return [s for s in endpoint.steps(before) if s in wanted]


@contextlib.contextmanager
def nothing_received(fix):
    """Meanwhile no bucket arrives."""
    with open(fix.hold, "w"):
        pass
    try:
        yield
    finally:
        os.unlink(fix.hold)


def check_usable(fix, *endpoints):
    """As they are: by the protocol that they had trouble with."""
    result = lib.push(endpoints, [fix.floats], "--protocol", "two-phase")
    assert result.rc == 0, result
    lib.check_held(endpoints, lib.oracle(fix.floats))


def two_phase(name, tps, *options):
    @suite.case("two-phase into %s, tp %s%s" % (name, " and ".join(map(str, tps)),
                                                "".join(", " + o.strip("-") for o in options)))
    def check(fix):
        endpoints = getattr(fix, name).choose(*tps)
        before = [len(e.journal()) for e in endpoints]
        result = lib.push(endpoints, [fix.bytes], "--protocol", "two-phase", "--bucket-size",
                          "1MiB",
                          "--weight-version", "w7", *options)
        assert result.rc == 0 and plan_of(result) == "two-phase", result
        lib.check_held(endpoints, lib.oracle(fix.bytes))
        for e, n in zip(endpoints, before):
            journal = [j for j in e.journal()[n:] if j["path"] in TWO_PHASE]
            buckets = 1 if "whole" in options else result.end["buckets"]
            assert result.end["buckets"] > 3, result
            assert [j["path"] for j in journal] == list(TWO_PHASE) * buckets, journal
            completes = [j["body"] for j in journal if j["path"] == TWO_PHASE[1]]
            assert [c["flush_cache"]
                    for c in completes] == [False] * (buckets - 1) + [True], completes
            assert not any("weight_version" in c for c in completes), completes
            assert e.get("/model_info")["weight_version"] == "w7"


for where, sizes in (("legacy", ([1], [1, 2], [2, 1, 1])), ("xorl", ([2], [2, 1], [1, 2, 1]))):
    for of_them in sizes:
        for manner in ((), ("--two-phase", "whole")):
            for fmt in ((), ("--load-format", "none")):
                two_phase(where, of_them, *manner, *fmt)


@suite.case("two-phase keeps its group over two pushes")
def stays(fix):
    endpoints = fix.xorl.choose(1, 2)
    session = lib.Session(endpoints, "--protocol", "two-phase", "--bucket-size", "1MiB")
    for path in (fix.floats, fix.bytes):
        result = session.push(path)
        assert result and result["ok"], result
        # The second holds all the names of the first.
        lib.check_held(endpoints, lib.oracle(path))
    rc, end = session.close()
    assert rc == 0 and end["ok"], end


def is_gone(pid):
    """A zombie is, too: nobody may wait for it."""
    try:
        with open("/proc/%d/stat" % pid) as f:
            return f.read().rsplit(")", 1)[1].split()[0] in "ZX"
    except FileNotFoundError:
        return True


def check_undone(fix, name):
    """One of two dies while the first of two buckets moves: the other forgets what was prepared."""
    def is_prepared(endpoint):
        return any(j["path"] == TWO_PHASE[0] and j["status"] == 200
                   for j in endpoint.journal()[before[endpoint]:])

    pool = getattr(fix, name)
    victim, other = pool.endpoints.pop(), pool.choose(2)[0]
    before = {e: len(e.journal()) for e in (victim, other)}
    with nothing_received(fix):
        running = lib.Running([victim, other], [fix.large], "--protocol", "two-phase",
                              "--bucket-size",
                              "16MiB")
        lib.await_true(lambda: is_prepared(victim) and is_prepared(other), "first bucket")
        os.kill(victim.pid, signal.SIGKILL)
        lib.await_true(lambda: is_gone(victim.ranks[0]), "end of its rank")
    result = running.wait()
    assert result.rc in (4, 6), result
    assert steps_of(other, before[other], TWO_PHASE) == list(TWO_PHASE), other.steps(before[other])
    states = {e["url"]: e["state"] for e in result.end["endpoints"]}
    assert states[other.url] == "untouched", result
    assert "/continue_generation" in other.steps(before[other])
    check_usable(fix, other)


@suite.case("xorl-legacy: one of two dies; the other is completed in vain and takes the next push")
def legacy_dies(fix):
    check_undone(fix, "legacy")


@suite.case("xorl: one of two dies; the other is completed in vain and takes the next push")
def xorl_dies(fix):
    check_undone(fix, "xorl")


@suite.case("one that is prepared already refuses; the others are freed, and whoever reads is told "
            "why")
def prepared(fix):
    busy, other = fix.legacy.choose(1, 2)
    before = len(other.journal())
    first = lib.Session([busy], "--protocol", "two-phase", "--group-name", "first")
    assert first.push(fix.floats)["ok"]
    body = {"names": ["x"], "dtypes": ["float32"], "shapes": [[4]], "group_name": "first"}
    ask = urllib.request.Request(busy.url + TWO_PHASE[0], json.dumps(body).encode())
    assert json.load(urllib.request.urlopen(ask, timeout=lib.PATIENCE))["success"]
    result = lib.push([busy, other], [fix.bytes], "--protocol", "two-phase")
    assert result.rc == 5 and "already in progress" in result.stderr, result
    assert "restart" in result.stderr, result
    assert steps_of(other, before, TWO_PHASE) == list(TWO_PHASE), other.steps(before)
    first.child.stdin.close()
    first.child.wait(lib.PATIENCE)
    check_usable(fix, other)


@suite.case("receive: one request for everything, each tensor by itself, all in one go")
def receive(fix):
    endpoints = fix.legacy.choose(1, 2)
    before = [len(e.journal()) for e in endpoints]
    result = lib.push(endpoints, [fix.floats], "--protocol", "receive", "--bucket-size", "1MiB",
                      "--weight-version", "w8")
    assert result.rc == 0 and plan_of(result) == "receive", result
    assert result.of("plan")[-1]["load_format"] == "none", result
    lib.check_held(endpoints, lib.oracle(fix.floats))
    for e, n in zip(endpoints, before):
        assert e.steps(n).count("/receive_weights") == 1, e.steps(n)
        assert e.get("/model_info")["weight_version"] == "w8"


@suite.case("receive refuses a dtype that it does not know before anybody is paused")
def receive_dtype(fix):
    endpoint, = fix.legacy.choose(1)
    before = len(endpoint.journal())
    result = lib.push([endpoint], [fix.bytes], "--protocol", "receive")
    assert result.rc == 5 and "codes is uint8" in result.stderr, result
    assert "/pause_generation" not in endpoint.steps(before), endpoint.steps(before)


@suite.case("a server with sessions: begin, updates, end; chosen by itself")
def session(fix):
    endpoints = fix.session.choose(1, 2)
    before = [len(e.journal()) for e in endpoints]
    result = lib.push(endpoints, [fix.bytes], "--bucket-size", "1MiB", "--weight-version", "w9")
    assert result.rc == 0 and plan_of(result) == "session", result
    lib.check_held(endpoints, lib.oracle(fix.bytes))
    for e, n in zip(endpoints, before):
        done = e.steps(n)
        assert done.count("/begin_weight_update") == done.count("/end_weight_update") == 1, done
        begin, end = done.index("/begin_weight_update"), done.index("/end_weight_update")
        updates = [i for i, s in enumerate(done) if s == "/update_weights_from_distributed"]
        assert begin < updates[0] and updates[-1] < end < done.index("/update_weight_version"), done


@suite.case("a session is ended also when the push is cancelled in its middle")
def session_cancelled(fix):
    endpoint, = fix.session.choose(1)
    for _ in range(10):  # the bucket may have arrived before the signal
        before = len(endpoint.journal())
        running = lib.Running([endpoint], [fix.huge], "--bucket-size", "256MiB", "--on-partial",
                              "resume")
        lib.await_true(lambda n=before: "/update_weights_from_distributed" in endpoint.steps(n),
                       "bucket")
        running.child.send_signal(signal.SIGINT)
        result = running.wait()
        if result.rc != 0:
            break
    assert result.rc == -signal.SIGINT, result
    done = endpoint.steps(before)
    assert "/end_weight_update" in done and "/continue_generation" in done, done
    lib.forget([endpoint])
    assert lib.push([endpoint], [fix.floats]).rc == 0


@suite.case("a plain server beside one with sessions: both are served")
def mixed_session(fix):
    endpoints = fix.session.choose(1) + fix.plain.choose(1)
    result = lib.push(endpoints, [fix.bytes])
    assert result.rc == 0 and plan_of(result) == "session", result
    lib.check_held(endpoints, lib.oracle(fix.bytes))
    assert "/begin_weight_update" not in fix.plain.endpoints[0].steps()


@suite.case("what one of them does not take is refused before anybody is paused, and says which")
def refused(fix):
    plain, = fix.plain.choose(1)
    endpoints = fix.legacy.choose(1) + [plain]
    before = [len(e.journal()) for e in endpoints]
    for protocol in ("two-phase", "receive"):
        result = lib.push(endpoints, [fix.floats], "--protocol", protocol)
        assert result.rc == 5 and plain.url in result.stderr \
            and "it takes update" in result.stderr, \
            result
    for e, n in zip(endpoints, before):
        assert "/pause_generation" not in e.steps(n) \
            and "/init_weights_update_group" not in e.steps(n)


if __name__ == "__main__":
    sys.exit(suite.main(Fixture))
