/* SPDX-License-Identifier: Apache-2.0 */
/* gloo_loop.c - one thread serves every connection of the group during a call, new ones too.
 *
 * A new connection of layout G2b must soon send the eight bytes of an expected rank; scanners
 * send something else, or nothing, and are dropped. */
#include "gloo_peer.h"

#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum {
	EVENTS = 64,
	ACCEPTS_PER_TURN = 64,
	ENTRANT_S = 10,
	SLICE_MS = 1000,        /* new connections time out even without events */
	BLIND_SLICE_MS = 100,   /* poll interval for a cancel flag without a descriptor */
};

enum kind { PEER, LISTENER, ENTRANT, WAKE, CANCEL, FLOW };

static uint64_t event_of(enum kind kind, unsigned i)
{
	return (uint64_t)kind << 32 | i;
}

static int add_fd(struct ws_gloo *g, int fd, enum kind kind, unsigned i, struct ws_err *err)
{
	struct epoll_event ev = { .events = EPOLLIN, .data.u64 = event_of(kind, i) };
	if (epoll_ctl(g->epoll, EPOLL_CTL_ADD, fd, &ev))
		return ws_err_errno(err, "gloo: epoll");
	return 0;
}

int ws_gloo_loop_open(struct ws_gloo *g, struct ws_err *err)
{
	g->epoll = epoll_create1(EPOLL_CLOEXEC);
	g->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (g->epoll < 0 || g->wake < 0)
		return ws_err_errno(err, "gloo: epoll");
	return add_fd(g, g->wake, WAKE, 0, err);
}

/* ---- new connections ---- */

static bool is_loopback(int fd)
{
	struct sockaddr_storage ss;
	socklen_t len = sizeof ss;
	if (getpeername(fd, (struct sockaddr *)&ss, &len))
		return false;
	const struct sockaddr_in *v4 = (const struct sockaddr_in *)&ss;
	const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)&ss;
	return ss.ss_family == AF_INET ? ntohl(v4->sin_addr.s_addr) >> 24 == 127 :
	       ss.ss_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr);
}

void ws_gloo_adopt(struct ws_gloo *g, struct ws_gloo_peer *p, int fd)
{
	const int one = 1;
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
	/* Inside a machine there is no congestion, and BBR's pacing halves the speed. Any user
	 * may choose reno; if that fails the default stays. */
	if (is_loopback(fd))
		setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", sizeof "reno" - 1);
	pthread_mutex_lock(&g->lock);
	p->fd = fd;
	/* An abort before this descriptor existed did not signal it. */
	if (atomic_load(&g->aborted))
		shutdown(fd, SHUT_RDWR);
	pthread_mutex_unlock(&g->lock);
	p->watched = 0;
	ws_gloo_show(g, p->rank, WS_GLOO_CONNECTED);
	ws_log(g->log, 2, "gloo: connected with rank %u", p->rank);
}

static bool is_expected(const struct ws_gloo_peer *p)
{
	return p->fd < 0 && !p->gone && !p->we_connect;
}

static void drop_entrant(struct ws_gloo *g, struct ws_gloo_entrant *e, const char *why)
{
	ws_log(g->log, 1, "gloo: dropped a connection that %s", why);
	close(e->fd);
	e->fd = -1;
}

/* The identifiers that we publish are the ranks. Without identifiers a peer sends its rank: the
 * same number. */
