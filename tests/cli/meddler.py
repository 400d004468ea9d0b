#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""meddler.py - a proxy in front of an endpoint that runs a shell command while a request waits.

meddler.py URL ROUTE NUMBER COMMAND: passes every request on to URL. Runs COMMAND once, before it passes on the
request with that number (1 is the first) to ROUTE. Prints its port.
"""
import http.server
import subprocess
import sys
import threading
import urllib.error
import urllib.request

URL, ROUTE, NUMBER, COMMAND = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
lock, seen = threading.Lock(), [0]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def pass_on(self, body):
        request = urllib.request.Request(URL + self.path, body or None, method=self.command)
        request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                return reply.status, reply.read()
        except urllib.error.HTTPError as e:
            return e.code, e.read()

    def answer(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        with lock:
            seen[0] += self.path == ROUTE
            if self.path == ROUTE and seen[0] == NUMBER:
                subprocess.run(["sh", "-ec", COMMAND], check=True)
        status, text = self.pass_on(body)
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST = do_OPTIONS = answer

    def log_message(self, *args):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
