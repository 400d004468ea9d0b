/* SPDX-License-Identifier: Apache-2.0 */
/* Synthetic models against what is known of the real ones, and their bytes
 * against their definition. */
#include "checkpoint.h"
#include "hash.h"
#include "test.h"
#include "wsync/tool/source.h"
#include "wsync/tool/json_read.h"

#include <math.h>

static struct ws_source *open_model(const char *path)
{
	struct ws_source *s = NULL;
	struct ws_err err = WS_ERR_INIT;
	assert_ok(ws_source_open(&path, 1, &s, &err), &err);
	return s;
}

static void assert_tensor(const struct ws_source *s, const char *name, enum ws_dtype dtype,
                          int64_t rows, int64_t cols)
{
	const struct ws_tensor *t = ws_source_find(s, name);
	if (!t)
		fail_msg("no tensor %s", name);
	assert_int_equal(t->dtype, dtype);
	assert_int_equal(t->n_dims, cols ? 2 : 1);
	assert_int_equal(t->dims[0], rows);
	if (cols)
		assert_int_equal(t->dims[1], cols);
}

/* Counts and total sizes are those of the published checkpoints (of qwen3-0.6b: without the copy of
 * its embedding that is published as its head). */
TEST(counts_and_sizes_are_those_of_the_real_models)
{
	enum { ATTENTION = 4 + 2, NORMS = 2, MLP = 3, FP8_MLA = 2 * 5 + 2, FP8_MLP = 2 * MLP };
	const size_t qwen3_layer = ATTENTION + NORMS + MLP;
	const size_t qwen3_moe_layer = ATTENTION + NORMS + 1 + 128 * MLP;
	const size_t v3_dense = FP8_MLA + NORMS + FP8_MLP;
	const size_t v3_moe = FP8_MLA + NORMS + 2 + 256 * FP8_MLP + FP8_MLP;
	const struct {
		const char *path;
		size_t tensors;
		uint64_t bytes;
	} cases[] = {
		{ "synthetic:qwen3-0.6b", 2 + 28 * qwen3_layer, UINT64_C(1192099840) },
		{ "synthetic:qwen3-8b", 3 + 36 * qwen3_layer, UINT64_C(16381470720) },
		{ "synthetic:qwen3-30b-a3b", 3 + 48 * qwen3_moe_layer, UINT64_C(61064245248) },
		{ "synthetic:qwen3-235b-a22b", 3 + 94 * qwen3_moe_layer, UINT64_C(470187269120) },
		{ "synthetic:deepseek-v3", 3 + 3 * v3_dense + 58 * v3_moe + v3_moe + 6,
		  UINT64_C(688574839360) },
		{ "synthetic:llama-3.1-8b", 291, UINT64_C(16060522496) },
		{ "synthetic:glm-4.5-air", 18329, UINT64_C(220937661440) },
		{ "synthetic:gpt-oss-20b", 459, UINT64_C(13761264768) },
	};
	size_t n = 0;
	while (ws_synthetic_name(n))
		n++;
	assert_int_equal(n, sizeof cases / sizeof cases[0]);
	for (size_t i = 0; i < n; i++) {
		struct ws_source *s = open_model(cases[i].path);
		assert_string_equal(ws_synthetic_name(i), strchr(cases[i].path, ':') + 1);
		assert_int_equal(ws_source_count(s), cases[i].tensors);
		assert_int_equal(ws_source_bytes(s), cases[i].bytes);
		assert_string_equal(ws_source_file_name(s, 0), cases[i].path);
		ws_source_close(s);
	}
	assert_int_equal(cases[0].tensors, 310);
	assert_int_equal(cases[4].tensors, 91991);
}

/* The layers before it: tests/unit/test_layout.c. */
TEST(the_next_token_layer_has_its_names_and_shapes)
{
	const enum ws_dtype bf16 = WS_DTYPE_BF16;
	struct ws_source *s = open_model("synthetic:deepseek-v3");
	assert_tensor(s, "model.layers.3.mlp.gate.weight", bf16, 256, 7168);
	assert_tensor(s, "model.layers.61.eh_proj.weight", bf16, 7168, 14336);
	assert_tensor(s, "model.layers.61.enorm.weight", bf16, 7168, 0);
	assert_tensor(s, "model.layers.61.hnorm.weight", bf16, 7168, 0);
	assert_tensor(s, "model.layers.61.embed_tokens.weight", bf16, 129280, 7168);
	assert_tensor(s, "model.layers.61.shared_head.head.weight", bf16, 129280, 7168);
	assert_tensor(s, "model.layers.61.shared_head.norm.weight", bf16, 7168, 0);
	ws_source_close(s);
}

#define KNOWN "qwen3-0.6b, qwen3-8b, qwen3-30b-a3b, qwen3-235b-a22b, deepseek-v3, llama-3.1-8b, " \
              "glm-4.5-air, gpt-oss-20b"