static void read_entrant(struct ws_gloo *g, struct ws_gloo_entrant *e)
{
	const ssize_t got = recv(e->fd, e->id + e->n, sizeof e->id - e->n, 0);
	if (got < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (got <= 0) {
		drop_entrant(g, e, "closed before it sent its rank");
		return;
	}
	e->n += (size_t)got;
	if (e->n < sizeof e->id)
		return;
	uint64_t id = 0;
	for (size_t i = 0; i < sizeof e->id; i++)
		id |= (uint64_t)e->id[i] << (8 * i);
	if (id >= g->size || id == g->rank || !is_expected(&g->peers[id])) {
		drop_entrant(g, e, "sent a rank that we do not wait for");
		return;
	}
	epoll_ctl(g->epoll, EPOLL_CTL_DEL, e->fd, NULL);
	ws_gloo_adopt(g, &g->peers[id], e->fd);
	e->fd = -1;
}

static struct ws_gloo_entrant *free_entrant(struct ws_gloo *g)
{
	struct ws_gloo_entrant *oldest = &g->entrants[0];
	for (size_t i = 0; i < WS_GLOO_ENTRANTS; i++) {
		struct ws_gloo_entrant *e = &g->entrants[i];
		if (e->fd < 0)
			return e;
		if (e->until < oldest->until)
			oldest = e;
	}
	drop_entrant(g, oldest, "was the oldest of too many that sent no rank");
	return oldest;
}

static int admit(struct ws_gloo *g, int fd, struct ws_err *err)
{
	struct ws_gloo_entrant *e = free_entrant(g);
	*e = (struct ws_gloo_entrant){ .fd = fd,
	                               .until = ws_deadline_in(ENTRANT_S * WS_NS_PER_S) };
	if (add_fd(g, fd, ENTRANT, (unsigned)(e - g->entrants), err))
		return -1;
	read_entrant(g, e); /* most peers send their rank at once */
	return 0;
}

int ws_gloo_watch_listener(struct ws_gloo *g, int fd, unsigned rank, struct ws_err *err)
{
	return add_fd(g, fd, LISTENER, rank, err);
}

void ws_gloo_unlisten(struct ws_gloo *g, int *listener)
{
	pthread_mutex_lock(&g->lock);
	if (*listener >= 0)
		close(*listener);
	*listener = -1;
	pthread_mutex_unlock(&g->lock);
}

/* rank: the owner of this port (G1); our own rank: a shared port (G2b). */
static int accept_some(struct ws_gloo *g, unsigned rank, struct ws_err *err)
{
	struct ws_gloo_peer *p = &g->peers[rank];
	int *listener = rank == g->rank ? &g->listener : &p->listener;
	for (int i = 0; i < ACCEPTS_PER_TURN && *listener >= 0; i++) {
		const int fd = accept4(*listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
		if (fd < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
			break;
		if (fd < 0 &&
		    (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS))
			return ws_err_errno(err, "gloo: accept");
		if (fd < 0) /* the connection closed again */
			continue;
		if (rank != g->rank) {
			ws_gloo_adopt(g, p, fd);
			ws_gloo_unlisten(g, listener);
		} else if (admit(g, fd, err)) {
			return -1;
		}
	}
	return 0;
}

static void drop_late_entrants(struct ws_gloo *g)
{
	for (size_t i = 0; i < WS_GLOO_ENTRANTS; i++) {
		struct ws_gloo_entrant *e = &g->entrants[i];
		if (e->fd >= 0 && ws_deadline_passed(e->until))
			drop_entrant(g, e, "did not send its rank in time");
	}
}

/* ---- the loop ---- */

static int watch_peer(struct ws_gloo *g, struct ws_gloo_peer *p, struct ws_err *err)
{
	const uint32_t want =
		(p->stalled ? 0 : (uint32_t)EPOLLIN) | (p->full ? (uint32_t)EPOLLOUT : 0);
	if (p->fd < 0 || want == p->watched)
		return 0;
	/* With no events requested, epoll still reports a hang-up again and again: remove the
	 * descriptor. */
	const int op = !want ? EPOLL_CTL_DEL : p->watched ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
	struct epoll_event ev = { .events = want, .data.u64 = event_of(PEER, p->rank) };
	if (epoll_ctl(g->epoll, op, p->fd, &ev))
		return ws_err_errno(err, "gloo: epoll");
	p->watched = want;
	return 0;
}

static int serve_peer(struct ws_gloo *g, struct ws_gloo_call *call, unsigned rank,
                      uint32_t events, struct ws_err *err)
{
	struct ws_gloo_peer *p = &g->peers[rank];
	if (events & (EPOLLOUT | EPOLLERR | EPOLLHUP))
		p->full = false;
	if (p->fd >= 0 && !p->stalled && events & ~(uint32_t)EPOLLOUT)
		return ws_gloo_read(g, p, call, err);
	return 0;
}

static int serve(struct ws_gloo *g, struct ws_gloo_call *call, const struct epoll_event *ev,
                 struct ws_err *err)
{
	const unsigned i = (unsigned)ev->data.u64;
	switch ((enum kind)(ev->data.u64 >> 32)) {
	case PEER:
		return serve_peer(g, call, i, ev->events, err);
	case LISTENER:
		return accept_some(g, i, err);
	case ENTRANT:
		if (g->entrants[i].fd >= 0)
			read_entrant(g, &g->entrants[i]);
		return 0;
	case FLOW:
		ws_flow_heard(call->flow);
		return 0;
	case WAKE:
	case CANCEL: /* handled in the next round */
		return 0;
	}
	return 0;
}

static int set_aborted(struct ws_err *err)
{
	return ws_err_set(err, WS_EDATA, "gloo: the group was aborted");
}

static int may_go_on(struct ws_gloo *g, struct ws_gloo_call *call, struct ws_err *err)
{
	if (atomic_load(&g->aborted))
		return set_aborted(err);
	if (ws_cancelled(call->cancel))
		return ws_err_set(err, WS_ECANCELLED, "gloo: cancelled");
	if (!ws_deadline_passed(call->until))
		return 0;
	struct ws_buf text;
	ws_buf_init(&text, 600);
	const unsigned rank = call->ops ? call->ops->explain(call, &text) : 0;
	ws_err_set(err, WS_ETIMEOUT, "gloo: the deadline passed%s%s", text.len ? ": " : "",
	           ws_buf_str(&text));
	ws_buf_free(&text);
	return ws_err_rank(err, rank);
}

int ws_gloo_turn(struct ws_gloo *g, struct ws_gloo_call *call, struct ws_err *err)
{
	if (may_go_on(g, call, err))
		return -1;
	for (unsigned r = 0; call->ops && r < g->size; r++)
		if (r != g->rank && watch_peer(g, &g->peers[r], err))
			return -1;

	struct epoll_event events[EVENTS];
	const bool blind = call->cancel && !call->cancel_watched;
	const int ms = ws_deadline_poll_ms(call->until, blind ? BLIND_SLICE_MS : SLICE_MS);
	const int n = epoll_wait(g->epoll, events, EVENTS, call->busy ? 0 : ms);
	if (n < 0 && errno != EINTR)
		return ws_err_errno(err, "gloo: epoll_wait");
	for (int i = 0; i < n; i++)
		if (serve(g, call, &events[i], err))
			return -1;
	drop_late_entrants(g);
	return 0;
}

/* ---- begin and end of a call ---- */

/* sendfile(2) has no MSG_NOSIGNAL, and a library must not let a closed socket kill its process. */
static void hold_sigpipe(struct ws_gloo_call *call)
{
	sigset_t pipe_only, pending;
	sigemptyset(&pipe_only);
	sigaddset(&pipe_only, SIGPIPE);
	sigpending(&pending);
	call->pipe_pending = sigismember(&pending, SIGPIPE) == 1;
	pthread_sigmask(SIG_BLOCK, &pipe_only, &call->old_mask);
}

static void release_sigpipe(struct ws_gloo_call *call)
{
	const struct timespec now = { 0, 0 };
	sigset_t pipe_only;
	sigemptyset(&pipe_only);
	sigaddset(&pipe_only, SIGPIPE);
	if (!call->pipe_pending)
		while (sigtimedwait(&pipe_only, NULL, &now) < 0 && errno == EINTR)
			;
	pthread_sigmask(SIG_SETMASK, &call->old_mask, NULL);
}

int ws_gloo_call_begin(struct ws_gloo *g, struct ws_gloo_call *call, struct ws_err *err)
{
	if (atomic_load(&g->aborted))
		return set_aborted(err);
	if (g->broken)
		return ws_err_set(err, WS_EDATA,
		                  "gloo: an earlier broadcast failed, the group is of no use");
	const int fd = ws_cancel_fd(call->cancel);
	if (fd >= 0 && add_fd(g, fd, CANCEL, 0, err))
		return -1;
	call->cancel_watched = fd >= 0;
	if (call->flow && add_fd(g, ws_flow_fd(call->flow), FLOW, 0, err)) {
		if (fd >= 0)
			epoll_ctl(g->epoll, EPOLL_CTL_DEL, fd, NULL);
		return -1;
	}
	hold_sigpipe(call);
	return 0;
}

int ws_gloo_call_run(struct ws_gloo *g, struct ws_gloo_call *call, struct ws_err *err)
{
	for (;;) {
		bool done = false;
		if (call->ops->step(call, &done, err))
			return -1;
		if (done)
			return 0;
		if (ws_gloo_turn(g, call, err))
			return -1;
	}
}

void ws_gloo_call_uncancel(struct ws_gloo *g, struct ws_gloo_call *call)
{
	if (call->cancel_watched)
		epoll_ctl(g->epoll, EPOLL_CTL_DEL, ws_cancel_fd(call->cancel), NULL);
	call->cancel_watched = false;
	call->cancel = NULL;
}

int ws_gloo_call_end(struct ws_gloo *g, struct ws_gloo_call *call, int rc, struct ws_err *err)
{
	release_sigpipe(call);
	ws_gloo_call_uncancel(g, call);
	if (call->flow)
		epoll_ctl(g->epoll, EPOLL_CTL_DEL, ws_flow_fd(call->flow), NULL);
	for (unsigned r = 0; r < g->size; r++)
		g->peers[r].stalled = false;
	if (rc == 0)
		return 0;
	/* After an abort, closed connections are expected and not reported. */
	if (atomic_load(&g->aborted))
		set_aborted(err);
	g->broken = true;
	return rc;
}
