# SPDX-License-Identifier: Apache-2.0
"""Real vLLM servers with the worker extension of lib/vllm, on this machine's CPU.

Only when asked for, since the first time it downloads 3 GB from PyPI: WSYNC_TEST_VLLM=1 for Qwen3
at tp 1 and llama at tp 2, WSYNC_TEST_VLLM=all for both models at both sizes. A pair of servers is
started on two checkpoints; each one's answers are what the other must give, bit for bit, after a
push of the first one's checkpoint. Rank 0 is torch here (vllm_sender.py).
"""
import json
import os
import re
import socket
import struct
import subprocess
import sys
import threading
import time

import lib
import vllm_server
from vllm_server import logprobs, make, tensors

ASKED = os.environ.get("WSYNC_TEST_VLLM", "")
COMBINATIONS = [("qwen3", 1), ("llama", 2)] + ([("llama", 1), ("qwen3", 2)]
                                               if ASKED == "all" else [])
HUGE = 1 << 50  # bytes of a packed buffer: one update call is one broadcast


class Pair:
    """Two servers of one family and size, on the checkpoints of seeds 1 and 2."""

    def __init__(self, family, tp):
        self.family, self.tp = family, tp
        self.servers = [vllm_server.Server(make(family, seed), tp) for seed in (1, 2)]
        for s in self.servers:
            s.await_ready()
        self.fresh = {seed: logprobs(s) for seed, s in enumerate(self.servers, 1)}
        assert self.fresh[1] != self.fresh[2], "the prompts do not tell the checkpoints apart"

    def check(self, server, seed):
        assert logprobs(server) == self.fresh[seed], "%s tp %d does not compute as seed %d" % (
            self.family, self.tp, seed)


class Background:
    """A POST under way."""

    def __init__(self, server, path, body):
        self.reply = None
        self.thread = threading.Thread(target=self.run, args=(server, path, body), daemon=True)
        self.thread.start()

    def run(self, server, path, body):
        try:
            self.reply = server.post(path, body)
        except OSError as e:
            self.reply = 0, str(e)

    def wait(self):
        self.thread.join(vllm_server.SECONDS + 10)
        assert self.reply is not None, "no answer"
        return self.reply

    def check(self):
        status, reply = self.wait()
        assert status == 200, reply


