/* SPDX-License-Identifier: Apache-2.0 */
/* gpu_stage_recipe.c - the steps of a recipe for each band of rows: read, unpack, merge in place,
 * quantize to FP8.
 *
 * Bands alternate between the halves of the scratch, so that one is copied while another is
 * computed; a band's data is all in its half. Unquantized outputs are written straight into the
 * staging buffer. */
#include "gpu_stage_steps.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGN = 256 };

/* The parts of a half of the scratch, in this order. From RAW on, the sizes are per row of a
 * band. */
enum part {
	FACTORS_A,
	TABLE,
	NESTED_MAP,
	SCALES_OUT,
	N_FIXED,
	RAW = N_FIXED,
	NUMBERS,
	FACTORS_B,
	SCALES,
	NESTED,
	CODES_OUT,
	N_PARTS
};

struct layout {
	const struct ws_transform_recipe *f;
	const struct ws_kernel_job *m;
	struct ws_stage_steps *steps;
	ws_devptr at[2][N_PARTS]; /* in each half */
	int64_t band;             /* rows */
	/* per half: first row of the rows whose A factors are loaded; are the tables loaded? */
	int64_t factors_of[2];
	bool has_tables[2];
};

static int64_t parts(int64_t n, int64_t part)
{
	return n / part + (n % part != 0);
}

