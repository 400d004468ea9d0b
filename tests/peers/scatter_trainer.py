# SPDX-License-Identifier: Apache-2.0
"""Trainers that hold experts, forks of one that imports torch: scatter_trainer.py WORLD PORT URL
FILE.

Rank 0 hosts the store and makes the request. All send their share of the experts of FILE to every
rank of the endpoint as torch does it (batch_isend_irecv), in the layout of a server: gate rows,
then up rows of each rank's part. The last tensors of the file, which are no experts, come from rank
0.
"""
import json
import os
import sys
import threading
import traceback
import urllib.request

import receiver
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))),
                                "bench"))
from torch_sender import VERSION, read_tensors  # noqa: E402

TP, GROUP = 2, "ep_scatter_group"


def join(rank, world, port):
    libuv = {"use_libuv": False} if VERSION >= (2, 3) else {}
    store = dist.TCPStore("127.0.0.1", port, world + TP, rank == 0, wait_for_workers=False, **libuv)
    made = c10d._new_process_group_helper(
        world + TP, rank, [], c10d.Backend("gloo"), c10d.PrefixStore(GROUP, store),
        group_name=GROUP,
        timeout=c10d.default_pg_timeout,
        **{"backend_options" if VERSION >= (2, 6) else "pg_options": None})
    group = made[0] if isinstance(made, tuple) else made
    ranks = c10d._world.pg_group_ranks if hasattr(c10d, "_world") else c10d._pg_group_ranks
    ranks[group] = {i: i for i in range(world + TP)}
    return group, store


def request(url, port, world, plan, others, answer):
    body = {"weight_names": [p["weight_name"] for p in plan] + others, "training_world_size": world,
            "master_address": "127.0.0.1", "master_port": port, "expert_transfer_plan": plan,
            "non_expert_transfer_plan": [{"weight_name": n} for n in others],
            "non_expert_batch_size": 1,
            "total_inference_world_size": TP}
    try:
        asked = urllib.request.Request(url + "/receive_weights_ep_scatter",
                                       json.dumps(body).encode())
        with urllib.request.urlopen(asked, timeout=1200) as reply:
            answer.update(json.load(reply))
    except Exception as e:  # pylint: disable=broad-except
        answer["message"] = getattr(e, "read", lambda: str(e))()


def shard(tensors, layer, e, which, r):
    """What rank r of the endpoint keeps of one expert."""
    module = "model.layers.%d.mlp.experts.%d." % (layer, e)
    if which == "w13":
        return torch.cat([tensors[module + p + "_proj.weight"].chunk(TP, 0)[r]
                          for p in ("gate", "up")])
    return tensors[module + "down_proj.weight"].chunk(TP, 1)[r]


def train(rank, world, port, url, path):
    tensors = {n: raw.clone().view(getattr(torch, dtype)).reshape(shape)
               for n, dtype, shape, raw in read_tensors(path)}
    layers = sorted({int(n.split(".")[2]) for n in tensors if ".experts." in n})
    n_experts = 1 + max(int(n.split(".")[5]) for n in tensors if ".experts." in n)
    others = [n for n in tensors if ".experts." not in n]
    each = n_experts // world
    ranges = {str(t): {"start": t * each, "end": (t + 1) * each, "source_nccl_rank": t}
              for t in range(world)}
    plan = [{"weight_name": "model.layers.%d.mlp.experts.%s_weight" % (layer, w),
             "is_expert_weight": True,
             "expert_ranges": ranges} for layer in reversed(layers) for w in ("w2", "w13")]
    answer, thread = {}, None
    if rank == 0:
        thread = threading.Thread(target=request, args=(url, port, world, plan, others, answer),
                                  daemon=True)
        thread.start()
    group, _store = join(rank, world, port)
    mine = range(rank * each, (rank + 1) * each)
    for layer in layers:
        sends = [torch.stack([shard(tensors, layer, e, w, r) for e in mine]).contiguous()
                 for r in range(TP) for w in ("w2", "w13")]
        ops = [dist.P2POp(dist.isend, t, world + i // 2, group) for i, t in enumerate(sends)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
    for name in others if rank == 0 else []:
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, tensors[name], world + r, group)
                                            for r in range(TP)]):
            work.wait()
    if thread:
        thread.join(1200)
        if not answer.get("success"):
            raise SystemExit("refused: %s" % answer)
        print(answer["message"])


def exit_status(rank, world, port, url, path):
    try:
        train(rank, int(world), int(port), url, path)
    except BaseException:  # pylint: disable=broad-except
        traceback.print_exc()
        return 1
    sys.stdout.flush()
    return 0


def main():
    forks = []
    for rank in range(1, int(sys.argv[1])):
        forks.append(os.fork())
        if not forks[-1]:
            receiver.die_with_parent()
            os._exit(exit_status(rank, *sys.argv[1:]))
    failed = exit_status(0, *sys.argv[1:]) or any(os.waitpid(pid, 0)[1] for pid in forks)
    os._exit(failed)  # not waiting for torch to take leave of peers, nor for a fork of a failed one


if __name__ == "__main__":
    main()
