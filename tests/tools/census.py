#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/data/census: the tensors of tiny models of many families, in two spellings.

    census.py [DIR [NAME...]]

run with a Python that has transformers and torch. DIR/NAME.txt has the tensors as checkpoints are
published (what save_pretrained writes, corrected where the published names are others), and as
transformers has them in memory, which is what trainers hold. transformers loads every checkpoint
that is written here, without a tensor too few or too many. See tests/unit/census.h.
"""
import json
import os
import re
import sys
import tempfile


def mix(*parts, **more):
    """The values of all parts; later ones win."""
    return {key: value for part in (*parts, more) for key, value in part.items()}


BASE = {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
        "max_position_embeddings": 512, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
        "tie_word_embeddings": False}
TIED = {"tie_word_embeddings": True}
SLIDING = {"layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
           "sliding_window": 128}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
LOCAL = {"num_local_experts": 4, "num_experts_per_tok": 2}
SHARED = mix(EXPERTS, shared_expert_intermediate_size=80)
ROUTED = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48,
          "n_shared_experts": 1, "n_group": 1, "topk_group": 1}
KINDS = {"mlp_layer_types": ["dense", "sparse", "sparse"]}
DENSE = {"first_k_dense_replace": 1}
MLA = mix(ROUTED, num_key_value_heads=4, kv_lora_rank=24, q_lora_rank=40, qk_nope_head_dim=16,
          qk_rope_head_dim=8, v_head_dim=20, head_dim=8)
INDEXED = {"index_topk": 8, "index_head_dim": 12, "index_n_heads": 2}
LINEAR = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 20,
          "linear_value_head_dim": 28,
          "layer_types": ["linear_attention", "linear_attention", "full_attention"]}
MROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0,
                             "mrope_section": [4, 6, 6]}}
PLAIN = {"head_dim": 16}  # families that know no other than hidden_size / heads
PLAIN_MROPE = {"head_dim": 16, "rope_parameters": {
    "rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}}
SIGHT = {"hidden_size": 32, "intermediate_size": 72, "num_hidden_layers": 2,
         "num_attention_heads": 2, "image_size": 16, "patch_size": 4}
BLOCKS = {"depth": 2, "hidden_size": 32, "intermediate_size": 72, "num_heads": 2, "patch_size": 4,
          "out_hidden_size": 64}


def vlm(text, more, vision, outer=None):
    """The config of a model that sees: (model type, values) of its text and of its vision."""
    def part(kind, values):
        return dict(values, model_type=kind) if kind else values
    tied = more.get("tie_word_embeddings", False)
    return dict(outer or {}, tie_word_embeddings=tied, vision_config=part(*vision),
                text_config=part(text, mix(BASE, more)))


# NAME: (model type, class, config)
CENSUS = {
    "llama": ("llama", "LlamaForCausalLM", BASE),
    "mistral": ("mistral", "MistralForCausalLM", BASE),
    "ministral3": ("mistral3", "Mistral3ForConditionalGeneration", vlm(
        "ministral3", TIED, ("pixtral", mix(SIGHT, head_dim=16)))),
    "mistral3": ("mistral3", "Mistral3ForConditionalGeneration", vlm(
        "mistral", {}, ("pixtral", mix(SIGHT, head_dim=16)))),
    "llava": ("llava", "LlavaForConditionalGeneration", vlm(
        "llama", {}, ("clip_vision_model", SIGHT))),
    "llava_onevision": ("llava_onevision", "LlavaOnevisionForConditionalGeneration", vlm(
        "qwen2", TIED, ("siglip_vision_model", mix(SIGHT, vision_use_head=False)))),
    "internvl": ("internvl", "InternVLForConditionalGeneration", vlm(
        "qwen2", {}, ("internvl_vision", mix(SIGHT, image_size=[16, 16], patch_size=[4, 4])))),
    "qwen2": ("qwen2", "Qwen2ForCausalLM", mix(BASE, TIED)),
    "qwen2_moe": ("qwen2_moe", "Qwen2MoeForCausalLM", mix(BASE, SHARED)),
    "qwen2_vl": ("qwen2_vl", "Qwen2VLForConditionalGeneration", vlm(
        "qwen2_vl_text", PLAIN_MROPE, ("qwen2_vl_vision", {
            "depth": 2, "embed_dim": 32, "hidden_size": 64, "mlp_ratio": 3, "num_heads": 2,
            "patch_size": 4}))),
    "qwen2_5_vl": ("qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration", vlm(
        "qwen2_5_vl_text", PLAIN_MROPE, ("qwen2_5_vl_vision", mix(
            BLOCKS, fullatt_block_indexes=[1])))),
    "qwen3": ("qwen3", "Qwen3ForCausalLM", mix(BASE, TIED)),
    "qwen3_moe": ("qwen3_moe", "Qwen3MoeForCausalLM", mix(BASE, EXPERTS)),
    "qwen3_next": ("qwen3_next", "Qwen3NextForCausalLM", mix(BASE, SHARED, LINEAR)),
    "qwen3_vl": ("qwen3_vl", "Qwen3VLForConditionalGeneration", vlm(
        "qwen3_vl_text", mix(MROPE, TIED), ("qwen3_vl_vision", mix(
            BLOCKS, num_position_embeddings=16, deepstack_visual_indexes=[0])))),
    "qwen3_vl_moe": ("qwen3_vl_moe", "Qwen3VLMoeForConditionalGeneration", vlm(
        "qwen3_vl_moe_text", mix(MROPE, EXPERTS, num_local_experts=4), (
            "qwen3_vl_moe_vision", mix(
                BLOCKS, num_position_embeddings=16, deepstack_visual_indexes=[0])))),
    "qwen3_5": ("qwen3_5", "Qwen3_5ForConditionalGeneration", vlm(
        "qwen3_5_text", mix(LINEAR, TIED), ("qwen3_5_vision", mix(
            BLOCKS, num_position_embeddings=16)))),
    "qwen3_5_moe": ("qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration", vlm(
        "qwen3_5_moe_text", mix(SHARED, LINEAR), ("qwen3_5_moe_vision", mix(
            BLOCKS, num_position_embeddings=16)))),
    "gemma2": ("gemma2", "Gemma2ForCausalLM", mix(BASE, SLIDING, TIED)),
    "gemma3_text": ("gemma3_text", "Gemma3ForCausalLM", mix(BASE, SLIDING, TIED)),
    "gemma3": ("gemma3", "Gemma3ForConditionalGeneration", vlm(
        "gemma3_text", mix(SLIDING, TIED), ("siglip_vision_model", mix(
            SIGHT, vision_use_head=False)), {"mm_tokens_per_image": 4})),
    "gemma4": ("gemma4", "Gemma4ForConditionalGeneration", vlm(
        "gemma4_text", mix(
            SLIDING, TIED, enable_moe_block=True, num_experts=4, top_k_experts=2,
            moe_intermediate_size=48, attention_k_eq_v=True, num_global_key_value_heads=1,
            global_head_dim=40, hidden_size_per_layer_input=0), ("gemma4_vision", mix(
                SIGHT, num_key_value_heads=2, head_dim=16, global_head_dim=16,
                    position_embedding_size=16)))),
    "phi3": ("phi3", "Phi3ForCausalLM", BASE),
    "phimoe": ("phimoe", "PhimoeForCausalLM", mix(
        BASE, LOCAL, attention_bias=True, lm_head_bias=True)),
    "mixtral": ("mixtral", "MixtralForCausalLM", mix(BASE, LOCAL)),
    "minimax_m2": ("minimax_m2", "MiniMaxM2ForCausalLM", mix(
        BASE, LOCAL, intermediate_size=48)),
    "deepseek_v2": ("deepseek_v2", "DeepseekV2ForCausalLM", mix(
        BASE, MLA, DENSE, topk_method="greedy")),
    "deepseek_v3": ("deepseek_v3", "DeepseekV3ForCausalLM", mix(BASE, MLA, DENSE)),
    "deepseek_v32": ("deepseek_v32", "DeepseekV32ForCausalLM", mix(
        BASE, MLA, KINDS, INDEXED)),
    "deepseek_v4": ("deepseek_v4", "DeepseekV4ForCausalLM", mix(
        BASE, ROUTED, INDEXED, num_key_value_heads=1, q_lora_rank=40, intermediate_size=48,
        o_groups=2, o_lora_rank=24, num_hidden_layers=4,
        layer_types=["sliding_attention", "compressed_sparse_attention",
                     "compressed_sparse_attention", "heavily_compressed_attention"],
        mlp_layer_types=["hash_moe", "moe", "moe", "moe"])),
    "kimi_k25": ("kimi_k25", "Kimi_K25ForConditionalGeneration", vlm(
        "deepseek_v3", mix(MLA, DENSE), ("kimi_k25_vision", mix(
            SIGHT, pos_emb_height=4, pos_emb_width=4, projection_hidden_size=32)))),
    "kimi_linear": ("kimi_linear", "KimiLinearForCausalLM", mix(
        BASE, MLA, EXPERTS, KINDS, q_lora_rank=None, num_experts_per_token=2, num_shared_experts=1,
        linear_head_dim=20, linear_num_heads=4, layer_types=LINEAR["layer_types"])),
    "glm4": ("glm4", "Glm4ForCausalLM", BASE),
    "glm4_moe": ("glm4_moe", "Glm4MoeForCausalLM", mix(
        BASE, ROUTED, DENSE, use_qk_norm=True, attention_bias=True)),
    "glm4_moe_lite": ("glm4_moe_lite", "Glm4MoeLiteForCausalLM", mix(BASE, MLA, KINDS)),
    "glm_moe_dsa": ("glm_moe_dsa", "GlmMoeDsaForCausalLM", mix(
        BASE, MLA, KINDS, INDEXED)),
    "glm4v": ("glm4v", "Glm4vForConditionalGeneration", vlm(
        "glm4v_text", PLAIN_MROPE, ("glm4v_vision", mix(BLOCKS, image_size=16)))),
    "glm4v_moe": ("glm4v_moe", "Glm4vMoeForConditionalGeneration", vlm(
        "glm4v_moe_text", mix(MROPE, ROUTED, DENSE), ("glm4v_moe_vision", mix(
            BLOCKS, image_size=16)))),
    "gpt_oss": ("gpt_oss", "GptOssForCausalLM", mix(BASE, LOCAL, SLIDING)),
    "llama4_text": ("llama4_text", "Llama4ForCausalLM", mix(
        BASE, num_local_experts=4, num_experts_per_tok=1, intermediate_size=48,
        intermediate_size_mlp=160, moe_layers=[1, 2])),
    "llama4": ("llama4", "Llama4ForConditionalGeneration", vlm(
        "llama4_text", mix(
            num_local_experts=4, num_experts_per_tok=1, intermediate_size=48,
            intermediate_size_mlp=160, moe_layers=[1, 2]),
        ("llama4_vision_model", mix(
            SIGHT, intermediate_size=128, vision_output_dim=56, projector_input_dim=56,
            projector_output_dim=56)))),
    "nemotron_h": ("nemotron_h", "NemotronHForCausalLM", mix(
        BASE, ROUTED, moe_shared_expert_intermediate_size=80, ssm_state_size=12,
        mamba_num_heads=4, mamba_head_dim=20, n_groups=2, num_hidden_layers=6,
        layers_block_type=["mamba", "moe", "full_attention", "mamba", "moe", "mlp"])),
    "olmo2": ("olmo2", "Olmo2ForCausalLM", BASE),
    "olmo3": ("olmo3", "Olmo3ForCausalLM", mix(BASE, SLIDING)),
    "olmoe": ("olmoe", "OlmoeForCausalLM", mix(BASE, EXPERTS, PLAIN, intermediate_size=48)),
    "granite": ("granite", "GraniteForCausalLM", mix(BASE, TIED)),
    "granitemoe": ("granitemoe", "GraniteMoeForCausalLM", mix(
        BASE, LOCAL, TIED, intermediate_size=48)),
    "granitemoehybrid": ("granitemoehybrid", "GraniteMoeHybridForCausalLM", mix(
        BASE, LOCAL, TIED, intermediate_size=48, shared_intermediate_size=80,
        layer_types=["mamba", "mamba", "attention"], mamba_n_heads=4, mamba_d_state=12,
        mamba_d_head=32)),
    "ernie4_5": ("ernie4_5", "Ernie4_5ForCausalLM", mix(BASE, TIED)),
    "ernie4_5_moe": ("ernie4_5_moe", "Ernie4_5_MoeForCausalLM", mix(
        BASE, moe_num_experts=4, moe_k=2, moe_intermediate_size=48, moe_num_shared_experts=1,
        moe_layer_start_index=1, moe_layer_end_index=2, moe_layer_interval=1)),
    "ernie4_5_vl_moe": ("ernie4_5_vl_moe", "Ernie4_5_VLMoeForConditionalGeneration", vlm(
        "ernie4_5_vl_moe_text", mix(
            KINDS, moe_num_experts=4, moe_k=2, moe_intermediate_size=[48, 24],
            moe_num_shared_experts=1, rope_parameters={
                "rope_type": "default", "rope_theta": 10000.0, "mrope_section": [5, 5, 6]}),
        ("ernie4_5_vl_moe_vision", {
            "depth": 2, "hidden_size": 32, "intermediate_size": 72, "num_heads": 2,
            "patch_size": 4}))),
    "seed_oss": ("seed_oss", "SeedOssForCausalLM", mix(BASE, attention_bias=True)),
    "cohere2": ("cohere2", "Cohere2ForCausalLM", mix(BASE, SLIDING, TIED)),
    "falcon_h1": ("falcon_h1", "FalconH1ForCausalLM", mix(
        BASE, mamba_d_ssm=96, mamba_n_heads=4, mamba_d_head=24, mamba_d_state=12)),
    "jamba": ("jamba", "JambaForCausalLM", mix(
        BASE, num_experts=4, num_experts_per_tok=2, expert_layer_period=2, expert_layer_offset=1,
        attn_layer_period=3, attn_layer_offset=2, mamba_dt_rank=12, mamba_d_state=20)),
    "lfm2": ("lfm2", "Lfm2ForCausalLM", mix(
        BASE, TIED, layer_types=["conv", "conv", "full_attention"],
        block_auto_adjust_ff_dim=False)),
    "lfm2_moe": ("lfm2_moe", "Lfm2MoeForCausalLM", mix(
        BASE, EXPERTS, TIED, layer_types=["conv", "conv", "full_attention"],
        num_dense_layers=1)),
    "smollm3": ("smollm3", "SmolLM3ForCausalLM", mix(BASE, TIED)),
    "exaone4": ("exaone4", "Exaone4ForCausalLM", mix(BASE, SLIDING)),
    "hunyuan_v1_dense": ("hunyuan_v1_dense", "HunYuanDenseV1ForCausalLM", mix(BASE, TIED)),
    "hunyuan_v1_moe": ("hunyuan_v1_moe", "HunYuanMoEV1ForCausalLM", mix(
        BASE, TIED, num_experts=4, moe_topk=2, intermediate_size=48)),
    "dbrx": ("dbrx", "DbrxForCausalLM", {
        "d_model": 64, "n_heads": 4, "n_layers": 3, "vocab_size": 256,
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8, "rope_theta": 500000.0},
        "ffn_config": {"ffn_hidden_size": 48, "moe_num_experts": 4, "moe_top_k": 2,
                       "hidden_size": 64}}),
    "starcoder2": ("starcoder2", "Starcoder2ForCausalLM", mix(BASE, TIED)),
    "mimo_v2_flash": ("mimo_v2_flash", "MiMoV2FlashForCausalLM", mix(
        BASE, mix(ROUTED, n_shared_experts=None), KINDS, v_head_dim=20,
        layer_types=["full_attention", "sliding_attention", "sliding_attention"])),
    "step3p7": ("step3p7", "Step3p7ForConditionalGeneration", vlm(
        "step3p5", mix(ROUTED, KINDS, SLIDING, share_expert_dim=80,
                        num_sliding_attention_heads=6), ("step3p5_vision", SIGHT))),
    "apertus": ("apertus", "ApertusForCausalLM", BASE),
}

# What released checkpoints have other than what save_pretrained writes of a model that was not
# loaded: NAME: what, and one or more of
#   names: (pattern, replacement) for the names that save_pretrained writes
#   undo: False where transformers' conversions must not be undone
#   turned: a pattern of stacks whose last two dimensions change places
#   arch: the architecture in released config.json
NESTED = {"what": "vision_model inside vision_tower",
          "names": [(r"vision_tower\.", "vision_tower.vision_model.")]}
PUBLISHED = {
    "llava": NESTED,
    "llava_onevision": NESTED,
    "gemma3": NESTED,
    "qwen3_vl_moe": {"what": "stacks of experts with the input dimension first",
                     "turned": r"mlp\.experts\."},
    "qwen3_5_moe": {"what": "stacks of experts", "undo": False},
    "deepseek_v4": {"what": "no model. before names; embed, hc_head_, kv_norm", "names": [
        (r"^model\.embed_tokens", "embed"), (r"^model\.hc_head\.hc_", "hc_head_"),
        (r"\.attn\.norm\.", ".attn.kv_norm."), (r"^model\.", "")]},
    "kimi_k25": {"what": "layers; mm_projector and patch_embed at their places", "names": [
        (r"^(language_model\.model)\.blocks", r"\1.layers"),
        (r"^model\.mm_projector", "mm_projector"),
        (r"^vision_tower\.encoder\.patch_embed", "vision_tower.patch_embed")],
        "arch": "KimiK25ForConditionalGeneration"},
    "kimi_linear": {"what": "mlp in dense layers", "names": [
        (r"block_sparse_moe\.(gate|up|down)_proj", r"mlp.\1_proj")]},
    "ernie4_5_vl_moe": {"what": "vision_model beside model", "names": [
        (r"^model\.vision_model", "vision_model")]},
}
TORCH = {"BF16": "bfloat16", "F32": "float32", "I64": "int64"}
# Of no use for names and shapes; some are long.
UNUSED = ("transformers_version", "initializer_range", "attention_dropout", "use_cache",
          "image_grid_pinpoints", "router_aux_loss_coef", "output_router_logits")


def build(kind, arch, values):
    import torch
    import transformers
    config = transformers.AutoConfig.for_model(kind, **values)
    config.architectures = [arch]
    model = getattr(transformers, arch)._from_config(config, dtype=torch.bfloat16)
    kept = model._keep_in_fp32_modules_strict or ()
    for name, tensor in model.state_dict().items():
        if any(re.search(rf"(^|\.){re.escape(k)}($|\.)", name) for k in kept):
            owner = model.get_submodule(name.rpartition(".")[0])
            here = getattr(owner, name.rpartition(".")[2])
            here.data = here.data.float()
    return model


def saved(model, published):
    """The tensors that save_pretrained writes, corrected, and the config."""
    from safetensors import safe_open
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder, save_original_format=published.get("undo", True))
        for file in sorted(os.listdir(folder)):
            if file.endswith(".safetensors"):
                with safe_open(f"{folder}/{file}", "pt") as f:
                    for name in f.keys():
                        part = f.get_slice(name)
                        found[name] = (part.get_dtype(), tuple(part.get_shape()))
        with open(f"{folder}/config.json") as f:
            config = json.load(f)
    for pattern, replacement in published.get("names", ()):
        count = len(found)
        renamed = {re.sub(pattern, replacement, name): what for name, what in found.items()}
        assert renamed.keys() != found.keys() and len(renamed) == count, pattern
        found = renamed
    for name, (dtype, shape) in found.items():
        if "turned" in published and re.search(published["turned"], name):
            found[name] = (dtype, (*shape[:-2], shape[-1], shape[-2]))
    return found, config


def check_loads(arch, checkpoint, config, memory):
    """from_pretrained finds every tensor in the published spelling, and no other."""
    import torch
    import transformers
    from safetensors.torch import save_file
    with tempfile.TemporaryDirectory() as folder:
        save_file({name: torch.zeros(shape, dtype=getattr(torch, TORCH[dtype]))
                   for name, (dtype, shape) in checkpoint.items()},
                  f"{folder}/model.safetensors", metadata={"format": "pt"})
        with open(f"{folder}/config.json", "w") as f:
            json.dump(config, f)
        model, report = getattr(transformers, arch).from_pretrained(
            folder, dtype=torch.bfloat16, output_loading_info=True)
    assert not any(report.values()), report
    assert tensors_of(model) == memory


def tensors_of(model):
    names = {f"torch.{torch}": name for name, torch in TORCH.items()}
    return {name: (names[str(t.dtype)], tuple(t.shape)) for name, t in model.state_dict().items()}


def useful(config):
    return {key: useful(value) if isinstance(value, dict) else value
            for key, value in config.items() if key not in UNUSED}


def shortened(tensors):
    """Lines of tensors, in which {a..b} is a number that runs."""
    rows = [(re.split(r"(?<=\.)(\d+)(?=\.|$)", name), what) for name, what in tensors.items()]
    rows.sort(key=lambda row: [int(p) if p.isdigit() else p for p in row[0]])
    for depth in range(max(len(parts) for parts, _ in rows) // 2, 0, -1):
        at, out, last = 2 * depth - 1, [], {}
        for parts, what in rows:
            if len(parts) <= at:
                out.append([parts, what, None])
                continue
            number = int(parts[at])
            key = (tuple(parts[:at]), tuple(parts[at + 1:]), what)
            if key in last and last[key][2][1] == number - 1:
                last[key][2][1] = number
            else:
                last[key] = [parts, what, [number, number]]
                out.append(last[key])
        for row in out:
            if row[2]:
                first, end = row[2]
                row[0][at] = f"{{{first}..{end}}}" if end > first else str(first)
        rows = [(parts, what) for parts, what, _ in out]
    for parts, (dtype, shape) in rows:
        yield f"{''.join(parts)} {dtype} {'x'.join(map(str, shape)) or '-'}"


def tied(model):
    head = model.get_output_embeddings()
    return head is not None and head.weight is model.get_input_embeddings().weight


def write(path, name):
    import transformers
    kind, arch, values = CENSUS[name]
    published = PUBLISHED.get(name, {})
    model = build(kind, arch, values)
    checkpoint, config = saved(model, published)
    config["architectures"] = [published.get("arch", arch)]
    for key in ("hidden_size", "num_hidden_layers"):  # which two families call otherwise
        if "text_config" not in config:
            config.setdefault(key, getattr(model.config, key))
    memory = tensors_of(model)
    check_loads(arch, checkpoint, config, memory)
    with open(path, "w") as f:
        print(f"# {arch} of transformers {transformers.__version__}, "
              f"{type(model.config).__name__}.", file=f)
        if published:
            print(f"# The checkpoint is as published: {published['what']}.", file=f)
        print("arch", config["architectures"][0], file=f)
        print("type", kind, file=f)
        print("tied", "yes" if tied(model) else "no", file=f)
        print("config", json.dumps(useful(config), sort_keys=True), file=f)
        print("checkpoint", *shortened(checkpoint), sep="\n", file=f)
        print("memory", *(["same"] if memory == checkpoint else shortened(memory)), sep="\n",
              file=f)


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else "tests/data/census"
    os.makedirs(folder, exist_ok=True)
    for name in sys.argv[2:] or CENSUS:
        write(f"{folder}/{name}.txt", name)


if __name__ == "__main__":
    main()
