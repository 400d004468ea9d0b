/* SPDX-License-Identifier: Apache-2.0 */
/* http.c - the only file that knows libcurl.
 *
 * A POST is sent at most once. libcurl repeats a request by itself when a kept-alive connection
 * turns out to be dead before a byte of the reply came, and would do so for a POST on which the
 * server may have acted. It can only do that when it can rewind the body: bodies are therefore
 * given to it through a read function that cannot seek, and a POST without a body never uses an old
 * connection. What then may still be repeated is a GET, or a POST of which no body byte had left.
 *
 * Python servers close idle connections after 5 s, so none is used again that was idle for more
 * than 3. */
#include "http.h"

#include "wsync/str.h"
#include "wsync/version.h"

#include <arpa/inet.h>
#include <assert.h>
#include <curl/curl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_IDLE_S = 3, MAX_KEPT = 1024, LOG_BYTES = 2000 };

struct ws_http {
	CURLM *multi;
	struct curl_slist *headers; /* of every request with a body */
	struct curl_slist *plain;   /* of every other request */
	int64_t connect_ns;
	size_t max_reply;
	const struct ws_log *log;
	struct flight *flights;     /* in flight */
	struct ws_http_watch watch;
};

/* What a call needs while it is in flight. */
struct flight {
	struct ws_http *http;
	struct ws_http_call *call;
	CURL *easy;
	size_t body_at;             /* bytes of the body that libcurl took */
	int64_t start_ns;
	struct flight *prev, *next;
	char reason[CURL_ERROR_SIZE];
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static CURLcode global_result;

static void init_global(void)
{
	global_result = curl_global_init(CURL_GLOBAL_DEFAULT);
}

const char *ws_http_library(void)
{
	pthread_once(&once, init_global);
	return curl_version();
}

/* ---- opening ---- */

static void free_headers(struct curl_slist *list)
{
	for (struct curl_slist *h = list; h; h = h->next)
		explicit_bzero(h->data, strlen(h->data)); /* one of them is the key */
	curl_slist_free_all(list);
}

static int add_header(struct curl_slist **list, const char *text, struct ws_err *err)
{
	struct curl_slist *grown = curl_slist_append(*list, text);
	if (!grown)
		return ws_err_set(err, WS_ESYSTEM, "out of memory");
	*list = grown;
	return 0;
}

static int add_key(struct ws_http *h, const char *key, struct ws_err *err)
{
	for (const char *p = key; *p; p++)
		if ((unsigned char)*p < 0x20 || *p == 0x7f)
			return ws_err_set(err, WS_EUSAGE, "API key: has control characters");
	struct ws_buf line;
	ws_buf_init(&line, 64 * 1024);
	ws_buf_printf(&line, "Authorization: Bearer %s", key);
	int rc = ws_buf_check(&line, "API key", err);
	if (!rc)
		rc = add_header(&h->headers, line.data, err);
	if (!rc)
		rc = add_header(&h->plain, line.data, err);
	if (line.data)
		explicit_bzero(line.data, line.cap);
	ws_buf_free(&line);
	return rc;
}

int ws_http_open(const struct ws_http_opts *opts, struct ws_http **out, struct ws_err *err)
{
	pthread_once(&once, init_global);
	if (global_result)
		return ws_err_set(err, WS_ESYSTEM, "libcurl: %s",
		                  curl_easy_strerror(global_result));
	struct ws_http *h = calloc(1, sizeof *h);
	if (!h || !(h->multi = curl_multi_init())) {
		free(h);
		return ws_err_set(err, WS_ESYSTEM, "out of memory");
	}
	h->connect_ns = opts->connect_ns > 0 ? opts->connect_ns : 10 * WS_NS_PER_S;
	h->max_reply = opts->max_reply ? opts->max_reply : (size_t)64 << 20;
	h->log = opts->log;
	/* By itself libcurl keeps four times as many idle connections as there are requests in flight: as the
	 * last of a hundred answers comes in, that closes those of the others, one after the other. */
	curl_multi_setopt(h->multi, CURLMOPT_MAXCONNECTS, (long)MAX_KEPT);
	if (add_header(&h->headers, "Content-Type: application/json", err) ||
	    /* Without this a large body waits for a "100 Continue" that few servers send. */
	    add_header(&h->headers, "Expect:", err) ||
	    (opts->api_key && add_key(h, opts->api_key, err))) {
		ws_http_close(h);
		return -1;
	}
	*out = h;
	return 0;
}

/* ---- one call ---- */

static size_t take_reply(char *bytes, size_t size, size_t n, void *user)
{
	struct flight *f = user;
	return ws_buf_add(&f->call->reply, bytes, size * n) ? 0 : size * n;
}

static size_t give_body(char *dst, size_t size, size_t n, void *user)
{
	struct flight *f = user;
	const size_t left = f->call->body_len - f->body_at;
	if (!left) /* a repetition that did not rewind: better an error than a body cut short */
		return CURL_READFUNC_ABORT;
	const size_t take = left < size * n ? left : size * n;
	memcpy(dst, f->call->body + f->body_at, take);
	f->body_at += take;
	return take;
}

/* By its text alone: a name that must be looked up could block. */
static bool names_loopback(const char *url)
{
	const char *host = strstr(url, "://");
	host = host ? host + 3 : url;
	char name[256];
	const bool bracket = *host == '[';
	host += bracket;
	const size_t n = strcspn(host, bracket ? "]" : ":/?#");
	if (n >= sizeof name)
		return false;
	memcpy(name, host, n);
	name[n] = '\0';
	struct in_addr v4;
	struct in6_addr v6;
	if (inet_pton(AF_INET, name, &v4) == 1)
		return ntohl(v4.s_addr) >> 24 == 127;
	if (inet_pton(AF_INET6, name, &v6) == 1)
		return IN6_IS_ADDR_LOOPBACK(&v6) ||
		       (IN6_IS_ADDR_V4MAPPED(&v6) && v6.s6_addr[12] == 127);
	const char *localhost = "localhost";
	const size_t m = strlen(localhost);
	return n >= m && !strcasecmp(name + n - m, localhost) && (n == m || name[n - m - 1] == '.');
}

static long limit_ms(int64_t ns)
{
	const int64_t ms = ns / WS_NS_PER_MS + 1; /* 0 would mean no limit */
	return ms > INT32_MAX ? INT32_MAX : (long)ms;
}

static void set_limits(const struct ws_http *h, CURL *easy, const struct ws_http_call *call)
{
	if (call->until != WS_FOREVER)
		curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, limit_ms(ws_deadline_left(call->until)));
	curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, limit_ms(h->connect_ns));
	curl_easy_setopt(easy, CURLOPT_MAXFILESIZE_LARGE, (curl_off_t)h->max_reply);
	curl_easy_setopt(easy, CURLOPT_MAXAGE_CONN, (long)MAX_IDLE_S);
	curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
	curl_easy_setopt(easy, CURLOPT_TCP_NODELAY, 1L);
	curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
	curl_easy_setopt(easy, CURLOPT_DISALLOW_USERNAME_IN_URL, 1L);
