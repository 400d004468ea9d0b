#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Adapters of every form, merged by our kernels and by torch: the same within one unit in the last
place of bf16, and the same where sums are exact."""
import json
import os
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import lib  # noqa: E402

sys.path.insert(0, os.path.join(lib.TREE, "tests", "data", "lora"))
import make  # noqa: E402

DATA = os.path.join(lib.TREE, "tests", "data", "lora")
HERE = os.path.dirname(os.path.abspath(__file__))
suite = lib.Suite(120, "tests/tools/mergetool")


def python(*args):
    return [os.path.join(HERE, "python.sh"), "2.6", os.path.join(HERE, "lora_oracle.py"), *args]


class Oracle:
    def __init__(self):
        self.child = lib.start(python("check"), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.lines, self.large = lib.Lines(self.child.stdout), lib.scratch("large")

    def check(self, variant, base, adapter, two_step, options=()):
        merged = lib.scratch("%s-%d.safetensors" % (variant, two_step))
        argv = [os.path.join(lib.BUILD, "tests/tools/mergetool"), *options, *["-2"][:two_step],
                base, adapter, merged]
        run = subprocess.run(argv, capture_output=True, text=True, timeout=60)
        assert run.returncode == 0, run.stdout + run.stderr
        assert json.loads(run.stdout)["left_over"] == 0, run.stdout
        job = {"variant": variant, "base": base, "adapter": adapter, "merged": merged,
               "two_step": two_step}
        self.child.stdin.write(json.dumps(job).encode() + b"\n")
        self.child.stdin.flush()
        answer = self.lines.next(60)
        assert answer and "wrong" not in answer, answer
        return answer


def set_up():
    done = subprocess.run(python("make", lib.scratch("large")), capture_output=True, text=True,
                          timeout=1200)
    if done.returncode == 77:
        raise lib.Skip(done.stderr.strip().split("\n")[-1])
    assert done.returncode == 0, done.stderr
    return Oracle()


def merged_as_torch_does(variant, base):
    def run(oracle):
        for two_step in (False, True):
            answer = oracle.check(variant, os.path.join(DATA, "bases", base),
                                  os.path.join(DATA, "good", variant), two_step,
                                  ["-n"] if variant == "over_fused" else [])
            assert answer["tensors"] > 0 and answer["off"] <= answer["elements"] // 100, answer
    return run


for name, base_name in make.GOOD.items():
    suite.case("%s is merged as torch does" % name)(merged_as_torch_does(name, base_name))


@suite.case("many ranks and odd sizes are merged as torch does")
def large(oracle):
    for two_step in (False, True):
        answer = oracle.check("large", os.path.join(oracle.large, "base"),
                              os.path.join(oracle.large, "adapter"), two_step)
        print("# %(off)d of %(elements)d elements are one ulp away" % answer)


@suite.case("the adapters are those that make.py makes")
def same_files(_oracle):
    again = lib.scratch("again")
    make.make(again)
    for here, _, files in os.walk(again):
        for name in files:
            path = os.path.join(here, name)
            with open(path, "rb") as a, open(os.path.join(DATA, os.path.relpath(path, again)),
                                             "rb") as b:
                assert a.read() == b.read(), path


sys.exit(suite.main(set_up))
