/* SPDX-License-Identifier: Apache-2.0 */
/* bench_estimate.c - estimates the duration of a push: bytes over rates, and the longest stage.
 *
 * Senders share the tensors, and each is rank 0 of its own group. So every sender sends its share
 * to all receivers, and every receiver takes all shares. Senders that take turns are as fast as one
 * sender. With scatter, each rank gets only its own part, so endpoints with the same weights get
 * the same bytes one after another. (The few tensors that all ranks of an endpoint have, norms and
 * routers, count once.) */
#include "wsync/tool/bench.h"

#include <math.h>

static int64_t over(double bytes, double rate)
{
	return rate > 0 ? (int64_t)llround(bytes / rate * (double)WS_NS_PER_S) : 0;
}

static uint64_t at_least_one(uint64_t n)
{
	return n ? n : 1;
}

/* Returns the number of copies that a sender sends: one along a ring, one for each child of a
 * binomial tree, or with scatter one for each endpoint. */
static unsigned copies_of(const struct ws_bench_topology *t)
{
	unsigned children = 0;
	const uint64_t endpoints = at_least_one(t->endpoints);
	if (t->scatter)
		return (unsigned)endpoints;
	for (uint64_t bit = 1; bit < endpoints * at_least_one(t->ranks) + 1; bit *= 2)
		children++;
	return t->tree ? children : 1;
}

/* The first bucket passes the stages one after another; then all stages run at once. */
static void add_up(const struct ws_bench_topology *t, uint64_t at_once, struct ws_bench_estimate *e)
{
	/* Both links carry the same bytes at the same time: only the slower link counts. */
	const bool sends = e->send_ns >= e->receive_ns;
	const struct { const char *name; int64_t ns; } stages[] = {
		{ "source", e->read_ns },
		{ "making tensors", e->make_ns },
		{ sends ? "the senders' links" : "the receivers' links",
		  sends ? e->send_ns : e->receive_ns },
		{ "loading", e->apply_ns },
	};
	const int64_t each = (int64_t)((e->buckets + at_once - 1) / at_once); /* of each sender */
	int64_t longest = 0, sum = 0;
	e->bound = stages[0].name;
	for (size_t i = 0; i < sizeof stages / sizeof *stages; i++) {
		sum += stages[i].ns;
		if (stages[i].ns <= longest)
			continue;
		longest = stages[i].ns;
		e->bound = stages[i].name;
	}
	e->expected_ns = e->control_ns;
	e->expected_ns += t->serial || !each ? sum : longest + (sum - longest) / each;
	if (e->control_ns > longest)
		e->bound = "requests";
}

void ws_bench_estimate(const struct ws_bench_topology *t, uint64_t in, uint64_t out, size_t buckets,
                       struct ws_bench_estimate *e)
{
	const uint64_t senders = at_least_one(t->senders), ranks = at_least_one(t->ranks);
	const bool turns = !t->scatter && senders > 1 && !t->at_once;
	const uint64_t at_once = turns ? 1 : senders;
	const double links = t->link * (double)at_least_one(t->nics);
	const double share = (double)out / (double)at_once, read = (double)in / (double)at_once;
	/* In a tree, each rank of an endpoint takes at most one copy from another machine. A ring
	 * enters an endpoint once. */
	const double received = (double)out * (double)(t->tree && !t->scatter ? ranks : 1);
	*e = (struct ws_bench_estimate){ .read_bytes = in, .wire_bytes = out, .buckets = buckets,
		                         .copies = copies_of(t), .turns = turns };
	e->read_ns = over(read, t->source);
	e->make_ns = over(read, t->make);
	e->send_ns = over(share * e->copies, t->link);
	e->receive_ns = over(received, links);
	e->apply_ns = over((double)out / (double)(t->scatter ? ranks : 1), t->apply);
	e->control_ns =
		(int64_t)buckets * t->bucket_ns + t->fixed_ns * (int64_t)(turns ? senders : 1);
	const int64_t once = over((double)out, links);
	const int64_t sent = over((double)out / (double)senders, t->link);
	e->floor_ns = once > sent ? once : sent;
	add_up(t, at_once, e);
}
