/* SPDX-License-Identifier: Apache-2.0 */
/* config.json: the two levels, exact integers, hostile text, and what a quantization leaves
 * alone. */
#include "wsync/tool/config.h"

#include <sys/stat.h>

#include "scratch.h"
#include "skip_index.h"
#include "test.h"

#include "skip_rules.h"

static struct ws_config *parse(const char *text)
{
	struct ws_config *c = NULL;
	struct ws_err err = WS_ERR_INIT;
	if (ws_config_parse(text, strlen(text), "config.json", &c, &err))
		fail_msg("%s: %s", text, err.msg);
	return c;
}

static void refuses(const char *text, const char *message)
{
	struct ws_config *c = NULL;
	struct ws_err err = WS_ERR_INIT;
	assert_int_equal(ws_config_parse(text, strlen(text), "config.json", &c, &err), -1);
	assert_null(c);
	assert_int_equal(err.code, WS_EINPUT);
	assert_string_equal(err.msg, message);
}

TEST(what_is_no_config_is_refused)
{
	refuses("", "config.json: not JSON at byte 0: the text ends early");
	refuses("[]", "config.json: not a JSON object");
	refuses("7", "config.json: not a JSON object");
	refuses("{} {}", "config.json: not JSON at byte 3: text after the value");
	refuses("{\"a\":1,\"b\":2,\"a\":1}", "config.json: \"a\" is there twice");
	refuses("{\"text_config\":3}", "config.json: \"text_config\" is no object");
	refuses("{\"text_config\":{\"a\":1,\"a\":2}}", "config.json: \"a\" is there twice");
	refuses("{\"quantization_config\":\"fp8\"}",
	        "config.json: \"quantization_config\" is no object");
	refuses("{\"quantization_config\":{\"weight_block_size\":[128]}}",
	        "config.json: \"weight_block_size\" must be two positive integers");
	refuses("{\"quantization_config\":{\"weight_block_size\":[128,0]}}",
	        "config.json: \"weight_block_size\" must be two positive integers");
	refuses("{\"quantization_config\":{\"weight_block_size\":[128,\"128\"]}}",
	        "config.json: \"weight_block_size\" must be two positive integers");
	refuses("{\"quantization_config\":{\"weight_block_size\":128}}",
	        "config.json: \"weight_block_size\" must be two positive integers");
	refuses("{\"quantization_config\":{\"ignored_layers\":\"lm_head\"}}",
	        "config.json: \"ignored_layers\" must be an array of names");
	refuses("{\"quantization_config\":{\"modules_to_not_convert\":[\"lm_head\",null]}}",
	        "config.json: \"modules_to_not_convert\" has an element that is not a name");
}

static char *repeated(const char *before, const char *item, size_t n, const char *after)
{
	const size_t len = strlen(item);
	char *text = malloc(strlen(before) + n * len + strlen(after) + 1), *p = text;
	assert_non_null(text);
	p = stpcpy(p, before);
	for (size_t i = 0; i < n; i++)
		p = stpcpy(p, item);
	strcpy(p, after);
	return text;
}

TEST(sizes_have_limits)
{
	char *text = repeated("{\"a\":[", "1,", 65536, "1]}");
	refuses(text, "config.json: \"a\" has more than 65536 elements");
	free(text);
	text = repeated("", " ", (16 << 20) + 1, "");
	refuses(text, "config.json: larger than 16 MiB");
	free(text);
	text = repeated("{", "\"a\":1,", 4096, "\"b\":1}");
	refuses(text, "config.json: more than 4096 keys");
	free(text);
	text = repeated("{\"a\":", "[", 5000, "");
	struct ws_config *c;
	struct ws_err err = WS_ERR_INIT;
	assert_int_equal(ws_config_parse(text, strlen(text), "config.json", &c, &err), -1);
	assert_int_equal(err.code, WS_EINPUT);
	free(text);
}

