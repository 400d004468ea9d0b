#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tunnel.py - a server in a network of its own, reached as somebody reaches one through ssh -L.

tunnel.py far SOCKET COMMAND... in the network that it is started in (unshare -rn): brings up
loopback, starts
                                  COMMAND there, and passes what comes through the Unix socket on to
                                  its 127.0.0.1:30000
tunnel.py near SOCKET             prints a port of 127.0.0.1 here that leads to it
"""
import fcntl
import socket
import struct
import subprocess
import sys
import threading


def pump(a, b):
    try:
        while data := a.recv(65536):
            b.sendall(data)
    except OSError:
        pass
    for s in (a, b):
        try:
            s.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


def serve(listener, connect):
    while True:
        near = listener.accept()[0]
        try:
            far = connect()
        except OSError:
            near.close()
            continue
        for pair in ((near, far), (far, near)):
            threading.Thread(target=pump, args=pair, daemon=True).start()


def connect_unix(path):
    s = socket.socket(socket.AF_UNIX)
    s.connect(path)
    return s


def raise_loopback():
    with socket.socket() as s:
        request = struct.pack("16sh14x", b"lo", 0x41)  # IFF_UP | IFF_RUNNING
        fcntl.ioctl(s, 0x8914, request)  # SIOCSIFFLAGS


def main():
    path = sys.argv[2]
    if sys.argv[1] == "far":
        raise_loopback()
        # It ends with us, who are ended by a signal.
        child = subprocess.Popen(["setpriv", "--pdeathsig", "TERM"] + sys.argv[3:])
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen()
        threading.Thread(target=serve, daemon=True, args=(
            listener, lambda: socket.create_connection(("127.0.0.1", 30000)))).start()
        sys.exit(child.wait())
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    serve(listener, lambda: connect_unix(path))


main()
