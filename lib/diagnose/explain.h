/* SPDX-License-Identifier: Apache-2.0 */
/* explain.h - who waits for what, watched from aside: a line when it has been silent for long,
 * and all that was seen when a deadline passes (wsync/tool/hang.h).
 *
 * Whoever runs an operation opens one of these, says which phase begins, and hands it to
 * the group. The rest it sees by itself, through the HTTP client. It belongs to one
 * thread. NULL is fine everywhere. */
#ifndef WS_DIAGNOSE_EXPLAIN_H
#define WS_DIAGNOSE_EXPLAIN_H

#include "endpoint_call.h"
#include "group.h"
#include "wsync/tool/hang.h"

struct ws_explain; /* opaque */

struct ws_explain_opts {
	struct ws_http *http;    /* borrowed; nobody else may watch it */
	const char *const *urls; /* borrowed */
	size_t n;
	struct ws_sink sink;
	int64_t patience_ns;     /* silence before the first line; 0: 10 s */
	/* Called before each request, and at least once a second while waiting. due: the
	 * deadline of the current step; 0: unchanged. May be NULL. */
	void (*alive)(void *ctx, ws_deadline due);
	void *ctx;
};

int ws_explain_open(const struct ws_explain_opts *opts, struct ws_explain **out,
                    struct ws_err *err);
void ws_explain_close(struct ws_explain *x);

/* What bounds a wait: a limit, and the field of the options that sets it. */
struct ws_explain_limit {
	const char *field; /* static */
	int64_t ns;
	ws_deadline until;  /* of all waits together; 0: of each by itself */
};
/* A phase begins, with the limits that may end a wait in it, the likeliest first. */
void ws_explain_phase(struct ws_explain *x, enum ws_phase phase,
                      const struct ws_explain_limit *limits, size_t n);
/* The bucket that is moved from now on, and that it has arrived. */
void ws_explain_bucket(struct ws_explain *x, size_t b, size_t n, uint64_t bytes, bool flush);
void ws_explain_arrived(struct ws_explain *x);
/* Something was told, or moved: the silence ends. */
void ws_explain_heard(struct ws_explain *x);

/* Follows the waits of a group. ctx: a struct ws_explain, or NULL. */
extern const struct ws_group_watch ws_explain_group;
void ws_explain_alive(struct ws_explain *x, ws_deadline due); /* calls that function */

/* The wait has ended badly: keeps what is to be seen at this moment, of the first time since the
 * last ws_explain_finish, and begins to ask those that are waited for whether they live. */
void ws_explain_catch(struct ws_explain *x, enum ws_hang_end end);
/* Likewise, where the error is of time or patience that ran out; where it is of something else,
 * what was kept is not its cause and is forgotten. */
void ws_explain_failed(struct ws_explain *x, const struct ws_err *err);
/* Finds the cause of what was kept and reports it to the sink; the remedy becomes the hint of an
 * error without one. Takes at most a second after the catch; nothing caught: does nothing. */
void ws_explain_finish(struct ws_explain *x, struct ws_err *err);

#endif
