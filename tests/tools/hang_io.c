/* SPDX-License-Identifier: Apache-2.0 */
/* hang_io.c - for LD_PRELOAD: a file system that stops answering, or answers slowly.
 *
 *   HANG="CALL PART AT"  CALL beyond byte AT hangs, if PART is in the path; fsync after AT calls
 *   HANG_FIFO=PATH       first creates PATH.reached; hangs until FIFO PATH is opened for writing
 *   SLOW="CALL PART MS"  each CALL on such a file takes MS milliseconds longer
 *
 * CALL: write, pread, sendfile, fadvise, fsync or any. A thread that hangs uses no CPU time and
 * receives no signal, like a thread that waits for a disk. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <time.h>
#include <unistd.h>

static atomic_int syncs;

static int matches(const char *variable, const char *call, int fd, long long *number)
{
	char which[16] = "", part[256] = "", link[64], path[4096];
	const char *what = getenv(variable);
	if (!what || sscanf(what, "%15s %255s %lld", which, part, number) != 3)
		return 0;
	if (strcmp(which, "any") != 0 && strcmp(which, call) != 0)
		return 0;
	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	const ssize_t n = readlink(link, path, sizeof path - 1);
	path[n > 0 ? n : 0] = 0;
	return strstr(path, part) != NULL;
}

static void hang(void)
{
	const char *fifo = getenv("HANG_FIFO");
	char reached[4096];
	sigset_t all, before;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	snprintf(reached, sizeof reached, "%s.reached", fifo ? fifo : "hang");
	close(open(reached, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
	const int fd = fifo ? open(fifo, O_RDONLY | O_CLOEXEC) : -1;
	while (!fifo)
		pause();
	close(fd);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static void hinder(const char *call, int fd, long long end)
{
	long long at, ms;
	if (matches("SLOW", call, fd, &ms)) {
		const struct timespec t = { ms / 1000, ms % 1000 * 1000000 };
		nanosleep(&t, NULL);
	}
	if (matches("HANG", call, fd, &at) && end > at)
		hang();
}

#define REAL(name) \
	static __typeof__(&name) real; \
	if (!real) \
		real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

ssize_t write(int fd, const void *bytes, size_t n)
{
	REAL(write);
	hinder("write", fd, (long long)n);
	return real(fd, bytes, n);
}

ssize_t pread64(int fd, void *dst, size_t n, off64_t at)
{
	REAL(pread64);
	hinder("pread", fd, at + (long long)n);
	return real(fd, dst, n, at);
}

ssize_t pread(int fd, void *dst, size_t n, off_t at)
{
	REAL(pread);
	hinder("pread", fd, at + (long long)n);
	return real(fd, dst, n, at);
}

ssize_t sendfile64(int out, int fd, off64_t *at, size_t n)
{
	REAL(sendfile64);
	hinder("sendfile", fd, *at + (long long)n);
	return real(out, fd, at, n);
}

ssize_t sendfile(int out, int fd, off_t *at, size_t n)
{
	REAL(sendfile);
	hinder("sendfile", fd, *at + (long long)n);
	return real(out, fd, at, n);
}

int posix_fadvise64(int fd, off64_t at, off64_t n, int advice)
{
	REAL(posix_fadvise64);
	hinder("fadvise", fd, at + n);
	return real(fd, at, n, advice);
}

int posix_fadvise(int fd, off_t at, off_t n, int advice)
{
	REAL(posix_fadvise);
	hinder("fadvise", fd, at + n);
	return real(fd, at, n, advice);
}

int fsync(int fd)
{
	REAL(fsync);
	long long ignored;
	hinder("fsync", fd, matches("HANG", "fsync", fd, &ignored) ? ++syncs : 0);
	return real(fd);
}
