/* SPDX-License-Identifier: Apache-2.0 */
/* product.h - what becomes of one weight, tile by tile: dense numbers, or codes and their scales.
 *
 * Codes and scales are one computation and two tensors. Where codes are made first, as they are
 * sent, their scales are kept until they are asked for; where they cannot be kept, or are asked
 * for first, the numbers are looked at twice. So does a block that is larger than a tile. */
#ifndef WS_TRANSFORM_PRODUCT_H
#define WS_TRANSFORM_PRODUCT_H

#include "fp8.h"
#include "weight.h"

struct ws_product;

struct ws_product_part {
	struct ws_tiled tiled; /* first */
	struct ws_product *product;
};

struct ws_product {
	struct ws_weight weight;
	bool quantized;
	struct ws_fp8_rule rule;      /* its blocks are no larger than the weight */
	int64_t n_bands, n_blocks;    /* of blocks: below each other, beside each other */
	struct ws_product_part out;    /* the codes, or the dense numbers */
	struct ws_product_part scales; /* where it is quantized */
	struct ws_product_part check;  /* dry: looks at everything that goes in; keeps scales */
	/* somebody has seen that of the base: only the factors are looked at */
	bool fine;
	/* dry: looks at what comes of merging, where that might be no number */
	struct ws_product_part sums;

	pthread_mutex_t lock;         /* of what follows but for the scales' values */
	pthread_mutex_t scan;         /* one at a time looks at blocks that several tiles want */
	float *kept;                  /* NaN: not known yet; NULL */
	bool refused;                 /* there was no memory to keep them */
	bool read;                    /* the scales were, since anybody held it */
	unsigned holders;
};

/* weight, quantized and rule are filled in already. */
int ws_product_init(struct ws_product *p, struct ws_err *err);
/* after the works, with which what is kept is counted */
void ws_product_fini(struct ws_product *p);

#endif
