# SPDX-License-Identifier: Apache-2.0
"""fault_lib.py - one push with one thing going wrong, and what must be true afterwards.

A point of the matrix is PROTOCOL/STEP:CALL/KIND/VICTIM[/OPTION...]: in a push by that protocol into
two endpoints, the victim (0 or 1) misbehaves so when that step comes for the CALL-th time. A step
is a route or a step of the wire. Nobody keeps a list of them: a push in which all is well is run
first, and what it asked for is what can fail. KIND is one of wsync-endpoint's faults; LATE, which
is slow beyond every deadline; a signal that the push gets while the endpoint keeps it waiting
there, or at the step after:N, N ms after its start; or what happens around the push meanwhile
(fault_acts.py), with its variant as an OPTION. Other options: hold (--on-partial pause), restart
(of an endpoint that died), again (repair --again), echo and twice (the signal is sent two times),
unread (nobody reads what the push prints), and the name of a signal to send instead of the one that
is the kind.

The oracle does not take wsync's word for anything. Both endpoints hold old weights, which they read
from disk; afterwards they are asked for checksums, and these are compared with what Python makes of
the files.
"""
import collections
import concurrent.futures
import fcntl
import json
import os
import resource
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
import urllib.error

import lib
import mkst
import xxh3

sys.path.insert(0, os.path.join(lib.TREE, "tests", "cli"))
import fault_acts  # noqa: E402
import small_model  # noqa: E402

DEADLINE, SLACK = 2.0, 2.0  # seconds: of every phase, and what a push may take beyond it
RESUME = 12.0  # to tell somebody to continue who answered until then
SLOW_SECONDS, LATE_SECONDS = 0.5, 3.0
ROUTE_KINDS = ["refuse", "hang", "drop", "slow", "garbage", "wrong-length", "die"]
KINDS_OF_SIGNAL = ["SIGINT", "SIGTERM", "SIGKILL"]
# Whatever ends a process by default, but for faults. 16 is SIGSTKFLT, which Python learnt late.
SIGNALS = {"SIG" + n: getattr(signal, "SIG" + n) for n in
           "HUP INT QUIT KILL TERM USR1 USR2 ALRM VTALRM PROF XCPU IO PWR RTMIN RTMAX".split()}
SIGNALS["SIGSTKFLT"] = 16
TIMERS = {"SIGALRM", "SIGVTALRM", "SIGPROF", "SIGXCPU"}  # of which a second one does not kill
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # SIGQUIT
GRACE = 1.5  # seconds more, for a reader that does not read
PLAIN = [("t%02d" % i, "F32", (64, 32)) for i in range(12)]
BUCKETS = ["--bucket-size", "32KiB"]
LAYERS = ["--bucket-size", "256KiB"]  # of the model of a family
SERVER_LIMITS = [a for what in ("init", "receive", "ready", "complete")
                 for a in ("--%s-timeout" % what, "5s")]
VERSION = ["--weight-version", "new"]


class Protocol:
    """How a push is made, and of whom."""

    def __init__(self, name, lineage, options, serve=(), family=None, before=None):
        self.name, self.lineage, self.options, self.serve = name, lineage, options, list(serve)
        self.family, self.before = family, before
        self.old, self.new, self.other = None, None, None  # directories
        self.sums = {}                   # of both: name to checksum
        # step to how often it comes, found by the push that went well
        self.steps = {}
        self.slack = SLACK

    @property
    def version(self):
        """What endpoints call the new weights."""
        return "new" if VERSION[0] in self.options else "default"

    @property
    def joins(self):
        """Does a request say that an endpoint has joined the group?"""
        return bool({"init_weights_update_group", "init_weight_transfer_engine"} & set(self.steps))

    @property
    def is_vllm(self):
        return self.lineage.startswith("vllm-")

    def set_up(self):
        for seed, age in enumerate(("old", "new", "other"), 1):
            where = lib.scratch("%s-%s" % (self.family or "plain", age))
            setattr(self, age, where)
            if not os.path.isdir(where):
                os.mkdir(where)
                make_checkpoint(where, self.family, seed)
            self.sums[age] = sums_of(os.path.join(where, "model.safetensors"))
        if self.family:
            self.serve += ["--model", self.old]


def make_checkpoint(where, family, seed):
    path = os.path.join(where, "model.safetensors")
    if not family:
        return mkst.write(path, PLAIN, seed)
    with open(os.path.join(where, "config.json"), "w") as f:
        json.dump(small_model.config(family, False), f)
    mkst.write(path, small_model.tensors(family, False, "BF16"), seed)
    with open(path, "r+b") as f:  # no NaN among them, and none that is large
        data = bytearray(f.read())
        for i in range(8 + struct.unpack_from("<Q", data)[0] + 1, len(data), 2):
            data[i] = 0x3c | data[i] & 3
        f.seek(0)
        f.write(data)
    return None


SUMS = {}


def sums_of(path):
    if path not in SUMS:
        with open(path, "rb") as f:
            data = f.read()
        begin = 8 + struct.unpack_from("<Q", data)[0]
        SUMS[path] = {}
        for name, t in json.loads(data[8:begin]).items():
            at, end = t["data_offsets"]
            SUMS[path][name] = xxh3.xxh3_64(data[begin + at:begin + end])
    return SUMS[path]


