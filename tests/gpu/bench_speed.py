#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench_speed.py [--told] [kernels] [load] [broadcast]: the speeds that wsync must have on a GPU,
each as a ratio to what that GPU does beside it. --told: fewer samples, and only wrong bytes fail.

A ratio is the median of those of all pairs of samples, which wsync-bench takes in turns; what it
measured is printed, whether or not it is enough. WSYNC_TEST_CUDA names another libcuda,
WSYNC_NCCL_LIB a libnccl.so.2, or WSYNC_TEST_PYTHON an interpreter whose torch has one. On a double
there is no speed; WSYNC_TEST_TRY=1 runs all of this there on little, and asks for right bytes
alone.
"""
import json
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "peers"))
import lib  # noqa: E402
import check  # noqa: E402
import loopback  # noqa: E402
import mkst  # noqa: E402

CUDA = os.environ.get("WSYNC_TEST_CUDA", "libcuda.so.1")
TRY = os.environ.get("WSYNC_TEST_TRY") == "1"
ONLY_TELL = "--told" in sys.argv
CHOSEN = [word for word in sys.argv[1:] if word != "--told"]
# of a device copy, of a copy of pinned memory, of a bare loop
BLOCKS, LOAD, BROADCAST = 0.85, 0.80, 0.95
# merge_bf16 executes some 50 instructions for each number of rank 16, so it is bound by them and
# not by memory: at most 2.6 TB/s on an H200, whose memory moves 4.3 TB/s. Raise this with a kernel
# that needs fewer. Files arrive far more slowly than that.
MERGES = 0.35
# size, samples, warm-ups
MEMORY = ("1MiB", "1", "0") if TRY else ("256MiB", "9", "2") if ONLY_TELL else (
    "256MiB", "15", "3")
ABSENT = ("cannot be loaded", "there is no GPU", "has no libnccl.so.2", "for its NCCL",
          "built without CUDA")

suite = lib.Suite("bin/wsync-bench")


def case(title):
    """Of the cases that were asked for."""
    return lambda function: (suite.case(title)(function)
                             if not CHOSEN or function.__name__ in CHOSEN else function)


def bench(*args, seconds=280, environment=None):
    """The lines of a run. Its rows are printed; what must not be is said by the one who asked."""
    argv = [os.path.join(lib.BUILD, "bin/wsync-bench"), *args, "--json"]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=seconds, check=False,
                          env=dict(os.environ, **(environment or {})))
    lines = [json.loads(line) for line in done.stdout.split("\n") if line]
    # What is there must work: only its absence is a reason to skip.
    if done.returncode and any(why in done.stderr for why in ABSENT):
        raise lib.Skip(done.stderr.split("\n")[0])
    for line in lines:
        if line["type"] == "machine":
            print("# %s, sm_%s, driver %s, CUDA %s, NCCL %s" % (
                line["gpu"], line["compute_capability"].replace(".", ""), line["driver"],
                line["cuda"], line["nccl"]))
        elif line["type"] == "measure":
            print("# " + told(line))
    assert done.returncode == 0, done.stderr
    return [line for line in lines if line["type"] == "measure"]


def told(row):
    what = "%-24s %8.1f MiB %9.2f GB/s" % (row["name"], row["bytes"] / 2 ** 20,
                                           row["bytes"] / row["median_ns"])
    if row["against"]:
        what += "  %5.2f (%.2f to %.2f) of %s" % (row["ratio"], row["ratio_min"], row["ratio_max"],
                                                  row["against"])
    return what


def expect(rows, least):
    for row in rows:
        assert row.get("errors", 0) == 0, "%s: %d bytes are wrong" % (row["name"], row["errors"])
    slow = [told(row) for row in rows if row["ratio"] < least]
    assert TRY or ONLY_TELL or not slow, "below %.2f: %s" % (least, "; ".join(slow))


@case("blocks of FP8 run at %.2f of a device copy or more, fused merges at %.2f" % (BLOCKS, MERGES))
def kernels(_):
    size, samples, warmups = MEMORY
    rows = bench("kernels", "--on", "gpu", "--size", size, "--samples", samples, "--warmup",
                 warmups)
    for names, n, least in ((("fp8 128x128",), 3, BLOCKS),
                            (("lora rank 16 fold", "lora rank 16 two-step"), 2, MERGES)):
        held = [row for row in rows if row["name"].startswith(names)]
        assert len(held) == n, held
        expect(held, least)


@case("a file of the page cache reaches the GPU at %.2f of the rate of pinned memory or more"
            % LOAD)
def load(_):
    path = lib.scratch("large.safetensors")
    # 2 GiB, which nobody needs to write where 2 MiB find no GPU
    for columns in (64,) if TRY else (64, 65536):
        mkst.write(path, [("w%d" % i, "BF16", (1024, columns)) for i in range(16)], 1)
        rows = bench("load", path, "--to", "gpu", "--samples", MEMORY[1], "--warmup", MEMORY[2])
    os.unlink(path)
    expect([row for row in rows if row["name"] == "read to GPU"], LOAD)


@case("a broadcast of a push over NCCL is within %.0f %% of a bare loop of the same sizes"
      % (100 - 100 * BROADCAST))
def broadcast(_):
    """Between two GPUs, over sockets. On a single GPU two ranks take turns of milliseconds, which
    hide such a difference: there the ratio of few bytes is told and not judged."""
    gpu = check.ask_driver()
    alone = gpu and gpu[2] == "1"
    if alone:
        lib.need("nccl")
    named = [] if os.environ.get("WSYNC_NCCL_LIB") else ["--nccl-from",
                                                         os.environ.get("WSYNC_TEST_PYTHON",
                                                             "python3")]
    least, most, count, samples, seconds = (
        ("64KiB", "1MiB", 2, 2, 280) if TRY else
        ("16MiB", "32MiB", 4, 3, 60) if alone else ("64MiB", "128MiB", 8, 5, 280))
    rows = bench("transport", "--backend", "nccl", *named, "--min-size", least, "--max-size", most,
                 "--factor", "2", "--count", str(count), "--samples", str(samples), "--warmup", "1",
                 "--check", seconds=seconds, environment=loopback.ENVIRONMENT)
    expect(rows, 0 if alone else BROADCAST)


def set_up():
    assert set(CHOSEN) <= {"kernels", "load", "broadcast"}, CHOSEN
    if "fake" in CUDA and not TRY:
        raise lib.Skip("a double has no speed")
    if CUDA != "libcuda.so.1":
        beside = lib.scratch("")
        os.symlink(os.path.abspath(CUDA), os.path.join(beside, "libcuda.so.1"))
        os.environ["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None,
            [beside, os.environ.get("LD_LIBRARY_PATH")]))


sys.exit(suite.main(set_up))
