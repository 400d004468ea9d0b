#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""exporter.py - a trainer without torch: exporter.py SOURCE.safetensors MANIFEST [--config DIR]

The tensors of a file go into memory of a GPU, or of the double of libcuda that is found first,
several to an allocation and with gaps as torch's allocator leaves them, and
cmd/python/wsync_manifest.py exports them. Tensors and torch.cuda are stand-ins with what that
helper asks of torch's; test_manifest_torch.py is about torch itself. Prints "ready" and stays until
it is ended.
    --device N       on that GPU                 --free     lets go of the memory when it is ready
    --tied A=B       B is A under another name   --refuse   as memory that cannot be shared
    --push URL       no manifest: cmd/python/wsync.py pushes the tensors to that endpoint
"""
import argparse
import collections
import contextlib
import ctypes
import json
import os
import signal
import struct
import sys
import types

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../cmd/python"))
import wsync  # noqa: E402
import wsync_manifest  # noqa: E402

TORCH = {"F32": "float32", "BF16": "bfloat16", "F16": "float16", "U8": "uint8", "I64": "int64",
         "F8_E4M3": "float8_e4m3fn"}
ROOM, ALIGN = 2 << 20, 512  # of a small segment of torch's, and between its blocks

cuda = ctypes.CDLL("libcuda.so.1")


def call(name, *args):
    rc = getattr(cuda, name)(*args)
    assert rc == 0, f"{name}: {rc}"


Device = collections.namedtuple("Device", "type index")


class Tensor:
    is_cuda = True

    def __init__(self, at, dtype, shape, device):
        self.at, self.dtype, self.shape, self.device = at, f"torch.{dtype}", tuple(shape), device

    def detach(self):
        return self

    def contiguous(self):
        return self

    resolve_neg = contiguous

    def data_ptr(self):
        return self.at

    def stride(self):
        return None  # all are contiguous

    def numel(self):
        n = 1
        for d in self.shape:
            n *= d
        return n


class Segments:
    """Hands out places as torch does: small tensors share a segment, large ones have one each."""

    def __init__(self):
        self.at, self.left, self.all = 0, 0, []

    def place(self, n):
        whole = (n + ALIGN - 1) // ALIGN * ALIGN
        if whole > self.left:
            room, at = (whole + ROOM - 1) // ROOM * ROOM, ctypes.c_uint64()
            call("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(room))
            self.all.append(at.value)
            self.at, self.left = at.value, room
        place = self.at
        self.at, self.left = place + whole, self.left - whole
        return place


def synchronize(device):
    if hasattr(cuda, "cuCtxSynchronize"):  # a double may have nothing to wait for
        call("cuCtxSynchronize")


def load(path, segments, device):
    with open(path, "rb") as f:
        n, = struct.unpack("<Q", f.read(8))
        header = json.loads(f.read(n))
        data = f.read()
    out = {}
    for name, t in header.items():
        if name == "__metadata__":
            continue
        begin, end = t["data_offsets"]
        at = segments.place(end - begin) if end > begin else 0
        if end > begin:
            call("cuMemcpyHtoDAsync_v2", ctypes.c_uint64(at), data[begin:end],
                 ctypes.c_size_t(end - begin), None)
        out[name] = Tensor(at, TORCH[t["dtype"]], t["shape"], device)
    return out


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("source")
    p.add_argument("manifest")
    p.add_argument("--config")
    p.add_argument("--device", type=int, default=0)
    p.add_argument("--tied")
    p.add_argument("--free", action="store_true")
    p.add_argument("--refuse", action="store_true")
    p.add_argument("--push", metavar="URL")
    args = p.parse_args()
    context = ctypes.c_void_p()
    call("cuInit", 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), args.device)
    call("cuCtxSetCurrent", context)
    sys.modules["torch"] = types.SimpleNamespace(cuda=types.SimpleNamespace(
        synchronize=synchronize, device=lambda device: contextlib.nullcontext()))
    segments = Segments()
    weights = load(args.source, segments, Device("cuda", args.device))
    if args.tied:
        one, other = args.tied.split("=")
        weights[other] = weights[one]
    if args.refuse:  # tests/gpu/fake_cuda.h: its second function
        table = (ctypes.c_void_p * 2).in_dll(cuda, "fake_cuda")
        ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_uint,
                         ctypes.c_int)(table[1])(b"cuIpcGetMemHandle", 0, 1)
    if args.push:
        end = wsync.push(weights, [args.push], config=args.config, verify="hash")
        print(end["verify"], end["tensors"])
        for at in segments.all:
            call("cuMemFree_v2", ctypes.c_uint64(at))
        call("cuCtxSetCurrent", None)
        call("cuDevicePrimaryCtxRelease_v2", args.device)
        return
    keep = wsync_manifest.export(weights, args.manifest, config=args.config, metadata={"step": 7})
    assert len(keep) == len(weights)
    if args.free:
        for at in segments.all:
            call("cuMemFree_v2", ctypes.c_uint64(at))
    print("ready", flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
