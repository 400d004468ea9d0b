#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""runtime_sums.py - the checksums of a server's parameters, computed a second time from the rules.

runtime_sums.py DIR TP RANK FUNCTION: for a checkpoint of small_model.py (llama, qwen3, qwen3_moe,
also in FP8) prints NAME TAB CHECKSUM of each parameter that a server lists, in order of names.
FUNCTION: sglang-cpu, sglang-cuda, sglang-cuda-ue8m0, sha256. Written from the servers' sources
with numpy, and shares no code with the programs.
"""
import hashlib
import json
import struct
import sys

import numpy as np

KINDS = {"BF16": np.uint16, "F32": np.float32, "F8_E4M3": np.uint8}


def read(path):
    with open(path, "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = f.read()
    header.pop("__metadata__", None)
    return {name: np.frombuffer(data[t["data_offsets"][0]:t["data_offsets"][1]],
                                KINDS[t["dtype"]]).reshape(t["shape"])
            for name, t in header.items()}


# ---- the functions

def mix(x):
    x = x ^ x >> np.uint32(16)
    x = x * np.uint32(0x85EBCA6B)
    x = x ^ x >> np.uint32(13)
    x = x * np.uint32(0xC2B2AE35)
    return x ^ x >> np.uint32(16)


def turn(x, n):
    return x << np.uint32(n) | x >> np.uint32(32 - n)


def gpu(raw):
    """SGLang's gpu_tensor_hash: two sums per tile of 8192 words, all of them added up."""
    raw += bytes(-len(raw) % 4)
    words = np.frombuffer(raw, "<u4")
    if not len(words):
        return "%016x" % 0
    index = np.arange(len(words), dtype=np.uint32)
    one = index * np.uint32(0x27D4EB2D) + np.uint32(0x243F6A88)
    two = index * np.uint32(0x165667B1) + np.uint32(0x02C74EE7)
    first, second = mix(words ^ one ^ turn(index, 15)), mix(words ^ two ^ turn(index, 13))
    total, size = 0, np.uint32(len(raw))
    for at in range(0, len(words), 8192):
        sums = [np.add.reduce(k[at:at + 8192], dtype=np.uint32) for k in (first, second)]
        high, low = (int(mix(np.array([s ^ size], np.uint32))[0]) for s in sums)
        total += (high << 32) + low
    mask = (1 << 64) - 1
    total &= mask
    total = (total ^ total >> 30) * 0xBF58476D1CE4E5B9 & mask
    total = (total ^ total >> 27) * 0x94D049BB133111EB & mask
    return "%016x" % (total ^ total >> 31)


def sha(raw):
    return hashlib.sha256(raw).hexdigest()


FUNCTIONS = {"sglang-cpu": lambda raw: sha(raw)[:16], "sglang-cuda": gpu, "sglang-cuda-ue8m0": gpu,
             "sha256": sha}


# ---- FP8: what SGLang hashes is bf16 of code * scale

def codes():
    table = np.zeros(256, np.float32)
    for code in range(256):
        exponent, mantissa = code >> 3 & 15, code & 7
        value = (mantissa / 8 * 2.0**-6 if exponent == 0 else
                 (1 + mantissa / 8) * 2.0**(exponent - 7))
        table[code] = -value if code & 128 else value
    return table