#if LIBCURL_VERSION_NUM >= 0x075500
	curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
#else
	curl_easy_setopt(easy, CURLOPT_PROTOCOLS, (long)(CURLPROTO_HTTP | CURLPROTO_HTTPS));
#endif
#if LIBCURL_VERSION_NUM >= 0x075700
	/* A name that is being looked up in a thread must not hold up a deadline or a cancel. */
	curl_easy_setopt(easy, CURLOPT_QUICK_EXIT, 1L);
#endif
	if (names_loopback(call->url))
		curl_easy_setopt(easy, CURLOPT_NOPROXY, "*");
}

static void set_request(const struct ws_http *h, CURL *easy, struct flight *f)
{
	const struct ws_http_call *call = f->call;
	curl_easy_setopt(easy, CURLOPT_URL, call->url);
	curl_easy_setopt(easy, CURLOPT_PRIVATE, (void *)f);
	curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, f->reason);
	curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, take_reply);
	curl_easy_setopt(easy, CURLOPT_WRITEDATA, (void *)f);
	curl_easy_setopt(easy, CURLOPT_USERAGENT, "wsync/" WSYNC_VERSION);
	if (strcmp(call->method, "POST")) {
		if (strcmp(call->method, "GET"))
			curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, call->method);
		curl_easy_setopt(easy, CURLOPT_HTTPHEADER, h->plain);
		return;
	}
	curl_easy_setopt(easy, CURLOPT_POST, 1L);
	curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)call->body_len);
	curl_easy_setopt(easy, CURLOPT_READFUNCTION, give_body);
	curl_easy_setopt(easy, CURLOPT_READDATA, (void *)f);
	curl_easy_setopt(easy, CURLOPT_HTTPHEADER, h->headers);
	if (!call->body_len)
		curl_easy_setopt(easy, CURLOPT_FRESH_CONNECT, 1L);
}