TEST(what_is_unknown_is_answered_with_what_is_known)
{
	static const struct { const char *path, *sentence, *hint; } cases[] = {
		{ "synthetic:qwen3-06b", "no synthetic model 'qwen3-06b': there are " KNOWN,
		  "did you mean synthetic:qwen3-0.6b?" },
		{ "synthetic:deepseekv3:1", "no synthetic model 'deepseekv3': there are " KNOWN,
		  "did you mean synthetic:deepseek-v3?" },
		{ "synthetic:", "no synthetic model '': there are " KNOWN, "" },
		{ "synthetic:qwen3-8b:x", "invalid SEED 'x'", "" },
		{ "synthetic:qwen3-8b:", "invalid SEED ''", "" },
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		struct ws_source *s = NULL;
		struct ws_err err = WS_ERR_INIT;
		assert_fails(ws_source_open(&cases[i].path, 1, &s, &err), &err, WS_EUSAGE, "");
		assert_string_equal(err.msg, cases[i].sentence);
		assert_string_equal(err.hint, cases[i].hint);
	}
	const char *const two[] = { "synthetic:qwen3-8b", "x.safetensors" };
	struct ws_source *s = NULL;
	struct ws_err err = WS_ERR_INIT;
	assert_int_equal(ws_source_open(two, 2, &s, &err), -1);
	assert_string_equal(err.msg, "synthetic:qwen3-8b cannot be combined with other sources");
}

static void read_bytes(const struct ws_source *s, const char *name, uint64_t at, void *dst,
                       size_t n)
{
	assert_int_equal(ws_source_read(s, ws_source_find(s, name), at, dst, n, NULL), 0);
}

TEST(any_range_is_the_same_as_in_the_whole)
{
	static const char name[] = "model.norm.weight";
	struct ws_source *s = open_model("synthetic:qwen3-0.6b:5");
	uint8_t all[2048], part[64];
	read_bytes(s, name, 0, all, sizeof all);
	for (size_t at = 0; at < 40; at++) {
		for (size_t n = 0; n < 40; n++) {
			memset(part, 0xee, sizeof part);
			read_bytes(s, name, at, part, n);
			assert_memory_equal(part, all + at, n);
			assert_int_equal(part[n], 0xee);
		}
	}
	read_bytes(s, name, 2041, part, 7);
	assert_memory_equal(part, all + 2041, 7);
	struct ws_span span;
	ws_source_span(s, ws_source_find(s, name), &span);
	assert_int_equal(span.length, 2048);
	assert_int_equal(span.fd, -1);
	assert_int_equal(span.fill(span.ctx, 13, part, 21, NULL), 0);
	assert_memory_equal(part, all + 13, 21);
	uint64_t hash;
	assert_int_equal(ws_source_hash(s, ws_source_find(s, name), &hash, NULL), 0);
	assert_true(hash == ws_hash64(all, sizeof all));
	ws_source_close(s);
}

TEST(seed_and_name_decide_the_bytes)
{
	uint8_t a[64], b[64];
	struct ws_source *s = open_model("synthetic:qwen3-0.6b"),
			 *zero = open_model("synthetic:qwen3-0.6b:0");
	struct ws_source *one = open_model("synthetic:qwen3-0.6b:1");
	read_bytes(s, "model.norm.weight", 0, a, sizeof a);
	read_bytes(zero, "model.norm.weight", 0, b, sizeof b);
	assert_memory_equal(a, b, sizeof a);
	read_bytes(one, "model.norm.weight", 0, b, sizeof b);
	assert_memory_not_equal(a, b, sizeof a);
	read_bytes(s, "model.layers.0.input_layernorm.weight", 0, b, sizeof b);
	assert_memory_not_equal(a, b, sizeof a);
	read_bytes(s, "model.norm.weight", 64, b, sizeof b);
	assert_memory_not_equal(a, b, sizeof a);
	ws_source_close(s);
	ws_source_close(zero);
	ws_source_close(one);
}

/* stream.h word by word, in the plainest way; and pinned, because
 * checkpoints are compared over years. */
