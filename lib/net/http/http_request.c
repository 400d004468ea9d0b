/* SPDX-License-Identifier: Apache-2.0 */
/* http_request.c - sets up a request in libcurl.
 *
 * A POST is sent at most once. libcurl retries a request if a kept-alive connection is dead before
 * a byte of the reply came, even a POST on which the server may have acted. It can only do that if
 * it can rewind the body. Therefore it gets bodies through a read function that cannot seek, and a
 * POST without a body never uses an old connection. Only a GET, or a POST of which no body byte
 * was sent, may then be retried.
 *
 * Python servers close idle connections after 5 s, so a connection that was idle for more than
 * 3 s is not used again. */
#include "http_core.h"

#include "file.h"
#include "sock.h"
#include "wsync/version.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MAX_IDLE_S = 3, CA_FILE_MAX = 16 << 20, SMALL_BODY = 16 << 10 };

/* ---- headers ---- */

static void free_headers(struct curl_slist *list)
{
	for (struct curl_slist *h = list; h; h = h->next)
		explicit_bzero(h->data, strlen(h->data)); /* one header has the key */
	curl_slist_free_all(list);
}

static int add_header(struct curl_slist **list, const char *text, struct ws_err *err)
{
	struct curl_slist *grown = curl_slist_append(*list, text);
	if (!grown)
		return ws_oom(err);
	*list = grown;
	return 0;
}

static int add_key(struct ws_http *h, bool admin, const char *key, size_t n, struct ws_err *err)
{
	for (size_t i = 0; i < n; i++)
		if ((unsigned char)key[i] < 0x20 || key[i] == 0x7f)
			return ws_err_set(err, WS_EUSAGE, "API key: has control characters");
	if (!n)
		return 0;
	if ((!admin || h->two_keys) && ws_http_hide_key(h, key, n, err))
		return -1;
	struct ws_buf line;
	ws_buf_init(&line, 64 * 1024);
	ws_buf_puts(&line, "Authorization: Bearer ");
	ws_buf_add(&line, key, n);
	int rc = ws_buf_check(&line, "API key", err);
	if (!rc)
		rc = add_header(&h->headers[admin], ws_buf_str(&line), err);
	if (!rc)
		rc = add_header(&h->plain[admin], ws_buf_str(&line), err);
	if (line.data)
		explicit_bzero(line.data, line.cap);
	ws_buf_free(&line);
	return rc;
}

int ws_http_make_headers(struct ws_http *h, const char *api_key, struct ws_err *err)
{
	/* Without "Expect:" a large body waits for a "100 Continue" that few servers send. A proxy
	 * must ask the server itself: the state of a server is what is wanted. */
	for (int i = 0; i < 2; i++)
		if (add_header(&h->headers[i], "Content-Type: application/json", err) ||
		    add_header(&h->headers[i], "Expect:", err) ||
		    add_header(&h->headers[i], "Cache-Control: no-cache", err) ||
		    add_header(&h->plain[i], "Cache-Control: no-cache", err))
			return -1;
	const char *key = api_key ? api_key : "", *second = strchr(key, '\n');
	const char *admin = second ? second + 1 : key;
	h->two_keys = second && second[1];
	return add_key(h, false, key, strcspn(key, "\n"), err) ||
	                       add_key(h, true, admin, strlen(admin), err) ?
	               -1 :
	               0;
}

bool ws_http_has_admin_key(const struct ws_http *h)
{
	return h->two_keys;
}

void ws_http_free_headers(struct ws_http *h)
{
	for (int i = 0; i < 2; i++) {
		free_headers(h->headers[i]);
		free_headers(h->plain[i]);
	}
	ws_http_forget_keys(h);
}

/* ---- trust ---- */

const char *ws_http_system_ca(void)
{
#if LIBCURL_VERSION_NUM >= 0x074600
	static const char *const known[] = {
		"/etc/ssl/certs/ca-certificates.crt", /* Debian, Ubuntu, Arch */
		"/etc/pki/tls/certs/ca-bundle.crt",   /* Red Hat, Fedora */
		"/etc/ssl/ca-bundle.pem",             /* SUSE */
		"/etc/ssl/cert.pem",                  /* Alpine */
	};
	const curl_version_info_data *built = curl_version_info(CURLVERSION_NOW);
	if (built->age < CURLVERSION_SEVENTH || !built->cainfo || access(built->cainfo, R_OK) == 0)
		return NULL;
	for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
		if (access(known[i], R_OK) == 0)
			return known[i];
#endif
	return NULL;
}

