#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""leavers.py GATEWAY CHECKPOINT - clients of a gateway whose running sync does not end.

More clients than it has connections ask for a sync and leave. Then more than may wait ask and stay:
only the surplus is refused, and leaving makes room again. Asserts, and prints nothing."""
import http.client
import json
import select
import sys
import time
import urllib.parse

CONNECTIONS, WAITING, SURPLUS, PATIENCE = 256, 64, 8, 120
place = urllib.parse.urlparse(sys.argv[1]).netloc
body = json.dumps({"source": sys.argv[2], "weight_version": "left"})


def ask():
    connection = http.client.HTTPConnection(place, timeout=PATIENCE)
    connection.request("POST", "/sync_inference_weights", body,
                       {"Content-Type": "application/json"})
    return connection


def answer(connection):
    reply = connection.getresponse()
    reply.read()
    return reply.status, reply.getheader("Retry-After")


def get(path):
    connection = http.client.HTTPConnection(place, timeout=PATIENCE)
    connection.request("GET", path)
    status = answer(connection)[0]
    connection.close()
    return status


def answered(connections):
    """Those that have an answer, which says: later."""
    ready = select.select([c.sock for c in connections], [], [], 1)[0]
    for connection in connections:
        if connection.sock in ready:
            status, retry = answer(connection)
            assert (status, int(retry) > 0) == (503, True), (status, retry)
            yield connection


for _ in range(CONNECTIONS + 100):
    ask().close()
assert get("/health") == 200
assert get("/list_inference_endpoints") == 200

def crowd():
    """More clients than may wait: waits until the surplus is refused, and returns the others."""
    stay, until = [ask() for _ in range(WAITING + SURPLUS)], time.monotonic() + PATIENCE
    while len(stay) > WAITING:
        assert time.monotonic() < until, f"{len(stay)} wait"
        for refused in list(answered(stay)):
            refused.close()
            stay.remove(refused)
    assert not list(answered(stay))
    return stay


for connection in crowd():
    assert get("/health") == 200
    connection.close()
for connection in crowd(): # those have made room
    connection.close()
