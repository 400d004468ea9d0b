/* SPDX-License-Identifier: Apache-2.0 */
/* An endpoint with a model: which names and tensors are taken, and what the routes then tell. */
#include "number.h"
#include "serve_call.h"
#include "serve_small.h"

#include <inttypes.h>

/* ---- names ---- */

static const struct ws_serve_part_state *state_of(const char *name)
{
	const struct ws_part *p = ws_layout_find_part(model->layout, name);
	assert_non_null(p);
	return &model->parts[p - ws_layout_part(model->layout, 0)];
}

static void assert_action(const char *name, enum ws_serve_load_action action, const char *says)
{
	struct ws_serve_load_decision v;
	ws_serve_model_decide(model, name, &v);
	if (v.action != action || (says && strcmp(v.why, says) != 0))
		fail_msg("%s: action %d, '%s'", name, (int)v.action, v.why);
}

WITH_MODEL(llama_logs_unknown_names_but_for_its_fragments)
{
	open_model(llama, 2, 1);
	assert_action("model.norm.weight", WS_ACTION_LOAD, NULL);
	assert_action("model.layers.0.self_attn.qkv_proj.weight", WS_ACTION_LOAD, NULL);
	assert_action("model.layers.1.mlp.gate_up_proj.weight", WS_ACTION_LOAD, NULL);
	assert_action("transformer.norm.weight", WS_ACTION_IGNORE,
	              "Parameter transformer.norm.weight not found in params_dict");
	assert_action("module.model.layers.0.self_attn.q_proj.weight", WS_ACTION_REFUSE,
	              "'module.model.layers.0.self_attn.qkv_proj.weight'");
	assert_action("model.layers.0.self_attn.q_proj.bias", WS_ACTION_IGNORE, "");
	assert_action("model.layers.0.self_attn.rotary_emb.inv_freq", WS_ACTION_IGNORE, NULL);
	assert_action("model.layers.2.mlp.up_proj.weight", WS_ACTION_IGNORE, NULL);
	assert_action("", WS_ACTION_IGNORE, NULL);
}

WITH_MODEL(qwen3_finds_fragments_in_fused_names)
{
	open_model(qwen3, 1, 1);
	assert_action("model.layers.0.mlp.gate_up_proj.weight", WS_ACTION_REFUSE,
	              "'model.layers.0.mlp.gate_gate_up_proj.weight'");
	assert_action("model.layers.0.self_attn.qkv_proj.weight", WS_ACTION_REFUSE,
	              "'model.layers.0.self_attn.qkqkv_proj.weight'");
	assert_action("lm_head.weight", WS_ACTION_IGNORE, NULL);
}

WITH_MODEL(qwen3_moe_says_nothing)
{
	open_model(qwen3_moe, 1, 1);
	assert_action("model.layers.0.self_attn.qkv_proj.weight", WS_ACTION_IGNORE, "");
	assert_action("layers.0.self_attn.q_proj.weight", WS_ACTION_IGNORE, "");
	assert_action("model.layers.1.mlp.experts.8.up_proj.weight", WS_ACTION_IGNORE, "");
	assert_action("model.layers.1.mlp.experts.w13_weight", WS_ACTION_REFUSE, NULL);
}

WITH_MODEL(deepseek_misses_the_gate_and_forgets_half_a_pair)
{
	static const char q_a[] = "model.layers.1.self_attn.q_a_proj.weight";
	static const char kv_a[] = "model.layers.1.self_attn.kv_a_proj_with_mqa.weight";
	open_model(deepseek, 2, 1);
	assert_action("layers.0.mlp.gate_proj.weight", WS_ACTION_REFUSE,
	              "'layers.0.mlp.gate_up_proj.weight'");
	assert_action("layers.0.self_attn.o_proj.weight", WS_ACTION_IGNORE, NULL);
	assert_action("model.layers.2.embed_tokens.weight", WS_ACTION_IGNORE, NULL);
	assert_action("model.layers.1.self_attn.fused_qkv_a_proj_with_mqa.weight", WS_ACTION_IGNORE,
	              NULL);
	put(q_a, 24, 32);
	assert_false(send());
	put(kv_a, 18, 32);
	assert_false(send());
	assert_int_equal(load.ignored, 1);
	assert_string_equal(load.ignored_names, kv_a);
	assert_false(state_of(q_a)->loaded || state_of(kv_a)->loaded);
	put(kv_a, 18, 32);
	put("model.norm.weight", 32, 0);
	put(q_a, 24, 32);
	assert_false(send());
	assert_true(state_of(q_a)->loaded && state_of(kv_a)->loaded);
}

