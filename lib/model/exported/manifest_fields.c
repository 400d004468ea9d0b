/* SPDX-License-Identifier: Apache-2.0 */
/* manifest_fields.c - the grammar of a manifest: its fields and the valid values of each. */
#include "manifest.h"

#include "name_index.h"
#include "wsync/tool/str.h"

#include <stdbool.h>
#include <string.h>

enum { VERSION = 1, MAX_DEVICES = 64, MAX_ALLOCATIONS = 1 << 16 };
/* limit of an allocation; the sum of all allocations is at most 2^60 */
static const uint64_t MAX_BYTES = UINT64_C(1) << 44;

typedef unsigned long long ull;

/* Appends a zeroed element to an array. */
static void *add(void **array, size_t *n, size_t *cap, size_t size)
{
	char *p = ws_entry_grow(*array, *n, cap, size);
	if (!p)
		return NULL;
	*array = p;
	return memset(p + (*n)++ * size, 0, size);
}

/* Reads a list of objects, each into the next element of an array. */
struct list {
	const char *what;
	int most;
	const struct ws_scan_field *fields;
	size_t size;
};

static int read_list(struct ws_scan *s, const char *name, const struct list *l, void **array,
                     size_t *n)
{
	size_t items = 0, cap = 0;
	int more;
	if (ws_scan_open(s, '[', name))
		return -1;
	while ((more = ws_scan_next(s, ']', &items)) > 0) {
		if (items > (size_t)l->most)
			return ws_scan_refuse(s, "more than %d %ss", l->most, l->what);
		void *item = add(array, n, &cap, l->size);
		if (!item)
			return ws_oom(s->err);
		if (ws_scan_object(s, l->what, l->fields, item, NULL))
			return -1;
	}
	return more;
}

/* Reads a string of printable characters that fits into dst. */
static int read_text(struct ws_scan *s, const char *name, char *dst, size_t size)
{
	char *text, clean[256];
	const ull at = ws_scan_here(s);
	if (ws_scan_string(s, name, &text))
		return -1;
	if (strlen(text) >= size)
		return ws_scan_refuse(s, "%s at byte %llu is longer than %zu bytes", name, at,
		                      size - 1);
	if (strcmp(ws_printable(clean, sizeof clean, text, strlen(text)), text) != 0)
		return ws_scan_refuse(s, "%s at byte %llu has a control or hidden character", name,
		                      at);
	strcpy(dst, text);
	return 0;
}

/* ---- process ---- */

static int read_pid(struct ws_scan *s, const char *name, void *into)
{
	struct ws_process *p = into;
	uint64_t pid;
	const ull at = ws_scan_here(s);
	if (ws_scan_uint(s, name, &pid))
		return -1;
	if (pid == 0 || pid > INT32_MAX)
		return ws_scan_refuse(s, "pid at byte %llu is not a process id", at);
	p->pid = (int64_t)pid;
	return 0;
}

static int read_start(struct ws_scan *s, const char *name, void *into)
{
	const ull at = ws_scan_here(s);
	struct ws_process *p = into;
	if (ws_scan_uint(s, name, &p->start_ticks))
		return -1;
	return p->start_ticks ? 0 : ws_scan_refuse(s, "start at byte %llu is 0", at);
}

static int read_boot_id(struct ws_scan *s, const char *name, void *into)
{
	struct ws_process *p = into;
	return read_text(s, name, p->boot_id, sizeof p->boot_id);
}

static int read_namespace(struct ws_scan *s, const char *name, void *into)
{
	struct ws_process *p = into;
	return read_text(s, name, p->pid_namespace, sizeof p->pid_namespace);
}

static int read_host(struct ws_scan *s, const char *name, void *into)
{
	struct ws_process *p = into;
	return read_text(s, name, p->host, sizeof p->host);
}

static int read_process(struct ws_scan *s, const char *name, void *into)
{
	static const struct ws_scan_field fields[] = { { "pid", read_pid, false },
		                                       { "start", read_start, false },
		                                       { "boot_id", read_boot_id, false },
		                                       { "pid_namespace", read_namespace, false },
		                                       { "host", read_host, false },
		                                       { NULL, NULL, false } };
	struct ws_manifest_reader *r = into;
	return ws_scan_object(s, name, fields, &r->m->process, NULL);
}

/* ---- devices and allocations ---- */

