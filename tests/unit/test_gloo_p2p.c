/* SPDX-License-Identifier: Apache-2.0 */
/* Plain sends and receives in a gloo group: ranks are threads, every one sends to every other. */
#include "gloo.h"
#include "gloo_world.h"

enum { ROUNDS = 3, MOST = 16 };
static const uint64_t lengths[ROUNDS] = { 300000, 0, 5 };
static bool from_files;

/* What rank a sends to rank b in round k. */
static size_t item_of(unsigned a, unsigned b, unsigned k)
{
	return a * 100 + b * 10 + k;
}

struct mail {
	struct ws_span span;
	struct checked checked;
	uint8_t *dst;
	int fd;
};

static void prepare_send(struct ws_gloo_transfer *t, struct mail *m, unsigned from, unsigned to,
                         unsigned k)
{
	const size_t item = item_of(from, to, k);
	t->peer = to;
	t->payload = made_payload(&m->span, item, lengths[k]);
	m->fd = -1;
	if (from_files && lengths[k]) {
		m->fd = file_of(item, lengths[k]);
		m->span = (struct ws_span){ .length = lengths[k], .fd = m->fd };
	}
}

/* In one round into memory, in the others past a function. */
static void prepare_receive(struct ws_gloo_transfer *t, struct mail *m, unsigned from, unsigned to,
                            unsigned k)
{
	m->checked = (struct checked){ .item = item_of(from, to, k) };
	m->dst = k == 0 ? malloc(lengths[k]) : NULL;
	m->fd = -1;
	t->peer = from;
	t->receive = true;
	t->sink = (struct ws_gloo_sink){ .length = lengths[k], .dst = m->dst, .take = take_checked,
		                         .ctx = &m->checked };
}

static int everybody_with_everybody(struct member *m)
{
	const unsigned size = m->world->size;
	struct ws_gloo_transfer t[2 * ROUNDS * MOST] = { 0 };
	struct mail mail[2 * ROUNDS * MOST] = { 0 };
	size_t n = 0;
	for (unsigned r = 0; r < size; r++)
		for (unsigned k = 0; r != m->rank && k < ROUNDS; k++) {
			prepare_send(&t[n], &mail[n], m->rank, r, k);
			n++;
			prepare_receive(&t[n], &mail[n], r, m->rank, k);
			n++;
		}
	int rc = ws_gloo_exchange(m->gloo, t, n, soon(), NULL, &m->err);
	for (size_t i = 0; i < n; i++) {
		if (rc == 0 && t[i].receive && mail[i].checked.seen != t[i].sink.length)
			rc = ws_err_set(&m->err, WS_EMISMATCH, "transfer %zu is not complete", i);
		free(mail[i].dst);
		if (mail[i].fd >= 0)
			close(mail[i].fd);
	}
	return rc;
}

static int twice_and_a_broadcast(struct member *m)
{
	struct ws_span span;
	struct checked checked = { .item = 7 };
	if (everybody_with_everybody(m))
		return -1;
	const struct ws_payload item = made_payload(&span, 7, 100000);
	const struct ws_gloo_sink sink = { .length = 100000, .take = take_checked,
		                           .ctx = &checked };
	if (m->rank == 0 ? ws_gloo_send(m->gloo, &item, 1, soon(), NULL, &m->err) :
	                   ws_gloo_recv(m->gloo, 0, &sink, 1, soon(), NULL, &m->err))
		return -1;
	return everybody_with_everybody(m);
}

TEST(bytes_go_both_ways_between_all_ranks)
{
	for (unsigned size = 2; size <= 5; size++) {
		struct world w = { .size = size, .role = twice_and_a_broadcast };
		world_run(&w);
		world_assert_fine(&w);
	}
}

TEST(bytes_of_files_do_too_in_the_old_layout)
{
	struct world w = { .size = 3, .layout = WS_GLOO_G1, .role = everybody_with_everybody };
	from_files = true;
	world_run(&w);
	from_files = false;
	world_assert_fine(&w);
}

