#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""rows.py - each known wrong yes (W), wrong no (N) and hole (S), tried against given programs.

    rows.py [-v] [-j N] BIN_DIR [ROW...]

BIN_DIR has the programs, older or newer ones. Each row is a function here: it tries its examples,
and others of the same kind that came to mind later ("more"). One line for each row:

    W1   as in the list (4 of 5, more 1 of 6): exit 0 "pushed ... names verified"   [no layer 1]
    W1   closed, its kind is not (5, more 1 of 6): exit 0 "..."   [no norm]
    W1   closed (5, more 6): exit 1 "..."
    W26  not run: needs a real vLLM

An example that is "open" does today what the row says; each is named below its row, with -v also
its command, and what became of the others. Exit status 1 if any is open.

Servers are the wsync-endpoint of BIN_DIR. Where a row needs what older ones lack, that of this tree
serves (`new=True`). Servers that misbehave are written here. Every child has a deadline and ends
with its row.
"""
import concurrent.futures
import contextlib
import fnmatch
import http.server
import importlib.util
import json
import os
import random
import re
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import urllib.error
import urllib.request

TREE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [os.path.join(TREE, "tests", "cli"), os.path.join(TREE, "tests", "peers")]
import proxy  # noqa: E402

NEW_BIN = os.path.join(TREE, os.environ.get("BUILD", "build"), "bin")
SECONDS = 40  # of one command
SIZE = {"U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E8M0": 1, "BF16": 2, "F16": 2, "F32": 4, "I32": 4}
JSON = "Content-Type: application/json"
ROWS = {}


class NotRun(Exception):
    """Why a row cannot run here."""


def row(function):
    ROWS[function.__name__.upper()] = function
    return function


# ---- models and files ----

def numbers(dtype, count, seed):
    """Numbers of a likely size, which a server may have: no NaN, no infinity."""
    raw = bytearray(random.Random(seed).randbytes(SIZE[dtype] * count))
    if dtype in ("BF16", "F16", "F32"):
        step = SIZE[dtype]
        raw[step - 1::step] = bytes(0x3c | b & 0x83 for b in raw[step - 1::step])
    elif dtype.startswith("F8"):
        raw = bytearray(b & 0xbf for b in raw)
    return bytes(raw)


def count_of(shape):
    n = 1
    for d in shape:
        n *= d
    return n


def write(path, tensors, seed=0, values=None):
    """tensors: (name, dtype, shape); values: name -> bytes instead of random ones."""
    head, parts, at = {}, [], 0
    for i, (name, dtype, shape) in enumerate(tensors):
        data = (values or {}).get(name)
        if data is None:
            data = numbers(dtype, count_of(shape), "%s/%s" % (seed, name))
        head[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + len(data)]}
        parts.append(data)
        at += len(data)
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(parts))


def save(path, text):
    with open(path, "w" if isinstance(text, str) else "wb") as f:
        f.write(text)
    return path


def read(path):
    """name -> (dtype, shape, bytes) of a file."""
    with open(path, "rb") as f:
        data = f.read()
    size, = struct.unpack_from("<Q", data)
    return {name: (t["dtype"], t["shape"], data[8 + size + t["data_offsets"][0]:
                                                8 + size + t["data_offsets"][1]])
            for name, t in json.loads(data[8:8 + size]).items() if name != "__metadata__"}


def family(**sizes):
    """small_model.py with other sizes, as a module of its own."""
    path = os.path.join(TREE, "tests", "cli", "small_model.py")
    spec = importlib.util.spec_from_file_location("small_model_of_rows", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name, value in sizes.items():
        setattr(module, name, value)
    return module


QWEN2 = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}


class Done:
    def __init__(self, argv, rc, out, err, seconds):
        self.argv, self.rc, self.out, self.err, self.seconds = argv, rc, out, err, seconds
        self.text = out + err

    def lines(self):
        """Of --json."""
        return [json.loads(line) for line in self.out.splitlines() if line.startswith("{")]

    def words(self):
        """The line that decides."""
        out = [x for x in self.out.splitlines() if x.strip()]
        err = [x for x in self.err.splitlines() if x.strip() and not x.startswith("hint:")]
        said = [x for x in err if x.startswith("wsync-") and "warning:" not in x]
        if self.rc == 0:
            line = (out or err or [""])[-1]
        else:
            line = (said or err or out or [""])[0]
        return "exit %s \"%s\"" % (self.rc, re.sub(r"127\.0\.0\.1:\d+", "HOST", line)[:230])


class Server:
    def __init__(self, url, child=None):
        self.url, self.child = url, child
        self.port = int(url.rsplit(":", 1)[1])

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=SECONDS) as reply:
            return json.load(reply)

    def post(self, path, body):
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=SECONDS) as reply:
            return reply.read()

    def journal(self):
        return self.get("/wsync/journal")

    def state(self):
        return self.journal()["state"]

    def is_paused(self):
        try:
            return self.state()["paused"]
        except OSError:
            return "gone"

    def version(self):
        return self.state()["weight_version"]

    CHANGES = re.compile("/(pause|init_w|update_w|start_w|begin_w|prepare|receive|load_|sleep|rel)")

    def touched(self):
        """Whether anybody has asked it to change something."""
        return [r["path"] for r in self.journal()["requests"]
                if r["method"] == "POST" and self.CHANGES.match(r["path"])]

    def sums(self):
        """name -> checksum, by each rank."""
        got = self.get("/wsync/checksums")
        out = {}
        for i, rank in enumerate(got["ranks"]):
            for name, value in rank.get("checksums", rank.get("tensors", {})).items():
                out[i, name] = value
        return out


class Switch(proxy.Proxy):
    """A proxy whose servers change: rule(names, self) as in proxy.py."""

    def __init__(self, servers, rule=None, after=None):
        self.servers, self.now, self.said = [s.url for s in servers], 0, []

        def before(names):
            if names["path"].startswith("/__switch"):
                self.now = int(names["path"].rsplit("/", 1)[1])
                names["answer"] = 200, "{}"
                return
            if rule:
                rule(names, self)
            if names["url"] == self.target:
                names["url"] = self.servers[self.now]
        super().__init__(servers[0].url, before, after)


# ---- a row that runs ----

class Row:
    def __init__(self, name, bin_dir, verbose):
        self.name, self.bin, self.verbose = name, bin_dir, verbose
        self.dir = tempfile.mkdtemp(prefix="wsync-rows-")
        self.children, self.proxies, self.seen, self.made = [], [], [], 0
        self.env = {"PATH": "%s:%s" % (bin_dir, os.environ["PATH"]), "HOME": self.dir,
                    "XDG_STATE_HOME": self.path("state"), "LC_ALL": "C.UTF-8", "COLUMNS": "100",
                    "TMPDIR": self.dir}

    def path(self, *names):
        return os.path.join(self.dir, *names)

    def fresh(self, what="d"):
        self.made += 1
        return self.path("%s%d" % (what, self.made))

    def close(self):
        for p in self.proxies:
            p.shutdown()
            p.server_close()
        for child in self.children:
            if child.poll() is None:
                child.kill()
            child.wait(SECONDS)
            for pipe in (child.stdin, child.stdout, child.stderr):
                if pipe:
                    with contextlib.suppress(OSError):
                        pipe.close()
        shutil.rmtree(self.dir, True)

    def argv(self, words, new=False):
        words = [w if isinstance(w, bytes) else str(w) for w in words]
        if isinstance(words[0], str) and words[0].startswith("wsync-"):
            words[0] = os.path.join(NEW_BIN if new else self.bin, words[0])
        return words

    def start(self, *words, new=False, env=None, **how):
        how.setdefault("stdin", subprocess.DEVNULL)
        child = subprocess.Popen(self.argv(words, new), cwd=self.dir,
                                 env=dict(self.env, **env or {}), **how)
        self.children.append(child)
        return child

    def run(self, *words, seconds=SECONDS, env=None, new=False):
        argv, began = self.argv(words, new), time.monotonic()
        child = self.start(*argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        return self.wait(child, seconds, argv, began)

    def wait(self, child, seconds=SECONDS, argv=None, began=None):
        began = began or time.monotonic()
        try:
            out, err = child.communicate(timeout=seconds)
            rc = child.returncode
        except subprocess.TimeoutExpired:
            child.kill()
            out, err = child.communicate()
            rc = "none within %d s" % seconds
        return Done(argv or child.args, rc, out.decode(errors="replace"),
                    err.decode(errors="replace"), time.monotonic() - began)

    def ready(self, child):
        """The URL of its line "ready"."""
        for line in child.stdout:
            got = json.loads(line)
            if got.get("type") == "ready":
                return Server(got["url"], child)
        raise NotRun("a server does not start: %s" % shlex.join(child.args[1:]))

    def endpoint(self, *options, new=False, env=None):
        at = () if "--listen" in options else ("--listen", "127.0.0.1:0")
        return self.ready(self.start("wsync-endpoint", *at, "--json", *options, new=new, env=env,
                                     stdout=subprocess.PIPE, stderr=subprocess.DEVNULL))

    def gateway(self, *options):
        return self.ready(self.start("wsync-gateway", "--listen", "127.0.0.1:0", "--json", *options,
                                     stdout=subprocess.PIPE, stderr=subprocess.DEVNULL))

    def serve(self, server):
        self.proxies.append(server)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05},
                         daemon=True).start()
        return server

    def switch(self, *servers, rule=None, after=None):
        return self.serve(Switch(servers, rule, after))

    def canned(self, answers):
        """A server with these answers, path -> object or (status, text); .requests has what came:
        (method, path, headers, body)."""
        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self):
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                self.server.requests.append((self.command, self.path, dict(self.headers), body))
                got = answers.get(self.path.split("?")[0], (404, "not found"))
                status, text = got if isinstance(got, tuple) else (200, json.dumps(got))
                text = text if isinstance(text, bytes) else text.encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                with contextlib.suppress(OSError):
                    self.wfile.write(text)

            do_GET = do_POST = do_CONNECT = answer

            def log_message(self, *args):
                pass

        class Canned(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request, client_address):
                pass
        server = Canned(("127.0.0.1", 0), Handler)
        server.requests, server.url = [], "http://127.0.0.1:%d" % server.server_address[1]
        return self.serve(server)

    def model(self, kind="qwen3", seed=0, keep=None, config=None, more=(), dtype="BF16", fp8=False,
              change=None, values=None, name=None, **sizes):
        """A small checkpoint directory. keep(name) chooses tensors, change(list) edits them."""
        made = family(**sizes)
        path = name or self.fresh("m")
        os.makedirs(path)
        save(os.path.join(path, "config.json"),
             json.dumps(dict(made.config(kind, fp8), **config or {})))
        tensors = [t for t in made.tensors(kind, fp8, dtype) if not keep or keep(t[0])]
        tensors = (change(tensors) if change else tensors) + list(more)
        write(os.path.join(path, "model.safetensors"), tensors, seed, values)
        return path

    def saw(self, what, is_open, done, more=False):
        """An example and its outcome. done: what a command did, or words."""
        if isinstance(done, Done) and isinstance(done.rc, int) and done.rc < 0:
            is_open, what = True, what + ": CRASH"
        self.seen.append((what, bool(is_open), done, more))

    def shown(self):
        """The row's line, and one for each example that is open."""
        def part(more):
            mine = [s for s in self.seen if s[3] == more]
            opened = sum(s[1] for s in mine)
            return "%d of %d" % (opened, len(mine)) if opened else str(len(mine))
        if not self.seen:
            return ["%-4s not run: no example" % self.name], False
        opened = [s for s in self.seen if s[1]]
        what, _, done, _ = (opened or self.seen)[0]
        words = done.words() if isinstance(done, Done) else done
        verdict = "closed"
        if opened:
            verdict = "closed, its kind is not" if all(s[3] for s in opened) else "as in the list"
        lines = ["%-4s %s (%s, more %s): %s   [%s]" % (self.name, verdict, part(False), part(True),
                                                       words, what)]
        for what, is_open, done, more in self.seen:
            if not is_open and not self.verbose:
                continue
            lines.append("       %s%s: %s: %s" % (
                "open" if is_open else "ok", " (more)" if more else "", what,
                done.words() if isinstance(done, Done) else done))
            if self.verbose and isinstance(done, Done):
                lines.append("         $ " + " ".join(
                    a if isinstance(a, str) else repr(a) for a in done.argv))
        return lines, bool(opened)


# ---- W: a yes that is wrong ----

def has(*parts):
    return lambda name: not any(p in name for p in parts)


