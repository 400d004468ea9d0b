/* SPDX-License-Identifier: Apache-2.0 */
/* serve_update.c - the routes that form groups, receive weights.
 *
 * What surprises, all of it as in the servers: flush_cache is on when absent; a request whose shapes
 * do not fit is refused only after its bytes were received; weights are live before the flush that
 * may fail; and an init answers when its whole group is there, the scheduler waiting meanwhile. */
#include "serve_lineage.h"
#include "serve_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char stops[] = "the endpoint stops";

static struct ws_serve_group *find_group(struct ws_serve *s, const char *name)
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
		ws_serve_group_abort(g, stops);
	pthread_mutex_unlock(&s->lock);
}

static void unlist_group(struct ws_serve *s, struct ws_serve_group *g)
{
	pthread_mutex_lock(&s->lock);
	struct ws_serve_group **at = &s->groups;
	while (*at && *at != g)
		at = &(*at)->next;
	if (*at)
		*at = g->next;
	pthread_mutex_unlock(&s->lock);
	ws_serve_group_free(g);
}

/* ---- groups ---- */

static int form_group(struct ws_serve *s, const struct ws_serve_init *in, struct ws_err *err)
{
	if (ws_serve_check_init(s, in, err))
		return -1;
	if (find_group(s, in->group))
		return ws_err_set(err, WS_EINPUT, "The specified group name has already been created, "
		                  "please use a different group name");
	struct ws_serve_group *g = ws_serve_group_new(s, in, err);
	if (!g)
		return -1;
	/* Listed before it is complete, so that a stop reaches its ranks. */
	list_group(s, g);
	if (ws_serve_group_join(g, ws_deadline_in(s->opts.init_ns), err) == 0)
		return 0;
	unlist_group(s, g);
	return -1;
}

void ws_serve_route_init(struct ws_serve_call *c)
{
	struct ws_serve_init in;
	struct ws_err err = WS_ERR_INIT;
	int rc = ws_serve_decode_init(c->body, &in, &err);
	if (rc && err.code == WS_EUSAGE) {
		ws_serve_answer_invalid(c, err.msg);
		return;
	}
	snprintf(c->note.group, sizeof c->note.group, "%s", in.group);
	if (rc == 0 && ws_serve_occupy(c->serve, true)) {
		rc = form_group(c->serve, &in, &err);
		ws_serve_vacate(c->serve);
	} else if (rc == 0) {
		rc = ws_err_set(&err, WS_ECANCELLED, stops);
	}
	if (rc)
		ws_serve_answer(c, false, "Failed to initialize custom process group: %s.", err.msg);
	else
		ws_serve_answer(c, true, "Succeeded to initialize custom process group.");
}

void ws_serve_route_destroy(struct ws_serve_call *c)
{
	const char *name = "weight_update_group";
	struct ws_err err = WS_ERR_INIT;
	if (ws_serve_field_str(c->body, "group_name", false, &name, &err)) {
		ws_serve_answer_invalid(c, err.msg);
		return;
	}
	snprintf(c->note.group, sizeof c->note.group, "%s", name);
	if (!ws_serve_occupy(c->serve, false)) {
		ws_serve_answer(c, false, "Failed to destroy custom process group: %s.", stops);
		return;
	}
	struct ws_serve_group *g = find_group(c->serve, name);
	if (g)
		unlist_group(c->serve, g);
	ws_serve_vacate(c->serve);
	if (g)
		ws_serve_answer(c, true, "Succeeded to destroy custom process group.");
	else
		ws_serve_answer(c, false, "The group to be destroyed does not exist.");
}

/* ---- updates ---- */

/* An assertion: some servers catch it, most do not. */
static void fail_without_group(struct ws_serve_call *c, const char *name)
{
	static const char remedy[] = "Please call `init_weights_update_group` first.";
	struct ws_buf known;
	ws_buf_init(&known, 1 << 16);
	pthread_mutex_lock(&c->serve->lock);
	for (const struct ws_serve_group *g = c->serve->groups; g; g = g->next)
		ws_buf_printf(&known, known.len ? ", '%s'" : "'%s'", g->name);
	pthread_mutex_unlock(&c->serve->lock);
	if (c->serve->traits->survives)
		ws_serve_answer(c, false, "Group %s not in [%s]. %s", name, ws_buf_str(&known), remedy);
	else
		ws_serve_crash(c, "AssertionError: Group %.100s not in [%.200s]. %s", name,
		               ws_buf_str(&known), remedy);
	ws_buf_free(&known);
}

