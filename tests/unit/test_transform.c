/* SPDX-License-Identifier: Apache-2.0 */
/* A transform's items, however they are read: in whatever order, by however many, with however
 * little memory, they have the bytes that one plain loop over the numbers gives. */
#include "transform_make.h"

#include "fp8.h"
#include "payloads.h"
#include "scratch.h"
#include "tensor_file.h"
#include "transform_core.h"
#include "test.h"
#include "wsync/cancel.h"
#include "wsync/tool/plan.h"

#include <pthread.h>
#include <sys/stat.h>

enum { MIB = 1 << 20 };

/* ---- checkpoints ---- */

struct base {
	struct tensor_file out;
	uint64_t data;            /* where it begins in the file */
	struct ws_source *source;
	struct ws_catalog *catalog;
};

static uint16_t number_at(uint64_t i)
{
	uint64_t x = (i + 1) * UINT64_C(0x9e3779b97f4a7c15);
	x ^= x >> 29;
	x *= UINT64_C(0xbf58476d1ce4e5b9);
	/* Finite, and of many sizes: exponents 90 to 140. */
	return (uint16_t)((x >> 48 & 0x807f) | (90 + (x >> 20) % 51) << 7);
}

static void add(struct base *b, const char *name, int64_t rows, int64_t cols)
{
	if (!b->out.f)
		b->out = tensor_file_begin("x.safetensors");
	tensor_file_add(&b->out, name, WS_DTYPE_BF16, 2, (const int64_t[]){ rows, cols });
}

static void write_base(struct base *b, bool hole)
{
	b->data = tensor_file_data(&b->out);
	for (uint64_t i = 0; !hole && i < b->out.bytes / 2; i++) {
		const uint16_t x = number_at(i);
		fwrite(&x, 2, 1, b->out.f);
	}
	tensor_file_end(&b->out);
	const struct opened_file f = open_file("x.safetensors");
	b->source = f.source;
	b->catalog = f.catalog;
}

static void drop(struct base *b)
{
	ws_catalog_free(b->catalog);
	ws_source_close(b->source);
}

static struct ws_transform *transform(const struct base *b, const struct ws_transform_opts *o)
{
	struct ws_transform *t;
	struct ws_err err = WS_ERR_INIT;
	assert_ok(ws_transform_make(b->catalog, o, &t, &err), &err);
	return t;
}

/* ---- what is expected ---- */

static float *numbers_of(const struct ws_item *item)
{
	const size_t n = (size_t)(item->dims[0] * item->dims[1]);
	uint16_t *raw = malloc(n * sizeof *raw);
	float *x = malloc(n * sizeof *x);
	assert_int_equal(ws_item_read(item, 0, raw, n * sizeof *raw, NULL), 0);
	for (size_t i = 0; i < n; i++) {
		const uint32_t bits = (uint32_t)raw[i] << 16;
		memcpy(&x[i], &bits, sizeof bits);
	}
	free(raw);
	return x;
}

struct expected {
	uint8_t *codes;
	float *scales;
	size_t n_codes, n_scales;
};

static struct expected quantize(const struct ws_item *item, int64_t bn, int64_t bk)
{
	const int64_t rows = item->dims[0], cols = item->dims[1], across = (cols + bk - 1) / bk;
	struct expected e = { .n_codes = (size_t)(rows * cols),
		              .n_scales = (size_t)((rows + bn - 1) / bn * across) };
	float *x = numbers_of(item);
	e.codes = malloc(e.n_codes);
	e.scales = calloc(e.n_scales, sizeof *e.scales);
	for (int64_t i = 0; i < rows * cols; i++) {
		float *s = &e.scales[i / cols / bn * across + i % cols / bk];
		const float a = x[i] < 0 ? -x[i] : x[i];
		*s = a > *s ? a : *s;
	}
	for (size_t i = 0; i < e.n_scales; i++)
		e.scales[i] = (e.scales[i] > 1e-12f ? e.scales[i] : 1e-12f) / 448;
	for (int64_t i = 0; i < rows * cols; i++)
		e.codes[i] =
			ws_fp8_from_float(x[i] / e.scales[i / cols / bn * across + i % cols / bk]);
	free(x);
	return e;
}

