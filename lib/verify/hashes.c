/* SPDX-License-Identifier: Apache-2.0 */
/* hashes.c - see hashes.h. */
#include "hashes.h"

#include "dims.h"
#include "payloads.h"
#include "wsync/tool/str.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const int64_t PROGRESS_NS = 100 * WS_NS_PER_MS;

/* ---- hashing ---- */

static int hash_one(void *ctx, size_t i, struct ws_err *err)
{
	struct ws_hashes *h = ctx;
	const struct ws_plan_tensor *t = &h->plan->tensors[i];
	const struct ws_trace_what hash = { .row = WS_TRACE_VERIFY,
		                            .name = "hash",
		                            .about = t->name };
	if (h->but_made && t->op == WS_OP_MAKE)
		return 0;
	const uint64_t span = ws_trace_begin(h->trace, &hash);
	const int rc = ws_plan_hash(h->plan, i, &h->values[i], err);
	ws_trace_end(h->trace, span,
	             &(struct ws_trace_end){ .bytes = t->bytes, .unfinished = rc != 0 });
	__atomic_fetch_add(&h->bytes, t->bytes, __ATOMIC_RELAXED);
	return rc;
}

int ws_hashes_begin(struct ws_hashes *h, const struct ws_plan *plan, unsigned threads,
                    bool but_made, struct ws_trace *trace, struct ws_err *err)
{
	*h = (struct ws_hashes){ .plan = plan, .but_made = but_made, .trace = trace };
	h->values = calloc(plan->n_tensors + 1, sizeof *h->values);
	if (!h->values)
		return ws_oom(err);
	return ws_parallel_begin(&h->work, plan->n_tensors, threads, hash_one, h, err);
}

void ws_hashes_end(struct ws_hashes *h)
{
	ws_parallel_end(&h->work);
	free(h->values);
	free(h->sorted);
	*h = (struct ws_hashes){ 0 };
}

/* ---- waiting ---- */

static void show_progress(const struct ws_sink *sink, uint64_t done, uint64_t total, int64_t ns)
{
	const struct ws_event ev = {
		.type = WS_EV_PROGRESS,
		.progress = { .phase = WS_PHASE_VERIFY, .done = done, .total = total, .ns = ns },
	};
	if (sink && sink->event)
		sink->event(sink->ctx, &ev);
}

/* Reading a source a second time may take long if it does not fit into the page cache. */
int ws_hashing_wait(struct ws_parallel *work, const struct ws_hashing_wait *w, struct ws_err *err)
{
	const int64_t since = ws_now_ns();
	while (!ws_job_over(&work->job)) {
		const ws_deadline next = ws_deadline_min(w->until, ws_deadline_in(PROGRESS_NS));
		if (ws_http_wait(w->http, next, w->cancel, work->job.fd, err) < 0)
			return -1;
		if (ws_deadline_passed(w->until))
			return ws_err_set(err, WS_ETIMEOUT,
			                  "hashing the source: the deadline passed");
		show_progress(w->progress, __atomic_load_n(w->bytes, __ATOMIC_RELAXED), w->total,
		              ws_now_ns() - since);
	}
	return ws_job_wait(&work->job, err) ? ws_err_wrap(err, "hashing the source") : 0;
}

static int by_tensor_name(const void *a, const void *b, void *plan)
{
	const struct ws_plan_tensor *t = ((const struct ws_plan *)plan)->tensors;
	return strcmp(t[*(const size_t *)a].name, t[*(const size_t *)b].name);
}

static int sort_names(struct ws_hashes *h, struct ws_err *err)
{
	const size_t n = h->plan->n_tensors;
	h->sorted = malloc(n * sizeof *h->sorted);
	if (!h->sorted)
		return ws_oom(err);
	for (size_t i = 0; i < n; i++)
		h->sorted[i] = i;
	qsort_r(h->sorted, n, sizeof *h->sorted, by_tensor_name, (void *)(uintptr_t)h->plan);
	return 0;
}

int ws_hashes_wait(struct ws_hashes *h, struct ws_http *http, ws_deadline until,
                   const struct ws_cancel *cancel, const struct ws_sink *progress,
                   struct ws_err *err)
{
	const struct ws_hashing_wait w = { http, until, cancel, progress, &h->bytes,
		                           h->plan->bytes };
	if (ws_hashing_wait(&h->work, &w, err))
		return -1;
	return h->sorted ? 0 : sort_names(h, err);
}

/* ---- comparing ---- */

int ws_checksum_by_name(const void *a, const void *b)
{
	return strcmp(((const struct ws_checksum *)a)->name, ((const struct ws_checksum *)b)->name);
}

bool ws_checksums_are_ours(const struct ws_checksums *c)
{
	return strcmp(c->algorithm, "xxh3-64") == 0;
}

struct place {
	const char *url;
	int rank;
	const struct ws_sink *sink;
};

static void report_as(const struct place *at, const char *name, const char *kind,
                      const char *expected, const char *found)
{
	const struct ws_event ev = {
		.type = WS_EV_MISMATCH,
		.mismatch = { .url = at->url, .rank = at->rank, .name = name, .kind = kind,
		              .expected = expected, .found = found },
	};
	if (at->sink->event)
		at->sink->event(at->sink->ctx, &ev);
}

