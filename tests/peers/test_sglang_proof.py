# SPDX-License-Identifier: Apache-2.0
"""The checksums that wsync predicts, against those of real SGLang servers on this machine's CPU.

Only when asked for, as test_sglang.py: WSYNC_TEST_SGLANG="0.5.12 0.5.16 0.5.20 0.5.23" names others
than 0.5.23. Each server loads a checkpoint of small_model.py by itself;
what it then reports for each parameter of each rank must be what wsync-list-weights computes from
the files: fused, cut, padded, stacked, replicated and tied. Then other weights are pushed and
proven, and sources that differ from what the server has must be told from it.
"""
import json
import os
import random
import shutil
import struct
import subprocess
import sys

import lib
import test_sglang
import tiny_models

WANTED = os.environ.get("WSYNC_TEST_SGLANG", "")
# Those that report checksums of their parameters.
VERSIONS = [v for v in (WANTED.split() if "." in WANTED else ["0.5.23"]) if v > "0.5"]
SERVERS = [("llama", 1), ("llama", 2), ("qwen3", 1), ("qwen3", 2), ("qwen3_moe", 1),
           ("qwen3_moe", 2)]
# SGLang's Qwen3-MoE has experts in all layers, whatever mlp_only_layers says, and on a CPU it pads
# their inner size to a multiple of 32 for each rank.
MOE = ["--dense", "0", "--moe", "64"]

PATIENT = ["--connect-timeout", "10m"]  # these servers answer late beside other work

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


def predicted(family, tp, server):
    """Every parameter of every rank has the checksum that was predicted."""
    for rank in range(tp):
        ours = rows(model(family), "--runtime", "--tp", str(tp), "--rank", str(rank),
                    "--checksum", "sglang-cpu")
        theirs = rows("--endpoint", server.url, "--rank", str(rank), "--checksum", "reported")
        assert ours == theirs, "%s, tp %d, rank %d: %s" % (family, tp, rank, {
            n: (ours.get(n), theirs.get(n)) for n in sorted(set(ours) | set(theirs))
            if ours.get(n) != theirs.get(n)})
        assert None not in ours.values(), ours


def original(family):
    tensors = {}
    changed(family, "original", tensors.update)
    return tensors


# ---- sources that differ

