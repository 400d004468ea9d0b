/* SPDX-License-Identifier: Apache-2.0 */
/* hashes.h - computes XXH3-64 of every tensor of a plan in background threads, and compares the
 * hashes with the checksums of a server. */
#ifndef WS_VERIFY_HASHES_H
#define WS_VERIFY_HASHES_H

#include "endpoint_weights.h"
#include "http.h"
#include "job.h"
#include "wsync/endpoint.h"
#include "wsync/event.h"
#include "wsync/tool/layout.h"
#include "wsync/tool/plan.h"
#include "wsync/trace.h"

/* All zero: not begun. */
struct ws_hashes {
	const struct ws_plan *plan;
	uint64_t *values;     /* one for each tensor of the plan; valid after ws_hashes_wait */
	size_t *sorted;       /* the plan's tensors by name */
	bool but_made;
	uint64_t bytes;       /* atomic: hashed so far */
	struct ws_trace *trace;
	struct ws_parallel work;
};

/* What to do while work that hashes is waited for: http is served, and progress (or the function in
 * it; may be NULL) is told how many of the total bytes are done. */
struct ws_hashing_wait {
	struct ws_http *http;
	ws_deadline until;
	const struct ws_cancel *cancel;
	const struct ws_sink *progress;
	const uint64_t *bytes; /* atomic */
	uint64_t total;
};
int ws_hashing_wait(struct ws_parallel *work, const struct ws_hashing_wait *w, struct ws_err *err);

/* The plan is borrowed until the end. threads as of ws_parallel_begin. but_made: skips
 * computed tensors, whose hashes the sender of the plan writes into values
 * (ws_plan_payloads_watch). trace (NULL: none) gets a span for each tensor. */
int ws_hashes_begin(struct ws_hashes *h, const struct ws_plan *plan, unsigned threads,
                    bool but_made, struct ws_trace *trace, struct ws_err *err);
/* Waits as ws_hashing_wait. A second call returns at once. */
int ws_hashes_wait(struct ws_hashes *h, struct ws_http *http, ws_deadline until,
                   const struct ws_cancel *cancel, const struct ws_sink *progress,
                   struct ws_err *err);
void ws_hashes_end(struct ws_hashes *h); /* cancels unfinished work */

struct ws_hash_count {
	/* several ranks count a tensor several times */
	size_t equal, different, missing, unexpected;
	size_t drafts;        /* not in the plan, and of a draft model: not compared */
	/* not in the plan, because the globs below leave them out, or not `whole` */
	size_t not_sent;
	/* of the model, for a server that loads one: it ignores some names; may be NULL */
	const struct ws_layout *layout;
	/* by tensor of the plan: different or missing at some rank; may be NULL */
	bool *wrong;
	const char *const *include, *const *exclude; /* as of ws_plan_opts */
	size_t n_include, n_exclude;
};

/* Counts the tensors of rank r of sums in *count. Emits WS_EV_MISMATCH for each that differs in its
 * bytes, or in the dtype or shape that the server reports. Tensors that are not in the plan are
 * unexpected if `whole` and the globs of *count choose them, else not sent; a draft model's tensors
 * and a tied head are neither. A name that the server ignores is not missing. Sorts the rank's
 * items. */
void ws_hashes_compare(const struct ws_hashes *h, const char *url, struct ws_checksums *sums,
                       size_t r, bool whole, const struct ws_sink *sink,
                       struct ws_hash_count *count);

/* True if the algorithm is xxh3-64, which wsync computes, too. */
bool ws_checksums_are_ours(const struct ws_checksums *c);

/* True for tensors of a draft model (speculative decoding), which are in the same reply. */
bool ws_checksum_is_draft(const struct ws_checksum *c);

/* By name, for qsort and bsearch over struct ws_checksum. */
int ws_checksum_by_name(const void *a, const void *b);

#endif
