# SPDX-License-Identifier: Apache-2.0
"""lib.py - what the peer tests share: TAP, processes that end when the test does, the oracle.

The oracle reads the safetensors files by itself (struct, json, hashlib), so that a byte that wsync
reads wrongly cannot be right by the same mistake. Every wait has a deadline; every child is killed
by its pid at exit, and would die with this process anyway.
"""
import atexit
import contextlib
import fcntl
import hashlib
import json
import mmap
import os
import random
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
TREE = os.path.dirname(os.path.dirname(HERE))
BUILD = os.path.join(TREE, os.environ.get("BUILD", "build"))
TORCH_NAME = {"BOOL": "bool", "U8": "uint8", "I8": "int8", "F8_E4M3": "float8_e4m3fn",
              "F8_E5M2": "float8_e5m2", "I16": "int16", "F16": "float16", "BF16": "bfloat16",
              "I32": "int32", "F32": "float32", "I64": "int64", "F64": "float64"}

# Seconds, of every wait: far more than a step takes on the slowest machine. Only a hang uses it up.
# Less than Suite.SECONDS, so that the case that hangs is reported as the failure.
TOLD = float(os.environ.get("WSYNC_TEST_PATIENCE") or 0)
PATIENCE = TOLD or 600
# Where a test is told to wait less, its pushes give up first, unless a case has its own limits.
LIMITS = [word for limit in ("--init-timeout", "--bucket-timeout") if TOLD
          for word in (limit, "%gs" % (TOLD / 2))]


class Skip(Exception):
    """This case, or raised by a suite's set-up all of it, cannot run here."""


def need(ability):
    """Skips a case that needs what check.py has found this machine unable to do."""
    why = os.environ.get("WSYNC_TEST_NO_" + ability.upper())
    if why:
        raise Skip(why)


class Lines:
    """Lines of JSON from a pipe, each awaited under a deadline."""

    def __init__(self, pipe):
        self.fd, self.rest = pipe.fileno(), b""

    def next(self, seconds=PATIENCE):
        """The next line's value; None at the end of the stream."""
        until = time.monotonic() + seconds
        while b"\n" not in self.rest:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self.fd], [], [], left)[0]:
                raise TimeoutError("no line within %g s" % seconds)
            more = os.read(self.fd, 1 << 16)
            if not more:
                return None
            self.rest += more
        line, self.rest = self.rest.split(b"\n", 1)
        return json.loads(line)


def await_true(question, what):
    until = time.monotonic() + PATIENCE
    while not question():
        if time.monotonic() > until:
            raise TimeoutError("%s: not within %g s" % (what, PATIENCE))
        time.sleep(0.005)


CHILDREN = []


DIE_TOO = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []


def is_sanitized():
    with open(os.path.join(BUILD, "bin", "wsync-push"), "rb") as program:
        return b"__asan_init" in program.read()


def start(argv, env=None, **how):
    """Popen whose child dies with this process, where there is a setpriv."""
    child = subprocess.Popen(DIE_TOO + argv, env=dict(os.environ, **env) if env else None, **how)
    CHILDREN.append(child)
    return child


def stop(child):
    if child.poll() is None:
        child.kill()
    child.wait(PATIENCE)
    CHILDREN.remove(child)
    for pipe in (child.stdin, child.stdout, child.stderr):
        if pipe:
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


@atexit.register
def stop_all():
    for child in list(CHILDREN):
        stop(child)


SCRATCH = tempfile.mkdtemp(prefix="wsync-peers-")
atexit.register(shutil.rmtree, SCRATCH, True)
# A shell's background job ignores it, and the programs under test would inherit that.
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
for sig in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(sig, lambda number, _frame: sys.exit(128 + number))


def scratch(name):
    return os.path.join(SCRATCH, name)


def free_port():
    """A TCP port that nobody listens on. The kernel gives other connections those from 32768 on."""
    while True:
        port = random.SystemRandom().randrange(20000, 32000)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return port


def torch_root(version):
    """Where chroot.sh keeps that torch."""
    user = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    cache = os.environ.get("WSYNC_CACHE") or os.path.join(user, "wsync")
    return os.path.join(cache, "torch-" + version)


class Endpoint:
    def __init__(self, ready):
        self.url, self.tp = ready["url"], ready["tp"]
        self.pid, self.ranks = ready["pid"], ready["ranks"]

    def get(self, path, seconds=PATIENCE):
        with urllib.request.urlopen(self.url + path, timeout=seconds) as reply:
            return json.load(reply)

    def journal(self):
        return self.get("/journal")

    def steps(self, after=0):
        """The paths asked for, in order, from entry `after` of the journal on."""
        return [entry["path"] for entry in self.journal()[after:]]


