#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Weights out of the memory of a real torch that exports its state_dict, on the GPU that is here
(on_torch.py): trainer.py has them, wsync-push brings them to other torch processes.

With WSYNC_TEST_DEVICE=cpu torch's tensors lie in memory of the double of libcuda.
"""
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile

import on_torch
from on_torch import ON_CPU, OVER, PYTHON, lib
import mkst

WEIGHTS = [("embed.weight", "F32", (2000, 300)), ("layers.0.w", "BF16", (513, 1025)),
           ("layers.1.q", "U8", (3, 100003)), ("turned.weight", "F32", (333, 77)),
           ("layers.1.i", "I64", (31, 3)),
           ("big", "F16", (6000, 3001)), ("odd", "U8", (13,)), ("one", "U8", (1,)),
           ("s", "F32", ()),
           ("none", "F32", (0, 7))] + [("layers.%d.norm" % i, "BF16", (512,)) for i in range(40)]
FLOAT8 = [("embed.weight", "F8_E4M3", (1000, 77)), ("embed.weight_scale_inv", "F32", (8, 1))]
FLAT = ("--load-format", "flattened_bucket", "--bucket-size", "8MiB")

suite = lib.Suite()


class Trainer:
    def __init__(self, tensors=WEIGHTS, *options):
        self.place = tempfile.mkdtemp(dir=lib.SCRATCH)
        self.file, self.manifest = os.path.join(self.place,
                                                "w.safetensors"), os.path.join(self.place, "m.json")
        mkst.write(self.file, tensors, seed=5)
        here = os.path.dirname(os.path.abspath(__file__))
        with open(os.path.join(self.place, "trainer.err"), "wb") as err:
            self.child = lib.start([PYTHON, os.path.join(here, "trainer.py"), self.file,
                                    self.manifest, *options],
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=err)
        self.lines = lib.Lines(self.child.stdout)
        self.said = self.lines.next()
        if self.said is None:
            with open(os.path.join(self.place, "trainer.err"), encoding="utf-8") as err:
                raise AssertionError("the trainer died: " + err.read())
        self.source = "cuda-ipc:" + self.manifest

    def tell(self, order):
        self.child.stdin.write(order.encode() + b"\n")
        self.child.stdin.flush()
        return self.lines.next()

    def expected(self):
        """What receivers must hold: the file, under the tied name too, without what is empty."""
        held = lib.oracle(self.file)
        held["tied.weight"] = held["embed.weight"]
        return {name: t for name, t in held.items() if 0 not in t["shape"]}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        lib.stop(self.child)


def hashes(source):
    """(exit status, name -> hash, stderr)"""
    done = subprocess.run([os.path.join(lib.BUILD, "bin/wsync-list-weights"), "--hash", "--json",
                           source],
                          capture_output=True, text=True, timeout=120, check=False)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return done.returncode, {l["name"]: l["hash"] for l in lines
                             if l["type"] == "tensor"}, done.stderr


@suite.case("a state_dict reaches torch, byte for byte")
def reaches(fix):
    lib.need("nccl")
    with Trainer() as trainer:
        result = lib.push(fix.peers.endpoints, [trainer.source], *OVER, *FLAT)
        assert result.rc == 0 and result.end["ok"], result
        lib.check_held(fix.peers.endpoints, trainer.expected())


@suite.case("FP8 and its scales, over gloo too")
def small_types(fix):
    if ON_CPU:
        raise lib.Skip("this torch may be too old for them")
    lib.need("nccl")
    with Trainer(FLOAT8) as trainer:
        for over in (OVER, ["--backend", "gloo"]) if fix.gloo else (OVER,):
            endpoints = (fix.gloo if "gloo" in over else fix.peers).endpoints
            result = lib.push(endpoints, [trainer.source], *over, *FLAT)
            assert result.rc == 0 and result.end["ok"], result
            lib.check_held(endpoints, trainer.expected())


@suite.case("what is read is the file, and what is trained in place shows without another export")
def trained(_fix):
    with Trainer() as trainer:
        rc, before, said = hashes(trainer.source)
        assert rc == 0, said
        _, of_file, _ = hashes(trainer.file)
        assert {n: h for n, h in before.items() if n != "tied.weight"} == of_file
        assert trainer.tell("zero layers.0.w") == {"done": "zero"}
        rc, after, said = hashes(trainer.source)
        assert rc == 0, said
        assert [n for n in after if after[n] != before[n]] == ["layers.0.w"], after


@suite.case("two pushes from one export, through one group")
def session(fix):
    lib.need("nccl")
    with Trainer() as trainer:
        session = lib.Session(fix.peers.endpoints, *OVER, *FLAT)
        for _ in range(2):
            result = session.push(trainer.source)
            assert result and result["ok"], result
            lib.check_held(fix.peers.endpoints, trainer.expected())
        rc, end = session.close()
        assert rc == 0 and end["ok"], end


@suite.case("memory that the trainer lets go of is torch's again, and not to be had")
def freed(_fix):
    if ON_CPU:
        raise lib.Skip("only torch on a GPU gives memory back")
    with Trainer() as trainer:
        assert hashes(trainer.source)[0] == 0
        assert trainer.tell("free") == {"done": "free", "reserved": 0}
        rc, _, said = hashes(trainer.source)
        assert rc == 7 and "memory" in said, (rc, said)


@suite.case("a trainer that was killed is told by its name")
def killed(_fix):
    with Trainer() as trainer:
        pid = trainer.child.pid
        os.kill(pid, signal.SIGKILL)
        trainer.child.wait(lib.PATIENCE)
        rc, _, said = hashes(trainer.source)
        assert rc == 3 and "(pid %d) has ended: its memory is gone" % pid in said, (rc, said)


@suite.case("expandable segments are refused where they are exported")
def expandable(_fix):
    if ON_CPU:
        raise lib.Skip("only torch on a GPU has them")
    with Trainer(WEIGHTS, "--expandable") as trainer:
        assert not trainer.said["shared"], trainer.said
        assert "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False" in trainer.said["said"], \
            trainer.said


class Fixture:
    def __init__(self):
        if ON_CPU:
            double, place = os.path.join(lib.BUILD, "tests/gpu/fake_cuda.so"), lib.scratch("lib")
            if not os.path.exists(double):
                raise lib.Skip("built without CUDA")
            with open(double, "rb") as f:
                if b"__asan_init" in f.read():
                    raise lib.Skip("a Python without sanitizers cannot load a double with them")
            os.mkdir(place)
            os.symlink(double, os.path.join(place, "libcuda.so.1"))
            os.environ["LD_LIBRARY_PATH"] = place
        on_torch.begin()
        self.peers = on_torch.receivers([1, 2])
        self.gloo = None
        if not ON_CPU:
            with contextlib.suppress(Exception):  # this torch may have none
                self.gloo = lib.Receivers("any", [1], options=("--device", "cpu"), python=PYTHON)


if __name__ == "__main__":
    sys.exit(suite.main(Fixture))