enum { MANY = 1000 };

/* More than are announced at once. */
static int many_small_ones(struct member *m)
{
	static const uint64_t each = 10;
	struct ws_gloo_transfer t[MANY] = { 0 };
	struct mail mail[MANY];
	for (size_t i = 0; i < MANY; i++) {
		t[i].peer = 1 - m->rank;
		t[i].receive = m->rank == 1;
		t[i].payload = made_payload(&mail[i].span, i, each);
		mail[i].checked = (struct checked){ .item = i };
		t[i].sink = (struct ws_gloo_sink){ .length = each, .take = take_checked,
			                           .ctx = &mail[i].checked };
	}
	return ws_gloo_exchange(m->gloo, t, MANY, soon(), NULL, &m->err);
}

TEST(more_than_are_announced_at_once_keep_their_order)
{
	struct world w = { .size = 2, .role = many_small_ones };
	world_run(&w);
	world_assert_fine(&w);
}

static int of_two_minds(struct member *m)
{
	struct mail mail;
	struct ws_gloo_transfer t = { .peer = 1 - m->rank, .receive = m->rank == 1 };
	t.payload = made_payload(&mail.span, 1, 20);
	t.sink.length = 24;
	return ws_gloo_exchange(m->gloo, &t, 1, soon(), NULL, &m->err);
}

TEST(lengths_that_differ_are_an_error)
{
	struct world w = { .size = 2, .role = of_two_minds };
	world_run(&w);
	assert_int_equal(w.members[0].rc, -1);
	assert_int_equal(w.members[1].rc, -1);
	assert_non_null(
		strstr(w.members[0].err.msg, "rank 1 expects 24 bytes for item 0, which has 20"));
}

static int wait_for_nothing(struct member *m)
{
	struct ws_gloo_transfer t = { .peer = 1 - m->rank, .receive = true, .sink.length = 24 };
	/* The other one is patient: who gives up first closes the connection on the other. */
	const ws_deadline until = m->rank == 0 ? ws_deadline_in(200 * WS_NS_PER_MS) : soon();
	return ws_gloo_exchange(m->gloo, &t, 1, until, NULL, &m->err);
}

TEST(a_deadline_says_who_did_not_send)
{
	struct world w = { .size = 2, .role = wait_for_nothing };
	world_run(&w);
	assert_int_equal(w.members[0].err.code, WS_ETIMEOUT);
	assert_non_null(strstr(w.members[0].err.msg, "rank 1: has not sent item 0"));
}

static int fail_fill(void *ctx, uint64_t at, void *dst, size_t n, struct ws_err *err)
{
	(void)ctx, (void)at, (void)dst, (void)n;
	return ws_err_set(err, WS_EINPUT, "no bytes today");
}

static int send_what_cannot_be_made(struct member *m)
{
	const struct ws_span span = { .length = 24, .fd = -1, .fill = fail_fill };
	const struct ws_gloo_transfer t = { .peer = 1 - m->rank, .receive = m->rank == 1,
		                            .payload = { 24, &span, 1 }, .sink.length = 24 };
	return ws_gloo_exchange(m->gloo, &t, 1, soon(), NULL, &m->err);
}

TEST(bytes_that_cannot_be_made_are_an_error)
{
	struct world w = { .size = 2, .role = send_what_cannot_be_made };
	world_run(&w);
	assert_string_equal(w.members[0].err.msg, "no bytes today");
	assert_int_equal(w.members[1].rc, -1);
}

static int ask_for_oneself(struct member *m)
{
	const struct ws_gloo_transfer t = { .peer = m->rank, .receive = true };
	return ws_gloo_exchange(m->gloo, &t, 1, soon(), NULL, &m->err) ? 0 : -1;
}

TEST(nobody_sends_to_oneself)
{
	struct world w = { .size = 2, .role = ask_for_oneself };
	world_run(&w);
	world_assert_fine(&w);
}

RUN_TESTS(NULL, NULL)