def fall_asleep(endpoint):
    endpoint.post("/pause_generation", {"mode": "abort"})
    endpoint.post("/release_memory_occupation", {"tags": ["weights", "kv_cache"]})
    endpoint.post("/continue_generation", {})


PROTOCOLS = [
    Protocol("update", "sglang-2026", BUCKETS + VERSION),
    Protocol("hash", "lenient", BUCKETS + VERSION + ["--verify", "hash"]),
    Protocol("single", "sglang-0.5",
             ["--load-format", "none", "--pause", "abort", *BUCKETS, *VERSION]),
    Protocol("session", "session", BUCKETS + VERSION),
    Protocol("two-phase", "xorl", ["--protocol", "two-phase", *BUCKETS, *VERSION]),
    Protocol("whole", "xorl-legacy",
             ["--protocol", "two-phase", "--two-phase", "whole", *BUCKETS, *VERSION]),
    Protocol("receive", "xorl-legacy", ["--protocol", "receive", *BUCKETS, *VERSION]),
    Protocol("scatter", "xorl-legacy", ["--protocol", "ep-scatter", *VERSION], family="qwen3_moe"),
    Protocol("tensor", "sglang-2026", ["--backend", "tensor", *BUCKETS, *VERSION]),
    Protocol("disk", "sglang-2026", ["--backend", "disk", *VERSION]),
    Protocol("written", "sglang-2026",
             ["--backend", "disk", "--disk-dir", lib.scratch("written"), *VERSION]),
    Protocol("asleep", "lenient", ["--asleep", "weights,kv_cache", *BUCKETS, *VERSION],
             before=fall_asleep),
    Protocol("process", "slime", BUCKETS + VERSION, serve=["--quantization", "compressed-tensors"]),
    Protocol("vllm", "vllm-0.33", LAYERS + VERSION, family="llama"),
    Protocol("vllm-hash", "vllm-0.33", LAYERS + VERSION + ["--verify", "hash"], family="llama"),
    Protocol("vllm-0.20", "vllm-0.20", LAYERS, family="llama"),
    Protocol("vllm-disk", "vllm-0.33", ["--backend", "disk", *VERSION], family="llama"),
]


ROLES = {"init_weight_transfer_engine": "init_weights_update_group", "pause": "pause_generation",
         "resume": "continue_generation", "weight_info": "model_info",
         "weight_checker": "weights_checker", "server_info": "config",
         "get_world_size": "config", "v1/models": "optional"}


class Point:
    def __init__(self, protocol, step, call, kind, victim, *options):
        self.protocol, self.step, self.call, self.kind = protocol, step, call, kind
        self.victim, self.options = victim, list(options)

    @property
    def name(self):
        return "/".join([self.protocol.name, "%s:%d" % (self.step.replace("/", "."), self.call),
                         self.kind,
                         str(self.victim), *self.options])

    @property
    def role(self):
        """SGLang's name of what is asked, of which the oracle has the same to say; or a word for
        what only a vLLM is asked."""
        # After the look and the first roll call's: vLLM is asked for its configuration twice.
        if self.step in ("server_info", "get_server_info") and \
                self.call > (2 if self.protocol.is_vllm else 1):
            return "roll-call"
        if not self.protocol.is_vllm:
            return self.step
        if self.step == "collective_rpc":
            last = self.call == self.protocol.steps[self.step][-1]
            return "in-step" if not last else \
                "update_weights_from_disk" if self.protocol.name == "vllm-disk" else \
                "destroy_weights_update_group"
        if self.step == "weight_info" and self.call == 1:
            return "optional"
        if self.step == "server_info" and self.call == 1:
            return "first-info"
        return ROLES.get(self.step, self.step)

    @property
    def variant(self):
        """Of an act."""
        variants = fault_acts.KINDS[self.kind].VARIANTS
        return next((o for o in self.options if o in variants), variants[0])

    @staticmethod
    def parse(text, protocols):
        how, step, kind, victim, *options = text.split("/")
        step, call = step.rsplit(":", 1)
        if step.startswith(("wire.", "v1.")):
            step = step.replace(".", "/", 1)
        return Point(next(p for p in protocols if p.name == how), step, int(call), kind,
                     int(victim), *options)


# ---- a world of two endpoints --------------------------------------------------------------------


