#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Adapters of every form, merged by our kernels and by torch: the same where sums are exact or bf16
does not see their order, within one unit in the last place of bf16 elsewhere; where W and its
change cancel and torch's order of additions decides, within the bound of fp32 and no further from
the true sum than torch. lora_oracle.py says which is which."""
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
suite = lib.Suite("tests/tools/mergetool")


def python(*args):
    return [os.path.join(HERE, "python.sh"), "2.6", os.path.join(HERE, "lora_oracle.py"), *args]


KINDS = ("exact", "decided", "near", "cancelled")


class Oracle:
    def __init__(self):
        self.child = lib.start(python("check"), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.lines, self.hard = lib.Lines(self.child.stdout), lib.scratch("hard")

    def ask(self, job):
        self.child.stdin.write(json.dumps(job).encode() + b"\n")
        self.child.stdin.flush()
        return self.lines.next(60)

    def merge(self, variant, base, adapter, two_step, options=()):
        merged = lib.scratch("%s-%d.safetensors" % (variant, two_step))
        argv = [os.path.join(lib.BUILD, "tests/tools/mergetool"), *options, *["-2"][:two_step],
                base, adapter, merged]
        run = subprocess.run(argv, capture_output=True, text=True, timeout=60)
        assert run.returncode == 0, run.stdout + run.stderr
        assert json.loads(run.stdout)["left_over"] == 0, run.stdout
        return {"variant": variant, "base": base, "adapter": adapter, "merged": merged,
                "two_step": two_step}

    def check(self, *what):
        job = self.merge(*what)
        answer = self.ask(job)
        assert answer and "wrong" not in answer, answer
        assert answer["tensors"] > 0 and answer["exact_off"] == answer["decided_off"] == 0, answer
        if not what[4:]:
            self.is_sent(*what[1:4], job["merged"])
        return answer

    def is_sent(self, base, adapter, two_step, merged):
        """What a push would send of these tensors is what was merged here."""
        def hashes(path, *options):
            argv = [os.path.join(lib.BUILD, "bin/wsync-list-weights"), "--hash", "--json", path,
                    *options]
            run = subprocess.run(argv, capture_output=True, text=True, timeout=60)
            assert run.returncode == 0, run.stderr
            return {line["name"]: line["hash"] for line in map(json.loads, run.stdout.splitlines())
                    if line["type"] == "tensor"}
        sent = hashes(base, "--as-sent", "--lora", adapter,
                      *["--lora-rounding", "two-step"][:2 * two_step])
        ours = hashes(merged)
        assert ours and all(sent.get(name) == ours[name] for name in ours), (sent, ours)

    def hard_files(self, name):
        return os.path.join(self.hard, name, "base"), os.path.join(self.hard, name, "adapter")


def set_up():
    done = subprocess.run(python("make", lib.scratch("hard")), capture_output=True, text=True,
                          timeout=1200)
    if done.returncode == 77:
        raise lib.Skip(done.stderr.strip().split("\n")[-1])
    assert done.returncode == 0, done.stderr
    return Oracle()


def merged_as_torch_does(variant, base):
    def run(oracle):
        for two_step in (False, True):
            oracle.check(variant, os.path.join(DATA, "bases", base),
                         os.path.join(DATA, "good", variant),
                         two_step, *[["-n"]][:variant == "over_fused"])
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