/* NULL: that side has no such tensor. */
static void report(const struct place *at, const char *name, const uint64_t *expected,
                   const uint64_t *found)
{
	char want[20] = "", have[20] = "";
	if (expected)
		snprintf(want, sizeof want, "%016" PRIx64, *expected);
	if (found)
		snprintf(have, sizeof have, "%016" PRIx64, *found);
	report_as(at, name, !found ? "missing" : !expected ? "unexpected" : "hash", want, have);
}

/* ---- types and shapes ---- */

static int by_kind_name(const void *name, const void *kind)
{
	return strcmp(name, ((const struct ws_checksum_kind *)kind)->name);
}

/* Two shapes of a single element are equal, whatever their dimensions. */
static bool same_shape(const struct ws_plan_tensor *t, const struct ws_checksum_kind *k)
{
	bool single = true, same = t->n_dims == k->n_dims;
	for (unsigned d = 0; d < t->n_dims; d++)
		single &= t->dims[d] == 1;
	for (unsigned d = 0; d < k->n_dims; d++) {
		single &= k->dims[d] == 1;
		same = same && t->dims[d] == k->dims[d];
	}
	return same || single;
}

/* Checks that the server took equal bytes for the same dtype and shape; reports it if not. */
static bool taken_for(const struct place *at, const struct ws_checksums *sums,
                      const struct ws_plan_tensor *t)
{
	char want[192], have[192];
	const char *dtype = ws_dtype_torch(t->dtype);
	const struct ws_checksum_kind *k = !sums->n_kinds ? NULL :
		bsearch(t->name, sums->kinds, sums->n_kinds, sizeof *sums->kinds, by_kind_name);
	if (k && *dtype && strcmp(k->dtype, dtype) != 0) {
		report_as(at, t->name, "dtype", dtype, k->dtype);
		return false;
	}
	if (!k || same_shape(t, k))
		return true;
	report_as(at, t->name, "shape", ws_dims_text(want, sizeof want, t->n_dims, t->dims),
	          ws_dims_text(have, sizeof have, k->n_dims, k->dims));
	return false;
}

/* ---- one rank ---- */

/* A head that is tied to the embedding is the same memory under one more name. If the embedding is
 * not in the plan, the model decides. */
static bool is_tied_head(const struct ws_hashes *h, const struct ws_checksum *c,
                         const struct ws_layout *layout)
{
	bool has_embedding = false;
	if (!ws_ends_with(c->name, "lm_head.weight"))
		return false;
	for (size_t i = 0; i < h->plan->n_tensors; i++) {
		if (!ws_ends_with(h->plan->tensors[i].name, "embed_tokens.weight"))
			continue;
		has_embedding = true;
		if (h->values[i] == c->value)
			return true;
	}
	return !has_embedding && layout && ws_layout_tied(layout);
}

/* SGLang 0.5.13 and later put the parameters of a draft model beside those of the model. The
 * draft's weights are pushed by themselves, or with the model's (multi-token prediction). */
bool ws_checksum_is_draft(const struct ws_checksum *c)
{
	return !strncmp(c->name, "draft.", 6) || !strncmp(c->name, "draft_step_", 11);
}

static bool is_chosen(const struct ws_hash_count *c, const char *name)
{
	return ws_glob_choose(c->include, c->n_include, c->exclude, c->n_exclude, name);
}

static void mark_wrong(const struct ws_hash_count *count, size_t tensor)
{
	if (count->wrong)
		count->wrong[tensor] = true;
}

void ws_hashes_compare(const struct ws_hashes *h, const char *url, struct ws_checksums *sums,
                       size_t r, bool whole, const struct ws_sink *sink,
                       struct ws_hash_count *count)
{
	struct ws_checksum_rank *rank = &sums->ranks[r];
	const struct place at = { url, rank->rank, sink };
	size_t i = 0, k = 0;
	qsort(rank->items, rank->n, sizeof *rank->items, ws_checksum_by_name);
	while (i < h->plan->n_tensors || k < rank->n) {
		const size_t t = i < h->plan->n_tensors ? h->sorted[i] : 0;
		const char *ours = i < h->plan->n_tensors ? h->plan->tensors[t].name : NULL;
		const struct ws_checksum *theirs = k < rank->n ? &rank->items[k] : NULL;
		const int order = !ours ? 1 : !theirs ? -1 : strcmp(ours, theirs->name);
		i += order <= 0;
		k += order >= 0;
		if (order < 0 && count->layout && ws_layout_skips(count->layout, ours))
			continue;
		if (order < 0) {
			report(&at, ours, &h->values[t], NULL);
			count->missing++;
			mark_wrong(count, t);
		} else if (order == 0 && h->values[t] == theirs->value &&
		           taken_for(&at, sums, &h->plan->tensors[t])) {
			count->equal++;
		} else if (order == 0) {
			if (h->values[t] != theirs->value)
				report(&at, ours, &h->values[t], &theirs->value);
			count->different++;
			mark_wrong(count, t);
		} else if (ws_checksum_is_draft(theirs)) {
			count->drafts++;
		} else if (is_tied_head(h, theirs, count->layout)) {
			continue;
		} else if (whole && is_chosen(count, theirs->name)) {
			report(&at, theirs->name, NULL, &theirs->value);
			count->unexpected++;
		} else {
			count->not_sent++;
		}
	}
}
