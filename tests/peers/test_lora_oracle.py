#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Adapters of every form, merged by a push and by torch: the same where sums are exact or bf16
does not see their order, within one unit in the last place of bf16 elsewhere; where W and its
change cancel and torch's order of additions decides, within the bound of fp32 and no further from
the true sum than torch. lora_oracle.py says which is which."""
import glob
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
suite = lib.Suite("bin/wsync-endpoint")


def python(*args):
    return [os.path.join(HERE, "python.sh"), "2.6", os.path.join(HERE, "lora_oracle.py"), *args]


KINDS = ("exact", "decided", "near", "cancelled")


class Oracle:
    def __init__(self):
        self.child = lib.start(python("check"), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.lines, self.hard = lib.Lines(self.child.stdout), lib.scratch("hard")
        self.endpoint = lib.Embedded()

    def ask(self, job):
        self.child.stdin.write(json.dumps(job).encode() + b"\n")
        self.child.stdin.flush()
        return self.lines.next()

    def merge(self, variant, base, adapter, two_step):
        """Pushes to disk; the checkpoint holds what any push would send."""
        out = lib.scratch("merged-%s-%d" % (variant, two_step))
        if not os.path.exists(out):
            done = lib.push([self.endpoint], [base], "--backend", "disk", "--disk-dir", out,
                            "--lora", adapter, *["--lora-rounding", "two-step"][:2 * two_step])
            assert done.rc == 0, done
        merged, = glob.glob(os.path.join(out, "*", "model.safetensors"))
        return {"variant": variant, "base": base, "adapter": adapter, "merged": merged,
                "two_step": two_step}

    def check(self, *what):
        answer = self.ask(self.merge(*what))
        assert answer and "wrong" not in answer, answer
        assert answer["tensors"] > 0 and answer["exact_off"] == answer["decided_off"] == 0, answer
        return answer

    def hard_files(self, name):
        return os.path.join(self.hard, name, "base"), os.path.join(self.hard, name, "adapter")


def set_up():
    done = subprocess.run(python("make", lib.scratch("hard")), capture_output=True, text=True,
                          timeout=lib.PATIENCE)
    if done.returncode == 77:
        raise lib.Skip(done.stderr.strip().split("\n")[-1])
    assert done.returncode == 0, done.stderr
    return Oracle()


def merged_as_torch_does(variant, base):
    def run(oracle):
        for two_step in (False, True):
            oracle.check(variant, os.path.join(DATA, "bases", base),
                         os.path.join(DATA, "good", variant), two_step)
    return run


for name, (base_name, form) in make.GOOD.items():
    suite.case("%s: %s" % (name, form.replace("`", "")))(merged_as_torch_does(name, base_name))


def hard(name, two_step):
    @suite.case("hard sums of %s factors, %s: equal to torch but where its order decides" %
                (name, "in two steps" if two_step else "rounded once"))
    def run(oracle):
        n = oracle.check(name, *oracle.hard_files(name), two_step)
        print("# of %(elements)d elements in %(tensors)d tensors:" % n)
        print("#   the fp32 sum is exact: %(exact)d, equal to torch: all" % n)
        print("#   bf16 does not see the order of additions: %(decided)d, equal to torch: all" % n)
        print("#   two neighbours are possible: %(near)d, one ulp from torch: %(near_off)d, "
              "further: 0" % n)
        print("#   W and the change cancel: %(cancelled)d, within one ulp of torch: %(ulp_off)d, "
              "all of them "
              "within the bound of fp32" % n)
        print("#   distance from the fp64 sum there, in shares of that bound: ours %.5f, torch's "
              "%.5f" %
              (n["ours"] / max(1, n["cancelled"]), n["torchs"] / max(1, n["cancelled"])))
        assert all(n[kind] > 1000 for kind in KINDS) and n["ours"] <= 1.1 * n["torchs"], n


for which in ("bf16", "f32"):
    hard(which, False)
    hard(which, True)


def noticed(what, name, rounded_twice, **slip):
    @suite.case("the comparison notices " + what)
    def run(oracle):
        job = oracle.merge(name, *oracle.hard_files(name), rounded_twice)
        answer = oracle.ask(dict(job, **slip))
        assert answer and "wrong" in answer, answer


noticed("a scale that is one unit of fp32 off", "bf16", False, slip="scale")
noticed("a scale that is one unit of fp32 off, in two steps", "bf16", True, slip="scale")
noticed("ranks in another order in A than in B", "bf16", False, slip="rows")
noticed("alpha / sqrt(r) for alpha / r", "bf16", False, slip="rslora")
noticed("alpha / r for alpha / sqrt(r)", "f32", False, slip="rslora")
noticed("a change that is rounded before it is added", "bf16", True, two_step=False)
noticed("a change that is not rounded before it is added", "f32", False, two_step=True)


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
