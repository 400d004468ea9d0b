#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""test_matrix.py - every lineage by every protocol, in every load format, to one, two and three
endpoints: either every byte is right and everybody is left as he should be, or nothing was touched
at all.

What must be refused stands in the tables below. They were written from the servers' side (which
routes and fields which server has, and what torch's gloo carries), not from the tables of the
program. What must be held is hashed by Python out of the file. Endpoints stay from cell to cell,
and two checkpoints take turns, so that a push that does nothing is found out."""
import concurrent.futures
import contextlib
import itertools
import os
import random
import struct
import subprocess
import sys
import threading

import lib
import tiny_models

WORKERS = 3
LINEAGES = ["lenient", "sglang-0.4", "sglang-0.5", "sglang-2026", "xorl-legacy", "xorl", "session",
            "slime"]
NEWER = set(LINEAGES) - {"sglang-0.4", "sglang-0.5"}

# Which servers take what.
TAKERS = {
    "update": set(LINEAGES) - {"session"},  # there only between begin and end
    "session": {"session"},
    "two-phase": {"xorl-legacy", "xorl"},
    "two-phase whole": {"xorl-legacy", "xorl"},
    "receive": {"xorl-legacy"},
    "ep-scatter": {"xorl-legacy"},
    "tensor": NEWER,                        # older ones know no bucket of several types
    "disk": set(LINEAGES),
}
# load_format of an update, with several types in a bucket
FLATTENS = NEWER
CANNOT_PAUSE = {"sglang-0.4"}
NO_VERSION = {"sglang-0.4"}
NO_DESTROY = {"sglang-0.4"}                 # groups stay
MUST_PAUSE = {"two-phase", "two-phase whole", "receive", "ep-scatter"}
FORMATLESS = {"receive", "ep-scatter"}      # no load_format in the request
NOT_IN_A_GROUP = {"tensor", "disk"}
OPTIONS = {
    "auto": [], "update": ["--protocol", "update"], "session": ["--protocol", "session"],
    "two-phase": ["--protocol", "two-phase"],
    "two-phase whole": ["--protocol", "two-phase", "--two-phase", "whole"],
    "receive": ["--protocol", "receive"], "ep-scatter": ["--protocol", "ep-scatter"],
    "tensor": ["--backend", "tensor"], "disk": ["--backend", "disk"],
}
FORMATS = {"auto": [], "none": ["--load-format", "none"],
           "flattened": ["--load-format", "flattened_bucket"]}
CHANGES = ("init_", "destroy_", "update_", "prepare_", "complete_", "receive_", "begin_", "end_",
           "pause_",
           "continue_", "flush_", "release_", "resume_", "post_", "sleep", "wake_up")
# The tp of each endpoint of a lineage: one, two and three of them, and what takes only equal ones.
SETS = [[2], [1, 4], [1, 2, 4]]
EQUAL_SETS = [[2], [2, 2], [1, 2, 4]]


def protocol_for(lineages):
    """What auto comes to: updates where all take them, sessions where some want them."""
    return "session" if "session" in lineages else "update"


def taken(protocol, lineages):
    takers = TAKERS[protocol]
    if protocol == "session":  # an update between begin and end; the others are not asked to begin
        return all(x in takers or x in TAKERS["update"] for x in lineages) and "session" in lineages
    return all(x in takers for x in lineages)


def expect(protocol, fmt, kind, lineages, tps, pauses):
    """None: right bytes. Else why nothing may be sent."""
    if protocol in NOT_IN_A_GROUP and fmt in REFUSED_FORMATS[protocol]:
        return REFUSED_FORMATS[protocol][fmt]
    protocol = protocol_for(lineages) if protocol == "auto" else protocol
    if not taken(protocol, lineages):
        return "no such route"
    if pauses and CANNOT_PAUSE & set(lineages):
        return "it cannot pause"
    if not pauses and ("session" in lineages or protocol in MUST_PAUSE):
        return "it must not run requests meanwhile"
    if fmt == "flattened" and protocol in FORMATLESS:
        return "no load format"
    if fmt == "flattened" and protocol not in NOT_IN_A_GROUP and not set(lineages) <= FLATTENS:
        return "no flattened buckets"
    if protocol == "tensor" and len(set(tps)) > 1:
        return "elements for each rank"
    if "fp8" in kind:
        if protocol in FORMATLESS:
            return "types"
        if protocol not in NOT_IN_A_GROUP and (fmt == "none" or not set(lineages) <= FLATTENS):
            return "gloo carries no float8"
    if "f32" in kind and protocol == "ep-scatter":
        return "not the type of the parameter"
    return None


# What a backend without broadcasts says to a load format.
REFUSED_FORMATS = {"tensor": {"none": "flattened buckets only"},
                   "disk": {"none": "no load format", "flattened": "no load format"}}


class Server:
    """One endpoint, and what it must hold and have counted by now."""

    def __init__(self, lineage, kind, tp):
        self.lineage, self.tp, self.kind = lineage, tp, kind
        model = tiny_models.make(kind, 1)
        self.peer = lib.Embedded("--lineage", lineage, "--tp", str(tp), "--model", model)
        self.url, self.held, self.version = self.peer.url, None, "default"
        self.requests = self.flushes = 0

    def look(self):
        """(state, totals, changing requests since the last look)"""
        j = self.peer.get("/wsync/journal")
        new = [r for r in j["requests"][self.requests:] if r["path"][1:].startswith(CHANGES)]
        self.requests = len(j["requests"])
        return j["state"], j["totals"], new

    def check_bytes(self):
        want = tiny_models.expected(self.held) if self.held else {}
        sums = self.peer.get("/wsync/checksums")
        assert len(sums["ranks"]) == self.tp, sums
        for r in sums["ranks"]:
            got = r["checksums"]
            for name in sorted(set(want) | set(got)):
                if name == "lm_head.weight" and name not in want:  # tied: the embedding again
                    assert got[name] == want["model.embed_tokens.weight"][0], (self.url, name)
                    continue
                assert got.get(name) == want.get(name, [None])[0], (
                    "%s (%s) rank %d: %s is %s, should be %s" % (
                        self.url, self.lineage, r["parallelism_info"]["rank"], name, got.get(name),
                        want.get(name)))
        for name, t in sums["tensors"].items():
            if name in want:
                assert [t["dtype"], t["shape"]] == list(want[name][1:]), (name, t, want[name])

    def check_numbers(self):
        """One vector as numbers, which is another way out of the memory."""
        name = "model.norm.weight"
        raw, dtype = tiny_models.raw(self.held, name)
        width = 2 if dtype == "bfloat16" else 4
        want = [struct.unpack("<f", bytes(4 - width) + raw[i:i + width])[0]
                for i in range(0, 64, width)]
        got = self.peer.post("/get_weights_by_name", {"name": name, "truncate_size": len(want)})
        assert got == want, (self.url, got[:4], want[:4])

    def check_rest(self, state, version):
        groups = state["groups"] if self.lineage not in NO_DESTROY else []
        assert not state["paused"] and not groups and not state["prepared"] and \
            not state["session"] and not state["busy"], (self.url, state)
        assert state["weight_version"] == version, (self.url, state, version)


COUNTER = itertools.count(1)


def cell(servers, protocol, fmt, flush="last", pauses=None):
    """Pushes, and compares what came of it with what must. True: bytes; False: a refusal. pauses
    None: where they can."""
    lineages = [s.lineage for s in servers]
    pauses = pauses or not CANNOT_PAUSE & set(lineages)
    what = "%s by %s, %s, tp %s, flush %s" % ("+".join(lineages), protocol, fmt,
                                              "+".join(str(s.tp) for s in servers), flush)
    kind = servers[0].kind
    turn = 2 if servers[0].held == tiny_models.make(kind, 1) else 1
    path = tiny_models.make(kind, turn)
    version = None if NO_VERSION & set(lineages) else "v%d" % next(COUNTER)
    why = expect(protocol, fmt, kind, lineages, [s.tp for s in servers], pauses)
    options = OPTIONS[protocol] + FORMATS[fmt] + ["--flush", flush, "--bucket-size", "200KiB"]
    options += ["--weight-version", version] if version else []
    options += [] if pauses else ["--pause", "none"]
    for s in servers:
        s.look()
    done = lib.push(servers, [path], *options, "--verify", "names")
    try:
        if why:
            check_refusal(servers, done, fmt in REFUSED_FORMATS.get(protocol, {}))
        else:
            check_bytes(servers, done, path, version, protocol, fmt, flush)
    except AssertionError as e:
        raise AssertionError("%s: expected %s: %s\n%s"
                             % (what, why or "right bytes", e, done)) from e
    return why is None


def check_refusal(servers, done, usage):
    assert done.rc == (2 if usage else 5), "exit %s" % done.rc
    assert done.end.get("wire_bytes", 0) == 0, "bytes left"
    for s in servers:
        state, totals, new = s.look()
        assert not new, new
        s.check_rest(state, s.version)
        s.check_bytes()
        assert totals["flushes"] == s.flushes, totals


def check_bytes(servers, done, path, version, protocol, fmt, flush):
    assert done.rc == 0 and not done.of("mismatch"), "exit %s" % done.rc
    plan, = done.of("plan")
    if protocol not in NOT_IN_A_GROUP:
        lineages = [s.lineage for s in servers]
        used = protocol_for(lineages) if protocol == "auto" else protocol.split()[0]
        assert plan["protocol"] == used, plan["protocol"]
        flat = fmt != "none" and used not in FORMATLESS and set(lineages) <= FLATTENS
        assert plan["load_format"] == ("flattened_bucket" if flat else "none"), plan["load_format"]
    for s in servers:
        s.held = path
        s.version = version or s.version
        state, totals, new = s.look()
        s.check_rest(state, s.version)
        s.check_bytes()
        s.check_numbers()
        flushed, s.flushes = totals["flushes"] - s.flushes, totals["flushes"]
        check_flushes(new, flush, flushed)


def check_flushes(new, flush, flushed):
    """Once while nothing runs before the weights come, and with the loads that were asked to."""
    asked = [r for r in new if r["path"] == "/flush_cache"]
    loads = [r["flush_cache"] for r in new if "flush_cache" in r]
    assert flushed == len(asked) + sum(loads), "%d flushes" % flushed
    assert len(asked) <= (flush != "never"), asked
    want = {"never": [False] * len(loads), "last": [False] * (len(loads) - 1) + [True],
            "every": [True] * len(loads)}[flush]
    assert loads == want, (flush, loads)


def has_disk():
    text = subprocess.run([os.path.join(lib.BUILD, "bin", "wsync-push"), "--help=all"],
                          capture_output=True, text=True, check=True, timeout=lib.PATIENCE).stdout
    return "disk" in text.split("--backend")[1].split("--gpu")[0]


class Fixture:
    def __init__(self):
        self.protocols = [p for p in OPTIONS if p != "disk" or has_disk()]
        self.servers = {}   # (lineage, kind) -> endpoints
        for kind in ("qwen3_moe", "qwen3-fp8", "qwen3-f32", "qwen3"):
            for seed in (1, 2):
                tiny_models.make(kind, seed)
        for lineage in LINEAGES:  # here: a child dies with the thread that started it
            self.of(lineage)

    def of(self, lineage, kind="qwen3_moe", tps=(1, 2, 2, 4)):
        if (lineage, kind) not in self.servers:
            self.servers[lineage, kind] = [Server(lineage, kind, tp) for tp in tps]
        return self.servers[lineage, kind]

    def choose(self, lineage, tps):
        free, chosen = list(self.of(lineage)), []
        for tp in tps:
            chosen.append(next(s for s in free if s.tp == tp))
            free.remove(chosen[-1])
        return chosen


def tell(what, outcomes):
    print("# %s: %d cells, %d with the right bytes, %d refused before the first byte" % (
        what, len(outcomes), sum(outcomes), len(outcomes) - sum(outcomes)), flush=True)


def run_all(jobs):
    """Each job is a list of cells of endpoints of its own."""
    with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
        running = {key: pool.submit(lambda cells=cells: [c() for c in cells]) for key,
                   cells in jobs}
        return {key: r.result() for key, r in running.items()}


suite = lib.Suite()


@suite.case("a lineage by itself: each protocol and load format, to one, two and three endpoints")
def alone(fix):
    def cells(lineage):
        turns = itertools.cycle(["last", "never", "last", "every"])
        for protocol, fmt in itertools.product(fix.protocols, FORMATS):
            for tps in EQUAL_SETS if protocol == "tensor" else SETS:
                flush = next(turns)
                yield lambda p=protocol, f=fmt, t=tps, w=flush: cell(fix.choose(lineage, t), p, f,
                    w)
        yield lambda: cell(fix.choose(lineage, [1]), "auto", "auto", pauses=True)
    found = run_all([(x, list(cells(x))) for x in LINEAGES])
    for lineage, outcomes in found.items():
        tell(lineage, outcomes)
    tell("all of them", sum(found.values(), []))


def other_model(kind, title, tps):
    @suite.case(title)
    def check(fix):
        def cells(lineage):
            for protocol, fmt in itertools.product(fix.protocols, FORMATS):
                yield lambda p=protocol, f=fmt: cell(fix.of(lineage, kind, tps), p, f)
        found = run_all([(x, list(cells(x))) for x in LINEAGES])
        tell(kind, sum(found.values(), []))
        for lineage in LINEAGES:
            for s in fix.servers.pop((lineage, kind)):
                lib.stop(s.peer.child)


other_model("qwen3-fp8", "codes in blocks of FP8 with their scales", [2])
other_model("qwen3-f32", "norms in float32 among bfloat16", [2])
other_model("qwen3", "a head that is tied to the embedding", [4])


@suite.case("servers of different lineages and sizes in one push")
def mixed(fix):
    rng = random.Random(20261121)
    sets = [list(p) for p in itertools.combinations(LINEAGES, 2)]
    sets += [rng.sample(LINEAGES, 3) for _ in range(12)]
    protocols = ["auto", "update", "session", "two-phase", "receive"] + fix.protocols[7:]
    mine = {x: threading.Lock() for x in LINEAGES}

    def push_all(lineages, tps, formats):
        outcomes = []
        with contextlib.ExitStack() as stack:
            for x in sorted(lineages):
                stack.enter_context(mine[x])
            for protocol, fmt in zip(protocols, formats):
                sizes = [2] * len(lineages) if protocol == "tensor" else tps
                servers = [fix.choose(x, [tp])[0] for x, tp in zip(lineages, sizes)]
                outcomes.append(cell(servers, protocol, fmt))
        return outcomes

    def draw(lineages):
        return (lineages, rng.sample([1, 2, 4], len(lineages)),
                [rng.choice(["auto", "auto", "none", "flattened"]) for _ in protocols])

    with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
        jobs = [pool.submit(push_all, *draw(x)) for x in sets]
        tell("mixed sets", [o for job in jobs for o in job.result()])


if __name__ == "__main__":
    sys.exit(suite.main(Fixture))
