/* SPDX-License-Identifier: Apache-2.0 */
/* http.c - calls in flight, and waiting for them. */
#include "http_core.h"

#include "wsync/tool/str.h"
#include "wsync/version.h"

#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_KEPT = 1024, LOG_BYTES = 2000 };

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

int ws_http_open(const struct ws_http_opts *opts, struct ws_http **out, struct ws_err *err)
{
	pthread_once(&once, init_global);
	if (global_result)
		return ws_err_set(err, WS_ESYSTEM, "libcurl: %s",
		                  curl_easy_strerror(global_result));
	struct ws_http *h = calloc(1, sizeof *h);
	if (!h || !(h->multi = curl_multi_init())) {
		free(h);
		return ws_oom(err);
	}
	h->connect_ns = opts->connect_ns > 0 ? opts->connect_ns : 10 * WS_NS_PER_S;
	h->max_reply = opts->max_reply ? opts->max_reply : (size_t)64 << 20;
	h->ca_system = ws_http_system_ca();
	h->log = opts->log;
	h->trace = opts->trace;
	/* By default libcurl keeps four times as many idle connections as there are requests in
	 * flight: when the last of a hundred replies arrives it closes the other connections
	 * one by one. */
	curl_multi_setopt(h->multi, CURLMOPT_MAXCONNECTS, (long)MAX_KEPT);
	if (ws_http_make_headers(h, opts->api_key, err) ||
	    (opts->ca_file && ws_http_take_ca_file(h, opts->ca_file, err))) {
		ws_http_close(h);
		return -1;
	}
	*out = h;
	return 0;
}

/* ---- calls in flight ---- */

static void link_flight(struct ws_http *h, struct ws_http_flight *f)
{
	f->next = h->flights;
	if (f->next)
		f->next->prev = f;
	h->flights = f;
	f->call->priv = f;
}

static bool left_completely(const struct ws_http_flight *f)
{
	long head = 0;
	curl_off_t body = 0;
	curl_easy_getinfo(f->easy, CURLINFO_REQUEST_SIZE, &head);
	curl_easy_getinfo(f->easy, CURLINFO_SIZE_UPLOAD_T, &body);
	return head > 0 && body >= 0 && (size_t)body >= f->call->body_len;
}

/* Updates the public progress of a call in flight. */
static void update_call(const struct ws_http_flight *f)
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

static CURL *take_handle(struct ws_http *h)
{
	return h->n_idle ? h->idle[--h->n_idle] : curl_easy_init();
}

/* reusable: the transfer succeeded. libcurl does not document what others leave in their handle.
 * Before 8.8 it keeps an errno, as of a name whose first address was refused. */
static void give_handle_back(struct ws_http *h, CURL *easy, bool reusable)
{
	long number = 0;
	curl_easy_getinfo(easy, CURLINFO_OS_ERRNO, &number);
	if (!reusable || number || h->n_idle == WS_HTTP_IDLE_HANDLES) {
		curl_easy_cleanup(easy);
		return;
	}
	curl_easy_reset(easy);
	h->idle[h->n_idle++] = easy;
}

static void unlink_flight(struct ws_http_flight *f, CURLcode code, bool reusable)
{
	struct ws_http_call *call = f->call;
	update_call(f);
	call->sent = call->sent || ws_http_was_sent_before(f, code);
	if (f->prev)
		f->prev->next = f->next;
	else
		f->http->flights = f->next;
	if (f->next)
		f->next->prev = f->prev;
	curl_multi_remove_handle(f->http->multi, f->easy);
	give_handle_back(f->http, f->easy, reusable);
	free(f);
	call->priv = NULL;
}

static void log_text(const struct ws_http *h, const char *what, const char *text, size_t len)
{
	if (!h->log || h->log->level < 2 || !len)
		return;
	char shown[LOG_BYTES + 1];
	struct ws_buf copy;
	ws_buf_init(&copy, len);
	ws_buf_add(&copy, text, len);
	ws_http_hide_keys(h, &copy, true);
	ws_printable(shown, sizeof shown, ws_buf_str(&copy), copy.len);
	ws_log(h->log, 2, "  %s %zu bytes: %s%s", what, len, shown,
	       copy.len > LOG_BYTES ? "..." : "");
	ws_buf_free(&copy);
}

