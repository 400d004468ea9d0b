# SPDX-License-Identifier: Apache-2.0
"""unpack_oracle.py - quantized checkpoints, and what their weights come to by torch:
unpack_oracle.py DIR

Writes DIR/base.safetensors and, for weight N in the order of the file, DIR/N.f32 (fp32 before the
last rounding) and DIR/N.rounded (after it, as fp32). Quantized with torch and numpy alone; the
formulas are those of bitsandbytes 0.50 (its default kernels), of ModelOpt's NVFP4 tensor and of
block FP8. Where a bitsandbytes can be imported its own words are compared with these. Prints one
line of JSON for each weight.
"""
import json
import os
import struct
import sys

import numpy
import torch

SAFETENSORS = {torch.uint8: "U8", torch.float32: "F32", torch.bfloat16: "BF16",
               torch.float16: "F16",
               torch.float8_e4m3fn: "F8_E4M3"}
NF4 = torch.tensor([-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
                    -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
                    0.07958029955625534, 0.16093020141124725, 0.24611230194568634,
                    0.33791524171829224,
                    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0])
E2M1 = torch.tensor([0, .5, 1, 1.5, 2, 3, 4, 6])


class Checkpoint:
    def __init__(self):
        self.tensors, self.weights = {}, []

    def weight(self, name, packing, numbers, dtype):
        self.weights.append((name, packing, numbers, dtype))

    def write(self, path):
        header, at = {}, 0
        for name, t in self.tensors.items():
            size = t.numel() * t.element_size()
            kind = "F8_E8M0" if name in self.exponents else SAFETENSORS[t.dtype]
            header[name] = {"dtype": kind, "shape": list(t.shape), "data_offsets": [at, at + size]}
            at += size
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with open(path, "wb") as f:
            f.write(struct.pack("<Q", len(text)) + text)
            for t in self.tensors.values():
                f.write(t.contiguous().view(torch.uint8).numpy().tobytes() if t.dim() else
                        t.reshape(1).view(torch.uint8).numpy().tobytes())

    exponents = ()


# ---- nf4 ----

def nearest(x, levels):
    """Numbers of the nearest levels, which rise; a tie is the lower one."""
    return torch.bucketize(x, (levels[:-1] + levels[1:]) / 2).to(torch.uint8)


def blockwise(x, block):
    """x, padded with zeros to whole blocks, one block each row."""
    flat = x.reshape(-1)
    return torch.nn.functional.pad(flat, (0, -flat.numel() % block)).reshape(-1, block)


def dynamic_levels():
    """The signed 8-bit type whose exponent takes as many bits as it is large."""
    levels = []
    for i in range(7):
        edges = torch.linspace(0.1, 1, 2 ** i + 1, dtype=torch.float32)
        means = (edges[:-1] + edges[1:]) / 2
        levels += (10 ** (i - 6) * means).tolist() + (-(10 ** (i - 6)) * means).tolist()
    return torch.tensor(sorted(levels + [0, 1.0]), dtype=torch.float32)


def add_nf4(ck, name, x, block, nested, storage=torch.uint8):
    blocks = blockwise(x.float(), block)
    absmax = blocks.abs().amax(1)
    scaled = blocks / absmax.clamp(min=1e-38)[:, None]
    codes = nearest(scaled, NF4).reshape(-1)[:x.numel()]
    if codes.numel() % 2:
        codes = torch.cat([codes, codes.new_zeros(1)])
    packed = (codes[::2] << 4 | codes[1::2])
    state = {"quant_type": "nf4", "blocksize": block, "dtype": str(x.dtype)[6:],
             "shape": list(x.shape)}
    ck.tensors[name] = packed.view(storage)[:, None]
    if nested:
        offset = absmax.mean()
        outer = blockwise(absmax - offset, 256)
        nested_absmax = outer.abs().amax(1)
        levels = dynamic_levels()
        inner = nearest((outer / nested_absmax.clamp(min=1e-38)[:, None]),
                        levels).reshape(-1)[:len(absmax)]
        ck.tensors[name + ".absmax"] = inner
        ck.tensors[name + ".nested_absmax"] = nested_absmax
        ck.tensors[name + ".nested_quant_map"] = levels
        state.update(nested_blocksize=256, nested_dtype="float32", nested_offset=offset.item())
        absmax = levels[inner.long()] * nested_absmax.repeat_interleave(256)[:len(inner)]
        absmax = absmax + torch.tensor(float(state["nested_offset"]))
    else:
        ck.tensors[name + ".absmax"] = absmax
    ck.tensors[name + ".quant_map"] = NF4.clone()
    ck.tensors[name + ".quant_state.bitsandbytes__nf4"] = torch.tensor(
        list(json.dumps(state).encode()),
                                                                       dtype=torch.uint8)
    numbers = NF4[codes.long()][:x.numel()] * absmax.repeat_interleave(block)[:x.numel()]
    ck.weight(name, "nf4", numbers.reshape(x.shape), x.dtype)


