/* SPDX-License-Identifier: Apache-2.0 */
/* sock.c - TCP sockets with deadlines.
 *
 * Every descriptor is non-blocking and close-on-exec. Waits go through ws_sock_wait, which also
 * checks the cancel flag. Writing to a closed connection is an error, never SIGPIPE. */
#include "sock.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { BACKLOG = 1024 };

static void close_keeping_errno(int fd)
{
	const int saved = errno;
	if (fd >= 0)
		close(fd);
	errno = saved;
}

static int listen_on(const struct sockaddr *sa, socklen_t len)
{
	const int fd = socket(sa->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -1;
	const int one = 1, zero = 0;
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (sa->sa_family == AF_INET6)
		setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof zero);
	if (bind(fd, sa, len) == 0 && listen(fd, BACKLOG) == 0)
		return fd;
	close_keeping_errno(fd);
	return -1;
}

/* One IPv6 socket also serves IPv4; a kernel without IPv6 has IPv4 only. */
static int listen_everywhere(uint16_t port)
{
	const struct sockaddr_in6 in6 = { .sin6_family = AF_INET6, .sin6_port = htons(port),
	                                  .sin6_addr = IN6ADDR_ANY_INIT };
	const int fd = listen_on((const struct sockaddr *)&in6, sizeof in6);
	if (fd >= 0 || (errno != EAFNOSUPPORT && errno != EADDRNOTAVAIL))
		return fd;
	const struct sockaddr_in in = { .sin_family = AF_INET, .sin_port = htons(port) };
	return listen_on((const struct sockaddr *)&in, sizeof in);
}

/* Prefers IPv4 if a name has addresses of both kinds, in any order: most systems list ::1
 * before 127.0.0.1 for localhost. Clients that use the name try both; clients that use an
 * address usually know the IPv4 one. */
static int listen_on_one(const struct addrinfo *list)
{
	int fd = -1;
	for (const struct addrinfo *ai = list; ai && fd < 0; ai = ai->ai_next)
		if (ai->ai_family == AF_INET)
			fd = listen_on(ai->ai_addr, ai->ai_addrlen);
	for (const struct addrinfo *ai = list; ai && fd < 0; ai = ai->ai_next)
		if (ai->ai_family != AF_INET)
			fd = listen_on(ai->ai_addr, ai->ai_addrlen);
	return fd;
}

static int listen_on_host(const char *host, uint16_t port, ws_deadline until,
                          const struct ws_cancel *cancel, struct ws_err *err)
{
	struct addrinfo *list = NULL;
	if (ws_host_resolve(host, port, true, until, cancel, &list, err))
		return -1;
	const int fd = listen_on_one(list);
	if (fd < 0)
		ws_err_errno(err, "listen on %s port %u", host, port);
	freeaddrinfo(list);
	return fd;
}

int ws_sock_listen(const char *host, uint16_t port, ws_deadline until,
                   const struct ws_cancel *cancel, uint16_t *bound_port, struct ws_err *err)
{
	int fd;
	if (!host || !host[0]) {
		fd = listen_everywhere(port);
		if (fd < 0)
			return ws_err_errno(err, "listen on port %u", port);
	} else {
		fd = listen_on_host(host, port, until, cancel, err);
		if (fd < 0)
			return -1;
	}
	struct sockaddr_storage ss;
	socklen_t len = sizeof ss;
	if (getsockname(fd, (struct sockaddr *)&ss, &len)) {
		ws_err_errno(err, "listen on port %u: getsockname", port);
		close(fd);
		return -1;
	}
	if (bound_port)
		*bound_port = ntohs(ss.ss_family == AF_INET6 ?
		                    ((const struct sockaddr_in6 *)&ss)->sin6_port :
		                    ((const struct sockaddr_in *)&ss)->sin_port);
	return fd;
}

/* A socket can connect to itself if its target is an unused port of the ephemeral range and the
 * kernel picks the same source port: a client that retries until a server starts would then
 * talk to itself. */
static bool connected_to_itself(int fd)
{
	struct sockaddr_storage here = { 0 }, there = { 0 };
	socklen_t n_here = sizeof here, n_there = sizeof there;
	return getsockname(fd, (struct sockaddr *)&here, &n_here) == 0 &&
	       getpeername(fd, (struct sockaddr *)&there, &n_there) == 0 && n_here == n_there &&
	       memcmp(&here, &there, n_here) == 0;
}

/* The error of the finished connection attempt; 0: connected. */
static int connect_result(int fd)
{
	int error = 0;
	socklen_t len = sizeof error;
	if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len))
		return errno;
	return error ? error : connected_to_itself(fd) ? ECONNREFUSED : 0;
}

