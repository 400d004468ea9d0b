/* SPDX-License-Identifier: Apache-2.0 */
/* manifest_fields.c - the grammar of a manifest: which fields there are, and what each may say by itself. */
#include "manifest_fields.h"

#include "names.h"
#include "wsync/str.h"

#include <stdbool.h>
#include <string.h>

enum { VERSION = 1, MAX_DEVICES = 64, MAX_ALLOCATIONS = 1 << 16 };
static const uint64_t MAX_BYTES = UINT64_C(1) << 44; /* of an allocation; all of them fit in 2^60 */

typedef unsigned long long ull;

static int no_memory(const struct ws_manifest_reader *r)
{
	return ws_err_set(r->scan.err, WS_ESYSTEM, "%s: out of memory", r->scan.path);
}

static ull here(struct ws_manifest_reader *r)
{
	ws_scan_peek(&r->scan);
	return r->scan.base + r->scan.at;
}

/* ---- objects by their fields ---- */

struct field {
	const char *name;
	int (*read)(struct ws_manifest_reader *r, const char *name, void *into);
	bool optional;
};

/* Goes on after n items. *seen: a bit for each field. */
static int read_fields(struct ws_manifest_reader *r, const struct field *fields, size_t n, void *into, unsigned *seen)
{
	int more;
	*seen = 0;
	while ((more = ws_scan_next(&r->scan, '}', &n)) > 0) {
		char *key;
		size_t i = 0;
		if (ws_scan_key(&r->scan, &key))
			return -1;
		while (fields[i].name && strcmp(key, fields[i].name) != 0)
			i++;
		if (!fields[i].name)
			return ws_scan_refuse(&r->scan, "unknown field '%s' before byte %llu", ws_quote(key).text,
			                      here(r));
		if (*seen & 1u << i)
			return ws_scan_refuse(&r->scan, "field '%s' twice, again before byte %llu", key, here(r));
		*seen |= 1u << i;
		if (fields[i].read(r, key, into))
			return -1;
	}
	for (size_t i = 0; more == 0 && fields[i].name; i++)
		if (!fields[i].optional && !(*seen & 1u << i))
			return ws_scan_refuse(&r->scan, "field '%s' is missing before byte %llu", fields[i].name,
			                      here(r));
	return more;
}

static int read_object(struct ws_manifest_reader *r, const char *what, const struct field *fields, void *into,
                       unsigned *seen)
{
	return ws_scan_open(&r->scan, '{', what) ? -1 : read_fields(r, fields, 0, into, seen);
}

/* One more at the end of an array; all zero. */
static void *add(struct ws_manifest_reader *r, void **array, size_t *n, size_t *cap, size_t size)
{
	char *p = ws_entry_grow(*array, *n, cap, size);
	if (!p) {
		no_memory(r);
		return NULL;
	}
	*array = p;
	return memset(p + (*n)++ * size, 0, size);
}

/* A list of objects of so many fields, each the next of an array. */
struct list {
	const char *what;
	int most;
	const struct field *fields;
	size_t size;
};

static int read_list(struct ws_manifest_reader *r, const char *name, const struct list *l, void **array, size_t *n,
                     size_t *cap)
{
	size_t items = 0;
	int more;
	if (ws_scan_open(&r->scan, '[', name))
		return -1;
	while ((more = ws_scan_next(&r->scan, ']', &items)) > 0) {
		unsigned seen;
		void *item;
		if (items > (size_t)l->most)
			return ws_scan_refuse(&r->scan, "more than %d %ss", l->most, l->what);
		if (!(item = add(r, array, n, cap, l->size)) || read_object(r, l->what, l->fields, item, &seen))
			return -1;
	}
	return more;
}

static int read_uint(struct ws_manifest_reader *r, const char *name, void *into)
{
	return ws_scan_uint(&r->scan, name, into);
}

/* A text of printable characters that fits. */
static int read_text(struct ws_manifest_reader *r, const char *name, char *dst, size_t size)
{
	char *text, clean[256];
	const ull at = here(r);
	if (ws_scan_string(&r->scan, name, &text))
		return -1;
	if (strlen(text) >= size)
		return ws_scan_refuse(&r->scan, "%s at byte %llu is longer than %zu bytes", name, at, size - 1);
	if (strcmp(ws_printable(clean, sizeof clean, text, strlen(text)), text) != 0)
		return ws_scan_refuse(&r->scan, "%s at byte %llu has a control character", name, at);
	strcpy(dst, text);
	return 0;
}

/* ---- process ---- */

static int read_pid(struct ws_manifest_reader *r, const char *name, void *into)
{
	struct ws_process *p = into;
	uint64_t pid;
	const ull at = here(r);
	if (ws_scan_uint(&r->scan, name, &pid))
		return -1;
	if (pid == 0 || pid > INT32_MAX)
		return ws_scan_refuse(&r->scan, "pid at byte %llu is none", at);
	p->pid = (int64_t)pid;
	return 0;
}

