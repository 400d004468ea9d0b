#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""receiver.py - inference endpoints made of torch: HTTP in front, one process per tp rank behind.

A rank joins the sender's group exactly as SGLang's does (rendezvous, PrefixStore, torch's private
group helper, the identity rank map) and receives as SGLang does (one broadcast per tensor, or one
uint8 broadcast per flattened bucket). What arrived is kept as SHA-256 of its raw bytes.

One line of JSON per endpoint on stdout says that it is ready: {"url", "tp", "pid", "ranks": [pid]}.
Torch is imported once; endpoints and ranks are forks. Everything dies with the process above it,
and an endpoint dies with any of its ranks, as a server does. Python 3.11 to 3.14, torch 1.13 up.

POST /get_weights_by_name   numbers of the first rank, with --keep memory
With --lineage it has the routes of a fork besides: xorl-legacy and xorl receive between prepare and
complete in a thread of each rank; a server with sessions updates only inside of one.

GET /received   what each rank holds since the last group was formed
GET /journal    the requests in order of arrival, with the status that they got
"""
import argparse
import collections
import ctypes
import hashlib
import json
import multiprocessing
import os
import signal
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

VERSION = tuple(int(x) for x in torch.__version__.split(".")[:2])
FORK = multiprocessing.get_context("fork")


def die_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


class Rank:
    """One tp rank: a group to the sender, and what came through it."""

    def __init__(self, tp_rank, keep, device="cpu", eager=False, group=None, hold_file=None,
                 slow_above=None, remember=False):
        self.tp_rank, self.keep, self.hold_file = tp_rank, keep, hold_file
        self.slow_above, self.remember = slow_above, remember
        self.device, self.eager, self.group = device, eager, group
        self.groups, self.held = {}, {}
        self.prepared = None

    def init_weights_update_group(self, body):
        name, world = self.group or body["group_name"], body["world_size"]
        rank = body["rank_offset"] + self.tp_rank
        url = "tcp://%s:%d" % (body["master_address"], body["master_port"])
        timeout = c10d.default_pg_timeout
        store, rank, world = next(dist.rendezvous(url, rank, world, timeout=timeout))
        store.set_timeout(timeout)
        store = c10d.PrefixStore(name, store)
        options = "backend_options" if VERSION >= (2, 6) else "pg_options"
        made = c10d._new_process_group_helper(
            world, rank, [], c10d.Backend(body.get("backend", "nccl")), store,
            group_name=name, timeout=timeout, **{options: None},
            **({"device_id": torch.device(self.device)} if self.eager else {}))
        group = made[0] if isinstance(made, tuple) else made
        ranks = c10d._world.pg_group_ranks if hasattr(c10d, "_world") else c10d._pg_group_ranks
        ranks[group] = {i: i for i in range(world)}
        self.groups[name] = group
        if not self.remember:
            self.held = {}

    def destroy_weights_update_group(self, body):
        if body["group_name"] not in self.groups:
            raise KeyError("The group to be destroyed does not exist.")
        dist.destroy_process_group(self.groups.pop(body["group_name"]))

    def update_weights_from_distributed(self, body):
        self.load(self.receive(body, body.get("load_format"), self.groups[body["group_name"]]))

    def prepare_weights_update(self, body):
        if self.prepared:
            raise RuntimeError("A weight update is already in progress. Call "
                               "complete_weights_update first.")
        group = self.groups[body["group_name"]]
        self.prepared = Prepared(body, lambda bucket: self.receive(
            bucket, body.get("load_format"), group))
        if not self.prepared.ready.wait(1200):
            raise RuntimeError("Timeout waiting for recv thread to become ready")

    def complete_weights_update(self, body):
        if not self.prepared:
            raise RuntimeError("No weight update in progress. Call prepare_weights_update first.")
        self.prepared.thread.join(body["join_seconds"])
        if self.prepared.thread.is_alive():
            if not body["stays_armed"]:
                self.prepared = None
            raise RuntimeError("Weight receive timed out after 300s.")
        prepared, self.prepared = self.prepared, None
        if prepared.error:
            raise prepared.error
        for bucket in prepared.buckets:
            self.load(bucket)

    def receive_weights(self, body):
        group = self.groups[body["group_name"]]
        known = ("float32", "float16", "bfloat16", "int8", "int32", "int64")
        for dtype in (d for bucket in body["buckets"] for d in bucket["dtypes"]):
            if dtype not in known:
                raise RuntimeError("Unknown dtype: " + dtype)
        for bucket in [self.receive(bucket, None, group) for bucket in body["buckets"]]:
            self.load(bucket)

    def receive_weights_ep_scatter(self, body):
        """As xorl's fork: into parameters, a batch of plain receives for each layer of experts,
        then the rest."""
        others = body["non_expert_transfer_plan"]
        self.init_weights_update_group(dict(
            body, world_size=body["training_world_size"] + body["total_inference_world_size"],
            backend="gloo"))
        layers, held = collections.defaultdict(list), []

        def want(entry, rows, ranges):
            param = torch.zeros([rows] + entry["per_transfer_shape"][1:], dtype=torch.bfloat16)
            held.append((entry["weight_name"], param))
            return [dist.P2POp(dist.irecv, param[r["start"]:r["end"]], r["source_nccl_rank"],
                               self.groups[body["group_name"]]) for r in ranges]

        for entry in body["expert_transfer_plan"]:
            ranges = list(entry["expert_ranges"].values())
            layers[int(entry["weight_name"].split(".layers.")[1].split(".")[0])] += want(
                entry, max(r["end"] for r in ranges), ranges)
        batches = [layers[i] for i in sorted(layers)]
        for at in range(0, len(others), body["non_expert_batch_size"]):
            batches.append([op for e in others[at:at + body["non_expert_batch_size"]]
                            for op in want(e, e["per_transfer_shape"][0],
                                           [dict(e, start=0, end=e["per_transfer_shape"][0])])])
        for batch in batches:
            for work in dist.batch_isend_irecv(batch):
                work.wait()
        self.load(held)

    def load(self, tensors):
        for name, tensor in tensors:
            self.hold(name, tensor)

    def receive(self, body, load_format, group):
        while self.hold_file and os.path.exists(self.hold_file):
            time.sleep(0.01)
        wanted = [(name, getattr(torch, dtype), shape) for name, dtype, shape
                  in zip(body["names"], body["dtypes"], body["shapes"])]
        if load_format == "flattened_bucket":
            tensors = self.receive_flattened(wanted, group)
        else:
            tensors = [torch.empty(shape, dtype=dtype, device=self.device) for _, dtype,
                       shape in wanted]
            for work in [dist.broadcast(t, src=0, group=group, async_op=True) for t in tensors]:
                work.wait()
        return [(name, tensor) for (name, _, _), tensor in zip(wanted, tensors)]

    def receive_flattened(self, wanted, group):
        shapes = [torch.empty(shape, dtype=dtype, device="meta") for _, dtype, shape in wanted]
        sizes = [t.numel() * t.element_size() for t in shapes]
        flat = torch.empty(sum(sizes), dtype=torch.uint8, device=self.device)
        dist.broadcast(flat, src=0, group=group)
        if self.slow_above and len(flat) > self.slow_above:
            time.sleep(0.5)
        return [part.view(t.dtype).reshape(t.shape) for part, t in zip(flat.split(sizes), shapes)]

    def hold(self, name, tensor):
        if self.keep == "none":
            return
        tensor = tensor.cpu()
        if self.keep == "memory":
            tensor = tensor.clone()
        tensor = tensor.contiguous()  # not every torch comes with numpy
        raw = ctypes.string_at(tensor.data_ptr(),
                               tensor.numel() * tensor.element_size()) if tensor.numel() else b""
        self.held[name] = {"dtype": str(tensor.dtype).split(".")[-1], "shape": list(tensor.shape),
                           "sha256": hashlib.sha256(raw).hexdigest(),
                           "tensor": tensor if self.keep == "memory" else None}

    def received(self, _body):
        return {name: {k: v for k, v in entry.items() if k != "tensor"}
                for name, entry in self.held.items()}

    def get_weights_by_name(self, body):
        """The first rows as SGLang's models show them: in float32, of this rank; None: it is not
        kept."""
        tensor = self.held.get(body["name"], {}).get("tensor")
        return None if tensor is None else tensor[:body["truncate_size"]].float().tolist()

    def serve(self, pipe):
        die_with_parent()
        torch.set_num_threads(1)
        if self.device != "cpu":
            # NCCL takes one rank of a GPU, unless the others seem to be on other machines.
            os.environ["NCCL_HOSTID"] = "receiver-%d" % os.getpid()
            torch.cuda.set_device(self.device)
        while True:
            action, body = pipe.recv()
            try:
                pipe.send((True, getattr(self, action)(body)))
            except Exception as e:  # whatever torch raises is the answer
                pipe.send((False, str(e.args[0]) if isinstance(e, KeyError) else str(e)))


class Prepared:
    """What a rank receives in a thread between prepare and complete."""

    def __init__(self, body, receive):
        self.wanted = body.get("buckets") or [{k: body[k] for k in LISTS}]
        self.receive, self.buckets, self.error = receive, [], None
        self.ready = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        self.ready.set()
        try:
            for bucket in self.wanted:
                self.buckets.append(self.receive(bucket))
        except Exception as e:  # for complete to tell
            self.error = e


class Endpoint:
    """The HTTP side. A method that a route names gets a JSON body and returns (status, reply)."""

    def __init__(self, tp, args):
        self.tp, self.args = tp, args
        self.lock = threading.Lock()
        self.journal, self.weight_version = [], "default"
        self.in_session = False
        self.routes = dict(ROUTES, **{"/" + name: name for name in LINEAGES[args.lineage]})
        self.pipes, self.pids = [], []
        for i in range(tp):
            ours, theirs = FORK.Pipe()
            child = FORK.Process(target=Rank(i, args.keep, args.device, args.eager, args.group,
                                             args.hold, args.slow_above, args.remember).serve,
                                 args=(theirs,), daemon=True)
            child.start()
            theirs.close()
            self.pipes.append(ours)
            self.pids.append(child.pid)

    def ask_ranks(self, action, body):
        try:
            with self.lock:
                for pipe in self.pipes:
                    pipe.send((action, body))
                answers = [pipe.recv() for pipe in self.pipes]
        except (EOFError, OSError):
            os._exit(1)
        return answers

    def ask(self, action, body, done, failed):
        answers = self.ask_ranks(action, body)
        wrong = [text for ok, text in answers if not ok]
        if wrong:
            return 400, {"success": False, "message": failed % wrong[0]}
        return 200, {"success": True, "message": done}

    def init_weights_update_group(self, body):
        return self.ask("init_weights_update_group", body,
                        "Succeeded to initialize custom process group.",
                        "Failed to initialize custom process group: %s.")

    def destroy_weights_update_group(self, body):
        return self.ask("destroy_weights_update_group", body,
                        "Succeeded to destroy custom process group.",
                        "Failed to destroy custom process group: %s.")

    def update_weights_from_distributed(self, body):
        if self.args.refuse:
            return 400, {"success": False, "message": "refused as told"}
        if self.args.lineage == "session" and not self.in_session:
            return 400, {"success": False,
                         "message": "update_weights_from_distributed must run between "
                                                      "begin_weight_update() and "
                                                      "end_weight_update()"}
        status, reply = self.ask("update_weights_from_distributed", body,
                                 "Succeeded to update parameter online.",
                                 "Failed to update parameter online: %s. The full weights of "
                                 "the ModelRunner are partially updated. Please discard the "
                                 "whole weights.")
        return self.label(status, reply, body)

    def label(self, status, reply, body):
        if status == 200 and body.get("weight_version") is not None:
            self.weight_version = body["weight_version"]
            reply["message"] += " Weight version updated to %s." % self.weight_version
        return status, reply

    def prepare_weights_update(self, body):
        return self.ask("prepare_weights_update", body, "ready", "%s")

    def complete_weights_update(self, body):
        body = dict(body, join_seconds=self.args.join, stays_armed=self.args.lineage == "xorl")
        status, reply = self.ask("complete_weights_update", body,
                                 "Succeeded to update weights via two-phase protocol.", "%s")
        return self.label(status, reply, body)

    def receive_weights(self, body):
        return self.ask("receive_weights", body, "Received and applied weights", "%s")

    def receive_weights_ep_scatter(self, body):
        return self.ask("receive_weights_ep_scatter", body, "Updated params in-place", "%s")

    def list_weights(self, _body):
        weights = [{"name": n, "shape": s, "dtype": "bfloat16", "data_ptr": 0}
                   for n, s in self.args.lists.get(str(self.tp), {}).items()]
        return 200, {"success": True, "message": "Found %d weights" % len(weights),
                     "weights": weights}

    def begin_weight_update(self, _body):
        if self.in_session:
            return 400, {"success": False, "message": "a session is open"}
        self.in_session = True
        return 200, {"success": True, "message": "begun"}

    def end_weight_update(self, _body):
        if not self.in_session:
            return 400, {"success": False, "message": "no session is open"}
        self.in_session = False
        return 200, {"success": True, "message": "ended"}

    def pause_generation(self, _body):
        return 200, {"message": "Generation paused successfully.", "status": "ok"}

    def continue_generation(self, _body):
        return 200, {"message": "Generation continued successfully.", "status": "ok"}

    def flush_cache(self, _body):
        return 200, "Cache flushed.\n"

    def update_weight_version(self, body):
        self.weight_version = body["new_version"]
        return 200, {"success": True, "message": "Weight version updated to " + self.weight_version}

    def weights_checker(self, _body):
        if self.args.checksums:
            return 200, {"success": True, "message": "Success.", "ranks": [
                {"checksums": self.args.checksums, "parallelism_info": {"rank": i}}
                for i in range(self.tp)]}
        ranks = [{"checksums": {name: t["sha256"] for name, t in held.items()},
                  "parallelism_info": {"tp_rank": i, "tp_size": self.tp, "rank": i,
                                       "size": self.tp}}
                 for i, (_, held) in enumerate(self.ask_ranks("received", {}))]
        return 200, {"success": True, "message": "checksum", "algorithm": "sha256", "ranks": ranks}

    def get_weights_by_name(self, body):
        ok, values = self.ask_ranks("get_weights_by_name", body)[0]
        if not ok or values is None:
            return 400, {"error": {"message": "Get parameter by name failed"}}
        return 200, values

    def health(self, _body):
        return 200, ""

    def model_info(self, _body):
        return 200, {"model_path": self.args.model_path, "tokenizer_path": self.args.model_path,
                     "is_generation": True, "weight_version": self.weight_version}

    def server_info(self, _body):
        return 200, dict({"model_path": self.args.model_path, "tp_size": self.tp, "dp_size": 1,
                          "pp_size": 1, "ep_size": 1, "enable_dp_attention": False, "dtype": "auto",
                          "quantization": None, "weight_version": self.weight_version,
                          "internal_states": [{}], "version": "0.5.9"}, **self.args.server_info)

    def received(self, _body):
        return 200, [held for _, held in self.ask_ranks("received", {})]

    def openapi_json(self, _body):
        return 200, {"paths": {path: {} for path in self.routes}}

    def read_journal(self, _body):
        return 200, self.journal


ROUTES = collections.OrderedDict(
    ("/" + name, name) for name in (
        "health", "model_info", "server_info", "init_weights_update_group",
        "destroy_weights_update_group", "update_weights_from_distributed", "pause_generation",
        "continue_generation", "flush_cache", "update_weight_version", "weights_checker",
        "get_weights_by_name", "received"))
ROUTES.update({"/journal": "read_journal", "/openapi.json": "openapi_json"})
LINEAGES = {
    "sglang-2026": (), "session": ("begin_weight_update", "end_weight_update"),
    "xorl": ("prepare_weights_update", "complete_weights_update"),
    "xorl-legacy": ("prepare_weights_update", "complete_weights_update", "receive_weights",
                    "receive_weights_ep_scatter", "list_weights")}
LISTS = ("names", "dtypes", "shapes")


class Server(ThreadingHTTPServer):
    def handle_error(self, request, client_address):
        """A sender that went away has no use for an answer."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self):
        text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path, endpoint = self.path.split("?")[0], self.server.endpoint
        entry = {"method": self.command, "path": path, "status": None}
        try:
            body = json.loads(text) if text else {}
            entry["body"] = {k: len(v) if k in LISTS else v for k, v in body.items()}
            if path != "/journal":
                endpoint.journal.append(entry)
            if path in endpoint.routes:
                entry["status"], reply = getattr(endpoint, endpoint.routes[path])(body)
            else:
                entry["status"], reply = 404, {"detail": "Not Found"}
        except (ValueError, KeyError, TypeError, AttributeError) as e:
            entry["status"], reply = 400, {"object": "error", "message": repr(e), "code": 400}
        is_text = isinstance(reply, str)
        data = reply.encode() if is_text else json.dumps(reply).encode()
        self.send_response(entry["status"])
        self.send_header("Content-Type", "text/plain" if is_text else "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST

    def log_message(self, *_args):
        pass


def run_endpoint(index, tp, port, args):
    die_with_parent()
    endpoint = Endpoint(tp, args)
    server = Server(("127.0.0.1", port), Handler)
    server.endpoint = endpoint
    ready = {"url": "http://127.0.0.1:%d" % server.server_address[1], "index": index, "tp": tp,
             "pid": os.getpid(),
             "ranks": endpoint.pids, "torch": torch.__version__}
    os.write(args.out, json.dumps(ready).encode() + b"\n")
    server.serve_forever()


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--tp", default="1", help="tensor-parallel sizes, one endpoint each: 1,2,4")
    p.add_argument("--port", type=int, default=0, help="port of the first endpoint (any free one)")
    p.add_argument("--keep", choices=("hash", "none", "memory"), default="hash")
    p.add_argument("--model-path", default="/nonexistent")
    p.add_argument("--server-info", type=json.loads, default={},
                   help="JSON to lay over /server_info")
    p.add_argument("--lists", type=json.loads, default={},
                   help="JSON of tp size: {name: shape of the first rank's}, for /list_weights")
    p.add_argument("--checksums", type=json.loads,
                   help="JSON of name: checksum, to be told of every rank instead of its own")
    p.add_argument("--lineage", choices=sorted(LINEAGES), default="sglang-2026")
    p.add_argument("--join", type=float, default=300,
                   help="seconds that complete waits for the thread that prepare began")
    p.add_argument("--device", default="cpu", help="cuda:0: for --backend nccl")
    p.add_argument("--eager", action="store_true", help="join NCCL while the group is made")
    p.add_argument("--group", help="join under this name, whatever is asked for")
    p.add_argument("--hold", metavar="FILE", help="receive no bytes while FILE exists")
    p.add_argument("--slow-above", type=int, metavar="BYTES",
                   help="take half a second longer for a flattened bucket of more")
    p.add_argument("--remember", action="store_true",
                   help="hold what arrived over earlier groups, too")
    p.add_argument("--refuse", action="store_true", help="answer every update with 400, at once")
    args = p.parse_args()
    args.out = os.dup(1)  # for the ready lines; gloo prints to stdout on its own
    os.dup2(2, 1)
    children = []
    for i, tp in enumerate(args.tp.split(",")):
        port = args.port + i if args.port else 0
        children.append(FORK.Process(target=run_endpoint, args=(i, int(tp), port, args)))
    for child in children:
        child.start()
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    for child in children:
        child.join()


if __name__ == "__main__":
    main()
