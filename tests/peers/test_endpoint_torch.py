# SPDX-License-Identifier: Apache-2.0
"""A trainer built on torch pushes into wsync-endpoint, which must hold the very bytes."""
import json
import os
import subprocess
import sys

from lib import BUILD, HERE, Embedded, Skip, Suite, scratch, torch_root

SENDER = os.path.join(os.path.dirname(HERE), "bench", "torch_sender.py")
# What every torch's gloo takes tensor by tensor, one tensor above a bucket. Odd sizes come last: torch
# makes no view of what lies askew in the file.
TENSORS = ["a.long:I64:77", "b.weight:F32:700,100", "c.scale:F32:1", "d.weight:F16:33,5",
           "e.big:I8:3000000", "f.odd:U8:12345"]


def expected_hashes(path):
    out = subprocess.run([os.path.join(BUILD, "bin", "wsync-list-weights"), "--hash", "--json", path],
                         check=True, timeout=20, stdout=subprocess.PIPE).stdout
    lines = [json.loads(line) for line in out.splitlines()]
    return {t["name"]: t["hash"] for t in lines if t["type"] == "tensor"}


def send(version, path, urls, load_format):
    if version != "1.13" and not os.path.isdir(torch_root(version)):
        raise Skip("torch %s is not there" % version)  # the push suites make it
    argv = [os.path.join(HERE, "python.sh"), version, SENDER, "--load-format", load_format,
            "--bucket-size", str(1 << 20), path]
    for url in urls:
        argv += ["--endpoint", url]
    sent = subprocess.run(argv, timeout=60, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          check=False)
    if sent.returncode == 77:
        raise Skip(sent.stderr.strip().split("\n")[-1])
    assert sent.returncode == 0, sent.stderr


def check_pair(version, load_format, path):
    options = ["--torch", "1.13"] if version == "1.13" else []
    with Embedded("--tp", "2", *options) as memory, Embedded("--keep", "hash", *options) as hashes:
        send(version, path, [memory.url, hashes.url], load_format)
        for e, ranks in ((memory, 2), (hashes, 1)):
            checked = e.get("/weights_checker")["ranks"]
            assert [r["checksums"] for r in checked] == [expected_hashes(path)] * ranks, e.url
            journal = e.get("/wsync/journal")
            assert journal["totals"]["bytes"] == sum(
                u["bytes"] for u in journal["requests"] if u["path"].startswith("/update_weights"))
            assert journal["totals"]["duplicates"] == 0
            assert not journal["state"]["groups"] and not journal["state"]["paused"]


suite = Suite(150)
for VERSION in ("1.13", "2.6", "2.14"):
    for FORMAT in ("none", "flattened_bucket"):
        if (VERSION, FORMAT) == ("2.14", "none"):
            continue  # Debian's gloo of that release knows no half precision
        suite.case("torch %s into two endpoints, load format %s" % (VERSION, FORMAT))(
            lambda path, v=VERSION, f=FORMAT: check_pair(v, f, path))


def set_up():
    path = scratch("pushed.safetensors")
    subprocess.run([sys.executable, os.path.join(HERE, "mkst.py"), path, *TENSORS], check=True, timeout=20)
    return path


sys.exit(suite.main(set_up))