static void count_update(struct ws_serve *s, const struct ws_serve_update *u,
                         const struct ws_serve_note *note)
{
	pthread_mutex_lock(&s->lock);
	s->journal.updates++;
	s->journal.tensors += u->n;
	s->journal.bytes += u->bytes;
	s->journal.duplicates += note->duplicates;
	s->journal.loaded += note->loaded;
	s->journal.ignored += note->ignored;
	s->journal.distinct = s->model ? s->model->n_loaded : s->weights.n;
	pthread_mutex_unlock(&s->lock);
}

static uint64_t current_sync(struct ws_serve *s)
{
	pthread_mutex_lock(&s->lock);
	const uint64_t sync = s->sync;
	pthread_mutex_unlock(&s->lock);
	return sync;
}

static int receive_bytes(struct ws_serve *s, struct ws_serve_group *g, struct ws_serve_update *u,
                         bool keep, struct ws_err *err)
{
	return ws_serve_group_receive(g, u, keep, ws_deadline_in(s->opts.receive_ns), err);
}

/* Receives, and keeps every tensor under its name. */
static int receive(struct ws_serve *s, struct ws_serve_group *g, struct ws_serve_update *u,
                   struct ws_serve_note *note, struct ws_err *err)
{
	uint8_t *block = NULL;
	if (s->opts.keep == WS_KEEP_MEMORY &&
	    ws_serve_weights_reserve(&s->weights, u->slots, u->n, &block, err))
		return -1;
	if (receive_bytes(s, g, u, true, err)) {
		free(block);
		return -1;
	}
	return ws_serve_weights_commit(&s->weights, u->slots, u->n, block, current_sync(s),
	                               &note->duplicates, err);
}

/* What the endpoint keeps hashes of is only what a loader would have taken. */
static int commit_hashes(struct ws_serve *s, const struct ws_serve_update *u,
                         const struct ws_serve_load *load, struct ws_err *err)
{
	uint64_t duplicates = 0;
	size_t n = 0;
	struct ws_serve_slot *slots = malloc((u->n + 1) * sizeof *slots);
	if (!slots)
		return ws_err_set(err, WS_ESYSTEM, "not enough memory");
	for (size_t i = 0; i < u->n; i++)
		if (load->cargo[i].loads)
			slots[n++] = u->slots[i];
	const int rc = ws_serve_weights_commit(&s->weights, slots, n, NULL, current_sync(s), &duplicates,
	                                       err);
	free(slots);
	return rc;
}

/* Receives, and loads into the parameters of the model. */
static int receive_and_load(struct ws_serve *s, struct ws_serve_group *g, struct ws_serve_update *u,
                            struct ws_serve_note *note, struct ws_err *err)
{
	struct ws_serve_load load;
	if (ws_serve_load_begin(&load, s->model, u, s->opts.log, err))
		return -1;
	note->model = true;
	note->ignored = load.ignored;
	note->ignored_names = load.ignored_names;
	note->ignored_len = load.ignored_len;
	load.ignored_names = NULL;
	u->load = s->opts.keep == WS_KEEP_MEMORY ? &load : NULL;
	int rc = receive_bytes(s, g, u, true, err);
	u->load = NULL;
	if (rc == 0) {
		note->loaded = load.loaded;
		ws_serve_load_commit(&load, current_sync(s), &note->duplicates);
		rc = s->opts.keep == WS_KEEP_MEMORY ? 0 : commit_hashes(s, u, &load, err);
	}
	if (rc == 0 && load.refused) {
		*err = load.why;
		rc = -1;
	}
	ws_serve_load_fini(&load);
	return rc;
}

