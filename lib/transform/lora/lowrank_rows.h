/* SPDX-License-Identifier: Apache-2.0 */
/* lowrank_rows.h - one strip by vectors: what lowrank_avx2.c and lowrank_avx512.c have in
 * common. Included once by each, behind its WIDTH, struct sums, begin, add and end. Six rows at
 * a time are 12 sums, which hides the latency of two multipliers. */
#include "lowrank_simd.h"

static void do_row(const struct ws_strip *s, int64_t i)
{
	const float *b = s->b + (size_t)i * s->b_stride;
	float *out = s->out + (size_t)i * s->stride;
	struct sums x = begin(out, s->goes_on);
	for (int64_t r = 0; r < s->rank; r++)
		x = add(x, b + r, begin(s->a + r * WIDTH, true));
	end(x, out, s->ends, s->scale);
}

static void do_six_rows(const struct ws_strip *s, int64_t i)
{
	const size_t k = s->b_stride, n = s->stride;
	const float *b = s->b + (size_t)i * k;
	float *out = s->out + (size_t)i * n;
	struct sums x0 = begin(out, s->goes_on), x1 = begin(out + n, s->goes_on),
	            x2 = begin(out + 2 * n, s->goes_on), x3 = begin(out + 3 * n, s->goes_on),
	            x4 = begin(out + 4 * n, s->goes_on), x5 = begin(out + 5 * n, s->goes_on);
	for (int64_t r = 0; r < s->rank; r++, b++) {
		const struct sums a = begin(s->a + r * WIDTH, true);
		x0 = add(x0, b, a);
		x1 = add(x1, b + k, a);
		x2 = add(x2, b + 2 * k, a);
		x3 = add(x3, b + 3 * k, a);
		x4 = add(x4, b + 4 * k, a);
		x5 = add(x5, b + 5 * k, a);
	}
	end(x0, out, s->ends, s->scale);
	end(x1, out + n, s->ends, s->scale);
	end(x2, out + 2 * n, s->ends, s->scale);
	end(x3, out + 3 * n, s->ends, s->scale);
	end(x4, out + 4 * n, s->ends, s->scale);
	end(x5, out + 5 * n, s->ends, s->scale);
}

static void strip(const struct ws_strip *s)
{
	int64_t i = 0;
	for (; i + 6 <= s->n; i += 6)
		do_six_rows(s, i);
	for (; i < s->n; i++)
		do_row(s, i);
}
