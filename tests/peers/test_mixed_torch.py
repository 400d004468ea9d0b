# SPDX-License-Identifier: Apache-2.0
"""Endpoints of different torch in one push: versions that can form a group form it. Others are
refused within 300 s, half of the default of --init-timeout."""
import contextlib
import os
import signal
import sys
import threading

import lib
import mkst

suite = lib.Suite()


class Fixture:
    def __init__(self):
        self.peers = {v: lib.Receivers(v, [1, 2]) for v in ("1.13", "2.6")}
        self.file = lib.scratch("mixed.safetensors")
        mkst.write(self.file, [("a", "F32", (300, 7)), ("b", "BF16", (33, 3)), ("c", "U8", (5,))])

    def endpoints(self, *versions):
        return [e for v in versions for e in self.peers[v].choose(1, 2)]


@suite.case("torch 1.13 and 2.6 speak different gloo: exit 6 within 300 s, both still usable")
def strangers(fix):
    endpoints = fix.endpoints("1.13", "2.6")
    result = lib.push(endpoints, [fix.file])
    assert result.rc == 6 and "same torch" in result.stderr, result
    assert result.seconds < 300, result.seconds
    for e in endpoints:
        assert "/update_weights_from_distributed" not in e.steps(), e.steps()
    for version in fix.peers:
        result = lib.push(fix.endpoints(version), [fix.file])
        assert result.rc == 0, result
        lib.check_held(fix.endpoints(version), lib.oracle(fix.file))


@contextlib.contextmanager
def late(rank, seconds):
    """That rank does nothing for so long."""
    os.kill(rank, signal.SIGSTOP)
    timer = threading.Timer(seconds, os.kill, (rank, signal.SIGCONT))
    timer.start()
    yield
    timer.join()


@suite.case("a rank that comes when joining has failed already is not left to wait for us")
def latecomer(fix):
    endpoints = fix.endpoints("1.13", "2.6")
    with late(endpoints[-1].ranks[1], 3):
        result = lib.push(endpoints, [fix.file])
    assert result.rc == 6 and result.seconds > 2.5, result
    for version in fix.peers:
        result = lib.push(fix.endpoints(version), [fix.file])
        assert result.rc == 0, result


@suite.case("nor is one that comes after Ctrl-C")
def interrupted(fix):
    endpoints = fix.endpoints("2.6")
    before = len(endpoints[-1].journal())
    with late(endpoints[-1].ranks[1], 2):
        running = lib.Running(endpoints, [fix.file])
        lib.await_true(lambda: "/init_weights_update_group" in endpoints[-1].steps(before),
                       "the request to join")
        os.kill(running.child.pid, signal.SIGINT)
        result = running.wait()
    assert result.rc == -signal.SIGINT, result
    result = lib.push(endpoints, [fix.file])
    assert result.rc == 0, result


@suite.case("torch 2.6 and 2.14 are one group")
def relatives(fix):
    if not os.path.isdir(lib.torch_root("2.14")):
        raise lib.Skip("no torch 2.14; tests/peers/chroot.sh 2.14 makes it")
    fix.peers["2.14"] = lib.Receivers("2.14", [1, 2])
    endpoints = fix.endpoints("2.6", "2.14")
    result = lib.push(endpoints, [fix.file])
    assert result.rc == 0, result
    lib.check_held(endpoints, lib.oracle(fix.file))


sys.exit(suite.main(Fixture))
