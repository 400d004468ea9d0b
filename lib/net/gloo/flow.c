/* SPDX-License-Identifier: Apache-2.0 */
/* flow.c - see flow.h. Positions are bytes since the beginning and never wrap; the offset in
 * the ring is the position modulo its size. */
#include "flow.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

struct ws_flow {
	uint8_t *ring; /* 2 x size bytes: the second half maps the first again */
	size_t size;
	int fd;        /* eventfd that wakes consumers */
	pthread_mutex_t lock;
	pthread_cond_t room;
	bool rung, stopped, failed;
	struct ws_err why;
	uint64_t head; /* committed so far */
	unsigned n_tails;
	uint64_t tails[]; /* consumed so far, per consumer */
};

static uint8_t *map_twice(size_t size, struct ws_err *err)
{
	uint8_t *ring = MAP_FAILED;
	const int fd = memfd_create("wsync-flow", MFD_CLOEXEC);
	if (fd < 0 || ftruncate(fd, (off_t)size))
		goto out;
	/* Reserves both halves at once, so that no other mapping can come between them. */
	ring = mmap(NULL, 2 * size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (ring == MAP_FAILED)
		goto out;
	for (int half = 0; half < 2; half++) {
		if (mmap(ring + (size_t)half * size, size, PROT_READ | PROT_WRITE,
		         MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
			munmap(ring, 2 * size);
			ring = MAP_FAILED;
			break;
		}
	}
out:
	if (ring == MAP_FAILED)
		ws_err_errno(err, "map a buffer of %zu bytes", size);
	if (fd >= 0)
		close(fd);
	return ring == MAP_FAILED ? NULL : ring;
}

static size_t whole_pages(size_t bytes)
{
	const size_t page = (size_t)sysconf(_SC_PAGESIZE);
	return bytes ? (bytes + page - 1) / page * page : page;
}

static int open_new(struct ws_flow **out, size_t bytes, unsigned n_consumers, struct ws_err *err)
{
	struct ws_flow *f = calloc(1, sizeof *f + n_consumers * sizeof f->tails[0]);
	if (!f)
		return ws_oom(err);
	f->size = whole_pages(bytes);
	f->n_tails = n_consumers;
	f->fd = -1;
	pthread_mutex_init(&f->lock, NULL);
	pthread_cond_init(&f->room, NULL);
	f->ring = map_twice(f->size, err);
	if (!f->ring)
		goto fail;
	f->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (f->fd < 0) {
		ws_err_errno(err, "eventfd");
		goto fail;
	}
	*out = f;
	return 0;
fail:
	ws_flow_close(f);
	return -1;
}

void ws_flow_close(struct ws_flow *f)
{
	if (!f)
		return;
	if (f->ring)
		munmap(f->ring, 2 * f->size);
	if (f->fd >= 0)
		close(f->fd);
	pthread_cond_destroy(&f->room);
	pthread_mutex_destroy(&f->lock);
	free(f);
}

int ws_flow_open(struct ws_flow **flow, size_t bytes, unsigned n_consumers, struct ws_err *err)
{
	struct ws_flow *f = *flow;
	if (!f || f->size != whole_pages(bytes) || f->n_tails != n_consumers) {
		ws_flow_close(f);
		*flow = NULL;
		return open_new(flow, bytes, n_consumers, err);
	}
	ws_flow_heard(f);
	f->stopped = f->failed = false;
	f->head = 0;
	memset(f->tails, 0, n_consumers * sizeof f->tails[0]);
	return 0;
}

static size_t room_of(const struct ws_flow *f)
{
	uint64_t oldest = f->head;
	for (unsigned i = 0; i < f->n_tails; i++)
		if (f->tails[i] < oldest)
			oldest = f->tails[i];
	return f->size - (size_t)(f->head - oldest);
}

size_t ws_flow_room(struct ws_flow *f, void **at)
{
	pthread_mutex_lock(&f->lock);
	const size_t room = room_of(f);
	*at = f->ring + f->head % f->size;
	pthread_mutex_unlock(&f->lock);
	return room;
}

int ws_flow_wait_room(struct ws_flow *f, size_t n, void **at)
{
	pthread_mutex_lock(&f->lock);
	while (!f->stopped && room_of(f) < n)
		pthread_cond_wait(&f->room, &f->lock);
	*at = f->ring + f->head % f->size;
	const int rc = f->stopped ? -1 : 0;
	pthread_mutex_unlock(&f->lock);
	return rc;
}

/* Call with the lock held. One wake-up for unread data is enough, however much is committed. */
static void ring_consumers(struct ws_flow *f)
{
	const uint64_t one = 1;
	if (!f->rung)
		f->rung = write(f->fd, &one, sizeof one) == (ssize_t)sizeof one;
}

void ws_flow_commit(struct ws_flow *f, size_t n)
{
	pthread_mutex_lock(&f->lock);
	f->head += n;
	if (f->n_tails)
		ring_consumers(f);
	pthread_mutex_unlock(&f->lock);
}

void ws_flow_fail(struct ws_flow *f, const struct ws_err *err)
{
	pthread_mutex_lock(&f->lock);
	f->why = *err;
	f->failed = true;
	ring_consumers(f);
	pthread_mutex_unlock(&f->lock);
}

size_t ws_flow_peek(struct ws_flow *f, unsigned consumer, const void **at)
{
	pthread_mutex_lock(&f->lock);
	const uint64_t tail = f->tails[consumer];
	const size_t n = (size_t)(f->head - tail);
	*at = f->ring + tail % f->size;
	pthread_mutex_unlock(&f->lock);
	return n;
}

void ws_flow_consume(struct ws_flow *f, unsigned consumer, size_t n)
{
	pthread_mutex_lock(&f->lock);
	f->tails[consumer] += n;
	pthread_cond_signal(&f->room);
	pthread_mutex_unlock(&f->lock);
}

void ws_flow_stop(struct ws_flow *f)
{
	pthread_mutex_lock(&f->lock);
	f->stopped = true;
	pthread_cond_signal(&f->room);
	pthread_mutex_unlock(&f->lock);
}

int ws_flow_failed(struct ws_flow *f, struct ws_err *err)
{
	pthread_mutex_lock(&f->lock);
	const bool failed = f->failed;
	if (failed && err)
		*err = f->why;
	pthread_mutex_unlock(&f->lock);
	return failed ? -1 : 0;
}

int ws_flow_fd(const struct ws_flow *f)
{
	return f->fd;
}

void ws_flow_heard(struct ws_flow *f)
{
	uint64_t count;
	pthread_mutex_lock(&f->lock);
	if (f->rung)
		f->rung = read(f->fd, &count, sizeof count) != (ssize_t)sizeof count;
	pthread_mutex_unlock(&f->lock);
}