# ---- nvfp4 ----

def add_nvfp4(ck, name, x):
    x = x.float()
    rows, cols = x.shape
    double_scale = x.abs().max() / (6 * 448)
    blocks = torch.nn.functional.pad(x, (0, -cols % 16)).reshape(rows, -1, 16)
    scale = (blocks.abs().amax(2) / (6 * double_scale))
    scale[scale == 0] = 1
    scale = scale.to(torch.float8_e4m3fn)
    both = scale.float() * double_scale
    scaled = blocks / both[:, :, None]
    codes = nearest(scaled.abs(), E2M1) | (torch.signbit(scaled) * 8).to(torch.uint8)
    values = torch.cat([E2M1, -E2M1])[codes.long()] * both[:, :, None]
    codes = codes.reshape(rows, -1)[:, :cols]
    ck.tensors[name] = codes[:, 1::2] << 4 | codes[:, ::2]
    ck.tensors[name + "_scale"] = scale
    ck.tensors[name + "_scale_2"] = double_scale
    ck.tensors[name.replace(".weight", ".input_scale")] = torch.tensor(0.25)
    ck.weight(name, "nvfp4", values.reshape(rows, -1)[:, :cols], torch.bfloat16)


# ---- fp8 ----

def add_fp8(ck, name, x, bn, bk, kind, suffix="_scale_inv"):
    """kind: the type of the scales; "power" fp32 powers of two, "e8m0" their exponents alone."""
    x = x.float()
    matrices, (rows, cols) = x.reshape(-1, *x.shape[-2:]), x.shape[-2:]
    padded = torch.nn.functional.pad(matrices, (0, -cols % bk, 0, -rows % bn))
    grid = padded.reshape(len(matrices), padded.shape[1] // bn, bn, padded.shape[2] // bk, bk)
    scale = grid.abs().amax((2, 4)).clamp(min=1e-12) / 448
    if kind in ("power", "e8m0"):
        scale = torch.exp2(torch.ceil(torch.log2(scale)))
    else:
        scale = scale.to(kind)
    spread = scale.float().repeat_interleave(bn, 1).repeat_interleave(bk, 2)[:, :rows, :cols]
    codes = (matrices / spread).clamp(-448, 448).to(torch.float8_e4m3fn)
    ck.tensors[name] = codes.reshape(x.shape)
    shape = x.shape[:-2] + scale.shape[1:]
    if kind == "e8m0":
        exponents = scale.reshape(shape).view(torch.int32) >> 23
        ck.tensors[name + suffix] = exponents.to(torch.uint8)
        ck.exponents += (name + suffix,)
    else:
        ck.tensors[name + suffix] = scale.reshape(shape)
    ck.weight(name, "fp8", (codes.float() * spread).reshape(x.shape), torch.bfloat16)


def add_scaled_fp8(ck, name, x, dims, shape):
    """One scale for what lies along dims: a row, or all."""
    x = x.float()
    scale = x.abs().amax(dims, keepdim=True).clamp(min=1e-12) / 448
    codes = (x / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
    ck.tensors[name] = codes
    ck.tensors[name + "_scale"] = scale.reshape(shape)
    ck.tensors[name.replace(".weight", ".input_scale")] = torch.tensor(0.5)
    ck.weight(name, "fp8", codes.float() * scale, torch.bfloat16)


def hard(shape, dtype=torch.float32, seed=0):
    """Normal numbers of very different sizes by rows, zeros, a whole row of zeros, and few
    outliers."""
    r = numpy.random.default_rng(seed)
    x = r.standard_normal(shape) * numpy.exp2(r.integers(-18, 4, shape[:-1]))[..., None]
    x[r.random(shape) < 0.05] = 0
    x[r.random(shape) < 0.01] *= 37
    x.reshape(-1, shape[-1])[len(x.reshape(-1, shape[-1])) // 2] = 0
    return torch.from_numpy(x).to(dtype)


def every_code(ck):
    """All E4M3 codes but NaN under scales of hard sizes, and all pairs of nibbles."""
    codes = torch.arange(256, dtype=torch.uint8)
    codes = codes[(codes & 127) != 127].repeat(8, 3)
    scale = torch.tensor([1, 1e-40, 2.0 ** -126, 3e38 / 448, 1e-12 / 448, 0.1, 7.7e-5,
                          0]).reshape(8, 1)
    ck.tensors["codes.fp8.weight"] = codes.view(torch.float8_e4m3fn)
    ck.tensors["codes.fp8.weight_scale"] = scale
    ck.weight("codes.fp8.weight", "fp8", codes.view(torch.float8_e4m3fn).float() * scale,
              torch.bfloat16)
    pairs = torch.arange(256, dtype=torch.uint8).repeat(4)[None, :].repeat(3, 1)
    some = torch.tensor([0.3, 448, 2.0 ** -9, 1, 1.75] * 26)[:128].repeat(3,
        1).to(torch.float8_e4m3fn)
    double_scale = torch.tensor(1.2345e-4)
    ck.tensors["codes.nvfp4.weight"] = pairs
    ck.tensors["codes.nvfp4.weight_scale"] = some
    ck.tensors["codes.nvfp4.weight_scale_2"] = double_scale
    nibbles = torch.stack([pairs & 15, pairs >> 4], 2).reshape(3, -1)
    both = (some.float() * double_scale).repeat_interleave(16, 1)
    ck.weight("codes.nvfp4.weight", "nvfp4", torch.cat([E2M1, -E2M1])[nibbles.long()] * both,
              torch.bfloat16)


def make():
    ck = Checkpoint()
    bf16, f16, f32 = torch.bfloat16, torch.float16, torch.float32
    add_nf4(ck, "a.weight", hard((48, 256), bf16, 1), 64, False)
    add_nf4(ck, "b.weight", hard((300, 256), bf16, 2), 64, True)
    add_nf4(ck, "odd.weight", hard((37, 51), bf16, 3), 64, False)
    add_nf4(ck, "odd_twice.weight", hard((411, 67), f16, 4), 32, True)
    add_nf4(ck, "long_blocks.weight", hard((9, 1500), f32, 5), 4096, False)
    add_nf4(ck, "vector.weight", hard((1, 999), bf16, 6)[0], 128, True)
    add_nf4(ck, "stored.weight", hard((16, 64), bf16, 7), 64, False, bf16)
    add_nf4(ck, "stack.weight", hard((3, 10, 96), bf16, 8), 64, True)
    add_nvfp4(ck, "v.weight", hard((70, 256), seed=9))
    add_nvfp4(ck, "ragged.weight", hard((5, 90), seed=10))
    add_fp8(ck, "f.weight", hard((300, 385), seed=11), 128, 128, f32)
    add_fp8(ck, "bf.weight", hard((257, 130), seed=12), 128, 128, bf16)
    add_fp8(ck, "powers.weight", hard((200, 256), seed=13), 128, 128, "power")
    add_fp8(ck, "exponents.weight", hard((200, 256), seed=14), 128, 128, "e8m0")
    add_fp8(ck, "small.weight", hard((96, 96), seed=15), 32, 64, f32)
    add_fp8(ck, "experts.gate_up_proj", hard((3, 200, 150), seed=16), 128, 128, f32)
    add_scaled_fp8(ck, "tensor.weight", hard((33, 70), seed=17), (0, 1), ())
    add_scaled_fp8(ck, "rows.weight", hard((33, 70), seed=18), (1,), (33, 1))
    every_code(ck)
    for name, dtype in (("n.weight", bf16), ("h.weight", f16), ("s.bias", f32)):
        ck.tensors[name] = hard((7, 33), dtype, 20)
        ck.weight(name, "none", ck.tensors[name].float(), dtype)
    return ck


def compare_with_bitsandbytes(ck):
    """Its QuantState, read from our tensors, must come to our numbers."""
    try:
        from bitsandbytes import functional
    except ImportError:
        return
    for name, packing, numbers, dtype in ck.weights:
        if packing == "nf4" and ck.tensors[name].dtype == torch.uint8:
            parts = {k[len(name) + 1:]: v for k,
                     v in ck.tensors.items() if k.startswith(name + ".")}
            state = functional.QuantState.from_dict(parts, torch.device("cpu"))
            assert torch.equal(functional.dequantize_4bit(ck.tensors[name], state),
                               numbers.to(dtype)), name
            print("bitsandbytes agrees on", name, file=sys.stderr)


def main(out):
    ck = make()
    ck.write(os.path.join(out, "base.safetensors"))
    for i, (name, packing, numbers, dtype) in enumerate(ck.weights):
        assert torch.isfinite(numbers).all(), name
        numbers.contiguous().numpy().tofile(os.path.join(out, "%d.f32" % i))
        numbers.to(dtype).float().numpy().tofile(os.path.join(out, "%d.rounded" % i))
        print(json.dumps({"name": name, "packing": packing, "dtype": str(dtype)[6:],
                          "shape": list(numbers.shape)}))
    compare_with_bitsandbytes(ck)


if __name__ == "__main__":
    main(sys.argv[1])