TEST(the_bytes_are_those_of_the_definition)
{
	static const uint8_t pinned[16] = {
		0x33, 0xbc, 0x5b, 0xbd, 0x3d, 0xbc, 0x08, 0xbd,
		0x5a, 0xbd, 0x1f, 0x3d, 0x75, 0x3d, 0xfb, 0xbc };
	static const char name[] = "model.norm.weight";
	const uint64_t phi = UINT64_C(0x9e3779b97f4a7c15);
	uint64_t key = 7 + phi;
	uint8_t got[16], want[16];
	for (int i = 0; i < 2; i++) {
		key = (key ^ key >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
		key = (key ^ key >> 27) * UINT64_C(0x94d049bb133111eb);
		key ^= key >> 31;
		key += i ? 0 : ws_hash64(name, strlen(name));
	}
	for (uint64_t i = 0; i < 2; i++) {
		uint64_t z = key + (i + 1) * phi;
		z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
		z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
		z = ((z ^ z >> 31) & UINT64_C(0x81ff81ff81ff81ff)) | UINT64_C(0x3c003c003c003c00);
		for (int k = 0; k < 8; k++)
			want[i * 8 + (uint64_t)k] = (uint8_t)(z >> 8 * k);
	}
	struct ws_source *s = open_model("synthetic:qwen3-0.6b:7");
	read_bytes(s, name, 0, got, sizeof got);
	assert_memory_equal(got, want, sizeof got);
	assert_memory_equal(got, pinned, sizeof got);
	ws_source_close(s);
}

TEST(values_are_small_and_finite)
{
	enum { N = 4096 };
	static uint8_t bytes[N];
	unsigned negative = 0;
	struct ws_source *s = open_model("synthetic:deepseek-v3");
	read_bytes(s, "model.embed_tokens.weight", 8, bytes, N);
	for (size_t i = 0; i < N; i += 2) {
		const uint32_t bits = (uint32_t)bytes[i] << 16 | (uint32_t)bytes[i + 1] << 24;
		float x;
		memcpy(&x, &bits, 4);
		assert_true(fabsf(x) >= 0x1p-7f && fabsf(x) < 0x1p-3f);
		negative += x < 0;
	}
	assert_in_range(negative, N / 4 - 150, N / 4 + 150);
	read_bytes(s, "model.layers.0.mlp.gate_proj.weight_scale_inv", 0, bytes, N);
	for (size_t i = 0; i < N; i += 4) {
		float x;
		memcpy(&x, bytes + i, 4);
		assert_true(x >= 0x1p-15f && x < 0x1p-11f);
	}
	read_bytes(s, "model.layers.3.mlp.gate.e_score_correction_bias", 0, bytes, 1024);
	for (size_t i = 0; i < 1024; i += 4) {
		float x;
		memcpy(&x, bytes + i, 4);
		assert_true(fabsf(x) >= 0x1p-7f && fabsf(x) < 0x1p-3f);
	}
	read_bytes(s, "model.layers.0.mlp.gate_proj.weight", 0, bytes, N);
	for (size_t i = 0; i < N; i++)
		assert_int_not_equal(bytes[i] & 0x7f, 0x7f);
	ws_source_close(s);
	s = open_model("synthetic:gpt-oss-20b");
	read_bytes(s, "model.layers.23.mlp.experts.down_proj_scales", 3, bytes, N);
	for (size_t i = 0; i < N; i++)
		assert_in_range(bytes[i], 127 - 15, 127 - 8);
	ws_source_close(s);
}

TEST(configs_are_those_of_the_real_models)
{
	static const struct { const char *model, *key; int64_t value; } facts[] = {
		{ "qwen3-0.6b", "hidden_size", 1024 },
		{ "qwen3-0.6b", "num_hidden_layers", 28 },
		{ "qwen3-8b", "intermediate_size", 12288 },
		{ "qwen3-8b", "num_attention_heads", 32 },
		{ "qwen3-30b-a3b", "num_experts", 128 },
		{ "qwen3-30b-a3b", "moe_intermediate_size", 768 },
		{ "qwen3-235b-a22b", "num_key_value_heads", 4 },
		{ "qwen3-235b-a22b", "head_dim", 128 },
		{ "deepseek-v3", "q_lora_rank", 1536 },
		{ "deepseek-v3", "qk_rope_head_dim", 64 },
		{ "deepseek-v3", "first_k_dense_replace", 3 },
		{ "deepseek-v3", "n_routed_experts", 256 },
		{ "deepseek-v3", "num_nextn_predict_layers", 1 },
		{ "deepseek-v3", "vocab_size", 129280 },
		{ "llama-3.1-8b", "num_key_value_heads", 8 },
		{ "glm-4.5-air", "n_routed_experts", 128 },
		{ "gpt-oss-20b", "num_local_experts", 32 },
	};
	for (size_t i = 0; i < sizeof facts / sizeof facts[0]; i++) {
		struct ws_buf text;
		ws_buf_init(&text, 0);
		assert_int_equal(ws_synthetic_config(facts[i].model, &text, NULL), 0);
		struct ws_json *config = ws_json_parse(text.data, text.len, "config", NULL);
		assert_non_null(config);
		assert_int_equal(ws_json_get_int(config, facts[i].key, -1), facts[i].value);
		assert_int_equal(ws_json_get_bool(config, "tie_word_embeddings", true), i < 2);
		assert_null(ws_json_duplicate(config));
		ws_json_free(config);
		ws_buf_free(&text);
	}
	struct ws_buf text;
	struct ws_err err = WS_ERR_INIT;
	ws_buf_init(&text, 0);
	assert_fails(ws_synthetic_config("gpt-2", &text, &err), &err, WS_EUSAGE, "");
	ws_buf_free(&text);
}

RUN_TESTS(NULL, NULL)
