/* SPDX-License-Identifier: Apache-2.0 */
#include "serve_accept.h"

#include "sock.h"
#include "job.h"
#include "wsync/cancel.h"
#include "wsync/clock.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { PAUSE_MS = 20 }; /* pause after accept(2) failed without descriptors or memory */
#define SPARED_NS (2 * WS_NS_PER_S)

struct ws_serve_slot {
	struct ws_serve_accept *accept;
	int fd;            /* -1: free */
	int64_t since_ns;  /* start of the wait for the client; meaningless while working */
	ws_deadline until; /* for a complete request; WS_FOREVER: it is complete */
	bool open;         /* set by ws_serve_slot_find: fd belongs to this connection */
	bool working;
	bool ending;       /* shut down, but its thread has not noticed yet */
};

struct ws_serve_accept {
	struct ws_serve_accept_opts opts;
	int listen_fd;
	pthread_t thread;
	struct ws_cancel stop;
	pthread_mutex_t lock;   /* guards the slots */
	pthread_cond_t changed; /* a slot is free, or its connection may be closed */
	size_t n;               /* slots taken */
	struct ws_serve_slot slots[];
};

/* ---- choosing connections to close; called with the lock held ---- */

/* Wakes the connection's thread. That thread owns the descriptor, so no close(2) here. */
static void shut(struct ws_serve_slot *s)
{
	s->ending = true;
	shutdown(s->fd, SHUT_RDWR);
}

/* Shuts connections past their deadline. Returns the earliest deadline of the others. */
static ws_deadline shut_overdue(struct ws_serve_accept *a)
{
	/* a deadline that is set later is never earlier than this */
	ws_deadline next = ws_deadline_in(a->opts.read_ns);
	for (size_t i = 0; i < a->opts.most; i++) {
		struct ws_serve_slot *s = &a->slots[i];
		if (s->fd < 0 || !s->open || s->ending)
			continue;
		if (ws_deadline_passed(s->until))
			shut(s);
		else
			next = ws_deadline_min(next, s->until);
	}
	return next;
}

/* Has the client closed its side? */
static bool has_left(const struct ws_serve_slot *s)
{
	struct pollfd p = { .fd = s->fd, .events = POLLRDHUP };
	return poll(&p, 1, 0) > 0;
}

/* Shuts the connection that has waited longest, unless a waiting one is ending already; before it
 * one whose client has left. While others work, perhaps for clients that have left, those that wait
 * may be the newest ones: they are spared for a while. */
static void shut_longest(struct ws_serve_accept *a)
{
	struct ws_serve_slot *longest = NULL;
	bool any_left = false;
	size_t n = 0;
	for (size_t i = 0; i < a->opts.most; i++) {
		struct ws_serve_slot *s = &a->slots[i];
		if (s->fd < 0 || !s->open)
			continue;
		const bool left = has_left(s);
		any_left |= left;
		if (s->working)
			continue;
		if (s->ending)
			return;
		if (left) {
			shut(s);
			return;
		}
		n++;
		if (!longest || s->since_ns < longest->since_ns)
			longest = s;
	}
	const bool spared = any_left || n <= a->opts.most / 8;
	if (longest && (!spared || ws_now_ns() - longest->since_ns > SPARED_NS))
		shut(longest);
}

/* ---- the thread that accepts ---- */

/* Waits for a free slot. Returns false when the thread must stop. */
static bool make_room(struct ws_serve_accept *a)
{
	pthread_mutex_lock(&a->lock);
	while (a->n == a->opts.most && !ws_cancelled(&a->stop)) {
		struct timespec soon;
		shut_longest(a);
		clock_gettime(CLOCK_REALTIME, &soon);
		soon.tv_sec++;
		pthread_cond_timedwait(&a->changed, &a->lock, &soon);
	}
	pthread_mutex_unlock(&a->lock);
	return !ws_cancelled(&a->stop);
}

static bool await_client(struct ws_serve_accept *a)
{
	struct ws_err err;
	do {
		pthread_mutex_lock(&a->lock);
		const ws_deadline until = shut_overdue(a);
		pthread_mutex_unlock(&a->lock);
		err = (struct ws_err)WS_ERR_INIT;
		if (ws_sock_wait(a->listen_fd, POLLIN, until, &a->stop, "listener", &err) == 0)
			return true;
		if (err.code == WS_ESYSTEM)
			poll(NULL, 0, PAUSE_MS);
	} while (!ws_cancelled(&a->stop));
	return false;
}

/* A slot that still has this descriptor belonged to a connection that failed unnoticed: it is
 * reused. Otherwise takes a free slot. */
static struct ws_serve_slot *take_slot(struct ws_serve_accept *a, int fd)
{
	struct ws_serve_slot *s = NULL;
	for (size_t i = 0; i < a->opts.most; i++) {
		if (a->slots[i].fd == fd)
			return &a->slots[i];
		if (a->slots[i].fd < 0)
			s = &a->slots[i];
	}
	a->n++;
	return s;
}

