/* SPDX-License-Identifier: Apache-2.0 */
/* Weights as numbers: rows as long as the scratch takes, and low-rank changes of any rows. */
#include "nf4_levels.h"
#include "packed_file.h"
#include "weight_reader.h"

#include "factor.h"
#include "fp8.h"
#include "transform_make.h"

#include <math.h>

enum { MIB = 1 << 20 };

static uint32_t seed = 1;

static uint32_t draw(uint32_t n)
{
	seed = seed * 1664525 + 1013904223;
	return (seed >> 8) % n;
}

static uint16_t to_bf16(float x)
{
	uint32_t u;
	memcpy(&u, &x, sizeof u);
	return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static float of_bf16(uint16_t h)
{
	const uint32_t u = (uint32_t)h << 16;
	float x;
	memcpy(&x, &u, sizeof x);
	return x;
}

/* ---- long rows ------------------------------------------------------------------------------- */

/* With one thread and 16 MiB a row may have 174762 numbers. */
enum { LONG = 174720, ROWS = 5 };

static uint8_t *random_bytes(size_t n, unsigned most)
{
	uint8_t *bytes = malloc(n);
	for (size_t i = 0; i < n; i++)
		bytes[i] = (uint8_t)draw(most + 1);
	return bytes;
}

static float *random_scales(size_t n)
{
	float *x = malloc(n * sizeof *x);
	for (size_t i = 0; i < n; i++)
		x[i] = (float)(1 + draw(1000)) / 4096;
	return x;
}

/* Codes with one scale for each element of `block` columns, of one packing. */
static void write_long(struct opened_file *f, enum ws_packing packing, int64_t rows, int64_t cols,
                       int64_t block)
{
	char shapes[5][64], state[200];
	const size_t n = (size_t)(rows * cols), across = (size_t)((cols + block - 1) / block);
	const size_t n_scales = packing == WS_PACK_NF4 ? n / (size_t)block : (size_t)rows * across;
	uint8_t *codes = random_bytes(n, packing == WS_PACK_FP8 ? 0x7e : 0xff);
	uint8_t *bytes = random_bytes(n_scales, 0x40); /* as E4M3 */
	float *scales = random_scales(n_scales);
	const float one = 0.125f;
	snprintf(shapes[0], sizeof shapes[0], "[%lld,%lld]", (long long)rows, (long long)cols);
	snprintf(shapes[1], sizeof shapes[1], "[%lld,%zu]", (long long)rows, across);
	snprintf(shapes[2], sizeof shapes[2], "[%zu]", n_scales);
	snprintf(shapes[3], sizeof shapes[3], "[%lld,%lld]", (long long)rows, (long long)cols / 2);
	snprintf(state, sizeof state,
	         "{\"quant_type\":\"nf4\",\"blocksize\":%lld,\"dtype\":\"bfloat16\",\"shape\":%s}",
	         (long long)block, shapes[0]);
	snprintf(shapes[4], sizeof shapes[4], "[%zu]", strlen(state));
	char flat[64];
	snprintf(flat, sizeof flat, "[%zu,1]", n / 2);
	const struct part fp8[] = {
		{ "a_proj.weight", "F8_E4M3", shapes[0], codes, n },
		{ "a_proj.weight_scale_inv", "F32", shapes[1], scales, n_scales * 4 },
	}, nvfp4[] = {
		{ "a_proj.weight", "U8", shapes[3], codes, n / 2 },
		{ "a_proj.weight_scale", "F8_E4M3", shapes[1], bytes, n_scales },
		{ "a_proj.weight_scale_2", "F32", "[]", &one, 4 },
	}, nf4[] = {
		{ "a_proj.weight", "U8", flat, codes, n / 2 },
		{ "a_proj.weight.absmax", "F32", shapes[2], scales, n_scales * 4 },
		{ "a_proj.weight.quant_map", "F32", "[16]", nf4_levels, sizeof nf4_levels },
		{ "a_proj.weight.quant_state.bitsandbytes__nf4", "U8", shapes[4], state,
		  strlen(state) },
	};
	if (packing == WS_PACK_FP8)
		write_packed(f, fp8, 2);
	else if (packing == WS_PACK_NVFP4)
		write_packed(f, nvfp4, 3);
	else
		write_packed(f, nf4, 4);
	free(codes);
	free(bytes);
	free(scales);
}

static uint16_t *numbers_of(const struct opened_file *f, size_t n)
{
	struct ws_packed p;
	struct ws_err err = WS_ERR_INIT;
	struct ws_buf scratch = { .max = 0 };
	float *x = malloc(n * sizeof *x);
	uint16_t *out = malloc(n * sizeof *out);
	if (find_packed(f, "a_proj.weight", NULL, &p, &err) ||
	    ws_packed_rows(&p, 0, p.rows, x, &scratch, &err))
		fail_msg("%s", err.msg);
	for (size_t i = 0; i < n; i++)
		out[i] = to_bf16(x[i]);
	ws_buf_free(&scratch);
	ws_packed_free(&p);
	free(x);
	return out;
}

static struct ws_transform *unpack_long(const struct opened_file *f, enum ws_quantize quantize,
                                        unsigned threads)
{
	/* A correction file that is empty makes FP8 bases dense too. */
	struct ws_transform_opts o = { .quantize = quantize, .threads = threads,
		                       .scratch = 16 * MIB, .correction = "none.safetensors" };
	struct ws_transform *t;
	struct ws_err err = WS_ERR_INIT;
	put_bytes("none.safetensors", "\2\0\0\0\0\0\0\0{}", 10);
	assert_ok(ws_transform_make(f->catalog, &o, &t, &err), &err);
	assert_int_equal(ws_transform_check(t, NULL, NULL, &err), 0);
	return t;
}

static void *read_whole(const struct ws_transform *t, const char *name, size_t n)
{
	const struct ws_item *item = ws_catalog_find(ws_transform_catalog(t), name);
	struct ws_err err = WS_ERR_INIT;
	void *bytes = malloc(n);
	assert_non_null(item);
	assert_int_equal(item->bytes, n);
	assert_ok(ws_item_read(item, 0, bytes, n, &err), &err);
	return bytes;
}

static void assert_codes(const uint16_t *x, const uint8_t *codes, const float *scales, int64_t rows,
                         int64_t cols)
{
	const int64_t across = (cols + 127) / 128;
	for (int64_t j = 0; j < across; j++) {
		const int64_t end = (j + 1) * 128 < cols ? (j + 1) * 128 : cols;
		float amax = 0;
		for (int64_t i = 0; i < rows; i++)
			for (int64_t k = j * 128; k < end; k++)
				amax = fmaxf(amax, fabsf(of_bf16(x[i * cols + k])));
		const float s = (amax > 1e-12f ? amax : 1e-12f) / 448;
		assert_true(scales[j] == s);
		for (int64_t i = 0; i < rows; i++)
			for (int64_t k = j * 128; k < end; k++)
				assert_int_equal(codes[i * cols + k],
				                 ws_fp8_from_float(of_bf16(x[i * cols + k]) / s));
	}
}

SCRATCH_TEST(rows_as_long_as_the_scratch_takes_are_unpacked)
{
	static const struct { enum ws_packing packing; int64_t block; } kinds[] = {
		{ WS_PACK_NF4, 64 }, { WS_PACK_NVFP4, 16 }, { WS_PACK_FP8, 128 }, { WS_PACK_FP8, 1 }
	};
	for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
		struct opened_file f;
		const size_t n = (size_t)ROWS * LONG;
		write_long(&f, kinds[k].packing, ROWS, LONG, kinds[k].block);
		uint16_t *want = numbers_of(&f, n);
		struct ws_transform *t = unpack_long(&f, WS_QUANTIZE_NONE, 1);
		uint16_t *got = read_whole(t, "a_proj.weight", n * 2);
		assert_memory_equal(got, want, n * 2);
		ws_transform_free(t);
		t = unpack_long(&f, WS_QUANTIZE_FP8, 1);
		uint8_t *codes = read_whole(t, "a_proj.weight", n);
		float *scales = read_whole(t, "a_proj.weight_scale_inv", (LONG + 127) / 128 * 4);
		assert_codes(want, codes, scales, ROWS, LONG);
		struct ws_transform_report report;
		ws_transform_report(t, &report);
		assert_true(report.peak <= 16 * MIB);
		assert_int_equal(report.unpacked, 1);
		ws_transform_free(t);
		free(want), free(got), free(codes), free(scales);
		close_file(&f);
	}
}

