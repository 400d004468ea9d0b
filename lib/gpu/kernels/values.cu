/* SPDX-License-Identifier: Apache-2.0 */
/* values.cu - the largest magnitude of the elements of a strided range, which tells whether all
 * are finite.
 *
 * In every format of weights, numbers without their sign sort like their bits, and infinities and
 * NaN come last. So nothing is converted: bits are masked and compared, 16 bytes a thread in long
 * rows. Rows too short for a block of threads are read element by element. */
#include "numbers.h"

enum { THREADS = WS_VALUES_THREADS, CHUNK = WS_VALUES_CHUNK };

/* The largest of the elements of `size` bytes in a word. */
INLINE uint32_t largest_in(uint32_t w, uint32_t mask, const uint32_t size)
{
	if (size == 4)
		return w & mask;
	if (size == 2)
		return max(w & mask, w >> 16 & mask);
	return max(max(w & mask, w >> 8 & mask), max(w >> 16 & mask, w >> 24 & mask));
}

#define LARGEST_KERNEL(name, type)                                                                 \
	/* The largest of this thread's share of n contiguous elements. */                         \
	INLINE uint32_t name##_of_run(const type *x, int64_t n, uint32_t mask)                     \
	{                                                                                          \
		const int64_t to_vector =                                                          \
			(int64_t)((0 - (uint64_t)(uintptr_t)x) % 16 / sizeof(type));               \
		const int64_t head = min(to_vector, n);                                            \
		const uint4 *v = (const uint4 *)(x + head);                                        \
		const int64_t n_v = (n - head) / (int64_t)(16 / sizeof(type));                     \
		uint32_t most = 0;                                                                 \
		if (threadIdx.x < head)                                                            \
			most = x[threadIdx.x] & mask;                                              \
		for (int64_t i = threadIdx.x; i < n_v; i += THREADS) {                             \
			const uint4 w = v[i];                                                      \
			const uint32_t a = max(largest_in(w.x, mask, sizeof(type)),                \
			                       largest_in(w.y, mask, sizeof(type)));               \
			const uint32_t b = max(largest_in(w.z, mask, sizeof(type)),                \
			                       largest_in(w.w, mask, sizeof(type)));               \
			most = max(most, max(a, b));                                               \
		}                                                                                  \
		for (int64_t i = head + n_v * (int64_t)(16 / sizeof(type)) + threadIdx.x; i < n;   \
		     i += THREADS)                                                                 \
			most = max(most, x[i] & mask);                                             \
		return most;                                                                       \
	}                                                                                          \
	KERNEL(WS_VALUES_THREADS) name(const struct ws_values_args a)                              \
	{                                                                                          \
		__shared__ uint32_t warps[THREADS / 32];                                           \
		const int64_t each = CHUNK / (int64_t)sizeof(type);                                \
		const type *x = (const type *)(uintptr_t)a.src;                                    \
		uint32_t most = 0;                                                                 \
		if (a.per_row) {                                                                   \
			const int64_t row = blockIdx.x / a.per_row;                                \
			const int64_t at = (int64_t)(blockIdx.x % a.per_row) * each;               \
			most = name##_of_run(x + row * a.stride + at, min(each, a.cols - at),      \
			                     a.mask);                                              \
		} else {                                                                           \
			const int64_t first = (int64_t)blockIdx.x * each;                          \
			const int64_t end = min(first + each, a.rows * a.cols);                    \
			for (int64_t i = first + threadIdx.x; i < end; i += THREADS) {             \
				const int64_t row = i / a.cols;                                    \
				most = max(most, x[row * a.stride + (i - row * a.cols)] & a.mask); \
			}                                                                          \
		}                                                                                  \
		most = largest_of_block(most, warps);                                              \
		if (threadIdx.x == 0)                                                              \
			raise_to((uint32_t *)(uintptr_t)a.found, most);                            \
	}
LARGEST_KERNEL(largest_1, uint8_t)
LARGEST_KERNEL(largest_2, uint16_t)
LARGEST_KERNEL(largest_4, uint32_t)