static void add(struct ws_serve_accept *a, int fd, const struct sockaddr *address, socklen_t len)
{
	ws_sock_keep_alive(fd); /* so that a client without power is noticed */
	pthread_mutex_lock(&a->lock);
	struct ws_serve_slot *s = take_slot(a, fd);
	*s = (struct ws_serve_slot){ .accept = a, .fd = fd, .since_ns = ws_now_ns(),
		                     .until = ws_deadline_in(a->opts.read_ns) };
	pthread_mutex_unlock(&a->lock);
	if (!a->opts.add(a->opts.ctx, fd, address, len))
		ws_serve_slot_free(s);
}

static void *run(void *arg)
{
	struct ws_serve_accept *a = arg;
	while (make_room(a) && await_client(a)) {
		struct sockaddr_storage address;
		socklen_t len = sizeof address;
		const int fd = accept4(a->listen_fd, (struct sockaddr *)&address, &len,
		                       SOCK_CLOEXEC | SOCK_NONBLOCK);
		if (fd >= 0) {
			add(a, fd, (struct sockaddr *)&address, len);
		} else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM ||
		           errno == ENOBUFS) {
			pthread_mutex_lock(&a->lock);
			shut_longest(a);
			pthread_mutex_unlock(&a->lock);
			poll(NULL, 0, PAUSE_MS);
		}
	}
	return NULL;
}

/* ---- for the threads of the connections ---- */

struct ws_serve_slot *ws_serve_slot_find(struct ws_serve_accept *a, int fd)
{
	struct ws_serve_slot *found = NULL;
	pthread_mutex_lock(&a->lock);
	for (size_t i = 0; i < a->opts.most && !found; i++)
		if (a->slots[i].fd == fd)
			found = &a->slots[i];
	if (found)
		found->open = true;
	pthread_cond_signal(&a->changed);
	pthread_mutex_unlock(&a->lock);
	return found;
}

static void change(struct ws_serve_slot *s, bool working, ws_deadline until)
{
	if (!s)
		return;
	pthread_mutex_lock(&s->accept->lock);
	s->working = working;
	s->since_ns = ws_now_ns();
	s->until = until;
	if (!working)
		pthread_cond_signal(&s->accept->changed);
	pthread_mutex_unlock(&s->accept->lock);
}

void ws_serve_slot_reading(struct ws_serve_slot *s)
{
	change(s, false, s ? ws_deadline_in(s->accept->opts.read_ns) : 0);
}

void ws_serve_slot_received(struct ws_serve_slot *s, size_t n)
{
	if (!s)
		return;
	pthread_mutex_lock(&s->accept->lock);
	s->until += (ws_deadline)n * (WS_NS_PER_S >> 20);
	pthread_mutex_unlock(&s->accept->lock);
}

void ws_serve_slot_working(struct ws_serve_slot *s)
{
	change(s, true, WS_FOREVER);
}

void ws_serve_slot_sending(struct ws_serve_slot *s)
{
	change(s, false, WS_FOREVER);
}

void ws_serve_slot_free(struct ws_serve_slot *s)
{
	if (!s)
		return;
	pthread_mutex_lock(&s->accept->lock);
	s->fd = -1;
	s->accept->n--;
	pthread_cond_signal(&s->accept->changed);
	pthread_mutex_unlock(&s->accept->lock);
}

/* ---- open and close ---- */

int ws_serve_accept_open(const struct ws_serve_accept_opts *opts, int listen_fd,
                         struct ws_serve_accept **out, struct ws_err *err)
{
	struct ws_serve_accept *a = calloc(1, sizeof *a + opts->most * sizeof a->slots[0]);
	if (!a) {
		close(listen_fd);
		return ws_oom(err);
	}
	a->opts = *opts;
	a->listen_fd = listen_fd;
	for (size_t i = 0; i < opts->most; i++)
		a->slots[i].fd = -1;
	pthread_mutex_init(&a->lock, NULL);
	pthread_cond_init(&a->changed, NULL);
	*out = a; /* must be set before the first connection looks up its slot */
	if (ws_cancel_init(&a->stop, err) == 0 && ws_thread_start(&a->thread, run, a, err) == 0)
		return 0;
	*out = NULL;
	close(listen_fd);
	ws_serve_accept_close(a);
	return -1;
}

void ws_serve_accept_stop(struct ws_serve_accept *a)
{
	ws_cancel_set(&a->stop);
	pthread_mutex_lock(&a->lock);
	pthread_cond_signal(&a->changed);
	pthread_mutex_unlock(&a->lock);
	pthread_join(a->thread, NULL);
	close(a->listen_fd);
}

void ws_serve_accept_close(struct ws_serve_accept *a)
{
	if (!a)
		return;
	ws_cancel_fini(&a->stop);
	pthread_cond_destroy(&a->changed);
	pthread_mutex_destroy(&a->lock);
	free(a);
}
