#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""make.py - the bases and adapters of this directory, the same bytes each time.

    make.py [DIR]      writes them (default: beside this script)

bases/NAME is a tiny checkpoint, good/NAME an adapter that is merged into the base that GOOD names, bad/NAME
one that must be refused. README.md says what is what, from the tables GOOD and BAD below. Numbers of good/exact are small integers, whose sums no order of additions
changes; all others are what training leaves: small and of every size.
"""
import json
import os
import random
import struct
import sys

H, HEADS, KV, D, I, V, LAYERS = 16, 4, 2, 4, 24, 40, 2    # the dense model
E, M = 4, 12                                              # experts, and their inner size
R = 4
Q, K = HEADS * D, KV * D
DENSE = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": H,
         "intermediate_size": I, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
         "num_key_value_heads": KV, "vocab_size": V, "tie_word_embeddings": False}
MOE = dict(DENSE, architectures=["Qwen3MoeForCausalLM"], model_type="qwen3_moe", head_dim=D,
           num_experts=E, num_experts_per_tok=2, moe_intermediate_size=M, decoder_sparse_step=1,
           mlp_only_layers=[], attention_bias=False)
GPT_OSS = dict(MOE, architectures=["GptOssForCausalLM"], model_type="gpt_oss", num_local_experts=E,
               attention_bias=True, intermediate_size=H)
GPT2 = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": H, "n_layer": 1,
        "n_head": HEADS, "vocab_size": V}
SIZE = {"F32": 4, "BF16": 2, "F16": 2}


def bf16(x):
    bits, = struct.unpack("<I", struct.pack("<f", x))
    return struct.pack("<H", (bits + 0x7fff + (bits >> 16 & 1)) >> 16)


PACK = {"F32": lambda x: struct.pack("<f", x), "BF16": bf16, "F16": lambda x: struct.pack("<e", x)}


class Tensors(dict):
    """name -> (dtype, shape, bytes)"""

    def __init__(self, seed, dtype="BF16", integers=False):
        super().__init__()
        self.random, self.dtype, self.integers = random.Random(seed), dtype, integers

    def number(self):
        if self.integers:
            return float(self.random.randint(-4, 4))
        return self.random.uniform(-1, 1) * 2.0 ** self.random.randint(-7, 0)

    def add(self, name, *shape, dtype=None):
        n = 1
        for d in shape:
            n *= d
        dtype = dtype or self.dtype
        self[name] = (dtype, list(shape), b"".join(PACK[dtype](self.number()) for _ in range(n)))

    def write(self, path):
        header, at = {}, 0
        for name, (dtype, shape, data) in self.items():
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
            at += len(data)
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as f:
            f.write(struct.pack("<Q", len(text)) + text)
            f.write(b"".join(data for _, _, data in self.values()))


# ---- bases ----

def trunk(t, biases):
    t.add("model.embed_tokens.weight", V, H)
    for layer in range(LAYERS):
        p = "model.layers.%d." % layer
        t.add(p + "input_layernorm.weight", H)
        for name, rows in (("q_proj", Q), ("k_proj", K), ("v_proj", K)):
            t.add(p + "self_attn.%s.weight" % name, rows, H)
            if biases:
                t.add(p + "self_attn.%s.bias" % name, rows)
        t.add(p + "self_attn.o_proj.weight", H, Q)
        yield p
        t.add(p + "post_attention_layernorm.weight", H)
    t.add("model.norm.weight", H)
    t.add("lm_head.weight", V, H)


def dense():
    t = Tensors("dense")
    for p in trunk(t, True):
        t.add(p + "mlp.gate_proj.weight", I, H)
        t.add(p + "mlp.up_proj.weight", I, H)
        t.add(p + "mlp.down_proj.weight", H, I)
    return t, DENSE


def whole():
    """Small integers."""
    t = Tensors("whole", integers=True)
    for p in trunk(t, True):
        t.add(p + "mlp.gate_proj.weight", I, H)
        t.add(p + "mlp.up_proj.weight", I, H)
        t.add(p + "mlp.down_proj.weight", H, I)
    return t, DENSE


def fused():
    """The dense model as servers keep it."""
    t = Tensors("fused")
    t.add("model.embed_tokens.weight", V, H)
    for layer in range(LAYERS):
        p = "model.layers.%d." % layer
        t.add(p + "self_attn.qkv_proj.weight", Q + 2 * K, H)
        t.add(p + "self_attn.o_proj.weight", H, Q)
        t.add(p + "mlp.gate_up_proj.weight", 2 * I, H)
        t.add(p + "mlp.down_proj.weight", H, I)
    return t, DENSE


def moe():
    t = Tensors("moe")
    for p in trunk(t, False):
        t.add(p + "self_attn.q_norm.weight", D)
        t.add(p + "self_attn.k_norm.weight", D)
        t.add(p + "mlp.gate.weight", E, H)
        for e in range(E):
            t.add(p + "mlp.experts.%d.gate_proj.weight" % e, M, H)
            t.add(p + "mlp.experts.%d.up_proj.weight" % e, M, H)
            t.add(p + "mlp.experts.%d.down_proj.weight" % e, H, M)
    return t, MOE


def moe_stacked():
    """The same model as transformers 5 keeps it: experts in one tensor, outputs first."""
    t = Tensors("moe_stacked")
    for p in trunk(t, False):
        t.add(p + "self_attn.q_norm.weight", D)
        t.add(p + "self_attn.k_norm.weight", D)
        t.add(p + "mlp.gate.weight", E, H)
        t.add(p + "mlp.experts.gate_up_proj", E, 2 * M, H)
        t.add(p + "mlp.experts.down_proj", E, H, M)
    return t, MOE


def gpt_oss():
    """Experts in one tensor, inputs first; the matrices of down_proj are square."""
    t = Tensors("gpt_oss")
    for layer in range(LAYERS):
        p = "model.layers.%d.mlp.experts." % layer
        t.add(p + "gate_up_proj", E, H, 2 * H)
        t.add(p + "down_proj", E, H, H)
    return t, GPT_OSS


def conv1d():
    """GPT-2's Conv1D: inputs first."""
    t = Tensors("conv1d")
    t.add("h.0.attn.c_attn.weight", H, 3 * H)
    t.add("h.0.attn.c_proj.weight", H, H)
    t.add("h.0.head.weight", V, H)
    return t, GPT2