@row
def w1(t):
    """A glob that hides nothing of what the source lacks: the lack is an error all the same."""
    full = t.model()
    lacks = {"layer 1": has("layers.1."), "k_proj": has("k_proj"), "the norm": has("model.norm")}
    more = {"the embedding": has("embed_tokens"), "q_norm": has("q_norm"),
            "one down_proj": has("layers.0.mlp.down")}
    globs = [("--exclude", "nothing.here"), ("--include", "*")]
    others = [("--exclude", "*.inv_freq"), ("--exclude", "model.layers.9.*"),
              ("--include", "model.*", "--include", "lm_head*")]
    for what, keep in list(lacks.items()) + list(more.items()):
        source = t.model(keep=keep)
        for glob in globs + others:
            if what != "layer 1" and glob not in globs[:1] + others[:1]:
                continue
            server = t.endpoint("--model", full, "--lineage", "sglang-2026", "--checksums")
            done = t.run("wsync-push", source, "-e", server.url, "--verify", "hash", *glob)
            t.saw("no %s, %s" % (what, " ".join(glob)), done.rc == 0, done,
                  what in more or glob in others)
    server = t.endpoint("--model", full, "--lineage", "sglang-2026", "--checksums")
    t.run("wsync-push", full, "-e", server.url, "--verify", "hash", "--weight-version", "1")
    source = t.model(keep=lacks["layer 1"])
    done = t.run("wsync-ctl", "ready", source, "-e", server.url, "--verify", "hash",
                 "--exclude", "nothing.here")
    plain = t.run("wsync-ctl", "ready", source, "-e", server.url, "--verify", "hash")
    t.saw("ready --verify hash", done.rc == 0 and plain.rc != 0, done)
    done = t.run("wsync-verify", "names", source, "-e", server.url, "--exclude", "nothing.here")
    t.saw("wsync-verify names", done.rc == 0, done, True)
    for lineage in ("vllm-0.33", "xorl"):
        server = t.endpoint("--model", full, "--lineage", lineage)
        done = t.run("wsync-push", source, "-e", server.url, "--exclude", "nothing.here")
        t.saw("no layer 1 at " + lineage, done.rc == 0, done, True)


@row
def w2(t):
    """Sizes are compared though the server's config cannot be read, also with globs."""
    small, wide = t.model(), t.model(H=64, I=128)
    deep = t.model(LAYERS=3)
    for what, source, glob, more in (
            ("3 layers to 2", deep, ("--exclude", "nothing.here"), False),
            ("width 64 to 128", wide, ("--exclude", "nothing.here"), False),
            ("3 layers to 2, --include *", deep, ("--include", "*"), True),
            ("other vocabulary", t.model(VOCAB=320), ("--exclude", "nothing.here"), True),
            ("other inner size", t.model(I=384), ("--exclude", "*.inv_freq"), True),
            ("other key heads", t.model(KV=4), ("--exclude", "nothing.here"), True)):
        for lineage in ("sglang-2026",) if not more else ("sglang-2026", "xorl"):
            server = t.endpoint("--model", small, "--model-path", "elsewhere", "--lineage", lineage)
            done = t.run("wsync-push", source, "-e", server.url, *glob)
            t.saw("%s at %s" % (what, lineage), done.rc == 0 or server.touched(), done, more)


def biased(tensors):
    return tensors + [(n[:-6] + "bias", d, s[:1]) for n, d, s in tensors
                      if re.search("[qkv]_proj.weight", n)]


@row
def w3(t):
    """vLLM: a part of a module is refused before the pause, or the rest keeps its weights."""
    models = {"qwen2": t.model("llama", config=QWEN2, change=biased),
              "qwen3_moe": t.model("qwen3_moe"), "deepseek_v3": t.model("deepseek_v3")}
    again = {"qwen2": t.model("llama", 7, config=QWEN2, change=biased),
             "qwen3_moe": t.model("qwen3_moe", 7), "deepseek_v3": t.model("deepseek_v3", 7)}
    for kind, globs, more in (
            ("qwen2", ("--exclude", "*.bias"), False),
            ("qwen3_moe", ("--exclude", "*experts*down_proj*"), False),
            ("qwen3_moe", ("--exclude", "*experts.3.*"), False),
            ("deepseek_v3", ("--exclude", "*e_score_correction_bias"), False),
            ("qwen2", ("--include", "*.bias"), True),
            ("qwen2", ("--exclude", "*k_proj.bias"), True),
            ("qwen3_moe", ("--include", "*experts.3.*"), True),
            ("qwen3_moe", ("--exclude", "*experts.*.gate_proj*"), True),
            ("deepseek_v3", ("--exclude", "*q_a_proj*"), True),
            ("deepseek_v3", ("--exclude", "*shared_experts.up_proj*"), True)):
        for lineage in ("vllm-0.33", "vllm-0.24"):
            server = t.endpoint("--model", models[kind], "--lineage", lineage)
            t.run("wsync-push", models[kind], "-e", server.url)
            before = server.sums()
            done = t.run("wsync-push", again[kind], "-e", server.url, *globs)
            names = {n for n in read(again[kind] + "/model.safetensors")}
            sent = {n for n in names if any(fnmatch.fnmatchcase(n, g) for g in globs[1::2])}
            sent = sent if globs[0] == "--include" else names - sent
            lost = [k for k, v in server.sums().items() if k[1] not in sent and before.get(k) != v]
            loss = " loses %s" % lost[0][1] if lost else ""
            t.saw("%s %s at %s%s" % (kind, " ".join(globs), lineage, loss), done.rc == 0 and lost,
                  done, more)
    w3_turns(t, models["qwen3_moe"], again["qwen3_moe"])


def w3_turns(t, model, again):
    """Two senders in turns that divide the experts of a vLLM."""
    server = t.endpoint("--model", model, "--lineage", "vllm-0.33")
    t.run("wsync-push", model, "-e", server.url)
    lock, pushes = t.path("turns.lock"), []
    glob = "*experts.[4-7].*"
    for i, globs in enumerate((("--exclude", glob), ("--include", glob))):
        pushes.append(t.start("wsync-push", again, "-e", server.url, "--sender", "%d/2" % (i + 1),
                              "--lock", lock, "--weight-version", "5", *globs,
                              env={"XDG_STATE_HOME": t.path("state%d" % i)},
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE))
    done = [t.wait(p) for p in pushes]
    t.saw("two senders divide the experts, exits %s" % [d.rc for d in done],
          all(d.rc == 0 for d in done), done[0])


@row
def w4(t):
    """A server without a model is compared with what it lists; "verified" is what was compared."""
    a = t.model()
    for what, b, more in (("width", t.model(H=256, I=512), False),
                          ("one shape", t.model(I=384), True),
                          ("one layer more", t.model(LAYERS=3), True),
                          ("head size", t.model(HEAD=32), True)):
        for lineage in ("lenient", "vllm-0.33"):
            if lineage == "vllm-0.33" and what == "one layer more":
                continue  # it has nothing to list, and takes any name
            server = t.endpoint("--lineage", lineage)
            t.run("wsync-push", a, "-e", server.url)
            named = t.run("wsync-verify", "names", b, "-e", server.url)
            before = len(server.touched())
            done = t.run("wsync-push", b, "-e", server.url)
            half = len(server.touched()) > before and done.rc != 0
            t.saw("push of another %s at %s" % (what, lineage), half, done, more)
            two = named.rc == 0 and done.rc or named.rc == 1 and done.rc == 0
            t.saw("names of another %s at %s; push exits %s" % (what, lineage, done.rc), two, named,
                  more)
    for lineage in ("lenient", "vllm-0.33"):
        server = t.endpoint("--lineage", lineage)
        t.run("wsync-push", a, "-e", server.url)
        named = t.run("wsync-verify", "names", a, "-e", server.url)
        done = t.run("wsync-push", a, "-e", server.url)
        t.saw("names of the same at %s; push exits %s" % (lineage, done.rc),
              named.rc == 1 and done.rc == 0, named, True)
    server = t.endpoint()
    done = t.run("wsync-push", a, "-e", server.url)
    t.saw("\"names verified\" of an empty server", "names verified" in done.text, done)
    server = t.endpoint("--model-path", "elsewhere", "--lineage", "slime")
    done = t.run("wsync-push", a, "-e", server.url)
    t.saw("\"names verified\" of a server that lists nothing", "names verified" in done.text, done,
          True)


@row
def w5(t):
    """Two servers behind one address are found before anything changes."""
    m = t.model()
    def by_chance(seed):
        chance = random.Random(seed)
        return lambda n, s: n.update(url=chance.choice(s.servers))
    ways = {"turns": lambda n, s: n.update(url=s.servers[n["count"] % 2]),
            "the other from request 9 on": lambda n, s: n.update(url=s.servers[n["count"] > 8]),
            "the other for the first 14": lambda n, s: n.update(url=s.servers[n["count"] > 14]),
            "two of three": lambda n, s: n.update(url=s.servers[n["count"] % 3 > 0])}
    ways.update({"by chance, seed %d" % i: by_chance(i) for i in range(3)})
    for i, (what, rule) in enumerate(ways.items()):
        for lineage, backends in (("lenient", ("gloo", "tensor", "disk")),
                                  ("sglang-2026", ("gloo",)), ("vllm-0.33", ("gloo", "disk"))):
            for backend in backends:
                if i and lineage != "lenient" and backend != "gloo":
                    continue
                model = ("--model", m) if lineage != "lenient" else ()
                a, b = (t.endpoint("--lineage", lineage, *model) for _ in range(2))
                front = t.switch(a, b, rule=rule)
                done = t.run("wsync-push", m, "-e", front.url, "--backend", backend,
                             "--init-timeout", "5s", "--bucket-timeout", "5s")
                paused = [s.is_paused() for s in (a, b)]
                mixed = "from" not in what and "first" not in what or True in paused
                t.saw("%s, %s by %s, paused %s" % (what, lineage, backend, paused),
                      done.rc == 0 and mixed, done, i > 0)


def fleet(t, model, label=None, n=2):
    """Endpoints behind switches, each with a fresh one to switch to, which has that label."""
    fronts = []
    for _ in range(n):
        a, b = (t.endpoint("--model", model, "--lineage", "sglang-2026", "--checksums")
                for _ in range(2))
        if label:
            b.post("/update_weight_version", {"new_version": label})
        fronts.append(t.switch(a, b))
    return fronts


@row
def w6(t):
    """A server that restarts between the look and the end of a push to many."""
    m = t.model()
    for label in (None, "5"):
        a, b = fleet(t, m, label)
        done = t.run("wsync-push", m, "-e", a.url, "-e", b.url, "--weight-version", "5",
                     "--canary", "1", "--canary-check", "curl -s %s/__switch/1" % a.url)
        t.saw("canary, during its check, label %s" % label, done.rc == 0, done, bool(label))
        for how in ("canary", "had them", "min-endpoints"):
            a, b = fleet(t, m, label)
            if how == "had them":
                t.run("wsync-push", m, "-e", a.url, "--weight-version", "5")
            words = {"canary": ("--canary", "1", "--canary-check", "true"),
                     "had them": ("--only-stale",), "min-endpoints": ("--min-endpoints", "1")}[how]
            fired = []

            def rule(names, front, a=a, fired=fired):
                if names["path"].startswith("/update_weights_from") and not fired:
                    fired.append(1)
                    a.now = 1
            b = t.switch(t.endpoint("--model", m, "--lineage", "sglang-2026"), rule=rule)
            done = t.run("wsync-push", m, "-e", a.url, "-e", b.url, "--weight-version", "5", *words)
            if fired:
                t.saw("%s, while the rest is pushed, label %s" % (how, label), done.rc == 0, done,
                      bool(label) or how == "min-endpoints")


@row
def w7(t):
    """wsync-ctl complete at another server than the one that was staged for."""
    small = t.model()
    others = {"another model": t.model(LAYERS=3), "another width": t.model(H=64, I=128),
              "the same model, started again": small, "fewer layers": t.model(LAYERS=1)}
    for what, model in others.items():
        for checks in ((), ("--verify", "none")):
            a = t.endpoint("--model", small, "--lineage", "sglang-2026")
            b = t.endpoint("--model", model, "--lineage", "sglang-2026")
            front = t.switch(a, b)
            staged = t.run("wsync-push", small, "-e", front.url, "--stage", "--backend", "disk",
                           "--disk-dir", t.fresh("ckpt"), "--weight-version", "4", *checks)
            if staged.rc:
                t.saw("stage for " + what, False, staged)
                continue
            front.now = 1
            done = t.run("wsync-ctl", "complete", "-e", front.url)
            ready = t.run("wsync-ctl", "ready", "-e", front.url)
            wrong = done.rc == 0 and "again" not in what
            t.saw("%s %s; ready exits %s" % (what, " ".join(checks), ready.rc), wrong, done,
                  what != "another model" or bool(checks))


