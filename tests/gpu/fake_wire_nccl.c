/* SPDX-License-Identifier: Apache-2.0 */
/* fake_wire_nccl.c - communicators of the double that reach into other processes of this
 * machine, so that whole programs can be tried against each other.
 *
 * It is no proof of NCCL's transport. Rank 0 listens on an abstract Unix socket, whose name is
 * in the id; every other rank connects, says who it is, and is told whether all fit together;
 * then rank 0 writes each broadcast to each of them. One thread per communicator does all of it.
 *
 *   hello    rank, size, version, GPU, machine       to rank 0
 *   verdict  a result of NCCL, and its words         from rank 0, when everybody is there
 *   bytes    their number, then they                 from rank 0
 *   sum      a float, from each; then that of all    both ways
 *   bye      nothing                                 both ways, on finalizing
 *
 * As with NCCL: ranks that are missing are waited for without end; versions that differ, and two
 * ranks on one GPU of one machine (NCCL_HOSTID makes it another), are refused at all ranks; a
 * socket that closes without a bye is a remote error. Broadcasts of different lengths never end. */
#include "fake_wire_nccl.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { MOST_RANKS = 64, MOST_IDS = 16 };

enum frame_kind { HELLO = 0x57f0, VERDICT, BYTES, SUM, BYE };
struct frame {
	uint32_t kind, rank, size, version, device, rc, cumem;
	uint64_t bytes;
	char text[128]; /* of a hello: the machine; of a verdict: its words */
};

struct peer {
	int fd; /* -1: none */
	bool gone;
	struct frame hello;
};

struct fake_wire {
	pthread_mutex_t lock;
	pthread_t thread;
	struct fake_wire_opts opts;
	int listener, wake;
	struct peer peers[MOST_RANKS]; /* of the thread; of other ranks than 0: only [0] */
	/* Under the lock: */
	unsigned users;
	int state;
	bool stop, finalizing;
	struct fake_move *first, **end;
};

struct fake_move {
	struct fake_move *next;
	struct fake_wire *wire;
	char *at;
	size_t bytes;
	bool sums, begun, done;
};

static pthread_mutex_t ids_lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
	struct fake_id id;
	int fd;
} ids[MOST_IDS]; /* made here, and not joined yet */
static unsigned made;
static char words[128];

/* ---- ids ---- */

static socklen_t address_of(const struct fake_id *id, struct sockaddr_un *to)
{
	*to = (struct sockaddr_un){ .sun_family = AF_UNIX };
	const size_t n = strnlen(id->bytes + 8, 64);
	memcpy(to->sun_path + 1, id->bytes + 8, n); /* the first byte is 0: abstract */
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + n);
}

bool fake_wire_id(struct fake_id *out)
{
	struct sockaddr_un at;
	struct timespec now;
	memset(out, 0, sizeof *out);
	clock_gettime(CLOCK_REALTIME, &now);
	pthread_mutex_lock(&ids_lock);
	const unsigned slot = made++ % MOST_IDS;
	snprintf(out->bytes, sizeof out->bytes, "FAKENCCLwsync-fake-nccl-%d-%u-%ld%09ld",
	         (int)getpid(), made, (long)now.tv_sec, now.tv_nsec);
	const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	const socklen_t n = address_of(out, &at);
	const bool ok =
		fd >= 0 && bind(fd, (struct sockaddr *)&at, n) == 0 && listen(fd, MOST_RANKS) == 0;
	if (ok && ids[slot].fd > 0)
		close(ids[slot].fd);
	if (ok) {
		ids[slot].id = *out;
		ids[slot].fd = fd;
	} else if (fd >= 0) {
		close(fd);
	}
	pthread_mutex_unlock(&ids_lock);
	return ok;
}

static int take_listener(const struct fake_id *id)
{
	int fd = -1;
	pthread_mutex_lock(&ids_lock);
	for (unsigned i = 0; i < MOST_IDS && fd < 0; i++)
		if (ids[i].fd > 0 && memcmp(&ids[i].id, id, sizeof *id) == 0) {
			fd = ids[i].fd;
			ids[i].fd = 0;
		}
	pthread_mutex_unlock(&ids_lock);
	return fd;
}

/* ---- state ---- */

static bool should_stop(struct fake_wire *w)
{
	pthread_mutex_lock(&w->lock);
	const bool stop = w->stop;
	pthread_mutex_unlock(&w->lock);
	return stop;
}

/* The first thing that breaks it stays. */
static void set_state(struct fake_wire *w, int state, const char *why)
{
	pthread_mutex_lock(&w->lock);
	if (w->state == FAKE_SUCCESS || w->state == FAKE_IN_PROGRESS) {
		w->state = state;
		if (why)
			snprintf(words, sizeof words, "%s", why);
	}
	pthread_mutex_unlock(&w->lock);
}

