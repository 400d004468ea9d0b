/* SPDX-License-Identifier: Apache-2.0 */
#include "strided_read.h"

enum {
	RUN_MIN = 4096,    /* run in bytes that is worth reading directly to its place */
	GAP_MAX = 6 << 10, /* a smaller gap is read too: another call costs as much */
	LINE = 64,
	SQUARE = 16        /* steps are a multiple of this, for fast transposing */
};

/* One axis of the box; axes are sorted so that the last is the densest in the source. */
struct axis {
	int64_t n, read, write;
};

struct job {
	const struct ws_strided_read *g;
	struct axis axes[WS_MAX_DIMS];
	unsigned n;
	unsigned outer;    /* axes[0..outer) are walked one by one */
	bool direct;       /* true: axes[outer] is read directly to its place; false: */
	unsigned dense;    /* axes[dense..n) are read by one call, with the gaps */
	int64_t extent;    /* elements from the first to the last of one such read */
	int64_t steps;     /* steps of axes[dense-1] in one block */
	size_t pitch;      /* distance of steps in the block, in bytes */
	bool together;     /* one call reads all steps, with the gaps */
	uint8_t *block;
};

/* ---- shape of the work ----------------------------------------------------------------------- */

static void sort_axes(struct job *j)
{
	for (unsigned d = 0; d < j->g->n_dims; d++) {
		const struct axis a = { j->g->dims[d], j->g->read[d], j->g->write[d] };
		if (a.n == 1)
			continue;
		unsigned k = j->n++;
		for (; k > 0 && j->axes[k - 1].read < a.read; k--)
			j->axes[k] = j->axes[k - 1];
		j->axes[k] = a;
	}
}

/* Merges two axes if the outer one continues the inner in source and memory. */
static void merge_axes(struct job *j)
{
	unsigned kept = 0;
	for (unsigned d = 1; d < j->n; d++) {
		struct axis *outer = &j->axes[kept];
		const struct axis *inner = &j->axes[d];
		if (outer->read == inner->read * inner->n &&
		    outer->write == inner->write * inner->n)
			*outer = (struct axis){ outer->n * inner->n, inner->read, inner->write };
		else
			j->axes[++kept] = *inner;
	}
	j->n = kept + 1;
}

/* Extends the block outwards while the gaps are small and the block fits. */
static void choose_reads(struct job *j)
{
	const int64_t size = j->g->size, most = WS_GATHER_BLOCK / size;
	j->dense = j->n;
	j->extent = 1;
	while (j->dense > 0) {
		const struct axis *a = &j->axes[j->dense - 1];
		if ((a->read - j->extent) * size > GAP_MAX ||
		    a->n > (most - j->extent) / a->read + 1)
			break;
		j->extent += (a->n - 1) * a->read;
		j->dense--;
	}
	j->steps = 1;
	j->pitch = (size_t)(j->extent * size);
	if (j->dense == 0)
		return;
	const struct axis *a = &j->axes[j->dense - 1];
	j->together = (a->read - j->extent) * size <= GAP_MAX;
	if (j->together) {
		j->pitch = (size_t)(a->read * size);
		j->steps = (most - j->extent) / a->read + 1;
	} else {
		/* Avoids powers of two, which map a column of the block to one cache set. */
		j->pitch = (j->pitch + LINE - 1) / LINE * LINE + LINE;
		j->steps = (int64_t)(WS_GATHER_BLOCK / j->pitch);
		j->steps += j->steps == 0; /* the last step needs no gap behind it */
	}
	if (j->steps > SQUARE)
		j->steps -= j->steps % SQUARE;
	if (j->steps > a->n)
		j->steps = a->n;
}

/* ---- reading --------------------------------------------------------------------------------- */

static int read_elements(const struct job *j, uint64_t at, void *dst, int64_t n, struct ws_err *err)
{
	const struct ws_strided_read *g = j->g;
	return ws_source_read(g->source, g->from, at * g->size, dst, (size_t)n * g->size, err);
}

/* Reads n steps of the axis outside the dense axes, and spreads them to dst. */
static int do_block(const struct job *j, uint64_t at, uint8_t *dst, int64_t n, struct ws_err *err)
{
	const struct axis *outer = j->dense ? &j->axes[j->dense - 1] : NULL;
	const unsigned size = j->g->size;
	if (!outer || j->together) {
		const int64_t extent = outer ? (n - 1) * outer->read + j->extent : j->extent;
		if (read_elements(j, at, j->block, extent, err))
			return -1;
	} else {
		for (int64_t i = 0; i < n; i++)
			if (read_elements(j, at + (uint64_t)(i * outer->read),
			                  j->block + (size_t)i * j->pitch, j->extent, err))
				return -1;
	}
	struct ws_spread s = { .size = size };
	if (outer)
		s.axes[s.n++] =
			(struct ws_spread_axis){ n, (int64_t)j->pitch, outer->write * size };
	for (unsigned d = j->dense; d < j->n; d++)
		s.axes[s.n++] = (struct ws_spread_axis){ j->axes[d].n, j->axes[d].read * size,
			                                 j->axes[d].write * size };
	ws_spread(&s, j->block, dst);
	return 0;
}

/* A long run of the source that is also a run in memory needs no block. */
static bool is_direct(const struct job *j)
{
	const struct axis *last = &j->axes[j->n - 1];
	return last->read == 1 && last->write == 1 && last->n * j->g->size >= RUN_MIN;
}

/* Reads everything inside the outer axes: a run, one block, or blocks of a few steps. */
static int do_inner(const struct job *j, uint64_t at, uint8_t *dst, struct ws_err *err)
{
	const struct axis *a = &j->axes[j->outer];
	if (j->direct)
		return read_elements(j, at, dst, a->n, err);
	if (j->dense == 0)
		return do_block(j, at, dst, 1, err);
	for (int64_t i = 0; i < a->n; i += j->steps) {
		const int64_t n = a->n - i < j->steps ? a->n - i : j->steps;
		if (do_block(j, at + (uint64_t)(i * a->read), dst + i * a->write * j->g->size, n,
		             err))
			return -1;
	}
	return 0;
}

static int walk(const struct job *j, unsigned d, uint64_t at, uint8_t *dst, struct ws_err *err)
{
	const struct axis *a = &j->axes[d];
	if (d == j->outer)
		return do_inner(j, at, dst, err);
	for (int64_t i = 0; i < a->n; i++)
		if (walk(j, d + 1, at + (uint64_t)(i * a->read), dst + i * a->write * j->g->size,
		         err))
			return -1;
	return 0;
}

int ws_strided_read(const struct ws_strided_read *g, uint8_t *block, struct ws_err *err)
{
	struct job j = { .g = g, .block = block };
	sort_axes(&j);
	if (j.n == 0) /* one element */
		return ws_source_read(g->source, g->from, g->at * g->size, g->dst, g->size, err);
	merge_axes(&j);
	j.direct = is_direct(&j);
	if (j.direct) {
		j.outer = j.n - 1;
	} else {
		choose_reads(&j);
		j.outer = j.dense ? j.dense - 1 : 0;
	}
	return walk(&j, 0, g->at, g->dst, err);
}
