# SPDX-License-Identifier: Apache-2.0
"""sglang_sums.py - the checksums that SGLang's own code computes of a server's parameters.

sglang_sums.py DIR TP RANK: for a checkpoint as in runtime_sums.py prints NAME TAB CPU TAB CUDA TAB
REWRITTEN of each parameter. CPU: its WeightChecker. CUDA: its two Triton kernels, in Triton's
interpreter (TRITON_INTERPRET=1). REWRITTEN: the same after its requantization of block FP8 for
DeepGEMM; scales that runtime_sums.py packs must be unpacked by it to the same numbers. The
parameters are those of runtime_sums.py, in modules whose quant_method is SGLang's.
"""
import json
import os
import sys

os.environ["TRITON_INTERPRET"] = "1"

import torch  # noqa: E402
from sglang.kernels.ops.memory import gpu_tensor_hash as kernels  # noqa: E402
from sglang.srt.layers.quantization.fp8 import Fp8LinearMethod  # noqa: E402
from sglang.srt.layers.quantization import fp8_utils  # noqa: E402
from sglang.srt.utils import weight_checker  # noqa: E402

import runtime_sums  # noqa: E402

TILE, CHUNK, SEED = 8192, 1024, 0x243F6A88
CODES = torch.float8_e4m3fn
KINDS = {"uint16": torch.bfloat16, "uint8": CODES, "float32": torch.float32}


def on_gpu(tensor):
    """What gpu_tensor_hash launches, for a tensor of the interpreter."""
    raw = tensor.contiguous().reshape(-1).view(torch.uint8)
    raw = torch.cat([raw, torch.zeros(-len(raw) % 4, dtype=torch.uint8)])
    words = raw.view(torch.uint32)
    sums = torch.empty(-(-len(words) // TILE), dtype=torch.uint64)
    kernels.hash_tiles32_kernel_blocked[(len(sums),)](
        words, sums, len(words), seed1=SEED, seed2=(SEED * 0x9E3779B1 ^ 0xDEADBEEF) & 0xFFFFFFFF,
        FM_C1=kernels.FMIX32_C1, FM_C2=kernels.FMIX32_C2, POS_A=kernels.POS_C1,
        POS_B=kernels.POS_C2, TILE=TILE, BLOCK=256, USE_CG=False)
    while len(sums) > 1:
        fewer = torch.empty(-(-len(sums) // CHUNK), dtype=torch.uint64)
        kernels.add_tree_reduce_u64_kernel[(len(fewer),)](sums, fewer, len(sums), CHUNK=CHUNK)
        sums = fewer
    return "%016x" % kernels._final_splitmix64(sums[0].item())


def method():
    made = Fp8LinearMethod.__new__(Fp8LinearMethod)
    made.block_quant, made.use_mxfp8 = True, False
    return made


def model_of(params):
    """A module for each weight, with its scales."""
    root = torch.nn.Module()
    for name, value in params.items():
        at = root
        *path, last = name.split(".")
        for part in path:
            if not hasattr(at, part):
                at.add_module(part, torch.nn.Module())
            at = getattr(at, part)
        at.register_parameter(last, torch.nn.Parameter(value, requires_grad=False))
        if last.endswith("weight_scale_inv"):
            at.quant_method = method()
    return root


def rewritten(params):
    new = dict(params)
    for name, codes in params.items():
        scale = params.get(name + "_scale_inv")
        if scale is None:
            continue
        each = [fp8_utils.quant_weight_ue8m0(
                    fp8_utils.block_quant_dequant(c, s, [128, 128], torch.bfloat16), [128, 128])
                for c, s in zip(codes.reshape(-1, *codes.shape[-2:]),
                                scale.reshape(-1, *scale.shape[-2:]))]
        new[name] = torch.stack([c for c, _ in each]).view(codes.shape)
        new[name + "_scale_inv"] = torch.stack([s for _, s in each]).view(scale.shape)
    return new


def entries(params):
    model = model_of(params)
    return {name: comparable.dequantize().data
            for name, compared, comparable in weight_checker._build_check_entries(
                dict(model.named_parameters()), set(), weight_checker._build_quantized_set(model))
            if compared}


def main(folder, tp, rank):
    with open(folder + "/config.json", encoding="utf-8") as f:
        config = json.load(f)
    arrays = runtime_sums.Rank(config, runtime_sums.read(folder + "/model.safetensors"), int(tp),
                               int(rank)).model()
    params = {name: torch.from_numpy(a.copy()).view(KINDS[a.dtype.name])
              for name, a in arrays.items()}
    checker = weight_checker.WeightChecker.__new__(weight_checker.WeightChecker)
    checker._get_model = lambda: model_of(params)
    checker._parallelism_info = lambda role: weight_checker.ParallelismInfo(
        role=role, tp_rank=0, tp_size=1, dp_rank=0, dp_size=1, pp_rank=0, pp_size=1, rank=0,
        size=1)
    cpu = checker.handle("checksum", role="target")["checksums"]
    made = rewritten(params)
    cuda, new = entries(params), entries(made)
    for name, scale in made.items():
        if name.endswith("weight_scale_inv"):
            packed = runtime_sums.packed(scale.numpy(), made[name[:-10]].shape[-2])
            unpacked = fp8_utils._inverse_transform_scale_ue8m0_impl(torch.from_numpy(packed))
            assert torch.equal(unpacked[..., :scale.shape[-1]], scale), name
    new = {n: cuda[n] if torch.equal(cuda[n], new[n]) else new[n] for n in cuda}
    for name in sorted(cpu):
        sums = [on_gpu(cuda[name])]
        sums.append(sums[0] if new[name] is cuda[name] else on_gpu(new[name]))
        print("\t".join([name, cpu[name], *sums]))


if __name__ == "__main__":
    main(*sys.argv[1:])
