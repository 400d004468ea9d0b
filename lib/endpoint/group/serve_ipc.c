/* SPDX-License-Identifier: Apache-2.0 */
/* serve_ipc.c - reads tensors in GPU memory that another process of this machine shares. Opens the
 * memory, and copies the tensors out before the request is answered.
 *
 * CUDA requires that readers close memory before its owner frees it, so it is not kept open for
 * long. Memory with a counter of readers is closed after the copy, and its counter decremented when
 * the request ends. (torch's readers do both when a tensor is dropped, and its senders free by the
 * counter.) The owner of memory without a counter waits for the answer. Such memory stays open if
 * this request or the previous one used it, because the next bucket may be in it. So a sender that
 * alternates two buffers is opened only twice. Everything is closed with the last bucket (the one
 * with flush_cache), and when a request fails. */
#include "serve_gpu.h"

#include "name_index.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_OPEN = 3 * WS_SERVE_MAX_TP }; /* three requests, one handle for each rank */

struct opened {
	unsigned char handle[WS_IPC_HANDLE_BYTES];
	unsigned rank;       /* the memory is on the GPU of this rank */
	ws_devptr at;
	uint64_t bytes;
	uint64_t used;       /* number of the last request that used it */
};

struct ws_serve_ipc {
	struct opened open[MOST_OPEN];
	size_t n;
	uint64_t request;    /* number of the current request */
	struct ws_serve_outlet *outlets[WS_SERVE_MAX_TP];
};

static int find_rank(const struct ws_serve *s, const struct ws_pickle_memory *m, unsigned *rank,
                     struct ws_err *err)
{
	char text[WS_CUDA_UUID_TEXT];
	const bool has_kind = strncmp(m->uuid, "GPU-", 4) == 0 || strncmp(m->uuid, "MIG-", 4) == 0;
	const char *wanted = m->uuid + (has_kind ? WS_CUDA_UUID_KIND : 0);
	for (unsigned r = 0; r < s->opts.tp; r++) {
		ws_cuda_uuid_text(ws_gpu_device(s->gpus->of_rank[r]), text);
		if (m->uuid[0] ? strcmp(text + WS_CUDA_UUID_KIND, wanted) == 0 :
		                 m->ordinal == (int64_t)s->opts.gpu + r) {
			*rank = r;
			return 0;
		}
	}
	if (m->uuid[0])
		return ws_err_set(err, WS_EINPUT, "Invalid device_uuid=%s", ws_quote(m->uuid).text);
	return ws_err_set(err, WS_EINPUT, "no rank of this endpoint uses GPU %" PRId64, m->ordinal);
}

/* ---- handles ---- */

static void close_one(struct ws_serve *s, struct ws_serve_ipc *ipc, size_t i)
{
	struct ws_gpu *g = s->gpus->of_rank[ipc->open[i].rank];
	if (ws_gpu_use(g, NULL) == 0)
		ws_gpu_ipc_close(g, ipc->open[i].at);
	ipc->open[i] = ipc->open[--ipc->n];
}

static int open_new(struct ws_serve *s, struct ws_serve_ipc *ipc, unsigned rank,
                    const unsigned char *handle, struct ws_err *err)
{
	struct ws_gpu *g = s->gpus->of_rank[rank];
	struct opened o = { .rank = rank };
	memcpy(o.handle, handle, sizeof o.handle);
	if (ipc->n == MOST_OPEN)
		return ws_err_set(err, WS_EINPUT,
		                  "too many handles of other processes' memory are open");
	if (ws_gpu_use(g, err) || ws_gpu_ipc_open(g, handle, &o.at, err))
		return -1;
	if (ws_gpu_size(g, o.at, &o.bytes, err)) {
		ws_gpu_ipc_close(g, o.at);
		return -1;
	}
	ipc->open[ipc->n++] = o;
	pthread_mutex_lock(&s->lock);
	s->journal.handles++;
	pthread_mutex_unlock(&s->lock);
	return 0;
}

