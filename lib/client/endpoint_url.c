/* SPDX-License-Identifier: Apache-2.0 */
/* endpoint_url.c - normalizes and compares the URLs of endpoints. No name is looked up. */
#include "wsync/endpoint.h"

#include "wsync/tool/str.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HOST_MAX = 256 };

struct parts {
	bool tls;
	char host[HOST_MAX]; /* without brackets, lower case */
	bool v6;
	unsigned port;       /* 0: none given */
	const char *path;    /* with its slash; "" none */
	int path_len;        /* without trailing slashes */
};

/* Finds the last '@', or its code in a URL. NULL: there is none. */
static const char *find_last_at(const char *text)
{
	const char *at = strrchr(text, '@');
	for (const char *p = text; (p = strstr(p, "%40")); p++)
		at = !at || p > at ? p : at;
	return at;
}

/* Quotes the text without a user, a password, a query and a fragment, which may hold secrets. */
static int refuse_url(struct ws_err *err, const char *text, const char *why)
{
	char shown[200], hidden[WS_URL_MAX + 8];
	const size_t query = strcspn(text, "?#");
	const char *scheme = strstr(text, "://"), *at = find_last_at(text);
	const char *user = scheme ? scheme + 3 : text;
	/* With both, either may contain the sign of the other. */
	const char *rest = at && text[query] ? "" : at && at > user ? at : user;
	snprintf(hidden, sizeof hidden, "%.*s%s%.*s%s", (int)(user - text), text, at ? "***" : "",
	         (int)strcspn(rest, "?#"), rest, !at && text[query] ? "***" : "");
	ws_printable(shown, sizeof shown, hidden, strlen(hidden));
	return ws_err_set(err, WS_EUSAGE, "endpoint '%s': %s", shown, why);
}

/* Finds characters that no part of a URL may have. take_host checks the host more strictly. */
static const char *find_bad_character(const char *text)
{
	for (const unsigned char *p = (const unsigned char *)text; *p; p++) {
		if (*p <= ' ' || *p == 0x7f)
			return "has blanks or control characters";
		if (*p >= 0x80)
			return "has characters beyond ASCII";
		if (*p == '?' || *p == '#')
			return "must not have a query or a fragment";
		if (*p == '@')
			return "must not carry a user name or password";
		if (strchr("\\\"<>^`{|}", *p))
			return "has a character that no URL has";
	}
	return NULL;
}

static const char *split_scheme(const char *text, struct parts *p)
{
	const char *end = strstr(text, "://");
	if (!end)
		return text;
	p->tls = end - text == 5 && !strncasecmp(text, "https", 5);
	if (!p->tls && !(end - text == 4 && !strncasecmp(text, "http", 4)))
		return NULL;
	return end + 3;
}

/* The last dot of a name is that of the root. An address has none, and "10.0.0.1." would be looked
 * up as a name, or sent to a proxy as one. */
static const char *check_dots(struct parts *p)
{
	struct in_addr v4;
	char address[HOST_MAX];
	const size_t n = strlen(p->host);
	if (p->host[0] == '.' || strstr(p->host, ".."))
		return "has an empty label in its host name";
	snprintf(address, sizeof address, "%.*s", (int)n - 1, p->host);
	if (p->host[n - 1] == '.' && inet_aton(address, &v4))
		p->host[n - 1] = '\0';
	return NULL;
}

static const char *take_host(const char *at, size_t n, struct parts *p)
{
	struct in6_addr v6;
	if (n == 0)
		return "has no host";
	if (n >= HOST_MAX)
		return "has a host name that is too long";
	for (size_t i = 0; i < n; i++) {
		if (!p->v6 && !isalnum((unsigned char)at[i]) && !strchr(".-_", at[i]))
			return "has a character that no host name has";
		p->host[i] = (char)tolower((unsigned char)at[i]);
	}
	p->host[n] = '\0';
	if (p->v6 && inet_pton(AF_INET6, p->host, &v6) != 1)
		return "has no IPv6 address between its brackets";
	return p->v6 ? NULL : check_dots(p);
}

static const char *take_port(const char *at, size_t n, struct parts *p)
{
	if (n == 0 || n > 5)
		return "has no port between 1 and 65535";
	for (size_t i = 0; i < n; i++) {
		if (!isdigit((unsigned char)at[i]))
			return "has no port between 1 and 65535";
		p->port = p->port * 10 + (unsigned)(at[i] - '0');
	}
	return p->port < 1 || p->port > 65535 ? "has no port between 1 and 65535" : NULL;
}

static const char *split_authority(const char *at, struct parts *p)
{
	const char *path = strchrnul(at, '/'), *end;
	p->v6 = *at == '[';
	at += p->v6;
	end = memchr(at, p->v6 ? ']' : ':', (size_t)(path - at));
	if (p->v6 && !end)
		return "has a bracket that is not closed";
	if (!p->v6 && end && memchr(end + 1, ':', (size_t)(path - end - 1)))
		return "has several colons: an IPv6 address stands in brackets, as in [::1]:30000";
	const char *after = end ? end + p->v6 : path;
	const char *why = take_host(at, (size_t)((end ? end : path) - at), p);
	if (why)
		return why;
	if (after < path && *after != ':')
		return "has something other than a port after its bracket";
	if (after < path && (why = take_port(after + 1, (size_t)(path - after - 1), p)))
		return why;
	p->path = path;
	p->path_len = (int)strlen(path);
	while (p->path_len && path[p->path_len - 1] == '/')
		p->path_len--;
	return NULL;
}

