/* SPDX-License-Identifier: Apache-2.0 */
/* nccl.c - see nccl.h.
 *
 * NCCL writes its NCCL_DEBUG lines to stdout, where they would mix with the JSON lines, unless
 * NCCL_DEBUG_FILE names a file, which NCCL truncates. /dev/stderr must not be that file: if
 * stderr is redirected to a file, NCCL would truncate it. So NCCL_DEBUG_FILE names a pipe, and a
 * thread copies its lines to stderr. */
#include "nccl.h"

#include "outlet.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

static int words = -1; /* the pipe's end that is read; -1: there is none */
static atomic_bool writing;

/* ---- output ---- */

static void *pass_on(void *to)
{
	char bytes[4096];
	for (;;) {
		struct pollfd p = { .fd = words, .events = POLLIN };
		if (poll(&p, 1, -1) < 0 && errno != EINTR)
			return NULL;
		writing = true;
		const ssize_t n = read(words, bytes, sizeof bytes);
		if (n > 0)
			fwrite(bytes, 1, (size_t)n, to);
		fflush(to);
		writing = false;
	}
}

static bool start_passing(void)
{
	FILE *own = outlet_stderr();
	sigset_t all, before;
	pthread_t thread;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	const bool started = pthread_create(&thread, NULL, pass_on, own ? own : stderr) == 0;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (started)
		pthread_detach(thread);
	return started;
}

/* The write end stays open, so that the pipe always has a writer. Child processes inherit it, and
 * NCCL there finds it by the same name. */
static void send_to_stderr(void)
{
	char name[32];
	int ends[2];
	if (words >= 0 || pipe(ends))
		return;
	words = ends[0];
	fcntl(words, F_SETFD, FD_CLOEXEC);
	snprintf(name, sizeof name, "/proc/self/fd/%d", ends[1]);
	if (start_passing() && setenv("NCCL_DEBUG_FILE", name, 0) == 0)
		return;
	close(ends[0]);
	close(ends[1]);
	words = -1;
}

void nccl_finish(void)
{
	static const struct timespec moment = { .tv_nsec = 1000000 };
	int left = 0;
	for (int ms = 0; words >= 0 && ms < 1000; ms++) {
		if (ioctl(words, FIONREAD, &left) || (left == 0 && !writing))
			return;
		nanosleep(&moment, NULL);
	}
}

static void tame_debug(void)
{
	const char *level = getenv("NCCL_DEBUG");
	if (!level || !*level)
		return;
	/* NCCL prints the line of VERSION to stdout, whatever file is named. WARN
	 * prints the line too, to the file. */
	if (strcasecmp(level, "VERSION") == 0)
		setenv("NCCL_DEBUG", "WARN", 1);
	if (!getenv("NCCL_DEBUG_FILE"))
		send_to_stderr();
}

/* ---- environment ---- */

/* Set by the user, or for the group that this process joined first. */
static struct setting {
	const char *name;
	bool users;
	char value[24];
} settings[] = { { .name = "NCCL_CUMEM_ENABLE" }, { .name = "NCCL_NVLS_ENABLE" },
	         { .name = "NCCL_SOCKET_IFNAME" } };
static bool reserved, started;

/* Makes the variables exist before the first thread starts. Replacing one later moves no other,
 * which a thread may be reading. NCCL ignores an empty interface. */
static void reserve(void)
{
	static const char *const own[] = { "-2", "2", "" }; /* as if they were not set */
	for (size_t i = 0; !reserved && i < sizeof own / sizeof own[0]; i++) {
		settings[i].users = getenv(settings[i].name) != NULL;
		setenv(settings[i].name, own[i], 0);
	}
	reserved = true;
}

static int set(struct setting *s, const char *value, const char *url, struct ws_err *err)
{
	const bool interface = s == &settings[2]; /* of the first group: NCCL reads it once */
	if (s->users || (started && (interface || strcmp(s->value, value) == 0)))
		return 0;
	if (started) {
		ws_err_set(err, WS_EDATA, "%s needs %s=%s, and NCCL was started with %s here", url,
		           s->name, value, s->value);
		return ws_err_hint(err, "start this program again");
	}
	snprintf(s->value, sizeof s->value, "%s", value);
	return setenv(s->name, value, 1) ? ws_err_errno(err, "set %s", s->name) : 0;
}

int nccl_set(const struct ws_nccl_settings *s, struct ws_err *err)
{
	char cumem[16], nvls[16], interface[24];
	if (s->other && !settings[0].users) {
		ws_err_set(err, WS_EREFUSED,
		           "%s and %s start NCCL with different settings (NCCL_CUMEM_ENABLE), and "
		           "one group needs equal settings",
		           s->url, s->other);
		return ws_err_hint(err, "push to each kind of server separately, or set "
		                        "NCCL_CUMEM_ENABLE to one value for all servers and here");
	}
	snprintf(cumem, sizeof cumem, "%d", s->cumem);
	snprintf(nvls, sizeof nvls, "%d", s->nvls);
	snprintf(interface, sizeof interface, "%s%s", *s->interface ? "=" : "", s->interface);
	if (set(&settings[0], cumem, s->url, err) || set(&settings[1], nvls, s->url, err) ||
	    set(&settings[2], interface, s->url, err))
		return -1;
	started = true;
	return 0;
}

void nccl_as_sglang(void)
{
	for (int i = 0; i < 2; i++)
		if (!settings[i].users)
			setenv(settings[i].name, "0", 1);
}

const char *nccl_prepare(const char *file, const char *python)
{
	const char *const usual = getenv("WSYNC_NCCL_LIB");
	reserve();
	/* The user's value would override the mode of our communicators, and a
	 * blocking one ignores deadlines. */
	setenv("NCCL_COMM_BLOCKING", "0", 1);
	tame_debug();
	return file || python || !usual || !usual[0] ? file : usual;
}
