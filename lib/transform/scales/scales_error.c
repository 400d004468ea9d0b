/* SPDX-License-Identifier: Apache-2.0 */
/* scales_error.c - the distance of decoded numbers from the source.
 *
 * For bell-shaped weights, the root mean square error is about 2.6 % of the weights' with E4M3
 * blocks, and about 10 % with 4 bits. Other block sizes, rules for scales or a rounded source
 * change that by tenths. A wrong scale moves it beyond 100 %. */
#include "scales_core.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { CHUNK = 1 << 18 }; /* numbers */

static const double LIMIT_8_BITS = 0.05, LIMIT_4_BITS = 0.15, LIMIT_ROUNDED = 0.005;

typedef float floats __attribute__((vector_size(8)));
typedef double lanes __attribute__((vector_size(16)));
typedef int64_t masks __attribute__((vector_size(16)));
enum { LANES = 2 };

struct sums {
	lanes error, w, d, product;
	lanes max_error, max_w;
};

static double largest_of(lanes v, double most)
{
	for (unsigned i = 0; i < LANES; i++)
		most = fmax(most, v[i]);
	return most;
}

static lanes larger(lanes most, lanes x)
{
	const lanes zero = { 0 };
	const masks negative = (masks)(x < zero);
	const masks size = ((masks)x & ~negative) | ((masks)-x & negative);
	const masks above = (masks)((lanes)size > most);
	return (lanes)((size & above) | ((masks)most & ~above));
}

static void add_lanes(struct sums *s, lanes w, lanes d)
{
	const lanes e = d - w;
	s->error += e * e;
	s->w += w * w;
	s->d += d * d;
	s->product += w * d;
	s->max_error = larger(s->max_error, e);
	s->max_w = larger(s->max_w, w);
}

static void add_numbers(struct sums *s, const float *w, const float *d, size_t n)
{
	size_t i = 0;
	for (; i + LANES <= n; i += LANES) {
		floats x, y;
		memcpy(&x, w + i, sizeof x);
		memcpy(&y, d + i, sizeof y);
		add_lanes(s, __builtin_convertvector(x, lanes), __builtin_convertvector(y, lanes));
	}
	for (; i < n; i++)
		add_lanes(s, (lanes){ w[i] }, (lanes){ d[i] });
}

static double sum_of(lanes v)
{
	return v[0] + v[1];
}

/* ---- verdicts ---- */

static void fill_error(struct ws_scales_task *t, const struct sums *s, double max_error)
{
	const double w = sum_of(s->w), d = sum_of(s->d), error = sum_of(s->error);
	const enum ws_packing p = t->packed.packing;
	const double usual = p == WS_PACK_FP8 ? LIMIT_8_BITS : LIMIT_4_BITS;
	t->compared = true;
	t->error = (struct ws_scales_error){
		.name = t->item->name,
		.packing = ws_packing_name(p),
		.max = largest_of(s->max_error, 0),
		.rms = error == 0 ? 0 :
		       w > 0      ? sqrt(error / w) :
		                    HUGE_VAL,
		.cosine = w > 0 && d > 0 ? sum_of(s->product) / sqrt(w) / sqrt(d) : 0,
		.limit = p == WS_PACK_NONE ? LIMIT_ROUNDED :
		         max_error > 0     ? max_error :
		                             usual,
	};
}

/* Do blocks have about the magnitudes of the source with 1 / scale, and far others with scale? */
static bool fits_inverted(const struct ws_scale_values *v, double largest)
{
	const double times = ws_scale_values_times(v), over = ws_scale_values_over(v);
	const bool far = times > 8 * largest || times < largest / 1000;
	return v->blocks && far && over < 2 * largest && over > largest / 1000;
}

