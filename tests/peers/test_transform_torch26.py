# SPDX-License-Identifier: Apache-2.0
"""Quantized, merged and unpacked pushes, into endpoints of torch and of wsync: the bytes are torch's."""
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
    ("tensor", "base", ("--quantize", "fp8-tensor")),
    ("merged", "base", LORA),
    ("two-step", "base", LORA + ("--lora-rounding", "two-step")),
    ("merged-fp8", "base", LORA + FP8),
    ("unpacked", "nf4", LORA + CORRECTION),
    ("chain", "nf4", LORA + CORRECTION + FP8),
    ("identity", "fp8", FP8),
    ("requantized", "fp8", ("--quantize", "fp8", "--block-size", "32x64")),
]
suite = lib.Suite(240)


class Fixture:
    def __init__(self):
        self.top = lib.scratch("transform")
        done = subprocess.run([os.path.join(lib.HERE, "python.sh"), "2.6",
                               os.path.join(lib.HERE, "transform_oracle.py"), self.top],
                              capture_output=True, text=True, timeout=1200, check=False)
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
    return lib.Running([], [], argv=argv).wait(60)


@suite.case("the full chain into an FP8 model of two ranks: names and hashes agree")
def into_a_model(fix):
    for tp in (1, 2):
        with Embedded("--model", fix.path("server-fp8"), "--tp", str(tp)) as e:
            # The blocks are those of the server's config.
            result = push_checked(fix, "nf4", e.url, "--lora", "lora", "--correction",
                                  "correction.safetensors", "--quantize", "fp8", "--verify", "names")
            assert result.rc == 0, result
            did = result.end["transform"]
            assert did["quantized"] == 14 and did["unpacked"] == 14 and did["bound"] == 7, did
            assert did["scratch_bytes"] <= 128 << 20, did


@suite.case("--verify hash covers what was made")
def hashes(fix):
    with Embedded() as e:
        result = push_checked(fix, "base", e.url, *FP8, "--lora", "lora", "--verify", "hash")
        assert result.rc == 0, result
        listed = subprocess.run(
            [os.path.join(lib.BUILD, "bin", "wsync-list-weights"), "--hash", "--json",
             fix.path("merged-fp8.safetensors")], check=True, timeout=20, stdout=subprocess.PIPE)
        as_sent = subprocess.run(
            [os.path.join(lib.BUILD, "bin", "wsync-list-weights"), "--as-sent", "--hash", "--json",
             fix.path("base"), *FP8, "--lora", fix.path("lora")], check=True, timeout=20,
            stdout=subprocess.PIPE)
        one, two = ({r["name"]: r["hash"] for r in map(json.loads, o.stdout.splitlines())
                     if r["type"] == "tensor"} for o in (listed, as_sent))
        assert one == two and len(one) > 20, (one, two)


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
        refused(fix, e, "base", FP8, 5, "does not keep its weights in FP8")


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
    patch(fix, fix.path("base/model.safetensors"), fix.path("nan/model.safetensors"), name, 256 * 3 + 7,
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
        result = push_checked(fix, "nan", e.url, *FP8, "--trust-values")
        assert result.rc == 3 and "NaN at row 3, column 7" in result.stderr, result
        steps = [r["path"] for r in e.get("/wsync/journal")["requests"]]
        assert steps.count("/pause_generation") == steps.count("/continue_generation") == 1, steps


sys.exit(suite.main(Fixture))
