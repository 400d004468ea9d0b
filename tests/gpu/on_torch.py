# SPDX-License-Identifier: Apache-2.0
"""on_torch.py - what the tests against a real torch on the GPU that is here begin with.

NCCL takes one rank of a GPU; that the ranks are told to be on different machines (NCCL_HOSTID;
receiver.py gives each of its own) gets around that, and makes them speak through sockets, here over
loopback. WSYNC_TEST_PYTHON names an interpreter whose torch has CUDA (python3), whose NCCL
wsync-push then loads too. With WSYNC_TEST_DEVICE=cpu the same cases run over gloo, for trying the
cases themselves where there is no GPU.
"""
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "peers"))
PYTHON = os.environ.get("WSYNC_TEST_PYTHON", "python3")
DEVICE = os.environ.get("WSYNC_TEST_DEVICE", "cuda:0")
ON_CPU = DEVICE == "cpu"
ON_DOUBLE = os.path.basename(os.environ.get("WSYNC_TEST_CUDA", "")) == "fake_cuda.so"
# A hang on a GPU must not use up the time for which that GPU is lent.
if not ON_CPU and not ON_DOUBLE:
    os.environ.setdefault("WSYNC_TEST_PATIENCE", "60")
import lib  # noqa: E402
import check  # noqa: E402
import loopback  # noqa: E402

OVER = ["--backend", "gloo"] if ON_CPU else ["--backend", "nccl", "--nccl-from", PYTHON]
ENVIRONMENT = dict(loopback.ENVIRONMENT, **{
    "NCCL_HOSTID": "sender",
    # What NCCL has to say lies beside what the receivers say, and is shown where a case fails.
    "NCCL_DEBUG": "WARN", "NCCL_DEBUG_FILE": lib.scratch("nccl-%p.err"),
    "TORCH_CPP_LOG_LEVEL": "WARNING",
    # A server whose peer died may not linger to write a report of it.
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "USE_LIBUV": "0",
})


def begin():
    """The environment of all that is started from here on; raises lib.Skip where that torch has no
    GPU."""
    code = "import torch" if ON_CPU else (
        "import torch\nassert torch.cuda.is_available(), 'it sees no GPU'\n"
                                          "torch.zeros(1, device='%s')" % DEVICE)
    try:
        done = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True,
                              timeout=lib.PATIENCE, check=False)
    except (OSError, subprocess.TimeoutExpired) as e:
        raise lib.Skip("%s: %s"
                       % (PYTHON,
                          getattr(e, "strerror", None) or "import torch takes minutes")) from e
    if done.returncode:
        why = done.stderr.strip().split("\n")[-1]
        raise lib.Skip("%s has no torch with a GPU (%s); WSYNC_TEST_PYTHON names one that has"
                       % (PYTHON, why))
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def receivers(tps, *options):
    """Torch endpoints on the GPU, of these many ranks each."""
    return lib.Receivers("any", tps, options=("--device", DEVICE) + options, python=PYTHON)


def nccl():
    """The libnccl of that torch."""
    path = check.find_nccl()
    if not path:
        raise lib.Skip("%s has no libnccl.so.2" % PYTHON)
    return path
