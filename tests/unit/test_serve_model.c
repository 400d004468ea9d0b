/* SPDX-License-Identifier: Apache-2.0 */
/* Loading into the parameters of a model. What every rank must hold is worked out here a second time,
 * element by element and without the layout: which element of which tensor of the checkpoint lies at
 * each place of each runtime parameter. */
#include "serve_convert.h"
#include "serve_model.h"

#include "number.h"
#include "scratch.h"

#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct ws_serve_model *model;
static unsigned tp, ep;

/* ---- small models ---- */

static const char llama[] =
	"{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",\"torch_dtype\":\"bfloat16\","
	"\"hidden_size\":48,\"intermediate_size\":64,\"num_hidden_layers\":2,\"num_attention_heads\":8,"
	"\"num_key_value_heads\":4,\"vocab_size\":100}";
static const char qwen3[] =
	"{\"architectures\":[\"Qwen3ForCausalLM\"],\"model_type\":\"qwen3\",\"torch_dtype\":\"bfloat16\","
	"\"hidden_size\":32,\"intermediate_size\":64,\"num_hidden_layers\":2,\"num_attention_heads\":8,"
	"\"num_key_value_heads\":2,\"head_dim\":6,\"vocab_size\":70,\"tie_word_embeddings\":true}";
static const char qwen3_moe[] =
	"{\"architectures\":[\"Qwen3MoeForCausalLM\"],\"model_type\":\"qwen3_moe\","
	"\"torch_dtype\":\"bfloat16\",\"hidden_size\":32,\"intermediate_size\":64,\"num_hidden_layers\":2,"
	"\"num_attention_heads\":8,\"num_key_value_heads\":4,\"head_dim\":4,\"vocab_size\":64,"
	"\"num_experts\":8,\"num_experts_per_tok\":2,\"moe_intermediate_size\":16,"
	"\"mlp_only_layers\":[0],\"decoder_sparse_step\":1,\"tie_word_embeddings\":false}";
static const char deepseek[] =
	"{\"architectures\":[\"DeepseekV3ForCausalLM\"],\"model_type\":\"deepseek_v3\","
	"\"torch_dtype\":\"bfloat16\",\"hidden_size\":32,\"intermediate_size\":64,\"num_hidden_layers\":2,"
	"\"num_attention_heads\":8,\"num_key_value_heads\":8,\"vocab_size\":64,\"q_lora_rank\":24,"
	"\"kv_lora_rank\":16,\"qk_nope_head_dim\":4,\"qk_rope_head_dim\":2,\"v_head_dim\":4,"
	"\"n_routed_experts\":8,\"n_shared_experts\":1,\"num_experts_per_tok\":2,\"n_group\":2,"
	"\"topk_group\":1,\"moe_intermediate_size\":16,\"first_k_dense_replace\":1,\"moe_layer_freq\":1,"
	"\"topk_method\":\"noaux_tc\",\"num_nextn_predict_layers\":1,\"tie_word_embeddings\":false}";

static void write_config(const char *config)
{
	FILE *f = fopen("config.json", "w");
	assert_non_null(f);
	assert_int_equal(fputs(config, f) >= 0, true);
	fclose(f);
}

static void open_model(const char *config, unsigned with_tp, unsigned with_ep)
{
	struct ws_err err = WS_ERR_INIT;
	write_config(config);
	tp = with_tp;
	ep = with_ep;
	if (ws_serve_model_open(".", tp, ep, NULL, true, &model, &err))
		fail_msg("%s", err.msg);
}

static void close_model(void)
{
	ws_serve_model_close(model);
	model = NULL;
}

/* ---- tensors ---- */

/* Element i of a tensor, as 16 bits that are a small number in bfloat16. */
static uint16_t element(const char *name, uint64_t i)
{
	uint64_t x = ws_hash64(name, strlen(name)) + i * UINT64_C(0x9e3779b97f4a7c15);
	x = (x ^ x >> 31) * UINT64_C(0xbf58476d1ce4e5b9);
	x ^= x >> 29;
	return (uint16_t)((x & 0x80ffu) | 0x3f00u);
}

struct tensor {
	struct ws_serve_slot slot;
	uint8_t *bytes;
};

static struct tensor tensors[2000];
static size_t n_tensors;

static void put_slot(const char *name, enum ws_dtype dtype, unsigned n_dims, const int64_t *dims)
{
	struct tensor *t = &tensors[n_tensors++];
	uint64_t count = 1;
	t->slot = (struct ws_serve_slot){ .name = name, .dtype_name = ws_dtype_torch(dtype),
		                          .dtype = dtype, .n_dims = n_dims };
	for (unsigned d = 0; d < n_dims; d++) {
		t->slot.dims[d] = dims[d];
		count *= (uint64_t)dims[d];
	}
	assert_true(ws_dtype_bytes(dtype, n_dims, dims, &t->slot.bytes));
	t->bytes = malloc((size_t)t->slot.bytes + 1);
	assert_non_null(t->bytes);
	for (uint64_t i = 0; i < count; i++) {
		const uint16_t bits = element(name, i);
		ws_serve_convert(dtype, t->bytes + i * ws_dtype_bits(dtype) / 8, WS_DTYPE_BF16, &bits, 1);
	}
}

static void put(const char *name, int64_t rows, int64_t cols)
{
	const int64_t dims[] = { rows, cols };
	put_slot(name, WS_DTYPE_BF16, cols ? 2 : 1, dims);
}

/* Every tensor that the layout expects. */
static void put_all(void)
{
	for (size_t i = 0; i < ws_layout_part_count(model->layout); i++) {
		const struct ws_part *p = ws_layout_part(model->layout, i);
		put_slot(p->name, model->dtypes[p->param], p->n_dims, p->dims);
	}
}

