/* SPDX-License-Identifier: Apache-2.0 */
/* serve_two_phase.c - prepare_weights_update and complete_weights_update of the xorl servers.
 *
 * prepare starts a thread that receives all buckets, and answers just before the thread receives
 * the first bucket. complete waits for the thread and loads everything at once. Between the two
 * the scheduler is free. No function here takes the model-update lock: the caller must pause.
 *
 * discard is a request of ours, which xorl's servers lack: it drops what complete would load.
 *
 * The thread owns its memory and the request's body. Only complete writes the endpoint's weights.
 * If a receive takes too long, xorl-legacy abandons it and its thread runs on; with xorl the update
 * stays prepared forever. */
#include "serve_call.h"
#include "serve_group.h"
#include "serve_fetch.h"
#include "serve_model.h"
#include "job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const int64_t DROP_NS = 5 * WS_NS_PER_S; /* a group that is gone ends the thread sooner */

struct ws_serve_prepared {
	struct ws_serve_prepared *next; /* in the list of abandoned updates */
	struct ws_serve *serve;
	struct ws_serve_group *group;   /* held until the thread is done; then it may be freed */
	struct ws_json *body;           /* owns the names of tensors and of the group */
	struct ws_serve_buckets buckets;
	pthread_t thread;
	bool ready, done;               /* under the lock */
	struct ws_err err;              /* valid when done; code 0: no error */
};

/* False: xorl-legacy. */
static bool is_xorl(const struct ws_serve *s)
{
	return s->opts.lineage == WS_SERVE_XORL;
}

/* ---- the thread ---- */

static void announce(struct ws_serve_prepared *p, bool done)
{
	pthread_mutex_lock(&p->serve->lock);
	p->ready = true; /* also if the thread failed before it was ready */
	p->done = done;
	pthread_cond_broadcast(&p->serve->changed);
	pthread_mutex_unlock(&p->serve->lock);
}

static int receive_all(struct ws_serve_prepared *p, struct ws_err *err)
{
	struct ws_serve *s = p->serve;
	p->buckets.all.nccl = p->group->nccl;
	if (ws_serve_stage_buckets(s, &p->buckets, err))
		return -1;
	announce(p, false);
	for (size_t i = 0; i < p->buckets.n; i++) {
		struct ws_serve_update *bucket = &p->buckets.buckets[i];
		if (ws_serve_group_receive(p->group, bucket, true,
		                           ws_deadline_in(s->opts.receive_ns), err) ||
		    (bucket->flattened && ws_serve_check_views(bucket, err)))
			return -1;
	}
	return 0;
}

static void *run(void *arg)
{
	struct ws_serve_prepared *p = arg;
	receive_all(p, &p->err);
	ws_serve_group_release(p->group);
	announce(p, true);
	return NULL;
}

/* Joins the thread, which ends when its group is aborted. */
static void discard(struct ws_serve_prepared *p)
{
	if (!p)
		return;
	pthread_join(p->thread, NULL);
	ws_serve_buckets_fini(&p->buckets);
	ws_json_free(p->body);
	free(p);
}

void ws_serve_two_phase_fini(struct ws_serve *s)
{
	discard(s->prepared);
	s->prepared = NULL;
	while (s->abandoned) {
		struct ws_serve_prepared *p = s->abandoned;
		s->abandoned = p->next;
		discard(p);
	}
}

/* Waits for *flag. False: ns have passed, or the endpoint stops. */
static bool await(struct ws_serve *s, const bool *flag, int64_t ns)
{
	const ws_deadline until = ws_deadline_in(ns);
	pthread_mutex_lock(&s->lock);
	while (!*flag && !s->stopping && !ws_deadline_passed(until))
		ws_serve_wait_changed(s, until);
	const bool in_time = *flag;
	pthread_mutex_unlock(&s->lock);
	return in_time;
}

/* Drops the prepared update, while its thread runs on. */
static void abandon(struct ws_serve *s, struct ws_serve_prepared *p)
{
	pthread_mutex_lock(&s->lock);
	s->prepared = NULL;
	p->next = s->abandoned;
	s->abandoned = p;
	pthread_mutex_unlock(&s->lock);
}

