#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""screen.py - what a terminal shows in the end of the bytes on stdin: carriage returns and erased
lines.

Knows no more than the progress line needs. Colours are left out, other control characters become ^.
"""
import re
import sys

lines, column = [""], 0
for part in re.findall("\r|\n|\033\\[K|[^\r\n\033]+|\033",
                       re.sub("\033\\[[0-9;]*m", "", sys.stdin.read())):
    if part == "\r":
        column = 0
    elif part == "\n":
        lines, column = lines + [""], 0
    elif part == "\033[K":
        lines[-1] = lines[-1][:column]
    else:
        part = re.sub("[\0-\037]", "^", part)
        lines[-1] = lines[-1][:column] + part + lines[-1][column + len(part):]
        column += len(part)
print("\n".join(lines), end="")
