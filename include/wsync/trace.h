/* SPDX-License-Identifier: Apache-2.0 */
/* trace.h - what ran when, on rows: a recorder of spans, and what it
 * recorded as Chrome trace events.
 *
 * Whoever does something that takes time begins a span and ends it. Spans of one row never
 * overlap: what runs at the same time gets a lane of its own ("read", "read 2"), so a picture of
 * it shows what overlaps. The memory is bounded: the newest spans are kept, and how many older
 * ones were dropped is written with them. Any thread may call any of this, and every function
 * does nothing where the trace is NULL. */
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

/* spans: as many are kept; 0: 65536, of 22 MB. */
int ws_trace_open(size_t spans, struct ws_trace **out, struct ws_err *err);
void ws_trace_close(struct ws_trace *t); /* NULL is fine */

/* In the order in which a viewer shows them. */
enum ws_trace_row {
	WS_TRACE_PUSH,      /* one source after the other, and the end of their group */
	WS_TRACE_PHASES,    /* of a push, without gaps */
	WS_TRACE_BUCKETS,   /* each from its announcement to the last answer */
	WS_TRACE_READ,      /* of files into memory; not what the kernel sends without that */
	WS_TRACE_TRANSFORM, /* tiles of tensors, one row for each thread */
	WS_TRACE_COPY,      /* from memory to a GPU */
	WS_TRACE_WIRE,      /* what leaves, one row for each rank where they are told apart */
	WS_TRACE_STARVED,   /* receivers were ready and no bytes were there */
	WS_TRACE_APPLY,     /* all bytes have been taken, and the servers load them */
	WS_TRACE_HTTP,      /* requests, one row for each server */
	WS_TRACE_VERIFY,    /* hashes of what is sent */
	WS_TRACE_ROWS
};

/* What begins. Texts are copied, and cut where they are long; NULL and 0 say nothing. */
struct ws_trace_what {
	enum ws_trace_row row;
	const char *of;     /* which of these rows: "rank 3", "http://gpu7:30000" */
	const char *name;   /* "POST /flush_cache"; NULL: as the row */
	const char *about;  /* the tensor, source or file at hand */
	uint64_t bucket;    /* counted from 1. On WIRE and HTTP 0 is the one that the push is at */
	int64_t since;      /* ws_now_ns; 0: now */
};

/* How it ended. */
struct ws_trace_end {
	uint64_t bytes;     /* that were moved */
	long status;        /* of HTTP */
	bool unfinished;    /* it was given up */
	const char *why;    /* it failed; copied; NULL */
	int64_t at;         /* ws_now_ns; 0: now */
};

/* 0: it is not recorded, which ws_trace_end knows. A span that never ends is written as
 * unfinished. */
uint64_t ws_trace_begin(struct ws_trace *t, const struct ws_trace_what *what);
/* NULL: nothing to say */
void ws_trace_end(struct ws_trace *t, uint64_t span, const struct ws_trace_end *end);
/* From now on the push is at this bucket, counted from 1; 0: at none. */
void ws_trace_bucket(struct ws_trace *t, uint64_t bucket);

/* Replaces a file by the trace so far: one JSON object, as chrome://tracing and Perfetto load it;
 * program: "wsync-push". Times are microseconds since ws_trace_open. Spans that have not
 * ended end here, and are marked. */
int ws_trace_save(struct ws_trace *t, const char *program, const char *path, struct ws_err *err);
/* By which such a text is known. */
#define WS_TRACE_BEGINS "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"program\":\""

#ifdef __cplusplus
}
#endif
#endif
