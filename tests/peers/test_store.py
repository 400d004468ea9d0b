# SPDX-License-Identifier: Apache-2.0
"""Our TCPStore with clients of real torch, and our client with stores that real torch hosts."""
import contextlib
import os
import subprocess
import sys

import lib

VERSIONS = {"1.13": "A", "2.6": "C", "2.14": "C"}
TOOL = os.path.join(lib.BUILD, "tests", "tools", "storetool")


class Process:
    """A child that speaks lines of JSON; commands go to its stdin."""

    def __init__(self, argv):
        self.child = lib.start(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE)
        self.lines = lib.Lines(self.child.stdout)

    def next(self):
        return self.lines.next()

    def say(self, *words):
        self.child.stdin.write((" ".join(map(str, words)) + "\n").encode())
        self.child.stdin.flush()

    def ask(self, *words):
        self.say(*words)
        return self.next()

    def text(self, *words):
        answer = self.ask(*words)
        assert "text" in answer, (words, answer)
        return answer["text"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        lib.stop(self.child)


def serve(world, group=""):
    store = Process([TOOL, "serve", str(world), group])
    store.port = store.next()["text"]
    return store


@contextlib.contextmanager
def forks(peer, *roles):
    """Of a torch process, one for each role (store_peer.py)."""
    for role in roles:
        peer.say(*role)
    try:
        yield peer
    finally:
        peer.say("end")
        while "ended" not in peer.next():
            pass


def start_torch():
    """version -> its torch process, or why it is not to be had. The first time this may make its
    root."""
    peers = {}
    for version in VERSIONS:
        peer = peers[version] = Process([os.path.join(lib.HERE, "python.sh"), version,
                                         os.path.join(lib.HERE, "store_peer.py")])
        if peer.next() is None:
            status, why = peer.child.wait(10), peer.child.stderr.read().decode().strip()
            if status != 77:
                raise RuntimeError("store_peer.py: exit %d: %s" % (status, why))
            peers[version] = why.split("\n")[-1]
    return peers


def cases_for(suite, version, epoch):
    def case(title):
        def wrap(function):
            @suite.case("torch %s: %s" % (version, title))
            def run(peers):
                if isinstance(peers[version], str):
                    raise lib.Skip(peers[version])
                function(peers[version])
            return run
        return wrap

    @case("every operation of its client")
    def operations(torch):
        with serve(0) as store, forks(torch, ("ops", store.port)) as peer:
            done = 0
            while "end" not in (line := peer.next()):
                assert not line["why"], line
                done += 1
            assert done >= 6 and not line["end"], (done, line)
            report = store.text("report")
            assert "joined=%d" % (2 if epoch == "A" else 1) in report, report

    @case("is recognised, and its wait reported")
    def waits(torch):
        with serve(3) as store, forks(torch, ("get", store.port, "nobody/sets/this")) as peer:
            assert peer.next()["joined"]
            lib.await_true(lambda: "nobody/sets/this" in store.text("report"), "the wait")
            assert "joined=1" in store.text("report")
            assert " %s+:rank=-1" % epoch in store.text("report"), store.text("report")

    @case("fails at once when the store closes")
    def closed(torch):
        with serve(3) as store, forks(torch, ("get", store.port, "never")) as peer:
            assert peer.next()["joined"]
            lib.await_true(lambda: "/never" in store.text("report"), "the wait")
            store.child.stdin.close()
            line = peer.next()
            assert line["why"] and line["seconds"] < lib.PATIENCE / 2, line

    @case("gets what we set, and we see it go")
    def gets(torch):
        with serve(3) as store, forks(torch, ("get", store.port, "late")) as peer:
            assert peer.next()["joined"]
            store.text("set", "/late", "value", "once")
            assert peer.next()["why"] == ""
            assert peer.next() == {"end": ""}
            lib.await_true(lambda: "error" in store.ask("trouble"), "the trouble")
            answer = store.ask("trouble")
            assert answer["code"] == "data" and "left the rendezvous" in answer["error"], answer

    @case("tells prefix, layout and rank of its gloo group")
    def gloo(torch):
        with serve(3, "grp") as store, forks(
                torch, *(("gloo", store.port, rank, 3, "grp") for rank in (1, 2))):
            prefix = "/grp/grp/0/" if version == "1.13" else "/grp/grp//cpu//0/"
            assert store.text("gloo", lib.PATIENCE // 2) == "%s %s" % (prefix, epoch)
            assert " %s+:rank=1" % epoch in store.text("report"), store.text("report")
            assert store.text("trouble") == "", store.ask("trouble")

    @case("hosts a store for our client")
    def hosts(torch):
        with forks(torch, ("host",)) as there:
            port = there.next()["port"]
            with Process([TOOL, "client", str(port), epoch]) as c:
                assert c.next() == {"text": ""}, "connect"
                assert c.text("get", "init/") == "1"
                assert c.text("add", "/counter", 40) == "40"
                assert c.text("add", "/counter", 2) == "42"
                assert c.text("check", "/counter", "/nothing") == "no"
                c.text("set", "/gone", "v")
                assert c.text("delete", "/gone") == "yes"
                assert c.text("delete", "/gone") == "no"
                if epoch != "A":
                    answer = c.ask("wait", "/never", "0.2")
                    assert answer["code"] == "timeout", answer
                assert c.text("get", "/from_torch") == "hello"
                c.text("set", "/from_us", "hi")
                assert there.next() == {"got": "hi", "joined": "42"}


def main():
    suite = lib.Suite("tests/tools/storetool")
    for version, epoch in VERSIONS.items():
        cases_for(suite, version, epoch)
    return suite.main(start_torch)


if __name__ == "__main__":
    sys.exit(main())
