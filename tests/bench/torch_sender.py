#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""torch_sender.py - rank 0 as a trainer built on torch does it: what wsync-push is compared with.

    torch_sender.py [--bucket-size BYTES] [--load-format FORMAT] --endpoint URL... FILE...

Maps the safetensors files, hosts torch's TCPStore, forms the gloo group while the init requests are
under way, and for each bucket concatenates the tensors (torch.cat, as the trainers do) and
broadcasts them while the update request is under way. Prints one line of JSON: `seconds` from the
first look at the files to the last answer, and the `cpu_seconds` (user + system) of this process in
that time. Starting Python and importing torch are left out of both.
"""
import argparse
import concurrent.futures
import json
import mmap
import os
import resource
import struct
import time
import traceback
import urllib.request
import uuid

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

VERSION = tuple(int(x) for x in torch.__version__.split(".")[:2])
TORCH_NAME = {"BOOL": "bool", "U8": "uint8", "I8": "int8", "F8_E4M3": "float8_e4m3fn",
              "F8_E5M2": "float8_e5m2", "I16": "int16", "F16": "float16", "BF16": "bfloat16",
              "I32": "int32", "F32": "float32", "I64": "int64", "F64": "float64"}


def read_tensors(path):
    """Every tensor of the file in file order: name, dtype, shape, uint8 view of the mapping."""
    with open(path, "rb") as f:
        # A private mapping is writable, so that torch takes it without a warning; nothing writes.
        data = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_COPY)
    size, = struct.unpack_from("<Q", data)
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    whole = torch.frombuffer(data, dtype=torch.uint8)
    for name, t in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = (8 + size + x for x in t["data_offsets"])
        yield name, TORCH_NAME[t["dtype"]], t["shape"], whole[begin:end]


def make_buckets(tensors, limit):
    """At most `limit` bytes each, unless one tensor is larger; wide elements first (alignment)."""
    buckets, size = [[]], 0
    for t in tensors:
        if buckets[-1] and size + t[3].numel() > limit:
            buckets.append([])
            size = 0
        buckets[-1].append(t)
        size += t[3].numel()
    for bucket in buckets:
        bucket.sort(key=lambda t: torch.empty((), dtype=getattr(torch, t[1])).element_size(),
                    reverse=True)
    return buckets


class Sender:
    def __init__(self, urls):
        self.urls, self.group_name = urls, "bench-" + uuid.uuid4().hex[:8]
        self.pool = concurrent.futures.ThreadPoolExecutor(len(urls))

    def call(self, url, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url + path, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=600) as reply:
            return json.load(reply)

    def post(self, path, bodies):
        """One request to every endpoint at once; the answers are collected by settle()."""
        return [self.pool.submit(self.call, url, path, body) for url,
                body in zip(self.urls, bodies)]

    @staticmethod
    def settle(calls):
        for call in calls:
            reply = call.result()
            if not reply.get("success", reply.get("status") == "ok"):
                raise SystemExit("refused: %s" % reply)

    def open(self):
        sizes = [self.call(url, "/server_info")["tp_size"] for url in self.urls]
        world = 1 + sum(sizes)
        # Debian builds torch without libuv, which newer torch asks for unless told otherwise.
        libuv = {"use_libuv": False} if VERSION >= (2, 3) else {}
        store = dist.TCPStore("127.0.0.1", 0, world, True, wait_for_workers=False, **libuv)
        calls = self.post("/init_weights_update_group", [
            {"master_address": "127.0.0.1", "master_port": store.port, "world_size": world,
             "rank_offset": 1 + sum(sizes[:i]), "group_name": self.group_name, "backend": "gloo"}
            for i in range(len(sizes))])
        made = c10d._new_process_group_helper(
            world, 0, [], c10d.Backend("gloo"), c10d.PrefixStore(self.group_name, store),
            group_name=self.group_name, timeout=c10d.default_pg_timeout,
            **{"backend_options" if VERSION >= (2, 6) else "pg_options": None})
        self.group = made[0] if isinstance(made, tuple) else made
        ranks = c10d._world.pg_group_ranks if hasattr(c10d, "_world") else c10d._pg_group_ranks
        ranks[self.group] = {i: i for i in range(world)}
        self.settle(calls)

    def send(self, bucket, load_format, last):
        calls = self.post("/update_weights_from_distributed", [
            {"names": [t[0] for t in bucket], "dtypes": [t[1] for t in bucket],
             "shapes": [t[2] for t in bucket], "group_name": self.group_name, "flush_cache": last,
             "load_format": load_format}] * len(self.urls))
        if load_format == "flattened_bucket":
            dist.broadcast(torch.cat([t[3] for t in bucket]), src=0, group=self.group)
        else:
            # A copy of its own starts where its dtype may start; the file promises nothing.
            tensors = [t[3].clone().view(getattr(torch, t[1])).reshape(t[2]) for t in bucket]
            for work in [dist.broadcast(t, src=0, group=self.group, async_op=True)
                         for t in tensors]:
                work.wait()
        self.settle(calls)

    def close(self):
        calls = self.post("/destroy_weights_update_group",
                          [{"group_name": self.group_name}] * len(self.urls))
        dist.destroy_process_group(self.group)
        self.settle(calls)


def cpu_seconds():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("files", nargs="+")
    p.add_argument("--endpoint", action="append", required=True)
    p.add_argument("--bucket-size", type=int, default=512 << 20)
    p.add_argument("--load-format", default="flattened_bucket",
                   choices=("none", "flattened_bucket"))
    args = p.parse_args()
    load_format = None if args.load_format == "none" else args.load_format

    began, cpu = time.monotonic(), cpu_seconds()
    buckets = make_buckets([t for path in args.files for t in read_tensors(path)], args.bucket_size)
    sender = Sender(args.endpoint)
    sender.open()
    sender.settle(sender.post("/pause_generation", [{"mode": "abort"}] * len(sender.urls)))
    for i, bucket in enumerate(buckets):
        sender.send(bucket, load_format, i == len(buckets) - 1)
    sender.settle(sender.post("/continue_generation", [{}] * len(sender.urls)))
    sender.close()
    print(json.dumps({"seconds": time.monotonic() - began, "cpu_seconds": cpu_seconds() - cpu,
                      "bytes": sum(t[3].numel() for b in buckets for t in b),
                      "buckets": len(buckets),
                      "torch": torch.__version__}))


if __name__ == "__main__":
    try:
        main()
    except BaseException:
        traceback.print_exc()
        os._exit(1)  # not waiting for requests that nobody will answer
