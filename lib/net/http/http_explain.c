/* SPDX-License-Identifier: Apache-2.0 */
/* http_explain.c - turns the end of a call into an error message with a hint. */
#include "http_core.h"

#include "hash.h"

#include "wsync/tool/str.h"

#include <stdio.h>
#include <string.h>

bool ws_http_was_sent_before(const struct ws_http_flight *f, CURLcode code)
{
	const size_t n = f->call->body_len;
	return code == CURLE_SEND_FAIL_REWIND ||
	       (code == CURLE_COULDNT_CONNECT && n && f->body_at == n);
}

static int hint_at_connecting(const struct ws_http_flight *f, const char *otherwise,
                              struct ws_err *err)
{
	const unsigned port = ws_http_assumed_port(f->call->url);
	if (port)
		return ws_err_hint(
			err,
			"no port is given, so this was port %u: inference servers listen on 30000 "
			"unless they are told otherwise",
			port);
	return otherwise ? ws_err_hint(err, "%s", otherwise) : -1;
}

static int explain_timeout(const struct ws_http_flight *f, struct ws_err *err)
{
	const struct ws_http_call *call = f->call;
	char took[32];
	ws_format_duration(took, sizeof took, ws_now_ns() - f->start_ns);
	curl_off_t connected = 0;
	curl_easy_getinfo(f->easy, CURLINFO_PRETRANSFER_TIME_T, &connected);
	if (connected > 0)
		return ws_err_set(err, WS_ETIMEOUT, "%s %s: no complete answer after %s",
		                  call->method, call->url, took);
	/* The call's own deadline is a timeout; the limit for connecting means not reached. */
	ws_err_set(err, ws_deadline_passed(call->until) ? WS_ETIMEOUT : WS_EREACH,
	           "%s %s: no connection after %s", call->method, call->url, took);
	return hint_at_connecting(f, NULL, err);
}

static int explain_connect(const struct ws_http_flight *f, struct ws_err *err)
{
	const struct ws_http_call *call = f->call;
	long number = 0;
	curl_easy_getinfo(f->easy, CURLINFO_OS_ERRNO, &number);
	ws_err_set(err, WS_EREACH, "%s %s: cannot connect%s%s", call->method, call->url,
	           number > 0 ? ": " : "", number > 0 ? strerror((int)number) : "");
	return hint_at_connecting(f, "is the server running, and is this its address and port?",
	                          err);
}

static int explain_rest(const struct ws_http_flight *f, CURLcode code, struct ws_err *err)
{
	char reason[CURL_ERROR_SIZE], text[CURL_ERROR_SIZE];
	snprintf(text, sizeof text, "%s", f->reason[0] ? f->reason : curl_easy_strerror(code));
	/* libcurl quotes the proxy of the environment, and cuts what is longer. */
	ws_hide_passwords(text, strlen(text) == sizeof text - 1);
	ws_printable(reason, sizeof reason, text, strlen(text));
	return ws_err_set(err, code == CURLE_OUT_OF_MEMORY ? WS_ESYSTEM : WS_EREACH, "%s %s: %s",
	                  f->call->method, f->call->url, reason);
}

/* ---- http where https is spoken, and the other way round ---- */

static bool is_http(const char *url)
{
	return strncasecmp(url, "http://", 7) == 0;
}

/* The same server with the other scheme: "https://gpu7:30000". A URL without a port gets the
 * old scheme's default port. */
static const char *other_url(const char *url, char *dst, size_t n)
{
	const char *host = strstr(url, "://");
	const unsigned port = ws_http_assumed_port(url);
	char number[16] = "";
	host = host ? host + 3 : url;
	if (port)
		snprintf(number, sizeof number, ":%u", port);
	snprintf(dst, n, "%s://%.*s%s", is_http(url) ? "https" : "http", (int)strcspn(host, "/?#"),
	         host, number);
	return dst;
}

/* True for a TLS 1.x record, such as an alert: the reply of a TLS server to plain HTTP. */
static bool is_tls(const uint8_t *bytes, size_t n)
{
	return n >= 2 && bytes[0] >= 20 && bytes[0] <= 23 && bytes[1] == 3;
}

static int explain_stray(const struct ws_http_flight *f, struct ws_err *err)
{
	const struct ws_http_call *call = f->call;
	char text[sizeof f->stray + 1], other[300];
	size_t n = 0;
	while (n < f->n_stray && f->stray[n] >= 0x20)
		n++;
	if (is_http(call->url) && is_tls(f->stray, f->n_stray)) {
		ws_err_set(err, WS_EREACH, "%s %s: the answer is not HTTP, but TLS", call->method,
		           call->url);
		return ws_err_hint(err, "this server's URL is %s",
		                   other_url(call->url, other, sizeof other));
	}
	ws_err_set(err, WS_EREACH, "%s %s: the answer is not HTTP: it begins with \"%s\"",
	           call->method, call->url,
	           ws_printable(text, sizeof text, (const char *)f->stray, n ? n : f->n_stray));
	return ws_err_hint(err, "does another service listen on this port?");
}

/* Messages of OpenSSL and GnuTLS for a server that does not speak TLS. */
static bool was_plain(const char *reason)
{
	static const char *const says[] = { "wrong version number", "unexpected TLS packet",
		                            "packet length too long", "http request" };
	for (size_t i = 0; i < sizeof says / sizeof says[0]; i++)
		if (strcasestr(reason, says[i]))
			return true;
	return false;
}

