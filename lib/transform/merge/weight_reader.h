/* SPDX-License-Identifier: Apache-2.0 */
/* weight_reader.h - reads one weight as numbers: unpacked, merged, and rounded to the type that it
 * would be sent in.
 *
 * FP8 quantizes exactly the numbers that would be sent without quantization, so they are rounded to
 * that type first. A packed base is rounded to that type before deltas are added, as trainers of
 * adapters see it. Deltas are added in the given order: rounding "fold" sums them in fp32 and
 * rounds the sum with the base once; "two-step" rounds each delta and adds it by itself. */
#ifndef WS_TRANSFORM_WEIGHT_READER_H
#define WS_TRANSFORM_WEIGHT_READER_H

#include "factor.h"
#include "unpack.h"
#include "worker_pool.h"

#include <pthread.h>

struct ws_weight_reader {
	struct ws_worker_pool *pool;
	struct ws_packed packed; /* the base, or the tensor that replaces it */
	const char *name;        /* the name that is sent */
	/* BF16, F16 or F32: type that would be sent */
	enum ws_dtype dtype;
	int64_t rows, cols;
	const struct ws_delta **deltas;
	size_t n_deltas;
	int64_t rank; /* the largest sum of ranks at one row */
	bool two_step;
	bool looked_at; /* quantizing to FP8 checks the numbers anyway */

	pthread_mutex_t lock;   /* of the members below */
	float max_delta, max_w; /* of the rows merged so far */
	double bound;           /* no delta is larger, as far as checked */
	bool large;             /* the base has a number that is not moderate */
};

/* Sets rank. Fails if a row, a rank or the list of deltas is too large for the scratch. */
int ws_weight_init(struct ws_weight_reader *w, struct ws_err *err);
/* Bytes that ws_weight_read needs in the scratch. */
size_t ws_weight_room(const struct ws_weight_reader *w);
/* Bytes of a number. */
size_t ws_weight_size(const struct ws_weight_reader *w);
/* Can it read a part of the columns? Otherwise rows are read whole. */
bool ws_weight_splits(const struct ws_weight_reader *w);
/* Reads a rectangle, row by row, in the weight's dtype. plain: only the base, without deltas. Fails
 * with WS_EINPUT, name, position and file if a number of the base, of a factor or of their sum is
 * not finite. Leaves the scratch as it was. */
int ws_weight_read(struct ws_weight_reader *w, const struct ws_rect *r, bool plain, void *dst,
                   struct ws_scratch *scratch, struct ws_err *err);
/* Checks all factors. */
int ws_weight_check_factors(struct ws_weight_reader *w, struct ws_scratch *scratch,
                            struct ws_err *err);
/* Could a sum exceed the range of its type? Call it after all inputs were checked. Only merging
 * shows whether a sum does. Weights from training never get near. */
bool ws_weight_is_steep(struct ws_weight_reader *w);
/* Reports that the number at this position is not finite. */
int ws_weight_blame(const struct ws_weight_reader *w, int64_t row, int64_t col, double value,
                    struct ws_err *err);

/* ---- shared by weight_reader.c and weight_merge.c ---- */

enum { WS_WEIGHT_LEAST_COLS = 16 }; /* columns at once, whatever the rank */

/* Bytes of the scratch, a quarter of it, that these two files may use: first for bytes before their
 * conversion, then one half for B factors and the other for sums of deltas. */
size_t ws_weight_share(const struct ws_worker_pool *w);
/* Adds the deltas to numbers that were read, in place. */
int ws_weight_merge(struct ws_weight_reader *w, const struct ws_rect *r, void *x,
                    struct ws_scratch *scratch, struct ws_err *err);

#endif