class Sender:
    """Rank 0 of a group with one server. `through` replaces the store's port in the init call."""

    def __init__(self, server, packed=False, through=lambda port: port):
        self.server, self.packed = server, packed
        self.child = lib.start([vllm_server.python(),
                                os.path.join(lib.HERE, "vllm_sender.py")],
                               {"OMP_NUM_THREADS": "1"}, stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE)
        self.lines = lib.Lines(self.child.stdout)
        info = {"master_address": "127.0.0.1", "master_port": through(self.lines.next()["port"]),
                "rank_offset": 1, "world_size": server.tp + 1, "packed": packed}
        if packed:
            info.update(packed_buffer_size_bytes=HUGE, packed_num_buffers=1)
        init = Background(server, "/init_weight_transfer_engine", {"init_info": info})
        self.tell(join=server.tp + 1)
        self.obeyed()
        init.check()

    def tell(self, **job):
        self.child.stdin.write(json.dumps(job).encode() + b"\n")
        self.child.stdin.flush()

    def obeyed(self):
        answer = self.lines.next(vllm_server.SECONDS)
        assert answer == {"done": True}, "the sender answered %s" % answer

    def update(self, path, wanted):
        """One update call with the tensors of a checkpoint whose places are `wanted`."""
        held, at, pieces, chosen = tensors(path), 0, [], []
        with open(path + "/model.safetensors", "rb") as f:
            at = 8 + struct.unpack("<Q", f.read(8))[0]
        for i, (_, _, _, raw) in enumerate(held):
            if i in wanted:
                pieces.append([at, at + len(raw)])
                chosen.append(held[i])
            at += len(raw)
        call = Background(self.server, "/update_weights", {"update_info": info_of(chosen)})
        self.tell(broadcast=path + "/model.safetensors",
                  pieces=[pieces] if self.packed else [[p] for p in pieces])
        self.obeyed()
        call.check()

    def push(self, path, buckets=1):
        """All of a checkpoint, in that many update calls."""
        n = len(tensors(path))
        self.server.call("/pause?mode=abort")
        self.server.call("/start_weight_update")
        for i in range(buckets):
            self.update(path, range(n * i // buckets, n * (i + 1) // buckets))
        self.server.call("/finish_weight_update", {"weight_version": os.path.basename(path)})
        self.server.call("/resume")

    def stop(self):
        lib.stop(self.child)


def info_of(chosen):
    return {"names": [t[0] for t in chosen], "dtype_names": [t[1] for t in chosen],
            "shapes": [t[2] for t in chosen]}


# ---- cases: pairs is what the servers are, the first one at tp 1

suite = lib.Suite()


@suite.case("wsync_describe: every worker has the extension")
def describe(pairs):
    for pair in pairs:
        got = pair.servers[0].rpc("wsync_describe")
        assert [g["rank"] for g in got] == list(range(pair.tp)), got
        assert all(g["version"] == 1 and g["torch"].startswith("2.") for g in got), got


@suite.case("unpacked: in one update call, and in several")
def unpacked(pairs):
    for pair in pairs:
        a, b = pair.servers
        for server, seed, buckets in ((a, 2, 1), (b, 1, 5)):
            sender = Sender(server)
            sender.push(make(pair.family, seed), buckets)
            pair.check(server, seed)
            sender.push(make(pair.family, 3 - seed), buckets)  # the same group again
            pair.check(server, 3 - seed)
            sender.stop()


@suite.case("packed: one broadcast for each update call, in one and in several")
def packed(pairs):
    for pair in pairs:
        a, b = pair.servers
        for server, seed, buckets in ((a, 2, 7), (b, 1, 1)):
            sender = Sender(server, packed=True)
            sender.push(make(pair.family, seed), buckets)
            pair.check(server, seed)
            assert server.get("/weight_info")[1]["weight_version"] == os.path.basename(
                make(pair.family, seed))
            sender.push(make(pair.family, 3 - seed), buckets)
            pair.check(server, 3 - seed)
            sender.stop()


class Tap:
    """Passes connections on to a store and keeps what the clients ask."""
    NAMES = {0: "VALIDATE", 1: "SET", 2: "COMPARE_SET", 3: "GET", 4: "ADD", 5: "CHECK", 6: "WAIT",
             7: "GETNUMKEYS", 8: "DELETE_KEY", 9: "APPEND", 10: "MULTI_GET", 11: "MULTI_SET",
             12: "CANCEL_WAIT", 13: "PING"}

    def __init__(self, port):
        self.port, self.clients, self.answers = port, [], []
        self.listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            client = self.listener.accept()[0]
            store = socket.create_connection(("127.0.0.1", self.port))
            self.clients.append(bytearray())
            self.answers.append(bytearray())
            for source, to, kept in ((client, store, self.clients[-1]),
                                     (store, client, self.answers[-1])):
                threading.Thread(target=self.carry, args=(source, to, kept), daemon=True).start()

    @staticmethod
    def carry(source, to, kept):
        try:
            while True:
                data = source.recv(65536)
                if not data:
                    break
                kept += data
                to.sendall(data)
        except OSError:
            pass
        for s in (source, to):
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    @classmethod
    def parse(cls, data):
        """One line for each request of a connection."""
        at, lines = 0, []

        def number():
            nonlocal at
            at += 8
            return struct.unpack_from("<q", data, at - 8)[0]

        def text():
            nonlocal at
            n = number()
            at += n
            return bytes(data[at - n:at])

        while at < len(data):
            name = cls.NAMES.get(data[at], "?%d" % data[at])
            at += 1
            if name in ("VALIDATE", "PING"):
                at += 4
                lines.append(name)
            elif name in ("SET", "APPEND"):
                key, value = text(), text()
                lines.append("%s %s (%d bytes)" % (name, key.decode(), len(value)))
            elif name in ("GET", "DELETE_KEY"):
                lines.append("%s %s" % (name, text().decode()))
            elif name == "ADD":
                lines.append("ADD %s %d" % (text().decode(), number()))
            elif name in ("CHECK", "WAIT", "MULTI_GET"):
                lines.append("%s %s" % (name, " ".join(text().decode()
                                                       for _ in range(number()))))
            elif name == "MULTI_SET":
                lines.append("MULTI_SET " + " ".join("%s (%d bytes)" % (
                    text().decode(), len(text())) for _ in range(number())))
            elif name not in ("CANCEL_WAIT", "GETNUMKEYS"):
                raise AssertionError("%s after %s" % (name, lines))
            else:
                lines.append(name)
        return lines


@suite.case("what the workers ask the sender's store: only these operations and keys")
def store(pairs):
    for pair in pairs:
        taps = []
        sender = Sender(pair.servers[0],
                        through=lambda port: taps.append(Tap(port)) or
                        taps[0].listener.getsockname()[1])
        for data in taps[0].clients:
            lines = Tap.parse(data)
            print("# a worker of tp %d:" % pair.tp)
            for line in lines:
                print("#   " + line)
            assert lines[:6] == ["VALIDATE", "PING", "ADD init/ 1", "CHECK /wsync/gloo",
                                 "WAIT /wsync/gloo", "GET /wsync/gloo"], lines
            for line in lines[6:]:
                assert re.fullmatch(r"(SET|GET|WAIT) /wsync-test/0/[0-9]+( \([0-9]+ bytes\))?",
                                    line), line
        assert len(taps[0].clients) == pair.tp
        sender.stop()


def sockets(server):
    """How many sockets the processes of a server have."""
    n = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open("/proc/%s/stat" % pid) as f:
                if int(f.read().rsplit(")", 1)[1].split()[3]) != server.child.pid:
                    continue
            n += sum(os.readlink("/proc/%s/fd/%s" % (pid, fd)).startswith("socket:")
                     for fd in os.listdir("/proc/%s/fd" % pid))
        except OSError:
            pass
    return n


@suite.case("wsync_leave closes the connections; an update then says that there is no group")
def leave(pairs):
    server = pairs[0].servers[1]
    server.rpc("wsync_leave")
    before = sockets(server)
    sender = Sender(server)
    assert sockets(server) > before
    assert server.rpc("wsync_leave") == [None] * server.tp
    lib.await_true(lambda: sockets(server) <= before, "closed connections")
    server.call("/pause")
    server.call("/start_weight_update")
    status, reply = server.post("/update_weights", {"update_info": info_of([])})
    assert status == 500 and "not initialized" in reply["error"]["message"], reply
    sender.stop()
    sender = Sender(server)
    sender.push(make(pairs[0].family, 1))
    pairs[0].check(server, 1)
    sender.stop()


@suite.case("a sender that is killed in the middle of a broadcast: 500, and the server goes on")
def killed(pairs):
    pair = pairs[0]
    server = pair.servers[0]
    sender = Sender(server)
    server.call("/pause")
    server.call("/start_weight_update")
    size = 2 << 30
    call = Background(server, "/update_weights", {"update_info": {
        "names": ["huge"], "dtype_names": ["uint8"], "shapes": [[size]]}})
    sender.tell(fill=size)
    assert sender.lines.next(vllm_server.SECONDS) == {"sending": True}
    time.sleep(0.1)
    began = time.monotonic()
    sender.child.kill()
    assert sender.lines.next(vllm_server.SECONDS) is None, "the broadcast was over too early"
    status, reply = call.wait()
    print("# %.1f s after the kill: %s" % (time.monotonic() - began, reply))
    assert status == 500 and "Did the sender end?" in reply["error"]["message"], reply
    assert server.get("/is_paused") == (200, {"is_paused": True})
    sender.stop()
    sender = Sender(server)
    sender.push(make(pair.family, 2))
    pair.check(server, 2)
    sender.stop()


def set_up():
    if ASKED not in ("1", "all"):
        raise lib.Skip("set WSYNC_TEST_VLLM=1: the first time this downloads 3 GB")
    vllm_server.python()
    return [Pair(family, tp) for family, tp in COMBINATIONS]


if __name__ == "__main__":
    sys.exit(suite.main(set_up))
