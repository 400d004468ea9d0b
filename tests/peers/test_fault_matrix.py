# SPDX-License-Identifier: Apache-2.0
"""Whatever goes wrong wherever: nobody that is whole stays paused, nobody is called what he is not,
and it ends in time with the status and the words that the manual promises (fault_lib.py).

A push is killed and interrupted at every boundary of its phases. Of all points FAULT_POINTS are
drawn by FAULT_SEED, such that every step has met every kind of trouble; FAULT_POINT is one of them
by its name. `make soak` sets SOAK_POINTS: so many, with a seed that is new each time and printed
first, or SOAK_SEED.
"""
import os
import random
import secrets
import signal
import sys

import fault_lib
import lib

SOAK = int(os.environ.get("SOAK_POINTS") or "0")
SEED = int(os.environ.get("SOAK_SEED")
           or secrets.randbelow(1 << 31)) if SOAK else int(os.environ.get("FAULT_SEED", "7"))
COUNT = SOAK or int(os.environ.get("FAULT_POINTS", "570"))
# What once failed and is not among what every step and kind meets.
ALWAYS = ["single/wire.payload:1/wrong-length/0", "hash/continue_generation:1/die/0/restart",
          "scatter/pause_generation:1/drop/1", "update/pause_generation:1/garbage/0",
          "session/begin_weight_update:2/late/0", "asleep/resume_memory_occupation:1/refuse/1",
          "scatter/wire.store:1/garbage/0", "receive/receive_weights:1/freeze/1",
          "vllm/finish_weight_update:1/rival/1", "vllm-0.20/update_weights:2/drop/0",
          "vllm-disk/collective_rpc:4/die/0"]
SECONDS, JOBS = 1800, int(os.environ.get("FAULT_JOBS", "8"))


def choose(points, chance):
    """What is always tried; one of each step and kind, by whatever protocol; then any."""
    always = [fault_lib.Point.parse(p, fault_lib.PROTOCOLS) for p in ALWAYS]
    always += fault_lib.boundary_points(fault_lib.PROTOCOLS)
    chance.shuffle(points)
    met, first, rest = {(p.role, p.kind) for p in always}, [], []
    for p in points:
        (rest if (p.role, p.kind) in met else first).append(p)
        met.add((p.role, p.kind))
    drawn = [fault_lib.add_options(p, chance) for p in (first + rest)[:max(0, COUNT - len(always))]]
    chosen = (always + drawn)[:COUNT]
    return chosen, "%d of %d" % (len({(p.role, p.kind) for p in chosen}), len(met))


def draw(points, chance):
    return [fault_lib.add_options(fault_lib.Point.parse(p.name, fault_lib.PROTOCOLS), chance)
            for p in chance.choices(points, k=SOAK)]


def too_long(*_):
    print("Bail out! it took longer than %d s, at %s" % (
        SECONDS, ", ".join(fault_lib.RUNNING) or "the preparation"), flush=True)
    sys.exit(1)


def main():
    signal.signal(signal.SIGALRM, too_long)
    signal.alarm(0 if SOAK else SECONDS)
    if SOAK:
        print("# SOAK_SEED=%d SOAK_POINTS=%d" % (SEED, SOAK), flush=True)
    try:
        points = fault_lib.prepare()
    except lib.Skip as why:
        print("1..0 # SKIP %s" % why)
        return 0
    chance, there_are, pairs = random.Random(SEED), len(points), "any"
    if SOAK:
        chosen = draw(points, chance)
    elif "FAULT_POINT" in os.environ:
        chosen = [fault_lib.Point.parse(os.environ["FAULT_POINT"], fault_lib.PROTOCOLS)]
    else:
        chosen, pairs = choose(points, chance)
    print("# FAULT_SEED=%d FAULT_POINTS=%d of %d, %s pairs of step and kind" % (
        SEED, len(chosen), there_are, pairs), flush=True)
    return fault_lib.run_all(chosen, JOBS, "tests/peers/test_fault_matrix.py")


sys.exit(main())
