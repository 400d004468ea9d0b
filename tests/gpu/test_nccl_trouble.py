#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What goes wrong between wsync-push and a real torch over NCCL, on the GPU that is here
(on_torch.py).

Each trouble has its exit code and its sentence, ends with its deadline and two seconds more at
most, and leaves nobody paused who can still be told to go on. On doubles the same is in
tests/cli/endpoint-nccl.bats.
"""
import os
import signal
import struct
import subprocess
import sys
import time

import on_torch
from on_torch import ON_CPU, OVER, PYTHON, lib
import mkst

# seconds for joining and for a bucket; torch and NCCL take some to begin with
LIMIT = 8 if ON_CPU else 30
LIMITS = ["--on-partial", "resume", "--init-timeout", "%ds" % LIMIT, "--bucket-timeout",
          "%ds" % LIMIT]
SMALL = [("a", "F32", (300, 300)), ("b", "U8", (100003,))]
BUCKETS = [("w%d" % i, "U8", (1 << 20,)) for i in range(64)]

suite = lib.Suite()


def make(name, tensors):
    path = lib.scratch(name + ".safetensors")
    if not os.path.exists(path):
        mkst.write(path, tensors)
    return path


def start(peers, tensors, *options):
    path = make("small" if tensors is SMALL else "buckets", tensors)
    return lib.Running(peers.endpoints, [path], *OVER, *LIMITS, "--bucket-size", "1MiB", *options)


def alive(endpoint):
    try:
        endpoint.get("/health", 5)
        return True
    except Exception:  # whatever it is, it does not answer
        return False


def check_end(peers, push, codes, *words, since=None):
    """The push ends in time with one of these codes and all of these words, and leaves nobody
    paused."""
    result = push.wait()
    took = time.monotonic() - (since or push.began)
    print("# exit %s after %.1f s: %s"
          % (result.rc, took, result.end.get("error", {}).get("message")))
    assert result.rc in codes, "expected an exit code of %s\n%s" % (codes, result)
    if result.rc:
        assert result.end["error"]["message"] and result.stderr.strip(), result
    for word in words:
        assert word in result.stderr, "not said: %s\n%s" % (word, result)
    assert took <= LIMIT + 2 + (0 if since
                                else 5), "it took %.1f s, beyond its deadline\n%s" % (took, result)
    state = {e["url"]: e["state"] for e in result.end.get("endpoints", [])}
    for e in peers.endpoints:
        if alive(e) and state.get(e.url) != "partial":
            steps = e.steps()
            assert steps.count("/continue_generation") >= steps.count("/pause_generation"), (e.url,
                steps)
    return result


def await_step(endpoint, path, count=1):
    lib.await_true(lambda: endpoint.steps().count(path) >= count, path)


# ---- who may be in a group ----

def code_of(elf):
    """Where the instructions of a shared library lie in its file."""
    table, size, n = *struct.unpack_from("<Q", elf, 32), *struct.unpack_from("<HH", elf, 54)
    for i in range(n):
        kind, flags, at, _, _, length = struct.unpack_from("<IIQQQQ", elf, table + i * size)
        if kind == 1 and flags & 1:  # PT_LOAD, PF_X
            return at, at + length
    raise lib.Skip("no instructions are found")


def version_of(library):
    """What it says, in a process of its own."""
    done = subprocess.run([sys.executable, "-c", "import ctypes, sys; n = ctypes.c_int()\n"
                           "ctypes.CDLL(sys.argv[1]).ncclGetVersion(ctypes.byref(n)); "
                           "print(n.value)", library],
                          capture_output=True, text=True, timeout=60, check=False)
    return int(done.stdout or 0)


def claim_another_version(path):
    """A copy of that libnccl which takes itself for the next version: the number is one of its
    instructions'."""
    number = version_of(path)
    copy = lib.scratch("libnccl-%d.so.2" % (number + 1))
    with open(path, "rb") as f:
        elf = bytearray(f.read())
    first, last = code_of(elf)
    elf[first:last] = elf[first:last].replace(struct.pack("<I", number),
                                              struct.pack("<I", number + 1))
    with open(copy, "wb") as f:
        f.write(elf)
    if version_of(copy) != number + 1:
        raise lib.Skip("a copy of %s cannot be made to take itself for another version" % path)
    return copy


@suite.case("another version of NCCL is refused, and ours is named")
def version(fix):
    if ON_CPU:
        raise lib.Skip("only NCCL minds")
    copy = claim_another_version(fix.nccl)
    peers = fix.receivers([1])
    path = make("small", SMALL)
    push = lib.Running(peers.endpoints, [path], "--backend", "nccl", "--nccl-lib", copy, *LIMITS)
    result = check_end(peers, push, (5, 6), "NCCL")
    if result.rc == 6:
        assert copy in result.stderr and "--nccl-from" in result.stderr, result
    peers.stop()


@suite.case("two ranks of one GPU are refused without the trick")
def one_gpu(fix):
    if ON_CPU:
        raise lib.Skip("only NCCL minds")
    peers = fix.receivers([1])
    os.environ["NCCL_HOSTID"] = "receiver-%d" % peers.endpoints[0].ranks[0]
    try:
        result = check_end(peers, start(peers, SMALL), (5, 6), "NCCL")
    finally:
        os.environ["NCCL_HOSTID"] = "sender"
    if result.rc == 6:
        assert "no two ranks may be on one GPU" in result.stderr, result
    peers.stop()


