/* SPDX-License-Identifier: Apache-2.0 */
/* serve_group.h - groups of this endpoint's ranks with a trainer, and operations on all ranks of a
 * group at once. */
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
	bool vllm;                /* of vLLM's workers */
	bool has_id;              /* the sender gave nccl_id: no store */
	char nccl_id[128];
	struct ws_cancel cancel;  /* set: the group is unusable */
	unsigned holders;         /* requests that use the group; under the lock */
	bool busy;                /* an operation runs; under the lock */
	char trouble[512];        /* why it is unusable; under the lock */
	struct ws_serve_rank *ranks;
	void *job;                /* argument of the current operation, serve_rank.h */
};

struct ws_serve_group *ws_serve_group_new(struct ws_serve *s, const struct ws_serve_init *in,
                                          struct ws_err *err);
void ws_serve_group_free(struct ws_serve_group *g); /* NULL is fine; must not be listed any more */
/* All ranks join. Returns when every rank of the world has published its address. */
int ws_serve_group_join(struct ws_serve_group *g, ws_deadline until, struct ws_err *err);
/* All ranks receive. keep false: the bytes are discarded. */
int ws_serve_group_receive(struct ws_serve_group *g, struct ws_serve_update *u, bool keep,
                           ws_deadline until, struct ws_err *err);
/* From any thread, with the lock held: makes current and later operations fail, closes sockets. */
void ws_serve_group_abort(struct ws_serve_group *g, const char *why);

/* A held group is not freed until it is released. */
void ws_serve_group_hold(struct ws_serve_group *g);
void ws_serve_group_release(struct ws_serve_group *g);
/* In the scheduler: lists a new group, whose ranks then join. Other groups of its name stay. */
int ws_serve_open_group(struct ws_serve *s, const struct ws_serve_init *in,
                        struct ws_serve_group **out, struct ws_err *err);
void ws_serve_drop_group(struct ws_serve *s, struct ws_serve_group *g); /* NULL is fine */
/* In the scheduler. ws_serve_find_group returns NULL if no group has that name. */
int ws_serve_form_group(struct ws_serve *s, const struct ws_serve_init *in, struct ws_err *err);
struct ws_serve_group *ws_serve_find_group(struct ws_serve *s, const char *name);

#endif
