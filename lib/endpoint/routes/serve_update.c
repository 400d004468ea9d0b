/* SPDX-License-Identifier: Apache-2.0 */
/* serve_update.c - the routes that form groups, and the route that receives weights in one call.
 *
 * As in the servers, flush_cache is on by default. An init answers after all ranks of the group
 * have joined, and the scheduler waits until then. */
#include "serve_call.h"
#include "serve_group.h"
#include "serve_fetch.h"
#include "serve_lineage.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct ws_serve_group *ws_serve_find_group(struct ws_serve *s, const char *name)
{
	struct ws_serve_group *g = s->groups;
	while (g && strcmp(g->name, name) != 0)
		g = g->next;
	return g;
}

static void list_group(struct ws_serve *s, struct ws_serve_group *g)
{
	pthread_mutex_lock(&s->lock);
	g->next = s->groups;
	s->groups = g;
	s->sync++;
	if (s->stopping)
		ws_serve_group_abort(g, ws_serve_stops);
	pthread_mutex_unlock(&s->lock);
}

void ws_serve_drop_group(struct ws_serve *s, struct ws_serve_group *g)
{
	if (!g)
		return;
	pthread_mutex_lock(&s->lock);
	struct ws_serve_group **at = &s->groups;
	while (*at && *at != g)
		at = &(*at)->next;
	if (*at)
		*at = g->next;
	if (g->holders)
		ws_serve_group_abort(g, "the group was destroyed");
	while (g->holders)
		pthread_cond_wait(&s->changed, &s->lock);
	pthread_mutex_unlock(&s->lock);
	ws_serve_group_free(g);
}

/* ---- groups ---- */

int ws_serve_open_group(struct ws_serve *s, const struct ws_serve_init *in,
                        struct ws_serve_group **out, struct ws_err *err)
{
	struct ws_serve_group *g = ws_serve_group_new(s, in, err);
	if (!g)
		return -1;
	/* List the group before it is complete, so that a stop aborts its ranks too. */
	list_group(s, g);
	if (ws_serve_group_join(g, ws_deadline_in(s->opts.init_ns), err)) {
		ws_serve_drop_group(s, g);
		return -1;
	}
	*out = g;
	return 0;
}

int ws_serve_form_group(struct ws_serve *s, const struct ws_serve_init *in, struct ws_err *err)
{
	struct ws_serve_group *g = NULL;
	if (ws_serve_check_init(s, in, err))
		return -1;
	if (ws_serve_find_group(s, in->group))
		return ws_err_set(err, WS_EINPUT,
		                  "The specified group name has already been created, "
		                  "please use a different group name");
	return ws_serve_open_group(s, in, &g, err);
}

void ws_serve_route_init(struct ws_serve_call *c)
{
	struct ws_serve_init in;
	struct ws_err err = WS_ERR_INIT;
	int rc = ws_serve_decode_init(c->body, &in, &err);
	if (rc && err.code == WS_EUSAGE) {
		c->invalid = err;
		return;
	}
	snprintf(c->note.group, sizeof c->note.group, "%s", in.group);
	if (rc == 0 && ws_serve_acquire(c->serve, true)) {
		rc = ws_serve_form_group(c->serve, &in, &err);
		ws_serve_release(c->serve);
	} else if (rc == 0) {
		rc = ws_err_set(&err, WS_ECANCELLED, "%s", ws_serve_stops);
	}
	if (rc)
		ws_serve_answer(c, false, "Failed to initialize custom process group: %s.",
		                err.msg);
	else
		ws_serve_answer(c, true, "Succeeded to initialize custom process group.");
}

void ws_serve_route_destroy(struct ws_serve_call *c)
{
	const char *name = "weight_update_group";
	if (ws_serve_field_str(c->body, "group_name", false, &name, &c->invalid))
		return;
	snprintf(c->note.group, sizeof c->note.group, "%s", name);
	if (!ws_serve_acquire(c->serve, false)) {
		ws_serve_answer(c, false, "Failed to destroy custom process group: %s.",
		                ws_serve_stops);
		return;
	}
	struct ws_serve_group *g = ws_serve_find_group(c->serve, name);
	ws_serve_drop_group(c->serve, g);
	ws_serve_release(c->serve);
	if (g)
		ws_serve_answer(c, true, "Succeeded to destroy custom process group.");
	else
		ws_serve_answer(c, false, "The group to be destroyed does not exist.");
}

