/* SPDX-License-Identifier: Apache-2.0 */
/* Adapters: their names taken apart, their patterns, what they bind to, and why they do not.
 * That the numbers are right is for tests/peers/test_lora_oracle.py. */
#include "factor.h"
#include "lora_priv.h"
#include "scratch.h"
#include "tensor_file.h"
#include "test.h"
#include "wsync/tool/input.h"

#include <math.h>
#include <sys/stat.h>

#define DATA "tests/data/lora/"

struct bound {
	struct ws_input base;
	struct ws_adapter *adapter;
	struct ws_bindings b;
	struct ws_err err;
};

static int bind_dir(struct bound *x, const char *base, const char *dir, bool layout)
{
	const char *paths[] = { base };
	*x = (struct bound){ .err = WS_ERR_INIT };
	const struct ws_input_opts opts = { .paths = paths, .n_paths = 1 };
	if (ws_input_open(&opts, &x->base, &x->err))
		fail_msg("%s", x->err.msg);
	if (ws_adapter_open(dir, &x->adapter, &x->err))
		return -1;
	ws_adapter_suit(x->adapter, x->base.family, x->base.config);
	return ws_adapter_bind(x->adapter, x->base.catalog, layout ? x->base.layout : NULL, NULL,
	                       NULL, &x->b, &x->err);
}

static int bind_to(struct bound *x, const char *base, const char *adapter, bool layout)
{
	char path[200], dir[200];
	snprintf(path, sizeof path, DATA "bases/%s", base);
	snprintf(dir, sizeof dir, DATA "%s", adapter);
	return bind_dir(x, path, dir, layout);
}

static void done(struct bound *x)
{
	ws_bindings_free(&x->b);
	ws_adapter_close(x->adapter);
	ws_input_close(&x->base);
}

static void expect(struct bound *x, const char *base, const char *adapter)
{
	if (bind_to(x, base, adapter, true))
		fail_msg("%s: %s", adapter, x->err.msg);
}

static int read_factors(const struct ws_delta *d, float *a, float *b, struct ws_err *err)
{
	const struct ws_factor of_a = ws_delta_a(d), of_b = ws_delta_b(d);
	struct ws_buf buf;
	ws_buf_init(&buf, 0);
	const struct ws_rect all_a = { 0, d->rank, 0, d->cols }, all_b = { 0, d->rows, 0, d->rank };
	const int rc = ws_factor_read(&of_a, &all_a, a, &buf, err) ||
	               ws_factor_read(&of_b, &all_b, b, &buf, err) ? -1 : 0;
	ws_buf_free(&buf);
	return rc;
}

static const struct ws_delta *delta_of(const struct bound *x, const char *target, size_t i)
{
	const struct ws_binding *b = ws_bindings_find(&x->b, target);
	assert_non_null(b);
	assert_true(i < b->n_deltas);
	return &b->deltas[i];
}

/* ---- names ---- */

TEST(keys_are_taken_apart)
{
	static const struct {
		const char *key, *name, *other;
		enum ws_lora_kind kind;
		bool headless, embedding;
		unsigned depth;
	} keys[] = {
		{ "base_model.model.model.layers.0.q_proj.lora_A.weight", "model.layers.0.q_proj",
		  "", WS_LORA_A, 1, 0, 0 },
		{ "base_model.model.a.lora_B.default.weight", "a", "", WS_LORA_B, 1, 0, 0 },
		{ "base_model.a.b.lora_B.weight", "a.b", "", WS_LORA_B, 0, 0, 0 },
		{ "a.b.lora_A.weight", "a.b", "", WS_LORA_A, 0, 0, 0 },
		{ "a.b.lora_A", "a.b", "", WS_LORA_A, 0, 0, 0 },
		{ "a.lora_embedding_A", "a", "", WS_LORA_A, 0, 1, 0 },
		{ "a.lora_embedding_B.default", "a", "", WS_LORA_B, 0, 1, 0 },
		{ "a.lora_embedding_B.weight", "a", "", WS_LORA_B, 0, 1, 0 },
		{ "x.experts.base_layer.base_layer.lora_A.weight", "x.experts", "", WS_LORA_A, 0, 0,
		  2 },
		{ "base_model.model.lm_head.weight", "lm_head.weight", "", WS_LORA_TENSOR, 1, 0,
		  0 },
		{ "lm_head.modules_to_save.weight", "lm_head.weight", "", WS_LORA_TENSOR, 0, 0, 0 },
		{ "m.modules_to_save.default.gate.weight", "m.default.gate.weight", "m.gate.weight",
		  WS_LORA_TENSOR, 0, 0, 0 },
		{ "a.q_proj.base_layer.bias", "a.q_proj.bias", "", WS_LORA_TENSOR, 0, 0, 1 },
		{ "a.original_module.weight", "a.original_module.weight", "", WS_LORA_IGNORED, 0, 0,
		  0 },
		{ "a.lora_A.b.c.weight", "a.lora_A.b.c.weight", "", WS_LORA_TENSOR, 0, 0, 0 },
		{ "lora_A.weight", "lora_A.weight", "", WS_LORA_TENSOR, 0, 0, 0 },
		{ "", "", "", WS_LORA_TENSOR, 0, 0, 0 },
		{ "base_layer", "", "", WS_LORA_TENSOR, 0, 0, 1 },
		{ "modules_to_save.modules_to_save", "modules_to_save", "", WS_LORA_TENSOR, 0, 0,
		  0 },
	};
	for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
		struct ws_lora_key k;
		struct ws_err err = WS_ERR_INIT;
		if (ws_lora_key_parse(keys[i].key, &k, &err))
			fail_msg("%s: %s", keys[i].key, err.msg);
		assert_string_equal(k.name, keys[i].name);
		assert_string_equal(k.other, keys[i].other);
		assert_int_equal(k.kind, keys[i].kind);
		assert_int_equal(k.headless, keys[i].headless);
		assert_int_equal(k.embedding, keys[i].embedding);
		assert_int_equal(k.depth, keys[i].depth);
	}
}

