/* SPDX-License-Identifier: Apache-2.0 */
/* gpu_stage.c - two positions in a list of steps: requested reads, and work queued in streams. */
#include "gpu_stage.h"

#include "gpu_stage_steps.h"
#include "gpu_scratch.h"
#include "staging_ring.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const int64_t DRAIN_NS = 2 * WS_NS_PER_S;

int ws_gpu_stage_open(struct ws_gpu_stage *f, struct ws_gpu *gpu, struct ws_err *err)
{
	memset(f, 0, sizeof *f);
	f->gpu = gpu;
	for (int i = 0; i < WS_GPU_STAGE_BUFFERS; i++)
		f->buffers[i].stage = f;
	return ws_stream_new(gpu, &f->stream, err) || ws_stream_new(gpu, &f->copies, err) ||
	                       ws_gpu_event_new(gpu, &f->copied, err) ||
	                       ws_ring_open(gpu, &f->ring, err) ?
	               -1 :
	               0;
}

int ws_gpu_stage_use_kernels(struct ws_gpu_stage *f, uint64_t scratch, struct ws_err *err)
{
	if (!f->compute && ws_compute_open(f->gpu, &f->compute, err))
		return -1;
	return ws_gpu_scratch_open(f->gpu, f->compute, scratch ? scratch : WS_GPU_SCRATCH_BYTES,
	                           &f->scratch, err);
}

int ws_transport_gpu_open(const struct ws_transport_gpu *g, struct ws_cuda **cuda,
                          struct ws_gpu **gpu, struct ws_err *err)
{
	const struct ws_cuda_opts driver = { .library = g->driver };
	int ordinal = g->device;
	if (ws_cuda_open(&driver, cuda, err) ||
	    (g->uuid && ws_cuda_find(*cuda, g->uuid, &ordinal, err)))
		return -1;
	return ws_gpu_open(*cuda, ordinal, gpu, err);
}

int ws_gpu_stage_try_kernels(struct ws_gpu_stage *f, const struct ws_transport_gpu *g,
                             struct ws_err *err)
{
	struct ws_err why = WS_ERR_INIT;
	char text[sizeof why.msg + sizeof why.hint + 128];
	if (!g->compute || ws_gpu_stage_use_kernels(f, 0, &why) == 0)
		return 0;
	if (g->must_compute) {
		if (err)
			*err = why;
		return -1;
	}
	snprintf(text, sizeof text,
	         "the CPU transforms all tensors, which is slow, because the GPU cannot: %s%s%s",
	         why.msg, *why.hint ? "; " : "", why.hint);
	if (g->warn)
		g->warn(g->warn_ctx, text);
	return 0;
}

bool ws_gpu_stage_computes(const struct ws_gpu_stage *f, const struct ws_recipe_output *out)
{
	return f->scratch && out && ws_stage_recipe_fits(out->recipe, f->scratch->bytes);
}

void ws_gpu_stage_drain(struct ws_gpu_stage *f)
{
	struct ws_stream *const both[] = { f->copies, f->stream };
	for (int i = 0; i < 2; i++)
		if (both[i])
			ws_stream_wait(f->gpu, both[i], ws_deadline_in(DRAIN_NS), NULL, NULL);
}

void ws_gpu_stage_close(struct ws_gpu_stage *f)
{
	if (!f->gpu)
		return;
	ws_gpu_stage_drain(f); /* freeing a stream or pinned memory does not wait for it */
	for (int i = 0; i < WS_GPU_STAGE_BUFFERS; i++)
		ws_gpu_stage_release(&f->buffers[i]);
	ws_gpu_event_free(f->gpu, f->copied);
	ws_stream_free(f->gpu, f->copies);
	ws_stream_free(f->gpu, f->stream);
	ws_ring_close(f->ring);
	ws_gpu_scratch_close(f->scratch);
	ws_compute_close(f->compute);
	for (int i = 0; i < WS_GPU_STAGE_BUFFERS; i++)
		ws_gpu_free(f->gpu, f->buffers[i].at);
	memset(f, 0, sizeof *f);
}

void ws_gpu_stage_memory(size_t buckets, uint64_t bytes, size_t payloads, uint64_t *gpu,
                         uint64_t *pinned)
{
	const uint64_t buffer = bytes + (uint64_t)payloads * (WS_GPU_STAGE_ALIGN - 1);
	*gpu = buffer * (buckets < WS_GPU_STAGE_BUFFERS ? buckets : WS_GPU_STAGE_BUFFERS);
	*pinned = (uint64_t)WS_RING_SLOTS * WS_RING_SLOT;
}

