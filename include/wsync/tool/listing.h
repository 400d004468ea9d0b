/* SPDX-License-Identifier: Apache-2.0 */
/* listing.h - the parameters that a running server shows: names and local shapes of one rank. */
#ifndef WSYNC_LISTING_H
#define WSYNC_LISTING_H

#include "wsync/cancel.h"
#include "wsync/clock.h"
#include "wsync/dtype.h"
#include "wsync/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ws_call;

struct ws_weight {
	const char *name;         /* owned by the list */
	unsigned n_dims;
	int64_t dims[WS_MAX_DIMS];
	const char *dtype;        /* torch's name; "" where the server does not say */
	bool shapeless;           /* only the name is known (from checksums) */
};

struct ws_weight_list {
	struct ws_weight *items;
	size_t n;
	bool received; /* tensors as they were received, not a model's parameters: from
	                * wsync-endpoint without --model */
	void *priv;
	/* private: the number of lists that share the items; NULL: only this one */
	unsigned *users;
};

/* A saved listing: the server's own JSON ({"weights":[{"name","shape"}...]}), wsync-list-weights'
 * --json lines, or lines of NAME [DTYPE] SHAPE as its tables print them ("-": standard input).
 * Anything else is WS_EINPUT with the line. */
int ws_weight_list_read(const char *path, struct ws_weight_list *out, struct ws_err *err);
void ws_weight_list_free(struct ws_weight_list *list); /* NULL is fine */

/* The runtime parameters of one rank: fused names and local shapes. prefix NULL: all. outs[i] is
 * filled if errs[i].code is WS_OK; free all of outs. */
int ws_endpoint_list_all(const struct ws_call *to, const char *prefix, unsigned rank,
                         struct ws_weight_list *outs, struct ws_err *errs, struct ws_err *err);

#ifdef __cplusplus
}
#endif
#endif