TEST(integers_are_exact_or_absent)
{
	struct ws_config *c = parse("{\"i\":4096,\"f\":4096.0,\"half\":0.5,\"t\":true,\"n\":null,"
	                            "\"s\":\"1\",\"neg\":-3,\"big\":9007199254740993,\"a\":[1]}");
	int64_t v = 77;
	assert_true(ws_config_int(c, "i", &v) && v == 4096);
	assert_true(ws_config_int(c, "f", &v) && v == 4096);
	assert_true(ws_config_int(c, "t", &v) && v == 1);
	assert_true(ws_config_int(c, "neg", &v) && v == -3);
	static const char *const none[] = { "half", "n", "s", "big", "a", "absent" };
	for (size_t i = 0; i < sizeof none / sizeof none[0]; i++)
		assert_false(ws_config_int(c, none[i], &v));
	assert_int_equal(v, -3);
	assert_true(ws_config_knows(c, "s"));
	assert_false(ws_config_knows(c, "n"));
	assert_false(ws_config_knows(c, "absent"));
	assert_string_equal(ws_config_string(c, "s"), "1");
	assert_null(ws_config_string(c, "i"));
	ws_config_free(c);
}

TEST(the_nested_level_comes_first)
{
	struct ws_config *c = parse(
		"{\"architectures\":[\"Outer\"],\"model_type\":\"outer\",\"hidden_size\":1,"
		"\"vocab_size\":9,\"tie_word_embeddings\":false,\"same\":2.0,\"list\":[1,2],"
		"\"text_config\":{\"architectures\":[\"Inner\"],\"model_type\":\"inner\","
		"\"hidden_size\":2,\"vocab_size\":null,\"tie_word_embeddings\":true,\"same\":2,"
		"\"list\":[1,3]}}");
	int64_t v;
	assert_true(ws_config_int(c, "hidden_size", &v) && v == 2);
	assert_true(ws_config_int(c, "vocab_size", &v) && v == 9);
	assert_string_equal(ws_config_architecture(c), "Outer");
	assert_string_equal(ws_config_text_architecture(c), "Inner");
	assert_string_equal(ws_config_model_type(c), "outer");
	assert_string_equal(ws_config_text_model_type(c), "inner");
	assert_true(ws_config_disagrees(c, "tie_word_embeddings"));
	assert_true(ws_config_disagrees(c, "hidden_size"));
	assert_true(ws_config_disagrees(c, "list"));
	assert_false(ws_config_disagrees(c, "vocab_size"));
	assert_false(ws_config_disagrees(c, "same"));
	assert_false(ws_config_disagrees(c, "absent"));
	ws_config_free(c);
	c = parse("{\"architectures\":[7],\"model_type\":7}");
	assert_string_equal(ws_config_architecture(c), "");
	assert_string_equal(ws_config_text_architecture(c), "");
	assert_string_equal(ws_config_model_type(c), "");
	assert_false(ws_config_disagrees(c, "model_type"));
	ws_config_free(c);
}

TEST(arrays_are_asked_for_members)
{
	struct ws_config *c = parse("{\"mlp_only_layers\":[0,3,\"5\",2.5],\"x\":3}");
	assert_true(ws_config_has(c, "mlp_only_layers", 0));
	assert_true(ws_config_has(c, "mlp_only_layers", 3));
	assert_false(ws_config_has(c, "mlp_only_layers", 5));
	assert_false(ws_config_has(c, "mlp_only_layers", 2));
	assert_false(ws_config_has(c, "x", 3));
	assert_false(ws_config_has(c, "absent", 3));
	ws_config_free(c);
}

TEST(a_quantization_is_read)
{
	struct ws_config *c = parse("{\"hidden_size\":1}");
	const struct ws_quant *q = ws_config_quant(c);
	assert_string_equal(q->method, "");
	assert_int_equal(q->block[0], 0);
	assert_int_equal(q->n_skip, 0);
	assert_false(ws_quant_skips(q, "lm_head"));
	ws_config_free(c);
	c = parse("{\"text_config\":{\"quantization_config\":{\"quant_method\":\"fp8\","
	          "\"weight_block_size\":[128,64],\"modules_to_not_convert\":null,"
	          "\"ignored_layers\":[\"lm_head\"]}}}");
	q = ws_config_quant(c);
	assert_string_equal(q->method, "fp8");
	assert_int_equal(q->block[0], 128);
	assert_int_equal(q->block[1], 64);
	assert_int_equal(q->n_skip, 1);
	assert_string_equal(q->skip[0], "lm_head");
	ws_config_free(c);
	c = parse("{\"quantization_config\":{\"bits\":4,\"group_size\":128}}");
	assert_string_equal(ws_config_quant(c)->method, "unnamed");
	ws_config_free(c);
	c = parse("{\"quantization_config\":{\"quant_algo\":\"W4A8_AWQ\"}}");
	assert_string_equal(ws_config_quant(c)->method, "modelopt");
	ws_config_free(c);
	c = parse("{\"quantization_config\":{\"quant_method\":\"compressed-tensors\","
	          "\"ignore\":[\"re:.*gate$\",\"lm_head\"]}}");
	q = ws_config_quant(c);
	assert_int_equal(q->n_skip, 2);
	assert_true(ws_quant_skips(q, "lm_head"));
	assert_false(ws_quant_skips(q, "model.layers.0.mlp.gate"));
	ws_config_free(c);
}