void ws_gpu_stage_trace(struct ws_gpu_stage *f, struct ws_trace *trace)
{
	ws_ring_trace(f->ring, trace);
	if (f->scratch)
		f->scratch->trace = trace;
}

void ws_gpu_stage_poll_trace(struct ws_gpu_stage *f)
{
	ws_ring_poll_trace(f->ring);
}

void ws_gpu_stage_kernel_memory(uint64_t *gpu, uint64_t *pinned)
{
	uint64_t more, more_pinned;
	ws_gpu_scratch_memory(&more, &more_pinned);
	*gpu += more;
	*pinned += more_pinned;
}

/* ---- buffers ---- */

struct ws_staging_buffer *ws_gpu_stage_buffer(struct ws_gpu_stage *f,
                                              const struct ws_payload *payloads, size_t n)
{
	struct ws_staging_buffer *unused = NULL;
	for (int i = 0; i < WS_GPU_STAGE_BUFFERS; i++) {
		struct ws_staging_buffer *b = &f->buffers[i];
		if (b->payloads == payloads)
			return b;
		if (!b->payloads)
			unused = b;
	}
	if (unused) {
		ws_gpu_stage_release(unused);
		unused->payloads = payloads;
		unused->n_payloads = n;
	}
	return unused;
}

/* Cancels pending reads; the payload that is not loaded yet starts again. */
static void stop_reading(struct ws_staging_buffer *b)
{
	if (b->stage->reading == b) {
		ws_ring_cancel(b->stage->ring);
		b->stage->reading = NULL;
	}
	b->done = (struct ws_stage_position){
		.step = b->steps ? ws_stage_steps_find(b->steps, b->loaded) : 0
	};
	b->requested = b->done;
	b->launched = b->checked = 0;
	for (size_t i = 0; i < b->done.step; i++)
		b->launched += b->steps->list[i].kind == WS_STAGE_FINISH;
	b->checked = b->launched;
}

void ws_gpu_stage_release(struct ws_staging_buffer *b)
{
	/* if all payloads are loaded, pending reads may belong to another thread */
	if (b->loaded < b->n_payloads)
		stop_reading(b);
	ws_stage_steps_free(b->steps);
	b->steps = NULL;
	b->payloads = NULL;
	b->n_payloads = b->loaded = 0;
	b->requested = b->done = (struct ws_stage_position){ 0 };
	b->launched = b->checked = 0;
	if (b->borrowed)
		ws_gpu_stage_set_memory(b, 0, 0);
}

void ws_gpu_stage_set_memory(struct ws_staging_buffer *b, ws_devptr at, uint64_t capacity)
{
	if (!b->borrowed)
		ws_gpu_free(b->stage->gpu, b->at);
	b->borrowed = capacity > 0;
	b->at = at;
	b->capacity = capacity;
}

uint64_t ws_gpu_stage_next_offset(uint64_t place, const struct ws_payload *p)
{
	return place +
	       (p->length + WS_GPU_STAGE_ALIGN - 1) / WS_GPU_STAGE_ALIGN * WS_GPU_STAGE_ALIGN;
}

static uint64_t bytes_needed(const struct ws_staging_buffer *b)
{
	uint64_t wants = 0;
	for (size_t i = 0; i < b->n_payloads; i++)
		wants = ws_gpu_stage_next_offset(wants, &b->payloads[i]);
	return wants;
}

bool ws_gpu_stage_must_grow(const struct ws_staging_buffer *b)
{
	return b->at && bytes_needed(b) > b->capacity;
}

static int grow(struct ws_gpu_stage *f, struct ws_staging_buffer *b, struct ws_err *err)
{
	uint64_t wants = bytes_needed(b);
	if (wants <= b->capacity)
		return 0;
	assert(!b->borrowed); /* the caller gave enough memory */
	wants = wants > f->least ? wants : f->least;
	ws_gpu_free(f->gpu, b->at);
	b->at = 0;
	b->capacity = 0;
	if (ws_gpu_alloc(f->gpu, wants, &b->at, err)) {
		ws_err_hint(
			err,
			"two buckets lie on the GPU at once: a smaller {bucket_size} needs less");
		return -1;
	}
	b->capacity = wants;
	return 0;
}

