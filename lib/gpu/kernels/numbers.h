/* SPDX-License-Identifier: Apache-2.0 */
/* numbers.h - included first by every kernel file: macros of the language and number formats.
 *
 * Kernels use the common subset of C and C++: nvcc compiles them for GPUs, and any C compiler
 * compiles them for the CPU after tests/gpu/host_shim.h. Arithmetic uses __fmul_rn and the like:
 * one rounding each, and nothing that a compiler may contract. */
#ifndef WS_GPU_KERNELS_NUMBERS_H
#define WS_GPU_KERNELS_NUMBERS_H

#include "args.h"

#ifdef __cplusplus
#define KERNEL(threads) extern "C" __global__ void __launch_bounds__(threads)
#define UNROLL _Pragma("unroll")
#else
#define KERNEL(threads) void
#define UNROLL
#endif
#define INLINE static __device__ __forceinline__

enum { INFINITE = 0x7f800000 };

INLINE uint32_t bits_of(float x)
{
	return __float_as_uint(x);
}

INLINE float float_of(uint32_t bits)
{
	return __uint_as_float(bits);
}

INLINE uint32_t magnitude(uint32_t bits)
{
	return bits & 0x7fffffff;
}

INLINE float from_bf16(uint32_t x)
{
	return float_of(x << 16);
}

/* Ties to even. A NaN becomes quiet and keeps its sign. */
INLINE uint32_t to_bf16(float x)
{
	const uint32_t bits = bits_of(x);
	if (magnitude(bits) > INFINITE)
		return bits >> 16 | 0x40;
	return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

/* The exponent and mantissa of E4M3, shifted to their place in fp32, are the number times 2^-120,
 * subnormal or not. */
INLINE float from_e4m3(uint32_t code)
{
	const uint32_t m = code & 0x7f;
	const float x = m == 0x7f ? float_of(0x7fc00000) : __fmul_rn(float_of(m << 20), 0x1p120f);
	return float_of(bits_of(x) | (code & 0x80) << 24);
}

/* E2M1 likewise, times 2^-126. */
INLINE float from_e2m1(uint32_t code)
{
	const float x = __fmul_rn(float_of((code & 7) << 22), 0x1p126f);
	return float_of(bits_of(x) | (code & 8) << 28);
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
/* Two codes, x in the lower byte. The instruction rounds to even and saturates, as does the code
 * for older GPUs below. */
INLINE uint32_t to_e4m3_pair(float x, float y)
{
	uint16_t pair;
	asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(y), "f"(x));
	return pair;
}
#else
/* x is finite. An addition rounds it: the code adds 2^(e+20), where 2^e is the number's power of
 * two and at least 2^-6. The sum has no bits below 2^(e-3). Its last bits are the mantissa with
 * its carry, and e gives the exponent. */
INLINE uint32_t to_e4m3(float x)
{
	const uint32_t sign = bits_of(x) >> 24 & 0x80, normal = 121u << 23;
	const uint32_t m = min(magnitude(bits_of(x)), 0x43e00000u); /* 448 */
	const uint32_t e = max(m & INFINITE, normal);
	const uint32_t magic = e + (20u << 23);
	const uint32_t mantissa = bits_of(__fadd_rn(float_of(m), float_of(magic))) - magic;
	return sign | (mantissa + ((e - normal) >> 20));
}

INLINE uint32_t to_e4m3_pair(float x, float y)
{
	return to_e4m3(x) | to_e4m3(y) << 8;
}
#endif

/* Returns the largest value of all threads of a block to each of them. warps has one number for
 * each warp and can be reused after the next __syncthreads(). */
INLINE uint32_t largest_of_block(uint32_t value, uint32_t *warps)
{
	const uint32_t largest = __reduce_max_sync(0xffffffffu, value);
	if (threadIdx.x % 32 == 0)
		warps[threadIdx.x / 32] = largest;
	__syncthreads();
	uint32_t all = warps[0];
	for (uint32_t i = 1; i < blockDim.x / 32; i++)
		all = max(all, warps[i]);
	return all;
}

/* Records that element i is not finite. */
INLINE void report_bad(uint64_t found, uint64_t i)
{
	atomicMax(&((struct ws_found *)(uintptr_t)found)->bad, ~(unsigned long long)i);
}

/* Most launches raise it at most once, so a plain read avoids most atomics. */
INLINE void raise_to(uint32_t *place, uint32_t value)
{
	if (*(volatile uint32_t *)place < value)
		atomicMax(place, value);
}

#endif
