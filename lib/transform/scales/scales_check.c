/* SPDX-License-Identifier: Apache-2.0 */
/* scales_check.c - the tensors of a scale check, the threads that read them, and the report.
 *
 * Threads take tensors from a common counter. The caller's thread is one of them, and the only one
 * that reports progress. Findings are sorted at the end, so they do not depend on timing. */
#include "scales_core.h"

#include "job.h"
#include "wsync/clock.h"
#include "wsync/tool/str.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_THREADS = 16 };

static const int64_t PROGRESS_NS = 100 * WS_NS_PER_MS;

const char *ws_scales_verdict_name(enum ws_scales_verdict v)
{
	static const char *const names[] = { "pair",   "shape",  "dtype", "name",
		                             "config", "values", "codes", "reciprocal",
		                             "ue8m0",  "source", "error", "unseen" };
	return names[v];
}

/* ---- findings ---- */

void ws_scales_notes_begin(struct ws_scales_notes *n, struct ws_scales_report *report)
{
	*n = (struct ws_scales_notes){ .report = report };
	pthread_mutex_init(&n->lock, NULL);
}

static void add_finding(struct ws_scales_notes *n, const struct ws_scales_finding *f)
{
	struct ws_scales_report *r = n->report;
	if (r->n_findings == n->cap) {
		const size_t cap = n->cap ? 2 * n->cap : 64;
		void *more = realloc(r->findings, cap * sizeof *r->findings);
		if (!more) {
			n->failed = true;
			return;
		}
		r->findings = more;
		n->cap = cap;
	}
	r->findings[r->n_findings++] = *f;
}

void ws_scales_say(struct ws_scales_notes *n, size_t order, enum ws_scales_verdict verdict,
                   enum ws_severity severity, const char *name, const char *fmt, ...)
{
	char text[2048];
	va_list args;
	va_start(args, fmt);
	vsnprintf(text, sizeof text, fmt, args);
	va_end(args);
	struct ws_scales_finding f = { .verdict = verdict, .severity = severity, .order = order };
	f.name = strdup(name);
	f.reason = strdup(text);
	pthread_mutex_lock(&n->lock);
	if (f.name && f.reason)
		add_finding(n, &f);
	else
		n->failed = true;
	pthread_mutex_unlock(&n->lock);
}

static int by_weight(const void *a, const void *b)
{
	const struct ws_scales_finding *x = a, *y = b;
	if (x->severity != y->severity)
		return x->severity > y->severity ? -1 : 1;
	if (x->verdict != y->verdict)
		return x->verdict < y->verdict ? -1 : 1;
	return x->order < y->order ? -1 : x->order > y->order ? 1 : strcmp(x->reason, y->reason);
}

int ws_scales_notes_end(struct ws_scales_notes *n, struct ws_err *err)
{
	struct ws_scales_report *r = n->report;
	pthread_mutex_destroy(&n->lock);
	if (r->n_findings)
		qsort(r->findings, r->n_findings, sizeof *r->findings, by_weight);
	for (size_t i = 0; i < r->n_findings; i++) {
		const enum ws_severity s = r->findings[i].severity;
		r->count[r->findings[i].verdict]++;
		*(s == WS_ERROR ? &r->errors : s == WS_WARN ? &r->warnings : &r->notes) += 1;
	}
	return n->failed ? ws_oom(err) : 0;
}

void ws_scales_report_free(struct ws_scales_report *r)
{
	if (!r)
		return;
	for (size_t i = 0; i < r->n_findings; i++) {
		free((char *)(uintptr_t)r->findings[i].name);
		free((char *)(uintptr_t)r->findings[i].reason);
	}
	free(r->findings);
	free(r->compared);
	*r = (struct ws_scales_report){ .findings = NULL };
}

/* ---- used by workers ---- */

static void tell_progress(struct ws_scales *s)
{
	const int64_t now = ws_now_ns();
	if (!s->opts->sink.event || now - s->reported < PROGRESS_NS)
		return;
	s->reported = now;
	const struct ws_event ev = {
		.type = WS_EV_PROGRESS,
		.progress = { .phase = WS_PHASE_VERIFY, .total = s->total, .ns = now - s->since,
		              .done = __atomic_load_n(&s->bytes, __ATOMIC_RELAXED) },
	};
	s->opts->sink.event(s->opts->sink.ctx, &ev);
}

int ws_scales_step(struct ws_scales *s, uint64_t bytes, bool first, struct ws_err *err)
{
	__atomic_fetch_add(&s->bytes, bytes, __ATOMIC_RELAXED);
	if (first)
		tell_progress(s);
	if (ws_cancelled(&s->stop) || ws_cancelled(s->opts->cancel))
		return ws_err_set(err, WS_ECANCELLED, "the check of scales was cancelled");
	return 0;
}

