/* SPDX-License-Identifier: Apache-2.0 */
/* Rounds of several senders: what is read is what was written, and what is not understood is no round. */
#include "round.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void write_read(const struct ws_round *r, struct ws_round *out)
{
	struct ws_buf text;
	struct ws_jw w;
	ws_buf_init(&text, WS_ROUND_TEXT);
	ws_jw_init(&w, &text);
	ws_round_write(&w, NULL, r);
	assert_false(text.failed);
	ws_round_read(ws_buf_str(&text), text.len, out);
	ws_buf_free(&text);
}

static void a_round_comes_back_as_it_was_written(void **state)
{
	(void)state;
	static struct ws_round r, back;
	char id[WS_ROUND_ID], text[512];
	memset(id, '"', sizeof id - 1);
	id[sizeof id - 1] = 0;
	ws_round_begin(&r, id, WS_ROUND_SENDERS);
	for (unsigned i = 1; i < WS_ROUND_SENDERS; i++)
		r.had[i] = true;
	write_read(&r, &back);
	assert_memory_equal(&r, &back, sizeof r);
	assert_true(ws_round_is(&back, id, WS_ROUND_SENDERS));
	assert_false(ws_round_is(&back, id, 3));
	assert_true(ws_round_is_half(&back));
	back.had[WS_ROUND_SENDERS] = true;
	assert_false(ws_round_is_half(&back));
	ws_round_list(&r, text, sizeof text);
	assert_string_equal(text, "senders 1, 2, 3, 4, 5, 6, 7, 8 and 1015 more had a turn, sender 1024 had none");
	ws_round_describe(&r, text, sizeof text);
	assert_true(strlen(text) < sizeof text - 1);
}

static void what_is_not_understood_is_no_round(void **state)
{
	(void)state;
	static const struct {
		const char *text;
		unsigned senders, had;
	} rows[] = {
		{ "", 0, 0 },
		{ "3: 1 3\n", 3, 2 },
		{ "3:\n", 3, 0 },
		{ "3: 1 4 2\n", 3, 1 },
		{ "0:", 0, 0 },
		{ "1025: 1", 0, 0 },
		{ "-1: 1", 0, 0 },
		{ "3", 0, 0 },
		{ ": 1", 0, 0 },
		{ "nothing", 0, 0 },
		{ "[1]", 0, 0 },
		{ "7", 0, 0 },
		{ "{\"senders\":2}", 2, 0 },
		{ "{\"senders\":-2,\"had\":[1]}", 0, 0 },
		{ "{\"senders\":2,\"had\":[1,1,0,3,-1,\"2\",1e99,null]}", 2, 1 },
		{ "{\"senders\":2,\"had\":1,\"id\":7,\"begun\":\"x\",\"pid\":-1,\"host\":[]}", 2, 0 },
		{ "{\"senders\":2,\"had\":[1", 0, 0 },
	};
	static struct ws_round r;
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		ws_round_read(rows[i].text, strlen(rows[i].text), &r);
		assert_int_equal(r.senders, rows[i].senders);
		assert_int_equal(ws_round_count(&r), rows[i].had);
		assert_false(ws_round_is(&r, "", r.senders));
		assert_false(ws_round_is(&r, "7", r.senders));
	}
}

static void a_foreign_id_is_printable_and_one_that_is_too_long_is_none(void **state)
{
	(void)state;
	static struct ws_round r;
	char text[WS_ROUND_TEXT];
	int n = snprintf(text, sizeof text, "{\"senders\":2,\"had\":[1],\"id\":\"a\\u001b[31m\",\"host\":\"h\\nh\","
	                 "\"begun\":9007199254740991,\"pid\":4711}");
	ws_round_read(text, (size_t)n, &r);
	assert_string_equal(r.id, "a?[31m");
	ws_round_describe(&r, text, sizeof text);
	assert_string_equal(text, "round a?[31m of 2 senders (begun 0 s ago by process 4711 on h?h)");
	n = snprintf(text, sizeof text, "{\"senders\":2,\"had\":[1],\"id\":\"%0*d\"}", WS_ROUND_ID, 0);
	ws_round_read(text, (size_t)n, &r);
	assert_string_equal(r.id, "");
	assert_true(ws_round_is_half(&r));
	ws_round_describe(&r, text, sizeof text);
	assert_string_equal(text, "a round of 2 senders without an ID");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_round_comes_back_as_it_was_written),
		cmocka_unit_test(what_is_not_understood_is_no_round),
		cmocka_unit_test(a_foreign_id_is_printable_and_one_that_is_too_long_is_none),
	};
	return cmocka_run_group_tests_name("round", tests, NULL, NULL);
}
