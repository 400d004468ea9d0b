/* SPDX-License-Identifier: Apache-2.0 */
/* References: how they are found and refused, and the bytes of tensors that are spelled otherwise
 * than theirs. */
#include "scratch.h"
#include "tensor_file.h"

#include "wsync/tool/name_check_run.h"
#include "wsync/tool/str.h"

#include <sys/stat.h>

/* ---- checkpoints ----------------------------------------------------------------------------- */

struct entry {
	const char *name, *shape; /* "[4,6]" */
	unsigned elements;
};

/* Tensor i has the numbers 1000 * i, 1000 * i + 1, ... in int32. */
static void put_tensors(const char *dir, const struct entry *e, const char *config)
{
	char path[128];
	mkdir(dir, 0700);
	snprintf(path, sizeof path, "%s/model.safetensors", dir);
	struct tensor_file f = tensor_file_begin(path);
	for (size_t i = 0; e[i].name; i++)
		tensor_file_entry(&f, e[i].name, "I32", e[i].shape, 4 * (uint64_t)e[i].elements);
	tensor_file_data(&f);
	for (size_t i = 0; e[i].name; i++)
		for (unsigned k = 0; k < e[i].elements; k++) {
			const int32_t v = (int32_t)(1000 * i + k);
			assert_int_equal(fwrite(&v, sizeof v, 1, f.f), 1);
		}
	tensor_file_end(&f);
	snprintf(path, sizeof path, "%s/config.json", dir);
	if (config)
		put_text(path, config);
}

static int open_like(const char *source, const char *like, struct ws_input *in, struct ws_err *err)
{
	const struct ws_input_opts opts = { .paths = &source, .n_paths = 1, .like = like };
	*err = (struct ws_err)WS_ERR_INIT;
	return ws_input_open(&opts, in, err);
}

static void expect_numbers(const struct ws_input *in, const char *name, unsigned n_dims,
                           const int64_t *dims, const int32_t *want)
{
	const struct ws_item *item = ws_catalog_find(in->catalog, name);
	struct ws_err err = WS_ERR_INIT;
	int32_t got[256];
	if (!item)
		fail_msg("there is no %s", name);
	assert_int_equal(item->n_dims, n_dims);
	assert_memory_equal(item->dims, dims, n_dims * sizeof *dims);
	assert_true(item->bytes <= sizeof got);
	assert_ok(ws_item_read(item, 0, got, item->bytes, &err), &err);
	for (uint64_t i = 0; i < item->bytes / 4; i++)
		if (got[i] != want[i])
			fail_msg("%s[%d]: %d, and not %d", name, (int)i, got[i], want[i]);
}

#define D(...)                                                                                     \
	(const int64_t[])                                                                          \
	{                                                                                          \
		__VA_ARGS__                                                                        \
	}
#define N(...)                                                                                     \
	(const int32_t[])                                                                          \
	{                                                                                          \
		__VA_ARGS__                                                                        \
	}

/* ---- bytes ----------------------------------------------------------------------------------- */

SCRATCH_TEST(experts_one_by_one_become_the_stacks_of_the_reference)
{
	struct ws_input in;
	struct ws_err err;
	put_tensors("ref",
	            (const struct entry[]){ { "m.experts.gate_up_proj", "[2,4,3]", 24 },
	                                    { "m.experts.down_proj", "[2,3,2]", 12 },
	                                    { NULL, NULL, 0 } },
	            NULL);
	put_tensors("src",
	            (const struct entry[]){ { "m.experts.1.up_proj.weight", "[2,3]", 6 },
	                                    { "m.experts.0.gate_proj.weight", "[2,3]", 6 },
	                                    { "m.experts.1.gate_proj.weight", "[2,3]", 6 },
	                                    { "m.experts.0.up_proj.weight", "[2,3]", 6 },
	                                    { "m.experts.0.down_proj.weight", "[3,2]", 6 },
	                                    { "m.experts.1.down_proj.weight", "[3,2]", 6 },
	                                    { NULL, NULL, 0 } },
	            NULL);
	assert_ok(open_like("src", "ref", &in, &err), &err);
	assert_int_equal(ws_catalog_count(in.catalog), 2);
	expect_numbers(&in, "m.experts.gate_up_proj", 3, D(2, 4, 3),
	               N(1000, 1001, 1002, 1003, 1004, 1005, 3000, 3001, 3002, 3003, 3004, 3005,
	                 2000, 2001, 2002, 2003, 2004, 2005, 0, 1, 2, 3, 4, 5));
	expect_numbers(&in, "m.experts.down_proj", 3, D(2, 3, 2),
	               N(4000, 4001, 4002, 4003, 4004, 4005, 5000, 5001, 5002, 5003, 5004, 5005));
	ws_input_close(&in);
}

