/* SPDX-License-Identifier: Apache-2.0 */
/* serve_gpu.c - opens the endpoint's GPUs when it starts, and copies received tensors to host
 * memory. */
#include "serve_gpu.h"

#include "serve_lineage.h"

#include <stdlib.h>
#include <string.h>

enum { PIECE = 4 << 20, SLOTS = 2 };
static const int64_t ASKING_NS = 20 * WS_NS_PER_S;

/* ---- opening ---- */

static int open_gpus(struct ws_serve_gpus *g, unsigned first, unsigned n, struct ws_err *err)
{
	if (ws_cuda_open(NULL, &g->cuda, err))
		return -1;
	if (n > 1 && first + n > (unsigned)ws_cuda_count(g->cuda) && ws_cuda_count(g->cuda) > 0) {
		ws_err_set(err, WS_EDEVICE,
		           "%u tensor-parallel ranks want GPUs %u to %u, and there are %d", n,
		           first, first + n - 1, ws_cuda_count(g->cuda));
		return ws_err_hint(err, "NCCL takes one rank of a process on each GPU: with {tp} 1 "
		                        "and {shared_gpu}, several endpoints can be on one");
	}
	for (unsigned r = 0; r < n; r++)
		if (ws_gpu_open(g->cuda, (int)(first + r), &g->of_rank[r], err))
			return -1;
	return 0;
}

static int open_nccl(struct ws_serve_gpus *g, const struct ws_serve_opts *o, struct ws_err *err)
{
	char path[WS_NCCL_PATH_MAX];
	if (o->nccl_library && o->nccl_from)
		return ws_err_set(err, WS_EUSAGE,
		                  "{nccl_library} and {nccl_from} exclude each other");
	if (o->nccl_from && ws_nccl_find(o->nccl_from, ws_deadline_in(ASKING_NS), NULL, path, err))
		return -1;
	const struct ws_nccl_opts opts = { .library = o->nccl_from ? path : o->nccl_library };
	return ws_nccl_open(&opts, &g->nccl, err);
}

static void say_what(const struct ws_serve *s, const struct ws_serve_opts *o)
{
	const struct ws_serve_gpus *g = s->gpus;
	for (unsigned r = 0; r < s->opts.tp; r++)
		ws_log(o->log, 1, "rank %u has GPU %u (%s)", r, o->gpu + r,
		       ws_gpu_device(g->of_rank[r])->name);
	if (g->nccl)
		ws_log(o->log, 1, "nccl: %s, from %s", ws_nccl_version_text(g->nccl),
		       ws_nccl_path(g->nccl));
}

int ws_serve_gpus_open(struct ws_serve *s, const struct ws_serve_opts *o, struct ws_err *err)
{
	if (o->backend == WS_SERVE_GLOO)
		return 0;
	s->gpus = calloc(1, sizeof *s->gpus);
	if (!s->gpus)
		return ws_oom(err);
	s->gpus->stopping = (struct ws_cancel)WS_CANCEL_INIT;
	if (open_gpus(s->gpus, o->gpu, s->opts.tp, err) ||
	    (o->backend == WS_SERVE_NCCL && open_nccl(s->gpus, o, err)))
		return -1;
	say_what(s, o);
	return 0;
}

void ws_serve_gpus_stop(struct ws_serve *s)
{
	if (s->gpus)
		ws_cancel_set(&s->gpus->stopping);
}

void ws_serve_gpus_close(struct ws_serve *s)
{
	if (!s->gpus)
		return;
	ws_serve_ipc_close(s);
	for (unsigned r = s->opts.tp; r-- > 0; ) /* each close restores the previous context */
		ws_gpu_close(s->gpus->of_rank[r]);
	ws_nccl_close(s->gpus->nccl);
	ws_cuda_close(s->gpus->cuda);
	free(s->gpus);
	s->gpus = NULL;
}

/* ---- copying out ---- */

struct ws_serve_outlet {
	struct ws_gpu *gpu;
	struct ws_stream *stream;
	bool stuck; /* a copy into the slots did not end in time */
	struct {
		void *memory;
		struct ws_gpu_event *copied;
	} slots[SLOTS];
};

int ws_serve_outlet_open(struct ws_gpu *g, struct ws_serve_outlet **out, struct ws_err *err)
{
	struct ws_serve_outlet *o = calloc(1, sizeof *o);
	if (!o)
		return ws_oom(err);
	o->gpu = g;
	if (ws_stream_new(g, &o->stream, err))
		goto fail;
	for (int i = 0; i < SLOTS; i++)
		if (ws_gpu_alloc_pinned(g, PIECE, &o->slots[i].memory, err) ||
		    ws_gpu_event_new(g, &o->slots[i].copied, err))
			goto fail;
	*out = o;
	return 0;
fail:
	ws_serve_outlet_close(o);
	return -1;
}

void ws_serve_outlet_close(struct ws_serve_outlet *o)
{
	if (!o || (o->stuck && !ws_stream_settle(o->gpu, o->stream)))
		return;
	ws_stream_free(o->gpu, o->stream);
	for (int i = 0; i < SLOTS; i++) {
		ws_gpu_event_free(o->gpu, o->slots[i].copied);
		ws_gpu_free_pinned(o->gpu, o->slots[i].memory);
	}
	free(o);
}

static size_t piece_at(uint64_t at, uint64_t length)
{
	return length - at < PIECE ? (size_t)(length - at) : PIECE;
}

static int ask(struct ws_serve_outlet *o, size_t i, ws_devptr from, uint64_t at, uint64_t length,
               struct ws_err *err)
{
	if (at >= length)
		return 0;
	return ws_gpu_copy_out(o->gpu, o->slots[i % SLOTS].memory, from + at, piece_at(at, length),
	                       o->stream, err) ||
	                       ws_gpu_event_record(o->gpu, o->slots[i % SLOTS].copied, o->stream,
	                                           err) ?
	               -1 :
	               0;
}

static int deliver(const struct ws_gloo_sink *to, uint64_t at, const void *bytes, size_t n,
                   struct ws_err *err)
{
	if (to->dst)
		memcpy((char *)to->dst + at, bytes, n);
	return to->take ? to->take(to->ctx, bytes, n, err) : 0;
}

/* Copies one piece while the caller's sink reads the other. */
int ws_serve_outlet_run(struct ws_serve_outlet *o, ws_devptr from, const struct ws_gloo_sink *to,
                        ws_deadline until, const struct ws_cancel *cancel, struct ws_err *err)
{
	if (!to->dst && !to->take)
		return 0;
	if (o->stuck && !ws_stream_settle(o->gpu, o->stream))
		return ws_err_set(err, WS_EDEVICE,
		                  "GPU %s is still busy with an abandoned copy",
		                  ws_gpu_device(o->gpu)->name);
	o->stuck = false;
	int rc = ask(o, 0, from, 0, to->length, err);
	uint64_t at = 0;
	for (size_t i = 0; rc == 0 && at < to->length; i++) {
		const size_t n = piece_at(at, to->length);
		rc = ask(o, i + 1, from, at + n, to->length, err);
		if (rc == 0)
			rc = ws_gpu_event_wait(o->gpu, o->slots[i % SLOTS].copied, until, cancel,
			                       err);
		if (rc == 0)
			rc = deliver(to, at, o->slots[i % SLOTS].memory, n, err);
		at += n;
	}
	/* Copies that were started may still write into the slots. */
	if (rc)
		o->stuck = !ws_stream_settle(o->gpu, o->stream);
	return rc;
}