static void free_buffers(struct ws_scales_buffers *b)
{
	ws_buf_free(&b->codes);
	ws_buf_free(&b->scales);
	ws_buf_free(&b->best);
	ws_buf_free(&b->ours);
	ws_buf_free(&b->theirs);
	ws_buf_free(&b->scratch[0]);
	ws_buf_free(&b->scratch[1]);
}

/* ---- threads ---- */

struct worker {
	struct ws_scales *s;
	pthread_t thread;
	bool first;
	int rc;
	struct ws_err err;
};

static int look_at(struct ws_scales *s, struct ws_scales_task *t, struct ws_scales_buffers *b,
                   bool first, struct ws_err *err)
{
	struct ws_scale_values values = { .n = 0 };
	if (ws_scales_codes(s, t, b, first, &values, err))
		return -1;
	return t->source ? ws_scales_compare(s, t, b, first, &values, err) : 0;
}

static void *work(void *arg)
{
	struct worker *w = arg;
	struct ws_scales *s = w->s;
	struct ws_scales_buffers b = { .codes = { .data = NULL } };
	for (;;) {
		const size_t i = __atomic_fetch_add(&s->next, 1, __ATOMIC_RELAXED);
		if (i >= s->n_tasks)
			break;
		w->rc = ws_scales_step(s, 0, w->first, &w->err);
		if (!w->rc)
			w->rc = look_at(s, &s->tasks[i], &b, w->first, &w->err);
		if (w->rc) {
			ws_cancel_set(&s->stop);
			break;
		}
	}
	free_buffers(&b);
	return NULL;
}

static unsigned choose_threads(unsigned asked, size_t n_tasks)
{
	const long processors = sysconf(_SC_NPROCESSORS_ONLN);
	unsigned n = asked ? asked : processors > 8 ? 8 : processors > 0 ? (unsigned)processors : 1;
	n = n > MAX_THREADS ? MAX_THREADS : n;
	return n_tasks < n ? (unsigned)n_tasks : n;
}

/* The first worker that fails stops the others, so its error is kept. */
static int read_all(struct ws_scales *s, struct ws_err *err)
{
	struct worker workers[MAX_THREADS];
	const unsigned most = choose_threads(s->opts->threads, s->n_tasks);
	unsigned n = 1;
	int rc = 0;
	workers[0] = (struct worker){ .s = s, .first = true, .err = WS_ERR_INIT };
	for (; n < most; n++) {
		workers[n] = (struct worker){ .s = s, .err = WS_ERR_INIT };
		if (ws_thread_start(&workers[n].thread, work, &workers[n], NULL))
			break; /* fewer threads will do */
	}
	work(&workers[0]);
	for (unsigned i = 1; i < n; i++)
		pthread_join(workers[i].thread, NULL);
	for (unsigned i = 0; i < n; i++)
		if (workers[i].rc && (!rc || (err && err->code == WS_ECANCELLED))) {
			if (err)
				*err = workers[i].err;
			rc = -1;
		}
	return rc;
}

/* ---- the tensors ---- */

static bool is_chosen(const struct ws_scales_opts *o, const char *name)
{
	return ws_glob_choose(o->include, o->n_include, o->exclude, o->n_exclude, name);
}

/* Finds the source of a tensor, and the bytes to read; false: nothing to read. */
static bool wants_reading(struct ws_scales *s, struct ws_scales_task *t)
{
	const bool quantized = t->packed.packing != WS_PACK_NONE;
	t->source = s->opts->against ? ws_catalog_find(s->opts->against, t->item->name) : NULL;
	if (s->opts->against && !t->source)
		ws_scales_say(&s->notes, t->order, WS_SCALES_SOURCE, quantized ? WS_ERROR : WS_WARN,
		              t->item->name, "the source has no such tensor: not compared");
	if (!quantized && ws_dtype_bits(t->item->dtype) < 16 && t->item->dtype != WS_DTYPE_F8_E4M3)
		t->source = NULL; /* such bytes need not be numbers */
	t->bytes = (quantized ? t->item->bytes : 0) + (t->source ? t->source->bytes : 0);
	return quantized || t->source;
}

static int find_tasks(struct ws_scales *s, struct ws_scales_report *r, struct ws_err *err)
{
	const struct ws_catalog *c = s->opts->items;
	const size_t n = ws_catalog_count(c);
	s->tasks = calloc(n + 1, sizeof *s->tasks);
	if (!s->tasks)
		return ws_oom(err);
	for (size_t i = 0; i < n; i++) {
		struct ws_scales_task *t = &s->tasks[s->n_tasks];
		const struct ws_item *item = ws_catalog_item(c, i);
		if (!is_chosen(s->opts, item->name))
			continue;
		r->tensors++;
		const int found = ws_scales_pair(s, item, i + 1, t, err);
		if (found < 0)
			return -1;
		if (!found)
			continue;
		r->quantized += t->packed.packing != WS_PACK_NONE;
		if (wants_reading(s, t)) {
			s->total += t->bytes;
			s->n_tasks++;
		} else {
			ws_packed_free(&t->packed);
		}
	}
	return 0;
}

