/* SPDX-License-Identifier: Apache-2.0 */
/* serve_victims.h - the tensors of one request as runs of bytes: what was there before the load,
 * what came, and what is to be there now. */
#ifndef WS_ENDPOINT_SERVE_VICTIMS_H
#define WS_ENDPOINT_SERVE_VICTIMS_H

#include "serve_model.h"

struct ws_serve_victim {
	char *name;
	size_t part;            /* of the layout; without a model SIZE_MAX */
	enum ws_dtype dtype;
	uint64_t n;
	uint8_t *old, *came, *now; /* of n bytes each; NULL: not read yet */
	bool retyped;           /* to corrupt.as, not only in its numbers */
};

struct ws_serve_victims {
	const struct ws_serve_fault *due; /* NULL: they are only remembered */
	struct ws_serve_victim *items;
	size_t n;
};

/* All -1 for want of memory. rank: only that one's share; -1: of the whole tensor. */
int ws_serve_victims_add(struct ws_serve_victims *v, const struct ws_serve *s, const char *name);
int ws_serve_victims_read_old(struct ws_serve_victims *v, const struct ws_serve *s, int rank);
/* Makes now the same. */
int ws_serve_victims_read_came(struct ws_serve_victims *v, const struct ws_serve *s, int rank);
/* What is to be there now, into memory. */
void ws_serve_victim_write(const struct ws_serve_victim *v, struct ws_serve *s, int rank);
/* Their bytes; the names stay. */
void ws_serve_victims_forget(struct ws_serve_victims *v);

#endif
