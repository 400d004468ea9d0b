/* SPDX-License-Identifier: Apache-2.0 */
/* Scales one by one, and what becomes of findings. */
#include "scales_core.h"
#include "test.h"

#include <math.h>

static struct ws_scale_values values_of(const float *scales, size_t n, float code)
{
	struct ws_scale_values v = { .n = 0 };
	for (size_t i = 0; i < n; i++)
		ws_scale_values_add(&v, scales[i], 1, code);
	return v;
}

TEST(every_kind_of_number_is_counted_once)
{
	const float scales[] = { NAN, INFINITY, -INFINITY, -1, 0, 1e-40f, 0x1p-140f, 0.5f, 0.3f };
	const struct ws_scale_values v = values_of(scales, 9, 448);
	assert_int_equal(v.n, 9);
	assert_int_equal(v.nan, 1);
	assert_int_equal(v.infinite, 2);
	assert_int_equal(v.negative, 2);
	assert_int_equal(v.zero, 1);
	assert_int_equal(v.dead, 0);
	assert_int_equal(v.subnormal, 2);
	assert_int_equal(v.powers, 2); /* the smaller subnormal is one */
	assert_int_equal(v.blocks, 4);
	assert_float_equal(v.most, 0.5f, 0);
}

TEST(blocks_without_codes_have_no_size)
{
	const float scales[] = { 0, 2.23e-15f, 1 };
	const struct ws_scale_values v = values_of(scales, 3, 0);
	assert_int_equal(v.dead, 1);
	assert_int_equal(v.zero, 0);
	assert_int_equal(v.blocks, 0);
	assert_true(ws_scale_values_times(&v) == 0 && ws_scale_values_over(&v) == 0);
	assert_false(ws_scale_values_inverted(&v));
}

TEST(an_inverse_is_known_by_the_size_of_weights)
{
	const float right[] = { 0.0002f, 0.001f }, wrong[] = { 5000, 1000 },
		    large[] = { 1e10f, 1e12f };
	struct ws_scale_values v = values_of(right, 2, 448);
	assert_false(ws_scale_values_inverted(&v));
	v = values_of(wrong, 2, 448);
	assert_true(ws_scale_values_inverted(&v));
	assert_true(fabs(ws_scale_values_over(&v) - 448 / sqrt(5e6)) < 1e-6);
	v = values_of(large, 2, 448); /* no good either way */
	assert_false(ws_scale_values_inverted(&v));
}

TEST(the_second_of_two_scales_may_be_inverted)
{
	struct ws_scale_values right = { .n = 0 }, wrong = { .n = 0 }, one = { .n = 0 };
	ws_scale_values_add(&right, 400, 0x1p-14f, 6);
	ws_scale_values_add(&wrong, 400, 0x1p14f, 6);
	ws_scale_values_add(&one, 0.5f, 1, 1); /* as if there were no second */
	assert_false(ws_scale_values_inverted(&right));
	assert_true(ws_scale_values_inverted(&wrong));
	assert_true(fabs(ws_scale_values_times(&right) - ws_scale_values_over(&wrong)) < 1e-9);
	assert_true(fabs(ws_scale_values_over(&one) - 2) < 1e-9);
}

TEST(findings_are_sorted_and_counted)
{
	struct ws_scales_report r = { .findings = NULL };
	struct ws_scales_notes n;
	ws_scales_notes_begin(&n, &r);
	for (unsigned i = 0; i < 100; i++)
		ws_scales_say(&n, 100 - i, WS_SCALES_CODES, WS_WARN, "a", "%u", i);
	ws_scales_say(&n, 7, WS_SCALES_VALUES, WS_ERROR, "b", "late");
	ws_scales_say(&n, 0, WS_SCALES_UE8M0, WS_NOTE, "c", "last");
	assert_int_equal(ws_scales_notes_end(&n, NULL), 0);
	assert_int_equal(r.n_findings, 102);
	assert_string_equal(r.findings[0].reason, "late");
	assert_string_equal(r.findings[1].reason, "99");
	assert_string_equal(r.findings[101].reason, "last");
	assert_true(r.errors == 1 && r.warnings == 100 && r.notes == 1);
	assert_int_equal(r.count[WS_SCALES_CODES], 100);
	ws_scales_report_free(&r);
	ws_scales_report_free(NULL);
}

TEST(verdicts_have_names)
{
	for (unsigned v = 0; v < WS_SCALES_VERDICTS; v++)
		assert_true(*ws_scales_verdict_name((enum ws_scales_verdict)v));
	assert_string_equal(ws_scales_verdict_name(WS_SCALES_UNSEEN), "unseen");
}

RUN_TESTS(NULL, NULL)
