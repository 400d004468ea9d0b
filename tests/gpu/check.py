#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check.py - every test that wants a GPU, as one stream of TAP and one report: what `make
check-gpu` runs.

Runs where there is Python 3 and nothing else, from the tree or from a kit (tests/gpu/kit.sh).
Without a GPU every test says so, as a skip, and that is no failure. The report, RESULTS.md, is
written anew while results come, so that a run which is ended half-way, or killed, leaves what it
had; beside it lies the whole output, log.txt.

WSYNC_TEST_CUDA names another libcuda, WSYNC_TEST_PYTHON an interpreter whose torch has CUDA
(python3), and WSYNC_NCCL_LIB a libnccl for tests without torch (that torch's). Files of bats whose
head speaks of WSYNC_TEST_CUDA run here too, on the real libraries. `--first` is a plan for the
first minutes on a GPU that is lent for a quarter of an hour.
"""
import argparse
import contextlib
import fnmatch
import glob
import json
import os
import platform
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from typing import NamedTuple

import loopback

HERE = os.path.dirname(os.path.abspath(__file__))
TREE = os.path.dirname(os.path.dirname(HERE))
BUILD = os.path.join(TREE, os.environ.get("BUILD", "build"))
PYTHON = os.environ.get("WSYNC_TEST_PYTHON", "python3")
CUDA = os.environ.get("WSYNC_TEST_CUDA") or "libcuda.so.1"
RESULT = re.compile(r"(not )?ok\b *\d* *-? *(.*)")
PLAN = re.compile(r"1\.\.(\d+)(?: *# *SKIP *(.*))?")
NCCL = """
import importlib.util, os
for name in 'nvidia.nccl', 'torch':
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        continue
    for place in spec and spec.submodule_search_locations or ():
        file = os.path.join(place, 'lib', 'libnccl.so.2')
        if os.path.exists(file):
            raise SystemExit(print(file))
"""
# libcuda, libnccl or "", whether torch is wanted: holds the GPU open until its stdin ends.
HOLD = """
import ctypes, json, platform, sys
def say(**facts):
    print(json.dumps(facts), flush=True)
context = ctypes.c_void_p()
try:
    cuda = ctypes.CDLL(sys.argv[1])
    rc = cuda.cuInit(0) or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    say(holder="it keeps GPU 0 open" if rc == 0 else "CUDA refuses it: %d" % rc)
except OSError:
    say(holder="it has no driver")
if sys.argv[2]:
    with open(sys.argv[2], "rb") as f:
        while f.read(1 << 24):
            pass
try:
    if not sys.argv[3]:
        raise ImportError
    import torch
    nccl = torch.cuda.is_available() and torch.cuda.nccl.version()
    say(**{"torch": torch.__version__, "torch's Python": platform.python_version(),
           "torch's CUDA": torch.version.cuda or "none",
           "torch's NCCL": ".".join(map(str, nccl)) if nccl else "none"})
except Exception:
    say(torch="none")
sys.stdin.read()
"""
TOOLS = ("curl", "setpriv", "timeout", "xargs", "compute-sanitizer", "cuobjdump")


# ---- what this machine is ----

def said_by(argv, seconds):
    """What a program prints, or None."""
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=seconds,
                              check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def ask_driver():
    """The driver's own words, in a process of its own: a driver may do anything."""
    code = ("import ctypes, sys\n"
            "c = ctypes.CDLL(sys.argv[1])\n"
            "n, v, name = ctypes.c_int(), ctypes.c_int(), ctypes.create_string_buffer(256)\n"
            "assert c.cuInit(0) == 0 and c.cuDeviceGetCount(ctypes.byref(n)) == 0 and n.value\n"
            "c.cuDriverGetVersion(ctypes.byref(v)), c.cuDeviceGetName(name, 256, 0)\n"
            "print(name.value.decode(), '|', '%d.%d' % (v.value // 1000, v.value % 1000 // 10), "
            "'|', n.value)\n")
    text = said_by([sys.executable, "-c", code, CUDA], 60)
    return [part.strip() for part in text.split("|")] if text and text.count("|") == 2 else None


def ask_smi(fields):
    """The first GPU's, or None."""
    said = said_by(["nvidia-smi", "--query-gpu=" + fields, "--format=csv,noheader"], 30)
    return said.split("\n")[0] if said else None


def first_line(path):
    with contextlib.suppress(OSError):
        with open(path, encoding="utf-8", errors="replace") as f:
            return f.readline().strip()
    return None


def machine(nccl):
    """What a report must say of it: (name, value) pairs."""
    facts, gpu = [], ask_driver()
    facts.append(("GPU", "%s (%s in all)" % (gpu[0], gpu[2]) if gpu
                  else "none that %s would give" % CUDA))
    if gpu:
        facts.append(("CUDA of the driver", gpu[1]))
        facts.append(("driver, memory, capability",
                      ask_smi("driver_version,memory.total,compute_cap") or
                      first_line("/proc/driver/nvidia/version") or "nvidia-smi does not say"))
        # Exclusive use, parts of a GPU and links that are narrow explain much that fails or is
        # slow.
        for more in (("persistence_mode", "compute_mode", "mig.mode.current"),
                     ("clocks.max.sm", "clocks.max.memory"),
                     ("pcie.link.gen.max", "pcie.link.width.max", "pcie.link.gen.current",
                      "pcie.link.width.current")):
            said = ask_smi(",".join(more))
            facts += [(", ".join(more), said)] if said else []
    facts.append(("NCCL", "%s, %s" % (version_of(nccl), nccl) if nccl else "none"))
    with contextlib.suppress(OSError):
        with open("/proc/cpuinfo", encoding="utf-8") as f:
            names = [line.split(":")[1].strip() for line in f if line.startswith("model name")]
        facts.append(("CPU", "%d x %s" % (len(names), names[0])))
    memory = first_line("/proc/meminfo") or ""
    facts.append(("memory", "%s, %d MiB of /dev/shm" % (
        " ".join(memory.split()[1:]),
        shutil.disk_usage("/dev/shm").total >> 20 if os.path.isdir("/dev/shm") else 0)))
    facts.append(("free for temporary files", "%d MiB of %s" % (
        shutil.disk_usage(tempfile.gettempdir()).free >> 20, tempfile.gettempdir())))
    absent = [tool for tool in TOOLS if not shutil.which(tool)]
    facts.append(("tools that are not here", ", ".join(absent) or "none"))
    told = ["%s=%s" % item for item in sorted(os.environ.items())
            if item[0].startswith(("NCCL_", "CUDA_", "TORCH_"))]
    facts.append(("environment", " ".join(told) or "nothing of NCCL, CUDA or torch"))
    facts.append(("kernel, libc", "%s, %s" % (platform.release(), " ".join(platform.libc_ver()))))
    facts.append(("wsync", made_of() or "of no known commit"))
    return [(k, printable(v)) for k, v in facts]


def printable(text):
    return "".join(c if c.isprintable() else "?" for c in text)


class Holder:
    """A process that keeps the GPU open: otherwise a driver without persistence mode starts the GPU
    again for each program. It also reads libnccl and torch into the page cache, and reports torch's
    versions. It ends with this process, however this process ends."""

    def __init__(self, nccl):
        python = shutil.which(PYTHON)
        self.facts, self.done = [], threading.Event()
        self.child = subprocess.Popen(
            [python or sys.executable, "-c", HOLD, CUDA, nccl, "torch" if python else ""],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            start_new_session=True)
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self):
        for line in self.child.stdout:
            with contextlib.suppress(ValueError):
                self.facts += [(k, printable(v)) for k, v in json.loads(line).items()]
            if "torch" in dict(self.facts):
                self.done.set()
        self.done.set()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.child.stdin.close()
        end_group(self.child)


def find_nccl():
    """For tests without torch: what is named, else that torch's; "" where there is none."""
    return os.environ.get("WSYNC_NCCL_LIB") or said_by([PYTHON, "-c", NCCL], 60) or ""


def version_of(nccl):
    return said_by([sys.executable, "-c", "import ctypes, sys\nn = ctypes.c_int()\n"
                    "ctypes.CDLL(sys.argv[1]).ncclGetVersion(ctypes.byref(n))\n"
                    "print('%d.%d.%d' % (n.value // 10000, n.value // 100 % 100, n.value % 100))",
                    nccl], 60)


def made_of():
    try:
        with open(os.path.join(TREE, "KIT"), encoding="utf-8") as f:
            return f.read().strip()
    except OSError:
        return said_by(["git", "-C", TREE, "describe", "--always", "--dirty"], 20)


# ---- one program ----

class Program:
    """A test program, and what it said."""

    def __init__(self, path, step=None):
        self.path, self.step = path, step
        self.name = " ".join([os.path.basename(path)] + [a for a in step.args if a[0] != "-"] +
                             ["under " + step.tool] * bool(step.tool)) if step \
            else os.path.basename(path)
        self.cases = []            # [outcome, title, reason], outcome of passed, failed, skipped
        self.notes, self.output = [], []
        self.planned, self.seconds = None, 0.0

    def command(self):
        """What is started."""
        args = list(self.step.args) if self.step else []
        if self.path.endswith(".py"):
            return [sys.executable, "-u", self.path] + args
        if self.path.endswith(".bats"):
            return [shutil.which(os.path.join(TREE, "bats/bin/bats")) or "bats", "--tap", self.path]
        if self.step and self.step.tool:
            return ["compute-sanitizer", "--tool", self.step.tool, self.path]
        return [self.path] + args

    def may_take(self):
        """Seconds, if nobody says otherwise."""
        return self.step.each if self.step else next(
            (n for name, n in LONG.items() if self.name.startswith(name)), EACH)

    def count(self, outcome):
        return sum(1 for case in self.cases if case[0] == outcome)

    def take(self, line):
        """A line of its output; True if it was a result."""
        self.output.append(line)
        plan, result = PLAN.fullmatch(line), RESULT.fullmatch(line)
        if plan:
            self.planned = int(plan.group(1))
            if self.planned == 0:
                self.cases.append(["skipped", "all of it", plan.group(2) or "no reason told"])
            return self.planned == 0
        if not result:
            if line.startswith("# ") and line != "# ok - tests":
                self.note(line[2:])
            elif line.startswith("====="):  # compute-sanitizer
                self.note(line)
            return False
        name, _, directive = result.group(2).partition("#")
        skip = re.match(r"\s*SKIP\S*\s*(.*)", directive, re.I)
        outcome = "failed" if result.group(1) else "skipped" if skip else "passed"
        self.cases.append([outcome, name.strip(), skip.group(1) if skip else ""])
        return True

    def note(self, text):
        """What is said after a failure is its reason, as far as a line has room for it."""
        self.notes.append(text)
        if self.cases and self.cases[-1][0] == "failed" and len(self.cases[-1][2]) < 300:
            self.cases[-1][2] = " ".join((self.cases[-1][2] + " " + text).split())

    def end(self, status, ran_out):
        """None, or why the program itself is a failure beside its cases."""
        if ran_out:
            return "it was ended after %d s" % self.seconds
        if status < 0:
            return "it died of %s" % signal.Signals(-status).name
        if self.planned is None:
            return "exit %d, and no plan" % status
        if self.planned and len(self.cases) != self.planned:
            return "exit %d after %d of %d cases" % (status, len(self.cases), self.planned)
        if status and not self.count("failed"):
            return "exit %d" % status
        return self.found() if self.step and self.step.tool else None

    def found(self):
        """What compute-sanitizer counted, unless it is nothing."""
        said = [line for line in self.output if " SUMMARY: " in line]
        return None if said and all(" SUMMARY: 0 " in line for line in said) else \
            "; ".join(said) or "compute-sanitizer gives no summary"


def lines_of(child):
    """A queue of (is_error, line) from both pipes; (None, None) at the end of each."""
    lines = queue.Queue()

    def pump(pipe, is_error):
        for line in pipe:
            lines.put((is_error, line.rstrip("\n")))
        lines.put((None, None))
    for pipe, is_error in ((child.stdout, False), (child.stderr, True)):
        threading.Thread(target=pump, args=(pipe, is_error), daemon=True).start()
    return lines


def end_group(child):
    """What it started ends with it."""
    for sig, seconds in ((signal.SIGTERM, 5), (signal.SIGKILL, 10)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, sig)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(seconds)


def environment(nccl):
    env = dict(loopback.ENVIRONMENT, **{"WSYNC_TEST_PATIENCE": "60"})
    env.update(os.environ)
    env.update(BUILD=os.path.relpath(BUILD, TREE), WSYNC_TEST_CUDA=CUDA, WSYNC_TEST_PYTHON=PYTHON,
               CMOCKA_MESSAGE_OUTPUT="TAP", PYTHONDONTWRITEBYTECODE="1")
    return dict(env, WSYNC_NCCL_LIB=nccl) if nccl else env


def follow(program, lines, until, each):
    """Takes what it says, to its end; True if that was not in time."""
    open_pipes = 2
    while open_pipes:
        left = until - time.monotonic()
        try:
            is_error, line = lines.get(timeout=min(max(left, 0), 2))
        except queue.Empty:
            if left <= 0:
                return True
            each(None)
            continue
        if line is None:
            open_pipes -= 1
        elif is_error:
            program.output.append(line)
        elif program.take(line) or line.startswith("#"):
            each(line)
    return False


@contextlib.contextmanager
def nccl_words(program, env):
    """What NCCL warns of joins the output, but of those that see to it themselves (on_torch.py)."""
    if re.fullmatch(r"test_.*\.py", program.name):
        yield env
        return
    folder = tempfile.mkdtemp(prefix="wsync-nccl-")
    try:
        yield dict({"NCCL_DEBUG": "WARN", "NCCL_DEBUG_FILE": os.path.join(folder, "%p")}, **env)
        for name in sorted(os.listdir(folder)):
            with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as f:
                lines = f.read().splitlines()
            if any("WARN" in line for line in lines):
                program.output += ["---- NCCL in process %s" % name] + lines[-20:]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run(program, seconds, env, each):
    """each() is called with every result as it comes, and with None while none does."""
    with nccl_words(program, env) as more:
        return run_so(program, seconds, more, each)


def run_so(program, seconds, env, each):
    began = time.monotonic()
    try:
        child = subprocess.Popen(program.command(), env=env, cwd=TREE, stdin=subprocess.DEVNULL,
                                 stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE, text=True, errors="replace",
                                 start_new_session=True)
    except OSError as e:
        return "it cannot be started: %s" % e.strerror
    try:
        ran_out = follow(program, lines_of(child), began + seconds, each)
    finally:  # a signal may be what ends it
        program.seconds = time.monotonic() - began
        end_group(child)
    return program.end(child.returncode, ran_out)


# ---- the report ----

def cell(text):
    return " ".join(text.replace("|", "\\|").split())


def title(facts):
    if dict(facts)["GPU"].startswith("none"):
        return "# Results without a GPU"
    return "# Results on a double of libcuda" if "fake_cuda" in CUDA else "# Results on a GPU"


def report(facts, programs, when):
    """RESULTS.md of this run."""
    total = {o: sum(p.count(o) for p in programs) for o in ("passed", "failed", "skipped")}
    out = [title(facts), "",
           "%s, by `make check-gpu`: %d passed, %d failed, %d skipped." % (
               when, total["passed"], total["failed"], total["skipped"]), "",
           "| | |", "|---|---|"]
    out += ["| %s | %s |" % (k, cell(v)) for k, v in facts]
    out += ["", "## Tests", "", "| test | outcome |", "|---|---|"]
    for p in programs:
        counts = ", ".join("%d %s" % (p.count(o), o) for o in ("passed", "failed", "skipped")
                           if p.count(o))
        out.append("| `%s` | %s, %.1f s |" % (p.name, counts or "nothing", p.seconds))
    for outcome, head in (("failed", "Failed"), ("skipped", "Skipped")):
        some = ["- `%s`: %s%s" % (p.name, title, ": " + why if why else "")
                for p in programs for o, title, why in p.cases if o == outcome]
        out += ["", "## " + head, ""] + some if some else []
    for p in programs:
        if p.notes:
            out += ["", "## What `%s` said" % p.name, "", "```"] + p.notes[:60] + ["```"]
    return "\n".join(out) + "\n"


def keep(folder, name, text):
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, name)
    with open(path + ".part", "w", encoding="utf-8") as f:
        f.write(text)
    os.replace(path + ".part", path)


# ---- all of them ----

class Step(NamedTuple):
    """Programs of a plan: those of that name, and how long each of them, and all, may take."""
    name: str
    each: float
    args: tuple = ()
    tool: str = ""     # of compute-sanitizer, which runs them
    whole: float = 1e9


# The first minutes on a GPU, with what decides about the rest early: kernels, NCCL by itself, what
# the machine can do at all, then peers.
FIRST_SECONDS = 430  # and some more until all has ended
FIRST = (
    Step("test_*_gpu", 40, whole=90),
    Step("bench_speed.py", 60, ("--told", "kernels")),
    Step("test_comm_gpu", 60),
    Step("test_machine_torch.py", 110),  # whose second case counts, too, if the first hangs
    Step("test_nccl_torch.py", 175),
    Step("test_ipc_torch.py", 115),
    Step("test_manifest_torch.py", 75),
    Step("bench_speed.py", 60, ("--told", "load")),
    Step("test_merge_gpu", 40, tool="racecheck"),
    Step("test_fp8_gpu", 40, tool="racecheck"),
)
# Without a plan a program may take EACH seconds, unless it has many deadlines to wait for, or
# large servers to start.
EACH = 120
LONG = {"bench_speed": 300, "test_nccl_torch": 200, "test_nccl_trouble": 500, "endpoint-nccl": 500,
        "test_vllm": 900}


class Ability(NamedTuple):
    """What test_machine_torch.py shows of a machine by the case that begins so. Programs that begin
    as in `needed_by` are left out where that case fails; lib.need leaves out single cases."""
    case: str
    why: str
    needed_by: tuple


ABILITIES = {
    "NCCL": Ability("two processes of torch broadcast",
                    "two processes cannot use NCCL on one GPU here, see test_machine_torch.py",
                    ("test_nccl_", "endpoint-nccl")),
    "IPC": Ability("memory of one process",
                   "a process cannot open another's GPU memory here, see test_machine_torch.py",
                   ("test_ipc_", "test_manifest_", "endpoint-ipc", "push-vllm-ipc",
                    "source-memory")),
}


def lacks(programs):
    """The abilities that this run has shown to be absent."""
    ran = [p for p in programs if p.name.startswith("test_machine") and p.output]
    return [name for name, a in ABILITIES.items()
            if ran and not any(title.startswith(a.case) and outcome != "failed" or
                               title == "all of it" for outcome, title, _ in ran[-1].cases)]


def wants_gpu(bats):
    """Whether a file of bats can be told which libcuda to take, as its head says."""
    with open(bats, encoding="utf-8") as f:
        return "WSYNC_TEST_CUDA" in f.read(1000)


def why_not(program, gpu, absent):
    """A reason to leave a program alone, or None: most find out by themselves."""
    if not os.path.exists(program.path):
        return "it is not built"
    for name in absent:
        if program.name.startswith(ABILITIES[name].needed_by):
            return ABILITIES[name].why
    tool = program.step and program.step.tool
    if not tool and not program.path.endswith(".bats"):
        return None
    if gpu.startswith("none"):
        return "there is no GPU"
    if tool and "fake_cuda" in CUDA:
        return "a double has no races"
    needed = os.path.basename(program.command()[0])
    return None if shutil.which(program.command()[0]) else "%s is not installed" % needed


# What a run that is ended early should have had: kernels, what this machine can do at all, speed,
# peers. Troubles last, which mostly wait for deadlines.
ORDER = ("test_machine", "bench_", "test_nccl_torch", "test_ipc", "test_manifest", "test_")


def worth(path):
    name = os.path.basename(path)
    if not name.endswith((".py", ".bats")) and name.startswith("test_"):
        return -1
    if name.endswith(".bats"):
        return len(ORDER) - 1.5
    return next((i for i, prefix in enumerate(ORDER) if name.startswith(prefix)), len(ORDER))


def find():
    """The paths of all programs in the order of their worth."""
    found = [p for pattern in ("test_*_gpu", "bench_*")
             for p in sorted(glob.glob(os.path.join(BUILD, "tests/gpu", pattern)))
             if os.access(p, os.X_OK) and not p.endswith((".o", ".d"))]
    found += sorted(glob.glob(os.path.join(HERE, "test_*.py"))) + sorted(
        glob.glob(os.path.join(HERE, "bench_*.py")))
    found += [p for p in sorted(glob.glob(os.path.join(TREE, "tests/cli/*.bats"))) if wants_gpu(p)]
    return sorted(found, key=worth)


def plan(steps):
    """The programs of a plan. A step whose name is a pattern has what no other step names."""
    paths = {os.path.basename(p): p for p in find()}
    named = {step.name for step in steps if not step.tool}
    return [Program(paths.get(name, name), step) for step in steps
            for name in ([step.name] if "*" not in step.name else
                         [n for n in paths if fnmatch.fnmatch(n, step.name) and n not in named])]


class Run:
    """Programs, one after the other, and what is kept of them."""

    def __init__(self, args, programs, holder, nccl):
        self.args, self.programs, self.holder = args, programs, holder
        self.when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
        self.until = time.monotonic() + args.seconds
        self.steps = {}  # until when they may take
        self.facts, self.env = machine(nccl), environment(nccl)
        self.number, self.log, self.kept = 0, [], 0.0
        for fact in self.facts:
            print("# %s: %s" % fact)

    def keep(self, running, *more):
        self.kept = time.monotonic()
        keep(self.args.out, "RESULTS.md",
             report(self.facts + self.holder.facts, self.programs[:running + 1], self.when))
        keep(self.args.out, "log.txt", "\n".join(self.log + list(more)))

    def result(self, program):
        """Prints the last one."""
        self.number += 1
        outcome, title, why = program.cases[-1]
        print("%sok %d - %s: %s%s" % (
            "not " if outcome == "failed" else "", self.number, program.name, title,
            " # SKIP " + why if outcome == "skipped" else ""), flush=True)

    def hear(self, i, line):
        """A result or a note of program i, or None while there is none."""
        program = self.programs[i]
        if line is None or time.monotonic() > self.kept + 2:
            self.keep(i, "==== %s, which goes on" % program.name, *program.output)
        if line and line.startswith("#"):
            print(line, flush=True)
        elif line is not None:
            self.result(program)

    def left(self, program):
        """Seconds that the run and the program's step have left."""
        until, step = self.until, program.step
        if step:
            until = min(until, self.steps.setdefault(step, time.monotonic() + step.whole))
        return until - time.monotonic()

    def one(self, i):
        program, absent = self.programs[i], lacks(self.programs[:i])
        print("# %s" % program.name, flush=True)
        left = self.left(program)
        why = "no time is left" if left < 5 else why_not(program, dict(self.facts)["GPU"], absent)
        if why:
            program.cases.append(["skipped", "all of it", why])
            self.result(program)
            return
        env = dict(self.env, **{"WSYNC_TEST_NO_" + name: ABILITIES[name].why for name in absent})
        left = min(left, self.args.each or program.may_take())
        why = run(program, left, env, lambda line: self.hear(i, line))
        if why:
            program.cases.append(["failed", "the program ends well", why])
            self.result(program)
            print("# " + why)
        if program.count("failed"):
            for line in program.output[-60:]:
                print("#   " + line)
        self.log += ["==== %s" % program.name] + program.output + [why or "", ""]
        self.keep(i)

    def all(self):
        """Returns the exit status."""
        for i in range(len(self.programs)):
            self.one(i)
        print("1..%d" % self.number)
        self.holder.done.wait(max(0, min(20, self.until - time.monotonic())))
        for fact in self.holder.facts:
            print("# %s: %s" % fact)
        self.keep(len(self.programs))
        total = [sum(program.count(o) for program in self.programs)
                 for o in ("passed", "failed", "skipped")]
        print("# the report is %s" % os.path.join(self.args.out, "RESULTS.md"))
        print("%d passed, %d failed, %d skipped" % tuple(total), flush=True)
        return 1 if total[1] or not sum(total) else 0


def main():
    p = argparse.ArgumentParser(
        description="every test that wants a GPU; see the head of this file")
    p.add_argument("names", nargs="*", metavar="NAME", help="only programs whose names begin so")
    p.add_argument("--first", action="store_true",
                   help="the plan for the first %d seconds on a GPU" % FIRST_SECONDS)
    p.add_argument("--out", default=os.environ.get("OUT") or os.path.join(BUILD, "gpu-results"),
                   help="where RESULTS.md and log.txt go ($OUT, or build/gpu-results)")
    p.add_argument("--seconds", type=float,
                   help="end after that many; what is left is skipped (3000; %d with --first)"
                   % FIRST_SECONDS)
    p.add_argument("--each", type=float, help="and each program after that many (%d; more for some)"
                   % EACH)
    p.add_argument("--list", action="store_true", help="only name the programs")
    args = p.parse_args()
    if args.seconds is None:
        args.seconds = FIRST_SECONDS if args.first else 3000
    programs = [program for program in (plan(FIRST) if args.first else map(Program, find()))
                if not args.names or program.name.startswith(tuple(args.names))]
    if args.list:
        print("\n".join(program.name for program in programs))
        return 0
    for sig in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(sig, lambda number, _frame: sys.exit(128 + number))
    nccl = find_nccl()
    with Holder(nccl) as holder:
        return Run(args, programs, holder, nccl).all()


if __name__ == "__main__":
    sys.exit(main())