@row
def w8(t):
    """A staged checkpoint that somebody else has replaced is not loaded."""
    good, other = t.model(seed=1), t.model(seed=2)

    def again(dir_, server):
        """Another user's pushes to the same server, who knows nothing of what is staged."""
        state = t.fresh("state")
        for version in ("5", "6", "4"):
            t.run("wsync-push", other, "-e", server.url, "--backend", "disk", "--disk-dir", dir_,
                  "--weight-version", version, "--allow-older", env={"XDG_STATE_HOME": state})

    def each(dir_, act):
        path = dir_ + "/wsync-4"
        for name in os.listdir(path):
            act(os.path.join(path, name))

    def overwrite(path, keep_time=False):
        if not path.endswith(".safetensors"):
            return
        s = os.stat(path)
        data = bytearray(open(path, "rb").read())
        data[-1000] ^= 1
        with open(path, "r+b") as f:
            f.write(data)
        if keep_time:
            os.utime(path, ns=(s.st_atime_ns, s.st_mtime_ns))

    def replace(path):
        data = bytearray(open(path, "rb").read())
        if path.endswith(".safetensors"):
            data[-1000] ^= 1
        save(path + ".x", bytes(data))
        os.rename(path + ".x", path)

    def swap(dir_):
        path = "%s/wsync-4" % dir_
        os.rename(path, path + ".old")
        shutil.copytree(other, path)

    def add(dir_):
        shutil.copy(other + "/model.safetensors", "%s/wsync-4/model2.safetensors" % dir_)
    for what, act, more in (
            ("pushes of another user", again, False),
            ("overwritten", lambda d: each(d, overwrite), True),
            ("overwritten, with the old time",
             lambda d: each(d, lambda p: overwrite(p, True)), True),
            ("files replaced", lambda d: each(d, replace), True),
            ("the directory replaced", swap, True),
            ("a file more", add, True)):
        dir_ = t.fresh("ckpt")
        server = t.endpoint("--model", good, "--lineage", "sglang-2026")
        staged = t.run("wsync-push", good, "-e", server.url, "--stage", "--backend", "disk",
                       "--disk-dir", dir_, "--weight-version", "4")
        if staged.rc:
            raise NotRun("no stage: " + staged.words())
        act(dir_, server) if act == again else act(dir_)
        done = t.run("wsync-ctl", "complete", "-e", server.url)
        right = t.run("wsync-verify", "weights", good, "-e", server.url, "--samples", "1000")
        t.saw("%s; the weights are %s" % (what, "right" if right.rc == 0 else "others"),
              done.rc == 0 and right.rc != 0, done, more)
    w8_while(t, good, other)


def w8_while(t, good, other):
    """The same while a server loads."""
    dir_ = t.fresh("ckpt")
    server = t.endpoint("--model", good, "--lineage", "sglang-2026")

    def rule(names, _front):
        if names["path"] == "/update_weights_from_disk":
            for name in os.listdir(dir_):
                shutil.copy(other + "/model.safetensors", os.path.join(dir_, name, os.path.basename(
                    [f for f in os.listdir(os.path.join(dir_, name)) if f.endswith("tensors")][0])))
    front = t.switch(server, rule=rule)
    done = t.run("wsync-push", good, "-e", front.url, "--backend", "disk", "--disk-dir", dir_,
                 "--weight-version", "4")
    right = t.run("wsync-verify", "weights", good, "-e", server.url, "--samples", "1000")
    t.saw("overwritten while it is loaded", done.rc == 0 and right.rc != 0, done)


def quantized(t, config):
    """A directory with a config.json that says this of a quantization."""
    path = t.fresh("q")
    os.makedirs(path)
    made = family().config("qwen3", False)
    save(os.path.join(path, "config.json"), json.dumps(dict(made, quantization_config=config)))
    return path


@row
def w9(t):
    """16-bit weights to a server of a packed format, told by config, by option, or by its name."""
    m = t.model()
    int4 = {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {
        "group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int"}}}}
    configs = {"awq": {"quant_method": "awq", "bits": 4, "group_size": 128},
               "gptq": {"quant_method": "gptq", "bits": 4}, "int4": int4,
               "modelopt": {"quant_method": "modelopt", "quant_algo": "NVFP4"},
               "bitsandbytes": {"quant_method": "bitsandbytes", "load_in_4bit": True},
               "gguf": {"quant_method": "gguf"}, "w8a8_int8": {"quant_method": "w8a8_int8"},
               "torchao": {"quant_method": "torchao", "quant_type": "int4wo"},
               "marlin": {"quant_method": "marlin"}}
    more = {x: {"quant_method": x} for x in (
        "hqq", "aqlm", "quark", "auto-round", "fbgemm_fp8", "eetq", "mxfp4", "moe_wna16", "exl3",
        "AWQ", "petit_nvfp4", "qoq", "w8a8_fp8", "intel/auto-round", "inc")}
    more["no method, quant_algo W4A8"] = {"quant_algo": "W4A8_AWQ"}
    more["empty"] = {"bits": 4, "group_size": 128}
    info = {"tp_size": 1, "dtype": "auto", "version": "0.5.9", "quantization": None}
    for what, config in list(configs.items()) + list(more.items()):
        server = t.canned({"/server_info": dict(info, model_path=quantized(t, config)),
                           "/model_info": {"weight_version": "7"}})
        done = t.run("wsync-push", m, "-e", server.url, "--dry-run", "--verify", "none")
        t.saw("config " + what, done.rc == 0, done, what in more)
    for key, value in (("quantization", "awq_marlin"), ("quantization", "gptq"),
                       ("quantization", "modelopt_fp4"), ("quantization", "w8a8_fp8"),
                       ("torchao_config", "int4wo-128"), ("load_format", "gguf"),
                       ("load_format", "bitsandbytes"), ("model_path", "org/Model-GPTQ-Int4"),
                       ("model_path", "org/Model-NVFP4"), ("model_path", "/m/Model-Q4_K_M.gguf"),
                       ("model_path", "org/Model-bnb-4bit"), ("model_path", "org/Model-w4a16"),
                       ("model_path", "org/Model-INT4"), ("model_path", "org/Model-MXFP4")):
        server = t.canned({"/server_info": dict(dict(info, model_path="org/Model"), **{key: value}),
                           "/model_info": {"weight_version": "7"}})
        done = t.run("wsync-push", m, "-e", server.url, "--dry-run", "--verify", "none")
        t.saw("%s=%s" % (key, value), done.rc == 0, done, key != "quantization")
    done = t.run("wsync-push", m, "-e", t.endpoint("--quantization", "awq").url)
    t.saw("an endpoint that says awq", done.rc == 0, done)


@row
def w10(t):
    """--quantize fp8 leaves no experts in 16 bits that an FP8 server keeps in FP8."""
    conf = {"quant_method": "fp8", "weight_block_size": [16, 16], "activation_scheme": "dynamic"}
    at = "model.layers.0."
    forms = {"fused 3-D": [("mlp.experts.gate_up_proj", [4, 32, 32]),
                           ("mlp.experts.down_proj", [4, 32, 16])],
             "w1/w2/w3": [("block_sparse_moe.experts.0.w%d.weight" % i, [32, 32])
                          for i in (1, 2, 3)]}
    more = {"3-D with .weight": [("mlp.experts.gate_up_proj.weight", [4, 32, 32])],
            "llama4": [("feed_forward.experts.gate_up_proj", [4, 32, 32])],
            "granite": [("block_sparse_moe.input_linear.weight", [4, 32, 32])],
            "step3": [("moe.gate_proj.weight", [4, 32, 32])],
            "dbrx": [("ffn.experts.mlp.w1", [128, 32])],
            "stacked w13": [("mlp.experts.w13_weight", [4, 32, 32])],
            "2-D without .weight": [("mlp.experts.0.gate_proj", [32, 32])],
            "linear_fc1": [("mlp.experts.linear_fc1.weight0", [32, 32])]}
    for what, tensors in list(forms.items()) + list(more.items()):
        dir_, server_dir = t.fresh("w"), quantized(t, conf)
        os.makedirs(dir_)
        write(dir_ + "/model.safetensors", [(at + n, "BF16", s) for n, s in tensors] +
              [(at + "self_attn.o_proj.weight", "BF16", [32, 32])])
        server = t.endpoint("--model-path", server_dir)
        done = t.run("wsync-push", dir_, "-e", server.url, "--quantize", "fp8", "--verify", "none")
        t.saw(what, done.rc == 0 and any(k[1].startswith(at + tensors[0][0]) and not any(
            "scale" in n for _, n in server.sums() if tensors[0][0][:12] in n)
            for k in server.sums()), done, what in more)


@row
def w11(t):
    """modules_to_not_convert is matched as the server's release matches it."""
    m = t.model(H=128)
    base = {"quant_method": "fp8", "weight_block_size": [16, 16], "activation_scheme": "dynamic"}
    at = "model.layers.0."
    # list, server, module, whether its server keeps it in 16 bits
    cases = [(["self_attn"], "sglang", at + "self_attn.o_proj", True, False),
             (["mlp"], "sglang", at + "mlp.down_proj", True, False),
             (["layers.0"], "sglang", at + "mlp.down_proj", True, False),
             (["o_proj"], "vllm", at + "self_attn.o_proj", False, False),
             (["model.layers.0.self_attn"], "sglang", at + "self_attn.o_proj", True, True),
             (["self_attn"], "vllm", at + "self_attn.o_proj", False, True),
             (["mlp"], "vllm", at + "mlp.down_proj", False, True),
             ([at + "self_attn.o_proj"], "vllm", at + "self_attn.o_proj", True, True),
             ([at + "self_attn.o_proj"], "sglang", at + "self_attn.o_proj", True, True)]
    for skips, kind, module, whole, more in cases:
        dir_ = quantized(t, dict(base, modules_to_not_convert=skips))
        if kind == "vllm":
            server = t.endpoint("--lineage", "vllm-0.33", "--model-path", dir_)
        else:
            server = t.endpoint("--model-path", dir_, "--lineage", "sglang-2026")
        done, shown = (t.run("wsync-push", m, "-e", server.url, "--quantize", "fp8",
                             "--block-size", "16x16", "--verify", "none", "--dry-run", *more_)
                       for more_ in ((), ("--json",)))
        is_fp8 = module + ".weight_scale_inv" in done.out + shown.out
        t.saw("%s at %s: %s is sent in %s bits" % (skips, kind, module, 8 if is_fp8 else 16),
              done.rc == 0 and is_fp8 == whole, done, more)


@row
def w12(t):
    """A server of MXFP8 gets nothing from --quantize fp8, and no hint to it."""
    m = t.model()
    base = {"quant_method": "mxfp8", "weight_block_size": [1, 32], "activation_scheme": "dynamic"}
    forms = {"quant_method mxfp8": base,
             "modelopt MXFP8": {"quant_method": "modelopt", "quant_algo": "MXFP8"},
             "compressed-tensors mxfp8": {"quant_method": "compressed-tensors",
                                          "format": "mxfp8-quantized"}}
    for what, config in forms.items():
        for option in ("none", "fp8"):
            server = t.endpoint("--model-path", quantized(t, config))
            done = t.run("wsync-push", m, "-e", server.url, "--quantize", option)
            hints = "--quantize fp8" in done.text and "start the server" not in done.text
            t.saw("%s, --quantize %s%s" % (what, option, " hinted" if hints else ""),
                  done.rc == 0 or hints, done, what != "quant_method mxfp8")
    server = t.endpoint("--quantization", "mxfp8")
    done = t.run("wsync-push", m, "-e", server.url, "--quantize", "fp8")
    t.saw("--quantization mxfp8", done.rc == 0, done, True)


@row
def w13(t):
    """A draft model that keeps its old weights is told."""
    m = t.model()
    for what, fields, more in (
            ("EAGLE", {"speculative_algorithm": "EAGLE"}, False),
            ("NEXTN", {"speculative_algorithm": "NEXTN"}, True),
            ("STANDALONE", {"speculative_algorithm": "STANDALONE",
                            "speculative_draft_model_path": "d"}, True)):
        for lineage in ("sglang-2026", "session", "xorl"):
            a = t.endpoint("--model", m, "--lineage", lineage)

            def after(names, fields=fields):
                if "server_info" in names["path"]:
                    names["reply"].update(fields)
            done = t.run("wsync-push", m, "-e", t.switch(a, after=after).url)
            t.saw("%s at %s" % (what, lineage), done.rc == 0 and "draft" not in done.text, done,
                  more)

    def vllm(names):
        if "server_info" in names["path"]:
            c = names["reply"].setdefault("vllm_config", {})
            if isinstance(c, dict):
                c["speculative_config"] = {"method": "eagle3", "model": "d",
                                           "num_speculative_tokens": 3}
            else:
                names["reply"]["vllm_config"] = c + ", speculative_config=SpeculativeConfig(" \
                    "method='eagle3', model='d', num_spec_tokens=3)"
    a = t.endpoint("--model", m, "--lineage", "vllm-0.33")
    done = t.run("wsync-push", m, "-e", t.switch(a, after=vllm).url)
    t.saw("eagle3 of a vLLM", done.rc == 0 and "draft" not in done.text, done, True)


