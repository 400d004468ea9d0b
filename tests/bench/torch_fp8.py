#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""torch_fp8.py ROWS COLS - torch's way from bf16 to FP8 in blocks, as trainers write it, on one
thread.

Prints a line when it is ready, and for each line on stdin (xorl or slime) does the whole tensor
once and prints the seconds as JSON. Sizes are multiples of 128, so that nothing is padded.
"""
import json
import sys
import time

import torch


def quantize(x, rule):
    rows, cols = x.shape
    tiles = x.float().view(rows // 128, 128, cols // 128, 128)
    amax = tiles.abs().amax(dim=(1, 3), keepdim=True)
    if rule == "xorl":
        scale = amax.clamp(min=1e-12) / 448.0
        tiles = tiles / scale
    else:
        scale = amax.clamp(min=1e-10) / 448.0
        tiles = tiles * (1.0 / scale)
    return tiles.clamp(-448.0, 448.0).to(torch.float8_e4m3fn).view(rows,
        cols), scale.squeeze(3).squeeze(1)


def main():
    torch.set_num_threads(1)
    rows, cols = map(int, sys.argv[1:3])
    x = torch.empty(rows, cols, dtype=torch.bfloat16).normal_(0, 0.02)
    with torch.inference_mode():
        print(json.dumps({"torch": torch.__version__}), flush=True)
        for line in sys.stdin:
            began = time.monotonic()
            quantize(x, line.strip())
            print(json.dumps({"seconds": time.monotonic() - began}), flush=True)


if __name__ == "__main__":
    main()
