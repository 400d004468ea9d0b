/* SPDX-License-Identifier: Apache-2.0 */
/* serve_http.c - libmicrohttpd: the only file that knows it.
 *
 * One thread per connection, because a request may wait for as long as a group takes to form; the
 * others stay responsive meanwhile. Bodies are bounded, and read to their end before a refusal so
 * that the client sees the answer and not a reset. Idle connections end after some seconds, as with
 * uvicorn. */
#include "serve_http.h"

#include <microhttpd.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_BODY = 256 << 20, MAX_CONNECTIONS = 256, IDLE_SECONDS = 30 };

struct ws_serve_http {
	struct MHD_Daemon *daemon;
	struct ws_serve_handler handler;
};

/* What belongs to one request, from its headers to its answer. */
struct exchange {
	struct ws_buf body;
	struct ws_serve_reply reply;
	uint64_t discarded;
	bool refused;   /* reply is the answer, the body does not matter */
};

static const char *header(struct MHD_Connection *c, const char *name)
{
	return MHD_lookup_connection_value(c, MHD_HEADER_KIND, name);
}

static const char *query(const void *ctx, const char *key)
{
	/* libmicrohttpd wants its connection writable even to look something up. */
	struct MHD_Connection *c = *(struct MHD_Connection *const *)ctx;
	return MHD_lookup_connection_value(c, MHD_GET_ARGUMENT_KIND, key);
}

static void refuse(struct exchange *x, unsigned status, const char *json)
{
	x->refused = true;
	ws_buf_reset(&x->reply.body);
	ws_buf_puts(&x->reply.body, json);
	x->reply.status = status;
	x->reply.type = "application/json";
	ws_buf_free(&x->body);
}

static enum MHD_Result begin(const struct ws_serve_handler *h, const struct ws_serve_request *rq,
                             void **state)
{
	struct exchange *x = calloc(1, sizeof *x);
	if (!x)
		return MHD_NO;
	*state = x;
	ws_buf_init(&x->body, MAX_BODY);
	ws_buf_init(&x->reply.body, 0);
	x->refused = !h->admit(h->ctx, rq, &x->reply);
	return MHD_YES;
}

static enum MHD_Result upload(struct exchange *x, const char *data, size_t *n)
{
	const size_t size = *n;
	*n = 0;
	if (!x->refused && ws_buf_add(&x->body, data, size))
		refuse(x, 413, "{\"detail\":\"Content Too Large\"}");
	if (!x->refused)
		return MHD_YES;
	x->discarded += size;
	return x->discarded <= MAX_BODY ? MHD_YES : MHD_NO;
}

/* The body's end, and then that it ends too early. */
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
	if (rp->cut) /* the exchange lives as long as its answer */
		return MHD_create_response_from_callback(rp->body.len + MISSING, BLOCK, read_cut, &rp->body,
		                                         NULL);
	return MHD_create_response_from_buffer(rp->body.len, rp->body.len ? rp->body.data : NULL,
	                                       MHD_RESPMEM_MUST_COPY);
}

static enum MHD_Result queue_reply(struct MHD_Connection *c, struct ws_serve_reply *rp)
{
	if (rp->drop)
		return MHD_NO;
	struct MHD_Response *r = make_response(rp);
	if (!r)
		return MHD_NO;
	if (rp->type && *rp->type)
		MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, rp->type);
	if (rp->allow)
		MHD_add_response_header(r, MHD_HTTP_HEADER_ALLOW, rp->allow);
	const enum MHD_Result rc = MHD_queue_response(c, rp->status, r);
	MHD_destroy_response(r);
	return rc;
}

static enum MHD_Result answer(void *cls, struct MHD_Connection *c, const char *url,
                              const char *method, const char *version, const char *data,
                              size_t *size, void **state)
{
	const struct ws_serve_handler *h = cls;
	(void)version;
	struct ws_serve_request rq = {
		.method = method, .path = url, .authorization = header(c, "Authorization"),
		.x_api_key = header(c, "x-api-key"), .query = query, .query_ctx = &c,
	};
	struct exchange *x = *state;
	if (!x)
		return begin(h, &rq, state);
	if (*size)
		return upload(x, data, size);
	if (!x->refused) {
		rq.body = ws_buf_str(&x->body);
		rq.body_len = x->body.len;
		/* The clock of idle connections stands still while we work. */
		MHD_set_connection_option(c, MHD_CONNECTION_OPTION_TIMEOUT, 0u);
		ws_buf_free(&x->reply.body);
		h->handle(h->ctx, &rq, &x->reply);
		MHD_set_connection_option(c, MHD_CONNECTION_OPTION_TIMEOUT, (unsigned)IDLE_SECONDS);
	}
	return queue_reply(c, &x->reply);
}

static void finish(void *cls, struct MHD_Connection *c, void **state,
                   enum MHD_RequestTerminationCode why)
{
	struct exchange *x = *state;
	(void)cls;
	(void)c;
	(void)why;
	if (!x)
		return;
	ws_buf_free(&x->body);
	ws_buf_free(&x->reply.body);
	free(x);
	*state = NULL;
}

int ws_serve_http_open(const struct ws_serve_handler *handler, int listen_fd,
                       struct ws_serve_http **out, struct ws_err *err)
{
	struct ws_serve_http *h = calloc(1, sizeof *h);
	if (!h) {
		close(listen_fd);
		return ws_err_set(err, WS_ESYSTEM, "not enough memory");
	}
	h->handler = *handler;
	h->daemon = MHD_start_daemon(
		MHD_USE_THREAD_PER_CONNECTION | MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_POLL |
			MHD_USE_ITC,
		0, NULL, NULL, answer, &h->handler,
		MHD_OPTION_LISTEN_SOCKET, (MHD_socket)listen_fd,
		MHD_OPTION_CONNECTION_LIMIT, (unsigned)MAX_CONNECTIONS,
		MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)IDLE_SECONDS,
		MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)(128 << 10),
		MHD_OPTION_NOTIFY_COMPLETED, finish, NULL,
		MHD_OPTION_END);
	if (!h->daemon) {
		close(listen_fd);
		free(h);
		return ws_err_set(err, WS_ESYSTEM, "the HTTP server did not start");
	}
	*out = h;
	return 0;
}

void ws_serve_http_close(struct ws_serve_http *h)
{
	if (!h)
		return;
	MHD_stop_daemon(h->daemon);
	free(h);
}
