#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench.py - wsync-push against torch's own sender and against a plain socket, in one run.

It judges nothing: figures are printed beside what we aim at, and it exits 0. What it compares runs
in turn, in rounds whose order alternates, and ratios are taken within a round: a machine that
becomes slower or faster meanwhile does so for both.
"""
import argparse
import json
import mmap
import os
import socket
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "peers"))
import lib   # noqa: E402
import mkst  # noqa: E402

MIB = 1 << 20
LINK = "10gbit"
DEFINITIONS = """\
What is measured
  job          one checkpoint into one endpoint of one rank on this machine (many: four ranks, or
               four endpoints), over gloo: read the files, form the group, pause, send, resume,
               leave the group
  wsync        `ns.total` of wsync-push's last line, in flattened buckets of the default size;
               `wall` is the whole process, from fork to exit
  torch        the same job by tests/bench/torch_sender.py; starting Python and importing torch are
               left out of its time and of its CPU time (they take seconds)
  default      wsync-push without --bucket-size and --load-format; the other rows name both. Each
               sender and setting has an endpoint of its own: memory that a server's malloc keeps
               depends on the sizes that it got before. All of them take turns.
               `torch's best` is its setting with the least median, `our best fixed` likewise.
               The checkpoint is too small for the default to try other sizes while it sends.
  CPU          user + system time of the sending process (wsync: the whole process)
  proof        the job with --verify hash against the job with --verify names, into a receiver that
               reports the checksums it was told: what a server needs for its own is not ours
  loopback     the same file by sendfile through one TCP connection on the loopback interface into
               a process that discards it, under the system's congestion control and under reno: the
               faster of the two
  first byte   from the start of wsync-push's job to the first byte of weights on the wire
  ratio        reference / wsync within a pair, so above 1 is faster than the reference; median, and
               the least and greatest of all pairs. The first ones warm up and are dropped.
  kernels      wsync-bench kernels: 16384 x 4096 numbers from memory to memory, on one thread:
               against memcpy, in turns inside one process; and against torch by
               tests/bench/torch_kernels.py on one thread
  overlap      the job with --quantize fp8 into an endpoint that keeps nothing: against making and
               hashing the same tensors (wsync-list-weights --as-sent --hash) and then the job with
               them ready; over the loopback interface, whose two ends and the quantizer share the
               processors, and over one that is paced as a network is
  scale        100 buckets of one tensor of 8 KiB each into many endpoints of one rank on this
               machine, which share its processors: what a bucket takes is what the requests and
               answers around it take. `form` is ns.init; `bucket` the median of a push's buckets;
               CPU that of wsync-push alone, all of it, over 100. Median of the pushes, and the
               least and greatest; the first is dropped.
  memory       the greatest RssAnon of the process, sampled every 2 ms: what it allocated, without
               the mapped checkpoint, which is page cache
