/* SPDX-License-Identifier: Apache-2.0 */
/* parallel.c - see job.h. The first thread is the job that the caller waits for. It starts and
 * joins the others. */
#include "job.h"

#include <unistd.h>

static int take_items(void *arg, struct ws_err *err)
{
	struct ws_parallel *p = arg;
	for (;;) {
		const size_t i = __atomic_fetch_add(&p->next, 1, __ATOMIC_RELAXED);
		if (i >= p->n)
			return 0;
		if (ws_cancelled(&p->stop))
			return ws_err_set(err, WS_ECANCELLED, "the work was cancelled");
		if (p->fn(p->ctx, i, err)) {
			ws_cancel_set(&p->stop);
			return -1;
		}
	}
}

/* The first failure cancels the other threads, so its reason replaces theirs. */
static void keep_reason(struct ws_err *err, const struct ws_err *why)
{
	if (err->code == WS_OK || err->code == WS_ECANCELLED)
		*err = *why;
}

static int take_all(void *arg, struct ws_err *err)
{
	struct ws_parallel *p = arg;
	struct ws_job helpers[WS_PARALLEL_THREADS];
	struct ws_err why = WS_ERR_INIT;
	unsigned n = 0;
	int rc = 0;
	for (; n + 1 < p->threads; n++) {
		if (ws_job_init(&helpers[n], NULL))
			break;
		if (ws_job_start(&helpers[n], take_items, p, NULL)) {
			ws_job_fini(&helpers[n]);
			break; /* fewer threads will do */
		}
	}
	if (take_items(p, &why)) {
		keep_reason(err, &why);
		rc = -1;
	}
	for (unsigned i = 0; i < n; i++) {
		if (ws_job_wait(&helpers[i], &why)) {
			keep_reason(err, &why);
			rc = -1;
		}
		ws_job_fini(&helpers[i]);
	}
	return rc;
}

static unsigned choose_threads(unsigned asked, size_t n_items)
{
	const long processors = sysconf(_SC_NPROCESSORS_ONLN);
	unsigned n = asked ? asked : processors > 8 ? 8 : processors > 0 ? (unsigned)processors : 1;
	if (n > WS_PARALLEL_THREADS)
		n = WS_PARALLEL_THREADS;
	return n_items < n ? (unsigned)n_items : n;
}

int ws_parallel_begin(struct ws_parallel *p, size_t n, unsigned threads,
                      int (*fn)(void *, size_t, struct ws_err *), void *ctx, struct ws_err *err)
{
	*p = (struct ws_parallel){ .fn = fn, .ctx = ctx, .n = n, .begun = true,
		                   .threads = choose_threads(threads, n),
		                   .stop = WS_CANCEL_INIT, .job = { .fd = -1 } };
	return ws_cancel_init(&p->stop, err) || ws_job_init(&p->job, err) ||
	       ws_job_start(&p->job, take_all, p, err) ? -1 : 0;
}

void ws_parallel_end(struct ws_parallel *p)
{
	if (!p->begun)
		return;
	if (p->job.running)
		ws_cancel_set(&p->stop);
	ws_job_fini(&p->job);
	ws_cancel_fini(&p->stop);
	*p = (struct ws_parallel){ 0 };
}