/* Returns the index in ipc->open, or -1 if the handle cannot be opened. */
static int open_handle(struct ws_serve *s, struct ws_serve_ipc *ipc, unsigned rank,
                       const unsigned char *handle, struct ws_err *err)
{
	size_t i = 0;
	while (i < ipc->n && (ipc->open[i].rank != rank ||
	                      memcmp(ipc->open[i].handle, handle, WS_IPC_HANDLE_BYTES) != 0))
		i++;
	if (i == ipc->n && open_new(s, ipc, rank, handle, err))
		return -1;
	ipc->open[i].used = ipc->request;
	return (int)i;
}

/* ---- bytes ---- */

static int copy_out(struct ws_serve *s, struct ws_serve_ipc *ipc, const struct opened *o,
                    const struct ws_pickle_bucket *b, uint8_t **out, struct ws_err *err)
{
	const uint64_t at = b->memory.at, length = b->length;
	const struct ws_cancel *stopping = &s->gpus->stopping;
	const ws_deadline until = ws_deadline_in(s->opts.receive_ns);
	if (at > o->bytes || length > o->bytes - at)
		return ws_err_set(err, WS_EINPUT,
		                  "%" PRIu64 " bytes from byte %" PRIu64 " on are beyond the "
		                  "allocation, which has %" PRIu64,
		                  length, at, o->bytes);
	struct ws_gpu *g = s->gpus->of_rank[o->rank];
	struct ws_serve_outlet **outlet = &ipc->outlets[o->rank];
	if (ws_gpu_use(g, err) || (!*outlet && ws_serve_outlet_open(g, outlet, err)) ||
	    (b->memory.event && ws_gpu_ipc_wait(g, b->memory.event, until, stopping, err)))
		return -1;
	uint8_t *bytes = malloc(length ? (size_t)length : 1);
	if (!bytes)
		return ws_err_set(err, WS_ESYSTEM, "not enough memory for %" PRIu64 " bytes",
		                  length);
	const struct ws_gloo_sink sink = { .length = length, .dst = bytes };
	if (ws_serve_outlet_run(*outlet, o->at + at, &sink, until, stopping, err)) {
		free(bytes);
		return -1;
	}
	*out = bytes;
	return 0;
}

int ws_serve_ipc_fetch(struct ws_serve *s, const struct ws_pickle_bucket *b, uint8_t **bytes,
                       struct ws_err *err)
{
	unsigned rank = 0;
	if (!s->gpus) {
		ws_err_set(err, WS_EINPUT,
		           "the tensors are in memory of a GPU, and this endpoint has none");
		return ws_err_hint(err, "wsync-endpoint --backend ipc has one");
	}
	if (!s->gpus->ipc && !(s->gpus->ipc = calloc(1, sizeof *s->gpus->ipc)))
		return ws_oom(err);
	if (find_rank(s, &b->memory, &rank, err))
		return -1;
	struct ws_serve_ipc *ipc = s->gpus->ipc;
	const int i = open_handle(s, ipc, rank, b->memory.handle, err);
	const int rc = i < 0 ? -1 : copy_out(s, ipc, &ipc->open[i], b, bytes, err);
	if (i >= 0 && b->memory.counter_len)
		close_one(s, ipc, (size_t)i);
	return rc;
}

void ws_serve_ipc_fetched(struct ws_serve *s, bool last)
{
	struct ws_serve_ipc *ipc = s->gpus ? s->gpus->ipc : NULL;
	if (!ipc)
		return;
	for (size_t i = ipc->n; i-- > 0;)
		if (last || ipc->open[i].used + 1 < ipc->request)
			close_one(s, ipc, i);
	ipc->request++;
}

void ws_serve_ipc_close(struct ws_serve *s)
{
	struct ws_serve_ipc *ipc = s->gpus->ipc;
	if (!ipc)
		return;
	while (ipc->n)
		close_one(s, ipc, ipc->n - 1);
	for (unsigned r = 0; r < s->opts.tp; r++)
		if (ipc->outlets[r] && ws_gpu_use(s->gpus->of_rank[r], NULL) == 0)
			ws_serve_outlet_close(ipc->outlets[r]);
	free(ipc);
	s->gpus->ipc = NULL;
}
