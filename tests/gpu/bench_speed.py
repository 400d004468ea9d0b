#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The speeds that wsync must have on a GPU, each as a ratio to what that GPU does beside it.

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
import loopback  # noqa: E402
import mkst  # noqa: E402

CUDA = os.environ.get("WSYNC_TEST_CUDA", "libcuda.so.1")
TRY = os.environ.get("WSYNC_TEST_TRY") == "1"
# of a device copy, of a copy of pinned memory, of a bare loop
KERNELS, LOAD, BROADCAST = 0.85, 0.80, 0.95
MEMORY = ("1MiB", "1", "0") if TRY else ("256MiB", "15", "3")  # size, samples, warm-ups
ABSENT = ("cannot be loaded", "there is no GPU", "has no libnccl.so.2", "for its NCCL",
          "built without CUDA")

suite = lib.Suite("bin/wsync-bench")


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
    assert TRY or not slow, "below %.2f: %s" % (least, "; ".join(slow))


@suite.case("blocks of FP8 and fused merges run at %.2f of a device copy or more" % KERNELS)
def kernels(_):
    size, samples, warmups = MEMORY
    rows = bench("kernels", "--on", "gpu", "--size", size, "--samples", samples, "--warmup",
                 warmups)
    held = [row for row in rows
            if row["name"].startswith(("fp8 128x128", "lora rank 16 fold",
                                       "lora rank 16 two-step"))]
    assert len(held) == 5, held
    expect(held, KERNELS)


@suite.case("a file of the page cache reaches the GPU at %.2f of the rate of pinned memory or more"
            % LOAD)
def load(_):
    path = lib.scratch("large.safetensors")
    # 2 GiB, which nobody needs to write where 2 MiB find no GPU
    for columns in (64,) if TRY else (64, 65536):
        mkst.write(path, [("w%d" % i, "BF16", (1024, columns)) for i in range(16)], 1)
        rows = bench("load", path, "--to", "gpu", "--samples", MEMORY[1], "--warmup", MEMORY[2])
    os.unlink(path)
    expect([row for row in rows if row["name"] == "read to GPU"], LOAD)


@suite.case("a broadcast of a push over NCCL is within %.0f %% of a bare loop of the same sizes"
            % (100 - 100 * BROADCAST))
def broadcast(_):
    """Two ranks on one GPU, over sockets: between GPUs a bare loop is bound by their links, a push
    by the host's."""
    named = [] if os.environ.get("WSYNC_NCCL_LIB") else ["--nccl-from",
                                                         os.environ.get("WSYNC_TEST_PYTHON",
                                                             "python3")]
    sizes = ["--min-size", "64KiB", "--max-size", "1MiB"] if TRY else ["--min-size", "64MiB",
        "--max-size", "128MiB"]
    rows = bench("transport", "--backend", "nccl", *named, *sizes, "--factor", "2", "--count",
                 "2" if TRY else "8",
                 "--samples", "2" if TRY else "5", "--warmup", "1", "--check",
                 environment=dict(loopback.ENVIRONMENT, CUDA_VISIBLE_DEVICES="0"))
    expect(rows, BROADCAST)


def set_up():
    if "fake" in CUDA and not TRY:
        raise lib.Skip("a double has no speed")
    if CUDA != "libcuda.so.1":
        beside = lib.scratch("")
        os.symlink(os.path.abspath(CUDA), os.path.join(beside, "libcuda.so.1"))
        os.environ["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None,
            [beside, os.environ.get("LD_LIBRARY_PATH")]))


sys.exit(suite.main(set_up))
