/* SPDX-License-Identifier: Apache-2.0 */
/* test_gloo.c - groups of our own ranks, one thread each: every byte arrives everywhere, whatever
 * the size of the group, the layout, the root, and the way items are made and taken. */
#include "gloo_world.h"

#include "gloo_peer.h"

#include <sys/socket.h>

/* ---- one call with a list of items, taken in all ways ---- */

struct plan {
	unsigned root;
	size_t n;
	const uint64_t *lengths;
	int *files;       /* NULL: none; -1: this item is made */
	int64_t slow_ns;  /* the last rank takes this long per piece */
};

/* How rank r takes item i: 0 dst, 1 take, 2 both, 3 neither. */
static unsigned way_of(unsigned rank, size_t i)
{
	return (unsigned)((rank + i) % 4);
}

struct slow {
	struct checked checked;
	int64_t ns;
};

static int take_slowly(void *ctx, const void *bytes, size_t n, struct ws_err *err)
{
	struct slow *s = ctx;
	if (s->ns)
		usleep((useconds_t)(s->ns / 1000));
	return check_bytes(&s->checked, bytes, n, err);
}

static int send_items(struct member *m, const struct plan *p)
{
	struct ws_span *spans = calloc(p->n * 2, sizeof *spans);
	struct ws_payload *items = calloc(p->n, sizeof *items);
	for (size_t i = 0; i < p->n; i++) {
		items[i] = made_payload(&spans[2 * i], i, p->lengths[i]);
		if (p->files && p->files[i] >= 0 && p->lengths[i] > 1) {
			/* all but the last byte from the file: two spans of different kinds */
			spans[2 * i].length--;
			spans[2 * i].fd = p->files[i];
			spans[2 * i + 1] = (struct ws_span){ .length = 1, .fd = p->files[i],
				                             .offset = p->lengths[i] - 1 };
			items[i].n_spans = 2;
		}
	}
	const int rc = ws_gloo_send(m->gloo, items, p->n, soon(), NULL, &m->err);
	free(spans);
	free(items);
	return rc;
}

static int check_taken(struct member *m, const struct plan *p, struct slow *taken)
{
	for (size_t i = 0; i < p->n; i++) {
		const unsigned way = way_of(m->rank, i);
		struct checked *c = &taken[i].checked;
		const uint64_t seen = c->seen;
		c->seen = 0;
		if ((way == 1 || way == 2) && seen != p->lengths[i])
			return ws_err_set(&m->err, WS_EDATA, "take saw %llu bytes of item %zu",
			                  (unsigned long long)seen, i);
		if (c->dst && check_bytes(c, c->dst, p->lengths[i], &m->err))
			return -1;
	}
	return 0;
}

static int recv_items(struct member *m, const struct plan *p)
{
	struct slow *taken = calloc(p->n, sizeof *taken);
	struct ws_gloo_sink *sinks = calloc(p->n, sizeof *sinks);
	for (size_t i = 0; i < p->n; i++) {
		const unsigned way = way_of(m->rank, i);
		taken[i].checked.item = i;
		taken[i].ns = m->rank == m->world->size - 1 ? p->slow_ns : 0;
		if (way == 0 || way == 2)
			taken[i].checked.dst = malloc(p->lengths[i] + 1);
		sinks[i] = (struct ws_gloo_sink){ p->lengths[i], taken[i].checked.dst,
			                          way == 1 || way == 2 ? take_slowly : NULL,
			                          &taken[i] };
	}
	int rc = ws_gloo_recv(m->gloo, p->root, sinks, p->n, soon(), NULL, &m->err);
	if (rc == 0)
		rc = check_taken(m, p, taken);
	for (size_t i = 0; i < p->n; i++)
		free(taken[i].checked.dst);
	free(taken);
	free(sinks);
	return rc;
}

static int once(struct member *m)
{
	const struct plan *p = m->world->ctx;
	return m->rank == p->root ? send_items(m, p) : recv_items(m, p);
}