static void assert_item(const struct ws_transform *t, const char *name, const void *bytes, size_t n)
{
	const struct ws_item *item = ws_catalog_find(ws_transform_catalog(t), name);
	struct ws_err err = WS_ERR_INIT;
	assert_non_null(item);
	assert_int_equal(item->bytes, n);
	uint8_t *got = malloc(n);
	assert_ok(ws_item_read(item, 0, got, n, &err), &err);
	for (size_t i = 0; i < n; i++)
		if (got[i] != ((const uint8_t *)bytes)[i])
			fail_msg("%s: byte %zu is %d, should be %d", name, i, got[i],
			         ((const uint8_t *)bytes)[i]);
	free(got);
}

/* ---- tests ---- */

SCRATCH_TEST(blocks_of_any_size_give_the_same_as_a_plain_loop)
{
	static const int64_t shapes[][2] = { { 1, 1 }, { 7, 300 }, { 257, 385 }, { 3, 20000 } };
	static const int64_t blocks[][2] = { { 128, 128 }, { 1, 16 },      { 64, 7 },
		                             { 1, 1 },     { 5000, 5000 }, { 100, 100000 } };
	for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
		struct base b = { 0 };
		add(&b, "a_proj.weight", shapes[s][0], shapes[s][1]);
		write_base(&b, false);
		for (size_t k = 0; k < sizeof blocks / sizeof *blocks; k++) {
			const struct ws_transform_opts o = { .quantize = WS_QUANTIZE_FP8,
				                             .threads = 3,
				                             .scratch = 16 * MIB,
				                             .block = { blocks[k][0],
				                                        blocks[k][1] } };
			struct expected e =
				quantize(ws_catalog_item(b.catalog, 0), blocks[k][0], blocks[k][1]);
			for (int order = 0; order < 3; order++) {
				struct ws_transform *t = transform(&b, &o);
				if (order == 2)
					assert_false(ws_transform_check(t, NULL, NULL, NULL));
				if (order)
					assert_item(t, "a_proj.weight_scale_inv", e.scales,
					            e.n_scales * 4);
				assert_item(t, "a_proj.weight", e.codes, e.n_codes);
				assert_item(t, "a_proj.weight_scale_inv", e.scales, e.n_scales * 4);
				ws_transform_free(t);
			}
			free(e.codes);
			free(e.scales);
		}
		drop(&b);
	}
}

/* A tile is a part of such a row, and begins where no block does. */
SCRATCH_TEST(rows_longer_than_a_tile_are_cut_within_blocks)
{
	static const int64_t blocks[][2] = { { 1, 100 }, { 2, 100 }, { 2, 3 }, { 1, 700001 } };
	struct base b = { 0 };
	add(&b, "a_proj.weight", 2, 1200007);
	write_base(&b, false);
	for (size_t k = 0; k < sizeof blocks / sizeof *blocks; k++) {
		const struct ws_transform_opts o = { .quantize = WS_QUANTIZE_FP8, .threads = 2,
			.scratch = 16 * MIB, .block = { blocks[k][0], blocks[k][1] } };
		if (blocks[k][1] < 100) { /* its scales find no room on a desk */
			struct ws_transform *t;
			struct ws_err err = WS_ERR_INIT;
			assert_fails_with(ws_transform_make(b.catalog, &o, &t, &err), &err,
			                  WS_EINPUT,
			                  "tensor 'a_proj.weight': 400003 blocks beside each other "
			                  "do not fit into the scratch");
			assert_string_equal(err.hint, "allow more of it: {scratch}");
			continue;
		}
		struct expected e =
			quantize(ws_catalog_item(b.catalog, 0), blocks[k][0], blocks[k][1]);
		for (int order = 0; order < 2; order++) {
			struct ws_transform *t = transform(&b, &o);
			if (order)
				assert_int_equal(ws_transform_check(t, NULL, NULL, NULL), 0);
			assert_item(t, "a_proj.weight", e.codes, e.n_codes);
			assert_item(t, "a_proj.weight_scale_inv", e.scales, e.n_scales * 4);
			ws_transform_free(t);
		}
		free(e.codes);
		free(e.scales);
	}
	drop(&b);
}

struct reader {
	const struct ws_catalog *c;
	const struct expected *e;
	uint32_t seed;
};

static void *read_anywhere(void *arg)
{
	const struct reader *r = arg;
	uint32_t x = r->seed;
	uint8_t got[3000];
	for (int i = 0; i < 20; i++) {
		x = x * 1664525 + 1013904223;
		const bool scales = x >> 30 == 0;
		const struct ws_item *item = ws_catalog_item(r->c, scales);
		const uint8_t *want = scales ? (const uint8_t *)r->e->scales : r->e->codes;
		const size_t n = 1 + (x >> 5) % (sizeof got < item->bytes ? sizeof got :
		                                                            (size_t)item->bytes);
		const uint64_t at = (x >> 3) % (item->bytes - n + 1);
		if (ws_item_read(item, at, got, n, NULL) || memcmp(got, want + at, n) != 0)
			return arg;
	}
	uint64_t hash;
	return ws_item_hash(ws_catalog_item(r->c, r->seed % 2), &hash, NULL) ? arg : NULL;
}

