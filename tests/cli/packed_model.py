#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""packed_model.py - scaled_model.py's small model in bf16 and the same in 4 bits, with one thing
wrong where one is asked for.

packed_model.py DIR nf4|nf4-double|nvfp4 [--flaw FLAW]: writes DIR/bf16 and DIR/packed, and
DIR/unsaid, whose config.json does not say what it is. By the formulas of bitsandbytes and ModelOpt,
with nothing but struct and arithmetic. Prints one JSON line: for each packed weight the errors of
what it wrote, in doubles."""
import argparse
import bisect
import json
import math
import os
import random
import struct

from scaled_model import VOCAB, H, bf16, config, e4m3, f32, linears, pack_bf16, pack_f32, save, \
    value

NF4 = [-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
       -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
       0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
       0.7229568362236023, 1.0]
E2M1 = [0, .5, 1, 1.5, 2, 3, 4, 6]
QUANT = {"nf4": {"quant_method": "bitsandbytes", "load_in_4bit": True,
                 "bnb_4bit_quant_type": "nf4"},
         "nvfp4": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}


def nearest(x, levels):
    i = bisect.bisect_left(levels, x)
    if i == len(levels) or (i and x - levels[i - 1] <= levels[i] - x):
        i -= 1
    return i


def dynamic_levels():
    """bitsandbytes' signed type of 8 bits."""
    levels = [0.0, 1.0]
    for i in range(7):
        n = 2 ** i
        for k in range(n):
            mean = f32(0.1 + 0.9 * (2 * k + 1) / (2 * n))
            levels += [f32(10.0 ** (i - 6) * mean), -f32(10.0 ** (i - 6) * mean)]
    return sorted(levels)


