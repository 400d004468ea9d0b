#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tls.py - https before a server that has none, as a proxy would be: tls.py URL CERTIFICATE KEY

Prints the port of 127.0.0.1 that leads to it."""
import socket
import ssl
import sys
import threading


def carry(near, far):
    """One thread for both ways at a time: an SSL socket is not for two."""
    near.settimeout(0.02)
    far.settimeout(0.02)
    try:
        while True:
            for source, sink in ((near, far), (far, near)):
                try:
                    data = source.recv(65536)
                except TimeoutError:
                    continue
                if not data:
                    return
                sink.settimeout(20)
                sink.sendall(data)
                sink.settimeout(0.02)
    except OSError:
        pass
    finally:
        near.close()
        far.close()


def serve(near, context, where):
    try:
        near = context.wrap_socket(near, server_side=True)
        far = socket.create_connection(where)
    except OSError:
        near.close()
        return
    carry(near, far)


host, port = sys.argv[1].removeprefix("http://").split(":")
tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
tls.load_cert_chain(sys.argv[2], sys.argv[3])
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
while True:
    threading.Thread(target=serve, daemon=True,
                     args=(listener.accept()[0], tls, (host, int(port)))).start()
