/* SPDX-License-Identifier: Apache-2.0 */
/* pickle_read.c - reads the bucket from the tree of a pickle; pickle.h describes the form.
 *
 * In the byte layout start_idx, end_idx and numel count bytes; tensors must follow one another
 * without gaps and fill the bytes. */
#include "pickle_bucket.h"
#include "pickle_machine.h"

#include <stdlib.h>
#include <string.h>

int pickle_bad(const char *why, struct ws_err *err)
{
	return ws_err_set(err, WS_EINPUT, "pickle: %s", why);
}

static bool is_int(const struct pickle_value *v, int64_t wanted)
{
	return v && v->kind == PICKLE_INT && v->integer == wanted;
}

/* ---- torch.save of a storage ---- */

/* Reads one of the pickles before the bytes, and moves *at behind it. */
static int read_part(struct pickle *p, const uint8_t *data, size_t len, size_t *at,
                     struct ws_err *err)
{
	if (pickle_run(p, data + *at, len - *at, err))
		return -1;
	*at += p->at;
	return 0;
}

static bool is_storage(const struct pickle *p, int64_t *length)
{
	const struct pickle_value *v = pickle_at(p, p->result);
	const struct pickle_value *id = v->kind == PICKLE_PERSISTENT ? pickle_child(p, v, 0) : NULL;
	if (!id || id->kind != PICKLE_TUPLE || id->n != 6 ||
	    !pickle_is_str(pickle_child(p, id, 0), "storage"))
		return false;
	const struct pickle_value *type = pickle_child(p, id, 1), *n = pickle_child(p, id, 4);
	if (!pickle_is_global(type, "torch", "ByteStorage") &&
	    !pickle_is_global(type, "torch.storage", "UntypedStorage"))
		return false;
	*length = n->kind == PICKLE_INT ? n->integer : -1;
	return pickle_is_str(pickle_child(p, id, 3), "cpu") &&
	       pickle_child(p, id, 5)->kind == PICKLE_NONE;
}

static int read_storage(const struct pickle_value *saved, struct ws_pickle_bucket *out,
                        struct ws_err *err)
{
	static const uint8_t magic[] = {
		0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19
	};
	const uint8_t *data = (const uint8_t *)saved->text;
	size_t at = 0;
	int64_t announced = -1;
	for (int part = 0; part < 5; part++) {
		struct pickle p;
		bool good = true;
		int rc = read_part(&p, data, saved->len, &at, err);
		const struct pickle_value *v = rc ? NULL : pickle_at(&p, p.result);
		if (v && part == 0)
			good = v->kind == PICKLE_BIG && v->len == sizeof magic &&
			       memcmp(v->text, magic, sizeof magic) == 0;
		else if (v && part == 1)
			good = is_int(v, 1001);
		else if (v && part == 3)
			good = is_storage(&p, &announced);
		else if (v && part == 4)
			good = v->kind == PICKLE_LIST && v->n == 1;
		pickle_close(&p);
		if (rc)
			return -1;
		if (!good)
			return pickle_bad("the torch.save data is not a CPU storage of bytes",
			                  err);
	}
	uint64_t length = 0;
	if (saved->len - at < 8)
		return pickle_bad("the torch.save data is cut short", err);
	for (unsigned i = 0; i < 8; i++)
		length |= (uint64_t)data[at + i] << 8 * i;
	if (length != saved->len - at - 8 || announced < 0 || length != (uint64_t)announced)
		return pickle_bad("the torch.save data has a wrong length", err);
	out->bytes = data + at + 8;
	out->length = length;
	return 0;
}

/* ---- the tensor ---- */

bool pickle_is_flat(const struct pickle *p, const struct pickle_value *size,
                    const struct pickle_value *stride, uint64_t *n)
{
	const struct pickle_value *torch_size = pickle_call_of(p, size, "torch", "Size");
	if (torch_size)
		size = pickle_child(p, torch_size, 0);
	if (!size || size->kind != PICKLE_TUPLE || size->n != 1 || !stride ||
	    stride->kind != PICKLE_TUPLE || stride->n != 1 ||
	    !is_int(pickle_child(p, stride, 0), 1))
		return false;
	const struct pickle_value *length = pickle_child(p, size, 0);
	*n = length->kind == PICKLE_INT && length->integer >= 0 ? (uint64_t)length->integer :
	                                                          UINT64_MAX;
	return *n != UINT64_MAX;
}

static int read_flat(const struct pickle *p, const struct pickle_value *v,
                     struct ws_pickle_bucket *out, struct ws_err *err)
{
	const struct pickle_value *on_gpu = pickle_cuda_args(p, v);
	if (on_gpu)
		return pickle_read_cuda(p, on_gpu, out, err);
	const struct pickle_value *args =
		pickle_call_of(p, v, "torch._utils", "_rebuild_tensor_v2");
	const struct pickle_value *load =
		pickle_call_of(p, pickle_child(p, args, 0), "torch.storage", "_load_from_bytes");
	const struct pickle_value *saved = pickle_child(p, load, 0);
	if (!saved || saved->kind != PICKLE_BYTES)
		return pickle_bad(
			"flattened_tensor is neither in host memory nor shared from a GPU",
			err);
	if (read_storage(saved, out, err))
		return -1;
	uint64_t n;
	if (!is_int(pickle_child(p, args, 1), 0) ||
	    !pickle_is_flat(p, pickle_child(p, args, 2), pickle_child(p, args, 3), &n) ||
	    n != out->length)
		return pickle_bad("flattened_tensor is not all of its storage in one dimension",
		                  err);
	return 0;
}

