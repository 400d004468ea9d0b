/* SPDX-License-Identifier: Apache-2.0 */
/* dims.h - the dimensions of a tensor. */
#ifndef WS_BASE_DIMS_H
#define WS_BASE_DIMS_H

#include <stddef.h>
#include <stdint.h>

/* The number of elements; 1 without dimensions. -1: it exceeds an int64_t. */
int64_t ws_dims_product(unsigned n_dims, const int64_t *dims);
/* "[2, 3]", cut where dst ends; returns dst. */
char *ws_dims_text(char *dst, size_t n, unsigned n_dims, const int64_t *dims);

#endif