void ws_sock_keep_alive(int fd)
{
	enum { IDLE_S = 30, INTERVAL_S = 10, PROBES = 3 };
	const int on = 1, idle = IDLE_S, interval = INTERVAL_S, probes = PROBES;
	setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

int ws_sock_connect_addr(const struct sockaddr *sa, socklen_t len, ws_deadline until,
                         const struct ws_cancel *cancel, struct ws_err *err)
{
	char name[80], what[96];
	ws_sock_name(sa, name, sizeof name);
	snprintf(what, sizeof what, "connect to %s", name);

	const int fd = socket(sa->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return ws_err_errno(err, "%s: socket", what);
	const int one = 1;
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	if (connect(fd, sa, len) && errno != EINPROGRESS) {
		ws_err_errno(err, "%s", what);
		goto unreachable;
	}
	if (ws_sock_wait(fd, POLLOUT, until, cancel, what, err))
		goto out;
	errno = connect_result(fd);
	if (errno == 0)
		return fd;
	ws_err_errno(err, "%s", what);
unreachable:
	if (err)
		err->code = WS_EREACH;
out:
	close(fd);
	return -1;
}

/* The first address must not use up the whole deadline if it never answers. */
static ws_deadline share_of(ws_deadline until, unsigned n_left)
{
	const int64_t left = ws_deadline_left(until);
	return n_left < 2 || until == WS_FOREVER ? until : ws_deadline_in(left / n_left);
}

int ws_sock_connect(const char *host, uint16_t port, ws_deadline until,
                    const struct ws_cancel *cancel, struct ws_err *err)
{
	struct addrinfo *list = NULL;
	if (ws_host_resolve(host, port, false, until, cancel, &list, err))
		return -1;
	unsigned n = 0;
	for (const struct addrinfo *ai = list; ai; ai = ai->ai_next)
		n++;
	int fd = -1;
	for (const struct addrinfo *ai = list; ai && fd < 0 && !ws_cancelled(cancel);
	     ai = ai->ai_next)
		fd = ws_sock_connect_addr(ai->ai_addr, ai->ai_addrlen, share_of(until, n--), cancel,
		                          err);
	freeaddrinfo(list);
	if (fd < 0 && ws_cancelled(cancel))
		return ws_err_set(err, WS_ECANCELLED, "connect to %s port %u: cancelled", host,
		                  port);
	return fd;
}

int ws_sock_wait(int fd, short events, ws_deadline until, const struct ws_cancel *cancel,
                 const char *what, struct ws_err *err)
{
	struct pollfd p[2] = { { .fd = fd, .events = events },
	                       { .fd = ws_cancel_fd(cancel), .events = POLLIN } };
	/* A cancel flag without a descriptor is polled ten times a second. */
	const int slice_ms = cancel && p[1].fd < 0 ? 100 : 60 * 1000;
	for (;;) {
		if (ws_cancelled(cancel))
			return ws_err_set(err, WS_ECANCELLED, "%s: cancelled", what);
		const int n = poll(p, 2, ws_deadline_poll_ms(until, slice_ms));
		if (n < 0 && errno != EINTR)
			return ws_err_errno(err, "%s: poll", what);
		if (n > 0 && p[0].revents & POLLNVAL)
			return ws_err_set(err, WS_ESYSTEM, "%s: not an open descriptor", what);
		/* also POLLHUP and POLLERR: the next read or write reports the cause */
		if (n > 0 && p[0].revents)
			return 0;
		if (n == 0 && ws_deadline_passed(until))
			return ws_err_set(err, WS_ETIMEOUT, "%s: the deadline passed", what);
	}
}

/* Why a recv or send moved nothing: 0 to try again, -1 with the error. */
static int wait_or_fail(int fd, short events, ws_deadline until, const struct ws_cancel *cancel,
                        const char *what, struct ws_err *err)
{
	if (errno == EINTR)
		return 0;
	if (errno == EAGAIN || errno == EWOULDBLOCK)
		return ws_sock_wait(fd, events, until, cancel, what, err);
	const int error = errno;
	if (error == EPIPE)
		ws_err_set(err, WS_EDATA, "%s: closed by the peer", what);
	else
		ws_err_set(err, WS_EDATA, "%s: %s", what, strerror(error));
	if (err)
		err->native = error;
	return -1;
}

/* Check between pieces: a peer that always has data must not exceed the deadline. */
static int may_go_on(ws_deadline until, const struct ws_cancel *cancel, const char *what,
                     struct ws_err *err)
{
	if (ws_cancelled(cancel))
		return ws_err_set(err, WS_ECANCELLED, "%s: cancelled", what);
	if (ws_deadline_passed(until))
		return ws_err_set(err, WS_ETIMEOUT, "%s: the deadline passed", what);
	return 0;
}

int ws_sock_read(int fd, void *dst, size_t n, ws_deadline until, const struct ws_cancel *cancel,
                 const char *what, struct ws_err *err)
{
	char *p = dst;
	while (n) {
		const ssize_t got = recv(fd, p, n, 0);
		if (got == 0)
			return ws_err_set(err, WS_EDATA, "%s: closed by the peer", what);
		if (got < 0) {
			if (wait_or_fail(fd, POLLIN, until, cancel, what, err))
				return -1;
			continue;
		}
		p += got;
		n -= (size_t)got;
		if (n && may_go_on(until, cancel, what, err))
			return -1;
	}
	return 0;
}

int ws_sock_write(int fd, const void *src, size_t n, ws_deadline until,
                  const struct ws_cancel *cancel, const char *what, struct ws_err *err)
{
	const char *p = src;
	while (n) {
		const ssize_t put = send(fd, p, n, MSG_NOSIGNAL);
		if (put < 0) {
			if (wait_or_fail(fd, POLLOUT, until, cancel, what, err))
				return -1;
			continue;
		}
		p += put;
		n -= (size_t)put;
		if (n && may_go_on(until, cancel, what, err))
			return -1;
	}
	return 0;
}