The page cache is warm for both sides: every file is read once before its first pair."""


VERSIONS = ("1.13", "2.6", "2.14")
SECTIONS = ("torch", "many", "proof", "loopback", "kernels", "overlap", "memory", "plan", "scale")


class Table:
    WIDTHS = (40, 12, 12, 8, 14, 12)

    def __init__(self):
        self.row("", "wsync", "reference", "ratio", "min..max", "aim")

    def row(self, *cells):
        print("".join(c.ljust(w) if i == 0 else c.rjust(w)
                      for i, (c, w) in enumerate(zip(cells, self.WIDTHS))).rstrip(), flush=True)

    def pairs(self, what, ours, theirs, unit, aim=""):
        ratios = [t / o for o, t in zip(ours, theirs)]
        self.row(what, unit(statistics.median(ours)), unit(statistics.median(theirs)),
                 "%.2f" % statistics.median(ratios), "%.2f..%.2f" % (min(ratios), max(ratios)), aim)

    def alone(self, what, values, unit, aim=""):
        self.row(what, unit(statistics.median(values)), "", "",
                 "%s..%s" % (unit(min(values)).split()[0], unit(max(values)).split()[0]), aim)

    def one(self, what, value, aim=""):
        self.row(what, value, "", "", "", aim)


def seconds(x):
    return "%.3f s" % x if x >= 0.1 else "%.2f ms" % (x * 1e3)


def milliseconds(x):
    return "%.2f ms" % (x * 1e3)


def mebibytes(x):
    return "%.1f MiB" % (x / MIB)


def built(path):
    return os.path.join(lib.BUILD, path)


def median(values):
    return statistics.median(list(values))


class Run:
    """A child run to its end: its stdout, wall and CPU seconds; with `sample`, its peak RssAnon."""

    def __init__(self, argv, sample=False):
        out = lib.scratch("out")
        with open(out, "wb") as f:
            began = time.monotonic()
            child = lib.start(argv, lib.push_env(), stdin=subprocess.DEVNULL, stdout=f)
        self.peak = 0
        if sample:
            self.watch(child.pid)
        _, status, used = os.wait4(child.pid, 0)
        self.wall = time.monotonic() - began
        self.cpu = used.ru_utime + used.ru_stime
        child.returncode = os.waitstatus_to_exitcode(status)
        lib.stop(child)
        with open(out, encoding="utf-8") as f:
            self.text = f.read()
        if child.returncode != 0:
            sys.exit("bench.py: exit %d: %s\n%s" % (child.returncode, " ".join(argv),
                                                    self.text[-2000:]))

    def watch(self, pid):
        while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            with open("/proc/%d/status" % pid, encoding="utf-8") as f:
                for line in f:
                    if line.startswith("RssAnon:"):
                        self.peak = max(self.peak, int(line.split()[1]) * 1024)
            time.sleep(0.002)

    def end(self):
        return json.loads(self.text.splitlines()[-1])


def push(url, paths, *options, sample=False, prefix=()):
    return Run([*prefix, built("bin/wsync-push"), *paths, "--endpoint", url, "--backend", "gloo",
                "--verify",
                "none", "--load-format", "flattened_bucket", "--json", *options], sample)


def warm(paths):
    for path in paths:
        with open(path, "rb") as f:
            while f.read(16 * MIB):
                pass


def in_pairs(count, ours, theirs):
    """count + 1 pairs of runs, the order alternating; the first pair is dropped."""
    results = [], []
    for i in range(count + 1):
        for who in ((0, 1), (1, 0))[i % 2]:
            results[who].append((ours, theirs)[who]())
    return results[0][1:], results[1][1:]


def checkpoint():
    """1.2 GB with the names and shapes of a small model, kept in the build directory."""
    path = built("bench/qwen3-0.6b")
    if not os.path.exists(os.path.join(path, "config.json")):
        os.makedirs(path, exist_ok=True)
        subprocess.run([built("tests/tools/mkcheckpoint"), "synthetic:qwen3-0.6b", path],
                       check=True,
                       timeout=300)
    files = [f for f in sorted(os.listdir(path)) if f.endswith(".safetensors")]
    return path, [os.path.join(path, f) for f in files]


class Cell:
    """A sender with one setting. It has an endpoint of torch for itself."""

    def __init__(self, ours, load_format, mib):
        self.ours, self.load_format, self.mib, self.runs = ours, load_format, mib, []
        self.name = "default" if not mib else "%s %d MiB" % (SHORT[load_format], mib)

    def run(self, version, urls, path, files):
        to = [arg for url in urls for arg in ("--endpoint", url)]
        if self.ours:
            how = (["--load-format", self.load_format, "--bucket-size", "%dMiB" % self.mib]
                   if self.mib else [])
            run = Run([built("bin/wsync-push"), path, *to, "--backend", "gloo", "--verify", "none",
                       "--json", *how])
            end = run.end()
            end.update(seconds=end["ns"]["total"] / 1e9, cpu_seconds=run.cpu)
        else:
            end = Run([os.path.join(lib.HERE, "python.sh"), version,
                       os.path.join(HERE, "torch_sender.py"), *to, "--load-format",
                       self.load_format, "--bucket-size", str(self.mib * MIB), *files]).end()
        self.runs.append(end)

    def of(self, what):
        return [run[what] for run in self.runs]

    def show(self, table, to):
        rates = [run["bytes"] / run["seconds"] / 1e9 for run in self.runs]
        cells = "%.2f GB/s" % median(rates), "%.2f..%.2f" % (min(rates), max(rates))
        table.row(to + self.name, *((cells[0], "") if self.ours else ("", cells[0])), "", cells[1])


SHORT = {"flattened_bucket": "flattened", "none": "per tensor"}
# Their gloo takes bfloat16 by itself; that of 1.13 and of Debian's 2.14 does not.
PER_TENSOR = ("2.6",)
SIZES = (512, 64, 32)


def cells_of(version):
    formats = ("flattened_bucket", "none") if version in PER_TENSOR else ("flattened_bucket",)
    return [Cell(True, None, None)] + [Cell(ours, f, mib) for ours in (True, False)
                                       for f in formats for mib in SIZES]


def take_turns(cells, count, run):
    """Two rounds warm up the endpoints; every other round goes backwards."""
    for i in range(count + 2):
        for cell in cells if i % 2 else reversed(cells):
            run(cell)
        if i < 2:
            for cell in cells:
                cell.runs.clear()


def best_of(cells):
    return min(cells, key=lambda cell: median(cell.of("seconds")))


def against_torch(table, count, version):
    path, files = checkpoint()
    cells = cells_of(version)
    try:
        peers = lib.Receivers(version, [1] * len(cells), options=["--keep", "none"])
    except lib.Skip as why:
        table.one("torch %s: skipped" % version, str(why))
        return
    url = dict(zip(cells, (e.url for e in peers.endpoints)))
    os.environ["OMP_NUM_THREADS"] = str(os.cpu_count())
    warm(files)
    take_turns(cells, count, lambda cell: cell.run(version, [url[cell]], path, files))
    peers.stop()
    to = "to torch %s: " % version
    for cell in cells:
        cell.show(table, to)
    if version not in PER_TENSOR:
        table.one(to + "per tensor", "", "it takes no bfloat16")
    default = cells[0]
    theirs = best_of([cell for cell in cells if not cell.ours])
    fixed = best_of([cell for cell in cells[1:] if cell.ours])
    for what, other, aim in (("time, torch's best", theirs, ">= 1.3"),
                             ("time, our best fixed", fixed, ">= 0.95")):
        table.pairs(to + what, default.of("seconds"), other.of("seconds"), seconds, aim)
    table.pairs(to + "CPU, torch's best", default.of("cpu_seconds"), theirs.of("cpu_seconds"),
                seconds, ">= 5")
    table.one(to + "first byte", seconds(median(default.of("first_byte_ns")) / 1e9), "<= 300 ms")


def many_receivers(table, count, version):
    """Four ranks of one endpoint, and four endpoints: gloo's tree passes the bytes on."""
    path, files = checkpoint()
    warm(files)
    for tps in ([4], [1] * 4):
        cells = [Cell(True, None, None), Cell(False, "flattened_bucket", 32)]
        try:
            peers = lib.Receivers(version, tps * len(cells), options=["--keep", "none"])
        except lib.Skip as why:
            table.one("torch %s: skipped" % version, str(why))
            return
        urls = [e.url for e in peers.endpoints]
        to = {cell: urls[i * len(tps):][:len(tps)] for i, cell in enumerate(cells)}
        take_turns(cells, count, lambda cell, to=to: cell.run(version, to[cell], path, files))
        peers.stop()
        to = "to %d x %d ranks: " % (len(tps), tps[0])
        ours, theirs = cells
        table.pairs(to + "torch, 32 MiB", ours.of("seconds"), theirs.of("seconds"), seconds,
                    ">= 1.3")
        table.pairs(to + "CPU", ours.of("cpu_seconds"), theirs.of("cpu_seconds"), seconds)