TEST(keys_of_relatives_are_refused)
{
	static const char *const keys[] = {
		"a.lora_magnitude_vector.weight",
		"a.lora_magnitude_vector.default.weight",
		"a.lora_diag",
		"a.token_adapter.trainable_tokens_delta",
		"a.lora_B.bias",
		"a.lora_B.default.bias",
	};
	struct ws_lora_key k;
	for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
		struct ws_err err = WS_ERR_INIT;
		assert_fails(ws_lora_key_parse(keys[i], &k, &err), &err, WS_EINPUT, keys[i]);
	}
	char longest[1000];
	struct ws_err err = WS_ERR_INIT;
	memset(longest, 'a', sizeof longest - 1);
	longest[sizeof longest - 1] = 0;
	assert_int_equal(ws_lora_key_parse(longest, &k, &err), -1);
	memset(longest, '.', 200);
	longest[200] = 0;
	assert_int_equal(ws_lora_key_parse(longest, &k, &err), -1);
}

/* ---- patterns ---- */

TEST(patterns_match_as_python_s_do)
{
	static const struct { const char *pattern, *name; bool matches; } tries[] = {
		{ "q_proj", "model.layers.0.q_proj", true },
		{ "q_proj", "q_proj", true },
		{ "proj", "model.q_proj", false },
		{ "q_proj", "q_proj.x", false },
		{ "layers.0.q_proj", "model.layers.0.q_proj", true },
		{ "layers.0.q", "model.layersX0.q", true },
		{ "", "a.", true },
		{ "", "", true },
		{ "", "a", false },
		{ "^q_proj", "a.q_proj", false },
		{ "^q_proj", "q_proj", true },
		{ "^a\\.q_proj", "a.q_proj", true },
		{ "layers\\.\\d+\\.mlp", "model.layers.17.mlp", true },
		{ "layers\\.\\d+\\.mlp", "layers.x.mlp", false },
		{ "(?:gate|up)_proj", "a.up_proj", true },
		{ "gate_proj|up_proj", "a.up_proj", true },
		{ "gate_proj|up_proj", "a.down_proj", false },
		{ ".*down.*", "a.b.down_proj.c", true },
		{ "layers\\.[0-3]\\..*", "m.layers.2.q", true },
		{ "layers\\.[0-3]\\..*", "m.layers.4.q", false },
		{ "layers\\.[^0-3]\\..*", "m.layers.4.q", true },
		{ "[]a]+", "]a]", true },
		{ "[a-]b", "-b", true },
		{ "a{2,3}", "aaa", true },
		{ "a{2,3}", "aaaa", false },
		{ "a{2}", "aa", true },
		{ "a{2,}", "aaaaa", true },
		{ "a{,2}", "aaa", false },
		{ "a{x}", "a{x}", true },
		{ "a+?b*?", "aab", true },
		{ "(a|b)*c", "ababc", true },
		{ "((a*)*)*b", "aaaaaaaaaaaaaaaaaaaaaaaac", false },
		{ "(a?){30}a{30}", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", true },
		{ "\\w+_proj$", "a.q_proj", true },
		{ "a$b", "ab", false },
		{ "[\\d_]+", "1_2", true },
		{ "\\D+", "abc", true },
		{ "a\\.b", "a.b", true },
		{ "a\\.b", "axb", false },
		{ "(|a)b", "b", true },
		{ "((((a?){500}){500}){500})", "aaaaaaaaaaaaaaaaaaaa", true },
		{ "((){100}){150}b", "b", true }, /* a round that adds nothing is the last */
		{ "((){100}){150}b", "a", false },
		{ "(a|){3,1}", "", false },
		{ "(a?){0,2}b", "aab", true },
		{ "(a?){2}b", "aaab", false },
		{ "(a?){3}b", "aab", true },
	};
	for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
		const char *wrong;
		uint64_t left = WS_LORA_MAX_WORK;
		const bool matches = ws_lora_matches(tries[i].pattern, tries[i].name, &left,
		                                     &wrong);
		if (wrong || matches != tries[i].matches)
			fail_msg("'%s' over '%s': %s", tries[i].pattern, tries[i].name,
			         wrong ? wrong : "otherwise");
	}
}

