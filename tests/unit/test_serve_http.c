/* SPDX-License-Identifier: Apache-2.0 */
/* The HTTP server and clients that are silent, slow, or send requests that can be read in two ways.
 */
#include "serve_http.h"

#include "sock.h"
#include "test.h"
#include "wsync/clock.h"

#include <poll.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define LONG (60 * WS_NS_PER_S) /* no test waits so long unless it fails */

static struct ws_serve_http *http;
static uint16_t port;
static atomic_int handled;
static sem_t arrived, released; /* of requests for /hold */

static bool admit(void *ctx, const struct ws_serve_request *rq, struct ws_serve_reply *rp)
{
	(void)ctx;
	(void)rq;
	(void)rp;
	return true;
}

static void handle(void *ctx, const struct ws_serve_request *rq, struct ws_serve_reply *rp)
{
	(void)ctx;
	atomic_fetch_add(&handled, 1);
	if (strcmp(rq->path, "/hold") == 0) {
		sem_post(&arrived);
		sem_wait(&released);
	}
	rp->status = 200;
	rp->type = "text/plain";
	ws_buf_puts(&rp->body, "fine");
}

static size_t bodies_most;

static void start(int64_t read_ns)
{
	const struct ws_serve_handler handler = { .admit = admit,
		                                  .handle = handle,
		                                  .read_ns = read_ns,
		                                  .bodies_most = bodies_most };
	struct ws_err err = WS_ERR_INIT;
	const int fd = ws_sock_listen("127.0.0.1", 0, 0, NULL, &port, &err);
	if (fd < 0 || ws_serve_http_open(&handler, fd, &http, &err))
		fail_msg("%s", err.msg);
}

static int set_up(void **state)
{
	(void)state;
	atomic_store(&handled, 0);
	return sem_init(&arrived, 0, 0) || sem_init(&released, 0, 0);
}

static int tear_down(void **state)
{
	(void)state;
	sem_post(&released); /* where a test failed */
	ws_serve_http_close(http);
	http = NULL;
	sem_destroy(&arrived);
	sem_destroy(&released);
	return 0;
}

#define SERVED(name) TEST_BETWEEN(name, set_up, tear_down)

/* A connection on which this was sent. */
static int dial(const char *text)
{
	struct ws_err err = WS_ERR_INIT;
	const int fd = ws_sock_connect("127.0.0.1", port, ws_deadline_in(LONG), NULL, &err);
	if (fd < 0 ||
	    ws_sock_write(fd, text, strlen(text), ws_deadline_in(LONG), NULL, "client", &err))
		fail_msg("%s", err.msg);
	return fd;
}

/* The next bytes of the server's; 0: it has closed the connection. */
static size_t hear(int fd, char *text, size_t n, ws_deadline until)
{
	struct ws_err err = WS_ERR_INIT;
	if (ws_sock_wait(fd, POLLIN, until, NULL, "server", &err))
		fail_msg("%s", err.msg);
	const ssize_t got = recv(fd, text, n, 0);
	return got > 0 ? (size_t)got : 0;
}

static void assert_answer(int fd, const char *status, const char *body)
{
	char text[4096];
	size_t n = 0;
	do {
		const size_t got = hear(fd, text + n, sizeof text - 1 - n, ws_deadline_in(LONG));
		n += got;
		text[n] = 0;
		if (!got)
			fail_msg("closed after '%s'", text);
	} while (!strstr(text, body));
	if (strncmp(text, status, strlen(status)))
		fail_msg("'%s' is not %s", text, status);
}

static void assert_closed(int fd)
{
	char text[4096];
	while (hear(fd, text, sizeof text, ws_deadline_in(LONG)))
		;
	close(fd);
}

static void assert_served(void)
{
	const int fd = dial("GET /health HTTP/1.1\r\nHost: a\r\n\r\n");
	assert_answer(fd, "HTTP/1.1 200", "fine");
	close(fd);
}

/* How many connections this process can hold both ends of. */
static size_t many(void)
{
	enum { WANTED = 1200, OTHERS = 400 };
	struct rlimit files;
	getrlimit(RLIMIT_NOFILE, &files);
	files.rlim_cur = files.rlim_max;
	setrlimit(RLIMIT_NOFILE, &files);
	return files.rlim_cur > WANTED + OTHERS ? WANTED : (size_t)files.rlim_cur - OTHERS;
}

SERVED(clients_that_are_silent_keep_nobody_out)
{
	const size_t n = many();
	int *fds = calloc(n, sizeof *fds);
	start(0);
	assert_non_null(fds);
	const int held = dial("POST /hold HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n{");
	sem_wait(&arrived);
	for (size_t i = 0; i < n; i++) {
		fds[i] = dial(i % 2 ? "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n{" :
		                      "");
		if (i % 100 == 0)
			assert_served();
	}
	assert_served();
	sem_post(&released); /* its connection was not closed for the sake of others */
	assert_answer(held, "HTTP/1.1 200", "fine");
	close(held);
	for (size_t i = 0; i < n; i++)
		close(fds[i]);
	free(fds);
}