static int prepare(struct ws_gpu_stage *f, struct ws_staging_buffer *b, struct ws_err *err)
{
	return b->steps ? 0 :
	       grow(f, b, err) || ws_stage_steps_make(b->payloads, b->n_payloads, b->at, f->scratch,
	                                              &b->steps, err) ?
	                  -1 :
	                  0;
}

/* ---- steps ---- */

static size_t piece_at(const struct ws_stage_step *s, uint64_t in)
{
	return s->n - in < WS_RING_SLOT ? (size_t)(s->n - in) : WS_RING_SLOT;
}

static void advance(struct ws_stage_position *at, const struct ws_stage_step *s, size_t n)
{
	at->in += n;
	if (at->in < s->n)
		return;
	at->step++;
	at->in = 0;
}

/* Requests reads while there are free slots. */
static int request_ahead(struct ws_gpu_stage *f, struct ws_staging_buffer *b, struct ws_err *err)
{
	for (bool asked = true; asked && b->requested.step < b->steps->n;) {
		const struct ws_stage_step *s = &b->steps->list[b->requested.step];
		if (s->kind == WS_STAGE_RESIDENT)
			break; /* copy_resident decides whether it must be read */
		if (s->kind != WS_STAGE_READ) {
			b->requested.step++;
			continue;
		}
		const size_t n = piece_at(s, b->requested.in);
		if (ws_ring_request(f->ring, s->span, s->from + b->requested.in, n, &asked, err))
			return -1;
		if (asked)
			advance(&b->requested, s, n);
	}
	return 0;
}

static int copy_whole(struct ws_gpu_stage *f, const struct ws_stage_step *s, bool *here,
                      struct ws_err *err)
{
	struct ws_gpu_address address;
	if (s->span->gpu_address(s->span->ctx, &address, err))
		return -1;
	*here = memcmp(address.gpu, ws_gpu_device(f->gpu)->uuid, sizeof address.gpu) == 0;
	return *here ? ws_gpu_copy(f->gpu, s->to, address.at + s->from, s->n, f->stream, err) : 0;
}

/* Without kernels for this GPU, the CPU gathers. */
static int gather(struct ws_gpu_stage *f, const struct ws_stage_step *s, bool *here,
                  struct ws_err *err)
{
	*here = false;
	f->no_compute =
		f->no_compute || (!f->compute && ws_compute_open(f->gpu, &f->compute, NULL));
	return f->no_compute ? 0 :
	                       ws_gpu_strided_read(f->compute, ws_gpu_device(f->gpu), s->span,
	                                           s->from, s->n, s->to, f->stream, here, err);
}

/* Copies bytes that are on this GPU; turns the step into a read if they are not. */
static int copy_resident(struct ws_gpu_stage *f, struct ws_staging_buffer *b,
                         struct ws_stage_step *s, struct ws_err *err)
{
	bool here;
	if (s->span->n_strided ? gather(f, s, &here, err) : copy_whole(f, s, &here, err))
		return -1;
	if (!here) {
		s->kind = WS_STAGE_READ;
		return 0;
	}
	b->done.step++;
	b->requested = b->done;
	return 0;
}

/* Later work in the stream waits for all copies so far. */
static int catch_up(struct ws_gpu_stage *f, struct ws_err *err)
{
	if (f->behind && (ws_gpu_event_record(f->gpu, f->copied, f->copies, err) ||
	                  ws_stream_wait_event(f->gpu, f->stream, f->copied, err)))
		return -1;
	f->behind = false;
	return 0;
}

/* Copies the next requested piece; if none is pending, waits for a free slot. */
static int take_piece(struct ws_gpu_stage *f, struct ws_stage_position *done,
                      const struct ws_stage_step *s, ws_deadline until,
                      const struct ws_cancel *cancel, struct ws_err *err)
{
	if (ws_ring_pending(f->ring) == 0)
		return ws_ring_wait_free(f->ring, until, cancel, err);
	if (ws_ring_copy_next(f->ring, s->to + done->in, f->copies, until, cancel, err))
		return -1;
	f->behind = true;
	advance(done, s, piece_at(s, done->in));
	return 0;
}

/* Replaces the output of the kernels with the output of the fill. */
static int fill_anew(struct ws_gpu_stage *f, const struct ws_span *span, ws_devptr to,
                     ws_deadline until, const struct ws_cancel *cancel, struct ws_err *err)
{
	const struct ws_stage_step all = {
		.kind = WS_STAGE_READ, .span = span, .n = span->length, .to = to
	};
	struct ws_stage_position asked = { 0 }, done = { 0 };
	while (done.step == 0) {
		const size_t n = piece_at(&all, asked.in);
		bool room = asked.step == 0;
		if (room && ws_ring_request(f->ring, span, asked.in, n, &room, err))
			return -1;
		if (room)
			advance(&asked, &all, n);
		else if (take_piece(f, &done, &all, until, cancel, err))
			return -1;
	}
	return 0;
}

