/* SPDX-License-Identifier: Apache-2.0 */
#include "simd.h"

#include <stdatomic.h>
#include <string.h>

enum { UNKNOWN, SCALAR, AVX2 };

static _Atomic int chosen;

static bool machine_has_avx2(void)
{
#ifdef __x86_64__ /* a processor with these two has F16C as well */
	return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
	return false;
#endif
}

/* Several threads may choose at the same time: all choose the same level. */
bool ws_simd_avx2(void)
{
	int level = atomic_load_explicit(&chosen, memory_order_relaxed);
	if (level == UNKNOWN) {
		level = machine_has_avx2() ? AVX2 : SCALAR;
		atomic_store_explicit(&chosen, level, memory_order_relaxed);
	}
	return level == AVX2;
}

const char *ws_simd_level(void)
{
	return ws_simd_avx2() ? "avx2" : "scalar";
}

bool ws_simd_set_level(const char *level)
{
	const bool avx2 = strcmp(level, "avx2") == 0;
	if ((!avx2 && strcmp(level, "scalar") != 0) || (avx2 && !machine_has_avx2()))
		return false;
	atomic_store_explicit(&chosen, avx2 ? AVX2 : SCALAR, memory_order_relaxed);
	return true;
}