TEST(patterns_that_are_none_are_refused)
{
	/* clang-format off */
	static const char *const patterns[] = {
		"(a", "a)", "[a", "*a", "a|*", "(?=a)", "(?P<x>a)", "\\1", "\\b", "a\\", "[b-a]",
		"((((((((((((((((((a))))))))))))))))))"
	};
	/* clang-format on */
	for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
		const char *wrong;
		uint64_t left = WS_LORA_MAX_WORK;
		assert_false(ws_lora_matches(patterns[i], "aaaaaaaaaaaaaaaaaaaa", &left, &wrong) &&
		             !wrong);
		if (!wrong)
			fail_msg("'%s' is taken", patterns[i]);
	}
	/* more steps than any pattern may take */
	enum { LONG = 40000 };
	static char text[LONG + 1];
	uint64_t left = WS_LORA_MAX_WORK;
	const char *wrong;
	for (size_t i = 0; i < LONG; i += 2)
		memcpy(text + i, "()", 2);
	assert_false(ws_lora_matches(text, "a", &left, &wrong));
	assert_null(wrong); /* 20000 */
	memcpy(text + LONG - 2, "a?", 2);
	ws_lora_matches(text, "a", &left, &wrong);
	assert_non_null(wrong);
}

TEST(all_patterns_together_have_a_limit)
{
	uint64_t left = 1000;
	const char *wrong;
	for (unsigned i = 0; i < 10 && left; i++)
		ws_lora_matches("a+b", "aaaaaaaaaaaaaaaaaaaa", &left, &wrong);
	assert_int_equal(left, 0);
	assert_non_null(wrong);
	left = 2; /* plain names are compared fast, and are counted too */
	for (unsigned i = 0; i < 3; i++)
		ws_lora_matches("q_proj", "k_proj", &left, &wrong);
	assert_non_null(wrong);
	assert_false(ws_lora_matches("q_proj", "q_proj", &left, &wrong));
}

/* ---- config ---- */

TEST(scales_follow_rank_and_alpha)
{
	static const char text[] = "{\"r\":8,\"lora_alpha\":4.5,\"use_rslora\":true,\"rank_"
	                           "pattern\":{\"a\":2,\"b.a\":3},\"alpha_pattern\":{\"b.*\":7}}";
	struct ws_lora_config c;
	struct ws_err err = WS_ERR_INIT;
	int64_t rank;
	float scale;
	assert_int_equal(ws_lora_config_parse(text, strlen(text), "t", &c, &err), 0);
	assert_int_equal(ws_lora_config_find(&c, "x.c", &rank, &scale, &err), 0);
	assert_true(rank == 8 && scale == (float)(4.5 / sqrt(8)));
	assert_int_equal(ws_lora_config_find(&c, "x.b.a", &rank, &scale, &err), 0);
	assert_true(rank == 2 && scale == (float)(7 / sqrt(2))); /* the first pattern, as written */
	ws_lora_config_free(&c);
}

TEST(a_pattern_that_takes_too_long_is_told)
{
	static const char text[] = "{\"r\":8,\"lora_alpha\":1,\"alpha_pattern\":{\"(((((((((a{0,2})"
	                           "{0,2}){0,2}){0,2}){0,2}){0,2}){0,2}){0,2}){0,2})b\":7}}";
	struct ws_lora_config c;
	struct ws_err err = WS_ERR_INIT;
	char name[400];
	int64_t rank;
	float scale;
	memset(name, 'a', sizeof name - 1);
	name[sizeof name - 1] = 0;
	assert_int_equal(ws_lora_config_parse(text, strlen(text), "t", &c, &err), 0);
	assert_int_equal(ws_lora_config_find(&c, name, &rank, &scale, &err), -1);
	assert_non_null(strstr(err.msg, "it is too complicated"));
	ws_lora_config_free(&c);
}

