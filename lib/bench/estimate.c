/* SPDX-License-Identifier: Apache-2.0 */
/* estimate.c - how long a push would take, on paper: bytes over rates, and
 * who is the last to be done.
 *
 * Senders share the tensors and each is rank 0 of a group of its own, so every one of them sends
 * its share to all receivers and every receiver takes all of it. Where they take turns, it is as
 * if there were one. Or all is scattered: each rank is sent its own part by itself, so that
 * endpoints with the same weights are sent the same bytes one by one. (The little that all ranks
 * of an endpoint have, norms and routers, is counted once.) */
#include "wsync/tool/bench.h"

#include <math.h>

static int64_t over(double bytes, double rate)
{
	return rate > 0 ? (int64_t)llround(bytes / rate * (double)WS_NS_PER_S) : 0;
}

/* Copies that leave a root: one along a ring, one for each child of a binomial tree.
 * Only one of them has to reach a machine of its own for the sum to be this.
 * Scattered: one for each endpoint. */
static unsigned copies_of(const struct ws_bench_topology *t)
{
	if (t->scatter)
		return t->endpoints;
	const uint64_t size = (uint64_t)t->endpoints * t->ranks + 1;
	unsigned children = 0;
	for (uint64_t bit = 1; bit < size; bit *= 2)
		children++;
	return t->ring ? 1 : children;
}

struct part {
	const char *name;
	int64_t ns;
};

/* The first bucket passes one stage after the other, and only then do all of them run at once. */
static void add_up(const struct ws_bench_topology *t, const struct part *parts, size_t n,
                   unsigned at_once, struct ws_bench_estimate *e)
{
	/* buckets of one sender */
	const int64_t each = (int64_t)((e->buckets + at_once - 1) / at_once);
	int64_t longest = 0, sum = 0;
	e->bound = parts[0].name;
	for (size_t i = 0; i < n; i++) {
		if (parts[i].ns > longest)
			e->bound = parts[i].name;
		longest = parts[i].ns > longest ? parts[i].ns : longest;
		sum += parts[i].ns;
	}
	e->expected_ns =
		(t->overlap && each ? longest + (sum - longest) / each : sum) + e->control_ns;
	if (e->control_ns > longest)
		e->bound = "requests";
}

/* Of a tree, an endpoint's links also carry what its ranks pass on; at most every
 * rank takes a copy by itself from elsewhere. A ring enters it once, and what is
 * scattered is all of it together. */
static double bytes_into(const struct ws_bench_topology *t, uint64_t out)
{
	const bool once = t->ring || t->scatter || !t->ranks;
	return (double)out * (once ? 1 : t->ranks);
}

void ws_bench_estimate(const struct ws_bench_topology *t, uint64_t in, uint64_t out, size_t buckets,
                       struct ws_bench_estimate *e)
{
	const unsigned senders = t->senders ? t->senders : 1, ranks = t->ranks ? t->ranks : 1;
	const unsigned at_once = t->turns ? 1 : senders;
	const double share = (double)out / at_once, read = (double)in / at_once;
	const double links = t->link * (t->nics ? t->nics : 1);
	*e = (struct ws_bench_estimate){ .read_bytes = in, .wire_bytes = out, .buckets = buckets,
		                         .copies = copies_of(t) };
	e->read_ns = over(read, t->source);
	e->make_ns = over(read, t->make);
	e->send_ns = over(share * e->copies, t->link);
	e->receive_ns = over(bytes_into(t, out), links);
	e->apply_ns = over((double)out / (t->scatter ? ranks : 1), t->apply);
	e->control_ns = (int64_t)buckets * t->bucket_ns + t->fixed_ns * (t->turns ? senders : 1);
	const int64_t once = over((double)out, links), sent = over((double)out / senders, t->link);
	e->floor_ns = once > sent ? once : sent;
	/* A sum (no overlap) takes the slower link only: both carry the
	 * same bytes at the same time. */
	const bool sends = e->send_ns >= e->receive_ns;
	const struct part parts[] = {
		{ "source", e->read_ns },
		{ "making tensors", e->make_ns },
		{ sends ? "the senders' links" : "the receivers' links",
		  sends ? e->send_ns : e->receive_ns },
		{ "loading", e->apply_ns },
	};
	add_up(t, parts, sizeof parts / sizeof *parts, at_once, e);
}