/* ---- updates ---- */

/* A missing group is a failed assertion: some servers catch it, most crash. */
struct ws_serve_group *ws_serve_named_group(struct ws_serve_call *c, const char *name)
{
	static const char remedy[] = "Please call `init_weights_update_group` first.";
	struct ws_serve_group *found = ws_serve_find_group(c->serve, name);
	struct ws_buf known;
	if (found)
		return found;
	ws_buf_init(&known, 1 << 16);
	pthread_mutex_lock(&c->serve->lock);
	for (const struct ws_serve_group *g = c->serve->groups; g; g = g->next)
		ws_buf_printf(&known, known.len ? ", '%s'" : "'%s'", g->name);
	pthread_mutex_unlock(&c->serve->lock);
	if (ws_serve_in(c->serve->opts.lineage, WS_SURVIVES))
		ws_serve_answer(c, false, "%sGroup %s not in [%s]. %s",
		                c->serve->opts.lineage == WS_SERVE_SESSION ?
		                        "Failed to receive weights: " : "", name,
		                ws_buf_str(&known), remedy);
	else
		ws_serve_crash(c, "AssertionError: Group %.100s not in [%.200s]. %s", name,
		               ws_buf_str(&known), remedy);
	ws_buf_free(&known);
	return NULL;
}

bool ws_serve_may_free_kv(struct ws_serve_call *c, bool free_kv_cache)
{
	const bool may = !free_kv_cache || ws_serve_is_idle(c->serve);
	if (!may)
		ws_serve_answer(c, false, "Cannot free KV cache: there are pending requests. Call "
		                "pause_generation first.");
	return may;
}

static int receive(struct ws_serve *s, void *group, struct ws_serve_update *u, bool keep,
                   struct ws_err *err)
{
	return ws_serve_group_receive(group, u, keep, ws_deadline_in(s->opts.receive_ns), err);
}

/* In the scheduler. */
static void update(struct ws_serve_call *c, struct ws_serve_update *u)
{
	struct ws_serve *s = c->serve;
	struct ws_err err = WS_ERR_INIT;
	if (!ws_serve_may_update(c) || !ws_serve_has_weights(c))
		return;
	struct ws_serve_group *g = ws_serve_named_group(c, u->group);
	if (!g || !ws_serve_may_free_kv(c, u->free_kv_cache))
		return;
	u->nccl = g->nccl;
	int rc = ws_serve_check_update(s, u, &err);
	ws_serve_note_update(&c->note, u);
	if (rc == 0)
		rc = ws_serve_fetch_all(c, &(struct ws_serve_fetch){ receive, g }, u, &err);
	c->rp->drop = rc && ws_serve_fault_ends(u->fault);
	if (rc)
		ws_serve_answer(
			c, false,
			"Failed to update parameter online: %s. The full weights of the "
			"ModelRunner are partially updated. Please discard the whole weights.",
			err.msg);
	else
		ws_serve_finish_update(c, u, "Succeeded to update parameter online.");
}

void ws_serve_route_update(struct ws_serve_call *c)
{
	struct ws_serve_update u;
	struct ws_err err = WS_ERR_INIT;
	if (ws_serve_decode_update(c->body, c->serve->opts.lineage, &u, &err)) {
		if (err.code == WS_EUSAGE)
			c->invalid = err;
		else
			ws_serve_answer(c, false, "%s", err.msg);
		return;
	}
	ws_serve_note_update(&c->note, &u);
	u.fault = c->fault;
	if (ws_serve_begin_update(c, u.abort_all)) {
		update(c, &u);
		ws_serve_end_update(c);
	}
	ws_serve_update_fini(&u);
}