/* Reads 2n hexadecimal digits; hyphens are skipped where allowed. */
static bool unhex(const char *text, bool hyphens, uint8_t *dst, size_t n)
{
	static const char digits[] = "0123456789abcdef0123456789ABCDEF";
	size_t k = 0;
	for (; *text; text++) {
		const char *d = strchr(digits, *text);
		if (hyphens && *text == '-')
			continue;
		if (!d || k == 2 * n)
			return false;
		const size_t value = (size_t)(d - digits) % 16;
		dst[k / 2] = (uint8_t)(k % 2 ? dst[k / 2] | value : value << 4);
		k++;
	}
	return k == 2 * n;
}

static int read_uuid(struct ws_scan *s, const char *name, void *into)
{
	struct ws_manifest_device *d = into;
	const ull at = ws_scan_here(s);
	if (read_text(s, name, d->name, sizeof d->name))
		return -1;
	const bool prefixed = strncmp(d->name, "GPU-", 4) == 0 || strncmp(d->name, "MIG-", 4) == 0;
	if (!prefixed || !unhex(d->name + 4, true, d->uuid, sizeof d->uuid))
		return ws_scan_refuse(s, "uuid at byte %llu is not like GPU-8d2f0a91-...: '%s'", at,
		                      d->name);
	return 0;
}

static int read_ordinal(struct ws_scan *s, const char *name, void *into)
{
	struct ws_manifest_device *d = into;
	return ws_scan_uint(s, name, &d->ordinal);
}

static int read_devices(struct ws_scan *s, const char *name, void *into)
{
	static const struct ws_scan_field fields[] = { { "uuid", read_uuid, false },
		                                       { "ordinal", read_ordinal, false },
		                                       { NULL, NULL, false } };
	static const struct list list = { "device", MAX_DEVICES, fields,
		                          sizeof(struct ws_manifest_device) };
	struct ws_manifest *m = ((struct ws_manifest_reader *)into)->m;
	void *array = m->devices;
	const int rc = read_list(s, name, &list, &array, &m->n_devices);
	m->devices = array;
	return rc;
}

static int read_device(struct ws_scan *s, const char *name, void *into)
{
	struct ws_manifest_allocation *a = into;
	return ws_scan_uint(s, name, &a->device);
}

static int read_handle(struct ws_scan *s, const char *name, void *into)
{
	struct ws_manifest_allocation *a = into;
	const ull at = ws_scan_here(s);
	char *text;
	if (ws_scan_string(s, name, &text))
		return -1;
	if (!unhex(text, false, a->handle, sizeof a->handle))
		return ws_scan_refuse(s, "handle at byte %llu is not %zu hexadecimal digits", at,
		                      2 * sizeof a->handle);
	return 0;
}

static int read_bytes(struct ws_scan *s, const char *name, void *into)
{
	struct ws_manifest_allocation *a = into;
	const ull at = ws_scan_here(s);
	if (ws_scan_uint(s, name, &a->bytes))
		return -1;
	if (a->bytes == 0 || a->bytes > MAX_BYTES)
		return ws_scan_refuse(s, "an allocation at byte %llu has %llu bytes", at,
		                      (ull)a->bytes);
	return 0;
}

static int read_allocations(struct ws_scan *s, const char *name, void *into)
{
	static const struct ws_scan_field fields[] = { { "device", read_device, false },
		                                       { "handle", read_handle, false },
		                                       { "bytes", read_bytes, false },
		                                       { NULL, NULL, false } };
	static const struct list list = { "allocation", MAX_ALLOCATIONS, fields,
		                          sizeof(struct ws_manifest_allocation) };
	struct ws_manifest *m = ((struct ws_manifest_reader *)into)->m;
	void *array = m->allocations;
	const int rc = read_list(s, name, &list, &array, &m->n_allocations);
	m->allocations = array;
	return rc;
}

/* ---- tensors ---- */

struct entry {
	struct ws_tensor t;
	uint64_t allocation;
};

static int read_dtype(struct ws_scan *s, const char *name, void *into)
{
	struct entry *e = into;
	char *text;
	if (ws_scan_string(s, name, &text))
		return -1;
	if (!ws_dtype_from_torch(text, &e->t.dtype))
		return ws_scan_refuse(s, "unknown dtype '%s'", ws_quote(text).text);
	return 0;
}

static int read_shape(struct ws_scan *s, const char *name, void *into)
{
	struct entry *e = into;
	(void)name;
	return ws_entry_shape(s, &e->t);
}

