#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""renamed.py - an endpoint of ours that says it is somebody else's: renamed.py HOST:PORT

Everything passes; a version in an answer loses the mark of who made it. Prints its port."""
import socket
import sys
import threading


def carry(source, sink):
    try:
        while data := source.recv(65536):
            sink.sendall(data.replace(b"+wsync.", b"+other."))
    except OSError:
        pass
    for s in (source, sink):
        try:
            s.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


host, port = sys.argv[1].split(":")
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
while True:
    near = listener.accept()[0]
    far = socket.create_connection((host, int(port)))
    for pair in ((near, far), (far, near)):
        threading.Thread(target=carry, daemon=True, args=pair).start()
