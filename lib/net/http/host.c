/* SPDX-License-Identifier: Apache-2.0 */
/* host.c - properties of host names and addresses that a rendezvous needs.
 *
 * The results decide which address peers on other machines are given, so an IPv4-mapped IPv6
 * address always counts, and prints, as its IPv4 address. */
#include "sock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

/* "[::1]" and "::1" are the same host. */
static int copy_unbracketed(const char *host, char *dst, size_t n)
{
	size_t len = strlen(host);
	if (len >= 2 && host[0] == '[' && host[len - 1] == ']') {
		host++;
		len -= 2;
	}
	if (len >= n)
		return -1;
	memcpy(dst, host, len);
	dst[len] = 0;
	return 0;
}

int ws_host_resolve(const char *host, uint16_t port, bool passive, ws_deadline until,
                    const struct ws_cancel *cancel, struct addrinfo **out, struct ws_err *err)
{
	char name[WS_HOST_MAX], service[8];
	if (!host)
		host = "";
	if (copy_unbracketed(host, name, sizeof name))
		return ws_err_set(err, WS_EUSAGE, "host name of %zu bytes: at most %d are allowed",
		                  strlen(host), WS_HOST_MAX - 1);
	if (!name[0] && !passive)
		return ws_err_set(err, WS_EUSAGE, "no host given to connect to");
	snprintf(service, sizeof service, "%u", port);
	const struct addrinfo hints = {
		.ai_flags = AI_NUMERICSERV | (passive ? AI_PASSIVE : 0),
		.ai_family = AF_UNSPEC,
		.ai_socktype = SOCK_STREAM,
	};
	int rc = 0;
	if (ws_host_lookup(name, service, &hints, until, cancel, &rc, out, err))
		return -1;
	if (rc == EAI_SYSTEM)
		return ws_err_errno(err, "resolve host '%s'", host);
	if (rc != 0) {
		ws_err_set(err, WS_EREACH, "resolve host '%s': %s", host, gai_strerror(rc));
		if (err)
			err->native = rc;
		return -1;
	}
	return 0;
}

/* Converts an IPv4-mapped address to IPv4; copies others. False: not an IP address. */
static bool unmap(const struct sockaddr *sa, struct sockaddr_storage *dst, socklen_t *len)
{
	if (sa->sa_family == AF_INET) {
		*len = sizeof(struct sockaddr_in);
		memcpy(dst, sa, *len);
		return true;
	}
	if (sa->sa_family != AF_INET6)
		return false;
	struct sockaddr_in6 in6;
	memcpy(&in6, sa, sizeof in6);
	if (!IN6_IS_ADDR_V4MAPPED(&in6.sin6_addr)) {
		*len = sizeof in6;
		memcpy(dst, &in6, sizeof in6);
		return true;
	}
	struct sockaddr_in in = { .sin_family = AF_INET, .sin_port = in6.sin6_port };
	memcpy(&in.sin_addr, in6.sin6_addr.s6_addr + 12, 4);
	*len = sizeof in;
	memcpy(dst, &in, sizeof in);
	return true;
}

/* The address as a literal without the port, with the scope of a link-local one. */
static int print_literal(const struct sockaddr *sa, char *dst, size_t n)
{
	struct sockaddr_storage ss;
	socklen_t len;
	if (!unmap(sa, &ss, &len))
		return -1;
	return getnameinfo((const struct sockaddr *)&ss, len, dst, (socklen_t)n, NULL, 0,
	                   NI_NUMERICHOST) ? -1 : 0;
}

void ws_sock_name(const struct sockaddr *sa, char *dst, size_t n)
{
	char literal[INET6_ADDRSTRLEN + 32];
	if (print_literal(sa, literal, sizeof literal)) {
		snprintf(dst, n, "(address family %d)", sa->sa_family);
		return;
	}
	uint16_t port; /* the port has the same offset in both families */
	memcpy(&port, (const char *)sa + offsetof(struct sockaddr_in, sin_port), sizeof port);
	snprintf(dst, n, strchr(literal, ':') ? "[%s]:%u" : "%s:%u", literal, ntohs(port));
}

