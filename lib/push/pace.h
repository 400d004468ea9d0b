/* SPDX-License-Identifier: Apache-2.0 */
/* pace.h - which bucket size is fastest? Answers from the buckets that were sent.
 *
 * What a bucket costs besides its bytes is not known: a request, a pass over the model's names,
 * fresh memory. So another size is tried, twice the best one or half of it. Buckets of both sizes
 * take turns, because the speed of the machine changes too. A size that gains more than the noise
 * becomes the best one. */
#ifndef WS_PUSH_PACE_H
#define WS_PUSH_PACE_H

#include <stdbool.h>
#include <stdint.h>

/* A trial is decided by four full buckets of each size. It ends after five of its size, because
 * some are not full. */
enum { WS_PACE_SAMPLES = 4, WS_PACE_TRIES = 5 };

struct ws_pace {
	uint64_t best, trial;  /* bytes; trial 0: none */
	uint64_t start;        /* of this push, before anything was measured */
	uint64_t least, most;  /* the limits of a trial */
	double rates[2][WS_PACE_SAMPLES]; /* bytes per second of the best size, and of the trial */
	unsigned n[2];
	unsigned turn;         /* of the trial */
	bool no_larger, no_smaller; /* than the best size: it was tried */
};

/* Begins a push. A second push with the same start begins with the best size of the first. */
void ws_pace_begin(struct ws_pace *p, uint64_t start, uint64_t least, uint64_t most);
/* The size for the buckets that come next, of `left` bytes together. The full buckets of a trial
 * take a sixteenth of them at most, because the size may be a slow one. */
uint64_t ws_pace_size(struct ws_pace *p, uint64_t left);
/* A bucket of so many bytes, which was cut for this size, took ns. One that is larger has a large
 * tensor, and one of less than half is a rest: they say nothing about the size. */
void ws_pace_took(struct ws_pace *p, uint64_t size, uint64_t bytes, int64_t ns);

#endif