LORA = os.path.join(TREE, "tests", "data", "lora")
PLAIN = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 4, "lora_alpha": 8, "bias": "none",
         "fan_in_fan_out": False, "init_lora_weights": True, "modules_to_save": None}


def adapter(t, tensors, seed=3, **config):
    """An adapter directory; names without base_model.model."""
    path = t.fresh("a")
    os.makedirs(path)
    save(path + "/adapter_config.json", json.dumps(dict(PLAIN, **config)))
    write(path + "/adapter_model.safetensors",
          [("base_model.model." + n, "BF16", s) for n, s in tensors], seed)
    return path


def pair(module, rows, cols, r=4):
    return [(module + ".lora_A.weight", [r, cols]), (module + ".lora_B.weight", [rows, r])]


def merged(t, base, *options):
    """What a push would send: (the command, name -> tensor)."""
    out = t.fresh("out")
    done = t.run("wsync-push", "--write", out, base, *options)
    return done, read(out + "/model.safetensors") if done.rc == 0 and os.path.exists(
        out + "/model.safetensors") else {}


def edited(t, path, **config):
    """A copy of an adapter of tests/data/lora with other fields."""
    copy = t.fresh("a")
    shutil.copytree(os.path.join(LORA, path), copy)
    with open(copy + "/adapter_config.json") as f:
        now = json.load(f)
    save(copy + "/adapter_config.json", json.dumps(dict(now, **config)))
    return copy


@row
def w14(t):
    """target_parameters of equal shape: which pair is whose no file says."""
    base = LORA + "/bases/stacks"
    done, _ = merged(t, base, "--lora", LORA + "/bad/equal_stacks")
    t.saw("three stacks", done.rc == 0, done)
    for what, names in (("another order", ["up_proj", "down_proj", "gate_proj"]),
                        ("no list", None), ("only two named", ["gate_proj", "up_proj"])):
        a = edited(t, "bad/equal_stacks",
                   target_parameters=names and ["experts." + n for n in names])
        done, _ = merged(t, base, "--lora", a)
        t.saw(what, done.rc == 0, done, True)
    at = "model.layers.0.experts"
    two = [(at + x + ".lora_%s.weight" % ab, [16, 16]) for x in ("", ".base_layer") for ab in "AB"]
    for names in (["gate_proj", "up_proj"], ["up_proj", "down_proj"]):
        a = adapter(t, two, target_modules=[], target_parameters=["experts." + n for n in names])
        done, _ = merged(t, base, "--lora", a)
        t.saw("two stacks, %s" % names, done.rc == 0, done)


@row
def w15(t):
    """fan_in_fan_out in the file is not what PEFT makes of it for Linear layers."""
    for kind, more in (("llama", False), ("qwen3", True)):
        base = t.model(kind, H=128, HEADS=8, HEAD=16)
        for module in ("self_attn.o_proj", "self_attn.q_proj", "mlp.gate_proj"):
            for value in (True, "true", 1):
                rows = 256 if "gate" in module else 128
                at = pair("model.layers.0." + module, rows, 128)
                done, wrong = merged(t, base, "--lora", adapter(t, at, fan_in_fan_out=value))
                _, right = merged(t, base, "--lora", adapter(t, at))
                t.saw("%s %s %r" % (kind, module, value), done.rc == 0 and wrong != right, done,
                      more or value is not True or "o_proj" not in module)


@row
def w16(t):
    """An adapter for a matrix that is the other way round is no adapter of this one."""
    for what in ("across", "embedding_across"):
        done, _ = merged(t, LORA + "/bases/dense", "--lora", LORA + "/bad/" + what)
        t.saw(what, done.rc == 0, done, what != "across")
    base = t.model("llama")
    at = "model.layers.0."
    for what, tensors in (
            ("gate_proj", pair(at + "mlp.gate_proj", 128, 256)),
            ("down_proj", pair(at + "mlp.down_proj", 256, 128)),
            ("the head", pair("lm_head", 128, 200)),
            ("modules_to_save", [("lm_head.modules_to_save.weight", [128, 200])])):
        for fan in (False, True):
            done, _ = merged(t, base, "--lora", adapter(t, tensors, fan_in_fan_out=fan))
            t.saw("%s, fan_in_fan_out %s" % (what, fan), done.rc == 0, done, True)


@row
def w17(t):
    """A start that changed the base, however it is spelled; halves of two adapters."""
    dense = LORA + "/bases/dense"
    for value, more in (("OLoRA", False), ("PiSSA", False), ("PISSA", True),
                        ("pissa_niter_4", True), ("PiSSA_niter_16", True), ("CorDA", True),
                        ("corda", True), ("LoftQ", True),
                        ("olora ", True), ("lora_ga", True), ("something_new", True), (7, True)):
        done, _ = merged(t, dense, "--lora", edited(t, "good/plain", init_lora_weights=value))
        t.saw("init_lora_weights %r" % value, done.rc == 0, done, more)
    done, _ = merged(t, dense, "--lora", LORA + "/bad/two_halves")
    t.saw("halves of two adapters", done.rc == 0, done)
    at = "model.layers.0.self_attn.o_proj."
    for what, names in (
            ("lora_A.a and lora_B.b", ("lora_A.a.weight", "lora_B.b.weight")),
            ("lora_A and lora_B.default", ("lora_A.weight", "lora_B.default.weight")),
            ("one layer each", ("lora_A.a.weight", "lora_B.a.weight", "x"))):
        tensors = [(at + names[0], [4, 16]), (at + names[1], [16, 4])]
        if len(names) > 2:
            tensors += [(n.replace("layers.0", "layers.1").replace(".a.", ".b."), s)
                        for n, s in tensors]
        done, _ = merged(t, dense, "--lora", adapter(t, tensors))
        t.saw(what, done.rc == 0, done, True)
    for key, value in (("use_qalora", True), ("arrow_config", {"top_k": 1}),
                       ("use_bdlora", {"x": 1}),
                       ("a_new_field", 3)):
        done, _ = merged(t, dense, "--lora", edited(t, "good/plain", **{key: value}))
        t.saw("%s %s" % (key, value), done.rc == 0, done, True)


@row
def w18(t):
    """An adapter of head or embedding of a tied model whose file has no head."""
    base = t.model("qwen3")
    body = [("model.embed_tokens.lora_embedding_A", [4, 200]),
            ("model.embed_tokens.lora_embedding_B", [128, 4])]
    forms = {"the embedding": (body, False), "the head": (pair("lm_head", 200, 128), False),
             "the head, saved": ([("lm_head.weight", [200, 128])], True),
             "the embedding, saved": ([("model.embed_tokens.weight", [200, 128])], True),
             "the head, modules_to_save": ([("lm_head.modules_to_save.weight", [200, 128])], True),
             "both, different": (body + pair("lm_head", 200, 128), True)}
    for what, (tensors, more) in forms.items():
        for option in ((), ("--lora-partial",), ("--exclude", "lm_head.weight")):
            if option[:1] == ("--exclude",) and "embedding" in what:
                continue
            server = t.endpoint("--model", base, "--lineage", "sglang-2026", "--checksums")
            done = t.run("wsync-push", base, "--lora", adapter(t, tensors), "-e", server.url,
                         "--verify", "hash", *option)
            t.saw("%s %s" % (what, " ".join(option)), done.rc == 0, done,
                  more or option[:1] == ("--exclude",))
    saved = [("lm_head.weight", [200, 128]), ("model.embed_tokens.weight", [200, 128])]
    a = adapter(t, saved)
    data = read(a + "/adapter_model.safetensors")
    one = data["base_model.model.lm_head.weight"][2]
    write(a + "/adapter_model.safetensors",
          [("base_model.model." + n, "BF16", s) for n, s in saved],
          values={"base_model.model." + n: one for n, _ in saved})
    done = t.run("wsync-push", base, "--lora", a, "-e", t.endpoint("--model", base).url)
    t.saw("both, equal, is refused", done.rc != 0, done)


class Tensor:
    """What wsync_tensors looks at."""
    shape, device = (200, 128), None

    def __init__(self, at):
        self.at = at

    def data_ptr(self):
        return self.at

    def stride(self):
        return 128, 1


@row
def w19(t):
    """wsync.push(dict, config=...): the tied head of a mixture of experts is sent."""
    found = re.search(r"commit ([0-9a-f]+)", t.run("wsync-push", "--version").out)
    name = "cmd/python/wsync_tensors.py"
    text = open(os.path.join(TREE, name)).read()
    if t.bin != NEW_BIN and found:
        done = t.run("git", "-C", TREE, "show", "%s:%s" % (found[1], name))
        if done.rc:
            raise NotRun("the Python module of %s is not at hand" % found[1])
        text = done.out
    spec = importlib.util.spec_from_loader("tensors_of_rows", None)
    module = importlib.util.module_from_spec(spec)
    exec(compile(text, name, "exec"), module.__dict__)
    base = {"tie_word_embeddings": True, "model_type": "qwen3_moe"}
    for what, config, more in (("num_experts", {"num_experts": 8}, False),
                               ("n_routed_experts", {"n_routed_experts": 8}, True),
                               ("num_local_experts", {"num_local_experts": 8}, True),
                               ("text_config", {"text_config": {"num_experts": 8}}, True),
                               ("moe_num_experts", {"moe_num_experts": 8}, True),
                               ("ffn_config.moe_num_experts",
                                {"ffn_config": {"moe_num_experts": 8}}, True)):
        path = save(t.fresh("c"), json.dumps(dict(base, **config)))
        kept = module._without_ties({"model.embed_tokens.weight": Tensor(1),
                                     "lm_head.weight": Tensor(1)}, path)
        t.saw(what, "lm_head.weight" not in kept, "sends %s" % sorted(kept), more)


def half(t, source, *options, address="127.0.0.1", lineage="lenient", listen="127.0.0.1:0"):
    """A server that a push has left with some old and some new weights."""
    server = t.endpoint("--listen", listen, "--lineage", lineage, "--fault",
                        "refuse:update_weights_from_distributed:2")
    done = t.run("wsync-push", source, "-e", "%s:%d" % (address, server.port), "--bucket-size",
                 "100KiB", *options)
    if done.rc == 0:
        raise NotRun("the push did not fail: " + done.words())
    return server


@row
def w20(t):
    """A server that is partial is partial under each of its addresses."""
    m = t.model()
    names = ["127.0.0.1", "localhost", socket.gethostname(), "127.0.0.2", "127.1", "0.0.0.0"]
    for first, second, more in [(names[2], names[0], False), (names[3], names[0], False),
                                (names[0], names[1], True), (names[1], names[2], True),
                                (names[4], names[0], True), (names[0], names[5], True),
                                (names[5], names[3], True)]:
        server = half(t, m, "--weight-version", "7", address=first, listen="0.0.0.0:0")
        at = "%s:%d" % (second, server.port)
        server.post("/continue_generation", {})
        server.post("/update_weight_version", {"new_version": "7"})
        done = t.run("wsync-ctl", "ready", "-e", at)
        t.saw("%s, then ready at %s" % (first, second), done.rc == 0, done, more)
        done = t.run("wsync-push", m, "-e", at, "--weight-version", "7", "--only-stale")
        t.saw("%s, then --only-stale at %s" % (first, second),
              done.rc == 0 and "/update_weights_from_distributed" not in server.touched()[-2:] and
              "up to date" in done.text, done, more)


@row
def w21(t):
    """complete and discard act only at the servers of the registry that is given."""
    m = t.model()
    for how, more in (("--registry", False), ("-e", True), ("--pool", True), ("discard", True)):
        a, b = (t.endpoint("--lineage", "xorl", "--model", m) for _ in range(2))
        state = {"XDG_STATE_HOME": t.fresh("state")}
        staged = t.run("wsync-push", m, "-e", a.url, "-e", b.url, "--stage", env=state)
        if staged.rc:
            raise NotRun("no stage: " + staged.words())
        listed = t.fresh("r")
        t.run("wsync-register", "add", a.url, "--pool", "one", "--registry", listed)
        t.run("wsync-register", "add", b.url, "--pool", "two", "--registry", listed + "2")
        which = {"-e": ("-e", a.url), "--pool": ("--pool", "one", "--registry", listed)}.get(
            how, ("--registry", listed))
        done = t.run("wsync-ctl", "discard" if how == "discard" else "complete", *which, env=state)
        paths = [r["path"] for r in b.journal()["requests"]]
        acted = [p for p in paths if p.startswith(("/complete", "/discard", "/pause"))]
        t.saw("%s: the other got %s" % (how, acted), acted, done, more)