static int64_t least(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

static uint64_t size_of(const struct ws_transform_recipe *f)
{
	return f->dtype == WS_DTYPE_F32 ? 4 : 2;
}

/* The numbers are computed in place in the staging buffer. */
static bool is_direct(const struct layout *g)
{
	return !g->f->quantized && g->m->to[0];
}

/* ---- LoRA terms ------------------------------------------------------------------------------ */

static bool reaches(const struct ws_lora_term *p, int64_t row)
{
	return row >= p->row && row - p->row < p->rows;
}

/* The largest sum of the ranks of all terms that reach one row. */
static int64_t most_rank(const struct ws_transform_recipe *f)
{
	int64_t most = 0;
	for (size_t i = 0; i < f->n_terms; i++) {
		int64_t rank = 0;
		for (size_t k = 0; k < f->n_terms; k++)
			rank += reaches(&f->terms[k], f->terms[i].row) ? f->terms[k].rank : 0;
		most = rank > most ? rank : most;
	}
	return most;
}

/* Finds the rows [*begin, *end) around this row that the same terms reach. */
static void find_alike(const struct ws_transform_recipe *f, int64_t row, int64_t *begin,
                       int64_t *end)
{
	*begin = 0;
	*end = f->rows;
	for (size_t i = 0; i < f->n_terms; i++) {
		const int64_t edges[2] = { f->terms[i].row, f->terms[i].row + f->terms[i].rows };
		for (int k = 0; k < 2; k++) {
			if (edges[k] <= row && edges[k] > *begin)
				*begin = edges[k];
			if (edges[k] > row && edges[k] < *end)
				*end = edges[k];
		}
	}
}

/* ---- layout of the scratch ------------------------------------------------------------------- */

static uint64_t raw_of_row(const struct ws_transform_recipe *f)
{
	const uint64_t cols = (uint64_t)f->cols;
	switch (f->packing) {
	case WS_PACK_NONE:
		return cols * size_of(f);
	case WS_PACK_FP8:
		return cols;
	case WS_PACK_NVFP4:
		return cols / 2;
	case WS_PACK_NF4:
		return cols / 2 + 1;
	}
	return 0;
}

static void measure(const struct layout *g, uint64_t of[N_PARTS])
{
	const struct ws_transform_recipe *f = g->f;
	const uint64_t cols = (uint64_t)f->cols, rank = (uint64_t)most_rank(f);
	const bool direct = is_direct(g), plain = f->packing == WS_PACK_NONE;
	memset(of, 0, N_PARTS * sizeof *of);
	of[FACTORS_A] = rank * cols * sizeof(float);
	of[FACTORS_B] = rank * sizeof(float);
	of[RAW] = plain && direct ? 0 : raw_of_row(f);
	of[NUMBERS] = plain || direct ? 0 : cols * size_of(f);
	if (f->packing == WS_PACK_FP8)
		of[TABLE] = f->scales.length;
	if (f->packing == WS_PACK_NVFP4)
		of[SCALES] = (uint64_t)parts(f->cols, 16);
	if (f->packing == WS_PACK_NF4) {
		of[NESTED_MAP] = f->nested_block ? f->map.length : 0;
		of[SCALES] = (cols / (uint64_t)f->bk + 2) * (f->nested_block ? 1 : sizeof(float));
		of[NESTED] = f->nested_block ?
		                     (cols / (uint64_t)f->bk / (uint64_t)f->nested_block + 2) * 4 :
		                     0;
	}
	if (f->quantized && !g->m->to[0])
		of[CODES_OUT] = cols;
	if (f->quantized && !g->m->to[1])
		of[SCALES_OUT] = (uint64_t)parts(f->rows, f->rule.bn) *
		                 (uint64_t)parts(f->cols, f->rule.bk) * 4;
}

static int64_t gcd(int64_t a, int64_t b)
{
	while (b) {
		const int64_t rest = a % b;
		a = b;
		b = rest;
	}
	return a;
}

/* The least common multiple of both, at most `most`. Both are above 0. */
static int64_t multiple_of(int64_t a, int64_t b, int64_t most)
{
	const int64_t part = a / gcd(a, b);
	return part > most / b ? most : part * b;
}

/* A multiple of this many rows begins and ends at block edges. */
static int64_t unit_of(const struct ws_transform_recipe *f)
{
	int64_t unit = f->quantized ? f->rule.bn : 1;
	if (f->packing == WS_PACK_FP8 && f->n_scales > 1 && f->bn < f->each)
		unit = multiple_of(unit, f->bn, f->rows);
	if (f->packing == WS_PACK_NF4) {
		const int64_t one = 2 * f->bk * (f->nested_block ? f->nested_block : 1);
		unit = multiple_of(unit, one / gcd(one, f->cols), f->rows);
	}
	return unit;
}

/* bytes: of a half. False: not even the smallest band fits. */
static bool lay_out(struct layout *g, ws_devptr scratch, uint64_t bytes)
{
	uint64_t of[N_PARTS], fixed = N_PARTS * ALIGN, row = 0;
	measure(g, of);
	for (int i = 0; i < N_PARTS; i++)
		*(i < N_FIXED ? &fixed : &row) += of[i];
	if (fixed > bytes)
		return false;
	const uint64_t most = row ? (bytes - fixed) / row : (uint64_t)g->f->rows;
	const int64_t unit = unit_of(g->f);
	g->band = most >= (uint64_t)g->f->rows ? g->f->rows : (int64_t)most / unit * unit;
	for (int i = 0; i < N_PARTS; i++) {
		g->at[0][i] = scratch;
		g->at[1][i] = scratch + bytes;
		scratch +=
			(of[i] * (i < N_FIXED ? 1 : (uint64_t)g->band) + ALIGN - 1) / ALIGN * ALIGN;
	}
	return g->band > 0;
}

static uint64_t half_of(uint64_t scratch)
{
	return scratch / 2 / ALIGN * ALIGN;
}

bool ws_stage_recipe_fits(const struct ws_transform_recipe *f, uint64_t scratch)
{
	const struct ws_kernel_job nowhere = { .recipe = f };
	struct layout g = { .f = f, .m = &nowhere };
	return lay_out(&g, 0, half_of(scratch));
}

/* ---- steps ----------------------------------------------------------------------------------- */

static int read_range(const struct layout *g, const struct ws_payload *p, uint64_t from, uint64_t n,
                      ws_devptr to, struct ws_err *err)
{
	for (size_t i = 0; i < p->n_spans && n; i++) {
		const struct ws_span *s = &p->spans[i];
		if (from >= s->length) {
			from -= s->length;
			continue;
		}
		const uint64_t some = s->length - from < n ? s->length - from : n;
		if (ws_stage_steps_read(g->steps, s, from, some, to, err))
			return -1;
		from = 0;
		to += some;
		n -= some;
	}
	return 0;
}

static int read_span(const struct layout *g, const struct ws_span *s, uint64_t from, uint64_t n,
                     ws_devptr to, struct ws_err *err)
{
	return ws_stage_steps_read(g->steps, s, from, n, to, err);
}

/* Address of a part for the current band. */
static ws_devptr part_at(const struct layout *g, enum part part)
{
	return g->at[g->steps->half][part];
}

static ws_devptr numbers_at(const struct layout *g, int64_t row)
{
	if (is_direct(g))
		return g->m->to[0] + (uint64_t)row * (uint64_t)g->f->cols * size_of(g->f);
	return part_at(g, g->f->packing == WS_PACK_NONE ? RAW : NUMBERS);
}

static int add_read(const struct layout *g, int64_t row, int64_t n, struct ws_err *err)
{
	const uint64_t each = (uint64_t)g->f->cols * size_of(g->f);
	return read_range(g, &g->f->base, (uint64_t)row * each, (uint64_t)n * each,
	                  numbers_at(g, row), err);
}

static void fill_fp8(const struct layout *g, struct ws_unpack_args *j, int64_t row, int64_t n)
{
	const struct ws_transform_recipe *f = g->f;
	const int64_t down = parts(f->each, f->bn), across = parts(f->cols, f->bk);
	j->each = n;
	j->bn = f->bn;
	j->bk = f->bk;
	j->scales = part_at(g, TABLE);
	if (f->n_scales == 1) {
		j->bn = n;
		j->bk = f->cols;
	} else if (n == f->rows) {
		j->each = f->each;
	} else {
		j->scales += (uint64_t)((row / f->each * down + row % f->each / f->bn) * across) *
		             sizeof(float);
	}
}

static int add_nvfp4(const struct layout *g, struct ws_unpack_args *j, int64_t row, int64_t n,
                     struct ws_err *err)
{
	const uint64_t across = (uint64_t)parts(g->f->cols, 16);
	j->scales = part_at(g, SCALES);
	j->offset = g->f->tensor_scale;
	return read_range(g, &g->f->scales, (uint64_t)row * across, (uint64_t)n * across, j->scales,
	                  err);
}

/* A band begins at a block, and at a nested block. */
static int add_nf4(const struct layout *g, struct ws_unpack_args *j, int64_t row, int64_t n,
                   struct ws_err *err)
{
	const struct ws_transform_recipe *f = g->f;
	const uint64_t size = f->nested_block ? 1 : sizeof(float);
	const uint64_t first = (uint64_t)(row * f->cols / f->bk),
		       blocks = (uint64_t)parts(n * f->cols, f->bk);
	j->scales = part_at(g, SCALES);
	j->bn = 1;
	j->bk = f->bk;
	memcpy(j->levels, f->levels, sizeof j->levels);
	j->nested_block = (uint32_t)f->nested_block;
	j->nested = part_at(g, NESTED);
	j->map = part_at(g, NESTED_MAP);
	j->offset = f->nested_offset;
	if (read_range(g, &f->scales, first * size, blocks * size, j->scales, err))
		return -1;
	if (!f->nested_block)
		return 0;
	const uint64_t nested = first / (uint64_t)f->nested_block;
	return read_range(g, &f->nested, nested * sizeof(float),
	                  (uint64_t)parts((int64_t)blocks, f->nested_block) * sizeof(float),
	                  j->nested, err);
}

static int add_unpack(const struct layout *g, int64_t row, int64_t n, struct ws_err *err)
{
	const struct ws_transform_recipe *f = g->f;
	struct ws_stage_step step = {
		.kind = WS_STAGE_UNPACK,
		.packing = f->packing == WS_PACK_FP8   ? WS_UNPACK_FP8 :
		           f->packing == WS_PACK_NVFP4 ? WS_UNPACK_NVFP4 :
		                                         WS_UNPACK_NF4,
		.unpack = { .codes = part_at(g, RAW),
		            .rows = n,
		            .cols = f->cols,
		            .out = numbers_at(g, row),
		            .to_bf16 = f->dtype == WS_DTYPE_BF16,
		            .found = g->m->record },
	};
	struct ws_unpack_args *j = &step.unpack;
	uint64_t from = (uint64_t)row * (uint64_t)f->cols, bytes = (uint64_t)n * (uint64_t)f->cols;
	int rc = 0;
	if (f->packing == WS_PACK_FP8) {
		fill_fp8(g, j, row, n);
	} else {
		from /= 2;
		bytes = bytes / 2 + bytes % 2;
		rc = f->packing == WS_PACK_NVFP4 ? add_nvfp4(g, j, row, n, err) :
		                                   add_nf4(g, j, row, n, err);
	}
	return rc || read_range(g, &f->base, from, bytes, j->codes, err) ||
	                       ws_stage_steps_add(g->steps, &step, err) ?
	               -1 :
	               0;
}

/* Reads the factors of the terms that reach a row; A only if it is not loaded yet. */
static int add_factors(struct layout *g, int64_t begin, int64_t row, int64_t n,
                       struct ws_merge_term *terms, unsigned *n_terms, struct ws_err *err)
{
	const struct ws_transform_recipe *f = g->f;
	ws_devptr a = part_at(g, FACTORS_A), b = part_at(g, FACTORS_B);
	int64_t *const factors_of = &g->factors_of[g->steps->half];
	const bool loaded = *factors_of == begin;
	*n_terms = 0;
	for (size_t i = 0; i < f->n_terms; i++) {
		const struct ws_lora_term *p = &f->terms[i];
		if (!reaches(p, row))
			continue;
		const uint64_t rank = (uint64_t)p->rank * sizeof(float), rows = (uint64_t)n;
		if ((!loaded && read_span(g, &p->a, 0, p->a.length, a, err)) ||
		    read_span(g, &p->b, (uint64_t)(row - p->row) * rank, rows * rank, b, err))
			return -1;
		terms[(*n_terms)++] = (struct ws_merge_term){
			.a = a, .b = b, .rank = p->rank, .scale = p->scale
		};
		a += p->a.length;
		b += rows * rank;
	}
	*factors_of = begin;
	return 0;
}

/* One launch sums all terms; with two_step each term has its own launch. */
static int add_launches(const struct layout *g, const struct ws_merge_args *rows,
                        const struct ws_merge_term *terms, unsigned n, struct ws_err *err)
{
	const unsigned at_once = g->f->two_step ? 1 : n;
	for (unsigned i = 0; i < n; i += at_once) {
		struct ws_stage_step step = { .kind = WS_STAGE_MERGE, .merge = *rows };
		step.merge.n_terms = at_once;
		memcpy(step.merge.terms, terms + i, at_once * sizeof *terms);
		if (ws_stage_steps_add(g->steps, &step, err))
			return -1;
	}
	return 0;
}

static int add_merge(struct layout *g, int64_t first, int64_t n, struct ws_merge_term *terms,
                     struct ws_err *err)
{
	int64_t begin, end;
	for (int64_t row = first; row < first + n; row = end) {
		unsigned n_terms;
		find_alike(g->f, row, &begin, &end);
		end = least(end, first + n);
		const ws_devptr at =
			numbers_at(g, first) + (uint64_t)((row - first) * g->f->cols) * 2;
		const struct ws_merge_args rows = { .w = at,
			                            .out = at,
			                            .found = g->m->record,
			                            .rows = end - row,
			                            .cols = g->f->cols,
			                            .w_stride = g->f->cols,
			                            .out_stride = g->f->cols,
			                            .two_step = g->f->two_step };
		if (add_factors(g, begin, row, end - row, terms, &n_terms, err) ||
		    add_launches(g, &rows, terms, n_terms, err))
			return -1;
	}
	return 0;
}

static int add_fp8(const struct layout *g, int64_t row, int64_t n, struct ws_err *err)
{
	const struct ws_transform_recipe *f = g->f;
	const struct ws_fp8_rule *r = &f->rule;
	const uint64_t codes = (uint64_t)row * (uint64_t)f->cols;
	const uint64_t scales = (uint64_t)(row / r->bn * parts(f->cols, r->bk)) * sizeof(float);
	const struct ws_stage_step step = {
		.kind = WS_STAGE_FP8,
		.is_f32 = f->dtype == WS_DTYPE_F32,
		.fp8 = { .x = numbers_at(g, row),
		         .rows = n,
		         .cols = f->cols,
		         .stride = f->cols,
		         .slime = r->rule == WS_SCALE_SLIME,
		         .ue8m0 = r->ue8m0,
		         .bn = r->bn,
		         .bk = r->bk,
		         .codes = g->m->to[0] ? g->m->to[0] + codes : part_at(g, CODES_OUT),
		         .codes_stride = f->cols,
		         .scales = (g->m->to[1] ? g->m->to[1] : part_at(g, SCALES_OUT)) + scales,
		         .found = g->m->record },
	};
	return ws_stage_steps_add(g->steps, &step, err);
}

/* ---- bands ----------------------------------------------------------------------------------- */

/* In a stack, bands end at matrix edges, unless one band contains the whole stack. */
static int64_t end_of_band(const struct layout *g, int64_t row)
{
	const struct ws_transform_recipe *f = g->f;
	const int64_t end = least(row + g->band, f->rows);
	if (f->packing != WS_PACK_FP8 || f->n_scales == 1 || g->band == f->rows)
		return end;
	return least(end, (row / f->each + 1) * f->each);
}

/* Tables that all bands of a weight need. */
static int add_tables(struct layout *g, struct ws_err *err)
{
	const struct ws_transform_recipe *f = g->f;
	bool *const has_tables = &g->has_tables[g->steps->half];
	if (*has_tables)
		return 0;
	*has_tables = true;
	if (f->packing == WS_PACK_FP8 &&
	    read_range(g, &f->scales, 0, f->scales.length, part_at(g, TABLE), err))
		return -1;
	return f->nested_block ?
	               read_span(g, &f->map, 0, f->map.length, part_at(g, NESTED_MAP), err) :
	               0;
}

static int begin_band(struct layout *g, struct ws_err *err)
{
	g->steps->half ^= 1;
	const struct ws_stage_step half = { .kind = WS_STAGE_HALF, .half = g->steps->half };
	return ws_stage_steps_add(g->steps, &half, err) || add_tables(g, err) ? -1 : 0;
}

static int add_numbers(struct layout *g, int64_t row, int64_t n, struct ws_merge_term *terms,
                       struct ws_err *err)
{
	if (begin_band(g, err) ||
	    (g->f->packing == WS_PACK_NONE ? add_read(g, row, n, err) : add_unpack(g, row, n, err)))
		return -1;
	return g->f->n_terms ? add_merge(g, row, n, terms, err) : 0;
}

static int add_bands(struct layout *g, struct ws_merge_term *terms, struct ws_err *err)
{
	int64_t end;
	for (int64_t row = 0; row < g->f->rows; row = end) {
		end = end_of_band(g, row);
		if (add_numbers(g, row, end - row, terms, err) ||
		    (g->f->quantized && add_fp8(g, row, end - row, err)))
			return -1;
	}
	return 0;
}

int ws_stage_recipe_add(struct ws_stage_steps *s, const struct ws_kernel_job *m, ws_devptr scratch,
                        uint64_t bytes, struct ws_err *err)
{
	const struct ws_stage_step begin = { .kind = WS_STAGE_BEGIN, .job = s->n_jobs - 1 };
	const struct ws_stage_step finish = { .kind = WS_STAGE_FINISH, .job = begin.job };
	struct layout g = { .f = m->recipe, .m = m, .steps = s, .factors_of = { -1, -1 } };
	struct ws_merge_term *terms = calloc(g.f->n_terms + 1, sizeof *terms);
	if (!terms)
		return ws_oom(err);
	const bool fits = lay_out(&g, scratch, half_of(bytes));
	assert(fits); /* the caller checked ws_stage_recipe_fits */
	const int rc = !fits || ws_stage_steps_add(s, &begin, err) || add_bands(&g, terms, err) ||
	                               ws_stage_steps_add(s, &finish, err) ?
	                       -1 :
	                       0;
	free(terms);
	return rc;
}