SCRATCH_TEST(many_readers_at_once_get_their_bytes)
{
	struct base b = { 0 };
	add(&b, "a_proj.weight", 700, 2500);
	write_base(&b, false);
	const struct ws_transform_opts o = { .quantize = WS_QUANTIZE_FP8, .threads = 4,
		                             .scratch = 16 * MIB };
	struct expected e = quantize(ws_catalog_item(b.catalog, 0), 128, 128);
	struct ws_transform *t = transform(&b, &o), *other = transform(&b, &o);
	struct reader readers[8];
	pthread_t threads[8];
	for (uint32_t i = 0; i < 8; i++) {
		readers[i] = (struct reader){ ws_transform_catalog(i % 3 ? t : other), &e, i };
		pthread_create(&threads[i], NULL, read_anywhere, &readers[i]);
	}
	for (int i = 0; i < 8; i++) {
		void *bad;
		pthread_join(threads[i], &bad);
		assert_null(bad);
	}
	struct ws_transform_report report;
	ws_transform_report(t, &report);
	assert_true(report.peak <= 16 * MIB);
	assert_int_equal(report.quantized, 1);
	ws_transform_free(other);
	ws_transform_free(t);
	ws_transform_free(NULL);
	free(e.codes);
	free(e.scales);
	drop(&b);
}

/* A reader of a bucket, as the data planes are. */
SCRATCH_TEST(a_large_tensor_stays_within_the_scratch)
{
	struct base b = { 0 };
	add(&b, "a_proj.weight", 200000, 8192);
	write_base(&b, true);
	const struct ws_transform_opts o = { .quantize = WS_QUANTIZE_FP8 };
	struct ws_transform *t = transform(&b, &o);
	struct ws_plan *plan;
	struct ws_payload *payloads;
	size_t n;
	const struct ws_plan_opts po = { .format = WS_FORMAT_FLATTENED };
	assert_int_equal(ws_plan_make(ws_transform_catalog(t), &po, &plan, NULL), 0);
	assert_string_equal(ws_transform_op_name(plan->tensors[0].op), "make");
	assert_string_equal(plan->tensors[1].name, "a_proj.weight_scale_inv");
	assert_int_equal(ws_plan_payloads(plan, 0, &payloads, &n, NULL), 0);
	uint8_t *bytes = malloc(MIB);
	/* A quarter of it, then the reader is gone. */
	const struct ws_span *span = &payloads[0].spans[0];
	for (uint64_t at = 0; at < span->length / 4; at += MIB)
		assert_int_equal(span->fill(span->ctx, at, bytes, MIB, NULL), 0);
	ws_plan_payloads_free(payloads, n);
	struct ws_transform_report report;
	ws_transform_report(t, &report);
	assert_true(report.peak <= 128 * MIB);
	free(bytes);
	ws_plan_free(plan);
	ws_transform_free(t);
	drop(&b);
}

/* As a data plane does it: all spans, from the first byte to the last. */
static void hand_out(const struct ws_payload *payloads, size_t n, size_t step)
{
	uint8_t *bytes = malloc(step);
	for (size_t i = 0; i < n; i++)
		for (size_t k = 0; k < payloads[i].n_spans; k++) {
			const struct ws_span *s = &payloads[i].spans[k];
			for (uint64_t at = 0; s->fill && at < s->length; at += step) {
				const size_t some =
					s->length - at < step ? (size_t)(s->length - at) : step;
				assert_int_equal(s->fill(s->ctx, at, bytes, some, NULL), 0);
			}
		}
	free(bytes);
}

