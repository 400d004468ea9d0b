#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scaled_model.py - a small model in bf16 and the same in FP8, with one thing wrong where one is
asked for.

scaled_model.py DIR [--flaw FLAW] [--block R C] [--tensor] [--ue8m0]: writes DIR/bf16 and DIR/fp8, a
safetensors file and a config.json each. Quantizes with nothing but struct and arithmetic: the
nearest of the 127 magnitudes of E4M3, ties to the even code. Prints one JSON line: for each
quantized weight the errors of what it wrote, in doubles."""
import argparse
import json
import math
import os
import random
import struct

H, I, VOCAB = 64, 96, 40
E4M3 = [m / 512 if m < 8 else (8 + m % 8) * 2.0 ** (m // 8 - 10) for m in range(127)]


def f32(x):
    try:
        return struct.unpack("<f", struct.pack("<f", x))[0]
    except OverflowError:
        return math.copysign(math.inf, x)


def bf16(x):
    """The nearest number of bfloat16, ties to even."""
    b = struct.unpack("<I", struct.pack("<f", x))[0]
    b = (b + 0x7FFF + (b >> 16 & 1)) & 0xFFFF0000
    return struct.unpack("<f", struct.pack("<I", b))[0]


def e4m3(x):
    a = min(abs(x), 448.0)
    lo, hi = 0, 126
    while lo < hi:  # the first that is not below
        mid = (lo + hi) // 2
        lo, hi = (mid + 1, hi) if E4M3[mid] < a else (lo, mid)
    if lo and (a - E4M3[lo - 1], (lo - 1) % 2) < (E4M3[lo] - a, lo % 2):
        lo -= 1
    return lo | (0x80 if math.copysign(1, x) < 0 else 0)


def value(code):
    m = E4M3[code & 0x7F] if code & 0x7F < 127 else math.nan
    return -m if code & 0x80 else m


def write(path, tensors):
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, dtype, shape, raw in tensors:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(raw)]}
        at += len(raw)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(t[3] for t in tensors))


def pack_bf16(xs):
    return b"".join(struct.pack("<f", x)[2:] for x in xs)


def pack_f32(xs):
    return struct.pack(f"<{len(xs)}f", *xs)


def linears():
    a, m = "model.layers.0.self_attn.", "model.layers.0.mlp."
    return [(a + "q_proj", H, H), (a + "k_proj", H // 2, H), (a + "v_proj", H // 2, H),
            (a + "o_proj", H, H),
            (m + "gate_proj", I, H), (m + "up_proj", I, H), (m + "down_proj", H, I)]


def quantize(w, rows, cols, bn, bk, ue8m0):
    """Codes, scales (in order of their blocks)."""
    down, across = -(-rows // bn), -(-cols // bk)
    scales, codes = [0.0] * (down * across), bytearray(rows * cols)
    for b in range(down * across):
        top, left = b // across * bn, b % across * bk
        places = [r * cols + c for r in range(top, min(top + bn, rows))
                  for c in range(left, min(left + bk, cols))]
        s = f32(max(max(abs(w[i]) for i in places), f32(1e-12)) / 448)
        if ue8m0:
            s = 2.0 ** math.ceil(math.log2(s))
        scales[b] = s
        for i in places:
            codes[i] = e4m3(f32(w[i] / s))
    return codes, scales


def errors(w, codes, scales, cols, bn, bk):
    across = -(-cols // bk)
    d = [f32(value(c) * scales[i // cols // bn * across + i % cols // bk]) for i,
         c in enumerate(codes)]
    ww, dd = sum(x * x for x in w), sum(x * x for x in d)
    return {"max": max(abs(x - y) for x, y in zip(w, d)),
            "rms": math.sqrt(sum((x - y) ** 2 for x, y in zip(w, d)) / ww),
            "cosine": sum(x * y for x, y in zip(w, d)) / math.sqrt(ww * dd)}


# ---- what may be wrong: on the tensors of model.layers.0.mlp.up_proj, codes and scales -----------

def swap(scales, i, x):
    return [x if k == i else s for k, s in enumerate(scales)]


def spoil(flaw, codes, scales):
    if flaw == "reciprocal":
        scales = [f32(1 / s) for s in scales]
    elif flaw in ("nan", "inf", "zero", "negative", "subnormal"):
        bad = {"nan": math.nan, "inf": math.inf, "zero": 0.0, "negative": -scales[1],
               "subnormal": 1e-40}
        scales = swap(scales, 1, bad[flaw])
    elif flaw == "unloaded":
        scales = [-3.4028234663852886e38] * len(scales)
    elif flaw == "huge":
        scales = swap(scales, 1, 1e6)
    elif flaw == "nan-code":
        codes[77] = 0x7F
    elif flaw == "clamped":
        scales = [f32(s / 16) for s in scales]
        codes = bytearray(e4m3(value(c) * 16) for c in codes)
    elif flaw in ("slack", "vanished"):
        by = 8 if flaw == "slack" else 2.0 ** 18
        scales = [f32(s * by) for s in scales]
        codes = bytearray(e4m3(value(c) / by) for c in codes)
    elif flaw == "shuffled":
        scales = scales[1:] + scales[:1]
    return codes, scales


def emit(name, rows, cols, codes, scales, a, out):
    """The tensors of one weight as the flaw wants them."""
    flaw = a.flaw if ".up_proj" in name else None
    shape = [-(-rows // a.block[0]), -(-cols // a.block[1])] if not a.tensor else [1]
    scale = name + (".weight_scale" if a.tensor else ".weight_scale_inv")
    if flaw == "renamed":
        scale = name + ".weight_scale"
    if flaw == "transposed":
        shape = shape[::-1]
    if flaw != "no-weight":
        out.append((name + ".weight", "F8_E5M2" if flaw == "e5m2" else "F8_E4M3", [rows, cols],
                    bytes(codes)))
    if flaw == "bf16-scale":
        out.append((scale, "BF16", shape, pack_bf16([bf16(s) for s in scales])))
    elif flaw == "int-scale":
        out.append((scale, "I32", shape, pack_f32(scales)))
    elif flaw != "no-scale":
        out.append((scale, "F32", shape, pack_f32(scales)))
    if flaw == "two-scales":
        out.append((name + ".weight_scale", "F32", shape, pack_f32(scales)))


def config(a):
    c = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16",
         "hidden_size": H, "intermediate_size": I, "num_hidden_layers": 1, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 16, "vocab_size": VOCAB,
         "tie_word_embeddings": False}
    q = {"quant_method": "fp8", "activation_scheme": "dynamic",
         "modules_to_not_convert": ["lm_head"]}
    if not a.tensor:
        q["weight_block_size"] = a.block
    if a.flaw == "not-to-convert":
        q["modules_to_not_convert"].append("model.layers.0.mlp.up_proj")
    return c, c if a.flaw == "no-config" else dict(c, quantization_config=q)


def save(path, tensors, conf):
    os.makedirs(path, exist_ok=True)
    write(os.path.join(path, "model.safetensors"), tensors)
    with open(os.path.join(path, "config.json"), "w", encoding="utf-8") as f:
        json.dump(conf, f, indent=1)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("dir")
    p.add_argument("--flaw")
    p.add_argument("--block", type=int, nargs=2, default=[16, 16])
    p.add_argument("--tensor", action="store_true")
    p.add_argument("--ue8m0", action="store_true")
    p.add_argument("--seed", type=int, default=1)
    a = p.parse_args()
    rng = random.Random(a.seed)
    plain = [("model.embed_tokens.weight", [VOCAB, H]), ("lm_head.weight", [VOCAB, H]),
             ("model.norm.weight", [H]),
             ("model.layers.0.input_layernorm.weight", [H]),
             ("model.layers.0.post_attention_layernorm.weight", [H])]
    before = [(n, "BF16", s, pack_bf16([bf16(rng.gauss(0, 0.1)) for _ in range(math.prod(s))]))
              for n, s in plain]
    after, report = list(before), {}
    for name, rows, cols in linears():
        w = [bf16(rng.gauss(0, 0.05)) for _ in range(rows * cols)]
        bn, bk = (rows, cols) if a.tensor else a.block
        before.append((name + ".weight", "BF16", [rows, cols], pack_bf16(w)))
        if a.flaw == "left-out" and ".up_proj" in name:
            after.append(before[-1])
            continue
        codes, scales = quantize(w, rows, cols, bn, bk, a.ue8m0)
        if ".up_proj" in name:
            codes, scales = spoil(a.flaw, codes, scales)
        report[name + ".weight"] = errors(w, codes, scales, cols, bn, bk)
        emit(name, rows, cols, codes, scales, a, after)
    if a.flaw == "not-in-source":
        before = [t for t in before if ".up_proj" not in t[0]]
    if a.flaw == "changed-norm":
        after = [(n, d, s, bytes(len(r)) if n == "model.norm.weight" else r) for n, d, s,
                 r in after]
    bare, quantized = config(a)
    save(os.path.join(a.dir, "bf16"), before, bare)
    save(os.path.join(a.dir, "fp8"), after, quantized)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