def stacks():
    """Experts as three stacks of one shape."""
    t = Tensors("stacks")
    for name in ("gate_proj", "up_proj", "down_proj"):
        t.add("model.layers.0.experts." + name, E, H, H)
    return t, {"architectures": ["OtherForCausalLM"], "model_type": "other"}


# ---- adapters ----

def config(**more):
    return dict({"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": R, "lora_alpha": 2 * R,
                 "lora_dropout": 0.0, "bias": "none", "fan_in_fan_out": False, "use_rslora": False,
                 "rank_pattern": {}, "alpha_pattern": {}, "use_dora": False,
                 "init_lora_weights": True, "modules_to_save": None}, **more)


ATTENTION = (("self_attn.q_proj", Q, H), ("self_attn.k_proj", K, H), ("self_attn.v_proj", K, H),
             ("self_attn.o_proj", H, Q))
MLP = (("mlp.gate_proj", I, H), ("mlp.up_proj", I, H), ("mlp.down_proj", H, I))
PREFIX = "base_model.model."


def layers(t, modules, prefix=PREFIX + "model.", infix="", rank=lambda name: R):
    for layer in range(LAYERS):
        for name, rows, cols in modules:
            name = "layers.%d.%s" % (layer, name)
            t.add(prefix + name + ".lora_A%s.weight" % infix, rank(name), cols)
            t.add(prefix + name + ".lora_B%s.weight" % infix, rows, rank(name))


def plain(t, **_):
    layers(t, ATTENTION + MLP)
    return config()


def exact(t):
    t.integers = True
    return plain(t)


def no_prefix(t):
    layers(t, ATTENTION, prefix="model.")
    return config(use_rslora=None)


def infix(t):
    layers(t, MLP, infix=".default")
    return config()