static void drop_tensors(void)
{
	while (n_tensors)
		free(tensors[--n_tensors].bytes);
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

static struct ws_serve_load load;

static unsigned noise = 1;
static unsigned next(unsigned below)
{
	noise = noise * 1103515245 + 12345;
	return (noise >> 8) % below;
}

/* One request with all tensors, to every rank, in pieces of any length. Returns whether it was
 * refused. load.* can be looked at until the next one. */
static bool send(void)
{
	struct ws_err err = WS_ERR_INIT;
	struct ws_serve_slot slots[2000];
	uint64_t duplicates = 0;
	for (size_t i = 0; i < n_tensors; i++)
		slots[i] = tensors[i].slot;
	const struct ws_serve_update u = { .slots = slots, .n = n_tensors };
	ws_serve_load_fini(&load);
	assert_int_equal(ws_serve_load_begin(&load, model, &u, NULL, &err), 0);
	for (unsigned r = 0; r < tp; r++)
		for (size_t i = 0; i < n_tensors; i++)
			for (uint64_t at = 0; at < slots[i].bytes; ) {
				uint64_t n = 1 + next(400);
				if (n > slots[i].bytes - at)
					n = slots[i].bytes - at;
				ws_serve_load_put(&load, r, i, at, tensors[i].bytes + at, (size_t)n);
				at += n;
			}
	ws_serve_load_commit(&load, 1, &duplicates);
	drop_tensors();
	return load.refused;
}

/* ---- what must be there ---- */

struct place {
	char name[120];     /* "": padding, zero */
	int64_t row, col, cols;
};

static size_t n_expected;

static const uint16_t *memory_of(const char *name, unsigned rank, unsigned n_dims, const int64_t *dims)
{
	int64_t have[WS_MAX_DIMS];
	const struct ws_param *p = ws_layout_find_param(model->layout, name);
	if (!p)
		fail_msg("no parameter %s", name);
	ws_layout_dims(model->layout, p, rank, have);
	if (p->n_dims != n_dims || memcmp(have, dims, n_dims * sizeof *dims) != 0)
		fail_msg("%s at rank %u of %u is [%" PRId64 ", %" PRId64 "] of %u", name, rank, tp, have[0],
		         n_dims > 1 ? have[1] : 0, p->n_dims);
	for (size_t i = 0; i < ws_layout_param_count(model->layout); i++)
		if (ws_layout_param(model->layout, i) == p)
			return (const uint16_t *)(const void *)ws_serve_model_at(model, i, rank);
	return NULL;
}

static void same(const char *name, unsigned rank, int64_t i, uint16_t have, const struct place *want)
{
	const uint16_t bits = want->name[0]
		? element(want->name, (uint64_t)(want->row * (want->cols ? want->cols : 1) + want->col)) : 0;
	if (have != bits)
		fail_msg("%s at rank %u of %u, ep %u: element %" PRId64 " is %04x and not %04x, that of %s at "
		         "%" PRId64 ", %" PRId64, name, rank, tp, ep, i, have, bits, want->name, want->row,
		         want->col);
}

/* What lies in row r, column c of a local parameter? */
typedef void locate_fn(const void *ctx, unsigned rank, int64_t r, int64_t c, struct place *out);

static void expect(const char *name, int64_t rows, int64_t cols, locate_fn *locate, const void *ctx)
{
	const int64_t dims[] = { rows, cols };
	for (unsigned rank = 0; rank < tp; rank++) {
		const uint16_t *have = memory_of(name, rank, cols ? 2 : 1, dims);
		const int64_t width = cols ? cols : 1;
		for (int64_t i = 0; i < rows * width; i++) {
			struct place want = { .cols = cols };
			locate(ctx, rank, i / width, i % width, &want);
			same(name, rank, i, have[i], &want);
		}
	}
	n_expected++;
}

static void locate_same(const void *ctx, unsigned rank, int64_t r, int64_t c, struct place *out)
{
	(void)rank;
	snprintf(out->name, sizeof out->name, "%s", (const char *)ctx);
	out->row = r;
	out->col = c;
}

static void expect_whole(const char *name, int64_t rows, int64_t cols)
{
	expect(name, rows, cols, locate_same, name);
}

struct cut {
	const char *name;
	int64_t full, local;
};

static void locate_vocab(const void *ctx, unsigned rank, int64_t r, int64_t c, struct place *out)
{
	const struct cut *v = ctx;
	const int64_t row = rank * v->local + r;
	if (row < v->full)
		locate_same(v->name, rank, row, c, out);
}

static void expect_vocab(const char *name, int64_t rows, int64_t cols)
{
	const struct cut v = { name, rows, (rows + 63) / 64 * 64 / tp };
	expect(name, v.local, cols, locate_vocab, &v);
}

static void locate_columns(const void *ctx, unsigned rank, int64_t r, int64_t c, struct place *out)
{
	const struct cut *v = ctx;
	locate_same(v->name, rank, r, rank * v->local + c, out);
	out->cols = v->full;
}

static void expect_row_parallel(const char *name, int64_t rows, int64_t cols)
{
	const struct cut v = { name, cols, cols / tp };
	expect(name, rows, v.local, locate_columns, &v);
}

static void locate_rows(const void *ctx, unsigned rank, int64_t r, int64_t c, struct place *out)
{
	const struct cut *v = ctx;
	locate_same(v->name, rank, rank * v->local + r, c, out);
}

static void expect_column_parallel(const char *name, int64_t rows, int64_t cols)
{
	const struct cut v = { name, rows, rows / tp };
	expect(name, v.local, cols, locate_rows, &v);
}

struct attention {
	const char *prefix;
	int64_t q, kv, head; /* heads, and their size */
};

static void locate_qkv(const void *ctx, unsigned rank, int64_t r, int64_t c, struct place *out)
{
	const struct attention *a = ctx;
	const int64_t q = a->q / tp, kv = a->kv >= tp ? a->kv / tp : 1;
	const int64_t first = a->kv >= tp ? rank * kv : rank / (tp / a->kv);
	int64_t head = r / a->head;
	const char *which = "q";
	if (head < q) {
		head += rank * q;
	} else {
		which = head < q + kv ? "k" : "v";
		head = first + (head - q) % kv;
	}
	snprintf(out->name, sizeof out->name, "%s.%s_proj.weight", a->prefix, which);
	out->row = head * a->head + r % a->head;
	out->col = c;
}

static void expect_qkv(const char *prefix, int64_t q, int64_t kv, int64_t head, int64_t hidden)
{
	char name[120];
	const struct attention a = { prefix, q, kv, head };
	snprintf(name, sizeof name, "%s.qkv_proj.weight", prefix);
	expect(name, (q / tp + 2 * (kv >= tp ? kv / tp : 1)) * head, hidden, locate_qkv, &a);
}

struct pair {
	const char *prefix;
	int64_t half;
};

static void locate_gate_up(const void *ctx, unsigned rank, int64_t r, int64_t c, struct place *out)
{
	const struct pair *p = ctx;
	snprintf(out->name, sizeof out->name, "%s.%s_proj.weight", p->prefix, r < p->half ? "gate" : "up");
	out->row = rank * p->half + r % p->half;
	out->col = c;
}

static void expect_mlp(const char *prefix, int64_t inner, int64_t hidden)
{
	char name[120];
	const struct pair p = { prefix, inner / tp };
	snprintf(name, sizeof name, "%s.gate_up_proj.weight", prefix);
	expect(name, 2 * p.half, hidden, locate_gate_up, &p);
	snprintf(name, sizeof name, "%s.down_proj.weight", prefix);
	expect_row_parallel(name, hidden, inner);
}

/* Expert planes, which groups of tp / ep ranks have in turn. */
static void expect_experts(const char *prefix, int64_t experts, int64_t inner, int64_t hidden)
{
	char w13[120], w2[120];
	const unsigned per = tp / ep;
	const int64_t n = experts / ep, half = inner / per;
	const int64_t dims13[] = { n, 2 * half, hidden }, dims2[] = { n, hidden, half };
	snprintf(w13, sizeof w13, "%s.experts.w13_weight", prefix);
	snprintf(w2, sizeof w2, "%s.experts.w2_weight", prefix);
	for (unsigned rank = 0; rank < tp; rank++) {
		const uint16_t *at13 = memory_of(w13, rank, 3, dims13), *at2 = memory_of(w2, rank, 3, dims2);
		for (int64_t i = 0; i < n * 2 * half * hidden; i++) {
			const int64_t e = rank / per * n + i / (2 * half * hidden);
			const int64_t r = i / hidden % (2 * half);
			struct place p = { .row = rank % per * half + r % half, .col = i % hidden,
				           .cols = hidden };
			snprintf(p.name, sizeof p.name, "%s.experts.%d.%s_proj.weight", prefix, (int)e,
			         r < half ? "gate" : "up");
			same(w13, rank, i, at13[i], &p);
		}
		for (int64_t i = 0; i < n * half * hidden; i++) {
			const int64_t e = rank / per * n + i / (half * hidden);
			struct place p = { .row = i / half % hidden, .col = rank % per * half + i % half,
				           .cols = inner };
			snprintf(p.name, sizeof p.name, "%s.experts.%d.down_proj.weight", prefix, (int)e);
			same(w2, rank, i, at2[i], &p);
		}
	}
	n_expected += 2;
}

/* In one fused parameter, whole on every rank. */
static void locate_latent(const void *ctx, unsigned rank, int64_t r, int64_t c, struct place *out)
{
	const struct pair *p = ctx;
	snprintf(out->name, sizeof out->name, "%s.%s.weight", p->prefix,
	         r < p->half ? "q_a_proj" : "kv_a_proj_with_mqa");
	(void)rank;
	out->row = r < p->half ? r : r - p->half;
	out->col = c;
}

static char text[160];
static const char *in_layer(int layer, const char *rest)
{
	snprintf(text, sizeof text, "model.layers.%d.%s", layer, rest);
	return text;
}

static const char *kept(const char *name)
{
	static char copies[8][160];
	static unsigned i;
	return strcpy(copies[i++ % 8], name);
}

/* Nothing but what was expected is there, and all of it goes back to what was sent. */
static void assert_round_trip(void)
{
	size_t params = 0;
	for (size_t i = 0; i < ws_layout_param_count(model->layout); i++)
		params += !ws_layout_param(model->layout, i)->tied_to;
	assert_int_equal(params, n_expected);
	put_all();
	for (size_t i = 0; i < n_tensors; i++) {
		struct ws_serve_gather g;
		uint64_t hashes[WS_SERVE_MAX_TP];
		const struct tensor *t = &tensors[i];
		const struct ws_part *p = ws_layout_find_part(model->layout, t->slot.name);
		if (ws_layout_param(model->layout, p->param)->tied_to)
			continue;
		ws_serve_gather_begin(&g, model, p, t->slot.dtype);
		assert_int_equal(ws_serve_gather_hash(&g, hashes), 0);
		for (unsigned r = 0; r < tp; r++)
			if (hashes[r] != ws_hash64(t->bytes, (size_t)t->slot.bytes))
				fail_msg("%s put together at rank %u of %u, ep %u", t->slot.name, r, tp, ep);
	}
	drop_tensors();
	n_expected = 0;
}

static void load_all(const char *config, unsigned with_tp, unsigned with_ep)
{
	close_model();
	open_model(config, with_tp, with_ep);
	put_all();
	const size_t n = n_tensors;
	assert_false(send());
	assert_int_equal(load.loaded + load.ignored, n);
}

static void llama_lies_in_memory_as_defined(void **state)
{
	(void)state;
	for (unsigned with = 1; with <= 4; with *= 2) {
		load_all(llama, with, 1);
		for (int l = 0; l < 2; l++) {
			expect_qkv(kept(in_layer(l, "self_attn")), 8, 4, 6, 48);
			expect_row_parallel(kept(in_layer(l, "self_attn.o_proj.weight")), 48, 48);
			expect_mlp(kept(in_layer(l, "mlp")), 64, 48);
			expect_whole(kept(in_layer(l, "input_layernorm.weight")), 48, 0);
			expect_whole(kept(in_layer(l, "post_attention_layernorm.weight")), 48, 0);
		}
		expect_vocab("model.embed_tokens.weight", 100, 48);
		expect_vocab("lm_head.weight", 100, 48);
		expect_whole("model.norm.weight", 48, 0);
		assert_round_trip();
	}
}

static void qwen3_replicates_heads_and_ties_its_head(void **state)
{
	(void)state;
	for (unsigned with = 1; with <= 8; with *= 2) {
		load_all(qwen3, with, 1);
		for (int l = 0; l < 2; l++) {
			expect_qkv(kept(in_layer(l, "self_attn")), 8, 2, 6, 32);
			expect_row_parallel(kept(in_layer(l, "self_attn.o_proj.weight")), 32, 48);
			expect_whole(kept(in_layer(l, "self_attn.q_norm.weight")), 6, 0);
			expect_whole(kept(in_layer(l, "self_attn.k_norm.weight")), 6, 0);
			expect_mlp(kept(in_layer(l, "mlp")), 64, 32);
			expect_whole(kept(in_layer(l, "input_layernorm.weight")), 32, 0);
			expect_whole(kept(in_layer(l, "post_attention_layernorm.weight")), 32, 0);
		}
		expect_vocab("model.embed_tokens.weight", 70, 32);
		expect_whole("model.norm.weight", 32, 0);
		assert_round_trip();
	}
}

static void qwen3_moe_divides_experts_by_both_sizes(void **state)
{
	static const unsigned sizes[][2] = { { 1, 1 }, { 2, 1 }, { 2, 2 }, { 4, 2 }, { 8, 2 }, { 8, 8 } };
	(void)state;
	for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
		load_all(qwen3_moe, sizes[i][0], sizes[i][1]);
		for (int l = 0; l < 2; l++) {
			expect_qkv(kept(in_layer(l, "self_attn")), 8, 4, 4, 32);
			expect_row_parallel(kept(in_layer(l, "self_attn.o_proj.weight")), 32, 32);
			expect_whole(kept(in_layer(l, "self_attn.q_norm.weight")), 4, 0);
			expect_whole(kept(in_layer(l, "self_attn.k_norm.weight")), 4, 0);
			expect_whole(kept(in_layer(l, "input_layernorm.weight")), 32, 0);
			expect_whole(kept(in_layer(l, "post_attention_layernorm.weight")), 32, 0);
		}
		expect_mlp("model.layers.0.mlp", 64, 32);
		expect_whole("model.layers.1.mlp.gate.weight", 8, 32);
		expect_experts("model.layers.1.mlp", 8, 16, 32);
		expect_vocab("model.embed_tokens.weight", 64, 32);
		expect_vocab("lm_head.weight", 64, 32);
		expect_whole("model.norm.weight", 32, 0);
		assert_round_trip();
	}
}