static void link_flight(struct ws_http *h, struct flight *f)
{
	f->next = h->flights;
	if (f->next)
		f->next->prev = f;
	h->flights = f;
	f->call->priv = f;
}

static bool left_completely(const struct flight *f)
{
	long head = 0;
	curl_off_t body = 0;
	curl_easy_getinfo(f->easy, CURLINFO_REQUEST_SIZE, &head);
	curl_easy_getinfo(f->easy, CURLINFO_SIZE_UPLOAD_T, &body);
	return head > 0 && body >= 0 && (size_t)body >= f->call->body_len;
}

/* What is known of a call on its way. */
static void look(const struct flight *f)
{
	struct ws_http_call *call = f->call;
	curl_off_t connected = 0;
	long status = 0;
	char *address = NULL;
	curl_easy_getinfo(f->easy, CURLINFO_PRETRANSFER_TIME_T, &connected);
	curl_easy_getinfo(f->easy, CURLINFO_RESPONSE_CODE, &status);
	curl_easy_getinfo(f->easy, CURLINFO_PRIMARY_IP, &address);
	call->sent = left_completely(f);
	call->ns = ws_now_ns() - f->start_ns;
	call->stage = status > 0      ? WS_HTTP_ANSWERING
	              : connected <= 0 ? WS_HTTP_CONNECTING
	              : call->sent     ? WS_HTTP_SENT : WS_HTTP_SENDING;
	snprintf(call->address, sizeof call->address, "%s", address ? address : "");
}

/* When a repetition is refused, by us or by a port where nobody listens any more, libcurl has forgotten
 * what the first attempt sent. */
static bool was_sent_before(const struct flight *f, CURLcode code)
{
	const size_t n = f->call->body_len;
	return code == CURLE_SEND_FAIL_REWIND ||
	       (code == CURLE_COULDNT_CONNECT && n && f->body_at == n);
}

static void unlink_flight(struct flight *f, CURLcode code)
{
	struct ws_http_call *call = f->call;
	look(f);
	call->sent = call->sent || was_sent_before(f, code);
	if (f->prev)
		f->prev->next = f->next;
	else
		f->http->flights = f->next;
	if (f->next)
		f->next->prev = f->prev;
	curl_multi_remove_handle(f->http->multi, f->easy);
	curl_easy_cleanup(f->easy);
	free(f);
	call->priv = NULL;
}

static void log_text(const struct ws_log *log, const char *what, const char *text, size_t len)
{
	if (!log || log->level < 2 || !len)
		return;
	char shown[LOG_BYTES + 1];
	ws_printable(shown, sizeof shown, text, len);
	ws_log(log, 2, "  %s %zu bytes: %s%s", what, len, shown, len > LOG_BYTES ? "..." : "");
}

int ws_http_start(struct ws_http *h, struct ws_http_call *call, struct ws_err *err)
{
	assert(!call->priv);
	assert(!strcmp(call->method, "POST") || !call->body_len);
	struct flight *f = calloc(1, sizeof *f);
	CURL *easy = f ? curl_easy_init() : NULL;
	if (!easy) {
		free(f);
		return ws_err_set(err, WS_ESYSTEM, "out of memory");
	}
	call->done = false;
	call->sent = false;
	call->status = 0;
	call->err = (struct ws_err)WS_ERR_INIT;
	ws_buf_free(&call->reply);
	ws_buf_init(&call->reply, h->max_reply);
	*f = (struct flight){ .http = h, .call = call, .easy = easy, .start_ns = ws_now_ns() };
	set_limits(h, easy, call);
	set_request(h, easy, f);
	const CURLMcode m = curl_multi_add_handle(h->multi, easy);
	if (m) {
		curl_easy_cleanup(easy);
		free(f);
		return ws_err_set(err, WS_ESYSTEM, "libcurl: %s", curl_multi_strerror(m));
	}
	link_flight(h, f);
	log_text(h->log, "sending", call->body, call->body_len);
	return 0;
}

static void tell_ended(const struct ws_http *h, const struct ws_http_call *call)
{
	if (h->watch.ended)
		h->watch.ended(h->watch.ctx, call);
}

void ws_http_drop(struct ws_http *h, struct ws_http_call *call)
{
	struct flight *f = call->priv;
	if (!f)
		return;
	unlink_flight(f, CURLE_OK);
	ws_err_set(&call->err, WS_ECANCELLED, "%s %s: dropped", call->method, call->url);
	tell_ended(h, call);
}

