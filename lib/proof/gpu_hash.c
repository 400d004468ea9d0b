/* SPDX-License-Identifier: Apache-2.0 */
/* gpu_hash.c - see gpu_hash.h. Sums of a tile are kept until it is complete. */
#include "gpu_hash.h"

#include "simd.h"

#include <endian.h>
#include <string.h>

static uint32_t rotl(uint32_t x, unsigned n)
{
	return x << n | x >> (32 - n);
}

static uint32_t fmix(uint32_t x)
{
	x ^= x >> 16;
	x *= 0x85ebca6b;
	x ^= x >> 13;
	x *= 0xc2b2ae35;
	return x ^ x >> 16;
}

void ws_gpu_hash_words_scalar(const void *words, size_t n, uint32_t i, uint32_t *h1, uint32_t *h2)
{
	const uint8_t *at = words;
	for (size_t k = 0; k < n; k++, i++, at += 4) {
		uint32_t w;
		memcpy(&w, at, sizeof w);
		w = le32toh(w);
		*h1 += fmix(w ^ (i * 0x27d4eb2d + 0x243f6a88) ^ rotl(i, 15));
		*h2 += fmix(w ^ (i * 0x165667b1 + 0x02c74ee7) ^ rotl(i, 13));
	}
}

static void hash_words(const void *words, size_t n, uint32_t i, uint32_t *h1, uint32_t *h2)
{
#ifdef __x86_64__
	if (ws_simd_avx2()) {
		const size_t most = n & ~(size_t)7;
		ws_gpu_hash_words_avx2(words, most, i, h1, h2);
		ws_gpu_hash_words_scalar((const uint8_t *)words + 4 * most, n - most,
		                         i + (uint32_t)most, h1, h2);
		return;
	}
#endif
	ws_gpu_hash_words_scalar(words, n, i, h1, h2);
}

void ws_gpu_hash_begin(struct ws_gpu_hash *h, uint64_t bytes)
{
	*h = (struct ws_gpu_hash){ .total = (uint32_t)((bytes + 3) & ~UINT64_C(3)) };
}

static void end_tile(struct ws_gpu_hash *h)
{
	h->sum += (uint64_t)fmix(h->h1 ^ h->total) << 32;
	h->sum += fmix(h->h2 ^ h->total);
	h->h1 = h->h2 = 0;
}

static void add_words(struct ws_gpu_hash *h, const uint8_t *words, size_t n)
{
	while (n > 0) {
		const size_t room = WS_GPU_HASH_TILE - h->at % WS_GPU_HASH_TILE;
		const size_t some = n < room ? n : room;
		hash_words(words, some, h->at, &h->h1, &h->h2);
		h->at += (uint32_t)some;
		if (some == room)
			end_tile(h);
		words += 4 * some;
		n -= some;
	}
}

void ws_gpu_hash_add(struct ws_gpu_hash *h, const void *bytes, size_t n)
{
	const uint8_t *at = bytes;
	if (h->n_tail) {
		const size_t room = sizeof h->tail - h->n_tail, some = n < room ? n : room;
		memcpy(h->tail + h->n_tail, at, some);
		h->n_tail += (unsigned)some;
		at += some;
		n -= some;
		if (h->n_tail < sizeof h->tail)
			return;
		add_words(h, h->tail, 1);
	}
	add_words(h, at, n / 4);
	h->n_tail = n % 4;
	memcpy(h->tail, at + n - h->n_tail, h->n_tail);
}

uint64_t ws_gpu_hash_end(struct ws_gpu_hash *h)
{
	static const uint8_t zeros[3];
	if (h->n_tail)
		ws_gpu_hash_add(h, zeros, 4 - h->n_tail);
	if (h->at == 0)
		return 0;
	if (h->at % WS_GPU_HASH_TILE)
		end_tile(h);
	uint64_t x = h->sum;
	x ^= x >> 30;
	x *= UINT64_C(0xbf58476d1ce4e5b9);
	x ^= x >> 27;
	x *= UINT64_C(0x94d049bb133111eb);
	return x ^ x >> 31;
}
