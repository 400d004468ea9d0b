/* SPDX-License-Identifier: Apache-2.0 */
/* store.c - the store's sockets, its thread, and its locks.
 *
 * One thread runs an epoll loop; all its state (struct ws_store_core) is under one mutex, which
 * is never held during a wait. Each waiter in our own process has a descriptor that wakes it,
 * so that it can also watch its cancel flag. */
#include "store_core.h"

#include "sock.h"
#include "job.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
	EVENTS = 64,
	PIECE = 64 << 10,    /* bytes read from one connection before the next has its turn */
	ACCEPTS = 16,        /* connections accepted before those that have sent get their turn */
	TICK_MS = 100,
};

/* A waiter in our own process. */
struct waiting {
	struct waiting *next;
	int fd;
};

struct ws_store {
	struct ws_store_core core;
	pthread_mutex_t lock;
	pthread_cond_t nobody_waits, round_over;
	uint64_t rounds;           /* number of event batches that the thread has handled */
	struct waiting *waiting;
	int listener, epoll, wake;
	uint16_t port;
	pthread_t thread;
	bool running, listening;
};

static void signal_fd(int fd)
{
	const uint64_t one = 1;
	/* A full counter is already readable. */
	if (write(fd, &one, sizeof one) < 0)
		return;
}

static void drain_fd(int fd)
{
	uint64_t count;
	if (read(fd, &count, sizeof count) < 0)
		return;
}

static void on_change(void *ctx)
{
	struct ws_store *s = ctx;
	for (const struct waiting *w = s->waiting; w; w = w->next)
		signal_fd(w->fd);
}

static int watch(struct ws_store *s, int op, int fd, uint32_t events, void *ptr)
{
	struct epoll_event ev = { .events = events, .data.ptr = ptr };
	return epoll_ctl(s->epoll, op, fd, &ev);
}

static void drop(struct ws_store_conn *c)
{
	const int fd = c->fd;
	ws_store_conn_close(c);
	close(fd);
}

/* A lost peer must not count as present forever. */
static void tune(int fd)
{
	const int one = 1;
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	ws_sock_keep_alive(fd);
}

static bool out_of_descriptors(int error)
{
	return error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS;
}

/* Without free descriptors the listener stays readable: ignore it, and retry at each tick. */
static void poll_listener(struct ws_store *s, bool on)
{
	const int saved = errno;
	if (s->listening != on)
		watch(s, EPOLL_CTL_MOD, s->listener, on ? EPOLLIN : 0, &s->listener);
	s->listening = on;
	errno = saved;
}

static void accept_some(struct ws_store *s)
{
	for (int i = 0; i < ACCEPTS; i++) {
		struct sockaddr_storage from;
		socklen_t len = sizeof from;
		const int fd = accept4(s->listener, (struct sockaddr *)&from, &len,
		                       SOCK_NONBLOCK | SOCK_CLOEXEC);
		poll_listener(s, fd >= 0 || !out_of_descriptors(errno));
		if (fd < 0 && (errno == EINTR || errno == ECONNABORTED))
			continue;
		if (fd < 0)
			return;
		char name[64];
		ws_sock_name((const struct sockaddr *)&from, name, sizeof name);
		struct ws_store_conn *c = ws_store_conn_open(&s->core, name);
		if (!c) {
			close(fd);
			continue;
		}
		c->fd = fd;
		tune(fd);
		if (watch(s, EPOLL_CTL_ADD, fd, EPOLLIN, c))
			drop(c);
	}
}

static void receive(struct ws_store_conn *c, int64_t now)
{
	char piece[PIECE];
	const ssize_t n = recv(c->fd, piece, sizeof piece, 0);
	if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
		return;
	if (n <= 0) {
		drop(c);
		return;
	}
	ws_buf_add(&c->rx, piece, (size_t)n);
	ws_store_conn_run(c, now);
}

