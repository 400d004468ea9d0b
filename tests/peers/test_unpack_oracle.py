# SPDX-License-Identifier: Apache-2.0
"""Quantized weights come to the numbers that torch makes of them, to the bit, by all instruction
sets."""
import filecmp
import json
import os
import subprocess
import sys

import lib

TOOL = os.path.join(lib.BUILD, "tests", "tools", "unpack")


class Oracle:
    def __init__(self):
        self.dir = lib.scratch("oracle")
        os.mkdir(self.dir)
        done = run([os.path.join(lib.HERE, "python.sh"), "2.6",
                    os.path.join(lib.HERE, "unpack_oracle.py"),
                    self.dir])
        if done.returncode == 77:
            raise lib.Skip(done.stderr.strip().split("\n")[-1])
        assert done.returncode == 0, done.stderr
        self.weights = [json.loads(line) for line in done.stdout.splitlines()]
        self.source = os.path.join(self.dir, "base.safetensors")


def run(argv):
    child = lib.start(argv, None, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        out, err = child.communicate(timeout=lib.PATIENCE)
    finally:
        lib.stop(child)
    return subprocess.CompletedProcess(argv, child.returncode, out, err)


suite = lib.Suite("tests/tools/unpack")


def unpack(oracle, level):
    out = lib.scratch("unpacked-" + level)
    os.mkdir(out)
    done = run([TOOL, oracle.source, out, level])
    if done.returncode == 77:
        raise lib.Skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    for want, got in zip(oracle.weights, found):
        assert want == got, (want, got)
    assert len(oracle.weights) == len(found)
    for i, weight in enumerate(found):
        for ending in ("f32", "rounded"):
            name = "%d.%s" % (i, ending)
            assert filecmp.cmp(os.path.join(oracle.dir, name), os.path.join(out, name), False), (
                "%s, %s: other numbers than torch's" % (weight["name"], ending))


@suite.case("in plain C")
def _(oracle):
    unpack(oracle, "scalar")


@suite.case("with AVX2")
def _(oracle):
    unpack(oracle, "avx2")


sys.exit(suite.main(Oracle))