/* libcurl reports a bad file as a failed connection. */
int ws_http_take_ca_file(struct ws_http *h, const char *path, struct ws_err *err)
{
	struct ws_buf text;
	ws_buf_init(&text, CA_FILE_MAX);
	int rc = ws_file_read(path, &text, err);
	if (rc == 0 && !strstr(ws_buf_str(&text), "-----BEGIN "))
		rc = ws_err_set(err, WS_EINPUT, "%s: holds no certificate in PEM form", path);
	if (rc == 0 && !(h->ca_file = strdup(path)))
		rc = ws_oom(err);
	ws_buf_free(&text);
	return rc;
}

/* ---- one call ---- */

/* A reply without a status line is not HTTP, or HTTP 0.9. Its first bytes may tell what it is. */
static bool is_stray(struct ws_http_flight *f, const char *bytes, size_t n)
{
	long status = 0;
	curl_easy_getinfo(f->easy, CURLINFO_RESPONSE_CODE, &status);
	if (status || !n)
		return false;
	struct ws_buf text;
	ws_buf_init(&text, n);
	ws_buf_add(&text, bytes, n);
	ws_http_hide_keys(f->http, &text, true);
	f->n_stray = text.len < sizeof f->stray ? text.len : sizeof f->stray;
	memcpy(f->stray, ws_buf_str(&text), f->n_stray);
	ws_buf_free(&text);
	return true;
}

static size_t take_reply(char *bytes, size_t size, size_t n, void *user)
{
	struct ws_http_flight *f = user;
	if (is_stray(f, bytes, size * n))
		return 0;
	return ws_buf_add(&f->call->reply, bytes, size * n) ? 0 : size * n;
}

/* Trailers come here too; there may be any number after the last chunk. */
static size_t take_header(char *bytes, size_t size, size_t n, void *user)
{
	struct ws_http_flight *f = user;
	/* uvicorn, vLLM's HTTP server, closes the connection after an exception, without having
	 * said so: a request on it would be lost. "HTTP/1.1 500 ..." */
	if (!f->head_bytes && size * n > 12 && memcmp(bytes, "HTTP/1.", 7) == 0 &&
	    memcmp(bytes + 9, "500", 3) == 0)
		curl_easy_setopt(f->easy, CURLOPT_FORBID_REUSE, 1L);
	char date[64];
	if (size * n > 5 && size * n < sizeof date && strncasecmp(bytes, "Date:", 5) == 0) {
		snprintf(date, sizeof date, "%.*s", (int)(size * n - 5), bytes + 5);
		const time_t at = curl_getdate(date, NULL);
		f->call->date = at > 0 && at < (time_t)UINT32_MAX ? (int64_t)at : 0;
	}
	f->head_bytes += size * n;
	return f->head_bytes > WS_HTTP_HEAD_MAX ? 0 : size * n;
}

static size_t give_body(char *dst, size_t size, size_t n, void *user)
{
	struct ws_http_flight *f = user;
	const size_t left = f->call->body_len - f->body_at;
	if (!left) /* a retry without a rewind: an error is better than a truncated body */
		return CURL_READFUNC_ABORT;
	const size_t take = left < size * n ? left : size * n;
	memcpy(dst, f->call->body + f->body_at, take);
	f->body_at += take;
	return take;
}

/* The proxies of the environment are for other machines. */
static bool names_this_machine(const char *url)
{
	const char *host = strstr(url, "://");
	host = host ? host + 3 : url;
	char name[256];
	const size_t n = *host == '[' ? strcspn(host, "]") + 1 : strcspn(host, ":/?#");
	if (n >= sizeof name)
		return false;
	memcpy(name, host, n);
	name[n] = '\0';
	return ws_host_is_here(name);
}

