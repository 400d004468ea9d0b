/* SPDX-License-Identifier: Apache-2.0 */
/* outlet.c - see outlet.h.
 *
 *   printf --> stream --> queue (whole lines) --> thread --> write(2)
 *
 * A stream keeps the beginning of a line until the rest arrives. The queue takes a
 * line whole or not at all. */
#include "outlet.h"

#include "wsync/clock.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
	/* most bytes queued for a reader that has stopped, or before printing waits */
	ENOUGH = 128 << 10,
	MOST = 32 << 20,    /* for a reader that is slower than the program */
	/* of one write(2): with a longer write, a slow reader would look stopped */
	PIECE = 4096,
	TERMINAL_PIECE = 256,
	STATUS_MAX = 1024,
	N_STREAMS = 3,
};
/* a reader that takes nothing for this long counts as stopped */
static const int64_t PATIENCE_NS = WS_NS_PER_S;
static const int64_t SIGNALLED_NS = WS_NS_PER_S / 10; /* the same after a signal */
/* limit if it is not the reader that is late: the thread gets no processor, or a disk is busy */
static const int64_t LATE_NS = 30 * WS_NS_PER_S;

struct bytes {
	char *data;
	size_t len, cap;
};

struct outlet {
	int fd;
	bool started;
	unsigned long count_request;  /* ioctl that counts unread bytes; 0: none */
	size_t piece;
	pthread_t thread;
	sem_t wake;                   /* wakes the thread */
	atomic_uint asked, done;      /* wake-ups of the thread: requested, and handled */
	atomic_size_t queued;         /* bytes that are not written */
	atomic_ullong lines, written; /* lines that are not written; bytes that are */
	atomic_int error;             /* of the first write that failed */

	pthread_mutex_t lock;         /* guards all below; never held during a write */
	struct bytes waiting;
	unsigned long long dropped;   /* lines; not reported yet */
	char status[STATUS_MAX];      /* the progress line */
	bool status_changed;
	unsigned long long seen_written;
	int seen_unread;
	int64_t moved_ns;             /* when one of these two counts was last found changed */
	/* how long outlet_finish has seen no change: without room for a write, and with */
	int64_t still_ns, late_ns;

	/* used only by the thread */
	struct bytes taken;
	char shown[STATUS_MAX];       /* progress line on the terminal, or to be drawn again */
	bool drawn;
};

struct stream {
	struct outlet *to;
	FILE *file;
	struct bytes begun; /* a line without its end */
};

static struct outlet outlets[2] = { { .fd = STDOUT_FILENO }, { .fd = STDERR_FILENO } };
static struct outlet *errors = &outlets[1]; /* outlets[0] if both are the same file */
static struct stream streams[N_STREAMS];
static size_t n_streams;
static const char *program = "wsync";
static atomic_bool json, never_wait, interrupted;
static atomic_bool notice_due; /* the signal handler requests a line; it must not print */

/* Sleeps, longer with each call. Returns the time slept. */
static int64_t nap(int64_t *ns)
{
	const struct timespec t = { .tv_nsec = *ns };
	nanosleep(&t, NULL);
	*ns = *ns < 25 * WS_NS_PER_MS ? *ns * 2 : *ns;
	return t.tv_nsec;
}

/* Async-signal-safe. */
static void wake(struct outlet *o)
{
	atomic_fetch_add(&o->asked, 1);
	sem_post(&o->wake);
}

static bool is_idle(struct outlet *o)
{
	return atomic_load(&o->done) == atomic_load(&o->asked);
}

/* ---- the queue: all with the lock held ------------------------------------------------------- */

static int add(struct bytes *b, const char *data, size_t n)
{
	if (n > b->cap - b->len) {
		const size_t cap = 2 * b->cap + n;
		char *grown = realloc(b->data, cap);
		if (!grown)
			return -1;
		b->data = grown;
		b->cap = cap;
	}
	memcpy(b->data + b->len, data, n);
	b->len += n;
	return 0;
}

static unsigned long long count_lines(const char *data, size_t n)
{
	unsigned long long lines = 0;
	for (const char *at = data; (at = memchr(at, '\n', n - (size_t)(at - data))); at++)
		lines++;
	return lines;
}

/* Bytes that a pipe, socket or terminal holds for its reader. */
static int count_unread(const struct outlet *o)
{
	int n = 0;
	return !o->count_request || ioctl(o->fd, o->count_request, &n) ? 0 : n;
}