TEST(configs_that_cannot_be_are_refused)
{
	static const struct { const char *text, *says; } configs[] = {
		{ "[]", "no JSON object" },
		{ "{}", "the rank r is no number" },
		{ "{\"r\":0,\"lora_alpha\":1}", "the rank r" },
		{ "{\"r\":8}", "lora_alpha is missing" },
		{ "{\"r\":8,\"lora_alpha\":\"x\"}", "lora_alpha is no number" },
		{ "{\"r\":8,\"r\":4,\"lora_alpha\":1}", "\"r\" occurs twice" },
		{ "{\"r\":8,\"lora_alpha\":1,\"rank_pattern\":[1]}", "rank_pattern is no object" },
		{ "{\"r\":8,\"lora_alpha\":1,\"rank_pattern\":{\"a\":1.5}}",
		  "the rank a is no number" },
		{ "{\"r\":8,\"lora_alpha\":1,\"alpha_pattern\":{\"(\":1}}", "pattern '('" },
		{ "{\"r\":8,\"lora_alpha\":1,\"target_parameters\":\"a\"}", "no list of names" },
		{ "{\"r\":8,\"lora_alpha\":1,\"layer_replication\":[[0,2]]}", "layer_replication" },
		{ "{\"r\":8,\"lora_alpha\":1,\"init_lora_weights\":\"olora\"}",
		  "the base was changed" },
		{ "{\"r\":8,\"lora_alpha\":1,\"init_lora_weights\":\"OLoRA\"}",
		  "the base was changed" },
		{ "{\"r\":8,\"lora_alpha\":1,\"init_lora_weights\":\"PiSSA_niter_4\"}",
		  "the base was changed" },
		{ "{\"r\":8,\"lora_alpha\":1,\"init_lora_weights\":\"LoRA_GA\"}",
		  "the base was changed" },
		{ "{\"r\":8,\"lora_alpha\":1,\"init_lora_weights\":\"EVA\"}",
		  "\"EVA\", which PEFT does not know" },
		{ "{\"r\":8,\"lora_alpha\":1,\"init_lora_weights\":1}", "no word, which PEFT" },
		{ "{\"r\":8,\"lora_alpha\":1,\"future\":true}",
		  "the field \"future\" is not known" },
		{ "{\"r\":8,\"lora_alpha\":1,\"future\":[0]}",
		  "the field \"future\" is not known" },
		{ "{\"r\":8,\"lora_alpha\":1,\"megatron_config\":{\"a\":1}}", "megatron_config" },
		{ "{\"r\":8,\"lora_alpha\":1,\"kasa_config\":{}}", "kasa_config: KaSA" },
		{ "{\"r\":8,\"lora_alpha\":1,\"use_rslora\":\"true\"}",
		  "use_rslora is neither true nor false" },
		{ "{\"r\":8,\"lora_alpha\":1,\"target_modules\":7}", "target_modules is no list" },
		{ "{\"r\":8,\"lora_alpha\":1,\"layers_to_transform\":[\"1\"]}",
		  "layers_to_transform is no number" },
		{ "{\"r\":8,\"lora_alpha\":1,\"fan_in_fan_out\":true,"
		  "\"target_parameters\":[\"a\"]}",
		  "no target_parameters together with fan_in_fan_out" },
	};
	for (size_t i = 0; i < sizeof configs / sizeof *configs; i++) {
		struct ws_lora_config c;
		struct ws_err err = WS_ERR_INIT;
		const int rc = ws_lora_config_parse(configs[i].text, strlen(configs[i].text),
		                                    "c.json", &c, &err);
		if (rc == 0 || err.code != WS_EINPUT || !strstr(err.msg, configs[i].says))
			fail_msg("%s: %s", configs[i].text, err.msg);
	}
}

TEST(fields_that_change_nothing_are_taken)
{
	static const char *const more[] = {
		"\"future\":null", "\"future\":false", "\"future\":[]", "\"future\":{}",
		"\"future\":\"\"", "\"future\":0", "\"megatron_core\":\"megatron.core\"",
		"\"runtime_config\":{\"a\":1}", "\"eva_config\":{\"rho\":2}",
		"\"qalora_group_size\":16", "\"fan_in_fan_out\":true",
		"\"init_lora_weights\":\"Gaussian\"", "\"init_lora_weights\":\"eva\"",
		"\"init_lora_weights\":false", "\"init_lora_weights\":null",
		"\"use_dora\":false", "\"ensure_weight_tying\":true",
	};
	for (size_t i = 0; i < sizeof more / sizeof *more; i++) {
		char text[200];
		struct ws_lora_config c;
		struct ws_err err = WS_ERR_INIT;
		snprintf(text, sizeof text, "{\"r\":8,\"lora_alpha\":1,%s}", more[i]);
		if (ws_lora_config_parse(text, strlen(text), "c.json", &c, &err))
			fail_msg("%s: %s", text, err.msg);
		ws_lora_config_free(&c);
	}
}