TEST(entries_stand_for_segments)
{
	static const struct { const char *entry, *module; bool skips;
	} cases[] = {
		{ "lm_head", "lm_head", true },
		{ "lm_head.weight", "lm_head", true },
		{ "lm_head", "language_model.lm_head", true },
		{ "lm_head", "lm_head_norm", false },
		{ "model.layers.0.mlp.gate", "model.layers.0.mlp.gate", true },
		{ "model.layers.0.mlp.gate", "model.layers.0.mlp.gate_proj", false },
		{ "model.layers.1", "model.layers.1.mlp.down_proj", true },
		{ "model.layers.1", "model.layers.11.mlp.down_proj", false },
		{ "gate", "model.layers.0.mlp.gate", true },
		{ "gate", "model.layers.0.gate.proj", false },
		{ "mlp.gate", "model.layers.0.mlp.gate", true },
		{ "lp.gate", "model.layers.0.mlp.gate", false },
		{ "visual", "visual.blocks.0.attn.qkv", true },
		{ "model.layers.*.self_attn", "model.layers.7.self_attn.q_proj", true },
		{ "model.layers.*.self_attn", "model.layers.7.self_attn", true },
		{ "model.layers.*.self_attn", "model.layers.7.self_attn_norm", false },
		{ "model.layers.*.mlp.router", "model.layers.7.mlp.experts", false },
		{ "*", "anything.at.all", true },
		{ "*gate", "model.layers.0.mlp.gate", true },
		{ "*a*a*a*a*a*a*a*a*b",
		  "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", false },
		{ "re:.*lm_head", "lm_head", false },
		{ "", "lm_head", false },
		{ ".weight", "lm_head", false },
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		const struct ws_quant q = { .skip = &cases[i].entry, .n_skip = 1 };
		if (ws_quant_skips(&q, cases[i].module) != cases[i].skips)
			fail_msg("\"%s\" and \"%s\"", cases[i].entry, cases[i].module);
	}
}

static const char *a_segment(unsigned *seed, bool starred)
{
	static const char *const segments[] = { "a", "b", "ab", "weight", "*", "a*", "*b" };
	*seed = *seed * 1103515245 + 12345;
	return segments[(*seed >> 16) % (starred ? 7 : 4)];
}

static void make_name(char *name, size_t size, unsigned *seed, bool starred)
{
	const char *first = a_segment(seed, starred), *second = a_segment(seed, starred);
	const char *third = a_segment(seed, starred);
	const unsigned kind = (*seed >> 8) % 3;
	if (kind == 0)
		snprintf(name, size, "%s", first);
	else if (kind == 1)
		snprintf(name, size, "%s.%s", first, second);
	else
		snprintf(name, size, "%s.%s.%s", first, second, third);
}

/* Is the module skipped by this list with its index? */
static bool skips(const struct ws_quant *q, const char *module)
{
	struct ws_config *c = parse("{}");
	struct ws_err err = WS_ERR_INIT;
	assert_int_equal(ws_config_set_quant(c, q, &err), 0);
	const bool is = ws_quant_skips(ws_config_quant(c), module);
	ws_config_free(c);
	return is;
}

/* Long lists have an index, in which all entries must have the meaning that each has alone. */
TEST(a_list_skips_what_any_of_its_entries_skips)
{
	enum { ENTRIES = 6 };
	unsigned seed = 7, skipped = 0;
	for (unsigned i = 0; i < 3000; i++) {
		char names[ENTRIES][32], module[32];
		const char *entries[ENTRIES];
		const bool starred = i % 2;
		const unsigned rule = i % 6 ? 1u << i % 6 >> 1 : 0;
		bool any = false;
		struct ws_err err = WS_ERR_INIT;
		struct ws_config *c = parse("{}");
		make_name(module, sizeof module, &seed, false);
		for (size_t k = 0; k < ENTRIES; k++) {
			make_name(names[k], sizeof names[k], &seed, starred);
			entries[k] = names[k];
			const struct ws_quant one = { .skip = &entries[k], .n_skip = 1,
				                      .ignored_layers = true, .rules = rule };
			any |= rule ? skips(&one, module) : ws_quant_skips(&one, module);
		}
		const struct ws_quant q = { .method = "fp8", .skip = entries, .n_skip = ENTRIES,
			                    .ignored_layers = true, .rules = rule };
		assert_int_equal(ws_config_set_quant(c, &q, &err), 0);
		if (ws_quant_skips(ws_config_quant(c), module) != any)
			fail_msg("%s, %s, ...: %s", names[0], names[1], module);
		skipped += any;
		ws_config_free(c);
	}
	assert_in_range(skipped, 300, 2700);
}

