/* SPDX-License-Identifier: Apache-2.0 */
/* serve_http.h - an HTTP/1.1 server for programs that answer JSON: the
 * embedded endpoint, the gateway.
 *
 * Each connection has its own thread, so a request may take any time. The server closes the
 * connections of clients that send nothing, or half a request: after a timeout, or when another
 * client needs the slot (serve_accept.h). */
#ifndef WS_HTTPD_SERVE_HTTP_H
#define WS_HTTPD_SERVE_HTTP_H

#include "wsync/tool/buf.h"
#include "wsync/cancel.h"
#include "wsync/err.h"
#include "wsync/tool/json_read.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ws_serve_request {
	const char *method, *path; /* path without the query */
	const char *body;
	size_t body_len;
	const char *authorization; /* header values; NULL: absent */
	const char *x_api_key, *host, *origin, *content_type;
	/* Returns a query parameter, or NULL if it is absent. The function may be NULL. */
	const char *(*query)(const void *ctx, const char *key);
	/* Does the query have this pair, among others of its key? May be NULL. */
	bool (*query_has)(const void *ctx, const char *key, const char *value);
	/* Has the client closed the connection? Any thread may ask while the request is handled. */
	bool (*left)(const void *ctx);
	const void *query_ctx; /* of these functions */
};

struct ws_serve_reply {
	unsigned status;
	const char *type;    /* content type; "" for an empty body */
	const char *allow;   /* with 405: the methods; else NULL */
	unsigned retry_s;    /* Retry-After; 0: none */
	struct ws_buf body;  /* the caller frees */
	bool drop;           /* close the connection without an answer */
	bool cut;            /* announce a longer body than there is, then close */
};

/* Parses HOST:PORT. An IPv6 address needs brackets. */
enum { WS_SERVE_HOST = 256, WS_SERVE_URL = 320 };
int ws_serve_parse_listen(const char *text, char host[WS_SERVE_HOST], uint16_t *port,
                          struct ws_err *err);
/* Listens on host and *port; port 0 is replaced by a free port. Returns the socket, or -1. */
int ws_serve_listen(const char *host, uint16_t *port, const struct ws_cancel *cancel,
                    char url[WS_SERVE_URL], struct ws_err *err);
bool ws_serve_is_loopback(int fd); /* is the socket bound to an address of loopback? */
/* Does the request have "Authorization: Bearer KEY", or (with x_api_key) KEY as x-api-key? */
bool ws_serve_has_key(const struct ws_serve_request *rq, const char *key, bool x_api_key);

struct ws_serve_handler {
	void *ctx;
	/* Called before the body is read, with headers only. False: *rp is a complete answer. */
	bool (*admit)(void *ctx, const struct ws_serve_request *rq, struct ws_serve_reply *rp);
	/* The limit of the body, in bytes. NULL: 256 MiB for all. Called before admit. */
	size_t (*body_most)(void *ctx, const struct ws_serve_request *rq);
	/* Runs the request to its end. Called by several threads at once. */
	void (*handle)(void *ctx, const struct ws_serve_request *rq, struct ws_serve_reply *rp);
	int64_t read_ns; /* as in ws_serve_accept_opts; 0: 30 s */
	/* The limit of the bodies of all unfinished requests together, in bytes; 0: 1 GiB. Requests
	 * beyond it are answered with 503. */
	size_t bodies_most;
};

struct ws_serve_http; /* opaque */

/* Takes ownership of listen_fd, a listening socket. Copies the handler. */
int ws_serve_http_open(const struct ws_serve_handler *handler, int listen_fd,
                       struct ws_serve_http **out, struct ws_err *err);
void ws_serve_http_close(struct ws_serve_http *h); /* NULL is fine; joins every thread */

/* ---- members of a JSON body, serve_fields.c ---- */

/* These functions accept the same values as the servers' web framework. A missing member, or a
 * wrong type, is WS_EUSAGE with "body.KEY: reason", in the framework's words. */
enum { WS_SERVE_MAX_TEXT = 4096 }; /* limit of each string, in bytes */

int ws_serve_field_str(const struct ws_json *body, const char *key, bool required, const char **out,
                       struct ws_err *err); /* *out holds the default */
int ws_serve_field_int(const struct ws_json *body, const char *key, int64_t *out,
                       struct ws_err *err); /* required */
int ws_serve_field_bool(const struct ws_json *body, const char *key, bool *out, struct ws_err *err);
/* For functions that decode members of other types. */
int ws_serve_field_invalid(struct ws_err *err, const char *key, const char *reason);
int ws_serve_field_missing(struct ws_err *err, const char *key);

#endif
