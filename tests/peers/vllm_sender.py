# SPDX-License-Identifier: Apache-2.0
"""vllm_sender.py - rank 0 of a weight transfer over gloo, in torch: the store, and broadcasts.

Runs under the Python of vllm.sh. Prints {"port": P} of its store, then obeys lines of JSON on
stdin: {"join": WORLD_SIZE} makes the group, {"broadcast": FILE, "pieces": [[[BEGIN, END], ...],
...]} sends each piece, which is some parts of FILE one after the other, and {"fill": BYTES} sends
that many zeros. It answers each line with {"done": true}, before "fill" also {"sending": true}.
"""
import datetime
import json
import sys

import torch
import torch.distributed as dist

PREFIX, WAIT = "wsync-test", datetime.timedelta(seconds=120)


def say(**what):
    print(json.dumps(what), flush=True)


def broadcast(group, data):
    options = dist.BroadcastOptions()
    options.rootRank, options.rootTensor = 0, 0
    if data.numel():  # as the workers: nothing is sent for 0 bytes
        group.broadcast([data], options).wait()


def main():
    store = dist.TCPStore("127.0.0.1", 0, None, True, WAIT, wait_for_workers=False,
                          use_libuv=False)
    store.set("wsync/gloo", PREFIX)
    say(port=store.port)
    group = None
    for line in sys.stdin:
        job = json.loads(line)
        if "join" in job:
            options = dist.ProcessGroupGloo._Options()
            options._timeout = WAIT
            options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
            group = dist.ProcessGroupGloo(dist.PrefixStore(PREFIX, store), 0, job["join"], options)
        elif "fill" in job:
            data = torch.zeros(job["fill"], dtype=torch.uint8)
            say(sending=True)
            broadcast(group, data)
        else:
            with open(job["broadcast"], "rb") as f:
                held = f.read()
            for piece in job["pieces"]:
                data = b"".join(held[begin:end] for begin, end in piece)
                broadcast(group, torch.frombuffer(bytearray(data), dtype=torch.uint8)
                          if data else torch.empty(0, dtype=torch.uint8))
        say(done=True)


main()