static int explain_tls(const struct ws_http_flight *f, CURLcode code, struct ws_err *err)
{
	const struct ws_http_call *call = f->call;
	char other[300];
	other_url(call->url, other, sizeof other);
	if (!was_plain(f->reason)) {
		explain_rest(f, code, err);
		return ws_err_hint(err, "does this server speak https? if not, its URL is %s",
		                   other);
	}
	ws_err_set(err, WS_EREACH, "%s %s: the answer is not TLS", call->method, call->url);
	return ws_err_hint(err, "a server that speaks plain HTTP has the URL %s", other);
}

/* ---- a connection that broke after the request, or a part of it, had left ---- */

static int explain_dead(const struct ws_http_flight *f, const char *what, struct ws_err *err)
{
	ws_err_set(err, WS_EREACH, "%s %s: %s", f->call->method, f->call->url, what);
	return ws_err_hint(err, "the server may have died or been restarted: look at its log");
}

uint64_t ws_http_server_bit(const char *url)
{
	const char *host = strstr(url, "://");
	host = host ? host + 3 : url;
	return UINT64_C(1) << ws_hash64(host, strcspn(host, "/?#")) % 64;
}

/* OpenSSL servers close the connection silently on plain HTTP. A server that has sent an HTTP
 * reply, or part of one, does not speak TLS. */
static int explain_lost(const struct ws_http_flight *f, const char *what, struct ws_err *err)
{
	const struct ws_http_call *call = f->call;
	char other[300];
	explain_dead(f, what, err);
	if (!is_http(call->url) || f->http->answered & ws_http_server_bit(call->url))
		return -1;
	return ws_err_hint(err,
	                   "the server may have died or been restarted: look at its log; or it "
	                   "speaks TLS: then its URL is %s",
	                   other_url(call->url, other, sizeof other));
}

/* ---- trust ---- */

/* Unknown issuer, expired, or another host: only libcurl's message tells which. */
static int explain_distrust(const struct ws_http_flight *f, CURLcode code, struct ws_err *err)
{
	explain_rest(f, code, err);
	if (strstr(f->reason, "host name"))
		return ws_err_hint(err, "is this the name that the server's certificate is for?");
	return ws_err_hint(err, "{ca_file} FILE names the certificate of who signed the server's, "
	                        "or the server's own");
}

/* An invalid certificate file shows only when it is used. */
static int explain_bad_trust(const struct ws_http_flight *f, CURLcode code, struct ws_err *err)
{
	if (!f->http->ca_file)
		return explain_rest(f, code, err);
	return ws_err_set(err, WS_EINPUT, "%s: its certificates cannot be read", f->http->ca_file);
}

static int explain_length(const struct ws_http_flight *f, struct ws_err *err)
{
	const bool head = f->head_bytes > WS_HTTP_HEAD_MAX;
	char limit[32];
	ws_format_size(limit, sizeof limit, head ? WS_HTTP_HEAD_MAX : f->http->max_reply);
	return ws_err_set(err, WS_EREACH, "%s %s: the answer%s longer than %s", f->call->method,
	                  f->call->url, head ? "'s headers are" : " is", limit);
}

/* ---- all of it ---- */

int ws_http_explain(const struct ws_http_flight *f, CURLcode code, struct ws_err *err)
{
	const struct ws_http_call *call = f->call;
	if (f->n_stray)
		return explain_stray(f, err);
	switch (code) {
	case CURLE_OPERATION_TIMEDOUT:
		return explain_timeout(f, err);
	case CURLE_COULDNT_RESOLVE_HOST:
		ws_err_set(err, WS_EREACH, "%s %s: host name not found", call->method, call->url);
		return -1;
	case CURLE_COULDNT_CONNECT:
		if (ws_http_was_sent_before(f, code))
			return explain_dead(
				f,
				"connection closed without an answer, and nothing listens "
				"there any more",
				err);
		return explain_connect(f, err);
	case CURLE_WRITE_ERROR:
	case CURLE_FILESIZE_EXCEEDED:
		return explain_length(f, err);
	case CURLE_GOT_NOTHING:
		return explain_lost(f, "connection closed without an answer", err);
	case CURLE_RECV_ERROR:
		return explain_lost(f, "connection lost before the answer was complete", err);
	case CURLE_SEND_ERROR:
		return explain_lost(f, "connection lost while the request was being sent", err);
	case CURLE_PARTIAL_FILE:
		return explain_lost(f, "connection closed before the answer was complete", err);
	case CURLE_SEND_FAIL_REWIND:
		return explain_dead(f, "connection closed without an answer; not sent again, as "
		                       "the server may have acted on it", err);
	case CURLE_PEER_FAILED_VERIFICATION:
		return explain_distrust(f, code, err);
	case CURLE_SSL_CACERT_BADFILE:
		return explain_bad_trust(f, code, err);
	case CURLE_SSL_CONNECT_ERROR:
		return explain_tls(f, code, err);
	case CURLE_UNSUPPORTED_PROTOCOL:
	case CURLE_WEIRD_SERVER_REPLY:
		ws_err_set(err, WS_EREACH, "%s %s: the answer is not HTTP", call->method,
		           call->url);
		return ws_err_hint(err, "does another service listen on this port?");
	default:
		return explain_rest(f, code, err);
	}
}
