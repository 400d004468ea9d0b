/* SPDX-License-Identifier: Apache-2.0 */
/* factor.c - reads along the axis that lies together in the file, in pieces of 64 KiB. */
#include "factor.h"

#include "floats.h"

#include <math.h>

enum { PIECE = 16384 }; /* elements */

static int blame(const struct ws_item *item, uint64_t element, float value, struct ws_err *err)
{
	const uint64_t cols = item->n_dims ? (uint64_t)item->dims[item->n_dims - 1] : 1;
	return ws_err_set(err, WS_EINPUT, "tensor '%s' has %s at row %llu, column %llu (%s)", item->name,
	                  isnan(value) ? "NaN" : "an infinity", (unsigned long long)(element / cols),
	                  (unsigned long long)(element % cols),
	                  ws_source_file_name(item->source, item->from->file));
}

/* n elements of the item from `at` on, to out[0], out[step], ... */
static int read_line(const struct ws_item *item, uint64_t at, int64_t n, float *out, int64_t step,
                     struct ws_buf *buf, struct ws_err *err)
{
	const size_t size = ws_dtype_bits(item->dtype) / 8;
	ws_buf_reset(buf);
	if (ws_buf_reserve(buf, PIECE * (size + sizeof(float))))
		return ws_err_set(err, WS_ESYSTEM, "reading tensor '%s': out of memory", item->name);
	float *x = (float *)(void *)buf->data;
	char *raw = buf->data + PIECE * sizeof *x;
	for (int64_t k = 0; k < n;) {
		const size_t some = n - k < PIECE ? (size_t)(n - k) : PIECE;
		size_t bad;
		double value;
		if (ws_item_read(item, (at + (uint64_t)k) * size, raw, some * size, err))
			return -1;
		if (!ws_floats_finite(item->dtype, raw, some, &bad, &value))
			return blame(item, at + (uint64_t)k + bad, (float)value, err);
		ws_floats_read(item->dtype, raw, some, x);
		for (size_t i = 0; i < some; i++, k++)
			out[k * step] = x[i];
	}
	return 0;
}

int ws_factor_read(const struct ws_factor *f, int64_t i, int64_t n, int64_t j, int64_t m, float *out,
                   struct ws_buf *buf, struct ws_err *err)
{
	const uint64_t first = f->at + (uint64_t)(i * f->row) + (uint64_t)(j * f->col);
	if (f->col == 1 && f->row == m) /* whole rows */
		return read_line(f->item, first, n * m, out, 1, buf, err);
	if (f->row == 1 && f->col != 1) {
		for (int64_t k = 0; k < m; k++)
			if (read_line(f->item, first + (uint64_t)(k * f->col), n, out + k, m, buf, err))
				return -1;
		return 0;
	}
	for (int64_t k = 0; k < n; k++) {
		const uint64_t at = first + (uint64_t)(k * f->row);
		for (int64_t l = 0; f->col != 1 && l < m; l++)
			if (read_line(f->item, at + (uint64_t)(l * f->col), 1, out + k * m + l, 1, buf, err))
				return -1;
		if (f->col == 1 && read_line(f->item, at, m, out + k * m, 1, buf, err))
			return -1;
	}
	return 0;
}
