#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""store_peer.py - what torch processes do with a TCPStore; run by test_store.py through python.sh.

Torch is imported once, which takes seconds. Each line of stdin makes a fork of its own:

    ops PORT                    every operation that this torch has
    host                        hosts a store until it is ended
    get PORT KEY                waits for a key
    gloo PORT RANK WORLD GROUP  joins a gloo group as SGLang does

They answer with lines of JSON, the last of which says why it failed, if it did. A line "end" ends
all of them.
"""
import datetime
import json
import os
import signal
import sys
import time

import receiver
import torch
import torch.distributed as dist

VERSION = tuple(int(x) for x in torch.__version__.split(".")[:2])


def say(**what):
    """At once: a fork that is ended leaves no half of a line in the pipe of all."""
    os.write(1, json.dumps(what).encode() + b"\n")


# Debian builds torch without libuv, which newer ones want by default.
PLAIN = {"use_libuv": False} if VERSION >= (2, 4) else {}


# Nothing waits that long but a hang, as in lib.py.
PATIENCE = datetime.timedelta(seconds=600)


def client(port):
    return dist.TCPStore("127.0.0.1", int(port), 3, False, PATIENCE, **PLAIN)


def raises(function):
    try:
        function()
    except Exception as e:  # torch has used several types for it
        return str(e) or type(e).__name__
    return ""


def wait_in_vain(store, port):
    before = time.monotonic()
    why = raises(lambda: store.wait(["never"], datetime.timedelta(milliseconds=200)))
    waited = time.monotonic() - before
    assert why and 0.1 < waited < 300, (waited, why)
    if VERSION < (2, 1):
        store = client(port)  # it does not survive a time-out
    store.set("after", "timeout")
    assert store.get("after") == b"timeout"


def compare_set(store):
    assert store.compare_set("c", "something", "new") == b"something"
    assert store.compare_set("c", "", "first") == b"first"
    assert store.compare_set("c", "first", "second") == b"second"
    assert store.compare_set("c", "first", "third") == b"second"
    assert store.get("c") == b"second"


def extended(store):
    store.append("x", "po")
    store.append("x", "tato")
    store.multi_set(["m1", "m2"], ["1", "2"])
    assert store.multi_get(["x", "m1", "m2"]) == [b"potato", b"1", b"2"]


def big(store):
    value = bytes(range(256)) * (4096 * 3)
    store.set("big", value)
    assert store.get("big") == value


def numbers(store):
    before = store.num_keys()
    store.set("one more", "")
    assert store.num_keys() == before + 1
    assert store.get("one more") == b""
    assert store.delete_key("one more") and not store.delete_key("one more")
    assert store.num_keys() == before


def counters(store):
    assert store.add("n", 1) == 1 and store.add("n", 41) == 42 and store.get("n") == b"42"
    store.set("n", "5")
    assert store.add("n", -6) == -1


# Queues are missing: process groups do not use them, and our store refuses them.
def ops(port):
    store = client(port)
    plain = [
        ("set and get", lambda: store.set("k", "v") or (store.get("k") == b"v" or 1 / 0)),
        ("three megabytes", lambda: big(store)),
        ("add", lambda: counters(store)),
        ("num_keys and delete_key", lambda: numbers(store)),
        ("compare_set", lambda: compare_set(store)),
        ("check", lambda: store.check(["k"]) and not store.check(["k", "nothing"]) or 1 / 0),
        ("wait in vain, then go on", lambda: wait_in_vain(store, port)),
        ("append, multi_set, multi_get", lambda: extended(store)),
        ("list_keys", lambda: "k" in store.list_keys() or 1 / 0),
        ("barrier of one", lambda: store.barrier("here", 1)),
        ("a second connection by clone", lambda: store.clone().get("k") == b"v" or 1 / 0),
    ]
    needs = {"check": "check", "append, multi_set, multi_get": "multi_get",
             "list_keys": "list_keys", "barrier of one": "barrier",
             "a second connection by clone": "clone"}
    for title, call in plain:
        if not hasattr(store, needs.get(title, "get")):
            continue
        why = raises(call)
        say(title=title, why=why)


def host():
    store = dist.TCPStore("127.0.0.1", 0, 2, True, PATIENCE, wait_for_workers=False, **PLAIN)
    say(port=store.port)
    store.set("from_torch", "hello")
    say(got=store.get("from_us").decode(), joined=store.get("counter").decode())
    signal.pause()


def get(port, key):
    store = client(port)
    say(joined=True)
    before = time.monotonic()
    why = raises(lambda: store.get(key))
    say(why=why, seconds=time.monotonic() - before)


def gloo(port, rank, world, group):
    peer = receiver.Rank(0, "none")
    peer.init_weights_update_group({
        "group_name": group, "world_size": int(world), "rank_offset": int(rank), "backend": "gloo",
        "master_address": "127.0.0.1", "master_port": int(port)})


def fork(act, args):
    pid = os.fork()
    if pid:
        return pid
    receiver.die_with_parent()
    say(end=raises(lambda: act(*args)))
    os._exit(0)


def main():
    acts, forks = {"ops": ops, "host": host, "get": get, "gloo": gloo}, []
    say(torch=torch.__version__)
    for line in sys.stdin:
        name, *args = line.split()
        if name in acts:
            forks.append(fork(acts[name], args))
            continue
        for pid in forks:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        forks = []
        say(ended=True)


if __name__ == "__main__":
    main()
