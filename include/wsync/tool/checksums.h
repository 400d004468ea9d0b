/* SPDX-License-Identifier: Apache-2.0 */
/* checksums.h - the checksums that servers report for their weights: POST /weights_checker. */
#ifndef WSYNC_CHECKSUMS_H
#define WSYNC_CHECKSUMS_H

#include "wsync/dtype.h"
#include "wsync/endpoint.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ws_checksum {
	const char *name;         /* owned by the set, as text */
	const char *text;         /* hex digits, 16 or more, as the server sent them */
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

#ifdef __cplusplus
}
#endif
#endif
