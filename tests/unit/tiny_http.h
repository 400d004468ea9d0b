/* SPDX-License-Identifier: Apache-2.0 */
/* tiny_http.h - an HTTP server in a thread whose path says how it behaves. A recording double for
 * what real servers do when they are slow, die or talk nonsense.
 *
 *   /ok 200 "hello"          /echo 200, the request's body      /status/N status N, body "said no"
 *   /slow 200 after 300 ms   /never nothing, connection open    /close, /reset before any reply
 *   /cut body cut short      /garbage not HTTP, /tls an alert   /huge, /endless too long a body
 *   /headers, /trailers too many of them
 *   /mute 200 "hello"; the next request on the connection is read whole, then it closes
 *   /early 200 {"success":true} to a request of which only the head is read
 * A route function, where set, is asked first: the body it returns is the reply. */
#ifndef TINY_HTTP_H
#define TINY_HTTP_H

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { TINY_MAX_CONNS = 256 };

struct tiny {
	int listener;
	uint16_t port;
	pthread_t acceptor, workers[TINY_MAX_CONNS];
	pthread_mutex_t lock;
	int fds[TINY_MAX_CONNS];     /* -1: closed; under the lock */
	atomic_int n_conns, n_posts; /* connections taken; POST bodies read whole */
	char last_head[4096];        /* of the last request */
	/* NULL: not this path. It may set *status, which is 200. */
	const char *(*route)(struct tiny *t, const char *method, const char *path, const char *body,
	                     int *status);
};

struct tiny_conn {
	struct tiny *tiny;
	int fd, *slot;
	bool mute;
	char head[4096], *body;
	size_t body_len;
};

/* The body is left unread, so that a large one cannot be sent completely. */
static void tiny_answer_early(const struct tiny_conn *c)
{
	static const char reply[] = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: "
	                            "16\r\n\r\n{\"success\":true}";
	struct pollfd gone = { c->fd, POLLRDHUP, 0 };
	(void)!send(c->fd, reply, sizeof reply - 1, MSG_NOSIGNAL);
	shutdown(c->fd, SHUT_WR);
	poll(&gone, 1, 300);
}

/* false: the peer is gone. */
static bool tiny_read_request(struct tiny_conn *c)
{
	size_t n = 0;
	char *end = NULL;
	while (!end) {
		const ssize_t got = recv(c->fd, c->head + n, sizeof c->head - 1 - n, 0);
		if (got <= 0)
			return false;
		n += (size_t)got;
		c->head[n] = '\0';
		end = strstr(c->head, "\r\n\r\n");
	}
	if (strstr(c->head, " /early ")) {
		tiny_answer_early(c);
		return false;
	}
	end += 4;
	const char *length = strcasestr(c->head, "content-length:");
	c->body_len = length ? strtoul(length + 15, NULL, 10) : 0;
	c->body = realloc(c->body, c->body_len + 1);
	size_t have = (size_t)(c->head + n - end);
	memcpy(c->body, end, have);
	for (ssize_t got; have < c->body_len; have += (size_t)got)
		if ((got = recv(c->fd, c->body + have, c->body_len - have, 0)) <= 0)
			return false;
	*end = '\0';
	memcpy(c->tiny->last_head, c->head, sizeof c->head);
	if (!strncmp(c->head, "POST", 4))
		c->tiny->n_posts++;
	return true;
}

static void tiny_send(const struct tiny_conn *c, const void *bytes, size_t n)
{
	(void)!send(c->fd, bytes, n, MSG_NOSIGNAL);
}

static void tiny_reply(const struct tiny_conn *c, int status, const char *body, size_t n)
{
	char head[256];
	const int len = snprintf(head, sizeof head,
	                         "HTTP/1.1 %d Tiny\r\nContent-Type: application/json\r\n"
	                         "Content-Length: %zu\r\n\r\n", status, n);
	tiny_send(c, head, (size_t)len);
	tiny_send(c, body, n);
}

static void tiny_stream_for_ever(const struct tiny_conn *c, const char *head, const char *again)
{
	char block[4096];
	const size_t n = strlen(again);
	size_t len = 0;
	for (; len + n <= sizeof block; len += n)
		memcpy(block + len, again, n);
	tiny_send(c, head, strlen(head));
	while (send(c->fd, block, len, MSG_NOSIGNAL) > 0)
		;
}