@row
def w22(t):
    """status and ready know what wsync itself has done, and that a server was started again."""
    m = t.model()
    a, b = (t.endpoint("--model", m, "--lineage", "sglang-2026", "--checksums") for _ in range(2))
    b.post("/update_weight_version", {"new_version": "3"})
    front = t.switch(a, b)
    t.run("wsync-push", m, "-e", front.url, "--weight-version", "3", "--verify", "hash")
    front.now = 1
    for command in ("ready", "status"):
        done = t.run("wsync-ctl", command, "-e", front.url)
        wrong = done.rc == 0 and ("100 %" in done.text or command == "ready")
        t.saw("started again, same label: " + command, wrong, done)
    for lineage in ("sglang-2026", "sglang-0.5", "xorl", "slime", "vllm-0.33"):
        server = t.endpoint("--model", m, "--lineage", lineage, "--memory-saver", "drop")
        t.run("wsync-push", m, "-e", server.url)
        t.run("wsync-ctl", "pause", "-e", server.url)
        done = t.run("wsync-ctl", "ready", "-e", server.url)
        t.saw("paused by wsync-ctl, " + lineage, done.rc == 0, done, lineage != "sglang-2026")
        t.run("wsync-ctl", "resume", "-e", server.url)
        if t.run("wsync-ctl", "sleep", "-e", server.url).rc:
            continue
        done = t.run("wsync-ctl", "ready", "-e", server.url)
        t.saw("asleep, " + lineage, done.rc == 0, done, lineage != "sglang-2026")
        done = t.run("wsync-push", m, "-e", server.url)
        t.saw("a push without --asleep, " + lineage, done.rc == 0, done, lineage != "sglang-2026")
    for lineage in ("sglang-2026", "xorl", "lenient"):
        server = t.endpoint("--model", m, "--lineage", lineage, "--memory-saver", "drop")
        t.run("wsync-push", m, "-e", server.url, "--weight-version", "3")
        t.run("wsync-ctl", "sleep", "-e", server.url)
        t.run("wsync-ctl", "wake", "-e", server.url)
        done = t.run("wsync-ctl", "ready", "-e", server.url, "--weight-version", "3")
        t.saw("slept and woke, ready, " + lineage, done.rc == 0, done, lineage != "sglang-2026")
        done = t.run("wsync-push", m, "-e", server.url, "--weight-version", "3", "--only-stale")
        t.saw("slept and woke, --only-stale, " + lineage, "up to date" in done.text or
              "had them" in done.text, done, lineage != "sglang-2026")


@row
def w23(t):
    """A version that is an integer in any spelling does not go back."""
    m = t.model()
    server = t.endpoint()
    for now, later, more in (("5", "-1", False), ("10", "+9", False), ("10", " 9", False),
                             ("10", "9 ", True), ("10", "09", True), ("10", "+ 9", True),
                             ("+10", "9", True), ("-1", "-2", True), ("10", "\t9", True),
                             ("10", "--9", True), ("99999999999999999999", "5", True),
                             ("10", "9\n", True), ("0x10", "9", True)):
        t.run("wsync-push", m, "-e", server.url, "--weight-version=" + now, "--allow-older")
        if server.version() != now:
            t.saw("%r is refused at first" % now, False, "exit 2", True)
            server.post("/update_weight_version", {"new_version": now})
        done = t.run("wsync-push", m, "-e", server.url, "--weight-version=" + later)
        integer = not ("--" in later or "x" in now or "+ " in later)
        t.saw("%r after %r" % (later, now), done.rc == 0 and integer, done, more)


@row
def w24(t):
    """vLLM: a pause that does not clear the cache, and caches that nobody cleared."""
    m = t.model()
    prompt = {"model": m, "prompt": list(range(64)), "max_tokens": 1}
    for lineage in ("vllm-0.33", "vllm-0.24"):
        for what, options, fault, more in (
                ("a pause that does not clear", (), "stale:pause:1", False),
                ("--pause none", ("--pause", "none"), "stale:pause:1", True),
                ("a reset that does not clear", ("--pause", "wait"), "stale:reset_prefix_cache:1",
                 True)):
            server = t.endpoint("--model", m, "--lineage", lineage, "--fault", fault, new=True)
            t.run("wsync-push", m, "-e", server.url, new=True)
            server.post("/v1/completions", prompt)
            before = len(server.journal()["requests"])
            done = t.run("wsync-push", m, "-e", server.url, *options)
            asked = [r["path"] for r in server.journal()["requests"][before:]]
            cleared = [p for p in asked if p.startswith("/reset_")]
            t.saw("%s, %s: asked %s" % (what, lineage, cleared or "no reset"),
                  done.rc == 0 and not cleared, done, more)

    def storage(names):
        if "server_info" in names["path"]:
            names["reply"].update(enable_hierarchical_cache=True, hicache_storage_backend="file")
    server = t.endpoint("--model", m, "--lineage", "sglang-2026", new=True)
    front = t.switch(server, after=storage)
    done = t.run("wsync-push", m, "-e", front.url)
    t.saw("SGLang with HiCache storage", done.rc == 0 and "cache" not in done.text, done)

    def lmcache(names):
        if "server_info" in names["path"]:
            names["reply"].update(enable_lmcache=True)
    done = t.run("wsync-push", m, "-e", t.switch(server, after=lmcache).url)
    t.saw("SGLang with LMCache", done.rc == 0 and "cache" not in done.text, done)


@row
def w25(t):
    """A plain push of a NaN says at least that values were not read."""
    nan = {"model.norm.weight": b"\xc0\x7f" * 128}
    inf = {"model.norm.weight": b"\x80\x7f" * 128}
    zero = {"model.embed_tokens.weight": bytes(200 * 128 * 2)}
    for what, values, options, more in (
            ("NaN", nan, (), False), ("NaN, hash", nan, ("--verify", "hash"), False),
            ("infinity", inf, (), True), ("NaN by tensor", nan, ("--backend", "tensor"), True),
            ("NaN by disk", nan, ("--backend", "disk"), True), ("all zeros", zero, (), True)):
        m = t.model("llama", values=values)
        server = t.endpoint("--model", m, "--lineage", "sglang-2026", "--checksums")
        done = t.run("wsync-push", m, "-e", server.url, "--json", *options)
        told = re.search(r'"values_read": ?([a-z]+)', done.out)
        t.saw("%s: values_read %s" % (what, told and told[1]), done.rc == 0 and (
            not told or told[1] == "true" or "hash" in options), done, more)
    done = t.run("wsync-push", t.model("llama", values=nan), "-e", server.url, "--require",
                 "values")
    t.saw("--require values", done.rc in (0, 2), done)


@row
def w26(t):
    """vLLM 0.32 on a CPU packs unquantized experts at the first load only."""
    raise NotRun("needs a real vLLM 0.32")


@row
def w27(t):
    """vLLM 0.32 on a CPU: a tied head, and gpt-oss, stay old."""
    raise NotRun("needs a real vLLM 0.32")


# ---- N: a no that is wrong ----

@row
def n1(t):
    """A server that was started again owes nothing of the push that failed before."""
    m = t.model()
    for lineage, fault, more in (("lenient", "update_weights_from_distributed", False),
                                 ("vllm-0.33", "update_weights", False),
                                 ("sglang-2026", "update_weights_from_distributed", True),
                                 ("xorl", "complete_weights_update", True)):
        a = t.endpoint("--lineage", lineage, "--model", m, "--fault", "refuse:%s:1" % fault)
        b = t.endpoint("--lineage", lineage, "--model", m)
        t.run("wsync-push", m, "-e", b.url, env={"XDG_STATE_HOME": t.fresh("other")})
        front = t.switch(a, b)
        failed = t.run("wsync-push", m, "-e", front.url)
        front.now = 1
        for command in ("ready", "status", "repair"):
            done = t.run("wsync-ctl", command, "-e", front.url)
            t.saw("%s, %s (the push: exit %s)" % (command, lineage, failed.rc),
                  done.rc != 0 or "old and" in done.text, done, more)
        less = t.model(keep=has("model.norm"))
        done = t.run("wsync-push", less, "--verify", "none", "-e", front.url)
        t.saw("a smaller push, " + lineage, done.rc == 9, done, more)


@row
def n2(t):
    """repair --again repeats the last wish, and never one that the server has refused."""
    m = t.model()
    for what, wrong, options, more in (
            ("another model", t.model(H=64, I=128), ("--verify", "none"), False),
            ("another model, the same version", t.model(I=384), ("--verify", "none"), True),
            ("a part", m, ("--include", "*norm*"), True)):
        server = t.endpoint("--model", m, "--fault", "hang:update_weights_from_distributed:2")
        state = {"XDG_STATE_HOME": t.fresh("state")}
        push = t.start("wsync-push", m, "-e", server.url, "--bucket-size", "100KiB",
                       "--weight-version", "7", env=state, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL)
        until = time.monotonic() + SECONDS
        while server.touched().count("/update_weights_from_distributed") < 2:
            if time.monotonic() > until:
                raise NotRun("the push does not reach its second bucket")
            time.sleep(0.05)
        push.kill()
        push.wait(SECONDS)
        version = "7" if "same" in what else "8"
        t.run("wsync-push", wrong, "-e", server.url, "--bucket-size", "1MiB", "--weight-version",
              version, *options, env=state)
        done = t.run("wsync-ctl", "repair", "--again", env=state)
        ready = t.run("wsync-ctl", "ready", "-e", server.url, env=state)
        t.saw("killed, then %s; ready exits %s" % (what, ready.rc),
              ready.rc != 0 and what != "a part", done, more)


@row
def n3(t):
    """Packed weights to a server of that format: loaded, or refused with the true reason."""
    at = "model.layers.0.self_attn.o_proj."
    forms = {
        "NVFP4": ({"quant_method": "modelopt", "quant_algo": "NVFP4"},
                  [(at + "weight", "U8", [128, 64]), (at + "weight_scale", "F8_E4M3", [128, 8]),
                   (at + "weight_scale_2", "F32", []), (at + "input_scale", "F32", [])]),
        "ModelOpt FP8": ({"quant_method": "modelopt", "quant_algo": "FP8"},
                         [(at + "weight", "F8_E4M3", [128, 128]), (at + "weight_scale", "F32", []),
                          (at + "input_scale", "F32", [])]),
        "AWQ": ({"quant_method": "awq", "bits": 4, "group_size": 128},
                [(at + "qweight", "I32", [128, 16]), (at + "qzeros", "I32", [1, 16]),
                 (at + "scales", "F16", [1, 128])])}
    for what, (config, tensors) in forms.items():
        dir_ = quantized(t, config)
        write(dir_ + "/model.safetensors", tensors)
        server = t.endpoint("--model-path", dir_)
        done = t.run("wsync-push", dir_, "-e", server.url, "--verify", "none")
        false = re.search("does not keep its weights|another quantization|would take the codes|is "
                          "another by its", done.text)
        t.saw("%s: %s" % (what, done.err.split("hint:")[0][-160:].strip()), done.rc and false, done,
              what == "AWQ")


@row
def n4(t):
    """float32 to a server in bfloat16: the cast is predicted, or at least told."""
    source, m = t.model("llama", dtype="F32"), t.model("llama")
    half_ = t.model("llama", dtype="F16")
    for what, options, more in (("sglang-2026", ("--device", "cpu"), False),
                                ("sglang-2026", ("--checksums",), False),
                                ("vllm-0.33", (), True), ("xorl", ("--checksums",), True)):
        for name, path in (("float32", source), ("float16", half_)):
            server = t.endpoint("--model", m, "--lineage", what, *options)
            done = t.run("wsync-push", path, "-e", server.url, "--verify", "hash")
            t.saw("%s to %s %s by hash" % (name, what, " ".join(options)),
                  done.rc != 0 and server.touched() and name not in done.text, done,
                  more or name != "float32")
    server = t.endpoint("--model", m, "--lineage", "sglang-2026")
    done = t.run("wsync-push", source, "-e", server.url)
    t.saw("float32, no hash, no note", done.rc == 0 and "float32" not in done.text, done)


@row
def n5(t):
    """NCCL_CUMEM_ENABLE and NCCL_NVLS_ENABLE as each server has them."""
    raise NotRun("needs NCCL on a GPU; tests/cli/push-nccl.bats tries it on a double")


@row
def n6(t):
    """SGLang with --api-key and --admin-api-key."""
    m = t.model()
    for name in ("user", "admin"):
        os.chmod(save(t.path(name), "the-%s-key\n" % name), 0o600)
    server = t.endpoint("--model", m, "--lineage", "sglang-2026", "--api-key-file", t.path("user"),
                        "--admin-api-key-file", t.path("admin"), new=True)
    ways = [("--api-key-file", t.path("user"), "--admin-api-key-file", t.path("admin")),
            ("--api-key-file", t.path("user")), ("--api-key-file", t.path("admin"))]
    for what, words, more in (
            ("push", ("wsync-push", m), False), ("pause", ("wsync-ctl", "pause"), True),
            ("resume", ("wsync-ctl", "resume"), True), ("ready", ("wsync-ctl", "ready"), True),
            ("flush", ("wsync-ctl", "flush"), True), ("names", ("wsync-verify", "names", m), True),
            ("logprobs", ("wsync-verify", "logprobs", "--max-new-tokens", "1", "--save",
                                            t.path("answers")), True),
            ("register", ("wsync-register", "add", server.url), True)):
        where = () if what == "register" else ("-e", server.url)
        done = min((t.run(*words, *where, *way) for way in ways), key=lambda d: d.rc != 0)
        t.saw(what, done.rc not in (0, 1), done, more)


