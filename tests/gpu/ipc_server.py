#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ipc_server.py - an inference endpoint that takes weights out of another process's GPU memory, for
tests of wsync-push --backend ipc: HTTP in front, one process per tp rank behind.

A rank unpickles its element of /update_weights_from_tensor with an allow-list, as servers do, opens
the CUDA IPC handle and keeps a copy of every tensor. With --torch that is all torch's doing, on a
GPU. With --double PATH there is neither: the classes of torch have stand-ins, and the handle is
opened by the double of libcuda of that name, through ctypes. A rank that is --late copies a bucket
only when it is asked for the next one, as the GPU of a server may do that answers before it has
copied.

One line of JSON on stdout says that it is ready. Everything dies with the process above it.

GET /received   what each rank holds: {name: {dtype, shape, sha256}}
GET /opened     for each rank: distinct handles, openings, and buckets that it was told of
GET /journal    paths in the order of arrival, with the status that they got
"""
import argparse
import base64
import ctypes
import hashlib
import io
import json
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import types
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

FORK = multiprocessing.get_context("fork")
ALLOWED = ("builtins.", "collections.", "copyreg.", "functools.", "itertools.", "operator.",
           "types.", "weakref.",
           "torch.", "sglang.srt.weight_sync.tensor_bucket.", "sglang.srt.utils.")
DENIED = {("builtins", "eval"), ("builtins", "exec"), ("builtins", "compile")}
BUCKET, PATCH = "sglang.srt.weight_sync.tensor_bucket", "sglang.srt.utils.patch_torch"


def die_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def check_arguments(args):
    """As torch's C code does: 15, and no None where it wants bytes."""
    assert len(args) == 15, len(args)
    kinds = [tuple, tuple, int] + [None] * 2 + [(int, str), bytes, int, int, bool, bytes, int,
                                                bytes, bool]
    for i, (value, kind) in enumerate(zip(args[1:], kinds), 1):
        assert kind is None or type(value) in (kind if isinstance(kind, tuple) else (kind,)), (i,
            value)
    size, stride, offset, handle, room = args[1], args[2], args[3], args[7], args[8]
    assert handle[:2] == b"\x01c" and len(handle) == 66, handle
    assert len(size) == 1 and size[0] <= room and stride == (1,) and offset == 0, args
    assert args[10] is False and args[13] == bytes(64) and args[14] is False, args


class Metadata:
    """Stands for the servers' FlattenedTensorMetadata: attributes and nothing else."""


class Guarded(pickle.Unpickler):
    stand_ins = {}

    def find_class(self, module, name):
        if (module, name) in DENIED or not (module + ".").startswith(ALLOWED):
            raise RuntimeError("Blocked unsafe class loading (%s.%s)" % (module, name))
        found = self.stand_ins.get((module, name)) or self.stand_ins.get(module)
        if found:
            return found if not isinstance(found, types.FunctionType) or (module,
                name) in self.stand_ins \
                else found(name)
        return super().find_class(module, name)


class Opened:
    """Which handles a rank has seen, and how often it had to open one."""

    def __init__(self):
        self.handles, self.openings = set(), 0

    def note(self, handle):
        self.handles.add(handle)
        self.openings += 1


class Memory(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 64)]


