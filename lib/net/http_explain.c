/* SPDX-License-Identifier: Apache-2.0 */
/* http_explain.c - how a call ended, as a sentence for who has to mend it. */
#include "http_core.h"

#include "wsync/str.h"

#include <string.h>

bool ws_http_was_sent_before(const struct ws_http_flight *f, CURLcode code)
{
	const size_t n = f->call->body_len;
	return code == CURLE_SEND_FAIL_REWIND ||
	       (code == CURLE_COULDNT_CONNECT && n && f->body_at == n);
}

static int hint_at_connecting(const struct ws_http_flight *f, const char *otherwise, struct ws_err *err)
{
	const unsigned port = ws_http_assumed_port(f->call->url);
	if (port)
		return ws_err_hint(err, "no port is given, so this was port %u: inference servers listen on 30000 "
		                        "unless they are told otherwise", port);
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
	/* The call's own deadline is "out of time", the limit for connecting "not reached". */
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
	return hint_at_connecting(f, "is the server running, and is this its address and port?", err);
}

/* The connection broke after the request, or a part of it, had left. */
static int explain_lost(const struct ws_http_flight *f, const char *what, struct ws_err *err)
{
	ws_err_set(err, WS_EREACH, "%s %s: %s", f->call->method, f->call->url, what);
	return ws_err_hint(err, "the server may have died or been restarted: look at its log");
}

static int explain_rest(const struct ws_http_flight *f, CURLcode code, struct ws_err *err)
{
	char reason[CURL_ERROR_SIZE];
	const char *text = f->reason[0] ? f->reason : curl_easy_strerror(code);
	ws_printable(reason, sizeof reason, text, strlen(text));
	return ws_err_set(err, code == CURLE_OUT_OF_MEMORY ? WS_ESYSTEM : WS_EREACH, "%s %s: %s",
	                  f->call->method, f->call->url, reason);
}

/* Signed by somebody unknown, out of date, or for another host: only libcurl's words say which. */
static int explain_distrust(const struct ws_http_flight *f, CURLcode code, struct ws_err *err)
{
	explain_rest(f, code, err);
	if (strstr(f->reason, "host name"))
		return ws_err_hint(err, "is this the name that the server's certificate is for?");
	return ws_err_hint(err, "--ca-file FILE names the certificate of who signed the server's, or the server's own");
}

/* Only when it is used does it show that what looked like certificates is none. */
static int explain_bad_trust(const struct ws_http_flight *f, CURLcode code, struct ws_err *err)
{
	if (!f->http->ca_file)
		return explain_rest(f, code, err);
	return ws_err_set(err, WS_EINPUT, "%s: its certificates cannot be read", f->http->ca_file);
}

int ws_http_explain(const struct ws_http_flight *f, CURLcode code, struct ws_err *err)
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
		if (ws_http_was_sent_before(f, code))
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
	case CURLE_PEER_FAILED_VERIFICATION:
		return explain_distrust(f, code, err);
	case CURLE_SSL_CACERT_BADFILE:
		return explain_bad_trust(f, code, err);
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