/* The one parameter of another type: bfloat16 in float32. */
static void expect_bias(const char *name, int64_t n)
{
	const int64_t dims[] = { n };
	for (unsigned rank = 0; rank < tp; rank++) {
		const float *have = (const float *)(const void *)memory_of(name, rank, 1, dims);
		for (int64_t i = 0; i < n; i++)
			assert_true(have[i] == (float)ws_number_from_bf16(element(name, (uint64_t)i)));
	}
	n_expected++;
}

static void deepseek_keeps_its_latent_projections_whole(void **state)
{
	static const unsigned sizes[][2] = { { 1, 1 }, { 2, 1 }, { 4, 4 }, { 8, 2 } };
	(void)state;
	for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
		load_all(deepseek, sizes[i][0], sizes[i][1]);
		for (int l = 0; l < 2; l++) {
			const char *attn = kept(in_layer(l, "self_attn"));
			const struct pair p = { attn, 24 };
			expect(kept(in_layer(l, "self_attn.fused_qkv_a_proj_with_mqa.weight")), 24 + 18, 32,
			       locate_latent, &p);
			expect_whole(kept(in_layer(l, "self_attn.q_a_layernorm.weight")), 24, 0);
			expect_column_parallel(kept(in_layer(l, "self_attn.q_b_proj.weight")), 48, 24);
			expect_whole(kept(in_layer(l, "self_attn.kv_a_layernorm.weight")), 16, 0);
			expect_column_parallel(kept(in_layer(l, "self_attn.kv_b_proj.weight")), 64, 16);
			expect_row_parallel(kept(in_layer(l, "self_attn.o_proj.weight")), 32, 32);
			expect_whole(kept(in_layer(l, "input_layernorm.weight")), 32, 0);
			expect_whole(kept(in_layer(l, "post_attention_layernorm.weight")), 32, 0);
		}
		expect_mlp("model.layers.0.mlp", 64, 32);
		expect_whole("model.layers.1.mlp.gate.weight", 8, 32);
		expect_bias("model.layers.1.mlp.gate.e_score_correction_bias", 8);
		expect_experts("model.layers.1.mlp", 8, 16, 32);
		expect_mlp("model.layers.1.mlp.shared_experts", 16, 32);
		expect_vocab("model.embed_tokens.weight", 64, 32);
		expect_vocab("lm_head.weight", 64, 32);
		expect_whole("model.norm.weight", 32, 0);
		assert_round_trip();
	}
}