static void judge_error(struct ws_scales *s, const struct ws_scales_task *t,
                        const struct sums *sums, const struct ws_scale_values *v)
{
	const struct ws_scales_error *e = &t->error;
	const double largest = largest_of(sums->max_w, 0);
	if (e->rms <= e->limit || ws_scale_values_inverted(v))
		return; /* inverted scales are reported already */
	if (fits_inverted(v, largest)) {
		ws_scales_say(&s->notes, t->order, WS_SCALES_RECIPROCAL, WS_ERROR, e->name,
		              "the largest weight of a block is about %.3g, with 1 / scale it "
		              "would be %.3g, and the source's is %.3g: scales multiply, and these "
		              "divide",
		              ws_scale_values_times(v), ws_scale_values_over(v), largest);
		return;
	}
	ws_scales_say(&s->notes, t->order, WS_SCALES_ERROR, WS_ERROR, e->name,
	              "the error is %.3g of the source "
	              "(root mean square), at most %.3g is allowed; largest %.3g, cosine %.6f",
	              e->rms, e->limit, e->max, e->cosine);
}

/* ---- reading ---- */

static bool same_shape(const struct ws_packed *a, const struct ws_packed *b)
{
	return a->n_dims == b->n_dims && memcmp(a->dims, b->dims, a->n_dims * sizeof *a->dims) == 0;
}

/* A file that cannot be read is an error; numbers that are not finite are a finding. */
static int say_unread(struct ws_scales *s, const struct ws_scales_task *t, const struct ws_err *why,
                      struct ws_err *err)
{
	if (why->code != WS_EINPUT) {
		*err = *why;
		return -1;
	}
	ws_scales_say(&s->notes, t->order, WS_SCALES_SOURCE, WS_ERROR, t->item->name,
	              "not compared: %s", why->msg);
	return 0;
}

/* 1: all rows were read; 0: a number is not finite, which was reported. */
static int add_rows(struct ws_scales *s, const struct ws_scales_task *t,
                    const struct ws_packed *source, struct ws_scales_buffers *b, bool first,
                    struct sums *sums, struct ws_err *err)
{
	const struct ws_packed *p = &t->packed;
	const int64_t most = p->cols < CHUNK ? CHUNK / (p->cols ? p->cols : 1) : 1;
	struct ws_err why = WS_ERR_INIT;
	for (int64_t row = 0, n; row < p->rows && p->cols; row += n) {
		n = most < p->rows - row ? most : p->rows - row;
		const uint64_t count = (uint64_t)n * (uint64_t)p->cols;
		float *d = ws_unpack_scratch(&b->ours, count * sizeof *d, err);
		float *w = ws_unpack_scratch(&b->theirs, count * sizeof *w, err);
		if (!d || !w)
			return -1;
		if (ws_packed_rows(p, row, n, d, &b->scratch[0], &why) ||
		    ws_packed_rows(source, row, n, w, &b->scratch[1], &why))
			return say_unread(s, t, &why, err);
		add_numbers(sums, w, d, (size_t)count);
		if (ws_scales_step(s, count * ws_dtype_bits(t->source->dtype) / 8, first, err))
			return -1;
	}
	return 1;
}

static int compare_with(struct ws_scales *s, struct ws_scales_task *t,
                        const struct ws_packed *source, struct ws_scales_buffers *b, bool first,
                        const struct ws_scale_values *values, struct ws_err *err)
{
	struct sums sums = { .w = { 0 } };
	char ours[160], theirs[160];
	if (!source->weight || !same_shape(&t->packed, source)) {
		ws_scales_say(&s->notes, t->order, WS_SCALES_SOURCE, WS_ERROR, t->item->name,
		              "it is %s, and in the source %s",
		              ws_unpack_describe(t->item, ours, sizeof ours),
		              ws_unpack_describe(t->source, theirs, sizeof theirs));
		return 0;
	}
	const int rc = add_rows(s, t, source, b, first, &sums, err);
	if (rc <= 0)
		return rc;
	fill_error(t, &sums, s->opts->max_error);
	judge_error(s, t, &sums, values);
	return 0;
}

int ws_scales_compare(struct ws_scales *s, struct ws_scales_task *t, struct ws_scales_buffers *b,
                      bool first, const struct ws_scale_values *values, struct ws_err *err)
{
	struct ws_packed source;
	struct ws_err why = WS_ERR_INIT;
	if (ws_packed_find(s->opts->against, t->source, NULL, &source, &why))
		return say_unread(s, t, &why, err);
	const int rc = compare_with(s, t, &source, b, first, values, err);
	ws_packed_free(&source);
	return rc;
}