/* ---- what is refused, and when ---- */

WITH_MODEL(what_stands_before_the_wrong_tensor_is_loaded)
{
	open_model(llama, 2, 1);
	put("model.layers.0.input_layernorm.weight", 48, 0);
	put("unheard.of", 3, 0);
	/* padded, as a server has it and nobody sends it */
	put("model.embed_tokens.weight", 128, 48);
	put("model.norm.weight", 48, 0);
	assert_true(send());
	assert_string_equal(load.why.msg,
	                    "shape mismatch for 'model.embed_tokens.weight': the parameter "
	                    "is [100, 48], the loaded weight is [128, 48]");
	assert_int_equal(load.loaded, 1);
	assert_int_equal(load.ignored, 1);
	assert_true(state_of("model.layers.0.input_layernorm.weight")->loaded);
	assert_false(state_of("model.norm.weight")->loaded);
}

WITH_MODEL(a_type_that_is_no_number_is_refused)
{
	open_model(llama, 2, 1);
	put("model.norm.weight", 48, 0);
	tensors[0].slot.dtype = WS_DTYPE_C64;
	tensors[0].slot.dtype_name = "complex64";
	tensors[0].slot.bytes = 0;
	assert_true(send());
	assert_string_equal(
		load.why.msg,
		"'model.norm.weight' is complex64 and cannot be copied into a parameter of "
		"bfloat16");
}

WITH_MODEL(a_hash_shows_which_rank_has_another_copy)
{
	struct ws_serve_gather g;
	uint64_t before[2], after[2];
	open_model(llama, 2, 1);
	put("model.norm.weight", 48, 0);
	assert_false(send());
	const struct ws_part *p = ws_layout_find_part(model->layout, "model.norm.weight");
	ws_serve_gather_begin(&g, model, p, WS_DTYPE_BF16);
	assert_true(g.replicated);
	ws_serve_gather_hash(&g, before);
	ws_serve_model_at(model, p->param, 0)[0] ^= 1;
	ws_serve_gather_hash(&g, after);
	assert_true(before[0] == before[1] && after[1] == before[1] && after[0] != before[0]);
}

/* ---- the routes ---- */

static struct ws_serve *serve;
static struct ws_serve_reply reply;

static void start(const struct ws_serve_opts *opts)
{
	struct ws_err err = WS_ERR_INIT;
	ws_serve_stop(serve);
	serve = NULL;
	if (ws_serve_new(opts, &serve, &err))
		fail_msg("%s", err.msg);
	model = serve->model;
	tp = serve->opts.tp;
	ep = serve->opts.ep;
}

static int stop(void **state)
{
	drop_tensors();
	ws_serve_load_fini(&load);
	ws_buf_free(&reply.body);
	ws_serve_stop(serve);
	serve = NULL;
	model = NULL;
	return scratch_leave(state);
}

#define WITH_ROUTES(name) TEST_BETWEEN(name, scratch_enter, stop)

static const char *asked_rank(const void *ctx, const char *key)
{
	return strcmp(key, "rank") == 0 ? ctx : NULL;
}

static void forget(const char *name)
{
	for (size_t i = 0; i < n_tensors; i++)
		if (strcmp(tensors[i].slot.name, name) == 0) {
			free(tensors[i].bytes);
			tensors[i] = tensors[--n_tensors];
			return;
		}
	fail_msg("no tensor %s", name);
}

