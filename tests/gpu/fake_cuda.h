/* SPDX-License-Identifier: Apache-2.0 */
/* fake_cuda.h - how a test speaks to the double of libcuda (fake_cuda.c): by dlsym, as it is
 * loaded as the driver would be. */
#ifndef TESTS_GPU_FAKE_CUDA_H
#define TESTS_GPU_FAKE_CUDA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fake_cuda {
	/* Nothing fails, two GPUs, an empty record, work is done at once; what lives is kept. */
	void (*reset)(void);
	/* Every call of a function from the n-th on (0 is the next) is answered rc; "" is any
	 * function but those that give back or name an error. */
	void (*refuse)(const char *function, unsigned n, int rc);
	void (*devices)(int n);     /* 0: cuInit says that there are none */
	void (*busy)(unsigned n);   /* the next n queries find work that is not done */
	/* Work is done as late as can be: each query does one more piece of what its stream has. */
	void (*defer)(bool on);
	const char *(*record)(void); /* what was called, a line each: "cuMemAlloc_v2 4096" */
	/* contexts, allocations, streams, events and modules not given back */
	size_t (*live)(void);
	/* The first thing done that a driver forbids and may not notice: memory freed that a
	 * copy waits for, a context given up with a stream on it; "": none. Asking forgets it. A
	 * program that ends with one, or with something alive, ends with 99. */
	const char *(*mistake)(void);
	/* For other doubles: is this memory of the device; do this in the stream's turn; has
	 * this thread a context. */
	bool (*owns)(uint64_t at, size_t bytes);
	bool (*enqueue)(void *stream, void (*call)(void *arg), void *arg);
	bool (*has_context)(void);
	/* This stream is not done, nor what waits for it, until they are let go: a kernel that
	 * waits for a peer. A driver would wait with it in whatever frees memory. */
	bool (*hang)(void *stream);
	void (*let_go)(void);
	/* In the stream's turn, asks whether it is done until it is, and then makes the call. */
	bool (*enqueue_until)(void *stream, bool (*done)(void *arg), void (*call)(void *arg),
	                      void *arg);
	int (*device)(void); /* of this thread; -1: none */
};
/* extern const struct fake_cuda fake_cuda; in the library */

#endif
