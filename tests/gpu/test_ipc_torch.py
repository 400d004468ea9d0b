#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""wsync-push --backend ipc into endpoints that read its GPU memory: torch's own, on the GPU that is
here.

WSYNC_TEST_PYTHON names an interpreter whose torch has CUDA (python3). With
WSYNC_TEST_CUDA=fake_cuda.so, the double of libcuda, the same cases run without either, for trying
the cases themselves and what the push does where the driver refuses something; that is no proof
that anything works on a GPU.
"""
import os
import signal
import subprocess
import sys

import on_torch
from on_torch import ON_DOUBLE, PYTHON, lib
import mkst

HERE = os.path.dirname(os.path.abspath(__file__))
CUDA = os.environ.get("WSYNC_TEST_CUDA", "")
PLAIN = [("embed.weight", "F32", (2000, 300)), ("layers.0.w", "F32", (513, 1025)),
         ("layers.1.q", "U8", (3, 100003)),
         ("layers.1.h", "F16", (513, 77)), ("layers.1.i", "I64", (31, 3)), ("b", "BF16", (77, 3)),
         ("f8", "F8_E4M3", (130, 7)), ("odd", "U8", (13,)), ("one", "U8", (1,)), ("s", "F32", ())]
MANY = [("w%d" % i, "F32", (300 + i, 511)) for i in range(12)]
PIECE = 1 << 29
MEMORY = "import torch; print(torch.cuda.get_device_properties(0).total_memory)"
COPY = """
import sys, time, torch
a, b = (torch.empty(int(sys.argv[1]), dtype=torch.uint8, device="cuda:0") for _ in range(2))
best = 1e9
for _ in range(5):
    torch.cuda.synchronize()
    began = time.perf_counter()
    b.copy_(a)
    torch.cuda.synchronize()
    best = min(best, time.perf_counter() - began)
print(best)
"""
TRAINER = """
import ctypes, hashlib, json, sys, torch
n, piece = map(int, sys.argv[1:3])
sys.path.insert(0, sys.argv[3])
from wsync_manifest import export
state = {"w%d" % i: torch.randint(0, 256, (piece,), dtype=torch.uint8, device="cuda:0")
         for i in range(n)}