int fake_wire_state(struct fake_wire *w)
{
	pthread_mutex_lock(&w->lock);
	const int state = w->state;
	pthread_mutex_unlock(&w->lock);
	return state;
}

const char *fake_wire_words(void)
{
	return words;
}

static void wake_up(struct fake_wire *w)
{
	eventfd_write(w->wake, 1);
}

/* ---- sockets ---- */

/* Until fd is ready for that, or it stops: false. */
static bool await(struct fake_wire *w, int fd, short events)
{
	struct pollfd p[] = { { .fd = fd, .events = events }, { .fd = w->wake, .events = POLLIN } };
	eventfd_t n;
	for (;;) {
		if (should_stop(w))
			return false;
		if (poll(p, 2, 1000) > 0 && p[0].revents)
			return true;
		if (p[1].revents)
			eventfd_read(w->wake, &n);
	}
}

static bool transfer(struct fake_wire *w, int fd, char *at, size_t n, bool out)
{
	while (n) {
		if (!await(w, fd, out ? POLLOUT : POLLIN))
			return false;
		const ssize_t some = out ? send(fd, at, n, MSG_NOSIGNAL | MSG_DONTWAIT) :
		                           recv(fd, at, n, MSG_DONTWAIT);
		if (some < 0 && (errno == EAGAIN || errno == EINTR))
			continue;
		if (some <= 0) {
			set_state(w, FAKE_REMOTE_ERROR, "Connection closed by remote peer");
			return false;
		}
		at += some;
		n -= (size_t)some;
	}
	return true;
}

static bool say(struct fake_wire *w, int fd, struct frame f)
{
	return transfer(w, fd, (char *)&f, sizeof f, true);
}

static bool hear(struct fake_wire *w, int fd, struct frame *f)
{
	if (!transfer(w, fd, (char *)f, sizeof *f, false))
		return false;
	f->text[sizeof f->text - 1] = '\0';
	return true;
}

/* ---- joining ---- */

static struct frame introduce(const struct fake_wire_opts *o)
{
	struct frame f = { .kind = HELLO, .rank = (uint32_t)o->rank, .size = (uint32_t)o->size,
		           .version = (uint32_t)o->version, .device = (uint32_t)o->device };
	const char *machine = getenv("NCCL_HOSTID");
	const char *cumem = getenv("NCCL_CUMEM_ENABLE");
	snprintf(f.text, sizeof f.text, "%s", machine ? machine : "this machine");
	f.cumem = !cumem || atoi(cumem) != 0; /* -2, the default: where the driver has it */
	return f;
}

/* What NCCL's ranks find when they have told each other who they are. */
static struct frame judge(const struct fake_wire *w)
{
	struct frame v = { .kind = VERDICT };
	for (int i = 1; i < w->opts.size; i++)
		for (int k = 0; k < i; k++) {
			const struct frame *a = &w->peers[i].hello, *b = &w->peers[k].hello;
			if (a->version != b->version)
				snprintf(v.text, sizeof v.text,
				         "Mismatched NCCL version detected : rank %d version "
				         "%u rank %d version %u",
				         i, a->version, k, b->version);
			else if (a->device == b->device && strcmp(a->text, b->text) == 0)
				snprintf(v.text, sizeof v.text,
				         "Duplicate GPU detected : rank %d and rank %d both on "
				         "CUDA device %x000",
				         k, i, 0x1b + a->device);
			/* One shows its memory by a file, the other by a CUDA IPC handle. Real
			 * ranks find out only where they have a link between GPUs. */
			else if (a->cumem != b->cumem)
				snprintf(v.text, sizeof v.text,
				         "Cuda failure 1 'invalid argument' : rank %d and rank %d "
				         "differ in NCCL_CUMEM_ENABLE",
				         k, i);
		}
	v.rc = v.text[0] ? FAKE_INVALID_USAGE : FAKE_SUCCESS;
	return v;
}

