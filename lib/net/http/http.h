/* SPDX-License-Identifier: Apache-2.0 */
/* http.h - many requests at once, each with a deadline and a bounded reply, on libcurl's multi
 * interface. Connections are kept alive between calls.
 *
 * A ws_http belongs to one thread. Only http and https; https verifies certificates; redirects are
 * not followed (a POST that wanders is not what was asked); a POST is never sent twice, also when a
 * kept-alive connection turns out to be dead; no proxy for loopback addresses. */
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

/* How far a call has come, or had when it ended. */
enum ws_http_stage { WS_HTTP_CONNECTING, WS_HTTP_SENDING, WS_HTTP_SENT, WS_HTTP_ANSWERING };

struct ws_http_opts {
	const char *api_key;        /* sent as "Authorization: Bearer ..."; NULL: none; copied */
	/* certificates (PEM) to trust instead of the system's; NULL: those; copied */
	const char *ca_file;
	int64_t connect_ns;         /* limit for connecting; 0: 10 s */
	size_t max_reply;           /* bytes; 0: 64 MiB */
	const struct ws_log *log;   /* borrowed; bodies are logged at level 2, keys never */
	/* borrowed; NULL: none. A request is a span, without its query */
	struct ws_trace *trace;
};

int ws_http_open(const struct ws_http_opts *opts, struct ws_http **out, struct ws_err *err);
void ws_http_close(struct ws_http *h); /* drops what is in flight; NULL is fine */

/* One request. The caller owns it, zeroes it, fills the first part and keeps it (and what it points
 * to) until it is done or dropped. */
struct ws_http_call {
	const char *method;   /* "POST"; "GET" and "OPTIONS" have no body; borrowed */
	const char *url;      /* whole; borrowed */
	const char *body;     /* JSON text or NULL; borrowed */
	size_t body_len;
	ws_deadline until;
	void *user;           /* the caller's */

	bool done;            /* set by ws_http_wait */
	long status;          /* HTTP status; 0: no reply */
	struct ws_buf reply;  /* body; the caller frees with ws_buf_free */
	int64_t ns;           /* from start to done */
	struct ws_err err;    /* code WS_OK when a complete reply of whatever status came; else
	                       * WS_EREACH, WS_ETIMEOUT, WS_ECANCELLED ... */
	bool sent;            /* the request left completely: the server may have acted */
	enum ws_http_stage stage; /* and below it: of a call in flight as ws_http_each found it */
	char address[48];     /* who was connected to, a literal; "" nobody yet */
	void *priv;           /* the module's */
};

int ws_http_start(struct ws_http *h, struct ws_http_call *call, struct ws_err *err);
void ws_http_drop(struct ws_http *h, struct ws_http_call *call); /* done calls: nothing */
/* Runs transfers until at least one call newly became done, wake_fd (or -1) is readable, or the
 * deadline. Returns how many became done (0: woken or deadline), -1: WS_ECANCELLED or WS_ESYSTEM.
 * With nothing in flight it waits too, except for ever. */
int ws_http_wait(struct ws_http *h, ws_deadline until, const struct ws_cancel *cancel, int wake_fd,
                 struct ws_err *err);
/* Starts all and waits for all. 0 even when calls failed: look at each. -1: cancelled or system;
 * then everything not done was dropped. */
int ws_http_run(struct ws_http *h, struct ws_http_call *const *calls, size_t n,
                const struct ws_cancel *cancel, struct ws_err *err);

/* Host names that were looked up keep their addresses for all calls that start from now on,
 * or (not keep) for a minute. */
void ws_http_keep_names(struct ws_http *h, bool keep);

/* For who wants to say what is waited for. The functions are called from within ws_http_wait,
 * and start and drop nothing. */
struct ws_http_watch {
	void (*turn)(void *ctx); /* before anything leaves, and at least once a second */
	void (*ended)(void *ctx, const struct ws_http_call *call); /* done, or dropped on the way */
	void *ctx;
};
void ws_http_watch(struct ws_http *h, const struct ws_http_watch *watch); /* copied; NULL: nobody */
/* Every call in flight, its ns, sent, stage and address being as of now. */
void ws_http_each(struct ws_http *h, void (*see)(void *ctx, const struct ws_http_call *call),
                  void *ctx);

/* The port of a URL that names none, 80 or 443; 0: it names one, or is no URL. */
unsigned ws_http_assumed_port(const char *url);

/* Reads a key file: first line, blanks trimmed; empty, longer than 4096 bytes or with control
 * characters is WS_EINPUT. `secret` is the caller's to free. A file readable by others is reported
 * through *loose. */
int ws_http_read_key(const char *path, char **secret, bool *loose, struct ws_err *err);

#endif
