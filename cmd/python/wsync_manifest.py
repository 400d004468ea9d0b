# SPDX-License-Identifier: Apache-2.0
"""Lets wsync read a trainer's weights out of its GPU memory:

    from wsync_manifest import export
    keep = export(model.state_dict(), "weights.json", config="/models/qwen3-8b")
    subprocess.run(["wsync-push", "cuda-ipc:weights.json", "--weight-version", "7"], check=True)

While wsync reads, the trainer must keep the result of export and must not change weights. Weights
that are trained in place need only one export for all pushes. Weights that are not contiguous are
copied: they need an export for each push.
"""
import contextlib
import ctypes
import json
import os
import socket
import tempfile


def _driver():
    cuda = ctypes.CDLL("libcuda.so.1")

    def call(function, *args):
        rc = getattr(cuda, function)(*args)
        if rc:
            why = ctypes.c_char_p()
            cuda.cuGetErrorName(rc, ctypes.byref(why))
            raise RuntimeError(f"{function}: {(why.value or b'error %d' % rc).decode()}")
    return call


def _process():
    with open("/proc/self/stat") as f:  # "PID (NAME) STATE ...", and any NAME
        start = int(f.read().rpartition(")")[2].split()[19])
    with open("/proc/sys/kernel/random/boot_id") as f:
        boot_id = f.read().strip()
    return {"pid": os.getpid(), "start": start, "boot_id": boot_id,
            "pid_namespace": os.readlink("/proc/self/ns/pid"), "host": socket.gethostname()}


def _device(call):
    device, uuid, name = ctypes.c_int(), (ctypes.c_ubyte * 16)(), ctypes.create_string_buffer(256)
    call("cuCtxGetDevice", ctypes.byref(device))
    call("cuDeviceGetUuid_v2", uuid, device)
    call("cuDeviceGetName", name, 256, device)
    # a part of one: "NVIDIA A100-SXM4-40GB MIG 1g.5gb"
    kind = "MIG" if b" MIG " in name.value else "GPU"
    h = bytes(uuid).hex()
    return {"uuid": f"{kind}-{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}",
            "ordinal": device.value}


def _range(call, at):
    base, size = ctypes.c_uint64(), ctypes.c_size_t()
    call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(at))
    return base.value, size.value


def _handle(call, name, base):
    handle = (ctypes.c_ubyte * 64)()
    try:
        call("cuIpcGetMemHandle", handle, ctypes.c_uint64(base))
    except RuntimeError as e:
        raise RuntimeError(f"{name}: {e}; expandable segments and cudaMallocAsync make memory that "
                           f"cannot be shared: "
                           "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False before torch is "
                           "imported") from None
    return bytes(handle).hex()


def _replace(path, out):
    # A random name: other users may be able to write into the directory.
    fd, tmp = tempfile.mkstemp(".tmp", f"{os.path.basename(path)}.", os.path.dirname(path) or ".")
    f = open(fd, "w")
    try:
        with f:
            json.dump(out, f)
        os.replace(tmp, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(tmp)
        raise


def export(state_dict, path, config=None, metadata=None):
    """Writes the manifest of these tensors to path; returns the tensors to keep while in use."""
    import torch
    call, keep, devices, allocations, tensors = _driver(), {}, {}, {}, {}
    for name, t in state_dict.items():
        if not getattr(t, "is_cuda", False) or hasattr(t, "full_tensor"):
            raise ValueError(f"{name}: not a plain tensor on a GPU; gather sharded tensors, leave "
                             f"out the rest")
        keep[name] = t.detach().resolve_neg().contiguous()
    for device in {t.device for t in keep.values()}:
        torch.cuda.synchronize(device)
    for name, t in keep.items():
        tensors[name] = {"dtype": str(t.dtype).rpartition(".")[2], "shape": list(t.shape)}
        if t.numel() == 0:
            continue
        with torch.cuda.device(t.device):
            base, size = _range(call, t.data_ptr())
            if base not in allocations:
                number, _ = devices.setdefault(t.device, (len(devices), _device(call)))
                allocations[base] = len(allocations), {"device": number,
                                                       "handle": _handle(call, name, base),
                                                       "bytes": size}
        tensors[name].update(allocation=allocations[base][0], offset=t.data_ptr() - base)
    out = {"version": 1, "process": _process(), "devices": [d for _, d in devices.values()],
           "allocations": [a for _, a in allocations.values()], "tensors": tensors}
    out.update({"config": os.path.abspath(config)} if config else {})
    out.update({"metadata": {k: str(v) for k, v in metadata.items()}} if metadata else {})
    _replace(path, out)
    return keep