static void take_in(struct fake_wire *w, int *missing)
{
	struct frame f;
	const int fd = accept4(w->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (fd < 0)
		return;
	if (!hear(w, fd, &f) || f.kind != HELLO || f.rank == 0 ||
	    f.size != (uint32_t)w->opts.size || f.rank >= f.size || w->peers[f.rank].fd >= 0) {
		close(fd);
		return;
	}
	w->peers[f.rank].fd = fd;
	w->peers[f.rank].hello = f;
	--*missing;
}

static bool gather(struct fake_wire *w)
{
	w->peers[0].hello = introduce(&w->opts);
	for (int missing = w->opts.size - 1; missing > 0;) {
		if (!await(w, w->listener, POLLIN))
			return false;
		take_in(w, &missing);
		if (fake_wire_state(w) != FAKE_IN_PROGRESS)
			return false;
	}
	const struct frame verdict = judge(w);
	for (int i = 1; i < w->opts.size; i++)
		if (!say(w, w->peers[i].fd, verdict))
			return false;
	set_state(w, (int)verdict.rc, verdict.rc ? verdict.text : NULL);
	return verdict.rc == FAKE_SUCCESS;
}

static bool reach(struct fake_wire *w)
{
	struct sockaddr_un to;
	struct frame f;
	const socklen_t n = address_of(&w->opts.id, &to);
	const int fd = w->peers[0].fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0 || connect(fd, (struct sockaddr *)&to, n)) {
		set_state(w, FAKE_REMOTE_ERROR, "Connect to the root of the id failed");
		return false;
	}
	if (!say(w, fd, introduce(&w->opts)) || !hear(w, fd, &f))
		return false;
	set_state(w, (int)f.rc, f.rc ? f.text : NULL);
	return f.rc == FAKE_SUCCESS;
}

/* ---- bytes ---- */

static bool move_one(struct fake_wire *w, struct fake_move *m)
{
	const struct frame head = { .kind = BYTES, .bytes = m->bytes };
	struct frame f;
	if (w->opts.rank == 0) {
		for (int i = 1; i < w->opts.size; i++)
			if (!say(w, w->peers[i].fd, head) ||
			    !transfer(w, w->peers[i].fd, m->at, m->bytes, true))
				return false;
		return true;
	}
	if (!hear(w, w->peers[0].fd, &f))
		return false;
	if (f.kind == BYE) {
		set_state(w, FAKE_REMOTE_ERROR, "Connection closed by remote peer");
		return false;
	}
	return f.kind == BYTES && f.bytes == m->bytes &&
	       transfer(w, w->peers[0].fd, m->at, m->bytes, false);
}

static bool hear_float(struct fake_wire *w, int fd, float *out)
{
	struct frame f;
	return hear(w, fd, &f) && f.kind == SUM &&
	       transfer(w, fd, (char *)out, sizeof *out, false);
}

static bool say_float(struct fake_wire *w, int fd, float x)
{
	return say(w, fd, (struct frame){ .kind = SUM, .bytes = sizeof x }) &&
	       transfer(w, fd, (char *)&x, sizeof x, true);
}

static bool sum(struct fake_wire *w, struct fake_move *m)
{
	float total, x;
	memcpy(&total, m->at, sizeof total);
	if (w->opts.rank) {
		if (!say_float(w, w->peers[0].fd, total) ||
		    !hear_float(w, w->peers[0].fd, &total))
			return false;
	} else {
		for (int i = 1; i < w->opts.size; i++, total += x)
			if (!hear_float(w, w->peers[i].fd, &x))
				return false;
		for (int i = 1; i < w->opts.size; i++)
			if (!say_float(w, w->peers[i].fd, total))
				return false;
	}
	memcpy(m->at, &total, sizeof total);
	return true;
}

static struct fake_move *next_move(struct fake_wire *w)
{
	pthread_mutex_lock(&w->lock);
	struct fake_move *m = w->first;
	pthread_mutex_unlock(&w->lock);
	return m;
}

/* The move may be gone at once. */
static void end_move(struct fake_wire *w, struct fake_move *m)
{
	pthread_mutex_lock(&w->lock);
	w->first = m->next;
	if (!w->first)
		w->end = &w->first;
	m->done = true;
	pthread_mutex_unlock(&w->lock);
}

/* ---- the thread ---- */

/* Whoever left without a word broke it; bytes that nobody asked for yet wait. */
static void look_at(struct fake_wire *w, struct peer *p)
{
	struct frame f;
	const ssize_t n = recv(p->fd, &f, sizeof f, MSG_PEEK | MSG_DONTWAIT);
	if (n == (ssize_t)sizeof f && f.kind == BYE)
		p->gone = true;
	else if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
		set_state(w, FAKE_REMOTE_ERROR, "Connection closed by remote peer");
}

static bool all_gone(const struct fake_wire *w)
{
	for (int i = 0; i < w->opts.size; i++)
		if (w->peers[i].fd >= 0 && !w->peers[i].gone)
			return false;
	return true;
}

