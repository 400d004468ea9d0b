/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors.c - the safetensors format (https://github.com/huggingface/safetensors).
 *
 *   bytes 0..7     N, the length of the header: unsigned, little-endian, at most 100,000,000
 *   bytes 8..8+N   a JSON object that begins with '{', padded with spaces
 *                    "NAME": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [BEGIN, END]}, ...
 *                    "__metadata__": {"key": "value", ...}        (optional)
 *   the rest       the data; offsets count from its first byte
 *
 * The data has no holes and no overlaps and is covered to its last byte. The bytes of a tensor are
 * dense, row-major and little-endian. All of that is checked here: callers rely on it. */
#include "safetensors.h"

#include "file.h"
#include "foreign.h"
#include "name_index.h"

#include <endian.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_HEADER = 100000000 };

typedef unsigned long long ull;

struct reader {
	struct ws_scan scan;
	struct ws_safetensors *st;
	uint64_t data_at; /* offset of the data in the file */
	uint64_t data;    /* bytes of data */
	size_t tensors_cap;
	bool metadata_seen;
};

/* ---- the entry of a tensor ---- */

struct entry {
	struct ws_tensor t;
	uint64_t data; /* bytes of data in the file */
};

static int read_dtype(struct ws_scan *s, const char *name, void *into)
{
	struct entry *e = into;
	char *dtype;
	if (ws_scan_string(s, name, &dtype))
		return -1;
	if (!ws_dtype_from_safetensors(dtype, &e->t.dtype))
		return ws_scan_refuse(s, "unknown dtype '%s'", ws_quote(dtype).text);
	return 0;
}

static int read_shape(struct ws_scan *s, const char *name, void *into)
{
	(void)name;
	return ws_entry_shape(s, &((struct entry *)into)->t);
}

/* Both offsets stay relative to the data until the whole header is checked. */
static int read_offsets(struct ws_scan *s, const char *name, void *into)
{
	struct entry *e = into;
	uint64_t at[2];
	size_t n = 0;
	int more;
	if (ws_scan_open(s, '[', name))
		return -1;
	while ((more = ws_scan_next(s, ']', &n)) > 0) {
		if (n > 2)
			break;
		if (ws_scan_uint(s, name, &at[n - 1]))
			return -1;
	}
	if (more < 0)
		return -1;
	if (n != 2)
		return ws_scan_refuse(s, "data_offsets are not two integers");
	if (at[0] > at[1])
		return ws_scan_refuse(s, "data_offsets begin at %llu, after their end %llu",
		                      (ull)at[0], (ull)at[1]);
	if (at[1] > e->data)
		return ws_scan_refuse(s, "data_offsets end at %llu, past the %llu bytes of data",
		                      (ull)at[1], (ull)e->data);
	e->t.offset = at[0];
	e->t.bytes = at[1] - at[0];
	return 0;
}

static int keep(struct reader *r, const struct ws_tensor *t)
{
	struct ws_safetensors *st = r->st;
	struct ws_tensor *p = ws_entry_grow(st->tensors, st->n_tensors, &r->tensors_cap, sizeof *p);
	if (!p)
		return ws_oom(r->scan.err);
	st->tensors = p;
	p[st->n_tensors++] = *t;
	return 0;
}

static int read_tensor(struct reader *r, const char *name, ull name_at)
{
	static const struct ws_scan_field fields[] = { { "dtype", read_dtype, false },
		                                       { "shape", read_shape, false },
		                                       { "data_offsets", read_offsets, false },
		                                       { NULL, NULL, false } };
	struct entry e = { .t = { .name = name }, .data = r->data };
	const struct ws_tensor *t = &e.t;
	uint64_t want;
	r->scan.tensor = name;
	if (ws_entry_name(&r->scan, name, name_at) ||
	    ws_scan_object(&r->scan, "its entry", fields, &e, NULL))
		return -1;
	if (!ws_dtype_bytes(t->dtype, t->n_dims, t->dims, &want))
		return ws_scan_refuse(&r->scan, ws_dtype_bits(t->dtype) % 8 ?
		                      "its shape leaves part of a byte" :
		                      "its shape is too large for any file");
	if (want != t->bytes)
		return ws_scan_refuse(&r->scan,
		                      "has %llu bytes of data where its dtype and shape need %llu",
		                      (ull)t->bytes, (ull)want);
	r->scan.tensor = NULL;
	return keep(r, t);
}

/* ---- the header ---- */

static int read_metadata(struct reader *r)
{
	if (r->metadata_seen)
		return ws_scan_refuse(&r->scan, "__metadata__ twice, again at byte %llu",
		                      ws_scan_here(&r->scan));
	r->metadata_seen = true;
	return ws_entry_texts(&r->scan, "__metadata__");
}

