/* SPDX-License-Identifier: Apache-2.0 */
#include "serve_boxes.h"

#include <assert.h>
#include <string.h>

/* ---- one side ---- */

static uint64_t make_side(struct ws_serve_side *s, unsigned n, const int64_t *dims,
                          const struct ws_box *box, unsigned size)
{
	uint64_t stride = size;
	s->n_dims = n + 1;
	s->at[n] = 0;
	s->size[n] = size;
	s->stride[n] = 1;
	for (unsigned d = n; d-- > 0; ) {
		s->at[d] = (uint64_t)box->at[d];
		s->size[d] = (uint64_t)box->size[d];
		s->stride[d] = stride;
		stride *= (uint64_t)dims[d];
	}
	return stride;
}

static void swap(uint64_t *axes, unsigned n)
{
	const uint64_t last = axes[n - 1];
	axes[n - 1] = axes[n - 2];
	axes[n - 2] = last;
}

static void transpose(struct ws_serve_side *s)
{
	const unsigned n = s->n_dims - 1; /* without the axis of bytes */
	swap(s->at, n);
	swap(s->size, n);
	swap(s->stride, n);
}

static void measure(struct ws_serve_side *s)
{
	unsigned d = s->n_dims - 1;
	s->run = s->size[d];
	for (; d > 0 && s->stride[d - 1] == s->size[d] * s->stride[d]; d--)
		s->run *= s->size[d - 1];
}

static uint64_t volume(const struct ws_serve_side *s)
{
	uint64_t bytes = 1;
	for (unsigned d = 0; d < s->n_dims; d++)
		bytes *= s->size[d];
	return bytes;
}

/* Returns the offset in the array of byte k of the box. */
static uint64_t offset_of(const struct ws_serve_side *s, uint64_t k)
{
	uint64_t offset = 0;
	for (unsigned d = s->n_dims; d-- > 0; ) {
		offset += (s->at[d] + k % s->size[d]) * s->stride[d];
		k /= s->size[d];
	}
	return offset;
}

/* Counts the bytes of the box before byte `at` of the array, which is not transposed. */
static uint64_t count_before(const struct ws_serve_side *s, uint64_t at)
{
	uint64_t inner = volume(s), k = 0;
	for (unsigned d = 0; d < s->n_dims; d++) {
		const uint64_t here = at / s->stride[d];
		at %= s->stride[d];
		inner /= s->size[d];
		if (here < s->at[d])
			return k;
		if (here >= s->at[d] + s->size[d])
			return k + s->size[d] * inner;
		k += (here - s->at[d]) * inner;
	}
	return k;
}

/* ---- both sides ---- */

void ws_serve_boxes_make(struct ws_serve_boxes *b, unsigned n_whole, const int64_t *whole,
                         const struct ws_box *from, unsigned n_local, const int64_t *local,
                         const struct ws_box *to, unsigned size, bool transposed)
{
	b->total = make_side(&b->whole, n_whole, whole, from, size);
	make_side(&b->local, n_local, local, to, size);
	if (transposed)
		transpose(&b->local);
	measure(&b->whole);
	measure(&b->local);
	b->bytes = volume(&b->whole);
	assert(volume(&b->local) == b->bytes || !b->bytes);
}

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* Returns how many bytes from byte k on are contiguous on both sides, and before `end`; 0: none. */
static uint64_t next_piece(const struct ws_serve_boxes *b, uint64_t k, uint64_t end,
                           uint64_t *whole, uint64_t *local)
{
	if (k >= b->bytes)
		return 0;
	*whole = offset_of(&b->whole, k);
	if (*whole >= end)
		return 0;
	*local = offset_of(&b->local, k);
	const uint64_t piece =
		least(b->whole.run - k % b->whole.run, b->local.run - k % b->local.run);
	return least(piece, end - *whole);
}

void ws_serve_boxes_put(const struct ws_serve_boxes *b, uint64_t at, const uint8_t *bytes, size_t n,
                        uint8_t *local)
{
	uint64_t whole, there, piece;
	if (!b->bytes || at >= b->total)
		return;
	for (uint64_t k = count_before(&b->whole, at);
	     (piece = next_piece(b, k, at + n, &whole, &there)); k += piece)
		memcpy(local + there, bytes + (whole - at), (size_t)piece);
}

void ws_serve_boxes_get(const struct ws_serve_boxes *b, uint64_t at, uint8_t *bytes, size_t n,
                        const uint8_t *local)
{
	uint64_t whole, there, piece;
	if (!b->bytes || at >= b->total)
		return;
	for (uint64_t k = count_before(&b->whole, at);
	     (piece = next_piece(b, k, at + n, &whole, &there)); k += piece)
		memcpy(bytes + (whole - at), local + there, (size_t)piece);
}

uint64_t ws_serve_boxes_whole(const struct ws_serve_boxes *b, uint64_t k)
{
	return offset_of(&b->whole, k);
}