def changed(family, name, change):
    """A copy of the model whose tensors {name: (dtype, shape, bytearray)} `change` has changed."""
    path = lib.scratch("%s.%s" % (family, name))
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(model(family), path)
    with open(path + "/model.safetensors", "rb") as f:
        size, = struct.unpack("<Q", f.read(8))
        header, data = json.loads(f.read(size)), f.read()
    tensors = {n: (t["dtype"], t["shape"], bytearray(data[slice(*t["data_offsets"])]))
               for n, t in header.items() if n != "__metadata__"}
    change(tensors)
    header, data = {}, b""
    for n, (dtype, shape, raw) in tensors.items():
        header[n] = {"dtype": dtype, "shape": shape,
                     "data_offsets": [len(data), len(data) + len(raw)]}
        data += bytes(raw)
    text = json.dumps(header).encode()
    with open(path + "/model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)
    return path


def other_weights(tensors):
    numbers = random.Random(7)
    for _, _, raw in tensors.values():
        for i in range(0, len(raw), 2):
            raw[i] = numbers.randrange(256)


def flip(name, at):
    def change(tensors):
        raw = tensors[name][2]
        raw[at % len(raw)] ^= 1 << at % 7
    return change


def swap(one, two):
    def change(tensors):
        tensors[one], tensors[two] = tensors[two], tensors[one]
    return change


def swap_columns(name):
    """The halves of each row: at two ranks, each has the other's slice."""
    def change(tensors):
        _, (rows, _), raw = tensors[name]
        n = len(raw) // rows
        for at in range(0, len(raw), n):
            raw[at:at + n] = raw[at + n // 2:at + n] + raw[at:at + n // 2]
    return change


def verify(server, source):
    return lib.run_program("wsync-verify", ["weights", source, "--json", *PATIENT], [server])


def expect_proven(result):
    assert result.rc == 0, result
    line, = result.of("weights")
    assert line["means"] == "proof" and line["coverage"] == 100, line
    assert line["proven"] == line["parameters"] > 10 and line["opaque"] == 0, line


def expect_different(result, names, cause=None):
    assert result.rc == 1, result
    line, = result.of("weights")
    found = result.of("mismatch")
    assert {m["name"] for m in found} == set(names), (names, found)
    assert line["different"] == len(set(names)), line
    assert all(m["cause"] == cause for m in found), (cause, found)


def loaded(_family, _tp, server):
    """What a server loaded from files is proven."""
    expect_proven(verify(server, server.model))


def pushed(family, _tp, server):
    """Other weights are pushed and proven; the old ones differ."""
    new = changed(family, "other", other_weights)
    assert verify(server, new).rc == 1
    for source, old in ((new, server.model), (server.model, new)):
        result = lib.push([server], [source], "--verify", "hash", *PATIENT)
        assert result.rc == 0, result
        proof, = result.of("proof")
        assert proof["coverage"] == 100 and proof["proven"] == proof["parameters"], proof
        assert verify(server, old).rc == 1
        expect_proven(verify(server, source))


def flipped(family, tp, server):
    """One flipped bit of any tensor is found, and its parameter named."""
    numbers = random.Random(tp)
    for name in numbers.sample(sorted(original(family)), 8):
        source = changed(family, "bit", flip(name, numbers.randrange(1 << 20)))
        expect_different(verify(server, source), [tiny_models.parameter(name)])


def left_old(family, _tp, server):
    """One tensor is left old."""
    name = "model.layers.1.self_attn.k_proj.weight"
    new = changed(family, "left", other_weights)
    old = changed(family, "old", lambda t: other_weights(t) or t.update(
        {name: original(family)[name]}))
    assert lib.push([server], [old], *PATIENT).rc == 0
    expect_different(verify(server, new), [tiny_models.parameter(name)])
    assert lib.push([server], [server.model], *PATIENT).rc == 0


def halves(family, _tp, server):
    """The two halves of a fused parameter are swapped."""
    def swap_all(tensors):
        for gate in [n for n in tensors if n.startswith("model.layers.0.mlp.")]:
            if "gate_proj" in gate:
                swap(gate, gate.replace("gate_proj", "up_proj"))(tensors)
    name = "experts.w13_weight" if family == "qwen3_moe" else "gate_up_proj.weight"
    expect_different(verify(server, changed(family, "swap", swap_all)),
                     ["model.layers.0.mlp." + name], "its two halves are swapped")


def other_rank(family, tp, server):
    """Each rank has the other's slice."""
    name = "model.layers.1.self_attn.o_proj.weight"
    result = verify(server, changed(family, "slice", swap_columns(name)))
    assert {m["name"] for m in result.of("mismatch")} == {name} and result.rc == 1, result
    assert tp != 2 or {m["cause"] for m in result.of("mismatch")} == {
        "it is the slice of rank 0", "it is the slice of rank 1"}, result


def case(version, family, tp):
    @suite.case("%s, %s, tp %d: proven to the last byte, and every difference found" % (
        version, family, tp))
    def check(_):
        server = test_sglang.Server(version, model(family), tp)
        server.model = model(family)
        try:
            server.await_ready()
            for part in (predicted, loaded, pushed, flipped, left_old, halves, other_rank):
                part(family, tp, server)
        finally:
            server.stop()


@suite.case("block FP8: SGLang's own checker, kernels and requantization compute the predictions")
def fp8(_):
    python, env = test_sglang.python_of("0.5.23")
    for family in ("llama", "qwen3_moe"):
        path = lib.scratch("fp8." + family)
        for script, *args in (
                ("small_model.py", family, path, "--fp8", "--block", "128", "--head", "128",
                 "--moe", "128"),
                ("numbers.py", "tame", path + "/model.safetensors")):
            subprocess.run(["/usr/bin/python3", os.path.join(lib.TREE, "tests/cli", script),
                            *args], check=True, timeout=lib.PATIENCE)
        told = subprocess.run([*python, os.path.join(lib.HERE, "sglang_sums.py"), path, "1", "0"],
                              env=dict(os.environ, **env), stdout=subprocess.PIPE, text=True,
                              timeout=1800, check=True)  # an interpreter of kernels is slow
        table = [line.split("\t") for line in told.stdout.splitlines()]
        for column, function in enumerate(("sglang-cpu", "sglang-cuda", "sglang-cuda-ue8m0"), 1):
            assert {row[0]: row[column] for row in table} == rows(
                path, "--runtime", "--checksum", function), (family, function)


# One server at a time: its schedulers keep a processor busy each.
for each in VERSIONS:
    for of, size in SERVERS:
        if each != "0.5.12" or size == 1:  # 0.5.12 tells of rank 0 only
            case(each, of, size)


def set_up():
    if WANTED in ("", "0"):
        raise lib.Skip("WSYNC_TEST_SGLANG is not set; it fetches up to 2 GB from PyPI")


if __name__ == "__main__":
    sys.exit(suite.main(set_up))
