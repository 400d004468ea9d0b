/* SPDX-License-Identifier: Apache-2.0 */
/* serve_http.c - the HTTP server. No other file uses libmicrohttpd.
 *
 * Each connection has a thread, because a request may wait until a group has formed, and other
 * requests must be answered meanwhile. Bodies are limited, and are read to their end before a
 * refusal, so that the client sees the answer and not a reset. Idle connections are closed after
 * IDLE_SECONDS, as uvicorn does. libmicrohttpd refuses new connections at its limit, so
 * serve_accept.c accepts connections instead. */
#include "serve_http.h"

#include "serve_accept.h"
#include "serve_strict.h"
#include "wsync/clock.h"

#include <microhttpd.h>

#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Release 1.0 knows more than two levels. Each level from 1 on refuses what serve_strict.h says. */
#if MHD_VERSION >= 0x01000000
#define STRICT_OPTION MHD_OPTION_CLIENT_DISCIPLINE_LVL
#else
#define STRICT_OPTION MHD_OPTION_STRICT_FOR_CLIENT
#endif

enum { MAX_BODY = 256 << 20, MAX_CONNECTIONS = 256, IDLE_SECONDS = 30 };
static const size_t MAX_BODIES = (size_t)1 << 30;
static atomic_size_t bodies; /* bytes of the requests that are being received or handled */

struct ws_serve_http {
	struct MHD_Daemon *daemon;
	struct ws_serve_accept *accept;
	struct ws_serve_handler handler;
};

/* The state of one request, from its first line to its answer. */
struct exchange {
	bool begun;     /* its headers are read */
	bool has_nul;   /* its target has %00, at which libmicrohttpd's strings end */
	struct ws_buf body;
	struct ws_serve_reply reply;
	size_t counted; /* of the body, in `bodies` */
	uint64_t discarded;
	bool refused;   /* reply is the complete answer; the body is discarded */
	bool last;      /* close the connection after this answer */
	bool endless;   /* the body cannot be read to its end */
};

static const char *header(struct MHD_Connection *c, const char *name)
{
	return MHD_lookup_connection_value(c, MHD_HEADER_KIND, name);
}

static const char *query(const void *ctx, const char *key)
{
	/* libmicrohttpd needs a non-const connection even for a lookup. */
	struct MHD_Connection *c = *(struct MHD_Connection *const *)ctx;
	return MHD_lookup_connection_value(c, MHD_GET_ARGUMENT_KIND, key);
}

struct pair {
	const char *key, *value;
	bool found;
};

static enum MHD_Result compare_pair(void *cls, enum MHD_ValueKind kind, const char *key,
                                    const char *value)
{
	struct pair *p = cls;
	(void)kind;
	p->found |= value && strcmp(key, p->key) == 0 && strcmp(value, p->value) == 0;
	return MHD_YES;
}

static bool query_has(const void *ctx, const char *key, const char *value)
{
	struct MHD_Connection *c = *(struct MHD_Connection *const *)ctx;
	struct pair pair = { key, value, false };
	MHD_get_connection_values(c, MHD_GET_ARGUMENT_KIND, compare_pair, &pair);
	return pair.found;
}

/* Has the client closed its side? Then it waits for no answer: clients of HTTP never close only
 * half of a connection. */
static bool has_left(const void *ctx)
{
	struct MHD_Connection *c = *(struct MHD_Connection *const *)ctx;
	const union MHD_ConnectionInfo *info =
		MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
	struct pollfd p = { .fd = info ? info->connect_fd : -1, .events = POLLRDHUP };
	return poll(&p, 1, 0) > 0;
}

static void free_body(struct exchange *x)
{
	ws_buf_free(&x->body);
	atomic_fetch_sub(&bodies, x->counted);
	x->counted = 0;
}

static void refuse(struct exchange *x, unsigned status, const char *json)
{
	x->refused = true;
	ws_buf_reset(&x->reply.body);
	ws_buf_puts(&x->reply.body, json);
	x->reply.status = status;
	x->reply.type = "application/json";
	free_body(x);
}

/* Before release 1.0 the head of a request stays where it was received. The release that runs may
 * be newer than the one that was compiled with. */
static bool keeps_head(void)
{
	return strncmp(MHD_get_version(), "0.", 2) == 0;
}

static enum MHD_Result check_header(void *cls, enum MHD_ValueKind kind, const char *key,
                                    const char *value)
{
	(void)kind;
	ws_serve_strict_header(cls, key, value);
	return MHD_YES;
}