SCRATCH_TEST(longer_ones_are_refused_by_name)
{
	static const enum ws_packing kinds[] = { WS_PACK_NF4, WS_PACK_NVFP4, WS_PACK_FP8 };
	for (size_t k = 0; k < 3; k++) {
		struct opened_file f;
		struct ws_err err = WS_ERR_INIT;
		struct ws_transform *t;
		const struct ws_transform_opts o = { .quantize = WS_QUANTIZE_FP8, .threads = 1,
			                             .scratch = 16 * MIB, .block = { 64, 64 } };
		struct ws_transform_opts more = o;
		more.scratch = 64 * MIB;
		write_long(&f, kinds[k], 1, 2 * LONG, kinds[k] == WS_PACK_NVFP4 ? 16 : 128);
		assert_fails_with(ws_transform_make(f.catalog, &o, &t, &err), &err, WS_EINPUT,
		                  "tensor 'a_proj.weight': a row of 349440 numbers does not fit "
		                  "into the scratch");
		assert_string_equal(err.hint, "allow more of it: {scratch}");
		assert_int_equal(ws_transform_make(f.catalog, &more, &t, &err), 0);
		assert_int_equal(ws_transform_check(t, NULL, NULL, &err), 0);
		ws_transform_free(t);
		close_file(&f);
	}
}