class World:
    COUNT = 0
    LOCK = threading.Lock()

    def __init__(self, protocol, faults=((), ()), restart=False):
        with World.LOCK:
            World.COUNT += 1
            self.state = lib.scratch("world-%d" % World.COUNT)
        self.protocol, self.endpoints = protocol, []
        self.source = protocol.new  # what is pushed
        self.proxies, self.names = [], {}  # URLs that the push is told instead
        for fault in faults:
            self.endpoints.append(
                self.new_endpoint(*fault, *(["--restart-on-death"] if restart else [])))

    def new_endpoint(self, *options):
        e = lib.Embedded("--lineage", self.protocol.lineage, *self.protocol.serve, *SERVER_LIMITS,
                         *options)
        self.load_old(e)
        return e

    def load_old(self, e):
        """As a server that was started from a checkpoint."""
        if self.protocol.is_vllm:
            return e.post("/collective_rpc", {"method": "reload_weights",
                                              "kwargs": {"weights_path": self.protocol.old}})
        if self.protocol.lineage == "session":
            e.post("/begin_weight_update", {})
        e.post("/update_weights_from_disk", {"model_path": self.protocol.old})
        if self.protocol.lineage == "session":
            e.post("/end_weight_update", {})
        if self.protocol.before:
            self.protocol.before(e)

    def close(self):
        for proxy in self.proxies:
            proxy.shutdown()
            proxy.server_close()
        for e in self.endpoints:
            lib.stop(e.child)
        shutil.rmtree(self.state, ignore_errors=True)

    def env(self):
        return ["env", "XDG_STATE_HOME=" + self.state,
                "WSYNC_REGISTRY=" + self.state + "/registry.json"]

    def push(self, source, *options, env=(), unread=False):
        argv = ["env", *env, os.path.join(lib.BUILD, "bin/wsync-push"), source, "--json", *options]
        for e in self.endpoints:
            argv += ["-e", self.names.get(e.url, e.url)]
        return lib.Running([], [], argv=argv, unread=unread)


    def start(self, *more, options=None, unread=False):
        return self.push(self.source, *(self.protocol.options if options is None else options),
                         *more,
                         env=self.env()[1:], unread=unread)

    def own_name(self, url):
        """Of an endpoint that the push knows by this one."""
        return next((own for own, told in self.names.items() if told == url), url)

    def rival(self):
        """Another user's push of other weights, who knows the endpoints by their own names."""
        names, self.names = self.names, {}
        try:
            version = [VERSION[0], "rival"] if VERSION[0] in self.protocol.options else []
            return self.push(self.protocol.other, *self.protocol.options, *version, *limits("5s"),
                             env=["XDG_STATE_HOME=" + self.state + "/rival"])
        finally:
            self.names = names

    def ctl(self, *args, limit="5s"):
        return lib.Running([], [],
                           argv=[*self.env(), os.path.join(lib.BUILD, "bin/wsync-ctl"), *args,
                                 "--json", "-t", limit]).wait()

    def records(self):
        where = os.path.join(self.state, "wsync/pushes")
        names = [n for n in (os.listdir(where) if os.path.isdir(where) else [])
                 if n.endswith(".json")]
        return [json.load(open(os.path.join(where, n))) for n in sorted(names)]


def is_alive(e):
    return e.child.poll() is None


def journal(e):
    return e.get("/wsync/journal")


def asked(e, path):
    return [r for r in journal(e)["requests"] if r["path"] == path]


def holds(e, sums):
    """old, new, other, or what is none of these: mixed."""
    ranks = e.get("/wsync/checksums").get("ranks") or [{"checksums": {}}]
    found = ranks[0]["checksums"]
    for age in ("old", "new", "other"):
        if found == sums[age]:
            return age
    return "mixed" if found else "nothing"


def give_time(protocol):
    """A push that fails asks for little more than one in which all is well, which takes 0.2 s on an
    idle machine."""
    world = World(protocol)
    protocol.slack = SLACK + 3 * world.start().wait().seconds
    world.close()


# ---- what can fail: whatever a push in which all is well asks for --------------------------------


def discover(protocol):
    """Fills protocol.steps; says what is wrong with a push in which all is well."""
    protocol.set_up()
    world = World(protocol)
    seen = len(journal(world.endpoints[0])["requests"])
    assert all(holds(e, protocol.sums) == "old" for e in world.endpoints), protocol.name
    done = world.start().wait()
    assert done.rc == 0, "%s: %s" % (protocol.name, done)
    requests = journal(world.endpoints[0])["requests"]
    paths = [r["path"][1:] for r in requests]
    before, paths = collections.Counter(paths[:seen]), collections.Counter(paths[seen:])
    # Calls are counted from the start of the endpoint, what made it ready for the push included.
    for path in {r["path"][1:] for r in requests if r["status"] < 400} & set(paths):
        if not path.startswith("wsync/"):
            protocol.steps[path] = [before[path] + 1 + i for i in range(paths[path])]
    if {"init_weights_update_group", "init_weight_transfer_engine"} & set(paths) or \
            "receive_weights_ep_scatter" in paths:
        protocol.steps["wire/store"] = protocol.steps["wire/connect"] = [1]
        transfers = {"whole": 1, "receive": 1, "scatter": 0}.get(protocol.name,
            len(done.of("bucket")))
        protocol.steps["wire/payload"] = list(range(1, transfers + 1))
    check_good(world, "a push in which all is well")
    world.close()


def kinds_at(step):
    if step.startswith("wire/"):  # nobody sees when the push is there; bytes cannot be refused
        return [k for k in ROUTE_KINDS if (step, k) != ("wire/payload", "refuse")] + ["late"]
    return [*ROUTE_KINDS, "late", "freeze", *KINDS_OF_SIGNAL, *fault_acts.KINDS]


def is_to_try(point):
    """The first request to a vLLM for information keeps no push waiting."""
    if point.kind == "replaced" and point.protocol.before:
        return False  # another start has all of its memory
    if point.role in ("optional", "version", "first-info"):
        return point.kind != "freeze" and (point.role, point.kind in KINDS_OF_SIGNAL) != (
            "first-info", True)
    return True


def all_points(protocols):
    """In a fixed order."""
    for p in protocols:
        every = (Point(p, step, call, kind, victim) for step in sorted(p.steps)
                 for call in p.steps[step] for kind in kinds_at(step) for victim in (0, 1))
        yield from filter(is_to_try, every)
    yield from (Point(protocols[0], "after", ms, "SIGKILL", 0) for ms in range(0, 360, 30))


