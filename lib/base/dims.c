/* SPDX-License-Identifier: Apache-2.0 */
#include "dims.h"

#include <inttypes.h>
#include <stdio.h>

int64_t ws_dims_product(unsigned n_dims, const int64_t *dims)
{
	int64_t product = 1;
	for (unsigned d = 0; d < n_dims; d++)
		if (__builtin_mul_overflow(product, dims[d], &product))
			return -1;
	return product;
}

char *ws_dims_text(char *dst, size_t n, unsigned n_dims, const int64_t *dims)
{
	size_t at = (size_t)snprintf(dst, n, "[");
	for (unsigned d = 0; d < n_dims && at < n; d++)
		at += (size_t)snprintf(dst + at, n - at, d ? ", %" PRId64 : "%" PRId64, dims[d]);
	if (at < n)
		snprintf(dst + at, n - at, "]");
	return dst;
}