static int close_scratch(void **state)
{
	drop_tensors();
	n_expected = 0;
	close_model();
	return scratch_leave(state);
}

/* ---- names ---- */

static const struct ws_serve_part_state *state_of(const char *name)
{
	const struct ws_part *p = ws_layout_find_part(model->layout, name);
	assert_non_null(p);
	return &model->parts[p - ws_layout_part(model->layout, 0)];
}

static void assert_fate(const char *name, enum ws_serve_fate fate, const char *says)
{
	struct ws_serve_verdict v;
	ws_serve_model_judge(model, name, &v);
	if (v.fate != fate || (says && strcmp(v.why, says) != 0))
		fail_msg("%s: fate %d, '%s'", name, (int)v.fate, v.why);
}

static void llama_logs_unknown_names_but_for_its_fragments(void **state)
{
	(void)state;
	open_model(llama, 2, 1);
	assert_fate("model.norm.weight", WS_FATE_LOAD, NULL);
	assert_fate("model.layers.0.self_attn.qkv_proj.weight", WS_FATE_LOAD, NULL);
	assert_fate("model.layers.1.mlp.gate_up_proj.weight", WS_FATE_LOAD, NULL);
	assert_fate("transformer.norm.weight", WS_FATE_IGNORE,
	            "Parameter transformer.norm.weight not found in params_dict");
	assert_fate("module.model.layers.0.self_attn.q_proj.weight", WS_FATE_REFUSE,
	            "'module.model.layers.0.self_attn.qkv_proj.weight'");
	assert_fate("model.layers.0.self_attn.q_proj.bias", WS_FATE_IGNORE, "");
	assert_fate("model.layers.0.self_attn.rotary_emb.inv_freq", WS_FATE_IGNORE, NULL);
	assert_fate("model.layers.2.mlp.up_proj.weight", WS_FATE_IGNORE, NULL);
	assert_fate("", WS_FATE_IGNORE, NULL);
}

