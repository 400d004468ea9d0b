# SPDX-License-Identifier: Apache-2.0
"""transform_oracle.py DIR - a small llama in several forms, and by torch what each transform makes
of it.

Writes DIR/base, DIR/fp8, DIR/nf4 and DIR/nvfp4 (checkpoints of one model), DIR/lora (a PEFT
adapter) and DIR/correction.safetensors, DIR/server-fp8/config.json, and for every case of CASES the
tensors that a receiver must hold as DIR/CASE.safetensors. Factors are small multiples of powers of
two, so that sums of their products are exact in whatever order torch adds them.
"""
import json
import os
import sys

import torch

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(os.path.dirname(HERE), "cli")]
import small_model  # noqa: E402
import unpack_oracle  # noqa: E402

BLOCK, RANK, ALPHA = small_model.BLOCK, 4, 8
BF16 = torch.bfloat16


class File(unpack_oracle.Checkpoint):
    def save(self, *path):
        os.makedirs(os.path.join(*path[:-1]), exist_ok=True)
        self.write(os.path.join(*path))


def number(shape, seed):
    """Numbers of many sizes, some blocks of zeros."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=g) * torch.exp2(torch.randint(-12, 3, (shape[0],) + (1,
        ) * (len(shape) - 1), generator=g))
    if len(shape) == 2:
        x[:BLOCK, :BLOCK] = 0
    return x.to(BF16)


def exact(shape, seed):
    g = torch.Generator().manual_seed(seed)
    return (torch.randint(-8, 9, shape, generator=g) / 256).to(BF16)


def fp8(x, rule="xorl", bn=BLOCK, bk=BLOCK):
    """codes and scales of a bf16 or fp32 matrix."""
    rows, cols = x.shape
    padded = torch.nn.functional.pad(x.float(), (0, -cols % bk, 0, -rows % bn))
    grid = padded.reshape(padded.shape[0] // bn, bn, padded.shape[1] // bk, bk)
    s = grid.abs().amax((1, 3)).clamp(min=1e-12 if rule == "xorl" else 1e-10) / 448
    wide = s[:, None, :, None]
    y = grid / wide if rule == "xorl" else grid * (1 / wide)
    codes = y.clamp(-448, 448).to(torch.float8_e4m3fn).reshape(padded.shape)[:rows, :cols]
    return codes.contiguous(), s


def put_fp8(out, name, x, *args):
    out.tensors[name], out.tensors[name + "_scale_inv"] = fp8(x, *args)


def is_projection(name):
    return name.endswith("_proj.weight")


class Model:
    def __init__(self):
        self.base = {name: number(shape, i) for i, (name, _, shape) in
                     enumerate(small_model.tensors("llama", False, "BF16"))}
        self.changed = [n for n in self.base if is_projection(n) and "layers.1" in n]
        self.a, self.b, self.u, self.v = {}, {}, {}, {}
        for i, n in enumerate(self.changed):
            rows, cols = self.base[n].shape
            self.a[n], self.b[n] = exact((RANK, cols), 1000 + i), exact((rows, RANK), 2000 + i)
            self.u[n], self.v[n] = exact((rows, 3), 3000 + i), exact((3, cols), 4000 + i)

    def lora(self, n):
        return ALPHA / RANK * (self.b[n].float() @ self.a[n].float())

    def correction(self, n):
        return self.u[n].float() @ self.v[n].float()

    def write(self, top):
        base, quantized, nf4, nvfp4, lora, correction = (File() for _ in range(6))
        for n, x in self.base.items():
            base.tensors[n] = x
            if is_projection(n):
                put_fp8(quantized, n, x)
                unpack_oracle.add_nf4(nf4, n, x, 64, True)
                unpack_oracle.add_nvfp4(nvfp4, n, x)
            else:
                quantized.tensors[n] = nf4.tensors[n] = nvfp4.tensors[n] = x
        for n in self.changed:
            module = "base_model.model." + n[:-len(".weight")]
            lora.tensors[module + ".lora_A.weight"] = self.a[n]
            lora.tensors[module + ".lora_B.weight"] = self.b[n]
            correction.tensors[n[:-len(".weight")] + ".correction_U"] = self.u[n]
            correction.tensors[n[:-len(".weight")] + ".correction_V"] = self.v[n]
        for name, file in (("base", base), ("fp8", quantized), ("nf4", nf4), ("nvfp4", nvfp4)):
            file.save(top, name, "model.safetensors")
        lora.save(top, "lora", "adapter_model.safetensors")
        correction.save(top, "correction.safetensors")
        self.unpacked = {name: {n: numbers.to(dtype) for n, _, numbers, dtype in file.weights}
                         for name, file in (("nf4", nf4), ("nvfp4", nvfp4))}
        self.unpacked["fp8"] = {n: self.dense(quantized, n) for n in self.base if is_projection(n)}
        with open(os.path.join(top, "lora", "adapter_config.json"), "w") as f:
            json.dump({"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK,
                       "lora_alpha": ALPHA,
                       "bias": "none", "target_modules": "all-linear"}, f)
        for name, is_fp8 in (("base", False), ("fp8", True), ("nf4", False), ("nvfp4", False),
                             ("server-fp8", True)):
            os.makedirs(os.path.join(top, name), exist_ok=True)
            with open(os.path.join(top, name, "config.json"), "w") as f:
                json.dump(small_model.config("llama", is_fp8), f)
        return quantized

    def dense(self, file, n):
        rows, cols = self.base[n].shape
        scales = file.tensors[n + "_scale_inv"].repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK,
            1)
        return (file.tensors[n].float() * scales[:rows, :cols]).to(BF16)

    def fold(self, n, x, *deltas):
        return (x.float() + sum(deltas)).to(BF16) if n in self.changed else x


def cases(m, quantized):
    """case -> tensors."""
    def all_of(dense, finish):
        out = File()
        for n, x in m.base.items():
            finish(out, n, dense(n, x)) if is_projection(n) else out.tensors.__setitem__(n, x)
        return out

    def merged(n, x):
        return m.fold(n, x, m.lora(n)) if n in m.changed else x

    def two_step(n, x):
        return (x + m.lora(n).to(BF16)) if n in m.changed else x

    def chain_of(base):
        def chain(n, _):
            x = m.unpacked[base][n]
            return m.fold(n, x, m.correction(n) + m.lora(n)) if n in m.changed else x
        return chain

    def chain_in_steps(n, _):
        x = m.unpacked["nf4"][n]
        return x + m.correction(n).to(BF16) + m.lora(n).to(BF16) if n in m.changed else x

    def fp8_where_changed(out, n, x):
        if n in m.changed:
            put_fp8(out, n, x)
        else:
            out.tensors[n], out.tensors[n + "_scale_inv"] = (quantized.tensors[n + s]
                for s in ("", "_scale_inv"))

    same = lambda n, x: x  # noqa: E731
    plain = lambda out, n, x: out.tensors.__setitem__(n, x)  # noqa: E731
    yield "quantized", all_of(same, put_fp8)
    yield "slime", all_of(same, lambda o, n, x: put_fp8(o, n, x, "slime"))
    yield "ragged", all_of(same, lambda o, n, x: put_fp8(o, n, x, "xorl", 48, 100))
    yield "merged", all_of(merged, plain)
    yield "two-step", all_of(two_step, plain)
    yield "merged-to-fp8", all_of(merged, put_fp8)
    for base in ("nf4", "nvfp4", "fp8"):
        yield "unpacked-" + base, all_of(lambda n, _, base=base: m.unpacked[base][n], plain)
        yield "merged-" + base, all_of(chain_of(base), plain)
    yield "chain-in-steps", all_of(chain_in_steps, plain)
    yield "chain", all_of(chain_of("nf4"), put_fp8)
    yield "chain-nvfp4", all_of(chain_of("nvfp4"), put_fp8)
    yield "chain-fp8", all_of(chain_of("fp8"), fp8_where_changed)
    yield "identity", quantized
    yield "requantized", all_of(lambda n, _: m.unpacked["fp8"][n],
                                lambda o, n, x: put_fp8(o, n, x, "xorl", 32, 64))


def main(top):
    model = Model()
    quantized = model.write(top)
    for name, file in cases(model, quantized):
        file.save(top, name + ".safetensors")


if __name__ == "__main__":
    main(sys.argv[1])