static void transmit(struct ws_store *s, struct ws_store_conn *c)
{
	size_t sent = 0;
	while (sent < c->tx.len) {
		const ssize_t n = send(c->fd, c->tx.data + sent, c->tx.len - sent, MSG_NOSIGNAL);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK) {
			drop(c);
			return;
		}
		if (n < 0)
			break;
		sent += (size_t)n;
	}
	ws_store_conn_sent(c, sent);
	const bool more = c->tx.len > 0;
	if (more != c->polls_output)
		watch(s, EPOLL_CTL_MOD, c->fd, more ? EPOLLIN | EPOLLOUT : EPOLLIN, c);
	c->polls_output = more;
}

/* Sends pending output and closes doomed connections; both may cause more of either. */
static void attend(struct ws_store *s)
{
	struct ws_store_conn *c;
	while ((c = s->core.due)) {
		s->core.due = c->next_due;
		c->due = false;
		if (c->doomed)
			drop(c);
		else
			transmit(s, c);
	}
}

/* An event drops only its own connection (attend() runs after the batch), so no later event of
 * the batch refers to a freed one. */
static void handle(struct ws_store *s, const struct epoll_event *ev, int n, int64_t now)
{
	/* Accept connections first: a client's second connection explains its first
	 * (store_watch.c). */
	s->core.now = now;
	accept_some(s);
	for (int i = 0; i < n; i++) {
		if (ev[i].data.ptr == &s->wake)
			drain_fd(s->wake);
		if (ev[i].data.ptr == &s->wake || ev[i].data.ptr == &s->listener)
			continue;
		struct ws_store_conn *c = ev[i].data.ptr;
		if (ev[i].events & EPOLLOUT)
			ws_store_conn_due(c);
		if (ev[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR))
			receive(c, now);
	}
}

static void *serve(void *arg)
{
	struct ws_store *s = arg;
	struct epoll_event ev[EVENTS];
	pthread_mutex_lock(&s->lock);
	while (!s->core.closing) {
		const bool timed = s->core.n_partial || s->core.n_undecided || !s->listening;
		pthread_mutex_unlock(&s->lock);
		const int n = epoll_wait(s->epoll, ev, EVENTS, timed ? TICK_MS : -1);
		pthread_mutex_lock(&s->lock);
		const int64_t now = ws_now_ns();
		handle(s, ev, n > 0 ? n : 0, now);
		if (timed)
			ws_store_core_tick(&s->core, now);
		attend(s);
		s->rounds++;
		pthread_cond_broadcast(&s->round_over);
	}
	pthread_mutex_unlock(&s->lock);
	return NULL;
}

static int open_descriptors(struct ws_store *s, const struct ws_store_opts *opts,
                            struct ws_err *err)
{
	s->listener = ws_sock_listen(opts->host, opts->port, opts->until, opts->cancel, &s->port,
	                             err);
	if (s->listener < 0)
		return ws_err_wrap(err, "store");
	s->epoll = epoll_create1(EPOLL_CLOEXEC);
	s->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (s->epoll < 0 || s->wake < 0 ||
	    watch(s, EPOLL_CTL_ADD, s->listener, EPOLLIN, &s->listener) ||
	    watch(s, EPOLL_CTL_ADD, s->wake, EPOLLIN, &s->wake))
		return ws_err_errno(err, "store");
	s->listening = true;
	return 0;
}

int ws_store_open(const struct ws_store_opts *opts, struct ws_store **out, struct ws_err *err)
{
	struct ws_store *s = calloc(1, sizeof *s);
	if (!s)
		return ws_oom(err);
	if (ws_store_core_init(&s->core, opts, err)) {
		free(s);
		return -1;
	}
	s->listener = s->epoll = s->wake = -1;
	s->core.changed = on_change;
	s->core.ctx = s;
	pthread_mutex_init(&s->lock, NULL);
	pthread_cond_init(&s->nobody_waits, NULL);
	pthread_cond_init(&s->round_over, NULL);
	if (open_descriptors(s, opts, err))
		goto fail;
	if (ws_thread_start(&s->thread, serve, s, err)) {
		ws_err_wrap(err, "store");
		goto fail;
	}
	s->running = true;
	*out = s;
	return 0;
fail:
	ws_store_close(s);
	return -1;
}

