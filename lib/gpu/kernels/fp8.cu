/* SPDX-License-Identifier: Apache-2.0 */
/* fp8.cu - blocks of bf16 or fp32 numbers to E4M3 with one scale each, as lib/transform/fp8/fp8.h.
 *
 * One block of threads quantizes one block of numbers. A whole, aligned tile of 128 x 128 is read
 * once and stays in registers until its scale is known. Any other block is read twice, the second
 * time from a cache. For bf16, memory moves 3 bytes for 2 bytes of input, so memory is the limit
 * if the arithmetic is short. Therefore `quotient` uses no division for each number. */
#include "numbers.h"

enum { TILE = WS_FP8_TILE, THREADS = WS_FP8_THREADS, WARPS = THREADS / 32 };

struct block {
	int64_t row, col, rows, cols;
};

struct scaler {
	float scale, inverse;
	uint32_t multiply;
};

INLINE struct block block_at(const struct ws_fp8_args a)
{
	const int64_t across = (a.cols + a.bk - 1) / a.bk;
	const int64_t down = blockIdx.x / across;
	struct block b;
	b.row = down * a.bn;
	b.col = (blockIdx.x - down * across) * a.bk;
	b.rows = min(a.bn, a.rows - b.row);
	b.cols = min(a.bk, a.cols - b.col);
	return b;
}

/* True if the tile allows aligned loads of 16 bytes and aligned stores of their codes. */
INLINE uint32_t is_whole_tile(const struct ws_fp8_args a, const struct block b, const int64_t size)
{
	const uint64_t codes = 16u / (uint32_t)size;
	return b.rows == TILE && b.cols == TILE && a.x % 16 == 0 && a.stride * size % 16 == 0 &&
	       b.col * size % 16 == 0 && a.codes % codes == 0 &&
	       (uint64_t)a.codes_stride % codes == 0 && (uint64_t)b.col % codes == 0;
}

INLINE uint32_t element(const struct ws_fp8_args a, int64_t row, int64_t col, const int64_t size)
{
	const int64_t i = row * a.stride + col;
	return size == 2 ? (uint32_t)((const uint16_t *)(uintptr_t)a.x)[i] << 16 :
	                   ((const uint32_t *)(uintptr_t)a.x)[i];
}

/* ---- scales ---- */

INLINE struct scaler scaler_of(const struct ws_fp8_args a, uint32_t amax)
{
	const float least = a.slime ? 1e-10f : 1e-12f;
	const uint32_t bits = bits_of(__fdiv_rn(fmaxf(float_of(amax), least), 448.0f));
	struct scaler s;
	s.scale = float_of(a.ue8m0 ? (bits + 0x7fffff) & INFINITE : bits);
	s.inverse = __frcp_rn(s.scale);
	s.multiply = a.slime;
	return s;
}

/* |x| / scale, correctly rounded, without a division for each x: a quotient within one unit in
 * the last place, its exact remainder and the correctly rounded inverse give the correctly
 * rounded quotient (Markstein's theorem). A remainder is exact if it is normal; if it is not,
 * the quotient is far below the smallest E4M3 number. Works on magnitudes, because a sum would
 * lose the sign of a zero. */
INLINE float quotient(float x, const struct scaler s)
{
	const float q0 = __fmul_rn(x, s.inverse);
	const float q1 = __fmaf_rn(__fmaf_rn(-q0, s.scale, x), s.inverse, q0);
	return __fmaf_rn(__fmaf_rn(-q1, s.scale, x), s.inverse, q1);
}

INLINE float scaled(uint32_t bits, const struct scaler s)
{
	if (s.multiply)
		return __fmul_rn(float_of(bits), s.inverse);
	return float_of(bits_of(quotient(float_of(magnitude(bits)), s)) | (bits & 0x80000000u));
}

INLINE uint32_t encode_pair(uint32_t x, uint32_t y, const struct scaler s)
{
	return to_e4m3_pair(scaled(x, s), scaled(y, s));
}

/* ---- a block of any shape ---- */

INLINE uint32_t scan(const struct ws_fp8_args a, const struct block b, const int64_t size)
{
	uint32_t amax = 0;
	for (int64_t r = threadIdx.x / 32; r < b.rows; r += WARPS)
		for (int64_t c = threadIdx.x % 32; c < b.cols; c += 32)
			amax = max(amax, magnitude(element(a, b.row + r, b.col + c, size)));
	return amax;
}

INLINE void tell_all_bad(const struct ws_fp8_args a, const struct block b, const int64_t size)
{
	for (int64_t r = threadIdx.x / 32; r < b.rows; r += WARPS)
		for (int64_t c = threadIdx.x % 32; c < b.cols; c += 32)
			if (magnitude(element(a, b.row + r, b.col + c, size)) >= INFINITE)
				report_bad(a.found,
				           (uint64_t)((b.row + r) * a.cols + b.col + c));
}