static int read_start(struct ws_manifest_reader *r, const char *name, void *into)
{
	const ull at = here(r);
	struct ws_process *p = into;
	if (ws_scan_uint(&r->scan, name, &p->start_ticks))
		return -1;
	return p->start_ticks ? 0 : ws_scan_refuse(&r->scan, "start at byte %llu is 0", at);
}

static int read_boot_id(struct ws_manifest_reader *r, const char *name, void *into)
{
	struct ws_process *p = into;
	return read_text(r, name, p->boot_id, sizeof p->boot_id);
}

static int read_namespace(struct ws_manifest_reader *r, const char *name, void *into)
{
	struct ws_process *p = into;
	return read_text(r, name, p->pid_namespace, sizeof p->pid_namespace);
}

static int read_host(struct ws_manifest_reader *r, const char *name, void *into)
{
	struct ws_process *p = into;
	return read_text(r, name, p->host, sizeof p->host);
}

static int read_process(struct ws_manifest_reader *r, const char *name, void *into)
{
	static const struct field fields[] = { { "pid", read_pid, false }, { "start", read_start, false },
		                               { "boot_id", read_boot_id, false },
		                               { "pid_namespace", read_namespace, false },
		                               { "host", read_host, false }, { NULL, NULL, false } };
	unsigned seen;
	(void)into;
	return read_object(r, name, fields, &r->m->process, &seen);
}

/* ---- devices and allocations ---- */

/* 2n hexadecimal digits; hyphens are not counted where they are allowed. */
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

static int read_uuid(struct ws_manifest_reader *r, const char *name, void *into)
{
	struct ws_manifest_device *d = into;
	const ull at = here(r);
	if (read_text(r, name, d->name, sizeof d->name))
		return -1;
	const bool prefixed = strncmp(d->name, "GPU-", 4) == 0 || strncmp(d->name, "MIG-", 4) == 0;
	if (!prefixed || !unhex(d->name + 4, true, d->uuid, sizeof d->uuid))
		return ws_scan_refuse(&r->scan, "uuid at byte %llu is not like GPU-8d2f0a91-...: '%s'", at,
		                      d->name);
	return 0;
}

static int read_ordinal(struct ws_manifest_reader *r, const char *name, void *into)
{
	struct ws_manifest_device *d = into;
	return ws_scan_uint(&r->scan, name, &d->ordinal);
}

static int read_devices(struct ws_manifest_reader *r, const char *name, void *into)
{
	static const struct field fields[] = { { "uuid", read_uuid, false },
		                               { "ordinal", read_ordinal, false }, { NULL, NULL, false } };
	static const struct list list = { "device", MAX_DEVICES, fields, sizeof(struct ws_manifest_device) };
	void *array = r->m->devices;
	(void)into;
	const int rc = read_list(r, name, &list, &array, &r->m->n_devices, &r->devices_cap);
	r->m->devices = array;
	return rc;
}

static int read_device(struct ws_manifest_reader *r, const char *name, void *into)
{
	struct ws_manifest_allocation *a = into;
	return ws_scan_uint(&r->scan, name, &a->device);
}

static int read_handle(struct ws_manifest_reader *r, const char *name, void *into)
{
	struct ws_manifest_allocation *a = into;
	const ull at = here(r);
	char *text;
	if (ws_scan_string(&r->scan, name, &text))
		return -1;
	if (!unhex(text, false, a->handle, sizeof a->handle))
		return ws_scan_refuse(&r->scan, "handle at byte %llu is not %zu hexadecimal digits", at,
		                      2 * sizeof a->handle);
	return 0;
}

static int read_bytes(struct ws_manifest_reader *r, const char *name, void *into)
{
	struct ws_manifest_allocation *a = into;
	const ull at = here(r);
	if (ws_scan_uint(&r->scan, name, &a->bytes))
		return -1;
	if (a->bytes == 0 || a->bytes > MAX_BYTES)
		return ws_scan_refuse(&r->scan, "an allocation at byte %llu has %llu bytes", at, (ull)a->bytes);
	return 0;
}

static int read_allocations(struct ws_manifest_reader *r, const char *name, void *into)
{
	static const struct field fields[] = { { "device", read_device, false },
		                               { "handle", read_handle, false },
		                               { "bytes", read_bytes, false }, { NULL, NULL, false } };
	static const struct list list = { "allocation", MAX_ALLOCATIONS, fields,
		                          sizeof(struct ws_manifest_allocation) };
	void *array = r->m->allocations;
	(void)into;
	const int rc = read_list(r, name, &list, &array, &r->m->n_allocations, &r->allocations_cap);
	r->m->allocations = array;
	return rc;
}

/* ---- tensors ---- */

struct entry {
	struct ws_tensor t;
	uint64_t allocation;
};