/* Older releases count wrongly, below zero. */
static size_t head_size(struct MHD_Connection *c)
{
	const union MHD_ConnectionInfo *info =
		MHD_get_connection_info(c, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
	return info && info->header_size < MAX_BODY ? info->header_size : 0;
}

/* Two parsers may disagree about the end of such a request. So the bytes after it are not trusted,
 * and the connection is closed. The lines of a chunked body are not checked, so no request may
 * follow it either. */
static void check_strictly(struct MHD_Connection *c, const struct ws_serve_request *rq,
                           const char *version, struct exchange *x)
{
	struct ws_serve_strict s = { .raw = keeps_head() };
	char json[160];
	ws_serve_strict_line(&s, rq->method, rq->path, version);
	MHD_get_connection_values(c, MHD_HEADER_KIND, check_header, &s);
	const char *why = x->has_nul ? "The path or the query has a NUL character" :
	                               ws_serve_strict_end(&s, head_size(c));
	x->last = why || s.chunked;
	x->endless = s.endless;
	if (!why)
		return;
	snprintf(json, sizeof json, "{\"detail\":\"%s\"}", why);
	refuse(x, 400, json);
}

static enum MHD_Result queue_reply(struct MHD_Connection *c, struct exchange *x);

/* Called with the target as it was sent; what it returns is the state of the request. */
static void *see_target(void *cls, const char *target, struct MHD_Connection *c)
{
	struct exchange *x = calloc(1, sizeof *x);
	(void)cls;
	(void)c;
	if (x)
		x->has_nul = strstr(target, "%00");
	return x;
}

static enum MHD_Result begin(const struct ws_serve_handler *h, struct MHD_Connection *c,
                             const struct ws_serve_request *rq, const char *version,
                             struct exchange *x)
{
	x->begun = true;
	ws_buf_init(&x->body, h->body_most ? h->body_most(h->ctx, rq) : MAX_BODY);
	ws_buf_init(&x->reply.body, 0);
	check_strictly(c, rq, version, x);
	if (!x->refused)
		x->refused = !h->admit(h->ctx, rq, &x->reply);
	return x->endless ? queue_reply(c, x) : MHD_YES;
}

static enum MHD_Result upload(const struct ws_serve_handler *h, struct exchange *x,
                              const char *data, size_t *n)
{
	const size_t size = *n;
	*n = 0;
	if (!x->refused) {
		x->counted += size;
		if (atomic_fetch_add(&bodies, size) + size >
		    (h->bodies_most ? h->bodies_most : MAX_BODIES))
			refuse(x, 503, "{\"detail\":\"too many large requests at the same time\"}");
	}
	if (!x->refused && ws_buf_add(&x->body, data, size))
		refuse(x, 413, "{\"detail\":\"Content Too Large\"}");
	if (!x->refused)
		return MHD_YES;
	x->discarded += size;
	return x->discarded <= MAX_BODY ? MHD_YES : MHD_NO;
}

/* Sends the whole body, then fails, because the announced length is larger. */
static ssize_t read_cut(void *cls, uint64_t at, char *dst, size_t most)
{
	const struct ws_buf *body = cls;
	if (at >= body->len)
		return MHD_CONTENT_READER_END_WITH_ERROR;
	const size_t left = body->len - (size_t)at;
	const size_t n = left < most ? left : most;
	memcpy(dst, body->data + at, n);
	return (ssize_t)n;
}

static struct MHD_Response *make_response(struct ws_serve_reply *rp)
{
	enum { MISSING = 100, BLOCK = 4096 };
	if (rp->cut) /* no copy: finish() frees the body after the answer is sent */
		return MHD_create_response_from_callback(rp->body.len + MISSING, BLOCK, read_cut,
		                                         &rp->body, NULL);
	return MHD_create_response_from_buffer(rp->body.len, rp->body.len ? rp->body.data : NULL,
	                                       MHD_RESPMEM_MUST_COPY);
}

static enum MHD_Result queue_reply(struct MHD_Connection *c, struct exchange *x)
{
	struct ws_serve_reply *rp = &x->reply;
	if (rp->drop)
		return MHD_NO;
	struct MHD_Response *r = make_response(rp);
	if (!r)
		return MHD_NO;
	if (rp->type && *rp->type)
		MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, rp->type);
	if (rp->allow)
		MHD_add_response_header(r, MHD_HTTP_HEADER_ALLOW, rp->allow);
	if (rp->retry_s) {
		char seconds[16];
		snprintf(seconds, sizeof seconds, "%u", rp->retry_s);
		MHD_add_response_header(r, MHD_HTTP_HEADER_RETRY_AFTER, seconds);
	}
	if (x->last)
		MHD_add_response_header(r, MHD_HTTP_HEADER_CONNECTION, "close");
	const enum MHD_Result rc = MHD_queue_response(c, rp->status, r);
	MHD_destroy_response(r);
	return rc;
}

/* Returns NULL only if memory was short; the ws_serve_slot_ functions accept NULL. */
static struct ws_serve_slot *slot_of(struct MHD_Connection *c)
{
	const union MHD_ConnectionInfo *info =
		MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
	return info ? info->socket_context : NULL;
}