int ws_http_start(struct ws_http *h, struct ws_http_call *call, struct ws_err *err)
{
	assert(!call->priv);
	assert(!strcmp(call->method, "POST") || !call->body_len);
	struct ws_http_flight *f = calloc(1, sizeof *f);
	CURL *easy = f ? take_handle(h) : NULL;
	if (!easy) {
		free(f);
		return ws_oom(err);
	}
	call->done = false;
	call->sent = false;
	call->status = 0;
	call->err = (struct ws_err)WS_ERR_INIT;
	ws_buf_free(&call->reply);
	ws_buf_init(&call->reply, h->max_reply);
	*f = (struct ws_http_flight){
		.http = h, .call = call, .easy = easy, .start_ns = ws_now_ns()
	};
	ws_http_prepare(f);
	const CURLMcode m = curl_multi_add_handle(h->multi, easy);
	if (m) {
		curl_easy_cleanup(easy);
		free(f);
		return ws_err_set(err, WS_ESYSTEM, "libcurl: %s", curl_multi_strerror(m));
	}
	link_flight(h, f);
	ws_http_trace_begin(f);
	log_text(h, "sending", call->body, call->body_len);
	return 0;
}

static void report_ended(const struct ws_http *h, const struct ws_http_call *call)
{
	if (h->watch.ended)
		h->watch.ended(h->watch.ctx, call);
}

void ws_http_drop(struct ws_http *h, struct ws_http_call *call)
{
	struct ws_http_flight *f = call->priv;
	if (!f)
		return;
	ws_http_trace_end(f, true);
	unlink_flight(f, CURLE_OK, false);
	ws_err_set(&call->err, WS_ECANCELLED, "%s %s: dropped", call->method, call->url);
	report_ended(h, call);
}

void ws_http_keep_names(struct ws_http *h, bool keep)
{
	h->keeps_names = keep;
}

void ws_http_watch(struct ws_http *h, const struct ws_http_watch *watch)
{
	h->watch = watch ? *watch : (struct ws_http_watch){ 0 };
}

void ws_http_each(struct ws_http *h, void (*see)(void *ctx, const struct ws_http_call *call),
                  void *ctx)
{
	for (const struct ws_http_flight *f = h->flights; f; f = f->next) {
		update_call(f);
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
	while (h->n_idle)
		curl_easy_cleanup(h->idle[--h->n_idle]);
	curl_multi_cleanup(h->multi);
	ws_http_free_headers(h);
	free(h->ca_file);
	free(h);
}

/* ---- waiting ---- */

static void finish(struct ws_http_flight *f, CURLcode code)
{
	struct ws_http_call *call = f->call;
	struct ws_http *h = f->http;
	const struct ws_log *log = h->log;
	char took[32];
	curl_easy_getinfo(f->easy, CURLINFO_RESPONSE_CODE, &call->status);
	if (call->status)
		h->answered |= ws_http_server_bit(call->url);
	if (code) {
		ws_http_explain(f, code, &call->err);
		call->err.native = (int)code;
	}
	ws_http_trace_end(f, false);
	unlink_flight(f, code, code == CURLE_OK);
	call->done = true;
	ws_http_hide_keys(h, &call->reply, call->status < 200 || call->status > 299);
	ws_format_duration(took, sizeof took, call->ns);
	if (code)
		ws_log(log, 1, "%s", call->err.msg);
	else
		ws_log(log, 1, "%s %s: HTTP %ld after %s", call->method, call->url, call->status,
		       took);
	log_text(h, "received", call->reply.data, call->reply.len);
	report_ended(h, call);
}

static int collect_done(struct ws_http *h)
{
	int n = 0, left;
	for (CURLMsg *msg; (msg = curl_multi_info_read(h->multi, &left));) {
		char *f = NULL;
		if (msg->msg != CURLMSG_DONE)
			continue;
		const CURLcode code = msg->data.result;
		curl_easy_getinfo(msg->easy_handle, CURLINFO_PRIVATE, &f);
		finish((struct ws_http_flight *)(void *)f, code);
		n++;
	}
	return n;
}

/* Limit of one poll: a cancel flag without a descriptor must be polled. */
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
		if (h->watch.turn)
			h->watch.turn(h->watch.ctx);
		CURLMcode m = curl_multi_perform(h->multi, &running);
		const int n = collect_done(h);
		if (n)
			return n;
		if (ws_cancelled(cancel))
			return ws_err_set(err, WS_ECANCELLED, "cancelled");
		if (ws_deadline_passed(until) ||
		    (!h->flights && wake_fd < 0 && until == WS_FOREVER))
			return 0;
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
