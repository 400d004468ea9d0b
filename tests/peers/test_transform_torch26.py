# SPDX-License-Identifier: Apache-2.0
"""Quantized, merged and unpacked pushes, into endpoints of torch and of wsync: the bytes are
torch's."""
import json
import os
import struct
import subprocess
import sys

import lib
from lib import Embedded

LORA = ("--lora", "lora")
CORRECTION = ("--correction", "correction.safetensors")
FP8 = ("--quantize", "fp8", "--block-size", "16x16")
CASES = [
    ("quantized", "base", FP8),
    ("slime", "base", FP8 + ("--scale-rule", "slime")),
    ("ragged", "base", ("--quantize", "fp8", "--block-size", "48x100")),
    ("merged", "base", LORA),
    ("two-step", "base", LORA + ("--lora-rounding", "two-step")),
    ("merged-to-fp8", "base", LORA + FP8),
    ("unpacked-nf4", "nf4", ("--unpack",)),
    ("unpacked-nvfp4", "nvfp4", ("--unpack",)),
    ("unpacked-fp8", "fp8", ("--unpack",)),
    ("merged-nf4", "nf4", LORA + CORRECTION),
    ("merged-nvfp4", "nvfp4", LORA + CORRECTION),
    ("merged-fp8", "fp8", LORA + CORRECTION),
    ("chain-in-steps", "nf4", LORA + CORRECTION + ("--lora-rounding", "two-step")),
    ("chain", "nf4", LORA + CORRECTION + FP8),
    ("chain-nvfp4", "nvfp4", LORA + CORRECTION + FP8),
    ("chain-fp8", "fp8", LORA + CORRECTION + FP8),
    ("identity", "fp8", FP8),
    ("requantized", "fp8", ("--quantize", "fp8", "--block-size", "32x64")),
]
suite = lib.Suite()


class Fixture:
    def __init__(self):
        self.top = lib.scratch("transform")
        done = subprocess.run([os.path.join(lib.HERE, "python.sh"), "2.6",
                               os.path.join(lib.HERE, "transform_oracle.py"), self.top],
                              capture_output=True, text=True, timeout=lib.PATIENCE, check=False)
        if done.returncode == 77:
            raise lib.Skip(done.stderr.strip().split("\n")[-1])
        assert done.returncode == 0, done.stderr
        self.peers = lib.Receivers("2.6", [1, 2])

    def path(self, name):
        return os.path.join(self.top, name)

    def options(self, options):
        files = {"lora", "correction.safetensors"}
        return [self.path(o) if o in files else o for o in options]

    def expected(self, case):
        return lib.oracle(self.path(case + ".safetensors"))


def push_case(case, source, options):
    @suite.case("%s: %s" % (case, " ".join(options)))
    def check(fix):
        endpoints = fix.peers.choose(1, 2)
        for more in (("--bucket-size", "48KiB"), ("--trust-values",)):
            result = lib.push(endpoints, [fix.path(source)], *fix.options(options), *more)
            assert result.rc == 0, result
            lib.check_held(endpoints, fix.expected(case))


for one in CASES:
    push_case(*one)


def push_checked(fix, source, url, *options):
    argv = [os.path.join(lib.BUILD, "bin", "wsync-push"), fix.path(source), "--endpoint", url,
            "--backend", "gloo", "--json", *fix.options(options)]
    return lib.Running([], [], argv=argv).wait()


CHAIN = LORA + CORRECTION + FP8
TPS = (1, 2, 4)  # at 4 the two heads of keys and values have two ranks each


# ---- what an endpoint of wsync holds, compared with torch's files ----