def verified(table, count, version):
    """A push that is proven against one that is not. The receiver is told what to report: what a
    server needs for its checksums is not ours."""
    path, files = checkpoint()
    listing = Run([built("bin/wsync-list-weights"), path, "--runtime", "--checksum",
                   "sglang-cuda", "--json"]).text
    sums = {r["name"]: r["checksum"] for r in map(json.loads, listing.splitlines())
            if r["type"] == "tensor"}
    info = {"device": "cuda", "version": "0.5.15", "dtype": "bfloat16"}
    try:
        peers = lib.Receivers(version, [1], options=[
            "--keep", "none", "--checksums", json.dumps(sums), "--server-info", json.dumps(info)])
    except lib.Skip as why:
        table.one("proof, torch %s: skipped" % version, str(why))
        return
    url = peers.endpoints[0].url
    warm(files)
    proven, plain = in_pairs(count, lambda: push(url, [path], "--verify", "hash"),
                             lambda: push(url, [path], "--verify", "names"))
    peers.stop()
    for what, of in (("time of the job", lambda r: r.end()["ns"]["total"] / 1e9),
                     ("CPU", lambda r: r.cpu)):
        table.pairs("to torch %s, proven: %s" % (version, what), [of(r) for r in proven],
                    [of(r) for r in plain], seconds, ">= 0.91" if "time" in what else "")