def headless(t):
    """Trained without a head: the model's own "model." is missing."""
    layers(t, ATTENTION, prefix=PREFIX)
    return config()


def wrapped(t):
    layers(t, ATTENTION, prefix=PREFIX + "_orig_mod.model.")
    return config()


def patterns(t):
    ranks = {"layers.0.self_attn.q_proj": 2, r"model\.layers\.\d+\.mlp\.(?:gate|up)_proj": 8,
             "down_proj": 3, "proj": 7}
    layers(t, ATTENTION + MLP, rank=lambda n: 2 if n == "layers.0.self_attn.q_proj" else
           8 if n.endswith(("gate_proj", "up_proj")) else 3 if n.endswith("down_proj") else R)
    return config(rank_pattern=ranks, alpha_pattern={"^model.layers.1.*o_proj": 1, ".*gate_proj": 5.5})


def rslora(t):
    layers(t, ATTENTION)
    return config(use_rslora=True, lora_alpha=3)


def rslora_patterns(t):
    """The scale is by the root of each module's own rank."""
    layers(t, ATTENTION, rank=lambda name: 9 if name == "layers.1.self_attn.v_proj" else R)
    return config(use_rslora=True, rank_pattern={"layers.1.self_attn.v_proj": 9},
                  alpha_pattern={"v_proj": 2.5, "k_proj": 7})


def float32(t):
    t.dtype = "F32"
    layers(t, ATTENTION)
    return config()


def float16(t):
    t.dtype = "F16"
    layers(t, MLP)
    return config()


def embedding(t):
    """An embedding as PEFT has it, with the base's rows beside it, and a head as xorl writes it."""
    t.add(PREFIX + "model.embed_tokens.lora_embedding_A", R, V)
    t.add(PREFIX + "model.embed_tokens.lora_embedding_B", H, R)
    t.add(PREFIX + "model.embed_tokens.base_layer.weight", V, H)
    t.add(PREFIX + "lm_head.lora_embedding_A", R, H)
    t.add(PREFIX + "lm_head.lora_embedding_B", V, R)
    return config(target_modules=["embed_tokens", "lm_head"])


def embedding_infix(t):
    """An embedding with the adapter's name in its keys, and a head as any linear module."""
    t.add(PREFIX + "model.embed_tokens.lora_embedding_A.default", R, V)
    t.add(PREFIX + "model.embed_tokens.lora_embedding_B.default", H, R)
    t.add(PREFIX + "lm_head.lora_A.default.weight", R, H)
    t.add(PREFIX + "lm_head.lora_B.default.weight", V, R)
    return config(target_modules=["embed_tokens", "lm_head"])


def saved(t):
    """Modules trained as a whole, in the three ways they are called."""
    layers(t, ATTENTION[:1])
    t.add(PREFIX + "lm_head.weight", V, H)
    t.add(PREFIX + "model.norm.modules_to_save.default.weight", H, dtype="F32")
    t.add(PREFIX + "model.embed_tokens.modules_to_save.weight", V, H)
    t.add(PREFIX + "model.embed_tokens.original_module.weight", V, H)
    return config(modules_to_save=["lm_head", "norm", "embed_tokens"])


def bias(t):
    layers(t, ATTENTION[:3])
    for layer in range(LAYERS):
        p = PREFIX + "model.layers.%d.self_attn." % layer
        t.add(p + "q_proj.base_layer.bias", Q)
        t.add(p + "v_proj.bias", K)
    return config(bias="all")


def bias_lora_only(t):
    """Biases of the modules that have factors, in front of which PEFT writes base_layer."""
    layers(t, ATTENTION[:3])
    for layer in range(LAYERS):
        for name, rows, _ in ATTENTION[:3]:
            t.add(PREFIX + "model.layers.%d.%s.base_layer.bias" % (layer, name), rows, dtype="F32")
    return config(bias="lora_only")


