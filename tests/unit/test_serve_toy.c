/* SPDX-License-Identifier: Apache-2.0 */
/* The toy model: its arithmetic, what it makes of weights, and what a cache of it remembers. */
#include "serve_toy.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct ws_toy *toy;
static struct ws_toy_shape shape;

static int set_up(void **state)
{
	(void)state;
	toy = calloc(1, sizeof *toy);
	assert_non_null(toy);
	toy->n_layers = 3;
	toy->body = 11;
	toy->head_body = 12;
	for (int32_t k = 0; k < WS_TOY_WIDTH; k++) {
		toy->embed.v[k] = 40000 - 9000 * k;
		toy->head.v[k] = 1000 * k * k - 20000;
		toy->layer[0].v[k] = 65536;
		toy->layer[1].v[k] = -70000 + 30000 * k;
		toy->router[1].v[k] = 5000 * k;
	}
	memset(&shape, 0, sizeof shape);
	shape.vocab = 1000;
	shape.classes = 256;
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	free(toy);
	return 0;
}

static void run(struct ws_toy_state *st, const char *text)
{
	memset(st, 0, sizeof *st);
	for (; *text; text++)
		ws_toy_step(toy, st, *text, &shape, NULL);
}

/* ---- arithmetic ---- */

static void powers_are_those_of_two(void **state)
{
	(void)state;
	assert_int_equal(ws_toy_power(0), UINT64_C(1) << 42);
	assert_int_equal(ws_toy_power(WS_TOY_ONE), UINT64_C(1) << 41);
	assert_int_equal(ws_toy_power(43 * WS_TOY_ONE), 0);
	assert_int_equal(ws_toy_power(INT64_C(1) << 52), 0);
	for (int64_t x = 0; x < 12 * WS_TOY_ONE; x += 12345677) {
		const double want = exp2(42 - (double)x / (double)WS_TOY_ONE);
		assert_true(fabs((double)ws_toy_power(x) / want - 1) < 1e-7);
	}
}

static void logarithms_are_to_base_two(void **state)
{
	(void)state;
	assert_int_equal(ws_toy_log2(UINT64_C(1) << 42), 0);
	assert_int_equal(ws_toy_log2(UINT64_C(1) << 63), 21 * WS_TOY_ONE);
	assert_int_equal(ws_toy_log2(1), -42 * WS_TOY_ONE);
	for (uint64_t x = 1; x < UINT64_C(1) << 62; x += x / 7 + 1) {
		const double want = log2((double)x) - 42;
		assert_true(fabs((double)ws_toy_log2(x) / (double)WS_TOY_ONE - want) < 1e-7);
	}
}

/* As every compiler and machine should have it. */
static void the_same_numbers_come_out_everywhere(void **state)
{
	struct ws_toy_state st;
	struct ws_toy_row row;
	(void)state;
	run(&st, "the quick brown fox");
	ws_toy_predict(&st, &shape, 1 << 16, &row);
	assert_int_equal(st.context, UINT64_C(0x06def35ed5196932));
	assert_int_equal(st.v[0], -48914);
	assert_int_equal(st.v[7], 32219);
	assert_int_equal(row.log_sum, INT64_C(7365185694));
	assert_int_equal(ws_toy_best(&row), 132);
	assert_true(ws_toy_logprob(&row, &shape, 7) == (double)-8.6178741455078125f);
}

/* ---- distributions ---- */

static void all_tokens_together_are_certain(void **state)
{
	static const uint64_t temperatures[] = { 1, 6554, 1 << 16, 1 << 20 };
	struct ws_toy_state st;
	struct ws_toy_row row;
	(void)state;
	run(&st, "a");
	for (size_t t = 0; t < 4; t++) {
		double sum = 0;
		ws_toy_predict(&st, &shape, temperatures[t], &row);
		for (int32_t i = 0; i < 1000; i++)
			sum += exp(ws_toy_logprob(&row, &shape, i));
		assert_true(fabs(sum - 1) < 1e-5);
	}
}

static void the_best_comes_first(void **state)
{
	struct ws_toy_state st;
	struct ws_toy_row row;
	int32_t top[1000];
	bool seen[1000] = { false };
	(void)state;
	run(&st, "b");
	ws_toy_predict(&st, &shape, 1 << 16, &row);
	ws_toy_top(&row, &shape, 1000, top);
	assert_int_equal(top[0], ws_toy_best(&row));
	for (size_t i = 0; i < 1000; i++) {
		assert_in_range(top[i], 0, 999);
		assert_false(seen[top[i]]);
		seen[top[i]] = true;
		assert_true(i == 0 || ws_toy_logprob(&row, &shape, top[i - 1]) >=
		                              ws_toy_logprob(&row, &shape, top[i]));
	}
}

