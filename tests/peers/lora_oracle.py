# SPDX-License-Identifier: Apache-2.0
"""lora_oracle.py - what torch makes of an adapter and its base, compared with a merged file.

    lora_oracle.py make DIR bases and adapters with all of HARD: DIR/bf16/base, DIR/bf16/adapter,
                                     and DIR/f32, whose factors are fp32 and whose scale is alpha /
                                     sqrt(r)
    lora_oracle.py check             reads lines of JSON {"variant", "base", "adapter", "merged",
                                     "two_step", "slip"}, answers each with its counts or with
                                     {"wrong": why}

What a key of the adapter means is written down here once more, from PEFT's sources: it shares no
code with the tree.

An element W + s * sum(B * A) is one of four kinds, by what its sum can be in fp32, whatever the
order of its additions, with or without fused ones:

    exact every order gives the same sum: there is one answer, torch's decided orders differ by less
    than what bf16 sees: there is one answer, torch's near two neighbours in bf16 are possible, and
    ours is one of them: at most one ulp from torch cancelled W and the change cancel, or a change
    that is rounded by itself lies between two: what
               remains has ulps smaller than what the orders of additions differ by. Ours is within
               the bound of what any order can give, of the sum in fp64; torch's is as far or
               further away

The bound: a sum of r products of fp32 is off by at most gamma(r + 1) times the sum of their
magnitudes, gamma(n) = n u / (1 - n u), u = 2^-24; the scale is rounded once, and so is the product
with it. What follows is two roundings that keep order, so the ends of the bound, rounded, are the
ends of what can be.
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
        if name == "__metadata__":
            continue
        begin, end = (8 + size + x for x in t["data_offsets"])
        held[name] = torch.frombuffer(data[begin:end], dtype=DTYPES[t["dtype"]]).reshape(t["shape"])
    return held


def save(path, tensors):
    header, at = {}, 0
    for name, t in tensors.items():
        n = t.numel() * t.element_size()
        header[name] = {"dtype": NAMES[t.dtype], "shape": list(t.shape),
                        "data_offsets": [at, at + n]}
        at += n
    text = json.dumps(header).encode()
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for t in tensors.values():
            f.write(t.contiguous().view(torch.uint8).numpy().tobytes())


# ---- a change, by torch in fp32 and as it is ----

U, TINY = 2.0 ** -24, 2.0 ** -149


class Change:
    """f32: torch's; f64: the true one, but for 2^-50 or so; bound: how far fp32 may be from it;
    exact: where every order of additions is the same. Turned and cut as one."""

    def __init__(self, *parts):
        self.parts = self.f32, self.f64, self.bound, self.exact = parts

    def each(self, fn):
        return Change(*map(fn, self.parts))

    def __getitem__(self, i):
        return self.each(lambda x: x[i])

    def __len__(self):
        return len(self.f32)

    def t(self):
        return self.each(torch.t)

    def split(self, sizes):
        return [Change(*parts) for parts in zip(*(x.split(sizes) for x in self.parts))]

    def chunk(self, n):
        return [Change(*parts) for parts in zip(*(x.chunk(n) for x in self.parts))]


def cat(changes):
    return Change(*(torch.cat(parts) for parts in zip(*(c.parts for c in changes))))


def unit(x):
    """The largest power of two of which all of x are multiples."""
    m, e = torch.frexp(x.double()[x != 0])
    m = torch.ldexp(m, torch.tensor(53)).to(torch.int64)
    return torch.ldexp((m & -m).double(), e - 53).min().item() if len(m) else 1.0


def product(fn, B, A, s, rank=None):
    """s * fn(B, A), where fn is a product of matrices, of so many ranks."""
    rank = rank or A.shape[-2]
    s32 = torch.tensor(s, dtype=torch.float32).item()
    f32 = s32 * fn(B.float(), A.float())
    size = fn(B.double().abs(), A.double().abs())
    n = rank + 3
    bound = n * U / (1 - n * U) * abs(s) * size + (rank + 1) * TINY * max(1, abs(s))
    unit_of = unit(B) * unit(A)
    exact = (size <= 2.0 ** 24 * unit_of) & (unit_of >= TINY) if rank > 1 else torch.full(f32.shape,
        True)
    return Change(f32, s * fn(B.double(), A.double()), bound, exact)


# ---- what a variant means: yields (target, change or None, replacement or None) ----

class Adapter:
    """slip: a mistake to be made on purpose, which a comparison must find."""

    def __init__(self, path, slip=None):
        self.slip = slip
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
        s = alpha / (math.sqrt(r) if bool(self.config["use_rslora"]) != (self.slip == "rslora")
                     else r)
        return s * (1 + U * 2) if self.slip == "scale" else s

    def change(self, a, b, module):
        A, B = self.t[a], self.t[b]
        if self.slip == "rows":
            A = A.flip(0)
        return product(torch.matmul, B, A, self.scale(module))

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
    yield ("lm_head.weight", a.change(h + "lora_embedding_A", h + "lora_embedding_B", "lm_head"),
           None)


def saved(a, base):
    yield from plain(a, base)
    yield "lm_head.weight", None, a.t[P + "lm_head.weight"]
    yield "model.norm.weight", None, a.t[P + "model.norm.modules_to_save.default.weight"]
    yield "model.embed_tokens.weight", None, a.t[P + "model.embed_tokens.modules_to_save.weight"]


def embedding_infix(a, base):
    e = P + "model.embed_tokens.lora_embedding_%s.default"
    yield "model.embed_tokens.weight", a.change(e % "A", e % "B", "model.embed_tokens").t(), None
    yield from plain(a, base, infix=".default")


def bias_lora_only(a, base):
    yield from plain(a, base)
    for key, t in a.t.items():
        if key.endswith(".base_layer.bias"):
            yield key[len(P):].replace(".base_layer", ""), None, t


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
        change = change.t() if turned else change
        assert weight.shape == change.f32.shape
        yield module + ".weight", change, None


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
        names = ["%s.%s.weight" % (module.rpartition(".")[0], p)
                 for p in ("q_proj", "k_proj", "v_proj")]
        rows = [base[n].shape[0] // 2 for n in names]  # 2 query groups
        groups = [c.split(rows) for c in change.chunk(2)]
        for i, name in enumerate(names):
            yield name, cat([g[i] for g in groups]), None


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
                change = product(torch.matmul, B[min(e, len(B) - 1)], A[min(e, len(A) - 1)],
                                 a.scale(p + w))
                yield p + "%d.%s_proj.weight" % (e, proj), change, None


def delta_of_parameter(a, prefix, module, swapped):
    """ParamWrapper.get_delta_weight for four experts."""
    A, B = a.t[prefix + "lora_A.weight"].float(), a.t[prefix + "lora_B.weight"].float()
    A, B = A.reshape(4, -1, A.shape[-1]), B.reshape(B.shape[0], -1, 4)
    form = "o r e, e r i -> e o i" if swapped else "o r e, e r i -> e i o"
    return product(lambda b, a: torch.einsum(form, b, a), B, A, a.scale(module), A.shape[1])


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


def stacked_names(a, _base):
    for layer in range(2):
        p = "model.layers.%d.mlp.experts." % layer
        for proj in ("gate_proj", "up_proj", "down_proj"):
            A, B = (a.t["%s%s%s.lora_%s.weight" % (P, p, proj, half)] for half in "AB")
            for e in range(4):
                i = 0 if proj == "down_proj" else e
                yield p + "%d.%s.weight" % (e, proj), product(torch.matmul, B[i], A[i],
                    a.scale(p + proj)), None


def parameters_old(a, base):
    return parameters(a, base, swapped=False)


def parameters_gpt_oss(a, _base):
    for layer in range(2):
        p = "model.layers.%d.mlp.experts." % layer
        yield p + "down_proj", delta_of_parameter(a, P + p, p + "down_proj", False), None
        yield p + "gate_up_proj", delta_of_parameter(a, P + p + "base_layer.", p + "gate_up_proj",
                                                     False), None


HOW = {"no_prefix": {"prefix": ""}, "infix": {"infix": ".default"}, "headless": {"strip": "model."}}


def separate(base):
    """Parts and experts that are kept in one tensor, each by itself."""
    held = {}
    for name, t in base.items():
        module, _, leaf = name.rpartition(".")
        if name.endswith(("qkv_proj.weight", "gate_up_proj.weight")):
            module, _, leaf = module.rpartition(".")
            rows = len(t) // 4
            parts = (zip(("q_proj", "k_proj", "v_proj"), t.split([2 * rows, rows, rows]))
                     if leaf == "qkv_proj" else zip(("gate_proj", "up_proj"), t.chunk(2)))
            held.update(("%s.%s.weight" % (module, part), x) for part, x in parts)
            continue
        if leaf not in ("gate_up_proj", "down_proj") or t.dim() != 3:
            held[name] = t
            continue
        for e, one in enumerate(t):
            parts = zip(("gate_proj", "up_proj"),
                        one.chunk(2)) if leaf == "gate_up_proj" else [(leaf, one)]
            for part, x in parts:
                held["%s.%d.%s.weight" % (module, e, part)] = x
    return held


def changes(variant, a, base):
    if variant.endswith("_over_stacks"):
        variant = variant[:-len("_over_stacks")]
    if variant in globals():
        return globals()[variant](a, base)
    return plain(a, base, **HOW.get(variant, {}))


# ---- checks ----

KINDS = ("exact", "decided", "near", "cancelled")


def places(t):
    """bf16 as integers in the order of their values."""
    x = t.view(torch.int16).to(torch.int32)
    return torch.where(x < 0, -(x & 0x7fff), x)


def merge(w, change, two_step):
    """Sums in fp64, for changes that are fp64: rounded to fp32, then to bf16, as the kernels do."""
    if two_step:
        change = change.float().to(torch.bfloat16).to(change.dtype)
    return (w.to(change.dtype) + change).float().to(torch.bfloat16)


def compare(got, w, change, two_step):
    """Counts of one tensor; a string: what is wrong with it."""
    theirs = merge(w.float(), change.f32, two_step)
    true = merge(w, change.f64, two_step)
    slack = change.bound + (w.double().abs() + change.f64.abs()) * 2.0 ** -48
    low, high = (places(merge(w, change.f64 + x, two_step)) for x in (-slack, slack))
    away = (places(got) - places(theirs)).abs()
    kind = torch.where(change.exact, 0, (high - low).clamp(max=2) + 1)
    inside = (places(got) >= low) & (places(got) <= high)
    assert ((places(theirs) >= low) & (places(theirs) <= high) | change.exact).all()
    counts = {"elements": got.numel()}
    for i, name in enumerate(KINDS):
        here = kind == i
        counts[name], counts[name + "_off"] = int(here.sum()), int((here & (away > 0)).sum())
    wrong = (~inside & ~change.exact) | (away > torch.where(kind == 2, 1, 0)) & (kind < 3)
    if wrong.any():
        at = [int(x) for x in wrong.nonzero()[0]]
        i = tuple(at)
        return "%d of %d elements, the first at %s, %s: %r + %r is %r, in torch %r, within [%d, " \
               "%d] of %d" % (
            int(wrong.sum()), got.numel(), at, KINDS[int(kind[i])], w[i].item(),
            change.f64[i].item(),
            got[i].item(), theirs[i].item(), int(low[i]), int(high[i]), int(places(got)[i]))
    # Distances from the truth, by how wide the bound is there.
    here = kind == 3
    width = (high - low).double()
    for name, x in (("ours", got), ("torchs", theirs)):
        counts[name] = float(((places(x) - places(true)).abs().double() / width)[here].sum())
    counts["ulp_off"] = int((here & (away <= 1)).sum())
    return counts


def check(job):
    merged = load(job["merged"])
    base = load(os.path.join(job["base"], "model.safetensors"))
    base.update(separate(base))
    sum_of = {"tensors": 0}
    for name, change, replacement in changes(job["variant"],
                                             Adapter(job["adapter"], job.get("slip")), base):
        w = base[name] if replacement is None else replacement
        if change is None:
            change = product(torch.matmul, torch.zeros(w.numel(), 1), torch.zeros(1, 1), 1.0).each(
                lambda x: x.reshape(w.shape))
        got = merged.pop(name, None)
        if got is None or got.shape != w.shape:
            return {"wrong": "%s is missing or of another shape" % name}
        counts = compare(got, w, change, job["two_step"])
        if isinstance(counts, str):
            return {"wrong": "%s: %s" % (name, counts)}
        sum_of["tensors"] += 1
        for key, n in counts.items():
            sum_of[key] = sum_of.get(key, 0) + n
    changed = [name for name, t in merged.items() if not torch.equal(t, base[name])]
    return {"wrong": "nobody changes " + ", ".join(changed)} if changed else sum_of


# ---- sums that are hard ----

RANKS = (1, 2, 7, 16, 64, 129, 300)


def spread(shape, octaves):
    """Magnitudes from 2^-octaves to 2^octaves."""
    return torch.randn(shape) * torch.exp2((torch.rand(shape) * 2 - 1) * octaves)


def integers(shape, most):
    return torch.randint(-most, most + 1, shape).float()


def opposed(A):
    """Every second rank is almost the opposite of the one before it: sums lose what they had."""
    A[1::2] = -A[:len(A) // 2 * 2:2] * (1 + torch.randint(-1, 2, A[1::2].shape) * 2.0 ** -7)
    return A


def normal(w, a, b):
    """Normal numbers of these sizes."""
    return lambda r, m, n: (torch.randn(m, n) * w, torch.randn(r, n) * a, torch.randn(m, r) * b)


# What W, A and B are drawn from; W may be made of the change, too.
HARD = {
    "like training": normal(.05, .05, .05),
    "small": normal(1, 2.0 ** -6, 2.0 ** -6),
    "large": normal(1, 16, 16),
    "of all sizes": lambda r, m, n: (spread((m, n), 20), spread((r, n), 15), spread((m, r), 15)),
    "opposed": lambda r, m, n: (torch.randn(m, n), opposed(torch.randn(r, n)), torch.ones(m, r)),
    "subnormal": normal(2.0 ** -130, 2.0 ** -66, 2.0 ** -65),
    "huge": normal(2.0 ** 122, 2.0 ** 58, 2.0 ** 58),
    "cancelled": lambda r, m, n: (lambda c: -c, torch.randn(r, n), torch.randn(m, r)),
    "nearly cancelled": lambda r, m, n: (lambda c: -c * (1 + integers(c.shape, 2) * 2.0 ** -7),
                                         torch.randn(r, n), torch.randn(m, r)),
    "integers": lambda r, m, n: (integers((m, n), 256), integers((r, n), 8), integers((m, r), 8)),
    "powers of two": lambda r, m,
    n: (torch.randn(m, n), torch.randint(-6, 1, (r, n)).float().exp2(),
                                      integers((m, r), 1)),
    # Half of these lie between two bf16: what is one unit of fp32 off, falls to the other side.
    "ties": lambda r, m, n: (lambda c: integers(c.shape, 127) + c.sign() * 64, integers((r, n), 2),
                             integers((m, r), int(40 / r ** .5) + 1)),
}


def make(top, rslora, dtype):
    torch.manual_seed(7)
    base, adapter, ranks, alphas = {}, {}, {}, {}
    for kind, draw in HARD.items():
        for rank in RANKS:
            rows, cols, module = 190 + rank, 333 - rank % 50, \
                "blocks.%s.r%d" % (kind.replace(" ", "_"), rank)
            ranks[module], alphas[module] = rank, rank / 2 if kind == "ties" else 2 * rank + 1
            W, A, B = draw(rank, rows, cols)
            A, B = A.to(dtype), B.to(dtype)
            if callable(W):
                W = W(alphas[module] / (math.sqrt(rank) if rslora else rank)
                      * (B.float() @ A.float()))
            base[module + ".weight"] = W.to(torch.bfloat16)
            adapter[P + module + ".lora_A.weight"] = A
            adapter[P + module + ".lora_B.weight"] = B
    save(os.path.join(top, "base", "model.safetensors"), base)
    save(os.path.join(top, "adapter", "adapter_model.safetensors"), adapter)
    with open(os.path.join(top, "adapter", "adapter_config.json"), "w") as f:
        json.dump({"peft_type": "LORA", "r": 8, "lora_alpha": 16, "use_rslora": rslora,
                   "rank_pattern": ranks, "alpha_pattern": alphas}, f)


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(os.path.join(sys.argv[2], "bf16"), False, torch.bfloat16)
        make(os.path.join(sys.argv[2], "f32"), True, torch.float32)
    else:
        for line in sys.stdin:
            print(json.dumps(check(json.loads(line))), flush=True)