SERVED(a_request_that_does_not_end_is_cut_and_one_that_is_worked_on_is_not)
{
	char text[256];
	start(200 * WS_NS_PER_MS);
	const int held = dial("GET /hold HTTP/1.1\r\nHost: a\r\n\r\n");
	sem_wait(&arrived);
	const int silent = dial("");
	const int drip = dial("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 200000\r\n\r\n");
	const ws_deadline until = ws_deadline_in(LONG);
	struct ws_err err = WS_ERR_INIT;
	while (ws_sock_wait(drip, POLLIN, ws_deadline_in(WS_NS_PER_MS), NULL, "server", &err)) {
		assert_false(ws_deadline_passed(until));
		send(drip, "x", 1, MSG_NOSIGNAL);
	}
	assert_int_equal(hear(drip, text, sizeof text, until), 0);
	close(drip);
	assert_closed(silent);
	sem_post(&released);
	assert_answer(held, "HTTP/1.1 200", "fine");
	assert_closed(held); /* no further request came */
	assert_int_equal(atomic_load(&handled), 1);
}

static int post(size_t length, size_t sent)
{
	char *text = calloc(1, length + 200);
	assert_non_null(text);
	const int head = snprintf(text, 200, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %zu"
	                          "\r\n\r\n", length);
	memset(text + head, 'x', sent);
	const int fd = dial(text);
	free(text);
	return fd;
}

SERVED(all_bodies_together_have_a_limit)
{
	bodies_most = 100000;
	start(0);
	bodies_most = 0;
	const int held = post(80000, 60000);
	int fd = post(0, 0);
	/* until the server has read what the first one sent */
	const ws_deadline until = ws_deadline_in(LONG);
	for (bool refused = false; !refused;) {
		char text[4096] = "";
		close(fd);
		fd = post(60000, 60000);
		assert_true(hear(fd, text, sizeof text - 1, until) > 0);
		refused = strstr(text, "HTTP/1.1 503");
		assert_false(ws_deadline_passed(until));
	}
	close(fd);
	assert_served();
	close(held); /* which frees its share */
	for (bool taken = false; !taken;) {
		char text[4096] = "";
		fd = post(60000, 60000);
		assert_true(hear(fd, text, sizeof text - 1, until) > 0);
		taken = strstr(text, "HTTP/1.1 200");
		assert_false(ws_deadline_passed(until));
		close(fd);
	}
	fd = post(110000, 110000);
	assert_answer(fd, "HTTP/1.1 503", "too many large requests at the same time");
	close(fd);
}

SERVED(a_request_with_two_lengths_is_the_last)
{
	static const char *const lengths[] = {
		"Content-Length: 5\r\nTransfer-Encoding: chunked",
		"Content-Length: 5\r\nContent-Length: 5",
		"transfer-encoding: chunked\r\ncontent-length: 0",
	};
	start(0);
	for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
		char text[512];
		snprintf(text, sizeof text, "POST / HTTP/1.1\r\nHost: a\r\n%s\r\n\r\n0\r\n\r\n"
		         "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n", lengths[i]);
		const int fd = dial(text);
		assert_answer(fd, "HTTP/1.1 400", "More than one of Content-Length");
		assert_closed(fd);
	}
	assert_int_equal(atomic_load(&handled), 0);
	assert_served();
}

