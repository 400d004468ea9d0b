#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""test_flat.py - what stays behind after many pushes: nothing.

One wsync-push --stdin, or one wsync-gateway, and endpoints that live as long: their own memory,
descriptors and threads are looked at again and again, and the files of the state directory. Sources
that are missing and endpoints that refuse come in between. Of time nothing is said here.
"""
import collections
import json
import mmap
import os
import subprocess
import sys
import urllib.request

from lib import BUILD, PATIENCE, TREE, Embedded, Session, Suite, await_true, is_sanitized, \
    scratch, start, stop
import mkst

MISSING = "nowhere.safetensors"
# What an endpoint's journal keeps of a request, and what the C library's heap may do after its
# warm-up (with an arena for every thread that would be more): some 8 KiB for each push, less than
# any bucket here. What is smaller than that is for the leak check of a sanitized build.
JOURNAL_BYTES, SLACK_BYTES = 640, 1 << 20
os.environ["MALLOC_ARENA_MAX"] = "1"
# Buffers of a megabyte are given back. Without this some stay in the heap, when two meet there.
os.environ["MALLOC_MMAP_THRESHOLD_"] = str(1 << 17)
# Freed memory is kept back by the sanitizer, by its leave a quarter of a gigabyte.
SANITIZED = is_sanitized()


def model():
    folder = scratch("model")
    path = os.path.join(folder, "model.safetensors")
    if not os.path.exists(path):
        subprocess.run([sys.executable, os.path.join(TREE, "tests", "cli", "small_model.py"),
                        "qwen3",
                        folder], check=True, timeout=PATIENCE)
        with open(path, "r+b") as f, mmap.mmap(f.fileno(), 0) as data:
            begin = 8 + int.from_bytes(data[:8], "little")
            # no NaN, and none above 2
            data[begin + 1::2] = bytes(b & 0xbf for b in data[begin + 1::2])
    return folder


def little():
    path = scratch("little.safetensors")
    mkst.write(path, [("layer.%d.weight" % i, "BF16", (64, 64)) for i in range(4)])
    return path


class Size:
    """What a process holds now."""

    def __init__(self, pid):
        with open("/proc/%d/status" % pid, encoding="utf-8") as f:
            fields = dict(line.split(":", 1) for line in f)
        self.anonymous = int(fields["RssAnon"].split()[0]) << 10
        self.threads = int(fields["Threads"])
        self.files = len(os.listdir("/proc/%d/fd" % pid))

    def __str__(self):
        return "%d KiB of its own, %d descriptors, %d threads" % (self.anonymous >> 10, self.files,
                                                                   self.threads)


def state_files():
    """Without the lock of the records, which the first that changes one makes."""
    return sorted(os.path.join(at, f) for at, _,
                  files in os.walk(scratch("state")) for f in files if f != ".lock")


class Watch:
    """Looks at a process that pushes, and at the endpoints."""

    def __init__(self, pusher, endpoints):
        self.endpoints = {"endpoint %d" % i: e for i, e in enumerate(endpoints)}
        self.pids = {name: e.child.pid for name, e in self.endpoints.items()}
        self.pids["the pusher"] = pusher.pid
        self.looks = []

    def look(self, done):
        """After so many pushes."""
        sizes = {name: Size(pid) for name, pid in self.pids.items()}
        self.looks.append((done, sizes, state_files()))

    def journals(self):
        """Only in the end: an endpoint that writes out its journal is not the same afterwards."""
        return {name: e.get("/wsync/journal")["requests"] for name, e in self.endpoints.items()}

    def judge(self):
        """The first look is the measure of the others; but each endpoint has up to three
        connections, which are closed when they have been idle."""
        some = 3 * len(self.endpoints)
        first_done, first_sizes, first_files = self.looks[0]
        last_done = self.looks[-1][0]
        asked = {name: len(requests) / last_done for name, requests in self.journals().items()}
        for done, sizes, files in self.looks[1:]:
            # A history that is full gets a second file.
            files, before = ([f for f in some if not f.endswith("history.jsonl.1")]
                             for some in (files, first_files))
            assert len(files) == len(before), "new files: %s" % sorted(set(files) - set(before))
            for name, now in sizes.items():
                was = first_sizes[name]
                story = "%s: %s, later %s" % (name, was, now)
                kept = JOURNAL_BYTES * asked.get(name, 0) * (done - first_done)
                assert now.files <= was.files + some, story
                assert now.threads <= was.threads + some, story
                assert SANITIZED or now.anonymous <= was.anonymous + kept + SLACK_BYTES, story


def pushes(count):
    """A sanitized program is ten times as slow and its memory is not looked at."""
    return count // 10 if SANITIZED else count


def series(session, watch, source, count, misses=0):
    """So many pushes, every `misses`-th of them of nothing; four looks. How many failed."""
    looks = {max(1, count * part // 100) for part in (30, 50, 70)} | {count}
    failed = 0
    for i in range(1, count + 1):
        if misses and i % misses == 0:
            result = session.push(MISSING)
            assert result["error"]["code"] == "input", result
        result = session.push(source)
        failed += not result["ok"]
        if i in looks:
            assert result["ok"], result
            watch.look(i)
    watch.judge()
    return failed


def hold(endpoints, options, source, count, misses, failures=0):
    session = Session(endpoints, "--connect-timeout", "60s", *options, stderr=subprocess.DEVNULL)
    watch = Watch(session.child, endpoints)
    failed = series(session, watch, source, count, misses)
    rc, end = session.close()
    assert failed == failures, "%d pushes failed and not %d" % (failed, failures)
    assert (rc == 0) == (failed == 0 and not count // misses), (rc, end)


def put_up(n, *options):
    return [Embedded(*options) for _ in range(n)]


def put_down(endpoints):
    for e in endpoints:
        stop(e.child)


suite = Suite()


@suite.case("200 pushes with hashes, with sources that are missing and an endpoint that refuses in "
            "between")
def _(_fixture):
    count = pushes(200)
    refusals = range(count // 10 + 1, count, count // 5)
    faults = [arg for k in refusals
              for arg in ("--fault", "refuse:update_weights_from_distributed:%d" % k)]
    endpoints = put_up(2) + [Embedded(*faults)]
    hold(endpoints, ("--verify", "hash", "--weight-version", "7"), model(), count, misses=10,
         failures=len(refusals))
    put_down(endpoints)


@suite.case("pushes in FP8, which are quantized each time")
def _(_fixture):
    endpoints = put_up(3)
    hold(endpoints, ("--quantize", "fp8", "--block-size", "16x16", "--verify", "hash"), model(),
         pushes(100),
         misses=20)
    put_down(endpoints)


@suite.case("two-phase pushes, with one that is refused in the middle")
def _(_fixture):
    count = pushes(100)
    endpoints = put_up(2, "--lineage", "xorl") + [
        Embedded("--lineage", "xorl", "--fault",
                 "refuse:complete_weights_update:%d" % (count // 5))]
    hold(endpoints, ("--protocol", "two-phase", "--bucket-size", "8KiB"), little(), count,
         misses=20,
         failures=1)
    put_down(endpoints)


@suite.case("pushes whose requests carry the weights")
def _(_fixture):
    endpoints = put_up(3)
    hold(endpoints, ("--backend", "tensor"), little(), pushes(100), misses=20)
    put_down(endpoints)


@suite.case("64 endpoints: descriptors and requests are counted for each")
def _(_fixture):
    n, count = (16, 3) if SANITIZED else (64, 12)
    endpoints = put_up(n)
    session = Session(endpoints, "--connect-timeout", "60s", "--bucket-size", "8KiB")
    watch = Watch(session.child, endpoints)
    assert series(session, watch, little(), count) == 0
    sizes = watch.looks[-1][1]
    # A lock, three connections since they were asked who they are, one to the store, one for bytes.
    assert sizes["the pusher"].files <= 6 * n + 24, str(sizes["the pusher"])
    once = ["/pause_generation", "/flush_cache", "/continue_generation"]
    expected = {path: count for path in once}
    expected["/update_weights_from_distributed"] = 4 * count
    for name, requests in watch.journals().items():
        asked = collections.Counter(r["path"] for r in requests)
        assert {path: asked[path] for path in expected} == expected, (name, asked)
        assert asked["/init_weights_update_group"] == 1, (name, asked)
        # At the start, then in calls of the roll: four at the look, one after each push.
        assert asked["/server_info"] == 1 + 4 + count, (name, asked)
    assert session.close()[0] == 0
    put_down(endpoints)


class Gateway:
    def __init__(self):
        said = scratch("gateway.out")  # it says a lot, and would wait for a pipe that nobody reads
        with open(said, "wb") as out:
            self.child = start([os.path.join(BUILD, "bin", "wsync-gateway"), "--listen",
                                "127.0.0.1:0",
                                "--json", "--registry", scratch("gateway.json"), "--backend",
                                "gloo"],
                               {"XDG_STATE_HOME": scratch("state")}, stdout=out,
                               stderr=subprocess.DEVNULL)

        def ready():
            with open(said, encoding="utf-8") as f:
                self.url = next((json.loads(line)["url"] for line in f if '"ready"' in line), None)
            return self.url
        await_true(ready, "the gateway")

    def post(self, path, body):
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as reply:
                return json.load(reply)
        except urllib.error.HTTPError as refused:
            with refused:
                return json.load(refused)


@suite.case("a gateway and 200 requests to push")
def _(_fixture):
    endpoints, gateway, count = put_up(2), Gateway(), pushes(200)
    for e in endpoints:
        host, port = e.url.rsplit("/", 1)[-1].split(":")
        assert gateway.post("/add_inference_endpoint", {"host": host, "port": int(port)})["success"]
    watch = Watch(gateway.child, endpoints)
    for i in range(1, count + 1):
        if i % 20 == 0:
            assert not gateway.post("/sync_inference_weights", {"source": MISSING}).get("success")
        said = gateway.post("/sync_inference_weights", {"source": little()})
        assert said.get("success"), said
        if i in (count * 3 // 10, count // 2, count):
            watch.look(i)
    watch.judge()
    stop(gateway.child)
    put_down(endpoints)


if __name__ == "__main__":
    sys.exit(suite.main(lambda: None))
