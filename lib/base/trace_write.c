/* SPDX-License-Identifier: Apache-2.0 */
/* trace_write.c - prints a trace in the format of chrome://tracing; ts and dur are microseconds:
 *
 *   {"displayTimeUnit":"ms","otherData":{..},"traceEvents":[
 *     {"ph":"M","pid","tid","name":"thread_name","args":{"name"}}    a row, and its position:
 *     {"ph":"M","pid","tid","name":"thread_sort_index","args":{"sort_index"}}
 *     {"ph":"X","pid","tid","ts","dur","name","cat","args":{..}}     a span
 *   ]}
 *
 * Viewers sort by time themselves. */
#include "trace_core.h"

#include "wsync/clock.h"
#include "wsync/tool/json.h"
#include "wsync/tool/output.h"
#include "wsync/version.h"

#include <inttypes.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

enum { TEXT_MAX = 256 << 20 };

/* ---- rows ------------------------------------------------------------------------------------ */

static void write_meta(struct ws_jw *w, size_t tid, const char *name, const char *key,
                       const char *text, int64_t number)
{
	ws_jw_object(w, NULL);
	ws_jw_str(w, "ph", "M");
	ws_jw_int(w, "pid", getpid());
	ws_jw_uint(w, "tid", tid);
	ws_jw_str(w, "name", name);
	ws_jw_object(w, "args");
	if (text)
		ws_jw_str(w, key, text);
	else
		ws_jw_int(w, key, number);
	ws_jw_end_object(w);
	ws_jw_end_object(w);
}

/* Row i is thread i. Viewers show rows by kind, and rows of a kind in the order of creation. */
static void write_row(struct ws_jw *w, const struct ws_trace *t, size_t i)
{
	const struct trace_row *r = &t->rows[i];
	char name[TRACE_ABOUT + 32], lane[16] = "";
	if (r->lane > 1)
		snprintf(lane, sizeof lane, " %u", r->lane);
	snprintf(name, sizeof name, "%s%s%s%s", trace_row_name(r->kind), *r->of ? " " : "", r->of,
	         lane);
	write_meta(w, i, "thread_name", "name", name, 0);
	write_meta(w, i, "thread_sort_index", "sort_index", NULL,
	           (int64_t)r->kind * TRACE_ROWS + (int64_t)i);
}

/* ---- spans ----------------------------------------------------------------------------------- */

/* The JSON key of the span's subject. */
static const char *subject_of(enum ws_trace_row kind)
{
	switch (kind) {
	case WS_TRACE_PUSH: return "source";
	case WS_TRACE_READ: return "file";
	default:            return "tensor";
	}
}

static void write_span(struct ws_jw *w, const struct ws_trace *t, const struct trace_span *s,
                       int64_t now)
{
	const struct trace_row *r = &t->rows[s->row];
	const int64_t until = s->until ? s->until : now;
	ws_jw_object(w, NULL);
	ws_jw_str(w, "ph", "X");
	ws_jw_int(w, "pid", getpid());
	ws_jw_uint(w, "tid", s->row);
	ws_jw_thousandths(w, "ts", s->since - t->start);
	ws_jw_thousandths(w, "dur", until - s->since);
	ws_jw_str(w, "name", s->name);
	ws_jw_str(w, "cat", trace_row_name(r->kind));
	ws_jw_object(w, "args");
	if (s->about[0])
		ws_jw_str(w, subject_of(r->kind), s->about);
	if (r->kind == WS_TRACE_HTTP)
		ws_jw_str(w, "endpoint", r->of);
	if (s->bucket)
		ws_jw_uint(w, "bucket", s->bucket - 1); /* as in the lines of --json */
	if (s->bytes || (s->until && (r->kind == WS_TRACE_WIRE || r->kind == WS_TRACE_HTTP)))
		ws_jw_uint(w, "bytes", s->bytes);
	if (s->status)
		ws_jw_uint(w, "status", s->status);
	if (s->why[0])
		ws_jw_str(w, "error", s->why);
	if (s->unfinished || !s->until)
		ws_jw_bool(w, "unfinished", true);
	ws_jw_end_object(w);
	ws_jw_end_object(w);
}

static uint64_t dropped(const struct trace_ring *r)
{
	return r->ended > r->most ? r->ended - r->most : 0;
}

static void write_spans(struct ws_jw *w, const struct ws_trace *t, int64_t now)
{
	for (int c = 0; c < TRACE_CLASSES; c++) {
		const struct trace_ring *r = &t->rings[c];
		for (uint64_t i = dropped(r); i < r->ended; i++)
			write_span(w, t, &r->spans[i % r->most], now);
	}
	for (size_t i = 1; i < TRACE_OPEN; i++)
		if (t->open[i].row)
			write_span(w, t, &t->open[i], now);
}

/* ---- all of it ------------------------------------------------------------------------------- */

static void write_about(struct ws_jw *w, const struct ws_trace *t, const char *program)
{
	char text[64], date[32];
	const time_t second = (time_t)(t->start_unix / WS_NS_PER_S);
	struct tm utc;
	gmtime_r(&second, &utc);
	strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", &utc);
	snprintf(text, sizeof text, "%s.%06" PRId64 "Z", date, t->start_unix % WS_NS_PER_S / 1000);
	ws_jw_object(w, "otherData");
	ws_jw_str(w, "program", program);
	ws_jw_str(w, "version", WSYNC_VERSION);
	ws_jw_str(w, "start", text);
	ws_jw_uint(w, "spans_kept_at_most",
	           t->rings[TRACE_COARSE].most + t->rings[TRACE_FINE].most);
	ws_jw_uint(w, "spans_dropped",
	           t->lost + dropped(&t->rings[TRACE_COARSE]) + dropped(&t->rings[TRACE_FINE]));
	ws_jw_end_object(w);
}

int trace_write(struct ws_trace *t, const char *program, struct ws_buf *out, struct ws_err *err)
{
	struct ws_jw w;
	ws_buf_init(out, TEXT_MAX);
	ws_jw_init(&w, out);
	pthread_mutex_lock(&t->lock);
	ws_jw_object(&w, NULL);
	ws_jw_str(&w, "displayTimeUnit", "ms");
	write_about(&w, t, program);
	ws_jw_array(&w, "traceEvents");
	write_meta(&w, 0, "process_name", "name", program, 0);
	for (size_t i = 1; i <= t->n_rows; i++)
		write_row(&w, t, i);
	write_spans(&w, t, ws_now_ns());
	ws_jw_end_array(&w);
	ws_jw_end_object(&w);
	pthread_mutex_unlock(&t->lock);
	ws_buf_putc(out, '\n');
	return ws_buf_check(out, "the trace", err);
}

int ws_trace_save(struct ws_trace *t, const char *program, const char *path, struct ws_err *err)
{
	struct ws_buf text;
	if (!t)
		return 0;
	int rc = trace_write(t, program, &text, err);
	if (!rc)
		rc = ws_output_write(path, &text, err);
	ws_buf_free(&text);
	return rc;
}