static void qwen3_finds_fragments_in_fused_names(void **state)
{
	(void)state;
	open_model(qwen3, 1, 1);
	assert_fate("model.layers.0.mlp.gate_up_proj.weight", WS_FATE_REFUSE,
	            "'model.layers.0.mlp.gate_gate_up_proj.weight'");
	assert_fate("model.layers.0.self_attn.qkv_proj.weight", WS_FATE_REFUSE,
	            "'model.layers.0.self_attn.qkqkv_proj.weight'");
	assert_fate("lm_head.weight", WS_FATE_IGNORE, NULL);
}

static void qwen3_moe_says_nothing(void **state)
{
	(void)state;
	open_model(qwen3_moe, 1, 1);
	assert_fate("model.layers.0.self_attn.qkv_proj.weight", WS_FATE_IGNORE, "");
	assert_fate("layers.0.self_attn.q_proj.weight", WS_FATE_IGNORE, "");
	assert_fate("model.layers.1.mlp.experts.8.up_proj.weight", WS_FATE_IGNORE, "");
	assert_fate("model.layers.1.mlp.experts.w13_weight", WS_FATE_REFUSE, NULL);
}

static void deepseek_misses_the_gate_and_forgets_half_a_pair(void **state)
{
	static const char q_a[] = "model.layers.1.self_attn.q_a_proj.weight";
	static const char kv_a[] = "model.layers.1.self_attn.kv_a_proj_with_mqa.weight";
	(void)state;
	open_model(deepseek, 2, 1);
	assert_fate("layers.0.mlp.gate_proj.weight", WS_FATE_REFUSE, "'layers.0.mlp.gate_up_proj.weight'");
	assert_fate("layers.0.self_attn.o_proj.weight", WS_FATE_IGNORE, NULL);
	assert_fate("model.layers.2.embed_tokens.weight", WS_FATE_IGNORE, NULL);
	assert_fate("model.layers.1.self_attn.fused_qkv_a_proj_with_mqa.weight", WS_FATE_IGNORE, NULL);
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

static void what_stands_before_the_wrong_tensor_is_loaded(void **state)
{
	(void)state;
	open_model(llama, 2, 1);
	put("model.layers.0.input_layernorm.weight", 48, 0);
	put("unheard.of", 3, 0);
	put("model.embed_tokens.weight", 128, 48); /* padded, as a server has it and nobody sends it */
	put("model.norm.weight", 48, 0);
	assert_true(send());
	assert_string_equal(load.why.msg, "shape mismatch for 'model.embed_tokens.weight': the parameter "
	                                  "is [100, 48], the loaded weight is [128, 48]");
	assert_int_equal(load.loaded, 1);
	assert_int_equal(load.ignored, 1);
	assert_true(state_of("model.layers.0.input_layernorm.weight")->loaded);
	assert_false(state_of("model.norm.weight")->loaded);
}

static void a_fused_tensor_is_divided_like_its_parts(void **state)
{
	static const char *const parts[] = { "q_proj", "k_proj", "v_proj" };
	static const int64_t rows[] = { 48, 24, 24 };
	(void)state;
	open_model(llama, 4, 1);
	put("model.layers.0.self_attn.qkv_proj.weight", 96, 48);
	uint8_t *at = tensors[0].bytes;
	for (int i = 0; i < 3; i++) {
		char name[80];
		snprintf(name, sizeof name, "model.layers.0.self_attn.%s.weight", parts[i]);
		for (int64_t k = 0; k < rows[i] * 48; k++, at += 2) {
			const uint16_t bits = element(name, (uint64_t)k);
			memcpy(at, &bits, 2);
		}
	}
	assert_false(send());
	expect_qkv("model.layers.0.self_attn", 8, 4, 6, 48);
	n_expected = 0;
	put("model.layers.0.self_attn.qkv_proj.weight", 95, 48);
	assert_true(send());
}

static void other_floating_types_are_rounded(void **state)
{
	static const enum ws_dtype types[] = { WS_DTYPE_F32, WS_DTYPE_F16, WS_DTYPE_F64 };
	static const int64_t dims[] = { 48, 64 };
	(void)state;
	open_model(llama, 2, 1);
	for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
		struct ws_serve_gather g;
		uint64_t hashes[2];
		put_slot("model.layers.0.mlp.down_proj.weight", types[i], 2, dims);
		const uint64_t sent = ws_hash64(tensors[0].bytes, (size_t)tensors[0].slot.bytes);
		assert_false(send());
		expect_row_parallel("model.layers.0.mlp.down_proj.weight", 48, 64);
		/* Given back as it came, it is what was sent: these values fit into bfloat16. */
		ws_serve_gather_begin(&g, model,
		                      ws_layout_find_part(model->layout,
		                                          "model.layers.0.mlp.down_proj.weight"),
		                      types[i]);
		assert_int_equal(ws_serve_gather_hash(&g, hashes), 0);
		assert_true(hashes[0] == sent && hashes[1] == sent);
	}
	n_expected = 0;
	put_slot("model.norm.weight", WS_DTYPE_BF16, 1, dims);
	tensors[0].slot.dtype = WS_DTYPE_C64;
	tensors[0].slot.dtype_name = "complex64";
	tensors[0].slot.bytes = 0;
	assert_true(send());
}