static struct ws_serve_prepared *start(struct ws_serve *s, struct ws_serve_group *g,
                                       struct ws_serve_buckets *b, struct ws_err *err)
{
	struct ws_serve_prepared *p = calloc(1, sizeof *p);
	if (!p) {
		ws_oom(err);
		return NULL;
	}
	p->serve = s;
	p->group = g;
	p->buckets = *b;
	ws_serve_group_hold(g);
	if (ws_thread_start(&p->thread, run, p, NULL)) {
		ws_serve_group_release(g);
		free(p);
		ws_err_set(err, WS_ESYSTEM, "can't start new thread");
		return NULL;
	}
	*b = (struct ws_serve_buckets){ 0 };
	pthread_mutex_lock(&s->lock);
	s->prepared = p;
	pthread_mutex_unlock(&s->lock);
	return p;
}

/* ---- prepare ---- */

/* Checks the request before a thread is started. False: refused and answered. */
static bool may_prepare(struct ws_serve_call *c, const struct ws_serve_buckets *b,
                        const char *transport)
{
	const struct ws_serve *s = c->serve;
	if (is_xorl(s) && strcmp(transport, "nccl") != 0 &&
	    strcmp(transport, "nccl_broadcast") != 0)
		ws_serve_answer(c, false,
		                "prepare_weights_update on this migrated foundation supports "
		                "only NCCL broadcast transport, got '%.100s'",
		                transport);
	else if (is_xorl(s) && b->announced != (int64_t)b->n)
		ws_serve_answer(c, false, "num_buckets is %lld, but there are %zu buckets",
		                (long long)b->announced, b->n);
	else if (!ws_serve_find_group(c->serve, b->all.group))
		ws_serve_answer(c, false,
		                is_xorl(s) ? "Group '%.200s' is not initialized. Call "
		                             "init_weights_update_group first." :
		                             "Group %.200s is unknown. Please call "
		                             "`init_weights_update_group` first.",
		                b->all.group);
	else if (!b->n)
		ws_serve_answer(c, false,
		                "prepare_weights_update requires at least one weight bucket");
	else if (s->prepared)
		ws_serve_answer(c, false, "A weight update is already in progress. "
		                "Call complete_weights_update first.");
	else
		return true;
	return false;
}

/* In the scheduler. */
static void prepare(struct ws_serve_call *c, struct ws_serve_buckets *b)
{
	b->all.fault = c->fault;
	struct ws_serve *s = c->serve;
	struct ws_err err = WS_ERR_INIT;
	const size_t n = b->n;
	struct ws_serve_prepared *p = start(s, ws_serve_find_group(s, b->all.group), b, &err);
	if (!p) {
		ws_serve_answer(c, false, "%s", err.msg);
		return;
	}
	p->body = ws_serve_take_body(c);
	const bool begun = await(s, &p->ready, s->opts.ready_ns);
	pthread_mutex_lock(&s->lock);
	const bool failed = p->done && p->err.code;
	pthread_mutex_unlock(&s->lock);
	if (failed) {
		ws_serve_answer(c, false, "%s", p->err.msg);
	} else if (begun) {
		ws_serve_answer(c, true, "Ready to receive %zu weight bucket(s).", n);
	} else {
		if (!is_xorl(s))
			abandon(s, p);
		ws_serve_answer(c, false,
		                is_xorl(s) ? "Timed out waiting for the distributed-weight "
		                             "receiver to become ready after %gs" :
		                             "Timeout waiting for recv thread to become ready "
		                             "after %gs",
		                (double)s->opts.ready_ns / (double)WS_NS_PER_S);
	}
}

void ws_serve_route_prepare(struct ws_serve_call *c)
{
	struct ws_serve_buckets b;
	const char *transport = "nccl_broadcast";
	c->tells_status = !is_xorl(c->serve);
	if (ws_serve_field_str(c->body, "transport", false, &transport, &c->invalid) ||
	    ws_serve_decode_buckets(c->body, &b, &c->invalid))
		return;
	snprintf(c->note.group, sizeof c->note.group, "%s", b.all.group);
	if (ws_serve_enter(c, false)) {
		if (may_prepare(c, &b, transport))
			prepare(c, &b);
		ws_serve_release(c->serve);
	}
	ws_serve_buckets_fini(&b);
}