/* As PEFT's check_target_module_exists. */
TEST(modules_without_factors_are_known_by_the_field_that_leaves_them_out)
{
	static const struct { const char *fields, *module, *field; } tries[] = {
		{ "\"target_modules\":null", "a.q", NULL },
		{ "\"target_modules\":[\"q\"]", "a.q", NULL },
		{ "\"target_modules\":[\"q\"]", "q", NULL },
		{ "\"target_modules\":[\"q\"]", "a.xq", "target_modules" },
		{ "\"target_modules\":[\"a.q\"]", "b.a.q", NULL },
		{ "\"target_modules\":[]", "a.q", "target_modules" },
		{ "\"target_parameters\":[\"x.w\"]", "a.q", "target_modules" },
		{ "\"target_modules\":\".*\\\\.(q|k)\"", "a.k", NULL },
		{ "\"target_modules\":\"q\"", "a.q", "target_modules" },
		{ "\"target_modules\":\"(?=a).*\"", "a.q", NULL }, /* not understood */
		{ "\"target_modules\":\"all-linear\"", "a.q", NULL },
		{ "\"target_modules\":\"All-Linear\"", "lm_head", "target_modules" },
		{ "\"target_modules\":\"all-linear\"", "a.embed_tokens", "target_modules" },
		{ "\"target_modules\":[\"q\"],\"exclude_modules\":[\"1.q\"]", "a.1.q",
		  "exclude_modules" },
		{ "\"target_modules\":[\"q\"],\"exclude_modules\":[\"1.q\"]", "a.0.q", NULL },
		{ "\"target_modules\":[\"q\"],\"exclude_modules\":\"a.*\"", "a.q",
		  "exclude_modules" },
		{ "\"target_modules\":[\"q\"],\"modules_to_save\":[\"b\"]", "a.b.q",
		  "modules_to_save" },
		{ "\"target_modules\":[\"q\"],\"modules_to_save\":[\"b\"]", "a.xb.q", NULL },
		{ "\"target_modules\":[\"q\"],\"layers_to_transform\":1", "m.layers.1.a.q",
		  NULL },
		{ "\"target_modules\":[\"q\"],\"layers_to_transform\":[0,2]", "m.layers.1.a.q",
		  "layers_to_transform" },
		{ "\"target_modules\":[\"q\"],\"layers_to_transform\":[1]", "layers.1.q",
		  "layers_to_transform" }, /* PEFT wants two segments before it */
		{ "\"target_modules\":[\"q\"],\"layers_to_transform\":[3]",
		  "m.layers.1.experts.3.q", "layers_to_transform" },
		{ "\"target_modules\":[\"q\"],\"layers_to_transform\":[1],"
		  "\"layers_pattern\":\"h\"", "h.1.q", NULL },
		{ "\"target_modules\":[\"q\"],\"layers_to_transform\":[1],"
		  "\"layers_pattern\":\"\"", "m.layers.1.a.q", NULL },
		{ "\"target_modules\":[\"embed_tokens\"],\"ensure_weight_tying\":true", "lm_head",
		  NULL }, /* tied */
		{ "\"target_modules\":[\"q\"],\"layers_to_transform\":[1],"
		  "\"layers_pattern\":[\"x\",\"h\"]", "a.layers.1.b.q", "layers_to_transform" },
	};
	for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
		char text[300];
		struct ws_lora_config c;
		struct ws_err err = WS_ERR_INIT;
		snprintf(text, sizeof text, "{\"r\":8,\"lora_alpha\":1,%s}", tries[i].fields);
		if (ws_lora_config_parse(text, strlen(text), "c.json", &c, &err))
			fail_msg("%s: %s", text, err.msg);
		const char *field = ws_lora_config_omits(&c, tries[i].module, true);
		if (!field != !tries[i].field || (field && strcmp(field, tries[i].field)))
			fail_msg("%s: '%s' by %s", text, tries[i].module, field ? field : "none");
		ws_lora_config_free(&c);
	}
}

/* ---- binding ---- */