static const char *ask(const char *path, const char *body, unsigned status, const char *rank)
{
	const struct ws_serve_request rq = {
		.method = body ? "POST" : "GET", .path = path, .body = body ? body : "",
		.body_len = body ? strlen(body) : 0, .query = asked_rank, .query_ctx = rank,
	};
	ws_buf_free(&reply.body);
	ws_serve_handle(serve, &rq, &reply);
	if (reply.status != status)
		fail_msg("%s %s: %u, %s", path, body ? body : "", reply.status,
		         ws_buf_str(&reply.body));
	return ws_buf_str(&reply.body);
}

static void assert_has(const char *in, const char *part)
{
	if (!strstr(in, part))
		fail_msg("'%s' lacks '%s'", in, part);
}

WITH_ROUTES(information_is_that_of_the_config)
{
	write_config(qwen3_moe);
	start(&(struct ws_serve_opts){ .model = ".", .tp = 4, .ep = 2 });
	const char *said = ask("/server_info", NULL, 200, NULL);
	assert_has(said, "\"model_path\":\".\"");
	assert_has(said, "\"tp_size\":4");
	assert_has(said, "\"ep_size\":2");
	assert_has(said, "\"dtype\":\"bfloat16\"");
	assert_has(said, "\"quantization\":null");
	said = ask("/model_info", NULL, 200, NULL);
	assert_has(said,
	           "\"model_type\":\"qwen3_moe\",\"architectures\":[\"Qwen3MoeForCausalLM\"]");
}

WITH_ROUTES(a_dtype_replaces_that_of_the_config)
{
	struct ws_err err = WS_ERR_INIT;
	write_config(deepseek);
	start(&(struct ws_serve_opts){ .model = ".", .dtype = "half" });
	assert_has(ask("/server_info", NULL, 200, NULL), "\"dtype\":\"half\"");
	const char *said = ask("/list_weights", NULL, 200, NULL);
	assert_has(said, "\"name\":\"model.norm.weight\",\"shape\":[32],\"dtype\":\"float16\"");
	assert_has(said, "e_score_correction_bias\",\"shape\":[8],\"dtype\":\"float32\"");
	assert_int_equal(ws_serve_model_open(".", 0, 1, 1, "int8", NULL, true, &model, &err), -1);
	assert_int_equal(ws_serve_model_open(".", 0, 1, 1, "wide", NULL, true, &model, &err), -1);
	assert_int_equal(err.code, WS_EUSAGE);
}

WITH_ROUTES(a_listing_shows_local_shapes_of_the_rank)
{
	write_config(qwen3);
	start(&(struct ws_serve_opts){ .model = ".", .tp = 8 });
	const char *said = ask("/list_weights", NULL, 200, "7");
	assert_has(said,
	           "\"name\":\"model.layers.1.self_attn.qkv_proj.weight\",\"shape\":[18,32],");
	assert_has(
		said,
		"\"name\":\"model.embed_tokens.weight\",\"shape\":[16,32],\"dtype\":\"bfloat16\"");
	assert_null(strstr(said, "lm_head"));
	assert_null(strstr(said, "\"received\""));
	assert_has(ask("/list_weights", NULL, 200, "99"), "\"shape\":[18,32]");
	ask("/list_weights", NULL, 400, "x");
	start(&(struct ws_serve_opts){ 0 });
	assert_has(ask("/list_weights", NULL, 200, NULL), "\"received\":true");
}

WITH_ROUTES(checksums_are_of_what_was_loaded)
{
	char want[80];
	write_config(qwen3);
	start(&(struct ws_serve_opts){ .model = ".", .tp = 2 });
	assert_has(ask("/weights_checker", NULL, 200, NULL), "\"checksums\":{}");
	put("model.embed_tokens.weight", 70, 32);
	snprintf(want, sizeof want, "\"%016" PRIx64 "\"",
	         ws_hash64(tensors[0].bytes, (size_t)tensors[0].slot.bytes));
	assert_false(send());
	const char *said = ask("/weights_checker", NULL, 200, NULL);
	/* The head is the embedding: whoever sent both finds both. */
	char names[300];
	snprintf(names, sizeof names, "\"checksums\":{\"lm_head.weight\":%s,"
	         "\"model.embed_tokens.weight\":%s}", want, want);
	assert_has(said, names);
}

