/* SPDX-License-Identifier: Apache-2.0 */
/* lock.c - flock(2) on a file with the text "PID HOST wsync\n" of its holder.
 *
 * The text counts only while the file is locked. For a moment after a process has locked the file,
 * it has no text. A holder that will come back leaves "PID HOST MARK wsync\n": if that is still
 * there then, nobody has had the lock meanwhile. */
#include "lock.h"

#include "file.h"
#include "hash.h"
#include "wsync/endpoint.h"
#include "wsync/tool/str.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { WORDS_MAX = 96 };
static const char lock_mark[] = " wsync\n";

struct one {
	char name[WS_LOCK_NAME];
	const char *url; /* borrowed while taking */
	int fd;
	char found[WORDS_MAX + 1]; /* the text before it was taken */
};

struct ws_locks {
	size_t n;
	struct one items[];
};

/* ---- one lock -------------------------------------------------------------------------------- */

/* True if the file is empty or has the text of an earlier holder, who died. Any other file was
 * named by mistake and must not be overwritten. */
static bool is_lock(int fd, char text[WORDS_MAX + 1])
{
	const ssize_t n = pread(fd, text, WORDS_MAX, 0);
	const size_t mark = sizeof lock_mark - 1;
	text[n > 0 ? n : 0] = 0;
	return n == 0 || (n > (ssize_t)mark && n < WORDS_MAX && text[0] >= '1' && text[0] <= '9' &&
	                  memcmp(text + n - mark, lock_mark, mark) == 0);
}

/* mark 0: none. Returns the length. */
static int words_of(unsigned mark, char text[WORDS_MAX + 1])
{
	char host[65] = "", more[16] = "";
	gethostname(host, sizeof host - 1);
	if (mark)
		snprintf(more, sizeof more, " %08x", mark);
	return snprintf(text, WORDS_MAX + 1, "%ld %s%s%s", (long)getpid(), host, more, lock_mark);
}

static void say_who(int fd, unsigned mark)
{
	char text[WORDS_MAX + 1];
	const int n = words_of(mark, text);
	/* Errors are ignored: the lock holds without this text. */
	if (n > 0 && ftruncate(fd, 0) == 0 && pwrite(fd, text, (size_t)n, 0) < 0)
		(void)!ftruncate(fd, 0);
}

/* "process 4711 on trainer3", or "another process". */
static void read_who(const char *path, char *who, size_t n)
{
	char text[WORDS_MAX] = "", host[65] = "";
	long pid = 0;
	const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd >= 0) {
		const ssize_t k = read(fd, text, sizeof text - 1);
		text[k > 0 ? k : 0] = 0;
		close(fd);
	}
	if (sscanf(text, "%ld %64s", &pid, host) < 1 || pid <= 0) {
		snprintf(who, n, "another process");
		return;
	}
	char printable[65];
	ws_printable(printable, sizeof printable, host, strlen(host));
	snprintf(who, n, "process %ld%s%s", pid, *printable ? " on " : "", printable);
}

static int take(const char *path, enum ws_file_owner owner, const char *what, int64_t wait_ns,
                const struct ws_cancel *cancel, char found[WORDS_MAX + 1], struct ws_err *err)
{
	struct ws_err why = WS_ERR_INIT;
	const int fd = ws_file_lock(path, owner, ws_deadline_in(wait_ns), cancel, &why);
	/* In our own directory of locks there is nothing else. */
	if (fd >= 0 && !is_lock(fd, found) && owner == WS_FILE_LOCK) {
		ws_file_unlock(fd);
		ws_err_set(err, WS_ESYSTEM, "%s: %s is not a lock file", what, path);
		return ws_err_hint(err, "name another file; remove this one if an older wsync, "
		                        "which was killed, has left its process id there");
	}
	if (fd >= 0) {
		say_who(fd, 0);
		return fd;
	}
	if (why.code != WS_ETIMEOUT) {
		if (err)
			*err = why;
		return -1;
	}
	char who[160];
	read_who(path, who, sizeof who);
	if (wait_ns <= 0) {
		ws_err_set(err, WS_EREFUSED, "%s: %s is at work on it", what, who);
		return ws_err_hint(err, "let it end, or wait for it: {lock_wait_ns} 10m");
	}
	ws_err_set(err, WS_ETIMEOUT, "%s: %s is still at work on it", what, who);
	if (err)
		err->native = EWOULDBLOCK;
	return -1;
}

int ws_lock_take(const char *path, const char *what, int64_t wait_ns,
                 const struct ws_cancel *cancel, struct ws_err *err)
{
	char found[WORDS_MAX + 1];
	return take(path, WS_FILE_LOCK, what, wait_ns, cancel, found, err);
}

void ws_lock_drop(int fd)
{
	if (fd < 0)
		return;
	/* Clear the text, so that the next holder is not mistaken for this one. */
	(void)!ftruncate(fd, 0);
	ws_file_unlock(fd);
}