/* Returns NULL, or why the text is not an endpoint. */
static const char *split(const char *text, struct parts *p)
{
	*p = (struct parts){ 0 };
	if (!*text)
		return "is empty";
	if (strlen(text) >= WS_URL_MAX)
		return "is too long";
	const char *why = find_bad_character(text);
	if (why)
		return why;
	const char *rest = split_scheme(text, p);
	return rest ? split_authority(rest, p) : "is neither http nor https";
}

/* Copies the path, in which characters that mean something to a shell become codes: URLs stand in
 * commands that messages propose. */
static void encode_path(const struct parts *p, char path[3 * WS_URL_MAX])
{
	for (int i = 0; i < p->path_len; i++) {
		const unsigned char c = (unsigned char)p->path[i];
		if (isalnum(c) || strchr("/%:=,+._~-", c))
			*path++ = (char)c;
		else
			path += sprintf(path, "%%%02X", c);
	}
	*path = 0;
}

int ws_endpoint_normalize(const char *text, char *url, size_t n, struct ws_err *err)
{
	struct parts p;
	char port[16] = "", path[3 * WS_URL_MAX];
	const char *why = split(text, &p);
	if (why)
		return refuse_url(err, text, why);
	if (p.port)
		snprintf(port, sizeof port, ":%u", p.port);
	encode_path(&p, path);
	const int len = snprintf(url, n, "http%s://%s%s%s%s%s", p.tls ? "s" : "", p.v6 ? "[" : "",
	                         p.host, p.v6 ? "]" : "", port, path);
	return len < 0 || (size_t)len >= n ? refuse_url(err, text, "is too long") : 0;
}

/* 127.1 and ::ffff:127.0.0.1 are 127.0.0.1, and so is 0.0.0.0 on Linux:
 * connect(2) goes to this machine. */
static void canonical_address(struct parts *p)
{
	struct in_addr v4;
	struct in6_addr v6;
	const size_t n = strlen(p->host);
	if (!p->v6 && n > 1 && p->host[n - 1] == '.') /* the root of names */
		p->host[n - 1] = '\0';
	if (!p->v6 && inet_aton(p->host, &v4)) {
		if (v4.s_addr == htonl(INADDR_ANY))
			v4.s_addr = htonl(INADDR_LOOPBACK);
		inet_ntop(AF_INET, &v4, p->host, sizeof p->host);
	} else if (p->v6 && inet_pton(AF_INET6, p->host, &v6) == 1) {
		if (IN6_IS_ADDR_UNSPECIFIED(&v6))
			v6 = in6addr_loopback;
		const bool mapped = IN6_IS_ADDR_V4MAPPED(&v6);
		inet_ntop(mapped ? AF_INET : AF_INET6, v6.s6_addr + (mapped ? 12 : 0), p->host,
		          sizeof p->host);
	}
}

static const char *split_canonical(const char *url, struct parts *p)
{
	const char *why = split(url, p);
	if (why)
		return why;
	canonical_address(p);
	if (!p->port)
		p->port = p->tls ? 443 : 80;
	return NULL;
}

int ws_endpoint_host_port(const char *url, char *host, uint16_t *port, struct ws_err *err)
{
	struct parts p;
	const char *why = split_canonical(url, &p);
	if (why)
		return refuse_url(err, url, why);
	memcpy(host, p.host, sizeof p.host);
	*port = (uint16_t)p.port;
	return 0;
}

static bool is_localhost(const char *host)
{
	return strcmp(host, "localhost") == 0 || strcmp(host, "127.0.0.1") == 0 ||
	       strcmp(host, "::1") == 0;
}

bool ws_endpoint_same(const char *a, const char *b)
{
	struct parts x, y;
	if (split_canonical(a, &x) || split_canonical(b, &y))
		return false;
	return x.port == y.port && x.path_len == y.path_len &&
	       memcmp(x.path, y.path, (size_t)x.path_len) == 0 &&
	       (strcmp(x.host, y.host) == 0 || (is_localhost(x.host) && is_localhost(y.host)));
}

/* One text for all URLs of one endpoint. */
static char *key_of(const char *url, struct ws_err *err)
{
	struct parts p;
	char *key = NULL;
	const char *why = split_canonical(url, &p);
	if (why)
		refuse_url(err, url, why);
	else if (asprintf(&key, "%s:%u%.*s", is_localhost(p.host) ? "localhost" : p.host, p.port,
	                  p.path_len, p.path) < 0)
		key = NULL, ws_oom(err);
	return key;
}

struct keyed {
	char *key;
	size_t i;
};

static int by_key(const void *a, const void *b)
{
	const struct keyed *x = a, *y = b;
	const int order = strcmp(x->key, y->key);
	return order ? order : x->i < y->i ? -1 : x->i > y->i;
}

int ws_endpoint_find_twice(const char *const *urls, size_t n, size_t *first, size_t *again,
                           struct ws_err *err)
{
	struct keyed *all = calloc(n + 1, sizeof *all);
	int rc = all ? 0 : ws_oom(err);
	*first = *again = n;
	for (size_t i = 0; rc == 0 && i < n; i++) {
		all[i] = (struct keyed){ key_of(urls[i], err), i };
		rc = all[i].key ? 0 : -1;
	}
	if (rc == 0)
		qsort(all, n, sizeof *all, by_key);
	for (size_t i = 1; rc == 0 && i < n; i++)
		if (strcmp(all[i - 1].key, all[i].key) == 0 && all[i].i < *again) {
			*first = all[i - 1].i;
			*again = all[i].i;
		}
	for (size_t i = 0; all && i < n; i++)
		free(all[i].key);
	free(all);
	if (rc || *again == n)
		return rc;
	const bool other = strcmp(urls[*first], urls[*again]) != 0;
	return ws_err_set(err, WS_EUSAGE, "endpoint %s: given twice%s%s", urls[*again],
	                  other ? ", also as " : "", other ? urls[*first] : "");
}