static bool is_loopback(const struct sockaddr *sa)
{
	struct sockaddr_storage ss = { 0 };
	socklen_t len;
	if (!unmap(sa, &ss, &len))
		return false;
	if (ss.ss_family == AF_INET6)
		return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)&ss)->sin6_addr);
	return ntohl(((const struct sockaddr_in *)&ss)->sin_addr.s_addr) >> 24 == 127;
}

int ws_host_is_loopback(const char *host, ws_deadline until, const struct ws_cancel *cancel,
                        bool *loopback, struct ws_err *err)
{
	struct addrinfo *list = NULL;
	if (ws_host_resolve(host, 0, false, until, cancel, &list, err))
		return -1;
	bool all = list != NULL;
	for (const struct addrinfo *ai = list; ai; ai = ai->ai_next)
		all = all && is_loopback(ai->ai_addr);
	freeaddrinfo(list);
	*loopback = all;
	return 0;
}

static bool is_same(const struct sockaddr *a, const struct sockaddr *b)
{
	struct sockaddr_storage x = { 0 }, y = { 0 };
	socklen_t len;
	if (!a || !b || !unmap(a, &x, &len) || !unmap(b, &y, &len) || x.ss_family != y.ss_family)
		return false;
	const struct sockaddr_in *x4 = (const struct sockaddr_in *)&x,
				 *y4 = (const struct sockaddr_in *)&y;
	const struct sockaddr_in6 *x6 = (const struct sockaddr_in6 *)&x,
				  *y6 = (const struct sockaddr_in6 *)&y;
	return x.ss_family == AF_INET ?
	               x4->sin_addr.s_addr == y4->sin_addr.s_addr :
	               memcmp(&x6->sin6_addr, &y6->sin6_addr, sizeof x6->sin6_addr) == 0;
}

static bool is_any(const struct sockaddr *sa)
{
	struct sockaddr_storage ss = { 0 };
	socklen_t len;
	if (!unmap(sa, &ss, &len))
		return false;
	if (ss.ss_family == AF_INET6)
		return IN6_IS_ADDR_UNSPECIFIED(&((const struct sockaddr_in6 *)&ss)->sin6_addr);
	return ((const struct sockaddr_in *)&ss)->sin_addr.s_addr == htonl(INADDR_ANY);
}

static bool is_ours(const struct sockaddr *sa, const struct ifaddrs *list)
{
	bool ours = is_loopback(sa) || is_any(sa);
	for (const struct ifaddrs *i = list; i && !ours; i = i->ifa_next)
		ours = is_same(sa, i->ifa_addr);
	return ours;
}

/* NULL: not an address. */
static struct addrinfo *read_literal(const char *host)
{
	const struct addrinfo hints = { .ai_flags = AI_NUMERICHOST, .ai_socktype = SOCK_STREAM };
	char name[WS_HOST_MAX];
	struct addrinfo *list = NULL;
	if (!*host || copy_unbracketed(host, name, sizeof name))
		return NULL;
	return getaddrinfo(name, NULL, &hints, &list) ? NULL : list;
}

/* True if name is `of`, in any case and with or without the dot of the root. */
static bool is_name(const char *name, size_t n, const char *of)
{
	n -= n && name[n - 1] == '.';
	return n && n == strlen(of) && strncasecmp(name, of, n) == 0;
}

bool ws_host_is_localhost(const char *name)
{
	const size_t n = strlen(name), root = n && name[n - 1] == '.', own = strlen("localhost");
	const char *last = n > own + root ? name + n - root - own : name;
	return is_name(last, strlen(last), "localhost") && (last == name || last[-1] == '.');
}

