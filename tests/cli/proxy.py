#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""proxy.py URL BEFORE [AFTER [ARG...]]: a proxy of the endpoint at URL. Prints its port.

BEFORE and AFTER are Python statements. Both see `path`; `kept`, a dict that lives as long as the
proxy; and `args`.

BEFORE runs for each request, one at a time, before it is passed on. It also sees `action`, the
member of that name in the request's body or None; `count`, how many requests came, and `nth`, how
many to this path, with this one; and `run`, which runs a shell command. If it sets `answer` to
(status, text), the request is not passed on; if it sets `url`, it goes there.

AFTER runs for each reply that is a JSON object with status 200. It sees that as `reply` and may
change it.
"""
import http.server
import json
import subprocess
import sys
import threading
import urllib.error
import urllib.request


def object_of(text):
    try:
        parsed = json.loads(text)
    except ValueError:
        return None
    return parsed if isinstance(parsed, dict) else None


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

    def answer(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        rule = self.server.before(self.path, body)
        status, text = rule["answer"] or self.server.edit(self.path, *self.ask(rule["url"], body))
        text = text.encode() if isinstance(text, str) else text
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST = do_OPTIONS = answer

    def log_message(self, *args):
        pass


class Proxy(http.server.ThreadingHTTPServer):
    """before and after are called with the names above as one dict. While serve_forever runs, `url`
    is the endpoint's other name."""

    daemon_threads = True

    def __init__(self, target, before, after=None):
        super().__init__(("127.0.0.1", 0), Handler)
        self.target, self.rule, self.after = target, before, after
        self.kept, self.seen, self.lock = {}, [], threading.Lock()
        self.url = "http://127.0.0.1:%d" % self.server_address[1]

    def before(self, path, body):
        with self.lock:
            self.seen.append(path)
            rule = {"path": path, "action": (object_of(body) or {}).get("action"),
                    "count": len(self.seen),
                    "nth": self.seen.count(path), "kept": self.kept, "answer": None,
                    "url": self.target}
            self.rule(rule)
            return rule

    def edit(self, path, status, text):
        reply = object_of(text) if self.after and status == 200 else None
        if reply is not None:
            self.after({"path": path, "reply": reply, "kept": self.kept})
            text = json.dumps(reply).encode()
        return status, text

    def handle_error(self, request, client_address):
        pass  # a client that went away


def main():
    url, before, after = (sys.argv[1:4] + ["pass"])[:3]
    known = {"args": sys.argv[4:],
             "run": lambda command: subprocess.run(["sh", "-ec", command], check=True)}

    def runs(code):
        def act(names):
            for name, value in known.items():
                names[name] = value
            exec(code, names)
        return act

    server = Proxy(url, runs(before), None if after == "pass" else runs(after))
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
