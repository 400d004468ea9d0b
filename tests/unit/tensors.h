/* SPDX-License-Identifier: Apache-2.0 */
/* tensors.h - tensors in memory, cut and put together element by element, and written to files:
 * what catalogs are compared with. */
#ifndef TESTS_TENSORS_H
#define TESTS_TENSORS_H

#include "scratch.h"
#include "tensor_file.h"
#include "test.h"
#include "wsync/tool/catalog.h"

#include <stdint.h>

enum { TENSORS_MAX = 4096, ELEMENT = 2 }; /* bf16 all of them */

struct tensor {
	char name[128];
	int n;
	int64_t dims[3];
	uint8_t *bytes;
};

struct tensors {
	struct tensor v[TENSORS_MAX];
	size_t n;
};

static int64_t elements(const struct tensor *t)
{
	int64_t n = 1;
	for (int d = 0; d < t->n; d++)
		n *= t->dims[d];
	return n;
}

static struct tensor *tensors_add(struct tensors *set, const char *name, int n, int64_t a,
                                  int64_t b, int64_t c)
{
	assert_true(set->n < TENSORS_MAX);
	struct tensor *t = &set->v[set->n++];
	*t = (struct tensor){ .n = n, .dims = { a, b, c } };
	assert_true(strlen(name) < sizeof t->name);
	strcpy(t->name, name);
	t->bytes = malloc((size_t)elements(t) * ELEMENT + 1);
	assert_non_null(t->bytes);
	return t;
}

/* Bytes that depend on name and place. */
static void tensors_fill(struct tensor *t)
{
	uint64_t x = 88172645463325252u;
	for (const char *p = t->name; *p; p++)
		x = (x ^ (uint64_t)*p) * 1099511628211u;
	for (int64_t i = 0; i < elements(t) * ELEMENT; i++) {
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		t->bytes[i] = (uint8_t)(x >> 24);
	}
}

static struct tensor *tensors_random(struct tensors *set, const char *name, int n, int64_t a,
                                     int64_t b, int64_t c)
{
	struct tensor *t = tensors_add(set, name, n, a, b, c);
	tensors_fill(t);
	return t;
}

static const struct tensor *tensors_find(const struct tensors *set, const char *name)
{
	for (size_t i = 0; i < set->n; i++)
		if (strcmp(set->v[i].name, name) == 0)
			return &set->v[i];
	fail_msg("no tensor %s", name);
	return NULL;
}

static void tensors_free(struct tensors *set)
{
	for (size_t i = 0; i < set->n; i++)
		free(set->v[i].bytes);
	set->n = 0;
}

static uint8_t *element(const struct tensor *t, int64_t a, int64_t b, int64_t c)
{
	int64_t i = a;
	if (t->n > 1)
		i = i * t->dims[1] + b;
	if (t->n > 2)
		i = i * t->dims[2] + c;
	assert_true(i >= 0 && i < elements(t));
	return t->bytes + i * ELEMENT;
}

static void copy_element(const struct tensor *to, int64_t a, int64_t b, int64_t c,
                         const struct tensor *from, int64_t x, int64_t y, int64_t z)
{
	memcpy(element(to, a, b, c), element(from, x, y, z), ELEMENT);
}

/* One file; returns nothing but the file. */
static void tensors_write(const struct tensors *set, const char *path)
{
	struct tensor_file out = tensor_file_begin(path);
	for (size_t i = 0; i < set->n; i++)
		tensor_file_add(&out, set->v[i].name, WS_DTYPE_BF16, (unsigned)set->v[i].n,
		                set->v[i].dims);
	tensor_file_data(&out);
	for (size_t i = 0; i < set->n; i++)
		fwrite(set->v[i].bytes, ELEMENT, (size_t)elements(&set->v[i]), out.f);
	tensor_file_end(&out);
}

/* The item is that tensor, in shape and in every byte. */
static void __attribute__((unused))
assert_item(const struct ws_catalog *c, const struct tensor *want)
{
	struct ws_err err = WS_ERR_INIT;
	const struct ws_item *item = ws_catalog_find(c, want->name);
	if (!item)
		fail_msg("no item %s", want->name);
	assert_int_equal(item->n_dims, want->n);
	for (int d = 0; d < want->n; d++)
		assert_int_equal(item->dims[d], want->dims[d]);
	const size_t bytes = (size_t)elements(want) * ELEMENT;
	assert_int_equal(item->bytes, bytes);
	uint8_t *got = malloc(bytes + 1);
	assert_non_null(got);
	if (ws_item_read(item, 0, got, bytes, &err))
		fail_msg("%s: %s", want->name, err.msg);
	if (memcmp(got, want->bytes, bytes) != 0)
		fail_msg("%s (%s) has other bytes", want->name,
		         item->derivation ? item->derivation : "as it is");
	free(got);
}

#endif
