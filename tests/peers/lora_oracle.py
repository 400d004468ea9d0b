# SPDX-License-Identifier: Apache-2.0
"""lora_oracle.py - what torch makes of an adapter and its base, held against a merged file.

    lora_oracle.py make DIR          a base and an adapter of several ranks and odd sizes
    lora_oracle.py check             reads lines of JSON {"variant", "base", "adapter", "merged",
                                     "two_step"}, answers each with {"tensors", "elements", "off"}
                                     or {"wrong": why}; off: elements that are one ulp away

What a key of the adapter means is written down here once more, from PEFT's sources: it shares no code
with the tree.
"""
import json
import math
import os
import re
import struct
import sys

import torch

DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
NAMES = {v: k for k, v in DTYPES.items()}
P = "base_model.model."


def load(path):
    with open(path, "rb") as f:
        data = bytearray(f.read())
    size, = struct.unpack_from("<Q", data)
    held = {}
    for name, t in json.loads(data[8:8 + size]).items():
        begin, end = (8 + size + x for x in t["data_offsets"])
        held[name] = torch.frombuffer(data[begin:end], dtype=DTYPES[t["dtype"]]).reshape(t["shape"])
    return held


def save(path, tensors):
    header, at = {}, 0
    for name, t in tensors.items():
        n = t.numel() * t.element_size()
        header[name] = {"dtype": NAMES[t.dtype], "shape": list(t.shape), "data_offsets": [at, at + n]}
        at += n
    text = json.dumps(header).encode()
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for t in tensors.values():
            f.write(t.contiguous().view(torch.uint8).numpy().tobytes())


# ---- what a variant means: yields (target, change or None, replacement or None) ----

class Adapter:
    def __init__(self, path):
        self.t = load(os.path.join(path, "adapter_model.safetensors"))
        with open(os.path.join(path, "adapter_config.json")) as f:
            self.config = json.load(f)

    def scale(self, module):
        def pick(patterns, otherwise):
            for key, value in (patterns or {}).items():
                if re.match(r"(.*\.)?(%s)$" % key, module):
                    return value
            return otherwise
        r = pick(self.config["rank_pattern"], self.config["r"])
        alpha = pick(self.config["alpha_pattern"], self.config["lora_alpha"])
        return alpha / (math.sqrt(r) if self.config["use_rslora"] else r)

    def change(self, a, b, module):
        return self.scale(module) * (self.t[b].float() @ self.t[a].float())

    def linear(self, prefix=P, infix="", strip=""):
        """Every linear module: (its name, its change)."""
        for key in self.t:
            end = ".lora_A%s.weight" % infix
            if key.startswith(prefix) and key.endswith(end) and self.t[key].dim() == 2:
                module = key[len(prefix):-len(end)]
                yield (strip + module.replace("_orig_mod.", ""),
                       self.change(key, key.replace(".lora_A", ".lora_B"), module))


def plain(a, _base, **how):
    for module, change in a.linear(**how):
        yield module + ".weight", change, None


def embedding(a, _base):
    e, h = P + "model.embed_tokens.", P + "lm_head."
    change = a.change(e + "lora_embedding_A", e + "lora_embedding_B", "model.embed_tokens")
    yield "model.embed_tokens.weight", change.t(), a.t[e + "base_layer.weight"]
    yield ("lm_head.weight", a.change(h + "lora_embedding_A", h + "lora_embedding_B", "lm_head"), None)


def saved(a, base):
    yield from plain(a, base)
    yield "lm_head.weight", None, a.t[P + "lm_head.weight"]
    yield "model.norm.weight", None, a.t[P + "model.norm.modules_to_save.default.weight"]
    yield "model.embed_tokens.weight", None, a.t[P + "model.embed_tokens.modules_to_save.weight"]


def bias(a, base):
    yield from plain(a, base)
    for layer in range(2):
        p = "model.layers.%d.self_attn." % layer
        yield p + "q_proj.bias", None, a.t[P + p + "q_proj.base_layer.bias"]
        yield p + "v_proj.bias", None, a.t[P + p + "v_proj.bias"]


def fan_in_fan_out(a, base):
    for module, change in a.linear():
        weight = base[module + ".weight"]
        turned = module != "h.0.head"  # an nn.Linear among Conv1Ds
        assert weight.shape == (change.t() if turned else change).shape
        yield module + ".weight", change.t() if turned else change, None


def over_parts(a, base):
    for module, change in a.linear():
        parts = ("q_proj", "k_proj", "v_proj") if "qkv" in module else ("gate_proj", "up_proj")
        for part in parts:
            name = "%s.%s.weight" % (module.rpartition(".")[0], part)
            rows = base[name].shape[0]
            yield name, change[:rows], None
            change = change[rows:]
        assert not len(change)


