/* SPDX-License-Identifier: Apache-2.0 */
/* model_config.c - config.json of a synthetic model, so that a server can be started on it. */
#include "synthetic.h"

#include "wsync/tool/json.h"

static void qwen3(struct ws_jw *w, const struct ws_model *m)
{
	ws_jw_int(w, "num_key_value_heads", m->kv_heads);
	ws_jw_int(w, "head_dim", m->head_dim);
	ws_jw_bool(w, "attention_bias", false);
	ws_jw_int(w, "bos_token_id", 151643);
	ws_jw_int(w, "rope_theta", 1000000);
	ws_jw_null(w, "rope_scaling");
	if (m->family != WS_FAMILY_QWEN3_MOE)
		return;
	ws_jw_int(w, "moe_intermediate_size", m->moe_intermediate);
	ws_jw_int(w, "num_experts", m->experts);
	ws_jw_int(w, "num_experts_per_tok", 8);
	ws_jw_int(w, "decoder_sparse_step", 1);
	ws_jw_array(w, "mlp_only_layers");
	ws_jw_end_array(w);
	ws_jw_bool(w, "norm_topk_prob", true);
}

static void llama(struct ws_jw *w, const struct ws_model *m)
{
	ws_jw_int(w, "num_key_value_heads", m->kv_heads);
	ws_jw_int(w, "head_dim", m->head_dim);
	ws_jw_bool(w, "attention_bias", false);
	ws_jw_bool(w, "mlp_bias", false);
	ws_jw_int(w, "bos_token_id", 128000);
	ws_jw_int(w, "rope_theta", 500000);
	ws_jw_object(w, "rope_scaling");
	ws_jw_str(w, "rope_type", "llama3");
	ws_jw_int(w, "factor", 8);
	ws_jw_int(w, "low_freq_factor", 1);
	ws_jw_int(w, "high_freq_factor", 4);
	ws_jw_int(w, "original_max_position_embeddings", 8192);
	ws_jw_end_object(w);
}

/* Keys that all models with shared experts have. */
static void routing(struct ws_jw *w, const struct ws_model *m, int groups, int chosen)
{
	ws_jw_int(w, "moe_intermediate_size", m->moe_intermediate);
	ws_jw_int(w, "n_routed_experts", m->experts);
	ws_jw_int(w, "n_shared_experts", 1);
	ws_jw_int(w, "num_experts_per_tok", 8);
	ws_jw_int(w, "first_k_dense_replace", m->dense_layers);
	ws_jw_int(w, "n_group", groups);
	ws_jw_int(w, "topk_group", chosen);
	ws_jw_bool(w, "norm_topk_prob", true);
	ws_jw_int(w, "num_nextn_predict_layers", m->nextn_layers);
}

static void glm4_moe(struct ws_jw *w, const struct ws_model *m)
{
	ws_jw_int(w, "num_key_value_heads", m->kv_heads);
	ws_jw_int(w, "head_dim", m->head_dim);
	ws_jw_bool(w, "attention_bias", true);
	ws_jw_bool(w, "use_qk_norm", false);
	ws_jw_double(w, "partial_rotary_factor", 0.5);
	ws_jw_int(w, "rope_theta", 1000000);
	ws_jw_null(w, "rope_scaling");
	routing(w, m, 1, 1);
	ws_jw_double(w, "routed_scaling_factor", 1.0);
}

static void yarn(struct ws_jw *w, const char *key, int factor)
{
	ws_jw_str(w, key, "yarn");
	ws_jw_int(w, "factor", factor);
	ws_jw_int(w, "beta_fast", 32);
	ws_jw_int(w, "beta_slow", 1);
	ws_jw_int(w, "original_max_position_embeddings", 4096);
}

static void gpt_oss(struct ws_jw *w, const struct ws_model *m)
{
	static const char *const skip[] = { "model.layers.*.self_attn", "model.layers.*.mlp.router",
		                            "model.embed_tokens", "lm_head" };
	ws_jw_int(w, "num_key_value_heads", m->kv_heads);
	ws_jw_int(w, "head_dim", m->head_dim);
	ws_jw_bool(w, "attention_bias", true);
	ws_jw_int(w, "num_local_experts", m->experts);
	ws_jw_int(w, "num_experts_per_tok", 4);
	ws_jw_double(w, "swiglu_limit", 7.0);
	ws_jw_int(w, "sliding_window", 128);
	ws_jw_int(w, "rope_theta", 150000);
	ws_jw_object(w, "rope_scaling");
	yarn(w, "rope_type", 32);
	ws_jw_bool(w, "truncate", false);
	ws_jw_end_object(w);
	ws_jw_object(w, "quantization_config");
	ws_jw_str(w, "quant_method", "mxfp4");
	ws_jw_strs(w, "modules_to_not_convert", skip, sizeof skip / sizeof skip[0]);
	ws_jw_end_object(w);
}

