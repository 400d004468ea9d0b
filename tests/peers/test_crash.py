# SPDX-License-Identifier: Apache-2.0
"""wsync-push killed, interrupted and terminated in every phase, and what `wsync-ctl repair` makes of it.

An endpoint that never answers one request holds the push at the boundary of a phase, and there it gets its
signal; others are killed at moments drawn by chance (CRASH_SEED, CRASH_RANDOM of them). What an endpoint
really holds is read off its journal: how many buckets it agreed to. Then, whatever happened: who is called
committed has everything, who is called untouched has nothing, nobody of these is paused, and afterwards
`repair --again`, or any other push, makes everything good and leaves no record.
"""
import concurrent.futures
import json
import os
import random
import signal
import subprocess
import sys
import time

import lib
import mkst

TENSORS = [("t%02d" % i, "F32", (64, 32)) for i in range(12)]
BUCKETS = 4
OPTIONS = ["--bucket-size", "24KiB", "--weight-version", "new", "--json"]
SEED = int(os.environ.get("CRASH_SEED", "5"))
RANDOM = int(os.environ.get("CRASH_RANDOM", "12"))
# Where it is held: the route that is not answered, which call of it, and what else the push is told.
BOUNDARIES = [
    ("init", "init_weights_update_group", 1, []),
    ("pause", "pause_generation", 1, []),
    ("flush", "flush_cache", 1, []),
    ("first bucket", "update_weights_from_distributed", 1, []),
    ("second bucket", "update_weights_from_distributed", 2, []),
    ("last bucket", "update_weights_from_distributed", BUCKETS, []),
    ("verification", "weights_checker", 1, ["--verify", "hash"]),
    ("version", "update_weight_version", 1, ["--verify", "hash"]),
    ("resume", "continue_generation", 1, []),
    ("destroy", "destroy_weights_update_group", 1, []),
]
# The same at servers with protocols of their own, which a push may leave in their middle.
PROTOCOLS = [
    ("session, second bucket", "update_weights_from_distributed", 2, ["session"]),
    ("session, its end", "end_weight_update", 1, ["session"]),
    ("two-phase, second prepare", "prepare_weights_update", 2, ["xorl", "--protocol", "two-phase"]),
    ("two-phase, second completion", "complete_weights_update", 2, ["xorl", "--protocol", "two-phase"]),
    ("two-phase in one, its completion", "complete_weights_update", 1,
     ["xorl", "--protocol", "two-phase", "--two-phase", "whole"]),
    ("disk, the load", "update_weights_from_disk", 1,
     ["sglang-2026", "--backend", "disk", "--disk-dir", lib.scratch("disk")]),
]
SIGNALS = [signal.SIGKILL, signal.SIGINT, signal.SIGTERM]
UPDATE = "/update_weights_from_distributed"
COMPLETE = "/complete_weights_update"
LOAD = "/update_weights_from_disk"


class Case:
    """Two endpoints, of which one may be held, and a state directory of their own."""

    def __init__(self, name, source, faults, options=(), lineage=None):
        self.source, self.options = source, list(options)
        self.state = lib.scratch("state-" + name)
        self.env = {"XDG_STATE_HOME": self.state, "WSYNC_REGISTRY": lib.scratch("registry.json")}
        held = [w for f in faults or () for w in ("--fault", f)]
        kind = ["--lineage", lineage] if lineage else []
        self.endpoints = [lib.Embedded("--tp", "2", *kind), lib.Embedded(*held, *kind)]
        for e in self.endpoints:
            e.needs = 1 if "whole" in options or "disk" in options else BUCKETS
            e.path = COMPLETE if "two-phase" in options else LOAD if "disk" in options else UPDATE
        self.targets = [w for e in self.endpoints for w in ("-e", e.url)]

    def close(self):
        for e in self.endpoints:
            lib.stop(e.child)

    def start(self, *more):
        argv = [os.path.join(lib.BUILD, "bin/wsync-push"), self.source, *self.targets, *OPTIONS,
                *self.options, *more]
        return lib.Running([], [], argv=["env", *("%s=%s" % kv for kv in self.env.items()), *argv])

    def ctl(self, *args):
        done = subprocess.run([os.path.join(lib.BUILD, "bin/wsync-ctl"), *args, "--json", "-t", "5s"],
                              env=dict(os.environ, **self.env), stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, timeout=60)
        return lib.Push(done.returncode, done.stdout, done.stderr, 0)

    def records(self):
        where = os.path.join(self.state, "wsync/pushes")
        names = [n for n in (os.listdir(where) if os.path.isdir(where) else []) if n.endswith(".json")]
        return [json.load(open(os.path.join(where, n))) for n in sorted(names)]


