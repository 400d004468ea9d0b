/* SPDX-License-Identifier: Apache-2.0 */
/* verify_again.c - verification by pushing again: the push, its checksums, and --twice.
 *
 * Reads checksums, pushes the source, and reads checksums again. A parameter that changes when the
 * same weights come again was wrong before or is wrong now: for example, a layout is applied twice,
 * or values are added and not written. This check cannot tell which of the two is wrong. Every rank
 * must report both times. */
#include "verify_again.h"

#include "wsync/tool/history.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void again_fail(struct again *a, size_t i, const struct ws_err *why)
{
	a->results[i].err = *why;
	if (why->code != WS_OK)
		ws_err_where(&a->results[i].err, NULL, a->opts->endpoints[i]);
}

ws_deadline again_step(const struct again *a)
{
	const int64_t most = a->opts->bucket_ns > 0 ? a->opts->bucket_ns : 600 * WS_NS_PER_S;
	return ws_deadline_min(a->until, ws_deadline_in(most));
}

int again_open(struct again *a, struct ws_err *err)
{
	const size_t n = a->opts->n_endpoints;
	if (!n)
		return ws_err_set(err, WS_EUSAGE, "no endpoint to push to");
	for (size_t i = 0; i < n; i++)
		verify_begin(&a->results[i], a->opts->endpoints[i]);
	a->before = calloc(n, sizeof *a->before);
	a->after = calloc(n, sizeof *a->after);
	return a->before && a->after ? 0 : ws_oom(err);
}

void again_close(struct again *a)
{
	for (size_t i = 0; i < a->opts->n_endpoints; i++) {
		if (a->before)
			ws_checksums_free(&a->before[i]);
		if (a->after)
			ws_checksums_free(&a->after[i]);
	}
	free(a->before);
	free(a->after);
}

static void emit(const struct again *a, const struct ws_event *ev)
{
	if (a->opts->sink.event)
		a->opts->sink.event(a->opts->sink.ctx, ev);
}

/* ---- checksums ---- */

int again_ask(struct again *a, struct ws_checksums *sums, struct ws_err *err)
{
	const size_t n = a->opts->n_endpoints;
	for (size_t i = 0; i < n; i++)
		ws_checksums_free(&sums[i]);
	const struct ws_call to = { a->http, a->opts->endpoints, n, again_step(a),
		                    a->opts->cancel, NULL };
	const int rc = ws_endpoint_checksums(&to, sums, a->errs, err);
	for (size_t i = 0; i < n; i++)
		for (size_t r = 0; r < sums[i].n_ranks; r++)
			qsort(sums[i].ranks[r].items, sums[i].ranks[r].n,
			      sizeof *sums[i].ranks[r].items, ws_checksum_by_name);
	return rc;
}

static void report_change(const struct again *a, const char *url, int rank,
                          const struct ws_checksum *before, const struct ws_checksum *after)
{
	char was[20] = "", is[20] = "";
	if (before)
		snprintf(was, sizeof was, "%016" PRIx64, before->value);
	if (after)
		snprintf(is, sizeof is, "%016" PRIx64, after->value);
	const struct ws_event ev = {
		.type = WS_EV_MISMATCH,
		.mismatch = { .url = url, .rank = rank, .name = before ? before->name : after->name,
		              .kind = !after ? "missing" : !before ? "unexpected" : "changed",
		              .expected = was, .found = is },
	};
	emit(a, &ev);
}

static void compare_rank(const struct again *a, struct ws_verify_result *r,
                         const struct ws_checksum_rank *before,
                         const struct ws_checksum_rank *after)
{
	size_t i = 0, k = 0;
	while (i < before->n || k < after->n) {
		const struct ws_checksum *x = i < before->n ? &before->items[i] : NULL;
		const struct ws_checksum *y = k < after->n ? &after->items[k] : NULL;
		const int order = !x ? 1 : !y ? -1 : strcmp(x->name, y->name);
		i += order <= 0;
		k += order >= 0;
		if (order == 0 && x->value == y->value) {
			r->equal++;
			continue;
		}
		r->missing += order < 0;
		r->different += order == 0;
		r->unexpected += order > 0;
		report_change(a, r->url, before->rank, order <= 0 ? x : NULL,
		              order >= 0 ? y : NULL);
	}
}

int again_compare(struct again *a, size_t i)
{
	struct ws_verify_result *r = &a->results[i];
	const struct ws_checksums *before = &a->before[i], *after = &a->after[i];
	r->ranks = (unsigned)after->n_ranks;
	snprintf(r->algorithm, sizeof r->algorithm, "%s", after->algorithm);
	if (ws_checksums_whole(before, &a->infos[i], &r->err) ||
	    ws_checksums_whole(after, &a->infos[i], &r->err))
		return -1;
	for (size_t k = 0; k < after->n_ranks; k++) {
		if (!before->ranks[k].n && !after->ranks[k].n) {
			ws_err_set(&r->err, WS_EUNKNOWN,
			           "%s: rank %d reported no checksum of any parameter", r->url,
			           after->ranks[k].rank);
			return ws_err_where(&r->err, NULL, r->url);
		}
		compare_rank(a, r, &before->ranks[k], &after->ranks[k]);
	}
	return 0;
}

