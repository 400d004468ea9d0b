# SPDX-License-Identifier: Apache-2.0
"""The checksums that wsync predicts, against those of real SGLang servers on this machine's CPU.

Only when asked for, as test_sglang.py. Each server loads a checkpoint of small_model.py by itself;
what it then reports for each parameter of each rank must be what wsync-list-weights computes from
the files: fused, cut, padded, stacked, replicated and tied.
"""
import os
import subprocess
import sys

import lib
import test_sglang

VERSION = "0.5.23"
SERVERS = [("llama", 1), ("qwen3", 2), ("qwen3_moe", 2)]
# SGLang's Qwen3-MoE has experts in all layers, whatever mlp_only_layers says, and on a CPU it pads
# their inner size to a multiple of 32 for each rank.
MOE = ["--dense", "0", "--moe", "64"]

suite = lib.Suite()


def model(family):
    path = lib.scratch("small." + family)
    if not os.path.isdir(path):
        subprocess.run(["/usr/bin/python3", os.path.join(lib.TREE, "tests/cli/small_model.py"),
                        family, path, *MOE], check=True, timeout=lib.PATIENCE)
    return path


def rows(*args):
    argv = [os.path.join(lib.BUILD, "bin/wsync-list-weights"), *args, "--json"]
    result = lib.Running([], [], argv=argv).wait()
    assert result.rc == 0, "%s: %s" % (" ".join(args), result)
    return {r["name"]: r["checksum"] for r in result.of("tensor")}


@suite.case("every parameter of every rank has the checksum that was predicted")
def predicted(servers):
    for family, tp, server in servers:
        for rank in range(tp):
            ours = rows(model(family), "--runtime", "--tp", str(tp), "--rank", str(rank),
                        "--checksum", "sglang-cpu")
            theirs = rows("--endpoint", server.url, "--rank", str(rank), "--checksum", "reported")
            assert ours == theirs, "%s, tp %d, rank %d: %s" % (family, tp, rank, {
                n: (ours.get(n), theirs.get(n)) for n in sorted(set(ours) | set(theirs))
                if ours.get(n) != theirs.get(n)})
            assert None not in ours.values(), ours


def start_all(servers):
    if os.environ.get("WSYNC_TEST_SGLANG", "") in ("", "0"):
        raise lib.Skip("WSYNC_TEST_SGLANG is not set; it fetches up to 2 GB from PyPI")
    for family, tp in SERVERS:
        servers.append((family, tp, test_sglang.Server(VERSION, model(family), tp)))
        servers[-1][2].await_ready()
    return servers


def main():
    servers = []
    try:
        return suite.main(lambda: start_all(servers))
    finally:
        for _, _, server in servers:
            server.stop()


if __name__ == "__main__":
    sys.exit(main())