# Boundaries at which a push is killed and interrupted in every run: which call of the step, from 0.
BOUNDARIES = {
    "hash": {"init_weights_update_group": [0], "pause_generation": [0], "flush_cache": [0],
             "update_weights_from_distributed": [0, 1, -1], "weights_checker": [0],
             "update_weight_version": [0],
             "continue_generation": [0], "destroy_weights_update_group": [0]},
    "session": {"update_weights_from_distributed": [1], "end_weight_update": [0]},
    "two-phase": {"prepare_weights_update": [1], "complete_weights_update": [1]},
    "whole": {"complete_weights_update": [0]},
    "written": {"update_weights_from_disk": [0]},
}


def boundary_points(protocols):
    """Those, with each kind of signal; every other signal in a transfer; and the moments at which a
    push is killed wherever it is. Every second time that a push is killed repair is to push
    again."""
    found = [Point(p, step, p.steps[step][i], kind, 1) for p in protocols
             for step, calls in BOUNDARIES.get(p.name, {}).items() for i in calls
             for kind in KINDS_OF_SIGNAL]
    found += [p for p in all_points(protocols) if p.step == "after"]
    hashed = next(p for p in protocols if p.name == "hash")
    found += [Point(hashed, "update_weights_from_distributed", 2, "SIGTERM", 1, other)
              for other in sorted(set(SIGNALS) - set(KINDS_OF_SIGNAL))]
    for i, point in enumerate(p for p in found if p.kind == "SIGKILL"):
        point.options += ["again"] * (i % 2)
    return found


# ---- one point -----------------------------------------------------------------------------------

CONNECT = ("server_info", "get_server_info", "model_info", "get_model_info")
PHASES = {"openapi.json": "connect init", "list_weights": "plan verify",
          "init_weights_update_group": "init",
          "wire/store": "init", "wire/connect": "init", "pause_generation": "pause",
          "flush_cache": "flush", "reset_prefix_cache": "flush",
          "weights_checker": "verify", "update_weight_version": "verify",
          "resume_memory_occupation": "pause resume", "continue_generation": "resume",
          "receive_weights_ep_scatter": "init transfer",
          **dict.fromkeys(("optional", "first-info", "version", "in-step", "config", "metrics"),
                          "connect"),
          **dict.fromkeys((*CONNECT, "roll-call"), "connect transfer resume"),
          # Asked again for signs of another push.
          **dict.fromkeys(("model_info", "get_model_info", "ready",
                                           "is_paused"),
                          "connect pause transfer verify resume")}
# What the exit status may be, by what happened; and 9 where one has the new weights and another has
# not.
BROKEN = {4, 5, 6}
CODES = {"refuse": {5}, "hang": {10}, "late": {10}, "freeze": {10}, "drop": {4, 5, 6}, "slow": {0},
         "garbage": {5, 6}, "wrong-length": {4, 5, 6}, "die": {4, 6}}
EXCEPTIONS = {
    # Asked again, or told otherwise.
    ("flush_cache", "refuse"): {0}, ("flush_cache", "drop"): {0, 4},
    ("reset_prefix_cache", "refuse"): {0},
    # A question, and so asked once more.
    **{(step, "drop"): {0, 4, 5} for step in (*CONNECT, "ready")},
    # Asked once more when all has been confirmed: no answer is a warning then.
    **{(step, k): {0, 10} for step in CONNECT for k in ("hang", "late", "freeze")},
    # Asked again until it answers, or the connect timeout is over; 9 if another endpoint has.
    **{("roll-call", k): {0, 4, 5, 6} for k in ("refuse", "drop", "garbage", "wrong-length")},
    **{("roll-call", k): {0, 4, 9, 10} for k in ("hang", "late", "freeze")},
    # Another status is no answer; an answer that it runs, when it is paused, is a sign of another
    # push.
    ("ready", "refuse"): {0}, ("ready", "garbage"): {0, 5},
    # A server without a list of its routes is one of those whose names are asked for one by one.
    # What it is not asked to do afterwards it may want: a session, two phases.
    **{("openapi.json", k): {0, 5}
       for k in ("refuse", "hang", "late", "drop", "garbage", "wrong-length")},
    ("openapi.json", "die"): {4, 5, 6}, ("openapi.json", "freeze"): {5, 10},
    # What a vLLM need not say of itself, and what it is asked once more.
    **{("optional", k): {0} for k in ROUTE_KINDS + ["late"]},
    ("optional", "die"): {4, 5, 6}, ("optional", "freeze"): {4, 5, 10},
    ("is_paused", "drop"): {0, 4, 5}, ("is_paused", "garbage"): {0, 5},
    # What is asked again after a dropped connection. A proxy may refuse metrics.
    **{(step, "drop"): {0, 4, 5} for step in ("config", "metrics")},
    ("metrics", "refuse"): {0}, ("metrics", "garbage"): {0, 5, 6},
    # Without an answer to it a server is no vLLM, and judged by what else it says. While the answer
    # with the configuration is late it is asked beforehand, and a second time after a bad answer.
    **{("version", k): {0, 4, 5, 6, 10} for k in ("hang", "late")},
    ("version", "die"): {4, 5, 6, 10},
    **{("version", k): {0, 4, 5, 6, 10} for k in ("refuse", "garbage", "wrong-length")},
    ("version", "drop"): {0, 4, 5}, ("version", "slow"): {0},
    # Not waited for where others answer; a vLLM's answer is not read.
    **{("first-info", k): {0} for k in ("hang", "late")},
    **{("first-info", k): {0, 4, 5} for k in ("refuse", "drop", "garbage", "wrong-length")},
    ("first-info", "die"): {4, 5, 6},
    ("wire/connect", "refuse"): {4, 5, 6, 10},
    # What has no list is not compared with one.
    **{("list_weights", k): {0, 4, 5, 10} for k in ROUTE_KINDS + ["late", "freeze"]},
    # Asked up to three times.
    **{("continue_generation", k): {0}
       for k in ("refuse", "hang", "late", "drop", "garbage", "wrong-length")},
    # All has been agreed to, and the weights are there: a warning.
    **{("destroy_weights_update_group", k): {0} for k in ROUTE_KINDS + ["late"]},
    ("destroy_weights_update_group", "freeze"): {0, 10},  # before anybody is resumed, with scatter
}