void ws_http_watch(struct ws_http *h, const struct ws_http_watch *watch)
{
	h->watch = watch ? *watch : (struct ws_http_watch){ 0 };
}

void ws_http_each(struct ws_http *h, void (*see)(void *ctx, const struct ws_http_call *call), void *ctx)
{
	for (const struct flight *f = h->flights; f; f = f->next) {
		look(f);
		see(ctx, f->call);
	}
}

void ws_http_close(struct ws_http *h)
{
	if (!h)
		return;
	ws_http_watch(h, NULL);
	while (h->flights)
		ws_http_drop(h, h->flights->call);
	curl_multi_cleanup(h->multi);
	free_headers(h->headers);
	free_headers(h->plain);
	free(h);
}

/* ---- how a call ended ---- */

static int explain_timeout(const struct flight *f, struct ws_err *err)
{
	const struct ws_http_call *call = f->call;
	char took[32];
	ws_format_duration(took, sizeof took, ws_now_ns() - f->start_ns);
	curl_off_t connected = 0;
	curl_easy_getinfo(f->easy, CURLINFO_PRETRANSFER_TIME_T, &connected);
	if (connected > 0)
		return ws_err_set(err, WS_ETIMEOUT, "%s %s: no complete answer after %s",
		                  call->method, call->url, took);
	/* The call's own deadline is "out of time", the limit for connecting "not reached". */
	return ws_err_set(err, ws_deadline_passed(call->until) ? WS_ETIMEOUT : WS_EREACH,
	                  "%s %s: no connection after %s", call->method, call->url, took);
}

static int explain_connect(const struct flight *f, struct ws_err *err)
{
	const struct ws_http_call *call = f->call;
	long number = 0;
	curl_easy_getinfo(f->easy, CURLINFO_OS_ERRNO, &number);
	ws_err_set(err, WS_EREACH, "%s %s: cannot connect%s%s", call->method, call->url,
	           number > 0 ? ": " : "", number > 0 ? strerror((int)number) : "");
	return ws_err_hint(err, "is the server running, and is this its address and port?");
}

/* The connection broke after the request, or a part of it, had left. */
static int explain_lost(const struct flight *f, const char *what, struct ws_err *err)
{
	ws_err_set(err, WS_EREACH, "%s %s: %s", f->call->method, f->call->url, what);
	return ws_err_hint(err, "the server may have died or been restarted: look at its log");
}

static int explain_rest(const struct flight *f, CURLcode code, struct ws_err *err)
{
	char reason[CURL_ERROR_SIZE];
	const char *text = f->reason[0] ? f->reason : curl_easy_strerror(code);
	ws_printable(reason, sizeof reason, text, strlen(text));
	return ws_err_set(err, code == CURLE_OUT_OF_MEMORY ? WS_ESYSTEM : WS_EREACH, "%s %s: %s",
	                  f->call->method, f->call->url, reason);
}

static int explain(const struct flight *f, CURLcode code, struct ws_err *err)
{
	const struct ws_http_call *call = f->call;
	char limit[32];
	switch (code) {
	case CURLE_OPERATION_TIMEDOUT:
		return explain_timeout(f, err);
	case CURLE_COULDNT_RESOLVE_HOST:
		ws_err_set(err, WS_EREACH, "%s %s: host name not found", call->method, call->url);
		return -1;
	case CURLE_COULDNT_CONNECT:
		if (was_sent_before(f, code))
			return explain_lost(f, "connection closed without an answer, and nobody listens "
			                       "there any more", err);
		return explain_connect(f, err);
	case CURLE_WRITE_ERROR:
	case CURLE_FILESIZE_EXCEEDED:
		return ws_err_set(err, WS_EREACH, "%s %s: the answer is longer than %s",
		                  call->method, call->url,
		                  ws_format_size(limit, sizeof limit, f->http->max_reply));
	case CURLE_GOT_NOTHING:
		return explain_lost(f, "connection closed without an answer", err);
	case CURLE_RECV_ERROR:
		return explain_lost(f, "connection lost before the answer was complete", err);
	case CURLE_SEND_ERROR:
		return explain_lost(f, "connection lost while the request was being sent", err);
	case CURLE_PARTIAL_FILE:
		return explain_lost(f, "connection closed before the answer was complete", err);
	case CURLE_SEND_FAIL_REWIND:
		return explain_lost(f, "connection closed without an answer; not sent again, as "
		                       "the server may have acted on it", err);
	case CURLE_SSL_CONNECT_ERROR:
		explain_rest(f, code, err);
		return ws_err_hint(err, "does this server speak https? one without it wants http://");
	case CURLE_UNSUPPORTED_PROTOCOL:
	case CURLE_WEIRD_SERVER_REPLY:
		ws_err_set(err, WS_EREACH, "%s %s: the answer is not HTTP", call->method,
		           call->url);
		return ws_err_hint(err,
		                   "does another service listen on this port, or one with https?");
	default:
		return explain_rest(f, code, err);
	}
}

