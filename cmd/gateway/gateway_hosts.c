/* SPDX-License-Identifier: Apache-2.0 */
/* gateway_hosts.c - the hosts that a request may name: this gateway, in Host and Origin, and
 * endpoints, in bodies.
 *
 * A web page can make its browser send requests here, and can give its own name the address of
 * this machine (DNS rebinding). Then Host has the page's name, and Origin the page.
 *
 * --allow-host compares names with names, label by label, and addresses with addresses, whatever
 * their spelling. Nothing is resolved: "10.*" must not match 10.example.org. */
#include "gateway_core.h"

#include "wsync/tool/str.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ---- this gateway ---- */

static bool is_v6(const char *text)
{
	struct in6_addr v6;
	return inet_pton(AF_INET6, text, &v6) == 1;
}

static bool is_v4(const char *text)
{
	struct in_addr v4;
	return inet_pton(AF_INET, text, &v4) == 1;
}

/* The length without blanks at the end. */
static size_t trimmed(const char *text)
{
	size_t n = strlen(text);
	while (n && (text[n - 1] == ' ' || text[n - 1] == '\t'))
		n--;
	return n;
}

/* "", ":" and digits */
static bool is_port(const char *text)
{
	return !*text || (*text == ':' && text[1] && !text[1 + strspn(text + 1, "0123456789")]);
}

/* A page cannot give its requests an address in Host: its browser writes the page's own host. With
 * an address or localhost any port will do: forwarded ports are others than the gateway's. */
bool gateway_is_own_host(const struct ws_gateway *g, const char *host)
{
	char name[WS_SERVE_HOST], port[8];
	const size_t len = host ? trimmed(host) : 0;
	if (!len || len >= sizeof name)
		return false;
	snprintf(name, sizeof name, "%.*s", (int)len, host);
	snprintf(port, sizeof port, ":%u", (unsigned)g->port);
	char *from = name + (*name == '['), *end = from + strcspn(from, *name == '[' ? "]" : ":");
	const char *after = end + (*end == ']');
	if ((*name == '[' && *end != ']') || !is_port(after))
		return false;
	const bool own_port = !*after || strcmp(after, port) == 0;
	char host_only[WS_SERVE_HOST];
	snprintf(host_only, sizeof host_only, "%.*s", (int)(end - from), from);
	if (*name == '[')
		return is_v6(host_only);
	return is_v4(host_only) || strcasecmp(host_only, "localhost") == 0 ||
	       (own_port && strcasecmp(host_only, g->host) == 0);
}

bool gateway_is_own_origin(const struct ws_serve_request *rq)
{
	static const char scheme[] = "http://";
	const size_t n = sizeof scheme - 1;
	if (!rq->host || strncasecmp(rq->origin, scheme, n) != 0)
		return false;
	const size_t host = trimmed(rq->host), origin = trimmed(rq->origin + n);
	return host == origin && strncasecmp(rq->origin + n, rq->host, host) == 0;
}

/* ---- hosts of endpoints ---- */

enum kind { NAME, V4, V6 };

struct pattern {
	char host[WS_SERVE_HOST];
	uint16_t port;   /* 0: any */
	enum kind kind;  /* V4: only addresses match; V6: only IPv6 */
};

static enum kind kind_of(const char *host)
{
	return strchr(host, ':') ? V6 : is_v4(host) ? V4 : NAME;
}

/* Letters to lower case, IPv6 addresses as inet_ntop writes them, names without a last dot. */
static void make_plain(char host[WS_SERVE_HOST])
{
	struct in6_addr v6;
	const size_t n = strlen(host);
	for (char *c = host; *c; c++)
		*c = (char)tolower((unsigned char)*c);
	if (inet_pton(AF_INET6, host, &v6) == 1)
		inet_ntop(AF_INET6, &v6, host, WS_SERVE_HOST);
	else if (n > 1 && host[n - 1] == '.')
		host[n - 1] = 0;
}