class Receivers:
    """Torch endpoints: Receivers("2.6", [1, 2]) has .endpoints of one and of two ranks. python: an
    interpreter that has torch, whichever that is."""

    def __init__(self, version, tps, env=None, options=(), python=None):
        self.err = open(scratch("receivers-%d.err" % len(os.listdir(SCRATCH))), "w+")
        run = [python] if python else [os.path.join(HERE, "python.sh"), version]
        argv = run + [os.path.join(HERE, "receiver.py"), "--tp", ",".join(map(str, tps)), *options]
        self.child = start(argv, env, stdout=subprocess.PIPE, stderr=self.err)
        lines, ready = Lines(self.child.stdout), []
        while len(ready) < len(tps):
            line = lines.next()  # the first may make the root, or read gigabytes of torch
            if line is None:
                self.give_up()
            ready.append(line)
        self.version = ready[0]["torch"]
        in_order = sorted(ready, key=lambda r: r["index"])  # process ids start again some time
        self.endpoints = [Endpoint(r) for r in in_order]
        assert [e.tp for e in self.endpoints] == list(tps), ready

    def give_up(self):
        status = self.child.wait(PATIENCE)
        self.err.seek(0)
        text = self.err.read().strip()
        if status == 77:
            raise Skip(text.split("\n")[-1])
        raise RuntimeError("receivers: exit %s: %s" % (status, text))

    def choose(self, *tps):
        """Endpoints of these sizes, each once."""
        free, chosen = list(self.endpoints), []
        for tp in tps:
            chosen.append(next(e for e in free if e.tp == tp))
            free.remove(chosen[-1])
        return chosen

    def stop(self):
        stop(self.child)


class Embedded:
    """A wsync-endpoint with these options."""

    def __init__(self, *options):
        self.child = start([os.path.join(BUILD, "bin", "wsync-endpoint"), "--listen", "127.0.0.1:0",
                            "--json", *options], stdout=subprocess.PIPE)
        lines = Lines(self.child.stdout)
        assert lines.next()["type"] == "start"
        self.url = lines.next()["url"]

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=PATIENCE) as reply:
            return json.load(reply)

    def post(self, path, body):
        request = urllib.request.Request(self.url + path, json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=PATIENCE) as reply:
            return json.load(reply)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        stop(self.child)


class Push:
    """What a finished wsync-push said: rc, events (JSON lines), end (the last of them), stderr."""

    def __init__(self, rc, out, err, seconds):
        self.rc, self.stderr, self.seconds = rc, err, seconds
        self.events = [json.loads(line) for line in out.splitlines()]
        self.end = self.events[-1] if self.events else {}

    def of(self, kind):
        return [e for e in self.events if e["type"] == kind]

    def __str__(self):
        return "exit %s, end %s\n%s" % (self.rc, json.dumps(self.end), self.stderr)


def push_argv(endpoints, paths, options):
    argv = [os.path.join(BUILD, "bin", "wsync-push"), *paths]
    for e in endpoints:
        argv += ["--endpoint", e.url]
    # A receiver made of torch has no model, and tells nothing of its format.
    return argv + ["--backend", "gloo", "--json", "--verify", "none", "--allow-unknown", "format",
                   *LIMITS, *options]


def push_env():
    return {"XDG_STATE_HOME": scratch("state"), "WSYNC_REGISTRY": scratch("registry.json")}


def full_pipe():
    """Its two ends. Whoever writes to it waits for a reader."""
    end, begin = os.pipe()
    size = fcntl.fcntl(begin, 1031, 4096)  # F_SETPIPE_SZ
    os.write(begin, b"x" * size)
    return end, begin


class Running:
    """A wsync-push under way, or the program of that command line. unread: nobody reads what it
    prints."""

    def __init__(self, endpoints, paths, *options, argv=None, unread=False):
        self.began = time.monotonic()
        self.pipes = [full_pipe(), full_pipe()] if unread else []
        to = [begin for _, begin in self.pipes] or [subprocess.PIPE] * 2
        self.child = start(argv or push_argv(endpoints, paths, options), push_env(),
                           stdin=subprocess.DEVNULL, stdout=to[0], stderr=to[1], text=True)

    def wait(self):
        """A push that never ends is a failure."""
        try:
            out, err = self.child.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired as e:
            raise AssertionError("it still ran after %g s" % PATIENCE) from e
        finally:
            stop(self.child)
            for pipe in self.pipes:
                os.close(pipe[0])
                os.close(pipe[1])
        return Push(self.child.returncode, out or "", err or "", time.monotonic() - self.began)


def push(endpoints, paths, *options):
    return Running(endpoints, paths, *options).wait()


def run_program(name, args, endpoints):
    """Another of the programs, with --json among args; the outcome is like a push's."""
    argv = [os.path.join(BUILD, "bin", name), *args]
    for e in endpoints:
        argv += ["--endpoint", e.url]
    return Running(endpoints, [], argv=argv).wait()


