/* SPDX-License-Identifier: Apache-2.0 */
/* Loading into the parameters of a model. What every rank must hold is worked out here a second
 * time, element by element and without the layout: which element of which tensor of the
 * checkpoint lies at each place of each runtime parameter. */
#include "number.h"
#include "serve_small.h"

#include <inttypes.h>

/* ---- what must be there ---- */

struct place {
	char name[120];     /* "": padding, zero */
	int64_t row, col, cols;
};

static size_t n_expected;

static const uint16_t *memory_of(const char *name, unsigned rank, unsigned n_dims,
                                 const int64_t *dims)
{
	int64_t have[WS_MAX_DIMS];
	const struct ws_param *p = ws_layout_find_param(model->layout, name);
	if (!p)
		fail_msg("no parameter %s", name);
	ws_layout_dims(model->layout, p, rank, have);
	if (p->n_dims != n_dims || memcmp(have, dims, n_dims * sizeof *dims) != 0)
		fail_msg("%s at rank %u of %u is [%" PRId64 ", %" PRId64 "] of %u", name, rank, tp,
		         have[0], n_dims > 1 ? have[1] : 0, p->n_dims);
	for (size_t i = 0; i < ws_layout_param_count(model->layout); i++)
		if (ws_layout_param(model->layout, i) == p)
			return (const uint16_t *)(const void *)ws_serve_model_at(model, i, rank);
	return NULL;
}

static void same(const char *name, unsigned rank, int64_t i, uint16_t have,
                 const struct place *want)
{
	const uint16_t bits =
		want->name[0] ?
			element(want->name,
	                        (uint64_t)(want->row * (want->cols ? want->cols : 1) + want->col)) :
			0;
	if (have != bits)
		fail_msg("%s at rank %u of %u, ep %u: element %" PRId64
		         " is %04x and not %04x, that of %s at "
		         "%" PRId64 ", %" PRId64,
		         name, rank, tp, ep, i, have, bits, want->name, want->row, want->col);
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
	snprintf(out->name, sizeof out->name, "%s.%s_proj.weight", p->prefix,
	         r < p->half ? "gate" : "up");
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
		const uint16_t *at13 = memory_of(w13, rank, 3, dims13),
			       *at2 = memory_of(w2, rank, 3, dims2);
		for (int64_t i = 0; i < n * 2 * half * hidden; i++) {
			const int64_t e = rank / per * n + i / (2 * half * hidden);
			const int64_t r = i / hidden % (2 * half);
			struct place p = { .row = rank % per * half + r % half, .col = i % hidden,
				           .cols = hidden };
			snprintf(p.name, sizeof p.name, "%s.experts.%d.%s_proj.weight", prefix,
			         (int)e, r < half ? "gate" : "up");
			same(w13, rank, i, at13[i], &p);
		}
		for (int64_t i = 0; i < n * half * hidden; i++) {
			const int64_t e = rank / per * n + i / (half * hidden);
			struct place p = { .row = i / half % hidden,
				           .col = rank % per * half + i % half,
				           .cols = inner };
			snprintf(p.name, sizeof p.name, "%s.experts.%d.down_proj.weight", prefix,
			         (int)e);
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
				fail_msg("%s put together at rank %u of %u, ep %u", t->slot.name, r,
				         tp, ep);
	}
	drop_tensors();
}

static void load_all(const char *config, unsigned with_tp, unsigned with_ep)
{
	n_expected = 0;
	close_model();
	open_model(config, with_tp, with_ep);
	put_all();
	const size_t n = n_tensors;
	assert_false(send());
	assert_int_equal(load.loaded + load.ignored, n);
}

WITH_MODEL(llama_lies_in_memory_as_defined)
{
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

WITH_MODEL(qwen3_replicates_heads_and_ties_its_head)
{
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

WITH_MODEL(qwen3_moe_divides_experts_by_both_sizes)
{
	static const unsigned sizes[][2] = { { 1, 1 }, { 2, 1 }, { 2, 2 },
		                             { 4, 2 }, { 8, 2 }, { 8, 8 } };
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
			assert_true(have[i] ==
			            (float)ws_number_from_bf16(element(name, (uint64_t)i)));
	}
	n_expected++;
}

WITH_MODEL(deepseek_keeps_its_latent_projections_whole)
{
	static const unsigned sizes[][2] = { { 1, 1 }, { 2, 1 }, { 4, 4 }, { 8, 2 } };
	for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
		load_all(deepseek, sizes[i][0], sizes[i][1]);
		for (int l = 0; l < 2; l++) {
			const char *attn = kept(in_layer(l, "self_attn"));
			const struct pair p = { attn, 24 };
			expect(kept(in_layer(l, "self_attn.fused_qkv_a_proj_with_mqa.weight")),
			       24 + 18, 32, locate_latent, &p);
			expect_whole(kept(in_layer(l, "self_attn.q_a_layernorm.weight")), 24, 0);
			expect_column_parallel(kept(in_layer(l, "self_attn.q_b_proj.weight")), 48,
			                       24);
			expect_whole(kept(in_layer(l, "self_attn.kv_a_layernorm.weight")), 16, 0);
			expect_column_parallel(kept(in_layer(l, "self_attn.kv_b_proj.weight")), 64,
			                       16);
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

WITH_MODEL(a_fused_tensor_is_divided_like_its_parts)
{
	static const char *const parts[] = { "q_proj", "k_proj", "v_proj" };
	static const int64_t rows[] = { 48, 24, 24 };
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
	put("model.layers.0.self_attn.qkv_proj.weight", 95, 48);
	assert_true(send());
}

WITH_MODEL(other_floating_types_are_rounded)
{
	static const enum ws_dtype types[] = { WS_DTYPE_F32, WS_DTYPE_F16, WS_DTYPE_F64 };
	static const int64_t dims[] = { 48, 64 };
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
}

WITH_MODEL(padding_is_written_by_every_load)
{
	open_model(qwen3, 8, 1);
	for (unsigned r = 0; r < tp; r++)
		memset(model->memory[r], 0x55, (size_t)model->rank_bytes[r]);
	put("model.embed_tokens.weight", 70, 32);
	assert_false(send());
	expect_vocab("model.embed_tokens.weight", 70, 32);
	/* Padding that is not zero counts with the tensor. */
	const struct ws_part *p = ws_layout_find_part(model->layout, "model.embed_tokens.weight");
	struct ws_serve_gather g;
	uint64_t before[8], after[8];
	ws_serve_gather_begin(&g, model, p, WS_DTYPE_BF16);
	assert_int_equal(ws_serve_gather_hash(&g, before), 0);
	ws_serve_model_at(model, p->param, 7)[g.boxes[7].bytes] ^= 1;
	assert_int_equal(ws_serve_gather_hash(&g, after), 0);
	assert_true(before[0] != after[0]);
}

RUN_TESTS(NULL, NULL)
