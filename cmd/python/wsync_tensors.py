# SPDX-License-Identifier: Apache-2.0
"""A dict of tensors as a source of wsync's programs, without a file that could be left behind."""
import contextlib
import ctypes
import json
import os
import re
import shutil
import tempfile

DTYPES = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16",
          "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0",
          "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8", "uint8": "U8",
          "bool": "BOOL"}


@contextlib.contextmanager
def as_source(tensors, config=None):
    """The word for a command line, good inside the with block; the tensors must not change there.

    config is the config.json of their model, or its directory: see _without_ties.
    """
    tensors = _without_ties({n: _plain(n, t) for n, t in tensors.items()}, config)
    devices = {t.device.type for t in tensors.values()}
    # The file has no name: it is gone with the last process that has it open, however that ends.
    with open(os.memfd_create("wsync"), "r+b") as f:
        word = f"/proc/{os.getpid()}/fd/{f.fileno()}"
        if devices == {"cuda"}:
            word, _keep = "cuda-ipc:" + word, _export(tensors, f, config)
        elif devices <= {"cpu"}:
            _write(tensors, f)
        else:
            raise ValueError("tensors are on " + ", ".join(sorted(devices)) + ": all must be on "
                             "GPUs (cuda), or all in the memory of the host (cpu)")
        f.flush()
        try:
            yield word
        finally:
            f.truncate(0)  # forks of this process may have it open for long


def _export(tensors, f, config):
    from wsync_manifest import export
    with tempfile.TemporaryDirectory(prefix="wsync-") as d:
        keep = export(tensors, os.path.join(d, "m.json"), config=config)
        with open(os.path.join(d, "m.json"), "rb") as manifest:
            shutil.copyfileobj(manifest, f)
    return keep


def _plain(name, t):
    if not isinstance(name, str):
        raise ValueError(f"{name!r}: names of tensors are strings")
    if hasattr(t, "data_ptr") and not hasattr(t, "full_tensor"):  # one like a DTensor has that
        t = t.detach().resolve_neg()
        with contextlib.suppress(RuntimeError):  # sparse ones have no memory that could be sent
            if t.data_ptr() or not t.numel():
                return t
    raise ValueError(f"{name}: not a plain tensor; gather sharded tensors, leave out the rest")


def _without_ties(tensors, config):
    """Without a head that is the embedding, if the model's config.json says that servers tie it.

    Servers of mixtures of experts do not all read that, and some keep a head of their own. Where a
    config.json says that a model is one differs: moe_num_experts in ffn_config, the model_type.
    """
    try:
        path = os.fspath(config)
        with open(os.path.join(path, "config.json") if os.path.isdir(path) else path,
                  encoding="utf-8") as f:
            text = f.read()
        c = json.loads(text)
        c = {**c, **(c.get("text_config") or {})}
        if c.get("tie_word_embeddings") is not True or re.search("expert|moe", text, re.I):
            return tensors
    except (OSError, TypeError, ValueError):  # none is given, or the program will say it
        return tensors

    def places(layer):
        return {n: (t.data_ptr(), t.shape, t.stride()) for n, t in tensors.items()
                if n.split(".")[-2:] == [layer, "weight"]}
    bodies = places("embed_tokens").values()
    tied = [n for n, place in places("lm_head").items() if place in bodies]
    return {n: t for n, t in tensors.items() if n not in tied}


def _write(tensors, f):
    """Writes a safetensors file. Beside it is at most one tensor's copy, of one that has gaps."""
    header, at = {}, 0
    for name, t in tensors.items():
        dtype = str(t.dtype).rpartition(".")[2]
        if dtype not in DTYPES:
            raise ValueError(f"{name}: tensors of {dtype} cannot be sent")
        end = at + t.numel() * t.element_size()
        header[name] = {"dtype": DTYPES[dtype], "shape": list(t.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    f.write(len(text).to_bytes(8, "little") + text)
    for t in tensors.values():
        whole = t.contiguous()
        if whole.numel():
            size = whole.numel() * whole.element_size()
            f.write((ctypes.c_ubyte * size).from_address(whole.data_ptr()))
