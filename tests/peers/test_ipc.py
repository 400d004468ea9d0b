#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The cases of tests/gpu/test_ipc_torch.py on the double of libcuda: what they show without a
GPU."""
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
DOUBLE = os.path.abspath(os.path.join(os.environ.get("BUILD", "build"), "tests/gpu/fake_cuda.so"))

if not os.path.exists(DOUBLE):
    print("1..0 # SKIP built without CUDA")
    sys.exit(0)
os.environ["WSYNC_TEST_CUDA"] = DOUBLE
os.execv(sys.executable, [sys.executable, "-u",
                          os.path.join(HERE, "..", "gpu", "test_ipc_torch.py")])
