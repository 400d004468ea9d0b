# SPDX-License-Identifier: Apache-2.0
"""make.py - what bitsandbytes itself writes and reads: make.py OUT.safetensors

bitsandbytes.safetensors beside this was made with bitsandbytes 0.50.2 and torch 2.6, on a CPU. Tensors NAME and
NAME.* are a Linear4bit's state, expected.NAME what dequantize_4bit made of it. tests/unit/test_unpack.c
reads it, so that no bitsandbytes is needed to test against one.
"""
import json
import struct
import sys

import torch
from bitsandbytes import functional

NAMES = {torch.uint8: "U8", torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}


def main(out):
    torch.manual_seed(4)
    tensors = {}
    for name, shape, dtype, block, nested in (
            ("plain.weight", (6, 96), torch.bfloat16, 64, False),
            ("twice.weight", (65, 127), torch.bfloat16, 32, True),
            ("half.weight", (3, 50), torch.float16, 64, True)):
        x = torch.randn(shape) * torch.exp2(torch.randint(-9, 2, (shape[0], 1)).float())
        packed, state = functional.quantize_4bit(x.to(dtype), blocksize=block, quant_type="nf4",
                                                 compress_statistics=nested)
        tensors[name] = packed
        tensors.update({name + "." + k: v for k, v in state.as_dict(packed=True).items()})
        tensors["expected." + name] = functional.dequantize_4bit(packed, state)
    header, at = {}, 0
    for name, t in tensors.items():
        size = t.numel() * t.element_size()
        header[name] = {"dtype": NAMES[t.dtype], "shape": list(t.shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(out, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for t in tensors.values():
            f.write(t.contiguous().view(torch.uint8).numpy().tobytes())


main(sys.argv[1])
