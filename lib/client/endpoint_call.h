/* SPDX-License-Identifier: Apache-2.0 */
/* endpoint_call.h - sends one request to an endpoint and reads its answer.
 *
 * Servers report failures in many forms: {"success":false,"message"}, {"error":{"message"}},
 * {"error":"..."}, {"object":"error","message"}, {"detail"}, plain text, an empty body, with or
 * without a fitting status. ws_endpoint_reply turns each form into one sentence. */
#ifndef WS_CLIENT_ENDPOINT_CALL_H
#define WS_CLIENT_ENDPOINT_CALL_H

#include "endpoint_weights.h"
#include "http.h"
#include "wsync/endpoint.h"
#include "wsync/tool/json_read.h"

enum { WS_PATH_MAX = 1024 }; /* path and query with the NUL */

/* The caller zeroes a call once, keeps it until it is done or dropped, then frees it. A call can be
 * started again after it is done. http.user belongs to the caller. */
struct ws_endpoint_call {
	struct ws_http_call http;
	char url[WS_URL_MAX + WS_PATH_MAX];
	size_t base_len;        /* length of the endpoint's part of url */
	char path[WS_PATH_MAX]; /* without its query, for messages */
	struct ws_json *root;   /* the parsed reply, owned; NULL: not read yet or not JSON */
	/* By ws_endpoint_reply, of an update: the weights were updated, but the cache was not
	 * flushed; the server refused before it loaded anything of this request. */
	bool unflushed, unloaded;
};

/* method "GET", "POST" or "OPTIONS"; path begins with "/" and may carry a query, which messages
 * leave out. body may be NULL; it is borrowed until the call is done. */
int ws_endpoint_prepare(struct ws_endpoint_call *call, const char *url, const char *method,
                        const char *path, const struct ws_buf *body, ws_deadline until,
                        struct ws_err *err);
/* The deadline of a question that follows another: `until`, but at least a second from now. A
 * server that answered the first one is not late because another one kept silent until then. */
ws_deadline ws_endpoint_later(ws_deadline until);
/* Prepares and starts the call. */
int ws_endpoint_start(struct ws_http *http, struct ws_endpoint_call *call, const char *url,
                      const char *method, const char *path, const struct ws_buf *body,
                      ws_deadline until, struct ws_err *err);
/* Starts all of the n calls that are prepared and waits for them. -1: cancelled or a system
 * error. */
int ws_endpoint_run(struct ws_http *http, struct ws_endpoint_call *calls, size_t n,
                    const struct ws_cancel *cancel, struct ws_err *err);

/* Reads the answer of a finished call. 0: the server confirmed the request, but for the flush if
 * call->unflushed is set. -1: the transport's
 * error, or WS_EREFUSED `POST /path: refused (HTTP 400): "server's message"` with the URL in
 * err->endpoint and the HTTP status in err->native. message (or NULL) gets the server's message in
 * both cases, or "". *root (root may be NULL) is the reply as JSON, NULL if it is not JSON. *root
 * is valid until ws_endpoint_call_free or the next start. */
int ws_endpoint_reply(struct ws_endpoint_call *call, const struct ws_json **root, char *message,
                      size_t n, struct ws_err *err);

/* True if the server refused and did nothing. False for the statuses of proxies (502 to 504, 408,
 * 425, 429): the server may have received the request. Also false for a 2xx reply that reports a
 * failure or does not confirm the request: the server may have executed it. */
bool ws_endpoint_said_no(const struct ws_err *err);
/* For an answer to ws_endpoint_flush: the server has requests, and flushes when it has none. */
bool ws_endpoint_is_busy(const struct ws_err *said);
/* A vLLM up to 0.25 answered the flush without saying whether it did it: an empty reply, with this
 * hint. */
extern const char ws_endpoint_silent_hint[];
bool ws_endpoint_is_silent_reset(const struct ws_err *said);
/* For an answer to ws_endpoint_destroy_group: the server did not know the group. */
bool ws_endpoint_knew_none(const struct ws_endpoint_answer *a);

/* A request with the same method and body to each endpoint. */
struct ws_lifecycle {
	const char *name; /* the phase of errors: "pause" */
	const char *method;
	const char *path;          /* for all endpoints, */
	const char *const *paths;  /* or one per endpoint; NULL: use path */
	const struct ws_buf *body; /* for all endpoints, NULL: none, */
	const struct ws_buf *bodies; /* or one per endpoint; NULL: use body */
};
/* Sends the request to all endpoints and fills one answer each, as endpoint.h describes. */
int ws_endpoint_tell(const struct ws_call *to, const struct ws_lifecycle *what,
                     struct ws_endpoint_answer *answers, struct ws_err *err);

/* Reads the answer of call i into ctx. errs[0..i) are filled already. Returns -1 with the reason in
 * errs[i]. */
typedef int ws_endpoint_reader(void *ctx, struct ws_endpoint_call *calls, size_t i,
                               struct ws_err *errs);
/* Ends a request to n endpoints: reads their answers, or copies *why to each of errs if *why is an
 * error. Frees the calls (NULL is fine). -1: *err is the first error. */
int ws_endpoint_take(struct ws_endpoint_call *calls, size_t n, const struct ws_err *why,
                     ws_endpoint_reader *read, void *ctx, struct ws_err *errs, struct ws_err *err);

/* Frees what the call owns. It must be done or dropped. NULL is fine. */
void ws_endpoint_call_free(struct ws_endpoint_call *call);

/* ---- parsing replies (no connection needed) ---- */

/* Copies the fields of a reply to *info; the other fields of *info stay unchanged. */
void ws_endpoint_decode_server_info(const struct ws_json *root, struct ws_endpoint_info *info);
/* Do these members of a config.json, which the server's arguments replace, include its sizes? */
bool ws_endpoint_overrides(const struct ws_json *overrides);
extern const char ws_overridden[]; /* info.path_unused then */
void ws_endpoint_decode_model_info(const struct ws_json *root, struct ws_endpoint_info *info);
/* WS_EREFUSED if root is malformed. The names point into root: set out->priv to root, then the
 * result's free function frees both. */
int ws_endpoint_decode_weights(const struct ws_json *root, struct ws_weight_list *out,
                               struct ws_err *err);
/* As ws_weight_list_share. */
int ws_checksums_share(struct ws_checksums *from, struct ws_checksums *to);
int ws_endpoint_decode_checksums(const struct ws_json *root, struct ws_checksums *out,
                                 struct ws_err *err);
/* vllm_checksums.c: the same of vLLM's reply. */
int ws_vllm_decode_checksums(const struct ws_json *root, struct ws_checksums *out,
                             struct ws_err *err);
/* endpoint_ranks.c: reads which rank entry i of "ranks" comes from, into c->ranks[i]. */
int ws_endpoint_decode_rank(const struct ws_json *entry, struct ws_checksums *c, size_t i,
                            struct ws_err *err);
/* Sorts the ranks. Both fail with WS_EREFUSED and set c->contradicts. */
int ws_endpoint_check_ranks(struct ws_checksums *c, struct ws_err *err);
/* Parses the text of a reply: nested arrays of at most `most` numbers. */
int ws_endpoint_decode_values(const char *text, size_t len, size_t most, struct ws_values *out,
                              struct ws_err *err);

#endif
