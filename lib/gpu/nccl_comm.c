/* SPDX-License-Identifier: Apache-2.0 */
/* nccl_comm.c - a communicator that never keeps anybody: asked, asked again,
 * and aborted when it fails.
 *
 * A non-blocking communicator answers NCCL_IN_PROGRESS to what goes on; until its state is
 * another, it may only be asked for that, or aborted, and nothing more may be asked of its
 * stream, because what is to be done there is asked for by a thread of NCCL's. Asking for the
 * state ends that thread: two of ours that ask at once corrupt it, as torch had to learn (its
 * issues 153960 and 169484).
 *
 * NCCL 2.18, 2.26 and 2.27 lose what their network tells them: there a peer that died is not
 * seen here, and whoever waits for it has its deadline, or hears of it from the peer's server. */
#include "nccl_core.h"

#include <assert.h>
#include <sched.h>
#include <stdlib.h>
#include <time.h>

struct ws_comm {
	const struct ws_nccl *nccl;
	void *handle; /* NULL: aborted or left */
};

/* What NCCL's thread does for a broadcast takes it some microseconds, joining takes seconds. */
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
		c->nccl->call.abort(c->handle); /* there is no better answer to its failing */
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
		return ws_err_set(err, WS_ESYSTEM, "NCCL: out of memory");
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

static int look(struct ws_comm *c, const char *what, bool *ready, struct ws_err *err)
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

/* Whether a wait may not go on. */
static int is_enough(struct ws_comm *c, const char *what, ws_deadline until,
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
		if (look(c, what, &ready, err))
			return -1;
		if (ready)
			return 0;
		if (is_enough(c, what, until, cancel, err))
			return -1;
		pause_a_little(asked, PAUSE_NS);
	}
}

int ws_comm_ready(struct ws_comm *c, bool *ready, struct ws_err *err)
{
	return look(c, "joining the communicator", ready, err);
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
	/* One that has failed since would take it and never do it. */
	if (wait_for(c, "broadcasting", until, cancel, err))
		return -1;
	void *p = (void *)(uintptr_t)at;
	const int rc = c->nccl->call.broadcast(p, p, bytes, NCCL_UINT8, (int)root, c->handle, s);
	if (!is_good(rc))
		return fail(c, rc, "broadcasting", err);
	return rc == NCCL_IN_PROGRESS ? wait_for(c, "broadcasting", until, cancel, err) : 0;
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
		if (look(c, what, &ready, err))
			return -1;
		if (m->meanwhile)
			m->meanwhile(m->ctx);
		if (reached)
			return 0;
		if (is_enough(c, what, until, cancel, err))
			return -1;
		pause_a_little(asked, SHORT_PAUSE_NS); /* bytes may be timed by it */
	}
}

void ws_comm_close(struct ws_comm *c, ws_deadline until)
{
	bool ready = false;
	if (!c)
		return;
	if (look(c, "leaving the communicator", &ready, NULL) == 0 && ready &&
	    is_good(c->nccl->call.finalize(c->handle)) &&
	    wait_for(c, "leaving the communicator", until, NULL, NULL) == 0) {
		c->nccl->call.destroy(c->handle);
		c->handle = NULL;
	}
	ws_comm_abort(c);
	free(c);
}
