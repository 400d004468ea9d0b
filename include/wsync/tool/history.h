/* SPDX-License-Identifier: Apache-2.0 */
/* history.h - how the last pushes ended: STATE_DIR/history.jsonl, a line for each push.
 *
 * It is for people (wsync-ctl status). Nothing is decided by it, so it is not synced to the disk, a
 * line that cannot be read is skipped, and a push does not fail if it cannot be written. When the
 * file exceeds 1 MiB, it replaces history.jsonl.1. */
#ifndef WSYNC_HISTORY_H
#define WSYNC_HISTORY_H

#include "wsync/err.h"
#include "wsync/event.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ws_history_endpoint {
	const char *url;
	bool ok;
	enum ws_endpoint_state state; /* after the push */
	double coverage;          /* percent of the bytes that its checksums proved; < 0: none */
	const char *message;      /* why it does not have the weights; "": none */
	uint64_t instance;        /* ws_endpoint_info.instance; 0: unknown */
};

/* One push. */
struct ws_history_push {
	int64_t began, ended;     /* seconds since 1970 */
	int64_t pid, uid;         /* of the process; uid -1: unknown */
	const char *host;         /* "": unknown */
	const char *source;       /* as given */
	const char *weight_version; /* "": none */
	const char *verify;       /* "names", "hash", "none" */
	const char *code;         /* ws_code_name: how it ended */
	const char *message;      /* of the error; "": none */
	struct ws_history_endpoint *endpoints;
	size_t n_endpoints;
};

struct ws_history {
	struct ws_history_push *items; /* the oldest first */
	size_t n;
	void *priv;
};

/* Appends a line. pid, uid and host are filled in. */
void ws_history_add(const char *state_dir, const struct ws_history_push *push);
/* A missing file is an empty history. WS_ESYSTEM: out of memory. */
int ws_history_read(const char *state_dir, struct ws_history *out, struct ws_err *err);
void ws_history_free(struct ws_history *h); /* NULL is fine */
/* The last push to this endpoint, and its part of it; NULL: none. */
const struct ws_history_push *ws_history_last(const struct ws_history *h, const char *url,
                                              const struct ws_history_endpoint **part);

#ifdef __cplusplus
}
#endif
#endif
