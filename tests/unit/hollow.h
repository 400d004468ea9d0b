/* SPDX-License-Identifier: Apache-2.0 */
/* hollow.h - safetensors files of any size that cost nothing: a header, and a hole for the data. */
#ifndef WS_TESTS_HOLLOW_H
#define WS_TESTS_HOLLOW_H

#include "wsync/dtype.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

struct hollow {
	FILE *f;
	uint64_t at;              /* bytes of data so far */
	bool more;
};

static inline bool hollow_begin(struct hollow *h, const char *path)
{
	*h = (struct hollow){ .f = fopen(path, "we") };
	return h->f && fputs("12345678{", h->f) >= 0;
}

static inline bool hollow_add(struct hollow *h, const char *name, const char *dtype,
                              unsigned n_dims, const int64_t *dims)
{
	enum ws_dtype type;
	uint64_t bytes;
	if (!ws_dtype_from_safetensors(dtype, &type) || !ws_dtype_bytes(type, n_dims, dims, &bytes))
		return false;
	fprintf(h->f, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", h->more ? "," : "", name, dtype);
	for (unsigned d = 0; d < n_dims; d++)
		fprintf(h->f, "%s%" PRId64, d ? "," : "", dims[d]);
	fprintf(h->f, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", h->at, h->at + bytes);
	h->at += bytes;
	h->more = true;
	return true;
}

static inline bool hollow_end(struct hollow *h)
{
	const bool written = fputc('}', h->f) != EOF;
	const uint64_t size = (uint64_t)ftell(h->f);
	rewind(h->f);
	for (int i = 0; i < 8; i++)
		fputc((int)((size - 8) >> 8 * i & 0xff), h->f);
	const bool flushed =
		fflush(h->f) == 0 && ftruncate(fileno(h->f), (off_t)(size + h->at)) == 0;
	return fclose(h->f) == 0 && written && flushed;
}

#endif
