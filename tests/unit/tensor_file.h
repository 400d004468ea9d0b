/* SPDX-License-Identifier: Apache-2.0 */
/* tensor_file.h - safetensors files for tests: the entries of the header one by one, then the data,
 * which is a hole where nobody writes it. */
#ifndef WS_TESTS_TENSOR_FILE_H
#define WS_TESTS_TENSOR_FILE_H

#include "test.h"
#include "wsync/dtype.h"
#include "wsync/tool/catalog.h"

#include <inttypes.h>
#include <unistd.h>

struct tensor_file {
	FILE *f;
	uint64_t bytes;           /* of data */
	bool more, whole;
};

static inline struct tensor_file tensor_file_begin(const char *path)
{
	struct tensor_file t = { .f = fopen(path, "we") };
	assert_non_null(t.f);
	fputs("12345678{", t.f);
	return t;
}

/* The shape as in JSON. */
static inline void tensor_file_entry(struct tensor_file *t, const char *name, const char *dtype,
                                     const char *shape, uint64_t bytes)
{
	fprintf(t->f, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%" PRIu64 ",%"
	        PRIu64 "]}", t->more ? "," : "", name, dtype, shape, t->bytes, t->bytes + bytes);
	t->bytes += bytes;
	t->more = true;
}

static inline void tensor_file_add(struct tensor_file *t, const char *name, enum ws_dtype dtype,
                                   unsigned n_dims, const int64_t *dims)
{
	char shape[WS_MAX_DIMS * 24] = "[";
	uint64_t bytes;
	for (unsigned d = 0; d < n_dims; d++)
		sprintf(shape + strlen(shape), "%s%" PRId64, d ? "," : "", dims[d]);
	assert_true(ws_dtype_bytes(dtype, n_dims, dims, &bytes));
	tensor_file_entry(t, name, ws_dtype_safetensors(dtype), strcat(shape, "]"), bytes);
}

/* Ends the header; what is written to t->f from now on is data. Returns where it begins. */
static inline uint64_t tensor_file_data(struct tensor_file *t)
{
	fputc('}', t->f);
	const long size = ftell(t->f);
	rewind(t->f);
	for (int i = 0; i < 8; i++)
		fputc((int)((uint64_t)(size - 8) >> 8 * i & 0xff), t->f);
	assert_int_equal(fflush(t->f), 0);
	assert_int_equal(ftruncate(fileno(t->f), (off_t)((uint64_t)size + t->bytes)), 0);
	assert_int_equal(fseek(t->f, size, SEEK_SET), 0);
	t->whole = true;
	return (uint64_t)size;
}

static inline void tensor_file_end(struct tensor_file *t)
{
	if (!t->whole)
		tensor_file_data(t);
	assert_int_equal(fclose(t->f), 0);
}

/* A file, and its tensors as they are. */
struct opened_file {
	struct ws_source *source;
	struct ws_catalog *catalog;
};

static inline struct opened_file open_file(const char *path)
{
	const struct ws_catalog_opts as_it_is = { .family = NULL };
	struct opened_file f = { 0 };
	struct ws_err err = WS_ERR_INIT;
	assert_ok(ws_source_open(&path, 1, &f.source, &err), &err);
	const struct ws_source *const source = f.source;
	assert_ok(ws_catalog_make(&source, 1, &as_it_is, &f.catalog, &err), &err);
	return f;
}

static inline void close_file(struct opened_file *f)
{
	ws_catalog_free(f->catalog);
	ws_source_close(f->source);
}

#endif
