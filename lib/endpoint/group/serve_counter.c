/* SPDX-License-Identifier: Apache-2.0 */
/* serve_counter.c - decrements torch's counter of readers after shared memory was read. A torch
 * sender keeps freed memory until its counter shows no reader.
 *
 *   /dev/shm/torch_PID_...     80064 bytes, created by the sender
 *     0   int32                processes that map the file; the last one unlinks it
 *     64  int64[10000]         readers of each piece of memory: 1 when the sender shares it
 *
 * The format is that of torch/csrc/StorageSharing.cpp and aten/src/ATen/MapAllocator.cpp. The count
 * of processes is not changed: if the sender unlinks the file, it vanishes when it is unmapped
 * here. A request could name any file, so only files of this name and size are changed, and no
 * counter goes below 0. If a mapped file is truncated, SIGBUS ends this process, like torch's
 * readers. That is accepted: such senders may read and write this endpoint's GPU anyway. */
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

/* Writes the path of the file. False: its name is not that of a counter file. */
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

/* Decrements atomically, because other processes use the counter too. False: it is 0. */
static bool count_down(_Atomic int64_t *counter)
{
	int64_t now = atomic_load(counter);
	while (now > 0 && !atomic_compare_exchange_weak(counter, &now, now - 1))
		;
	return now > 0;
}

/* Returns NULL, or the reason for a failure. */
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
		why = "the counter is already 0";
	munmap(file, file_bytes);
	return why;
}

void ws_serve_give_back(const struct ws_pickle_memory *m, const struct ws_log *log)
{
	char path[NAME + 16], name[64];
	const char *why = "not the name of a counter file";
	if (!m->counter || !m->counter_len)
		return;
	if (m->counter_at < 0 || m->counter_at >= COUNTERS)
		why = "no such counter";
	else if (find_path(m, path, sizeof path))
		why = give_back(path, m->counter_at);
	if (why)
		ws_log(log, 1, "counter %" PRId64 " of '%s' is not counted down: %s", m->counter_at,
		       ws_printable(name, sizeof name, m->counter, m->counter_len), why);
}
