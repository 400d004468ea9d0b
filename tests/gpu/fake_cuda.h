/* SPDX-License-Identifier: Apache-2.0 */
/* fake_cuda.h - how a test speaks to the double of libcuda (fake_cuda.c): by dlsym, as it is loaded as the
 * driver would be. */
#ifndef TESTS_GPU_FAKE_CUDA_H
#define TESTS_GPU_FAKE_CUDA_H

#include <stddef.h>

struct fake_cuda {
	void (*reset)(void); /* nothing fails, two GPUs, an empty record; what lives is kept */
	/* Every call of a function from the n-th on (0 is the next) is answered rc; "" is any function but
	 * those that give back or name an error. */
	void (*refuse)(const char *function, unsigned n, int rc);
	void (*devices)(int n);     /* 0: cuInit says that there are none */
	void (*busy)(unsigned n);   /* the next n queries find work that is not done */
	const char *(*record)(void); /* what was called, a line each: "cuMemAlloc_v2 4096" */
	size_t (*live)(void);       /* contexts, allocations, streams, events and modules not given back */
};
/* extern const struct fake_cuda fake_cuda; in the library */

#endif