SCRATCH_TEST(what_is_made_is_hashed_as_it_is_handed_out)
{
	struct base b = { 0 };
	add(&b, "a_proj.weight", 300, 700);
	add(&b, "norm.weight", 1, 100);
	add(&b, "b_proj.weight", 129, 1);
	write_base(&b, false);
	const struct ws_transform_opts o = { .quantize = WS_QUANTIZE_FP8, .threads = 2,
		                             .scratch = 16 * MIB };
	struct ws_transform *t = transform(&b, &o);
	for (int format = WS_FORMAT_TENSORS; format <= WS_FORMAT_FLATTENED; format++) {
		struct ws_plan *plan;
		const struct ws_plan_opts po = { .format = (enum ws_load_format)format };
		assert_int_equal(ws_plan_make(ws_transform_catalog(t), &po, &plan, NULL), 0);
		assert_int_equal(plan->n_tensors, 5);
		uint64_t hashes[5] = { 0 }, want;
		struct ws_payload *payloads;
		size_t n;
		assert_int_equal(ws_plan_payloads(plan, 0, &payloads, &n, NULL), 0);
		assert_int_equal(ws_plan_payloads_watch(payloads, hashes, NULL), 0);
		hand_out(payloads, n, 100);
		hand_out(payloads, n, 4099); /* once more, as to another endpoint */
		ws_plan_payloads_free(payloads, n);
		for (size_t i = 0; i < 5; i++) {
			assert_int_equal(ws_plan_hash(plan, i, &want, NULL), 0);
			assert_true(hashes[i] == (plan->tensors[i].op == WS_OP_MAKE ? want : 0));
		}
		ws_plan_free(plan);
	}
	ws_transform_free(t);
	drop(&b);
}

static void put_number(const char *path, off_t at, uint16_t bits)
{
	FILE *f = fopen(path, "r+b");
	assert_non_null(f);
	assert_int_equal(fseek(f, at, SEEK_SET), 0);
	fputc(bits & 255, f);
	fputc(bits >> 8, f);
	assert_int_equal(fclose(f), 0);
}

SCRATCH_TEST(a_nan_is_named_by_whoever_meets_it)
{
	struct base b = { 0 };
	add(&b, "a_proj.weight", 300, 500);
	add(&b, "b_proj.weight", 300, 500);
	write_base(&b, false);
	const struct ws_transform_opts o = { .quantize = WS_QUANTIZE_FP8, .threads = 2 };
	put_number("x.safetensors", (off_t)(b.data + 300000 + 2 * (500 * 299 + 499)),
	           0x7fc1);
	put_number("x.safetensors", (off_t)(b.data + 300000 + 2 * (500 * 200 + 3)),
	           0xff80);
	struct ws_transform *t = transform(&b, &o);
	struct ws_err err = WS_ERR_INIT;
	uint8_t *bytes = malloc(150000);
	assert_fails_with(ws_transform_check(t, NULL, NULL, &err), &err, WS_EINPUT,
	                  "tensor 'b_proj.weight' has an infinity at row 200, column 3 "
	                  "(x.safetensors)");
	assert_false(ws_item_read(ws_catalog_item(ws_transform_catalog(t), 0), 0, bytes, 150000,
	                          NULL));
	err = (struct ws_err)WS_ERR_INIT;
	assert_fails_with(ws_item_read(ws_catalog_item(ws_transform_catalog(t), 2), 0, bytes,
	                               150000, &err), &err, WS_EINPUT,
	                  "tensor 'b_proj.weight' has an infinity at row 200, column 3 "
	                  "(x.safetensors)");
	struct ws_cancel cancel = WS_CANCEL_INIT;
	ws_cancel_set(&cancel);
	assert_fails(ws_transform_check(t, NULL, &cancel, &err), &err, WS_ECANCELLED, "");
	ws_transform_free(t);
	free(bytes);
	drop(&b);
}

/* Between the look and the sending. */
SCRATCH_TEST(a_file_that_shrinks_is_an_error_with_its_name)
{
	struct base b = { 0 };
	add(&b, "a_proj.weight", 300, 500);
	write_base(&b, false);
	const struct ws_transform_opts o = { .quantize = WS_QUANTIZE_FP8, .threads = 2,
		                             .scratch = 16 * MIB };
	struct ws_transform *t = transform(&b, &o);
	struct ws_err err = WS_ERR_INIT;
	uint8_t *bytes = malloc(150000);
	assert_int_equal(ws_transform_check(t, NULL, NULL, &err), 0);
	assert_int_equal(truncate("x.safetensors", 100000), 0);
	assert_fails_with(ws_item_read(ws_catalog_item(ws_transform_catalog(t), 0), 0, bytes,
	                               150000, &err), &err, WS_EINPUT,
	                  "tensor 'a_proj.weight': x.safetensors: ends at byte 100000, 28086 bytes "
	                  "early: it was cut short while in use");
	ws_transform_free(t);
	free(bytes);
	drop(&b);
}