/* Until there is something to move or it ends: false. Short looks rather than more descriptors. */
static bool idle(struct fake_wire *w)
{
	static const struct timespec nap = { .tv_nsec = 500000 };
	bool said = false;
	for (;;) {
		if (should_stop(w))
			return false;
		if (next_move(w))
			return true;
		pthread_mutex_lock(&w->lock);
		const bool ends = w->finalizing;
		pthread_mutex_unlock(&w->lock);
		for (int i = 0; i < w->opts.size; i++)
			if (w->peers[i].fd >= 0 && !w->peers[i].gone)
				look_at(w, &w->peers[i]);
		const int state = fake_wire_state(w);
		if (state != FAKE_SUCCESS && state != FAKE_IN_PROGRESS && !ends)
			return false;
		for (int i = 0; i < w->opts.size && ends && !said; i++)
			if (w->peers[i].fd >= 0 && !w->peers[i].gone)
				say(w, w->peers[i].fd, (struct frame){ .kind = BYE });
		said = ends;
		if (ends && (all_gone(w) || fake_wire_state(w) == FAKE_REMOTE_ERROR)) {
			pthread_mutex_lock(&w->lock);
			w->state = FAKE_SUCCESS;
			pthread_mutex_unlock(&w->lock);
			return false;
		}
		nanosleep(&nap, NULL);
	}
}

static void *run(void *arg)
{
	struct fake_wire *w = arg;
	if (w->opts.rank == 0 ? gather(w) : reach(w))
		while (idle(w)) {
			struct fake_move *m = next_move(w);
			if (!(m->sums ? sum(w, m) : move_one(w, m)))
				break;
			end_move(w, m);
		}
	return NULL;
}

/* ---- a communicator ---- */

static void release(struct fake_wire *w)
{
	pthread_mutex_lock(&w->lock);
	const bool last = --w->users == 0;
	pthread_mutex_unlock(&w->lock);
	if (!last)
		return;
	pthread_mutex_destroy(&w->lock);
	free(w);
}

static void close_all(struct fake_wire *w)
{
	for (int i = 0; i < MOST_RANKS; i++)
		if (w->peers[i].fd >= 0)
			close(w->peers[i].fd);
	if (w->listener >= 0)
		close(w->listener);
	close(w->wake);
}

static bool start(struct fake_wire *w)
{
	sigset_t all, before;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	const bool ok = pthread_create(&w->thread, NULL, run, w) == 0;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return ok;
}

struct fake_wire *fake_wire_join(const struct fake_wire_opts *opts)
{
	if (opts->size > MOST_RANKS || memcmp(opts->id.bytes, "FAKENCCL", 8) != 0)
		return NULL;
	struct fake_wire *w = calloc(1, sizeof *w);
	if (!w)
		return NULL;
	pthread_mutex_init(&w->lock, NULL);
	w->opts = *opts;
	w->users = 1;
	w->state = FAKE_IN_PROGRESS;
	w->end = &w->first;
	for (int i = 0; i < MOST_RANKS; i++)
		w->peers[i].fd = -1;
	w->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	w->listener = opts->rank == 0 ? take_listener(&opts->id) : -1;
	if (w->wake >= 0 && (opts->rank > 0 || w->listener >= 0) && start(w))
		return w;
	close_all(w);
	release(w);
	return NULL;
}

void fake_wire_finalize(struct fake_wire *w)
{
	pthread_mutex_lock(&w->lock);
	w->finalizing = true;
	if (w->state == FAKE_SUCCESS)
		w->state = FAKE_IN_PROGRESS;
	pthread_mutex_unlock(&w->lock);
}

void fake_wire_leave(struct fake_wire *w)
{
	pthread_mutex_lock(&w->lock);
	w->stop = true;
	pthread_mutex_unlock(&w->lock);
	wake_up(w);
	pthread_join(w->thread, NULL);
	close_all(w);
	release(w);
}

struct fake_move *fake_wire_move(struct fake_wire *w, void *at, size_t bytes)
{
	struct fake_move *m = calloc(1, sizeof *m);
	if (!m)
		return NULL;
	*m = (struct fake_move){ .wire = w, .at = at, .bytes = bytes };
	pthread_mutex_lock(&w->lock);
	w->users++;
	pthread_mutex_unlock(&w->lock);
	return m;
}

struct fake_move *fake_wire_sum(struct fake_wire *w, void *at)
{
	struct fake_move *m = fake_wire_move(w, at, sizeof(float));
	if (m)
		m->sums = true;
	return m;
}

bool fake_wire_moved(void *move)
{
	struct fake_move *m = move;
	struct fake_wire *w = m->wire;
	pthread_mutex_lock(&w->lock);
	if (!m->begun && !w->stop) {
		m->begun = true;
		*w->end = m;
		w->end = &m->next;
	}
	const bool over = m->done || w->stop;
	pthread_mutex_unlock(&w->lock);
	return over;
}

void fake_wire_over(void *move)
{
	struct fake_move *m = move;
	release(m->wire);
	free(m);
}
