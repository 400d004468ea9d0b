/* SPDX-License-Identifier: Apache-2.0 */
/* pickle_read_cuda.c - reads the place of a bucket's tensor in GPU memory from the fifteen
 * arguments of torch's rebuild function (pickle.h). Refuses the same values as torch, with torch's
 * messages. Whether the memory exists is checked only when it is opened. */
#include "pickle_bucket.h"
#include "pickle_machine.h"

#include <string.h>

enum {
	CLASS,
	SIZE,
	STRIDE,
	ELEMENTS,
	STORAGE,
	DTYPE,
	DEVICE,
	HANDLE,
	BYTES,
	AT,
	GRADIENT,
	COUNTER,
	COUNTER_AT,
	EVENT,
	WAITS,
	ARGUMENTS
};
/* torch 2.6 writes version 1, 2.11 writes 2 and 2.13 writes 3. They differ only in
 * expandable segments. */
enum { HANDLE_BYTES = 64, VERSION = 3 };

const struct pickle_value *pickle_cuda_args(const struct pickle *p, const struct pickle_value *v)
{
	const struct pickle_value *args =
		pickle_call_of(p, v, "torch.multiprocessing.reductions", "rebuild_cuda_tensor");
	return args ? args :
	              pickle_call_of(p, v, "sglang.srt.utils.patch_torch",
	                             "_rebuild_cuda_tensor_modified");
}

/* Checks that these arguments are integers, bytes or booleans, and not None. */
static int check_kinds(const struct pickle *p, const struct pickle_value *args, struct ws_err *err)
{
	static const struct {
		int argument;
		enum pickle_kind kind;
		const char *name;
	} wanted[] = {
		{ ELEMENTS, PICKLE_INT, "int storage_offset" },
		{ HANDLE, PICKLE_BYTES, "bytes handle" },
		{ BYTES, PICKLE_INT, "int storage_size_bytes" },
		{ AT, PICKLE_INT, "int storage_offset_bytes" },
		{ GRADIENT, PICKLE_BOOL, "bool requires_grad" },
		{ COUNTER, PICKLE_BYTES, "bytes _ref_counter" },
		{ COUNTER_AT, PICKLE_INT, "int _ref_counter_offset" },
		{ EVENT, PICKLE_BYTES, "bytes event_handle" },
		{ WAITS, PICKLE_BOOL, "bool event_sync_required" },
	};
	for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++)
		if (pickle_child(p, args, (uint32_t)wanted[i].argument)->kind != wanted[i].kind)
			return ws_err_set(err, WS_EINPUT,
			                  "pickle: _new_shared in CUDA mode received an invalid "
			                  "combination of arguments - expected %s",
			                  wanted[i].name);
	return 0;
}

static int read_handle(const struct pickle_value *v, struct ws_pickle_memory *m, struct ws_err *err)
{
	const unsigned char *bytes = (const unsigned char *)v->text;
	if (v->len == HANDLE_BYTES) {
		m->handle = bytes; /* the old form without a version */
		return 0;
	}
	if (v->len < 2)
		return pickle_bad("received shareable handle is too short", err);
	if (bytes[0] > VERSION)
		return pickle_bad("received sharable handle from a future version of torch that "
		                  "this version does not know how to handle",
		                  err);
	if (bytes[1] == 'e')
		return pickle_bad("the tensor is in an expandable segment, which is not supported",
		                  err);
	if (bytes[1] != 'c' || v->len != 2 + HANDLE_BYTES)
		return pickle_bad("unexpected or illegal type or length of a shareable handle",
		                  err);
	m->handle = bytes + 2;
	return 0;
}

static int read_device(const struct pickle_value *v, struct ws_pickle_memory *m, struct ws_err *err)
{
	m->ordinal = -1;
	if (v->kind == PICKLE_INT && v->integer >= 0) {
		m->ordinal = v->integer;
		return 0;
	}
	if (v->kind != PICKLE_STR || v->len >= sizeof m->uuid || memchr(v->text, 0, v->len))
		return pickle_bad("a device that is neither a number nor a UUID", err);
	memcpy(m->uuid, v->text, v->len);
	m->uuid[v->len] = '\0';
	return 0;
}

/* A sender may still be writing when it shares memory: torch's readers wait for this event. */
static int read_event(const struct pickle *p, const struct pickle_value *args,
                      struct ws_pickle_memory *m, struct ws_err *err)
{
	const struct pickle_value *event = pickle_child(p, args, EVENT);
	if (!pickle_child(p, args, WAITS)->integer)
		return 0;
	if (event->len != HANDLE_BYTES)
		return pickle_bad("the event handle does not have 64 bytes", err);
	m->event = (const unsigned char *)event->text;
	return 0;
}

/* serve_counter.c checks that the counter exists; torch's readers do not. */
static void read_counter(const struct pickle *p, const struct pickle_value *args,
                         struct ws_pickle_memory *m)
{
	const struct pickle_value *counter = pickle_child(p, args, COUNTER);
	m->counter = counter->text;
	m->counter_len = counter->len;
	m->counter_at = pickle_child(p, args, COUNTER_AT)->integer;
}

