/* SPDX-License-Identifier: Apache-2.0 */
/* gateway_core.h - shared by the files of the gateway.
 *
 *   gateway.c            start and stop, routes, replies
 *   gateway_hosts.c      hosts that requests may name
 *   gateway_sources.c    files that requests may name
 *   gateway_endpoints.c  adds, lists and removes endpoints
 *   gateway_sync.c       runs the push that a request describes
 *   gateway_metrics.c    metrics of pushes
 *   gateway_quant.c      reads quantization_config as xorl does */
#ifndef WSYNC_CMD_GATEWAY_CORE_H
#define WSYNC_CMD_GATEWAY_CORE_H

#include "gateway.h"

#include "serve_http.h"
#include "wsync/tool/metrics.h"
#include "wsync/registry.h"

#include <pthread.h>

enum { GATEWAY_SKIPS = 256, GATEWAY_PATHS = 64 };
/* Requests that run at once, so that connections remain for others (serve_accept.h); syncs of them
 * that wait for their turn; when the client of one more may try again. */
enum { GATEWAY_RUNNING = 128, GATEWAY_WAITING = 64, GATEWAY_RETRY_S = 30 };
#define GATEWAY_PATIENCE_NS (10 * WS_NS_PER_S) /* of one more request */

struct gateway_turn; /* gateway_sync.c */

/* The quantization of sent weights. Strings are owned. */
struct gateway_quant {
	bool known;           /* a request gave it; else the endpoints decide */
	bool fp8;
	int64_t block[2];
	char *skip[GATEWAY_SKIPS];
	size_t n_skip;
};

struct ws_gateway {
	struct ws_gateway_opts opts;
	char host[WS_SERVE_HOST], url[WS_SERVE_URL];
	uint16_t port;
	struct ws_serve_http *http;
	struct ws_cancel stop;
	pthread_mutex_t lock;         /* guards all below */
	pthread_cond_t turn;          /* turns or n_running has changed */
	struct gateway_turn *turns;   /* syncs in the order of their requests; the first one runs */
	unsigned n_running;           /* requests */
	struct gateway_quant quant;   /* for syncs without quantization */
	struct ws_metrics *metrics;
};

struct gateway_call {
	struct ws_gateway *gateway;
	const struct ws_serve_request *rq;
	struct ws_serve_reply *rp;
	const struct ws_json *body;   /* an object; NULL: the route takes none */
};

/* Begins a JSON answer and its object, which the caller ends. Drops an answer that was begun. */
struct ws_jw gateway_begin(struct ws_serve_reply *rp, unsigned status);
/* FastAPI's {"detail": text}. */
void gateway_refuse(struct gateway_call *c, unsigned status, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* Answers an error by its code: 422 for fields (WS_EUSAGE of serve_http.h), 504 for deadlines, 400
 * for errors that the caller can correct, 500 for the rest. */
void gateway_fail(struct gateway_call *c, const struct ws_err *err);
/* Waits for a change of turns or n_running, with the lock held. ETIMEDOUT at the deadline. */
int gateway_wait(struct ws_gateway *g, ws_deadline until);
/* 503 with Retry-After. */
void gateway_refuse_busy(struct gateway_call *c, const char *text);
/* The library's sentence with options for its fields, for the answer. NULL is fine. */
const char *gateway_words(const struct gateway_call *c, const char *sentence);
unsigned gateway_status(const struct ws_err *err);
static inline ws_deadline gateway_until(void)
{
	return ws_deadline_in(10 * WS_NS_PER_S);
}

/* An optional member: absent and null leave *out. */
int gateway_int(const struct ws_json *body, const char *key, int64_t least, int64_t most,
                int64_t *out, struct ws_err *err);
int gateway_text(const struct ws_json *body, const char *key, const char **out, struct ws_err *err);
/* Reads a string or a list of strings; *n is 0 if the key is absent. */
int gateway_texts(const struct ws_json *body, const char *key, const char **out, size_t most,
                  size_t *n, struct ws_err *err);

/* Refuses keys that are not known (WS_EINPUT), and lists those that are; known ends with NULL. */
int gateway_check_keys(const struct ws_json *object, const char *where, const char *const *known,
                       struct ws_err *err);

/* Is this Host (NULL: none) the gateway's, with its port or none: an address, localhost, or the
 * name of --listen? Is Origin, which the request has, its Host? */
bool gateway_is_own_host(const struct ws_gateway *g, const char *host);
bool gateway_is_own_origin(const struct ws_serve_request *rq);
/* May the endpoint be registered, asked and given the API key? */
bool gateway_permits(const struct ws_gateway *g, const char *url);
/* Refuses patterns that match nothing, and an API key without a pattern (WS_EUSAGE). */
int gateway_check_hosts(const struct ws_gateway_opts *o, struct ws_err *err);

/* Replaces *path by what it resolves to, or refuses it (WS_EINPUT). The caller frees *owned. */
int gateway_find_source(const struct ws_gateway *g, const char **path, char **owned,
                        struct ws_err *err);

void gateway_add(struct gateway_call *c);
void gateway_list(struct gateway_call *c);
void gateway_remove(struct gateway_call *c);
void gateway_sync(struct gateway_call *c);
void gateway_set_quantization(struct gateway_call *c);
void gateway_metrics(struct gateway_call *c);
void gateway_hear(struct ws_gateway *g, const struct ws_event *ev); /* for the metrics */

/* Runs a push and completes *rp, also after a failure. only: the URL of the
 * only endpoint to push to; NULL: those of the pools. */
bool gateway_push(struct gateway_call *c, const char *only, struct ws_buf *message);

/* node: the dict, a string, or NULL. *out is filled and owned on success. */
int gateway_quant_read(const struct ws_json *body, struct gateway_quant *out, struct ws_err *err);
int gateway_quant_copy(const struct gateway_quant *from, struct gateway_quant *to,
                       struct ws_err *err);
void gateway_quant_free(struct gateway_quant *q);
void gateway_quant_write(const struct gateway_quant *q, struct ws_jw *w, const char *key);

#endif