static int receive_any(struct ws_serve *s, struct ws_serve_group *g, struct ws_serve_update *u,
                       struct ws_serve_note *note, struct ws_err *err)
{
	struct ws_err verdict = WS_ERR_INIT;
	int rc = 0;
	if (ws_serve_check_load(s, u, &verdict)) {
		/* The loader would find this when the bytes have come. */
		rc = receive_bytes(s, g, u, false, err);
		if (rc == 0)
			*err = verdict;
		return -1;
	}
	rc = s->model ? receive_and_load(s, g, u, note, err) : receive(s, g, u, note, err);
	if (rc == 0)
		count_update(s, u, note);
	return rc;
}

static void note_update(struct ws_serve_note *note, const struct ws_serve_update *u)
{
	snprintf(note->group, sizeof note->group, "%s", u->group);
	if (u->load_format)
		snprintf(note->load_format, sizeof note->load_format, "%s", u->load_format);
	if (u->version)
		snprintf(note->weight_version, sizeof note->weight_version, "%s", u->version);
	note->flush = u->flush ? WS_TRI_TRUE : WS_TRI_FALSE;
	note->tensors = u->n;
	note->bytes = u->bytes;
}

static bool is_idle(struct ws_serve *s)
{
	pthread_mutex_lock(&s->lock);
	const bool idle = !s->running && !s->waiting;
	pthread_mutex_unlock(&s->lock);
	return idle;
}

/* The weights are live before the flush that may fail. */
static void finish_update(struct ws_serve_call *c, const struct ws_serve_update *u)
{
	struct ws_serve *s = c->serve;
	struct ws_err err = WS_ERR_INIT;
	if (u->flush && !ws_serve_flush(s, 0)) {
		if (s->traits->survives)
			ws_serve_answer(c, false, "Cache flush failed after updating weights");
		else
			ws_serve_crash(c, "AssertionError: Cache flush failed after updating weights");
	} else if (u->version && ws_serve_set_version(s, u->version, &err)) {
		ws_serve_answer(c, false, "%s", err.msg);
	} else if (u->version) {
		ws_serve_answer(c, true, "Succeeded to update parameter online. Weight version updated "
		                "to %s.", u->version);
	} else {
		ws_serve_answer(c, true, "Succeeded to update parameter online.");
	}
}

/* In the scheduler. */
static void update(struct ws_serve_call *c, struct ws_serve_update *u)
{
	struct ws_serve *s = c->serve;
	struct ws_err err = WS_ERR_INIT;
	struct ws_serve_group *g = find_group(s, u->group);
	if (!g) {
		fail_without_group(c, u->group);
		return;
	}
	if (u->free_kv_cache && !is_idle(s)) {
		ws_serve_answer(c, false, "Cannot free KV cache: there are pending requests. Call "
		                "pause_generation first.");
		return;
	}
	int rc = ws_serve_check_update(s, u, &err);
	note_update(&c->note, u);
	if (rc == 0)
		rc = receive_any(s, g, u, &c->note, &err);
	c->rp->drop = rc && (u->fault == WS_FAULT_DROP || u->fault == WS_FAULT_DIE);
	if (rc)
		ws_serve_answer(c, false, "Failed to update parameter online: %s. The full weights of the "
		                "ModelRunner are partially updated. Please discard the whole weights.",
		                err.msg);
	else
		finish_update(c, u);
}

void ws_serve_route_update(struct ws_serve_call *c)
{
	struct ws_serve_update u;
	struct ws_err err = WS_ERR_INIT;
	if (ws_serve_decode_update(c->body, c->serve->traits, &u, &err)) {
		if (err.code == WS_EUSAGE)
			ws_serve_answer_invalid(c, err.msg);
		else
			ws_serve_answer(c, false, "%s", err.msg);
		return;
	}
	note_update(&c->note, &u);
	u.fault = c->fault;
	bool writer = false;
	if (!ws_serve_enter_update(c->serve, u.abort_all, &writer)) {
		ws_serve_answer(c, false, stops);
	} else {
		if (ws_serve_occupy(c->serve, true)) {
			update(c, &u);
			ws_serve_vacate(c->serve);
		} else {
			ws_serve_answer(c, false, stops);
		}
		ws_serve_leave_update(c->serve, writer);
	}
	ws_serve_update_fini(&u);
}
