/* SPDX-License-Identifier: Apache-2.0 */
/* http_core.h - shared by the files that implement http.h, the only ones that use libcurl.
 *
 *   http.c          the calls in flight, and waiting for them
 *   http_request.c  sets up a call in libcurl: headers, body, limits
 *   http_hide.c     hides our keys in what servers reply
 *   http_explain.c  turns the end of a call into an error message
 *   http_trace.c    turns a call into a trace span */
#ifndef WS_NET_HTTP_CORE_H
#define WS_NET_HTTP_CORE_H

#include "http.h"

#include <curl/curl.h>

enum {
	WS_HTTP_HEAD_MAX = 256 * 1024, /* limit of a reply's headers and trailers together */
	WS_HTTP_IDLE_HANDLES = 64,
};

/* A key, or its base64. */
struct ws_http_secret {
	char *text;
	size_t n;
	bool base64;
};

struct ws_http {
	CURLM *multi;
	/* headers of requests with a body, and of others; [1]: with the key of administrators */
	struct curl_slist *headers[2], *plain[2];
	bool two_keys;              /* that key is not the key of other requests */
	struct ws_http_secret secrets[8]; /* both keys, and three forms of each in base64 */
	size_t n_secrets;
	bool starts[256];           /* the bytes with which a key, or "Bearer", may begin */
	char *ca_file;              /* NULL: the system's */
	const char *ca_system;      /* where that is; NULL: where libcurl looks */
	int64_t connect_ns;
	size_t max_reply;
	bool keeps_names;
	/* servers that have sent HTTP replies: one bit each, by the hash of host and port */
	uint64_t answered;
	const struct ws_log *log;
	struct ws_trace *trace;
	struct ws_http_flight *flights;
	CURL *idle[WS_HTTP_IDLE_HANDLES]; /* of ended calls, for the next ones: curl_easy_init is
	                                   * a tenth of a small request */
	size_t n_idle;
	struct ws_http_watch watch;
};

/* State of a call in flight. */
struct ws_http_flight {
	struct ws_http *http;
	struct ws_http_call *call;
	CURL *easy;
	size_t body_at;             /* bytes of the body that libcurl has read */
	uint8_t stray[32];          /* first bytes of a reply that is not HTTP */
	size_t n_stray;
	size_t head_bytes;          /* bytes of the reply's headers and trailers */
	int64_t start_ns;
	uint64_t span;              /* of the trace */
	struct ws_http_flight *prev, *next;
	char reason[CURL_ERROR_SIZE];
};

/* Makes the headers of every request; api_key as in ws_http_opts. */
int ws_http_make_headers(struct ws_http *h, const char *api_key, struct ws_err *err);
void ws_http_free_headers(struct ws_http *h);
/* Remembers a key for ws_http_hide_keys. */
int ws_http_hide_key(struct ws_http *h, const char *key, size_t n, struct ws_err *err);
void ws_http_forget_keys(struct ws_http *h);
/* Replaces the keys in a server's text by "***". words: also short keys that are whole words, so
 * not in a reply that says more than an error. */
void ws_http_hide_keys(const struct ws_http *h, struct ws_buf *text, bool words);
/* A libcurl that comes from another system, as in our wheel, looks for certificates where that one
 * has them. Returns where this one has them, NULL if libcurl finds them. */
const char *ws_http_system_ca(void);
/* Checks a file of certificates. WS_EINPUT: it has none. */
int ws_http_take_ca_file(struct ws_http *h, const char *path, struct ws_err *err);
/* Sets up f's handle before it starts. */
void ws_http_prepare(struct ws_http_flight *f);

/* True if the call failed in a retry, refused by us or by a closed port, after the first attempt
 * sent the request. libcurl does not report that. */
bool ws_http_was_sent_before(const struct ws_http_flight *f, CURLcode code);
/* The server's bit in `answered`; servers may share a bit. */
uint64_t ws_http_server_bit(const char *url);
/* Sets the error of a failed call. Returns -1. */
int ws_http_explain(const struct ws_http_flight *f, CURLcode code, struct ws_err *err);

void ws_http_trace_begin(struct ws_http_flight *f);
/* Called when a call ends; its call has the result, unless it was dropped. */
void ws_http_trace_end(const struct ws_http_flight *f, bool dropped);

#endif
