/* SPDX-License-Identifier: Apache-2.0 */
/* history.h - how the last pushes ended: STATE_DIR/history.jsonl, a line for each push.
 *
 * wsync-ctl status shows it. It also tells which push changed a server's weights last, which
 * decides whether its weight version is believed (current.h). So a push also adds a line before it
 * changes weights, which stands if the push is killed. Where lines are missing, only the server's
 * own word is left, which is said: so the file is not synced to the disk, a line that cannot be
 * read is skipped, and a push does not fail if it cannot be written. When the file exceeds 1 MiB,
 * it replaces history.jsonl.1. */
#ifndef WSYNC_HISTORY_H
#define WSYNC_HISTORY_H

#include "wsync/endpoint.h"
#include "wsync/err.h"
#include "wsync/event.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Of .established: the names of the whole source fit what this start of the server lists. */
enum { WS_HISTORY_LISTED = 1 << 8 };

struct ws_history_endpoint {
	const char *url;
	bool ok;
	enum ws_endpoint_state state; /* after the push */
	double coverage;          /* percent of the bytes that its checksums proved; < 0: none */
	const char *message;      /* why it does not have the weights; "": none */
	uint64_t instance;        /* ws_endpoint_info.instance; 0: unknown */
	struct ws_identity identity;
	/* the weight version that it had when the line was written; "": unknown */
	const char *label;
	unsigned established;     /* enum ws_require: what the push has established of it */
};

/* One push. */
struct ws_history_push {
	uint64_t id;              /* random, of both of its lines; 0: unknown */
	/* seconds since 1970; ended 0: from here on it changes the weights of these endpoints */
	int64_t began, ended;
	int64_t pid, uid;         /* of the process; uid -1: unknown */
	const char *host;         /* "": unknown */
	const char *source;       /* as given */
	const char *weight_version; /* "": none */
	const char *verify;       /* "names", "hash", "none" */
	const char *code;         /* ws_code_name: how it ended */
	const char *message;      /* of the error; "": none */
	uint64_t digest;          /* of its plan; 0: unknown, or another sender has a part */
	bool whole;               /* it sent everything, and not a part that options chose */
	bool same;                /* where it succeeded, the weights are those from before */
	uint64_t round;           /* a hash of the round in which it had a turn; 0: none */
	struct ws_history_endpoint *endpoints;
	size_t n_endpoints;
};

struct ws_history {
	struct ws_history_push *items; /* the oldest first */
	size_t n;
	void *priv;
};

/* Appends a line. pid, uid and host are filled in. False: it could not be written. */
bool ws_history_add(const char *state_dir, const struct ws_history_push *push);
/* Appends a line after which this server does not have the weights of any earlier push. `what`: a
 * sentence that says why. */
void ws_history_spoil(const char *state_dir, const char *url, const struct ws_endpoint_info *info,
                      const char *what);
/* A random number that is not 0. */
uint64_t ws_history_id(void);
/* A missing file is an empty history. WS_ESYSTEM: out of memory. */
int ws_history_read(const char *state_dir, struct ws_history *out, struct ws_err *err);
void ws_history_free(struct ws_history *h); /* NULL is fine */
/* The last push to this endpoint that has ended, and its part of it; NULL: none. */
const struct ws_history_push *ws_history_last(const struct ws_history *h, const char *url,
                                              const struct ws_history_endpoint **part);

/* The last push that has changed, or may have changed, the weights of this start of the server, and
 * its part of it; NULL: none. Pushes that left them as they were do not count. *sure: the line is
 * about this start, and not only about this URL. */
const struct ws_history_push *ws_history_last_change(const struct ws_history *h, const char *url,
                                                     const struct ws_endpoint_info *info,
                                                     const struct ws_history_endpoint **part,
                                                     bool *sure);

#ifdef __cplusplus
}
#endif
#endif
