/* SPDX-License-Identifier: Apache-2.0 */
/* verify_again.c - verification by pushing again.
 *
 *   twice   checksums, push, checksums: what changes when the same weights come once more was wrong
 *           before or is wrong now (a layout applied a second time, a parameter that is not written
 *           but added to). Says nothing about which of the two.
 *   reset   snapshot, pause, reset_tensors, push, compare, resume: a parameter that is not the one
 *           remembered was not written by the push. What can be known beforehand to fail must fail
 *           before the reset, so a dry run goes first. */
#include "verify_state.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const int64_t RESUME_NS = 10 * WS_NS_PER_S;
static const int64_t IDLE_NS = 60 * WS_NS_PER_S; /* for requests in flight to end after an abort */

struct again {
	const struct ws_push_opts *opts;
	const struct ws_push_source *source;
	struct ws_http *http;
	struct ws_err *errs;                /* one for each endpoint, as everything below */
	struct ws_endpoint_answer *answers;
	struct ws_checksums *before, *after;
	struct ws_verify_result *results;
	ws_deadline until;
	bool paused;                        /* perhaps, by us */
	bool random;                        /* perhaps: a reset was begun */
};

static int open_again(struct again *a, struct ws_err *err)
{
	const size_t n = a->opts->n_endpoints;
	const struct ws_client_opts client = { .api_key = a->opts->api_key, .ca_file = a->opts->ca_file, .log = a->opts->log,
		                               .connect_ns = a->opts->connect_ns };
	if (!n)
		return ws_err_set(err, WS_EUSAGE, "no endpoint to push to");
	for (size_t i = 0; i < n; i++)
		verify_begin(&a->results[i], a->opts->endpoints[i]);
	a->until = a->opts->timeout_ns > 0 ? ws_deadline_in(a->opts->timeout_ns) : WS_FOREVER;
	a->errs = calloc(n, sizeof *a->errs);
	a->answers = calloc(n, sizeof *a->answers);
	a->before = calloc(n, sizeof *a->before);
	a->after = calloc(n, sizeof *a->after);
	if (!a->errs || !a->answers || !a->before || !a->after)
		return ws_err_set(err, WS_ESYSTEM, "out of memory");
	return ws_client_open(&client, &a->http, err);
}

static void close_again(struct again *a)
{
	for (size_t i = 0; i < a->opts->n_endpoints; i++) {
		if (a->before)
			ws_checksums_free(&a->before[i]);
		if (a->after)
			ws_checksums_free(&a->after[i]);
	}
	ws_client_close(a->http);
	free(a->errs);
	free(a->answers);
	free(a->before);
	free(a->after);
}

static void emit(const struct again *a, const struct ws_event *ev)
{
	if (a->opts->sink.event)
		a->opts->sink.event(a->opts->sink.ctx, ev);
}

static void warn(const struct again *a, const char *url, const char *message)
{
	const struct ws_event ev = { .type = WS_EV_WARNING, .warning = { .url = url, .message = message } };
	emit(a, &ev);
}

/* What is left of the run's time bounds the push. */
static int push_once(const struct again *a, struct ws_push_opts opts, struct ws_err *err)
{
	struct ws_push *p = NULL;
	if (a->until != WS_FOREVER) {
		opts.timeout_ns = ws_deadline_left(a->until);
		if (!opts.timeout_ns)
			return ws_err_set(err, WS_ETIMEOUT, "the deadline passed before the push");
	}
	if (ws_push_open(&opts, &p, err))
		return -1;
	const int rc = ws_push_run(p, a->source, NULL, err);
	ws_push_close(p);
	return rc;
}

/* ---- twice ---- */

static int take_checksums(struct again *a, struct ws_checksums *sums, struct ws_err *err)
{
	const size_t n = a->opts->n_endpoints;
	const int rc = ws_endpoint_checksums(a->http, a->opts->endpoints, n, a->until, a->opts->cancel,
	                                     sums, a->errs, err);
	for (size_t i = 0; rc && i < n; i++) {
		a->results[i].err = a->errs[i];
		if (a->errs[i].code != WS_OK)
			ws_err_where(&a->results[i].err, NULL, a->opts->endpoints[i]);
	}
	if (rc && err->code == WS_EREFUSED && !err->hint[0])
		ws_err_hint(err, "--twice needs an endpoint that reports checksums of its weights");
	return rc;
}