def dequantized(weight, scale):
    block = weight.shape[-1] // scale.shape[-1]
    wide = scale.repeat(block, -2).repeat(block, -1)[..., :weight.shape[-2], :]
    bits = (codes()[weight] * wide).astype(np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def nearest_codes(numbers):
    """E4M3 of numbers up to 448: of the two nearest the one with an even mantissa."""
    table = codes()[:127].astype(np.float64)  # rising, code by code
    size = np.abs(numbers).astype(np.float64)
    above = np.minimum(np.searchsorted(table, size), 126)
    below = np.maximum(above - 1, 0)
    lower, upper = size - table[below], table[above] - size
    code = np.where((lower < upper) | (lower == upper) & (below % 2 == 0), below, above)
    return (code | np.where(np.signbit(numbers), 128, 0)).astype(np.uint8)


def rewritten(weight, scale):
    """As SGLang loads it for DeepGEMM on Blackwell: quantized again, in blocks of 128."""
    block, rows, columns = weight.shape[-1] // scale.shape[-1], *weight.shape[-2:]
    if block != 128 or rows % 64 or columns % 128:
        return dequantized(weight, scale)
    wide = dequantized(weight, scale).astype(np.uint32) << 16
    numbers = wide.view(np.float32).reshape(-1, rows, columns)
    new = np.zeros((len(numbers), -(-rows // 128), columns // 128), np.float32)
    quantized = np.zeros(numbers.shape, np.uint8)
    for m, i, j in np.ndindex(*new.shape):
        part = (m, slice(128 * i, 128 * i + 128), slice(128 * j, 128 * j + 128))
        most = max(np.abs(numbers[part]).max(), np.float32(1e-4)) / np.float32(448)
        fraction, exponent = np.frexp(most)
        new[m, i, j] = 2.0**(exponent - (fraction == 0.5))
        quantized[part] = nearest_codes(numbers[part] / new[m, i, j])
    return dequantized(quantized.reshape(weight.shape),
                       new.reshape(scale.shape))


def packed(scale, rows):
    """Scales that are powers of two, as SGLang's DeepGEMM keeps them for a weight of so many rows:
    their exponents, 4 in an int32, the first in the lowest byte; a row for each row of codes."""
    exponents = (scale.view(np.uint32) >> 23).astype(np.uint8)
    wide = np.zeros((*scale.shape[:-1], -(-scale.shape[-1] // 4) * 4), np.uint8)
    wide[..., :scale.shape[-1]] = exponents
    return wide.view("<i4").repeat(128, -2)[..., :rows, :]


# ---- the parameters of one rank

class Rank:
    def __init__(self, config, tensors, tp, rank):
        self.config, self.tensors, self.tp, self.rank = config, tensors, tp, rank
        self.block = config.get("quantization_config", {}).get("weight_block_size", [1])[0]
        self.params = {}

    def rows(self, name, heads=None):
        """This rank's rows of a tensor; fewer heads than ranks: each is replicated."""
        whole = self.tensors[name]
        parts = min(heads or self.tp, self.tp)
        each = whole.shape[0] // parts
        at = self.rank * parts // self.tp * each
        return whole[at:at + each]

    def columns(self, name):
        whole = self.tensors[name]
        each = whole.shape[1] // self.tp
        return whole[:, self.rank * each:(self.rank + 1) * each]

    def vocabulary(self, name):
        whole = self.tensors[name]
        unit = 64 if 64 % self.tp == 0 else 64 * self.tp
        size = -(-whole.shape[0] // unit) * unit
        padded = np.zeros((size, whole.shape[1]), whole.dtype)
        padded[:whole.shape[0]] = whole
        each = size // self.tp
        self.params[name] = padded[self.rank * each:(self.rank + 1) * each]

    def linear(self, name, make):
        """make(suffix): the rank's part of ".weight" or ".weight_scale_inv" tensors."""
        self.params[name + ".weight"] = make(".weight")
        if self.block > 1:
            self.params[name + ".weight_scale_inv"] = make(".weight_scale_inv")

    def attention(self, at):
        heads = self.config["num_attention_heads"]
        kv = self.config["num_key_value_heads"]
        self.linear(at + "qkv_proj", lambda s: np.concatenate([
            self.rows(at + "q_proj" + s, heads), self.rows(at + "k_proj" + s, kv),
            self.rows(at + "v_proj" + s, kv)]))
        self.linear(at + "o_proj", lambda s: self.columns(at + "o_proj" + s))
        for norm in ("q_norm", "k_norm"):
            if at + norm + ".weight" in self.tensors:
                self.params[at + norm + ".weight"] = self.tensors[at + norm + ".weight"]

    def dense(self, at):
        self.linear(at + "gate_up_proj", lambda s: np.concatenate([
            self.rows(at + "gate_proj" + s), self.rows(at + "up_proj" + s)]))
        self.linear(at + "down_proj", lambda s: self.columns(at + "down_proj" + s))

    def experts(self, at):
        ids = range(self.config["num_experts"])
        self.params[at + "gate.weight"] = self.tensors[at + "gate.weight"]
        for suffix in (".weight", ".weight_scale_inv")[:2 if self.block > 1 else 1]:
            end = suffix.replace(".", "_", 1)
            self.params[at + "experts.w13" + end] = np.stack([np.concatenate([
                self.rows("%sexperts.%d.gate_proj%s" % (at, i, suffix)),
                self.rows("%sexperts.%d.up_proj%s" % (at, i, suffix))]) for i in ids])
            self.params[at + "experts.w2" + end] = np.stack([
                self.columns("%sexperts.%d.down_proj%s" % (at, i, suffix)) for i in ids])

    def model(self):
        self.vocabulary("model.embed_tokens.weight")
        if not self.config["tie_word_embeddings"]:
            self.vocabulary("lm_head.weight")
        self.params["model.norm.weight"] = self.tensors["model.norm.weight"]
        for i in range(self.config["num_hidden_layers"]):
            at = "model.layers.%d." % i
            self.attention(at + "self_attn.")
            sparse = at + "mlp.gate.weight" in self.tensors
            (self.experts if sparse else self.dense)(at + "mlp.")
            for norm in ("input_layernorm", "post_attention_layernorm"):
                self.params[at + norm + ".weight"] = self.tensors[at + norm + ".weight"]
        return self.params


def main(folder, tp, rank, function):
    with open(folder + "/config.json", encoding="utf-8") as f:
        config = json.load(f)
    params = Rank(config, read(folder + "/model.safetensors"), int(tp), int(rank)).model()
    sglang = function != "sha256"
    for name in sorted(params):
        scale = params.get(name + "_scale_inv")
        if sglang and name.endswith("_scale_inv"):
            continue
        number = rewritten if function == "sglang-cuda-ue8m0" else dequantized
        value = params[name] if scale is None or not sglang else number(params[name], scale)
        print("%s\t%s" % (name, FUNCTIONS[function](np.ascontiguousarray(value).tobytes())))


if __name__ == "__main__":
    main(*sys.argv[1:])
