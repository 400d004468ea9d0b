#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""torch_merge.py DIR - torch's way of merging a rank-16 adapter into 1 GB of bf16, on one thread.

Writes DIR/base and DIR/adapter and prints a line when they are there; for each line on stdin merges
all of it once, weight by weight, from tensors in memory: "fold" in fp32 with one rounding,
"two-step" as PEFT does with factors in bf16. Prints the seconds as JSON.
"""
import json
import os
import sys
import time

import torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))),
                                "peers"))
import lora_oracle as oracle  # noqa: E402

SIZE, WEIGHTS, RANK, SCALE = 4096, 32, 16, 2.0


def fold(w, a, b):
    return (w.float() + SCALE * (b.float() @ a.float())).to(torch.bfloat16)


def two_step(w, a, b):
    return w + (SCALE * (b.float() @ a.float())).to(torch.bfloat16)


def bf16(*shape):
    return torch.empty(*shape, dtype=torch.bfloat16).normal_(0, 0.02)


def main():
    torch.set_num_threads(1)
    names = ["layers.%d.proj" % i for i in range(WEIGHTS)]
    base = {n + ".weight": bf16(SIZE, SIZE) for n in names}
    a = {n: bf16(RANK, SIZE) for n in names}
    b = {n: bf16(SIZE, RANK) for n in names}
    factors = {}
    for n in names:
        factors[oracle.P + n + ".lora_A.weight"] = a[n]
        factors[oracle.P + n + ".lora_B.weight"] = b[n]
    oracle.save(os.path.join(sys.argv[1], "base", "model.safetensors"), base)
    oracle.save(os.path.join(sys.argv[1], "adapter", "adapter_model.safetensors"), factors)
    with open(os.path.join(sys.argv[1], "adapter", "adapter_config.json"), "w",
              encoding="utf-8") as f:
        json.dump({"peft_type": "LORA", "r": RANK, "lora_alpha": RANK * SCALE}, f)
    with torch.inference_mode():
        print(json.dumps({"torch": torch.__version__}), flush=True)
        for line in sys.stdin:
            merge = fold if line.strip() == "fold" else two_step
            began = time.monotonic()
            for n in names:
                merge(base[n + ".weight"], a[n], b[n])
            print(json.dumps({"seconds": time.monotonic() - began}), flush=True)


if __name__ == "__main__":
    main()