static void broadcast(struct world *w, struct plan *p)
{
	w->role = once;
	w->ctx = p;
	world_run(w);
	world_assert_fine(w);
}

static const uint64_t mixed[] = { 0, 1, 16, 4097, 0, (1 << 20) + 1, 65536, 65537, 7, 300000 };
enum { N_MIXED = sizeof mixed / sizeof mixed[0] };

TEST(every_size_layout_and_kind_of_identifier)
{
	for (unsigned size = 2; size <= 9; size++) {
		for (int kind = 0; kind < 3; kind++) {
			struct world w = { .size = size,
				           .layout = kind == 2 ? WS_GLOO_G1 : WS_GLOO_G2B,
				           .no_ids = kind == 1 };
			struct plan p = { .n = N_MIXED, .lengths = mixed };
			broadcast(&w, &p);
		}
	}
}

TEST(every_root)
{
	for (unsigned root = 0; root < 6; root++) {
		struct world w = { .size = 6 };
		struct plan p = { .root = root, .n = N_MIXED, .lengths = mixed };
		broadcast(&w, &p);
	}
}

TEST(over_ipv6)
{
	struct world w = { .size = 4, .host = "::1" };
	struct plan p = { .n = N_MIXED, .lengths = mixed };
	if (access("/proc/net/if_inet6", R_OK) == 0)
		broadcast(&w, &p);
}

TEST(files_and_made_bytes_mix)
{
	int files[N_MIXED];
	for (size_t i = 0; i < N_MIXED; i++)
		files[i] = i % 3 ? file_of(i, mixed[i]) : -1;
	struct world w = { .size = 5 };
	struct plan p = { .n = N_MIXED, .lengths = mixed, .files = files };
	broadcast(&w, &p);
	for (size_t i = 0; i < N_MIXED; i++)
		if (files[i] >= 0)
			close(files[i]);
}

TEST(hundreds_of_small_items)
{
	uint64_t lengths[900];
	for (size_t i = 0; i < 900; i++)
		lengths[i] = i * 37 % 5000;
	struct world w = { .size = 6 };
	struct plan p = { .n = 900, .lengths = lengths };
	broadcast(&w, &p);
}

/* More than the window: nothing arrives that would by itself move it on. */
TEST(many_empty_items)
{
	static const uint64_t lengths[3000];
	struct world w = { .size = 4 };
	struct plan p = { .n = 3000, .lengths = lengths };
	const int64_t begun = ws_now_ns();
	broadcast(&w, &p);
	assert_true(ws_now_ns() - begun < 15 * WS_NS_PER_S);
}

TEST(a_ring_smaller_than_any_item)
{
	struct world w = { .size = 7, .ring_bytes = 4096 };
	struct plan p = { .n = N_MIXED, .lengths = mixed };
	broadcast(&w, &p);
}

TEST(a_slow_child)
{
	struct world w = { .size = 6, .ring_bytes = 64 * 1024 };
	struct plan p = { .n = N_MIXED, .lengths = mixed, .slow_ns = 2 * WS_NS_PER_MS };
	broadcast(&w, &p);
}

/* ---- several calls in one group ---- */

static int in_turns(struct member *m)
{
	const struct plan *p = m->world->ctx;
	for (unsigned root = 0; root < m->world->size; root++) {
		struct plan q = *p;
		q.root = root;
		if (m->rank == root ? send_items(m, &q) : recv_items(m, &q))
			return -1;
	}
	return 0;
}

TEST(every_rank_is_root_in_turn)
{
	for (int layout = 0; layout < 2; layout++) {
		struct plan p = { .n = N_MIXED, .lengths = mixed };
		struct world w = { .size = 5, .layout = (enum ws_gloo_layout)layout,
			           .role = in_turns, .ctx = &p };
		world_run(&w);
		world_assert_fine(&w);
	}
}