/* ---- one for each endpoint ------------------------------------------------------------------- */

static bool names_this_machine(const char *host)
{
	struct in_addr v4;
	struct in6_addr v6;
	if (inet_pton(AF_INET, host, &v4) == 1)
		return ntohl(v4.s_addr) >> 24 == 127;
	if (inet_pton(AF_INET6, host, &v6) == 1)
		return IN6_IS_ADDR_LOOPBACK(&v6);
	return strcmp(host, "localhost") == 0;
}

int ws_lock_name(const char *url, char *name, struct ws_err *err)
{
	char host[256];
	uint16_t port;
	if (ws_endpoint_host_port(url, host, &port, err))
		return -1;
	if (names_this_machine(host))
		snprintf(host, sizeof host, "localhost");
	const size_t len = strlen(host);
	if (len + sizeof ":65535.lock" > WS_LOCK_NAME) /* a host name may exceed a file name */
		snprintf(host, sizeof host, "%016llx", (unsigned long long)ws_hash64(host, len));
	for (char *p = host; *p; p++)
		if (!isalnum((unsigned char)*p) && !strchr(".-:", *p))
			*p = '_';
	if (host[0] == '.')
		host[0] = '_';
	snprintf(name, WS_LOCK_NAME, "%.180s:%u.lock", host, port);
	return 0;
}

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct one *)a)->name, ((const struct one *)b)->name);
}

static int take_one(const char *dir, struct one *o, ws_deadline until, bool wait,
                    const struct ws_cancel *cancel, struct ws_err *err)
{
	char *path = NULL, *what = NULL;
	const int64_t left = ws_deadline_left(until);
	if (asprintf(&path, "%s/%s", dir, o->name) < 0 ||
	    asprintf(&what, "endpoint %s", o->url) < 0)
		ws_oom(err);
	else
		o->fd = take(path, WS_FILE_OWN, what, wait && !left ? 1 : left, cancel, o->found,
		             err);
	if (o->fd < 0)
		ws_err_where(err, NULL, o->url);
	free(path);
	free(what);
	return o->fd < 0 ? -1 : 0;
}

int ws_locks_take(const char *dir, const char *const *urls, size_t n, int64_t wait_ns,
                  const struct ws_cancel *cancel, struct ws_locks **out, struct ws_err *err)
{
	const ws_deadline until = ws_deadline_in(wait_ns);
	if (ws_file_own_directory(dir, err))
		return -1;
	struct ws_locks *l = calloc(1, sizeof *l + n * sizeof *l->items);
	if (!l)
		return ws_oom(err);
	for (size_t i = 0; i < n; i++)
		l->items[i].fd = -1;
	l->n = n;
	int rc = 0;
	for (size_t i = 0; rc == 0 && i < n; i++) {
		l->items[i].url = urls[i];
		rc = ws_lock_name(urls[i], l->items[i].name, err);
	}
	if (rc == 0)
		qsort(l->items, n, sizeof *l->items, by_name);
	for (size_t i = 0; rc == 0 && i < n; i++) {
		/* Names of this machine share one lock per port: lock it once. */
		if (!i || by_name(&l->items[i - 1], &l->items[i]) != 0)
			rc = take_one(dir, &l->items[i], until, wait_ns > 0, cancel, err);
	}
	if (rc) {
		ws_locks_drop(l);
		return -1;
	}
	*out = l;
	return 0;
}

void ws_locks_drop(struct ws_locks *l)
{
	for (size_t i = 0; l && i < l->n; i++)
		ws_lock_drop(l->items[i].fd);
	free(l);
}

unsigned ws_locks_keep(struct ws_locks *l)
{
	static atomic_uint last;
	const unsigned mark = atomic_fetch_add(&last, 1) + 1;
	for (size_t i = 0; l && i < l->n; i++) {
		if (l->items[i].fd < 0)
			continue;
		say_who(l->items[i].fd, mark);
		ws_file_unlock(l->items[i].fd);
	}
	free(l);
	return mark;
}

bool ws_locks_kept(const struct ws_locks *l, const char *url, unsigned mark)
{
	char name[WS_LOCK_NAME], text[WORDS_MAX + 1];
	words_of(mark, text);
	if (!mark || ws_lock_name(url, name, NULL))
		return false;
	for (size_t i = 0; l && i < l->n; i++)
		if (l->items[i].fd >= 0 && strcmp(l->items[i].name, name) == 0)
			return strcmp(l->items[i].found, text) == 0;
	return false;
}

bool ws_locks_again(const char *dir, const char *url, unsigned mark, struct ws_locks **out)
{
	*out = NULL;
	return ws_locks_take(dir, &url, 1, 0, NULL, out, NULL) == 0 &&
	       ws_locks_kept(*out, url, mark);
}
