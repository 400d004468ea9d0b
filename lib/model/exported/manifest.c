/* SPDX-License-Identifier: Apache-2.0 */
/* manifest.c - the list of tensors that a trainer exports from its GPU memory (wsync-manifest(5),
 * cmd/python/wsync_manifest.py):
 *
 *   {"version": 1,                                 the first field
 *    "process": {"pid": N, "start": TICKS, "boot_id": "...", "pid_namespace": "pid:[N]",
 *                "host": "..."},
 *    "devices": [{"uuid": "GPU-8d2f...", "ordinal": 0}, ...],
 *    "allocations": [{"device": 0, "handle": "128 hex digits", "bytes": N}, ...],
 *    "tensors": {"NAME": {"dtype": "bfloat16", "shape": [2, 3], "allocation": 0,
 *                         "offset": BYTES}, ...},
 *    "config": "DIR or config.json",               optional; relative to the manifest's directory
 *    "metadata": {"key": "value", ...}}            optional
 *
 * Every tensor is dense and row-major. Empty tensors may omit allocation and offset. Unknown fields
 * are refused: a new field that matters comes with another version. */
#include "manifest.h"

#include "name_index.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TEXT = 256 << 20 };

typedef unsigned long long ull;

static int check_allocations(struct ws_manifest_reader *r)
{
	struct ws_manifest *m = r->m;
	uint64_t base = 0;
	for (size_t i = 0; i < m->n_allocations; i++) {
		struct ws_manifest_allocation *a = &m->allocations[i];
		if (a->device >= m->n_devices)
			return ws_scan_refuse(&r->scan,
			                      "allocation %zu is on device %llu of %zu (from 0)",
			                      i, (ull)a->device, m->n_devices);
		a->base = base;
		base += a->bytes;
	}
	return 0;
}

static int by_handle(const void *a, const void *b)
{
	const struct ws_manifest_allocation *const *x = a, *const *y = b;
	return memcmp((*x)->handle, (*y)->handle, sizeof (*x)->handle);
}

/* Refuses an allocation listed twice: it would be opened twice, and hide overlapping tensors. */
static int check_handles(struct ws_manifest_reader *r)
{
	const struct ws_manifest *m = r->m;
	const struct ws_manifest_allocation **sorted = calloc(m->n_allocations + 1, sizeof *sorted);
	int rc = sorted ? 0 : ws_oom(r->scan.err);
	for (size_t i = 0; rc == 0 && i < m->n_allocations; i++)
		sorted[i] = &m->allocations[i];
	if (rc == 0)
		qsort(sorted, m->n_allocations, sizeof *sorted, by_handle);
	for (size_t i = 1; rc == 0 && i < m->n_allocations; i++)
		if (by_handle(&sorted[i - 1], &sorted[i]) == 0)
			rc = ws_scan_refuse(&r->scan,
			                    "allocations %td and %td have the same handle",
			                    sorted[i - 1] - m->allocations,
			                    sorted[i] - m->allocations);
	free(sorted);
	return rc;
}

/* Checks that tensors are inside their allocations; makes offsets count over all allocations. */
static int check_places(struct ws_manifest_reader *r)
{
	struct ws_manifest *m = r->m;
	for (size_t i = 0; i < m->list.n_tensors; i++) {
		struct ws_tensor *t = &m->list.tensors[i];
		r->scan.tensor = t->name;
		if (t->bytes == 0) {
			t->offset = 0;
			continue;
		}
		if (r->of[i] >= m->n_allocations)
			return ws_scan_refuse(&r->scan,
			                      "is in allocation %llu of %zu (from 0)",
			                      (ull)r->of[i], m->n_allocations);
		const struct ws_manifest_allocation *a = &m->allocations[r->of[i]];
		if (t->bytes > a->bytes || t->offset > a->bytes - t->bytes)
			return ws_scan_refuse(
				&r->scan,
				"has %llu bytes at %llu of allocation %llu, which has %llu",
				(ull)t->bytes, (ull)t->offset, (ull)r->of[i], (ull)a->bytes);
		t->offset += a->base;
	}
	r->scan.tensor = NULL;
	return 0;
}

