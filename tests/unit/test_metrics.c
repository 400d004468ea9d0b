/* SPDX-License-Identifier: Apache-2.0 */
/* What events become for Prometheus. That the whole text is well-formed is for
 * tests/cli/push-metrics.bats. */
#include "wsync/tool/metrics.h"

#include "test.h"
#include "wsync/clock.h"

static const char *const evil = "http://a\"b\\c\nd\x01\xff\xc3\xa9";

static struct ws_buf text;

static void write_text(const struct ws_metrics *m)
{
	struct ws_err err = WS_ERR_INIT;
	ws_buf_free(&text);
	assert_ok(ws_metrics_write(m, &text, &err), &err);
}

static void has(const char *line)
{
	char with_end[512];
	snprintf(with_end, sizeof with_end, "\n%s\n", line);
	if (!strstr(ws_buf_str(&text), with_end))
		fail_msg("no line %s in\n%s", line, ws_buf_str(&text));
}

static void lacks(const char *part)
{
	if (strstr(ws_buf_str(&text), part))
		fail_msg("%s in\n%s", part, ws_buf_str(&text));
}

static void hear_plan(struct ws_metrics *m, bool dry_run)
{
	const struct ws_event ev = { .type = WS_EV_PLAN,
		                     .plan = { .backend = "gloo",
		                               .protocol = "update",
		                               .load_format = "none",
		                               .dry_run = dry_run } };
	ws_metrics_hear(m, &ev);
}

static void hear_end(struct ws_metrics *m, enum ws_event_type type, const struct ws_err *err)
{
	static const struct ws_ev_endpoint_result two[] = {
		{ .url = "http://x:1", .ok = true, .state = WS_COMMITTED },
		{ .url = evil, .state = WS_PARTIAL, .paused = true },
	};
	const struct ws_event ev = {
		.type = type,
		.end = { .ok = !err,
		         .err = err,
		         .bytes = UINT64_C(18446744073709551615),
		         .wire_bytes = 2,
		         .tensors = 3,
		         .buckets = 4,
		         .n_endpoints = 2,
		         .endpoints = two,
		         .total_ns = 1500000001,
		         .ns = { [WS_PHASE_PAUSE] = 7 },
		         .verify = "hash" },
	};
	ws_metrics_hear(m, &ev);
}

static struct ws_metrics *open_metrics(void)
{
	struct ws_metrics *m = NULL;
	assert_int_equal(ws_metrics_open(&m, NULL), 0);
	return m;
}

TEST(labels_are_escaped_and_numbers_whole)
{
	struct ws_metrics *m = open_metrics();
	hear_end(m, WS_EV_END, NULL);
	write_text(m);
	has("wsync_push_bytes 18446744073709551615");
	has("wsync_push_endpoint_paused{endpoint=\"http://"
	    "a\\\"b\\\\c\\nd\xef\xbf\xbd\xef\xbf\xbd\xc3\xa9\"} 1");
	ws_metrics_close(m);
}

TEST(a_failure_says_what_it_came_to)
{
	struct ws_metrics *m = open_metrics();
	const struct ws_err partial = { .code = WS_EPARTIAL };
	const struct ws_event differs = { .type = WS_EV_MISMATCH },
			      warning = { .type = WS_EV_WARNING };
	hear_plan(m, false);
	ws_metrics_hear(m, &differs);
	ws_metrics_hear(m, &warning);
	ws_metrics_hear(m, &warning);
	hear_end(m, WS_EV_RESULT, &partial);
	write_text(m);
	has("wsync_push_success 0");
	has("wsync_push_exit_code 9");
	has("wsync_push_verify{outcome=\"failed\"} 1");
	has("wsync_push_mismatches 1");
	has("wsync_push_warnings 2");
	lacks("last_success");
	/* The next one knows nothing of that, and not even a plan. */
	const struct ws_err reach = { .code = WS_EREACH };
	hear_end(m, WS_EV_RESULT, &reach);
	write_text(m);
	has("wsync_push_info{verify=\"hash\"} 1");
	has("wsync_push_verify{outcome=\"unknown\"} 1");
	has("wsync_push_warnings 0");
	has("wsync_push_runs_total{outcome=\"failure\"} 2");
	ws_metrics_fail(m, &reach);
	write_text(m);
	has("wsync_push_exit_code 4");
	has("wsync_push_endpoints 0");
	lacks("endpoint=");
	ws_metrics_close(m);
}

TEST(the_end_of_lines_is_no_push_and_a_dry_run_is_none)
{
	struct ws_metrics *m = open_metrics();
	const struct ws_event lines = { .type = WS_EV_END,
		                        .end = { .ok = true, .n_results = 3, .total_ns = 5 } };
	const struct ws_event no_lines = { .type = WS_EV_END, .end = { .ok = true } };
	ws_metrics_hear(m, &lines);
	ws_metrics_hear(m, &no_lines);
	hear_plan(m, true);
	hear_end(m, WS_EV_END, NULL);
	assert_false(ws_metrics_known(m));
	write_text(m);
	lacks("wsync_push_success");
	ws_metrics_close(m);
}

static void recall(const char *before, const char *line)
{
	struct ws_metrics *m = open_metrics();
	const struct ws_err reach = { .code = WS_EREACH };
	char *exact = malloc(strlen(before) + 1); /* a sanitizer sees a read past it */
	memcpy(exact, before, strlen(before) + 1);
	ws_metrics_recall(m, exact, strlen(before));
	free(exact);
	ws_metrics_fail(m, &reach);
	write_text(m);
	if (line)
		has(line);
	else
		lacks("last_success");
	ws_metrics_close(m);
}

#define NAME "wsync_push_last_success_timestamp_seconds"

TEST(the_last_success_is_taken_over)
{
	recall("# HELP x\nwsync_push_success 1\n" NAME
	       " 1700000000.123456789\nwsync_push_bytes 1\n",
	       NAME " 1700000000.123456789");
	recall(NAME " 1700000000.123456789", NAME " 1700000000.123456789");
	/* clang-format off */
	static const char *const others[] = {
		"", "\n\n", NAME, NAME " ", NAME " 1", NAME " 1.5\n", NAME " .123456789\n",
		NAME " -1.123456789\n", NAME " 99999999999.123456789\n",
		NAME " 9999999999.123456789\n", NAME " 1.1234567890\n", NAME " 1.12345678x\n",
		NAME "x 1700000000.123456789\n", "x" NAME " 1700000000.123456789\n", NAME " NaN\n",
		NAME " 0.000000000\n"
	};
	/* clang-format on */
	for (size_t i = 0; i < sizeof others / sizeof *others; i++)
		recall(others[i], NULL);
}

int main(void)
{
	const int failed = run_listed(NULL, NULL);
	ws_buf_free(&text);
	return failed;
}