def caches(server, command, *options):
    """wsync-verify caches around this command of a program; its row."""
    done = run_program("wsync-verify", ["caches", "--json", "--timeout", str(PATIENCE), *options,
                                        "--between", os.path.join(BUILD, "bin", command)],
                       [server])
    rows = done.of("caches")
    assert len(rows) == 1, done
    assert done.rc == {"cleared": 0, "cached": 1, "unknown": 11}[rows[0]["verdict"]], done
    return rows[0]


def forget(endpoints):
    """What failed at them is of no interest: another model follows."""
    done = run_program("wsync-ctl", ["repair", "--forget", "--json"], endpoints)
    assert done.rc == 0, done


class Session:
    """wsync-push --stdin: one source in, one result out, the group kept in between."""

    def __init__(self, endpoints, *options, stderr=None):
        self.child = start(push_argv(endpoints, [], ("--stdin",) + options), push_env(),
                           stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr)
        self.lines = Lines(self.child.stdout)

    def push(self, source):
        self.child.stdin.write(source.encode() + b"\n")
        self.child.stdin.flush()
        return self.wait("result")

    def wait(self, kind):
        while True:
            event = self.lines.next()
            if event is None or event["type"] == kind:
                return event

    def close(self):
        self.child.stdin.close()
        end = self.wait("end")
        rc = self.child.wait(PATIENCE)
        stop(self.child)
        return rc, end


def oracle(*paths):
    """name -> what a receiver must hold, straight from the files."""
    held = {}
    for path in paths:
        with open(path, "rb") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as data:
            size, = struct.unpack_from("<Q", data)
            header = json.loads(data[8:8 + size])
            with memoryview(data) as whole:
                for name, t in header.items():
                    if name == "__metadata__":
                        continue
                    begin, end = (8 + size + x for x in t["data_offsets"])
                    with whole[begin:end] as raw:
                        held[name] = {"dtype": TORCH_NAME[t["dtype"]], "shape": t["shape"],
                                      "sha256": hashlib.sha256(raw).hexdigest()}
    return held


def check_held(endpoints, expected):
    """Every rank of every endpoint holds exactly the expected tensors."""
    for e in endpoints:
        held = e.get("/received")
        assert len(held) == e.tp, "%s: %d ranks answered" % (e.url, len(held))
        for rank, got in enumerate(held):
            for name in sorted(set(got) | set(expected)):
                assert got.get(name) == expected.get(name), "%s rank %d: %s is %s, should be %s" % (
                    e.url, rank, name, got.get(name), expected.get(name))


def show_logs(since):
    """The ends of what the receivers, and the libraries in them, have written of late: scratch
    files *.err."""
    ago = time.time() - (time.monotonic() - since)
    for name in sorted(os.listdir(SCRATCH)):
        path = scratch(name)
        if not name.endswith(".err") or os.path.getmtime(path) < ago:
            continue
        with open(path, encoding="utf-8", errors="replace") as f:
            lines = f.read().splitlines()
        if lines:
            print("# ---- the end of %s" % name)
        for line in lines[-30:]:
            print("#   " + line, flush=True)


class Suite:
    """Cases in the order of their definition, reported as TAP."""
    SECONDS = 1800  # ends a suite that hangs; a slow machine needs less

    def __init__(self, program="bin/wsync-push"):
        self.cases, self.program, self.running = [], program, ""

    def case(self, title):
        return lambda function: self.cases.append((title, function)) or function

    def main(self, set_up):
        """set_up() makes what each case gets as its argument, or raises Skip."""
        def too_long(*_):
            print("# stopped: the suite took longer than %d s, in the case: %s" % (
                self.SECONDS, self.running), flush=True)
            sys.exit(1)
        try:
            if not os.path.exists(os.path.join(BUILD, self.program)):
                raise Skip("%s is not built" % os.path.basename(self.program))
            fixture = set_up()
        except Skip as why:
            print("1..0 # SKIP %s" % why)
            return 0
        signal.signal(signal.SIGALRM, too_long)
        signal.alarm(self.SECONDS)
        print("1..%d" % len(self.cases), flush=True)
        failed = [title for i, (title, function) in enumerate(self.cases, 1)
                  if not self.run(i, title, function, fixture)]
        return 1 if failed else 0

    def run(self, i, title, function, fixture):
        began, self.running = time.monotonic(), title
        try:
            function(fixture)
            print("ok %d - %s # %.1f s" % (i, title, time.monotonic() - began), flush=True)
        except Skip as why:
            print("ok %d - %s # SKIP %s" % (i, title, why), flush=True)
        except Exception as e:
            print("not ok %d - %s" % (i, title), flush=True)
            for line in ("%s: %s" % (type(e).__name__, e)).split("\n"):
                print("# " + line, flush=True)
            show_logs(began)
            return False
        return True