TEST(bad_adapters_are_refused_with_the_reason)
{
	static const struct { const char *name, *says, *base; } bad[] = {
		{ "dora", "use_dora", "dense" },
		{ "dora_vector", "lora_magnitude_vector.weight': it is of DoRA", "dense" },
		{ "pissa", "the base was changed before training", "dense" },
		{ "other_type", "\"IA3\"", "dense" },
		{ "no_alpha", "lora_alpha is missing", "dense" },
		{ "no_a", "'model.layers.1.self_attn.k_proj' has ", "dense" },
		{ "no_b", "and no lora_B", "dense" },
		{ "rank_of_config", "has rank 4, but adapter_config.json says 8", "dense" },
		{ "rank_of_halves", "lora_A has rank 4 and lora_B has 5", "dense" },
		{ "other_model", "was made for another model", "dense" },
		{ "other_size",
		  "make a change of 16 x 32, but 'model.layers.0.self_attn.q_proj.weight' is 16 x "
		  "16",
		  "dense" },
		{ "other_vocabulary", "'lm_head.weight' and has another shape", "dense" },
		{ "truncated", "past the 3612 bytes", "dense" },
		{ "pattern", "pattern '(?=q_proj)'", "dense" },
		{ "integers", "is I8, which is no type of a factor", "dense" },
		{ "lora_bias", "q_proj.lora_B.bias': a factor with a bias", "dense" },
		{ "tokens", "trainable_token_indices: single rows", "dense" },
		{ "two_adapters", "q_proj.lora_A.other.weight' are of two adapters", "dense" },
		{ "two_halves", "v_proj.lora_B.other.weight' are of two adapters", "dense" },
		{ "two_forms", "v_proj.lora_B.weight' are of two adapters", "dense" },
		{ "half_embedding", "one of them is of an embedding", "dense" },
		{ "across", "make a change of 16 x 8, but 'model.layers.0.self_attn.k_proj.weight' "
		            "is 8 x 16", "dense" },
		{ "embedding_across", "is 40 x 16", "dense" },
		{ "untargeted", "'model.layers.0.self_attn.k_proj' has factors, which PEFT leaves "
		                "out because of target_modules", "dense" },
		{ "equal_stacks", "several orders are possible", "stacks" },
		{ "half_of_stacks", "has 1 pairs of factors, for 2 parameters", "stacks" },
		{ "experts_of_another", "experts.w1' is of 5 experts, but the base has 4", "moe" },
		{ "experts_of_another", "experts.w1' is of 5 experts, but the base has 4",
		  "moe_stacked" },
		{ "experts_of_halves", "lora_A is of 4 experts and lora_B of 3", "moe" },
		{ "shared_half", "experts.shared.up_proj.lora_A.weight' and no lora_B", "moe" },
	};
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		struct bound x;
		char name[100];
		snprintf(name, sizeof name, "bad/%s", bad[i].name);
		assert_int_equal(bind_to(&x, bad[i].base, name, true), -1);
		assert_int_equal(x.err.code, WS_EINPUT);
		if (!strstr(x.err.msg, bad[i].says) || !strstr(x.err.msg, name))
			fail_msg("%s: %s", bad[i].name, x.err.msg);
		done(&x);
	}
}

TEST(a_nan_is_found_where_factors_are_read)
{
	struct bound x;
	float a[64], b[64];
	expect(&x, "dense", "bad/with_nan");
	const struct ws_delta *d = delta_of(&x, "model.layers.0.self_attn.q_proj.weight", 0);
	assert_fails(read_factors(d, a, b, &x.err), &x.err, WS_EINPUT,
	             "q_proj.lora_B.weight' has NaN at row 3, column 1 (");
	assert_ok(read_factors(delta_of(&x, "model.layers.1.self_attn.q_proj.weight", 0), a, b,
	                       &x.err), &x.err);
	done(&x);
}

TEST(what_the_base_lacks_is_left_over)
{
	struct bound x;
	expect(&x, "moe", "good/plain"); /* attention binds, the dense MLP does not */
	assert_int_equal(x.b.n, 8);
	assert_int_equal(x.b.n_left_over, 12);
	for (size_t i = 0; i < x.b.n_left_over; i++)
		assert_non_null(strstr(x.b.left_over[i]->name, ".mlp."));
	assert_null(ws_bindings_find(&x.b, "model.layers.0.mlp.experts.0.gate_proj.weight"));
	done(&x);
	assert_int_equal(bind_to(&x, "conv1d", "good/plain", true), -1);
	assert_non_null(strstr(x.err.msg, "none of its 14 modules"));
	assert_non_null(strstr(x.err.hint, "model.layers.0.mlp.down_proj.weight"));
	done(&x);
}

TEST(the_nearest_name_is_told)
{
	struct bound x;
	assert_int_equal(bind_to(&x, "moe", "good/over_parts", false), -1);
	assert_non_null(strstr(x.err.hint, "the nearest name of the base is 'model.layers.0."));
	done(&x);
}

TEST(parts_go_to_their_rows_of_a_fused_base)
{
	struct bound x = { .err = WS_ERR_INIT };
	const char *paths[] = { DATA "bases/fused" };
	const struct ws_input_opts opts = { .paths = paths, .n_paths = 1 };
	const struct ws_catalog_opts as_it_is = { .family = NULL };
	struct ws_catalog *c;
	assert_int_equal(ws_input_open(&opts, &x.base, &x.err), 0);
	assert_ok(ws_catalog_make((const struct ws_source *const *)x.base.sources, 1, &as_it_is, &c,
	                          &x.err), &x.err);
	assert_int_equal(ws_adapter_open(DATA "good/over_fused", &x.adapter, &x.err), 0);
	assert_int_equal(ws_adapter_bind(x.adapter, c, x.base.layout, NULL, NULL, &x.b, &x.err), 0);
	assert_int_equal(x.b.n, 8);
	const struct ws_binding *qkv =
		ws_bindings_find(&x.b, "model.layers.1.self_attn.qkv_proj.weight");
	assert_int_equal(qkv->n_deltas, 3);
	int64_t rows = 0;
	for (size_t i = 0; i < 3; i++) {
		const struct ws_delta *d = &qkv->deltas[i];
		rows += d->rows;
		assert_int_equal(d->row, strstr(d->b->name, "q_proj") ? 0 :
		                         strstr(d->b->name, "k_proj") ? 16 :
		                                                        24);
	}
	assert_int_equal(rows, 32);
	done(&x);
	ws_catalog_free(c);
}

