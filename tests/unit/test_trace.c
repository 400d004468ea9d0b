/* SPDX-License-Identifier: Apache-2.0 */
/* The recorder, and the file that it becomes. */
#include "trace_core.h"

#include "wsync/clock.h"
#include "test.h"
#include "wsync/tool/json_read.h"

#include <pthread.h>

struct event {
	int64_t tid, ts, until; /* ns */
	const struct ws_json *json, *args;
};

/* What was written, read again. */
struct read {
	struct ws_json *root;
	struct event *events;
	size_t n;
	int64_t dropped;
};

static struct ws_trace *open_trace(size_t spans)
{
	struct ws_trace *t = NULL;
	assert_int_equal(ws_trace_open(spans, &t, NULL), 0);
	return t;
}

static int64_t ns(const struct ws_json *event, const char *key)
{
	double us = -1;
	assert_true(ws_json_double(ws_json_get(event, key), &us));
	assert_true(us >= 0);
	return (int64_t)(us * 1000 + 0.5);
}

static int by_row_and_time(const void *a, const void *b)
{
	const struct event *x = a, *y = b;
	if (x->tid != y->tid)
		return x->tid < y->tid ? -1 : 1;
	return x->ts != y->ts      ? (x->ts < y->ts ? -1 : 1) :
	       x->until < y->until ? -1 :
	                             x->until > y->until;
}

static void no_row_overlaps(const struct read *r)
{
	for (size_t i = 1; i < r->n; i++)
		if (r->events[i].tid == r->events[i - 1].tid)
			assert_true(r->events[i - 1].until <= r->events[i].ts);
}

static struct read read_trace(struct ws_trace *t)
{
	struct ws_buf text;
	struct ws_err err = WS_ERR_INIT;
	assert_int_equal(trace_write(t, "test", &text, &err), 0);
	struct read r = { .root = ws_json_parse(text.data, text.len, "trace", &err) };
	if (!r.root)
		fail_msg("%s", err.msg);
	const struct ws_json *events = ws_json_get(r.root, "traceEvents");
	r.dropped = ws_json_get_int(ws_json_get(r.root, "otherData"), "spans_dropped", -1);
	r.events = calloc(ws_json_count(events) + 1, sizeof *r.events);
	for (const struct ws_json *e = ws_json_first(events); e; e = ws_json_next(e)) {
		if (strcmp(ws_json_get_string(e, "ph", ""), "X") != 0)
			continue;
		const int64_t ts = ns(e, "ts");
		r.events[r.n++] = (struct event){ ws_json_get_int(e, "tid", -1), ts,
			                          ts + ns(e, "dur"), e, ws_json_get(e, "args") };
	}
	qsort(r.events, r.n, sizeof *r.events, by_row_and_time);
	no_row_overlaps(&r);
	ws_buf_free(&text);
	return r;
}

static void free_read(struct read *r)
{
	ws_json_free(r->root);
	free(r->events);
}

/* "" when there is no such row. */
static const char *row_of(const struct read *r, int64_t tid)
{
	const struct ws_json *events = ws_json_get(r->root, "traceEvents");
	for (const struct ws_json *e = ws_json_first(events); e; e = ws_json_next(e))
		if (!strcmp(ws_json_get_string(e, "name", ""), "thread_name") &&
		    ws_json_get_int(e, "tid", -1) == tid)
			return ws_json_get_string(ws_json_get(e, "args"), "name", "");
	return "";
}