def over_groups(a, base):
    for module, change in a.linear():
        names = ["%s.%s.weight" % (module.rpartition(".")[0], p) for p in ("q_proj", "k_proj", "v_proj")]
        rows = [base[n].shape[0] // 2 for n in names]  # 2 query groups
        groups = [c.split(rows) for c in change.chunk(2)]
        for i, name in enumerate(names):
            yield name, torch.cat([g[i] for g in groups]), None


def over_fused(a, base):
    linear = dict(a.linear())
    for layer in range(2):
        p = "model.layers.%d." % layer
        parts = [linear.pop(p + "self_attn.%s_proj" % x) for x in "qkv"]
        yield p + "self_attn.qkv_proj.weight", torch.cat(parts), None
        parts = [linear.pop(p + "mlp.%s_proj" % x) for x in ("gate", "up")]
        yield p + "mlp.gate_up_proj.weight", torch.cat(parts), None
    for module, change in linear.items():
        yield module + ".weight", change, None


def shared(a, _base):
    for layer in range(2):
        for e in range(4):
            p = "model.layers.%d.mlp.experts." % layer
            for proj in ("gate", "up", "down"):
                name = "%s_proj.lora_%s.weight"
                keys = []
                for half in "AB":
                    own = P + p + "%d." % e + name % (proj, half)
                    keys.append(own if own in a.t else P + p + "shared." + name % (proj, half))
                module = p + "%d.%s_proj" % (e, proj)
                yield module + ".weight", a.change(*keys, module), None


def stacked(a, _base):
    for layer in range(2):
        p = "model.layers.%d.mlp.experts." % layer
        for w, proj in (("w1", "gate"), ("w2", "down"), ("w3", "up")):
            A, B = (a.t["%s%s%s.lora_%s.weight" % (P, p, w, half)].float() for half in "AB")
            for e in range(4):
                change = a.scale(p + w) * (B[min(e, len(B) - 1)] @ A[min(e, len(A) - 1)])
                yield p + "%d.%s_proj.weight" % (e, proj), change, None


def delta_of_parameter(a, prefix, module, swapped):
    """ParamWrapper.get_delta_weight for four experts."""
    A, B = a.t[prefix + "lora_A.weight"].float(), a.t[prefix + "lora_B.weight"].float()
    A, B = A.reshape(4, -1, A.shape[-1]), B.reshape(B.shape[0], -1, 4)
    return torch.einsum("o r e, e r i -> e o i" if swapped else "o r e, e r i -> e i o", B, A) * \
        a.scale(module)


def parameters(a, _base, swapped=True):
    for layer in range(2):
        p = "model.layers.%d.mlp.experts." % layer
        down = delta_of_parameter(a, P + p, p + "down_proj", swapped)
        both = delta_of_parameter(a, P + p + "base_layer.", p + "gate_up_proj", swapped)
        for e in range(4):
            gate, up = both[e].chunk(2)  # [E, 2I, H], as transformers 5 keeps it
            yield p + "%d.gate_proj.weight" % e, gate, None
            yield p + "%d.up_proj.weight" % e, up, None
            yield p + "%d.down_proj.weight" % e, down[e], None


def parameters_old(a, base):
    return parameters(a, base, swapped=False)


def parameters_gpt_oss(a, _base):
    for layer in range(2):
        p = "model.layers.%d.mlp.experts." % layer
        yield p + "down_proj", delta_of_parameter(a, P + p, p + "down_proj", False), None
        yield p + "gate_up_proj", delta_of_parameter(a, P + p + "base_layer.", p + "gate_up_proj",
                                                     False), None


HOW = {"no_prefix": {"prefix": ""}, "infix": {"infix": ".default"}, "headless": {"strip": "model."}}


def changes(variant, a, base):
    if variant in globals():
        return globals()[variant](a, base)
    return plain(a, base, **HOW.get(variant, {}))


# ---- checks ----

def places(t):
    """bf16 as integers in the order of their values."""
    x = t.view(torch.int16).to(torch.int32)
    return torch.where(x < 0, -(x & 0x7fff), x)


def check(job):
    merged = load(job["merged"])
    base = load(os.path.join(job["base"], "model.safetensors"))
    elements = off = tensors = 0
    for name, change, replacement in changes(job["variant"], Adapter(job["adapter"]), base):
        w = base[name] if replacement is None else replacement
        if change is None:
            change = torch.zeros(w.shape)
        if job["two_step"]:
            change = change.to(torch.bfloat16).float()
        expected = (w.float() + change).to(torch.bfloat16)
        got = merged.pop(name, None)
        if got is None or got.shape != expected.shape:
            return {"wrong": "%s is missing or of another shape" % name}
        away = (places(got) - places(expected)).abs()
        # Where w and its change cancel, what is left is smaller than the last places of both; and a
        # change that is rounded by itself may lie on the border.
        error = (got.float() - expected.float()).abs()
        near = error <= change.abs() * 2.0 ** (-7 if job["two_step"] else -20)
        worst = int(away.max() if job["variant"] == "exact" else (away * ~near).max())
        if worst > (0 if job["variant"] == "exact" else 1):
            return {"wrong": "%s: %d ulp away" % (name, worst)}
        tensors, elements, off = tensors + 1, elements + away.numel(), off + int(away.count_nonzero())
    return {"wrong": "nobody changes " + ", ".join(merged)} if merged else {
        "tensors": tensors, "elements": elements, "off": off}


def make(top):
    torch.manual_seed(7)
    base, adapter, ranks = {}, {}, {}
    for rank in (1, 2, 7, 16, 64, 129, 300):
        rows, cols, module = 190 + rank, 333 - rank % 50, "blocks.r%d" % rank
        ranks[module] = rank
        base[module + ".weight"] = (torch.randn(rows, cols) * 0.05).to(torch.bfloat16)
        for name, shape in (("A", (rank, cols)), ("B", (rows, rank))):
            t = torch.randn(shape) * 0.05
            adapter[P + module + ".lora_%s.weight" % name] = t if rank % 2 else t.to(torch.bfloat16)
    save(os.path.join(top, "base", "model.safetensors"), base)
    save(os.path.join(top, "adapter", "adapter_model.safetensors"), adapter)
    with open(os.path.join(top, "adapter", "adapter_config.json"), "w") as f:
        json.dump({"peft_type": "LORA", "r": 8, "lora_alpha": 16, "use_rslora": True,
                   "rank_pattern": ranks, "alpha_pattern": {}}, f)


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(sys.argv[2])
    else:
        for line in sys.stdin:
            print(json.dumps(check(json.loads(line))), flush=True)