# ---- memory ----

HOG = """
import sys, torch
left, kept = int(sys.argv[1]) << 20, []
torch.zeros(1, device=sys.argv[2])
for chunk in 1 << 30, 1 << 26, 1 << 22:
    while torch.cuda.mem_get_info()[0] > left + chunk:
        try:
            kept.append(torch.empty(chunk, dtype=torch.uint8, device=sys.argv[2]))
        except torch.cuda.OutOfMemoryError:
            break
print(torch.cuda.mem_get_info()[0] >> 20, flush=True)
sys.stdin.read()
"""


@suite.case("a GPU out of memory, from hardly any to just too little")
def memory(fix):
    if ON_CPU:
        raise lib.Skip("only a GPU has so little")
    endpoints = fix.receivers([1])
    path = lib.scratch("large.safetensors")
    mkst.write(path, [("w%d" % i, "U8", (256 << 20,)) for i in range(3)], holes=True)
    # Joined once, so that the receiver's context, and NCCL, are there before the memory is not.
    assert lib.push(endpoints.endpoints, [make("small", SMALL)], *OVER).rc == 0
    refused = 0
    for left in (16, 300, 600, 900, 1200, 1700):  # MiB; a context and NCCL take some hundred each
        hog = lib.start([PYTHON, "-c", HOG, str(left), on_torch.DEVICE], stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE, text=True)
        try:
            print("# %s MiB are left" % (hog.stdout.readline().strip() or "?"))
            push = lib.Running(endpoints.endpoints, [path], *OVER, *LIMITS, "--bucket-size",
                               "256MiB")
            result = check_end(endpoints, push, (0, 5, 6, 7, 9))
        finally:
            lib.stop(hog)
        refused += result.rc != 0
        if result.rc == 7:
            assert "MEMORY" in result.stderr.upper(), result
        if not alive(endpoints.endpoints[0]):
            endpoints = fix.receivers([1])
    assert refused, "there was always enough"
    endpoints.stop()


# ---- peers that die or stand still ----

@suite.case("a peer that dies while it is invited")
def dead_in_init(fix):
    for eager in ((), ("--eager",))[:1 if ON_CPU else 2]:
        peers = fix.receivers([2, 1], *eager)
        os.kill(peers.endpoints[0].ranks[0], signal.SIGSTOP)
        push = start(peers, SMALL)
        await_step(peers.endpoints[0], "/init_weights_update_group")
        time.sleep(1)
        since = time.monotonic()
        os.kill(peers.endpoints[0].ranks[0], signal.SIGKILL)
        check_end(peers, push, (4, 5, 6), since=since)
        peers.stop()


@suite.case("a peer that never joins is waited for until the deadline")
def silent_in_init(fix):
    for eager in ((), ("--eager",))[:1 if ON_CPU else 2]:
        peers = fix.receivers([2, 1], *eager)
        os.kill(peers.endpoints[0].ranks[1], signal.SIGSTOP)
        check_end(peers, start(peers, SMALL), (10,))
        peers.stop()


@suite.case("a peer that dies in a bucket")
def dead_in_bucket(fix):
    peers = fix.receivers([1, 2])
    push = start(peers, BUCKETS)
    await_step(peers.endpoints[0], "/update_weights_from_distributed", 3)
    since = time.monotonic()
    os.kill(peers.endpoints[1].ranks[1], signal.SIGKILL)
    check_end(peers, push, (4, 5, 6, 9), since=since)
    peers.stop()


@suite.case("a peer that stands still in a bucket")
def silent_in_bucket(fix):
    peers = fix.receivers([1, 2])
    push = start(peers, BUCKETS)
    await_step(peers.endpoints[0], "/update_weights_from_distributed", 3)
    since = time.monotonic()
    os.kill(peers.endpoints[1].ranks[1], signal.SIGSTOP)
    check_end(peers, push, (9, 10), since=since)
    peers.stop()


@suite.case("a peer that is dead, or stands still, when the group is destroyed")
def gone_at_the_end(fix):
    for sig in (signal.SIGKILL, signal.SIGSTOP):
        peers = fix.receivers([1, 2])
        session = lib.Session(peers.endpoints, *OVER, *LIMITS)
        result = session.push(make("small", SMALL))
        assert result and result["ok"], result
        os.kill(peers.endpoints[1].ranks[0], sig)
        since = time.monotonic()
        rc, end = session.close()
        print("# exit %s after %.1f s" % (rc, time.monotonic() - since))
        assert rc in (0, 4, 5, 6, 9, 10) and end, (rc, end)
        assert time.monotonic() - since <= LIMIT + 2, "the deadline was not kept"
        peers.stop()


@suite.case("after all of that a push goes through")
def afterwards(fix):
    peers = fix.receivers([1, 2])
    path = make("small", SMALL)
    result = lib.push(peers.endpoints, [path], *OVER, *LIMITS)
    assert result.rc == 0, result
    lib.check_held(peers.endpoints, lib.oracle(path))
    peers.stop()


class Fixture:
    def __init__(self):
        on_torch.begin()
        self.nccl = None if ON_CPU else on_torch.nccl()

    receivers = staticmethod(on_torch.receivers)


sys.exit(suite.main(Fixture))
