/* SPDX-License-Identifier: Apache-2.0 */
/* serve_counter.c - memory that was read is given back to who showed it, as torch's readers do:
 * a sender keeps what it has freed until nobody reads it any longer.
 *
 *   /dev/shm/torch_PID_...     of 80064 bytes, the sender's
 *     0   int32                processes that have it mapped; the last one unlinks it
 *     64  int64[10000]         readers of each piece of memory: 1 when it is shown
 *
 * As of torch/csrc/StorageSharing.cpp and aten/src/ATen/MapAllocator.cpp. The processes are left
 * alone: a file that its sender unlinks meanwhile is gone when it is unmapped here. Who names a
 * file names any: so only what is called and measures so is touched, and no counter goes below
 * 0. Files that are cut short while they are mapped end us by SIGBUS, as they do torch's
 * readers; their owners are senders that may read and write our GPU. */
#include "serve_gpu.h"

#include "wsync/tool/str.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HEAD = 64, COUNTERS = 10000, NAME = 200 };

static const size_t file_bytes = HEAD + COUNTERS * sizeof(int64_t);

/* Its path, where that is the name of such a file: no other may be meant. */
static bool find_path(const struct ws_pickle_memory *m, char *path, size_t size)
{
	static const char prefix[] = "/torch_";
	const size_t n = m->counter_len, known = sizeof prefix - 1;
	if (n <= known || n > NAME || memcmp(m->counter, prefix, known) != 0)
		return false;
	for (size_t i = known; i < n; i++) {
		const char c = m->counter[i];
		if (!(c >= '0' && c <= '9') && !(c >= 'a' && c <= 'z') && !(c >= 'A' && c <= 'Z') &&
		    c != '_')
			return false;
	}
	snprintf(path, size, "/dev/shm%.*s", (int)n, m->counter);
	return true;
}

/* Others count in it too. */
static bool count_down(_Atomic int64_t *counter)
{
	int64_t now = atomic_load(counter);
	while (now > 0 && !atomic_compare_exchange_weak(counter, &now, now - 1))
		;
	return now > 0;
}

/* NULL, or why not. */
static const char *give_back(const char *path, int64_t at)
{
	struct stat st;
	const char *why = NULL;
	const int fd = open(path, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0)
		return strerror(errno);
	if (fstat(fd, &st) || !S_ISREG(st.st_mode) || (size_t)st.st_size != file_bytes)
		why = "not a file of counters";
	char *file = why ? MAP_FAILED :
	                   mmap(NULL, file_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (!why && file == MAP_FAILED)
		why = strerror(errno);
	close(fd);
	if (why)
		return why;
	if (!count_down((_Atomic int64_t *)(void *)(file + HEAD) + at))
		why = "nobody reads that any longer";
	munmap(file, file_bytes);
	return why;
}

void ws_serve_give_back(const struct ws_pickle_memory *m, const struct ws_log *log)
{
	char path[NAME + 16], name[64];
	const char *why = "not the name of one";
	if (!m->counter || !m->counter_len)
		return;
	if (m->counter_at < 0 || m->counter_at >= COUNTERS)
		why = "a file has not as many";
	else if (find_path(m, path, sizeof path))
		why = give_back(path, m->counter_at);
	if (why)
		ws_log(log, 1, "counter %" PRId64 " of '%s' is not counted down: %s", m->counter_at,
		       ws_printable(name, sizeof name, m->counter, m->counter_len), why);
}
