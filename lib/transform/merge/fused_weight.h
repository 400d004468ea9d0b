/* SPDX-License-Identifier: Apache-2.0 */
/* fused_weight.h - merges and quantizes one weight in one pass ("fused" here; elsewhere "fused"
 * means qkv_proj or gate_up_proj), tile by tile: into dense numbers, or into codes and their
 * scales.
 *
 * Codes and scales are two tensors of one computation. Codes are usually made first, because they
 * are sent first; their scales are kept until they are read. The numbers are computed twice if the
 * scales cannot be kept or are read first, or if a block is larger than a tile. */
#ifndef WS_TRANSFORM_FUSED_WEIGHT_H
#define WS_TRANSFORM_FUSED_WEIGHT_H

#include "fp8.h"
#include "weight_reader.h"

struct ws_fused_weight;

struct ws_fused_part {
	struct ws_tiled tiled; /* first */
	struct ws_fused_weight *fused;
};

struct ws_fused_weight {
	struct ws_weight_reader weight;
	bool quantized;
	bool packed_scales;          /* as in transform.h */
	struct ws_fp8_rule rule;     /* blocks are no larger than the weight */
	int64_t n_bands, n_blocks;   /* rows and columns of blocks */
	struct ws_fused_part out;    /* the codes, or the dense numbers */
	struct ws_fused_part scales; /* if it is quantized */
	struct ws_fused_part check;  /* scan_only: checks all inputs; keeps scales */
	bool fine;                   /* a value scan cleared the base: `check` reads only factors */
	struct ws_fused_part sums;   /* scan_only: checks merged numbers that may overflow */

	pthread_mutex_t lock; /* of the members below, except the scales' values */
	pthread_mutex_t scan; /* held to find scales that several tiles need */
	float *kept;          /* scales of all blocks; see kept_scales */
	bool refused;         /* the pool had no memory for them */
	bool read;            /* the scales were read since the first holder entered */
	unsigned holders;
};

/* The caller has set weight, quantized, packed_scales and rule. */
int ws_fused_init(struct ws_fused_weight *p, struct ws_err *err);
/* Call it after the pool is freed: it frees kept scales that the pool still counts. */
void ws_fused_fini(struct ws_fused_weight *p);

#endif