def fan_in_fan_out(t):
    t.add("base_model.model.h.0.attn.c_attn.lora_A.weight", R, H)
    t.add("base_model.model.h.0.attn.c_attn.lora_B.weight", 3 * H, R)
    t.add("base_model.model.h.0.attn.c_proj.lora_A.weight", R, H)
    t.add("base_model.model.h.0.attn.c_proj.lora_B.weight", H, R)
    t.add("base_model.model.h.0.head.lora_A.weight", R, H)
    t.add("base_model.model.h.0.head.lora_B.weight", V, R)
    return config(fan_in_fan_out=True)


def over_parts(t):
    """A change of the fused tensors, where the base has their parts."""
    layers(t, (("self_attn.qkv_proj", Q + 2 * K, H), ("mlp.gate_up_proj", 2 * I, H)))
    return config()


def over_groups(t):
    """Megatron's qkv: the rows of each query group together."""
    layers(t, (("self_attn.linear_qkv", Q + 2 * K, H),))
    return config()


def over_fused(t):
    """Separate changes of what the base keeps fused."""
    layers(t, ATTENTION + MLP)
    return config()


EXPERT = (("gate_proj", M, H), ("up_proj", M, H), ("down_proj", H, M))


def experts(t):
    for e in range(E):
        layers(t, [("mlp.experts.%d.%s" % (e, n), rows, cols) for n, rows, cols in EXPERT])
    return config()


def shared(t):
    """A shared for gate, B for down, both for up: xorl's export of factors with one expert."""
    for layer in range(LAYERS):
        p = PREFIX + "model.layers.%d.mlp.experts." % layer
        t.add(p + "shared.gate_proj.lora_A.weight", R, H)
        t.add(p + "shared.down_proj.lora_B.weight", H, R)
        t.add(p + "shared.up_proj.lora_A.weight", R, H)
        t.add(p + "shared.up_proj.lora_B.weight", M, R)
        for e in range(E):
            t.add(p + "%d.gate_proj.lora_B.weight" % e, M, R)
            t.add(p + "%d.down_proj.lora_A.weight" % e, R, M)
    return config(moe_hybrid_shared_lora=True)


def stacked(t):
    """SGLang's "shared outer" layout: w1 gate, w2 down, w3 up, one or all experts in the first axis."""
    for layer in range(LAYERS):
        p = PREFIX + "model.layers.%d.mlp.experts." % layer
        t.add(p + "w1.lora_A.weight", 1, R, H)
        t.add(p + "w1.lora_B.weight", E, M, R)
        t.add(p + "w2.lora_A.weight", E, R, M)
        t.add(p + "w2.lora_B.weight", 1, H, R)
        t.add(p + "w3.lora_A.weight", E, R, H)
        t.add(p + "w3.lora_B.weight", E, M, R)
    return config(moe_hybrid_shared_lora=True)


def stacked_names(t):
    """Three axes by the modules' own names; of down_proj one pair for all experts."""
    for layer in range(LAYERS):
        p = PREFIX + "model.layers.%d.mlp.experts." % layer
        for name, n, rows, cols in (("gate_proj", E, M, H), ("up_proj", E, M, H), ("down_proj", 1, H, M)):
            t.add(p + name + ".lora_A.weight", n, R, cols)
            t.add(p + name + ".lora_B.weight", n, rows, R)
    return config()


def over_stacks(t):
    """Factors of each expert, where the base has all experts in one tensor."""
    return experts(t)


def shared_over_stacks(t):
    return shared(t)


def parameters_over_stacks(t):
    return parameters(t)


def params(t, gate_up, down):
    """target_parameters: the factors of down_proj, then inside of those gate_up_proj's."""
    for layer in range(LAYERS):
        p = PREFIX + "model.layers.%d.mlp.experts." % layer
        t.add(p + "lora_A.weight", R * E, down[0])
        t.add(p + "lora_B.weight", down[1], R * E)
        t.add(p + "base_layer.lora_A.weight", R * E, gate_up[0])
        t.add(p + "base_layer.lora_B.weight", gate_up[1], R * E)
    return ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]


def parameters(t):
    return config(target_modules=[], target_parameters=params(t, (H, 2 * M), (M, H)),
                  peft_version="0.19.0")


def parameters_old(t):
    """Before 0.19 A went with the first axis of an expert's matrix: here with the outputs."""
    return config(target_modules=[], target_parameters=params(t, (2 * M, H), (H, M)),
                  peft_version="0.17.1")