static void a_flip_is_seen_by_the_rank_that_has_it(void **state)
{
	struct ws_serve_gather g;
	uint64_t before[2], after[2];
	(void)state;
	open_model(llama, 2, 1);
	put("model.norm.weight", 48, 0);
	assert_false(send());
	const struct ws_part *p = ws_layout_find_part(model->layout, "model.norm.weight");
	ws_serve_gather_begin(&g, model, p, WS_DTYPE_BF16);
	assert_true(g.replicated);
	ws_serve_gather_hash(&g, before);
	ws_serve_load_flip(&load);
	ws_serve_gather_hash(&g, after);
	assert_true(before[0] == before[1] && after[1] == before[1] && after[0] != before[0]);
}

static void a_model_that_does_not_divide_is_refused(void **state)
{
	struct ws_err err = WS_ERR_INIT;
	(void)state;
	write_config(llama);
	assert_int_equal(ws_serve_model_open(".", 3, 1, NULL, true, &model, &err), -1);
	assert_int_equal(err.code, WS_EINPUT);
	assert_non_null(strstr(err.msg, "at tp 3, ep 1"));
	assert_int_equal(ws_serve_model_open(".", 4, 3, NULL, true, &model, &err), -1);
	assert_int_equal(err.code, WS_EUSAGE);
	write_config("{\"architectures\":[\"Unheard\"]}");
	assert_int_equal(ws_serve_model_open(".", 1, 1, NULL, true, &model, &err), -1);
	assert_non_null(strstr(err.msg, "no rules for architecture 'Unheard'"));
	assert_int_equal(ws_serve_model_open("nowhere", 1, 1, NULL, true, &model, &err), -1);
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
	n_expected = 0;
	ws_buf_free(&reply.body);
	ws_serve_stop(serve);
	serve = NULL;
	model = NULL;
	return scratch_leave(state);
}

static const char *asked_rank(const void *ctx, const char *key)
{
	return strcmp(key, "rank") == 0 ? ctx : NULL;
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
		fail_msg("%s %s: %u, %s", path, body ? body : "", reply.status, ws_buf_str(&reply.body));
	return ws_buf_str(&reply.body);
}

static void assert_has(const char *in, const char *part)
{
	if (!strstr(in, part))
		fail_msg("'%s' lacks '%s'", in, part);
}

static void information_is_that_of_the_config(void **state)
{
	(void)state;
	write_config(qwen3_moe);
	start(&(struct ws_serve_opts){ .model = ".", .tp = 4, .ep = 2 });
	const char *said = ask("/server_info", NULL, 200, NULL);
	assert_has(said, "\"model_path\":\".\"");
	assert_has(said, "\"tp_size\":4");
	assert_has(said, "\"ep_size\":2");
	assert_has(said, "\"dtype\":\"bfloat16\"");
	assert_has(said, "\"quantization\":null");
	said = ask("/model_info", NULL, 200, NULL);
	assert_has(said, "\"model_type\":\"qwen3_moe\",\"architectures\":[\"Qwen3MoeForCausalLM\"]");
}

static void a_dtype_replaces_that_of_the_config(void **state)
{
	struct ws_err err = WS_ERR_INIT;
	(void)state;
	write_config(deepseek);
	start(&(struct ws_serve_opts){ .model = ".", .dtype = "half" });
	assert_has(ask("/server_info", NULL, 200, NULL), "\"dtype\":\"half\"");
	const char *said = ask("/list_weights", NULL, 200, NULL);
	assert_has(said, "\"name\":\"model.norm.weight\",\"shape\":[32],\"dtype\":\"float16\"");
	assert_has(said, "e_score_correction_bias\",\"shape\":[8],\"dtype\":\"float32\"");
	assert_int_equal(ws_serve_model_open(".", 1, 1, "int8", true, &model, &err), -1);
	assert_int_equal(ws_serve_model_open(".", 1, 1, "wide", true, &model, &err), -1);
	assert_int_equal(err.code, WS_EUSAGE);
}

