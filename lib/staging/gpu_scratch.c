/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu_scratch.h"

#include <stdlib.h>

static const uint64_t RECORDS = (uint64_t)WS_GPU_SCRATCH_RECORDS * WS_GPU_SCRATCH_RECORD;

static int set_up(struct ws_gpu_scratch *d, struct ws_err *err)
{
	void *results;
	if (ws_gpu_alloc(d->gpu, d->bytes, &d->memory, err) ||
	    ws_gpu_alloc(d->gpu, RECORDS, &d->records, err) ||
	    ws_gpu_alloc_pinned(d->gpu, RECORDS, &results, err))
		return -1;
	d->results = results;
	for (int i = 0; i < WS_GPU_SCRATCH_RECORDS; i++)
		if (ws_gpu_event_new(d->gpu, &d->result_event[i], err))
			return -1;
	return ws_gpu_event_new(d->gpu, &d->half_done[0], err) ||
	                       ws_gpu_event_new(d->gpu, &d->half_done[1], err) ?
	               -1 :
	               0;
}

int ws_gpu_scratch_open(struct ws_gpu *gpu, struct ws_compute *compute, uint64_t bytes,
                        struct ws_gpu_scratch **out, struct ws_err *err)
{
	struct ws_gpu_scratch *d = calloc(1, sizeof *d);
	if (!d)
		return ws_oom(err);
	d->gpu = gpu;
	d->compute = compute;
	d->bytes = bytes;
	if (set_up(d, err)) {
		ws_gpu_scratch_close(d);
		return -1;
	}
	*out = d;
	return 0;
}

void ws_gpu_scratch_close(struct ws_gpu_scratch *d)
{
	if (!d)
		return;
	for (int i = 0; i < WS_GPU_SCRATCH_RECORDS; i++)
		ws_gpu_event_free(d->gpu, d->result_event[i]);
	for (int i = 0; i < 2; i++)
		ws_gpu_event_free(d->gpu, d->half_done[i]);
	ws_gpu_free_pinned(d->gpu, d->results);
	ws_gpu_free(d->gpu, d->records);
	ws_gpu_free(d->gpu, d->memory);
	free(d);
}

void ws_gpu_scratch_memory(uint64_t *gpu, uint64_t *pinned)
{
	*gpu = WS_GPU_SCRATCH_BYTES + RECORDS;
	*pinned = RECORDS;
}

/* The stream runs jobs one after the other: a job starts when the job before it ends. */
static void trace_job(struct ws_gpu_scratch *d, const struct ws_kernel_job *m, int64_t begun)
{
	const struct ws_trace_what job = { .row = WS_TRACE_TRANSFORM,
		                           .of = "GPU",
		                           .name = "make",
		                           .about = m->recipe->name,
		                           .since = begun > d->checked ? begun : d->checked };
	uint64_t bytes = 0;
	for (int i = 0; i < 2; i++)
		bytes += m->spans[i] ? m->spans[i]->length : 0;
	d->checked = ws_now_ns();
	ws_trace_end(d->trace, ws_trace_begin(d->trace, &job),
	             &(struct ws_trace_end){ .bytes = bytes, .at = d->checked });
}

static int queue_result(struct ws_gpu_scratch *d, const struct ws_kernel_job *m, size_t i,
                        struct ws_stream *stream, struct ws_err *err)
{
	const size_t at = i % WS_GPU_SCRATCH_RECORDS;
	return ws_gpu_copy_out(d->gpu, d->results + at * WS_GPU_SCRATCH_RECORD, m->record,
	                       WS_RECORD_BYTES, stream, err) ||
	                       ws_gpu_event_record(d->gpu, d->result_event[at], stream, err) ?
	               -1 :
	               0;
}

/* The steps of the previous band, and of the last band in this half, are queued already. */
int ws_gpu_scratch_switch(struct ws_gpu_scratch *d, unsigned half, struct ws_stream *stream,
                          struct ws_stream *copies, struct ws_err *err)
{
	if (ws_gpu_event_record(d->gpu, d->half_done[d->half], stream, err) ||
	    ws_stream_wait_event(d->gpu, copies, d->half_done[half], err))
		return -1;
	d->half = half;
	return 0;
}

int ws_gpu_scratch_run(struct ws_gpu_scratch *d, const struct ws_stage_steps *steps,
                       const struct ws_stage_step *s, struct ws_stream *stream, struct ws_err *err)
{
	switch (s->kind) {
	case WS_STAGE_BEGIN:
		d->begun[s->job % WS_GPU_SCRATCH_RECORDS] = ws_now_ns();
		return ws_record_clear(d->compute, steps->jobs[s->job].record, stream, err);
	case WS_STAGE_UNPACK:
		return ws_compute_unpack(d->compute, s->packing, &s->unpack, stream, err);
	case WS_STAGE_MERGE:
		return ws_compute_merge(d->compute, &s->merge, stream, err);
	case WS_STAGE_FP8:
		return ws_compute_fp8(d->compute, s->is_f32, &s->fp8, stream, err);
	case WS_STAGE_FINISH:
		return queue_result(d, &steps->jobs[s->job], s->job, stream, err);
	default:
		return 0;
	}
}

int ws_gpu_scratch_check_result(struct ws_gpu_scratch *d, const struct ws_stage_steps *steps,
                                size_t i, bool *good, ws_deadline until,
                                const struct ws_cancel *cancel, struct ws_err *err)
{
	/* as in lib/transform: the sum of two numbers below this is finite */
	static const float large = 1e38f;
	const struct ws_transform_recipe *f = steps->jobs[i].recipe;
	const size_t at = i % WS_GPU_SCRATCH_RECORDS;
	struct ws_record r;
	if (ws_gpu_event_wait(d->gpu, d->result_event[at], until, cancel, err))
		return -1;
	if (d->trace)
		trace_job(d, &steps->jobs[i], d->begun[at]);
	ws_record_read(d->results + at * WS_GPU_SCRATCH_RECORD, f->cols, &r);
	*good = !r.bad && r.max_delta < large && r.max_w < large;
	if (*good && f->n_terms)
		ws_recipe_note(f, r.max_delta, r.max_w);
	return 0;
}