/* Reads GLOB, GLOB:PORT, an IPv6 address with or without brackets, [ADDRESS]:PORT. */
static bool read_pattern(const char *text, struct pattern *out)
{
	const char *close = *text == '[' ? strstr(text, "]:") : NULL;
	const size_t len = strlen(text);
	if (!close && *text == '[' && len && text[len - 1] == ']')
		close = text + len - 1;
	const bool bracket = close && memchr(text, ':', (size_t)(close - text));
	const char *colon = bracket ? close + 1 : strrchr(text, ':');
	if (!bracket && colon && strchr(text, ':') != colon)
		colon = NULL; /* IPv6 */
	const bool has_port = colon && *colon;
	const char *end = bracket ? close : has_port ? colon : text + len;
	const size_t n = (size_t)(end - text) - bracket;
	uint64_t port = 0;
	if (!n || n >= sizeof out->host || strpbrk(text, "/@# \t") ||
	    (has_port && ws_parse_uint(colon + 1, 1, 65535, "port", &port, NULL)))
		return false;
	memcpy(out->host, text + bracket, n);
	out->host[n] = 0;
	out->port = (uint16_t)port;
	make_plain(out->host);
	const bool digits = strpbrk(out->host, "0123456789") != NULL;
	const bool numeric = strspn(out->host, "0123456789.*?[]-!^") == strlen(out->host);
	out->kind = strchr(out->host, ':') ? V6 : digits && numeric ? V4 : NAME;
	return true;
}

/* Compares label by label: * is within one, but at the start "*." is one label or more. */
static bool name_matches(const char *pattern, const char *host)
{
	char glob[WS_SERVE_HOST], name[WS_SERVE_HOST];
	const bool suffix = strncmp(pattern, "*.", 2) == 0;
	snprintf(glob, sizeof glob, "%s", pattern + (suffix ? 2 : 0));
	snprintf(name, sizeof name, "%s", host);
	for (char *c = glob; (c = strchr(c, '.'));)
		*c = '/';
	for (char *c = name; (c = strchr(c, '.'));)
		*c = '/';
	if (!suffix)
		return fnmatch(glob, name, FNM_PATHNAME) == 0;
	for (const char *c = name; (c = strchr(c, '/'));)
		if (fnmatch(glob, ++c, FNM_PATHNAME) == 0)
			return true;
	return false;
}

static bool matches(const struct pattern *p, const char *host, uint16_t port)
{
	const enum kind kind = kind_of(host);
	if (p->port && p->port != port)
		return false;
	if (strcmp(p->host, "*") == 0)
		return true;
	if (p->kind != kind)
		return false;
	return kind == NAME ? name_matches(p->host, host) : ws_glob_match(p->host, host);
}

bool gateway_permits(const struct ws_gateway *g, const char *url)
{
	char host[WS_SERVE_HOST];
	uint16_t port = 0;
	struct pattern p;
	if (g->opts.n_hosts == 0)
		return true;
	if (ws_endpoint_host_port(url, host, &port, NULL))
		return false;
	make_plain(host);
	for (size_t i = 0; i < g->opts.n_hosts; i++)
		if (read_pattern(g->opts.hosts[i], &p) && matches(&p, host, port))
			return true;
	return false;
}

int gateway_check_hosts(const struct ws_gateway_opts *o, struct ws_err *err)
{
	struct pattern p;
	for (size_t i = 0; i < o->n_hosts; i++)
		if (!read_pattern(o->hosts[i], &p))
			return ws_err_set(err, WS_EUSAGE,
			                  "--allow-host '%s': not of the form HOST or HOST:PORT",
			                  o->hosts[i]);
	if (!o->push.api_key || o->n_hosts)
		return 0;
	const char *admin = strchr(o->push.api_key, '\n');
	const char *keys = !admin                      ? "the key of --api-key-file"
	                   : admin == o->push.api_key ? "the key of --admin-api-key-file"
	                                              : "the keys of --api-key-file and "
	                                                "--admin-api-key-file";
	ws_err_set(err, WS_EUSAGE,
	           "an API key of the endpoints without --allow-host: any client could have it "
	           "sent to a host of its choice");
	return ws_err_hint(err, "name the hosts that may receive %s, for example "
	                        "--allow-host 'gpu*.example.org'", keys);
}
