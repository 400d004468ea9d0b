/* SPDX-License-Identifier: Apache-2.0 */
/* The HTTP server and clients that are silent, slow, or say where their request ends twice. */
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

static void start(int64_t read_ns)
{
	const struct ws_serve_handler handler = { .admit = admit,
		                                  .handle = handle,
		                                  .read_ns = read_ns };
	struct ws_err err = WS_ERR_INIT;
	const int fd = ws_sock_listen("127.0.0.1", 0, &port, &err);
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

RUN_TESTS(NULL, NULL)
