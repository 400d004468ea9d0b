/* SPDX-License-Identifier: Apache-2.0 */
/* trace_core.h - shared by the recorder (trace.c) and the writer (trace_write.c). */
#ifndef WS_BASE_TRACE_CORE_H
#define WS_BASE_TRACE_CORE_H

#include "wsync/tool/buf.h"
#include "wsync/trace.h"

#include <pthread.h>

enum { TRACE_OPEN = 4096, TRACE_ROWS = 2048, TRACE_NAME = 64, TRACE_ABOUT = 128, TRACE_WHY = 96 };

struct trace_span {
	int64_t since, until;
	uint64_t bytes, bucket;
	uint16_t row, status;
	bool unfinished;
	char name[TRACE_NAME], about[TRACE_ABOUT], why[TRACE_WHY];
};

/* One lane. The lanes of a kind form a list, in the order of their first use. */
struct trace_row {
	enum ws_trace_row kind;
	char of[TRACE_ABOUT];
	unsigned lane;      /* from 1 */
	bool busy;          /* a span of it has not ended */
	int64_t free_since;
	uint16_t next;      /* of its kind; 0: none */
};

/* The newest ended spans: number i is at i % most. */
struct trace_ring {
	struct trace_span *spans;
	size_t most;
	uint64_t ended;
};

/* Frequent spans (each tile and read) have a ring of their own, so that they do not displace the
 * rest. */
enum trace_class { TRACE_COARSE, TRACE_FINE, TRACE_CLASSES };

struct ws_trace {
	pthread_mutex_t lock;
	int64_t start, start_unix;
	uint64_t bucket;            /* the current bucket of the push */
	uint64_t lost;              /* spans that had no room while they were open */
	struct trace_ring rings[TRACE_CLASSES];
	struct trace_span *open;    /* TRACE_OPEN of them, [0] unused */
	uint16_t *idle, n_idle;     /* places in open */
	struct trace_row *rows;     /* TRACE_ROWS of them, [0] unused */
	uint16_t n_rows, first[WS_TRACE_ROWS];
};

const char *trace_row_name(enum ws_trace_row kind);
/* The trace so far as text; *out is the caller's to free, also after a failure. */
int trace_write(struct ws_trace *t, const char *program, struct ws_buf *out, struct ws_err *err);

#endif