/* Everything that another parser may read differently. */
SERVED(a_request_that_is_not_strict_is_the_last)
{
#define TO " /x HTTP/1.1\r\nHost: a\r\n"
	static const char *const bad[] = {
		"GET /x HTTP/1.1\r\nHost : a\r\n\r\n",
		"GET" TO "X-A : b\r\n\r\n",
		"GET" TO "X-A\t: b\r\n\r\n",
		"POST" TO "Content-Length : 3\r\n\r\nabc",
		"GET" TO ": b\r\n\r\n",
		"GET" TO "nothing\r\n\r\n",
		"GET /x HTTP/1.1\nHost: a\n\n",
		"GET /x HTTP/1.1\nHost: a\r\n\r\n",
		"GET /x HTTP/1.1\r\nHost: a\nX: b\r\n\r\n",
		"GET /x HTTP/1.1\r\nHost: a\n\r\n",
		"GET" TO "\n",
		"GET" TO "X: a\rY: b\r\n\r\n",
		"GET" TO "X: a\x01\r\n\r\n",
		"GET" TO "X: y\r\n z\r\n\r\n",
		"GET" TO "X: y\r\n\tz\r\nY: b\r\n\r\n",
		"GET" TO " z\r\n\r\n",
		"POST" TO "Transfer-:\r\n Encoding\r\nContent-Length: 1\r\n\r\na",
		"GET /x HTTP/1.1\r\n X: y\r\nHost: a\r\n\r\n",
		"GET /x HTTP/1.1\r\n\r\n",
		"GET /x HTTP/1.1\r\nX: a\r\n\r\n",
		"GET" TO "Host: a\r\n\r\n",
		"GET" TO "host: b\r\n\r\n",
		"GET /x HTTP/1.0\r\nHost: a\r\nHost: a\r\n\r\n",
		"GET /x HTTP/1.1\r\nHost: a, b\r\n\r\n",
		"GET /x HTTP/1.1\r\nHost: a b\r\n\r\n",
		"GET /x HTTP/1.1\r\nHost: u@a\r\n\r\n",
		"GET  /x HTTP/1.1\r\nHost: a\r\n\r\n",
		"GET /x HTTP/1.1 \r\nHost: a\r\n\r\n",
		"GET /x\r\n\r\n",
		"GET /x%00y HTTP/1.1\r\nHost: a\r\n\r\n",
		"GET /x%00 HTTP/1.0\r\n\r\n",
		"GET /x?a%00=b HTTP/1.1\r\nHost: a\r\n\r\n",
		"GET /x?a=b&c=d%00e HTTP/1.1\r\nHost: a\r\n\r\n",
		"GET /x http/1.1\r\nHost: a\r\n\r\n",
		"POST" TO "Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
		"POST" TO "Content-Length: +3\r\n\r\nabc",
		"POST" TO "Content-Length: 3, 3\r\n\r\nabc",
		"POST" TO "Transfer-Encoding: identity\r\n\r\n",
		"POST" TO "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
		"POST /x HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
	};
	start(0);
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
		const int fd = dial(bad[i]);
		char text[4096] = "";
		size_t n = 0, got;
		while (n < sizeof text - 1 &&
		       (got = hear(fd, text + n, sizeof text - 1 - n, ws_deadline_in(LONG))))
			n += got;
		if (strncmp(text, "HTTP/1.1 400", 12))
			fail_msg("'%s' is answered with '%s'", bad[i], text);
		close(fd);
	}
	assert_int_equal(atomic_load(&handled), 0);
	assert_served();
}

SERVED(a_request_that_is_strict_is_served)
{
	static const char *const good[] = {
		"GET" TO "\r\n",
		"\r\nGET" TO "\r\n",
		"GET /x HTTP/1.1\r\nhost:a\r\n\r\n",
		"GET /x?a=b%20c&d HTTP/1.1\r\nHost: a:80\r\nEmpty:\r\nX:  b c \t\r\n\r\n",
		"GET /x%2500?a=%2500 HTTP/1.1\r\nHost: a\r\n\r\n",
		"GET /x%20y HTTP/1.1\r\nHost: [::1]:80\r\nCookie: a=b; c=\"d\"; e\r\n\r\n",
		"GET /x HTTP/1.1\r\nHost: a:80 \t\r\n\r\n",
		"GET /x HTTP/1.0\r\n\r\n",
		"GET /x HTTP/1.0\r\nHost: a\r\n\r\n",
		"GET" TO "X: a\r\nX: \xc3\xa9\r\n\r\n",
		"POST" TO "Content-Length: 3\r\n\r\nabc",
		"POST" TO "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
	};
	start(0);
	for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
		const int fd = dial(good[i]);
		assert_answer(fd, "HTTP/1.1 200", "fine");
		close(fd);
	}
}

/* The lines of chunks are not checked, so no request is read after them. */
SERVED(a_chunked_request_is_the_last)
{
	start(0);
	const int fd = dial("POST" TO "Transfer-Encoding: chunked\r\n\r\n1\na\n0\n\n"
	                    "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n");
	assert_closed(fd);
	assert_true(atomic_load(&handled) <= 1);
}

/* The head stays in one piece when its buffer grows, and in the next request. */
SERVED(a_long_head_is_served_again_and_again)
{
	enum { LINES = 500, WIDTH = 60 };
	char head[LINES * WIDTH + 100];
	size_t n = (size_t)sprintf(head, "GET" TO);
	for (int i = 0; i < LINES; i++)
		n += (size_t)sprintf(head + n, "X-%d: %040d\r\n", i, i);
	sprintf(head + n, "\r\n");
	start(0);
	const int fd = dial("");
	for (int i = 0; i < 3; i++) {
		struct ws_err err = WS_ERR_INIT;
		for (size_t at = 0; at < strlen(head); at += 1000)
			if (ws_sock_write(fd, head + at,
			                  strlen(head) - at < 1000 ? strlen(head) - at : 1000,
			                  ws_deadline_in(LONG), NULL, "client", &err))
				fail_msg("%s", err.msg);
		assert_answer(fd, "HTTP/1.1 200", "fine");
	}
	close(fd);
}
#undef TO

RUN_TESTS(NULL, NULL)