/* Asking for this machine's addresses takes time, so only if the answer matters. */
static bool has_proxy(void)
{
	static const char *const names[] = { "http_proxy", "https_proxy", "HTTPS_PROXY",
		                             "all_proxy", "ALL_PROXY" };
	for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
		if (getenv(names[i]))
			return true;
	return false;
}

unsigned ws_http_assumed_port(const char *url)
{
	CURLU *u = curl_url();
	char *port = NULL;
	unsigned assumed = 0;
	if (u && !curl_url_set(u, CURLUPART_URL, url, 0) &&
	    curl_url_get(u, CURLUPART_PORT, &port, 0) == CURLUE_NO_PORT &&
	    !curl_url_get(u, CURLUPART_PORT, &port, CURLU_DEFAULT_PORT))
		assumed = (unsigned)strtoul(port, NULL, 10);
	curl_free(port);
	curl_url_cleanup(u);
	return assumed;
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
	/* A look-up in progress must not delay a deadline or a cancel. */
	curl_easy_setopt(easy, CURLOPT_QUICK_EXIT, 1L);
#endif
	if (h->keeps_names)
		curl_easy_setopt(easy, CURLOPT_DNS_CACHE_TIMEOUT, -1L);
	if (h->ca_file) {
		curl_easy_setopt(easy, CURLOPT_CAINFO, h->ca_file);
		curl_easy_setopt(easy, CURLOPT_CAPATH, NULL);
	} else if (h->ca_system) {
		curl_easy_setopt(easy, CURLOPT_CAINFO, h->ca_system);
	}
	if (has_proxy() && names_this_machine(call->url))
		curl_easy_setopt(easy, CURLOPT_NOPROXY, "*");
}

/* A program that this one runs inherits no connection. libcurl does not see to that everywhere. */
static curl_socket_t open_socket(void *user, curlsocktype purpose, struct curl_sockaddr *to)
{
	(void)user;
	(void)purpose;
	return socket(to->family, to->socktype | SOCK_CLOEXEC, to->protocol);
}

static void set_request(const struct ws_http *h, CURL *easy, struct ws_http_flight *f)
{
	const struct ws_http_call *call = f->call;
	f->call->as_admin = call->admin && h->two_keys;
	curl_easy_setopt(easy, CURLOPT_URL, call->url);
	curl_easy_setopt(easy, CURLOPT_FRESH_CONNECT, (long)call->fresh);
	curl_easy_setopt(easy, CURLOPT_PRIVATE, (void *)f);
	curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, f->reason);
	curl_easy_setopt(easy, CURLOPT_OPENSOCKETFUNCTION, open_socket);
	curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, take_reply);
	curl_easy_setopt(easy, CURLOPT_WRITEDATA, (void *)f);
	curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, take_header);
	curl_easy_setopt(easy, CURLOPT_HEADERDATA, (void *)f);
	/* allows a reply of HTTP/0.9, so that take_reply can recognize and refuse it */
	curl_easy_setopt(easy, CURLOPT_HTTP09_ALLOWED, 1L);
	curl_easy_setopt(easy, CURLOPT_USERAGENT, "wsync/" WSYNC_VERSION);
	if (strcmp(call->method, "POST")) {
		if (strcmp(call->method, "GET"))
			curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, call->method);
		curl_easy_setopt(easy, CURLOPT_HTTPHEADER, h->plain[call->admin]);
		return;
	}
	curl_easy_setopt(easy, CURLOPT_POST, 1L);
	curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)call->body_len);
	curl_easy_setopt(easy, CURLOPT_READFUNCTION, give_body);
	curl_easy_setopt(easy, CURLOPT_READDATA, (void *)f);
	curl_easy_setopt(easy, CURLOPT_HTTPHEADER, h->headers[call->admin]);
	/* libcurl allocates this buffer for each request, 64 KiB unless it is told. */
	if (call->body_len <= SMALL_BODY)
		curl_easy_setopt(easy, CURLOPT_UPLOAD_BUFFERSIZE, (long)SMALL_BODY);
	if (!call->body_len)
		curl_easy_setopt(easy, CURLOPT_FRESH_CONNECT, 1L);
}

void ws_http_prepare(struct ws_http_flight *f)
{
	set_limits(f->http, f->easy, f->call);
	set_request(f->http, f->easy, f);
}
