#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A stage and its completion are killed with SIGKILL, at each of their requests and after some of
them; between them a server is killed. Each time wsync-ctl info says what the servers have, and
repair or the next push ends it: no server stays paused or has a mixture of weights.

STAGED_SEED draws the numbers. The oracle is the endpoints' own journal and checksums, which are
compared with what Python makes of the files.
"""
import json
import os
import random
import shutil
import signal
import sys

import fault_lib
import lib
import mkst

suite = lib.Suite()
SEED = int(os.environ.get("STAGED_SEED", "16"))
TENSORS = [("t%02d" % i, "F32", (64, 32)) for i in range(12)]
STAGE = ["init_weights_update_group", "prepare_weights_update", "openapi.json"]
COMPLETE = ["pause_generation", "flush_cache", "complete_weights_update", "update_weight_version",
            "continue_generation", "destroy_weights_update_group"]
LINEAGES = ["xorl", "xorl-legacy"]
SLOW = "0.4s"


class Fixture:
    def __init__(self):
        self.dirs, self.sums = {}, {}
        for seed, age in enumerate(("old", "new", "other"), 1):
            self.dirs[age] = lib.scratch("kills-%s" % age)
            os.makedirs(self.dirs[age], exist_ok=True)
            path = os.path.join(self.dirs[age], "model.safetensors")
            mkst.write(path, TENSORS, seed)
            self.sums[age] = fault_lib.sums_of(path)


class World:
    """Two endpoints with old weights, and a state directory of their own."""
    COUNT = 0

    def __init__(self, fix, lineage, slow=None):
        World.COUNT += 1
        self.fix, self.lineage = fix, lineage
        self.state = lib.scratch("kills-state-%d" % World.COUNT)
        fault = ["--fault", "slow:%s" % slow, "--fault-delay", SLOW] if slow else []
        # An endpoint whose sender is killed while the group forms keeps its weights locked until
        # then, and is asked for its checksums meanwhile.
        self.endpoints = [lib.Embedded("--lineage", lineage, "--init-timeout", "60s", *fault)
                          for _ in range(2)]
        for e in self.endpoints:
            e.post("/update_weights_from_disk", {"model_path": fix.dirs["old"]})

    def start(self, program, *args):
        argv = ["env", "XDG_STATE_HOME=" + self.state,
                os.path.join(lib.BUILD, "bin", program), *args, "--json"]
        if args[0] not in ("complete", "discard", "repair"):
            for e in self.endpoints:
                argv += ["-e", e.url]
        return lib.Running([], [], argv=argv)

    def run(self, program, *args):
        return self.start(program, *args).wait()

    def stage(self):
        return self.start("wsync-push", self.fix.dirs["new"], "--stage", "--bucket-size", "32KiB",
                          "--weight-version", "new")

    def holds(self):
        return [fault_lib.holds(e, self.fix.sums) for e in self.endpoints]

    def states_of(self, e):
        return e.get("/wsync/journal")["state"]

    def states(self):
        return [self.states_of(e) for e in self.endpoints]

    def close(self):
        for e in self.endpoints:
            lib.stop(e.child)
        shutil.rmtree(self.state, ignore_errors=True)


def settled(world):
    """No request is under way, and no thread receives."""
    def is_quiet(e):
        # A server that was asked to join a dead group tries that until repair lets it go.
        return all(r["status"] for r in e.get("/wsync/journal")["requests"]
                   if r["path"] != "/init_weights_update_group")
    for e in world.endpoints:
        lib.await_true(lambda e=e: is_quiet(e), "the end of the requests")


def check_info(world, result):
    """It claims at most too much of what was being done, and never too little."""
    told = result.of("endpoint")
    for e, state, holds in zip(told, world.states(), world.holds()):
        what = "%s: it has %s weights and %s" % (e, holds, state)
        assert e["weight_version"] == state["weight_version"], what
        assert e["paused_by"] or not state["paused"], what
        assert e["staged"] or not state["prepared"], what
        if e["staged"] and e["staged"]["complete"] and not e["paused_by"]:
            assert state["prepared"] and holds == "old", what
        assert holds in ("old", "new"), what


def end_it(world, by, by_what):
    """Returns what the endpoints hold then."""
    if by == "push":
        result = world.run("wsync-push", world.fix.dirs["other"], "--bucket-size", "32KiB",
                           "--weight-version", "other")
        assert result.rc == 0, result
        assert world.holds() == ["other"] * 2, "%s\n%s" % (world.holds(), result)
    else:
        result = world.run("wsync-ctl", "repair")
        partial = [e for e in result.of("endpoint") if e["state"] == "partial"]
        assert result.rc == (9 if partial else 0), result
        if partial:  # who cannot say whether it has loaded all
            assert "complete" in by_what, result  # it may have been loading
            result = world.run("wsync-push", world.fix.dirs["other"], "--weight-version", "other")
            assert result.rc == 0, result
        elif any(s["prepared"] for s in world.states()):
            assert [s["paused"] for s in world.states()] == [False] * 2, result
            result = world.run("wsync-ctl", "complete")
            assert result.rc == 0, result
            assert world.holds() == ["new"] * 2, world.holds()
    for state, holds in zip(world.states(), world.holds()):
        assert holds != "mixed" and not state["paused"] and not state["prepared"], (state, holds)
        assert state["weight_version"] == {"old": "default"}.get(holds, holds), (state, holds)
    records = os.path.join(world.state, "wsync", "pushes")
    left = [n for n in (os.listdir(records) if os.path.isdir(records) else [])
            if n.endswith(".json")]
    for name in left:
        with open(os.path.join(records, name)) as f:
            record = json.load(f)
        # Endpoints that were asked to join may do so late, which wsync-ctl(1) tells of.
        assert "master" in record and not any(e["paused"] or e["middle"]
                                              for e in record["endpoints"]), record


def kill_at(world, running, step, count):
    """When that request is under way, or when so many have been made."""
    def is_there():
        requests = world.endpoints[0].get("/wsync/journal")["requests"]
        return running.child.poll() is not None or (
            any(r["path"] == "/" + step and not r["status"] for r in requests) if step else
            len(requests) >= count)
    lib.await_true(is_there, step or "%d requests" % count)
    running.child.send_signal(signal.SIGKILL)
    result = running.wait()
    assert result.rc == -signal.SIGKILL or (result.rc == 0 and not step), result


def killed(title, lineage, in_stage, step, count, by):
    @suite.case("%s, %s, then %s" % (lineage, title, by))
    def check(fix):
        world = World(fix, lineage, slow="%s:1" % step if step else None)
        try:
            before = len(world.endpoints[0].get("/wsync/journal")["requests"])
            running = world.stage()
            if not in_stage:
                result = running.wait()
                assert result.rc == 0, result
                before = len(world.endpoints[0].get("/wsync/journal")["requests"])
                running = world.start("wsync-ctl", "complete")
            kill_at(world, running, step, before + count)
            settled(world)
            check_info(world, world.run("wsync-ctl", "info"))
            end_it(world, by, title)
        finally:
            world.close()


chance = random.Random(SEED)
for kind in LINEAGES:
    for at in STAGE + COMPLETE:
        for how in "repair", "push":
            killed("killed at %s" % at, kind, at in STAGE, at, 0, how)
    for k in range(8):
        # a stage makes five requests to each endpoint, and a completion about twelve
        number = chance.randint(1, 5) if k % 2 else chance.randint(1, 12)
        killed("killed after %d requests of the %s, %d" % (
            number, "stage" if k % 2 else "completion", k),
               kind, k % 2 == 1, None, number, chance.choice(("repair", "push")))


@suite.case("between: a server is killed, and the other completed")
def between(fix):
    for lineage in LINEAGES:
        world = World(fix, lineage)
        try:
            result = world.stage().wait()
            assert result.rc == 0, result
            world.endpoints[1].child.send_signal(signal.SIGKILL)
            world.endpoints[1].child.wait()
            result = world.run("wsync-ctl", "info")
            assert [bool(e["staged"]) for e in result.of("endpoint")] == [True, True], result
            result = world.run("wsync-ctl", "complete")
            assert result.rc == 9, result
            assert [e["state"] for e in result.end["endpoints"]] == ["committed", "untouched"]
            assert fault_lib.holds(world.endpoints[0], fix.sums) == "new"
            assert world.states_of(world.endpoints[0])["weight_version"] == "new"
        finally:
            world.close()


sys.exit(suite.main(Fixture))
