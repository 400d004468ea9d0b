#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""unread.py - a gateway whose stdout and stderr are pipes that nobody reads: unread.py ENDPOINT
CHECKPOINT [one]

Syncs until the pipes have been full for longer than the gateway expects of a reader, then reads
them. Warnings have to count the lines that were dropped, all others have to be whole. Prints how
many lines of each were dropped. one: stdout and stderr are the same pipe (2>&1)."""
import fcntl
import json
import os
import re
import subprocess
import sys
import threading
import time
import urllib.request

SYNCS, SECONDS, F_SETPIPE_SZ = 48, 2, 1031
endpoint, checkpoint, *one = sys.argv[1:]
pipes = [os.pipe() for _ in range(1 if one else 2)]
for _, end in pipes:
    fcntl.fcntl(end, F_SETPIPE_SZ, 4096)


def read(end, into):
    while chunk := os.read(end, 65536):
        into += chunk


def ask(path, body):
    request = urllib.request.Request(gateway + path, json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    answer = json.load(urllib.request.urlopen(request, timeout=180))
    assert answer["success"], answer


def first_lines(end):
    text = b""
    while b'"ready"' not in text or not text.endswith(b"\n"):
        text += os.read(end, 1)
    return text


process = subprocess.Popen(["wsync-gateway", "--listen", "127.0.0.1:0", "-vv", "--json",
                            "--bucket-size", "1KiB"],
                           stdin=subprocess.DEVNULL, stdout=pipes[0][1], stderr=pipes[-1][1])
try:
    texts = [bytearray(first_lines(pipes[0][0])), bytearray()][:len(pipes)]
    gateway = re.search(rb'"url":"([^"]*)"', texts[0])[1].decode()
    host, port = endpoint.removeprefix("http://").split(":")
    ask("/add_inference_endpoint", {"host": host, "port": int(port)})
    syncs, began = 0, time.monotonic()
    while syncs < SYNCS or time.monotonic() < began + SECONDS:
        ask("/sync_inference_weights", {"source": checkpoint})
        syncs += 1
    for _, end in pipes:
        os.close(end)
    readers = [threading.Thread(target=read, args=(pipe[0], text)) for pipe,
               text in zip(pipes, texts)]
    for reader in readers:
        reader.start()
    ask("/sync_inference_weights", {"source": checkpoint})
    process.terminate()
    process.wait(60)
    for reader in readers:
        reader.join(60)
finally:
    process.kill()
    process.wait()

of_json = re.compile(rb'{"(schema":1,|type":"(ready|plan|endpoint|bucket|warning|result|end)")')
for line in texts[-1].splitlines() if one else []:
    assert not of_json.search(line, 1), f"one line in another: {line}"
lines = [json.loads(line) for line in texts[0].splitlines() if not one or of_json.match(line)]
assert lines[-1]["type"] == "end", lines[-1]
words = re.compile(r"(\d+) lines were dropped here")
told = [line["message"] for line in lines if line["type"] == "warning"]
print("stdout", sum(int(words.search(text)[1]) for text in told))
if not one:
    print("stderr", sum(int(n) for n in words.findall(texts[1].decode())))
