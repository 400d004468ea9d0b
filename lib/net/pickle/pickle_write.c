/* SPDX-License-Identifier: Apache-2.0 */
/* pickle_write.c - writes pickle protocol 3: the first with bytes, and known to every Python 3. */
#include "pickle.h"

#include <string.h>

/* ---- opcodes ---- */

static void put_u32(struct ws_buf *out, uint32_t v)
{
	const char le[] = { (char)v, (char)(v >> 8), (char)(v >> 16), (char)(v >> 24) };
	ws_buf_add(out, le, 4);
}

static void put_u64(struct ws_buf *out, uint64_t v)
{
	put_u32(out, (uint32_t)v);
	put_u32(out, (uint32_t)(v >> 32));
}

static void put_int(struct ws_buf *out, int64_t v)
{
	if (v >= INT32_MIN && v <= INT32_MAX) {
		ws_buf_putc(out, 'J');
		put_u32(out, (uint32_t)(int32_t)v);
	} else {
		ws_buf_add(out, "\x8a\x08", 2); /* LONG1 */
		put_u64(out, (uint64_t)v);
	}
}

/* n is at most 255. */
static void put_bytes(struct ws_buf *out, const void *bytes, size_t n)
{
	ws_buf_putc(out, 'C');
	ws_buf_putc(out, (char)n);
	ws_buf_add(out, bytes, n);
}

static void put_str(struct ws_buf *out, const char *s)
{
	const size_t n = strlen(s);
	ws_buf_putc(out, 'X');
	put_u32(out, (uint32_t)n);
	ws_buf_add(out, s, n);
}

/* ---- torch.save of the storage ---- */

static void put_saved(struct ws_buf *out, uint32_t bytes)
{
	static const char magic[] = "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.";
	static const char version[] = "\x80\x02M\xe9\x03.";
	ws_buf_add(out, magic, sizeof magic - 1);
	ws_buf_add(out, version, sizeof version - 1);
	ws_buf_puts(out, "\x80\x02}(");
	put_str(out, "protocol_version");
	ws_buf_add(out, "M\xe9\x03", 3);
	put_str(out, "little_endian");
	ws_buf_putc(out, '\x88');
	put_str(out, "type_sizes");
	ws_buf_puts(out, "}(");
	put_str(out, "short");
	ws_buf_puts(out, "K\x02");
	put_str(out, "int");
	ws_buf_puts(out, "K\x04");
	put_str(out, "long");
	ws_buf_puts(out, "K\x04uu.");
	ws_buf_puts(out, "\x80\x02(");
	put_str(out, "storage");
	ws_buf_puts(out, "ctorch\nByteStorage\n");
	put_str(out, "0");
	put_str(out, "cpu");
	put_int(out, bytes);
	ws_buf_puts(out, "NtQ.");
	ws_buf_puts(out, "\x80\x02]");
	put_str(out, "0");
	ws_buf_puts(out, "a.");
	put_u64(out, bytes);
}

/* ---- the bucket ---- */

void ws_pickle_begin(struct ws_buf *out, uint32_t bytes)
{
	ws_buf_puts(out, "\x80\x03}(");
	put_str(out, "flattened_tensor");
	ws_buf_puts(out, "ctorch._utils\n_rebuild_tensor_v2\n(ctorch.storage\n_load_from_bytes\nB");
	/* The length of torch.save's output is written first; it depends only on the size of
	 * this number. */
	const size_t before = out->len;
	put_u32(out, 0);
	put_saved(out, bytes);
	if (out->failed)
		return;
	const uint32_t saved = (uint32_t)(out->len - before - 4) + bytes;
	const uint8_t le[] = { (uint8_t)saved, (uint8_t)(saved >> 8), (uint8_t)(saved >> 16),
		               (uint8_t)(saved >> 24) };
	memcpy(out->data + before, le, 4);
}

static void put_metadata(struct ws_buf *out, const struct ws_pickle_tensor *t, uint64_t at)
{
	ws_buf_add(out, "h\x00)\x81}(", 6);
	put_str(out, "name");
	put_str(out, t->name);
	put_str(out, "shape");
	ws_buf_add(out, "h\x01((", 4); /* torch.Size of one tuple */
	for (unsigned d = 0; d < t->n_dims; d++)
		put_int(out, t->dims[d]);
	ws_buf_puts(out, "ttR");
	put_str(out, "dtype");
	ws_buf_printf(out, "ctorch\n%s\n", ws_dtype_torch(t->dtype));
	put_str(out, "start_idx");
	put_int(out, (int64_t)at);
	put_str(out, "end_idx");
	put_int(out, (int64_t)(at + t->bytes));
	put_str(out, "numel");
	put_int(out, (int64_t)t->bytes);
	ws_buf_puts(out, "ub");
}

/* Writes the rest of the bucket, after its tensor. */
static void put_listing(struct ws_buf *out, const struct ws_pickle_tensor *tensors, size_t n)
{
	uint64_t at = 0;
	put_str(out, "metadata");
	/* Memoizes two objects that every tensor needs, and pops them. In two strings each, because
	 * \x takes all digits that follow. */
	ws_buf_add(out,
	           "csglang.srt.weight_sync.tensor_bucket\nFlattenedTensorMetadata\nq\x00" "0",
	           65);
	ws_buf_add(out, "ctorch\nSize\nq\x01" "0", 15);
	ws_buf_puts(out, "](");
	for (size_t i = 0; i < n; i++) {
		put_metadata(out, &tensors[i], at);
		at += tensors[i].bytes;
	}
	ws_buf_puts(out, "eu.");
}