SCRATCH_TEST(stacks_become_the_experts_of_the_reference)
{
	struct ws_input in;
	struct ws_err err;
	put_tensors("ref",
	            (const struct entry[]){ { "m.experts.0.w1.weight", "[1,2]", 2 },
	                                    { "m.experts.1.w1.weight", "[1,2]", 2 },
	                                    { "m.experts.0.w3.weight", "[1,2]", 2 },
	                                    { "m.experts.1.w3.weight", "[1,2]", 2 },
	                                    { "m.experts.0.w2.weight", "[2,1]", 2 },
	                                    { "m.experts.1.w2.weight", "[2,1]", 2 },
	                                    { NULL, NULL, 0 } },
	            NULL);
	put_tensors("src",
	            (const struct entry[]){ { "m.experts.gate_up_proj", "[2,2,2]", 8 },
	                                    { "m.experts.down_proj", "[2,1,2]", 4 },
	                                    { NULL, NULL, 0 } },
	            NULL);
	/* gate_up_proj has equal sizes: down_proj says that both are [expert, inputs, outputs] */
	assert_ok(open_like("src", "ref", &in, &err), &err);
	expect_numbers(&in, "m.experts.0.w1.weight", 2, D(1, 2), N(0, 2));
	expect_numbers(&in, "m.experts.0.w3.weight", 2, D(1, 2), N(1, 3));
	expect_numbers(&in, "m.experts.1.w1.weight", 2, D(1, 2), N(4, 6));
	expect_numbers(&in, "m.experts.1.w2.weight", 2, D(2, 1), N(1002, 1003));
	ws_input_close(&in);
}

SCRATCH_TEST(a_stack_that_may_be_either_way_round_is_refused)
{
	struct ws_input in;
	struct ws_err err;
	put_tensors("ref",
	            (const struct entry[]){ { "m.experts.0.w1.weight", "[1,2]", 2 },
	                                    { "m.experts.1.w1.weight", "[1,2]", 2 },
	                                    { "m.experts.0.w3.weight", "[1,2]", 2 },
	                                    { "m.experts.1.w3.weight", "[1,2]", 2 },
	                                    { NULL, NULL, 0 } },
	            NULL);
	put_tensors("src",
	            (const struct entry[]){ { "m.experts.gate_up_proj", "[2,2,2]", 8 },
	                                    { NULL, NULL, 0 } },
	            NULL);
	assert_int_equal(open_like("src", "ref", &in, &err), -1);
	assert_int_equal(err.code, WS_EINPUT);
	assert_non_null(strstr(err.msg, "the shape does not decide"));
}

/* Of a checkpoint that has its stacks [expert, inputs, outputs]; in memory they are not. */
SCRATCH_TEST(a_stack_of_equal_sizes_is_turned_as_its_neighbour)
{
	struct ws_input in;
	struct ws_err err;
	put_tensors("ref",
	            (const struct entry[]){ { "m.experts.gate_up_proj", "[1,2,2]", 4 },
	                                    { "m.experts.down_proj", "[1,1,2]", 2 },
	                                    { NULL, NULL, 0 } },
	            NULL);
	put_tensors("src",
	            (const struct entry[]){ { "m.experts.gate_up_proj", "[1,2,2]", 4 },
	                                    { "m.experts.down_proj", "[1,2,1]", 2 },
	                                    { NULL, NULL, 0 } },
	            NULL);
	assert_ok(open_like("src", "ref", &in, &err), &err);
	expect_numbers(&in, "m.experts.gate_up_proj", 3, D(1, 2, 2), N(0, 2, 1, 3));
	expect_numbers(&in, "m.experts.down_proj", 3, D(1, 1, 2), N(1000, 1001));
	ws_input_close(&in);
}

