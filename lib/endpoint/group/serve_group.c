/* SPDX-License-Identifier: Apache-2.0 */
/* serve_group.c - creates and frees groups, and runs operations on all ranks of a group at once.
 *
 * An operation runs one thread per rank and ends when all threads have ended. The first rank that
 * fails aborts the others, which would otherwise wait for bytes that never come. After a failure
 * the group is unusable until it is destroyed, like torch's groups. */
#include "serve_gpu.h"

#include "job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- all ranks at once ---- */

void ws_serve_group_abort(struct ws_serve_group *g, const char *why)
{
	if (!g->trouble[0])
		snprintf(g->trouble, sizeof g->trouble, "%s", why);
	ws_cancel_set(&g->cancel);
	pthread_cond_broadcast(&g->serve->changed);
	for (unsigned i = 0; i < g->tp; i++)
		if (g->ranks[i].gloo)
			ws_gloo_abort(g->ranks[i].gloo);
}

/* Only the first failure is the reason; later failures are aborts. */
static void fail_group(struct ws_serve_rank *r)
{
	struct ws_serve *s = r->group->serve;
	char why[512];
	snprintf(why, sizeof why, "rank %u: %.480s", r->group->rank_offset + r->tp_rank,
	         r->err.msg);
	r->failed = true;
	pthread_mutex_lock(&s->lock);
	ws_serve_group_abort(r->group, why);
	pthread_mutex_unlock(&s->lock);
}

static int say_trouble(struct ws_serve_group *g, const char *before, struct ws_err *err)
{
	pthread_mutex_lock(&g->serve->lock);
	ws_err_set(err, WS_EDATA, "%s%s", before, g->trouble);
	pthread_mutex_unlock(&g->serve->lock);
	return -1;
}

static void *run_rank(void *arg)
{
	struct ws_serve_rank *r = arg;
	if (r->work(r, &r->err))
		fail_group(r);
	return NULL;
}

int ws_serve_run_ranks(struct ws_serve_group *g,
                       int (*work)(struct ws_serve_rank *, struct ws_err *), ws_deadline until,
                       struct ws_err *err)
{
	bool failed = false;
	for (unsigned i = 0; i < g->tp; i++) {
		struct ws_serve_rank *r = &g->ranks[i];
		r->work = work;
		r->until = until;
		r->failed = false;
		/* Rank 0 runs in this thread, after the other threads are started. */
		r->threaded = i > 0 && ws_thread_start(&r->thread, run_rank, r, NULL) == 0;
		if (i > 0 && !r->threaded) {
			ws_err_set(&r->err, WS_ESYSTEM, "can't start new thread");
			fail_group(r);
		}
	}
	run_rank(&g->ranks[0]);
	for (unsigned i = 0; i < g->tp; i++) {
		if (g->ranks[i].threaded)
			pthread_join(g->ranks[i].thread, NULL);
		failed |= g->ranks[i].failed;
	}
	if (!failed)
		return 0;
	return say_trouble(g, "", err);
}

/* ---- one operation at a time ---- */

int ws_serve_group_begin(struct ws_serve_group *g, struct ws_err *err)
{
	struct ws_serve *s = g->serve;
	pthread_mutex_lock(&s->lock);
	while (g->busy && !ws_cancelled(&g->cancel))
		pthread_cond_wait(&s->changed, &s->lock);
	const bool ok = !ws_cancelled(&g->cancel);
	if (ok)
		g->busy = true;
	pthread_mutex_unlock(&s->lock);
	return ok ? 0 : say_trouble(g, "the group failed before: ", err);
}

void ws_serve_group_end(struct ws_serve_group *g)
{
	pthread_mutex_lock(&g->serve->lock);
	g->busy = false;
	pthread_cond_broadcast(&g->serve->changed);
	pthread_mutex_unlock(&g->serve->lock);
}

int ws_serve_group_work(struct ws_serve_group *g,
                        int (*work)(struct ws_serve_rank *, struct ws_err *), void *job,
                        ws_deadline until, struct ws_err *err)
{
	if (ws_serve_group_begin(g, err))
		return -1;
	g->job = job;
	const int rc = ws_serve_run_ranks(g, work, until, err);
	g->job = NULL;
	ws_serve_group_end(g);
	return rc;
}

/* ---- creating and freeing ---- */

struct ws_serve_group *ws_serve_group_new(struct ws_serve *s, const struct ws_serve_init *in,
                                          struct ws_err *err)
{
	struct ws_serve_group *g = calloc(1, sizeof *g);
	if (!g || !(g->ranks = calloc(s->opts.tp, sizeof *g->ranks)) ||
	    !(g->name = strdup(in->group)) || !(g->address = strdup(in->address))) {
		if (g) {
			free(g->name);
			free(g->ranks);
		}
		free(g);
		ws_oom(err);
		return NULL;
	}
	g->serve = s;
	g->port = in->port;
	g->rank_offset = in->rank_offset;
	g->world_size = in->world_size;
	g->tp = s->opts.tp;
	g->nccl = strcmp(in->backend, "nccl") == 0;
	g->vllm = in->vllm;
	g->has_id = in->nccl_id != NULL;
	if (g->has_id)
		memcpy(g->nccl_id, in->nccl_id, sizeof g->nccl_id);
	for (unsigned i = 0; i < g->tp; i++) {
		g->ranks[i].group = g;
		g->ranks[i].tp_rank = i;
	}
	if (ws_cancel_init(&g->cancel, err)) {
		ws_serve_group_free(g);
		return NULL;
	}
	return g;
}

void ws_serve_group_hold(struct ws_serve_group *g)
{
	pthread_mutex_lock(&g->serve->lock);
	g->holders++;
	pthread_mutex_unlock(&g->serve->lock);
}

void ws_serve_group_release(struct ws_serve_group *g)
{
	struct ws_serve *s = g->serve;
	pthread_mutex_lock(&s->lock);
	g->holders--;
	pthread_cond_broadcast(&s->changed);
	pthread_mutex_unlock(&s->lock);
}

void ws_serve_group_free(struct ws_serve_group *g)
{
	if (!g)
		return;
	if (g->nccl)
		ws_serve_nccl_leave(g);
	for (unsigned i = 0; i < g->tp; i++) {
		ws_gloo_close(g->ranks[i].gloo); /* may still use the client */
		ws_store_disconnect(g->ranks[i].client);
		ws_hash_free(g->ranks[i].hash);
	}
	ws_cancel_fini(&g->cancel);
	free(g->ranks);
	free(g->address);
	free(g->name);
	free(g);
}