keep = export(state, sys.argv[4])
first = state["w0"].cpu()
digest = hashlib.sha256(ctypes.string_at(first.data_ptr(), piece)).hexdigest()
print(json.dumps({"sha256": digest}), flush=True)
sys.stdin.read()
"""

suite = lib.Suite()


def make(name, tensors, seed=0):
    path = lib.scratch(name + ".safetensors")
    mkst.write(path, tensors, seed)
    return path


def for_double():
    """What a program of another's making needs to load the double: a sanitizer's library, where it
    has one."""
    needed = subprocess.run(["ldd", CUDA], stdout=subprocess.PIPE, text=True, timeout=20,
                            check=True).stdout
    first = [line.split()[2] for line in needed.splitlines() if "libasan" in line]
    return {"LD_LIBRARY_PATH": "", "LD_PRELOAD": ":".join(first), "ASAN_OPTIONS": "detect_leaks=0"}


class Served(lib.Endpoint):
    """An endpoint of ipc_server.py."""

    def __init__(self, tp=1, *options):
        where = ["--double", CUDA] if ON_DOUBLE else []
        self.child = lib.start([sys.executable if ON_DOUBLE else PYTHON,
                                os.path.join(HERE, "ipc_server.py"),
                                "--tp", str(tp), *where, *options],
                                for_double() if ON_DOUBLE else None,
                               stdout=subprocess.PIPE)
        ready = lib.Lines(self.child.stdout).next()
        assert ready, "the endpoint does not start"
        super().__init__(ready)

    def opened(self):
        return self.get("/opened")

    def stop(self):
        lib.stop(self.child)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


def push(endpoints, paths, *options):
    return lib.push(endpoints, paths, "--backend", "ipc", "--on-partial", "resume", *options)


def check(endpoints, path, *options):
    result = push(endpoints, [path], *options)
    assert result.rc == 0 and result.end["ok"], result
    lib.check_held(endpoints, lib.oracle(path))
    return result


def left_going(endpoint, since=0):
    """Nobody that was told to pause was left so."""
    steps = [s for s in endpoint.steps(since) if s in ("/pause_generation", "/continue_generation")]
    return not steps or steps[-1] == "/continue_generation"


@suite.case("tensors of every type, a bucket and a rank")
def one(_fix):
    with Served() as e:
        result = check([e], make("plain", PLAIN))
        plan, = result.of("plan")
        assert plan["backend"] == "ipc" and plan["protocol"] == "ipc" and plan["gpu_bytes"], plan
        # and an empty one
        assert e.opened() == [{"handles": 1, "openings": 1, "buckets": 2}], e.opened()
        assert e.steps().count("/update_weights_from_tensor") == 2, e.steps()


@suite.case("many buckets, two ranks, and no more than two handles")
def many(_fix):
    with Served(2) as e:
        result = check([e], make("many", MANY), "--bucket-size", "700KiB", "--weight-version", "9")
        assert result.end["buckets"] == 12, result
        for rank in e.opened():
            assert rank["handles"] <= 2 and rank["buckets"] == 13, rank


@suite.case("buckets of different sizes, and one much larger than the pinned ring")
def sizes(_fix):
    with Served() as e:
        path = make("sizes", [("big", "U8", (90_000_001,)), ("a", "F32", (1000, 1000)),
                              ("b", "U8", (7,))])
        check([e], path, "--bucket-size", "1MiB")


@suite.case("two endpoints of this machine at once")
def two(_fix):
    with Served() as a, Served() as b:
        result = check([a, b], make("plain", PLAIN), "--bucket-size", "1MiB")
        assert [x["state"] for x in result.end["endpoints"]] == ["committed"] * 2, result


@suite.case("the GPU told by its number")
def number(_fix):
    with Served() as e:
        check([e], make("plain", PLAIN), "--ipc-device", "0")
        result = push([e], [make("plain", PLAIN)], "--ipc-device", "7")
        assert result.rc == 5 and result.end["error"]["hint"], result
        assert left_going(e), e.steps()


@suite.case("three pushes of one process open one handle")
def session(_fix):
    with Served(2) as e:
        session = lib.Session([e], "--backend", "ipc", "--bucket-size", "1MiB")
        for i in range(3):
            path = make("push%d" % i, PLAIN, seed=100 + i)
            result = session.push(path)
            assert result and result["ok"], result
            lib.check_held([e], lib.oracle(path))
        rc, end = session.close()
        assert rc == 0 and end["ok"], end
        assert [rank["handles"] for rank in e.opened()] == [1, 1], e.opened()


@suite.case("a server that copies only when the next bucket comes still has the right bytes")
def late(_fix):
    if not ON_DOUBLE:
        raise lib.Skip("torch copies when it does; the double shows the order")
    with Served(2, "--late") as e:
        path = make("late", MANY + [("odd%d" % i, "U8", (i * 7 + 1,)) for i in range(40)])
        for _ in range(3):
            check([e], path, "--bucket-size", "300KiB")


@suite.case("a server that refuses a bucket is told to continue")
def refuses(_fix):
    with Served(1, "--refuse-at", "3") as e:
        result = push([e], [make("many", MANY)], "--bucket-size", "700KiB")
        assert result.rc == 5 and "refused as it was told to" in result.end["error"]["message"], \
            result
        assert left_going(e) and result.end["endpoints"][0]["state"] == "partial", result


@suite.case("a server that dies in a bucket ends the push")
def dies(_fix):
    with Served(1, "--die-at", "3") as e:
        result = push([e], [make("many", MANY)], "--bucket-size", "700KiB")
        assert result.rc in (4, 5), result
        assert result.seconds < 30, result.seconds


@suite.case("a server that never answers is waited for as long as it was said, and a little more")
def hangs(_fix):
    with Served(1, "--hang-at", "3") as e:
        result = push([e], [make("many", MANY)], "--bucket-size", "700KiB", "--bucket-timeout", "2")
        assert result.rc == 10 and result.seconds < 12, (result, result.seconds)
        warnings = " ".join(w["message"] for w in result.of("warning"))
        assert "may still read memory of the GPU" in warnings or left_going(e), result


@suite.case("memory stays until a server has read it that a signal did not wait for")
def signalled(_fix):
    with Served(2, "--slow-at", "3") as e:
        running = lib.Running([e], [make("many", MANY)], "--backend", "ipc", "--on-partial",
                              "resume", "--bucket-size", "700KiB")
        lib.await_true(lambda: e.steps().count("/update_weights_from_tensor") == 3,
                       "the third bucket")
        running.child.send_signal(signal.SIGTERM)
        result = running.wait()
        assert result.rc == -signal.SIGTERM, result
        # The bucket that was asked for, and the empty one after it, which waited for its turn.
        updates = [s for s in e.journal() if s["path"] == "/update_weights_from_tensor"]
        assert [u["status"] for u in updates] == [200] * 4, updates
        assert left_going(e), e.steps()
        assert [rank["buckets"] for rank in e.opened()] == [4, 4], e.opened()


def refused(function, n, rc):
    return {"FAKE_CUDA_REFUSE": "%s %d %d" % (function, n, rc)}


def push_refused(endpoint, path, function, n, rc):
    os.environ.update(refused(function, n, rc))
    try:
        return push([endpoint], [path], "--bucket-size", "700KiB")
    finally:
        del os.environ["FAKE_CUDA_REFUSE"]


@suite.case("a driver that refuses, at whichever call")
def each_call(_fix):
    if not ON_DOUBLE:
        raise lib.Skip("a driver does not do as it is told")
    path, n, begun = make("few", MANY[:3]), 0, 0
    with Served() as e:
        while True:
            since = len(e.journal())
            result = push_refused(e, path, "*", n, 700)
            if result.rc == 0:
                break
            assert result.rc == 7, (n, result)
            assert "CUDA_ERROR_ILLEGAL_ADDRESS (700)" in result.end["error"]["message"], (n, result)
            assert left_going(e, since), (n, e.steps(since))
            begun += "/pause_generation" in e.steps(since)
            n += 1 if n < 30 else 3
        assert n > 50 and begun, (n, begun)
        lib.check_held([e], lib.oracle(path))


@suite.case("a GPU without room is said before anybody is paused")
def no_room(_fix):
    if not ON_DOUBLE:
        raise lib.Skip("a driver does not do as it is told")
    path = make("few", MANY[:3])
    with Served() as e:
        for function, text in (("cuMemAlloc_v2", "--bucket-size"), ("cuMemHostAlloc", "the host's"),
                               ("cuIpcGetMemHandle", "")):
            since = len(e.journal())
            result = push_refused(e, path, function, 0, 2)
            assert result.rc == 7 \
                and "CUDA_ERROR_OUT_OF_MEMORY" in result.end["error"]["message"], result
            assert text in result.end["error"]["hint"], result
            assert "/pause_generation" not in e.steps(since), e.steps(since)


def run_torch(code, *args):
    """A program of that interpreter; its stdout is for its answer, and it ends when its stdin
    does."""
    return lib.start([PYTHON, "-c", code, *map(str, args)], stdin=subprocess.PIPE,
                     stdout=subprocess.PIPE)


def moving(result):
    return (result.end["ns"]["transfer"] + result.end["ns"]["apply"]) / 1e9


def best_of_three(endpoint, source, *options):
    results = [push([endpoint], [source], *options) for _ in range(3)]
    assert all(r.rc == 0 for r in results), results
    return min(map(moving, results))


@suite.case("how fast: 8 GiB beside copying as many bytes on the GPU, and as many requests")
def speed(_fix):
    if ON_DOUBLE:
        raise lib.Skip("its memory is the host's")
    memory = lib.Lines(run_torch(MEMORY).stdout).next()
    n = 16 if memory >= 48 << 30 else max(2, memory >> 32)
    copied = lib.Lines(run_torch(COPY, n * PIECE).stdout).next()
    trainer = run_torch(TRAINER, n, PIECE, os.path.join(lib.TREE, "cmd/python"),
                        lib.scratch("m.json"))
    manifest = lib.Lines(trainer.stdout).next()
    assert manifest, "the weights cannot be exported"
    with Served() as e:
        http = best_of_three(e, make("small", [("s%d" % i, "U8", (1,)) for i in range(n)]),
                             "--bucket-size", "1")
        there = best_of_three(e, "cuda-ipc:" + lib.scratch("m.json"))
        assert e.get("/received")[0]["w0"]["sha256"] == manifest["sha256"]
        files = best_of_three(e, make("eight", [("w%d" % i, "U8", (PIECE,)) for i in range(n)]))
        opened = e.opened()
    lib.stop(trainer)
    print("# %d x 512 MiB, best of three: %.4f s from memory of the GPU, %.4f s from files in the "
          "page cache;\n"
          "# copying them on the GPU %.4f s, as many requests %.4f s: %.2f times both"
          % (n, there, files, copied, http, there / (copied + http)), flush=True)
    assert opened[0]["handles"] <= 2 * 9, opened  # of nine processes
    assert there < 1.5 * (copied + http), "it is to be less than 1.5 times both"


class Fixture:
    def __init__(self):
        if ON_DOUBLE:
            os.makedirs(lib.scratch("lib"))
            os.symlink(os.path.abspath(CUDA), lib.scratch("lib/libcuda.so.1"))
            os.environ["LD_LIBRARY_PATH"] = lib.scratch("lib")
        else:
            on_torch.begin()


sys.exit(suite.main(Fixture))
