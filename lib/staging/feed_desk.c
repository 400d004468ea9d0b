/* SPDX-License-Identifier: Apache-2.0 */
#include "feed_desk.h"

#include <stdlib.h>

static const uint64_t RECORDS = (uint64_t)WS_FEED_RECORDS * WS_FEED_RECORD;

static int set_up(struct ws_feed_desk *d, struct ws_err *err)
{
	void *found;
	if (ws_gpu_alloc(d->gpu, d->bytes, &d->scratch, err) ||
	    ws_gpu_alloc(d->gpu, RECORDS, &d->records, err) ||
	    ws_gpu_alloc_pinned(d->gpu, RECORDS, &found, err))
		return -1;
	d->found = found;
	for (int i = 0; i < WS_FEED_RECORDS; i++)
		if (ws_gpu_event_new(d->gpu, &d->told[i], err))
			return -1;
	return ws_gpu_event_new(d->gpu, &d->used[0], err) ||
	                       ws_gpu_event_new(d->gpu, &d->used[1], err) ?
	               -1 :
	               0;
}

int ws_feed_desk_open(struct ws_gpu *gpu, struct ws_compute *compute, uint64_t scratch,
                      struct ws_feed_desk **out, struct ws_err *err)
{
	struct ws_feed_desk *d = calloc(1, sizeof *d);
	if (!d)
		return ws_oom(err);
	d->gpu = gpu;
	d->compute = compute;
	d->bytes = scratch;
	if (set_up(d, err)) {
		ws_feed_desk_close(d);
		return -1;
	}
	*out = d;
	return 0;
}

void ws_feed_desk_close(struct ws_feed_desk *d)
{
	if (!d)
		return;
	for (int i = 0; i < WS_FEED_RECORDS; i++)
		ws_gpu_event_free(d->gpu, d->told[i]);
	for (int i = 0; i < 2; i++)
		ws_gpu_event_free(d->gpu, d->used[i]);
	ws_gpu_free_pinned(d->gpu, d->found);
	ws_gpu_free(d->gpu, d->records);
	ws_gpu_free(d->gpu, d->scratch);
	free(d);
}

void ws_feed_desk_memory(uint64_t *gpu, uint64_t *pinned)
{
	*gpu = WS_FEED_SCRATCH + RECORDS;
	*pinned = RECORDS;
}

/* Makings follow each other on the stream. */
static void trace_making(struct ws_feed_desk *d, const struct ws_feed_making *m, int64_t begun)
{
	const struct ws_trace_what making = { .row = WS_TRACE_TRANSFORM,
		                              .of = "GPU",
		                              .name = "make",
		                              .about = m->formula->name,
		                              .since = begun > d->judged ? begun : d->judged };
	uint64_t bytes = 0;
	for (int i = 0; i < 2; i++)
		bytes += m->spans[i] ? m->spans[i]->length : 0;
	d->judged = ws_now_ns();
	ws_trace_end(d->trace, ws_trace_begin(d->trace, &making),
	             &(struct ws_trace_end){ .bytes = bytes, .at = d->judged });
}

static int tell(struct ws_feed_desk *d, const struct ws_feed_making *m, size_t i,
                struct ws_stream *stream, struct ws_err *err)
{
	const size_t at = i % WS_FEED_RECORDS;
	return ws_gpu_copy_out(d->gpu, d->found + at * WS_FEED_RECORD, m->record, WS_RECORD_BYTES,
	                       stream, err) ||
	                       ws_gpu_event_record(d->gpu, d->told[at], stream, err) ?
	               -1 :
	               0;
}

/* The band before this one has been asked for whole; of the half that is to be used now, the
 * last one that had it too. */
int ws_feed_desk_turn(struct ws_feed_desk *d, unsigned turn, struct ws_stream *stream,
                      struct ws_stream *copies, struct ws_err *err)
{
	if (ws_gpu_event_record(d->gpu, d->used[d->turn], stream, err) ||
	    ws_stream_wait_event(d->gpu, copies, d->used[turn], err))
		return -1;
	d->turn = turn;
	return 0;
}

int ws_feed_desk_do(struct ws_feed_desk *d, const struct ws_feed_steps *steps,
                    const struct ws_feed_step *s, struct ws_stream *stream, struct ws_err *err)
{
	switch (s->kind) {
	case WS_FEED_BEGIN:
		d->begun[s->making % WS_FEED_RECORDS] = ws_now_ns();
		return ws_record_clear(d->compute, steps->makings[s->making].record, stream, err);
	case WS_FEED_UNPACK:
		return ws_compute_unpack(d->compute, &s->unpack, stream, err);
	case WS_FEED_MERGE:
		return ws_compute_merge(d->compute, &s->merge, stream, err);
	case WS_FEED_FP8:
		return ws_compute_fp8(d->compute, &s->fp8, stream, err);
	case WS_FEED_FINISH:
		return tell(d, &steps->makings[s->making], s->making, stream, err);
	default:
		return 0;
	}
}

int ws_feed_desk_judge(struct ws_feed_desk *d, const struct ws_feed_steps *steps, size_t i,
                       bool *good, ws_deadline until, const struct ws_cancel *cancel,
                       struct ws_err *err)
{
	/* as lib/transform has it: half of that twice is still a number */
	static const float large = 1e38f;
	const struct ws_formula *f = steps->makings[i].formula;
	const size_t at = i % WS_FEED_RECORDS;
	struct ws_record r;
	if (ws_gpu_event_wait(d->gpu, d->told[at], until, cancel, err))
		return -1;
	if (d->trace)
		trace_making(d, &steps->makings[i], d->begun[at]);
	ws_record_read(d->found + at * WS_FEED_RECORD, f->cols, &r);
	*good = !r.bad && r.max_delta < large && r.max_w < large;
	if (*good && f->n_pairs)
		ws_formula_note(f, r.max_delta, r.max_w);
	return 0;
}
