#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A trainer's state_dict without a GPU: tests/gpu/test_manifest_torch.py with this machine's torch,
whose tensors lie in memory of the double of libcuda."""
import os
import sys

os.environ.update(WSYNC_TEST_DEVICE="cpu", WSYNC_TEST_PYTHON=sys.executable)
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../gpu"))
from test_manifest_torch import Fixture, suite  # noqa: E402

sys.exit(suite.main(Fixture))
