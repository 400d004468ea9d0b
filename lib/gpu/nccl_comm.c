/* SPDX-License-Identifier: Apache-2.0 */
/* nccl_comm.c - non-blocking communicators: polled, and aborted when they fail.
 *
 * A non-blocking communicator returns NCCL_IN_PROGRESS while it works. Until its state changes we
 * may only query the state or abort, and must not queue anything in its stream, because a thread
 * of NCCL does that. A query of the state joins that thread: two threads that query at once
 * corrupt it (torch issues 153960 and 169484).
 *
 * NCCL 2.18, 2.26 and 2.27 lose errors of their network. With them a dead peer does not show
 * here: the wait ends at its deadline, or when the peer's server reports the failure. */
#include "nccl_core.h"

#include <assert.h>
#include <sched.h>
#include <stdlib.h>
#include <time.h>

struct ws_comm {
	const struct ws_nccl *nccl;
	void *handle; /* NULL: aborted or left */
};

/* NCCL's thread needs some microseconds for a broadcast, and seconds to join. */
enum { PAUSE_NS = 200000, SHORT_PAUSE_NS = 20000 };

static void pause_a_little(unsigned asked, long ns)
{
	const struct timespec pause = { .tv_nsec = ns };
	if (asked < 200)
		sched_yield();
	else
		nanosleep(&pause, NULL);
}

void ws_comm_abort(struct ws_comm *c)
{
	if (c->handle)
		c->nccl->call.abort(c->handle); /* nothing better can be done if this fails */
	c->handle = NULL;
}

static int fail(struct ws_comm *c, int rc, const char *what, struct ws_err *err)
{
	ws_nccl_check(c->nccl, rc, c->handle, what, err);
	ws_comm_abort(c);
	return -1;
}

static bool is_good(int rc)
{
	return rc == NCCL_SUCCESS || rc == NCCL_IN_PROGRESS;
}

int ws_comm_open(const struct ws_comm_opts *opts, struct ws_comm **out, struct ws_err *err)
{
	struct ws_nccl_config config = NCCL_CONFIG;
	assert(opts->size > 0 && opts->size <= INT32_MAX && opts->rank < opts->size);
	struct ws_comm *c = calloc(1, sizeof *c);
	if (!c)
		return ws_oom(err);
	c->nccl = opts->nccl;
	const int rc =
		c->nccl->call.init(&c->handle, (int)opts->size, opts->id, (int)opts->rank, &config);
	if (!is_good(rc)) {
		fail(c, rc, "joining the communicator", err);
		free(c);
		return -1;
	}
	*out = c;
	return 0;
}

static int query(struct ws_comm *c, const char *what, bool *ready, struct ws_err *err)
{
	int state = NCCL_SUCCESS;
	if (!c->handle)
		return ws_err_set(err, WS_EDATA, "%s: the communicator was aborted", what);
	const int rc = c->nccl->call.state(c->handle, &state);
	if (!is_good(rc))
		return fail(c, rc, what, err);
	if (!is_good(state))
		return fail(c, state, what, err);
	*ready = state == NCCL_SUCCESS;
	return 0;
}

/* -1: the wait was cancelled or timed out. */
static int check_wait(struct ws_comm *c, const char *what, ws_deadline until,
                      const struct ws_cancel *cancel, struct ws_err *err)
{
	const bool cancelled = ws_cancelled(cancel);
	if (!cancelled && !ws_deadline_passed(until))
		return 0;
	ws_comm_abort(c);
	return cancelled ? ws_err_set(err, WS_ECANCELLED, "%s was cancelled", what) :
	                   ws_err_set(err, WS_ETIMEOUT, "%s took too long", what);
}

static int wait_for(struct ws_comm *c, const char *what, ws_deadline until,
                    const struct ws_cancel *cancel, struct ws_err *err)
{
	for (unsigned asked = 0;; asked++) {
		bool ready = false;
		if (query(c, what, &ready, err))
			return -1;
		if (ready)
			return 0;
		if (check_wait(c, what, until, cancel, err))
			return -1;
		pause_a_little(asked, PAUSE_NS);
	}
}

int ws_comm_ready(struct ws_comm *c, bool *ready, struct ws_err *err)
{
	return query(c, "joining the communicator", ready, err);
}

int ws_comm_wait(struct ws_comm *c, ws_deadline until, const struct ws_cancel *cancel,
                 struct ws_err *err)
{
	return wait_for(c, "joining the communicator", until, cancel, err);
}

int ws_comm_broadcast(struct ws_comm *c, ws_devptr at, uint64_t bytes, unsigned root,
                      struct ws_stream *s, ws_deadline until, const struct ws_cancel *cancel,
                      struct ws_err *err)
{
	if (bytes == 0)
		return 0;
	/* A communicator that has failed would accept the broadcast and never run it. */
	if (wait_for(c, "broadcasting", until, cancel, err))
		return -1;
	void *p = (void *)(uintptr_t)at;
	const int rc = c->nccl->call.broadcast(p, p, bytes, NCCL_UINT8, (int)root, c->handle, s);
	if (!is_good(rc))
		return fail(c, rc, "broadcasting", err);
	return rc == NCCL_IN_PROGRESS ? wait_for(c, "broadcasting", until, cancel, err) : 0;
}

int ws_comm_all_reduce_one(struct ws_comm *c, ws_devptr at, struct ws_stream *s, ws_deadline until,
                           const struct ws_cancel *cancel, struct ws_err *err)
{
	static const char what[] = "summing one number";
	if (wait_for(c, what, until, cancel, err))
		return -1;
	void *p = (void *)(uintptr_t)at;
	const int rc = c->nccl->call.all_reduce(p, p, 1, NCCL_FLOAT32, NCCL_SUM, c->handle, s);
	if (!is_good(rc))
		return fail(c, rc, what, err);
	return rc == NCCL_IN_PROGRESS ? wait_for(c, what, until, cancel, err) : 0;
}

int ws_comm_wait_event(struct ws_comm *c, const struct ws_comm_event *m, ws_deadline until,
                       const struct ws_cancel *cancel, struct ws_err *err)
{
	static const char what[] = "broadcasting";
	for (unsigned asked = 0;; asked++) {
		bool reached = false, ready;
		if (ws_gpu_event_query(m->gpu, m->event, &reached, err)) {
			ws_comm_abort(c);
			return -1;
		}
		if (query(c, what, &ready, err))
			return -1;
		if (m->meanwhile)
			m->meanwhile(m->ctx);
		if (reached)
			return 0;
		if (check_wait(c, what, until, cancel, err))
			return -1;
		pause_a_little(asked, SHORT_PAUSE_NS); /* short: benchmarks time broadcasts here */
	}
}

void ws_comm_close(struct ws_comm *c, ws_deadline until)
{
	bool ready = false;
	if (!c)
		return;
	if (query(c, "leaving the communicator", &ready, NULL) == 0 && ready &&
	    is_good(c->nccl->call.finalize(c->handle)) &&
	    wait_for(c, "leaving the communicator", until, NULL, NULL) == 0) {
		c->nccl->call.destroy(c->handle);
		c->handle = NULL;
	}
	ws_comm_abort(c);
	free(c);
}
