/* SPDX-License-Identifier: Apache-2.0 */
/* serve_vllm_ipc.c - the engine "ipc" of vLLM: a request names GPU memory of the trainer, which
 * each worker opens.
 *
 *   up to 0.21   a handle for each tensor; with its function
 *   0.22         the same without the function; or packed: one buffer with all tensors of the
 *                request, whose sizes are in tensor_sizes
 *
 * The memory is closed with the request. vLLM 0.32 keeps a packed buffer open until the finish or a
 * shutdown (PackedBufferImporter). */
#include "serve_vllm.h"

#include "base64.h"
#include "serve_fetch.h"
#include "serve_gpu.h"
#include "serve_lineage.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct shared {
	struct ws_buf pickle;
	struct ws_pickle_shared handles;  /* of the rank that is read */
	uint8_t *bytes;                   /* of all tensors of the first rank; owned */
	uint64_t length;
};

static int decode(const struct ws_json *info, struct ws_buf *pickle, struct ws_err *err)
{
	const char *text = ws_json_get_string(info, "ipc_handles_pickled", "");
	ws_buf_init(pickle, strlen(text));
	return ws_base64_decode(pickle, text, strlen(text), err);
}

/* The sizes within the buffer must be those of the tensors, and end inside of it. */
static int check_packed(const struct ws_json *info, const struct ws_serve_update *u,
                        uint64_t length, struct ws_err *err)
{
	const struct ws_json *size = ws_json_first(ws_json_get(info, "tensor_sizes"));
	for (size_t i = 0; i < u->n; i++, size = ws_json_next(size)) {
		int64_t n;
		if (!ws_json_int(size, &n) || n < 0 || (uint64_t)n != u->slots[i].bytes)
			return ws_err_set(err, WS_EINPUT,
			                  "shape is invalid for input of the size in tensor_sizes "
			                  "(%.200s)", u->slots[i].name);
	}
	if (u->bytes > length)
		return ws_err_set(err, WS_EINPUT,
		                  "split_with_sizes expects split_sizes to sum exactly to "
		                  "%" PRIu64 ", but got %" PRIu64, length, u->bytes);
	return 0;
}

static int check_tensor(const struct ws_pickle_tensor *t, const struct ws_serve_slot *slot,
                        struct ws_err *err)
{
	if (t->dtype == slot->dtype && t->n_dims == slot->n_dims &&
	    memcmp(t->dims, slot->dims, t->n_dims * sizeof t->dims[0]) == 0)
		return 0;
	return ws_err_set(err, WS_EINPUT,
	                  "wsync-endpoint: the handle of %.200s is that of a tensor of "
	                  "another type or shape", slot->name);
}

static int check_items(const struct shared *in, const struct ws_json *info,
                       const struct ws_serve_update *u, bool packed, struct ws_err *err)
{
	const struct ws_pickle_shared *h = &in->handles;
	if (h->packed != packed) /* isinstance(ipc_handles, dict) */
		return ws_err_set(err, WS_EINPUT, "AssertionError");
	if (packed)
		return check_packed(info, u, h->items[0].length, err);
	for (size_t i = 0; i < u->n; i++)
		if (check_tensor(h->items[i].tensors, &u->slots[i], err))
			return -1;
	return 0;
}

/* Copies the bytes of the items behind one another. */
static int copy_items(struct ws_serve *s, const struct shared *in, size_t n, uint8_t *dst,
                      struct ws_err *err)
{
	for (size_t i = 0; i < n; i++) {
		struct ws_pickle_bucket item = in->handles.items[i];
		uint8_t *bytes = NULL;
		if (in->handles.packed)
			item.length = in->length; /* the rest of the buffer is not read */
		if (!item.bytes && item.length && ws_serve_ipc_fetch(s, &item, &bytes, err))
			return -1;
		if (bytes)
			memcpy(dst, bytes, (size_t)item.length);
		free(bytes);
		dst += item.length;
	}
	return 0;
}

static int read_rank(struct ws_serve *s, struct shared *in, const struct ws_json *info,
                     const struct ws_serve_update *u, size_t n_names, bool packed, unsigned r,
                     struct ws_err *err)
{
	char uuid[WS_CUDA_UUID_TEXT];
	uint8_t *bytes = malloc((size_t)in->length + 1);
	ws_cuda_uuid_text(ws_gpu_device(s->gpus->of_rank[r]), uuid);
	int rc = !bytes ? ws_oom(err) :
	                  ws_pickle_read_shared(in->pickle.data, in->pickle.len,
	                                        uuid + WS_CUDA_UUID_KIND, n_names,
	                                        ws_serve_in(s->opts.lineage, WS_IN_VLLM_0_20),
	                                        &in->handles, err);
	if (rc == 0)
		rc = check_items(in, info, u, packed, err) ||
		                     copy_items(s, in, packed ? 1 : u->n, bytes, err) ?
		             -1 :
		             0;
	if (rc == 0 && in->bytes && memcmp(in->bytes, bytes, (size_t)in->length) != 0)
		rc = ws_err_set(err, WS_EINPUT,
		                "wsync-endpoint: rank %u is sent other tensors than rank 0", r);
	for (size_t i = 0; i < in->handles.n; i++)
		ws_serve_give_back(&in->handles.items[i].memory, s->opts.log);
	ws_pickle_free_shared(&in->handles);
	if (in->bytes) {
		free(bytes);
		return rc;
	}
	in->bytes = bytes;
	return rc;
}

int ws_serve_vllm_open_shared(struct ws_serve_call *c, const struct ws_json *info,
                              struct ws_serve_update *u, bool packed, struct ws_err *err)
{
	struct ws_serve *s = c->serve;
	struct shared in = { 0 };
	struct ws_err failure = WS_ERR_INIT;
	const size_t n_names = u->n;
	ws_serve_vllm_resolve(s, u, packed, &failure);
	ws_serve_note_update(&c->note, u);
	in.length = u->bytes;
	int rc = decode(info, &in.pickle, err);
	for (unsigned r = 0; rc == 0 && r < s->opts.tp; r++)
		rc = read_rank(s, &in, info, u, n_names, packed, r, err);
	ws_serve_ipc_fetched(s, true);
	if (rc == 0 && ws_serve_fault_ends(u->fault)) {
		if (u->fault == WS_FAULT_DIE)
			ws_serve_die(s);
		c->rp->drop = true;
		rc = ws_err_set(err, WS_EDATA, "fault %s", ws_serve_fault_name(u->fault));
	}
	if (rc == 0)
		rc = ws_serve_fetch_all(
			c, &(struct ws_serve_fetch){ ws_serve_fetch_bytes, in.bytes }, u, err);
	if (rc == 0 && failure.code) {
		*err = failure;
		rc = -1;
	}
	free(in.bytes);
	ws_buf_free(&in.pickle);
	return rc;
}