E4M3 = [m / 512 if m < 8 else (8 + m % 8) * 2.0 ** (m // 8 - 10) for m in range(127)]
E4M3 += [float("nan")] + [-x for x in E4M3] + [float("nan")]


def numbers(dtype, raw):
    if dtype == "F8_E4M3":
        return [E4M3[b] for b in raw]
    if dtype == "BF16":
        return list(struct.unpack("<%df" % (len(raw) // 2), b"".join(
            b"\0\0" + raw[i:i + 2] for i in range(0, len(raw), 2))))
    return list(struct.unpack("<%df" % (len(raw) // 4), raw))


def f32(x):
    """What nine digits stand for."""
    return struct.unpack("<f", struct.pack("<f", x))[0]


def tensors(path):
    """name -> (dtype, shape, bytes), by nothing but the format."""
    with open(path, "rb") as f:
        data = f.read()
    size, = struct.unpack_from("<Q", data)
    return {name: (t["dtype"], t["shape"],
                   data[8 + size + t["data_offsets"][0]:8 + size + t["data_offsets"][1]])
            for name, t in json.loads(data[8:8 + size]).items() if name != "__metadata__"}


def file_hashes(path):
    listed = subprocess.run([os.path.join(lib.BUILD, "bin", "wsync-list-weights"), "--hash",
                             "--json", path],
                            check=True, timeout=lib.PATIENCE, stdout=subprocess.PIPE)
    return {r["name"]: r["hash"] for r in map(json.loads, listed.stdout.splitlines())
            if r["type"] == "tensor"}


def check_model(e, path):
    """Every rank has the hash of every tensor of that file, and rank 0's shares its very
    numbers."""
    hashes = file_hashes(path)
    for rank in e.get("/weights_checker")["ranks"]:
        got = rank["checksums"]
        assert got == hashes, {n: (got.get(n), hashes.get(n)) for n in {*got, *hashes}
                               if got.get(n) != hashes.get(n)}
    for name, (dtype, shape, raw) in tensors(path).items():
        rows = e.post("/get_weights_by_name", {"name": name, "truncate_size": shape[0]})
        got = [f32(x) for row in rows for x in row] if len(shape) == 2 else [f32(x) for x in rows]
        assert got == numbers(dtype, raw), "%s differs, as numbers" % name


@suite.case("the full chain to two models and a torch receiver at once: all hold what torch made")
def chain_everywhere(fix):
    torch = fix.peers.choose(1)
    model = ("--model", fix.path("server-fp8"))
    with Embedded(*model, "--tp", "2") as two, Embedded(*model, "--tp", "4") as four:
        result = lib.push(torch + [two, four], [fix.path("nf4")], *fix.options(CHAIN),
                          "--bucket-size", "48KiB")
        assert result.rc == 0, result
        did = result.end["transform"]
        assert did["quantized"] == 14 and did["unpacked"] == 14 and did["bound"] == 7, did
        assert did["scratch_bytes"] <= 128 << 20, did
        lib.check_held(torch, fix.expected("chain"))
        for e in (two, four):
            check_model(e, fix.path("chain.safetensors"))


@suite.case("--verify hash covers what was made, in fused parameters of any number of ranks")
def hashes_of_models(fix):
    for tp in TPS:
        model = ("--model", fix.path("server-fp8"), "--tp", str(tp))
        with Embedded(*model) as one, Embedded(*model) as other:
            for case, source, options in (("chain", "nf4", CHAIN), ("quantized", "base", FP8),
                                          ("identity", "fp8", ())):
                result = push_checked(fix, source, one.url, "--endpoint", other.url, *options,
                                      "--verify",
                                      "hash", "--weight-version", case)
                assert result.rc == 0, result
                for e in (one, other):
                    assert e.get("/model_info")["weight_version"] == case
                    check_model(e, fix.path(case + ".safetensors"))


@suite.case("--verify hash finds one byte of a code or of a scale at one of two, and no version is "
            "set")
def flipped(fix):
    victims = ("model.layers.1.mlp.up_proj.weight", "model.layers.1.mlp.up_proj.weight_scale_inv",
               "model.layers.0.self_attn.v_proj.weight_scale_inv",
               "model.layers.1.self_attn.o_proj.weight")
    for tp in TPS:
        model = ("--model", fix.path("server-fp8"), "--tp", str(tp))
        for name in victims:
            fault = "flip:update_weights_from_distributed:1:" + name
            with Embedded(*model) as good, Embedded(*model, "--fault", fault) as bad:
                result = push_checked(fix, "nf4", good.url, "--endpoint", bad.url, *CHAIN,
                                      "--verify", "hash",
                                      "--weight-version", "7")
                assert result.rc == 9, result  # the other one is right
                wrong = {(m["name"], m["url"]) for m in result.of("mismatch")}
                assert wrong == {(name, bad.url)}, (wrong, result)
                assert "1 tensor differs from what was sent" in result.stderr, result
                for e in (good, bad):
                    assert e.get("/model_info")["weight_version"] == "default"
                # Pushed once more it is right, and believed.
                result = push_checked(fix, "nf4", good.url, "--endpoint", bad.url, *CHAIN,
                                      "--verify", "hash",
                                      "--weight-version", "8")
                assert result.rc == 0, result
                assert bad.get("/model_info")["weight_version"] == "8"


@suite.case("--verify hash covers what was made, where it is kept as it came")
def hashes(fix):
    with Embedded() as e:
        for case, source, options in (("merged-to-fp8", "base", FP8 + LORA),
                                      ("merged", "base", LORA)):
            result = push_checked(fix, source, e.url, *options, "--verify", "hash")
            assert result.rc == 0, result
            held = e.get("/weights_checker")["ranks"][0]["checksums"]
            expected = file_hashes(fix.path(case + ".safetensors"))
            assert {n: held[n] for n in expected} == expected, case
        as_sent = subprocess.run(
            [os.path.join(lib.BUILD, "bin", "wsync-list-weights"), "--as-sent", "--hash", "--json",
             fix.path("base"), *FP8, "--lora", fix.path("lora")], check=True, timeout=lib.PATIENCE,
            stdout=subprocess.PIPE)
        sent = {r["name"]: r["hash"] for r in map(json.loads, as_sent.stdout.splitlines())
                if r["type"] == "tensor"}
        assert sent == file_hashes(fix.path("merged-to-fp8.safetensors")) and len(sent) > 20, sent


@suite.case("FP8 of other blocks than the server's is made anew, or refused before anything is "
            "sent")
def other_blocks(fix):
    with Embedded("--model", fix.path("server-fp8"), "--tp", "2") as e:
        refused(fix, e, "fp8", ("--quantize", "fp8", "--block-size", "32x64"), 5,
                "expects blocks of its weight_block_size")
        refused(fix, e, "base", ("--quantize", "fp8", "--block-size", "32x64"), 5,
                "expects blocks of its weight_block_size")
        refused(fix, e, "base", (), 5, "with a scale for each block", "add --quantize fp8")
        # Without a word about blocks they are those of the server: nothing changes.
        result = push_checked(fix, "fp8", e.url, "--quantize", "fp8", "--verify", "hash")
        assert result.rc == 0 and result.end["transform"]["already"] == 14, result
        check_model(e, fix.path("identity.safetensors"))


def refused(fix, e, source, options, code, *words):
    result = push_checked(fix, source, e.url, *options)
    assert result.rc == code, result
    for word in words:
        assert word in result.stderr, result
    steps = [r["path"] for r in e.get("/wsync/journal")["requests"]]
    assert not any("pause" in s or "update_weights" in s for s in steps), steps


@suite.case("a bf16 server is not given FP8, and nobody is paused")
def bf16_server(fix):
    with Embedded("--model", fix.path("base")) as e:
        refused(fix, e, "base", FP8, 5, "does not keep quantized weights")


@suite.case("powers of two as scales only for who says so")
def ue8m0(fix):
    with Embedded("--model", fix.path("server-fp8")) as e:
        refused(fix, e, "base", ("--quantize", "fp8", "--ue8m0"), 5, "powers of two", "scale_fmt")


def patch(fix, source, target, name, element, bits):
    """A copy of a file in which one bf16 number is another."""
    with open(source, "rb") as f:
        data = bytearray(f.read())
    size, = struct.unpack_from("<Q", data)
    at = 8 + size + json.loads(data[8:8 + size])[name]["data_offsets"][0] + 2 * element
    struct.pack_into("<H", data, at, bits)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with open(target, "wb") as f:
        f.write(data)


@suite.case("a NaN in a weight or an adapter is named, nothing is sent and nobody paused")
def nan(fix):
    name = "model.layers.1.mlp.down_proj.weight"
    patch(fix, fix.path("base/model.safetensors"), fix.path("nan/model.safetensors"), name,
          256 * 3 + 7,
          0x7fc0)
    with open(fix.path("base/config.json")) as f, open(fix.path("nan/config.json"), "w") as g:
        g.write(f.read())
    factor = "base_model.model.model.layers.1.mlp.down_proj.lora_A.weight"
    patch(fix, fix.path("lora/adapter_model.safetensors"),
          fix.path("nan-lora/adapter_model.safetensors"), factor, 256 + 2, 0xff80)
    with open(fix.path("lora/adapter_config.json")) as f, \
            open(fix.path("nan-lora/adapter_config.json"), "w") as g:
        g.write(f.read())
    with Embedded() as e:
        for options in (FP8, FP8 + LORA, LORA):
            refused(fix, e, "nan", fix.options(options), 3, name, "NaN at row 3, column 7",
                    "model.safetensors")
        refused(fix, e, "base", ("--lora", fix.path("nan-lora")), 3, factor,
                "an infinity at row 1, column 2")


@suite.case("a NaN that is found while sending ends the push, and the server goes on")
def late_nan(fix):
    with Embedded() as e:
        result = push_checked(fix, "nan", e.url, *FP8, "--trust-values", "--on-partial", "resume")
        assert result.rc == 3 and "NaN at row 3, column 7" in result.stderr, result
        steps = [r["path"] for r in e.get("/wsync/journal")["requests"]]
        assert steps.count("/pause_generation") == steps.count("/continue_generation") == 1, steps


sys.exit(suite.main(Fixture))
