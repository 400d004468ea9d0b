# SPDX-License-Identifier: Apache-2.0
"""Whatever goes wrong wherever: nobody that is whole stays paused, nobody is called what he is not, and
it ends in time with the status and the words that the manual promises (fault_lib.py).

Of all points FAULT_POINTS are drawn by FAULT_SEED, such that every step has met every kind of trouble;
FAULT_POINT is one of them by its name. `make soak` draws more, with a seed that is new each time.
"""
import os
import random
import signal
import sys

import fault_lib
import lib

SEED = int(os.environ.get("FAULT_SEED", "7"))
COUNT = int(os.environ.get("FAULT_POINTS", "400"))
# What once failed and is not among what every step and kind meets.
ALWAYS = ["single/wire.payload:1/wrong-length/0", "hash/continue_generation:1/die/0/restart",
          "scatter/pause_generation:1/drop/1", "update/pause_generation:1/garbage/0",
          "session/begin_weight_update:2/late/0", "asleep/resume_memory_occupation:1/refuse/1",
          "scatter/wire.store:1/garbage/0", "receive/receive_weights:1/freeze/1"]
SECONDS, JOBS = 900, int(os.environ.get("FAULT_JOBS", "8"))


def choose(points, chance):
    """First one of each step and kind, by whatever protocol; then any."""
    chance.shuffle(points)
    met, first, rest = set(), [], []
    for p in points:
        (rest if (p.step, p.kind) in met else first).append(p)
        met.add((p.step, p.kind))
    return (first + rest)[:COUNT], len(first)


def main():
    def too_long(*_):
        print("Bail out! it took longer than %d s" % SECONDS, flush=True)
        sys.exit(1)

    signal.signal(signal.SIGALRM, too_long)
    signal.alarm(SECONDS)
    try:
        points = fault_lib.prepare()
    except lib.Skip as why:
        print("1..0 # SKIP %s" % why)
        return 0
    chance, there_are = random.Random(SEED), len(points)
    one = os.environ.get("FAULT_POINT")
    chosen, pairs = choose(points, chance)
    if one:
        chosen = [fault_lib.Point.parse(one, fault_lib.PROTOCOLS)]
    else:
        always = [fault_lib.Point.parse(p, fault_lib.PROTOCOLS) for p in ALWAYS[:COUNT]]
        chosen = always + [fault_lib.add_options(p, chance) for p in chosen[:COUNT - len(always)]]
    print("# FAULT_SEED=%d FAULT_POINTS=%d of %d, %d pairs of step and kind" % (
        SEED, len(chosen), there_are, pairs), flush=True)
    return fault_lib.run_all(chosen, JOBS, "tests/peers/test_fault_matrix.py")


sys.exit(main())
