# SPDX-License-Identifier: Apache-2.0
"""A trainer built on torch pushes into wsync-endpoint, which must hold the very bytes."""
import json
import os
import subprocess
import sys

from lib import BUILD, HERE, PATIENCE, Embedded, Skip, Suite, free_port, scratch, torch_root

SENDER = os.path.join(os.path.dirname(HERE), "bench", "torch_sender.py")
# What every torch's gloo takes tensor by tensor, one tensor above a bucket. Odd sizes come last:
# torch makes no view of what lies askew in the file.
TENSORS = ["a.long:I64:77", "b.weight:F32:700,100", "c.scale:F32:1", "d.weight:F16:33,5",
           "e.big:I8:3000000", "f.odd:U8:12345"]


def expected_hashes(path):
    out = subprocess.run([os.path.join(BUILD, "bin", "wsync-list-weights"), "--hash", "--json",
                          path],
                         check=True, timeout=PATIENCE, stdout=subprocess.PIPE).stdout
    lines = [json.loads(line) for line in out.splitlines()]
    return {t["name"]: t["hash"] for t in lines if t["type"] == "tensor"}


def send(version, path, urls, load_format):
    if version != "1.13" and not os.path.isdir(torch_root(version)):
        raise Skip("torch %s is not there" % version)  # the push suites make it
    argv = [os.path.join(HERE, "python.sh"), version, SENDER, "--load-format", load_format,
            "--bucket-size", str(1 << 20), path]
    for url in urls:
        argv += ["--endpoint", url]
    sent = subprocess.run(argv, timeout=PATIENCE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True,
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


MOE = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe",
       "torch_dtype": "bfloat16",
       "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3,
       "num_attention_heads": 8,
       "num_key_value_heads": 4, "head_dim": 8, "vocab_size": 64, "num_experts": 8,
       "num_experts_per_tok": 2, "moe_intermediate_size": 48, "mlp_only_layers": [0],
       "decoder_sparse_step": 1, "tie_word_embeddings": False}


def scatter_files():
    """A model's config.json, and its experts with a norm behind them."""
    where = scratch("moe")
    os.makedirs(where, exist_ok=True)
    with open(os.path.join(where, "config.json"), "w", encoding="utf-8") as f:
        json.dump(MOE, f)
    names = ["model.layers.%d.mlp.experts.%d.%s_proj.weight:BF16:%s" % (layer, e, p, shape)
             for layer in (1, 2) for e in range(MOE["num_experts"])
             for p, shape in (("gate", "48,64"), ("up", "48,64"), ("down", "64,48"))]
    path = os.path.join(where, "experts.safetensors")
    subprocess.run([sys.executable, os.path.join(HERE, "mkst.py"), path, *names,
                    "model.norm.weight:BF16:64"],
                   check=True, timeout=PATIENCE)
    return where, path


def check_scatter(version):
    if version != "1.13" and not os.path.isdir(torch_root(version)):
        raise Skip("torch %s is not there" % version)
    where, path = scatter_files()
    port = free_port()
    options = ["--torch", "1.13"] if version == "1.13" else []
    with Embedded("--tp", "2", "--lineage", "xorl-legacy", "--model", where, *options) as e:
        argv = [os.path.join(HERE, "python.sh"), version, os.path.join(HERE, "scatter_trainer.py"),
                "2", str(port), e.url, path]
        done = subprocess.run(argv, timeout=PATIENCE, capture_output=True, text=True, check=False)
        if done.returncode == 77:
            raise Skip(done.stderr.strip().split("\n")[-1])
        assert done.returncode == 0, done
        assert done.stdout.startswith("Updated 5 params in-place from 2 EP ranks"), done
        assert [r["checksums"]
                for r in e.get("/wsync/checksums")["ranks"]] == [expected_hashes(path)] * 2


suite = Suite()
for VERSION in ("1.13", "2.6", "2.14"):
    for FORMAT in ("none", "flattened_bucket"):
        if (VERSION, FORMAT) == ("2.14", "none"):
            continue  # Debian's gloo of that release knows no half precision
        suite.case("torch %s into two endpoints, load format %s" % (VERSION, FORMAT))(
            lambda path, v=VERSION, f=FORMAT: check_pair(v, f, path))

for VERSION in ("1.13", "2.6", "2.14"):
    suite.case("experts of two trainers with torch %s, point to point" % VERSION)(
        lambda path, v=VERSION: check_scatter(v))


def set_up():
    path = scratch("pushed.safetensors")
    subprocess.run([sys.executable, os.path.join(HERE, "mkst.py"), path, *TENSORS], check=True,
                   timeout=PATIENCE)
    return path


sys.exit(suite.main(set_up))
