#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""meddler.py - a proxy in front of an endpoint that does something while a request waits.

meddler.py URL ROUTE NUMBER COMMAND: passes every request on to URL. Runs COMMAND once, before it passes on the
request with that number (1 is the first) to ROUTE. Prints its port.
"""
import http.server
import subprocess
import sys
import threading
import urllib.error
import urllib.request


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def pass_on(self, body):
        request = urllib.request.Request(self.server.target + self.path, body or None, method=self.command)
        request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                return reply.status, reply.read()
        except urllib.error.HTTPError as e:
            return e.code, e.read()

    def answer(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.meddle(self.path)
        status, text = self.pass_on(body)
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST = do_OPTIONS = answer

    def log_message(self, *args):
        pass


class Meddler(http.server.ThreadingHTTPServer):
    """Calls act() while the request waits. After serve_forever is running, `url` is the endpoint's other name."""

    daemon_threads = True

    def __init__(self, target, route, number, act):
        super().__init__(("127.0.0.1", 0), Handler)
        self.target, self.route, self.left, self.act = target, route, number, act
        self.lock, self.url = threading.Lock(), "http://127.0.0.1:%d" % self.server_address[1]

    def meddle(self, path):
        with self.lock:
            self.left -= path == self.route
            if path == self.route and self.left == 0:
                self.act()

    def handle_error(self, request, client_address):
        pass  # a client that went away


def main():
    url, route, number, command = sys.argv[1:]
    server = Meddler(url, route, int(number), lambda: subprocess.run(["sh", "-ec", command], check=True))
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