def asked(endpoint, path, status=None):
    return [r for r in endpoint.get("/wsync/journal")["requests"]
            if r["path"] == path and status in (None, r["status"])]


def truth(endpoint):
    """What an endpoint holds, by what it agreed to."""
    n = len(asked(endpoint, endpoint.path, 200))
    return "untouched" if n == 0 else "committed" if n >= endpoint.needs else "partial"


def paused(endpoint):
    return endpoint.get("/wsync/journal")["state"]["paused"]


def check_claims(case, said, where):
    """said: url to (state, left paused), as a program told it."""
    for e in case.endpoints:
        state, stays = said[e.url]
        holds = truth(e)
        text = "%s: said %s, holds %s, paused %s" % (where, state, holds, paused(e))
        if state == "committed":
            assert holds == "committed", text
        if state == "untouched":
            assert holds == "untouched", text
        # Which of its requests left before it died nobody can know; but a version that moved is seen.
        if state == "partial" and holds == "committed":
            version = e.get("/model_info")["weight_version"]
            assert version != "new", text + ", version " + version
        if state != "partial":
            assert not stays and not paused(e), text
        elif stays is not None:
            assert paused(e) == stays, text


def check_good(case, where):
    for e in case.endpoints:
        state = e.get("/wsync/journal")["state"]
        assert truth(e) == "committed" and not state["paused"], "%s: %s %s" % (where, truth(e), state)
        assert state["weight_version"] == "new", "%s: %s" % (where, state)
        assert not state["prepared"] and not state["session"], "%s: %s" % (where, state)
    assert case.records() == [], "%s: %s" % (where, case.records())


def after_kill(case, again):
    """Nobody could tidy up: repair, then everything is whole or told of; once more changes nothing."""
    left = case.records()
    if again and left:
        done = case.ctl("repair", "--again")
        assert done.rc == 0, "repair --again: %s" % done
        assert case.ctl("repair").rc == 0
        return check_good(case, "after repair --again")
    before = {e.url: (truth(e), False) for e in case.endpoints}  # of whom nothing is told all is well
    for attempt in ("repair", "repair once more"):
        done = case.ctl("repair")
        assert done.rc in (0, 9), "%s: %s" % (attempt, done)
        told = {e["url"]: (e["state"], e["paused"]) for e in done.of("endpoint")}
        check_claims(case, dict(before, **told), attempt)
        silent = [e.url for e in case.endpoints if e.url not in told and truth(e) == "partial"]
        assert not silent, "%s: nothing is said of %s: %s" % (attempt, silent, done)
        assert (done.rc == 9) == any(s == "partial" for s, _ in told.values()), "%s: %s" % (attempt, done)
    done = case.start().wait(30)
    assert done.rc == 0, "push after repair: %s" % done
    check_good(case, "after the next push")


def after_signal(case, done):
    """It tidied up itself, and died by the signal."""
    said = {e["url"]: (e["state"], e["paused"]) for e in done.end["endpoints"]}
    check_claims(case, said, "its end")
    kept = {e["url"] for r in case.records() for e in r["endpoints"]
            if e["state"] == "partial" or e["paused"]}
    partial = {u for u, (state, _) in said.items() if state == "partial"}
    assert partial <= kept, "%s are partial, %s are recorded" % (partial, case.records())
    done = case.ctl("repair")
    assert done.rc == (9 if partial else 0), done
    assert all(paused(e) == (said[e.url][0] == "partial") for e in case.endpoints), done
    done = case.start().wait(30)
    assert done.rc == 0, "the next push: %s" % done
    check_good(case, "after the next push")


def at_boundary(source, boundary, sig, again, lineage=None):
    name, route, call, options = boundary
    if lineage:
        options = options[1:]
    case = Case("%s-%d" % (name, sig), source, ["hang:%s:%d" % (route, call)], options, lineage)
    running = case.start()
    held = case.endpoints[1]
    lib.await_true(lambda: len(asked(held, "/" + route)) >= call, 20, name)
    time.sleep(0.1)  # so that the other endpoint has done what it can
    os.kill(running.child.pid, sig)
    done = running.wait(30)
    assert done.rc == -sig, done
    if sig == signal.SIGKILL:
        after_kill(case, again)
    else:
        after_signal(case, done)
    case.close()


