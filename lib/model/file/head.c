/* SPDX-License-Identifier: Apache-2.0 */
#include "safetensors.h"

#include <endian.h>
#include <string.h>

enum { MAX_HEADER = 100000000 };

void ws_head_begin(struct ws_head *h, struct ws_buf *out)
{
	const uint64_t length = 0;
	*h = (struct ws_head){ .out = out };
	ws_buf_init(out, MAX_HEADER);
	ws_buf_add(out, &length, sizeof length);
	ws_jw_init(&h->w, out);
	ws_jw_object(&h->w, NULL);
	ws_jw_object(&h->w, "__metadata__");
	ws_jw_str(&h->w, "format", "pt");
	ws_jw_end_object(&h->w);
}

void ws_head_add(struct ws_head *h, const char *name, enum ws_dtype dtype, unsigned n_dims,
                 const int64_t *dims, uint64_t bytes)
{
	ws_jw_object(&h->w, name);
	ws_jw_str(&h->w, "dtype", ws_dtype_safetensors(dtype));
	ws_jw_array(&h->w, "shape");
	for (unsigned d = 0; d < n_dims; d++)
		ws_jw_int(&h->w, NULL, dims[d]);
	ws_jw_end_array(&h->w);
	ws_jw_array(&h->w, "data_offsets");
	ws_jw_uint(&h->w, NULL, h->at);
	ws_jw_uint(&h->w, NULL, h->at + bytes);
	ws_jw_end_array(&h->w);
	ws_jw_end_object(&h->w);
	h->at += bytes;
}

/* Pads the header with spaces, so that the data begins at a multiple of 8. */
int ws_head_end(struct ws_head *h, struct ws_err *err)
{
	struct ws_buf *out = h->out;
	ws_jw_end_object(&h->w);
	while (out->len % 8 && !out->failed)
		ws_buf_putc(out, ' ');
	if (ws_buf_check(out, "header", err))
		return -1;
	const uint64_t length = htole64(out->len - sizeof length);
	memcpy(out->data, &length, sizeof length);
	return 0;
}