static void sort_checksums(struct ws_checksums *c)
{
	for (size_t r = 0; r < c->n_ranks; r++)
		qsort(c->ranks[r].items, c->ranks[r].n, sizeof *c->ranks[r].items, ws_checksum_by_name);
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
                         const struct ws_checksum_rank *before, const struct ws_checksum_rank *after)
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
		report_change(a, r->url, before->rank, order <= 0 ? x : NULL, order >= 0 ? y : NULL);
	}
}

/* The ranks of both are sorted. */
static bool same_ranks(const struct ws_checksums *a, const struct ws_checksums *b)
{
	bool same = a->n_ranks == b->n_ranks;
	for (size_t i = 0; same && i < a->n_ranks; i++)
		same = a->ranks[i].rank == b->ranks[i].rank && a->ranks[i].replica == b->ranks[i].replica;
	return same;
}

static void judge_twice(const struct again *a, size_t i)
{
	struct ws_verify_result *r = &a->results[i];
	struct ws_checksums *before = &a->before[i], *after = &a->after[i];
	r->means = WS_MEANS_TWICE;
	r->ranks = (unsigned)after->n_ranks;
	snprintf(r->algorithm, sizeof r->algorithm, "%s", after->algorithm);
	sort_checksums(before);
	sort_checksums(after);
	for (size_t k = 0; k < before->n_ranks && k < after->n_ranks; k++)
		compare_rank(a, r, &before->ranks[k], &after->ranks[k]);
	const size_t bad = r->different + r->missing + r->unexpected;
	if (!same_ranks(before, after))
		ws_err_set(&r->err, WS_EREFUSED, "%s: %zu ranks reported checksums before the push, and %zu ranks, "
		           "or others, after it", r->url, before->n_ranks, after->n_ranks);
	else if (bad)
		ws_err_set(&r->err, WS_EMISMATCH, "%s: a push of the same weights changed %zu of %zu "
		           "parameters", r->url, bad, bad + r->equal);
	else if (!r->equal)
		ws_err_set(&r->err, WS_EREFUSED, "%s: it reported no checksum of any parameter", r->url);
	if (bad > r->equal)
		ws_err_hint(&r->err, "most of it changed: if it held other weights before, run this again "
		                     "now that it has these");
	if (r->err.code != WS_OK)
		ws_err_where(&r->err, NULL, r->url);
}

int ws_verify_twice(const struct ws_push_opts *push, const struct ws_push_source *source,
                    struct ws_verify_result *results, struct ws_err *err)
{
	struct again a = { .opts = push, .source = source, .results = results };
	struct ws_err why = WS_ERR_INIT;
	int rc = open_again(&a, &why);
	if (!rc)
		rc = take_checksums(&a, a.before, &why) || push_once(&a, *push, &why) ||
		     take_checksums(&a, a.after, &why) ? -1 : 0;
	for (size_t i = 0; !rc && i < push->n_endpoints; i++)
		judge_twice(&a, i);
	if (rc)
		verify_give_up(results, push->n_endpoints, &why);
	else
		rc = verify_sum_up(results, push->n_endpoints, &why);
	close_again(&a);
	if (rc && err)
		*err = why;
	return rc;
}

/* ---- reset ---- */

static int act(struct again *a, enum ws_weights_action action, struct ws_err *err)
{
	const size_t n = a->opts->n_endpoints;
	const int rc = ws_endpoint_weights_action(a->http, a->opts->endpoints, n, action, a->until,
	                                          a->opts->cancel, a->answers, err);
	for (size_t i = 0; rc && i < n; i++)
		if (a->answers[i].err.code != WS_OK)
			a->results[i].err = a->answers[i].err;
	return rc;
}

static int pause(struct again *a, struct ws_err *err)
{
	const struct ws_push_opts *o = a->opts;
	if (o->pause == WS_PAUSE_NONE)
		return 0;
	a->paused = true;
	if (ws_endpoint_pause(a->http, o->endpoints, o->n_endpoints, o->pause, a->until, o->cancel,
	                      a->answers, err))
		return -1;
	const ws_deadline patience = ws_deadline_in(o->pause == WS_PAUSE_ABORT ? IDLE_NS : 0);
	return o->flush == WS_FLUSH_NEVER ? 0 :
	       ws_endpoint_flush(a->http, o->endpoints, o->n_endpoints, patience, a->until, o->cancel,
	                         a->answers, err);
}