/* Would a write not wait for the reader? */
static bool has_room(const struct outlet *o)
{
	struct pollfd p = { .fd = o->fd, .events = POLLOUT };
	return poll(&p, 1, 0) == 1 && p.revents & POLLOUT;
}

/* Has the reader taken anything since the last call? */
static bool has_moved(struct outlet *o)
{
	const unsigned long long written = atomic_load(&o->written);
	const int unread = count_unread(o);
	const bool moved = written != o->seen_written || unread != o->seen_unread;
	o->seen_written = written;
	o->seen_unread = unread;
	if (moved)
		o->moved_ns = ws_now_ns();
	return moved;
}

static bool is_full(struct outlet *o)
{
	const size_t queued = atomic_load(&o->queued);
	if (queued <= ENOUGH)
		return false;
	return queued > MOST || (!has_moved(o) && ws_now_ns() - o->moved_ns >=
	                                                  (has_room(o) ? LATE_NS : PATIENCE_NS));
}

static void append(struct outlet *o, const char *data, size_t n)
{
	const unsigned long long lines = count_lines(data, n);
	if (!atomic_load(&o->queued)) {
		(void)has_moved(o);
		o->moved_ns = ws_now_ns(); /* the reader had nothing to read until now */
	}
	if (add(&o->waiting, data, n)) {
		o->dropped += lines;
		return;
	}
	atomic_fetch_add(&o->queued, n);
	atomic_fetch_add(&o->lines, lines);
}

static void report_dropped(struct outlet *o)
{
	char line[256];
	const bool as_json = atomic_load(&json) && o == &outlets[0];
	const char *form =
		as_json ? "{\"type\":\"warning\",\"url\":null,\"message\":\"%s%s%llu lines were "
			  "dropped here, because nobody read them\"}\n" :
			  "%s%s%llu lines were dropped here, because nobody read them\n";
	const int n = snprintf(line, sizeof line, form, as_json ? "" : program,
	                       as_json ? "" : ": warning: ", o->dropped);
	o->dropped = 0;
	append(o, line, (size_t)n);
}

/* ---- interface ------------------------------------------------------------------------------- */

static bool may_wait(void)
{
	return !atomic_load(&never_wait) && !atomic_load(&interrupted);
}

static void put(struct outlet *o, const char *data, size_t n)
{
	int64_t ns = WS_NS_PER_MS / 16;
	while (may_wait() && atomic_load(&o->queued) > ENOUGH)
		(void)nap(&ns);
	pthread_mutex_lock(&o->lock);
	if (is_full(o)) {
		o->dropped += count_lines(data, n);
	} else {
		if (o->dropped)
			report_dropped(o);
		append(o, data, n);
	}
	pthread_mutex_unlock(&o->lock);
	wake(o);
}

/* The caller holds the stream's lock. Accepts all bytes: write errors are
 * checked once, at the end. */
static ssize_t take(void *cookie, const char *data, size_t n)
{
	struct stream *s = cookie;
	const char *last = memrchr(data, '\n', n);
	const size_t whole = last ? (size_t)(last + 1 - data) : 0;
	if (whole && !s->begun.len) {
		put(s->to, data, whole);
	} else if (whole && add(&s->begun, data, whole) == 0) {
		put(s->to, s->begun.data, s->begun.len);
		s->begun.len = 0;
	}
	if (whole < n)
		(void)add(&s->begun, data + whole, n - whole);
	return (ssize_t)n;
}

static FILE *open_stream(struct outlet *to, int mode)
{
	struct stream *s = &streams[n_streams];
	if (!to->started || n_streams == N_STREAMS)
		return NULL;
	s->to = to;
	s->file = fopencookie(s, "w", (cookie_io_functions_t){ .write = take });
	if (!s->file)
		return NULL;
	setvbuf(s->file, NULL, mode, BUFSIZ);
	n_streams++;
	return s->file;
}

FILE *outlet_stderr(void)
{
	return open_stream(errors, _IOLBF);
}

void outlet_progress(const char *text)
{
	if (!errors->started)
		return;
	pthread_mutex_lock(&errors->lock);
	snprintf(errors->status, sizeof errors->status, "%s", text);
	errors->status_changed = true;
	pthread_mutex_unlock(&errors->lock);
	wake(errors);
}

void outlet_json(void)
{
	atomic_store(&json, true);
}

