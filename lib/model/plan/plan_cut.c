/* SPDX-License-Identifier: Apache-2.0 */
#include "plan_cut.h"

#include "wsync/dtype.h"

#include <stdlib.h>
#include <string.h>

static int add_bucket(struct ws_plan *p, struct ws_plan_bucket bucket)
{
	if (p->n_buckets == p->room) {
		const size_t more = p->room ? p->room * 2 : 64;
		struct ws_plan_bucket *b = reallocarray(p->buckets, more, sizeof *b);
		if (!b)
			return -1;
		p->buckets = b;
		p->room = more;
	}
	p->buckets[p->n_buckets++] = bucket;
	return 0;
}

bool ws_plan_aligned(const struct ws_plan_tensor *t, size_t n)
{
	uint64_t at = 0;
	for (size_t i = 0; i < n; i++) {
		const unsigned size = ws_dtype_bits(t[i].dtype) / 8;
		if (size > 1 && at % size)
			return false;
		at += t[i].bytes;
	}
	return true;
}

/* The group of partners that begins at tensor i: its bytes, and where the next one begins. */
static size_t next_group(const struct ws_plan *p, size_t i, uint64_t *bytes)
{
	const size_t group = p->tensors[i].group;
	*bytes = 0;
	for (; i < p->n_tensors && p->tensors[i].group == group; i++)
		*bytes += p->tensors[i].bytes;
	return i;
}

/* Where the run of groups ends that begins at tensor i and has none of more than `large` bytes; 0:
 * it has more than a quarter of that. */
static size_t end_of_few(const struct ws_plan *p, size_t i, uint64_t large)
{
	uint64_t sum = 0, bytes;
	while (i < p->n_tensors) {
		const size_t end = next_group(p, i, &bytes);
		if (bytes > large)
			break;
		sum += bytes;
		if (sum > large / 4)
			return 0;
		i = end;
	}
	return i;
}

/* Does the group at tensor i, of so many bytes, still belong to the bucket? A bucket with a large
 * group takes more of them up to `together`, and the few small ones between: those before *few. */
static bool belongs(const struct ws_plan *p, const struct ws_plan_bucket *b, size_t i,
                    uint64_t bytes, size_t *few)
{
	const uint64_t large = b->limit > p->large ? b->limit : p->large;
	const uint64_t sum = b->bytes + bytes;
	if (p->together <= large || (b->bytes <= large && bytes <= large))
		return sum <= b->limit;
	if (sum > p->together)
		return false;
	if (bytes > large)
		return b->bytes > large || b->bytes <= large / 4;
	if (i >= *few)
		*few = end_of_few(p, i, large);
	return i < *few;
}

int ws_plan_cut(struct ws_plan *p, size_t first, uint64_t size)
{
	struct ws_plan_bucket bucket = { .first = first, .limit = size };
	size_t few = 0;
	for (size_t i = first; i < p->n_tensors;) {
		uint64_t bytes;
		const size_t end = next_group(p, i, &bytes);
		if (bucket.n && !belongs(p, &bucket, i, bytes, &few)) {
			if (add_bucket(p, bucket))
				return -1;
			bucket = (struct ws_plan_bucket){ .first = i, .limit = size };
		}
		bucket.n += end - i;
		bucket.bytes += bytes;
		i = end;
	}
	return add_bucket(p, bucket);
}

/* True if the buckets from `first` on need no other order of their tensors. */
static bool are_aligned(const struct ws_plan *p, size_t first)
{
	for (size_t b = first; p->format == WS_FORMAT_FLATTENED && b < p->n_buckets; b++)
		if (!ws_plan_aligned(p->tensors + p->buckets[b].first, p->buckets[b].n))
			return false;
	return true;
}

void ws_plan_recut(struct ws_plan *p, size_t first, uint64_t size)
{
	if (p->reordered || first >= p->n_buckets)
		return;
	const size_t n = p->n_buckets - first;
	struct ws_plan_bucket *before = malloc(n * sizeof *before);
	if (!before)
		return;
	memcpy(before, p->buckets + first, n * sizeof *before);
	p->n_buckets = first;
	if (ws_plan_cut(p, before->first, size) || !are_aligned(p, first)) {
		/* The array never shrinks, so the old buckets still fit. */
		memcpy(p->buckets + first, before, n * sizeof *before);
		p->n_buckets = first + n;
	}
	free(before);
}
