#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""talker.py - a server that answers prompts, and can be told to answer them badly: talker.py
[KEY=VALUE]...

What it says of a token is a hash of SEED and of all tokens before, so two with one seed agree and
two with different ones do not. A text is its UTF-8 bytes. Prints its port, then a line for each
request.

  seed=N the weights version=V their name decode=X added to what is drawn batch=X added to what
  comes in a batch cached=N tokens that came from a cache stale=X added where nothing is wanted of
  the prompt most=N no more than this many new tokens extra=N and so many more reply=NAME a bad
  answer, see BAD below experts=N of each token and layer, 2 of so many are chosen moved=N of so
  many rows the last has another expert
"""
import base64
import http.server
import json
import struct
import sys
import threading
import time
import zlib

OPTIONS = dict(arg.split("=", 1) for arg in sys.argv[1:])
LAYERS = 3
BAD = {
    "400": (400, '{"error": {"message": "return_logprob is not supported"}}'),
    "empty": (200, "{}"),
    "text": (200, "it is raining"),
    "nan": (200, '{"meta_info": {"input_token_logprobs": [[NaN, 1]], "output_token_logprobs": '
                 '[]}}'),
    "huge": (200, '{"meta_info": {"input_token_logprobs": [[-1e999, 1]], "output_token_logprobs": '
                  '[]}}'),
    "deep": (200, "[" * 100000),
    "many": (200, '[{"meta_info": {}}, {"meta_info": {}}]'),
    "null": (200, '{"meta_info": {"input_token_logprobs": [], "output_token_logprobs": []}}'),
    "other": (200, '{"meta_info": {"input_token_logprobs": [[null, 1]], "output_token_logprobs": '
                   '[]}}'),
    "abort": (200, '{"meta_info": {"finish_reason": {"type": "abort", "message": '
                   '"paused\\u001b[31m"}}}'),
}
lock = threading.Lock()
together = most_together = 0


def number(key, tokens):
    return zlib.crc32(repr((OPTIONS.get("seed", "0"), key, tokens)).encode())


def says(tokens):
    return -(number("p", tokens) % 100000) / 10000


def rows(tokens):
    n = int(OPTIONS["experts"])
    flat = []
    for t in range(len(tokens) - 1):
        for layer in range(LAYERS):
            first = number(layer, tokens[: t + 1]) % n
            flat += [first, (first + 1) % n] if layer else [0, 0]
    for i in range(int(OPTIONS.get("moved", "0"))):
        flat[-1 - 2 * LAYERS * i] = (flat[-1 - 2 * LAYERS * i] + 1) % n
    return base64.b64encode(struct.pack(f"<{len(flat)}i", *flat)).decode()


def answer(prompt, params, shift):
    tokens = list(prompt.encode()) if isinstance(prompt, str) else list(prompt)
    n = len(tokens)
    before = [[says(tokens[: i + 1]) if i else None, tokens[i], None] for i in range(n)]
    drawn = []
    for _ in range(min(params["max_new_tokens"], int(OPTIONS.get("most", "1000")))
                   + int(OPTIONS.get("extra", "0"))):
        tokens.append(number("d", tokens) % 256)
        drawn.append([says(tokens) + float(OPTIONS.get("decode", "0")) + shift, tokens[-1], None])
    meta = {"prompt_tokens": n, "completion_tokens": len(drawn),
            "cached_tokens": int(OPTIONS.get("cached", "0")),
            "weight_version": OPTIONS.get("version", "default"),
            "finish_reason": {"type": "length"},
            "input_token_logprobs": before, "output_token_logprobs": drawn}
    if "experts" in OPTIONS:
        meta["routed_experts"] = rows(tokens)
    return {"text": "", "meta_info": meta}


def generate(body):
    reply = OPTIONS.get("reply")
    if reply == "hang":
        time.sleep(60)
    if reply:
        return BAD[reply]
    prompts = body.get("text", body.get("input_ids"))
    if isinstance(prompts, str) or isinstance(prompts[0], int):
        shift = 0 if "logprob_start_len" in body else float(OPTIONS.get("stale", "0"))
        return 200, json.dumps(answer(prompts, body["sampling_params"], shift))
    params = body["sampling_params"]
    params = params if isinstance(params, list) else [params] * len(prompts)
    shift = float(OPTIONS.get("batch", "0"))
    return 200, json.dumps([answer(p, s, shift) for p, s in zip(prompts, params)])


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def ask(self, body):
        if self.path == "/generate":
            return generate(json.loads(body))
        if self.path in ("/server_info", "/get_server_info", "/model_info", "/get_model_info"):
            return 200, json.dumps({"model_path": OPTIONS.get("model", "hub/name"), "tp_size": 1})
        return (200, "Cache flushed.\n") if self.path.startswith("/flush_cache") else (404, "{}")

    def do_POST(self):
        global together, most_together
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        with lock:
            together += 1
            most_together = max(most_together, together)
            print(self.command, self.path, most_together, body.decode(), flush=True)
        if "slow" in OPTIONS:
            time.sleep(float(OPTIONS["slow"]))
        status, text = self.ask(body)
        with lock:
            together -= 1
        self.send_response(status)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    do_GET = do_POST

    def log_message(self, *args):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
server.daemon_threads = True
print(server.server_address[1], flush=True)
server.serve_forever()