void outlet_never_wait(void)
{
	atomic_store(&never_wait, true);
}

void outlet_interrupt(void)
{
	atomic_store(&interrupted, true);
	atomic_store(&notice_due, true);
	wake(errors);
}

/* ---- the thread ------------------------------------------------------------------------------ */

static int write_some(const struct outlet *o, const char *data, size_t n, size_t *written)
{
	const ssize_t k = write(o->fd, data, n);
	if (k >= 0) {
		*written = (size_t)k;
		return 0;
	}
	const int why = errno;
	struct pollfd p = { .fd = o->fd, .events = POLLOUT };
	*written = 0;
	if (why == EAGAIN)
		poll(&p, 1, -1); /* O_NONBLOCK, set by another process that has the file open */
	errno = why;
	return why == EAGAIN || why == EINTR ? 0 : -1;
}

static void write_all(struct outlet *o, const char *data, size_t n)
{
	size_t k;
	for (size_t at = 0; at < n; at += k) {
		const int rc = write_some(o, data + at, n - at, &k);
		int none = 0;
		if (rc)
			atomic_compare_exchange_strong(&o->error, &none, errno);
		atomic_fetch_add(&o->written, k);
		if (rc)
			return;
	}
}

static void erase(struct outlet *o)
{
	static const char line[] = "\r\033[K";
	if (o->drawn)
		write_all(o, line, sizeof line - 1);
	o->drawn = false;
}

/* Overwrites the old line, then erases its rest, to avoid flicker. */
static void draw(struct outlet *o)
{
	char line[STATUS_MAX + 16];
	const int n = snprintf(line, sizeof line, "\r%s\033[K", o->shown);
	write_all(o, line, (size_t)n);
	o->drawn = true;
}

/* Ends at the end of a line if possible: other processes may write to the same pipe. */
static size_t next_piece(const struct outlet *o, const char *data, size_t n)
{
	if (n <= o->piece)
		return n;
	const char *last = memrchr(data, '\n', o->piece);
	return last ? (size_t)(last + 1 - data) : o->piece;
}

static void write_taken(struct outlet *o)
{
	const char *at = o->taken.data;
	if (o->taken.len)
		erase(o);
	/* Writes in parts, so that the counts are right when a reader stops. */
	for (size_t left = o->taken.len; left;) {
		const size_t n = next_piece(o, at, left);
		write_all(o, at, n);
		atomic_fetch_sub(&o->lines, count_lines(at, n));
		atomic_fetch_sub(&o->queued, n);
		at += n;
		left -= n;
	}
	o->taken.len = 0;
	if (o->taken.cap > ENOUGH) { /* grown for a slow reader */
		free(o->taken.data);
		o->taken = (struct bytes){ 0 };
	}
}

static void write_notice(struct outlet *o)
{
	char line[128];
	const int n = snprintf(line, sizeof line,
	                       "%s: interrupted, cleaning up (again to quit at once)\n", program);
	erase(o);
	write_all(o, line, (size_t)n);
}

/* Returns whether the progress line has to be drawn. */
static bool take_work(struct outlet *o)
{
	pthread_mutex_lock(&o->lock);
	if (!o->waiting.len && o->dropped)
		report_dropped(o);
	const struct bytes empty = o->taken;
	o->taken = o->waiting;
	o->waiting = empty;
	const bool changed = o->status_changed;
	o->status_changed = false;
	if (changed)
		memcpy(o->shown, o->status, sizeof o->shown);
	pthread_mutex_unlock(&o->lock);
	return changed;
}

static void *run(void *outlet)
{
	struct outlet *o = outlet;
	for (;;) {
		while (sem_wait(&o->wake))
			continue;
		while (sem_trywait(&o->wake) == 0)
			continue;
		const unsigned asked = atomic_load(&o->asked);
		const bool changed = take_work(o);
		/* It was due before anything that the interrupt caused was queued. */
		if (o == errors && atomic_exchange(&notice_due, false))
			write_notice(o);
		write_taken(o);
		if (!*o->shown)
			erase(o);
		else if ((changed || !o->drawn) && !atomic_load(&o->queued))
			draw(o);
		pthread_mutex_lock(&o->lock);
		if (o->dropped && !o->waiting.len)
			wake(o); /* there is room for the warning now */
		pthread_mutex_unlock(&o->lock);
		atomic_store(&o->done, asked);
	}
	return NULL; /* the thread ends with the process, perhaps in a write */
}

