/* SPDX-License-Identifier: Apache-2.0 */
/* packed_file.h - tensors of any types put into a file, and its catalog. */
#ifndef TESTS_PACKED_FILE_H
#define TESTS_PACKED_FILE_H

#include "scratch.h"
#include "test.h"
#include "unpack.h"

#include <stdint.h>

struct part {
	const char *name, *dtype, *shape; /* shape as in JSON */
	const void *bytes;                /* NULL: zeros */
	size_t n;                         /* bytes */
};

struct packed_file {
	struct ws_source *source;
	struct ws_catalog *catalog;
};

static void open_packed(struct packed_file *f, const char *path)
{
	const struct ws_catalog_opts opts = { .family = NULL };
	struct ws_err err = WS_ERR_INIT;
	assert_ok(ws_source_open(&path, 1, &f->source, &err), &err);
	const struct ws_source *const source = f->source;
	assert_ok(ws_catalog_make(&source, 1, &opts, &f->catalog, &err), &err);
}

static void close_packed(struct packed_file *f)
{
	ws_catalog_free(f->catalog);
	ws_source_close(f->source);
}

/* Writes x.safetensors in the current directory and opens it. */
static void write_packed(struct packed_file *f, const struct part *parts, size_t n)
{
	char header[8192];
	size_t len = 1, at = 0;
	header[0] = '{';
	for (size_t i = 0; i < n; i++) {
		len += (size_t)snprintf(
			header + len, sizeof header - len,
			"%s\"%s\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%zu,%zu]}",
			i ? "," : "", parts[i].name, parts[i].dtype, parts[i].shape, at,
			at + parts[i].n);
		assert_true(len + 1 < sizeof header);
		at += parts[i].n;
	}
	header[len++] = '}';
	const uint64_t size = len;
	FILE *out = fopen("x.safetensors", "wb");
	assert_non_null(out);
	/* these tests run on little-endian machines */
	assert_int_equal(fwrite(&size, 1, 8, out), 8);
	assert_int_equal(fwrite(header, 1, len, out), len);
	for (size_t i = 0; i < n; i++)
		for (size_t k = 0; k < parts[i].n; k++)
			assert_int_not_equal(fputc(parts[i].bytes ?
			                                   ((const uint8_t *)parts[i].bytes)[k] :
			                                   0,
			                           out),
			                     EOF);
	assert_int_equal(fclose(out), 0);
	open_packed(f, "x.safetensors");
}

__attribute__((unused)) /* by some */
static int find_packed(const struct packed_file *f, const char *name, const struct ws_quant *config,
                       struct ws_packed *p, struct ws_err *err)
{
	const struct ws_item *item = ws_catalog_find(f->catalog, name);
	if (!item)
		fail_msg("no %s", name);
	return ws_packed_find(f->catalog, item, config, p, err);
}

#endif