/* One scale for each element of narrow rows: the scales of what is read at
 * once are more than its codes. */
SCRATCH_TEST(tiny_blocks_fit_a_small_scratch)
{
	struct opened_file f;
	const int64_t rows = 700, cols = 600;
	const size_t n = (size_t)(rows * cols);
	write_long(&f, WS_PACK_FP8, rows, cols, 1);
	uint16_t *want = numbers_of(&f, n);
	struct ws_transform *t = unpack_long(&f, WS_QUANTIZE_NONE, 2);
	uint16_t *got = read_whole(t, "a_proj.weight", n * 2);
	assert_memory_equal(got, want, n * 2);
	ws_transform_free(t);
	free(want);
	free(got);
	close_file(&f);
}

/* Scales that are fine in fp32 and too large for the type that the numbers are wanted in. */
SCRATCH_TEST(numbers_beyond_their_type_are_named_without_any_merge)
{
	struct opened_file f;
	const uint8_t codes[2] = { 0x10, 0x7e };
	const float scale = 3e38f / 400;
	const struct part parts[] = { { "a.weight", "F8_E4M3", "[1,2]", codes, 2 },
		                      { "a.weight_scale_inv", "F32", "[1,1]", &scale, 4 } };
	write_packed(&f, parts, 2);
	const struct ws_transform_opts o = { .correction = "none.safetensors" };
	struct ws_transform *t;
	struct ws_err err = WS_ERR_INIT;
	put_bytes("none.safetensors", "\2\0\0\0\0\0\0\0{}", 10);
	assert_int_equal(ws_transform_make(f.catalog, &o, &t, &err), 0);
	uint16_t out[2];
	assert_ok(ws_item_read(ws_catalog_item(ws_transform_catalog(t), 0), 0, out, 4, &err), &err);
	ws_transform_free(t);
	close_file(&f);
	const float larger = 3.4e38f / 448;
	const struct part worse[] = { { "a.weight", "F8_E4M3", "[1,2]", codes, 2 },
		                      { "a.weight_scale_inv", "F32", "[1,1]", &larger, 4 } };
	write_packed(&f, worse, 2);
	assert_int_equal(ws_transform_make(f.catalog, &o, &t, &err), 0);
	assert_fails_with(ws_item_read(ws_catalog_item(ws_transform_catalog(t), 0), 0, out, 4,
	                               &err), &err, WS_EINPUT,
	                  "tensor 'a.weight' has an infinity at row 0, column 1 (x.safetensors)");
	ws_transform_free(t);
	close_file(&f);
}