TEST(a_span_has_its_row_and_what_was_said)
{
	struct ws_trace *t = open_trace(0);
	ws_trace_bucket(t, 3);
	const uint64_t s = ws_trace_begin(t, &(struct ws_trace_what){ .row = WS_TRACE_HTTP,
	                                                              .of = "http://a:1",
	                                                              .name = "POST /x" });
	ws_trace_end(t, s, &(struct ws_trace_end){ .bytes = 17, .status = 400, .why = "no" });
	struct read r = read_trace(t);
	assert_int_equal(r.n, 1);
	const struct event *e = &r.events[0];
	assert_string_equal(row_of(&r, e->tid), "HTTP http://a:1");
	assert_string_equal(ws_json_get_string(e->json, "name", ""), "POST /x");
	assert_string_equal(ws_json_get_string(e->json, "cat", ""), "HTTP");
	assert_string_equal(ws_json_get_string(e->args, "endpoint", ""), "http://a:1");
	assert_string_equal(ws_json_get_string(e->args, "error", ""), "no");
	assert_int_equal(ws_json_get_int(e->args, "bytes", 0), 17);
	assert_int_equal(ws_json_get_int(e->args, "bucket", 0), 2);
	assert_int_equal(ws_json_get_int(e->args, "status", 0), 400);
	assert_false(ws_json_get_bool(e->args, "unfinished", false));
	free_read(&r);
	ws_trace_close(t);
}

TEST(what_runs_at_once_gets_lanes)
{
	struct ws_trace *t = open_trace(0);
	const struct ws_trace_what a = { .row = WS_TRACE_HTTP, .of = "a" },
				   b = { .row = WS_TRACE_HTTP, .of = "b" };
	const uint64_t first = ws_trace_begin(t, &a), second = ws_trace_begin(t, &a),
		       other = ws_trace_begin(t, &b);
	ws_trace_end(t, second, NULL);
	const uint64_t third = ws_trace_begin(t, &a); /* where the second was */
	ws_trace_end(t, first, NULL);
	ws_trace_end(t, third, NULL);
	ws_trace_end(t, other, NULL);
	struct read r = read_trace(t);
	assert_int_equal(r.n, 4);
	assert_string_equal(row_of(&r, r.events[0].tid), "HTTP a");
	assert_string_equal(row_of(&r, r.events[1].tid), "HTTP a 2");
	assert_int_equal(r.events[2].tid, r.events[1].tid);
	assert_string_equal(row_of(&r, r.events[3].tid), "HTTP b");
	free_read(&r);
	ws_trace_close(t);
}

/* One that is told of when it is over may begin before the one before it had ended. */
TEST(what_is_told_late_is_put_where_there_is_room)
{
	struct ws_trace *t = open_trace(0);
	const int64_t before = ws_now_ns();
	const struct ws_trace_what now = { .row = WS_TRACE_READ },
				   then = { .row = WS_TRACE_READ, .since = before };
	ws_trace_end(t, ws_trace_begin(t, &now), NULL);
	ws_trace_end(t, ws_trace_begin(t, &then), NULL);
	ws_trace_end(t,
	             ws_trace_begin(t, &(struct ws_trace_what){ .row = WS_TRACE_READ, .since = 1 }),
	             NULL);
	struct read r = read_trace(t);
	assert_int_equal(r.n, 3);
	free_read(&r);
	ws_trace_close(t);
}

TEST(the_newest_are_kept_and_phases_longest)
{
	enum { KEPT = 64, TILES = 1000 };
	struct ws_trace *t = open_trace(KEPT);
	char name[16];
	size_t tiles = 0, phases = 0;
	ws_trace_end(t, ws_trace_begin(t, &(struct ws_trace_what){ .row = WS_TRACE_PHASES }), NULL);
	for (int i = 0; i < TILES; i++) {
		snprintf(name, sizeof name, "%d", i);
		ws_trace_end(t,
		             ws_trace_begin(t, &(struct ws_trace_what){ .row = WS_TRACE_READ,
		                                                        .name = name }),
		             NULL);
	}
	struct read r = read_trace(t);
	for (size_t i = 0; i < r.n; i++) {
		const char *is = ws_json_get_string(r.events[i].json, "name", "");
		phases += strcmp(is, "phases") == 0;
		tiles += strcmp(is, "phases") != 0;
		if (strcmp(is, "phases") != 0)
			assert_true(atoi(is) >= TILES - KEPT);
	}
	assert_int_equal(phases, 1);
	assert_int_equal(tiles, KEPT * 3 / 4);
	assert_int_equal(r.dropped, TILES - KEPT * 3 / 4);
	free_read(&r);
	ws_trace_close(t);
}