SCRATCH_TEST(parts_become_the_fused_tensor_of_the_reference)
{
	struct ws_input in;
	struct ws_err err;
	put_tensors("ref",
	            (const struct entry[]){ { "a.qkv_proj.weight", "[4,2]", 8 },
	                                    { "a.gate_up_proj.bias", "[4]", 4 },
	                                    { NULL, NULL, 0 } },
	            NULL);
	put_tensors("src",
	            (const struct entry[]){ { "a.k_proj.weight", "[1,2]", 2 },
	                                    { "a.q_proj.weight", "[2,2]", 4 },
	                                    { "a.v_proj.weight", "[1,2]", 2 },
	                                    { "a.up_proj.bias", "[2]", 2 },
	                                    { "a.gate_proj.bias", "[2]", 2 },
	                                    { NULL, NULL, 0 } },
	            NULL);
	assert_ok(open_like("src", "ref", &in, &err), &err);
	expect_numbers(&in, "a.qkv_proj.weight", 2, D(4, 2),
	               N(1000, 1001, 1002, 1003, 0, 1, 2000, 2001));
	expect_numbers(&in, "a.gate_up_proj.bias", 1, D(4), N(4000, 4001, 3000, 3001));
	ws_input_close(&in);
}

SCRATCH_TEST(permuted_segments_are_put_in_order)
{
	struct ws_input in;
	struct ws_err err;
	put_tensors("ref",
	            (const struct entry[]){ { "m.experts.0.up_proj.weight", "[1,2]", 2 },
	                                    { "m.experts.1.up_proj.weight", "[1,2]", 2 },
	                                    { "m.experts.0.down_proj.weight", "[2,1]", 2 },
	                                    { "m.experts.1.down_proj.weight", "[2,1]", 2 },
	                                    { NULL, NULL, 0 } },
	            NULL);
	put_tensors("src",
	            (const struct entry[]){ { "m.experts.up_proj.0.weight", "[1,2]", 2 },
	                                    { "m.experts.up_proj.1.weight", "[1,2]", 2 },
	                                    { "m.experts.down_proj.0.weight", "[2,1]", 2 },
	                                    { "m.experts.down_proj.1.weight", "[2,1]", 2 },
	                                    { NULL, NULL, 0 } },
	            NULL);
	assert_ok(open_like("src", "ref", &in, &err), &err);
	expect_numbers(&in, "m.experts.1.up_proj.weight", 2, D(1, 2), N(1000, 1001));
	expect_numbers(&in, "m.experts.0.down_proj.weight", 2, D(2, 1), N(2000, 2001));
	ws_input_close(&in);
}

/* ---- what is not guessed --------------------------------------------------------------------- */

SCRATCH_TEST(two_relations_are_an_error_with_both_rules)
{
	struct ws_input in;
	struct ws_err err;
	put_tensors("ref",
	            (const struct entry[]){ { "encoder.layers.0.a.weight", "[2]", 2 },
	                                    { "encoder.layers.1.a.weight", "[2]", 2 },
	                                    { "decoder.layers.0.a.weight", "[2]", 2 },
	                                    { "decoder.layers.1.a.weight", "[2]", 2 },
	                                    { NULL, NULL, 0 } },
	            NULL);
	put_tensors("src",
	            (const struct entry[]){ { "layers.0.a.weight", "[2]", 2 },
	                                    { "layers.1.a.weight", "[2]", 2 },
	                                    { NULL, NULL, 0 } },
	            NULL);
	assert_int_equal(open_like("src", "ref", &in, &err), -1);
	assert_int_equal(err.code, WS_EINPUT);
	assert_non_null(
		strstr(err.msg, "rename layers.{a}.a.weight -> encoder.layers.{a}.a.weight"));
	assert_non_null(
		strstr(err.msg, "rename layers.{a}.a.weight -> decoder.layers.{a}.a.weight"));
}