static bool is_own_name(const char *name)
{
	char own[WS_HOST_MAX] = "";
	if (gethostname(own, sizeof own - 1))
		return false;
	return is_name(name, strlen(name), own);
}

bool ws_host_is_here(const char *host)
{
	struct ifaddrs *interfaces = NULL;
	struct addrinfo *literal = read_literal(host);
	if (!literal)
		return ws_host_is_localhost(host) || is_own_name(host);
	bool here = is_ours(literal->ai_addr, NULL);
	if (!here && getifaddrs(&interfaces) == 0)
		here = is_ours(literal->ai_addr, interfaces);
	freeifaddrs(interfaces);
	freeaddrinfo(literal);
	return here;
}

int ws_host_is_local(const char *host, ws_deadline until, const struct ws_cancel *cancel,
                     bool *local, struct ws_err *err)
{
	struct addrinfo *list = NULL;
	struct ifaddrs *interfaces = NULL;
	*local = host && ws_host_is_here(host);
	if (*local)
		return 0;
	if (ws_host_resolve(host, 0, false, until, cancel, &list, err))
		return -1;
	if (getifaddrs(&interfaces)) {
		freeaddrinfo(list);
		return ws_err_errno(err, "this machine's addresses");
	}
	bool all = list != NULL;
	for (const struct addrinfo *ai = list; ai; ai = ai->ai_next)
		all = all && is_ours(ai->ai_addr, interfaces);
	freeifaddrs(interfaces);
	freeaddrinfo(list);
	*local = all;
	return 0;
}

void ws_host_interface(const char *literal, char *name, size_t n)
{
	struct addrinfo *list = NULL;
	struct ifaddrs *interfaces = NULL;
	name[0] = '\0';
	if (ws_host_resolve(literal, 0, false, WS_FOREVER, NULL, &list, NULL))
		return;
	const struct sockaddr *sa = list->ai_addr;
	if (!is_loopback(sa) && getifaddrs(&interfaces) == 0)
		for (const struct ifaddrs *i = interfaces; i && !name[0]; i = i->ifa_next)
			if (is_same(sa, i->ifa_addr))
				snprintf(name, n, "%s", i->ifa_name);
	if (interfaces)
		freeifaddrs(interfaces);
	freeaddrinfo(list);
}

bool ws_host_is_wildcard(const char *host)
{
	if (!host || !*host || strcmp(host, "*") == 0)
		return true;
	struct addrinfo *literal = read_literal(host);
	const bool any = literal && is_any(literal->ai_addr);
	if (literal)
		freeaddrinfo(literal);
	return any;
}

/* Connecting a datagram socket reads the routing table and sends nothing. */
static int source_address(const struct addrinfo *to, char *dst, size_t n)
{
	const int fd = socket(to->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -1;
	struct sockaddr_storage ss;
	socklen_t len = sizeof ss;
	int rc = connect(fd, to->ai_addr, to->ai_addrlen);
	if (rc == 0)
		rc = getsockname(fd, (struct sockaddr *)&ss, &len);
	const int saved = errno;
	close(fd);
	errno = saved;
	if (rc)
		return -1;
	if (print_literal((const struct sockaddr *)&ss, dst, n)) {
		errno = ENOBUFS;
		return -1;
	}
	return 0;
}

int ws_host_local_toward(const char *host, ws_deadline until, const struct ws_cancel *cancel,
                         char *dst, size_t n, struct ws_err *err)
{
	struct addrinfo *list = NULL;
	/* Any port but 0: some kernels refuse to connect to 0. */
	if (ws_host_resolve(host, 9, false, until, cancel, &list, err))
		return -1;
	int rc = -1;
	for (const struct addrinfo *ai = list; ai && rc; ai = ai->ai_next)
		rc = source_address(ai, dst, n);
	if (rc) {
		ws_err_errno(err, "find the local address toward '%s'", host);
		if (err)
			err->code = WS_EREACH;
	}
	freeaddrinfo(list);
	return rc;
}