/* ---- metadata ---- */

int pickle_read_shape(const struct pickle *p, const struct pickle_value *shape,
                      struct ws_pickle_tensor *t, struct ws_err *err)
{
	const struct pickle_value *size = pickle_call_of(p, shape, "torch", "Size");
	if (size)
		shape = pickle_child(p, size, 0);
	if (!shape || shape->kind != PICKLE_TUPLE || shape->n > WS_MAX_DIMS)
		return pickle_bad("a tensor has no shape of at most 8 dimensions", err);
	t->n_dims = shape->n;
	for (uint32_t d = 0; d < shape->n; d++) {
		const struct pickle_value *dim = pickle_child(p, shape, d);
		if (dim->kind != PICKLE_INT || dim->integer < 0)
			return pickle_bad("a tensor has a shape with invalid lengths", err);
		t->dims[d] = dim->integer;
	}
	return 0;
}

int pickle_read_dtype(const struct pickle_value *v, struct ws_pickle_tensor *t, struct ws_err *err)
{
	char name[32];
	if (!v || v->kind != PICKLE_GLOBAL || v->len != 5 || memcmp(v->text, "torch", 5) != 0 ||
	    v->name_len >= sizeof name)
		return pickle_bad("a tensor has no torch dtype", err);
	memcpy(name, v->name, v->name_len);
	name[v->name_len] = 0;
	if (strlen(name) != v->name_len || !ws_dtype_from_torch(name, &t->dtype))
		return pickle_bad("a tensor has an unknown dtype", err);
	return 0;
}

static int read_metadata(const struct pickle *p, const struct pickle_value *v, uint64_t at,
                         char *names, struct ws_pickle_tensor *t, struct ws_err *err)
{
	const struct pickle_value *state = v->kind == PICKLE_OBJECT ? pickle_child(p, v, 1) : NULL;
	const struct pickle_value *name = pickle_get(p, state, "name");
	if (!name || name->kind != PICKLE_STR || memchr(name->text, 0, name->len))
		return pickle_bad("metadata without a name", err);
	memcpy(names, name->text, name->len);
	names[name->len] = 0;
	t->name = names;
	if (pickle_read_shape(p, pickle_get(p, state, "shape"), t, err) ||
	    pickle_read_dtype(pickle_get(p, state, "dtype"), t, err))
		return -1;
	if (!ws_dtype_bytes(t->dtype, t->n_dims, t->dims, &t->bytes) || t->bytes > INT64_MAX - at ||
	    !is_int(pickle_get(p, state, "start_idx"), (int64_t)at) ||
	    !is_int(pickle_get(p, state, "end_idx"), (int64_t)(at + t->bytes)))
		return pickle_bad("metadata has a tensor that does not follow the previous one",
		                  err);
	return 0;
}

/* Counts the bytes of all names with their NULs. A repeated name counts each time. */
static int count_names(const struct pickle *p, const struct pickle_value *list, size_t *out,
                       struct ws_err *err)
{
	const struct pickle_cell *cells = p->cells.items;
	*out = 0;
	for (uint32_t at = list->first; at != PICKLE_NOTHING; at = cells[at].next) {
		const struct pickle_value *v = pickle_at(p, cells[at].value);
		const struct pickle_value *name =
			v->kind == PICKLE_OBJECT ? pickle_get(p, pickle_child(p, v, 1), "name") :
						   NULL;
		if (name && name->kind == PICKLE_STR)
			*out += name->len + 1;
		if (*out > (size_t)1 << 28)
			return pickle_bad("metadata has too many names", err);
	}
	return 0;
}

static int read_list(const struct pickle *p, const struct pickle_value *list,
                     struct ws_pickle_bucket *out, struct ws_err *err)
{
	size_t room = 0;
	uint64_t at = 0;
	if (!list || list->kind != PICKLE_LIST)
		return pickle_bad("no list of metadata", err);
	if (count_names(p, list, &room, err))
		return -1;
	out->tensors = calloc((size_t)list->n + 1, sizeof *out->tensors);
	out->names = malloc(room + 1);
	if (!out->tensors || !out->names)
		return ws_oom(err);
	char *names = out->names;
	const struct pickle_cell *cells = p->cells.items;
	for (uint32_t c = list->first; c != PICKLE_NOTHING; c = cells[c].next) {
		struct ws_pickle_tensor *t = &out->tensors[out->n];
		if (read_metadata(p, pickle_at(p, cells[c].value), at, names, t, err))
			return -1;
		out->n++;
		at += t->bytes;
		names += strlen(names) + 1;
	}
	return at == out->length ?
	               0 :
	               pickle_bad("metadata and bytes differ in size", err);
}

int ws_pickle_read(const void *data, size_t n, struct ws_pickle_bucket *out, struct ws_err *err)
{
	struct pickle p;
	*out = (struct ws_pickle_bucket){ 0 };
	int rc = pickle_run(&p, data, n, err);
	if (rc == 0) {
		const struct pickle_value *root = pickle_at(&p, p.result);
		rc = read_flat(&p, pickle_get(&p, root, "flattened_tensor"), out, err) ||
		     read_list(&p, pickle_get(&p, root, "metadata"), out, err) ? -1 : 0;
	}
	pickle_close(&p);
	if (rc)
		ws_pickle_free(out);
	return rc;
}

void ws_pickle_free(struct ws_pickle_bucket *b)
{
	free(b->tensors);
	free(b->names);
	*b = (struct ws_pickle_bucket){ 0 };
}