/* Rows of Megatron's and Meta's tensors may have another order: other words are never guessed. */
SCRATCH_TEST(another_word_for_a_module_is_not_guessed)
{
	struct ws_input in;
	struct ws_err err;
	put_tensors("ref",
	            (const struct entry[]){ { "layers.0.qkv_proj.weight", "[4,2]", 8 },
	                                    { "layers.1.qkv_proj.weight", "[4,2]", 8 },
	                                    { NULL, NULL, 0 } },
	            NULL);
	put_tensors("src",
	            (const struct entry[]){ { "layers.0.linear_qkv.weight", "[4,2]", 8 },
	                                    { "layers.1.linear_qkv.weight", "[4,2]", 8 },
	                                    { NULL, NULL, 0 } },
	            NULL);
	assert_ok(open_like("src", "ref", &in, &err), &err);
	assert_int_equal(in.related.n_rules, 0);
	assert_non_null(ws_catalog_find(in.catalog, "layers.0.linear_qkv.weight"));
	ws_input_close(&in);
}

static void expect_unrelated(const struct entry *source, const struct entry *like,
                             const char *words)
{
	struct ws_input in;
	struct ws_err err;
	put_tensors("src", source, NULL);
	put_tensors("ref", like, NULL);
	const int rc = open_like("src", "ref", &in, &err);
	if (words ? rc == 0 || !strstr(err.msg, words) : rc || in.related.n_rules)
		fail_msg("%d, %zu rules: %s", rc, rc ? 0 : in.related.n_rules, err.msg);
	if (rc == 0)
		ws_input_close(&in);
}

/* Layer 0 of expert 1 is not layer 1 of expert 0. */
SCRATCH_TEST(numbers_do_not_change_places)
{
	expect_unrelated((const struct entry[]){ { "layers.0.experts.0.w", "[2]", 2 },
	                                         { "layers.0.experts.1.w", "[2]", 2 },
	                                         { "layers.1.experts.0.w", "[2]", 2 },
	                                         { "layers.1.experts.1.w", "[2]", 2 },
	                                         { NULL, NULL, 0 } },
	                 (const struct entry[]){ { "experts.0.layers.0.w", "[2]", 2 },
	                                         { "experts.0.layers.1.w", "[2]", 2 },
	                                         { "experts.1.layers.0.w", "[2]", 2 },
	                                         { "experts.1.layers.1.w", "[2]", 2 },
	                                         { NULL, NULL, 0 } },
	                 NULL);
}

SCRATCH_TEST(two_models_in_one_source_are_an_error)
{
	expect_unrelated((const struct entry[]){ { "actor.layers.0.w", "[2]", 2 },
	                                         { "actor.layers.1.w", "[2]", 2 },
	                                         { "critic.layers.0.w", "[2]", 2 },
	                                         { "critic.layers.1.w", "[2]", 2 },
	                                         { NULL, NULL, 0 } },
	                 (const struct entry[]){ { "layers.0.w", "[2]", 2 },
	                                         { "layers.1.w", "[2]", 2 },
	                                         { NULL, NULL, 0 } },
	                 "several tensors fit layers.*.w");
}

/* One name that is misspelled is no spelling. */
SCRATCH_TEST(a_single_tensor_is_not_renamed)
{
	expect_unrelated((const struct entry[]){ { "model.layers.0.w", "[2]", 2 },
	                                         { "modle.norm.weight", "[2]", 2 },
	                                         { NULL, NULL, 0 } },
	                 (const struct entry[]){ { "model.layers.0.w", "[2]", 2 },
	                                         { "model.norm.weight", "[2]", 2 },
	                                         { NULL, NULL, 0 } },
	                 NULL);
}

/* ---- references ------------------------------------------------------------------------------ */

static const struct entry tiny[] = { { "model.layers.0.a.weight", "[2]", 2 },
	                             { "model.layers.1.a.weight", "[2]", 2 },
	                             { NULL, NULL, 0 } };