/* ---- twice ---- */

/* Probes the endpoints. */
static int connect_to(struct again *a, struct ws_err *err)
{
	const size_t n = a->opts->n_endpoints;
	const struct ws_client_opts client = { .api_key = a->opts->api_key,
		                               .ca_file = a->opts->ca_file,
		                               .log = a->opts->log,
		                               .connect_ns = a->opts->connect_ns };
	const int64_t connect_ns = a->opts->connect_ns > 0 ? a->opts->connect_ns : 10 * WS_NS_PER_S;
	a->until = a->opts->timeout_ns > 0 ? ws_deadline_in(a->opts->timeout_ns) : WS_FOREVER;
	a->errs = calloc(n, sizeof *a->errs);
	a->infos = calloc(n, sizeof *a->infos);
	if (!a->errs || !a->infos)
		return ws_oom(err);
	if (ws_client_open(&client, &a->http, err))
		return -1;
	const ws_deadline until = ws_deadline_min(a->until, ws_deadline_in(connect_ns));
	const struct ws_call to = { a->http, a->opts->endpoints, n, until, a->opts->cancel, NULL };
	const int rc = ws_endpoint_probe_all(&to, a->infos, a->errs, err);
	for (size_t i = 0; rc && i < n; i++)
		again_fail(a, i, &a->errs[i]);
	return rc;
}

/* Pushes with the time that is left for the run. */
static int push_again(const struct again *a, const struct ws_push_source *source,
                      struct ws_err *err)
{
	struct ws_push_opts opts = *a->opts;
	struct ws_push *p = NULL;
	opts.label_stays = true; /* the weights are the same */
	if (a->until != WS_FOREVER) {
		opts.timeout_ns = ws_deadline_left(a->until);
		if (!opts.timeout_ns)
			return ws_err_set(err, WS_ETIMEOUT, "the deadline passed before the push");
	}
	if (ws_push_open(&opts, &p, err))
		return -1;
	const int rc = ws_push_run(p, source, NULL, err);
	ws_push_close(p);
	return rc;
}

/* Before the push, a missing rank is already an error. */
static int take_checksums(struct again *a, struct ws_checksums *sums, struct ws_err *err)
{
	int rc = again_ask(a, sums, err);
	for (size_t i = 0; i < a->opts->n_endpoints; i++) {
		struct ws_err why = a->errs[i];
		if (why.code == WS_OK && ws_checksums_whole(&sums[i], &a->infos[i], &why) &&
		    rc == 0) {
			*err = why;
			rc = -1;
		}
		again_fail(a, i, &why);
	}
	if (rc && err->code == WS_EREFUSED && !err->hint[0])
		ws_err_hint(err, "{twice} needs an endpoint that reports checksums of its weights, "
		                 "of every rank");
	return rc;
}

static void judge_twice(struct again *a, size_t i)
{
	struct ws_verify_result *r = &a->results[i];
	r->means = WS_MEANS_TWICE;
	if (again_compare(a, i))
		return;
	const size_t bad = r->different + r->missing + r->unexpected;
	if (!bad)
		return;
	ws_err_set(&r->err, WS_EMISMATCH, "%s: a push of the same weights changed %zu of %zu "
	           "parameters", r->url, bad, bad + r->equal);
	if (bad > r->equal)
		ws_err_hint(&r->err,
		            "most of it changed: if it held other weights before, run this again "
		            "now that it has these");
	ws_err_where(&r->err, NULL, r->url);
}

/* The push has noted that the weights are the same. */
static void note_changes(const struct again *a, int rc)
{
	for (size_t i = 0; a->opts->state_dir && i < a->opts->n_endpoints; i++)
		if (rc || a->results[i].err.code)
			ws_history_spoil(a->opts->state_dir, a->opts->endpoints[i], &a->infos[i],
			                 "wsync-verify weights has pushed others since");
}

int ws_verify_twice(const struct ws_push_opts *push, const struct ws_push_source *source,
                    struct ws_verify_result *results, struct ws_err *err)
{
	struct again a = { .opts = push, .results = results };
	struct ws_err why = WS_ERR_INIT;
	int rc = again_open(&a, &why) || connect_to(&a, &why) ? -1 : 0;
	if (!rc)
		rc = take_checksums(&a, a.before, &why) || push_again(&a, source, &why) ? -1 : 0;
	const bool pushed = !rc;
	if (!rc)
		rc = take_checksums(&a, a.after, &why);
	for (size_t i = 0; !rc && i < push->n_endpoints; i++)
		judge_twice(&a, i);
	if (pushed)
		note_changes(&a, rc);
	if (rc)
		verify_give_up(results, push->n_endpoints, &why);
	else
		rc = verify_sum_up(results, push->n_endpoints, &why);
	ws_client_close(a.http);
	free(a.infos);
	free(a.errs);
	again_close(&a);
	if (rc && err)
		*err = why;
	return rc;
}
