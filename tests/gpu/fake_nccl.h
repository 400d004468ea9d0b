/* SPDX-License-Identifier: Apache-2.0 */
/* fake_nccl.h - how a test speaks to the double of libnccl (fake_nccl.c): by dlsym, as it
 * is loaded as NCCL would be. */
#ifndef TESTS_GPU_FAKE_NCCL_H
#define TESTS_GPU_FAKE_NCCL_H

#include <stdbool.h>
#include <stddef.h>

struct fake_nccl {
	/* Nothing fails, everybody is there, an empty record, nothing received; what lives is
	 * kept. */
	void (*reset)(void);
	/* Every call of a function from the n-th on (0 is the next) is answered rc; "": of any. */
	void (*refuse)(const char *function, unsigned n, int rc);
	void (*version)(int number);
	/* What was begun is in progress for so many queries of a state; UINT_MAX: for ever,
	 * as when ranks are missing. */
	void (*busy)(unsigned n);
	/* Broadcasts are never done, until their communicator is aborted.
	 * Wants the double of libcuda. */
	void (*hangs)(bool on);
	/* What a state becomes once it is no longer in progress: a peer that died. */
	void (*breaks)(int rc);
	const char *(*record)(
		void); /* what was called, a line each: "ncclBroadcast 4096 type 1 root 0" */
	size_t (*live)(void);        /* communicators neither destroyed nor aborted */
	/* The first thing done that NCCL forbids and may not notice; "": none. Asking forgets it. A
	 * program that ends with one, or with a communicator, ends with 99. */
	const char *(*mistake)(void);
	/* The bytes of all broadcasts that were done, as they were when they were. */
	const unsigned char *(*received)(size_t *n);
};
/* extern const struct fake_nccl fake_nccl; in the library */

#endif
