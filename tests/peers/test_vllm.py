# SPDX-License-Identifier: Apache-2.0
"""The programs against real vLLM servers with the worker extension of lib/vllm, on this CPU.

Only when asked for, since the first time it downloads 3 GB from PyPI: WSYNC_TEST_VLLM=1 for Qwen3
at tp 1 and llama at tp 2, WSYNC_TEST_VLLM=2 the other way round; each needs 14 GB of memory. A pair
of servers is started on two checkpoints; each one's answers are what the other must give, bit for
bit, after a push of the first one's checkpoint. WSYNC_TEST_VLLM=families, or
WSYNC_TEST_VLLM=mixtral,gpt_oss: instead a pair of each family of tiny_families.py, a minute each.
"""
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import time

import lib
import tiny_families
import vllm_server
from vllm_server import logprobs, make

ASKED = os.environ.get("WSYNC_TEST_VLLM", "")
COMBINATIONS = {"1": [("qwen3", 1), ("llama", 2)], "2": [("llama", 1), ("qwen3", 2)]}
WAYS = [["--bucket-size", "512MiB"], ["--bucket-size", "16KiB"], ["--load-format", "none"],
        ["--load-format", "none", "--bucket-size", "16KiB"], ["--backend", "disk"]]


class Pair:
    """Two servers of one family and size, on the checkpoints of seeds 1 and 2."""

    def __init__(self, family, tp):
        self.family, self.tp = family, tp
        self.servers = [vllm_server.Server(make(family, seed), tp,
                                           options=["--enable-prompt-tokens-details"])
                        for seed in (1, 2)]
        for s in self.servers:
            s.await_ready()
        self.fresh = {seed: logprobs(s) for seed, s in enumerate(self.servers, 1)}
        assert self.fresh[1] != self.fresh[2], "the prompts do not tell the checkpoints apart"

    def check(self, server, seed):
        assert logprobs(server) == self.fresh[seed], "%s tp %d does not compute as seed %d" % (
            self.family, self.tp, seed)

    def push(self, server, seed, *options):
        done = lib.push([server], [make(self.family, seed)], *options)
        assert done.rc == 0, done
        self.check(server, seed)
        return done


def is_paused(server):
    return server.get("/is_paused")[1]["is_paused"]


def state_of(done):
    return [(e["state"], e["paused"]) for e in done.end["endpoints"]]


def spoiled(family, name, shape):
    """Seed 1's checkpoint, and one tensor of zeros."""
    path = lib.scratch("vllm-%s.%s" % (family, name))
    if not os.path.isdir(path):
        shutil.copytree(make(family, 1), path)
        with open(path + "/more.safetensors", "wb") as f:
            text = json.dumps({name: {"dtype": "U8", "shape": shape,
                                      "data_offsets": [0, shape[0]]}}).encode()
            f.write(struct.pack("<Q", len(text)) + text)
            f.truncate(8 + len(text) + shape[0])
    return [path + "/model.safetensors", path + "/more.safetensors"]


def torn(family):
    """Seed 2's checkpoint, and a tensor that vLLM does not know between the q and k of layer 1."""
    path = lib.scratch("vllm-%s.torn" % family)
    shutil.copytree(make(family, 2), path)
    header, data = {}, bytearray()
    for name, _, shape, raw in vllm_server.tensors(make(family, 2)):
        more = [("model.layers.1.self_attn.strange.weight", "U8", [64], bytes(64))]
        for name, dtype, shape, raw in [(name, "BF16", shape, raw)] + (
                more if name.endswith("layers.1.self_attn.q_proj.weight") else []):
            header[name] = {"dtype": dtype, "shape": shape,
                            "data_offsets": [len(data), len(data) + len(raw)]}
            data += raw
    with open(path + "/model.safetensors", "wb") as f:
        text = json.dumps(header).encode()
        f.write(struct.pack("<Q", len(text)) + text + data)
    return path


# ---- cases: pairs is what the servers are, the first one at tp 1

suite = lib.Suite()


@suite.case("every way of sending gives the bits of a fresh start; version and resume as asked")
def sent(pairs):
    for pair in pairs:
        for i, way in enumerate(WAYS):
            for server, seed in zip(pair.servers, (2, 1)):
                label = "v%d" % i
                pair.push(server, seed, "--weight-version", label, *way)
                assert server.get("/weight_info")[1]["weight_version"] == label
                assert not is_paused(server)
                pair.push(server, 3 - seed, *way)


@suite.case("two servers in one group")
def together(pairs):
    for pair in pairs:
        done = lib.push(pair.servers, [make(pair.family, 2)])
        assert done.rc == 0, done
        for server in pair.servers:
            pair.check(server, 2)
        pair.push(pair.servers[0], 1)