class OwnEndpoint:
    def __init__(self, prefix=()):
        self.child = lib.start([*prefix, built("bin/wsync-endpoint"), "--listen", "127.0.0.1:0",
                                "--keep",
                                "none", "--json"], stdout=subprocess.PIPE)
        lines, event = lib.Lines(self.child.stdout), {"type": ""}
        while event["type"] != "ready":
            event = lines.next(10)
        self.url = event["url"]

    def stop(self):
        lib.stop(self.child)


def discard(listener):
    """A process that reads one connection to its end."""
    reader = os.fork()
    if reader == 0:
        # A mapping begins at a page; copies to 16 bytes behind one, as malloc returns, are slow.
        buffer, connection = mmap.mmap(-1, MIB), listener.accept()[0]
        while connection.recv_into(buffer):
            pass
        os._exit(0)
    return reader


def loopcopy(path, congestion):
    with socket.create_server(("127.0.0.1", 0)) as listener, open(path, "rb") as f:
        reader = discard(listener)
        began = time.monotonic()
        with socket.create_connection(listener.getsockname()) as out:
            out.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if congestion:
                out.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion)
            out.sendfile(f)
        assert os.waitpid(reader, 0)[1] == 0
        return time.monotonic() - began


def against_loopback(table, count):
    path, files = checkpoint()
    endpoint = OwnEndpoint()
    warm(files)
    ours, theirs = in_pairs(count, lambda: push(endpoint.url, [path]).end(),
                            lambda:
                            sum(min(loopcopy(f, how) for how in (b"", b"reno")) for f in files))
    endpoint.stop()
    to = "to wsync-endpoint: "
    table.pairs(to + "time of the job", [e["ns"]["total"] / 1e9 for e in ours], theirs, seconds,
                ">= 0.8")
    table.pairs(to + "transfer alone",
                [(e["ns"]["transfer"] + e["ns"]["apply"]) / 1e9 for e in ours],
                theirs, seconds)
    table.one(to + "first byte", seconds(median(e["first_byte_ns"] / 1e9 for e in ours)))


def memory(table):
    """7 GB in 8 shards that take no disk: holes."""
    folder, weight_map = lib.scratch("sparse"), {}
    os.mkdir(folder)
    for i in range(8):
        name = "model-%05d-of-00008.safetensors" % (i + 1)
        tensors = [("model.layers.%d.w%d.weight" % (i, j), "BF16", (4096, 4096)) for j in range(26)]
        mkst.write(os.path.join(folder, name), tensors, holes=True)
        weight_map.update((t[0], name) for t in tensors)
    with open(os.path.join(folder, "model.safetensors.index.json"), "w", encoding="utf-8") as f:
        json.dump({"metadata": {}, "weight_map": weight_map}, f)
    endpoint = OwnEndpoint()
    run = push(endpoint.url, [folder], sample=True)
    endpoint.stop()
    what = "memory, %.1f GB in 8 shards" % (run.end()["bytes"] / 1e9)
    table.one(what, mebibytes(run.peak), "<= 200 MiB")


