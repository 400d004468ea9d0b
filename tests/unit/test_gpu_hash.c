/* SPDX-License-Identifier: Apache-2.0 */
/* test_gpu_hash.c - SGLang's checksum of a tensor on a GPU: known values, pieces, AVX2. */
#include "digest.h"
#include "simd.h"
#include "test.h"

#include <stdlib.h>
#include <string.h>

static uint64_t hash(const void *bytes, size_t n)
{
	struct ws_gpu_hash h;
	ws_gpu_hash_begin(&h, n);
	ws_gpu_hash_add(&h, bytes, n);
	return ws_gpu_hash_end(&h);
}

static uint8_t *some_bytes(size_t n)
{
	uint8_t *bytes = malloc(n + 1);
	uint32_t x = 1;
	assert_non_null(bytes);
	for (size_t i = 0; i < n; i++) {
		x = x * 1664525 + 1013904223;
		bytes[i] = (uint8_t)(x >> 24);
	}
	return bytes;
}

/* bf16 1, 2, 2, -1.5, 0.25: computed by SGLang's own kernels, and on a server without a GPU. */
static const uint8_t five[] = { 0x80, 0x3f, 0, 0x40, 0, 0x40, 0xc0, 0xbf, 0x80, 0x3e };

TEST(five_numbers_have_the_values_that_sglang_computes)
{
	static const char *const expected[] = {
		[WS_CHECKSUM_SGLANG_CPU] = "49f750885d37ed01",
		[WS_CHECKSUM_SGLANG_CUDA] = "f4efe571dbf42836",
		[WS_CHECKSUM_SGLANG_CUDA_UE8M0] = "f4efe571dbf42836",
		[WS_CHECKSUM_SHA256] = "49f750885d37ed01",
	};
	assert_true(hash(five, sizeof five) == UINT64_C(0xf4efe571dbf42836));
	assert_true(hash(five, 0) == 0);
	for (enum ws_checksum_fn fn = 0; ws_checksum_fn_names[fn]; fn++) {
		struct ws_digest d;
		char text[WS_CHECKSUM_TEXT];
		assert_int_equal(ws_digest_open(&d, fn, NULL), 0);
		for (int twice = 0; twice < 2; twice++) {
			ws_digest_begin(&d, sizeof five);
			ws_digest_add(&d, five, sizeof five);
			ws_digest_end(&d, text);
			assert_int_equal(strlen(text), fn == WS_CHECKSUM_SHA256 ? 64 : 16);
			assert_memory_equal(text, expected[fn], 16);
		}
		ws_digest_close(&d);
	}
}

TEST(pieces_of_any_size_give_the_same_hash)
{
	enum { N = 3 * 4 * WS_GPU_HASH_TILE + 7 };
	uint8_t *bytes = some_bytes(N);
	for (size_t n = N - 7; n <= N; n++) {
		const uint64_t whole = hash(bytes, n);
		for (size_t piece = 1; piece < 70000; piece = piece * 3 + 1) {
			struct ws_gpu_hash h;
			ws_gpu_hash_begin(&h, n);
			for (size_t at = 0; at < n; at += piece)
				ws_gpu_hash_add(&h, bytes + at, n - at < piece ? n - at : piece);
			assert_true(ws_gpu_hash_end(&h) == whole);
		}
	}
	free(bytes);
}

/* Any first index of a tile, also behind 2^31 words, and bytes at odd addresses. */
TEST(avx2_gives_the_same_sums_as_plain_c)
{
	static const uint32_t tiles[] = { 0, 1, 15, 16, 17, 0x20000, 0x3ffff, 0x7ffff };
	uint8_t *bytes = some_bytes(4 * WS_GPU_HASH_TILE);
	if (!ws_simd_set_level("avx2"))
		skip();
	for (size_t t = 0; t < sizeof tiles / sizeof tiles[0]; t++) {
		for (uint32_t i = 0; i < 2000; i += 997) {
			const uint32_t at = tiles[t] * WS_GPU_HASH_TILE + i;
			const size_t n = (WS_GPU_HASH_TILE - i) & ~UINT32_C(7);
			uint32_t a[2] = { 1, 2 }, b[2] = { 1, 2 };
			ws_gpu_hash_words_scalar(bytes + i % 3, n - 8, at, &a[0], &a[1]);
			ws_gpu_hash_words_avx2(bytes + i % 3, n - 8, at, &b[0], &b[1]);
			assert_memory_equal(a, b, sizeof a);
		}
	}
	free(bytes);
}

TEST(both_levels_hash_alike)
{
	enum { N = 100003 };
	uint8_t *bytes = some_bytes(N);
	if (!ws_simd_set_level("avx2"))
		skip();
	const uint64_t fast = hash(bytes, N);
	assert_true(ws_simd_set_level("scalar"));
	assert_true(hash(bytes, N) == fast);
	free(bytes);
}

RUN_TESTS(NULL, NULL)