uint16_t ws_store_port(const struct ws_store *s)
{
	return s->port;
}

static void close_fd(int fd)
{
	if (fd >= 0)
		close(fd);
}

void ws_store_close(struct ws_store *s)
{
	if (!s)
		return;
	pthread_mutex_lock(&s->lock);
	s->core.closing = true;
	on_change(s);
	while (s->waiting)
		pthread_cond_wait(&s->nobody_waits, &s->lock);
	pthread_mutex_unlock(&s->lock);
	if (s->running) {
		signal_fd(s->wake);
		pthread_join(s->thread, NULL);
	}
	close_fd(s->listener);
	while (s->core.first)
		drop(s->core.first);
	ws_store_core_fini(&s->core);
	close_fd(s->epoll);
	close_fd(s->wake);
	pthread_cond_destroy(&s->nobody_waits);
	pthread_cond_destroy(&s->round_over);
	pthread_mutex_destroy(&s->lock);
	free(s);
}

int ws_store_set(struct ws_store *s, const char *key, const void *value, size_t n, bool once,
                 struct ws_err *err)
{
	const struct ws_bytes k = { key, strlen(key) };
	if (k.n > WS_STORE_KEY_MAX || n > WS_STORE_VALUE_MAX)
		return ws_err_set(err, WS_EUSAGE, "store: set %.100s: key or value is too long",
		                  key);
	pthread_mutex_lock(&s->lock);
	const int rc = ws_store_keys_set(&s->core.keys, k, (struct ws_bytes){ value, n });
	if (rc == 0)
		ws_store_keys_find(&s->core.keys, k)->once = once;
	pthread_mutex_unlock(&s->lock);
	signal_fd(s->wake); /* waiters may need a signal */
	return rc ? ws_err_set(err, WS_ESYSTEM, "store: set %.100s: the store is full", key) : 0;
}

/* Waits until found(s, arg) or another end. The lock is held before and after. */
static int wait_until(struct ws_store *s, bool (*found)(struct ws_store *s, void *arg), void *arg,
                      ws_deadline until, const struct ws_cancel *cancel, const char *what,
                      struct ws_err *err)
{
	struct waiting me = { .next = s->waiting, .fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK) };
	if (me.fd < 0)
		return ws_err_errno(err, "%s: eventfd", what);
	s->waiting = &me;
	int rc = 0;
	while (rc == 0 && !found(s, arg)) {
		if (s->core.closing) {
			rc = ws_err_set(err, WS_ECANCELLED, "%s: the store was closed", what);
			break;
		}
		pthread_mutex_unlock(&s->lock);
		rc = ws_sock_wait(me.fd, POLLIN, until, cancel, what, err);
		drain_fd(me.fd);
		pthread_mutex_lock(&s->lock);
	}
	struct waiting **at = &s->waiting;
	while (*at != &me)
		at = &(*at)->next;
	*at = me.next;
	close(me.fd);
	if (!s->waiting)
		pthread_cond_signal(&s->nobody_waits);
	return rc;
}

static bool found_key(struct ws_store *s, void *arg)
{
	const struct ws_store_entry *e = ws_store_keys_find(&s->core.keys, *(struct ws_bytes *)arg);
	return e && e->has_value;
}