class Violation(AssertionError):
    def __init__(self, text, slow=False):
        super().__init__(text)
        self.slow = slow  # only because it took too long: the machine may have


def check(truth, text, slow=False):
    if not truth:
        raise Violation(text, slow)


def check_good(world, where, keeps_group=False):
    for e in world.endpoints:
        state = journal(e)["state"]
        what = holds(e, world.protocol.sums)
        check(what == "new" and not state["paused"]
              and state["weight_version"] == world.protocol.version,
              "%s: it holds %s weights, %s" % (where, what, state))
        check(not state["prepared"] and not state["session"]
              and (keeps_group or not state["groups"])
              and not state["released"], "%s: not ended: %s" % (where, state))
    check(not world.records(), "%s: records stay: %s" % (where, world.records()))


def codes_of(point):
    return EXCEPTIONS.get((point.role, point.kind), CODES[point.kind])


# From the last question about the version on nobody can see another push any more.
UNSEEN = {"weights_checker", "update_weight_version", "continue_generation",
          "destroy_weights_update_group"}


def is_unseen(point):
    """What is asked for several times is asked for the last time twice, or in the roll call four
    times at once: while one endpoint is held there, the other has answered. The first of all comes
    before the push begins."""
    calls = point.protocol.steps[point.step]
    last = 4 if point.role == "roll-call" else 2
    return point.role in UNSEEN or (point.role in (*CONNECT, "roll-call", "ready", "is_paused")
                                    and point.call > max(1, calls[-1] - last))


def news_of(point):
    """What an endpoint may hold that is called committed. A source may change before it is read."""
    # An endpoint is not asked again when the end of the update fails at the other.
    # Before 0.21 the last bucket is the end.
    ends = point.step == "finish_weight_update" or (
        point.step == "update_weights" and point.protocol.name == "vllm-0.20"
        and point.call == point.protocol.steps[point.step][-1])
    late = point.kind == "rival" and (is_unseen(point) or ends)
    return ("new", "other") if point.kind == "source" or late else ("new",)


def olds_of(point):
    return ("old", "other") if point.kind == "rival" else ("old",)


def unsure_of(world):
    """URLs of those that did not answer a request to wake or to release memory."""
    return {world.own_name(e["url"]) for r in world.records()
            for e in r["endpoints"] if e.get("unsure")}


def check_claims(point, world, said, where):
    """said: url to (state, left paused). Nobody is called what he is not, nobody that is whole is
    paused."""
    for i, e in enumerate(world.endpoints):
        state, stays = said[e.url]
        if not is_alive(e) or (i == point.victim and point.kind == "die"):
            check(state != "committed" or point.role == "destroy_weights_update_group",
                  "%s: %s is called committed, and is dead" % (where, e.url))
            continue
        what, paused = holds(e, world.protocol.sums), journal(e)["state"]["paused"]
        text = "%s: endpoint %d: said %s%s, holds %s, %s" % (
            where, i, state, " and paused" * bool(stays), what,
            "paused" if paused else "not paused")
        check(state != "committed" or what in news_of(point), text)
        check(state != "untouched" or what in olds_of(point), text)
        if point.kind == "late" and point.role == "pause_generation" and i == point.victim:
            continue  # it pauses after it was told to continue, and nobody can see it
        if point.kind == "rival" and world.protocol.before:
            # whichever of the two found memory otherwise than it was told leaves it paused
            continue
        # Such a server would die of a prompt; whether an unanswered wake was obeyed is not known.
        released = journal(e)["state"]["released"] or e.url in unsure_of(world)
        check(not paused or (stays and (state == "partial" or released))
              or (stays and point.kind == "freeze"), text)


def check_time(point, done):
    limit = DEADLINE + point.protocol.slack
    if point.kind == "freeze" and point.role in ("continue_generation",
                                                 "destroy_weights_update_group"):
        limit += RESUME
    if point.kind == "freeze" and point.role in ("openapi.json", "list_weights"):
        limit += 2 * DEADLINE  # it does without these answers, one after the other
    if "unread" in point.options:
        limit += GRACE
    check(done.seconds <= limit, "it took %.1f s of %.1f s: %s" % (done.seconds, limit, done), True)


