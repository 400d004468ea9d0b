#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""small_model.py - a checkpoint of a few kilobytes with the names of a real family.

small_model.py FAMILY DIR [--prefix P] [--fp8] [--dtype F32] [--only GLOB] [--moe N] [--dense N]
[--block N] [--head N]:
writes DIR/config.json and DIR/model.safetensors. --prefix goes before every name, as a trainer's
wrapper puts it. --moe: inner size of an expert; --dense: layers without experts (1); --block: rows
and columns of an FP8 block; --head: size of an attention head."""
import argparse
import fnmatch
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../peers"))
import mkst  # noqa: E402

H, I, LAYERS, HEADS, KV, HEAD, VOCAB = 128, 256, 2, 8, 2, 16, 200
EXPERTS, MOE, DENSE, Q_RANK, KV_RANK, NOPE, ROPE, V = 8, 32, 1, 48, 32, 8, 8, 16
BLOCK = 16
ARCH = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM",
        "qwen3_moe": "Qwen3MoeForCausalLM", "deepseek_v3": "DeepseekV3ForCausalLM"}


def config(family, fp8):
    c = {"architectures": [ARCH[family]], "model_type": family, "torch_dtype": "bfloat16",
         "hidden_size": H, "intermediate_size": I, "num_hidden_layers": LAYERS,
         "num_attention_heads": HEADS, "num_key_value_heads": KV, "head_dim": HEAD,
         "vocab_size": VOCAB, "tie_word_embeddings": family == "qwen3"}
    if family == "qwen3_moe":
        c.update(num_experts=EXPERTS, num_experts_per_tok=2, moe_intermediate_size=MOE,
                 decoder_sparse_step=1, mlp_only_layers=list(range(DENSE)))
    if family == "deepseek_v3":
        c.update(num_key_value_heads=HEADS, q_lora_rank=Q_RANK, kv_lora_rank=KV_RANK,
                 qk_nope_head_dim=NOPE, qk_rope_head_dim=ROPE, v_head_dim=V,
                 n_routed_experts=EXPERTS,
                 n_shared_experts=1, num_experts_per_tok=2, n_group=2, topk_group=1,
                 moe_intermediate_size=MOE, first_k_dense_replace=DENSE, moe_layer_freq=1,
                 topk_method="noaux_tc", num_nextn_predict_layers=0)
    if fp8:
        c["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK],
                                    "activation_scheme": "dynamic"}
    return c


def mlp(at, inner):
    return [(at + "gate_proj", inner, H), (at + "up_proj", inner, H), (at + "down_proj", H, inner)]


def layer(family, i):
    """(linear layers, norms) of layer i."""
    at = f"model.layers.{i}."
    norms = [(at + "input_layernorm", H), (at + "post_attention_layernorm", H)]
    if family == "deepseek_v3":
        linear = [(at + "self_attn.q_a_proj", Q_RANK, H),
                  (at + "self_attn.q_b_proj", HEADS * (NOPE + ROPE), Q_RANK),
                  (at + "self_attn.kv_a_proj_with_mqa", KV_RANK + ROPE, H),
                  (at + "self_attn.kv_b_proj", HEADS * (NOPE + V), KV_RANK),
                  (at + "self_attn.o_proj", H, HEADS * V)]
        norms += [(at + "self_attn.q_a_layernorm", Q_RANK),
                  (at + "self_attn.kv_a_layernorm", KV_RANK)]
    else:
        linear = [(at + "self_attn.q_proj", HEADS * HEAD, H),
                  (at + "self_attn.k_proj", KV * HEAD, H),
                  (at + "self_attn.v_proj", KV * HEAD, H),
                  (at + "self_attn.o_proj", H, HEADS * HEAD)]
    if family.startswith("qwen3"):
        norms += [(at + "self_attn.q_norm", HEAD), (at + "self_attn.k_norm", HEAD)]
    if i >= DENSE and family in ("qwen3_moe", "deepseek_v3"):
        for e in range(EXPERTS):
            linear += mlp(f"{at}mlp.experts.{e}.", MOE)
        if family == "deepseek_v3":
            linear += mlp(at + "mlp.shared_experts.", MOE)
    else:
        linear += mlp(at + "mlp.", I)
    return linear, norms


def tensors(family, fp8, dtype):
    out = [("model.embed_tokens.weight", dtype, [VOCAB, H]), ("model.norm.weight", dtype, [H])]
    if family != "qwen3":
        out.append(("lm_head.weight", dtype, [VOCAB, H]))
    for i in range(LAYERS):
        linear, norms = layer(family, i)
        for name, n in norms:
            out.append((name + ".weight", dtype, [n]))
        for name, rows, cols in linear:
            out.append((name + ".weight", "F8_E4M3" if fp8 else dtype, [rows, cols]))
            if fp8:
                out.append((name + ".weight_scale_inv", "F32",
                            [-(-rows // BLOCK), -(-cols // BLOCK)]))
        if i >= DENSE and family in ("qwen3_moe", "deepseek_v3"):
            out.append((f"model.layers.{i}.mlp.gate.weight", dtype, [EXPERTS, H]))
        if i >= DENSE and family == "deepseek_v3":
            out.append((f"model.layers.{i}.mlp.gate.e_score_correction_bias", "F32", [EXPERTS]))
    return out


def main():
    global MOE, DENSE, BLOCK, HEAD
    p = argparse.ArgumentParser()
    p.add_argument("family", choices=ARCH)
    p.add_argument("dir")
    p.add_argument("--prefix", default="")
    p.add_argument("--fp8", action="store_true")
    p.add_argument("--dtype", default="BF16")
    p.add_argument("--only", default="*")
    p.add_argument("--moe", type=int, default=MOE)
    p.add_argument("--dense", type=int, default=DENSE)
    p.add_argument("--block", type=int, default=BLOCK)
    p.add_argument("--head", type=int, default=HEAD)
    a = p.parse_args()
    MOE, DENSE, BLOCK, HEAD = a.moe, a.dense, a.block, a.head
    os.makedirs(a.dir, exist_ok=True)
    with open(os.path.join(a.dir, "config.json"), "w") as f:
        json.dump(config(a.family, a.fp8), f, indent=1)
    mkst.write(os.path.join(a.dir, "model.safetensors"),
               [(a.prefix + n, d, s) for n, d, s in tensors(a.family, a.fp8, a.dtype)
                if fnmatch.fnmatchcase(n, a.only)])


if __name__ == "__main__":
    main()