static void deepseek_rope(struct ws_jw *w)
{
	ws_jw_int(w, "rope_theta", 10000);
	ws_jw_object(w, "rope_scaling");
	yarn(w, "type", 40);
	ws_jw_int(w, "mscale", 1);
	ws_jw_int(w, "mscale_all_dim", 1);
	ws_jw_end_object(w);
}

static void deepseek_v3(struct ws_jw *w, const struct ws_model *m)
{
	ws_jw_int(w, "num_key_value_heads", m->kv_heads);
	ws_jw_int(w, "q_lora_rank", m->q_rank);
	ws_jw_int(w, "kv_lora_rank", m->kv_rank);
	ws_jw_int(w, "qk_nope_head_dim", m->nope_dim);
	ws_jw_int(w, "qk_rope_head_dim", m->rope_dim);
	ws_jw_int(w, "v_head_dim", m->v_dim);
	routing(w, m, 8, 4);
	ws_jw_int(w, "moe_layer_freq", 1);
	ws_jw_str(w, "topk_method", "noaux_tc");
	ws_jw_str(w, "scoring_func", "sigmoid");
	ws_jw_double(w, "routed_scaling_factor", 2.5);
	ws_jw_int(w, "bos_token_id", 0);
	deepseek_rope(w);
	ws_jw_object(w, "quantization_config");
	ws_jw_str(w, "quant_method", "fp8");
	ws_jw_str(w, "fmt", "e4m3");
	ws_jw_str(w, "activation_scheme", "dynamic");
	ws_jw_array(w, "weight_block_size");
	ws_jw_int(w, NULL, 128);
	ws_jw_int(w, NULL, 128);
	ws_jw_end_array(w);
	ws_jw_end_object(w);
}

int ws_model_config(const struct ws_model *m, struct ws_buf *out, struct ws_err *err)
{
	static const struct {
		const char *architecture, *type;
		void (*rest)(struct ws_jw *, const struct ws_model *);
	} families[] = {
		[WS_FAMILY_LLAMA] = { "LlamaForCausalLM", "llama", llama },
		[WS_FAMILY_QWEN3] = { "Qwen3ForCausalLM", "qwen3", qwen3 },
		[WS_FAMILY_QWEN3_MOE] = { "Qwen3MoeForCausalLM", "qwen3_moe", qwen3 },
		[WS_FAMILY_DEEPSEEK_V3] = { "DeepseekV3ForCausalLM", "deepseek_v3", deepseek_v3 },
		[WS_FAMILY_GLM4_MOE] = { "Glm4MoeForCausalLM", "glm4_moe", glm4_moe },
		[WS_FAMILY_GPT_OSS] = { "GptOssForCausalLM", "gpt_oss", gpt_oss },
	};
	struct ws_jw w;
	ws_jw_init(&w, out);
	ws_jw_object(&w, NULL);
	ws_jw_array(&w, "architectures");
	ws_jw_str(&w, NULL, families[m->family].architecture);
	ws_jw_end_array(&w);
	ws_jw_str(&w, "model_type", families[m->family].type);
	ws_jw_str(&w, "torch_dtype", "bfloat16");
	ws_jw_str(&w, "hidden_act", "silu");
	ws_jw_int(&w, "vocab_size", m->vocab);
	ws_jw_int(&w, "hidden_size", m->hidden);
	ws_jw_int(&w, "intermediate_size", m->intermediate);
	ws_jw_int(&w, "num_hidden_layers", m->layers);
	ws_jw_int(&w, "num_attention_heads", m->heads);
	ws_jw_int(&w, "max_position_embeddings", m->position);
	ws_jw_int(&w, "eos_token_id", m->eos);
	ws_jw_bool(&w, "tie_word_embeddings", m->tied);
	ws_jw_double(&w, "rms_norm_eps", 1e-6);
	families[m->family].rest(&w, m);
	ws_jw_end_object(&w);
	ws_buf_putc(out, '\n');
	return ws_buf_check(out, "config.json", err);
}