def parameters_gpt_oss(t):
    return config(target_modules=[], target_parameters=params(t, (H, 2 * H), (H, H)),
                  peft_version="0.18.0")


# adapter: (base, what it has that others have not)
GOOD = {
    "plain": ("dense", "`base_model.model.MODULE.lora_A.weight`, scale alpha / r"),
    "exact": ("whole", "the same in small integers, whose sums are exact"),
    "no_prefix": ("dense", "keys without `base_model.model.`; `use_rslora` null"),
    "infix": ("dense", "the adapter's name in the keys: `lora_A.default.weight`"),
    "headless": ("dense", "trained without a head: `base_model.model.layers...`"),
    "wrapped": ("dense", "a compiled model's `_orig_mod.`"),
    "patterns": ("dense", "`rank_pattern`, `alpha_pattern`: names, ends of names, regular expressions"),
    "rslora": ("dense", "`use_rslora`: scale alpha / sqrt(r)"),
    "rslora_patterns": ("dense", "`use_rslora` with ranks and alphas of some modules' own"),
    "float32": ("dense", "factors in fp32"),
    "float16": ("dense", "factors in fp16"),
    "embedding": ("dense", "`lora_embedding_A`, `lora_embedding_B`, of the head too; "
                           "`base_layer.weight` beside them"),
    "embedding_infix": ("dense", "`lora_embedding_A.default`; a head as a linear module"),
    "saved": ("dense", "`modules_to_save`: as `MODULE.weight`, `MODULE.modules_to_save.weight`, "
                       "`MODULE.modules_to_save.default.weight`; `original_module` is ignored"),
    "bias": ("dense", "`bias` \"all\": `MODULE.bias`, `MODULE.base_layer.bias`"),
    "bias_lora_only": ("dense", "`bias` \"lora_only\", in fp32"),
    "fan_in_fan_out": ("conv1d", "`fan_in_fan_out`: Conv1D's [in, out], also square, and a linear among them"),
    "over_parts": ("dense", "a change of qkv_proj and gate_up_proj, where the base has their parts"),
    "over_groups": ("dense", "the same of Megatron's linear_qkv, by query groups"),
    "over_fused": ("fused", "changes of q, k, v, gate and up, where the base keeps them fused"),
    "experts": ("moe", "MoE: factors of each expert"),
    "over_stacks": ("moe_stacked", "the same, where the base has all experts in one tensor"),
    "shared": ("moe", "MoE: `experts.shared.PROJ`, A or B or both shared by all experts"),
    "shared_over_stacks": ("moe_stacked", "the same, where the base has all experts in one tensor"),
    "stacked": ("moe", "MoE: `experts.w1`, `w2`, `w3` of three axes, one or all experts in the first"),
    "stacked_names": ("moe", "the same as `experts.gate_proj` and so on"),
    "parameters": ("moe", "`target_parameters`: factors of all experts in two axes"),
    "parameters_over_stacks": ("moe_stacked", "the same, where the base has all experts in one tensor"),
    "parameters_old": ("moe", "`target_parameters` before PEFT 0.19: the axes the other way round"),
    "parameters_gpt_oss": ("gpt_oss", "the same for experts with inputs first, square ones among them"),
}


# ---- adapters that must be refused ----

def dora(t):
    return dict(plain(t), use_dora=True)


def dora_vector(t):
    plain(t)
    t.add(PREFIX + "model.layers.0.self_attn.q_proj.lora_magnitude_vector.weight", Q)
    return config()


def pissa(t):
    return dict(plain(t), init_lora_weights="pissa_niter_4")


def other_type(t):
    return dict(plain(t), peft_type="IA3")


def no_alpha(t):
    c = plain(t)
    del c["lora_alpha"]
    return c


def no_a(t):
    c = plain(t)
    del t[PREFIX + "model.layers.1.self_attn.k_proj.lora_A.weight"]
    return c


def no_b(t):
    c = plain(t)
    del t[PREFIX + "model.layers.1.mlp.up_proj.lora_B.weight"]
    return c