static int read_allocation(struct ws_scan *s, const char *name, void *into)
{
	return ws_scan_uint(s, name, &((struct entry *)into)->allocation);
}

static int read_offset(struct ws_scan *s, const char *name, void *into)
{
	return ws_scan_uint(s, name, &((struct entry *)into)->t.offset);
}

static int keep(struct ws_manifest_reader *r, const struct entry *e)
{
	struct ws_safetensors *list = &r->m->list;
	const size_t n = list->n_tensors;
	struct ws_tensor *t = ws_entry_grow(list->tensors, n, &r->tensors_cap, sizeof *t);
	list->tensors = t ? t : list->tensors;
	uint64_t *of = ws_entry_grow(r->of, n, &r->of_cap, sizeof *of);
	r->of = of ? of : r->of;
	if (!t || !of)
		return ws_oom(r->scan.err);
	t[n] = e->t;
	of[n] = e->allocation;
	list->n_tensors++;
	return 0;
}

static int read_tensor(struct ws_manifest_reader *r, const char *name, ull at)
{
	enum { PLACE = 3 << 2 }; /* bits of `seen` for allocation and offset */
	static const struct ws_scan_field fields[] = { { "dtype", read_dtype, false },
		                                       { "shape", read_shape, false },
		                                       { "allocation", read_allocation, true },
		                                       { "offset", read_offset, true },
		                                       { NULL, NULL, false } };
	struct entry e = { .t = { .name = name } };
	unsigned seen;
	r->scan.tensor = name;
	if (ws_entry_name(&r->scan, name, at) ||
	    ws_scan_object(&r->scan, "tensor", fields, &e, &seen))
		return -1;
	if (!ws_dtype_bytes(e.t.dtype, e.t.n_dims, e.t.dims, &e.t.bytes))
		return ws_scan_refuse(&r->scan, "its shape is too large, or leaves part of a byte");
	if (e.t.bytes && (seen & PLACE) != PLACE)
		return ws_scan_refuse(&r->scan,
		                      "its allocation or offset is missing");
	r->scan.tensor = NULL;
	return keep(r, &e);
}

static int read_tensors(struct ws_scan *s, const char *name, void *into)
{
	size_t n = 0;
	int more;
	if (ws_scan_open(s, '{', name))
		return -1;
	while ((more = ws_scan_next(s, '}', &n)) > 0) {
		char *key;
		const ull at = ws_scan_here(s);
		if (ws_scan_key(s, &key) || read_tensor(into, key, at))
			return -1;
	}
	return more;
}

/* ---- the rest ---- */

static int read_config(struct ws_scan *s, const char *name, void *into)
{
	struct ws_manifest_reader *r = into;
	char *text;
	if (ws_scan_string(s, name, &text))
		return -1;
	r->m->config = *text ? text : NULL;
	return 0;
}

static int read_metadata(struct ws_scan *s, const char *name, void *into)
{
	(void)into;
	return ws_entry_texts(s, name);
}

/* Reads the version first, so that another version is not reported as an error in a field. */
static int read_version(struct ws_scan *s)
{
	size_t n = 0;
	char *key;
	uint64_t version;
	if (ws_scan_open(s, '{', "a manifest"))
		return -1;
	const int more = ws_scan_next(s, '}', &n);
	if (more < 0 || (more > 0 && ws_scan_key(s, &key)))
		return -1;
	if (more == 0 || strcmp(key, "version") != 0)
		return ws_scan_refuse(s, "does not begin with its version: not a manifest of GPU "
		                      "memory");
	if (ws_scan_uint(s, key, &version))
		return -1;
	if (version != VERSION)
		return ws_scan_refuse(s, "has version %llu, but only version %d is supported",
		                      (ull)version, VERSION);
	return 0;
}

int ws_manifest_fields(struct ws_manifest_reader *r)
{
	static const struct ws_scan_field fields[] = { { "process", read_process, false },
		                                       { "devices", read_devices, false },
		                                       { "allocations", read_allocations, false },
		                                       { "tensors", read_tensors, false },
		                                       { "config", read_config, true },
		                                       { "metadata", read_metadata, true },
		                                       { NULL, NULL, false } };
	struct ws_scan *s = &r->scan;
	return read_version(s) || ws_scan_fields(s, fields, 1, r, NULL) || ws_scan_end(s) ? -1 : 0;
}
