#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Adapters that PEFT saved, merged as PEFT merges them, or refused.

What PEFT makes of those in tests/data/peft/cases.json was computed before, and PEFT is not needed.
With WSYNC_TEST_PEFT=1, or with a number, which chooses others, the real PEFT makes 300 new ones;
the first time it fetches 100 MB from PyPI. WSYNC_TEST_PEFT=bless writes cases.json anew.
"""
import collections
import os
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import lib  # noqa: E402
import peft_cases  # noqa: E402

DATA = os.path.join(lib.TREE, "tests", "data", "peft", "cases.json")
VERSION, NEW, KEPT = "0.21.2", 300, 150
WANTED = os.environ.get("WSYNC_TEST_PEFT", "")
suite = lib.Suite("bin/wsync-push")


def make(path, n, seed):
    """Asks PEFT."""
    flat = os.path.join(lib.scratch("packed"), "base")
    os.makedirs(os.path.dirname(flat), exist_ok=True)
    if not os.path.exists(flat + ".flat"):
        peft_cases.write_base(flat, {"packed": "nf4"})
    script = os.path.join(lib.HERE, "peft.sh")
    done = subprocess.run([script, VERSION], stdout=subprocess.PIPE, text=True, timeout=3000)
    if done.returncode == 77:
        raise lib.Skip("there is no PEFT")
    torch, site = done.stdout.split()
    env = dict(os.environ, PYTHONPATH=site, WSYNC_SHOW=os.path.dirname(site), HF_HUB_OFFLINE="1")
    subprocess.run([os.path.join(lib.HERE, "python.sh"), torch,
                    os.path.join(lib.HERE, "peft_oracle.py"), path, str(n), str(seed),
                    flat + ".flat"], env=env, check=True, timeout=3000)


def check(path, name):
    data = peft_cases.read_description(path)
    bases = peft_cases.Bases(data["bases"], lib.scratch("bases-of-" + name))
    counts, wrong = collections.Counter(), []
    for i, case in enumerate(data["cases"]):
        directory = lib.scratch("case")
        os.makedirs(directory)
        verdict = peft_cases.push(case, bases, directory)
        why = peft_cases.judge(case, verdict)
        for group in (case["kind"], "base " + case["base"], "all"):
            counts[group, verdict[0]] += 1
        if why:
            wrong.append("case %d, %s of %s: %s" % (i, case["kind"], case["base"], why))
            if "WSYNC_KEEP" in os.environ:
                shutil.copytree(directory, os.path.join(os.environ["WSYNC_KEEP"], str(i)))
        shutil.rmtree(directory)
    for group in sorted({k for k, _ in counts}):
        print("# %-18s %3d equal, %3d refused" % (group, counts[group, "merged"],
                                                 counts[group, "refused"]))
    assert not wrong, "%d wrong:\n%s" % (len(wrong), "\n".join(wrong))


@suite.case("adapters of which it is known what PEFT makes of them: the same, or refused")
def kept(_):
    if WANTED == "bless":
        os.makedirs(os.path.dirname(DATA), exist_ok=True)
        make(DATA, KEPT, 0)
    check(DATA, "kept")


@suite.case("new adapters, merged by PEFT itself: the same, or refused")
def new(_):
    if WANTED in ("", "0", "bless"):
        raise lib.Skip("WSYNC_TEST_PEFT is not set; it fetches 100 MB from PyPI")
    path = os.path.join(lib.scratch("new"), "cases.json")
    os.makedirs(os.path.dirname(path))
    make(path, NEW, int(WANTED))
    check(path, "new")


sys.exit(suite.main(lambda: None))
