#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""stalled.py - a program whose reader has stopped: stalled.py [OPTION]... PROGRAM [ARGUMENT]...

  --tty         stdout and stderr are a terminal on which somebody pressed Ctrl-S
  --stdout      stdout is a full pipe, stderr the file err
  --stderr      stderr is a full pipe, stdout the file out
  --both        stdout and stderr are one full pipe (2>&1)
  --at URL STEP wait until this endpoint was asked for STEP, and then
  --signal NAME send this signal; repeatable: a second one follows after half a second
  --seconds N   the program must end within N seconds (20); it is killed otherwise
  --endpoint U  print whether this endpoint is paused, and its groups

Prints how the program ended: its exit status, or minus its signal; "stuck" where it had to be
killed."""
import argparse
import fcntl
import json
import os
import pty
import signal
import subprocess
import sys
import termios
import time
import urllib.request

F_SETPIPE_SZ = 1031


def full_pipe():
    end, start = os.pipe()
    fcntl.fcntl(start, F_SETPIPE_SZ, 4096)
    os.write(start, b"x" * fcntl.fcntl(start, 1032))
    return end, start


def stopped_terminal():
    master, slave = pty.openpty()
    termios.tcflow(slave, termios.TCOOFF)
    return master, slave


def journal(url):
    with urllib.request.urlopen(url + "/wsync/journal", timeout=180) as reply:
        return json.load(reply)


def await_step(url, step, process):
    end = time.monotonic() + 180
    while step not in [r["path"].lstrip("/") for r in journal(url)["requests"]]:
        assert time.monotonic() < end and process.poll() is None, "it never came to " + step
        time.sleep(0.02)


def main():
    parser = argparse.ArgumentParser()
    how = parser.add_mutually_exclusive_group(required=True)
    for name in ("tty", "stdout", "stderr", "both"):
        how.add_argument("--" + name, dest="how", action="store_const", const=name)
    parser.add_argument("--at", nargs=2)
    parser.add_argument("--signal", action="append", default=[])
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--endpoint")
    parser.add_argument("argv", nargs=argparse.REMAINDER)
    o = parser.parse_args()
    keep, stuck = stopped_terminal() if o.how == "tty" else full_pipe()
    out = open("out", "wb") if o.how == "stderr" else stuck
    err = open("err", "wb") if o.how == "stdout" else stuck
    process = subprocess.Popen(o.argv, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
    try:
        if o.at:
            await_step(*o.at, process)
        for i, name in enumerate(o.signal):
            time.sleep(0.5 if i else 0)
            process.send_signal(getattr(signal, "SIG" + name))
        process.wait(o.seconds)
        print(process.returncode)
    except subprocess.TimeoutExpired:
        print("stuck")
    finally:
        process.kill()
        process.wait()
        os.close(keep)
    if o.endpoint:
        state = journal(o.endpoint)["state"]
        print("paused" if state["paused"] else "resumed", state["groups"])


sys.exit(main())
