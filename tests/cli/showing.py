#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""showing.py - an endpoint that shows parameters: showing.py MODEL_PATH SCALES NORM [REPLICAS]

Answers with SCALES whoever asks for block scales by name, with NORM for anything else, "" being a
refusal. With a NORM it has one layer, whose norms are 64 wide. Prints its port, then one line per
POST: path, name, rows."""
import http.server
import json
import sys

MODEL, SCALES, NORM = sys.argv[1:4]
REPLICAS = int(sys.argv[4]) if len(sys.argv) > 4 else 1


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        ask = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or "{}")
        name = ask.get("name", "")
        print(self.path, name, ask.get("truncate_size"), flush=True)
        answer = SCALES if name.endswith("_scale_inv") else NORM
        if NORM and name.endswith("input_layernorm.weight"):
            answer = str([1.0] * min(64, ask["truncate_size"])) if ".0." in name else ""
        if self.path != "/get_weights_by_name" or not answer:
            answer = '{"error": {"message": "Get parameter by name failed"}}'
        self.reply(400 if answer[0] == "{" else 200, answer)

    def do_GET(self):
        says = {"/server_info": {"tp_size": REPLICAS, "dp_size": REPLICAS,
                                 "enable_dp_attention": True,
                                 "quantization": None, "model_path": MODEL, "version": "0.5.9"},
                "/model_info": {"weight_version": "7"}}.get(self.path)
        self.reply(200 if says else 404, json.dumps(says or {}))

    def reply(self, status, text):
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *args):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