static void a_listing_shows_local_shapes_of_the_rank(void **state)
{
	(void)state;
	write_config(qwen3);
	start(&(struct ws_serve_opts){ .model = ".", .tp = 8 });
	const char *said = ask("/list_weights", NULL, 200, "7");
	assert_has(said, "\"name\":\"model.layers.1.self_attn.qkv_proj.weight\",\"shape\":[18,32],");
	assert_has(said, "\"name\":\"model.embed_tokens.weight\",\"shape\":[16,32],\"dtype\":\"bfloat16\"");
	assert_null(strstr(said, "lm_head"));
	assert_null(strstr(said, "\"received\""));
	assert_has(ask("/list_weights", NULL, 200, "99"), "\"shape\":[18,32]");
	ask("/list_weights", NULL, 400, "x");
	start(&(struct ws_serve_opts){ 0 });
	assert_has(ask("/list_weights", NULL, 200, NULL), "\"received\":true");
}

static void checksums_are_of_what_was_loaded(void **state)
{
	char want[80];
	(void)state;
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

static void a_reset_is_found_by_compare(void **state)
{
	(void)state;
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

static void padding_is_written_by_every_load(void **state)
{
	(void)state;
	write_config(qwen3);
	start(&(struct ws_serve_opts){ .model = ".", .tp = 8 });
	ask("/weights_checker", "{\"action\":\"reset_tensors\"}", 200, NULL);
	put("model.embed_tokens.weight", 70, 32);
	assert_false(send());
	expect_vocab("model.embed_tokens.weight", 70, 32);
}

static void numbers_are_rows_of_the_full_tensor(void **state)
{
	char want[400] = "[[", one[32];
	(void)state;
	write_config(qwen3);
	start(&(struct ws_serve_opts){ .model = ".", .tp = 4 });
	put_all();
	assert_false(send());
	for (uint64_t i = 0; i < 6; i++) {
		snprintf(one, sizeof one, "%s%.9g", i ? "," : "",
		         ws_number_from_bf16(element("model.layers.0.self_attn.k_proj.weight", i)));
		strcat(want, one);
	}
	assert_has(ask("/get_weights_by_name", "{\"name\":\"model.layers.0.self_attn.k_proj.weight\","
	                                       "\"truncate_size\":2}", 200, NULL), want);
	unsigned rows = 0;
	for (const char *at = ws_buf_str(&reply.body); *at; at++)
		rows += *at == ']';
	assert_int_equal(rows, 3);
	ask("/get_weights_by_name", "{\"name\":\"model.norm.weight\",\"truncate_size\":-31}", 200, NULL);
	assert_null(strchr(ws_buf_str(&reply.body), ','));
	assert_string_equal(ask("/get_weights_by_name", "{\"name\":\"x\"}", 400, NULL),
	                    "{\"error\":{\"message\":\"Get parameter by name failed\"}}");
	assert_has(ask("/get_weights_by_name", "{}", 400, NULL), "body.name: Field required");
}

static void hashes_alone_know_names_and_shapes(void **state)
{
	(void)state;
	write_config(qwen3);
	start(&(struct ws_serve_opts){ .model = ".", .tp = 2, .keep = WS_KEEP_HASH });
	assert_null(serve->model->memory[0]);
	assert_has(ask("/list_weights", NULL, 200, NULL), "\"data_ptr\":0");
	assert_has(ask("/weights_checker", "{\"action\":\"snapshot\"}", 400, NULL), "--keep hash");
	ask("/get_weights_by_name", "{\"name\":\"model.norm.weight\"}", 400, NULL);
	put("model.norm.weight", 32, 0);
	put("unknown", 1, 0);
	assert_false(send());
	assert_int_equal(load.loaded, 1);
}

/* ---- boxes and numbers ---- */

static void make_random_boxes(struct ws_serve_boxes *b, int64_t *dims, struct ws_box *from,
                              int64_t *local, struct ws_box *to, bool transposed)
{
	from->n_dims = to->n_dims = 3;
	for (unsigned d = 0; d < 3; d++) {
		dims[d] = 1 + next(5);
		from->at[d] = next((unsigned)dims[d]);
		from->size[d] = 1 + next((unsigned)(dims[d] - from->at[d]));
	}
	for (unsigned d = 0; d < 3; d++) {
		const unsigned other = transposed && d > 0 ? 3 - d : d;
		to->size[d] = from->size[other];
		local[d] = to->size[d] + next(3);
		to->at[d] = next((unsigned)(local[d] - to->size[d] + 1));
	}
	ws_serve_boxes_make(b, 3, dims, from, 3, local, to, 2, transposed);
}

static void any_box_is_copied_in_any_pieces(void **state)
{
	uint8_t whole[2 * 125], back[2 * 125], local[2 * 512], want[2 * 512];
	(void)state;
	for (int round = 0; round < 20000; round++) {
		struct ws_serve_boxes b;
		struct ws_box from, to;
		int64_t dims[3], at[3];
		const bool transposed = round % 2;
		make_random_boxes(&b, dims, &from, at, &to, transposed);
		for (size_t i = 0; i < sizeof whole; i++)
			whole[i] = (uint8_t)(1 + next(255));
		memset(local, 0, sizeof local);
		memset(want, 0, sizeof want);
		for (int64_t i = 0; i < from.size[0]; i++)
			for (int64_t j = 0; j < from.size[1]; j++)
				for (int64_t k = 0; k < from.size[2]; k++) {
					const int64_t src = ((from.at[0] + i) * dims[1] + from.at[1] + j) * dims[2] +
					                    from.at[2] + k;
					const int64_t y = to.at[1] + (transposed ? k : j);
					const int64_t x = to.at[2] + (transposed ? j : k);
					memcpy(&want[2 * (((to.at[0] + i) * at[1] + y) * at[2] + x)],
					       &whole[2 * src], 2);
				}
		for (uint64_t done = 0; done < b.total; ) {
			uint64_t n = 1 + next(60);
			n = n < b.total - done ? n : b.total - done;
			ws_serve_boxes_put(&b, done, whole + done, (size_t)n, local);
			done += n;
		}
		assert_memory_equal(local, want, sizeof local);
		memset(back, 0, sizeof back);
		ws_serve_boxes_get(&b, 0, back, (size_t)b.total, local);
		for (uint64_t i = 0; i < b.total; i++)
			assert_true(back[i] == whole[i] || back[i] == 0);
		memset(local, 0, sizeof local);
		ws_serve_boxes_put(&b, 0, back, (size_t)b.total, local);
		assert_memory_equal(local, want, sizeof local);
	}
}

static void sixteen_bits_survive_a_round_trip(void **state)
{
	static const enum ws_dtype types[] = { WS_DTYPE_F16, WS_DTYPE_BF16, WS_DTYPE_F8_E4M3,
		                               WS_DTYPE_F8_E5M2 };
	(void)state;
	for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
		for (uint32_t bits = 0; bits < 1u << ws_dtype_bits(types[i]); bits++) {
			uint16_t back = 0, from = (uint16_t)bits;
			double value = 0;
			ws_serve_convert(WS_DTYPE_F64, &value, types[i], &from, 1);
			ws_serve_convert(types[i], &back, WS_DTYPE_F64, &value, 1);
			double again = 0;
			ws_serve_convert(WS_DTYPE_F64, &again, types[i], &back, 1);
			if (isnan(value) ? !isnan(again) : back != from)
				fail_msg("%s %x became %x", ws_dtype_torch(types[i]), from, back);
		}
}

static void rounding_is_to_nearest_even(void **state)
{
	(void)state;
	for (int i = 0; i < 200000; i++) {
		const uint32_t bits = next(1 << 16) << 16 | next(1 << 16);
		float x;
		uint16_t bf16 = 0, f16 = 0;
		memcpy(&x, &bits, 4);
		ws_serve_convert(WS_DTYPE_BF16, &bf16, WS_DTYPE_F32, &x, 1);
		ws_serve_convert(WS_DTYPE_F16, &f16, WS_DTYPE_F32, &x, 1);
		const double as_bf16 = ws_number_from_bf16(bf16), as_f16 = ws_number_from_f16(f16);
		assert_true(isnan(x) ? isnan(as_bf16)
		                     : as_bf16 == ws_number_round(WS_DTYPE_BF16, (double)x));
		assert_true(isnan(x) ? isnan(as_f16) : as_f16 == ws_number_round(WS_DTYPE_F16, (double)x));
	}
	const float halves[] = { 1.0f + 0x1p-8f, 1.0f + 0x3p-8f, 448.0f, 464.0f, 465.0f, -0.0f, 0x1p-10f };
	uint8_t e4m3[7];
	ws_serve_convert(WS_DTYPE_F8_E4M3, e4m3, WS_DTYPE_F32, halves, 7);
	static const uint8_t want[] = { 0x38, 0x38, 0x7e, 0x7e, 0x7f, 0x80, 0x00 };
	assert_memory_equal(e4m3, want, 7);
}

#define WITH_MODEL(test) cmocka_unit_test_setup_teardown(test, scratch_enter, close_scratch)
#define WITH_ROUTES(test) cmocka_unit_test_setup_teardown(test, scratch_enter, stop)

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(any_box_is_copied_in_any_pieces),
		cmocka_unit_test(sixteen_bits_survive_a_round_trip),
		cmocka_unit_test(rounding_is_to_nearest_even),
		WITH_MODEL(llama_lies_in_memory_as_defined),
		WITH_MODEL(qwen3_replicates_heads_and_ties_its_head),
		WITH_MODEL(qwen3_moe_divides_experts_by_both_sizes),
		WITH_MODEL(deepseek_keeps_its_latent_projections_whole),
		WITH_MODEL(llama_logs_unknown_names_but_for_its_fragments),
		WITH_MODEL(qwen3_finds_fragments_in_fused_names),
		WITH_MODEL(qwen3_moe_says_nothing),
		WITH_MODEL(deepseek_misses_the_gate_and_forgets_half_a_pair),
		WITH_MODEL(what_stands_before_the_wrong_tensor_is_loaded),
		WITH_MODEL(a_fused_tensor_is_divided_like_its_parts),
		WITH_MODEL(other_floating_types_are_rounded),
		WITH_MODEL(a_flip_is_seen_by_the_rank_that_has_it),
		WITH_MODEL(a_model_that_does_not_divide_is_refused),
		WITH_ROUTES(information_is_that_of_the_config),
		WITH_ROUTES(a_dtype_replaces_that_of_the_config),
		WITH_ROUTES(a_listing_shows_local_shapes_of_the_rank),
		WITH_ROUTES(checksums_are_of_what_was_loaded),
		WITH_ROUTES(a_reset_is_found_by_compare),
		WITH_ROUTES(padding_is_written_by_every_load),
		WITH_ROUTES(numbers_are_rows_of_the_full_tensor),
		WITH_ROUTES(hashes_alone_know_names_and_shapes),
	};
	const int rc = cmocka_run_group_tests(tests, NULL, NULL);
	ws_serve_load_fini(&load);
	return rc;
}