/* Reads the offset of a tensor of out->length bytes, whose elements have so many. It must be inside
 * its storage: all of it, or the filled part. */
static int read_place(const struct pickle *p, const struct pickle_value *args, unsigned element,
                      struct ws_pickle_bucket *out, struct ws_err *err)
{
	const int64_t storage = pickle_child(p, args, BYTES)->integer,
		      at = pickle_child(p, args, AT)->integer;
	const int64_t first = pickle_child(p, args, ELEMENTS)->integer;
	if (storage < 0 || at < 0 || first < 0 || first > storage / element ||
	    at > INT64_MAX - storage)
		return pickle_bad("the tensor has an impossible size or offset", err);
	if (out->length > (uint64_t)(storage - first * element))
		return pickle_bad("the tensor ends behind its storage", err);
	out->memory.at = (uint64_t)(at + first * element);
	return 0;
}

/* Reads where the bytes are. out->length is known. torch ignores the handle of an empty storage. */
static int read_memory(const struct pickle *p, const struct pickle_value *args, unsigned element,
                       struct ws_pickle_bucket *out, struct ws_err *err)
{
	if (pickle_child(p, args, HANDLE)->kind == PICKLE_NONE) {
		const struct pickle_value *bytes = pickle_child(p, args, BYTES);
		if (bytes->kind != PICKLE_INT || bytes->integer != 0 || out->length)
			return pickle_bad("the tensor has bytes but no handle", err);
		out->bytes = p->data;
		return 0;
	}
	if (check_kinds(p, args, err) ||
	    read_handle(pickle_child(p, args, HANDLE), &out->memory, err) ||
	    read_device(pickle_child(p, args, DEVICE), &out->memory, err) ||
	    read_event(p, args, &out->memory, err))
		return -1;
	read_counter(p, args, &out->memory);
	return read_place(p, args, element, out, err);
}

static int check_classes(const struct pickle *p, const struct pickle_value *args,
                         struct ws_err *err)
{
	if (args->n != ARGUMENTS)
		return ws_err_set(err, WS_EINPUT,
		                  "pickle: rebuild_cuda_tensor takes %d arguments, and gets %u",
		                  ARGUMENTS, args->n);
	const struct pickle_value *cls = pickle_child(p, args, CLASS),
				  *storage = pickle_child(p, args, STORAGE);
	if (!pickle_is_global(cls, "torch", "Tensor") &&
	    !pickle_is_global(cls, "torch.nn.parameter", "Parameter"))
		return pickle_bad("the tensor has a class that is not a tensor's", err);
	if (!pickle_is_global(storage, "torch.storage", "TypedStorage") &&
	    !pickle_is_global(storage, "torch.storage", "UntypedStorage"))
		return pickle_bad("the tensor has an unknown storage class", err);
	return 0;
}

int pickle_read_cuda(const struct pickle *p, const struct pickle_value *args,
                     struct ws_pickle_bucket *out, struct ws_err *err)
{
	if (check_classes(p, args, err))
		return -1;
	if (!pickle_is_global(pickle_child(p, args, DTYPE), "torch", "uint8"))
		return pickle_bad("the tensor is not of torch.uint8", err);
	if (!pickle_is_flat(p, pickle_child(p, args, SIZE), pickle_child(p, args, STRIDE),
	                    &out->length))
		return pickle_bad("the tensor is not one dimension of bytes", err);
	return read_memory(p, args, 1, out, err);
}

/* Of contiguous tensors; the stride of a dimension of one element is of no meaning. */
static bool is_contiguous(const struct pickle *p, const struct pickle_value *stride,
                          const struct ws_pickle_tensor *t)
{
	int64_t next = 1;
	if (stride->kind != PICKLE_TUPLE || stride->n != t->n_dims)
		return false;
	for (unsigned d = t->n_dims; d-- > 0; next *= t->dims[d]) {
		const struct pickle_value *one = pickle_child(p, stride, d);
		if (one->kind != PICKLE_INT || (t->dims[d] > 1 && one->integer != next))
			return false;
	}
	return true;
}

int pickle_read_cuda_tensor(const struct pickle *p, const struct pickle_value *args,
                            struct ws_pickle_bucket *out, struct ws_pickle_tensor *t,
                            struct ws_err *err)
{
	if (check_classes(p, args, err) ||
	    pickle_read_shape(p, pickle_child(p, args, SIZE), t, err) ||
	    pickle_read_dtype(pickle_child(p, args, DTYPE), t, err))
		return -1;
	if (ws_dtype_bits(t->dtype) % 8 ||
	    !ws_dtype_bytes(t->dtype, t->n_dims, t->dims, &t->bytes))
		return pickle_bad("the tensor has an impossible size or offset", err);
	if (t->bytes && !is_contiguous(p, pickle_child(p, args, STRIDE), t))
		return pickle_bad("the tensor is not contiguous", err);
	out->length = t->bytes;
	return read_memory(p, args, ws_dtype_bits(t->dtype) / 8, out, err);
}
