#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""torch_kernels.py ROWS COLS - what wsync-bench kernels does, by torch on one thread.

Prints a line when it is ready, and for each line on stdin, a row of wsync-bench kernels, does the
same with a tensor of as many numbers and prints the seconds as JSON. Sizes are multiples of 128, so
that nothing is padded.
"""
import json
import sys
import time

import torch

RANK, SCALE = 16, 2.0


def quantize(x, slime):
    rows, cols = x.shape
    tiles = x.float().view(rows // 128, 128, cols // 128, 128)
    amax = tiles.abs().amax(dim=(1, 3), keepdim=True)
    if slime:
        scale = amax.clamp(min=1e-10) / 448.0
        tiles = tiles * (1.0 / scale)
    else:
        scale = amax.clamp(min=1e-12) / 448.0
        tiles = tiles / scale
    return tiles.clamp(-448.0, 448.0).to(torch.float8_e4m3fn).view(rows,
        cols), scale.squeeze(3).squeeze(1)


def merge(x, a, b, two_step):
    delta = SCALE * (b.float() @ a.float())
    return x + delta.to(torch.bfloat16) if two_step else (x.float() + delta).to(torch.bfloat16)


def unpack(codes, levels, scales):
    return levels[torch.stack([codes >> 4, codes & 15], 1).reshape(-1, 64).int()] * scales[:, None]


def main():
    torch.set_num_threads(1)
    rows, cols = map(int, sys.argv[1:3])
    x = torch.empty(rows, cols, dtype=torch.bfloat16).normal_(0, 0.02)
    a, b = (torch.empty(n, m, dtype=torch.bfloat16).normal_(0, 0.02)
            for n, m in ((RANK, cols), (rows, RANK)))
    codes = torch.randint(0, 256, (rows * cols // 2,), dtype=torch.uint8)
    levels, scales = torch.arange(-8, 8) / 8, torch.ones(rows * cols // 64)
    kernels = {"fp8 128x128 xorl": lambda: quantize(x, False),
               "fp8 128x128 slime": lambda: quantize(x, True),
               "lora rank 16 fold": lambda: merge(x, a, b, False),
               "lora rank 16 two-step": lambda: merge(x, a, b, True),
               "unpack 4 bits": lambda: unpack(codes, levels, scales)}
    with torch.inference_mode():
        print(json.dumps({"torch": torch.__version__}), flush=True)
        for line in sys.stdin:
            began = time.monotonic()
            kernels[line.strip()]()
            print(json.dumps({"seconds": time.monotonic() - began}), flush=True)


if __name__ == "__main__":
    main()