/* ---- changes --------------------------------------------------------------------------------- */

enum { MOST_DELTAS = 40 };

struct changes {
	struct opened_file f;
	struct ws_worker_pool *works;
	struct ws_scratch desk;
	struct ws_weight_reader w;
	struct ws_delta deltas[MOST_DELTAS];
	const struct ws_delta *list[MOST_DELTAS];
	uint16_t *numbers, *a, *b;
	int64_t rows, cols, depth; /* a: [depth, cols], b: [rows, depth], or the other way round */
	bool turned;
};

/* Integers so small that no order of additions changes a sum. */
static uint16_t *integers(size_t n)
{
	uint16_t *x = malloc(n * sizeof *x);
	for (size_t i = 0; i < n; i++)
		x[i] = to_bf16((float)draw(9) - 4);
	return x;
}

static void set_up(struct changes *c, int64_t rows, int64_t cols, int64_t depth,
                   size_t cache_floats)
{
	char shapes[3][64];
	*c = (struct changes){ .rows = rows, .cols = cols, .depth = depth, .turned = draw(2) };
	const size_t n[] = { (size_t)(rows * cols), (size_t)(depth * cols),
		             (size_t)(rows * depth) };
	c->numbers = integers(n[0]);
	c->a = integers(n[1]);
	c->b = integers(n[2]);
	snprintf(shapes[0], sizeof shapes[0], "[%lld,%lld]", (long long)rows, (long long)cols);
	snprintf(shapes[1], sizeof shapes[1], "[%zu]", n[1]);
	snprintf(shapes[2], sizeof shapes[2], "[%zu]", n[2]);
	const struct part parts[] = { { "w", "BF16", shapes[0], c->numbers, n[0] * 2 },
		                      { "a", "BF16", shapes[1], c->a, n[1] * 2 },
		                      { "b", "BF16", shapes[2], c->b, n[2] * 2 } };
	write_packed(&c->f, parts, 3);
	assert_int_equal(ws_worker_pool_new(2, 16 * MIB, &c->works, NULL), 0);
	c->desk = (struct ws_scratch){ .bytes = aligned_alloc(64, ws_worker_pool_scratch(c->works)),
		                       .size = ws_worker_pool_scratch(c->works),
		                       .cache_floats = cache_floats,
		                       .factor_cache = aligned_alloc(64, (cache_floats * 4 + 63) /
		                                                                 64 * 64) };
	ws_buf_init(&c->desk.buf, ws_worker_pool_buf(c->works));
	c->w = (struct ws_weight_reader){ .pool = c->works,
		                          .name = "w",
		                          .dtype = WS_DTYPE_BF16,
		                          .rows = rows,
		                          .cols = cols,
		                          .deltas = c->list };
	assert_int_equal(find_packed(&c->f, "w", NULL, &c->w.packed, NULL), 0);
	pthread_mutex_init(&c->w.lock, NULL);
}

static void tear_down(struct changes *c)
{
	pthread_mutex_destroy(&c->w.lock);
	ws_packed_free(&c->w.packed);
	ws_buf_free(&c->desk.buf);
	free(c->desk.bytes), free(c->desk.factor_cache);
	ws_worker_pool_free(c->works);
	close_file(&c->f);
	free(c->numbers), free(c->a), free(c->b);
}

/* Rows [row, row+n) of it change by ranks [first, first+rank) of a and b. */
static void add_change(struct changes *c, int64_t row, int64_t n, int64_t first, int64_t rank)
{
	struct ws_delta *d = &c->deltas[c->w.n_deltas];
	const bool t = c->turned;
	*d = (struct ws_delta){ .a = ws_catalog_find(c->f.catalog, "a"),
		                .b = ws_catalog_find(c->f.catalog, "b"),
		                .row = row,
		                .rows = n,
		                .cols = c->cols,
		                .rank = rank,
		                .scale = (float)(1 + draw(3)) / 2,
		                .a_row = t ? 1 : c->cols,
		                .a_col = t ? c->depth : 1,
		                .b_row = t ? 1 : c->depth,
		                .b_col = t ? c->rows : 1 };
	d->a_at = (uint64_t)(first * d->a_row);
	d->b_at = (uint64_t)(row * d->b_row + first * d->b_col);
	c->list[c->w.n_deltas++] = d;
}