WITH_ROUTES(a_reset_is_found_by_compare)
{
	write_config(qwen3_moe);
	start(&(struct ws_serve_opts){ .model = ".", .tp = 2, .ep = 2 });
	put_all();
	assert_false(send());
	assert_has(ask("/weights_checker", "{\"action\":\"compare\"}", 400, NULL), "no snapshot");
	ask("/weights_checker", "{\"action\":\"snapshot\"}", 200, NULL);
	ask("/weights_checker", "{\"action\":\"compare\"}", 200, NULL);
	ask("/weights_checker", "{\"action\":\"reset_tensors\"}", 200, NULL);
	const char *said = ask("/weights_checker", "{\"action\":\"compare\"}", 400, NULL);
	assert_has(said, "check tensor equality failed:\\nname=model.");
	assert_has(said, " more\"");
	put_all();
	assert_false(send());
	ask("/weights_checker", "{\"action\":\"compare\"}", 200, NULL);
	/* One that no update writes is found alone. */
	ask("/weights_checker", "{\"action\":\"reset_tensors\"}", 200, NULL);
	put_all();
	forget("lm_head.weight");
	assert_false(send());
	said = ask("/weights_checker", "{\"action\":\"compare\"}", 400, NULL);
	assert_has(said, "failed:\\nname=lm_head.weight tp_rank=0 element=0 expect=");
	assert_null(strstr(said, "name=model."));
}

WITH_ROUTES(numbers_are_rows_of_the_full_tensor)
{
	char want[400] = "[[", one[32];
	write_config(qwen3);
	start(&(struct ws_serve_opts){ .model = ".", .tp = 4 });
	put_all();
	assert_false(send());
	for (uint64_t i = 0; i < 6; i++) {
		snprintf(one, sizeof one, "%s%.9g", i ? "," : "",
		         ws_number_from_bf16(element("model.layers.0.self_attn.k_proj.weight", i)));
		strcat(want, one);
	}
	assert_has(ask("/get_weights_by_name",
	               "{\"name\":\"model.layers.0.self_attn.k_proj.weight\","
	               "\"truncate_size\":2}",
	               200, NULL),
	           want);
	unsigned rows = 0;
	for (const char *at = ws_buf_str(&reply.body); *at; at++)
		rows += *at == ']';
	assert_int_equal(rows, 3);
	ask("/get_weights_by_name", "{\"name\":\"model.norm.weight\",\"truncate_size\":-31}", 200,
	    NULL);
	assert_null(strchr(ws_buf_str(&reply.body), ','));
	assert_string_equal(ask("/get_weights_by_name", "{\"name\":\"x\"}", 400, NULL),
	                    "{\"error\":{\"message\":\"Get parameter by name failed\"}}");
	assert_has(ask("/get_weights_by_name", "{}", 400, NULL), "body.name: Field required");
}

WITH_ROUTES(hashes_alone_know_names_and_shapes)
{
	write_config(qwen3);
	start(&(struct ws_serve_opts){ .model = ".", .tp = 2, .keep = WS_KEEP_HASH });
	assert_null(serve->model->memory[0]);
	assert_has(ask("/list_weights", NULL, 200, NULL), "\"data_ptr\":0");
	assert_has(ask("/weights_checker", "{\"action\":\"snapshot\"}", 400, NULL),
	           "keeps only hashes");
	ask("/get_weights_by_name", "{\"name\":\"model.norm.weight\"}", 400, NULL);
	put("model.norm.weight", 32, 0);
	put("unknown", 1, 0);
	assert_false(send());
	assert_int_equal(load.loaded, 1);
}

RUN_TESTS(NULL, NULL)