class Nf4:
    """codes, absmax (one for each 64 numbers), and what goes with them."""

    def __init__(self, w, shape, double, slack=1):
        self.shape, self.double = shape, double
        blocks = [w[i:i + 64] for i in range(0, len(w), 64)]
        self.absmax = [f32(max(map(abs, b))) for b in blocks]
        self.codes = [nearest(f32(x / m / slack) if m else 0.0, NF4) for b,
                      m in zip(blocks, self.absmax) for x in b]
        self.levels, self.state = NF4, {"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16",
                                        "shape": shape}

    def numbers(self):
        return [f32(self.levels[c] * self.absmax[i // 64]) for i, c in enumerate(self.codes)]

    def nested(self, flaw):
        """Codes of absmax, their scales, their offset; absmax is what they come to."""
        offset = f32(sum(self.absmax) / len(self.absmax))
        centred = [f32(a - offset) for a in self.absmax]
        outer = [max(map(abs, centred[i:i + 256])) for i in range(0, len(centred), 256)]
        levels = dynamic_levels()
        inner = [nearest(f32(a / outer[i // 256]), levels) for i, a in enumerate(centred)]
        self.absmax = [f32(f32(levels[c] * outer[i // 256]) + offset) for i, c in enumerate(inner)]
        if flaw == "nan":
            outer[0] = math.nan
        return inner, outer, offset, levels

    def tensors(self, name, flaw):
        state, absmax = dict(self.state), [(name + ".absmax", "F32", [len(self.absmax)])]
        if self.double:
            inner, outer, offset, levels = self.nested(flaw)
            state.update(nested_blocksize=256, nested_dtype="float32", nested_offset=offset)
            absmax = [(name + ".absmax", "U8", [len(inner)], bytes(inner)),
                      (name + ".nested_absmax", "F32", [len(outer)], pack_f32(outer)),
                      (name + ".nested_quant_map", "F32", [256], pack_f32(levels))]
        else:
            spoiled = spoil(flaw, self.absmax)
            absmax = [(name + ".absmax", "F32", [len(spoiled)], pack_f32(spoiled))]
        if flaw == "blocksize":
            state["blocksize"] = 128
        text = b"{" if flaw == "state" else json.dumps(state).encode()
        levels = NF4[:7] + [0.015625] + NF4[8:] if flaw == "levels" else NF4
        packed = bytes(a << 4 | b for a, b in zip(self.codes[::2], self.codes[1::2]))
        out = [(name, "U8", [len(packed), 1], packed), *absmax,
               (name + ".quant_map", "F32", [16], pack_f32(levels)),
               (name + ".quant_state.bitsandbytes__nf4", "U8", [len(text)], text)]
        gone = {"no-scale": name + ".absmax", "no-weight": name,
                "no-state": name + ".quant_state.bitsandbytes__nf4"}
        return [t for t in out if t[0] != gone.get(flaw)]


class Nvfp4:
    def __init__(self, w, shape, slack=1):
        rows, self.cols = self.shape = shape
        self.all = f32(max(map(abs, w)) / (6 * 448))
        self.scales, self.codes = [], []
        for i in range(0, len(w), 16):
            s = e4m3(f32(max(map(abs, w[i:i + 16])) / f32(6 * self.all))) or e4m3(1)
            both = f32(value(s) * self.all)
            self.scales.append(s)
            self.codes += [nearest(abs(f32(x / both / slack)), E2M1) | (8 if x < 0 else 0)
                           for x in w[i:i + 16]]

    def numbers(self):
        return [f32((-1 if c & 8 else 1) * E2M1[c & 7]
                    * f32(value(self.scales[i // 16]) * self.all))
                for i, c in enumerate(self.codes)]

    def tensors(self, name, flaw):
        rows, across, scales, second = self.shape[0], self.cols // 16, list(self.scales), self.all
        if flaw in ("nan", "zero", "negative"):
            scales[1] = {"nan": 0x7f, "zero": 0, "negative": scales[1] | 0x80}[flaw]
        elif flaw == "shuffled":
            scales = scales[1:] + scales[:1]
        elif flaw == "powers":
            scales = [e4m3(2.0 ** math.floor(math.log2(value(s)))) for s in scales]
        elif flaw == "slack":
            second *= 2
        elif flaw in ("inf", "reciprocal"):
            second = math.inf if flaw == "inf" else f32(1 / second)
        shape = [across, rows] if flaw == "shape" else [rows, across]
        packed = bytes(a | b << 4 for a, b in zip(self.codes[::2], self.codes[1::2]))
        out = [(name, "U8", [rows, self.cols // 2], packed),
               (name + "_scale", "F8_E4M3", shape, bytes(scales)),
               (name + "_scale_2", "F32", [], pack_f32([second])),
               (name.replace(".weight", ".input_scale"), "F32", [], pack_f32([0.25]))]
        gone = {"no-scale": name + "_scale", "no-weight": name, "no-scale-2": name + "_scale_2"}
        return [t for t in out if t[0] != gone.get(flaw)]


def spoil(flaw, absmax):
    bad = {"nan": math.nan, "inf": math.inf, "zero": 0.0, "negative": -absmax[1]}
    if flaw in bad:
        return [bad[flaw] if i == 1 else a for i, a in enumerate(absmax)]
    if flaw in ("reciprocal", "slack"):
        return [f32(1 / a if flaw == "reciprocal" else 2 * a) for a in absmax]
    if flaw == "shape":
        return absmax[1:]
    return absmax[1:] + absmax[:1] if flaw == "shuffled" else absmax


def errors(w, d):
    ww, dd = sum(x * x for x in w), sum(x * x for x in d)
    return {"max": max(abs(x - y) for x, y in zip(w, d)),
            "rms": math.sqrt(sum((x - y) ** 2 for x, y in zip(w, d)) / ww),
            "cosine": sum(x * y for x, y in zip(w, d)) / math.sqrt(ww * dd)}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("dir")
    p.add_argument("how", choices=("nf4", "nf4-double", "nvfp4"))
    p.add_argument("--flaw")
    a = p.parse_args()
    rng, report = random.Random(1), {}
    plain = [("model.embed_tokens.weight", [VOCAB, H]), ("lm_head.weight", [VOCAB, H]),
             ("model.norm.weight", [H]),
             ("model.layers.0.input_layernorm.weight", [H]),
             ("model.layers.0.post_attention_layernorm.weight", [H])]
    before = [(n, "BF16", s, pack_bf16([bf16(rng.gauss(0, 0.1)) for _ in range(math.prod(s))]))
              for n, s in plain]
    after = list(before)
    for name, rows, cols in linears():
        w = [bf16(rng.gauss(0, 0.05)) for _ in range(rows * cols)]
        slack = 2 if a.flaw == "slack" and ".up_proj" in name else 1
        q = (Nvfp4(w, [rows, cols], slack) if a.how == "nvfp4" else
             Nf4(w, [rows, cols], a.how == "nf4-double", slack))
        before.append((name + ".weight", "BF16", [rows, cols], pack_bf16(w)))
        after += q.tensors(name + ".weight", a.flaw if ".up_proj" in name else None)
        report[name + ".weight"] = errors(w, q.numbers())
    bare = config(argparse.Namespace(tensor=True, flaw="no-config"))[0]
    save(os.path.join(a.dir, "bf16"), before, bare)
    save(os.path.join(a.dir, "unsaid"), after, bare)
    save(os.path.join(a.dir, "packed"), after,
         dict(bare, quantization_config=QUANT[a.how.split("-")[0]]))
    print(json.dumps(report))


if __name__ == "__main__":
    main()