static int by_offset(const void *a, const void *b)
{
	const struct ws_tensor *x = a, *y = b;
	if (x->offset != y->offset)
		return x->offset < y->offset ? -1 : 1;
	/* An empty tensor sorts before another tensor that begins at the same byte. */
	return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static int check_twice(struct reader *r)
{
	const struct ws_safetensors *st = r->st;
	struct ws_names names = { 0 };
	size_t twice[2];
	const int rc = ws_names_init(&names, st->tensors, sizeof *st->tensors, st->n_tensors, twice,
	                             r->scan.err);
	if (rc > 0) {
		r->scan.tensor = st->tensors[twice[0]].name;
		ws_scan_refuse(&r->scan, "occurs twice, at byte %llu and at byte %llu of the data",
		       (ull)st->tensors[twice[0]].offset, (ull)st->tensors[twice[1]].offset);
	}
	ws_names_fini(&names);
	return rc ? -1 : 0;
}

/* Checks that the tensors cover the data without gaps or overlaps, and makes offsets relative
 * to the file. */
static int check_layout(struct reader *r)
{
	struct ws_safetensors *st = r->st;
	uint64_t end = 0;
	for (size_t i = 0; i < st->n_tensors; i++) {
		struct ws_tensor *t = &st->tensors[i];
		r->scan.tensor = t->name;
		if (t->offset < end)
			return ws_scan_refuse(&r->scan, "begins at byte %llu of the data, inside "
			                      "tensor '%s', which ends at %llu", (ull)t->offset,
			                      ws_quote(st->tensors[i - 1].name).text, (ull)end);
		if (t->offset > end)
			return ws_scan_refuse(&r->scan, "begins at byte %llu of the data, after a "
			                      "hole of %llu bytes", (ull)t->offset,
			                      (ull)(t->offset - end));
		end += t->bytes;
		t->offset += r->data_at;
	}
	r->scan.tensor = NULL;
	if (end != r->data)
		return ws_scan_refuse(&r->scan, "%llu bytes from byte %llu on belong to no tensor",
		                      (ull)(r->data - end), (ull)(r->data_at + end));
	return 0;
}

static int read_header(struct reader *r)
{
	size_t n = 0;
	int more;
	if (ws_scan_open(&r->scan, '{', "header"))
		return -1;
	while ((more = ws_scan_next(&r->scan, '}', &n)) > 0) {
		char *name;
		const ull at = ws_scan_here(&r->scan);
		if (ws_scan_key(&r->scan, &name))
			return -1;
		const bool metadata = strcmp(name, "__metadata__") == 0;
		if (metadata ? read_metadata(r) : read_tensor(r, name, at))
			return -1;
	}
	if (more || ws_scan_end(&r->scan))
		return -1;
	if (r->st->n_tensors > 1)
		qsort(r->st->tensors, r->st->n_tensors, sizeof *r->st->tensors, by_offset);
	return check_twice(r) || check_layout(r) ? -1 : 0;
}

/* Reads N, the header's length, from the first 8 bytes of a file. A file of another format differs
 * from one that was cut short in its ninth byte. */
static int header_length(const uint8_t *first, const char *path, uint64_t size, size_t *out,
                         struct ws_err *err)
{
	uint64_t n;
	memcpy(&n, first, sizeof n);
	n = le64toh(n);
	if (n == 0)
		return ws_err_set(err, WS_EINPUT, "%s: the header has length 0", path);
	if (n <= MAX_HEADER && n <= size - 8) {
		*out = (size_t)n;
		return 0;
	}
	if (memcmp(first, "version ", 8) == 0) {
		ws_err_set(err, WS_EINPUT, "%s: is a Git LFS pointer, not the file itself", path);
		return ws_err_hint(err, "fetch the file with git lfs pull");
	}
	if (n > MAX_HEADER)
		ws_err_set(err, WS_EINPUT, "%s: the header has length %llu, more than the %d of "
		           "the format", path, (ull)n, MAX_HEADER);
	else
		ws_err_set(err, WS_EINPUT, "%s: the header ends at byte %llu, past the end of the "
		           "file at %llu", path, (ull)n + 8, (ull)size);
	return size > 8 && first[8] == '{' ? -1 : ws_foreign_file(path, first, err);
}

static int no_brace(const struct ws_scan *scan)
{
	uint8_t first[8];
	const uint64_t n = htole64(scan->len);
	memcpy(first, &n, sizeof first);
	ws_scan_refuse(scan, "the header does not begin with '{' at byte 8");
	return ws_foreign_file(scan->path, first, scan->err);
}

/* Takes ownership of the scan's text. */
static int parse_file(const struct ws_scan *scan, uint64_t size, struct ws_safetensors *out)
{
	struct ws_safetensors st = { .text = scan->text };
	struct reader r = {
		.scan = *scan, .st = &st, .data_at = 8 + scan->len, .data = size - 8 - scan->len
	};
	r.scan.base = 8;
	const int rc = scan->text[0] == '{' ? read_header(&r) : no_brace(scan);
	if (rc)
		ws_safetensors_free(&st);
	else
		*out = st;
	return rc;
}

static int too_short(const char *path, uint64_t size, struct ws_err *err)
{
	static const uint8_t none[8];
	ws_err_set(err, WS_EINPUT, "%s: has %llu bytes, fewer than the 8 that begin a safetensors "
	           "file", path, (ull)size);
	return ws_foreign_file(path, none, err);
}

int ws_safetensors_read(int fd, const char *path, uint64_t size, struct ws_safetensors *out,
                        struct ws_err *err)
{
	uint8_t first[9];
	struct ws_scan scan = { .path = path, .err = err };
	if (size < 8)
		return too_short(path, size, err);
	if (ws_file_pread(fd, path, 0, first, size < sizeof first ? 8 : sizeof first, err) ||
	    header_length(first, path, size, &scan.len, err))
		return -1;
	scan.text = malloc(scan.len);
	if (!scan.text)
		return ws_oom(scan.err);
	if (ws_file_pread(fd, path, 8, scan.text, scan.len, err)) {
		free(scan.text);
		return -1;
	}
	return parse_file(&scan, size, out);
}

int ws_safetensors_parse(const void *file, size_t size, const char *path,
                         struct ws_safetensors *out, struct ws_err *err)
{
	struct ws_scan scan;
	size_t len;
	if (size < 8)
		return too_short(path, size, err);
	if (header_length(file, path, size, &len, err) ||
	    ws_scan_copy((const char *)file + 8, len, path, &scan, err))
		return -1;
	return parse_file(&scan, size, out);
}

void ws_safetensors_free(struct ws_safetensors *st)
{
	if (!st)
		return;
	free(st->tensors);
	free(st->text);
	*st = (struct ws_safetensors)WS_SAFETENSORS_INIT;
}
