/* SPDX-License-Identifier: Apache-2.0 */
/* trace.h - records spans of time on rows, and writes them as Chrome trace events.
 *
 * Code that takes time begins a span and ends it. Spans of one row never overlap: concurrent
 * spans get lanes of their own ("read", "read 2"), so that a viewer shows the overlap. Memory is
 * bounded: the newest spans are kept, and the number of dropped spans is written with them. Any
 * thread may call any function; with a NULL trace, functions do nothing. */
#ifndef WSYNC_TRACE_H
#define WSYNC_TRACE_H

#include "wsync/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ws_trace; /* opaque */

/* spans: how many to keep; 0: 65536 (22 MB). */
int ws_trace_open(size_t spans, struct ws_trace **out, struct ws_err *err);
void ws_trace_close(struct ws_trace *t); /* NULL is fine */

/* In the order in which a viewer shows them. */
enum ws_trace_row {
	WS_TRACE_PUSH,      /* one source after the other, and the end of their group */
	WS_TRACE_PHASES,    /* of a push, without gaps */
	WS_TRACE_BUCKETS,   /* each from its announcement to the last answer */
	WS_TRACE_READ,      /* files read into memory; not those sent with sendfile */
	WS_TRACE_TRANSFORM, /* tiles of tensors, one row for each thread */
	WS_TRACE_COPY,      /* from memory to a GPU */
	WS_TRACE_WIRE,      /* bytes sent, one row for each rank if ranks are distinguished */
	WS_TRACE_STARVED,   /* receivers were ready and no bytes were there */
	WS_TRACE_APPLY,     /* all bytes have been taken, and the servers load them */
	WS_TRACE_HTTP,      /* requests, one row for each server */
	WS_TRACE_VERIFY,    /* hashes of the sent tensors */
	WS_TRACE_ROWS
};

/* A span that begins. Texts are copied, long ones are cut; NULL and 0: not given. */
struct ws_trace_what {
	enum ws_trace_row row;
	const char *of;     /* which of these rows: "rank 3", "http://gpu7:30000" */
	const char *name;   /* "POST /flush_cache"; NULL: as the row */
	const char *about;  /* the current tensor, source or file */
	uint64_t bucket;    /* counted from 1. On WIRE and HTTP 0 is the push's current bucket */
	int64_t since;      /* ws_now_ns; 0: now */
};

/* How a span ended. */
struct ws_trace_end {
	uint64_t bytes;     /* that were moved */
	long status;        /* of HTTP */
	bool unfinished;    /* the work was given up */
	const char *why;    /* the reason of a failure; copied; NULL: none */
	int64_t at;         /* ws_now_ns; 0: now */
};

/* Returns the span, or 0 if it is not recorded; ws_trace_end accepts 0. A span that never ends is
 * written as unfinished. */
uint64_t ws_trace_begin(struct ws_trace *t, const struct ws_trace_what *what);
/* end NULL: no details */
void ws_trace_end(struct ws_trace *t, uint64_t span, const struct ws_trace_end *end);
/* Sets the push's current bucket, counted from 1; 0: none. */
void ws_trace_bucket(struct ws_trace *t, uint64_t bucket);

/* Replaces a file by the trace so far: one JSON object, as chrome://tracing and Perfetto load it;
 * program: "wsync-push". Times are microseconds since ws_trace_open. Open spans end here, and
 * are marked. */
int ws_trace_save(struct ws_trace *t, const char *program, const char *path, struct ws_err *err);
/* The beginning of every such file. */
#define WS_TRACE_BEGINS "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"program\":\""

#ifdef __cplusplus
}
#endif
#endif