@row
def n7(t):
    """wsync-bench transport on a loaded machine."""
    busy = [t.start(sys.executable, "-c", "while True: pass") for _ in range(4)]
    for i in range(6):
        done = t.run("wsync-bench", "transport", "--samples", "2", "--max-size", "4MiB",
                     "--receivers", str(1 + i % 3), "--progress", "none")
        t.saw("run %d" % (i + 1), done.rc != 0, done, i > 3)
    for child in busy:
        child.kill()


@row
def n8(t):
    """One port of this machine is registered once, whatever its name."""
    m = t.model()
    server = t.endpoint("--listen", "0.0.0.0:0")
    for i, (first, second, more) in enumerate((
            ("localhost", "127.0.0.1", False), ("127.0.0.1", "localhost.", True),
            ("127.0.0.1", "LOCALHOST", True), ("127.0.0.1", "127.1", True),
            ("127.0.0.1", "0.0.0.0", True), ("localhost", "127.0.0.2", True),
            ("127.0.0.1", socket.gethostname(), True), ("0x7f000001", "127.0.0.1", True),
            ("127.0.0.1", "2130706433", True))):
        for how in ((), ("--no-check",)):
            listed = t.path("r%d%s" % (i, "".join(how)))
            rcs = [t.run("wsync-register", "add", "%s:%d" % (name, server.port), "--registry",
                         listed, *how).rc for name in (first, second)]
            done = t.run("wsync-push", m, "--registry", listed)
            t.saw("%s and %s %s: register exits %s" % (first, second, " ".join(how), rcs),
                  rcs[1] == 0 and done.rc == 2, done, more or bool(how))


