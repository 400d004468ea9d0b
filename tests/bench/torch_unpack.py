#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""torch_unpack.py DIR - torch's way from quantized weights to fp32, on one thread.

Writes DIR/KIND.safetensors of each kind, 4096 x 4096, and prints a line when they are there; for
each line on stdin (a kind) does the same weight once, from tensors in memory, and prints the
seconds as JSON.
"""
import json
import os
import sys
import time

import torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))),
                                "peers"))
import unpack_oracle as oracle  # noqa: E402

SIZE = 4096


def packed(add, *args):
    ck = oracle.Checkpoint()
    add(ck, "w.weight", *args)
    return ck


def nibbles(first, second, levels, scales, block):
    codes = torch.stack([first, second], 1).reshape(-1, block)
    return levels[codes.int()] * scales[:, None]


def nf4(t):
    bytes_ = t["w.weight"].reshape(-1)
    absmax = t["w.weight.absmax"]
    if absmax.dtype == torch.uint8:
        nested = t["w.weight.nested_absmax"].repeat_interleave(256)[:len(absmax)]
        absmax = t["w.weight.nested_quant_map"][absmax.int()] * nested + 0.04
    return nibbles(bytes_ >> 4, bytes_ & 15, oracle.NF4, absmax, 64)


def nvfp4(t):
    bytes_ = t["w.weight"].reshape(-1)
    both = (t["w.weight_scale"].float() * t["w.weight_scale_2"]).reshape(-1)
    return nibbles(bytes_ & 15, bytes_ >> 4, torch.cat([oracle.E2M1, -oracle.E2M1]), both, 16)


def fp8(t):
    tiles = t["w.weight"].float().view(SIZE // 128, 128, SIZE // 128, 128)
    return tiles * t["w.weight_scale_inv"][:, None, :, None]


def main(out):
    torch.set_num_threads(1)
    x = torch.empty(SIZE, SIZE, dtype=torch.bfloat16).normal_(0, 0.02)
    plain = oracle.Checkpoint()
    plain.tensors["w.weight"] = x
    kinds = {"nf4": (packed(oracle.add_nf4, x, 64, False), nf4),
             "nf4-double": (packed(oracle.add_nf4, x, 64, True), nf4),
             "nvfp4": (packed(oracle.add_nvfp4, x), nvfp4),
             "fp8": (packed(oracle.add_fp8, x, 128, 128, torch.float32), fp8),
             "bf16": (plain, lambda t: t["w.weight"].float())}
    for kind, (ck, _) in kinds.items():
        ck.write(os.path.join(out, kind + ".safetensors"))
    with torch.inference_mode():
        print(json.dumps({"torch": torch.__version__}), flush=True)
        for line in sys.stdin:
            ck, unpack = kinds[line.strip()]
            began = time.monotonic()
            unpack(ck.tensors)
            print(json.dumps({"seconds": time.monotonic() - began}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