static void expect_refused(const char *like, const char *words)
{
	struct ws_input in;
	struct ws_err err;
	if (open_like("src", like, &in, &err) == 0)
		fail_msg("%s is a reference", like);
	if (err.code != WS_EINPUT || !strstr(err.msg, like) || !strstr(err.msg, words))
		fail_msg("%s: %d, %s", like, err.code, err.msg);
}

SCRATCH_TEST(what_is_no_reference_is_refused_by_name)
{
	put_tensors("src", tiny, NULL);
	put_tensors("half", tiny, "{\"num_hidden_layers\": 3}");
	expect_refused("half", "has no layer 2, and its config.json has num_hidden_layers 3");
	put_tensors("more", tiny, "{\"num_hidden_layers\": 1}");
	expect_refused("more", "has a model.layers.1.a.weight, and its config.json has "
	                       "num_hidden_layers 1");
	put_tensors("other",
	            (const struct entry[]){ { "v_head.weight", "[2]", 2 }, { NULL, NULL, 0 } },
	            "{\"num_hidden_layers\": 1}");
	expect_refused("other", "has no layer 0");
	put_tensors("adapter",
	            (const struct entry[]){
			    { "base_model.model.layers.0.q_proj.lora_A.weight", "[2]", 2 },
			    { NULL, NULL, 0 } },
	            NULL);
	expect_refused("adapter", "is an adapter");
	put_tensors("llama",
	            (const struct entry[]){ { "model.embed_tokens.weight", "[4,2]", 8 },
	                                    { "model.norm.weight", "[2]", 2 },
	                                    { "model.layers.0.input_layernorm.weight", "[2]", 2 },
	                                    { NULL, NULL, 0 } },
	            "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\","
	            "\"hidden_size\":2,\"vocab_size\":4,\"num_hidden_layers\":1,"
	            "\"num_attention_heads\":1,\"num_key_value_heads\":1,\"intermediate_size\":2}");
	expect_refused("llama", "which llama needs");
	put_tensors("headed", (const struct entry[]){
		{ "v_head.weight", "[2]", 2 }, { "model.embed_tokens.weight", "[4,2]", 8 },
		{ "model.layers.0.input_layernorm.weight", "[2]", 2 },
		{ "model.layers.0.q_norm.weight", "[2]", 2 }, { NULL, NULL, 0 } },
	            "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\","
	            "\"hidden_size\":2,\"vocab_size\":4,\"num_hidden_layers\":1,"
	            "\"num_attention_heads\":1,\"num_key_value_heads\":1,"
	            "\"intermediate_size\":2}");
	expect_refused("headed", "model.norm.weight, which llama needs");
	put_text("names.txt", "model.layers.0.a.weight\n");
	expect_refused("names.txt", "has no dtype and shape");
	put_text("bad.index.json", "{\"weight_map\": {\"a\": \"../x.safetensors\"}}");
	expect_refused("bad.index.json", "not the name of a file beside the index");
	put_text("short.safetensors", "1234");
	expect_refused("short.safetensors", "");
	expect_refused("nothing", "");
}

SCRATCH_TEST(saved_lines_are_a_reference)
{
	struct ws_input in;
	struct ws_err err;
	put_tensors("src", tiny, NULL);
	put_text("saved.json",
	         "{\"schema\":1,\"type\":\"start\",\"command\":\"list-weights\"}\n"
	         "{\"type\":\"checkpoint\",\"config\":\"{\\\"architectures\\\":[\\\"A\\\"],"
	         "\\\"num_hidden_layers\\\":2}\"}\n"
	         "{\"type\":\"tensor\",\"name\":\"model.layers.0.a.weight\",\"dtype\":\"int32\","
	         "\"shape\":[2]}\n"
	         "{\"type\":\"tensor\",\"name\":\"model.layers.1.a.weight\",\"dtype\":\"int32\","
	         "\"shape\":[2]}\n");
	assert_ok(open_like("src", "saved.json", &in, &err), &err);
	assert_int_equal(in.like.n, 2);
	assert_string_equal(ws_config_architecture(in.like.config), "A");
	ws_input_close(&in);
}

