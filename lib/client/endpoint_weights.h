/* SPDX-License-Identifier: Apache-2.0 */
/* endpoint_weights.h - what weights endpoints hold: lists, checksums, values, and what servers do
 * with them on request. As in endpoint.h, several endpoints are asked at once. */
#ifndef WS_CLIENT_ENDPOINT_WEIGHTS_H
#define WS_CLIENT_ENDPOINT_WEIGHTS_H

#include "wsync/endpoint.h"
#include "wsync/tool/listing.h"

struct ws_checksum {
	const char *name;         /* owned by the set */
	uint64_t value;           /* of a digest longer than 16 hex digits: a hash of it */
};

/* What the bytes under a name were taken for. */
struct ws_checksum_kind {
	const char *name;         /* owned by the set */
	const char *dtype;        /* torch's; likewise */
	unsigned n_dims;
	int64_t dims[WS_MAX_DIMS];
};

struct ws_checksum_rank {
	/* 0 to n-1; the position in the reply where the server numbers none */
	int rank;
	/* data-parallel replica (dp_rank), 0 where the server does not say */
	int replica;
	struct ws_checksum *items;
	size_t n;
};

/* Servers hash with a function of their own, which only tells equal from different between equal
 * servers; algorithm says so when it is one we can compute. */
struct ws_checksums {
	char algorithm[32];       /* "xxh3-64": of the raw bytes, as ws_source_hash; "" unknown */
	struct ws_checksum_rank *ranks; /* by number; none of a replica twice */
	size_t n_ranks;
	bool numbered;            /* the server numbers its ranks */
	/* refused because its ranks contradict each other; nothing else is filled */
	bool contradicts;
	struct ws_checksum_kind *kinds; /* by name; none where the server does not say */
	size_t n_kinds;
	void *priv;
	unsigned *users;          /* the library's, as in struct ws_weight_list */
};

/* outs[i] is filled where errs[i].code is WS_OK; free every one of them in any case. */
int ws_endpoint_checksums(const struct ws_call *to, struct ws_checksums *outs, struct ws_err *errs,
                          struct ws_err *err);
void ws_checksums_free(struct ws_checksums *c); /* NULL is fine */
/* Checks that each rank of the server, 0 to n-1, is there once (of data-parallel replicas: once
 * for each). If not, fails with WS_EREFUSED and names the ranks that are missing or too many. */
int ws_checksums_whole(const struct ws_checksums *c, const struct ws_endpoint_info *info,
                       struct ws_err *err);

/* The names that the checksums of all ranks have, each once and sorted, without shapes; those of a
 * draft model ("draft.") are left out. For servers without /list_weights. */
int ws_endpoint_checker_names(struct ws_http *http, const char *url, ws_deadline until,
                              const struct ws_cancel *cancel, struct ws_weight_list *out,
                              struct ws_err *err);

/* Numbers in nested arrays of equal lengths; one dimension more than the tensor's
 * where data-parallel ranks answer one by one. What is not finite may be NaN
 * here: JSON has no word for it. */
struct ws_values {
	unsigned n_dims;
	int64_t dims[WS_MAX_DIMS + 1];
	double *numbers;          /* owned, n of them, the last dimension first */
	size_t n;
};

/* The first rows of the parameter with this checkpoint name, of each endpoint: `rows` are asked for
 * and no more than `most` numbers taken. outs[i] is filled where errs[i].code is WS_OK; free
 * every one of them in any case. Many servers and models do not answer this: WS_EREFUSED. */
int ws_endpoint_get_weights(const struct ws_call *to, const char *name, uint64_t rows, size_t most,
                            struct ws_values *outs, struct ws_err *errs, struct ws_err *err);
/* Is this the answer of a server of dp_size that does not show the parameter? SGLang with one
 * replica answers 400 then; with more it answers 200 and a list of one null per replica. An
 * empty list shows nothing either. */
bool ws_values_empty(const struct ws_values *v, unsigned dp_size);
void ws_values_free(struct ws_values *v); /* NULL is fine */

/* What servers do with their weights on request, to find out whether an update writes all of them.
 * Reset overwrites every parameter with random numbers. */
enum ws_weights_action { WS_WEIGHTS_SNAPSHOT, WS_WEIGHTS_RESET, WS_WEIGHTS_COMPARE };
/* "snapshot", "reset_tensors", "compare" */
const char *ws_weights_action_name(enum ws_weights_action action);
/* A compare that finds differences is WS_EREFUSED with the server's words. */
int ws_endpoint_weights_action(const struct ws_call *to, enum ws_weights_action action,
                               struct ws_endpoint_answer *answers, struct ws_err *err);

#endif
