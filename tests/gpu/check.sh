#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The tests of lib/gpu on the GPU that is here, and the speed of its kernels: what `make check-gpu` runs.
# Then wsync-push into a real torch on it. Without a GPU every one of them says so, as a skip in TAP, and
# that is no failure. WSYNC_TEST_CUDA names another libcuda, WSYNC_TEST_PYTHON an interpreter whose torch
# has CUDA.
set -uo pipefail
build=${BUILD:-build}
export WSYNC_TEST_CUDA=${WSYNC_TEST_CUDA:-libcuda.so.1} CMOCKA_MESSAGE_OUTPUT=TAP
rc=0
for t in "$build"/tests/gpu/test_*_gpu "$build"/tests/gpu/bench_*; do
    [ -x "$t" ] && [ -f "$t" ] || continue
    echo "# ${t##*/}"
    timeout 300 "$t" || rc=1
done
echo "# test_nccl_torch.py"
BUILD=$build PYTHONDONTWRITEBYTECODE=1 timeout 1000 python3 -u "$(dirname "$0")/test_nccl_torch.py" || rc=1
exit "$rc"