static int by_place(const void *a, const void *b)
{
	const struct ws_tensor *x = a, *y = b;
	if (x->offset != y->offset)
		return x->offset < y->offset ? -1 : 1;
	if (x->bytes != y->bytes)
		return x->bytes < y->bytes ? -1 : 1;
	return strcmp(x->name, y->name);
}

/* Tied weights share all bytes. Two tensors that share only a part of their bytes have a wrong
 * offset, for example an offset in elements. */
static int check_apart(struct ws_manifest_reader *r)
{
	const struct ws_tensor *before = NULL;
	for (size_t i = 0; i < r->m->list.n_tensors; i++) {
		const struct ws_tensor *t = &r->m->list.tensors[i];
		const bool tied =
			before && before->offset == t->offset && before->bytes == t->bytes;
		r->scan.tensor = t->name;
		if (before && !tied && t->offset - before->offset < before->bytes)
			return ws_scan_refuse(&r->scan,
			                      "shares a part of its bytes with tensor '%s'",
			                      ws_quote(before->name).text);
		before = t->bytes ? t : before;
	}
	r->scan.tensor = NULL;
	return 0;
}

static int check_twice(struct ws_manifest_reader *r)
{
	const struct ws_safetensors *list = &r->m->list;
	struct ws_names names = { 0 };
	size_t twice[2];
	const int rc = ws_names_init(&names, list->tensors, sizeof *list->tensors, list->n_tensors,
	                             twice, r->scan.err);
	if (rc > 0)
		ws_scan_refuse(&r->scan, "tensor '%s' is listed twice",
		               ws_quote(list->tensors[twice[0]].name).text);
	ws_names_fini(&names);
	return rc ? -1 : 0;
}

static int check_all(struct ws_manifest_reader *r)
{
	struct ws_safetensors *list = &r->m->list;
	if (check_allocations(r) || check_handles(r) || check_places(r))
		return -1;
	if (list->n_tensors)
		qsort(list->tensors, list->n_tensors, sizeof *list->tensors, by_place);
	return check_apart(r) || check_twice(r) ? -1 : 0;
}

/* Takes ownership of the text. */
static int parse_manifest(const struct ws_scan *scan, struct ws_manifest *out)
{
	struct ws_manifest m = { .list = { .text = scan->text } };
	struct ws_manifest_reader r = { .scan = *scan, .m = &m };
	const int rc = ws_manifest_fields(&r) || check_all(&r) ? -1 : 0;
	free(r.of);
	if (rc)
		ws_manifest_free(&m);
	else
		*out = m;
	return rc;
}

int ws_manifest_read(const char *path, struct ws_manifest *out, struct ws_err *err)
{
	struct ws_scan scan;
	return ws_scan_file(path, MAX_TEXT, &scan, err) ? -1 : parse_manifest(&scan, out);
}

int ws_manifest_parse(const char *text, size_t len, const char *path, struct ws_manifest *out,
                      struct ws_err *err)
{
	struct ws_scan scan;
	return ws_scan_copy(text, len, path, &scan, err) ? -1 : parse_manifest(&scan, out);
}

void ws_manifest_free(struct ws_manifest *m)
{
	if (!m)
		return;
	free(m->devices);
	free(m->allocations);
	ws_safetensors_free(&m->list);
	*m = (struct ws_manifest)WS_MANIFEST_INIT;
}

size_t ws_manifest_find(const struct ws_manifest *m, uint64_t offset)
{
	size_t low = 0, high = m->n_allocations;
	while (high - low > 1) {
		const size_t middle = low + (high - low) / 2;
		if (m->allocations[middle].base <= offset)
			low = middle;
		else
			high = middle;
	}
	return low;
}
