/* SPDX-License-Identifier: Apache-2.0 */
/* unpack_numbers.c - reads tensors of any floating type as fp32, and checks them. */
#include "unpack_core.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

void *ws_unpack_scratch(struct ws_buf *scratch, uint64_t n, struct ws_err *err)
{
	ws_buf_reset(scratch);
	if (n > SIZE_MAX / 2 || ws_buf_reserve(scratch, (size_t)n)) {
		scratch->failed = 0; /* the next request may be smaller */
		ws_err_set(err, WS_ESYSTEM, "unpacking: no memory for %" PRIu64 " bytes", n);
		return NULL;
	}
	return scratch->data;
}

bool ws_unpack_is_float(enum ws_dtype dtype)
{
	return dtype == WS_DTYPE_F32 || dtype == WS_DTYPE_BF16 || dtype == WS_DTYPE_F16 ||
	       dtype == WS_DTYPE_F8_E4M3 || dtype == WS_DTYPE_F8_E8M0;
}

/* Powers of two from 2^-127 on; 255 is NaN. */
static void widen_e8m0(const uint8_t *src, size_t n, float *out)
{
	for (size_t i = 0; i < n; i++)
		out[i] = src[i] == 255 ? NAN : ldexpf(1.0f, src[i] - 127);
}

int ws_unpack_floats(const struct ws_item *item, uint64_t first, size_t n, float *out,
                     struct ws_err *err)
{
	const struct ws_unpack_kernels *k = ws_unpack_kernels();
	const float one = 1;
	const size_t size = ws_dtype_bits(item->dtype) / 8;
	uint8_t *raw = (uint8_t *)out + n * (sizeof *out - size);
	if (n == 0)
		return 0;
	if (ws_item_read(item, first * size, raw, n * size, err))
		return -1;
	switch (item->dtype) {
	case WS_DTYPE_F32:
		return 0;
	case WS_DTYPE_BF16:
		k->widen_bf16(raw, n, out);
		return 0;
	case WS_DTYPE_F16:
		k->widen_f16(raw, n, out);
		return 0;
	case WS_DTYPE_F8_E4M3:
		k->e4m3(raw, (int64_t)n, (int64_t)n, &one, out);
		return 0;
	case WS_DTYPE_F8_E8M0:
		widen_e8m0(raw, n, out);
		return 0;
	default:
		return ws_err_set(err, WS_EINPUT, "%s is %s, which is not read as numbers",
		                  item->name, ws_dtype_torch(item->dtype));
	}
}

int ws_unpack_check(const struct ws_item *item, const char *what, const float *x, size_t n,
                    int64_t row, int64_t cols, struct ws_err *err)
{
	if (ws_unpack_kernels()->finite(x, n))
		return 0;
	size_t i = 0;
	while (isfinite(x[i]))
		i++;
	return ws_err_set(err, WS_EINPUT, "%s: %s [%" PRId64 ", %" PRId64 "] is %s", item->name,
	                  what, row + (int64_t)i / cols, (int64_t)i % cols,
	                  isnan(x[i]) ? "NaN" :
	                  x[i] < 0    ? "-infinity" :
	                                "infinity");
}

uint64_t ws_unpack_count(const struct ws_item *item)
{
	return item->bytes * 8 / ws_dtype_bits(item->dtype);
}

const char *ws_unpack_describe(const struct ws_item *item, char *dst, size_t n)
{
	const char *dtype = ws_dtype_torch(item->dtype);
	if (!dtype[0])
		dtype = ws_dtype_safetensors(item->dtype);
	size_t len = (size_t)snprintf(dst, n, "%s [", dtype);
	for (unsigned d = 0; d < item->n_dims && len < n; d++)
		len += (size_t)snprintf(dst + len, n - len, "%s%" PRId64, d ? ", " : "",
		                        item->dims[d]);
	if (len < n)
		snprintf(dst + len, n - len, "]");
	return dst;
}
