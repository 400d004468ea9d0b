/* SPDX-License-Identifier: Apache-2.0 */
/* serve_group.h - groups of this endpoint's ranks with a trainer, and all of their ranks at
 * once. */
#ifndef WS_ENDPOINT_SERVE_GROUP_H
#define WS_ENDPOINT_SERVE_GROUP_H

#include "serve_decode.h"

#include "wsync/cancel.h"
#include "wsync/clock.h"

struct ws_serve_rank; /* serve_rank.h */

struct ws_serve_group {
	struct ws_serve_group *next;
	struct ws_serve *serve;
	char *name, *address;
	uint16_t port;
	unsigned rank_offset, world_size, tp;
	bool nccl;                /* else gloo */
	struct ws_cancel cancel;  /* set: the group is of no more use */
	unsigned holders;         /* like busy under the lock */
	bool busy;
	char trouble[512];        /* why; under the lock */
	struct ws_serve_rank *ranks;
	void *job;                /* of the work in work, serve_rank.h */
};

struct ws_serve_group *ws_serve_group_new(struct ws_serve *s, const struct ws_serve_init *in,
                                          struct ws_err *err);
void ws_serve_group_free(struct ws_serve_group *g); /* NULL is fine; must not be listed any more */
/* All ranks join: returns when every rank of the world has published its address. */
int ws_serve_group_join(struct ws_serve_group *g, ws_deadline until, struct ws_err *err);
/* All ranks receive. keep false: the bytes are received and forgotten. */
int ws_serve_group_receive(struct ws_serve_group *g, struct ws_serve_update *u, bool keep,
                           ws_deadline until, struct ws_err *err);
/* Any thread: running and later operations fail, sockets close. The caller holds the lock. */
void ws_serve_group_abort(struct ws_serve_group *g, const char *why);

/* One request at a time uses a group, which is not freed until it ends; the others wait. */
void ws_serve_group_hold(struct ws_serve_group *g);
void ws_serve_group_release(struct ws_serve_group *g);
/* In the scheduler. NULL: there is none of that name. */
int ws_serve_form_group(struct ws_serve *s, const struct ws_serve_init *in, struct ws_err *err);
struct ws_serve_group *ws_serve_find_group(struct ws_serve *s, const char *name);

#endif