def rank_of_config(t):
    return dict(plain(t), r=2 * R)


def rank_of_halves(t):
    c = plain(t)
    t.add(PREFIX + "model.layers.0.mlp.down_proj.lora_B.weight", H, R + 1)
    return c


def other_model(t):
    layers(t, (("attention.wq", Q, H),), prefix="transformer.")
    return config()


def other_size(t):
    layers(t, (("self_attn.q_proj", Q, 2 * H),))
    return config()


def other_vocabulary(t):
    t.add(PREFIX + "lm_head.weight", V + 2, H)
    return config()


def with_nan(t):
    c = plain(t)
    name = PREFIX + "model.layers.0.self_attn.q_proj.lora_B.weight"
    dtype, shape, data = t[name]
    t[name] = (dtype, shape, data[:2 * R * 3 + 2] + b"\xc0\x7f" + data[2 * R * 3 + 4:])
    return c


def truncated(t):
    return plain(t)


def pattern(t):
    return dict(plain(t), rank_pattern={"(?=q_proj)": 2})


def integers(t):
    c = plain(t)
    name = PREFIX + "model.layers.0.self_attn.o_proj.lora_A.weight"
    t[name] = ("I8", [R, Q], bytes(R * Q))
    return c


def lora_bias(t):
    c = plain(t)
    t.add(PREFIX + "model.layers.0.self_attn.q_proj.lora_B.bias", Q)
    return c


def tokens(t):
    c = plain(t)
    t.add(PREFIX + "model.embed_tokens.token_adapter.trainable_tokens_delta", 2, H)
    return dict(c, trainable_token_indices=[3, 7])


def two_adapters(t):
    layers(t, ATTENTION, infix=".default")
    layers(t, ATTENTION[:1], infix=".other")
    return config()


def two_halves(t):
    """A of one adapter and B of another."""
    layers(t, ATTENTION[:2], infix=".default")
    t.add(PREFIX + "model.layers.0.self_attn.v_proj.lora_A.default.weight", R, H)
    t.add(PREFIX + "model.layers.0.self_attn.v_proj.lora_B.other.weight", K, R)
    return config()


def two_forms(t):
    """The same, by the prefix."""
    layers(t, ATTENTION[:2])
    t.add(PREFIX + "model.layers.0.self_attn.v_proj.lora_A.weight", R, H)
    t.add("model.layers.0.self_attn.v_proj.lora_B.weight", K, R)
    return config()


def half_embedding(t):
    t.add(PREFIX + "model.embed_tokens.lora_embedding_A", R, V)
    t.add(PREFIX + "model.embed_tokens.lora_B.weight", H, R)
    return config()


def across(t):
    layers(t, (("self_attn.k_proj", H, K),))
    return config()


def embedding_across(t):
    t.add(PREFIX + "model.embed_tokens.lora_embedding_A", R, H)
    t.add(PREFIX + "model.embed_tokens.lora_embedding_B", V, R)
    return config()


def untargeted(t):
    layers(t, ATTENTION[:2])
    return config(target_modules=["q_proj"])


def stack_pairs(t, n):
    for i in range(n):
        p = PREFIX + "model.layers.0.experts." + "base_layer." * i
        t.add(p + "lora_A.weight", R * E, H)
        t.add(p + "lora_B.weight", H, R * E)


def equal_stacks(t):
    stack_pairs(t, 3)
    return config(target_modules=[], peft_version="0.21.2", target_parameters=[
        "experts.gate_proj", "experts.up_proj", "experts.down_proj"])


def half_of_stacks(t):
    stack_pairs(t, 1)
    return config(target_modules=[], peft_version="0.21.2", target_parameters=[
        "experts.gate_proj", "experts.up_proj"])


def experts_of_another(t):
    t.add(PREFIX + "model.layers.0.mlp.experts.w1.lora_A.weight", E + 1, R, H)
    t.add(PREFIX + "model.layers.0.mlp.experts.w1.lora_B.weight", E + 1, M, R)
    return config()