int ws_store_get(struct ws_store *s, const char *key, ws_deadline until,
                 const struct ws_cancel *cancel, struct ws_buf *value, struct ws_err *err)
{
	struct ws_bytes k = { key, strlen(key) };
	char what[160];
	snprintf(what, sizeof what, "wait for the key %.120s", key);
	pthread_mutex_lock(&s->lock);
	int rc = wait_until(s, found_key, &k, until, cancel, what, err);
	if (rc == 0) {
		const struct ws_bytes v =
			ws_store_entry_value(ws_store_keys_find(&s->core.keys, k));
		ws_buf_add(value, v.data, v.n);
		rc = ws_buf_check(value, what, err);
	}
	pthread_mutex_unlock(&s->lock);
	return rc;
}

/* Trouble ends the wait too: peers that cannot form one group must not pass the store. */
static bool found_gloo(struct ws_store *s, void *arg)
{
	const unsigned *wanted = arg;
	unsigned n = 0;
	if (s->core.trouble.code != WS_OK)
		return true;
	for (const struct ws_store_conn *c = s->core.first; c; c = c->next)
		n += c->rank >= (int)s->core.senders && !c->gloo_since;
	return s->core.gloo.epoch != 0 && n >= *wanted;
}

int ws_store_wait_gloo(struct ws_store *s, ws_deadline until, const struct ws_cancel *cancel,
                       struct ws_store_gloo *out, struct ws_err *err)
{
	pthread_mutex_lock(&s->lock);
	unsigned wanted =
		s->core.world_size > s->core.senders ? s->core.world_size - s->core.senders : 1;
	int rc = wait_until(s, found_gloo, &wanted, until, cancel, "wait for the gloo peers", err);
	if (rc == 0 && s->core.trouble.code != WS_OK) {
		rc = -1;
		if (err)
			*err = s->core.trouble;
	}
	if (rc == 0)
		*out = s->core.gloo;
	pthread_mutex_unlock(&s->lock);
	return rc;
}

int ws_store_report(struct ws_store *s, struct ws_store_report *out, struct ws_err *err)
{
	pthread_mutex_lock(&s->lock);
	const int rc = ws_store_core_report(&s->core, out, err);
	pthread_mutex_unlock(&s->lock);
	return rc;
}

int ws_store_lost_sender(struct ws_store *s, struct ws_err *err)
{
	int rc = 0;
	pthread_mutex_lock(&s->lock);
	for (size_t i = 0; rc == 0 && i < s->core.n_left; i++)
		if (s->core.left[i].sender)
			rc = ws_err_set(err, WS_EDATA, "sender %u (%s) left the rendezvous",
			                s->core.left[i].sender, s->core.left[i].address);
	pthread_mutex_unlock(&s->lock);
	if (rc)
		ws_err_hint(err, "see the output of that sender: it failed or was killed");
	return rc;
}

int ws_store_trouble(struct ws_store *s, struct ws_err *err)
{
	pthread_mutex_lock(&s->lock);
	const bool seen = s->core.trouble.code != WS_OK;
	if (seen && err)
		*err = s->core.trouble;
	pthread_mutex_unlock(&s->lock);
	return seen ? -1 : 0;
}

void ws_store_agreed(struct ws_store *s)
{
	ws_store_settle(s);
	pthread_mutex_lock(&s->lock);
	ws_store_watch_agreed(&s->core);
	pthread_mutex_unlock(&s->lock);
}

bool ws_store_stranger(struct ws_store *s, struct ws_store_stranger *out)
{
	pthread_mutex_lock(&s->lock);
	const bool found = s->core.n_told < s->core.n_strangers;
	if (found)
		*out = s->core.strangers[s->core.n_told++];
	pthread_mutex_unlock(&s->lock);
	return found;
}

/* Waits for the end of two rounds: the current one may have begun before the data arrived. */
void ws_store_settle(struct ws_store *s)
{
	pthread_mutex_lock(&s->lock);
	for (int i = 0; i < 2; i++) {
		const uint64_t before = s->rounds;
		signal_fd(s->wake);
		while (s->rounds == before)
			pthread_cond_wait(&s->round_over, &s->lock);
	}
	pthread_mutex_unlock(&s->lock);
}
