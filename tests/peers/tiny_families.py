# SPDX-License-Identifier: Apache-2.0
"""tiny_families.py - checkpoints of real families, of two layers and random numbers.

tiny_families.py FAMILY SEED DIR [FILE], run with a Python that has transformers: the tensors get
the names that transformers gives them in a checkpoint; in FILE, those that it has in memory. The
numbers are large enough for every weight to change the answers.
"""
import sys

COMMON = {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
          "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
          "max_position_embeddings": 512, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
          "tie_word_embeddings": False, "initializer_range": 0.2}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
DEEPSEEK = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
            "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
            "norm_topk_prob": True, "routed_scaling_factor": 1.0}
LAYERS = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 128}
# SGLang has some models only with heads of hidden_size / num_attention_heads.
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1}
# family -> (model_type, what its config has beside or instead of COMMON)
FAMILIES = {
    "llama": ("llama", {}),
    "qwen3": ("qwen3", {}),
    "qwen3_tied": ("qwen3", {"tie_word_embeddings": True}),
    "phi3": ("phi3", {}),
    "olmo3": ("olmo3", dict(LAYERS, **HEADS)),
    "glm4": ("glm4", {}),
    "seed_oss": ("seed_oss", {}),
    "granite": ("granite", {}),
    "gemma2": ("gemma2", dict(
        LAYERS, tie_word_embeddings=True, hidden_act="gelu_pytorch_tanh")),
    "gemma3_text": ("gemma3_text", dict(LAYERS, tie_word_embeddings=True)),
    "mixtral": ("mixtral", dict(HEADS, num_local_experts=4, num_experts_per_tok=2)),
    "qwen2_moe": ("qwen2_moe", dict(
        EXPERTS, shared_expert_intermediate_size=64, num_attention_heads=2)),
    "qwen3_moe": ("qwen3_moe", EXPERTS),
    "glm4_moe": ("glm4_moe", DEEPSEEK),
    "deepseek_v2": ("deepseek_v2", dict(
        DEEPSEEK, num_key_value_heads=4, q_lora_rank=None, kv_lora_rank=512,
        qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128, head_dim=64,
        topk_method="greedy", moe_layer_freq=1, scoring_func="softmax",
        rope_parameters={
            "rope_type": "yarn", "rope_theta": 10000.0, "factor": 2.0, "beta_fast": 32,
            "beta_slow": 1, "mscale": 0.707, "mscale_all_dim": 0.707,
            "original_max_position_embeddings": 256})),
    "ernie4_5_moe": ("ernie4_5_moe", {
        "moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 64, "moe_num_shared_experts": 1,
        "num_hidden_layers": 3, "moe_layer_start_index": 1, "moe_layer_end_index": 2,
        "moe_layer_interval": 1}),
    "qwen3_next": ("qwen3_next", dict(
        EXPERTS, shared_expert_intermediate_size=64, linear_num_key_heads=2,
        linear_num_value_heads=4, linear_key_head_dim=64, linear_value_head_dim=64,
        layer_types=["linear_attention", "full_attention"])),
    "gpt_oss": ("gpt_oss", dict(LAYERS, num_local_experts=4, num_experts_per_tok=2)),
}


def make(family, seed, path, in_memory=None):
    import torch
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoModelForCausalLM
    kind, more = FAMILIES[family]
    torch.manual_seed(seed)
    config = AutoConfig.for_model(kind, **dict(COMMON, **more))
    model = AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.ndim < 2:  # norms, biases, sinks: from_config gives all seeds the same
                p += 0.1 * torch.randn_like(p)
            elif "experts" in name:  # some are not initialized
                p.copy_(0.2 * torch.randn_like(p))
    model.save_pretrained(path)
    if in_memory:  # each with bytes of its own, a tied head too
        save_file({n: t.clone() for n, t in model.state_dict().items()}, in_memory)


if __name__ == "__main__":
    make(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