INLINE void encode(const struct ws_fp8_args a, const struct block b, const struct scaler s,
                   const int64_t size)
{
	uint8_t *codes = (uint8_t *)(uintptr_t)a.codes;
	for (int64_t r = threadIdx.x / 32; r < b.rows; r += WARPS)
		for (int64_t c = threadIdx.x % 32; c < b.cols; c += 32)
			codes[(b.row + r) * a.codes_stride + b.col + c] =
				(uint8_t)encode_pair(element(a, b.row + r, b.col + c, size), 0, s);
}

/* ---- a tile in registers ---- */

struct tile {
	uint4 held[TILE * TILE * 4 / 16 / THREADS]; /* bf16 uses half of it */
};

/* Neighboring threads read the same row, so that a warp reads 512 bytes of one or two rows. */
INLINE const uint4 *tile_source(const struct ws_fp8_args a, const struct block b, uint32_t step,
                                const uint32_t size)
{
	const uint32_t lanes = TILE * size / 16;
	const int64_t row = b.row + step * (THREADS / lanes) + threadIdx.x / lanes;
	return (const uint4 *)(uintptr_t)(a.x + (uint64_t)(row * a.stride + b.col) * size) +
	       threadIdx.x % lanes;
}

INLINE void load_tile(const struct ws_fp8_args a, const struct block b, struct tile *t,
                      const uint32_t size)
{
	UNROLL
	for (uint32_t i = 0; i < TILE * TILE * size / 16 / THREADS; i++)
		t->held[i] = *tile_source(a, b, i, size);
}

INLINE uint32_t amax_of_word(uint32_t amax, uint32_t word, const uint32_t size)
{
	if (size == 4)
		return max(amax, magnitude(word));
	return max(amax, max(magnitude(word) & 0xffff0000u, magnitude(word << 16)));
}

INLINE uint32_t scan_tile(const struct tile *t, const uint32_t size)
{
	uint32_t amax = 0;
	UNROLL
	for (uint32_t i = 0; i < TILE * TILE * size / 16 / THREADS; i++) {
		const uint4 v = t->held[i];
		amax = amax_of_word(amax_of_word(amax, v.x, size), v.y, size);
		amax = amax_of_word(amax_of_word(amax, v.z, size), v.w, size);
	}
	return amax;
}

/* Two bf16 in a word. */
INLINE uint32_t encode_word(uint32_t word, const struct scaler s)
{
	return encode_pair(word << 16, word & 0xffff0000u, s);
}

INLINE void encode_tile(const struct ws_fp8_args a, const struct block b, const struct tile *t,
                        const struct scaler s, const uint32_t size)
{
	const uint32_t lanes = TILE * size / 16, each = 16 / size;
	UNROLL
	for (uint32_t i = 0; i < TILE * TILE * size / 16 / THREADS; i++) {
		const int64_t row = b.row + i * (THREADS / lanes) + threadIdx.x / lanes;
		const uint64_t at = a.codes + (uint64_t)(row * a.codes_stride + b.col +
		                                         threadIdx.x % lanes * each);
		const uint4 v = t->held[i];
		if (size == 2) {
			uint2 codes;
			codes.x = encode_word(v.x, s) | encode_word(v.y, s) << 16;
			codes.y = encode_word(v.z, s) | encode_word(v.w, s) << 16;
			*(uint2 *)(uintptr_t)at = codes;
		} else {
			*(uint32_t *)(uintptr_t)at =
				encode_pair(v.x, v.y, s) | encode_pair(v.z, v.w, s) << 16;
		}
	}
}

/* ---- kernels ---- */

INLINE void quantize(const struct ws_fp8_args a, const uint32_t size)
{
	__shared__ uint32_t warps[WARPS];
	const struct block b = block_at(a);
	const uint32_t whole = is_whole_tile(a, b, size);
	struct tile t;
	if (whole)
		load_tile(a, b, &t, size);
	const uint32_t amax =
		largest_of_block(whole ? scan_tile(&t, size) : scan(a, b, size), warps);
	if (amax >= INFINITE) {
		tell_all_bad(a, b, size);
		return;
	}
	const struct scaler s = scaler_of(a, amax);
	if (threadIdx.x == 0)
		((float *)(uintptr_t)a.scales)[blockIdx.x] = s.scale;
	if (whole)
		encode_tile(a, b, &t, s, size);
	else
		encode(a, b, s, size);
}

#define FP8_KERNEL(name, size) \
	KERNEL(WS_FP8_THREADS) name(const struct ws_fp8_args a) \
	{ \
		quantize(a, size); \
	}
FP8_KERNEL(fp8_block_bf16, 2)
FP8_KERNEL(fp8_block_f32, 4)
