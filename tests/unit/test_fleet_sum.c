/* SPDX-License-Identifier: Apache-2.0 */
/* The result of a run that pushes in steps claims what every step has established. */
#include "fleet_sum.h"
#include "test.h"

#include <string.h>

static struct ws_name_check_run names(bool checked, bool own_config, const char *why)
{
	struct ws_name_check_run r = { .checked = checked, .own_config = own_config,
		                       .layered = true, .family = "qwen3" };
	snprintf(r.why, sizeof r.why, "%s", why);
	return r;
}

static struct ws_ev_end step(const struct ws_name_check_run *names, const char *note)
{
	return (struct ws_ev_end){ .names = names, .format_note = note, .weight_version = "5",
		                   .verify = "names", .wire_bytes = 10, .total_ns = 3,
		                   .ns = { [WS_PHASE_PAUSE] = 2 } };
}

/* All orders of two steps give the same. */
TEST(a_result_claims_no_more_than_each_step)
{
	(void)state;
	for (unsigned bits = 0; bits < 64; bits++) {
		const bool checked[2] = { bits & 1, bits & 2 }, own[2] = { bits & 4, bits & 8 };
		const char *const assumed[2] = { bits & 16 ? "16 bits assumed" : NULL,
			                         bits & 32 ? "allowed" : NULL };
		struct fleet_sum sum = { 0 };
		struct ws_name_check_run of[2];
		for (int i = 0; i < 2; i++) {
			of[i] = names(checked[i], own[i] && !checked[i], checked[i] ? "" : "why");
			const struct ws_ev_end end = step(&of[i], assumed[i]);
			fleet_sum_add(&sum, &end, true);
		}
		assert_non_null(sum.end.names);
		assert_int_equal(sum.end.names->checked, checked[0] && checked[1]);
		assert_int_equal(sum.end.names->own_config,
		                 of[0].own_config || of[1].own_config);
		assert_int_equal(*sum.end.names->why != 0, !(checked[0] && checked[1]));
		for (int i = 0; i < 2; i++)
			if (assumed[i])
				assert_non_null(strstr(sum.end.format_note, assumed[i]));
		if (!assumed[0] && !assumed[1])
			assert_null(sum.end.format_note);
		assert_int_equal(sum.end.wire_bytes, 20);
		assert_int_equal(sum.end.total_ns, 6);
		assert_int_equal(sum.end.ns[WS_PHASE_PAUSE], 4);
	}
}

TEST(the_same_note_is_said_once)
{
	const struct ws_name_check_run ok = names(true, false, "");
	const struct ws_ev_end end = step(&ok, "16 bits assumed");
	struct fleet_sum sum = { 0 };
	(void)state;
	for (int i = 0; i < 3; i++)
		fleet_sum_add(&sum, &end, true);
	assert_string_equal(sum.end.format_note, "16 bits assumed");
}

/* What a step did not cover, left out or label, the next one does not mend. */
TEST(a_later_step_hides_nothing)
{
	static const char *const globs[] = { "*norm*" };
	struct ws_name_check_run part = names(true, false, ""), whole = part;
	struct ws_ev_end first = step(&part, NULL), last = step(&whole, NULL);
	struct fleet_sum sum = { 0 };
	(void)state;
	part.found.left_out[0] = (struct ws_left_out){ "exclude", globs, 1, 3, 2 };
	part.found.n_left_out = 1;
	part.found.needed = 7;
	part.found.warnings = 2;
	first.left_out = &part.found;
	first.not_covered = 4;
	first.weight_version = NULL;
	fleet_sum_add(&sum, &first, true);
	fleet_sum_add(&sum, &last, true);
	assert_int_equal(sum.end.not_covered, 4);
	assert_null(sum.end.weight_version);
	assert_int_equal(sum.end.left_out->n_left_out, 1);
	assert_int_equal(sum.end.names->found.warnings, 2);
}

/* A step that failed and was repeated without an endpoint says nothing of the others. */
TEST(a_failed_step_is_replaced_by_its_repetition)
{
	struct ws_name_check_run none = names(false, false, "why"), ok = names(true, false, "");
	const struct ws_ev_end failed = step(&none, "16 bits assumed"), end = step(&ok, NULL);
	struct fleet_sum sum = { 0 };
	(void)state;
	fleet_sum_add(&sum, &failed, false);
	assert_ptr_equal(sum.end.names, &none);
	fleet_sum_add(&sum, &end, true);
	assert_true(sum.end.names->checked);
	assert_null(sum.end.format_note);
	assert_int_equal(sum.end.wire_bytes, 20);
}

RUN_TESTS(NULL, NULL)
