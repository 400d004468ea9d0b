#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A fleet of real torch processes, and with WSYNC_TEST_SGLANG=1 of real SGLang servers: one dies
and comes back with old weights, one is registered while pushes run.
"""
import os
import sys

import lib
import mkst
import test_sglang

suite = lib.Suite()
TORCH = "2.6"
TENSORS = [("t%d" % i, "BF16", (64, 32)) for i in range(6)]
READS = {"/server_info", "/get_server_info", "/model_info", "/get_model_info", "/openapi.json",
         "/health", "/ready"}


class Fixture:
    def __init__(self):
        self.sources = []
        for seed in range(4):
            path = lib.scratch("fleet-%d.safetensors" % seed)
            mkst.write(path, TENSORS, seed + 1)
            self.sources.append(path)
        self.ports = [lib.free_port() for _ in range(3)]
        self.servers = [self.serve(i) for i in range(3)]

    def serve(self, i):
        return lib.Receivers(TORCH, [1], options=["--port", str(self.ports[i])])

    def endpoints(self):
        return [s.endpoints[0] for s in self.servers]


def push(endpoints, source, version, *options):
    return lib.push(endpoints, [source], "--weight-version", str(version), *options)


def fed(done):
    """The endpoints that a push has sent the weights to."""
    assert done.rc == 0, done
    assert all(e["ok"] for e in done.end["endpoints"]), done
    return [i for i, e in enumerate(done.end["endpoints"]) if not e["current"]]


@suite.case("torch: one of three dies and comes back: it alone gets the weights")
def _(fix):
    done = push(fix.endpoints(), fix.sources[0], 120, "--only-stale")
    assert fed(done) == [0, 1, 2], done
    fix.servers[1].stop()
    done = push(fix.endpoints(), fix.sources[0], 120, "--only-stale")
    assert done.rc == 4, done
    done = push(fix.endpoints(), fix.sources[0], 120, "--only-stale", "--min-endpoints", "2")
    assert done.rc == 0, done
    assert [e["left_out"] for e in done.end["endpoints"]] == [False, True, False], done
    fix.servers[1] = fix.serve(1)
    before = [len(e.journal()) for e in fix.endpoints()]
    done = push(fix.endpoints(), fix.sources[0], 120, "--only-stale")
    assert fed(done) == [1], done
    for i in (0, 2):
        asked = set(fix.endpoints()[i].steps(before[i]))
        assert asked <= READS, "endpoint %d was asked for %s" % (i, asked - READS)
    lib.check_held(fix.endpoints(), lib.oracle(fix.sources[0]))
    done = push(fix.endpoints(), fix.sources[0], 120, "--only-stale")
    assert fed(done) == [], done


@suite.case("torch: registered and removed while pushes of lines run")
def _(fix):
    a, b, _c = fix.endpoints()
    lib.run_program("wsync-register", ["add", a.url, "--json"], [])
    lines = lib.Session([], "--verify", "names")
    said = lines.push(fix.sources[1] + "\t121")
    assert said["ok"] and [e["url"] for e in said["endpoints"]] == [a.url], said
    done = lib.run_program("wsync-register", ["add", b.url, "--json"], [])
    assert done.rc == 0, done
    said = lines.push(fix.sources[2] + "\t122")
    assert said["ok"] and [e["url"] for e in said["endpoints"]] == [a.url, b.url], said
    lib.check_held([a, b], lib.oracle(fix.sources[2]))
    done = lib.run_program("wsync-register", ["remove", a.url, "--json"], [])
    assert done.rc == 0, done
    said = lines.push(fix.sources[3] + "\t123")
    assert said["ok"] and [e["url"] for e in said["endpoints"]] == [b.url], said
    rc, end = lines.close()
    assert rc == 0 and end["results"] == 3, end
    lib.check_held([b], lib.oracle(fix.sources[3]))
    # What it got is kept until it joins another group.
    lib.check_held([a], lib.oracle(fix.sources[2]))


@suite.case("SGLang: one of three dies and comes back, it alone gets the weights, proven by hash")
def _(fix):
    if not os.environ.get("WSYNC_TEST_SGLANG"):
        raise lib.Skip("WSYNC_TEST_SGLANG=1 tries it")
    version, new = test_sglang.VERSIONS[0], test_sglang.make(1)
    servers = [test_sglang.Server(version) for _ in range(3)]
    try:
        for s in servers:
            s.await_ready()
        done = push(servers, new, 120, "--only-stale", "--verify", "hash")
        assert fed(done) == [0, 1, 2], done
        url = servers[1].url
        servers[1].stop()
        servers[1] = test_sglang.Server(version, url=url)
        servers[1].await_ready()
        logs = [os.path.getsize(s.log.name) for s in servers]
        done = push(servers, new, 120, "--only-stale", "--verify", "hash")
        assert fed(done) == [1], done
        for i in (0, 2):
            with open(servers[i].log.name, errors="replace") as f:
                f.seek(logs[i])
                posts = [line for line in f if '"POST ' in line and "/weights_checker" not in line]
            assert not posts, posts
        for s in servers:
            s.check_holds(new)
        done = lib.run_program("wsync-ctl", ["ready", new, "--verify", "hash", "--weight-version",
                                             "120", "--json"], servers)
        assert done.rc == 0, done
    finally:
        for s in servers:
            s.stop()


if __name__ == "__main__":
    sys.exit(suite.main(Fixture))
