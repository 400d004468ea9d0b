/* SPDX-License-Identifier: Apache-2.0 */
/* What trainers call the tensors of the built-in families, and how a family is found. */
#include "golden_layout.h"
#include "rules.h"

/* The shape that a trainer's tensor of that meaning has. */
static bool alias_has(const struct ws_layout *l, const char *name, size_t i, const char *shape,
                      int64_t groups)
{
	const struct ws_alias *a = ws_layout_find_alias(l, name, i);
	int64_t dims[WS_MAX_DIMS];
	char text[128];
	if (!a)
		return false;
	const struct ws_param *p = ws_layout_param(l, a->param);
	for (unsigned d = 0; d < a->n_dims; d++)
		dims[d] = p->dims[a->order[d]];
	golden_shape(a->n_dims, dims, text);
	return strcmp(text, shape) == 0 && a->groups == groups;
}

TEST(trainers_names_of_fused_tensors_have_their_shapes)
{
	static const struct {
		const char *model, *name;
		size_t meaning;
		const char *shape;
		int64_t groups;
	} cases[] = {
		{ "qwen3-30b-a3b", "model.layers.47.mlp.experts.gate_up_proj", 0, "128x2048x1536",
		  0 },
		{ "qwen3-30b-a3b", "model.layers.47.mlp.experts.gate_up_proj", 1, "128x1536x2048",
		  0 },
		{ "qwen3-30b-a3b", "model.layers.0.mlp.experts.down_proj", 0, "128x768x2048", 0 },
		{ "qwen3-30b-a3b", "model.layers.0.mlp.experts.down_proj", 1, "128x2048x768", 0 },
		{ "deepseek-v3", "model.layers.3.mlp.experts.gate_up_proj", 0, "256x7168x4096", 0 },
		{ "deepseek-v3", "model.layers.3.mlp.experts.gate_up_proj_scale_inv", 0,
		  "256x32x56", 0 },
		{ "glm-4.5-air", "model.layers.1.mlp.experts.down_proj", 1, "128x4096x1408", 0 },
		{ "llama-3.1-8b", "model.layers.0.self_attn.linear_qkv.weight", 0, "6144x4096", 8 },
		{ "qwen2.5-7b", "model.layers.0.self_attn.linear_qkv.bias", 0, "4608", 4 },
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		struct ws_layout *l =
			make_layout(cases[i].model, 0, &(struct ws_layout_opts){ .tp = 1 });
		if (!alias_has(l, cases[i].name, cases[i].meaning, cases[i].shape, cases[i].groups))
			fail_msg("%s: %s is not %s", cases[i].model, cases[i].name, cases[i].shape);
		assert_null(ws_layout_find_alias(l, cases[i].name, 2));
		ws_layout_free(l);
	}
}

TEST(trainers_names_become_those_of_checkpoints)
{
	static const struct { const char *family, *from, *to; } cases[] = {
		{ "llama", "module.module.decoder.layers.3.self_attention.linear_proj.weight",
		  "model.layers.3.self_attn.o_proj.weight" },
		{ "qwen3",
		  "_orig_mod.model.layers.0._checkpoint_wrapped_module.self_attn.q_proj.weight",
		  "model.layers.0.self_attn.q_proj.weight" },
		{ "qwen3_moe", "decoder.layers.0.self_attention.linear_qkv.layer_norm_weight",
		  "model.layers.0.input_layernorm.weight" },
		{ "qwen2", "decoder.layers.1.self_attention.linear_qkv.bias",
		  "model.layers.1.self_attn.linear_qkv.bias" },
		{ "mistral", "decoder.layers.9.mlp.linear_fc1.weight",
		  "model.layers.9.mlp.gate_up_proj.weight" },
		{ "deepseek_v3",
		  "decoder.layers.5.self_attention.linear_q_up_proj.layer_norm_weight",
		  "model.layers.5.self_attn.q_a_layernorm.weight" },
		{ "glm4_moe", "module.decoder.layers.5.mlp.router.expert_bias",
		  "model.layers.5.mlp.gate.e_score_correction_bias" },
		{ "gpt_oss", "embedding.word_embeddings.weight", "model.embed_tokens.weight" },
		{ "qwen3_next", "model.layers.0.linear_attn.o_norm.weight",
		  "model.layers.0.linear_attn.norm.weight" },
		{ "qwen3_next", "model.layers.0.linear_attn.b_proj.weight",
		  "model.layers.0.linear_attn.in_proj_b.weight" },
		{ "qwen3_next", "model.layers.3.self_attn.o_proj.weight",
		  "model.layers.3.self_attn.o_proj.weight" },
		{ "nemotron_h", "model.layers.3.mixer.experts.7.up_proj.weight",
		  "backbone.layers.3.mixer.experts.7.up_proj.weight" },
		{ "nemotron_h", "lm_head.weight", "lm_head.weight" },
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		char name[256];
		const struct ws_family *f = ws_namemap_named(map, cases[i].family);
		assert_non_null(f);
		assert_non_null(ws_family_rename(f, cases[i].from, name, sizeof name));
		assert_string_equal(name, cases[i].to);
	}
}

static struct ws_config *parse_config(const char *text)
{
	struct ws_err err = WS_ERR_INIT;
	struct ws_config *c = NULL;
	if (ws_config_parse(text, strlen(text), "config.json", &c, &err) < 0)
		fail_msg("%s", err.msg);
	return c;
}

static const char *find_family(const char *text)
{
	struct ws_config *c = parse_config(text);
	const struct ws_family *f = ws_namemap_find(map, c);
	ws_config_free(c);
	return f ? ws_family_name(f) : "none";
}

TEST(families_are_found_by_architecture_and_by_type)
{
	assert_string_equal(find_family("{\"model_type\":\"kimi_k2\"}"), "deepseek_v3");
	assert_string_equal(find_family("{\"architectures\":[\"DeepseekV32ForCausalLM\"]}"),
	                    "deepseek_v32");
	assert_string_equal(find_family("{\"architectures\":[\"X\"],\"model_type\":\"y\","
	                                "\"text_config\":{\"model_type\":\"qwen2\"}}"), "qwen2");
	assert_string_equal(find_family("{\"model_type\":\"nemotron_h\"}"), "nemotron_h");
	assert_string_equal(find_family("{\"model_type\":\"gpt2\"}"), "none");
}

TEST(some_families_are_only_their_trainers_names)
{
	const struct ws_layout_opts opts = { .tp = 4, .ep = 2 };
	struct ws_config *c = parse_config("{\"architectures\":[\"Qwen3NextForCausalLM\"]}");
	const struct ws_family *next = ws_namemap_find(map, c);
	struct ws_layout *l = NULL;
	struct ws_err err = WS_ERR_INIT;
	assert_false(ws_family_has_params(next));
	assert_true(ws_family_has_params(ws_namemap_named(map, "glm4_moe")));
	assert_int_equal(next->n_joins, 2);
	assert_int_equal(next->joins[0].n_parts, 3);
	assert_int_equal(ws_layout_make(next, c, &opts, &l, &err), 0);
	assert_int_equal(ws_layout_param_count(l), 0);
	assert_non_null(ws_layout_skips(l, "model.layers.0.self_attn.rotary_emb.inv_freq"));
	ws_layout_free(l);
	ws_config_free(c);
}

RUN_TESTS(open_map, close_map)