def at_random(source, number, delay, again):
    case = Case("random-%d" % number, source, None)
    running = case.start()
    time.sleep(delay)
    os.kill(running.child.pid, signal.SIGKILL)
    running.wait(30)
    after_kill(case, again)
    case.close()


def second_refused(source):
    """While one is held in its transfer, another one is refused, told by whom, and waits if it is to."""
    case = Case("second", source, ["hang:update_weights_from_distributed:2"])
    running = case.start()
    lib.await_true(lambda: len(asked(case.endpoints[1], UPDATE)) >= 2, 20, "second bucket")
    done = case.start().wait(20)
    assert done.rc == 5 and "process %d " % running.child.pid in done.stderr, done
    assert done.end["error"]["code"] == "refused", done
    done = case.start("--lock-wait", "100ms").wait(20)
    assert done.rc == 10 and "process %d " % running.child.pid in done.stderr, done
    assert case.ctl("repair").rc == 0 and all(map(paused, case.endpoints)), "the living were repaired"
    waiting = case.start("--lock-wait", "20s")
    time.sleep(0.2)
    running.child.kill()
    running.wait(10)
    done = waiting.wait(30)
    assert done.rc == 0, done
    check_good(case, "after the one that waited")
    case.close()


def killed_idle(source):
    """Between two sources of --stdin nobody is paused; the group goes, and nothing else is done."""
    case = Case("idle", source, None)
    argv = [os.path.join(lib.BUILD, "bin/wsync-push"), "--stdin", *case.targets, *OPTIONS]
    child = lib.start(argv, case.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    lines = lib.Lines(child.stdout)
    for _ in range(2):
        child.stdin.write(source.encode() + b"\n")
        child.stdin.flush()
        while (line := lines.next(20))["type"] != "result":
            pass
        assert line["ok"], line
    lib.stop(child)
    assert [len(r["endpoints"]) for r in case.records()] == [2], case.records()
    assert all(e.get("/wsync/journal")["state"]["groups"] for e in case.endpoints)
    done = case.ctl("repair")
    assert done.rc == 0, done
    assert [(e["state"], e["left_group"]) for e in done.of("endpoint")] == [("committed", True)] * 2, done
    assert not any(e.get("/wsync/journal")["state"]["groups"] for e in case.endpoints)
    check_good(case, "after repair")
    case.close()


def killed_twice(source):
    """A push that dies where one died before: what the first left is not lost, and one push ends both."""
    case = Case("twice", source, ["hang:update_weights_from_distributed:2", "hang:pause_generation:2"])
    for route, calls in ((UPDATE, 2), ("/pause_generation", 2)):
        running = case.start()
        lib.await_true(lambda r=route, n=calls: len(asked(case.endpoints[1], r)) >= n, 20, route)
        running.child.kill()
        running.wait(10)
    records = case.records()
    assert 1 <= len(records) <= 2, records
    done = case.ctl("repair")
    assert done.rc == 9, done
    assert {e["url"] for e in done.of("endpoint") if e["state"] == "partial"} == \
        {e.url for e in case.endpoints}, done
    done = case.start().wait(30)
    assert done.rc == 0, done
    check_good(case, "after the next push")
    case.close()


def main():
    source = lib.scratch("crash.safetensors")
    suite = lib.Suite(150, "bin/wsync-endpoint")

    def promise(title, *what):
        future = pool.submit(*what)
        suite.case(title)(lambda _: future.result(120))

    mkst.write(source, TENSORS)
    chance = random.Random(SEED)
    print("# CRASH_SEED=%d CRASH_RANDOM=%d" % (SEED, RANDOM), flush=True)
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        for boundary in BOUNDARIES:
            for sig in SIGNALS:
                promise("%s at the %s" % (sig.name, boundary[0]), at_boundary, source, boundary, sig,
                        chance.random() < 0.5)
        for boundary in PROTOCOLS:
            for sig in (signal.SIGKILL, signal.SIGTERM):
                promise("%s at the %s" % (sig.name, boundary[0]), at_boundary, source, boundary, sig,
                        chance.random() < 0.5, boundary[3][0])
        for i in range(RANDOM):
            delay = chance.uniform(0, 0.6)
            promise("SIGKILL after %d ms" % (1000 * delay), at_random, source, i, delay,
                    chance.random() < 0.5)
        promise("SIGKILL between two sources of --stdin", killed_idle, source)
        promise("SIGKILL twice at the same endpoints", killed_twice, source)
        promise("a second push is refused, or waits", second_refused, source)
        return suite.main(lambda: None)


sys.exit(main())
