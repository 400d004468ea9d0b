/* SPDX-License-Identifier: Apache-2.0 */
/* unpack.cu - codes back to numbers, bf16 or fp32, as lib/transform/unpack/unpack.h.
 *
 *   unpack_fp8    E4M3 code * scale of its block
 *   unpack_nvfp4  E2M1 code * (E4M3 scale of sixteen * the tensor's scale), low nibble first
 *   unpack_nf4    level of the code * scale of its block, high nibble first, over one long vector;
 *                 8-bit scales stand for map[scale] * nested scale + offset
 *
 * Each product and sum is rounded to fp32; bf16 is rounded from that. A thread unpacks eight
 * contiguous elements that share a scale, or one at a time where they do not. It records the
 * position of a result that is not finite. */
#include "numbers.h"

enum { THREADS = WS_UNPACK_THREADS, EACH = WS_UNPACK_EACH };

enum packing { FP8, NVFP4, NF4 };

struct element {
	int64_t row, col;
};

INLINE const uint8_t *bytes_at(uint64_t address)
{
	return (const uint8_t *)(uintptr_t)address;
}

INLINE const float *floats_at(uint64_t address)
{
	return (const float *)(uintptr_t)address;
}

/* ---- scales ---- */

INLINE float fp8_scale(const struct ws_unpack_args a, const struct element e)
{
	const int64_t down = (a.each + a.bn - 1) / a.bn, across = (a.cols + a.bk - 1) / a.bk;
	const int64_t matrix = e.row / a.each, row = e.row - matrix * a.each;
	return floats_at(a.scales)[(matrix * down + row / a.bn) * across + e.col / a.bk];
}

INLINE float nvfp4_scale(const struct ws_unpack_args a, const struct element e)
{
	const int64_t across = (a.cols + 15) / 16;
	return __fmul_rn(from_e4m3(bytes_at(a.scales)[e.row * across + e.col / 16]), a.offset);
}

INLINE float nf4_scale(const struct ws_unpack_args a, const struct element e)
{
	const int64_t block = e.col / a.bk;
	if (!a.nested_block)
		return floats_at(a.scales)[block];
	const float of = floats_at(a.map)[bytes_at(a.scales)[block]];
	return __fadd_rn(__fmul_rn(of, floats_at(a.nested)[block / a.nested_block]), a.offset);
}

INLINE float scale_at(const struct ws_unpack_args a, const struct element e, const enum packing p)
{
	return p == FP8 ? fp8_scale(a, e) : p == NVFP4 ? nvfp4_scale(a, e) : nf4_scale(a, e);
}

/* ---- codes ---- */

INLINE float decode(uint32_t code, const float *levels, const enum packing p)
{
	return p == FP8 ? from_e4m3(code) : p == NVFP4 ? from_e2m1(code) : levels[code];
}

INLINE uint32_t code_at(const struct ws_unpack_args a, const struct element e, const enum packing p)
{
	if (p == FP8)
		return bytes_at(a.codes)[e.row * a.cols + e.col];
	const int64_t in_row = e.row * (p == NVFP4 ? a.cols / 2 : 0);
	const uint32_t pair = bytes_at(a.codes)[in_row + e.col / 2];
	const uint32_t high = (uint32_t)(e.col % 2) ^ (p == NF4);
	return high ? pair >> 4 : pair & 15;
}

/* Eight codes that begin at a multiple of eight, element i's in the i-th byte. */
INLINE uint2 codes_at(const struct ws_unpack_args a, uint64_t first, const enum packing p)
{
	if (p == FP8)
		return *(const uint2 *)(uintptr_t)(a.codes + first);
	const uint32_t word = *(const uint32_t *)(uintptr_t)(a.codes + first / 2);
	const uint32_t low = word & 0x0f0f0f0fu, high = word >> 4 & 0x0f0f0f0fu;
	uint2 codes;
	codes.x = p == NF4 ? __byte_perm(high, low, 0x5140) : __byte_perm(low, high, 0x5140);
	codes.y = p == NF4 ? __byte_perm(high, low, 0x7362) : __byte_perm(low, high, 0x7362);
	return codes;
}

/* ---- results ---- */

/* A magnitude from here on is not finite, or is not finite after rounding. */
INLINE uint32_t limit_of(const struct ws_unpack_args a)
{
	return a.to_bf16 ? 0x7f7f8000u : (uint32_t)INFINITE;
}