def beside(t, port, command):
    """A push during which that command runs at the store's port, before the route's first request
    is passed on."""
    m = t.model()

    def at(route):
        def rule(names, _front):
            if names["path"] == route and names["nth"] == 1:
                child = t.start(sys.executable, os.path.join(TREE, "tests/cli/strangers.py"),
                                str(port), *command, stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
                if command:
                    child.stdout.readline()
                else:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        child.wait(5)
        front = t.switch(t.endpoint("--tp", "2"), rule=rule)
        return t.run("wsync-push", m, "-e", front.url, "--bucket-size", "100KiB", "--master-port",
                     str(port), "--init-timeout", "10s", "--bucket-timeout", "10s", seconds=60)
    return at


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@row
def n9(t):
    """Strangers at the store's port do nothing to a push."""
    for route, more in (("/update_weights_from_distributed", False),
                        ("/init_weights_update_group", True)):
        done = beside(t, free_port(), ())(route)
        t.saw("at " + route, done.rc != 0, done, more)
    one = struct.pack("<q", 1)
    for what, data in (("ADD init/ 1", b"\4" + struct.pack("<Q", 5) + b"init/" + one),
                       ("SET /exception_dump", b"\1" + struct.pack("<Q", 15) + b"/exception_dump" +
                        struct.pack("<Q", 1) + b"x")):
        port, m = free_port(), t.model()

        def rule(names, _front, port=port, data=data):
            if names["path"] == "/update_weights_from_distributed" and names["nth"] == 2:
                with socket.create_connection(("127.0.0.1", port), 5) as s:
                    s.settimeout(2)
                    s.sendall(b"\0" + struct.pack("<I", 0x3C85F7CE) + data)
                    with contextlib.suppress(OSError):
                        s.recv(8)
        front = t.switch(t.endpoint(), rule=rule)
        done = t.run("wsync-push", m, "-e", front.url, "--bucket-size", "100KiB", "--master-port",
                     str(port), "--bucket-timeout", "10s")
        t.saw(what, done.rc != 0, done)


@row
def n10(t):
    """A gateway whose endpoint is frozen, and clients that have left."""
    m = t.model()
    server = t.endpoint("--fault", "hang:pause_generation:1")
    gateway = t.gateway("--source", m, "--bucket-timeout", "60s")
    gateway.post("/add_inference_endpoint", {"host": "127.0.0.1", "port": server.port})
    body = b'{}'
    request = (b"POST /sync_inference_weights HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: "
               b"application/json\r\nContent-Length: 2\r\n\r\n" + body)
    for _ in range(300):
        with contextlib.suppress(OSError):
            s = socket.create_connection(("127.0.0.1", gateway.port), 5)
            s.sendall(request)
            s.close()
    time.sleep(0.5)
    for path in ("/health", "/list_inference_endpoints"):
        done = t.run("curl", "-sS", "-m", "5", gateway.url + path)
        t.saw("%s after 300 clients that left" % path, done.rc != 0, done, path != "/health")
    done = t.run("curl", "-sS", "-m", "2", "-w", " %{http_code}", "-H", JSON, "-d", "{}",
                 gateway.url + "/sync_inference_weights")
    t.saw("a new sync waits or is told 503", done.rc not in (0, 28), done, True)


@row
def n11(t):
    """What cannot travel in a request is a usage error before the first request."""
    m = t.model()
    bad, long = b"v\xff", "9" + "x" * 5000
    cases = [("version not UTF-8", ("--weight-version", bad), False),
             ("group name not UTF-8", ("--group-name", bad), False),
             ("disk path not UTF-8",
              ("--backend", "disk", "--disk-dir", os.fsencode(t.path("w")) + bad), False),
             ("version of 5000 characters", ("--weight-version", long), False),
             ("group name of 5000 characters", ("--group-name", long), True),
             ("version with an escape", ("--weight-version", "a\x1b[2J"), True),
             ("version half of a character", ("--weight-version", b"\xc3"), True),
             ("a surrogate", ("--weight-version", b"\xed\xa0\x80"), True),
             ("--disk-path not UTF-8", ("--backend", "disk", "--disk-dir", t.path("w"),
                                        "--disk-path", b"/x\xff"), True)]
    for what, options, more in cases:
        for lineage in ("sglang-2026", "vllm-0.33"):
            if lineage == "vllm-0.33" and "version" in what:
                continue
            server = t.endpoint("--model", m, "--lineage", lineage)
            done = t.run("wsync-push", m, "-e", server.url, "--init-timeout", "5s", *options,
                         seconds=20)
            t.saw("%s, %s" % (what, lineage), done.rc != 0 and server.touched() or
                  done.rc == 0 and "escape" not in what and "5000" not in what, done, more)
    server = t.endpoint()
    for what, words in (("wsync-ctl version", ("version", bad)),
                        ("init-group", ("init-group", bad)),
                        ("destroy-group", ("destroy-group", bad))):
        before = len(server.journal()["requests"])
        done = t.run("wsync-ctl", *words, "-e", server.url, "--timeout", "5s", seconds=20)
        asked = [r["path"] for r in server.journal()["requests"][before:] if r["method"] == "POST"]
        t.saw(what, asked, done, True)
    source = os.fsencode(t.path("m")) + b"\xff"
    shutil.copytree(os.fsencode(m), source)
    server = t.endpoint("--model", m, "--lineage", "sglang-2026")
    done = t.run("wsync-push", source, "-e", server.url, "--backend", "disk")
    t.saw("a source directory not UTF-8, by disk", done.rc != 0 and server.touched(), done, True)


@row
def n12(t):
    """A silent name server keeps nobody longer than the options allow."""
    library = os.path.join(os.path.dirname(NEW_BIN), "tests", "tools", "lose_names.so")
    if not os.path.exists(library):
        raise NotRun("tests/tools/lose_names.so is not built")
    m, env = t.model(), {"LD_PRELOAD": library}
    server = t.endpoint()
    for what, words, more in (
            ("--master-address", ("wsync-push", m, "-e", server.url, "--master-address",
                                  "silent.test", "--init-timeout", "1s"), False),
            ("bench --listen", ("wsync-bench", "transport", "--remote", "1", "--listen",
                                "silent.test:7000", "--timeout", "1s"), False),
            ("-e", ("wsync-ctl", "health", "-e", "silent.test:7", "--connect-timeout", "1s"), True),
            ("bench --join", ("wsync-bench", "transport", "--join", "silent.test:7", "--timeout",
                              "1s"), True),
            ("endpoint --listen", ("wsync-endpoint", "--listen", "silent.test:0"), True),
            ("gateway --listen", ("wsync-gateway", "--listen", "silent.test:0"), True)):
        if "endpoint --" not in what and "gateway" not in what:
            done = t.run(*words, env=env, seconds=15)
            t.saw("%s: %.1f s" % (what, done.seconds), done.seconds > 5, done, more)
        child = t.start(*words, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        time.sleep(0.4)
        child.send_signal(signal.SIGTERM)
        done = t.wait(child, 15)
        if done.rc == -signal.SIGTERM:
            done.rc = "143"
        t.saw("%s, a signal: %.1f s" % (what, done.seconds), done.seconds > 3, done, more)


@row
def n13(t):
    """A crowd at the store while a group forms."""
    for n, more in ((80, False), (300, True)):
        done = beside(t, free_port(), (str(n),))("/init_weights_update_group")
        t.saw("%d connections" % n, done.rc != 0, done, more)


@row
def n14(t):
    """A push by disk warns of another model name only where there will be one."""
    m = t.model()
    for lineage in ("vllm-0.33", "vllm-0.24", "vllm-0.27", "vllm-0.20"):
        server = t.endpoint("--model", m, "--lineage", lineage, "--served-model-name", "name")
        done = t.run("wsync-push", m, "-e", server.url, "--backend", "disk", "--disk-dir",
                     t.fresh("w"))
        t.saw(lineage, "as the path" in done.text, done,
              lineage != "vllm-0.33")


@row
def n15(t):
    """vLLM's names of experts, and names that servers compute, are right."""
    m = t.model("qwen3_moe")
    plain = t.run("wsync-list-weights", "--runtime", m, "--format", "tsv")
    if plain.rc:
        raise NotRun("no list of parameters: " + plain.words())
    for what, edit, more in (
            ("routed_experts.*", lambda s: s.replace("experts.w", "experts.routed_experts.w"),
             False),
            ("the list as it is", lambda s: s, True),
            ("gemma_weight beside a norm", lambda s: s + re.sub(
                "model.norm.weight", "model.norm.gemma_weight",
                [x for x in s.splitlines() if "model.norm.weight" in x][0]) + "\n", False),
            ("moe_statics", lambda s: s + re.sub(
                "mlp.gate.weight", "mlp.moe_statics.e_score_correction_bias",
                [x for x in s.splitlines() if "mlp.gate.weight" in x][0]) + "\n", True)):
        listed = save(t.fresh("list"), edit(plain.out))
        done = t.run("wsync-verify", "names", m, "--list", listed)
        t.saw(what, done.rc == 1 and "moe_statics" not in what, done, more)


@row
def n16(t):
    """GLM-4.5's router is predicted in the type that servers keep."""
    at = "model.layers.1.mlp."
    shared = [("%sshared_experts.%s_proj.weight" % (at, x), "BF16", shape) for x, shape in (
        ("gate", [32, 128]), ("up", [32, 128]), ("down", [128, 32]))]
    glm = {"architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "n_routed_experts": 8,
           "n_shared_experts": 1, "first_k_dense_replace": 1, "use_qk_norm": True, "n_group": 1,
           "topk_group": 1, "norm_topk_prob": True, "attention_bias": False}
    gate = at + "gate.weight"
    bias = [(at + "gate.e_score_correction_bias", "F32", [8])]
    numbers_ = numbers("BF16", 8 * 128, "a router")
    wide = b"".join(b"\0\0" + numbers_[i:i + 2] for i in range(0, len(numbers_), 2))
    sums = {}
    for dtype, config, values in (("BF16", "bfloat16", numbers_), ("F32", "float32", wide)):
        m = t.model("qwen3_moe", dtype=dtype, values={gate: values}, more=[
            (n, dtype, s) for n, _, s in shared] + bias, config=dict(glm, torch_dtype=config))
        for kind in ("sglang-cpu", "sglang-cuda"):
            done = t.run("wsync-list-weights", "--runtime", m, "--checksum", kind, "--json")
            found = [x for x in done.lines() if x.get("name") == gate]
            sums[config, kind] = found[0]["checksum"] if found else None
    for kind in ("sglang-cpu", "sglang-cuda"):
        one, other = sums["bfloat16", kind], sums["float32", kind]
        t.saw("%s: predicted %s, in float32 %s" % (kind, one, other), one != other or not one,
              "the two are " + ("equal" if one == other else "different"), kind != "sglang-cpu")


# ---- S: holes ----

def register_at(gateway, server, host="127.0.0.1"):
    try:
        return gateway.post("/add_inference_endpoint", {"host": host, "port": server.port}).decode()
    except urllib.error.HTTPError as e:
        return e.read().decode()


def seen_keys(server):
    return [r for r in server.requests if any("the-secret" in v for v in r[2].values())]


@row
def s1(t):
    """A gateway gives the endpoints' key to no host that a client names."""
    key = save(t.path("key"), "the-secret\n")
    os.chmod(key, 0o600)
    for what, options, env, more in (
            ("--api-key-file", ("--api-key-file", key), {}, False),
            ("by environment", (), {"WSYNC_API_KEY_FILE": key}, True),
            ("--admin-api-key-file", ("--admin-api-key-file", key), {}, True),
            ("admin, by environment", (), {"WSYNC_ADMIN_API_KEY_FILE": key}, True),
            ("--allow-host of another", ("--api-key-file", key, "--allow-host", "gpu7"), {}, True),
            ("--allow-host *.1", ("--api-key-file", key, "--allow-host", "10.*"), {}, True)):
        thief = t.canned({})
        thief.port = thief.server_address[1]
        child = t.start("wsync-gateway", "--listen", "127.0.0.1:0", "--json", *options, env=env,
                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        try:
            gateway = t.ready(child)
        except NotRun:
            t.saw(what, False, "refused to start", more)
            continue
        said = register_at(gateway, thief)
        t.saw(what, seen_keys(thief), "the key is %s; %s" % ("sent" if seen_keys(thief) else "kept",
                                                            said[:120]), more)


@row
def s2(t):
    """A web page can neither register nor sync."""
    server = t.endpoint()
    gateway = t.gateway()
    body = json.dumps({"host": "127.0.0.1", "port": server.port})
    for what, header, more in (
            ("text/plain", "Content-Type: text/plain", False),
            ("Origin", "Origin: http://evil.example", False),
            ("Host", "Host: evil.example", False),
            ("a form", "Content-Type: application/x-www-form-urlencoded", True),
            ("multipart", "Content-Type: multipart/form-data; boundary=x", True),
            ("no type", "Content-Type:", True),
            ("Origin null", "Origin: null", True),
            ("json in a parameter", "Content-Type: text/plain;application/json", True),
            ("another port's Origin", "Origin: http://127.0.0.1:1", True),
            ("Host localhost.evil", "Host: localhost.evil.example", True),
            ("two Origins", "Origin: http://127.0.0.1:%d, http://evil" % gateway.port, True)):
        kind = () if header.startswith("Content-Type") else ("-H", JSON)
        done = t.run("curl", "-sS", "-m", "10", "-w", " %{http_code}", *kind, "-H", header, "-d",
                     body, gateway.url + "/add_inference_endpoint")
        t.saw(what, done.out.endswith("200"), done, more)
        done = t.run("curl", "-sS", "-m", "10", "-w", " %{http_code}", "-H", header,
                     gateway.url + "/list_inference_endpoints")
        if not header.startswith("Content-Type"):
            t.saw(what + ", GET", done.out.endswith("200"), done, True)
    for listen in ("0.0.0.0:0", "[::]:0", socket.gethostname() + ":0", "127.0.0.2:0"):
        child = t.start("wsync-gateway", "--listen", listen, "--json", stdout=subprocess.PIPE,
                        stderr=subprocess.DEVNULL)
        try:
            t.ready(child)
            t.saw("listens at %s without a key" % listen, listen[0] in "0[", "it starts",
                  listen != "0.0.0.0:0")
        except NotRun:
            t.saw("listens at %s without a key" % listen, False, "refused to start",
                  listen != "0.0.0.0:0")


def peak_of(pid):
    with open("/proc/%d/status" % pid) as f:
        return int(re.search(r"VmHWM:\s+(\d+)", f.read())[1]) << 10


def shapes(size):
    return {"[0,0,...]": b"[" + b"0," * (size // 2) + b"0]",
            "[[],...]": b"[" + b"[]," * (size // 3) + b"0]",
            "objects": b'{"a":0' + b',"a":0' * (size // 6) + b"}",
            "other keys": b'{"a":0,' + b",".join(b'"%x":0' % i for i in range(size // 10)) + b"}",
            "texts": b"[" + b'"",' * (size // 3) + b"0]",
            "deep": b"[" * (size // 2) + b"]" * (size // 2),
            "one key of many": b'{"source":"x","endpoints":[' + b"0," * (size // 2) + b"0]}"}


@row
def s3(t):
    """JSON of many values costs no multiple of its size."""
    size = 16 << 20
    for what, data in shapes(size).items():
        gateway = t.gateway()
        before = peak_of(gateway.child.pid)
        path = save(t.path("body"), data)
        done = t.run("curl", "-sS", "-m", "20", "-o", "/dev/null", "-w", "%{http_code}", "-H",
                     JSON, "--data-binary", "@" + path,
                     gateway.url + "/sync_inference_weights")
        dead = gateway.child.poll() is not None
        ratio = 0 if dead else (peak_of(gateway.child.pid) - before) / size
        t.saw("gateway, %s: %.1f times its size, HTTP %s%s" % (what, ratio, done.out, dead and
              " and it died" or ""), ratio > 16 or dead, done, what != "[0,0,...]")
        gateway.child.kill()
    for what, data in shapes(size).items():
        for command in (("wsync-ctl", "info"), ("wsync-push", t.path(), "--verify", "none")):
            if command[0] == "wsync-push" and what != "[0,0,...]":
                continue
            server = t.canned({"/server_info": (200, data), "/get_server_info": (200, data),
                               "/openapi.json": (200, data), "/model_info": (200, data)})
            child = t.start(*command, "-e", server.url, stdout=subprocess.DEVNULL,
                            stderr=subprocess.DEVNULL)
            peak, until = 0, time.monotonic() + 20
            while child.poll() is None and time.monotonic() < until:
                with contextlib.suppress(OSError, TypeError):
                    peak = max(peak, peak_of(child.pid))
                time.sleep(0.01)
            child.kill()
            child.wait(SECONDS)
            t.saw("%s, an answer %s: %.1f times its size" % (command[0], what, peak / size),
                  peak / size > 12 or child.returncode < 0, "exit %s" % child.returncode,
                  what != "[0,0,...]")


@row
def s4(t):
    """Lock files and records: no links are followed, no foreign file is cut."""
    m = t.model()
    server = t.endpoint()

    def act(what, prepare, more, commands=(("wsync-push", m),)):
        state = t.fresh("state")
        env = {"XDG_STATE_HOME": state}
        t.run("wsync-push", m, "-e", server.url, env=env)
        locks = state + "/wsync/locks"
        lock = os.path.join(locks, os.listdir(locks)[0])
        victim = save(t.fresh("victim"), "12345 kept\nand more\n")
        prepare(lock, victim)
        for words in commands:
            done = t.run(*words, "-e", server.url, env=env)
            now = open(victim).read() if os.path.exists(victim) else "gone"
            followed = now != "12345 kept\nand more\n"
            t.saw(what, followed or what.endswith("refused") and done.rc == 0, done, more)

    def link(lock, victim):
        os.unlink(lock)
        os.symlink(victim, lock)

    def hard(lock, victim):
        os.unlink(lock)
        os.link(victim, lock)

    def foreign(lock, victim):
        os.unlink(lock)
        os.rename(victim, lock)
        os.link(lock, victim)

    def history(lock, victim):
        path = os.path.join(os.path.dirname(os.path.dirname(lock)), "history.lock")
        os.unlink(path)
        os.symlink(victim, path)

    def record(lock, victim):
        path = os.path.join(os.path.dirname(os.path.dirname(lock)), "history.jsonl")
        os.unlink(path)
        os.symlink(victim, path)

    def moved(lock, victim):
        at = os.path.dirname(lock)
        os.rename(at, at + ".x")
        os.symlink(at + ".x", at)
    act("a link in place of a lock", link, False)
    act("a foreign file", foreign, False)
    act("a hard link", hard, True)
    act("locks/ of mode 0777 is refused", lambda lock, _: os.chmod(os.path.dirname(lock), 0o777),
        False)
    act("locks/ of another owner is refused", lambda lock, _: os.chown(os.path.dirname(lock), 65534,
                                                                      65534), False)
    act("locks/ is a link, refused", moved, True)
    act("a link in place of history.lock", history, True)
    act("a link in place of history.jsonl", record, True)
    act("the state directory of mode 0777 is refused", lambda lock, _: os.chmod(os.path.dirname(
        os.path.dirname(lock)), 0o777), True)


@row
def s5(t):
    """No password of an address in a message."""
    m, secret = t.model(), "PaSsWoRd"
    urls = [("http://user:%s@127.0.0.1:1", False), ("https://user:%s@127.0.0.1:1", True),
            ("user:%s@127.0.0.1:1", True), ("http://user:%s@127.0.0.1:1/path?x=1", True),
            ("http://us%%40er:a%%40%s@127.0.0.1:1", True), ("http://%s@127.0.0.1:1", True),
            ("http://user:%s@", True), ("http://user:%s@[::1", True), ("ftp://user:%s@h", True),
            ("http://user:a@%s@127.0.0.1:1", True), ("//user:%s@127.0.0.1:1", True)]
    for url, more in urls:
        for words in (("wsync-push", m, "-e"), ("wsync-ctl", "health", "-e"),
                      ("wsync-register", "add"), ("wsync-register", "remove"),
                      ("wsync-list-weights", "-e"), ("wsync-verify", "names", m, "-e")):
            if words[0] != "wsync-push" and url != urls[0][0]:
                continue
            done = t.run(*words, url % secret)
            t.saw("%s %s" % (words[0], url), secret in done.text, done,
                  more or words[0] != "wsync-push")
    env = {"http_proxy": "http://user:%s@127.0.0.1:1" % secret}
    done = t.run("wsync-ctl", "health", "-e", "http://10.255.255.1:7", env=env)
    t.saw("http_proxy", secret in done.text, done, True)
    for words in (("wsync-register", "list"), ("wsync-push", m), ("wsync-ctl", "health")):
        listed = save(t.fresh("r"), json.dumps(
            {"version": 1, "endpoints": [{"url": "http://user:%s@127.0.0.1:1" % secret}]}))
        done = t.run(*words, "--registry", listed)
        t.saw("registry, " + words[0], secret in done.text, done, True)
    done = t.run("wsync-push", "http://user:%s@hub/model" % secret, "-n")
    t.saw("as a source", secret in done.text, done, True)
    done = t.run("wsync-push", m, "-e", t.endpoint().url, "--master-address",
                 "http://user:%s@host" % secret, "--init-timeout", "2s")
    t.saw("as --master-address", secret in done.text, done, True)


@row
def s6(t):
    """No request to this machine goes to a proxy, however it is spelled."""
    key = save(t.path("key"), "the-secret\n")
    os.chmod(key, 0o600)
    server = t.endpoint("--listen", "0.0.0.0:0")
    six = t.endpoint("--listen", "[::1]:0") if os.path.exists("/proc/net/if_inet6") else server
    for name, more in (("127.1", False), ("0x7f000001", False), ("0.0.0.0", False), ("[::]", False),
                       ("localhost.", False), ("0177.0.0.1", True), ("2130706433", True),
                       ("127.0.0.2", True), ("127.255.0.1", True), ("LOCALHOST", True),
                       ("[::1]", True), ("[::ffff:127.0.0.1]", True), ("[0:0:0:0:0:0:0:1]", True),
                       ("0", True), ("127.0.1", True), ("0x7f.1", True), ("a.localhost", True),
                       ("[::ffff:7f00:1]", True), ("LocalHost.", True), ("0x0", True),
                       (socket.gethostname(), True), ("%31%32%37.0.0.1", True)):
        thief = t.canned({})
        done = t.run("wsync-ctl", "health", "-e", "http://%s:%d" % (
            name, (six if name in ("[::1]", "[0:0:0:0:0:0:0:1]") else server).port),
            "--api-key-file", key, "--connect-timeout", "2s", env={
                "http_proxy": thief.url, "HTTP_PROXY": thief.url, "all_proxy": thief.url,
                "ALL_PROXY": thief.url})
        t.saw("%s%s" % (name, " with the key" if seen_keys(thief) else ""), thief.requests, done,
              more)


BIDI = [chr(c) for c in list(range(0x202a, 0x202f)) + list(range(0x2066, 0x206a))]
OTHERS = ["\u200e", "\u200f", "\u061c", "\u2028", "\u2029", "\u200b", "\ufeff", "\u00ad", "\u0085",
          "\u009b", "\U000e0041", "\u180e", "\u2060", "\u206a", "\ufff9", "\u115f", "\u3164"]


@row
def s7(t):
    """What turns text around or hides it does not reach a terminal."""
    for chars, more in ((BIDI, False), (OTHERS, True)):
        for c in chars:
            dir_ = t.fresh("n")
            os.makedirs(dir_)
            write(dir_ + "/model.safetensors", [("a%sb.weight" % c, "BF16", [2])])
            done = t.run("wsync-list-weights", dir_)
            t.saw("a tensor's name with U+%04X" % ord(c), c in done.text, "raw" if c in done.text
                  else "escaped", more)
    for what, chars, more in (("bidi", BIDI, False), ("others", OTHERS, True)):
        text = "x".join(chars)
        server = t.canned({"/server_info": {"tp_size": 1, "version": "0.5.9" + text,
                                            "dtype": "auto", "model_path": "m" + text,
                                            "quantization": None},
                           "/model_info": {"weight_version": "7" + text},
                           "/pause_generation": (400, text)})
        for words in (("wsync-ctl", "info"), ("wsync-ctl", "status"), ("wsync-ctl", "pause"),
                      ("wsync-ctl", "version"), ("wsync-push", "synthetic:qwen3-0.6b", "-n"),
                      ("wsync-register", "add")):
            done = t.run(*words, *(() if words[1] == "add" else ("-e",)), server.url)
            raw = ["U+%04X" % ord(c) for c in chars if c in done.text]
            t.saw("%s from a server, %s %s: %s" % (what, words[0], words[1][:9], " ".join(raw)),
                  raw, done, more)


@row
def s8(t):
    """Requests that two HTTP parsers may read differently are refused."""
    get = b"GET /health HTTP/1.1\r\n"
    host = b"Host: 127.0.0.1\r\n"
    forms = {"blank before the colon": (get + host + b"X : y\r\n\r\n", False),
             "bare LF": (get.replace(b"\r", b"") + host.replace(b"\r", b"") + b"\n", False),
             "no Host": (get + b"\r\n", False),
             "a folded header": (get + host + b"X: y\r\n z\r\n\r\n", False),
             "Content-Length with a blank": (get + host + b"Content-Length : 0\r\n\r\n", True),
             "two lengths": (get + host + b"Content-Length: 0\r\nContent-Length: 5\r\n\r\n", True),
             "length and chunks": (get + host + b"Content-Length: 5\r\nTransfer-Encoding: chunked"
                                   b"\r\n\r\n0\r\n\r\n", True),
             "+5": (get + host + b"Content-Length: +0\r\n\r\n", True),
             "two Hosts": (get + host + b"Host: b\r\n\r\n", True),
             "bare CR": (get + host + b"X: a\rY: b\r\n\r\n", True),
             "NUL": (get + host + b"X: a\0b\r\n\r\n", True),
             "xchunked": (get + host + b"Transfer-Encoding: xchunked\r\n\r\n", True),
             "chunked twice": (get + host + b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
                               True),
             "a tab in the line": (b"GET\t/health\tHTTP/1.1\r\n" + host + b"\r\n", True),
             "a header without a name": (get + host + b": y\r\n\r\n", True),
             "a blank first": (get + b" X: y\r\n" + host + b"\r\n", True),
             "LF in the middle": (get + host + b"X: y\nZ: w\r\n\r\n", True),
             "hex length": (get + host + b"Content-Length: 0x0\r\n\r\n", True)}
    for name, server in (("endpoint", t.endpoint()), ("gateway", t.gateway())):
        for what, (data, more) in forms.items():
            got = b""
            with socket.create_connection(("127.0.0.1", server.port), 5) as s:
                s.settimeout(1)
                with contextlib.suppress(OSError):
                    s.sendall(data)
                    got = s.recv(200)
            line = got.split(b"\r\n")[0].decode(errors="replace")
            t.saw("%s, %s" % (name, what), " 200" in line, line or "closed", more)


@row
def s9(t):
    """A registry of many endpoints costs no minute."""
    m = t.model()
    for what, url, more in (("hosts", "http://h%d:30000", False), ("ports", "http://h:%d", True),
                            ("addresses", None, True)):
        rows = [{"url": url % (i + 1) if url else "http://10.%d.%d.%d:3" % (
            i >> 16, i >> 8 & 255, i & 255), "pool": "default"} for i in range(
                60000 if what == "ports" else 100000)]
        listed = save(t.fresh("r"), json.dumps({"version": 1, "endpoints": rows}))
        for words in (("wsync-register", "list"), ("wsync-register", "add", "--no-check", "z:9"),
                      ("wsync-register", "remove", rows[50000]["url"]),
                      ("wsync-push", m, "-n", "--pool", "none"),
                      ("wsync-ctl", "health", "--pool", "none")):
            done = t.run(*words, "--registry", listed, seconds=10)
            t.saw("%s, %s %s: %.1f s" % (what, words[0], words[1][:6], done.seconds),
                  done.seconds > 8, "exit %s" % done.rc, more or words[1] != "list")
            if done.seconds > 8:
                break  # each of the others takes as long


@row
def s10(t):
    """Links out of a source bring nothing into a written checkpoint, nor to a server."""
    secret = save(t.path("secret"), "THE-SECRET")

    def source(name, target):
        m = t.model()
        at = os.path.join(m, name)
        os.makedirs(os.path.dirname(at), exist_ok=True)
        if os.path.lexists(at):
            os.unlink(at)
        os.symlink(target, at)
        return m

    def leaks(dir_):
        for base, _, files in os.walk(dir_):
            for f in files:
                path = os.path.join(base, f)
                data = open(path, "rb").read() if os.path.isfile(path) else b""
                if b"THE-SECRET" in data or b"XDG_STATE" in data:
                    return f
        return None
    outside = t.fresh("outside")
    os.makedirs(outside)
    shutil.copy(secret, outside + "/tokenizer.json")
    os.symlink(outside, t.path("way"))
    for what, name, target, more in (
            ("a key file", "tokenizer.json", secret, False),
            ("/proc/self/environ", "tokenizer.json", "/proc/self/environ", False),
            ("a file of any name", "notes.txt", secret, True),
            ("a relative link", "tokenizer_config.json", "../secret", True),
            ("through a link", "vocab.json", t.path("way", "tokenizer.json"), True),
            ("a chat template", "chat_template.jinja", secret, True),
            ("a subdirectory", "extra", outside, True),
            ("the generation config", "generation_config.json", secret, True)):
        out = t.fresh("out")
        done = t.run("wsync-push", source(name, target), "--write", out)
        t.saw("--write, %s: leaks %s" % (what, leaks(out)), leaks(out), done, more)
        out = t.fresh("disk")
        server = t.endpoint("--lineage", "sglang-2026")
        done = t.run("wsync-push", source(name, target), "-e", server.url, "--backend", "disk",
                     "--disk-dir", out)
        t.saw("--disk-dir, %s: leaks %s" % (what, leaks(out)), leaks(out), done, more)
    root = t.fresh("root")
    os.makedirs(root)
    full = t.model()
    server = t.endpoint("--lineage", "sglang-2026")
    gateway = t.gateway("--source-root", root)
    register_at(gateway, server)
    for name in ("model.safetensors", "config.json", "model.safetensors.index.json"):
        at = os.path.join(root, "with." + name)
        shutil.copytree(full, at)
        if os.path.exists(os.path.join(at, name)):
            os.unlink(os.path.join(at, name))
        os.symlink(os.path.join(full, name), os.path.join(at, name))
        done = t.run("curl", "-sS", "-w", " %{http_code}", "-H", JSON, "-d",
                     json.dumps({"source": at}), gateway.url + "/sync_inference_weights")
        t.saw("--source-root, " + name, done.out.endswith("200"), done, name != "model.safetensors")
    at = os.path.join(root, "hard")
    os.symlink(full, at)
    done = t.run("curl", "-sS", "-w", " %{http_code}", "-H", JSON, "-d",
                 json.dumps({"source": at}), gateway.url + "/sync_inference_weights")
    t.saw("--source-root, the directory", done.out.endswith("200"), done, True)


@row
def s11(t):
    """A registry that others can write is not used."""
    if os.geteuid():
        raise NotRun("needs root, to give a file to another user")
    m, thief = t.model(), t.canned({})
    listed = t.fresh("r")
    for what, prepare, more in (
            ("of another user, 0666", lambda: (os.chown(listed, 65534, 65534),
                                               os.chmod(listed, 0o666)), False),
            ("of another user, 0644", lambda: os.chown(listed, 65534, 65534), False),
            ("0666", lambda: os.chmod(listed, 0o666), False),
            ("0660 of a group", lambda: (os.chown(listed, 0, 65534),
                                         os.chmod(listed, 0o660)), True),
            ("in a directory of mode 0777", lambda: None, True),
            ("a link", lambda: None, True)):
        if os.path.lexists(listed):
            os.unlink(listed)
        at = listed
        if "directory" in what:
            os.makedirs(t.path("open"))
            os.chmod(t.path("open"), 0o777)
            at = t.path("open", "r")
        text = json.dumps({"version": 1, "endpoints": [{"url": thief.url, "pool": "default"}]})
        save(at, text)
        os.chmod(at, 0o644)
        prepare()
        if what == "a link":
            os.rename(at, t.path("real"))
            os.chown(t.path("real"), 65534, 65534)
            os.symlink(t.path("real"), at)
        for words in (("wsync-push", m), ("wsync-ctl", "health"), ("wsync-list-weights",),
                      ("wsync-verify", "names", m)):
            before = len(thief.requests)
            done = t.run(*words, "--registry", at)
            t.saw("%s, %s" % (what, words[0]), len(thief.requests) > before, done,
                  more or words[0] != "wsync-push")


@row
def s12(t):
    """No placeholders in answers of the gateway; leftovers of a killed push go."""
    m = t.model()
    server = t.endpoint()
    plain = save(t.path("file"), "")
    for what, options, body, more in (
            ("--state-dir below a file", ("--state-dir", plain + "/x"), {"source": m}, False),
            ("no such source", (), {"source": "/none"}, True),
            ("no bucket", (), {"source": m, "bucket_size": 1}, True),
            ("a bad version", (), {"source": m, "weight_version": ""}, True),
            ("a dead group", ("--init-timeout", "1s", "--master-address", "192.0.2.1"),
             {"source": m}, True)):
        gateway = t.gateway(*options)
        register_at(gateway, server)
        done = t.run("curl", "-sS", "-m", "20", "-H", JSON, "-d",
                     json.dumps(body), gateway.url + "/sync_inference_weights")
        t.saw(what, re.search(r"\{[a-z_]+\}", done.out), done, more)
    t.run("wsync-push", m, "-e", server.url)
    pushes = t.path("state", "wsync", "pushes")
    old = time.time() - 7200
    for name in ("999999-0badcafe.json.Ab12Cd", "999998-12345678.json.zzzzzz"):
        path = save(os.path.join(pushes, name), "{")
        os.utime(path, (old, old))
    t.run("wsync-push", m, "-e", server.url)
    t.run("wsync-ctl", "repair")
    left = [x for x in os.listdir(pushes) if x.startswith("99999")]
    t.saw("leftovers of two dead pushes", left, "left: %s" % left)


# ---- all rows ----

RUNNING = []


def give_up(*_):
    """At a signal: rows that run end with what they have started."""
    for t in RUNNING:
        for child in list(t.children):
            if child.poll() is None:
                child.kill()
        shutil.rmtree(t.dir, True)
    os._exit(1)


def try_row(name, bin_dir, verbose):
    t = Row(name, bin_dir, verbose)
    RUNNING.append(t)
    try:
        ROWS[name](t)
        return t.shown()
    except NotRun as e:
        return ["%-4s not run: %s" % (name, e)], False
    except Exception as e:  # noqa: BLE001  # the other rows go on
        at = traceback.extract_tb(e.__traceback__)
        mine = [f for f in at if f.filename == os.path.abspath(__file__)][-1]
        return t.shown()[0] + ["%-4s broken: line %d: %s: %s" % (name, mine.lineno,
                                                                 type(e).__name__, e)], True
    finally:
        t.close()
        RUNNING.remove(t)


def main():
    args, verbose, jobs = sys.argv[1:], False, 4
    while args and args[0].startswith("-"):
        option = args.pop(0)
        if option == "-v":
            verbose = True
        elif option == "-j" and args:
            jobs = int(args.pop(0))
        else:
            sys.exit(__doc__)
    if not args:
        sys.exit(__doc__)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, give_up)
    bin_dir, names = os.path.abspath(args[0]), [n.upper() for n in args[1:]] or list(ROWS)
    for name in names:
        if name not in ROWS:
            sys.exit("rows.py: no row %s; there are: %s" % (name, " ".join(ROWS)))
    any_open = False
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(try_row, name, bin_dir, verbose) for name in names]
        for future in futures:
            lines, is_open = future.result()
            print("\n".join(lines), flush=True)
            any_open |= is_open
    sys.exit(any_open)


if __name__ == "__main__":
    main()
