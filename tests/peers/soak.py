# SPDX-License-Identifier: Apache-2.0
"""soak.py - SOAK_POINTS points of the fault matrix drawn by chance (fault_lib.py).

The seed is new each time and printed first; SOAK_SEED repeats a run, and a failure says how to repeat it
alone.
"""
import os
import random
import secrets
import sys

import fault_lib

SEED = int(os.environ.get("SOAK_SEED") or secrets.randbelow(1 << 31))
COUNT = int(os.environ.get("SOAK_POINTS") or "1000")
JOBS = int(os.environ.get("FAULT_JOBS", "8"))

print("# SOAK_SEED=%d SOAK_POINTS=%d" % (SEED, COUNT), flush=True)
chance = random.Random(SEED)
everything = fault_lib.prepare()
drawn = []
while len(drawn) < COUNT:
    drawn += chance.sample(everything, min(COUNT - len(drawn), len(everything)))
points = [fault_lib.add_options(fault_lib.Point.parse(p.name, fault_lib.PROTOCOLS), chance) for p in drawn]
sys.exit(fault_lib.run_all(points, JOBS, "tests/peers/test_fault_matrix.py"))
