/* SPDX-License-Identifier: Apache-2.0 */
/* What is said of two answers to one prompt, and which differences are allowed. */
#include "wsync/tool/logprobs.h"
#include "test.h"
#include "wsync/tool/prompts.h"

static struct ws_logprobs answer(const char *input, const char *output)
{
	struct ws_logprobs l;
	struct ws_err err = WS_ERR_INIT;
	char text[512];
	const int n =
		snprintf(text, sizeof text,
	                 "{\"meta_info\": {\"input_token_logprobs\": [%s], "
	                 "\"output_token_logprobs\": [%s], \"weight_version\": \"a\\u001bb\", "
	                 "\"cached_tokens\": -4}}",
	                 input, output);
	assert_int_equal(ws_logprobs_parse(text, (size_t)n, "answer", &l, &err), 0);
	return l;
}

/* Compares and frees both. */
static void compare(struct ws_logprobs a, struct ws_logprobs b, struct ws_logprobs_diff *d)
{
	ws_logprobs_compare(&a, &b, d);
	ws_logprobs_free(&a);
	ws_logprobs_free(&b);
}

static bool near(double a, double b)
{
	return fabs(a - b) < 1e-12;
}

TEST(differences_are_of_both_parts)
{
	struct ws_logprobs_diff d[WS_LOGPROB_PARTS];
	compare(answer("[null, 1], [-1, 2], [-2, 3]", "[-1, 4], [-1, 5], [-3, 6]"),
	        answer("[null, 1], [-1.5, 2], [-2, 3]", "[-1, 4], [-0.5, 5], [-3.25, 7]"), d);
	assert_int_equal(d[WS_PREFILL].tokens, 2);
	assert_true(near(d[WS_PREFILL].max, 0.5) && near(d[WS_PREFILL].mean, 0.25));
	assert_true(near(d[WS_PREFILL].k3, (exp(-0.5) - 1 + 0.5) / 2));
	assert_int_equal(d[WS_PREFILL].worst, 1);
	assert_int_equal(d[WS_PREFILL].worst_id, 2);
	assert_true(near(d[WS_PREFILL].first, -1) && near(d[WS_PREFILL].second, -1.5));
	assert_false(d[WS_PREFILL].diverges);
	assert_int_equal(d[WS_DECODE].same, 2);
	assert_true(d[WS_DECODE].diverges && near(d[WS_DECODE].apart, 0.25));
	assert_true(near(d[WS_DECODE].k3, (exp(0.5) - 1 - 0.5) / 2));
}

TEST(limits_are_of_what_is_given)
{
	struct ws_logprobs_limits l = WS_LOGPROBS_NO_LIMITS;
	struct ws_logprobs_diff d = { .tokens = 4, .max = 0.5, .mean = 0.1, .k3 = 0.01 };
	char why[200];
	assert_false(ws_logprobs_within(&d, WS_DECODE, &l, why, sizeof why));
	l.mean = 0.1;
	assert_true(ws_logprobs_within(&d, WS_DECODE, &l, why, sizeof why));
	l.k3 = 0.009;
	assert_false(ws_logprobs_within(&d, WS_DECODE, &l, why, sizeof why));
	assert_non_null(strstr(why, "k3"));
	l.k3 = NAN;
	l.max = 0.4;
	assert_false(ws_logprobs_within(&d, WS_DECODE, &l, why, sizeof why));
	d.mean = INFINITY;
	l.max = 1;
	assert_false(ws_logprobs_within(&d, WS_DECODE, &l, why, sizeof why));
}

TEST(other_tokens_are_allowed_where_differences_are)
{
	struct ws_logprobs_limits l = { 0.3, NAN, NAN };
	struct ws_logprobs_diff d = { .tokens = 1, .same = 1, .diverges = true, .apart = 0.2 };
	char why[200];
	assert_true(ws_logprobs_within(&d, WS_DECODE, &l, why, sizeof why));
	assert_false(ws_logprobs_within(&d, WS_PREFILL, &l, why, sizeof why));
	d.apart = 0.4;
	assert_false(ws_logprobs_within(&d, WS_DECODE, &l, why, sizeof why));
	l.max = 0;
	d.apart = 0;
	assert_false(ws_logprobs_within(&d, WS_DECODE, &l, why, sizeof why));
	l = (struct ws_logprobs_limits){ NAN, 0.3, NAN };
	assert_true(ws_logprobs_within(&d, WS_DECODE, &l, why, sizeof why));
	d.tokens = d.same = 0;
	assert_false(ws_logprobs_within(&d, WS_DECODE, &l, why, sizeof why));
}

TEST(a_number_on_one_side_only_is_a_difference)
{
	const struct ws_logprobs_limits l = { 10, NAN, NAN };
	struct ws_logprobs_diff d[WS_LOGPROB_PARTS];
	char why[200];
	compare(answer("[null, 1], [-1, 2]", "[null, 3]"),
	        answer("[null, 1], [null, 2]", "[null, 3]"), d);
	assert_int_equal(d[WS_PREFILL].missing, 1);
	assert_int_equal(d[WS_PREFILL].tokens, 0);
	assert_false(ws_logprobs_within(&d[WS_PREFILL], WS_PREFILL, &l, why, sizeof why));
	assert_true(ws_logprobs_within(&d[WS_DECODE], WS_DECODE, &l, why, sizeof why));
}

TEST(sums_weigh_prompts_by_their_tokens)
{
	const struct ws_logprobs_diff a = {
		.tokens = 1, .max = 3, .mean = 3, .k3 = 3, .worst = 0, .worst_id = 8
	};
	const struct ws_logprobs_diff b = {
		.tokens = 3, .max = 1, .mean = 1, .k3 = 1, .worst = 2, .diverges = true
	};
	struct ws_logprobs_diff sum = { 0 };
	ws_logprobs_sum(&sum, &b);
	ws_logprobs_sum(&sum, &a);
	ws_logprobs_sum(&sum, &(struct ws_logprobs_diff){ 0 });
	assert_int_equal(sum.tokens, 4);
	assert_true(near(sum.mean, 1.5) && near(sum.k3, 1.5) && near(sum.max, 3));
	assert_int_equal(sum.worst_id, 8);
	assert_true(sum.diverges);
}

TEST(what_else_an_answer_tells_is_fit_to_be_shown)
{
	struct ws_logprobs l = answer("[null, 1]", "");
	assert_string_equal(l.weight_version, "a?b");
	assert_int_equal(l.cached_tokens, -1);
	ws_logprobs_free(&l);
}

TEST(prompts_are_lines_of_text_or_of_json)
{
	static const char text[] = "one\r\n\n {two\n{\"text\": \"three\", \"max_new_tokens\": "
	                           "7}\n{\"input_ids\": [4, 5]}";
	struct ws_prompts p = { 0 };
	struct ws_err err = WS_ERR_INIT;
	assert_int_equal(ws_prompts_parse(&p, text, sizeof text - 1, "prompts", &err), 0);
	assert_int_equal(p.n, 4);
	assert_string_equal(p.items[0].text, "one");
	assert_string_equal(p.items[1].text, " {two");
	assert_string_equal(p.items[2].text, "three");
	assert_int_equal(p.items[2].most, 7);
	assert_null(p.items[3].text);
	assert_int_equal(p.items[3].n_ids, 2);
	assert_int_equal(p.items[3].ids[1], 5);
	assert_fails(ws_prompts_parse(&p, "a\0b", 3, "prompts", &err), &err, WS_EINPUT, "");
	ws_prompts_free(&p);
}

RUN_TESTS(NULL, NULL)
