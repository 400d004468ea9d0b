#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""canned.py - an HTTP server with one answer per path: canned.py PATH=STATUS:TEXT...

For answers that no well-behaved endpoint gives. Prints its port, then one line per request: method,
path with query, body. An unknown path is 404.
"""
import http.server
import sys

ANSWERS = dict(arg.split("=", 1) for arg in sys.argv[1:])


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        print(self.command, self.path, body.decode(), flush=True)
        path = self.path.split("?")[0]
        answer = ANSWERS.get(f"{self.command} {path}", ANSWERS.get(path, "404:not found"))
        status, text = answer.split(":", 1)
        self.send_response(int(status))
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    do_GET = do_POST = answer

    def log_message(self, *args):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