/* ---- complete ---- */

/* In the scheduler, after the thread is done: loads the tensors and answers. */
static void apply(struct ws_serve_call *c, struct ws_serve_prepared *p, struct ws_serve_update *u)
{
	struct ws_serve *s = c->serve;
	struct ws_err err = p->err;
	const char *format = p->buckets.all.load_format;
	const bool direct = format && strcmp(format, "direct") == 0 && is_xorl(s);
	const bool known = !format || strcmp(format, "flattened_bucket") == 0 || direct;
	u->load_format = format;
	u->slots = p->buckets.all.slots;
	u->n = p->buckets.all.n;
	u->bytes = p->buckets.all.bytes;
	ws_serve_note_update(&c->note, u);
	int rc = err.code ? -1 : 0;
	if (rc == 0 && is_xorl(s) && !known)
		rc = ws_err_set(&err, WS_EINPUT, "Unknown load_format=%.100s", format);
	if (rc == 0 && direct && s->model && s->opts.keep == WS_KEEP_MEMORY)
		rc = ws_serve_copy_direct(s, u, &c->note, &err);
	else if (rc == 0)
		rc = ws_serve_fetch_all(
			c, &(struct ws_serve_fetch){ ws_serve_fetch_bytes, p->buckets.block }, u,
			&err);
	if (rc)
		ws_serve_answer(c, false, "%s", err.msg);
	else
		ws_serve_finish_update(c, u, is_xorl(s) ? "Success" :
		                       "Succeeded to update weights via two-phase protocol.");
}

/* In the scheduler. */
static void complete(struct ws_serve_call *c, struct ws_serve_update *u)
{
	struct ws_serve *s = c->serve;
	struct ws_serve_prepared *p = s->prepared;
	if (p && !ws_serve_has_weights(c))
		return;
	if (!p) {
		ws_serve_answer(c, false, is_xorl(s) ?
		                "No weight update is in progress." :
		                "No weight update in progress. Call prepare_weights_update first.");
	} else if (is_xorl(s) && strcmp(p->buckets.all.group, u->group) != 0) {
		ws_serve_answer(c, false,
		                "Prepared group '%.200s' does not match completion group '%.200s'.",
		                p->buckets.all.group, u->group);
	} else if (!await(s, &p->done, s->opts.complete_ns)) {
		if (!is_xorl(s))
			abandon(s, p);
		ws_serve_answer(c, false, "Weight receive timed out after %gs.",
		                (double)s->opts.complete_ns / (double)WS_NS_PER_S);
	} else {
		apply(c, p, u);
		pthread_mutex_lock(&s->lock);
		s->prepared = NULL;
		pthread_mutex_unlock(&s->lock);
		discard(p);
	}
}

void ws_serve_route_complete(struct ws_serve_call *c)
{
	struct ws_serve_update u = { .group = "weight_update_group", .flush = true };
	if (ws_serve_field_str(c->body, "group_name", false, &u.group, &c->invalid) ||
	    ws_serve_field_bool(c->body, "flush_cache", &u.flush, &c->invalid) ||
	    ws_serve_field_str(c->body, "weight_version", false, &u.version, &c->invalid))
		return;
	snprintf(c->note.group, sizeof c->note.group, "%s", u.group);
	if (ws_serve_enter(c, true)) {
		complete(c, &u);
		ws_serve_release(c->serve);
	}
}

/* ---- discard ---- */

/* In the scheduler. */
static void drop_prepared(struct ws_serve_call *c)
{
	struct ws_serve *s = c->serve;
	struct ws_serve_prepared *p = s->prepared;
	if (!p) {
		ws_serve_answer(c, false, "No weight update is in progress.");
	} else if (!await(s, &p->done, DROP_NS)) {
		ws_serve_answer(c, false, "The weight update is still being received.");
	} else {
		pthread_mutex_lock(&s->lock);
		s->prepared = NULL;
		pthread_mutex_unlock(&s->lock);
		discard(p);
		ws_serve_answer(c, true, "The weight update was dropped.");
	}
}

void ws_serve_route_discard(struct ws_serve_call *c)
{
	if (!ws_serve_enter(c, false))
		return;
	drop_prepared(c);
	ws_serve_release(c->serve);
}