static enum MHD_Result answer(void *cls, struct MHD_Connection *c, const char *url,
                              const char *method, const char *version, const char *data,
                              size_t *size, void **state)
{
	const struct ws_serve_handler *h = cls;
	struct ws_serve_request rq = {
		.method = method, .path = url, .authorization = header(c, "Authorization"),
		.x_api_key = header(c, "x-api-key"), .host = header(c, "Host"),
		.origin = header(c, "Origin"), .content_type = header(c, "Content-Type"),
		.query = query, .query_has = query_has, .left = has_left, .query_ctx = &c,
	};
	struct exchange *x = *state;
	if (!x)
		return MHD_NO; /* memory was short */
	if (!x->begun)
		return begin(h, c, &rq, version, x);
	struct ws_serve_slot *slot = slot_of(c);
	if (*size) {
		ws_serve_slot_received(slot, *size);
		return upload(h, x, data, size);
	}
	if (!x->refused) {
		rq.body = ws_buf_str(&x->body);
		rq.body_len = x->body.len;
		/* No idle timeout while the request is handled. */
		MHD_set_connection_option(c, MHD_CONNECTION_OPTION_TIMEOUT, 0u);
		ws_buf_free(&x->reply.body);
		ws_serve_slot_working(slot);
		h->handle(h->ctx, &rq, &x->reply);
		MHD_set_connection_option(c, MHD_CONNECTION_OPTION_TIMEOUT, (unsigned)IDLE_SECONDS);
	}
	ws_serve_slot_sending(slot);
	return queue_reply(c, x);
}

static void finish(void *cls, struct MHD_Connection *c, void **state,
                   enum MHD_RequestTerminationCode why)
{
	struct exchange *x = *state;
	(void)cls;
	(void)why;
	ws_serve_slot_reading(slot_of(c));
	if (!x)
		return;
	free_body(x);
	ws_buf_free(&x->reply.body);
	free(x);
	*state = NULL;
}

static void note_connection(void *cls, struct MHD_Connection *c, void **slot,
                            enum MHD_ConnectionNotificationCode what)
{
	struct ws_serve_http *h = cls;
	if (what == MHD_CONNECTION_NOTIFY_CLOSED) {
		ws_serve_slot_free(*slot);
		return;
	}
	const union MHD_ConnectionInfo *fd =
		MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
	*slot = fd ? ws_serve_slot_find(h->accept, fd->connect_fd) : NULL;
}

static bool add_connection(void *ctx, int fd, const struct sockaddr *address, socklen_t len)
{
	const struct ws_serve_http *h = ctx;
	return MHD_add_connection(h->daemon, fd, address, len) == MHD_YES;
}

/* A slot becomes free before libmicrohttpd has finished with its connection. So libmicrohttpd's
 * own limit is twice the number of slots, and is never reached. */
static struct MHD_Daemon *start_daemon(struct ws_serve_http *h)
{
	return MHD_start_daemon(
		MHD_USE_THREAD_PER_CONNECTION | MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_POLL |
			MHD_USE_ITC | MHD_USE_NO_LISTEN_SOCKET,
		0, NULL, NULL, answer, &h->handler,
		STRICT_OPTION, 1,
		MHD_OPTION_URI_LOG_CALLBACK, see_target, NULL,
		MHD_OPTION_CONNECTION_LIMIT, 2u * MAX_CONNECTIONS,
		MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)IDLE_SECONDS,
		MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)(128 << 10),
		MHD_OPTION_NOTIFY_COMPLETED, finish, NULL,
		MHD_OPTION_NOTIFY_CONNECTION, note_connection, h,
		MHD_OPTION_END);
}

int ws_serve_http_open(const struct ws_serve_handler *handler, int listen_fd,
                       struct ws_serve_http **out, struct ws_err *err)
{
	struct ws_serve_http *h = calloc(1, sizeof *h);
	if (!h) {
		close(listen_fd);
		return ws_oom(err);
	}
	h->handler = *handler;
	h->daemon = start_daemon(h);
	if (!h->daemon) {
		close(listen_fd);
		free(h);
		return ws_err_set(err, WS_ESYSTEM, "the HTTP server did not start");
	}
	const struct ws_serve_accept_opts opts = {
		.most = MAX_CONNECTIONS, .read_ns = handler->read_ns ? handler->read_ns :
		                                                       IDLE_SECONDS * WS_NS_PER_S,
		.add = add_connection, .ctx = h,
	};
	if (ws_serve_accept_open(&opts, listen_fd, &h->accept, err)) {
		MHD_stop_daemon(h->daemon);
		free(h);
		return -1;
	}
	*out = h;
	return 0;
}

void ws_serve_http_close(struct ws_serve_http *h)
{
	if (!h)
		return;
	ws_serve_accept_stop(h->accept);
	MHD_stop_daemon(h->daemon);
	ws_serve_accept_close(h->accept);
	free(h);
}
