/* SPDX-License-Identifier: Apache-2.0 */
/* packed_file.h - tensors of any types put into a file, and its catalog. */
#ifndef TESTS_PACKED_FILE_H
#define TESTS_PACKED_FILE_H

#include "scratch.h"
#include "tensor_file.h"
#include "test.h"
#include "unpack.h"

#include <stdint.h>

struct part {
	const char *name, *dtype, *shape; /* shape as in JSON */
	const void *bytes;                /* NULL: zeros */
	size_t n;                         /* bytes */
};

/* Writes x.safetensors in the current directory and opens it. */
static void write_packed(struct opened_file *f, const struct part *parts, size_t n)
{
	struct tensor_file out = tensor_file_begin("x.safetensors");
	for (size_t i = 0; i < n; i++)
		tensor_file_entry(&out, parts[i].name, parts[i].dtype, parts[i].shape, parts[i].n);
	tensor_file_data(&out);
	for (size_t i = 0; i < n; i++)
		if (parts[i].bytes)
			fwrite(parts[i].bytes, 1, parts[i].n, out.f);
		else
			fseek(out.f, (long)parts[i].n, SEEK_CUR);
	tensor_file_end(&out);
	*f = open_file("x.safetensors");
}

__attribute__((unused)) /* by some */
static int find_packed(const struct opened_file *f, const char *name, const struct ws_quant *config,
                       struct ws_packed *p, struct ws_err *err)
{
	const struct ws_item *item = ws_catalog_find(f->catalog, name);
	if (!item)
		fail_msg("no %s", name);
	return ws_packed_find(f->catalog, item, config, p, err);
}

#endif
