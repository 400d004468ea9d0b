/* SPDX-License-Identifier: Apache-2.0 */
/* verify.h - checks that endpoints have the bytes of a checkpoint, and that a push writes all.
 *
 * Servers report different things about their weights. wsync-endpoint's checksums are XXH3-64 of
 * the raw bytes under the names of the checkpoint: every tensor is compared. SGLang's checksums are
 * of its runtime parameters: they are predicted (predict.h) and compared, as far as the layout is
 * known. Otherwise the first rows of some parameters are compared as numbers
 * (/get_weights_by_name). Without all of these, the answer is "not known", never yes.
 * ws_verify_twice and ws_verify_reset require less and prove less. */
#ifndef WSYNC_VERIFY_H
#define WSYNC_VERIFY_H

#include "wsync/cancel.h"
#include "wsync/endpoint.h"
#include "wsync/event.h"
#include "wsync/push.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ws_config;
struct ws_input;
struct ws_input_found;
struct ws_transform_opts;

enum ws_verify_means {
	WS_MEANS_NONE,      /* the endpoint offers nothing to compare with, or was not reached */
	WS_MEANS_CHECKSUMS, /* of everything */
	WS_MEANS_PROOF,     /* the server's own checksums of its parameters */
	WS_MEANS_SAMPLES,   /* some numbers of some parameters */
	WS_MEANS_TWICE,     /* checksums before and after a push, with each other */
	WS_MEANS_RESET      /* checksums before and after a push onto random weights */
};
const char *ws_verify_means_name(enum ws_verify_means means); /* "none", "checksums", ... */

/* One endpoint. Counts are of tensors, and with checksums of tensors of every rank. */
struct ws_verify_result {
	const char *url;          /* borrowed from the options */
	/* code WS_OK: yes; WS_EMISMATCH: no; another: not known, and why */
	struct ws_err err;
	enum ws_verify_means means;
	char algorithm[32];       /* of its checksums; "": not reported */
	unsigned ranks;           /* ranks that reported; 0: their number is unknown */
	size_t equal, different;
	size_t missing;           /* in the source, not on the server */
	size_t unexpected;        /* on the server, not in the source */
	size_t not_sent;          /* on the server, and left out by the globs: not compared */
	/* on the server, of a draft model that is not in the source: not compared */
	size_t drafts;
	size_t unanswered;        /* samples that the server did not return */
	/* samples that the server keeps in another type; parameters that a reset left out */
	size_t incomparable;
	struct ws_ev_proof proof; /* with WS_MEANS_PROOF */
};

struct ws_verify_opts {
	const char *const *endpoints; /* URLs as ws_endpoint_normalize leaves them */
	size_t n_endpoints;
	struct ws_input *input;
	/* globs, as ws_plan_opts; nothing that they leave out is unexpected */
	const char *const *include, *const *exclude;
	size_t n_include, n_exclude;
	/* with WS_MEANS_PROOF: percent of the bytes that must be proven; 0: 100 */
	unsigned min_coverage;
	/* remembers how a server arranges its parameters; NULL: nothing is remembered */
	const char *state_dir;
	size_t samples;           /* most parameters to sample; 0: none */
	uint64_t seed;            /* of the choice of samples */
	unsigned threads;         /* threads that hash; 0: one for each processor, at most 8 */
	const char *api_key;      /* NULL: none */
	const char *ca_file;      /* as ws_client_opts */
	int64_t connect_ns;       /* 0: 10 s */
	int64_t timeout_ns;       /* 0: none */
	struct ws_sink sink;      /* gets WS_EV_MISMATCH, WS_EV_PROOF and WS_EV_PROGRESS */
	const struct ws_log *log;
	const struct ws_cancel *cancel;
};

/* Before the input is opened: asks the endpoints what a push asks them for. Sets t->quant to that
 * of *config, which must outlive the input (*config NULL: no endpoint decides, or none answered),
 * and *found to their reference. opts->input is not used. */
int ws_verify_look(const struct ws_verify_opts *opts, struct ws_transform_opts *t,
                   struct ws_input_found *found, struct ws_config **config, struct ws_err *err);
/* results: room for n_endpoints. 0: every endpoint said yes. Otherwise *err is WS_EMISMATCH
 * where any said no, else the first failure. */
int ws_verify_weights(const struct ws_verify_opts *opts, struct ws_verify_result *results,
                      struct ws_err *err);

/* Takes the checksums of endpoints that hold the source, pushes it once more and takes them again:
 * nothing may change. Two answers of the same server are compared, so any algorithm works. The
 * push uses the options `push` and sends its events to push->sink. */
int ws_verify_twice(const struct ws_push_opts *push, const struct ws_push_source *source,
                    struct ws_verify_result *results, struct ws_err *err);

/* Makes the servers overwrite all weights with random numbers, and pushes the source: the checksums
 * of all ranks must then be as before. A server must report them, and its layout must be known:
 * buffers that are in no checkpoint, and a draft model, are left out of the reset.
 * Meanwhile the endpoints are paused and have random weights. They are locked and recorded as
 * in any push. An endpoint whose answer is not yes is partial, and push->on_partial decides
 * whether it stays paused. */
int ws_verify_reset(const struct ws_push_opts *push, const struct ws_push_source *source,
                    struct ws_verify_result *results, struct ws_err *err);

#ifdef __cplusplus
}
#endif
#endif
