/* SPDX-License-Identifier: Apache-2.0 */
/* gloo_tree.c - the binomial tree of gloo's broadcast over v, the rank counted from the root:
 * in round i, ranks with v < 2^i send to v + 2^i. */
#include "gloo.h"

static unsigned from_root(unsigned size, unsigned root, unsigned rank)
{
	return (rank + size - root) % size;
}

unsigned ws_gloo_children(unsigned size, unsigned root, unsigned rank, unsigned children[32])
{
	const unsigned v = from_root(size, root, rank);
	unsigned n = 0;
	for (uint64_t bit = 1; v + bit < size; bit *= 2)
		if (v < bit)
			children[n++] = (unsigned)((v + bit + root) % size);
	return n;
}

unsigned ws_gloo_parent(unsigned size, unsigned root, unsigned rank)
{
	const unsigned v = from_root(size, root, rank);
	unsigned highest = 1;
	while (v / highest > 1)
		highest *= 2;
	return v == 0 ? root : (v - highest + root) % size;
}
