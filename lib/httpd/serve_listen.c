/* SPDX-License-Identifier: Apache-2.0 */
/* serve_listen.c - the address to listen on, and the check of API keys. */
#include "serve_http.h"
#include "sock.h"
#include "wsync/tool/str.h"

#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

int ws_serve_parse_listen(const char *text, char host[WS_SERVE_HOST], uint16_t *port,
                          struct ws_err *err)
{
	const char *colon = strrchr(text, ':');
	const char *from = text;
	size_t n = colon ? (size_t)(colon - text) : 0;
	if (n > 2 && text[0] == '[' && text[n - 1] == ']') {
		from++;
		n -= 2;
	} else if (colon && memchr(text, ':', n)) {
		return ws_err_set(err, WS_EUSAGE, "listen '%s': an IPv6 address goes in brackets",
		                  text);
	}
	if (!colon || !n || n >= WS_SERVE_HOST)
		return ws_err_set(err, WS_EUSAGE, "listen '%s': not of the form HOST:PORT", text);
	uint64_t number = 0;
	if (ws_parse_uint(colon + 1, 0, 65535, "port", &number, err))
		return ws_err_wrap(err, "listen '%s'", text);
	memcpy(host, from, n);
	host[n] = 0;
	*port = (uint16_t)number;
	return 0;
}

int ws_serve_listen(const char *host, uint16_t *port, const struct ws_cancel *cancel,
                    char url[WS_SERVE_URL], struct ws_err *err)
{
	uint16_t found = 0;
	const ws_deadline until = ws_deadline_in(10 * WS_NS_PER_S);
	const int fd = ws_sock_listen(host, *port, until, cancel, &found, err);
	if (fd < 0)
		return -1;
	*port = found;
	snprintf(url, WS_SERVE_URL, strchr(host, ':') ? "http://[%s]:%u" : "http://%s:%u", host,
	         (unsigned)found);
	return fd;
}

bool ws_serve_is_loopback(int fd)
{
	struct sockaddr_storage a = { .ss_family = AF_UNSPEC };
	const struct sockaddr_in *v4 = (const void *)&a;
	const struct in6_addr *v6 = &((const struct sockaddr_in6 *)(const void *)&a)->sin6_addr;
	socklen_t len = sizeof a;
	if (getsockname(fd, (struct sockaddr *)&a, &len))
		return false;
	if (a.ss_family == AF_INET)
		return ntohl(v4->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
	return a.ss_family == AF_INET6 &&
	       (IN6_IS_ADDR_LOOPBACK(v6) ||
	        (IN6_IS_ADDR_V4MAPPED(v6) && v6->s6_addr[12] == IN_LOOPBACKNET));
}

/* Takes the same time wherever the first difference is. */
static bool same_key(const char *given, const char *key)
{
	const size_t n = strlen(key);
	const size_t n_given = strlen(given);
	unsigned char differs = n != n_given;
	for (size_t i = 0; i < n; i++)
		differs |= (unsigned char)(key[i] ^ (i < n_given ? given[i] : 0));
	return !differs;
}

bool ws_serve_has_key(const struct ws_serve_request *rq, const char *key, bool x_api_key)
{
	static const char bearer[] = "Bearer ";
	const char *auth = rq->authorization;
	if (auth && strncmp(auth, bearer, sizeof bearer - 1) == 0 &&
	    same_key(auth + sizeof bearer - 1, key))
		return true;
	return x_api_key && rq->x_api_key && same_key(rq->x_api_key, key);
}
