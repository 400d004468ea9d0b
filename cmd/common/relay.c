/* SPDX-License-Identifier: Apache-2.0 */
/* relay.c - a pipe of our own before each of the reader's. The thread always reads the one and never waits
 * in the other, so that the program never waits in the first. */
#include "relay.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 128 << 10, CHUNK = 64 << 10 }; /* bytes that wait for a reader; a line is kept whole */

struct stream {
	int fd;              /* 1 or 2, which the program writes to */
	int in;              /* the other end of that; -1: it has ended, or nobody wants it */
	int out;             /* does not wait; -1: there is no relay, or the reader went away */
	int real;            /* what fd was */
	bool socket, json;
	char *data;
	size_t at, len, cap; /* [at, len) waits */
	bool within, skipping; /* a line; one that is left out */
	unsigned long long lost; /* lines, not told of yet */
};

static struct stream streams[] = {
	{ .fd = STDOUT_FILENO, .in = -1, .out = -1, .real = -1 },
	{ .fd = STDERR_FILENO, .in = -1, .out = -1, .real = -1 },
};
enum { N_STREAMS = 2 };
static const char *program;
static pthread_t thread;
static bool started;

/* ---- lines -------------------------------------------------------------------------------------- */

static void append(struct stream *s, const char *bytes, size_t n)
{
	if (s->at) {
		memmove(s->data, s->data + s->at, s->len - s->at);
		s->len -= s->at;
		s->at = 0;
	}
	if (n > s->cap - s->len) {
		const size_t cap = 2 * s->cap + n;
		char *grown = realloc(s->data, cap);
		if (!grown) {
			s->lost++;
			return;
		}
		s->data = grown;
		s->cap = cap;
	}
	memcpy(s->data + s->len, bytes, n);
	s->len += n;
}

static void tell_lost(struct stream *s)
{
	char line[256];
	const char *form = s->json ? "{\"type\":\"warning\",\"url\":null,\"message\":\"%s%s%llu lines were left "
	                             "out here: nobody read them\"}\n"
	                           : "%s%s%llu lines were left out here: nobody read them\n";
	const int n = snprintf(line, sizeof line, form, s->json ? "" : program, s->json ? "" : ": warning: ",
	                       s->lost);
	s->lost = 0;
	append(s, line, (size_t)n);
}

static void begin_line(struct stream *s)
{
	s->skipping = s->len - s->at > MOST;
	if (s->skipping)
		s->lost++;
	else if (s->lost)
		tell_lost(s);
}

static void take(struct stream *s, const char *bytes, size_t n)
{
	while (n) {
		const char *end = memchr(bytes, '\n', n);
		const size_t k = end ? (size_t)(end - bytes) + 1 : n;
		if (!s->within)
			begin_line(s);
		if (!s->skipping)
			append(s, bytes, k);
		s->within = !end;
		bytes += k;
		n -= k;
	}
}

/* ---- the thread --------------------------------------------------------------------------------- */

static void shut(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

/* The program finds out as it would have: by its next write. */
static void lose_reader(struct stream *s)
{
	shut(&s->out);
	shut(&s->in);
	s->at = s->len = 0;
}

static void fill(struct stream *s)
{
	char bytes[CHUNK];
	const ssize_t n = read(s->in, bytes, sizeof bytes);
	if (n > 0)
		take(s, bytes, (size_t)n);
	else if (n == 0 || (errno != EINTR && errno != EAGAIN))
		shut(&s->in);
}

static void drain(struct stream *s)
{
	const size_t left = s->len - s->at;
	const ssize_t n = s->socket ? send(s->out, s->data + s->at, left, MSG_DONTWAIT | MSG_NOSIGNAL)
	                            : write(s->out, s->data + s->at, left);
	if (n > 0)
		s->at += (size_t)n;
	else if (errno != EINTR && errno != EAGAIN)
		lose_reader(s);
	if (s->at == s->len && s->lost && !s->within)
		tell_lost(s);
}

static void *relay(void *ctx)
{
	(void)ctx;
	for (;;) {
		struct pollfd p[2 * N_STREAMS];
		bool busy = false;
		for (int i = 0; i < N_STREAMS; i++) {
			const struct stream *s = &streams[i];
			const bool waits = s->out >= 0 && s->at < s->len;
			p[2 * i] = (struct pollfd){ .fd = s->in, .events = POLLIN };
			p[2 * i + 1] = (struct pollfd){ .fd = waits ? s->out : -1, .events = POLLOUT };
			busy = busy || s->in >= 0 || waits;
		}
		if (!busy)
			return NULL;
		poll(p, 2 * N_STREAMS, -1);
		for (int i = 0; i < N_STREAMS; i++) {
			if (p[2 * i].revents)
				fill(&streams[i]);
			if (p[2 * i + 1].revents)
				drain(&streams[i]);
		}
	}
}

/* ---- beginning and end -------------------------------------------------------------------------- */

/* A pipe is opened anew: its other users must not find that it has ceased to wait. */
static int open_reader(struct stream *s)
{
	char path[32];
	struct stat st;
	if (fstat(s->fd, &st))
		return -1;
	s->socket = S_ISSOCK(st.st_mode);
	if (s->socket)
		return fcntl(s->fd, F_DUPFD_CLOEXEC, 3);
	snprintf(path, sizeof path, "/proc/self/fd/%d", s->fd);
	return S_ISFIFO(st.st_mode) ? open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC) : -1;
}

static void divert(struct stream *s)
{
	int ends[2];
	s->out = open_reader(s);
	s->real = s->out >= 0 ? fcntl(s->fd, F_DUPFD_CLOEXEC, 3) : -1;
	if (s->real < 0 || pipe2(ends, O_CLOEXEC)) {
		shut(&s->out);
		shut(&s->real);
		return;
	}
	s->in = ends[0];
	dup2(ends[1], s->fd);
	close(ends[1]);
}

/* Of 2>&1. Two relays into one pipe would tear each other's lines, and put them out of order. */
static bool is_one_file(void)
{
	struct stat a, b;
	return fstat(STDOUT_FILENO, &a) == 0 && fstat(STDERR_FILENO, &b) == 0 && a.st_dev == b.st_dev &&
	       a.st_ino == b.st_ino;
}

static void divert_all(void)
{
	const bool one = is_one_file();
	divert(&streams[0]);
	if (!one)
		divert(&streams[1]);
	else if (streams[0].in >= 0 && (streams[1].real = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3)) >= 0)
		dup2(STDOUT_FILENO, STDERR_FILENO);
}

static void restore(struct stream *s)
{
	if (s->real >= 0)
		dup2(s->real, s->fd);
	shut(&s->real);
}

void relay_start(const struct ui *ui)
{
	sigset_t all, before;
	program = ui->program;
	fflush(stdout);
	streams[0].json = ui->json;
	divert_all();
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	started = (streams[0].in >= 0 || streams[1].in >= 0) && pthread_create(&thread, NULL, relay, NULL) == 0;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	for (int i = 0; i < N_STREAMS && !started; i++) {
		restore(&streams[i]);
		shut(&streams[i].in);
		shut(&streams[i].out);
	}
}

void relay_finish(void)
{
	struct timespec end;
	if (!started)
		return;
	started = false;
	fflush(stdout);
	for (int i = 0; i < N_STREAMS; i++)
		restore(&streams[i]);
	clock_gettime(CLOCK_REALTIME, &end);
	end.tv_sec++;
	if (pthread_timedjoin_np(thread, NULL, &end) == 0)
		for (int i = 0; i < N_STREAMS; i++)
			free(streams[i].data);
}