/* The definition: element by element, from the tensors as they lie. */
static void check_read(const struct ws_delta *d)
{
	float *a = malloc((size_t)(d->rank * d->cols) * sizeof *a),
	      *b = malloc((size_t)(d->rank * d->rows) * sizeof *b);
	struct ws_err err = WS_ERR_INIT;
	uint16_t code;
	assert_int_equal(read_factors(d, a, b, &err), 0);
	for (int64_t r = 0; r < d->rank; r++) {
		for (int64_t j = 0; j < d->cols; j++) {
			const uint64_t at = d->a_at + (uint64_t)(r * d->a_row + j * d->a_col);
			assert_int_equal(ws_item_read(d->a, at * 2, &code, 2, &err), 0);
			assert_memory_equal((char *)&a[r * d->cols + j] + 2, &code, 2);
		}
		for (int64_t i = 0; i < d->rows; i++) {
			const uint64_t at = d->b_at + (uint64_t)(i * d->b_row + r * d->b_col);
			assert_int_equal(ws_item_read(d->b, at * 2, &code, 2, &err), 0);
			assert_memory_equal((char *)&b[i * d->rank + r] + 2, &code, 2);
		}
	}
	free(a);
	free(b);
}

TEST(factors_are_read_by_their_steps)
{
	static const char *const names[][2] = {
		{ "moe", "good/parameters" },
		{ "moe", "good/parameters_old" },
		{ "gpt_oss", "good/parameters_gpt_oss" },
		{ "moe", "good/stacked" },
		{ "moe_stacked", "good/parameters_over_stacks" },
		{ "dense", "good/over_groups" },
		{ "conv1d", "good/fan_in_fan_out" },
	};
	for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
		struct bound x;
		expect(&x, names[k][0], names[k][1]);
		assert_int_equal(x.b.n_left_over, 0);
		for (size_t i = 0; i < x.b.n; i++)
			for (size_t j = 0; j < x.b.items[i].n_deltas; j++)
				check_read(&x.b.items[i].deltas[j]);
		done(&x);
	}
}

SCRATCH_TEST(steps_of_all_sizes_are_read)
{
	enum { N = 300000 };
	uint16_t *codes = calloc(N, sizeof *codes);
	struct tensor_file out = tensor_file_begin("t.safetensors");
	tensor_file_add(&out, "t", WS_DTYPE_BF16, 2, (const int64_t[]){ N, 1 });
	tensor_file_data(&out);
	for (int i = 0; i < N; i++)
		codes[i] = (uint16_t)((unsigned)i * 40503u & 0xbfff);
	fwrite(codes, 2, N, out.f);
	tensor_file_end(&out);
	struct opened_file f = open_file("t.safetensors");
	const struct ws_item *t = ws_catalog_item(f.catalog, 0);
	static const int64_t steps[][4] = {
		/* rank, cols, steps of them */
		{ 3, 100000, 100000, 1 }, { 100, 3, 1, 100 }, { 2, 7, 3, 40000 },
		{ 5, 5, 1000, 999 },      { 4, 60000, 1, 4 }, { 1, 1, 1, 1 },
		{ 2, 2, 299997, 2 },      { 64, 64, 64, 1 },  { 3, 50000, 2, 6 },
	};
	for (size_t i = 0; i < sizeof steps / sizeof *steps; i++)
		check_read(&(struct ws_delta){ .a = t, .b = t, .a_row = steps[i][2],
		                               .a_col = steps[i][3], .b_row = 1, .b_col = 1,
		                               .rows = 1, .cols = steps[i][1],
		                               .rank = steps[i][0] });
	close_file(&f);
	free(codes);
}

static void double_shape(void *ctx, const struct ws_item *item, int64_t *rows, int64_t *cols)
{
	(void)ctx;
	*rows = item->n_dims == 2 ? item->dims[0] * 2 : 1;
	*cols = item->dims[item->n_dims - 1];
}

TEST(shapes_of_a_quantized_base_are_asked_for)
{
	struct bound x;
	struct ws_bindings b;
	expect(&x, "dense", "good/plain");
	assert_fails(ws_adapter_bind(x.adapter, x.base.catalog, x.base.layout, double_shape, NULL,
	                             &b, &x.err), &x.err, WS_EINPUT, "is 32 x 24");
	/* down_proj, of 16 x 24 */
	assert_null(b.items);
	done(&x);
}

/* ---- what the config names, and the file lacks ---- */

