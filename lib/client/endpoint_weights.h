/* SPDX-License-Identifier: Apache-2.0 */
/* endpoint_weights.h - reads the weights of endpoints (names, checksums, values) and runs the
 * actions of /weights_checker. As in endpoint.h, a call sends its requests to all endpoints at
 * once. */
#ifndef WS_CLIENT_ENDPOINT_WEIGHTS_H
#define WS_CLIENT_ENDPOINT_WEIGHTS_H

#include "wsync/endpoint.h"
#include "wsync/tool/listing.h"

struct ws_checksum {
	const char *name;         /* owned by the set */
	uint64_t value;           /* of a longer digest than 16 hex digits: its hash */
};

/* The dtype and shape that a server reports for a tensor. */
struct ws_checksum_kind {
	const char *name;         /* owned by the set */
	const char *dtype;        /* torch's name; owned by the set */
	unsigned n_dims;
	int64_t dims[WS_MAX_DIMS];
};

struct ws_checksum_rank {
	/* 0 to n-1; the position in the reply if the server does not number its ranks */
	int rank;
	/* data-parallel replica (dp_rank), 0 if the server does not report it */
	int replica;
	struct ws_checksum *items;
	size_t n;
};

/* Most servers use a hash function of their own: their values can only be compared with those of
 * the same kind of server. algorithm names the function if wsync can compute it too. */
struct ws_checksums {
	char algorithm[32];       /* "xxh3-64": of the raw bytes, as ws_source_hash; "" unknown */
	struct ws_checksum_rank *ranks; /* sorted by number; each once per replica */
	size_t n_ranks;
	bool numbered;            /* the server numbers its ranks */
	/* the reply was refused because its ranks contradict each other; nothing else is filled */
	bool contradicts;
	struct ws_checksum_kind *kinds; /* sorted by name; NULL if the server sends none */
	size_t n_kinds;
	void *priv;
	unsigned *users;          /* the library's, as in struct ws_weight_list */
};

/* outs[i] is filled where errs[i].code is WS_OK; free every one of them in any case. */
int ws_endpoint_checksums(const struct ws_call *to, struct ws_checksums *outs, struct ws_err *errs,
                          struct ws_err *err);
void ws_checksums_free(struct ws_checksums *c); /* NULL is fine */
/* Checks that each rank of the server, 0 to n-1, is there once (once per data-parallel replica). If
 * not, fails with WS_EREFUSED and names the ranks that are missing or too many. */
int ws_checksums_whole(const struct ws_checksums *c, const struct ws_endpoint_info *info,
                       struct ws_err *err);

/* Lists the names in the checksums of all ranks, sorted, each once, without shapes. Names of a
 * draft model ("draft.") are left out. For servers without /list_weights. */
int ws_endpoint_checker_names(struct ws_http *http, const char *url, ws_deadline until,
                              const struct ws_cancel *cancel, struct ws_weight_list *out,
                              struct ws_err *err);

/* Numbers in nested arrays of equal lengths. With data-parallel ranks there is one dimension more
 * than the tensor has. Infinite numbers may be NaN here: JSON cannot express them. */
struct ws_values {
	unsigned n_dims;
	int64_t dims[WS_MAX_DIMS + 1];
	double *numbers;          /* owned; n numbers, the last index runs fastest */
	size_t n;
};

/* Reads the first `rows` rows of the parameter with this checkpoint name from each endpoint. More
 * than `most` numbers is WS_EREFUSED; many servers and models refuse the request, too. outs[i] is
 * filled where errs[i].code is WS_OK; free every one of them in any case. */
int ws_endpoint_get_weights(const struct ws_call *to, const char *name, uint64_t rows, size_t most,
                            struct ws_values *outs, struct ws_err *errs, struct ws_err *err);
/* True if a server of dp_size did not return the parameter. With one replica SGLang answers 400 in
 * this case; with more it answers 200 and one null per replica. An empty list also counts. */
bool ws_values_empty(const struct ws_values *v, unsigned dp_size);
void ws_values_free(struct ws_values *v); /* NULL is fine */

/* Actions of /weights_checker, to find out whether an update writes every weight. Reset overwrites
 * every parameter with random numbers. */
enum ws_weights_action { WS_WEIGHTS_SNAPSHOT, WS_WEIGHTS_RESET, WS_WEIGHTS_COMPARE };
/* "snapshot", "reset_tensors", "compare" */
const char *ws_weights_action_name(enum ws_weights_action action);
/* A compare that finds differences is WS_EREFUSED with the server's message. */
int ws_endpoint_weights_action(const struct ws_call *to, enum ws_weights_action action,
                               struct ws_endpoint_answer *answers, struct ws_err *err);

#endif
