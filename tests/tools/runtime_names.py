#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Lists the parameters that SGLang has for a model, without using wsync's rules.

    runtime_names.py CONFIG.json [--tp N] [--ep N] [--attention-tp N] [--fuse-shared]
    runtime_names.py CONFIG.json --golden > NAME.runtime

prints one parameter per line, "NAME SHAPE", with the local shape of rank 0. Consecutive equal
layers are one line (model.layers.{0..47}.input_layernorm.weight 2048). It follows SGLang's modules
(linear.py, vocab_parallel_embedding.py, fused_moe_triton, and the files in models/), not the maps:
tests compare the two. Shapes are those at loading, before kernels rearrange anything. --golden
prints the tests' input: the model with six layers, at every division among 1, 2, 4 and 8 ranks,
and a line "impossible" for divisions that SGLang refuses.
"""
import argparse
import json


class Impossible(Exception):
    """The server would refuse to start like that."""


def ceil(a, b):
    return -(-a // b)


class Model:
    def __init__(self, config, tp=1, ep=1, fuse_shared=False, attn_tp=0):
        self.c, self.tp, self.ep = config, tp, ep
        self.attn_tp = attn_tp or tp  # dp attention: tp / dp
        self.moe_tp = tp // ep
        self.fuse_shared = fuse_shared
        quant = config.get("quantization_config") or {}
        self.block = quant.get("weight_block_size") if quant.get("quant_method") == "fp8" else None
        self.mxfp4 = quant.get("quant_method") == "mxfp4"
        self.params = {}

    def get(self, key, default=None):
        value = self.c.get(key)
        return default if value is None else value

    def put(self, name, *dims):
        assert name not in self.params, name
        self.params[name] = dims

    def divide(self, n, by, what):
        if n % by:
            raise Impossible(f"{what}: {n} does not divide by {by}")
        return n // by

    # vocab_parallel_embedding.py: VocabParallelEmbedding, ParallelLMHead
    def vocab(self, name, tp):
        unit = 64
        if ceil(self.c["vocab_size"], unit) * unit % tp:
            unit *= tp
        rows = ceil(self.c["vocab_size"], unit) * unit
        self.put(name + ".weight", rows // tp, self.c["hidden_size"])

    # linear.py. outs: local outputs of the merged layers; split: "out", "in" or None.
    def linear(self, name, outs, n_in, split, bias=False, tp=1):
        out = sum(outs)
        if self.block and tp > 1 and (split == "in" and n_in % self.block[1] or
                                      split == "out" and any(o % self.block[0] for o in outs)):
            raise Impossible(f"{name}: {outs}x{n_in} is not made of whole blocks")
        self.put(name + ".weight", out, n_in)
        if self.block:
            self.put(name + ".weight_scale_inv",
                     ceil(out, self.block[0]), ceil(n_in, self.block[1]))
        if bias:
            self.put(name + ".bias", out)

    def merged_column(self, name, outs, n_in, tp):
        self.linear(name, [self.divide(o, tp, name) for o in outs], n_in, "out", tp=tp)

    def row(self, name, n_in, out, tp, bias=False):
        self.linear(name, [out], self.divide(n_in, tp, name), "in", bias, tp)

    def mlp(self, name, mid):
        hidden = self.c["hidden_size"]
        self.merged_column(name + ".gate_up_proj", [mid, mid], hidden, self.tp)
        self.row(name + ".down_proj", mid, hidden, self.tp)

    # fused_moe_triton/layer.py and the quantization methods' create_weights
    def fused_moe(self, name, experts, mid, fused_shared=0):
        hidden = self.c["hidden_size"]
        local = self.divide(experts, self.ep, name) + fused_shared
        mid = self.divide(mid, self.moe_tp, name)
        if self.block and mid % self.block[0]:
            raise Impossible(f"{name}: {mid} is not made of whole blocks")
        self.put(name + ".w13_weight", local, 2 * mid, hidden)
        self.put(name + ".w2_weight", local, hidden, mid)
        if self.block:
            n, k = self.block
            self.put(name + ".w13_weight_scale_inv", local, 2 * ceil(mid, n), ceil(hidden, k))
            self.put(name + ".w2_weight_scale_inv", local, ceil(hidden, n), ceil(mid, k))

    def head_dim(self):
        return self.get("head_dim", self.c["hidden_size"] // self.c["num_attention_heads"])

    # QKVParallelLinear and the output projection of llama.py, qwen2.py, qwen3.py, glm4_moe.py, ...
    def attention(self, at, qkv_bias, o_bias):
        heads, d, tp = self.c["num_attention_heads"], self.head_dim(), self.attn_tp
        kv = self.get("num_key_value_heads", heads)
        q_local = self.divide(heads, tp, at)
        kv_local = self.divide(kv, tp, at) if kv >= tp else 1
        if kv < tp:
            self.divide(tp, kv, at)
        self.linear(at + ".qkv_proj", [q_local * d, kv_local * d, kv_local * d],
                    self.c["hidden_size"], "out", qkv_bias, tp)
        self.row(at + ".o_proj", heads * d, self.c["hidden_size"], tp, o_bias)

    # DeepseekV2AttentionMLA
    def latent_attention(self, at):
        c, hidden, heads = self.c, self.c["hidden_size"], self.c["num_attention_heads"]
        tp = self.attn_tp
        self.divide(heads, tp, at)
        q_rank, rank = self.get("q_lora_rank"), c["kv_lora_rank"]
        qk = heads * (c["qk_nope_head_dim"] + c["qk_rope_head_dim"])
        latent = rank + c["qk_rope_head_dim"]
        if q_rank:
            self.linear(at + ".fused_qkv_a_proj_with_mqa", [q_rank + latent], hidden, None)
            self.put(at + ".q_a_layernorm.weight", q_rank)
            self.merged_column(at + ".q_b_proj", [qk], q_rank, tp)
        else:
            self.merged_column(at + ".q_proj", [qk], hidden, tp)
            self.linear(at + ".kv_a_proj_with_mqa", [latent], hidden, None)
        self.merged_column(at + ".kv_b_proj",
                           [heads * (c["qk_nope_head_dim"] + c["v_head_dim"])], rank, tp)
        self.row(at + ".o_proj", heads * c["v_head_dim"], hidden, tp)
        self.put(at + ".kv_a_layernorm.weight", rank)
        if "index_n_heads" in c:
            self.indexer(at + ".indexer", c["index_n_heads"], c["index_head_dim"])

    # dsa_indexer.py without use_dsa_indexer_fusion, which CUDA has
    def indexer(self, at, heads, d):
        hidden = self.c["hidden_size"]
        self.linear(at + ".wq_b", [heads * d], self.c["q_lora_rank"], None)
        self.linear(at + ".wk", [d], hidden, None)
        self.put(at + ".weights_proj.weight", heads, hidden)
        self.put(at + ".k_norm.weight", d)
        self.put(at + ".k_norm.bias", d)

    # DeepseekV2MoE and Glm4MoeSparseMoeBlock
    def shared_moe(self, at, correction):
        experts, mid, shared = (self.c["n_routed_experts"], self.c["moe_intermediate_size"],
                                self.get("n_shared_experts", 0))
        self.put(at + ".gate.weight", experts, self.c["hidden_size"])
        if correction:
            self.put(at + ".gate.e_score_correction_bias", experts)
        fused = shared if self.fuse_shared else 0
        self.fused_moe(at + ".experts", experts, mid, fused)
        if shared and not fused:
            self.mlp(at + ".shared_experts", shared * mid)

    # GptOssSparseMoeBlock; mxfp4.py without the padding of its kernels, _load_mxfp4_experts_weights
    def gpt_oss_moe(self, at):
        hidden, mid = self.c["hidden_size"], self.c["intermediate_size"]
        experts = self.c["num_local_experts"]
        self.put(at + ".router.weight", experts, hidden)
        self.put(at + ".router.bias", experts)
        local = self.divide(experts, self.ep, at)
        if self.mxfp4:
            mid = ceil(mid // 32, self.moe_tp) * 32
            self.put(at + ".experts.w13_weight", local, 2 * mid, hidden // 2)
            self.put(at + ".experts.w13_weight_scale", local, 2 * mid, hidden // 32)
            self.put(at + ".experts.w2_weight", local, hidden, mid // 2)
            self.put(at + ".experts.w2_weight_scale", local, hidden, mid // 32)
        else:
            mid = self.divide(mid, self.moe_tp, at)
            self.put(at + ".experts.w13_weight", local, 2 * mid, hidden)
            self.put(at + ".experts.w2_weight", local, hidden, mid)
        self.put(at + ".experts.w13_weight_bias", local, 2 * mid)
        self.put(at + ".experts.w2_weight_bias", local, hidden)

    def layer(self, at, arch, index):
        c, hidden = self.c, self.c["hidden_size"]
        self.put(at + ".input_layernorm.weight", hidden)
        self.put(at + ".post_attention_layernorm.weight", hidden)
        attn, mlp = at + ".self_attn", at + ".mlp"
        bias = bool(self.get("attention_bias", False))
        if arch in ("LlamaForCausalLM", "MistralForCausalLM", "Qwen3ForCausalLM",
                    "Qwen3MoeForCausalLM"):
            self.attention(attn, bias, bias)
        elif arch in ("Qwen2ForCausalLM", "Qwen2MoeForCausalLM"):
            self.attention(attn, self.get("qkv_bias", True), False)
        elif arch == "Glm4MoeForCausalLM":
            self.attention(attn, bias, False)
        elif arch == "GptOssForCausalLM":
            self.attention(attn, bias, bias)
            self.put(attn + ".sinks", c["num_attention_heads"] // self.attn_tp)
        else:
            self.latent_attention(attn)
        if arch.startswith("Qwen3") or arch == "Glm4MoeForCausalLM" and self.get("use_qk_norm"):
            self.put(attn + ".q_norm.weight", self.head_dim())
            self.put(attn + ".k_norm.weight", self.head_dim())
        if arch == "GptOssForCausalLM":
            self.gpt_oss_moe(mlp)
        elif arch in ("Qwen2MoeForCausalLM", "Qwen3MoeForCausalLM"):
            self.put(mlp + ".gate.weight", c["num_experts"], hidden)
            self.fused_moe(mlp + ".experts", c["num_experts"], c["moe_intermediate_size"])
            if arch == "Qwen2MoeForCausalLM" and self.get("shared_expert_intermediate_size", 0):
                self.mlp(mlp + ".shared_expert", c["shared_expert_intermediate_size"])
                self.put(mlp + ".shared_expert_gate.weight", 1, hidden)
        elif self.get("n_routed_experts") and index >= c["first_k_dense_replace"]:
            self.shared_moe(mlp, arch != "DeepseekV2ForCausalLM")
        else:
            self.mlp(mlp, c["intermediate_size"])

    def build(self):
        arch = self.c["architectures"][0]
        self.vocab("model.embed_tokens", self.attn_tp)
        for i in range(self.c["num_hidden_layers"]):
            self.layer(f"model.layers.{i}", arch, i)
        self.put("model.norm.weight", self.c["hidden_size"])
        never_tied = ("Qwen2MoeForCausalLM", "Qwen3MoeForCausalLM", "Glm4MoeForCausalLM",
                      "GptOssForCausalLM")
        if arch in never_tied or not self.get("tie_word_embeddings", False):
            self.vocab("lm_head", self.tp)
        return self.params


def ranges(numbers):
    numbers = sorted(numbers)
    start = 0
    for i in range(1, len(numbers) + 1):
        if i == len(numbers) or numbers[i] != numbers[i - 1] + 1:
            yield numbers[start], numbers[i - 1]
            start = i


def brace(first, last):
    return str(first) if first == last else "{%d..%d}" % (first, last)


def compact(items):
    """Joins (name, rest) whose names differ in consecutive numbers, innermost number first."""
    lines = [(name.split("."), rest) for name, rest in items]
    depth = max(sum(s.isdigit() for s in name) for name, _ in lines)
    for level in reversed(range(depth)):
        groups = {}
        for name, rest in lines:
            at = [i for i, s in enumerate(name) if s.isdigit() or s.startswith("{")]
            if len(at) <= level:
                groups.setdefault((tuple(name), None, rest), []).append(0)
                continue
            key = tuple(name[:at[level]]) + (None,) + tuple(name[at[level] + 1:])
            groups.setdefault((key, at[level], rest), []).append(int(name[at[level]]))
        lines = []
        for (name, at, rest), numbers in groups.items():
            if at is None:
                lines.append((list(name), rest))
                continue
            for first, last in ranges(numbers):
                lines.append((list(name[:at]) + [brace(first, last)] + list(name[at + 1:]), rest))
    return [(".".join(name), rest) for name, rest in lines]


def show(params):
    for name, shape in compact([(n, "x".join(map(str, d))) for n, d in params.items()]):
        print(name, shape)


def golden(config):
    print("# Made by tests/tools/runtime_names.py --golden from the config beside this file, with",
          "six layers.", sep="\n# ")
    config["num_hidden_layers"] = 6
    moe = any(k in config for k in ("num_experts", "n_routed_experts", "num_local_experts"))
    shared = config.get("n_shared_experts") == 1
    divisions = [(tp, ep, tp, False) for tp in (1, 2, 4, 8) for ep in (1, 2, 4)
                 if ep <= tp and (moe or ep == 1)]
    if moe:
        divisions += [(8, 4, 2, False), (8, 8, 1, False)]
    if shared:
        divisions += [(4, 1, 4, True), (8, 4, 8, True)]
    for tp, ep, attn_tp, fused in divisions:
        print(f"\ntp {tp} ep {ep} attention {attn_tp}" + (" fused" if fused else ""))
        try:
            show(Model(config, tp, ep, fused, attn_tp).build())
        except Impossible as why:
            print("impossible", why)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("config")
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--ep", type=int, default=1)
    parser.add_argument("--attention-tp", type=int, default=0)
    parser.add_argument("--fuse-shared", action="store_true")
    parser.add_argument("--golden", action="store_true")
    args = parser.parse_args()
    with open(args.config, encoding="utf-8") as f:
        config = json.load(f)
    if args.golden:
        golden(config)
    else:
        show(Model(config, args.tp, args.ep, args.fuse_shared, args.attention_tp).build())


if __name__ == "__main__":
    main()
