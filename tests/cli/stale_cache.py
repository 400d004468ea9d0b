#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""stale_cache.py - a proxy before an endpoint whose cache of prefixes outlives every flush: stale_cache.py URL.

Everything passes but /generate, which always finds 7 tokens in the cache. Prints its port.
"""
import http.server
import sys
import urllib.error
import urllib.request


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def ask(self, body):
        if self.path == "/generate":
            return 200, b'{"text": "", "meta_info": {"cached_tokens": 7}}'
        request = urllib.request.Request(sys.argv[1] + self.path, body or None, method=self.command)
        request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=30) as reply:
                return reply.status, reply.read()
        except urllib.error.HTTPError as e:
            return e.code, e.read()

    def answer(self):
        status, text = self.ask(self.rfile.read(int(self.headers.get("Content-Length", 0))))
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
