/* SPDX-License-Identifier: Apache-2.0 */
/* gloo_world.h - a group whose ranks are threads, and the bytes they broadcast.
 *
 * Ranks are not the test's main thread, so they do not assert: a failed rank leaves its error. */
#ifndef TESTS_GLOO_WORLD_H
#define TESTS_GLOO_WORLD_H

#include "gloo.h"
#include "gloo_kv.h"
#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct world;

struct member {
	struct world *world;
	unsigned rank;
	struct ws_gloo *gloo;
	int rc;
	struct ws_err err;
	pthread_t thread;
};

struct world {
	unsigned size;
	enum ws_gloo_layout layout;
	bool no_ids;
	size_t ring_bytes;
	const char *host;
	struct ws_gloo_watch *watch;   /* of rank 0 */
	int (*role)(struct member *m); /* what every rank does in the open group */
	void *ctx;
	struct kv kv;
	struct ws_gloo_kv store;
	struct member members[16];
};

#define PREFIX "/g/g//cpu//0/"

static inline ws_deadline soon(void)
{
	return ws_deadline_in(20 * WS_NS_PER_S);
}

static inline void world_init(struct world *w)
{
	kv_init(&w->kv);
	w->store = (struct ws_gloo_kv){ &w->kv, kv_set, kv_get };
	for (unsigned r = 0; r < w->size; r++)
		w->members[r] = (struct member){ .world = w, .rank = r };
}

static inline void world_fini(struct world *w)
{
	kv_fini(&w->kv);
}

static inline int member_open(struct member *m, ws_deadline until)
{
	const struct world *w = m->world;
	const struct ws_gloo_opts opts = {
		.rank = m->rank, .size = w->size, .layout = w->layout, .prefix = PREFIX,
		.kv = &w->store, .host = w->host ? w->host : "127.0.0.1", .rank_as_id = w->no_ids,
		.ring_bytes = w->ring_bytes, .watch = m->rank == 0 ? w->watch : NULL,
	};
	return ws_gloo_open(&opts, until, NULL, &m->gloo, &m->err);
}

static inline void *member_run(void *arg)
{
	struct member *m = arg;
	m->rc = member_open(m, soon());
	if (m->rc == 0)
		m->rc = m->world->role(m);
	ws_gloo_close(m->gloo);
	return NULL;
}

static inline void world_run(struct world *w)
{
	world_init(w);
	for (unsigned r = 0; r < w->size; r++)
		assert_int_equal(pthread_create(&w->members[r].thread, NULL, member_run,
		                                &w->members[r]), 0);
	for (unsigned r = 0; r < w->size; r++)
		pthread_join(w->members[r].thread, NULL);
	world_fini(w);
}

/* Says of every rank what went wrong: the first one's trouble may be the echo of another's. */
static inline void world_assert_fine(const struct world *w)
{
	bool fine = true;
	for (unsigned r = 0; r < w->size; r++) {
		if (w->members[r].rc)
			print_error("size %u layout %d: rank %u: %s\n", w->size, (int)w->layout, r,
			            w->members[r].err.msg);
		fine = fine && !w->members[r].rc;
	}
	assert_true(fine);
}

/* ---- bytes ---- */

static inline uint8_t content(size_t item, uint64_t at)
{
	return (uint8_t)(at * 31 + (at >> 9) + item * 101 + (at >> 17) * 7);
}

static inline int fill_content(void *ctx, uint64_t at, void *dst, size_t n, struct ws_err *err)
{
	(void)err;
	for (size_t i = 0; i < n; i++)
		((uint8_t *)dst)[i] = content((size_t)(uintptr_t)ctx, at + i);
	return 0;
}

/* A file of n bytes that looks like item `item`; unlinked, closed by the caller. */
static inline int file_of(size_t item, uint64_t n)
{
	char path[] = "/tmp/wsync-test-gloo-XXXXXX";
	const int fd = mkstemp(path);
	assert_true(fd >= 0);
	unlink(path);
	uint8_t *bytes = malloc(n + 1);
	fill_content((void *)(uintptr_t)item, 0, bytes, n, NULL);
	assert_int_equal(pwrite(fd, bytes, n, 0), (ssize_t)n);
	free(bytes);
	return fd;
}

/* A payload of item's content made by a function. */
static inline struct ws_payload made_payload(struct ws_span *span, size_t item, uint64_t n)
{
	*span = (struct ws_span){ .length = n, .fd = -1, .fill = fill_content,
	                          .ctx = (void *)(uintptr_t)item };
	return (struct ws_payload){ n, span, n ? 1 : 0 };
}

/* A sink that compares. */
struct checked {
	size_t item;
	uint64_t seen;
	uint8_t *dst;
};

static inline int check_bytes(struct checked *c, const uint8_t *bytes, size_t n, struct ws_err *err)
{
	for (size_t i = 0; i < n; i++)
		if (bytes[i] != content(c->item, c->seen + i))
			return ws_err_set(err, WS_EMISMATCH, "item %zu: byte %llu is wrong",
			                  c->item, (unsigned long long)(c->seen + i));
	c->seen += n;
	return 0;
}

static inline int take_checked(void *ctx, const void *bytes, size_t n, struct ws_err *err)
{
	return check_bytes(ctx, bytes, n, err);
}

#endif
