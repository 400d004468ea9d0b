/* SPDX-License-Identifier: Apache-2.0 */
/* golden_names.h - reads the lists of tests/data/names and tests/data/census.
 *
 * A line is NAME [DTYPE] SHAPE; {a..b} in a name stands for every number from a to b,
 * so that 140,000 names are forty lines. '#' begins a comment. Shapes are 128x2048;
 * one number is one dimension, '-' is none. */
#ifndef WS_TESTS_GOLDEN_NAMES_H
#define WS_TESTS_GOLDEN_NAMES_H

#include "wsync/dtype.h"

#include <stdbool.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GOLDEN_DIR "tests/data/names/"

struct golden_name {
	const char *name;
	char dtype[16];           /* "" in lists of parameters */
	unsigned n_dims;
	int64_t dims[WS_MAX_DIMS];
};

/* False ends the reading. */
typedef bool golden_fn(void *ctx, const struct golden_name *entry);

static inline bool golden_expand(const char *name, struct golden_name *entry, golden_fn *fn,
                                 void *ctx)
{
	const char *open = strchr(name, '{');
	long first, last;
	if (!open) {
		entry->name = name;
		return fn(ctx, entry);
	}
	if (sscanf(open, "{%ld..%ld}", &first, &last) != 2)
		return false;
	for (long i = first; i <= last; i++) {
		char next[512];
		snprintf(next, sizeof next, "%.*s%ld%s", (int)(open - name), name, i,
		         strchr(open, '}') + 1);
		if (!golden_expand(next, entry, fn, ctx))
			return false;
	}
	return true;
}

/* "NAME [DTYPE] SHAPE" of one line, which it cuts up. */
static inline bool golden_line(char *line, golden_fn *fn, void *ctx)
{
	struct golden_name entry = { 0 };
	char *save = NULL, *name = strtok_r(line, " \n", &save);
	char *dtype = strtok_r(NULL, " \n", &save), *shape = strtok_r(NULL, " \n", &save);
	if (!name || !dtype)
		return false;
	if (shape)
		snprintf(entry.dtype, sizeof entry.dtype, "%s", dtype);
	else
		shape = dtype;
	char *at = *shape == '-' ? NULL : shape;
	for (; at && entry.n_dims < WS_MAX_DIMS; at = strchr(at, 'x')) {
		at += *at == 'x';
		entry.dims[entry.n_dims++] = strtoll(at, NULL, 10);
	}
	return golden_expand(name, &entry, fn, ctx);
}

/* Calls line() for every line of a file that is neither empty nor a comment. */
static inline bool golden_lines(const char *path, bool (*line)(char *line, void *ctx), void *ctx)
{
	char *text = NULL;
	size_t size = 0;
	FILE *f = fopen(path, "re");
	bool good = f != NULL;
	while (good && getline(&text, &size, f) >= 0)
		if (*text != '#' && *text != '\n')
			good = line(text, ctx);
	free(text);
	if (f)
		fclose(f);
	return good;
}

static inline bool golden_each(const char *file, bool (*line)(char *line, void *ctx), void *ctx)
{
	char path[256];
	snprintf(path, sizeof path, GOLDEN_DIR "%s", file);
	return golden_lines(path, line, ctx);
}

static inline void golden_shape(unsigned n, const int64_t *dims, char text[128])
{
	size_t len = 0;
	text[0] = '\0';
	for (unsigned d = 0; d < n; d++)
		len += (size_t)snprintf(text + len, 128 - len, "%s%" PRId64, d ? "x" : "", dims[d]);
}

#endif