/* ---- beginning and end ----------------------------------------------------------------------- */

/* True with 2>&1, and on a terminal. Two threads would mix the lines and change their order. */
static bool is_one_file(void)
{
	struct stat a, b;
	return fstat(STDOUT_FILENO, &a) == 0 && fstat(STDERR_FILENO, &b) == 0 &&
	       a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

static void start(struct outlet *o)
{
	sigset_t all, before;
	struct stat st;
	if (fstat(o->fd, &st) == 0 && !S_ISREG(st.st_mode))
		o->count_request = S_ISFIFO(st.st_mode) ? FIONREAD : TIOCOUTQ;
	o->piece = isatty(o->fd) ? TERMINAL_PIECE : PIECE;
	pthread_mutex_init(&o->lock, NULL);
	if (sem_init(&o->wake, 0, 0))
		return;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	o->started = pthread_create(&o->thread, NULL, run, o) == 0;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void outlet_start(const char *name)
{
	program = name;
	setvbuf(stdout, NULL, _IOLBF, BUFSIZ);
	if (is_one_file())
		errors = &outlets[0];
	for (struct outlet *o = outlets; o <= errors; o++)
		start(o);
	FILE *out = open_stream(&outlets[0], _IOLBF), *err = open_stream(errors, _IONBF);
	stdout = out ? out : stdout;
	stderr = err ? err : stderr;
}

void outlet_settle(int ms)
{
	int64_t ns = WS_NS_PER_MS / 16;
	const ws_deadline until = ws_deadline_in(ms * WS_NS_PER_MS);
	for (struct outlet *o = outlets; o <= errors; o++)
		while (o->started && !is_idle(o) && !ws_deadline_passed(until))
			(void)nap(&ns);
}

/* ns: the time waited since the last call. A clock would also count the time
 * while this process was stopped. */
static bool is_over(struct outlet *o, int64_t ns)
{
	if (!o->started || is_idle(o))
		return true;
	pthread_mutex_lock(&o->lock);
	if (has_moved(o) || may_wait())
		o->still_ns = o->late_ns = 0;
	else if (has_room(o))
		o->late_ns += ns;
	else
		o->still_ns += ns;
	pthread_mutex_unlock(&o->lock);
	return o->late_ns >= LATE_NS ||
	       o->still_ns >= (atomic_load(&never_wait) ? PATIENCE_NS : SIGNALLED_NS);
}

static void await_readers(void)
{
	int64_t ns = WS_NS_PER_MS / 16, slept = 0;
	for (;;) {
		bool over = is_over(&outlets[0], slept);
		if (errors != &outlets[0])
			over = is_over(errors, slept) && over;
		if (over)
			return;
		slept = nap(&ns);
	}
}

static unsigned long long count_lost(struct outlet *o)
{
	if (!o->started || is_idle(o))
		return 0;
	pthread_mutex_lock(&o->lock);
	const unsigned long long lines = atomic_load(&o->lines) + o->dropped;
	pthread_mutex_unlock(&o->lock);
	return lines || !atomic_load(&o->queued) ? lines : 1;
}

static void flush_streams(void)
{
	for (size_t i = 0; i < n_streams; i++) {
		struct stream *s = &streams[i];
		fflush(s->file);
		if (s->begun.len)
			put(s->to, s->begun.data, s->begun.len);
		s->begun.len = 0;
	}
}

/* Prints no message if the reader closed its pipe (EPIPE). */
static int check_stdout(int native)
{
	const unsigned long long lost = count_lost(&outlets[0]);
	if (lost)
		fprintf(stderr,
		        "%s: the last %llu lines of standard output were dropped, because nobody "
		        "read them\n",
		        program, lost);
	else if (native && native != EPIPE)
		fprintf(stderr, "%s: writing standard output: %s\n", program, strerror(native));
	return lost || native ? -1 : 0;
}

bool outlet_failed(void)
{
	return ferror(stdout) || atomic_load(&outlets[0].error);
}

int outlet_finish(void)
{
	static bool finished;
	if (finished)
		return 0;
	finished = true;
	/* Without a thread, the stream itself has the error. */
	const int native = fflush(stdout) ? errno : ferror(stdout) ? EIO : 0;
	flush_streams();
	await_readers();
	int rc = check_stdout(native ? native : atomic_load(&outlets[0].error));
	await_readers();
	if (count_lost(errors))
		rc = -1;
	return rc;
}
