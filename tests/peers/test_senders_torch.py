#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Several senders of one group into a real torch, whose ranks receive by batch_isend_irecv what
they keep.

What each rank must hold is cut here, row by row and column by column, out of the file of the whole
model.
"""
import hashlib
import json
import os
import subprocess
import sys

import lib
import mkst

CLI = os.path.join(lib.TREE, "tests", "cli")
sys.path.insert(0, CLI)
from split_model import read  # noqa: E402

suite = lib.Suite()
VERSIONS = ("1.13", "2.6", "2.14")
H, I, MOE, HEADS, KV, HEAD, VOCAB, EXPERTS, LAYERS = 64, 128, 48, 8, 4, 8, 256, 8, 3
CONFIG = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe",
          "torch_dtype": "bfloat16",
          "hidden_size": H, "intermediate_size": I, "num_hidden_layers": LAYERS,
          "num_attention_heads": HEADS, "num_key_value_heads": KV, "head_dim": HEAD,
          "vocab_size": VOCAB,
          "num_experts": EXPERTS, "num_experts_per_tok": 2, "moe_intermediate_size": MOE,
          "mlp_only_layers": [0], "decoder_sparse_step": 1, "tie_word_embeddings": False}


def model():
    """name -> shape, as a checkpoint has them."""
    out = {"model.embed_tokens.weight": (VOCAB, H), "lm_head.weight": (VOCAB, H),
           "model.norm.weight": (H,)}
    for i in range(LAYERS):
        at = "model.layers.%d." % i
        for n in ("input_layernorm", "post_attention_layernorm"):
            out[at + n + ".weight"] = (H,)
        for n, rows in (("q", HEADS * HEAD), ("k", KV * HEAD), ("v", KV * HEAD)):
            out[at + "self_attn.%s_proj.weight" % n] = (rows, H)
        out[at + "self_attn.o_proj.weight"] = (H, HEADS * HEAD)
        for n in "qk":
            out[at + "self_attn.%s_norm.weight" % n] = (HEAD,)
        modules = [(at + "mlp.", I)] if i == 0 else [(at + "mlp.experts.%d." % e, MOE)
                                                     for e in range(EXPERTS)]
        for where, inner in modules:
            out[where + "gate_proj.weight"] = out[where + "up_proj.weight"] = (inner, H)
            out[where + "down_proj.weight"] = (H, inner)
        if i:
            out[at + "mlp.gate.weight"] = (EXPERTS, H)
    return out


def rows(t, r, n):
    shape, data = t
    share = len(data) // n
    return [shape[0] // n] + shape[1:], data[r * share:(r + 1) * share]


def columns(t, r, n):
    shape, data = t
    width, share = shape[1] * 2, shape[1] * 2 // n
    return [shape[0], shape[1] // n], b"".join(
        data[at + r * share:at + (r + 1) * share] for at in range(0, len(data), width))


def join(parts):
    return [sum(p[0][0] for p in parts)] + parts[0][0][1:], b"".join(p[1] for p in parts)


def stack(parts):
    return [len(parts)] + parts[0][0], b"".join(p[1] for p in parts)


def keeps(tensors, r, tp):
    """name -> (shape, bytes) of the parameters that rank r of a server has."""
    def get(name):
        return tensors[name + ".weight"]

    out = {n: rows(get(n), r, tp) for n in ("model.embed_tokens", "lm_head")}
    out["model.norm"] = get("model.norm")
    for i in range(LAYERS):
        at = "model.layers.%d." % i
        for n in ("input_layernorm", "post_attention_layernorm", "self_attn.q_norm",
                  "self_attn.k_norm"):
            out[at + n] = get(at + n)
        out[at + "self_attn.qkv_proj"] = join([rows(get(at + "self_attn.%s_proj" % n), r, tp)
                                               for n in "qkv"])
        out[at + "self_attn.o_proj"] = columns(get(at + "self_attn.o_proj"), r, tp)
        if i == 0:
            out[at + "mlp.gate_up_proj"] = join([rows(get(at + "mlp.%s_proj" % n), r, tp)
                                                 for n in ("gate", "up")])
            out[at + "mlp.down_proj"] = columns(get(at + "mlp.down_proj"), r, tp)
            continue
        out[at + "mlp.gate"] = get(at + "mlp.gate")
        expert = at + "mlp.experts.%d.%s_proj"
        out[at + "mlp.experts.w13"] = stack(
            [join([rows(get(expert % (e, n)), r, tp) for n in ("gate", "up")])
                                             for e in range(EXPERTS)])
        out[at + "mlp.experts.w2"] = stack([columns(get(expert % (e, "down")), r, tp)
                                            for e in range(EXPERTS)])
    return {n + ("_weight" if ".experts." in n else ".weight"): t for n, t in out.items()}


def described(params):
    return {n: {"dtype": "bfloat16", "shape": shape, "sha256": hashlib.sha256(data).hexdigest()}
            for n, (shape, data) in params.items()}


def send(endpoints, sources, port):
    """What each of the senders said."""
    n, running = len(sources), []
    for i in reversed(range(n)):
        argv = [os.path.join(lib.BUILD, "bin", "wsync-push"), sources[i], "--json", "--protocol",
                "ep-scatter", "--init-timeout", "10m", "--master-address", "127.0.0.1",
                "--master-port", str(port)]
        argv += ["--sender", "%d/%d" % (i + 1, n)] if n > 1 else []
        for e in endpoints if i == 0 else []:
            argv += ["--endpoint", e.url]
        running.append(lib.Running([], [], argv=argv))
    return [r.wait() for r in running]


def check(fix, version):
    tensors = {name: (shape, data) for name, _, shape,
               data in read(fix["whole"] + "/model.safetensors")}
    wanted = {tp: [keeps(tensors, r, tp) for r in range(tp)] for tp in (1, 2, 4)}
    lists = json.dumps({tp: {n: shape for n, (shape, _) in w[0].items()} for tp,
                        w in wanted.items()})
    receivers = lib.Receivers(version, sorted(wanted),
                              options=["--lineage", "xorl-legacy", "--lists", lists])
    for endpoint in receivers.endpoints:
        tp = endpoint.tp
        for senders in (1, 2, 4):
            for sources in ([fix["whole"]] * senders, fix["parts"][senders]):
                for said in send([endpoint], sources, lib.free_port()):
                    assert said.rc == 0, "torch %s, tp %d, %d senders: %s" % (version, tp, senders,
                        said)
                assert endpoint.get("/received") == [described(w) for w in wanted[tp]], \
                    "torch %s, tp %d, %d senders: other bytes" % (version, tp, senders)
    for said in send(receivers.endpoints, fix["parts"][4], lib.free_port()):
        assert said.rc == 0, "torch %s, three servers at once: %s" % (version, said)
    for e in receivers.endpoints:
        assert e.get("/received") == [described(w)
                                      for w in wanted[e.tp]], "torch %s, tp %d" % (version, e.tp)
    receivers.stop()


for VERSION in VERSIONS:
    @suite.case("1, 2 and 4 senders into torch %s at tp 1, 2 and 4" % VERSION)
    def of(fix, v=VERSION):
        if v != "1.13" and not os.path.isdir(lib.torch_root(v)):
            raise lib.Skip("torch %s is not there" % v)
        check(fix, v)


def set_up():
    whole = lib.scratch("whole")
    os.makedirs(whole)
    with open(whole + "/config.json", "w", encoding="utf-8") as f:
        json.dump(CONFIG, f)
    mkst.write(whole + "/model.safetensors", [(n, "BF16", shape) for n, shape in model().items()],
               3)
    parts = {}
    for n in (1, 2, 4):
        base = lib.scratch("part-%d-" % n)
        subprocess.run([sys.executable, os.path.join(CLI, "split_model.py"), whole, str(n), base],
                       check=True, timeout=lib.PATIENCE)
        parts[n] = [base + str(i + 1) for i in range(n)]
    return {"whole": whole, "parts": parts}


if __name__ == "__main__":
    sys.exit(suite.main(set_up))
