/* SPDX-License-Identifier: Apache-2.0 */
/* Rounds of several senders: what is read is what was written, and what is
 * not understood is no round. */
#include "round.h"
#include "test.h"

static void write_read(const struct ws_round *r, struct ws_round *out)
{
	struct ws_buf text;
	struct ws_jw w;
	ws_buf_init(&text, WS_ROUND_TEXT);
	ws_jw_init(&w, &text);
	ws_round_write(&w, r, NULL);
	assert_false(text.failed);
	ws_round_read(ws_buf_str(&text), text.len, out, NULL);
	ws_buf_free(&text);
}

TEST(a_round_comes_back_as_it_was_written)
{
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
	assert_string_equal(
		text,
		"senders 1, 2, 3, 4, 5, 6, 7, 8 and 1015 more had a turn, sender 1024 had none");
	ws_round_describe(&r, text, sizeof text);
	assert_true(strlen(text) < sizeof text - 1);
}

TEST(what_is_not_understood_is_no_round)
{
	static const struct { const char *text; unsigned senders, had; } rows[] = {
		{ "", 0, 0 },
		{ "3: 1 3\n", 0, 0 },
		{ "nothing", 0, 0 },
		{ "[1]", 0, 0 },
		{ "7", 0, 0 },
		{ "{\"senders\":2}", 2, 0 },
		{ "{\"senders\":-2,\"had\":[1]}", 0, 0 },
		{ "{\"senders\":2,\"had\":[1,1,0,3,-1,\"2\",1e99,null]}", 2, 1 },
		{ "{\"senders\":2,\"had\":1,\"id\":7,\"begun\":\"x\",\"pid\":-1,\"host\":[]}", 2,
		  0 },
		{ "{\"senders\":2,\"had\":[1", 0, 0 },
	};
	static struct ws_round r;
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		ws_round_read(rows[i].text, strlen(rows[i].text), &r, NULL);
		assert_int_equal(r.senders, rows[i].senders);
		assert_int_equal(ws_round_count(&r), rows[i].had);
		assert_false(ws_round_is(&r, "", r.senders));
		assert_false(ws_round_is(&r, "7", r.senders));
	}
}

TEST(a_foreign_id_is_printable_and_one_that_is_too_long_is_none)
{
	static struct ws_round r;
	char text[4096];
	int n = snprintf(text, sizeof text,
	                 "{\"senders\":2,\"had\":[1],\"id\":\"a\\u001b[31m\",\"host\":\"h\\nh\","
	                 "\"begun\":9007199254740991,\"pid\":4711}");
	ws_round_read(text, (size_t)n, &r, NULL);
	assert_string_equal(r.id, "a?[31m");
	ws_round_describe(&r, text, sizeof text);
	assert_string_equal(text,
	                    "round a?[31m of 2 senders (begun 0 s ago by process 4711 on h?h)");
	n = snprintf(text, sizeof text, "{\"senders\":2,\"had\":[1],\"id\":\"%0*d\"}", WS_ROUND_ID,
	             0);
	ws_round_read(text, (size_t)n, &r, NULL);
	assert_string_equal(r.id, "");
	assert_true(ws_round_is_half(&r));
	ws_round_describe(&r, text, sizeof text);
	assert_string_equal(text, "a round of 2 senders without an ID");
}