static void finish(struct flight *f, CURLcode code)
{
	struct ws_http_call *call = f->call;
	const struct ws_http *h = f->http;
	const struct ws_log *log = h->log;
	char took[32];
	curl_easy_getinfo(f->easy, CURLINFO_RESPONSE_CODE, &call->status);
	if (code) {
		explain(f, code, &call->err);
		call->err.native = (int)code;
	}
	unlink_flight(f, code);
	call->done = true;
	ws_format_duration(took, sizeof took, call->ns);
	if (code)
		ws_log(log, 1, "%s", call->err.msg);
	else
		ws_log(log, 1, "%s %s: HTTP %ld after %s", call->method, call->url, call->status,
		       took);
	log_text(log, "received", call->reply.data, call->reply.len);
	tell_ended(h, call);
}

/* ---- waiting ---- */

static int collect_done(struct ws_http *h)
{
	int n = 0, left;
	for (CURLMsg *msg; (msg = curl_multi_info_read(h->multi, &left));) {
		char *f = NULL;
		if (msg->msg != CURLMSG_DONE)
			continue;
		const CURLcode code = msg->data.result;
		curl_easy_getinfo(msg->easy_handle, CURLINFO_PRIVATE, &f);
		finish((struct flight *)(void *)f, code);
		n++;
	}
	return n;
}

/* How long one poll may last: a cancel flag without a descriptor has to be looked at. */
static int poll_ms(const struct ws_http *h, ws_deadline until, const struct ws_cancel *cancel)
{
	const bool blind = cancel && ws_cancel_fd(cancel) < 0;
	return ws_deadline_poll_ms(until, blind ? 100 : h->watch.turn ? 1000 : 60 * 1000);
}

int ws_http_wait(struct ws_http *h, ws_deadline until, const struct ws_cancel *cancel, int wake_fd,
                 struct ws_err *err)
{
	for (;;) {
		int running;
		CURLMcode m = curl_multi_perform(h->multi, &running);
		const int n = collect_done(h);
		if (n)
			return n;
		if (ws_cancelled(cancel))
			return ws_err_set(err, WS_ECANCELLED, "cancelled");
		if (ws_deadline_passed(until) ||
		    (!h->flights && wake_fd < 0 && until == WS_FOREVER))
			return 0;
		if (h->watch.turn)
			h->watch.turn(h->watch.ctx);
		struct curl_waitfd fds[2];
		unsigned n_fds = 0;
		if (wake_fd >= 0)
			fds[n_fds++] = (struct curl_waitfd){ wake_fd, CURL_WAIT_POLLIN, 0 };
		if (ws_cancel_fd(cancel) >= 0)
			fds[n_fds++] = (struct curl_waitfd){ ws_cancel_fd(cancel),
			                                     CURL_WAIT_POLLIN, 0 };
		if (!m)
			m = curl_multi_poll(h->multi, fds, n_fds, poll_ms(h, until, cancel), NULL);
		if (m)
			return ws_err_set(err, WS_ESYSTEM, "libcurl: %s", curl_multi_strerror(m));
		if (wake_fd >= 0 && fds[0].revents)
			return 0;
	}
}

int ws_http_run(struct ws_http *h, struct ws_http_call *const *calls, size_t n,
                const struct ws_cancel *cancel, struct ws_err *err)
{
	size_t started = 0, done = 0;
	int rc = 0;
	for (; !rc && started < n; started += !rc)
		rc = ws_http_start(h, calls[started], err);
	while (!rc && done < n) {
		rc = ws_http_wait(h, WS_FOREVER, cancel, -1, err) < 0 ? -1 : 0;
		done = 0;
		for (size_t i = 0; i < n; i++)
			done += calls[i]->done;
	}
	for (size_t i = 0; rc && i < started; i++)
		ws_http_drop(h, calls[i]);
	return rc;
}