/* A dry run: usage, source and endpoints are looked at, nothing is changed. */
static int look_first(const struct again *a, struct ws_err *err)
{
	struct ws_push_opts opts = *a->opts;
	opts.dry_run = true;
	opts.sink = (struct ws_sink){ .event = NULL };
	return push_once(a, opts, err);
}

/* The endpoints are paused already, and stay so until what came of it is known. */
static int push_paused(const struct again *a, struct ws_err *err)
{
	struct ws_push_opts opts = *a->opts;
	opts.pause = WS_PAUSE_NONE;
	return push_once(a, opts, err);
}

/* A comparison that cannot be made is refused otherwise than by HTTP 400. */
static void judge_reset(struct again *a)
{
	act(a, WS_WEIGHTS_COMPARE, NULL);
	for (size_t i = 0; i < a->opts->n_endpoints; i++) {
		struct ws_verify_result *r = &a->results[i];
		const struct ws_endpoint_answer *answer = &a->answers[i];
		r->means = WS_MEANS_RESET;
		r->err = answer->err;
		if (answer->err.code != WS_EREFUSED || answer->err.native != 400)
			continue;
		ws_err_set(&r->err, WS_EMISMATCH, "%s: after a push onto random weights it is not what it "
		           "was: %s", r->url, answer->message[0] ? answer->message : "it does not say more");
		ws_err_where(&r->err, NULL, r->url);
	}
}

static int run_reset(struct again *a, struct ws_err *err)
{
	if (look_first(a, err))
		return -1;
	if (act(a, WS_WEIGHTS_SNAPSHOT, err))
		return err->code != WS_EREFUSED ? -1 :
		       ws_err_hint(err, "--reset needs a server whose /weights_checker can snapshot, "
		                        "reset_tensors and compare");
	if (pause(a, err))
		return -1;
	a->random = true;
	if (act(a, WS_WEIGHTS_RESET, err) || push_paused(a, err))
		return -1;
	judge_reset(a);
	return 0;
}

/* Resumes every endpoint but those that hold random weights and shall not answer with them. */
static int finish(struct again *a, struct ws_err *err)
{
	const size_t n = a->opts->n_endpoints;
	const char **urls = calloc(n, sizeof *urls);
	size_t n_urls = 0;
	if (!urls)
		return ws_err_set(err, WS_ESYSTEM, "out of memory");
	for (size_t i = 0; i < n; i++) {
		const struct ws_verify_result *r = &a->results[i];
		const bool spoilt = a->random && r->err.code != WS_OK;
		const bool stays = a->paused && spoilt && a->opts->on_partial == WS_PARTIAL_PAUSE;
		if (spoilt)
			warn(a, r->url, stays ? "left paused: it may hold random weights" :
			     "may hold random weights: push to it before its answers are used");
		if (a->paused && !stays)
			urls[n_urls++] = r->url;
	}
	const int rc = ws_endpoint_resume(a->http, urls, n_urls, ws_deadline_in(RESUME_NS), NULL,
	                                  a->answers, err);
	if (rc) {
		ws_err_wrap(err, "an endpoint stays paused");
		ws_err_hint(err, "tell it to continue: wsync-ctl resume");
	}
	free(urls);
	return rc;
}

int ws_verify_reset(const struct ws_push_opts *push, const struct ws_push_source *source,
                    struct ws_verify_result *results, struct ws_err *err)
{
	struct again a = { .opts = push, .source = source, .results = results };
	struct ws_err why = WS_ERR_INIT, stuck = WS_ERR_INIT;
	int rc = open_again(&a, &why);
	if (!rc)
		rc = run_reset(&a, &why);
	if (rc)
		verify_give_up(results, push->n_endpoints, &why);
	else
		rc = verify_sum_up(results, push->n_endpoints, &why);
	if ((a.paused || a.random) && finish(&a, &stuck)) {
		warn(&a, stuck.endpoint, stuck.msg);
		if (!rc)
			why = stuck;
		rc = -1;
	}
	close_again(&a);
	if (rc && err)
		*err = why;
	return rc;
}
