/* SPDX-License-Identifier: Apache-2.0 */
/* endpoint_call.h - one request to an endpoint and the reading of its answer.
 *
 * Servers say no in many shapes: {"success":false,"message"}, {"error":{"message"}},
 * {"error":"..."}, {"object":"error","message"}, {"detail"}, plain text, an empty body, with or
 * without a fitting status. ws_endpoint_reply makes one sentence of each of them. */
#ifndef WS_CLIENT_ENDPOINT_CALL_H
#define WS_CLIENT_ENDPOINT_CALL_H

#include "endpoint_weights.h"
#include "http.h"
#include "wsync/endpoint.h"
#include "wsync/tool/json_read.h"

enum { WS_PATH_MAX = 1024 }; /* path and query with the NUL */

/* The caller zeroes it once, keeps it until the call is done or dropped, then frees it. It can be
 * started again afterwards. http.user is the caller's. */
struct ws_endpoint_call {
	struct ws_http_call http;
	char url[WS_URL_MAX + WS_PATH_MAX];
	size_t base_len;        /* of the endpoint's part of url */
	char path[WS_PATH_MAX]; /* without its query, for messages */
	struct ws_json *root;   /* the parsed reply, owned; NULL: not read yet or no JSON */
};

/* method "GET", "POST" or "OPTIONS"; path begins with "/" and may carry a query, which messages
 * leave out. body may be NULL; it is borrowed until the call is done. */
int ws_endpoint_prepare(struct ws_endpoint_call *call, const char *url, const char *method,
                        const char *path, const struct ws_buf *body, ws_deadline until,
                        struct ws_err *err);
/* Prepares it and starts it. */
int ws_endpoint_start(struct ws_http *http, struct ws_endpoint_call *call, const char *url,
                      const char *method, const char *path, const struct ws_buf *body,
                      ws_deadline until, struct ws_err *err);
/* Starts those of n calls that are prepared and waits for them. -1: cancelled or system. */
int ws_endpoint_run(struct ws_http *http, struct ws_endpoint_call *calls, size_t n,
                    const struct ws_cancel *cancel, struct ws_err *err);

/* Reads the answer of a call that is done. 0: the server agreed. -1: the transport's own error, or
 * WS_EREFUSED `POST /path: refused (HTTP 400): "server's words"`, err->endpoint being the URL and
 * err->native the HTTP status. message (or NULL) gets the server's words in both cases, "" when it
 * said nothing. *root (root may be NULL) is the reply as JSON, or NULL when it is none; it lives
 * until ws_endpoint_call_free or the next start. */
int ws_endpoint_reply(struct ws_endpoint_call *call, const struct ws_json **root, char *message,
                      size_t n, struct ws_err *err);

/* Did the server refuse, so that nothing was done? Not with the statuses of proxies (502 to
 * 504, 408, 425, 429): the server may have got the request. An answer with a status of
 * success that is not what such a server says, or says no, is a refusal to its caller; but
 * the request may have been obeyed. */
bool ws_endpoint_said_no(const struct ws_err *err);
/* Of an answer to ws_endpoint_destroy_group: the server knew no such group. */
bool ws_endpoint_knew_none(const struct ws_endpoint_answer *a);

/* A request with the same method and body to each endpoint. */
struct ws_lifecycle {
	const char *name; /* the phase of errors: "pause" */
	const char *method;
	const char *path;          /* of all of them; */
	const char *const *paths;  /* or one for each; NULL */
	const struct ws_buf *body; /* NULL: none */
};
/* Sends it; answers as in endpoint.h. */
int ws_endpoint_tell(const struct ws_call *to, const struct ws_lifecycle *what,
                     struct ws_endpoint_answer *answers, struct ws_err *err);

/* Reads the answer of call i to wherever ctx says; errs[0..i) are those before
 * it. -1: *errs[i] is why not. */
typedef int ws_endpoint_reader(void *ctx, struct ws_endpoint_call *calls, size_t i,
                               struct ws_err *errs);
/* The end of asking n endpoints the same, however that went: reads their answers, or,
 * where *why is an error, makes it that of each; and frees the calls (NULL is fine).
 * -1: *err is the first error. */
int ws_endpoint_take(struct ws_endpoint_call *calls, size_t n, const struct ws_err *why,
                     ws_endpoint_reader *read, void *ctx, struct ws_err *errs, struct ws_err *err);

/* Frees what the call owns. It must be done or dropped. NULL is fine. */
void ws_endpoint_call_free(struct ws_endpoint_call *call);

/* ---- reading replies from memory (no connection needed) ---- */

/* Adds what a reply says to *info and keeps the rest. */
void ws_endpoint_decode_server_info(const struct ws_json *root, struct ws_endpoint_info *info);
void ws_endpoint_decode_model_info(const struct ws_json *root, struct ws_endpoint_info *info);
/* Malformed: WS_EREFUSED. The names are borrowed from root: set priv to it, and the free function
 * of the result frees both. */
int ws_endpoint_decode_weights(const struct ws_json *root, struct ws_weight_list *out,
                               struct ws_err *err);
/* As ws_weight_list_share. */
int ws_checksums_share(struct ws_checksums *from, struct ws_checksums *to);
int ws_endpoint_decode_checksums(const struct ws_json *root, struct ws_checksums *out,
                                 struct ws_err *err);
/* endpoint_ranks.c: reads which rank entry i of "ranks" comes from, into c->ranks[i]. */
int ws_endpoint_decode_rank(const struct ws_json *entry, struct ws_checksums *c, size_t i,
                            struct ws_err *err);
/* Sorts the ranks. Both fail with WS_EREFUSED and set c->contradicts. */
int ws_endpoint_check_ranks(struct ws_checksums *c, struct ws_err *err);
/* The text itself: nested arrays of at most `most` numbers. */
int ws_endpoint_decode_values(const char *text, size_t len, size_t most, struct ws_values *out,
                              struct ws_err *err);

#endif