static uint64_t digest_of(const struct base *b, const struct ws_transform_opts *o)
{
	struct ws_transform *t = transform(b, o);
	struct ws_plan *plan;
	assert_false(ws_plan_make(ws_transform_catalog(t), &(struct ws_plan_opts){ 0 }, &plan,
	                          NULL));
	const uint64_t digest = plan->digest;
	ws_plan_free(plan);
	ws_transform_free(t);
	return digest;
}

SCRATCH_TEST(the_digest_covers_how_it_is_made)
{
	struct base b = { 0 };
	add(&b, "a_proj.weight", 256, 256);
	write_base(&b, false);
	const struct ws_transform_opts o = { .quantize = WS_QUANTIZE_FP8 };
	struct ws_transform_opts x = o;
	const uint64_t first = digest_of(&b, &o);
	assert_true(first == digest_of(&b, &o));
	x.rule = WS_SCALE_SLIME;
	assert_true(first != digest_of(&b, &x));
	x = o;
	x.ue8m0 = true;
	assert_true(first != digest_of(&b, &x));
	x = o;
	x.block[0] = 128;
	x.block[1] = 129;
	assert_true(first != digest_of(&b, &x));
	x.block[1] = 0;
	struct ws_transform *t;
	struct ws_err err = WS_ERR_INIT;
	assert_int_equal(ws_transform_make(b.catalog, &x, &t, &err), -1);
	assert_string_equal(err.msg, "blocks of 128 x 0: rows and columns are 1 or more");
	drop(&b);
}

TEST(projections_are_chosen_or_what_a_list_leaves)
{
	static const char *const globs[] = { "*.k_proj", "model.layers.3" }, *const list[] = {
		"lm_head", "mlp.gate"
	};
	const struct ws_quant quant = {
		.method = "fp8", .scale_fmt = "", .skip = list, .n_skip = 2
	};
	struct ws_transform_opts o = { .quantize = WS_QUANTIZE_FP8 };
	assert_true(ws_select_fp8(&o, "model.layers.0.self_attn.q_proj.weight", 2));
	assert_true(ws_select_fp8(&o, "model.layers.0.self_attn.kv_a_proj_with_mqa.weight", 2));
	assert_true(ws_select_fp8(&o, "model.layers.0.linear_attn.in_proj_qkv.weight", 2));
	assert_false(ws_select_fp8(&o, "model.layers.0.other.in_proj_qkv.weight", 2));
	assert_true(ws_select_fp8(&o, "model.layers.0.self_attn.indexer.wq_b.weight", 2));
	assert_true(ws_select_fp8(&o, "model.layers.0.self_attn.indexer.wk.weight", 2));
	assert_false(ws_select_fp8(&o, "model.layers.0.self_attn.indexer.weights_proj.weight", 2));
	assert_false(ws_select_is_known("model.layers.0.self_attn.indexer.weights_proj"));
	assert_false(ws_select_fp8(&o, "model.layers.0.self_attn.q_proj.weight", 1));
	assert_false(ws_select_fp8(&o, "model.layers.0.self_attn.q_proj.bias", 2));
	assert_false(ws_select_fp8(&o, "model.embed_tokens.weight", 2));
	assert_false(ws_select_fp8(&o, "lm_head.weight", 2));
	assert_false(ws_select_fp8(&o, "model.layers.0.mlp.gate.weight", 2));
	o.skip = globs;
	o.n_skip = 2;
	assert_false(ws_select_fp8(&o, "model.layers.0.self_attn.k_proj.weight", 2));
	assert_false(ws_select_fp8(&o, "model.layers.3.self_attn.q_proj.weight", 2));
	assert_true(ws_select_fp8(&o, "model.layers.30.self_attn.q_proj.weight", 2));
	o.quant = &quant;
	assert_true(ws_select_fp8(&o, "model.layers.0.self_attn.indexer.wq_b.weight", 2));
	assert_false(ws_select_fp8(&o, "model.layers.0.self_attn.indexer.weights_proj.weight", 2));
	assert_false(ws_select_fp8(&o, "model.embed_tokens.weight", 2)); /* no server keeps it so */
	assert_false(ws_select_fp8(&o, "model.layers.0.mlp.shared_expert_gate.weight", 2));
	assert_false(ws_select_fp8(&o, "lm_head.weight", 2));
	assert_false(ws_select_fp8(&o, "model.layers.0.mlp.gate.weight", 2));
	assert_false(ws_select_fp8(&o, "model.layers.3.self_attn.q_proj.weight", 2));
	o.quantize = WS_QUANTIZE_NONE;
	assert_false(ws_select_fp8(&o, "model.layers.0.self_attn.q_proj.weight", 2));
}

RUN_TESTS(NULL, NULL)
