#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""json_keys.py PAGE PROGRAM - reads JSON lines and fails for each key that the page does not
document.

The page has a part "# LINES OF PROGRAM" for each program and one for all, in it a section "## type"
for each kind of line, and in that the keys as paragraph heads: *bytes*, or *error.code* for a key
of an object or of the objects in an array. Keys that stand in bold elsewhere in the section count
as well.
"""
import json
import re
import sys


def documented(path):
    """{(part, type): {keys}}, part being "ALL PROGRAMS", "WSYNC-PUSH", ..."""
    keys, part, kind = {}, None, None
    for line in open(path, encoding="utf-8"):
        if line.startswith("# "):
            part, kind = line[2:].strip().removeprefix("LINES OF "), None
        elif line.startswith("## "):
            kind = line[3:].strip()
        elif part and kind:
            keys.setdefault((part, kind), set()).update(re.findall(r"\*([a-z_0-9.-]+)\*", line))
    return keys


def walk(value, prefix):
    """Dotted names of the keys of an object; arrays count as what is in them."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield prefix + key
            yield from walk(inner, prefix + key + ".")
    elif isinstance(value, list):
        for inner in value:
            yield from walk(inner, prefix)


def main():
    keys = documented(sys.argv[1])
    part = sys.argv[2].upper()
    always = keys[("ALL PROGRAMS", "start")] & {"schema", "type"}
    unknown = set()
    for line in sys.stdin:
        if not line.strip():
            continue
        row = json.loads(line)
        kind = row["type"]
        known = always.union(*(keys.get((p, kind), set()) for p in ("ALL PROGRAMS", part)))
        if kind == "result":
            known |= keys[("ALL PROGRAMS", "end")] | keys[(part, "end")]
        unknown |= {f"{kind}: {key}" for key in walk(row, "") if key not in known}
    for text in sorted(unknown):
        print(f"not in wsync-json(5): {sys.argv[2]}: {text}", file=sys.stderr)
    return 1 if unknown else 0


sys.exit(main())