TEST(rows_and_open_spans_are_bounded_too)
{
	struct ws_trace *t = open_trace(16384);
	char of[32];
	size_t recorded = 0;
	for (int i = 0; i < 10000; i++) {
		snprintf(of, sizeof of, "http://%d", i);
		recorded += ws_trace_begin(t, &(struct ws_trace_what){ .row = WS_TRACE_HTTP,
		                                                       .of = of }) != 0;
	}
	struct read r = read_trace(t);
	assert_true(recorded > 1000 && recorded < 10000);
	assert_int_equal(r.n, recorded);
	assert_int_equal(r.dropped, 10000 - recorded);
	free_read(&r);
	ws_trace_close(t);
}

TEST(names_of_others_are_escaped_and_cut)
{
	static const char evil[] = "a\"b\\c\n\x01\x80 \xf0\x9f\x92\xa5";
	char longest[5000];
	memset(longest, 'x', sizeof longest - 1);
	longest[sizeof longest - 1] = 0;
	memcpy(longest + 125, "\xf0\x9f\x92\xa5", 4); /* cut in the middle of a character */
	struct ws_trace *t = open_trace(0);
	ws_trace_end(t,
	             ws_trace_begin(t, &(struct ws_trace_what){ .row = WS_TRACE_TRANSFORM,
	                                                        .of = evil, .name = evil,
	                                                        .about = evil }),
	             &(struct ws_trace_end){ .why = evil });
	for (int i = 0; i < 2; i++)
		ws_trace_end(t,
		             ws_trace_begin(t, &(struct ws_trace_what){ .row = WS_TRACE_TRANSFORM,
		                                                        .of = longest,
		                                                        .name = longest,
		                                                        .about = longest }),
		             &(struct ws_trace_end){ .why = longest, .status = 1000000 });
	struct read r = read_trace(t);
	assert_int_equal(r.n, 3);
	assert_int_equal(r.events[1].tid, r.events[2].tid); /* one row, however long its name */
	assert_memory_equal(ws_json_get_string(r.events[0].args, "tensor", ""),
	                    "a\"b\\c\n\x01\xef\xbf\xbd ", 11);
	assert_true(strlen(ws_json_get_string(r.events[1].json, "name", "")) < 100);
	free_read(&r);
	ws_trace_close(t);
}

enum { THREADS = 4, EACH = 5000 };

static void *record(void *arg)
{
	struct ws_trace *t = arg;
	for (int i = 0; i < EACH; i++) {
		const struct ws_trace_what what = { .row = i % 3 ? WS_TRACE_READ : WS_TRACE_HTTP,
			                            .of = i % 2 ? "a" : "b" };
		const uint64_t outer = ws_trace_begin(t, &what), inner = ws_trace_begin(t, &what);
		ws_trace_end(t, i % 5 ? inner : outer, &(struct ws_trace_end){ .bytes = 1 });
		ws_trace_end(t, i % 5 ? outer : inner, &(struct ws_trace_end){ .bytes = 1 });
	}
	return NULL;
}

TEST(threads_record_and_one_writes_meanwhile)
{
	struct ws_trace *t = open_trace(THREADS * EACH * 2 * 4);
	pthread_t threads[THREADS];
	int64_t sum = 0;
	for (int i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, record, t), 0);
	struct read r = read_trace(t);
	free_read(&r);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	r = read_trace(t);
	assert_int_equal(r.n, THREADS * EACH * 2);
	assert_int_equal(r.dropped, 0);
	for (size_t i = 0; i < r.n; i++)
		sum += ws_json_get_int(r.events[i].args, "bytes", 0);
	assert_int_equal(sum, THREADS * EACH * 2);
	free_read(&r);
	ws_trace_close(t);
}

RUN_TESTS(NULL, NULL)