/* Without limits these few kilobytes take longer than the test may. */
TEST(a_hostile_list_costs_little)
{
	enum { ENTRIES = 2000, SEGMENTS = 2000 };
	struct ws_buf text;
	struct ws_err err = WS_ERR_INIT;
	struct ws_config *c = NULL;
	char module[2 * SEGMENTS + 2];
	for (size_t i = 0; i < SEGMENTS; i++)
		memcpy(module + 2 * i, "a.", 2);
	memcpy(module + 2 * SEGMENTS, "a", 2);
	for (unsigned most = ENTRIES; most <= 4096; most += 2096) {
		ws_buf_init(&text, 64 << 20);
		ws_buf_puts(&text, "{\"quantization_config\":{\"ignore\":[\"x\"");
		for (unsigned i = 0; i < most; i++)
			ws_buf_printf(&text, ",\"*%.1000s.*%.1000s.b%u\"", module, module, i);
		ws_buf_puts(&text, "]}}");
		const int rc = ws_config_parse(ws_buf_str(&text), text.len, "c", &c, &err);
		if (most > ENTRIES)
			assert_fails(rc, &err, WS_EINPUT, "more than 2048 names with '*'");
		else
			assert_int_equal(rc, 0);
		ws_buf_free(&text);
		if (rc == 0)
			assert_false(ws_quant_skips(ws_config_quant(c), module));
		if (rc == 0)
			ws_config_free(c);
	}
}

/* An entry whose places all begin alike would take minutes to sort. */
TEST(an_entry_of_experts_alone_is_not_compared)
{
	enum { TIMES = 16000 };
	static char entry[7 * TIMES + 1];
	for (size_t i = 0; i < TIMES; i++)
		memcpy(entry + 7 * i, "experts", 8);
	const char *entries[] = { "lm_head", entry };
	const struct ws_quant q = { .method = "fp8", .skip = entries, .n_skip = 2,
		                    .ignored_layers = true, .rules = WS_SKIP_SGLANG_PATH };
	struct ws_config *c = parse("{}");
	assert_int_equal(ws_config_set_quant(c, &q, NULL), 0);
	assert_true(ws_quant_gave_up(ws_config_quant(c)));
	ws_quant_restart(ws_config_quant(c));
	assert_true(ws_quant_gave_up(ws_config_quant(c)));
	ws_config_free(c);
}

/* No rule of a release tries each entry for each module. */
TEST(a_long_list_is_looked_up_by_every_rule)
{
	enum { ENTRIES = 60000, MODULES = 300 };
	static char names[ENTRIES][64];
	static const char *entries[ENTRIES];
	for (size_t i = 0; i < ENTRIES; i++) {
		snprintf(names[i], sizeof names[i],
		         i % 2 ? "model.layers.%zu.mlp.gate" : "model.layers.9%zu.mlp.experts.%zu",
		         i + 1000, i % 7);
		entries[i] = names[i];
	}
	for (unsigned rule = WS_SKIP_VLLM; rule <= WS_SKIP_SGLANG_PATH; rule <<= 1) {
		const struct ws_quant q = { .method = "fp8", .skip = entries, .n_skip = ENTRIES,
			                    .ignored_layers = true, .rules = rule };
		struct ws_config *c = parse("{}");
		assert_int_equal(ws_config_set_quant(c, &q, NULL), 0);
		for (unsigned i = 0; i < MODULES; i++) {
			char module[64];
			snprintf(module, sizeof module,
			         i % 2 ? "model.layers.%u.self_attn.q_proj" :
			                 "model.layers.%u.mlp.experts.3.up_proj", i / 2);
			assert_false(ws_quant_skips(ws_config_quant(c), module));
		}
		/* each of the 300 names has at most 40 places where an entry may begin */
		assert_in_range(ws_skip_index_work(ws_config_quant(c)->index), MODULES,
		                MODULES * 40 * 3 * 17);
		assert_false(ws_quant_gave_up(ws_config_quant(c)));
		ws_config_free(c);
	}
}

