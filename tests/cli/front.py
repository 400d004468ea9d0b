# SPDX-License-Identifier: Apache-2.0
"""front.py URL [KEY=VALUE...]: another address of that server. Forwards what it is asked, prints its own URL, and
puts these members into /server_info."""
import http.server
import json
import sys
import urllib.error
import urllib.request

BEHIND, MEMBERS = sys.argv[1], dict(a.split("=", 1) for a in sys.argv[2:])


class Front(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def forward(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0))) or None
        request = urllib.request.Request(BEHIND + self.path, body, {"content-type": "application/json"},
                                         method=self.command)
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                status, said = reply.status, reply.read()
        except urllib.error.HTTPError as no:
            status, said = no.code, no.read()
        if self.path == "/server_info":
            said = json.dumps({**json.loads(said), **{k: json.loads(v) for k, v in MEMBERS.items()}}).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    do_GET = do_POST = do_OPTIONS = forward

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Front)
print("http://127.0.0.1:%d" % server.server_port, flush=True)
server.serve_forever()
