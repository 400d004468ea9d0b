#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""strangers.py PORT [N]: processes that are of no group, at the store at that port. Each sends one
request that would change something, or N of them something harmless and stay. Ends when the store
has closed the connections that did something, or stays after the N."""
import socket
import struct
import sys

PORT = int(sys.argv[1])
VALIDATE = b"\0" + struct.pack("<I", 0x3C85F7CE)


def text(s):
    return struct.pack("<Q", len(s)) + s.encode()


def dial(data):
    s = socket.create_connection(("127.0.0.1", PORT), timeout=60)
    s.sendall(data)
    return s


def ended(s):
    try:
        while s.recv(4096):
            pass
    except ConnectionError:
        pass


def act():
    one = struct.pack("<q", 1)
    many = struct.pack("<Q", 1)
    for op, fields in ((1, text("/exception_dump") + text("x")), (1, text("init/") + text("7")),
                       (1, text("/default_pg/0//cpu//0/1") + text("x")),
                       (1, text("wsync/meeting") + text("x")),
                       (2, text("/k") + text("") + text("x")),
                       (4, text("/k") + one), (8, text("init/")),
                       (9, text("/k") + text("x")), (11, many + text("/k") + text("x")),
                       (14, text("/q") + text("x")), (15, text("/q")), (17, b""),
                       (18, text("/b") + one),
                       (6, many + text("/default_pg/0//cuda//0"))):
        ended(dial(VALIDATE + bytes([op]) + fields))
    ended(dial(b"GET / HTTP/1.1\r\n\r\n"))
    for data in (b"\3" + text("init/") + one, VALIDATE + b"\4" + text("init/") + one):
        s = dial(data)
        s.recv(8)  # until the group is complete they join, then they are refused
        s.close()
    # requests that are answered, or wait
    for data in (b"\6" + many + text("pg_wrapper:x"), b"\6" + many + text("/UniqueNCCLID:0"),
                 b"\5" + many + text("/exception_dump"), b"\7", b"\1" + struct.pack("<Q", 99)):
        dial(VALIDATE + data).close()


def flood(n):
    kinds = (b"", VALIDATE, VALIDATE + b"\x0d\1\0\0\0", VALIDATE + b"\1",
             VALIDATE + b"\4" + text("init/") + struct.pack("<q", 1),
             b"\3" + text("init/") + struct.pack("<q", 1))
    crowd = []
    for i in range(n):
        try:
            crowd.append(dial(kinds[i % len(kinds)]))
        except ConnectionError:
            pass  # closed for a later one, before it sent anything
    return crowd


if len(sys.argv) > 2:
    crowd = flood(int(sys.argv[2]))
    print("here", flush=True)
    sys.stdin.read()
else:
    act()
