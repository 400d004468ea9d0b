/* SPDX-License-Identifier: Apache-2.0 */
/* host_shim.h - what CUDA adds to C, said in C, so that lib/gpu/kernels/ runs on a CPU.
 *
 * It stands before each .cu (-include) and is for tests only. The threads of a block are run in
 * turn, from one barrier to the next; blocks follow each other. What that proves: the
 * arithmetic, to the bit (each __fmul_rn is one fp32 operation here as there), the indices and
 * bounds, who writes what, that all threads of a block meet at each barrier, and, with the
 * sanitizers, that nothing is touched which is not there or not aligned. What it does not:
 * anything about speed, races between threads that a barrier is missing for (here the order is
 * always the same), shared memory that is read before it is written (here it keeps what the last
 * block left), the code that is for some architecture only (__CUDA_ARCH__ is not defined: FP8 is
 * rounded by integers here, by an instruction on sm_89 and later), and nvcc. All of these but
 * speed are seen by the interpreter of nvcc's PTX (ptx.h), which is slower; make check-gpu
 * compares the same numbers on a GPU. */
#ifndef TESTS_GPU_HOST_SHIM_H
#define TESTS_GPU_HOST_SHIM_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ static /* of one block at a time */
#define __align__(n) __attribute__((aligned(n)))

struct shim_dim {
	uint32_t x, y, z;
};
extern struct shim_dim threadIdx, blockIdx, blockDim, gridDim;

/* host_run.c */
void shim_barrier(int line);
uint32_t shim_warp_max(uint32_t value, int line);
#define __syncthreads() shim_barrier(__LINE__)
#define __reduce_max_sync(mask, value) shim_warp_max(value, __LINE__)

typedef struct {
	uint32_t x, y;
} uint2 __attribute__((aligned(8)));
typedef struct {
	uint32_t x, y, z, w;
} uint4 __attribute__((aligned(16)));

#define min(a, b) ((a) < (b) ? (a) : (b))
#define max(a, b) ((a) > (b) ? (a) : (b))
#define atomicMax(place, value) (*(place) = max(*(place), value))

/* All compiled with -ffp-contract=off. */
static inline float __fmul_rn(float a, float b)
{
	return a * b;
}

static inline float __fadd_rn(float a, float b)
{
	return a + b;
}

static inline float __fdiv_rn(float a, float b)
{
	return a / b;
}

static inline float __frcp_rn(float a)
{
	return 1 / a;
}

static inline float __fmaf_rn(float a, float b, float c)
{
	return fmaf(a, b, c);
}

static inline uint32_t __float_as_uint(float x)
{
	uint32_t bits;
	memcpy(&bits, &x, sizeof bits);
	return bits;
}

static inline float __uint_as_float(uint32_t bits)
{
	float x;
	memcpy(&x, &bits, sizeof x);
	return x;
}

/* Byte i of the result is the one of y:x that nibble i of s numbers. */
static inline uint32_t __byte_perm(uint32_t x, uint32_t y, uint32_t s)
{
	const uint64_t both = (uint64_t)y << 32 | x;
	uint32_t out = 0;
	for (unsigned i = 0; i < 4; i++)
		out |= (uint32_t)(both >> (s >> 4 * i & 7) * 8 & 0xff) << 8 * i;
	return out;
}

#endif