/* false: close the connection. */
static bool tiny_serve(struct tiny_conn *c)
{
	char method[8] = "", path[256] = "", byte;
	int status = 200;
	if (sscanf(c->head, "%7s %255s", method, path) != 2 || c->mute)
		return false;
	c->body[c->body_len] = '\0';
	const char *reply =
		c->tiny->route ? c->tiny->route(c->tiny, method, path, c->body, &status) : NULL;
	if (reply)
		return tiny_reply(c, status, reply, strlen(reply)), true;
	if (!strcmp(path, "/slow"))
		usleep(300 * 1000);
	if (!strcmp(path, "/echo"))
		tiny_reply(c, 200, c->body, c->body_len);
	else if (!strncmp(path, "/status/", 8))
		tiny_reply(c, atoi(path + 8), "said no", 7);
	else if (!strcmp(path, "/never"))
		return recv(c->fd, &byte, 1, 0) > 0;
	else if (!strcmp(path, "/close"))
		return false;
	else if (!strcmp(path, "/reset"))
		return setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &(struct linger){ 1, 0 },
		                  sizeof(struct linger)) && false;
	else if (!strcmp(path, "/cut"))
		return tiny_send(c, "HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nshort", 43),
		       false;
	else if (!strcmp(path, "/garbage"))
		return tiny_send(c, "SSH-2.0-OpenSSH_9.2\r\n", 21), false;
	else if (!strcmp(path, "/tls"))
		return tiny_send(c, "\x15\x03\x01\x00\x02\x02\x46", 7), false;
	else if (!strcmp(path, "/huge"))
		tiny_send(c, "HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\nx", 49);
	else if (!strcmp(path, "/endless"))
		tiny_stream_for_ever(c, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n", "x");
	else if (!strcmp(path, "/headers"))
		tiny_stream_for_ever(c, "HTTP/1.1 200 OK\r\n", "X-More: and more\r\n");
	else if (!strcmp(path, "/trailers"))
		tiny_stream_for_ever(
			c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n",
			"X-More: and more\r\n");
	else
		tiny_reply(c, 200, "hello", 5);
	c->mute = !strcmp(path, "/mute");
	return true;
}

static void *tiny_work(void *arg)
{
	struct tiny_conn *c = arg;
	struct tiny *t = c->tiny;
	while (tiny_read_request(c) && tiny_serve(c))
		;
	pthread_mutex_lock(&t->lock);
	close(c->fd);
	*c->slot = -1;
	pthread_mutex_unlock(&t->lock);
	free(c->body);
	free(c);
	return NULL;
}

static void *tiny_accept(void *arg)
{
	struct tiny *t = arg;
	for (int fd; t->n_conns < TINY_MAX_CONNS && (fd = accept(t->listener, NULL, NULL)) >= 0;) {
		struct tiny_conn *c = calloc(1, sizeof *c);
		const int i = t->n_conns;
		/* Head and body are sent apart, and would wait 40 ms for one another. */
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){ 1 }, sizeof(int));
		t->fds[i] = fd;
		*c = (struct tiny_conn){ .tiny = t, .fd = fd, .slot = &t->fds[i] };
		t->n_conns++; /* before it answers, so that a test counts right */
		pthread_create(&t->workers[i], NULL, tiny_work, c);
	}
	return NULL;
}

static void tiny_start(struct tiny *t)
{
	struct sockaddr_in at = { .sin_family = AF_INET,
		                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof at;
	memset(t, 0, sizeof *t);
	pthread_mutex_init(&t->lock, NULL);
	t->listener = socket(AF_INET, SOCK_STREAM, 0);
	if (bind(t->listener, (struct sockaddr *)&at, sizeof at) || listen(t->listener, 256) ||
	    getsockname(t->listener, (struct sockaddr *)&at, &len))
		abort();
	t->port = ntohs(at.sin_port);
	pthread_create(&t->acceptor, NULL, tiny_accept, t);
}

static void tiny_stop(struct tiny *t)
{
	shutdown(t->listener, SHUT_RDWR);
	pthread_join(t->acceptor, NULL);
	close(t->listener);
	pthread_mutex_lock(&t->lock);
	for (int i = 0; i < t->n_conns; i++)
		if (t->fds[i] >= 0)
			shutdown(t->fds[i], SHUT_RDWR);
	pthread_mutex_unlock(&t->lock);
	for (int i = 0; i < t->n_conns; i++)
		pthread_join(t->workers[i], NULL);
	pthread_mutex_destroy(&t->lock);
}

/* "http://127.0.0.1:PORT/path" */
static inline char *tiny_url(const struct tiny *t, const char *path, char *dst, size_t n)
{
	snprintf(dst, n, "http://127.0.0.1:%u%s", (unsigned)t->port, path);
	return dst;
}

#endif