INLINE void check(const struct ws_unpack_args a, uint64_t i, float x)
{
	if (magnitude(bits_of(x)) >= limit_of(a))
		report_bad(a.found, i);
}

INLINE void store_one(const struct ws_unpack_args a, uint64_t i, float x)
{
	check(a, i, x);
	if (a.to_bf16)
		((uint16_t *)(uintptr_t)a.out)[i] = (uint16_t)to_bf16(x);
	else
		((float *)(uintptr_t)a.out)[i] = x;
}

INLINE uint32_t two_bf16(float x, float y)
{
	return to_bf16(x) | to_bf16(y) << 16;
}

INLINE void store_eight(const struct ws_unpack_args a, uint64_t i, const float x[EACH])
{
	uint32_t largest = 0;
	UNROLL
	for (int k = 0; k < EACH; k++)
		largest = max(largest, magnitude(bits_of(x[k])));
	for (uint64_t k = 0; largest >= limit_of(a) && k < EACH; k++)
		check(a, i + k, x[k]);
	uint4 v, u;
	if (a.to_bf16) {
		v.x = two_bf16(x[0], x[1]);
		v.y = two_bf16(x[2], x[3]);
		v.z = two_bf16(x[4], x[5]);
		v.w = two_bf16(x[6], x[7]);
		((uint4 *)(uintptr_t)a.out)[i / EACH] = v;
		return;
	}
	v.x = bits_of(x[0]), v.y = bits_of(x[1]), v.z = bits_of(x[2]), v.w = bits_of(x[3]);
	u.x = bits_of(x[4]), u.y = bits_of(x[5]), u.z = bits_of(x[6]), u.w = bits_of(x[7]);
	((uint4 *)(uintptr_t)a.out)[i / 4] = v;
	((uint4 *)(uintptr_t)a.out)[i / 4 + 1] = u;
}

/* ---- kernels ---- */

INLINE struct element place(const struct ws_unpack_args a, uint64_t i)
{
	struct element e;
	e.row = (int64_t)(i / (uint64_t)a.cols);
	e.col = (int64_t)(i - (uint64_t)e.row * (uint64_t)a.cols);
	return e;
}

/* True if each group of eight is in one row with one scale and can be loaded and stored at once. */
INLINE uint32_t goes_by_eights(const struct ws_unpack_args a, const enum packing p)
{
	const int64_t block = p == NVFP4 ? 16 : a.bk;
	return a.codes % (p == FP8 ? 8 : 4) == 0 && a.out % 16 == 0 &&
	       (p == NF4 || a.cols % EACH == 0) && (block % EACH == 0 || block >= a.cols);
}

INLINE void unpack_eight(const struct ws_unpack_args a, uint64_t first, const float *levels,
                         const enum packing p)
{
	const float scale = scale_at(a, place(a, first), p);
	const uint2 codes = codes_at(a, first, p);
	float x[EACH];
	UNROLL
	for (int k = 0; k < EACH; k++)
		x[k] = __fmul_rn(decode((k < 4 ? codes.x : codes.y) >> k % 4 * 8 & 0xff, levels, p),
		                 scale);
	store_eight(a, first, x);
}

INLINE void unpack(const struct ws_unpack_args a, const float *levels, const enum packing p)
{
	const uint64_t count = (uint64_t)a.rows * (uint64_t)a.cols;
	const uint64_t first = ((uint64_t)blockIdx.x * THREADS + threadIdx.x) * EACH;
	if (first + EACH <= count && goes_by_eights(a, p)) {
		unpack_eight(a, first, levels, p);
		return;
	}
	for (uint64_t i = first; i < min(first + EACH, count); i++) {
		const struct element e = place(a, i);
		store_one(a, i, __fmul_rn(decode(code_at(a, e, p), levels, p), scale_at(a, e, p)));
	}
}

KERNEL(WS_UNPACK_THREADS) unpack_fp8(const struct ws_unpack_args a)
{
	unpack(a, a.levels, FP8);
}

KERNEL(WS_UNPACK_THREADS) unpack_nvfp4(const struct ws_unpack_args a)
{
	unpack(a, a.levels, NVFP4);
}

/* The levels are in shared memory, because the threads of a warp read different ones. */
KERNEL(WS_UNPACK_THREADS) unpack_nf4(const struct ws_unpack_args a)
{
	__shared__ float levels[16];
	if (threadIdx.x < 16)
		levels[threadIdx.x] = a.levels[threadIdx.x];
	__syncthreads();
	unpack(a, levels, NF4);
}