/* What cannot be looked up is tried, up to a limit, which is told. */
TEST(a_list_that_defeats_the_index_is_given_up)
{
	enum { ENTRIES = 1000, MODULES = 100 };
	static char names[ENTRIES][24];
	static const char *entries[ENTRIES];
	unsigned n = 0;
	for (size_t i = 0; i < ENTRIES; i++) {
		snprintf(names[i], sizeof names[i], "a.experts.%zu", i);
		entries[i] = names[i];
	}
	const struct ws_quant q = { .method = "fp8", .skip = entries, .n_skip = ENTRIES,
		                    .rules = WS_SKIP_VLLM };
	struct ws_config *c = parse("{}");
	assert_int_equal(ws_config_set_quant(c, &q, NULL), 0);
	ws_skip_index_limit(ws_config_quant(c)->index, ENTRIES * MODULES / 2);
	while (n < MODULES && !ws_quant_gave_up(ws_config_quant(c))) {
		assert_false(ws_quant_skips(ws_config_quant(c), "a.experts_of.b"));
		n++;
	}
	assert_in_range(n, MODULES / 4, MODULES / 2 + 1);
	assert_false(ws_quant_skips(ws_config_quant(c), "a.experts.1"));
	ws_config_free(c);
}

TEST(lists_are_matched_as_real_servers_match_them)
{
	for (size_t i = 0; i < sizeof skip_rules / sizeof skip_rules[0]; i++) {
		struct ws_quant q = { .skip = skip_rules[i].entries, .rules = skip_rules[i].rule,
			              .ignored_layers = true };
		while (q.n_skip < 3 && q.skip[q.n_skip])
			q.n_skip++;
		for (size_t k = 0; k < sizeof skip_modules / sizeof skip_modules[0]; k++) {
			const char answer = skip_rules[i].answers[k];
			if (answer != '-' && skips(&q, skip_modules[k]) != (answer == '1'))
				fail_msg("rule %u: %s: %s: the server says %c", skip_rules[i].rule,
				         q.n_skip ? q.skip[0] : "(empty)", skip_modules[k], answer);
		}
	}
}

