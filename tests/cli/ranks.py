#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ranks.py URL PYTHON - a proxy of the endpoint at URL that edits the list "ranks" of its checksums.

PYTHON is a statement over `ranks`, for example "ranks[1] = ranks[0]". Prints its port."""
import http.server
import json
import sys
import urllib.error
import urllib.request


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def pass_on(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        request = urllib.request.Request(sys.argv[1] + self.path, body or None, method=self.command,
                                         headers={"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                status, text = reply.status, reply.read()
        except urllib.error.HTTPError as e:
            status, text = e.code, e.read()
        if self.path == "/weights_checker" and status == 200:
            reply = json.loads(text)
            exec(sys.argv[2], {"ranks": reply["ranks"]})
            text = json.dumps(reply).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST = pass_on

    def log_message(self, *args):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