def experts_of_halves(t):
    t.add(PREFIX + "model.layers.0.mlp.experts.w1.lora_A.weight", E, R, H)
    t.add(PREFIX + "model.layers.0.mlp.experts.w1.lora_B.weight", E - 1, M, R)
    return config()


def shared_half(t):
    """Half a pair that is shared, and nobody who has the other half."""
    layers(t, ATTENTION)
    t.add(PREFIX + "model.layers.0.mlp.experts.shared.up_proj.lora_A.weight", R, H)
    return config()


BAD = {
    "dora": ("dense", "DoRA, by its config"),
    "dora_vector": ("dense", "DoRA, by its tensors"),
    "lora_bias": ("dense", "a factor with a bias of its own"),
    "tokens": ("dense", "`trainable_token_indices`"),
    "pissa": ("dense", "a start that changed the base"),
    "other_type": ("dense", "`peft_type` IA3"),
    "two_adapters": ("dense", "two adapters in one file"),
    "two_halves": ("dense", "A of one adapter and B of another"),
    "two_forms": ("dense", "keys with `base_model.model.` and without"),
    "half_embedding": ("dense", "half a pair of an embedding and half a linear one"),
    "across": ("dense", "made for a matrix that is the other way round"),
    "embedding_across": ("dense", "the same of an embedding"),
    "untargeted": ("dense", "factors of a module that `target_modules` does not name"),
    "equal_stacks": ("stacks", "`target_parameters` of one shape: no file has their order"),
    "half_of_stacks": ("stacks", "`target_parameters` names two, and one has factors"),
    "no_alpha": ("dense", "no `lora_alpha`"),
    "no_a": ("dense", "no lora_A of one module"),
    "no_b": ("dense", "no lora_B of one module"),
    "rank_of_config": ("dense", "another rank than its config says"),
    "rank_of_halves": ("dense", "A and B of different ranks"),
    "other_model": ("dense", "made for another model"),
    "other_size": ("dense", "made for a model of another size"),
    "other_vocabulary": ("dense", "made for a larger vocabulary"),
    "with_nan": ("dense", "a NaN in a factor"),
    "truncated": ("dense", "a file that ends too early"),
    "pattern": ("dense", "a `rank_pattern` with look-ahead"),
    "integers": ("dense", "factors of integers"),
    "experts_of_another": ("moe", "three axes over more experts than there are"),
    "experts_of_halves": ("moe", "A and B over different numbers of experts"),
    "shared_half": ("moe", "half a shared pair, and nobody who has the other half"),
}


def write_config(path, values):
    with open(path, "w") as f:
        json.dump(values, f, indent=1)
        f.write("\n")


README = """# Small adapters of every form

Made by `make.py`, together with the bases that they are for; this page too. "Merged": held element by
element against torch in `tests/peers/test_lora_oracle.py`, and what a push sends is the same bytes.
"Refused": with a message that names the reason, in `tests/unit/test_lora.c`.

| adapter | base | what it has | |
|---|---|---|---|
"""


def write_readme(path):
    with open(path, "w") as f:
        f.write(README)
        for kind, table, fate in (("good", GOOD, "merged"), ("bad", BAD, "refused")):
            for name, (base, what) in table.items():
                f.write("| %s/%s | %s | %s | %s |\n" % (kind, name, base, what, fate))


def make(top):
    for base in (dense, whole, fused, moe, moe_stacked, gpt_oss, conv1d, stacks):
        t, values = base()
        t.write(os.path.join(top, "bases", base.__name__, "model.safetensors"))
        if values:
            write_config(os.path.join(top, "bases", base.__name__, "config.json"), values)
    for kind, names in (("good", GOOD), ("bad", BAD)):
        for name in names:
            t = Tensors(name)
            values = globals()[name](t)
            path = os.path.join(top, kind, name)
            t.write(os.path.join(path, "adapter_model.safetensors"))
            write_config(os.path.join(path, "adapter_config.json"), values)
    write_readme(os.path.join(top, "README.md"))
    path = os.path.join(top, "bad", "truncated", "adapter_model.safetensors")
    os.truncate(path, os.path.getsize(path) - 100)


if __name__ == "__main__":
    make(sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__)))