void ws_pickle_end(struct ws_buf *out, const struct ws_pickle_tensor *tensors, size_t n,
                   uint32_t bytes)
{
	ws_buf_puts(out, "\x85R");
	put_int(out, 0);
	put_int(out, bytes);
	ws_buf_putc(out, '\x85');
	put_int(out, 1);
	ws_buf_puts(out, "\x85\x89" "ccollections\nOrderedDict\n)RtR");
	put_listing(out, tensors, n);
}

/* ---- a bucket in GPU memory ---- */

enum { HANDLE = 64, HANDLE_VERSION = 1, HANDLE_CUDA_MALLOC = 'c' };

/* The arguments up to the device. `t` has the type and the shape. */
static void put_tensor(struct ws_buf *out, const struct ws_pickle_tensor *t)
{
	int64_t stride[WS_MAX_DIMS], next = 1;
	for (unsigned d = t->n_dims; d-- > 0;) {
		stride[d] = next;
		next *= t->dims[d] > 1 ? t->dims[d] : 1; /* as torch, also of no elements */
	}
	ws_buf_puts(out, "ctorch\nTensor\n(");
	for (unsigned d = 0; d < t->n_dims; d++)
		put_int(out, t->dims[d]);
	ws_buf_puts(out, "t(");
	for (unsigned d = 0; d < t->n_dims; d++)
		put_int(out, stride[d]);
	ws_buf_putc(out, 't');
	put_int(out, 0);
	ws_buf_puts(out, "ctorch.storage\nTypedStorage\n");
	ws_buf_printf(out, "ctorch\n%s\n", ws_dtype_torch(t->dtype));
}

/* The fifteen arguments, as a tuple. The tensor is `at` bytes from where. */
static void put_args(struct ws_buf *out, const struct ws_pickle_cuda *where, bool by_uuid,
                     const struct ws_pickle_tensor *t, uint64_t at)
{
	static const char no_event[HANDLE];
	char handle[2 + HANDLE] = { HANDLE_VERSION, HANDLE_CUDA_MALLOC };
	memcpy(handle + 2, where->handle, HANDLE);
	ws_buf_putc(out, '(');
	put_tensor(out, t);
	if (by_uuid)
		put_str(out, where->uuid);
	else
		put_int(out, where->ordinal);
	put_bytes(out, handle, sizeof handle);
	/* An empty tensor has no storage, so torch opens nothing. */
	put_int(out, (int64_t)(t->bytes && where->room > t->bytes ? where->room : t->bytes));
	put_int(out, (int64_t)(where->at + at));
	ws_buf_putc(out, '\x89');
	put_bytes(out, "", 0);
	put_int(out, 0);
	put_bytes(out, no_event, sizeof no_event);
	ws_buf_puts(out, "\x89t");
}

static struct ws_pickle_tensor buffer_of(uint64_t bytes)
{
	return (struct ws_pickle_tensor){ .dtype = WS_DTYPE_U8, .n_dims = 1, .bytes = bytes,
		                          .dims = { (int64_t)bytes } };
}

static const char rebuild[] = "ctorch.multiprocessing.reductions\nrebuild_cuda_tensor\n";

void ws_pickle_cuda(struct ws_buf *out, const struct ws_pickle_cuda *where,
                    const struct ws_pickle_tensor *tensors, size_t n, uint64_t bytes)
{
	const struct ws_pickle_tensor buffer = buffer_of(bytes);
	ws_buf_puts(out, "\x80\x03}(");
	put_str(out, "flattened_tensor");
	ws_buf_puts(out, where->uuid ?
	                 "csglang.srt.utils.patch_torch\n_rebuild_cuda_tensor_modified\n" :
	                 rebuild);
	put_args(out, where, where->uuid != NULL, &buffer, 0);
	ws_buf_putc(out, 'R');
	put_listing(out, tensors, n);
}

/* ---- for vLLM ---- */

void ws_pickle_vllm_packed(struct ws_buf *out, const struct ws_pickle_cuda *where, uint64_t bytes)
{
	const struct ws_pickle_tensor buffer = buffer_of(bytes);
	ws_buf_puts(out, "\x80\x03}");
	put_str(out, where->uuid);
	put_args(out, where, false, &buffer, 0);
	ws_buf_puts(out, "s.");
}

void ws_pickle_vllm_tensors(struct ws_buf *out, const struct ws_pickle_cuda *where,
                            const struct ws_pickle_tensor *tensors, size_t n)
{
	struct ws_pickle_cuda own = *where;
	uint64_t at = 0;
	own.room = 0; /* a storage for each tensor */
	ws_buf_puts(out, "\x80\x03](");
	for (size_t i = 0; i < n; i++) {
		ws_buf_putc(out, '}');
		put_str(out, where->uuid);
		ws_buf_puts(out, rebuild);
		put_args(out, &own, false, &tensors[i], at);
		ws_buf_puts(out, "\x86s");
		at += tensors[i].bytes;
	}
	ws_buf_puts(out, "e.");
}