/* ---- those that are found for a server ------------------------------------------------------- */

static struct ws_input open_found(const char *path, const char *architecture, int64_t started)
{
	const char *source = "src";
	struct ws_input_opts opts = { .paths = &source,
		                      .n_paths = 1,
		                      .found = { .started = started } };
	struct ws_input in;
	struct ws_err err = WS_ERR_INIT;
	snprintf(opts.found.path, sizeof opts.found.path, "%s", path);
	snprintf(opts.found.name, sizeof opts.found.name, "%s", path);
	snprintf(opts.found.of, sizeof opts.found.of, "%s", path);
	snprintf(opts.found.architecture, sizeof opts.found.architecture, "%s", architecture);
	assert_ok(ws_input_open(&opts, &in, &err), &err);
	return in;
}

/* Until the next call. */
static const struct ws_config *in_config(const char *architecture, const char *type)
{
	static struct ws_config *c;
	char text[128];
	struct ws_err err = WS_ERR_INIT;
	ws_config_free(c);
	snprintf(text, sizeof text, "{\"architectures\":[\"%s\"],\"model_type\":\"%s\"}",
	         architecture, type);
	assert_ok(ws_config_parse(text, strlen(text), "config", &c, &err), &err);
	return c;
}

static void expect_unused(const char *path, const char *architecture, int64_t started,
                          const char *why)
{
	struct ws_input in = open_found(path, architecture, started);
	if (in.like.n || !strstr(in.like_unused, why))
		fail_msg("%s: %zu tensors, unused: %s", path, in.like.n, in.like_unused);
	ws_input_close(&in);
}

SCRATCH_TEST(a_found_reference_is_used_only_if_it_can_be_the_servers)
{
	put_tensors("src", tiny, NULL);
	put_tensors("ref", tiny, "{\"architectures\": [\"A\"]}");
	put_tensors("half", tiny, "{\"num_hidden_layers\": 3}");
	mkdir("same", 0700);
	assert_int_equal(link("src/model.safetensors", "same/model.safetensors"), 0);
	struct ws_input in = open_found("ref", "A", 0);
	assert_int_equal(in.like.n, 2);
	assert_string_equal(in.like_unused, "");
	ws_input_close(&in);
	expect_unused("ref", "B", 0, "is of A, and the server runs B");
	assert_true(ws_input_is_other(in_config("A", "a"), "B", ""));
	assert_false(ws_input_is_other(in_config("A", "a"), "B", "a"));
	expect_unused("ref", "A", 1, "changed since the server's start");
	expect_unused("half", "", 0, "has no layer 2");
	expect_unused("same", "", 0, "is the source itself");
}

/* A config that the user names says what the server is, and the weights beside it may be any. */
SCRATCH_TEST(weights_beside_a_config_are_a_reference_if_they_can_be_one)
{
	static const struct {
		const char *config;
		size_t n;
		const char *why;
	} cases[] = {
		{ "ref/config.json", 2, "" },
		{ "src", 0, "is the source itself" },
		{ "half", 0, "has no layer 2" },
		{ "none", 0, "" },
	};
	put_tensors("src", tiny, "{\"architectures\": [\"A\"]}");
	put_tensors("ref", tiny, "{\"architectures\": [\"A\"]}");
	put_tensors("half", tiny, "{\"num_hidden_layers\": 3}");
	mkdir("none", 0700);
	put_text("none/config.json", "{\"architectures\": [\"A\"]}");
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		const char *source = "src";
		const struct ws_input_opts opts = { .paths = &source,
			                            .n_paths = 1,
			                            .config = cases[i].config };
		struct ws_input in;
		struct ws_err err = WS_ERR_INIT;
		assert_ok(ws_input_open(&opts, &in, &err), &err);
		if (in.like.n != cases[i].n || !strstr(in.like_unused, cases[i].why))
			fail_msg("%s: %zu tensors, %s", cases[i].config, in.like.n, in.like_unused);
		ws_input_close(&in);
	}
}

RUN_TESTS(NULL, NULL)
