/* SPDX-License-Identifier: Apache-2.0 */
/* weight.h - one weight as numbers: read, unpacked, merged, and rounded to the
 * type it would be sent in.
 *
 * What is quantized is exactly what would have been sent without quantizing: numbers are
 * rounded to that type first. A packed base is rounded to it before anything is added, as those
 * who train adapters on it see it. Deltas are taken in the order in which they were given:
 * rounding "fold" adds them up in fp32 and rounds the sum with the base once; "two-step" rounds
 * each and adds it by itself. */
#ifndef WS_TRANSFORM_WEIGHT_H
#define WS_TRANSFORM_WEIGHT_H

#include "lora.h"
#include "unpack.h"
#include "worker_pool.h"

#include <pthread.h>

struct ws_weight {
	struct ws_worker_pool *pool;
	struct ws_packed packed;          /* the base, or what replaces it */
	const char *name;                 /* as sent */
	/* BF16, F16 or F32: of its numbers as they would be sent */
	enum ws_dtype dtype;
	int64_t rows, cols;
	const struct ws_delta **deltas;
	size_t n_deltas;
	int64_t rank;                     /* of all that reach one row, where that is most */
	bool two_step;
	bool looked_at;                   /* whoever reads them finds what is not finite anyhow */

	pthread_mutex_t lock;             /* of what follows */
	float max_delta, max_w;           /* of what has been merged so far */
	double bound;                     /* no delta is larger: of what was looked at so far */
	bool large;                       /* a number of the base is not moderate: likewise */
};

/* Fills rank in. What fits: -1 where a row, a rank or a list of deltas is too long for the
 * scratch. */
int ws_weight_init(struct ws_weight *w, struct ws_err *err);
/* Bytes that a scratch must have left for ws_weight_read. */
size_t ws_weight_room(const struct ws_weight *w);
/* Bytes of a number. */
size_t ws_weight_size(const struct ws_weight *w);
/* May columns be asked for? Otherwise rows are to be had whole. */
bool ws_weight_splits(const struct ws_weight *w);
/* Numbers of rows [row, row+n), columns [col, col+m), each row behind the other, in the weight's
 * dtype. plain: of the base alone, without deltas. A number that is not finite, in the base, in
 * a factor or as their sum, is WS_EINPUT with name, place and file. Leaves the scratch as it was.
 */
int ws_weight_read(struct ws_weight *w, int64_t row, int64_t n, int64_t col, int64_t m, bool plain,
                   void *dst, struct ws_scratch *scratch, struct ws_err *err);
/* Looks at all of the factors. */
int ws_weight_check_factors(struct ws_weight *w, struct ws_scratch *scratch, struct ws_err *err);
/* After all of it was looked at: could a sum be beyond the range of its type? Whether one is,
 * only making it can tell; of what training leaves none could. */
bool ws_weight_is_steep(struct ws_weight *w);
/* Says that the number there is not one. */
int ws_weight_blame(const struct ws_weight *w, int64_t row, int64_t col, double value,
                    struct ws_err *err);

#endif