static int count_progress(struct member *m)
{
	if (once(m) || once(m))
		return -1;
	uint64_t total = 0;
	for (size_t i = 0; i < N_MIXED; i++)
		total += 2 * mixed[i];
	if (ws_gloo_progress(m->gloo) == total)
		return 0;
	return ws_err_set(&m->err, WS_EDATA, "progress %llu",
	                  (unsigned long long)ws_gloo_progress(m->gloo));
}

TEST(progress_counts_payload_bytes)
{
	struct plan p = { .n = N_MIXED, .lengths = mixed };
	struct world w = { .size = 3, .role = count_progress, .ctx = &p };
	world_run(&w);
	world_assert_fine(&w);
}

/* ---- a call that is watched ---- */

/* far more than the small socket of a child and its queue hold */
enum { N_LATE = 250, LATE = 2000 };

/* Behind the last item is one whose span is nowhere: who looks at it dies. */
static int send_into_a_small_socket(struct member *m)
{
	struct ws_span spans[N_LATE];
	struct ws_payload items[N_LATE + 1] = { 0 };
	const int least = 1;
	for (size_t i = 0; i < N_LATE; i++)
		items[i] = made_payload(&spans[i], i, LATE);
	items[N_LATE] = (struct ws_payload){ .length = LATE, .n_spans = 1 };
	if (setsockopt(m->gloo->peers[1].fd, SOL_SOCKET, SO_SNDBUF, &least, sizeof least))
		return ws_err_errno(&m->err, "SO_SNDBUF");
	return ws_gloo_send(m->gloo, items, N_LATE, soon(), NULL, &m->err);
}

static int take_late(void *ctx, const void *bytes, size_t n, struct ws_err *err)
{
	usleep(1000);
	return check_bytes(ctx, bytes, n, err);
}

static int recv_late(struct member *m)
{
	struct checked taken[N_LATE] = { 0 };
	struct ws_gloo_sink sinks[N_LATE];
	for (size_t i = 0; i < N_LATE; i++) {
		taken[i].item = i;
		sinks[i] = (struct ws_gloo_sink){ LATE, NULL, take_late, &taken[i] };
	}
	return ws_gloo_recv(m->gloo, 0, sinks, N_LATE, soon(), NULL, &m->err);
}

static int a_child_that_reads_late(struct member *m)
{
	return m->rank == 0 ? send_into_a_small_socket(m) : recv_late(m);
}

/* The child has asked for every item. When all are in its queue, what is left of that waits for
 * its socket, and whether the child starves is asked then too. */
TEST(nobody_looks_behind_the_last_item)
{
	struct ws_gloo_rank_status ranks[2] = { 0 };
	struct ws_gloo_watch watch = { .ranks = ranks };
	struct world w = { .size = 2, .watch = &watch, .role = a_child_that_reads_late };
	world_run(&w);
	world_assert_fine(&w);
	assert_int_equal(ranks[1].sent, N_LATE * LATE);
}

static int nothing_then_something(struct member *m)
{
	const struct plan none = { .n = 0, .lengths = mixed };
	if (m->rank == 0 ? send_items(m, &none) : recv_items(m, &none))
		return -1;
	return once(m);
}

TEST(a_call_without_items_takes_no_tag)
{
	struct plan p = { .n = 2, .lengths = mixed };
	struct world w = { .size = 3, .role = nothing_then_something, .ctx = &p };
	world_run(&w);
	world_assert_fine(&w);
}

TEST(not_a_rank)
{
	struct world w = { .size = 2 };
	world_init(&w);
	w.size = 1;
	assert_int_equal(member_open(&w.members[0], soon()), -1);
	assert_int_equal(w.members[0].err.code, WS_EUSAGE);
	w.size = 2;
	w.host = "0.0.0.0";
	assert_int_equal(member_open(&w.members[0], soon()), -1);
	assert_int_equal(w.members[0].err.code, WS_EUSAGE);
	world_fini(&w);
}

RUN_TESTS(NULL, NULL)