/* Binds an adapter with this config and factors of q_proj of layer 0, and perhaps another tensor of
 * the size of the embedding. */
static int bind_poor(struct bound *x, const char *base, const char *config, const char *more)
{
	char path[4200], text[600];
	mkdir("d", 0700);
	snprintf(text, sizeof text, "{\"r\":4,\"lora_alpha\":8,%s}", config);
	put_text("d/adapter_config.json", text);
	struct tensor_file t = tensor_file_begin("d/adapter_model.safetensors");
	tensor_file_add(&t, "model.layers.0.self_attn.q_proj.lora_A.weight", WS_DTYPE_BF16, 2,
	                (const int64_t[]){ 4, 16 });
	tensor_file_add(&t, "model.layers.0.self_attn.q_proj.lora_B.weight", WS_DTYPE_BF16, 2,
	                (const int64_t[]){ 16, 4 });
	if (more)
		tensor_file_add(&t, more, WS_DTYPE_BF16, 2, (const int64_t[]){ 40, 16 });
	tensor_file_end(&t);
	snprintf(path, sizeof path, "%s/" DATA "bases/%s", scratch_start, base);
	return bind_dir(x, path, "d", true);
}

SCRATCH_TEST(a_module_to_save_that_is_not_in_the_file_is_refused)
{
	static const struct { const char *config, *more, *says; } tries[] = {
		{ "\"modules_to_save\":[\"lm_head\"]", NULL, "names 'lm_head'" },
		{ "\"modules_to_save\":[\"lm_head\",\"embed_tokens\"]", "lm_head.weight",
		  "'model.embed_tokens.weight' is missing" },
		{ "\"modules_to_save\":[\"input_layernorm\"]", NULL, "input_layernorm" },
		{ "\"modules_to_save\":[\"lm_head\"]", "lm_head.weight", NULL },
		{ "\"modules_to_save\":[\"lm_head\"]", "lm_head.modules_to_save.weight", NULL },
		/* a classifier has one of the two, and this base has none */
		{ "\"modules_to_save\":[\"classifier\",\"score\"]", NULL, NULL },
	};
	for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
		struct bound x;
		const int rc = bind_poor(&x, "dense", tries[i].config, tries[i].more);
		if (!rc != !tries[i].says || (rc && !strstr(x.err.msg, tries[i].says)))
			fail_msg("%zu: %s", i, x.err.msg);
		done(&x);
	}
}

SCRATCH_TEST(modules_without_factors_are_counted)
{
	static const struct { const char *base, *config; size_t n; } tries[] = {
		{ "dense", "\"target_modules\":[\"q_proj\"]", 1 },
		{ "dense", "\"target_modules\":[\"q_proj\",\"o_proj\"]", 3 },
		{ "dense", "\"target_modules\":[\"q_proj\",\"lm_head\"]", 2 },
		{ "dense", "\"target_modules\":\"all-linear\"", 13 },
		{ "dense", "\"target_modules\":\".*\\\\.q_proj\"", 1 },
		{ "dense", "\"target_modules\":[\"q_proj\"],\"layers_to_transform\":[0]", 0 },
		{ "dense", "\"target_modules\":[\"q_proj\",\"o_proj\"],"
		           "\"exclude_modules\":[\"o_proj\"]", 1 },
		{ "dense", "\"bias\":\"none\"", 0 }, /* the file decides */
		{ "dense", "\"target_modules\":\"(?!x).*\"", 0 }, /* a pattern that is not read */
		/* transformers 5 has no modules of single experts */
		{ "moe", "\"target_modules\":[\"q_proj\",\"gate_proj\"]", 1 },
	};
	for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
		struct bound x;
		if (bind_poor(&x, tries[i].base, tries[i].config, NULL))
			fail_msg("%zu: %s", i, x.err.msg);
		if (x.b.n_lacking != tries[i].n || !x.b.n_lacking != !x.b.lacking_first)
			fail_msg("%zu: %zu, %s", i, x.b.n_lacking,
			         x.b.lacking_first ? x.b.lacking_first : "");
		done(&x);
	}
}

SCRATCH_TEST(a_directory_without_an_adapter_is_told)
{
	struct ws_adapter *a;
	struct ws_err err = WS_ERR_INIT;
	assert_fails(ws_adapter_open("nowhere", &a, &err), &err, WS_EINPUT, "");
	assert_int_equal(mkdir("d", 0700), 0);
	put_text("d/adapter_config.json", "{\"r\":8,\"lora_alpha\":8}");
	assert_int_equal(ws_adapter_open("d", &a, &err), -1);
	assert_non_null(strstr(err.msg, "no adapter_model.safetensors"));
	fclose(fopen("d/adapter_model.bin", "w"));
	assert_int_equal(ws_adapter_open("d", &a, &err), -1);
	assert_non_null(strstr(err.hint, "pickle"));
}

RUN_TESTS(NULL, NULL)
