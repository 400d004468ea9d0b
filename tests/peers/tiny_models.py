# SPDX-License-Identifier: Apache-2.0
"""tiny_models.py - checkpoints of some hundred kilobytes with the names of real families, and what
must be read back of them.

The numbers are random, finite, and small; those of float32 are numbers of bfloat16 too where a
server keeps that type, so that nothing is rounded on the way. Hashes are XXH3-64 by the system's
libxxhash, of bytes that Python cut out of the file."""
import ctypes
import functools
import json
import os
import random
import struct
import sys

import lib
import mkst

sys.path.insert(0, os.path.join(lib.TREE, "tests", "cli"))
import small_model  # noqa: E402

XXH = ctypes.CDLL("libxxhash.so.0")
XXH.XXH3_64bits.restype = ctypes.c_uint64
XXH.XXH3_64bits.argtypes = [ctypes.c_char_p, ctypes.c_size_t]

# Without a model, everything that a file can hold and torch's gloo carries.
LOOSE = [("a.weight", "F32", [96, 64]), ("b.weight", "F32", [96, 64]),
         ("c.weight", "BF16", [96, 64]),
         ("d.weight", "BF16", [96, 64]), ("d.bias", "BF16", [64]), ("e.weight", "F16", [33, 64]),
         ("f.weight", "I8", [128, 64]), ("g.weight", "U8", [128, 64]), ("h.weight", "I32", [7, 5]),
         ("i.weight", "I64", [8, 3]), ("one", "F32", [1])]
CODES = [("x.weight", "F8_E4M3", [128, 64]), ("x.weight_scale_inv", "F32", [8, 4]),
         ("y.weight", "F8_E4M3", [128, 64]), ("y.weight_scale_inv", "F32", [8, 4])]


def tensors_of(kind):
    """(tensors, config or None) of a kind: a family, with "-fp8" or "-f32" behind it, or
    "loose"."""
    if kind.startswith("loose"):
        return LOOSE + (CODES if kind == "loose-fp8" else []), None
    family, _, how = kind.partition("-")
    tensors = small_model.tensors(family, how == "fp8", "BF16")
    if how == "f32":
        tensors = [(n, "F32" if "norm" in n else d, s) for n, d, s in tensors]
    return tensors, small_model.config(family, how == "fp8")


def make(kind, seed):
    """A directory with such a checkpoint; made once."""
    path = lib.scratch("%s.%d" % (kind, seed))
    if os.path.isdir(path):
        return path
    tensors, config = tensors_of(kind)
    os.makedirs(path + ".new")
    if config:
        with open(path + ".new/config.json", "w") as f:
            json.dump(config, f)
    with open(path + ".new/model.safetensors", "wb") as f:
        write(f, tensors, random.Random(kind + str(seed)), config)
    os.rename(path + ".new", path)
    return path


def write(f, tensors, rng, config):
    header, data = {}, bytearray()
    for name, dtype, shape in tensors:
        size = mkst.SIZE[dtype]
        for n in shape:
            size *= n
        raw = bytearray(rng.randbytes(size))
        if dtype in ("BF16", "F16", "F32", "F8_E4M3"):
            width = mkst.SIZE[dtype]
            for i in range(width - 1, size, width):
                raw[i] &= 0xbf
        if dtype == "F32" and config and "norm" in name:
            raw[0::4] = raw[1::4] = bytes(size // 4)
        header[name] = {"dtype": dtype, "shape": list(shape),
                        "data_offsets": [len(data), len(data) + size]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    f.write(struct.pack("<Q", len(text)) + text + data)


def raw(path, wanted):
    """(bytes, torch's dtype) of one tensor."""
    with open(os.path.join(path, "model.safetensors"), "rb") as f:
        data = f.read()
    size, = struct.unpack_from("<Q", data)
    t = json.loads(data[8:8 + size])[wanted]
    begin, end = t["data_offsets"]
    return data[8 + size + begin:8 + size + end], lib.TORCH_NAME[t["dtype"]]


@functools.lru_cache(maxsize=None)
def expected(path):
    """name -> (16 hex digits, torch's dtype, shape), straight from the file."""
    with open(os.path.join(path, "model.safetensors"), "rb") as f:
        data = f.read()
    size, = struct.unpack_from("<Q", data)
    out = {}
    for name, t in json.loads(data[8:8 + size]).items():
        begin, end = t["data_offsets"]
        cut = data[8 + size + begin:8 + size + end]
        out[name] = ("%016x" % XXH.XXH3_64bits(cut, len(cut)), lib.TORCH_NAME[t["dtype"]],
                     t["shape"])
    return out


STACKED = {"q_proj": "qkv_proj", "k_proj": "qkv_proj", "v_proj": "qkv_proj",
           "gate_proj": "gate_up_proj", "up_proj": "gate_up_proj",
           "q_a_proj": "fused_qkv_a_proj_with_mqa",
           "kv_a_proj_with_mqa": "fused_qkv_a_proj_with_mqa"}


def parameter(name):
    """The name under which SGLang reports the checksum of what a tensor goes to."""
    if name.endswith("_scale_inv"):  # hashed with its weight
        name = name[:-len("_scale_inv")]
    module, _, expert = name.partition(".mlp.experts.")
    if expert:
        return module + ".mlp.experts." + ("w2" if "down_proj" in expert else "w13") + "_weight"
    parts = name.split(".")
    return ".".join(STACKED.get(part, part) for part in parts)
