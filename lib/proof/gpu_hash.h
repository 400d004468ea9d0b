/* SPDX-License-Identifier: Apache-2.0 */
/* gpu_hash.h - the checksum that SGLang computes of a tensor on a GPU.
 *
 * Source: gpu_tensor_hash.py of SGLang 0.5.3 to 0.5.23, two Triton kernels; the arithmetic is the
 * same in all of them. All numbers are modulo 2^32 unless said otherwise:
 *
 *   w[0..n-1]: little-endian words of the bytes, zero-padded to a multiple of 4; n = 0 gives 0
 *   S1 = 0x243f6a88, S2 = 0x02c74ee7
 *   fmix(x): x ^= x >> 16; x *= 0x85ebca6b; x ^= x >> 13; x *= 0xc2b2ae35; x ^= x >> 16
 *   for word i:  k1 = fmix(w[i] ^ (i * 0x27d4eb2d + S1) ^ rotl(i, 15))
 *                k2 = fmix(w[i] ^ (i * 0x165667b1 + S2) ^ rotl(i, 13))
 *   for each tile of 8192 words:  h1 = fmix(4n ^ sum of k1), h2 = fmix(4n ^ sum of k2)
 *   sum of h1 * 2^32 + h2 over all tiles, modulo 2^64, then
 *   x ^= x >> 30; x *= 0xbf58476d1ce4e5b9; x ^= x >> 27; x *= 0x94d049bb133111eb; x ^= x >> 31
 *
 * The sums inside a tile have no order, so code that hashes several words at a time gives the same
 * result. */
#ifndef WS_PROOF_GPU_HASH_H
#define WS_PROOF_GPU_HASH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The kernel's index has 32 bits: it fails for a tensor of 2^31 words or more. */
#define WS_GPU_HASH_MAX_BYTES (UINT64_C(1) << 33)

struct ws_gpu_hash {
	uint32_t total;    /* 4n */
	uint32_t at;       /* words that were added */
	uint32_t h1, h2;   /* sums of the current tile */
	uint64_t sum;      /* of the tiles before it */
	uint8_t tail[4];   /* bytes of a word that is not complete */
	unsigned n_tail;
};

/* bytes: of the whole tensor, below WS_GPU_HASH_MAX_BYTES. */
void ws_gpu_hash_begin(struct ws_gpu_hash *h, uint64_t bytes);
void ws_gpu_hash_add(struct ws_gpu_hash *h, const void *bytes, size_t n);
uint64_t ws_gpu_hash_end(struct ws_gpu_hash *h);

/* ---- for gpu_hash.c and its tests ---- */

enum { WS_GPU_HASH_TILE = 8192 };

/* Adds n words of one tile, the first of which has index i, to the tile's sums. words need not be
 * aligned. The scalar code defines the result; the other takes multiples of 8 words. */
typedef void ws_gpu_hash_words_fn(const void *words, size_t n, uint32_t i, uint32_t *h1,
                                  uint32_t *h2);
ws_gpu_hash_words_fn ws_gpu_hash_words_scalar, ws_gpu_hash_words_avx2;

#endif