@suite.case("what vLLM reports proves norms and the embedding at least, and tells other weights")
def proven(pairs):
    for pair in pairs:
        server = pair.servers[0]
        done = pair.push(server, 2, "--verify", "hash", "--min-coverage", "1")
        proof, = [e for e in done.events if e["type"] == "proof"]
        print("# %s tp %d: %s" % (pair.family, pair.tp, proof))
        # A CPU may hold linear layers in another arrangement.
        plain = [n for n, _ in vllm_server.shapes(pair.family) if "norm" in n or "embed" in n]
        assert proof["different"] == 0 and proof["proven"] >= len(plain), proof
        assert proof["proven"] + proof["opaque"] == proof["parameters"], proof
        for seed, rc in ((2, 0), (1, 1)):
            told = lib.run_program("wsync-verify", ["weights", make(pair.family, seed),
                                                    "--min-coverage", "1", "--json"], [server])
            assert told.rc == rc, told
        pair.push(server, 1)


@suite.case("a push and a flush clear the prefix cache, --flush never does not")
def cleared(pairs):
    for pair in pairs:
        server = pair.servers[0]
        push = "wsync-push %s -q -e %s" % (make(pair.family, 1), server.url)
        for command in (push, "wsync-ctl flush -q -e " + server.url):
            row = lib.caches(server, command)
            assert row["verdict"] == "cleared" and row["cached_before"] == 128, row
        row = lib.caches(server, push + " --flush never")
        assert row["verdict"] == "cached" and row["cached_after"] == 128, row
        # A block of a vLLM on a CPU has 128 tokens.
        assert lib.caches(server, push, "--tokens", "100")["verdict"] == "unknown"


@suite.case("a part of a fused layer is refused before the pause")
def fused(pairs):
    for pair in pairs:
        server = pair.servers[0]
        done = lib.push([server], [make(pair.family, 2)], "--include", "*q_proj*", "--verify",
                        "names")
        assert done.rc == 1 and state_of(done) == [("untouched", False)], done
        pair.check(server, 1)


KILLS = [(path, when) for path in ("/init_weight_transfer_engine", "/pause", "/start_weight_update",
                                   "/update_weights", "/finish_weight_update", "/resume")
         for when in ("before", "after")]


class Proxy:
    """Kills the push whose number is in a file, before or after one route's request."""

    def __init__(self, server, path, when):
        self.pid = lib.scratch("vllm-pid")
        do = "\nif path.split('?')[0] == %r and %r: subprocess.run(%r, shell=True)" % (
            path, True, "kill -9 $(cat %s)" % self.pid)
        rules = ["import subprocess" + do if when == w else "pass" for w in ("before", "after")]
        self.child = lib.start([sys.executable, os.path.join(lib.TREE, "tests", "cli", "proxy.py"),
                                server.url, *rules], stdout=subprocess.PIPE)
        self.url = "http://127.0.0.1:%d" % int(self.child.stdout.readline())

    def kill(self, *argv):
        running = lib.Running([self], list(argv[:1]), *argv[1:])
        with open(self.pid, "w") as f:
            f.write(str(running.child.pid))
        done = running.wait()
        os.unlink(self.pid)  # from now on it only passes on
        return done


@suite.case("kill -9 at every request: repair says what is true, and the next push ends it")
def killed(pairs):
    pair = pairs[0]
    server = pair.servers[0]
    for path, when in KILLS:
        at = "%s, %s" % (path, when)
        proxy = Proxy(server, path, when)
        done = proxy.kill(make(pair.family, 2), "--bucket-size", "128KiB", "--weight-version", "k")
        assert done.rc == -signal.SIGKILL, "%s: %s" % (at, done)
        # also releases a worker that waits for the dead sender's store
        told = lib.run_program("wsync-ctl", ["repair", "--json"], [])
        lib.await_true(lambda: is_served(server), "an idle engine")
        repaired = [e for e in told.events if e["type"] == "endpoint"]
        print("# %s: repair %d %s" % (at, told.rc, [(e["state"], e["paused"]) for e in repaired]))
        if not is_paused(server):  # it computes: only whole weights may
            held = logprobs(server)
            assert held in (pair.fresh[1], pair.fresh[2]), "%s: it computes anything" % at
        assert is_paused(server) or not any(e["state"] == "partial" for e in repaired), told
        done = lib.push([proxy], [make(pair.family, 1)], "--verify", "hash",
                        "--min-coverage", "1")
        assert done.rc == 0, "%s: %s" % (at, done)
        pair.check(server, 1)
        assert not is_paused(server)
        lib.stop(proxy.child)


@suite.case("a sender that is killed in the middle of a broadcast: 500, and the server goes on")
def cut_off(pairs):
    pair = pairs[0]
    server = pair.servers[0]
    paths = spoiled(pair.family, "huge", [2 << 30])
    running = lib.Running([server], paths, "--verify", "none", "--bucket-size", "64KiB",
                          "--load-format", "none")
    lib.await_true(lambda: is_paused(server), "the pause, after the join")
    lib.await_true(lambda: not is_served(server), "the update")
    time.sleep(0.3)
    running.child.kill()
    running.wait()
    began = time.monotonic()
    lib.await_true(lambda: is_served(server), "an idle engine")
    print("# %.1f s after the kill" % (time.monotonic() - began))
    assert is_paused(server)
    assert lib.run_program("wsync-ctl", ["repair", "--json"], [server]).rc == 9
    lib.forget([server])
    pair.push(server, 1)