TEST(a_release_has_the_rule_that_was_read_from_it)
{
	static const struct {
		bool vllm;
		const char *version;
		unsigned rules;
	} cases[] = {
		{ true, "0.32.0", WS_SKIP_VLLM },
		{ true, "", WS_SKIP_VLLM },
		{ false, "0.4.10.post2", WS_SKIP_SGLANG_NAME },
		{ false, "0.5.6+wsync.1", WS_SKIP_SGLANG_NAME },
		{ false, "0.5.8", WS_SKIP_SGLANG_NAME | WS_SKIP_SGLANG_PART },
		{ false, "0.5.9", WS_SKIP_SGLANG_PART },
		{ false, "0.5.10.post1", WS_SKIP_SGLANG_PART | WS_SKIP_SGLANG_SHARD },
		{ false, "0.5.11", WS_SKIP_SGLANG_PATH },
		{ false, "0.5.23", WS_SKIP_SGLANG_PATH },
		{ false, "", WS_SKIP_SGLANG_PART | WS_SKIP_SGLANG_SHARD | WS_SKIP_SGLANG_PATH },
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
		assert_int_equal(ws_quant_rules(cases[i].vllm, cases[i].version), cases[i].rules);
	static const char *const entry[] = { "self_attn.qkv_proj" };
	const struct ws_quant q = { .skip = entry, .n_skip = 1,
		                    .rules = WS_SKIP_SGLANG_PART | WS_SKIP_SGLANG_SHARD };
	struct ws_config *c = parse("{}");
	assert_int_equal(ws_config_set_quant(c, &q, NULL), 0);
	assert_false(ws_quant_agrees(ws_config_quant(c), "model.layers.0.self_attn.q_proj"));
	assert_true(ws_quant_agrees(ws_config_quant(c), "model.layers.0.self_attn.o_proj"));
	ws_config_free(c);
}

SCRATCH_TEST(a_directory_stands_for_its_config)
{
	struct ws_config *c = NULL;
	struct ws_err err = WS_ERR_INIT;
	assert_int_equal(mkdir("ckpt", 0700), 0);
	assert_fails(ws_config_open("ckpt", &c, &err), &err, WS_EINPUT, "");
	put_text("ckpt/config.json", "{\"model_type\":\"qwen3\"}");
	static const char *const paths[] = { "ckpt", "ckpt/", "ckpt/config.json" };
	for (size_t i = 0; i < 3; i++) {
		assert_int_equal(ws_config_open(paths[i], &c, &err), 0);
		assert_string_equal(ws_config_path(c), "ckpt/config.json");
		assert_string_equal(ws_config_model_type(c), "qwen3");
		ws_config_free(c);
	}
	ws_config_free(NULL);
}

static void requantizes(const char *text, const struct ws_quant *q, const char *expected)
{
	struct ws_buf out;
	struct ws_err err = WS_ERR_INIT;
	ws_buf_init(&out, 0);
	if (ws_config_requantize(text, strlen(text), "config.json", q, &out, &err))
		fail_msg("%s: %s", text, err.msg);
	assert_string_equal(ws_buf_str(&out), expected);
	ws_buf_free(&out);
}

/* Opens config.json with `text`, and beside it the file with that content. */
static struct ws_config *open_beside(const char *text, const char *file, const char *content)
{
	struct ws_config *c = NULL;
	put_text("config.json", text);
	put_text(file, content);
	assert_int_equal(ws_config_open("config.json", &c, NULL), 0);
	unlink(file);
	return c;
}

SCRATCH_TEST(a_quantization_is_read_where_servers_read_it)
{
	static const char modelopt[] = "hf_quant_config.json";
	static const struct {
		const char *text, *file, *content, *method, *algo;
	} cases[] = {
		{ "{}", modelopt, "{\"quantization\":{\"quant_algo\":\"NVFP4\","
		                  "\"exclude_modules\":[\"lm_head\"]}}", "modelopt", "NVFP4" },
		{ "{}", modelopt, "{\"quantization\":{\"quant_algo\":null}}", "", "" },
		{ "{\"quantization_config\":{\"quant_method\":\"fp8\"}}", modelopt,
		  "{\"quantization\":{\"quant_algo\":\"NVFP4\"}}", "fp8", "" },
		{ "{\"compression_config\":{\"quant_method\":\"compressed-tensors\"}}", "x", "",
		  "compressed-tensors", "" },
		{ "{}", "quant_model_description.json", "{}", "modelslim", "" },
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		struct ws_config *c = open_beside(cases[i].text, cases[i].file, cases[i].content);
		assert_string_equal(ws_config_quant(c)->method, cases[i].method);
		assert_string_equal(ws_config_quant(c)->algo, cases[i].algo);
		assert_int_equal(ws_config_quant(c)->n_skip, i == 0);
		ws_config_free(c);
	}
}

TEST(another_quantization_changes_nothing_else)
{
	static const char *const skip[] = { "lm_head" };
	const struct ws_quant none = { .method = "", .scale_fmt = "", .activation = "" };
	const struct ws_quant fp8 = { .method = "fp8", .scale_fmt = "", .activation = "",
		                      .block = { 128, 64 }, .skip = skip, .n_skip = 1 };
	requantizes("{}", &none, "{\n}\n");
	requantizes("{\"a\":1.0000000000000001e-06, \"b\" : [ {\"}\":\"]\\\"\"} ]\n}", &none,
	            "{\n  \"a\": 1.0000000000000001e-06,\n  \"b\": [ {\"}\":\"]\\\"\"} ]\n}\n");
	requantizes("{\"quantization_config\":{\"x\":{}},\"a\":true,\"compression_config\":null}",
	            &none, "{\n  \"a\": true\n}\n");
	requantizes("\xef\xbb\xbf{\"text_config\":{\"a\":1,\"quantization_config\":{}},\"b\":"
	            "\"text_config\"}",
	            &none,
	            "{\n  \"text_config\": {\n  \"a\": 1\n},\n  \"b\": \"text_config\"\n}\n");
	requantizes("{\"a\":1}", &fp8,
	            "{\n  \"a\": 1,\n  \"quantization_config\": {\"quant_method\":\"fp8\","
	            "\"fmt\":\"e4m3\",\"activation_scheme\":\"dynamic\",\"weight_block_size\":[128,"
	            "64],\"modules_to_not_convert\":[\"lm_head\"]}\n}\n");
}

RUN_TESTS(NULL, NULL)