/* ---- the report ---- */

static int by_error(const void *a, const void *b)
{
	const struct ws_scales_error *x = a, *y = b;
	const double p = x->rms / x->limit, q = y->rms / y->limit;
	return p > q ? -1 : p < q ? 1 : strcmp(x->name, y->name);
}

static int list_compared(const struct ws_scales *s, struct ws_scales_report *r, struct ws_err *err)
{
	r->compared = calloc(s->n_tasks + 1, sizeof *r->compared);
	if (!r->compared)
		return ws_oom(err);
	for (size_t i = 0; i < s->n_tasks; i++)
		if (s->tasks[i].compared)
			r->compared[r->n_compared++] = s->tasks[i].error;
	qsort(r->compared, r->n_compared, sizeof *r->compared, by_error);
	return 0;
}

/* config.json requires powers of two: warns about every tensor with other scales. */
static void judge_wanted_powers(struct ws_scales *s)
{
	for (size_t i = 0; i < s->n_tasks; i++) {
		const struct ws_scales_task *t = &s->tasks[i];
		if (t->others)
			ws_scales_say(&s->notes, t->order, WS_SCALES_UE8M0, WS_WARN, t->item->name,
			              "config.json says \"scale_fmt\": \"ue8m0\", but not all its "
			              "scales are powers of two");
	}
}

/* A single scale may be a power of two by chance; all scales of a tensor are not. */
static void judge_powers(struct ws_scales *s)
{
	size_t powers = 0, scaled = 0;
	if (strcmp(s->quant.scale_fmt, "ue8m0") == 0) {
		judge_wanted_powers(s);
		return;
	}
	for (size_t i = 0; i < s->n_tasks; i++) {
		const enum ws_packing p = s->tasks[i].packed.packing;
		scaled += p == WS_PACK_FP8 || p == WS_PACK_NVFP4;
		powers += s->tasks[i].powers;
	}
	if (powers && powers == scaled && s->n_scales > 1)
		ws_scales_say(&s->notes, 0, WS_SCALES_UE8M0, WS_NOTE, "all tensors",
		              "all scales are powers of two, as UE8M0 has them, and config.json "
		              "has no \"scale_fmt\": right for a server that expects these, "
		              "needlessly inexact for any other");
	for (size_t i = 0; powers > 0 && powers < scaled && i < s->n_tasks; i++)
		if (s->tasks[i].powers && ws_unpack_count(s->tasks[i].packed.parts[0]) > 1)
			ws_scales_say(&s->notes, s->tasks[i].order, WS_SCALES_UE8M0, WS_WARN,
			              s->tasks[i].item->name,
			              "all its scales are powers of two, as UE8M0 has them, and "
			              "those of other tensors are not");
}

static int run(struct ws_scales *s, struct ws_scales_report *r, struct ws_err *err)
{
	if (ws_cancel_init(&s->stop, err))
		return -1;
	int rc = find_tasks(s, r, err);
	if (!rc && s->n_tasks)
		rc = read_all(s, err);
	if (!rc) {
		ws_scales_config(s, r->quantized);
		judge_powers(s);
		rc = list_compared(s, r, err);
	}
	r->scales = s->n_scales;
	r->bytes = s->bytes;
	ws_cancel_fini(&s->stop);
	return rc;
}

int ws_scales_check(const struct ws_scales_opts *opts, struct ws_scales_report *out,
                    struct ws_err *err)
{
	struct ws_scales s = { .opts = opts,
		               .quant = { .method = "", .scale_fmt = "" },
		               .stop = WS_CANCEL_INIT };
	*out = (struct ws_scales_report){ .findings = NULL };
	s.since = s.reported = ws_now_ns();
	if (opts->config)
		s.quant = *ws_config_quant(opts->config);
	if (opts->block[0] > 0 && opts->block[1] > 0)
		memcpy(s.quant.block, opts->block, sizeof s.quant.block);
	ws_scales_notes_begin(&s.notes, out);
	int rc = run(&s, out, err);
	if (ws_scales_notes_end(&s.notes, rc ? NULL : err))
		rc = -1;
	for (size_t i = 0; i < s.n_tasks; i++)
		ws_packed_free(&s.tasks[i].packed);
	free(s.tasks);
	if (rc)
		ws_scales_report_free(out);
	return rc;
}