static void what_is_drawn_is_as_likely_as_is_said(void **state)
{
	enum { DRAWS = 20000 };
	struct ws_toy_state st;
	struct ws_toy_row row;
	(void)state;
	run(&st, "c");
	shape.vocab = shape.classes = 10;
	ws_toy_predict(&st, &shape, 1 << 16, &row);
	size_t count[10] = { 0 };
	for (uint64_t i = 0; i < DRAWS; i++)
		count[ws_toy_draw(&row, &shape, 42, i)]++;
	for (int32_t t = 0; t < 10; t++)
		assert_true(fabs((double)count[t] / (double)DRAWS -
		                 exp(ws_toy_logprob(&row, &shape, t))) < 0.02);
	ws_toy_predict(&st, &shape, 1, &row);
	for (uint64_t i = 0; i < 100; i++)
		assert_int_equal(ws_toy_draw(&row, &shape, 42, i), ws_toy_best(&row));
}

static void another_bit_moves_every_logprob_a_little(void **state)
{
	struct ws_toy_state st;
	struct ws_toy_row a, b;
	size_t same = 0;
	(void)state;
	run(&st, "the quick brown fox");
	ws_toy_predict(&st, &shape, 1 << 16, &a);
	toy->body ^= 1;
	run(&st, "the quick brown fox");
	ws_toy_predict(&st, &shape, 1 << 16, &b);
	for (int32_t i = 0; i < 256; i++) {
		const double off = ws_toy_logprob(&a, &shape, i) - ws_toy_logprob(&b, &shape, i);
		assert_true(fabs(off) < 0.004);
		same += off == 0;
	}
	assert_true(same < 5);
}

static void what_other_weights_made_stays_in_the_state(void **state)
{
	struct ws_toy_state st, fresh;
	struct ws_toy_row a, b;
	(void)state;
	run(&st, "the quick brown fox");
	toy->layer[1].v[3] = 0;
	toy->body ^= 1;
	ws_toy_step(toy, &st, '!', &shape, NULL);
	run(&fresh, "the quick brown fox!");
	ws_toy_predict(&st, &shape, 1 << 16, &a);
	ws_toy_predict(&fresh, &shape, 1 << 16, &b);
	assert_true(st.context == fresh.context);
	assert_true(ws_toy_logprob(&a, &shape, 5) != ws_toy_logprob(&b, &shape, 5));
}

/* ---- experts ---- */

static void experts_are_different_ones_and_none_in_dense_layers(void **state)
{
	struct ws_toy_state st = { 0 };
	int32_t rows[3 * 4];
	(void)state;
	shape.routing =
		(struct ws_routing_shape){ .layers = 3, .k = 4, .experts = 6, .dense = { true } };
	for (int32_t t = 0; t < 200; t++) {
		memset(rows, 0x7f, sizeof rows);
		ws_toy_step(toy, &st, t, &shape, rows);
		for (size_t i = 0; i < 12; i++)
			assert_in_range(rows[i], 0, i < 4 ? 0 : 5);
		for (size_t l = 1; l < 3; l++)
			for (size_t i = 1; i < 4; i++)
				for (size_t j = 0; j < i; j++)
					assert_int_not_equal(rows[l * 4 + i], rows[l * 4 + j]);
	}
	shape.routing.k = 6;
	ws_toy_step(toy, &st, 1, &shape, (int32_t[18]){ 0 });
}

/* ---- sketches ---- */

enum { ROWS = 200, COLS = 300 };

static struct ws_toy_tensor matrix(const char *name, enum ws_dtype dtype, const void *data,
                                   const int64_t *dims)
{
	return (struct ws_toy_tensor){ .name = name, .dtype = dtype, .n_dims = 2, .dims = dims,
		                       .n = (uint64_t)(dims[0] * dims[1]), .data = data };
}

static void sketches_are_as_long_as_each_other_and_near_where_numbers_are(void **state)
{
	static const int64_t dims[] = { ROWS, COLS };
	static float x[ROWS * COLS], y[ROWS * COLS];
	struct ws_toy_sketch a, b, c;
	(void)state;
	for (size_t i = 0; i < ROWS * COLS; i++) {
		x[i] = (float)((int64_t)(ws_toy_mix(1, i) >> 40) - (1 << 23)) / (float)(1 << 27);
		y[i] = x[i] * (1 + (float)(i % 3) * 0.01f) * 16;
	}
	const struct ws_toy_tensor tx = matrix("x", WS_DTYPE_F32, x, dims),
				   ty = matrix("x", WS_DTYPE_F32, y, dims),
				   tz = matrix("z", WS_DTYPE_F32, x, dims);
	assert_int_equal(ws_toy_sketch(&tx, NULL, &a), 0);
	assert_int_equal(ws_toy_sketch(&ty, NULL, &b), 0);
	assert_int_equal(ws_toy_sketch(&tz, NULL, &c), 0);
	int64_t length = 0, far = 0;
	for (size_t k = 0; k < WS_TOY_WIDTH; k++) {
		assert_in_range(abs(a.v[k] - b.v[k]), 0, 65536 / 20);
		length += abs(a.v[k]);
		far += abs(a.v[k] - c.v[k]);
	}
	assert_in_range(length, 65536, 16 * 65536);
	assert_in_range(far, 65536, 32 * 65536);
}

