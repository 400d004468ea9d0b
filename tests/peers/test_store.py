# SPDX-License-Identifier: Apache-2.0
"""Our TCPStore with clients of real torch, and our client with stores that real torch hosts."""
import os
import subprocess
import sys

import lib

VERSIONS = {"1.13": "A", "2.6": "C", "2.14": "C"}
TOOL = os.path.join(lib.BUILD, "tests", "tools", "storetool")


class Process:
    """A child that speaks lines of JSON; commands go to its stdin."""

    def __init__(self, argv, env=None):
        self.child = lib.start(argv, env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE)
        self.lines = lib.Lines(self.child.stdout)

    def next(self, seconds=60):
        return self.lines.next(seconds)

    def ask(self, *words, seconds=30):
        self.child.stdin.write((" ".join(map(str, words)) + "\n").encode())
        self.child.stdin.flush()
        return self.next(seconds)

    def text(self, *words, seconds=30):
        answer = self.ask(*words, seconds=seconds)
        assert "text" in answer, (words, answer)
        return answer["text"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        lib.stop(self.child)


def serve(world, group="g"):
    store = Process([TOOL, "serve", str(world), group])
    store.port = store.next()["text"]
    return store


def torch(version, *argv, env=None):
    return Process([os.path.join(lib.HERE, "python.sh"), version,
                    os.path.join(lib.HERE, "store_peer.py"), *map(str, argv)], env)


def missing_torch():
    """version -> why it is not to be had, or None. The first time this may make its root."""
    missing = {}
    for version in VERSIONS:
        done = subprocess.run([os.path.join(lib.HERE, "python.sh"), version, "-c", "import torch"],
                              capture_output=True, text=True, timeout=1200, check=False)
        missing[version] = (done.stderr.strip() or "exit %d" % done.returncode).split("\n")[-1] \
            if done.returncode else None
    return missing


def cases_for(suite, version, epoch):
    def case(title):
        def wrap(function):
            @suite.case("torch %s: %s" % (version, title))
            def run(missing):
                if missing[version]:
                    raise lib.Skip(missing[version])
                function()
            return run
        return wrap

    @case("every operation of its client")
    def operations():
        with serve(0) as store, torch(version, "ops", store.port) as peer:
            done = 0
            while (line := peer.next(120)) is not None:
                assert not line["why"], line
                done += 1
            assert done >= 6, done
            report = store.text("report")
            assert "joined=%d" % (2 if epoch == "A" else 1) in report, report

    @case("is recognised, and its wait reported")
    def waits():
        with serve(3) as store, torch(version, "get", store.port, "nobody/sets/this") as peer:
            assert peer.next(120)["joined"]
            lib.await_true(lambda: "nobody/sets/this" in store.text("report"), 10, "the wait")
            assert "joined=1" in store.text("report")
            assert " %s+:rank=-1" % epoch in store.text("report"), store.text("report")

    @case("fails at once when the store closes")
    def closed():
        with serve(3) as store, torch(version, "get", store.port, "never") as peer:
            assert peer.next(120)["joined"]
            lib.await_true(lambda: "/never" in store.text("report"), 10, "the wait")
            store.child.stdin.close()
            line = peer.next(10)
            assert line["why"] and line["seconds"] < 10, line

    @case("gets what we set, and we see it go")
    def gets():
        with serve(3) as store, torch(version, "get", store.port, "late") as peer:
            assert peer.next(120)["joined"]
            store.text("set", "/late", "value", "once")
            assert peer.next(30)["why"] == ""
            peer.child.wait(30)
            lib.await_true(lambda: "error" in store.ask("trouble"), 10, "the trouble")
            answer = store.ask("trouble")
            assert answer["code"] == "data" and "left the rendezvous" in answer["error"], answer

    @case("tells prefix, layout and rank of its gloo group")
    def gloo():
        with serve(3, "grp") as store, torch(version, "gloo", store.port, 1, 3, "grp"), \
                torch(version, "gloo", store.port, 2, 3, "grp"):
            prefix = "/grp/grp/0/" if version == "1.13" else "/grp/grp//cpu//0/"
            assert store.text("gloo", 120, seconds=130) == "%s %s" % (prefix, epoch)
            assert " %s+:rank=1" % epoch in store.text("report"), store.text("report")
            assert store.text("trouble") == "", store.ask("trouble")

    @case("hosts a store for our client")
    def hosts():
        with torch(version, "host") as there:
            port = there.next(120)["port"]
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
                assert there.next(20) == {"got": "hi", "joined": "42"}


def main():
    suite = lib.Suite("tests/tools/storetool")
    for version, epoch in VERSIONS.items():
        cases_for(suite, version, epoch)
    return suite.main(missing_torch)


if __name__ == "__main__":
    sys.exit(main())