class TorchWorker:
    """tests/bench/torch_kernels.py, which prints how long a kernel took."""

    def __init__(self, version):
        os.environ["OMP_NUM_THREADS"] = "1"
        self.child = lib.start([os.path.join(lib.HERE, "python.sh"), version,
                                os.path.join(HERE, "torch_kernels.py"), "16384", "4096"],
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.lines = lib.Lines(self.child.stdout)
        if self.lines.next(1200) is None:
            raise lib.Skip("no torch %s (exit %s)" % (version, self.child.wait(10)))

    def seconds(self, kernel):
        self.child.stdin.write(kernel.encode() + b"\n")
        self.child.stdin.flush()
        return self.lines.next(120)["seconds"]


KERNELS = {"fp8 128x128 xorl": ">= 4", "fp8 128x128 slime": ">= 4", "lora rank 16 fold": ">= 2",
           "lora rank 16 two-step": ">= 2", "unpack 4 bits": ">= 4"}


def kernels(table, count, version):
    def measure(samples):
        run = Run([built("bin/wsync-bench"), "kernels", "--size", "128MiB", "--samples",
                   str(samples), "--json"])
        rows = map(json.loads, run.text.splitlines())
        return {r["name"]: r for r in rows if r["type"] == "measure" and r["name"] in KERNELS}
    for name, row in measure(2 * count + 1).items():
        table.pairs("%s (%s): memcpy" % (name, row["detail"]), [ns / 1e9 for ns in row["ns"]],
                    [ns / 1e9 for ns in row["against_ns"]], seconds,
                    ">= 0.5" if "fp8" in name else "")
    try:
        torch = TorchWorker(version)
    except lib.Skip as why:
        table.one("kernels, torch %s: skipped" % version, str(why))
        return
    ours, theirs = in_pairs(count, lambda: measure(1),
                            lambda: {name: torch.seconds(name) for name in KERNELS})
    for name, aim in KERNELS.items():
        table.pairs("%s: torch %s" % (name, version), [o[name]["median_ns"] / 1e9 for o in ours],
                    [t[name] for t in theirs], seconds, aim)
    lib.stop(torch.child)


class Link:
    """A loopback interface of its own that carries so many bits a second; none needs to be root."""

    def __init__(self, rate):
        setup = "ip link set lo up && tc qdisc add dev lo root tbf rate %s burst 1mb latency 20ms" \
            % rate
        self.child = lib.start(["unshare", "-rn", "sh", "-c",
                                setup + " && echo {} && exec sleep 3600"],
                               stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        if lib.Lines(self.child.stdout).next(10) is None:
            raise lib.Skip("no network namespace with a paced loopback (unshare, ip, tc)")
        self.prefix = ("nsenter", "-t", str(self.child.pid), "-U", "-n", "--preserve-credentials")

    def stop(self):
        lib.stop(self.child)


def quantized(path, listing):
    """The tensors that a push in FP8 of this checkpoint sends, as a file."""
    sent = lib.scratch("quantized.safetensors")
    rows = [json.loads(line) for line in Run(listing).text.splitlines()]
    kinds = {torch: kind for kind, torch in lib.TORCH_NAME.items()}
    mkst.write(sent, [(r["name"], kinds[r["dtype"]], r["shape"]) for r in rows
                      if r["type"] == "tensor"],
               holes=True)
    return sent


def overlap(table, count, path, sent, listing, where, prefix=()):
    endpoint = OwnEndpoint(prefix)

    def total(*args):
        return push(endpoint.url, *args, prefix=prefix).end()["ns"]["total"] / 1e9
    ours, theirs = in_pairs(count, lambda: total([path], "--quantize", "fp8"),
                            lambda: Run(listing + ["--hash"]).wall + total([sent]))
    endpoint.stop()
    table.pairs("fp8, %s: quantize, then send" % where, ours, theirs, seconds, ">= 1.33")


def overlapping(table, count):
    """Quantizing while sending, against one after the other; nothing is kept at the other end."""
    path, files = checkpoint()
    listing = [built("bin/wsync-list-weights"), "--as-sent", "--quantize", "fp8", "--json", path]
    sent = quantized(path, listing)
    warm(files)
    overlap(table, count, path, sent, listing, "loopback")
    try:
        link = Link(LINK)
    except lib.Skip as why:
        table.one("fp8, %s: skipped" % LINK, str(why))
    else:
        overlap(table, count, path, sent, listing, LINK, link.prefix)
        link.stop()
    os.unlink(sent)


def planning(table, count):
    argv = [built("bin/wsync-push"), "synthetic:deepseek-v3", "--dry-run", "--json"]
    runs = [Run(argv, sample=True) for _ in range(count)]
    plan = next(e for e in map(json.loads, runs[0].text.splitlines()) if e["type"] == "plan")
    what = "plan deepseek-v3 (%d tensors), " % plan["tensors"]
    table.one(what + "time", seconds(median(r.wall for r in runs)), "<= 1 s")
    table.one(what + "mem", mebibytes(median(r.peak for r in runs)), "<= 200 MiB")


def scaling(table, count):
    buckets = 100
    source = lib.scratch("small-buckets.safetensors")
    mkst.write(source, [("layer.%d.weight" % i, "BF16", (64, 64)) for i in range(buckets)])
    for n in (1, 8, 64):
        endpoints = [OwnEndpoint() for _ in range(n)]
        more = [arg for e in endpoints[1:] for arg in ("--endpoint", e.url)]
        runs = [push(endpoints[0].url, [source], *more, "--bucket-size", "8KiB")
                for _ in range(count + 1)][1:]
        for e in endpoints:
            e.stop()
        events = [[json.loads(line) for line in r.text.splitlines()] for r in runs]
        took = [[e["ns"] / 1e9 for e in es if e["type"] == "bucket"] for es in events]
        assert all(len(t) == buckets for t in took)
        to = "to %d endpoint%s: " % (n, "" if n == 1 else "s")
        table.alone(to + "form the group", [es[-1]["ns"]["init"] / 1e9 for es in events],
                    milliseconds,
                    "<= 3 s" if n == 64 else "")
        table.alone(to + "a bucket", [median(t) for t in took], milliseconds,
                    "<= 20 ms" if n == 64 else "")
        table.alone(to + "CPU per bucket", [r.cpu / buckets for r in runs], milliseconds)


def machine():
    def first(path, key):
        with open(path, encoding="utf-8") as f:
            lines = (line.split(":", 1)[-1].strip() for line in f if line.startswith(key))
            return next(lines, "unknown")
    commit = subprocess.run(["git", "-C", lib.TREE, "describe", "--always", "--dirty"], timeout=10,
                            capture_output=True, text=True, check=False).stdout.strip()
    print("Machine       %s, %d CPUs, kernel %s, TCP congestion control %s, commit %s\n" % (
        first("/proc/cpuinfo", "model name"), os.cpu_count(), os.uname().release,
        first("/proc/sys/net/ipv4/tcp_congestion_control", ""), commit or "unknown"))


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--pairs", type=int, default=9, help="pairs that count (9)")
    p.add_argument("--torch", help="compare with this version of torch only (2.6; in section torch:"
                   " 1.13, 2.6 and 2.14)")
    p.add_argument("--only", choices=SECTIONS, action="append",
                   help="some of it; repeatable")
    args = p.parse_args()
    only = args.only or SECTIONS
    version = args.torch or "2.6"
    print(DEFINITIONS + "\n")
    machine()
    table = Table()
    if "torch" in only:
        for one in [args.torch] if args.torch else VERSIONS:
            against_torch(table, args.pairs, one)
    if "many" in only:
        many_receivers(table, args.pairs, version)
    if "proof" in only:
        verified(table, args.pairs, version)
    if "loopback" in only:
        against_loopback(table, args.pairs)
    if "kernels" in only:
        kernels(table, args.pairs, version)
    if "overlap" in only:
        overlapping(table, args.pairs)
    if "memory" in only:
        memory(table)
    if "plan" in only:
        planning(table, args.pairs)
    if "scale" in only:
        scaling(table, args.pairs)


if __name__ == "__main__":
    main()