/* Checks the oldest job that is not checked yet. */
static int check_next_job(struct ws_gpu_stage *f, struct ws_staging_buffer *b, ws_deadline until,
                          const struct ws_cancel *cancel, struct ws_err *err)
{
	const struct ws_kernel_job *m = &b->steps->jobs[b->checked];
	bool good;
	if (ws_gpu_scratch_check_result(f->scratch, b->steps, b->checked, &good, until, cancel,
	                                err))
		return -1;
	for (int i = 0; i < 2 && !good; i++) {
		if (i == 0)
			ws_ring_cancel(f->ring);
		if (m->spans[i] && fill_anew(f, m->spans[i], m->to[i], until, cancel, err))
			return -1;
		b->requested = b->done;
	}
	b->checked++;
	return 0;
}

static int check_jobs(struct ws_gpu_stage *f, struct ws_staging_buffer *b, size_t most_left,
                      ws_deadline until, const struct ws_cancel *cancel, struct ws_err *err)
{
	while (b->launched - b->checked > most_left)
		if (check_next_job(f, b, until, cancel, err))
			return -1;
	return 0;
}

/* Runs a step of a kernel job. */
static int run_step(struct ws_gpu_stage *f, struct ws_staging_buffer *b,
                    const struct ws_stage_step *s, ws_deadline until,
                    const struct ws_cancel *cancel, struct ws_err *err)
{
	if ((s->kind == WS_STAGE_BEGIN &&
	     check_jobs(f, b, WS_GPU_SCRATCH_RECORDS - 1, until, cancel, err)) ||
	    catch_up(f, err) || ws_gpu_scratch_run(f->scratch, b->steps, s, f->stream, err))
		return -1;
	b->launched += s->kind == WS_STAGE_FINISH;
	b->done.step++;
	return 0;
}

static int end_payload(struct ws_gpu_stage *f, struct ws_staging_buffer *b, ws_deadline until,
                       const struct ws_cancel *cancel, struct ws_err *err)
{
	if (check_jobs(f, b, 0, until, cancel, err) || catch_up(f, err))
		return -1;
	b->loaded++;
	b->done.step++;
	return 0;
}

/* Runs the next piece of a step, or the whole step. */
static int do_next(struct ws_gpu_stage *f, struct ws_staging_buffer *b, ws_deadline until,
                   const struct ws_cancel *cancel, struct ws_err *err)
{
	struct ws_stage_step *s = &b->steps->list[b->done.step];
	switch (s->kind) {
	case WS_STAGE_READ:
		return take_piece(f, &b->done, s, until, cancel, err);
	case WS_STAGE_RESIDENT:
		return copy_resident(f, b, s, err);
	case WS_STAGE_END:
		return end_payload(f, b, until, cancel, err);
	case WS_STAGE_HALF:
		b->done.step++;
		return ws_gpu_scratch_switch(f->scratch, s->half, f->stream, f->copies, err);
	default:
		return run_step(f, b, s, until, cancel, err);
	}
}

static int load(struct ws_gpu_stage *f, struct ws_staging_buffer *b, ws_deadline until,
                const struct ws_cancel *cancel, struct ws_err *err)
{
	const size_t wanted = b->loaded + 1;
	while (b->loaded < wanted) {
		if (ws_cancelled(cancel))
			return ws_err_set(err, WS_ECANCELLED, "reading was cancelled");
		if (request_ahead(f, b, err) || do_next(f, b, until, cancel, err))
			return -1;
	}
	return 0;
}

int ws_gpu_stage_load(struct ws_gpu_stage *f, struct ws_staging_buffer *b, ws_deadline until,
                      const struct ws_cancel *cancel, struct ws_err *err)
{
	if (f->reading && f->reading != b)
		stop_reading(f->reading);
	f->reading = b;
	if (prepare(f, b, err) == 0 && load(f, b, until, cancel, err) == 0) {
		if (b->loaded == b->n_payloads)
			f->reading = NULL;
		return 0;
	}
	stop_reading(b);
	ws_gpu_stage_drain(f); /* the caller may free the source next */
	return -1;
}
