#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A fleet of endpoints that come and go while a loop of three lines keeps them up to date:

    while sleep 5; do
        wsync-push current/ --weight-version "$v" --only-stale --min-endpoints 1 -q
    done

Meanwhile endpoints are killed, restarted with the weights of the beginning, frozen, registered and
removed, and pushes are killed. An observer asks wsync-ctl ready all the time: if it says yes, the
endpoint has the bytes of that version. In the end all have the last one, and none is paused.

CHAOS_SEED draws the acts, CHAOS_VERSIONS is the number of versions, CHAOS_SECONDS the mean time
between two acts. The order of the acts depends on the seed alone, what they meet on the machine.
"""
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import traceback
import urllib.request

import fault_lib
import lib

suite = lib.Suite()
SEED = int(os.environ.get("CHAOS_SEED", "18"))
VERSIONS = int(os.environ.get("CHAOS_VERSIONS", "12"))
SECONDS = float(os.environ.get("CHAOS_SECONDS", "0.3"))
SIZE = 8
LOOK = 0.05
# Short, because a frozen endpoint must not hold up the others for longer.
LIMITS = ["--connect-timeout", "2s", "--init-timeout", "10s", "--bucket-timeout", "5s"]


def program(name, *args):
    return [os.path.join(lib.BUILD, "bin", name), *args]


class Server:
    """An endpoint whose port outlives it."""

    def __init__(self, fleet, port):
        self.fleet, self.port, self.child, self.frozen = fleet, port, None, False
        self.url = "http://127.0.0.1:%d" % port
        self.start()

    def start(self):
        self.child = lib.start(program(
            "wsync-endpoint", "--listen", "127.0.0.1:%d" % self.port, "--json", "--model",
            self.fleet.model(0), "--init-timeout", "10s"), stdout=subprocess.PIPE)
        lines = lib.Lines(self.child.stdout)
        assert lines.next()["type"] == "start"
        assert lines.next()["type"] == "ready"

    def kill(self):
        self.thaw()
        lib.stop(self.child)
        self.child = None

    def freeze(self):
        os.kill(self.child.pid, signal.SIGSTOP)
        self.frozen = True

    def thaw(self):
        if self.frozen:
            os.kill(self.child.pid, signal.SIGCONT)
        self.frozen = False

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=30) as reply:
            return json.load(reply)

    def sums(self):
        ranks = self.get("/wsync/checksums")["ranks"]
        return ranks[0]["checksums"] if ranks else {}


class Fleet:
    def __init__(self):
        self.chance = random.Random(SEED)
        self.lock = threading.Lock()  # versions and acts wait for a look to end
        self.registry = lib.scratch("chaos-registry.json")
        self.env = dict(os.environ, XDG_STATE_HOME=lib.scratch("chaos-state"),
                        WSYNC_REGISTRY=self.registry)
        self.models = {}
        self.version, self.pushing, self.over = 1, None, False
        self.looks = self.yeses = 0
        self.acts, self.lies, self.codes = {}, [], {}
        self.servers = [Server(self, lib.free_port()) for _ in range(SIZE)]
        self.registered = set(self.servers)
        for s in self.servers:
            self.tell("wsync-register", "add", s.url)

    def model(self, version):
        if version not in self.models:
            where = lib.scratch("chaos-%d" % version)
            os.mkdir(where)
            fault_lib.make_checkpoint(where, "llama", version + 1)
            self.models[version] = where
        return self.models[version]

    def sums_of(self, version):
        return fault_lib.sums_of(os.path.join(self.model(version), "model.safetensors"))

    def tell(self, *argv):
        done = subprocess.run(program(*argv), env=self.env, stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, text=True, timeout=lib.PATIENCE)
        return done.returncode, done.stderr

    # ---- the loop of the page ----

    def reconcile(self):
        self.pushing = subprocess.Popen(program(
            "wsync-push", self.model(self.version), "--weight-version", str(self.version),
            "--only-stale", "--min-endpoints", "1", "--lock-wait", "5s", "-q", *LIMITS),
            env=self.env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        _, err = self.pushing.communicate(timeout=lib.PATIENCE)
        code, self.pushing = self.pushing.returncode, None
        self.codes[code] = self.codes.get(code, 0) + 1
        return code, err

    # ---- what happens to the fleet ----

    def act(self):
        s = self.chance.choice(self.servers)
        what = self.chance.choice(["kill", "restart", "freeze", "register", "remove", "kill push"])
        # What another act has stopped goes on first.
        if s.child is None:
            what = "start"
        elif s.frozen:
            what = "thaw"
        if what == "kill":
            s.kill()
        elif what == "restart":
            s.kill()
            s.start()
        elif what == "start":
            s.start()
        elif what == "freeze":
            s.freeze()
        elif what == "thaw":
            s.thaw()
        elif what == "register" and s not in self.registered:
            if self.tell("wsync-register", "add", s.url, *LIMITS[:2])[0] == 0:
                self.registered.add(s)
        elif what == "remove" and len(self.registered) > 2 and s in self.registered:
            self.tell("wsync-register", "remove", s.url)
            self.registered.discard(s)
        elif what == "kill push":
            pushing = self.pushing
            if pushing:
                pushing.kill()
        self.acts[what] = self.acts.get(what, 0) + 1

    def guarded(self, work):
        """Runs in a thread; its failure is that of the case."""
        try:
            work()
        except Exception:
            self.lies.append(traceback.format_exc())

    def disturb(self):
        while not self.over:
            time.sleep(SECONDS * self.chance.uniform(0.5, 1.5))
            with self.lock:
                if not self.over:
                    self.act()
        threading.Event().wait()  # servers that it has started would die with this thread

    # ---- the observer ----

    def look(self, s):
        """Nothing but pushes of this version changes an endpoint meanwhile."""
        self.looks += 1
        code, _ = self.tell("wsync-ctl", "ready", "-e", s.url, "--weight-version",
                            str(self.version), "-q", "-t", "2s")
        if code != 0:
            return
        self.yeses += 1
        found = s.sums()
        if found != self.sums_of(self.version):
            has = [v for v in self.models if found == self.sums_of(v)]
            self.lies.append("%s: ready for version %d, and it has %s" % (
                s.url, self.version, has or "mixed weights"))

    def observe(self):
        chance = random.Random(SEED + 1)
        while not self.over:
            began = time.monotonic()
            with self.lock:
                running = [s for s in self.servers if s.child and not s.frozen]
                if running and not self.over:
                    self.look(chance.choice(running))
            time.sleep(max(0.001, LOOK - (time.monotonic() - began)))

    # ---- the end ----

    def calm(self):
        """All run, all are registered, and the loop goes on until it has nothing to do."""
        for s in self.servers:
            if s.child is None:
                s.start()
            s.thaw()
            if s not in self.registered:
                code, err = self.tell("wsync-register", "add", s.url)
                assert code == 0, "%s (%s)" % (err, s.child.poll())
        until = time.monotonic() + lib.PATIENCE / 2
        while True:
            code, err = self.reconcile()
            if code == 0 and self.tell("wsync-ctl", "ready", "--weight-version",
                                       str(self.version))[0] == 0:
                return
            assert time.monotonic() < until, "never calm: exit %d: %s" % (code, err)
            time.sleep(0.2)


@suite.case("endpoints that come and go have the last weights in the end, and ready never lies")
def _(fleet):
    for v in range(VERSIONS + 1):
        fleet.sums_of(v)
    observer, disturber = (threading.Thread(target=fleet.guarded, args=[work], daemon=True)
                           for work in (fleet.observe, fleet.disturb))
    observer.start()
    disturber.start()
    for v in range(1, VERSIONS + 1):
        with fleet.lock:
            fleet.version = v
        fleet.reconcile()
        # as far as time goes, an act happens in most rounds
        time.sleep(SECONDS * 0.5)
    with fleet.lock:
        fleet.over = True
    observer.join(lib.PATIENCE)
    assert not observer.is_alive(), "the observer hangs"
    assert disturber.is_alive() and sum(fleet.acts.values()) > 0, fleet.lies
    fleet.calm()
    print("# seed %d: %d versions, acts %s, pushes by exit status %s, %d looks, %d yes" % (
        SEED, VERSIONS, fleet.acts, fleet.codes, fleet.looks, fleet.yeses))
    assert not fleet.lies, "\n".join(fleet.lies)
    assert fleet.yeses > 0
    for s in fleet.servers:
        state = s.get("/wsync/journal")["state"]
        assert not state["paused"], "%s is left paused" % s.url
        assert state["weight_version"] == str(VERSIONS), "%s: %s" % (s.url, state)
        assert s.sums() == fleet.sums_of(VERSIONS), "%s has other bytes" % s.url
    code, err = fleet.tell("wsync-ctl", "ready", fleet.model(VERSIONS), "--verify", "hash",
                           "--weight-version", str(VERSIONS))
    assert code == 0, err


if __name__ == "__main__":
    sys.exit(suite.main(Fleet))