def check_unread(point, world):
    """Nobody heard what the push said of its endpoints: those with whole weights have to be in use
    all the same."""
    said = {}
    for i, e in enumerate(world.endpoints):
        if point.kind == "freeze" and i == point.victim:
            said[e.url] = ("partial", True)  # it still does what it was asked while it was frozen
            continue
        what = holds(e, world.protocol.sums) if is_alive(e) else "nothing"
        paused = is_alive(e) and journal(e)["state"]["paused"]
        state = {"old": "untouched", "new": "committed"}.get(what, "partial")
        if paused and is_held(point):
            state = "partial"  # as far as the push can know, which may have got no answer
        asleep = bool(world.protocol.before)  # what misses memory stays paused
        said[e.url] = (state, paused and (state == "partial" or point.kind == "freeze" or asleep))
    check_claims(point, world, said, "afterwards")


def check_told(point, world, done):
    """Exit status, message and time of a push that was not killed."""
    end, victim = done.end, world.endpoints[point.victim].url
    check(end.get("type") == "end" and end["exit"] == done.rc,
          "its stream has no right end: %s" % done)
    allowed, rc = codes_of(point), done.rc
    states = {e["state"] for e in end["endpoints"]}
    mixed = "committed" in states and states != {"committed"}
    check(rc in allowed or (rc == 9 and mixed and 0 not in allowed)
          or (rc == 9 and point.kind == "die"),
          "exit status %d, not one of %s: %s" % (rc, sorted(allowed), done), rc == 10)
    check(rc == 9 or rc == 0 or not mixed or point.role in ("update_weight_version",),
          "one is updated and another not, and the exit status is %d: %s" % (rc, done))
    if rc == 0:
        check(end["ok"] and states == {"committed"}, "exit status 0: %s" % done)
        if point.role == "destroy_weights_update_group" and point.kind not in ("slow", "garbage"):
            check(victim in done.stderr,
                  "nothing is said of an endpoint that did not leave: %s" % done)
    else:
        error = end["error"]
        text = json.dumps(error)
        # In a group that breaks, whoever noticed it first may be named.
        urls = [e.url for e in world.endpoints] if point.role.startswith("wire/") else [victim]
        check(any(url in text for url in urls) or
              (point.role.startswith("wire/") and "the peer at" in text),
              "the message does not name %s: %s" % (victim, text))
        phases = PHASES.get(point.role, "transfer").split()
        if point.role == "wire/connect" and not point.protocol.joins:
            phases.append("transfer")  # no answer says that an endpoint has joined
        check(error["phase"] in phases or (point.kind in ("die", "freeze") and error["phase"]),
              "phase %s, not %s: %s" % (error["phase"], phases, text))
        check(error["message"] and error["message"] in done.stderr,
              "stderr says something else: %s" % done)
    check_time(point, done)