/* Sender 2 sends what sender 1 left to others, and one of what it left itself. */
TEST(parts_come_back_and_what_nobody_sent_is_left)
{
	static struct ws_round r, back;
	struct ws_parts p = { 0 }, got;
	struct ws_err err = WS_ERR_INIT;
	const char *first;
	static const struct { const char *name; bool sent; } rows[] = {
		{ "model.b\xc3\xa4", true },  { "model.b\xc3\xb6", false }, { "a", false },
		{ "model.b\xc3\xb6", true },  { "model.\"quoted\\", true }, { "model.c", false },
		{ "model.b\xc3\xa4", false }, { "model.b\xc3\xb6", true }
	};
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
		assert_int_equal(ws_parts_add(&p, rows[i].name, rows[i].sent, &err), 0);
	ws_parts_merge(&p);
	assert_int_equal(p.n_tensors, 5);
	assert_int_equal(ws_parts_set_server(&p, "http://a:1", 7, &err), 0);
	assert_int_equal(ws_parts_set_server(&p, "http://b:1", UINT64_MAX, &err), 0);
	assert_int_equal(ws_parts_set_server(&p, "http://a:1", 8, &err), 0);
	struct ws_buf text;
	struct ws_jw w;
	ws_buf_init(&text, WS_ROUND_TEXT);
	ws_jw_init(&w, &text);
	ws_round_begin(&r, "7", 2);
	ws_round_write(&w, &r, &p);
	assert_false(text.failed);
	ws_round_read(ws_buf_str(&text), text.len, &back, &got);
	assert_memory_equal(&r, &back, sizeof r);
	assert_int_equal(got.n_tensors, 5);
	for (size_t i = 0; i < p.n_tensors; i++) {
		assert_string_equal(got.tensors[i].name, p.tensors[i].name);
		assert_int_equal(got.tensors[i].sent, p.tensors[i].sent);
	}
	assert_int_equal(ws_parts_left(&got, &first), 2);
	assert_string_equal(first, "a");
	assert_int_equal(got.n_servers, 2);
	assert_int_equal(ws_parts_server(&got, "http://a:1")->instance, 8);
	assert_int_equal(ws_parts_server(&got, "http://b:1")->instance, UINT64_MAX);
	assert_null(ws_parts_server(&got, "http://c:1"));
	assert_int_equal(ws_parts_set_server(&got, "http://localhost:1", 9, &err), 0);
	assert_int_equal(ws_parts_server(&got, "http://127.0.0.1:1")->instance, 9);
	ws_parts_free(&p);
	ws_parts_free(&got);
	ws_buf_free(&text);
}

/* More servers than any push has would make the reading slow. */
TEST(parts_have_a_limit_of_servers)
{
	struct ws_parts p;
	struct ws_buf text;
	ws_buf_init(&text, WS_PARTS_TEXT);
	for (int i = 1; i <= 4096; i++)
		ws_buf_printf(&text, "@0000000000000001 http://a:%d\n", i);
	assert_int_equal(ws_parts_read(ws_buf_str(&text), text.len, &p, NULL), 0);
	assert_int_equal(p.n_servers, 4096);
	ws_parts_free(&p);
	ws_buf_puts(&text, "@0000000000000001 http://b:1\n");
	assert_int_equal(ws_parts_read(ws_buf_str(&text), text.len, &p, NULL), -1);
	ws_buf_free(&text);
}

TEST(parts_that_are_not_understood_are_none)
{
	static const struct { const char *text; int rc; size_t tensors, servers; } rows[] = {
		{ "", 0, 0, 0 },
		{ "@00000000000000ff http://a:1\n+0 ab\n-2 c\n", 0, 2, 1 },
		{ "+0:1 ab\n", -1, 0, 0 },
		{ "+0 ab", -1, 0, 0 },
		{ "+0 \n", -1, 0, 0 },
		{ "+1 ab\n", -1, 0, 0 },
		{ "+0 ab\n+0 ab\n", -1, 0, 0 },
		{ "+0 b\n+0 a\n", -1, 0, 0 },
		{ "+0 ab\n+99999999999999999999 c\n", -1, 0, 0 },
		{ "+-1 ab\n", -1, 0, 0 },
		{ "+ ab\n", -1, 0, 0 },
		{ "*0 ab\n", -1, 0, 0 },
		{ "\n", -1, 0, 0 },
		{ "+0 a\tb\n", -1, 0, 0 },
		{ "+0 a\n@00000000000000ff http://a:1\n", -1, 0, 0 },
		{ "@00000000000000ff http://a:1\n@00000000000000ff http://a:1\n", -1, 0, 0 },
		{ "@00000000000000fg http://a:1\n", -1, 0, 0 },
		{ "@00000000000000ff \n", -1, 0, 0 },
		{ "@ff http://a:1\n", -1, 0, 0 },
	};
	struct ws_parts p;
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		struct ws_err err = WS_ERR_INIT;
		if (ws_parts_read(rows[i].text, strlen(rows[i].text), &p, &err) != rows[i].rc)
			fail_msg("row %zu: %s", i, rows[i].text);
		assert_int_equal(err.code, rows[i].rc ? WS_EINPUT : WS_OK);
		assert_int_equal(p.n_tensors, rows[i].tensors);
		assert_int_equal(p.n_servers, rows[i].servers);
		ws_parts_free(&p);
	}
}

RUN_TESTS(NULL, NULL)
