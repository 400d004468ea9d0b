#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""stray.py PORT KEY - a process of another group: joins the store at that port as a torch of today
does, and waits for a key that nobody here sets. Ends when the store closes the connection."""
import socket
import struct
import sys


def text(s):
    return struct.pack("<Q", len(s)) + s.encode()


s = socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=30)
s.sendall(b"\0" + struct.pack("<I", 0x3C85F7CE))
s.sendall(b"\4" + text("init/") + struct.pack("<q", 1))
assert len(s.recv(8)) == 8
s.sendall(b"\6" + struct.pack("<Q", 1) + text(sys.argv[2]))
print("waits", flush=True)
s.recv(1)
