/* SPDX-License-Identifier: Apache-2.0 */
/* http.h - many requests at once, each with a deadline and a bounded reply, on libcurl's multi
 * interface. Keeps connections alive between calls.
 *
 * A ws_http belongs to one thread. Only http and https; https verifies certificates; redirects
 * are not followed (a redirected POST is not the request that was made); a POST is never sent
 * twice, even if a kept-alive connection is dead; no proxy for this machine's addresses. */
#ifndef WS_NET_HTTP_H
#define WS_NET_HTTP_H

#include "wsync/tool/buf.h"
#include "wsync/cancel.h"
#include "wsync/clock.h"
#include "wsync/err.h"
#include "wsync/log.h"
#include "wsync/trace.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ws_http; /* opaque */

/* Progress of a call, or its last stage. */
enum ws_http_stage { WS_HTTP_CONNECTING, WS_HTTP_SENDING, WS_HTTP_SENT, WS_HTTP_ANSWERING };

struct ws_http_opts {
	/* sent as "Authorization: Bearer ..."; "KEY\nADMIN_KEY": the second for calls with `admin`,
	 * each may be empty; NULL: none; copied */
	const char *api_key;
	/* PEM file of certificates to trust instead of the system's; NULL: the system's; copied */
	const char *ca_file;
	int64_t connect_ns;         /* limit for connecting; 0: 10 s */
	size_t max_reply;           /* bytes; 0: 64 MiB */
	const struct ws_log *log;   /* borrowed; logs bodies at level 2, keys never */
	/* borrowed; NULL: none. A request is a span, without its query */
	struct ws_trace *trace;
};

int ws_http_open(const struct ws_http_opts *opts, struct ws_http **out, struct ws_err *err);
void ws_http_close(struct ws_http *h); /* drops calls in flight; NULL is fine */

/* One request. The caller owns and zeroes it, fills the first part, and keeps it and its data
 * until it is done or dropped. */
struct ws_http_call {
	const char *method;   /* "POST"; "GET" and "OPTIONS" have no body; borrowed */
	const char *url;      /* complete; borrowed */
	bool admin;           /* the server wants the key of administrators, if it has one */
	bool fresh;           /* over a new connection: several processes share those of a server */
	const char *body;     /* JSON text or NULL; borrowed */
	size_t body_len;
	ws_deadline until;
	void *user;           /* the caller's */

	bool done;            /* set by ws_http_wait */
	long status;          /* HTTP status; 0: no reply */
	struct ws_buf reply;  /* body; the caller frees with ws_buf_free */
	int64_t ns;           /* duration */
	/* WS_OK: a complete reply, of any status; else WS_EREACH, WS_ETIMEOUT, WS_ECANCELLED
	 * ... */
	struct ws_err err;
	bool as_admin;        /* the request had the key of administrators, not the first key */
	bool sent;            /* the request was sent completely: the server may have acted */
	enum ws_http_stage stage; /* this and the next: for a call in flight as of ws_http_each */
	char address[48];     /* address of the connection, a literal; "" none yet */
	int64_t date;         /* the reply's Date in seconds since 1970; 0: none */
	void *priv;           /* private */
};

int ws_http_start(struct ws_http *h, struct ws_http_call *call, struct ws_err *err);
void ws_http_drop(struct ws_http *h, struct ws_http_call *call); /* no effect on done calls */
/* Runs transfers until at least one more call is done, wake_fd (or -1) is readable, or the
 * deadline. Returns the number of calls that became done (0: wake_fd or deadline); -1:
 * WS_ECANCELLED or WS_ESYSTEM. Also waits if nothing is in flight, but not without a deadline. */
int ws_http_wait(struct ws_http *h, ws_deadline until, const struct ws_cancel *cancel, int wake_fd,
                 struct ws_err *err);
/* Starts all calls and waits for all. 0 even if calls failed: check each. -1: cancelled or a
 * system error; calls that are not done were dropped. */
int ws_http_run(struct ws_http *h, struct ws_http_call *const *calls, size_t n,
                const struct ws_cancel *cancel, struct ws_err *err);

/* keep: resolved host names keep their addresses for all calls that start from now on; else for
 * a minute. */
void ws_http_keep_names(struct ws_http *h, bool keep);

/* Observers of waits, called from ws_http_wait. They must not start or drop calls. */
struct ws_http_watch {
	void (*turn)(void *ctx); /* before the request is sent, and at least once a second */
	void (*ended)(void *ctx, const struct ws_http_call *call); /* done, or dropped in flight */
	void *ctx;
};
void ws_http_watch(struct ws_http *h, const struct ws_http_watch *watch); /* copied; NULL: none */
/* Calls fn for every call in flight, with ns, sent, stage and address up to date. */
void ws_http_each(struct ws_http *h, void (*see)(void *ctx, const struct ws_http_call *call),
                  void *ctx);

/* True if SGLang wants its admin key for this path, which is without a query. No route that only
 * vLLM or another server has is one of these. */
bool ws_http_wants_admin(const char *path);
bool ws_http_has_admin_key(const struct ws_http *h); /* beside the first key */

/* The default port of a URL without one, 80 or 443; 0: it has a port, or is not a URL. */
unsigned ws_http_assumed_port(const char *url);

/* Reads a key file: its first line without outer blanks. WS_EINPUT: empty, longer than 4096 bytes,
 * with control characters, or in a directory that others can write. The caller frees `secret`.
 * *loose: other users can read the file. */
int ws_http_read_key(const char *path, char **secret, bool *loose, struct ws_err *err);

#endif