def is_served(server):
    """Does the engine answer? Not while it receives."""
    try:
        return server.get("/weight_info", seconds=1)[0] == 200
    except OSError:
        return False


@suite.case("an update that fails between parts of a layer does not spoil the next one")
def parts(pairs):
    pair = pairs[0]
    server, source = pair.servers[0], torn(pair.family)
    for how in ([], ["--backend", "disk"]):
        done = lib.push([server], [source], "--verify", "none", "--bucket-size", "1KiB")
        assert done.rc == 5 and state_of(done) == [("partial", True)], done
        lib.forget([server])
        pair.push(server, 2, "--bucket-size", "1KiB", *how)
        assert not is_paused(server)
        pair.push(server, 1)


@suite.case("a server that answers nothing: the deadline and 2 s")
def silent(pairs):
    pair = pairs[0]
    server = pair.servers[0]
    os.killpg(server.child.pid, signal.SIGSTOP)
    try:
        began = time.monotonic()
        done = lib.push([server], [make(pair.family, 2)], "--connect-timeout", "3s")
        took = time.monotonic() - began
    finally:
        os.killpg(server.child.pid, signal.SIGCONT)
    assert done.rc in (4, 10), done
    print("# %.1f s" % took)
    assert took < 3 + 2 + (10 if lib.is_sanitized() else 0), took
    pair.push(server, 1)


@suite.case("a tensor that it does not know: partial, paused, and the sentence says what helps")
def unknown(pairs):
    for pair in pairs:  # the last: with several workers it has to be restarted
        server = pair.servers[0]
        done = lib.push([server], spoiled(pair.family, "strange", [64]), "--verify", "none")
        assert done.rc == 5 and state_of(done) == [("partial", True)], done
        assert is_paused(server)
        hint = done.end["error"]["hint"]
        assert ("push again" if pair.tp == 1 else "restart the server") in hint, hint
        lib.forget([server])
        if pair.tp == 1:
            pair.push(server, 1, "--verify", "hash", "--min-coverage", "1")
            continue
        done = lib.push([server], [make(pair.family, 1)])
        assert done.rc == 5 and "answer earlier requests" in done.end["error"]["message"], done


# ---- families: whole pushes that end with 0 must be right, with and without the worker extension

families = lib.Suite()
families.SECONDS = 3600
# What is no yes, with the extension and without: on a CPU, the worker extension mends the others.
REFUSED = {True: {"gpt_oss"},
           False: {"gpt_oss", "mixtral", "qwen2_moe", "qwen3_moe", "glm4_moe", "deepseek_v2",
                   "ernie4_5_moe", "qwen3_next", "qwen3_tied", "gemma3_text"}}


def make_family(family, seed):
    path = lib.scratch("family-%s.%d" % (family, seed))
    subprocess.run([vllm_server.python(), "-W", "ignore", tiny_families.__file__, family, str(seed),
                    path], env=dict(os.environ, HF_HUB_OFFLINE="1"), check=True, timeout=300,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return path


def push_family(family, server, source, fresh, extension, *options):
    """fresh: what this server answered before, and what one that is started on the source does."""
    done = lib.run_program("wsync-push", [source, "--json", *options], [server])
    told = done.end["endpoints"][0]["evidence"]
    held = logprobs(server)
    print("# %-13s %-9s exit %d, %s, names by %s, format %s: %s" % (
        family, "extension" if extension else "stock", done.rc, told["word"], told["names"],
        told["format"]["verdict"],
        "answers as a fresh start" if held == fresh[1] else
        "answers as before" if held == fresh[0] else "ANSWERS OTHERWISE"), flush=True)
    if family in REFUSED[extension]:
        assert done.rc == 5 and state_of(done) == [("untouched", False)], done
    else:
        assert done.rc == 0 and told["format"]["verdict"] == "right", done
    assert held == fresh[done.rc == 0], done


def whole(family):
    models = [make_family(family, seed) for seed in (0, 1)]
    servers = [vllm_server.Server(model, extension=extension)
               for model, extension in zip(models, (True, False))]
    try:
        for s in servers:
            s.await_ready()
        fresh = [logprobs(s) for s in servers]
        assert fresh[0] != fresh[1], "the prompts do not tell the checkpoints apart"
        push_family(family, servers[0], models[1], fresh, True)
        push_family(family, servers[1], models[0], fresh[::-1], False, "--backend", "disk")
    finally:
        for s in servers:
            s.stop()


for one in tiny_families.FAMILIES if ASKED == "families" else ASKED.split(","):
    families.case("%s, pushed whole: right, or no yes" % one)(lambda _, one=one: whole(one))


def set_up():
    if ASKED not in COMBINATIONS:
        raise lib.Skip("set WSYNC_TEST_VLLM=1: the first time this downloads 3 GB")
    vllm_server.python()
    return [Pair(family, tp) for family, tp in COMBINATIONS[ASKED]]


if __name__ == "__main__":
    if ASKED == "families" or set(ASKED.split(",")) <= set(tiny_families.FAMILIES):
        sys.exit(families.main(vllm_server.python))
    sys.exit(suite.main(set_up))