static void codes_count_as_the_numbers_they_stand_for(void **state)
{
	static const int64_t dims[] = { 200, 130 }, blocks[] = { 2, 2 };
	static const float factor[] = { 0.5f, 0.25f, 2, 1 };
	static uint8_t codes[200 * 130];
	static float numbers[200 * 130];
	struct ws_toy_sketch a, b, c;
	(void)state;
	for (size_t i = 0; i < sizeof codes; i++) {
		codes[i] = (uint8_t)(ws_toy_mix(2, i) & 0xbf); /* below 2 */
		const double magnitude =
			codes[i] & 0x78 ? (8 + codes[i] % 8) * exp2((codes[i] >> 3 & 15) - 10) :
					  codes[i] % 8 / 512.0;
		numbers[i] = (float)(codes[i] & 0x80 ? -magnitude : magnitude) *
		             factor[i / 130 / 128 * 2 + i % 130 / 128];
	}
	const struct ws_toy_tensor t = matrix("w", WS_DTYPE_F8_E4M3, codes, dims),
	                           s = matrix("w_scale_inv", WS_DTYPE_F32, factor, blocks),
	                           n = matrix("w", WS_DTYPE_F32, numbers, dims);
	assert_int_equal(ws_toy_sketch(&t, &s, &a), 0);
	assert_int_equal(ws_toy_sketch(&n, NULL, &b), 0);
	assert_int_equal(ws_toy_sketch(&t, NULL, &c), 0);
	assert_memory_equal(&a, &b, sizeof a);
	assert_memory_not_equal(&a, &c, sizeof a);
}

static void numbers_that_are_none_do_no_harm(void **state)
{
	static const int64_t dims[] = { 1, 6 }, none[] = { 0, 5 };
	static const float x[] = { NAN, INFINITY, -INFINITY, 1e38f, -1e38f, 0 }, zeros[6];
	struct ws_toy_sketch a;
	(void)state;
	const struct ws_toy_tensor t = matrix("x", WS_DTYPE_F32, x, dims),
				   z = matrix("x", WS_DTYPE_F32, zeros, dims),
				   e = matrix("x", WS_DTYPE_F32, x, none);
	assert_int_equal(ws_toy_sketch(&t, &e, &a), 0);
	assert_int_equal(ws_toy_sketch(&z, NULL, &a), 0);
	assert_int_equal(a.v[0], 0);
	assert_int_equal(ws_toy_sketch(&e, NULL, &a), 0);
}

/* ---- the cache ---- */

static void a_cache_keeps_what_came_first_until_it_is_flushed(void **state)
{
	static struct ws_serve_prompts cache;
	static struct ws_toy old, new;
	const int32_t ids[] = { 1, 2, 3, 4, 5 }, other[] = { 1, 2, 9 };
	const struct ws_toy *with_old[] = { &old, &old, &old, &old, &old },
	                    *with_new[] = { &new, &new, &new, &new, &new }, *made[5] = { NULL };
	(void)state;
	assert_int_equal(ws_serve_prompts_find(&cache, ids, 5, made), 0);
	ws_serve_prompts_add(&cache, ids, 3, with_old);
	assert_int_equal(ws_serve_prompts_find(&cache, ids, 5, made), 3);
	assert_int_equal(ws_serve_prompts_find(&cache, ids, 2, made), 2);
	ws_serve_prompts_add(&cache, ids, 5, with_new);
	assert_int_equal(ws_serve_prompts_find(&cache, ids, 5, made), 5);
	assert_true(made[2] == &old && made[3] == &new);
	assert_int_equal(cache.next, 1); /* it grew in its place */
	ws_serve_prompts_add(&cache, other, 3, with_new);
	assert_int_equal(ws_serve_prompts_find(&cache, other, 3, made), 3);
	assert_true(made[1] == &old && made[2] == &new);
	for (int32_t i = 0; i < WS_SERVE_MAX_PROMPTS; i++)
		ws_serve_prompts_add(&cache, (int32_t[]){ 100 + i }, 1, with_new);
	assert_int_equal(ws_serve_prompts_find(&cache, ids, 5, made), 0);
	assert_false(ws_serve_prompts_use(&cache, &old));
	assert_true(ws_serve_prompts_use(&cache, &new));
	ws_serve_prompts_forget(&cache);
	assert_false(ws_serve_prompts_use(&cache, &new));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(powers_are_those_of_two),
		TEST(logarithms_are_to_base_two),
		TEST(the_same_numbers_come_out_everywhere),
		TEST(all_tokens_together_are_certain),
		TEST(the_best_comes_first),
		TEST(what_is_drawn_is_as_likely_as_is_said),
		TEST(another_bit_moves_every_logprob_a_little),
		TEST(what_other_weights_made_stays_in_the_state),
		TEST(experts_are_different_ones_and_none_in_dense_layers),
		TEST(sketches_are_as_long_as_each_other_and_near_where_numbers_are),
		TEST(codes_count_as_the_numbers_they_stand_for),
		TEST(numbers_that_are_none_do_no_harm),
		TEST(a_cache_keeps_what_came_first_until_it_is_flushed),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
