#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""replies.py URL BEFORE [AFTER] - a proxy of the endpoint at URL that changes replies. Prints its port.

BEFORE is a Python statement that runs for each request, one at a time. It sees `path`; `action`, the member of that
name in the request's body or None; `count`, how many requests came, and `nth`, how many to this path, with this one;
and `kept`, a dict that lives as long as the proxy. If it sets `answer` to (status, text), the request is not passed
on; if it sets `url`, it goes there.
AFTER runs for each reply that has "ranks". It sees `ranks` and `kept`.
"""
import http.server
import json
import sys
import threading
import urllib.error
import urllib.request

URL, BEFORE, AFTER = (sys.argv[1:] + [""])[:3]
kept, seen = {}, []
lock = threading.Lock()


def action_of(body):
    try:
        return json.loads(body).get("action")
    except (ValueError, AttributeError):
        return None


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def ask(self, url, body):
        request = urllib.request.Request(url + self.path, body or None, method=self.command,
                                         headers={"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                return reply.status, reply.read()
        except urllib.error.HTTPError as e:
            return e.code, e.read()

    def edit(self, status, text):
        if AFTER and self.path == "/weights_checker" and status == 200 and b'"ranks"' in text:
            reply = json.loads(text)
            exec(AFTER, {"ranks": reply["ranks"], "kept": kept})
            text = json.dumps(reply).encode()
        return status, text

    def answer(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        with lock:
            seen.append(self.path)
            rule = {"path": self.path, "action": action_of(body), "count": len(seen), "nth": seen.count(self.path),
                    "kept": kept, "answer": None, "url": URL}
            exec(BEFORE, rule)
        status, text = rule["answer"] or self.edit(*self.ask(rule["url"], body))
        text = text.encode() if isinstance(text, str) else text
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
