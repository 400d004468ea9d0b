/* SPDX-License-Identifier: Apache-2.0 */
/* process_id.c - reads /proc, and expects any part of it to be missing. */
#include "process_id.h"

#include "wsync/tool/str.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int read_text(const char *path, char *text, size_t n)
{
	const int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	const ssize_t k = read(fd, text, n - 1);
	close(fd);
	text[k > 0 ? k : 0] = 0;
	return k > 0 ? 0 : -1;
}

int ws_process_stat(const char *text, char *state, uint64_t *start_ticks)
{
	/* "PID (NAME) STATE PPID ...": a name may hold blanks and brackets,
	 * and nothing after it does. */
	const char *at = strrchr(text, ')');
	if (!at || sscanf(at + 1, " %c", state) != 1)
		return -1;
	for (int field = 3; field <= 22; field++)
		if (!(at = strchr(at + 1, ' ')))
			return -1;
	char *end;
	errno = 0;
	const unsigned long long ticks = strtoull(at + 1, &end, 10);
	if (errno || end == at + 1 || (*end != ' ' && *end != '\n' && *end))
		return -1;
	*start_ticks = ticks;
	return 0;
}

static int read_stat(int64_t pid, char *state, uint64_t *start_ticks)
{
	char path[64], text[1024];
	snprintf(path, sizeof path, "/proc/%" PRId64 "/stat", pid);
	return read_text(path, text, sizeof text) || ws_process_stat(text, state, start_ticks) ?
	               -1 :
	               0;
}

void ws_process_self(struct ws_process *out)
{
	char state;
	*out = (struct ws_process){ .pid = getpid() };
	if (read_stat(out->pid, &state, &out->start_ticks))
		out->start_ticks = 0;
	if (read_text("/proc/sys/kernel/random/boot_id", out->boot_id, sizeof out->boot_id) == 0)
		out->boot_id[strcspn(out->boot_id, "\n")] = 0;
	const ssize_t n = readlink("/proc/self/ns/pid", out->pid_namespace,
	                           sizeof out->pid_namespace - 1);
	out->pid_namespace[n > 0 ? n : 0] = 0;
	char host[sizeof out->host] = "";
	gethostname(host, sizeof host - 1);
	ws_printable(out->host, sizeof out->host, host, strlen(host)); /* any bytes are possible */
}

static bool exists(const struct ws_process *p)
{
	char state = 0;
	uint64_t ticks = 0;
	if (kill((pid_t)p->pid, 0) && errno == ESRCH)
		return false;
	if (read_stat(p->pid, &state, &ticks))
		return access("/proc/self/stat", R_OK) !=
		       0; /* gone meanwhile, or /proc cannot be read */
	/* A zombie has released all its files and locks, and runs no code. */
	if (state == 'Z' || state == 'X')
		return false;
	return !p->start_ticks || ticks == p->start_ticks;
}

enum ws_process_fate ws_process_fate(const struct ws_process *p)
{
	struct ws_process here;
	ws_process_self(&here);
	if (p->pid <= 0 || p->pid > INT32_MAX)
		return WS_PROCESS_DEAD;
	const bool same_host = strcmp(p->host, here.host) == 0;
	if (strcmp(p->boot_id, here.boot_id) != 0)
		return same_host ? WS_PROCESS_DEAD : WS_PROCESS_ELSEWHERE;
	if (strcmp(p->pid_namespace, here.pid_namespace) != 0 || (!*p->boot_id && !same_host))
		return WS_PROCESS_ELSEWHERE;
	return exists(p) ? WS_PROCESS_ALIVE : WS_PROCESS_DEAD;
}