static double number_at(const struct changes *c, int64_t i, int64_t j)
{
	double x = (double)of_bf16(c->numbers[i * c->cols + j]);
	for (size_t k = 0; k < c->w.n_deltas; k++) {
		const struct ws_delta *d = c->list[k];
		double s = 0;
		for (int64_t r = 0; i >= d->row && i < d->row + d->rows && r < d->rank; r++)
			s += (double)of_bf16(
				     c->a[d->a_at + (uint64_t)(r * d->a_row + j * d->a_col)]) *
			     (double)of_bf16(c->b[d->b_at + (uint64_t)((i - d->row) * d->b_row +
			                                               r * d->b_col)]);
		x += s * (double)d->scale;
	}
	return x;
}

static void check_rect(struct changes *c, int64_t row, int64_t n, int64_t col, int64_t m)
{
	uint16_t *out = malloc((size_t)(n * m) * sizeof *out);
	const struct ws_rect r = { row, n, col, m };
	struct ws_err err = WS_ERR_INIT;
	c->desk.used = 0;
	assert_ok(ws_weight_read(&c->w, &r, false, out, &c->desk, &err), &err);
	for (int64_t i = 0; i < n; i++)
		for (int64_t j = 0; j < m; j++)
			if (out[i * m + j] != to_bf16((float)number_at(c, row + i, col + j)))
				fail_msg("row %lld, column %lld", (long long)(row + i),
				         (long long)(col + j));
	free(out);
}

SCRATCH_TEST(changes_of_any_rows_overlap_as_they_like)
{
	for (int round = 0; round < 30; round++) {
		struct changes c;
		const size_t n = 1 + draw(12);
		set_up(&c, 1 + draw(150), 1 + draw(300), 8, 64 + draw(500));
		for (size_t i = 0; i < n; i++) {
			const int64_t row = draw((uint32_t)c.rows), first = draw(8);
			add_change(&c, row, 1 + draw((uint32_t)(c.rows - row)), first,
			           1 + draw((uint32_t)(8 - first)));
		}
		assert_int_equal(ws_weight_init(&c.w, NULL), 0);
		if ((size_t)c.w.rank <= c.desk.cache_floats)
			for (int i = 0; i < 6; i++) {
				const int64_t row = draw((uint32_t)c.rows),
					      col = draw((uint32_t)c.cols);
				check_rect(&c, row, 1 + draw((uint32_t)(c.rows - row)), col,
				           1 + draw((uint32_t)(c.cols - col)));
			}
		tear_down(&c);
	}
}

/* Each of many matrices in a stack has a pair of its own, and is not paid for by the others. */
SCRATCH_TEST(a_stack_needs_the_rank_of_one_matrix)
{
	struct changes c;
	set_up(&c, 36, 50, 800, 4096);
	for (int64_t e = 0; e < 12; e++)
		add_change(&c, 3 * e, 3, 60 * e, 100);
	struct ws_err err = WS_ERR_INIT;
	assert_int_equal(ws_weight_init(&c.w, &err), 0);
	assert_int_equal(c.w.rank, 100);
	check_rect(&c, 0, 36, 0, 50);
	check_rect(&c, 4, 20, 7, 41);
	add_change(&c, 5, 9, 0, 800);
	assert_int_equal(ws_weight_init(&c.w, &err), -1);
	assert_string_equal(err.msg, "tensor 'w': factors of rank 900 do not fit into the scratch");
	assert_string_equal(err.hint, "allow more of it: {scratch}");
	tear_down(&c);
}

RUN_TESTS(NULL, NULL)
