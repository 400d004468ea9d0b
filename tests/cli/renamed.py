#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""renamed.py - an endpoint of ours that says it is somebody else's, or answers nonsense.

  renamed.py HOST:PORT            a version in an answer loses the mark of who made it
  renamed.py HOST:PORT N PYTHON   also: the N-th answer of /weights_checker and all later ones are
                                  what the expression makes of theirs: `a`, parsed, or a string;
                                  each(f): with f(r) for each rank r; sums(f): with f(c) for the
                                  checksums of each

Everything else passes. A recording double, for answers that no server should give. Prints its port,
and each request with a small body."""
import http.client
import http.server
import json
import sys

NTH = int(sys.argv[2]) if len(sys.argv) > 2 else sys.maxsize
asked = 0


def change(a):
    def each(f):
        return {**a, "ranks": [f(r) for r in a["ranks"]]}

    def sums(f):
        return each(lambda r: {**r, "checksums": f(r["checksums"])} if "checksums" in r else r)
    return eval(sys.argv[3], {"a": a, "each": each, "sums": sums}) if "ranks" in a else a


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def carry(self):
        global asked
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if 0 < len(body) < 4096:
            print(self.path, body.decode(errors="replace"), flush=True)
        far = http.client.HTTPConnection(sys.argv[1])
        far.request(self.command, self.path, body, dict(self.headers))
        answer = far.getresponse()
        data = answer.read().replace(b"+wsync.", b"+other.")
        if self.path == "/weights_checker":
            asked += 1
            if asked >= NTH:
                changed = change(json.loads(data))
                data = (changed if isinstance(changed, str) else json.dumps(changed)).encode()
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.getheader("Content-Type", "application/json"))
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
        far.close()

    do_GET = do_POST = do_OPTIONS = do_PUT = do_DELETE = do_HEAD = carry

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
