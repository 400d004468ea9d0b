/* SPDX-License-Identifier: Apache-2.0 */
/* verify.h - do endpoints hold the bytes of this checkpoint, and does a push write all of them?
 *
 * Servers differ in what they tell of their weights. Where an endpoint's checksums are
 * XXH3-64 of the raw bytes under the names of the checkpoint, every tensor is compared.
 * Elsewhere the first rows of some parameters are compared as numbers (/get_weights_by_name).
 * Where neither can be had, the answer is "not known", never yes; ws_verify_twice and
 * ws_verify_reset need less and tell less. */
#ifndef WSYNC_VERIFY_H
#define WSYNC_VERIFY_H

#include "wsync/cancel.h"
#include "wsync/endpoint.h"
#include "wsync/event.h"
#include "wsync/push.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ws_catalog; /* opaque */

enum ws_verify_means {
	WS_MEANS_NONE,      /* the endpoint offers nothing to compare with, or was not reached */
	WS_MEANS_CHECKSUMS, /* of everything */
	WS_MEANS_SAMPLES,   /* some numbers of some parameters */
	WS_MEANS_TWICE,     /* checksums before and after a push, with each other */
	/* checksums, or the server's own comparison, around a push onto random weights */
	WS_MEANS_RESET
};
const char *ws_verify_means_name(enum ws_verify_means means); /* "none", "checksums", ... */

/* One endpoint. Counts are of tensors, and with checksums of tensors of every rank. */
struct ws_verify_result {
	const char *url;          /* borrowed from the options */
	/* code WS_OK: yes; WS_EMISMATCH: no; another: not known, and why */
	struct ws_err err;
	enum ws_verify_means means;
	char algorithm[32];       /* of its checksums; "" not told */
	unsigned ranks;           /* that told something; 0: it is not known how many */
	/* of which the answer says nothing, because the server does not tell of them */
	unsigned unknown_ranks;
	size_t equal, different;
	size_t missing;           /* ours, not there */
	size_t unexpected;        /* there, not ours */
	/* there, of a draft model that is not in the source: not compared */
	size_t drafts;
	size_t unanswered;        /* samples that it did not show */
	size_t incomparable;      /* samples that it keeps in a type of its own */
};

struct ws_verify_opts {
	const char *const *endpoints; /* URLs as ws_endpoint_normalize leaves them */
	size_t n_endpoints;
	const struct ws_catalog *items;
	/* globs, as ws_plan_opts; then nothing is unexpected */
	const char *const *include, *const *exclude;
	size_t n_include, n_exclude;
	size_t samples;           /* parameters to look at, at most; 0: none */
	uint64_t seed;            /* chooses them */
	unsigned threads;         /* that hash; 0: one for each processor, at most 8 */
	const char *api_key;      /* NULL: none */
	const char *ca_file;      /* as ws_client_opts */
	int64_t connect_ns;       /* 0: 10 s */
	int64_t timeout_ns;       /* 0: none */
	struct ws_sink sink;      /* gets WS_EV_MISMATCH and WS_EV_PROGRESS */
	const struct ws_log *log;
	const struct ws_cancel *cancel;
};

/* results: room for n_endpoints. 0: every endpoint said yes. Otherwise *err is WS_EMISMATCH
 * where any said no, else the first failure. */
int ws_verify_weights(const struct ws_verify_opts *opts, struct ws_verify_result *results,
                      struct ws_err *err);

/* Takes the checksums of endpoints that hold the source, pushes it once more and takes them again:
 * nothing may change. Two answers of the same server are compared, so any algorithm will do. The
 * push does what `push` says, its events go to push->sink. */
int ws_verify_twice(const struct ws_push_opts *push, const struct ws_push_source *source,
                    struct ws_verify_result *results, struct ws_err *err);

/* Has the servers overwrite all weights with random numbers and receive the source: every
 * parameter must be what it was before. Checksums decide that for all ranks; a server that
 * does not report them compares by itself, and tells of its first rank alone
 * (unknown_ranks). While it runs the endpoints are paused and hold random weights. They are
 * locked and recorded as in any push; one whose answer is not yes is partial, and
 * push->on_partial says whether it stays paused. */
int ws_verify_reset(const struct ws_push_opts *push, const struct ws_push_source *source,
                    struct ws_verify_result *results, struct ws_err *err);

#ifdef __cplusplus
}
#endif
#endif