class OnDouble:
    """The double of libcuda, whose memory this process can map."""

    def __init__(self, library, opened, gpu=0):
        self.cuda, self.opened, self.gpu = ctypes.CDLL(library), opened, gpu
        context = ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), gpu)
        self.call("cuCtxSetCurrent", context)
        torch = {("torch", "Tensor"): object, ("torch.storage", "TypedStorage"): object,
                 ("torch", "Size"): tuple,
                 "torch": lambda name: name,
                 ("torch.storage", "_load_from_bytes"): lambda data: data,
                 ("torch._utils", "_rebuild_tensor_v2"): lambda data, at, size,
                 *_: self.small(size),
                 ("torch.multiprocessing.reductions", "rebuild_cuda_tensor"): self.rebuild,
                 (PATCH, "_rebuild_cuda_tensor_modified"): self.rebuild,
                 (BUCKET, "FlattenedTensorMetadata"): Metadata}
        Guarded.stand_ins = torch

    def call(self, function, *args):
        rc = getattr(self.cuda, function)(*args)
        if rc:
            raise RuntimeError("%s: error %d" % (function, rc))

    def small(self, size):
        assert size == (0,), "only an empty bucket stands in a request"
        return None

    def rebuild(self, *args):
        check_arguments(args)
        uuid = (ctypes.c_ubyte * 16)()
        self.call("cuDeviceGetUuid_v2", uuid, self.gpu)
        h = bytes(uuid).hex()
        if args[6] not in (self.gpu, "-".join((h[:8], h[8:12], h[12:16], h[16:20], h[20:]))):
            raise RuntimeError("Invalid device_uuid=%s" % args[6])
        return args[7][2:], args[1][0], args[9]

    def take(self, where, listed, keep):
        if where is None:
            return
        handle, length, at = where
        p, data = ctypes.c_uint64(), bytearray(length)
        self.opened.note(handle)
        self.call("cuIpcOpenMemHandle_v2", ctypes.byref(p), Memory.from_buffer_copy(handle), 1)
        if length:
            buffer = (ctypes.c_char * length).from_buffer(data)
            self.call("cuMemcpyDtoHAsync_v2", buffer, ctypes.c_uint64(p.value + at),
                      ctypes.c_size_t(length), None)
        self.call("cuIpcCloseMemHandle", p)
        for m in listed:
            keep[m.name] = (m.dtype, list(m.shape), bytes(data[m.start_idx:m.end_idx]))

    @staticmethod
    def hashed(kept):
        return {name: {"dtype": dtype, "shape": shape, "sha256": hashlib.sha256(data).hexdigest()}
                for name, (dtype, shape, data) in kept.items()}


class OnTorch:
    """torch, as a server has it: the handle is opened by its own unpickling."""

    def __init__(self, opened, device):
        import torch
        from torch.multiprocessing import reductions
        self.torch, self.opened = torch, opened
        torch.cuda.set_device(device)
        original = reductions.rebuild_cuda_tensor

        def rebuild(*args):
            check_arguments(args)
            opened.note(args[7])
            return original(*args[:6], self.ordinal(args[6]), *args[7:])

        Guarded.stand_ins = {("torch.multiprocessing.reductions", "rebuild_cuda_tensor"): rebuild,
                             (PATCH, "_rebuild_cuda_tensor_modified"): rebuild,
                             (BUCKET, "FlattenedTensorMetadata"): Metadata}

    def ordinal(self, device):
        if isinstance(device, int):
            return device
        for i in range(self.torch.cuda.device_count()):
            if str(self.torch.cuda.get_device_properties(i).uuid) == device:
                return i
        raise RuntimeError("Invalid device_uuid=" + device)

    def take(self, flat, listed, keep):
        """Into tensors that are there already, as those of a model are."""
        for m in listed:
            x = flat[m.start_idx:m.end_idx].view(m.dtype).reshape(m.shape)
            if m.name not in keep or keep[m.name].shape != x.shape or keep[m.name].dtype != x.dtype:
                keep[m.name] = self.torch.empty_like(x)
            keep[m.name].copy_(x)

    def hashed(self, kept):
        def raw(x):
            x = x.contiguous().cpu()  # not every torch comes with numpy
            return ctypes.string_at(x.data_ptr(),
                                    x.numel() * x.element_size()) if x.numel() else b""
        return {name: {"dtype": str(x.dtype).split(".")[1], "shape": list(x.shape),
                       "sha256": hashlib.sha256(raw(x)).hexdigest()} for name, x in kept.items()}


class Rank:
    def __init__(self, args):
        self.args, self.kept, self.opened, self.buckets, self.waiting = args, {}, Opened(), 0, None

    def serve(self, pipe):
        die_with_parent()
        backend = OnDouble(self.args.double,
                           self.opened) if self.args.double else OnTorch(self.opened,
                               self.args.device)
        while True:
            try:
                what, text = pipe.recv()
                pipe.send((True, getattr(self, what)(backend, text)))
            except EOFError:
                os._exit(0)
            except Exception as e:
                pipe.send((False, "%s: %s" % (type(e).__name__, e)))

    def load(self, backend, text):
        made = Guarded(io.BytesIO(base64.b64decode(text, validate=True))).load()
        assert sorted(made) == ["flattened_tensor", "metadata"], made
        self.buckets += 1
        if self.waiting:
            backend.take(*self.waiting, self.kept)
            self.waiting = None
        if self.args.late:
            self.waiting = made["flattened_tensor"], made["metadata"]
        else:
            backend.take(made["flattened_tensor"], made["metadata"], self.kept)

    def received(self, backend, _text):
        return backend.hashed(self.kept)

    def tell_opened(self, _backend, _text):
        return {"handles": len(self.opened.handles), "openings": self.opened.openings,
                "buckets": self.buckets}

    def ready(self, _backend, _text):
        return True


