# SPDX-License-Identifier: Apache-2.0
"""Endpoints of torch that die, stall or check too much: wsync-push says so, and nobody stays
paused.

A stall is made by stopping a rank (SIGSTOP) the moment it is asked to receive half a gigabyte, so
that the bucket is on its way and cannot get through.
"""
import os
import signal
import sys

import lib
import mkst

suite = lib.Suite()
BUCKET = 512 << 20
POOL = [1] * 6 + [2]


class Fixture:
    def __init__(self):
        self.version = os.environ.get("PEERS_TORCH", "1.13")
        try:
            self.peers = lib.Receivers(self.version, POOL, options=["--keep", "none"])
        except lib.Skip:
            self.version = "2.6"
            self.peers = lib.Receivers(self.version, POOL, options=["--keep", "none"])
        self.alive = list(self.peers.endpoints)
        self.small = lib.scratch("small.safetensors")
        self.big = lib.scratch("big.safetensors")
        mkst.write(self.small, [("a", "F32", (1000,)), ("b", "U8", (7,))])
        # Two buckets of half a gigabyte; holes take no disk.
        mkst.write(self.big, [("a", "U8", (BUCKET,)), ("b", "U8", (BUCKET,))], holes=True)

    def spend(self):
        """An endpoint that will not be used again."""
        return self.alive.pop(0)

    def stay(self, tp=2):
        return next(e for e in reversed(self.alive) if e.tp == tp)


def start_and_stall(fix, victim, others, *options):
    """A push in its first bucket that cannot go on; and the lengths of the others' journals."""
    before = [len(e.journal()) for e in others]
    running = lib.Running([victim] + others, [fix.big], "--on-partial", "resume", "--load-format",
                          "flattened_bucket",
                          *options)
    lib.await_true(lambda: "/update_weights_from_distributed" in victim.steps(), "first bucket")
    os.kill(victim.ranks[0], signal.SIGSTOP)
    return running, before


def check_resumed(endpoints, before):
    for e, n in zip(endpoints, before):
        steps = e.steps(n)
        assert "/pause_generation" in steps, steps
        last = [s for s in steps if s in ("/pause_generation", "/continue_generation")][-1]
        assert last == "/continue_generation", steps


def check_usable(fix, *endpoints):
    lib.forget(endpoints)
    result = lib.push(endpoints, [fix.small])
    assert result.rc == 0, result


@suite.case("one of two dies in the first of two buckets: exit 6, the other is resumed")
def one_of_two(fix):
    victim, other = fix.spend(), fix.stay()
    running, before = start_and_stall(fix, victim, [other], "--bucket-size", "512MiB")
    os.kill(victim.pid, signal.SIGKILL)
    result = running.wait()
    assert result.rc == 6 and not result.end["ok"], result
    check_resumed([other], before)
    check_usable(fix, other)


@suite.case("one of two dies in the only bucket: exit 9, the other has the weights and is resumed")
def committed(fix):
    # In a world of three rank 0 feeds both directly, so the other finishes.
    victim, other = fix.spend(), fix.stay(tp=1)
    running, before = start_and_stall(fix, victim, [other], "--bucket-size", "2GiB")
    lib.await_true(lambda: [j["status"] for j in other.journal()[before[0]:]
                            if j["path"] == "/update_weights_from_distributed"] == [200],
                   "the other endpoint's answer")
    os.kill(victim.pid, signal.SIGKILL)
    result = running.wait()
    assert result.rc == 9 and not result.end["ok"], result
    states = {e["url"]: e["state"] for e in result.end["endpoints"]}
    assert states[other.url] == "committed" and states[victim.url] != "committed", states
    check_resumed([other], before)


@suite.case("a rank that stalls: exit 10 when --bucket-timeout is over, the other is resumed")
def stalled(fix):
    victim, other = fix.spend(), fix.stay()
    # Long enough for the other's 256 MiB on a busy machine.
    running, before = start_and_stall(fix, victim, [other], "--bucket-timeout", "20s",
                                      "--bucket-size", "256MiB")
    try:
        result = running.wait()
    finally:
        os.kill(victim.pid, signal.SIGKILL)
    assert result.rc == 10 and not result.end["ok"], result
    hang = result.of("hang")[0]
    assert hang["cause"] in ("not-receiving", "stalled") and victim.url in hang["likely"], hang
    assert [r["rank"] for r in hang["ranks"] if r["taken_bytes"] < r["due_bytes"]] == [1], hang
    check_resumed([other], before)
    check_usable(fix, other)


@suite.case("SIGTERM in the middle of a bucket: dies by it, everybody is resumed")
def terminated(fix):
    victim, other = fix.spend(), fix.stay()
    first = len(victim.journal())
    running, before = start_and_stall(fix, victim, [other])
    running.child.terminate()
    os.kill(victim.ranks[0], signal.SIGCONT)
    result = running.wait()
    assert result.rc == -signal.SIGTERM, result
    check_resumed([victim, other], [first] + before)
    check_usable(fix, victim, other)


@suite.case("one of two refuses a bucket: exit 5, the other gets all its bytes and is resumed")
def refused(fix):
    other = fix.stay()
    peers = lib.Receivers(fix.version, [1], options=["--refuse"])
    before = len(other.journal())
    result = lib.push(peers.endpoints + [other], [fix.big], "--on-partial", "resume",
                      "--bucket-size", "512MiB")
    assert result.rc == 5 and "refused as told" in result.stderr, result
    check_resumed(peers.endpoints + [other], [0, before])
    # gloo waits half an hour for the rest of a payload whose connection was closed in its middle.
    lib.await_true(lambda: all(j["status"] for j in other.journal()),
                   "the other endpoint's answers")
    check_usable(fix, other)
    peers.stop()


@suite.case("kill -9 between two pushes of a session: the endpoints take the next one")
def killed(fix):
    other = fix.stay()
    session = lib.Session([other])
    result = session.push(fix.small)
    assert result["ok"], result
    session.child.kill()
    result = lib.push([other], [fix.small])
    assert result.rc == 0, result


@suite.case("a rank that joins under another group's name is told from its key")
def other_group(fix):
    peers = lib.Receivers(fix.version, [1], options=["--group", "another"])
    result = lib.push(peers.endpoints, [fix.small], "--init-timeout", "10m")
    assert result.rc in (5, 10) and "it joins a group of another name" in result.stderr, result
    assert result.seconds < 300, "it took %.1f s to say so" % result.seconds
    peers.stop()


@suite.case("TORCH_DISTRIBUTED_DEBUG=DETAIL on the endpoint is recognised and named")
def detail(fix):
    peers = lib.Receivers(fix.version, [1], {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"})
    result = lib.push(peers.endpoints, [fix.small], "--init-timeout", "10m")
    assert result.rc == 6 and "DETAIL" in result.stderr, result
    assert "hint: unset TORCH_DISTRIBUTED_DEBUG" in result.stderr, result
    assert result.seconds < 300, "it took %.1f s to say so" % result.seconds
    peers.stop()


sys.exit(suite.main(Fixture))