static int read_dtype(struct ws_manifest_reader *r, const char *name, void *into)
{
	struct entry *e = into;
	char *text;
	if (ws_scan_string(&r->scan, name, &text))
		return -1;
	if (!ws_dtype_from_torch(text, &e->t.dtype))
		return ws_scan_refuse(&r->scan, "unknown dtype '%s'", ws_quote(text).text);
	return 0;
}

static int read_shape(struct ws_manifest_reader *r, const char *name, void *into)
{
	struct entry *e = into;
	(void)name;
	return ws_entry_shape(&r->scan, &e->t);
}

static int read_allocation(struct ws_manifest_reader *r, const char *name, void *into)
{
	return read_uint(r, name, &((struct entry *)into)->allocation);
}

static int read_offset(struct ws_manifest_reader *r, const char *name, void *into)
{
	return read_uint(r, name, &((struct entry *)into)->t.offset);
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
		return no_memory(r);
	t[n] = e->t;
	of[n] = e->allocation;
	list->n_tensors++;
	return 0;
}

static int read_tensor(struct ws_manifest_reader *r, const char *name, ull at)
{
	static const struct field fields[] = { { "dtype", read_dtype, false }, { "shape", read_shape, false },
		                               { "allocation", read_allocation, true },
		                               { "offset", read_offset, true }, { NULL, NULL, false } };
	struct entry e = { .t = { .name = name } };
	unsigned seen;
	r->scan.tensor = name;
	if (ws_entry_name(&r->scan, name, at) || read_object(r, "tensor", fields, &e, &seen))
		return -1;
	if (!ws_dtype_bytes(e.t.dtype, e.t.n_dims, e.t.dims, &e.t.bytes))
		return ws_scan_refuse(&r->scan, "its shape is too large, or leaves part of a byte");
	if (e.t.bytes && (seen & 12) != 12)
		return ws_scan_refuse(&r->scan, "where it is is not said: its allocation and its offset");
	r->scan.tensor = NULL;
	return keep(r, &e);
}

static int read_tensors(struct ws_manifest_reader *r, const char *name, void *into)
{
	size_t n = 0;
	int more;
	(void)into;
	if (ws_scan_open(&r->scan, '{', name))
		return -1;
	while ((more = ws_scan_next(&r->scan, '}', &n)) > 0) {
		char *key;
		const ull at = here(r);
		if (ws_scan_key(&r->scan, &key) || read_tensor(r, key, at))
			return -1;
	}
	return more;
}

/* ---- the rest ---- */

static int read_config(struct ws_manifest_reader *r, const char *name, void *into)
{
	char *text;
	(void)into;
	if (ws_scan_string(&r->scan, name, &text))
		return -1;
	r->m->config = *text ? text : NULL;
	return 0;
}

static int read_metadata(struct ws_manifest_reader *r, const char *name, void *into)
{
	struct ws_safetensors *list = &r->m->list;
	size_t n = 0;
	int more;
	(void)into;
	if (ws_scan_open(&r->scan, '{', name))
		return -1;
	while ((more = ws_scan_next(&r->scan, '}', &n)) > 0) {
		char *key, *value;
		if (ws_scan_key(&r->scan, &key) || ws_scan_string(&r->scan, "value in metadata", &value))
			return -1;
		struct ws_pair *p = ws_entry_grow(list->metadata, list->n_metadata, &r->metadata_cap, sizeof *p);
		if (!p)
			return no_memory(r);
		list->metadata = p;
		p[list->n_metadata++] = (struct ws_pair){ key, value };
	}
	return more;
}

/* Before anything else, so that what another version says is not taken for a flaw. */
static int read_version(struct ws_manifest_reader *r, size_t *n)
{
	char *key;
	uint64_t version;
	if (ws_scan_open(&r->scan, '{', "a manifest"))
		return -1;
	const int more = ws_scan_next(&r->scan, '}', n);
	if (more < 0 || (more > 0 && ws_scan_key(&r->scan, &key)))
		return -1;
	if (more == 0 || strcmp(key, "version") != 0)
		return ws_scan_refuse(&r->scan, "does not begin with its version: no manifest of GPU memory");
	if (ws_scan_uint(&r->scan, key, &version))
		return -1;
	if (version != VERSION)
		return ws_scan_refuse(&r->scan, "is of version %llu, and known is version %d", (ull)version,
		                      VERSION);
	return 0;
}

int ws_manifest_fields(struct ws_manifest_reader *r)
{
	static const struct field fields[] = { { "process", read_process, false },
		                               { "devices", read_devices, false },
		                               { "allocations", read_allocations, false },
		                               { "tensors", read_tensors, false },
		                               { "config", read_config, true },
		                               { "metadata", read_metadata, true }, { NULL, NULL, false } };
	size_t n = 0;
	unsigned seen;
	return read_version(r, &n) || read_fields(r, fields, n, NULL, &seen) || ws_scan_end(&r->scan) ? -1 : 0;
}
