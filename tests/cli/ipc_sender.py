#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Shows tensors on a GPU to an endpoint, as a colocated trainer does, and sends it what no trainer
would.

    ipc_sender.py URL CASE...

Speaks to libcuda.so.1, or a double of it, by ctypes. Prints a line for each request: the case, the
status, and the message. Pickles are made opcode by opcode.
"""
import base64
import ctypes
import json
import os
import random
import struct
import sys
import threading
import urllib.error
import urllib.request

URL = sys.argv[1]
SIZE = 2 << 20
TENSORS = [("a.weight", "bfloat16", (64, 32), 4096), ("b.weight", "float32", (1000,), 4000)]
LENGTH = sum(t[3] for t in TENSORS)


class Cuda:
    """Memory of GPU 0, of which handles are given out."""

    def __init__(self):
        self.lib = ctypes.CDLL("libcuda.so.1")
        context = ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxSetCurrent", context)
        self.made = []

    def call(self, name, *args):
        rc = getattr(self.lib, name)(*args)
        if rc:
            raise SystemExit("%s: %d" % (name, rc))

    def buffer(self, seed):
        at = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(SIZE))
        self.made.append(at)
        data = random.Random(seed).randbytes(SIZE)
        self.call("cuMemcpyHtoDAsync_v2", at, data, ctypes.c_size_t(SIZE), None)
        handle = ctypes.create_string_buffer(64)
        self.call("cuIpcGetMemHandle", handle, at)
        while self.lib.cuStreamQuery(None):
            pass
        return handle.raw, data

    def uuid(self, device=0):
        raw = ctypes.create_string_buffer(16)
        self.call("cuDeviceGetUuid_v2", raw, device)
        text = raw.raw.hex()
        return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))

    def close(self):
        for at in self.made:
            self.call("cuMemFree_v2", at)
        self.call("cuCtxSetCurrent", None)
        self.call("cuDevicePrimaryCtxRelease_v2", 0)


class Counters:
    """The file in which torch's readers count down: 80064 bytes, of which the first 64 are no
    counters."""

    def __init__(self, name, value=1, size=80064):
        self.name, self.path = name.encode(), "/dev/shm" + name
        self.before = struct.pack("<q", 3) + bytes(56) + struct.pack("<q", value) * 10000
        with open(self.path, "wb") as f:
            f.write((self.before + bytes(64))[:size])

    def changed(self):
        """[(byte, before, after)] of each word that is another."""
        with open(self.path, "rb") as f:
            now = f.read()
        return [(i, *struct.unpack("<q", self.before[i:i + 8]), *struct.unpack("<q", now[i:i + 8]))
                for i in range(0, len(now) // 8 * 8, 8) if now[i:i + 8] != self.before[i:i + 8]
                and i < 80064]


class Global(str):
    """A class or function by its name: "torch.storage TypedStorage"."""


def put(v):
    """A value as opcodes."""
    if isinstance(v, Global):
        return b"c" + v.replace(" ", "\n").encode() + b"\n"
    if v is None or isinstance(v, bool):
        return {None: b"N", True: b"\x88", False: b"\x89"}[v]
    if isinstance(v, int):
        n = (v.bit_length() + 8) // 8
        return b"\x8a" + bytes([n]) + v.to_bytes(n, "little", signed=True)
    if isinstance(v, str):
        return b"X" + struct.pack("<I", len(v)) + v.encode()
    if isinstance(v, bytes):
        return b"B" + struct.pack("<I", len(v)) + v
    if isinstance(v, tuple):
        return b"(" + b"".join(map(put, v)) + b"t"
    if isinstance(v, list):
        return b"](" + b"".join(map(put, v)) + b"e"
    if isinstance(v, dict):
        return b"}(" + b"".join(put(k) + put(x) for k, x in v.items()) + b"u"
    if isinstance(v, Call):
        return put(v.function) + put(v.args) + b"R"
    return put(Global("sglang.srt.weight_sync.tensor_bucket FlattenedTensorMetadata")) + b")\x81" \
        + put(v.state) + b"b"


class Call:
    def __init__(self, function, *args):
        self.function, self.args = Global(function), args


class Metadata:
    def __init__(self, name, dtype, shape, at, n):
        self.state = {"name": name, "shape": shape, "dtype": Global("torch " + dtype),
                      "start_idx": at,
                      "end_idx": at + n, "numel": n}


def arguments(device, handle, at, length=LENGTH):
    return [Global("torch Tensor"), (length,), (1,), 0, Global("torch.storage TypedStorage"),
            Global("torch uint8"),
            device, handle, length, at, False, b"", 0, bytes(64), False]


def bucket(args, tensors=TENSORS, function=None):
    function = function or ("sglang.srt.utils.patch_torch _rebuild_cuda_tensor_modified"
                            if isinstance(args[6], str)
                            else "torch.multiprocessing.reductions rebuild_cuda_tensor")
    metadata, at = [], 0
    for name, dtype, shape, n in tensors:
        metadata.append(Metadata(name, dtype, shape, at, n))
        at += n
    return b"\x80\x03" + put({"flattened_tensor": Call(function, *args),
                              "metadata": metadata}) + b"."


def post(case, *pickles, flush=False):
    body = {"serialized_named_tensors": [base64.b64encode(p).decode() for p in pickles],
            "load_format": "flattened_bucket", "flush_cache": flush}
    request = urllib.request.Request(URL + "/update_weights_from_tensor", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=180) as reply:
            status, text = reply.status, reply.read()
    except urllib.error.HTTPError as e:
        status, text = e.code, e.read()
    print(case, status, json.loads(text)["message"], flush=True)


def count_down(but):
    """Tensors with counters of readers, and what became of those."""
    ours = "/torch_%d_" % os.getpid()
    files = [Counters(ours + "1"), Counters(ours + "2", 0), Counters(ours + "3", size=80063),
             Counters(ours + "4", size=80065),
             Counters("/wsync_%d" % os.getpid())]
    one, none, short, long, other = files
    link = "/dev/shm%s5" % ours
    try:
        os.symlink(one.path, link)
        for at in (0, 9999, 9999):
            post("counted", but(counter=one.name, counter_at=at))
        print("changed", one.changed())
        one.before = open(one.path, "rb").read()
        post("refused", but(counter=one.name, counter_at=7, at=SIZE * 4))
        print("changed", one.changed())
        one.before = open(one.path, "rb").read()
        for at in (-1, -8, 10000, 2 ** 63 - 1):
            post("hostile", but(counter=one.name, counter_at=at))
        for name in (none.name, short.name, long.name, other.name, link[8:].encode(), one.name[1:],
                     one.name + b"\0",
                     b"/torch_/../.." + one.path.encode(), b"/torch_" + b"1" * 300, b"/torch_",
                     b"\x1b[31m", b"\0"):
            post("hostile", but(counter=name))
        print("changed", sum((f.changed() for f in files), []))
    finally:
        for path in [link] + [f.path for f in files]:
            os.unlink(path)


def main():
    cuda = Cuda()
    handle, data = cuda.buffer(1)
    uuid = cuda.uuid()
    mine = b"\x01c" + handle
    good = arguments(uuid, mine, 512)

    def but(**what):
        places = {"cls": 0, "size": 1, "stride": 2, "elements": 3, "storage": 4, "dtype": 5,
                  "device": 6, "handle": 7,
                  "bytes": 8, "at": 9, "gradient": 10, "counter": 11, "counter_at": 12, "event": 13,
                  "waits": 14}
        args = list(good)
        for k, v in what.items():
            args[places[k]] = v
        return bucket(args)

    cases = {
        "uuid": lambda: bucket(good),
        "long-uuid": lambda: but(device="GPU-" + uuid),
        "ordinal": lambda: but(device=0),
        "raw": lambda: but(handle=handle),
        "torch-2.11": lambda: but(handle=b"\x02c" + handle),
        "torch-2.13": lambda: but(handle=b"\x03c" + handle),
        "part": lambda: but(elements=256, bytes=LENGTH + 4096, at=256),
        "elements": lambda: but(elements=512, bytes=LENGTH + 512, at=0),
        "parameter": lambda: but(cls=Global("torch.nn.parameter Parameter"),
                                 storage=Global("torch.storage UntypedStorage"),
                                 size=Call("torch Size", (LENGTH,))),
        "empty": lambda: bucket(arguments(uuid, None, 0, 0), []),
        "elsewhere": lambda: but(device="00000000-0000-0000-0000-000000000000"),
        "other-gpu": lambda: but(device=200),
        "negative": lambda: but(device=-1),
        "control": lambda: but(device="GPU-\x1b[31m"),
        "future": lambda: but(handle=b"\x04c" + handle),
        "expandable": lambda: but(handle=b"\x01e" + handle),
        "type": lambda: but(handle=b"\x01x" + handle),
        "short": lambda: but(handle=(b"\x01c" + handle)[:-1]),
        "nothing": lambda: but(handle=b""),
        "wrong": lambda: but(handle=b"\x01c" + bytes(reversed(handle))),
        "none-handle": lambda: but(handle=None),
        "none-counter": lambda: but(counter=None),
        "none-event": lambda: but(event=None),
        "none-waits": lambda: but(waits=None),
        "none-device": lambda: but(device=None),
        "beyond": lambda: but(at=SIZE * 4),
        "just-beyond": lambda: but(at=SIZE - LENGTH + 1),
        "huge": lambda: but(at=2 ** 63 - 1),
        "bigger": lambda: but(at=2 ** 80),
        "below": lambda: but(at=-1),
        "shorter": lambda: but(bytes=LENGTH - 1),
        "below-none": lambda: but(size=(-1,)),
        "longer": lambda: but(size=(LENGTH + 1,)),
        "other-event": lambda: but(event=bytes(64), waits=True),
        "short-event": lambda: but(event=bytes(63), waits=True),
        "stride": lambda: but(stride=(2,)),
        "dtype": lambda: but(dtype=Global("torch bfloat16")),
        "function": lambda: bucket(good,
                                   function="torch.multiprocessing.reductions "
                                            "rebuild_storage_cuda"),
        "fewer": lambda: bucket(good[:14]),
    }
    for case in sys.argv[2:]:
        if case == "all":
            for name, make in cases.items():
                post(name, make())
        elif case == "two":  # buffers in turn
            other, _ = cuda.buffer(2)
            for i in range(6):
                post(case, bucket(arguments(uuid, b"\x01c" + (handle, other)[i % 2], 4096 * i)))
        elif case == "many":
            for i in range(40):
                post(case, bucket(arguments(uuid, b"\x01c" + cuda.buffer(i)[0], 0)))
        elif case == "late":  # the double's handle of an event: what is shared is written only then
            event = os.memfd_create("event")

            def write():
                ctypes.memmove(cuda.made[0].value, data, SIZE)
                os.write(event, b"reached")
            ctypes.memset(cuda.made[0].value, 0, SIZE)
            timer = threading.Timer(0.5, write)
            timer.start()
            post(case, but(event=struct.pack("<4sii52x", b"EVNT", os.getpid(), event), waits=True))
            timer.join()
        elif case == "never":
            event = os.memfd_create("event")
            post(case, but(event=struct.pack("<4sii52x", b"EVNT", os.getpid(), event), waits=True))
        elif case == "counters":
            count_down(but)
        elif case == "last":
            post(case, bucket(good), flush=True)
        elif case == "ranks":
            post(case, bucket(good), bucket(good))
        else:
            post(case, cases[case]())
    with open("sent", "wb") as f:
        f.write(data)
    cuda.close()


main()