class Endpoint:
    def __init__(self, tp, args):
        self.tp, self.args, self.lock, self.turn = tp, args, threading.Lock(), threading.Lock()
        self.journal, self.updates, self.pipes, self.pids = [], 0, [], []
        for _ in range(tp):
            ours, theirs = FORK.Pipe()
            child = FORK.Process(target=Rank(args).serve, args=(theirs,), daemon=True)
            child.start()
            theirs.close()
            self.pipes.append(ours)
            self.pids.append(child.pid)
        self.ask("ready", [None] * tp)

    def ask(self, what, texts):
        with self.lock:
            for pipe, text in zip(self.pipes, texts):
                pipe.send((what, text))
            try:
                answers = [pipe.recv() for pipe in self.pipes]
            except EOFError:
                os._exit(1)
        wrong = [said for ok, said in answers if not ok]
        if wrong:
            raise RuntimeError(wrong[0])
        return [said for _, said in answers]

    def update(self, body):
        """One at a time, as servers have it: others wait, whoever asked."""
        with self.turn:
            return self.update_in_turn(body)

    def update_in_turn(self, body):
        self.updates += 1
        if self.args.refuse_at and self.updates >= self.args.refuse_at:
            return 400, {"success": False, "message": "refused as it was told to"}
        if self.updates == self.args.hang_at:
            time.sleep(3600)
        if self.updates == self.args.slow_at:
            time.sleep(3)
        if self.updates == self.args.die_at:
            os._exit(1)
        texts = body["serialized_named_tensors"]
        assert len(texts) == self.tp and body["load_format"] == "flattened_bucket", body
        assert body["flush_cache"] in (True, False)
        try:
            self.ask("load", texts)
        except RuntimeError as e:
            return 400, {"success": False, "message": str(e)}
        return 200, {"success": True, "message": "Success"}

    def answer(self, path, body):
        everyone = [None] * self.tp
        if path == "/update_weights_from_tensor":
            return self.update(body)
        if path == "/server_info":
            return 200, {"tp_size": self.tp, "dp_size": 1, "pp_size": 1, "ep_size": 1,
                         "dtype": "auto",
                         "version": "0.5.9", "internal_states": [{}]}
        if path == "/received":
            return 200, self.ask("received", everyone)
        if path == "/opened":
            return 200, self.ask("tell_opened", everyone)
        if path == "/journal":
            return 200, self.journal
        if path == "/openapi.json":
            return 200, {"paths": {p: {} for p in ROUTES}}
        return (200, {"success": True, "status": "ok",
                      "message": "ok"}) if path in ROUTES else (404, {})


ROUTES = ("/update_weights_from_tensor", "/update_weights_from_distributed",
          "/init_weights_update_group",
          "/destroy_weights_update_group", "/server_info", "/model_info", "/health",
          "/pause_generation",
          "/continue_generation", "/flush_cache", "/update_weight_version", "/weights_checker",
          "/get_weights_by_name")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self):
        text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path, endpoint = self.path.split("?")[0], self.server.endpoint
        entry = {"method": self.command, "path": path, "status": None}
        if path not in ("/journal", "/received", "/opened"):
            endpoint.journal.append(entry)
        status, said = endpoint.answer(path, json.loads(text) if text else {})
        entry["status"] = status
        data = json.dumps(said).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST

    def log_message(self, *_args):
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        """A sender that went away has no use for an answer."""


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--tp", type=int, default=1)
    p.add_argument("--double", help="the double of libcuda; without it torch is used")
    p.add_argument("--device", default="cuda:0", help="of torch")
    p.add_argument("--late", action="store_true", help="copy a bucket when the next one comes")
    p.add_argument("--refuse-at", type=int, default=0,
                   help="answer this update and all later ones with 400")
    p.add_argument("--hang-at", type=int, default=0, help="never answer this update")
    p.add_argument("--slow-at", type=int, default=0, help="begin with this update 3 s late")
    p.add_argument("--die-at", type=int, default=0)
    args = p.parse_args()
    die_with_parent()
    server = Server(("127.0.0.1", 0), Handler)
    server.endpoint = Endpoint(args.tp, args)
    print(json.dumps({"url": "http://127.0.0.1:%d" % server.server_address[1], "tp": args.tp,
                      "pid": os.getpid(),
                      "ranks": server.endpoint.pids}), flush=True)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    server.serve_forever()


if __name__ == "__main__":
    main()
