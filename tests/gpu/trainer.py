#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""trainer.py - a trainer with torch that exports its weights: trainer.py SOURCE.safetensors
MANIFEST

The weights are those of the file, one of them not contiguous, one tied. It prints a line of JSON
when it has exported and for each order that comes on stdin:
    zero NAME     trains: that tensor is zeros from now on, where it is
    free          lets go of all weights; tells how much torch still has of the GPU
With --expandable it only tries to export what cannot be shared, and tells what it was told.

WSYNC_TEST_DEVICE=cpu: torch's tensors lie in memory of the double of libcuda, and torch is told
that they are on a GPU.
"""
import contextlib
import ctypes
import gc
import json
import os
import struct
import sys

if "--expandable" in sys.argv:
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
import torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../cmd/python"))
from wsync_manifest import export

DEVICE = os.environ.get("WSYNC_TEST_DEVICE", "cuda:0")
TORCH = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16, "U8": torch.uint8,
         "I64": torch.int64,
         "F8_E4M3": getattr(torch, "float8_e4m3fn", None)}


class Double:
    """What a tensor's bytes lie in where there is no GPU."""

    def __init__(self):
        self.cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
        for rc in (self.cuda.cuInit(0),
                   self.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
                   self.cuda.cuCtxSetCurrent(context)):
            assert rc == 0, rc
        torch.Tensor.is_cuda = True
        torch.cuda.synchronize = lambda device: None
        torch.cuda.device = lambda device: contextlib.nullcontext()

    def tensor(self, raw):
        at = ctypes.c_uint64()
        assert self.cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(len(raw))) == 0
        t = torch.frombuffer((ctypes.c_char * len(raw)).from_address(at.value), dtype=torch.uint8)
        t.copy_(torch.frombuffer(bytearray(raw), dtype=torch.uint8))
        return t


double = Double() if DEVICE == "cpu" else None


def put(raw):
    return double.tensor(raw) if double else torch.frombuffer(bytearray(raw),
        dtype=torch.uint8).to(DEVICE)


def load(path):
    with open(path, "rb") as f:
        size, = struct.unpack("<Q", f.read(8))
        header, data = json.loads(f.read(size)), f.read()
    weights = {}
    for name, t in header.items():
        begin, end = t["data_offsets"]
        w = put(data[begin:end]) if end > begin else torch.zeros(0, dtype=torch.uint8)
        w = w.view(TORCH[t["dtype"]]).reshape(t["shape"])
        if name == "turned.weight" and not double:
            w = w.t().contiguous().t()
            assert not w.is_contiguous()
        weights[name] = w if w.numel() or double else w.to(DEVICE)
    return weights


def say(**what):
    print(json.dumps(what), flush=True)


def main():
    source, manifest = sys.argv[1:3]
    weights = load(source)
    weights["tied.weight"] = weights["embed.weight"]
    if "--expandable" in sys.argv:
        try:
            export(weights, manifest)
            say(shared=True)
        except RuntimeError as e:
            say(shared=False, said=str(e))
        return
    keep = export(weights, manifest, metadata={"step": 1})
    say(exported=len(keep))
    for line in sys.stdin:
        order = line.split()
        if order[0] == "zero":
            weights[order[1]].zero_()
            if not double:
                torch.cuda.synchronize()
            say(done="zero")
        elif order[0] == "free":
            weights = keep = None
            gc.collect()
            if double:
                os._exit(0)  # whose memory goes with the process
            torch.cuda.empty_cache()
            say(done="free", reserved=torch.cuda.memory_reserved())


if __name__ == "__main__":
    main()
