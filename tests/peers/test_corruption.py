#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""test_corruption.py - does --verify hash find what an endpoint spoils, every time and by name?

Rigs of one to three endpoints of every protocol are pushed to again and again, in turn honestly and
with one corruption on request (wsync-endpoint --fault corrupt), of each kind in turn, drawn from a
seed that is printed, at all ranks or at one. Every corruption must end the push with the status of
a mismatch, the tensor and its rank named, the version where it was; wsync-verify must say the same;
and no honest push may be accused. Every second rig with a model plays stock servers, on a CPU or a
GPU (--device): their checksums are of their parameters, and every honest push must be proven to the
last byte. WSYNC_SEED and WSYNC_INJECTIONS (per rig) choose other runs."""
import concurrent.futures
import os
import random
import sys
import tempfile

import lib
import tiny_models

SEED = int(os.environ.get("WSYNC_SEED", "20261121"))
PER_RIG = int(os.environ.get("WSYNC_INJECTIONS", "2"))
WORKERS = 3
KINDS = ("flip", "truncate", "drop", "swap")
UPDATE, COMPLETE = "update_weights_from_distributed", "complete_weights_update"
TENSOR, DISK = "update_weights_from_tensor", "update_weights_from_disk"

# What a protocol takes: lineage, options of the push, the route that loads, a call for each bucket?
WAYS = {
    "update, flattened": ("sglang-2026",
                          ["--protocol", "update", "--load-format", "flattened_bucket"],
                          UPDATE, True),
    "update, tensors": ("slime", ["--protocol", "update", "--load-format", "none"], UPDATE, True),
    "session": ("session", ["--protocol", "session"], UPDATE, True),
    "two-phase": ("xorl", ["--protocol", "two-phase"], COMPLETE, True),
    "two-phase, tensors": ("xorl", ["--protocol", "two-phase", "--load-format", "none"], COMPLETE,
                           True),
    "two-phase, whole": ("xorl", ["--protocol", "two-phase", "--two-phase", "whole"], COMPLETE,
                         False),
    "receive": ("xorl-legacy", ["--protocol", "receive"], "receive_weights", False),
    "ep-scatter": ("xorl-legacy", ["--protocol", "ep-scatter"], "receive_weights_ep_scatter",
                   False),
    "backend tensor": ("sglang-2026", ["--backend", "tensor"], TENSOR, True),
    "backend disk": ("sglang-2026", ["--backend", "disk"], DISK, False),
}
# A rig: kind of checkpoint and the endpoints' tp, with ep behind a point. FP8 goes in flattened
# buckets.
RIGS = [("qwen3", ["1"]), ("qwen3", ["4"]), ("qwen3_moe", ["4.2"]), ("deepseek_v3", ["2"]),
        ("qwen3-fp8", ["2"]), ("qwen3-fp8", ["4"]), ("loose", ["1"]), ("loose-fp8", ["1"]),
        ("qwen3", ["1", "2", "4"]), ("qwen3-f32", ["2", "1"])]
BARS = {"update, tensors": ["fp8"], "two-phase, tensors": ["fp8"], "receive": ["fp8", "loose"],
        "ep-scatter": ["fp8", "f32", "loose", "deepseek"]}


def suits(way, kind, tps):
    if way == "backend tensor" and len(set(tps)) > 1:
        return False  # a request has as many elements as a server ranks
    return not any(bar in kind for bar in BARS.get(way, []))


def draw(rng, rig, how, tp):
    """HOW and its keys, and the tensor."""
    name = rng.choice(sorted(rig.held))
    keys = []
    if how == "flip":
        at = rng.choice([0, rng.randrange(1 << 16)])
        # SGLang hashes block FP8 in bf16, where the low bits of a scale do not show.
        keys = ["at=%d" % (at | 3 if rig.device and name.endswith("_scale_inv") else at)]
    elif how == "truncate":
        keys = ["bytes=%d" % rng.choice([1, 2, 4, 100, 10 ** 6])]
    if not rig.kind.startswith("loose") and tp > 1 and rng.random() < 0.3:
        keys.append("rank=%d" % rng.randrange(tp))
    return ",".join([how] + keys + ["tensor=" + name]), name


class Rig:
    """Endpoints, and what will go wrong at which of them in which push."""

    def __init__(self, way, kind, tps, number, rng):
        self.way, self.kind = way, kind
        self.lineage, self.options, self.route, bucketed = WAYS[way]
        # A state directory of its own: another rig's endpoint may get the port of one that was left
        # partial.
        states = lib.scratch("states")
        os.makedirs(states, exist_ok=True)
        self.states = ["--state-dir", tempfile.mkdtemp(dir=states)]
        self.options = self.options + self.states + ["--verify", "hash"]
        self.paths = [tiny_models.make(kind, seed) for seed in (1, 2)]
        self.held = tiny_models.expected(self.paths[1])
        self.bucket = rng.choice(["64KiB", "150KiB", "1GiB"]) if bucketed else "150KiB"
        self.options += ["--bucket-size", self.bucket]
        self.device = None
        if not kind.startswith("loose"):
            self.device = [None, "cpu", None, "cuda"][(number + list(WAYS).index(way)) % 4]
        self.sizes = [int(t.split(".")[0]) for t in tps]
        self.endpoints = []
        self.plan(rng, number, bucketed)
        for i, tp in enumerate(tps):
            size, _, ep = tp.partition(".")
            argv = ["--lineage", self.lineage, "--tp", size, "--checksums"]
            argv += ["--ep", ep] if ep else []
            argv += ["--device", self.device] if self.device else []
            argv += [] if kind.startswith("loose") else ["--model", self.paths[0]]
            for at, call, what, _ in self.bad:
                argv += ["--fault",
                         "corrupt:%s:%d:%s" % (self.route, call, what)] if at == i else []
            self.endpoints.append(lib.Embedded(*argv))

    def plan(self, rng, number, bucketed):
        """Push 0 is honest, push 1 is not, and so on: the number of the call follows."""
        with lib.Embedded("--lineage", self.lineage, *(
                [] if self.kind.startswith("loose") else ["--model", self.paths[0]])) as e:
            dry = lib.push([e], [self.paths[1]], *self.options[:-4], "--bucket-size", self.bucket,
                           "--dry-run", "-v")
        assert dry.rc == 0, dry
        where = {t["name"]: t["bucket"] for t in dry.of("tensor")}
        buckets = dry.end["buckets"] if bucketed else 1
        self.bad, self.buckets = [], buckets
        for i in range(PER_RIG):
            at = rng.randrange(len(self.sizes))
            # Shifted by the way, or each kind would meet every second rig only.
            turn = number * PER_RIG + i + list(WAYS).index(self.way)
            what, name = draw(rng, self, KINDS[turn % 4], self.sizes[at])
            bucket = where[name] if bucketed else 0
            self.bad.append((at, (2 * i + 1) * buckets + bucket + 1, what, name))

    def name(self, tensor):
        """How a mismatch calls it."""
        return tiny_models.parameter(tensor) if self.device else tensor

    def __str__(self):
        return "%s, %s, tp %s, %s" % (self.way, self.kind, "+".join(map(str, self.sizes)),
                                      self.device or "tensors")


def spoilt(endpoint, route, call):
    """The tensor that call of the route left changed; None."""
    calls = [r for r in endpoint.get("/wsync/journal")["requests"] if r["path"] == "/" + route]
    return calls[call - 1].get("corrupted")


def state(endpoint):
    s = endpoint.get("/wsync/journal")["state"]
    return s["weight_version"], s["paused"], s["groups"], s["prepared"], s["session"]


def check_state(rig, version, partial=None):
    """All resumed but endpoint number `partial`."""
    for k, e in enumerate(rig.endpoints):
        assert state(e) == (version, k == partial, [], False, False), (e.url, state(e), version)


def honest(rig, i):
    done = lib.push(rig.endpoints, [rig.paths[0]], *rig.options, "--weight-version", "good%d" % i)
    assert done.rc == 0 and not done.of("mismatch"), "false alarm: %s" % done
    proofs = [(p["coverage"], p["opaque"], p["unknown"]) for p in done.of("proof")]
    assert proofs == [(100, 0, 0)] * (len(rig.endpoints) if rig.device else 0), done
    check_state(rig, "good%d" % i)


def judge(rig, i, done):
    """Was it found? False: nothing was changed at all, so that nothing could be."""
    at, call, what, _ = rig.bad[i]
    name = spoilt(rig.endpoints[at], rig.route, call)
    if name is None:
        assert done.rc == 0, "nothing was corrupted by %s: %s" % (what, done)
        return False
    name = rig.name(name)
    wrong = [(m["url"], m["rank"], m["name"]) for m in done.of("mismatch")]
    url = rig.endpoints[at].url
    assert done.rc == (1 if len(rig.endpoints) == 1 else 9), (what, name, str(done))
    assert {w[0] for w in wrong} == {url} and name in {w[2] for w in wrong}, (what, name, wrong)
    if "rank=" in what:
        rank = int(what.split("rank=")[1].split(",")[0])
        assert rank in {w[1] for w in wrong if w[2] == name}, (what, wrong)
    states = [e["state"] for e in done.end["endpoints"]]
    assert states == ["partial" if k == at else "committed" for k in range(len(states))], (what,
        states)
    check_state(rig, "good%d" % i, partial=at)
    again = lib.run_program("wsync-verify", ["weights", rig.paths[1], "--json", *rig.states],
                            [rig.endpoints[at]])
    if rig.device and "fp8" in rig.kind and again.rc == 11:
        # Both layers are wrong: no parameter of the kind says that the prediction is right.
        assert "is not as expected" in again.stderr, again
        return True
    assert again.rc == 1 and name in {m["name"] for m in again.of("mismatch")}, (what, str(again))
    return True


def run_rig(way, kind, tps, number):
    seed = "%d/%s/%d" % (SEED, way, number)
    rng = random.Random(seed)
    rig = Rig(way, kind, tps, number, rng)
    kinds = []
    try:
        for i in range(PER_RIG):
            honest(rig, i)
            done = lib.push(rig.endpoints, [rig.paths[1]], *rig.options, "--weight-version",
                            "bad%d" % i)
            if judge(rig, i, done):
                kinds.append(rig.bad[i][2].split(",")[0])
    except AssertionError as e:
        raise AssertionError("%s (seed %s): %s" % (rig, seed, e)) from e
    finally:
        for e in rig.endpoints:
            lib.stop(e.child)
    return kinds, PER_RIG, len(kinds) if rig.device else 0


suite = lib.Suite()


def case(way):
    @suite.case("%s: what is spoilt is found and named, and nothing else is" % way)
    def check(_):
        rigs = [rig for rig in RIGS if suits(way, *rig)]
        jobs = [(way, kind, tps, i) for i, (kind, tps) in enumerate(rigs)]
        with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
            results = [job.result() for job in [pool.submit(run_rig, *j) for j in jobs]]
        kinds, runs = sum((r[0] for r in results), []), sum(r[1] for r in results)
        print("# seed %d: %d corruptions found, %d by checksums of parameters: %s; %d honest "
              "pushes, no false alarm" % (
            SEED, len(kinds), sum(r[2] for r in results),
            " ".join("%s %d" % (k, kinds.count(k)) for k in KINDS), runs), flush=True)
        assert set(kinds) == set(KINDS) and len(kinds) >= 0.7 * runs, "many change nothing"


for each in WAYS:
    case(each)


def set_up():
    for kind, _ in RIGS:
        for seed in (1, 2):
            tiny_models.make(kind, seed)


if __name__ == "__main__":
    sys.exit(suite.main(set_up))