def check_left(point, world, done):
    """A record where something is to be repaired, and none where nothing is; locks are let go."""
    left = [e for e in done.end["endpoints"] if e["state"] == "partial" or e["paused"]]
    records = world.records()
    kept = {e["url"] for r in records for e in r["endpoints"]
            if e["state"] == "partial" or e["paused"] or e["grouped"] or e["middle"]}
    check({e["url"] for e in left} <= kept, "%s are left, %s are recorded" % (left, records))
    silent = "to leave group" in done.stderr or "to join group" in done.stderr \
        or "may still wait" in done.stderr or "could not be" in done.stderr
    owes = any(e.get("unlabelled") or e.get("unsure") for r in records for e in r["endpoints"])
    check(left or silent or owes or point.kind == "die" or not records,
          "a record of nothing: %s, %s" % (records, done))
    where = os.path.join(world.state, "wsync/locks")
    for name in os.listdir(where) if os.path.isdir(where) else []:
        with open(os.path.join(where, name), "rb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                check(False, "lock %s is not let go" % name)


def follow(point, world):
    """Whatever happened, the next push makes all good."""
    if not all(map(is_alive, world.endpoints)):
        return
    options = world.protocol.options
    if world.protocol.before:
        options = ["--asleep", "recorded", *options[2:]]
        for e in world.endpoints:  # no record knows that it has all its memory again
            if point.kind == "rival" or ("restart" in point.options
                                         and e == world.endpoints[point.victim]):
                world.ctl("repair", "--forget", "-e", world.names.get(e.url, e.url))
        recorded = {world.own_name(e["url"]): e["asleep"] for r in world.records()
                    for e in r["endpoints"]}
        unsure = unsure_of(world)
        # what no record knows, such as a wake that was not answered, is its owner's
        for e in world.endpoints:
            rest = set(journal(e)["state"]["released"])
            if e.url in unsure:
                world.ctl("repair", "--forget", "-e", world.names.get(e.url, e.url))
            else:
                rest -= set((recorded.get(e.url) or "").split(","))
            if rest:
                e.post("/resume_memory_occupation", {"tags": sorted(rest)})
    for attempt in range(6):  # a server of torch that waits in vain takes its time to notice
        done = world.start("-t", "15s", *limits("10s"), options=options).wait()
        if done.rc == 0 or attempt == 5:
            break
        time.sleep(1)
    check(done.rc == 0, "the next push: %s" % done)
    check_good(world, "after the next push",
               point.role == "destroy_weights_update_group" and point.kind == "refuse")


def is_held(point):
    """The first prompt may crash a vLLM with incomplete weights: a push refuses to resume it."""
    return "hold" in point.options or point.protocol.is_vllm


def held(point):
    """Without it, a partially updated endpoint stays paused."""
    return [] if is_held(point) else ["--on-partial", "resume"]


def limits(seconds):
    return ["--connect-timeout", seconds, "--init-timeout", seconds, "--bucket-timeout", seconds]


def answers(e):
    try:
        return bool(journal(e))
    except OSError:
        return False


def settle(point, world, began):
    """Until a slow endpoint has done what it was asked to."""
    if "restart" in point.options:
        lib.await_true(lambda: answers(world.endpoints[point.victim]),
                       "the endpoint to come back")
    if point.kind == "late":
        time.sleep(max(0, began + DEADLINE + LATE_SECONDS + 1 - time.monotonic()))


def claims_of(done, world):
    return {world.own_name(e["url"]): (e["state"], e["paused"]) for e in done.end["endpoints"]}


def after_kill(point, world):
    """Nobody could tidy up: repair does, and once more changes nothing."""
    # The record says of memory that was being woken that it is back, and here it may not be.
    again = "again" in point.options and world.records() \
        and point.role != "resume_memory_occupation"
    if again:
        done = world.ctl("repair", "--again", limit="60s")
        check(done.rc == 0, "repair --again: %s" % done)
        check_good(world, "after repair --again")
    for attempt in ("repair", "repair once more"):
        done = world.ctl("repair")
        check(done.rc in (0, 9), "%s: %s" % (attempt, done))
        told = {e["url"]: (e["state"], e["paused"]) for e in done.of("endpoint")}
        torn = [e for e in done.of("endpoint") if e["state"] == "partial" or e.get("unsure")
                or (e["paused"] and "weights" in (e["asleep"] or ""))]
        check((done.rc == 9) == bool(torn), "%s: %s, %s" % (attempt, done, done.of("endpoint")))
        for e in world.endpoints:  # of whom nothing is told all is well
            what = holds(e, world.protocol.sums)
            check(e.url in told or what != "mixed",
                  "%s: nothing is said of a mixture: %s" % (attempt, done))
            told.setdefault(e.url,
                            ({"old": "untouched", "new": "committed"}.get(what, "partial"), False))
        check_claims(point, world, told, attempt)


def run_signal(point, world):
    route, victim = "/" + point.step, world.endpoints[point.victim]
    unread = "unread" in point.options
    running = world.start(*limits("20s"), *held(point), unread=unread)
    try:
        if point.step != "after":
            lib.await_true(lambda: len(asked(victim, route)) >= point.call or
                           running.child.poll() is not None, "the push to be there")
        # so that the other endpoint has done what it can
        time.sleep(point.call / 1000 if point.step == "after" else 0.1)
    finally:
        number = SIGNALS[next((o for o in point.options if o in SIGNALS), point.kind)]
        os.kill(running.child.pid, number)
        began = time.monotonic()
        if "echo" in point.options:  # one wish told twice, as timeout(1) does
            time.sleep(0.02)
            os.kill(running.child.pid, number)
        if "twice" in point.options:
            time.sleep(0.4)
            os.kill(running.child.pid, number)
        done = running.wait()
    check(done.rc == -number or (point.step == "after" and done.rc == 0),
          "it did not die by signal %d: %s" % (number, done))
    took = time.monotonic() - began
    limit = (0.7 * point.protocol.slack if "twice" in point.options
             else 2 * point.protocol.slack) + (GRACE if unread else 0)
    check(took <= limit, "%.1f s to die of %s: %s" % (took, point.kind, done), True)
    if unread and number != signal.SIGKILL and "twice" not in point.options:
        check_unread(point, world)
        return after_kill(point, world)
    if number == signal.SIGKILL or done.end.get("type") != "end":
        check(unread or number == signal.SIGKILL or "twice" in point.options, "no end: %s" % done)
        return after_kill(point, world)
    # What is over is over, though the program dies by the signal.
    check(done.end["ok"] or done.end["error"]["code"] == "cancelled", "not cancelled: %s" % done)
    check_claims(point, world, claims_of(done, world), "its end")
    check_left(point, world, done)
    # Only a push can give weights back that were released.
    released = any((e["paused"] and "weights" in (e.get("asleep") or "")) or e.get("unsure")
                   for r in world.records() for e in r["endpoints"])
    partial = any(e["state"] == "partial" for e in done.end["endpoints"])
    repair = world.ctl("repair")
    check(repair.rc == (9 if partial or released else 0), "repair: %s" % repair)
    return check_claims(point, world, claims_of(done, world), "repair")


def run_fault(point, world):
    began = time.monotonic()
    unread = "unread" in point.options
    running = world.start(*limits("%gs" % DEADLINE), *held(point), unread=unread)
    victim = world.endpoints[point.victim]
    if point.kind == "freeze":
        lib.await_true(lambda: len(asked(victim, "/" + point.step)) >= point.call or
                       running.child.poll() is not None, "the push to be there")
        os.kill(victim.child.pid, signal.SIGSTOP)
    try:
        done = running.wait()
    finally:
        if point.kind == "freeze":
            os.kill(victim.child.pid, signal.SIGCONT)
    if unread:
        allowed = {c or 8 for c in codes_of(point)} | {9}
        check(done.rc in allowed, "exit status %d, not one of %s" % (done.rc, sorted(allowed)),
              done.rc == 10)
        check_time(point, done)
    else:
        check_told(point, world, done)
        check_left(point, world, done)
    settle(point, world, began)
    if unread:
        check_unread(point, world)
    else:
        check_claims(point, world, claims_of(done, world), "its end")
    if point.kind == "freeze":
        after_kill(point, world)


def run_act(point, world):
    number = point.protocol.steps[point.step].index(point.call) + 1
    act, done = fault_acts.run(point.kind, point, world, number,
                               lambda: world.start(*limits("10s"), *held(point)))
    check(done.end.get("type") == "end" and done.end["exit"] == done.rc,
          "its stream has no right end: %s" % done)
    states = {e["state"] for e in done.end["endpoints"]}
    codes = act.codes(point.protocol)
    check(codes is None or done.rc in codes,
          "exit status %d, not one of %s: %s" % (done.rc, codes, done))
    check((done.rc == 0) == done.end["ok"] and (done.rc or states == {"committed"}),
          "exit status: %s" % done)
    if point.kind == "replaced" and done.rc == 0 and act.is_unseen():
        return
    check_claims(point, world, claims_of(done, world), "its end")
    held_now = {holds(e, world.protocol.sums) for e in world.endpoints if is_alive(e)}
    check(done.rc or len(held_now) == 1, "exit status 0, and they hold %s" % held_now)
    check(done.rc or point.role != "weights_checker" or held_now == {"new"},
          "verified, and they hold %s" % held_now)


def run(point):
    kind = {"late": "slow", "freeze": "hang"}.get(point.kind,
                                                  "hang" if point.kind in SIGNALS else point.kind)
    faults = [(), ()]
    if point.kind not in fault_acts.KINDS and point.step != "after":
        faults[point.victim] = ["--fault", "%s:%s:%d" % (kind, point.step, point.call),
                                "--fault-delay",
                                "%gs" % (LATE_SECONDS if point.kind == "late" else SLOW_SECONDS)]
    world = World(point.protocol, faults, "restart" in point.options)
    try:
        if point.kind in SIGNALS:
            run_signal(point, world)
        elif point.kind in fault_acts.KINDS:
            run_act(point, world)
        else:
            run_fault(point, world)
        follow(point, world)
    finally:
        world.close()


# ---- many of them --------------------------------------------------------------------------------


def prepare():
    """All points there are, after one push by each protocol in which all is well."""
    if not os.path.exists(os.path.join(lib.BUILD, "bin/wsync-endpoint")):
        raise lib.Skip("wsync-endpoint is not built")
    for p in PROTOCOLS:
        discover(p)
    return list(all_points(PROTOCOLS))


def add_options(point, chance):
    if chance.random() < 0.3:
        point.options.append("hold")
    if point.kind == "die" and chance.random() < 0.5:
        point.options.append("restart")
    if point.kind == "SIGKILL" and chance.random() < 0.5:
        point.options.append("again")
    if point.kind in ("SIGINT", "SIGTERM") and chance.random() < 0.5:
        point.options.append("twice" if chance.random() < 0.6 else "echo")
    if point.kind in ("SIGINT", "SIGTERM") and chance.random() < 0.5:
        others = set(SIGNALS) - set(KINDS_OF_SIGNAL)
        point.options.append(chance.choice(sorted(others - TIMERS if "twice" in point.options
                                                  else others)))
    if point.kind in fault_acts.KINDS:
        point.options.append(chance.choice(fault_acts.KINDS[point.kind].VARIANTS))
    elif chance.random() < 0.15:
        point.options.append("unread")
    return point


RUNNING = []  # names of the points that run now


def attempt(point):
    """What is wrong with it, and whether that may be the machine's; how long it took."""
    began, why, slow = time.monotonic(), None, False
    RUNNING.append(point.name)
    try:
        run(point)
    except Exception as e:
        why, slow = "%s: %s" % (type(e).__name__, e), getattr(e, "slow", False)
    finally:
        RUNNING.remove(point.name)
    return why, slow, time.monotonic() - began


def run_all(points, jobs, program):
    """TAP, and what is needed to repeat a failure. Several at a time: they mostly wait. One that
    was just too slow has another try alone, in as much more time as the machine needs now."""
    slow, failed, number, began = [], 0, 0, time.monotonic()

    def report(point, why, seconds, note=""):
        nonlocal failed, number
        number += 1
        failed += bool(why)
        print("%sok %d - %s # %.1f s%s" % ("not " * bool(why), number, point.name, seconds, note),
              flush=True)
        if why:
            print("# FAULT_POINT=%s %s\n# %s" % (point.name, program, why.replace("\n", "\n# ")),
                  flush=True)

    print("1..%d" % len(points), flush=True)
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for point, future in [(p, pool.submit(attempt, p)) for p in points]:
            why, may_be_load, seconds = future.result()
            if may_be_load:
                slow.append(point)
            else:
                report(point, why, seconds)
    for point in slow:
        give_time(point.protocol)
        why, _, seconds = attempt(point)
        report(point, why, seconds, " (again, alone)")
    print("# %d points, %d failed, %d tried again alone, %.0f s" % (
        len(points), failed, len(slow), time.monotonic() - began), flush=True)
    return 1 if failed else 0
