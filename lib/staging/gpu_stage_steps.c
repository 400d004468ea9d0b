/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu_stage_steps.h"

#include "gpu_stage.h"
#include "gpu_scratch.h"

#include <stdlib.h>

int ws_stage_steps_add(struct ws_stage_steps *s, const struct ws_stage_step *step,
                       struct ws_err *err)
{
	if (s->n == s->cap) {
		const size_t cap = s->cap ? s->cap * 2 : 64;
		struct ws_stage_step *list = reallocarray(s->list, cap, sizeof *list);
		if (!list)
			return ws_oom(err);
		s->list = list;
		s->cap = cap;
	}
	s->list[s->n++] = *step;
	return 0;
}

int ws_stage_steps_read(struct ws_stage_steps *s, const struct ws_span *span, uint64_t from,
                        uint64_t n, ws_devptr to, struct ws_err *err)
{
	const bool resident = span->gpu_address || span->n_strided;
	const struct ws_stage_step step = { .kind = resident ? WS_STAGE_RESIDENT : WS_STAGE_READ,
		                            .span = span,
		                            .from = from,
		                            .n = n,
		                            .to = to };
	return ws_stage_steps_add(s, &step, err);
}

/* ---- recipes ---- */

static struct ws_kernel_job *new_job(struct ws_stage_steps *s, struct ws_err *err)
{
	if (s->n_jobs == s->cap_jobs) {
		const size_t cap = s->cap_jobs ? s->cap_jobs * 2 : 16;
		struct ws_kernel_job *jobs = reallocarray(s->jobs, cap, sizeof *jobs);
		if (!jobs) {
			ws_oom(err);
			return NULL;
		}
		s->jobs = jobs;
		s->cap_jobs = cap;
	}
	return &s->jobs[s->n_jobs];
}

struct bucket {
	const struct ws_payload *payloads;
	size_t n;
	ws_devptr at;
	const struct ws_gpu_scratch *scratch;
};

/* Finds the two outputs of a recipe in the bucket. */
static void find_results(const struct bucket *b, struct ws_kernel_job *m)
{
	ws_devptr payload = b->at;
	for (size_t i = 0; i < b->n; i++) {
		ws_devptr at = payload;
		for (size_t k = 0; k < b->payloads[i].n_spans; k++) {
			const struct ws_span *s = &b->payloads[i].spans[k];
			if (s->recipe && s->recipe->recipe == m->recipe) {
				m->spans[s->recipe->scales] = s;
				m->to[s->recipe->scales] = at;
			}
			at += s->length;
		}
		payload = ws_gpu_stage_next_offset(payload, &b->payloads[i]);
	}
}

/* Kernels need aligned outputs. */
static bool is_aligned(const struct ws_kernel_job *m)
{
	const uint64_t size = m->recipe->quantized ? 1 : m->recipe->dtype == WS_DTYPE_F32 ? 4 : 2;
	return m->to[0] % size == 0 && m->to[1] % sizeof(float) == 0;
}

static bool is_planned(const struct ws_stage_steps *s, const struct ws_span *span)
{
	for (size_t i = s->n_jobs; i-- > 0;)
		if (s->jobs[i].spans[span->recipe->scales] == span)
			return true;
	return false;
}

/* The first of the two outputs adds the job for both. *read: kernels cannot compute the output, so
 * the span is read like others. */
static int add_recipe(struct ws_stage_steps *s, const struct bucket *b, const struct ws_span *span,
                      bool *read, struct ws_err *err)
{
	*read = false;
	if (is_planned(s, span))
		return 0;
	struct ws_kernel_job *m = new_job(s, err);
	if (!m)
		return -1;
	*m = (struct ws_kernel_job){ .recipe = span->recipe->recipe,
		                     .record = b->scratch->records +
		                               s->n_jobs % WS_GPU_SCRATCH_RECORDS *
		                                       WS_GPU_SCRATCH_RECORD };
	find_results(b, m);
	*read = !is_aligned(m);
	if (*read)
		return 0;
	s->n_jobs++;
	return ws_stage_recipe_add(s, m, b->scratch->memory, b->scratch->bytes, err);
}

/* ---- payloads ---- */

static int add_payload(struct ws_stage_steps *s, const struct bucket *b, const struct ws_payload *p,
                       ws_devptr at, struct ws_err *err)
{
	for (size_t i = 0; i < p->n_spans; i++) {
		const struct ws_span *span = &p->spans[i];
		bool read = true;
		if (span->recipe && b->scratch && add_recipe(s, b, span, &read, err))
			return -1;
		if (read && ws_stage_steps_read(s, span, 0, span->length, at, err))
			return -1;
		at += span->length;
	}
	return ws_stage_steps_add(s, &(struct ws_stage_step){ .kind = WS_STAGE_END }, err);
}

int ws_stage_steps_make(const struct ws_payload *payloads, size_t n, ws_devptr at,
                        const struct ws_gpu_scratch *scratch, struct ws_stage_steps **out,
                        struct ws_err *err)
{
	const struct bucket b = { payloads, n, at, scratch };
	struct ws_stage_steps *s = calloc(1, sizeof *s);
	if (!s)
		return ws_oom(err);
	s->half = scratch ? scratch->half : 0;
	for (size_t i = 0; i < n; i++) {
		if (add_payload(s, &b, &payloads[i], at, err)) {
			ws_stage_steps_free(s);
			return -1;
		}
		at = ws_gpu_stage_next_offset(at, &payloads[i]);
	}
	*out = s;
	return 0;
}

void ws_stage_steps_free(struct ws_stage_steps *s)
{
	if (!s)
		return;
	free(s->jobs);
	free(s->list);
	free(s);
}

size_t ws_stage_steps_find(const struct ws_stage_steps *s, size_t payload)
{
	size_t step = 0;
	for (; payload > 0; step++)
		payload -= s->list[step].kind == WS_STAGE_END;
	return step;
}
