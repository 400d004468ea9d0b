/* SPDX-License-Identifier: Apache-2.0 */
/* verify_reset.c - does a push write every parameter? The servers overwrite all of them with random numbers
 * and receive the source: a parameter that is not what it was before has not been written.
 *
 *   with checksums      checksum, pause, reset_tensors, checksum, push, checksum, resume: all ranks
 *   without             snapshot, pause, reset_tensors, compare, push, compare, resume: SGLang tells of the first
 *                       rank alone then
 *
 * The second answer must differ from the first on every rank, or nothing was reset. A dry run comes first,
 * because errors that can be known beforehand must not come after the reset. */
#include "endpoint_call.h"
#include "verify_again.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const int64_t RESUME_NS = 10 * WS_NS_PER_S;
static const int64_t IDLE_NS = 60 * WS_NS_PER_S; /* for requests in flight to end after an abort */

struct reset {
	struct again a;
	bool *summed;      /* of each endpoint: it reports checksums of all ranks */
	bool *intact;      /* its checksums show that nothing was reset */
	const char **urls; /* scratch: the endpoints that a call goes to; urls[k] is endpoint index[k] */
	size_t *index;
	bool paused;       /* perhaps, by us */
	bool random;       /* perhaps: a reset was begun */
};

/* ---- requests ---- */

/* The endpoints without checksums into urls and index; returns how many. */
static size_t select_silent(struct reset *s)
{
	size_t n = 0;
	for (size_t i = 0; i < s->a.opts->n_endpoints; i++) {
		if (s->summed[i])
			continue;
		s->urls[n] = s->a.opts->endpoints[i];
		s->index[n++] = i;
	}
	return n;
}

static bool any_summed(const struct reset *s)
{
	bool any = false;
	for (size_t i = 0; i < s->a.opts->n_endpoints; i++)
		any = any || s->summed[i];
	return any;
}

/* One action of those endpoints that have no checksums. answers[k] is that of endpoint index[k]. */
static int act(struct reset *s, enum ws_weights_action action, struct ws_err *err)
{
	struct again *a = &s->a;
	const size_t n = select_silent(s);
	return n ? ws_endpoint_weights_action(a->http, s->urls, n, action, a->until, a->opts->cancel, a->answers, err)
	         : 0;
}

static int hint_at_need(struct ws_err *err)
{
	return !ws_endpoint_said_no(err) ? -1 :
	       ws_err_hint(err, "--reset needs a server whose /weights_checker can reset_tensors, and either checksum, "
	                        "or snapshot and compare");
}

static int reset_all(struct reset *s, struct ws_err *err)
{
	struct again *a = &s->a;
	const size_t n = a->opts->n_endpoints;
	const int rc = ws_endpoint_weights_action(a->http, a->opts->endpoints, n, WS_WEIGHTS_RESET, a->until,
	                                          a->opts->cancel, a->answers, err);
	for (size_t i = 0; rc && i < n; i++)
		again_fail(a, i, &a->answers[i].err);
	return rc ? hint_at_need(err) : 0;
}

static int pause(struct reset *s, struct ws_err *err)
{
	struct again *a = &s->a;
	const struct ws_push_opts *o = a->opts;
	if (o->pause == WS_PAUSE_NONE)
		return 0;
	s->paused = true;
	if (ws_endpoint_pause(a->http, o->endpoints, o->n_endpoints, o->pause, a->until, o->cancel,
	                      a->answers, err))
		return -1;
	const ws_deadline patience = ws_deadline_in(o->pause == WS_PAUSE_ABORT ? IDLE_NS : 0);
	return o->flush == WS_FLUSH_NEVER ? 0 :
	       ws_endpoint_flush(a->http, o->endpoints, o->n_endpoints, patience, a->until, o->cancel,
	                         a->answers, err);
}

/* ---- before the reset ---- */

/* A dry run: usage, source and endpoints are checked, nothing is changed. */
static int look_first(const struct again *a, struct ws_err *err)
{
	struct ws_push_opts opts = *a->opts;
	opts.dry_run = true;
	opts.sink = (struct ws_sink){ .event = NULL };
	return again_push(a, opts, err);
}

/* SGLang 0.5.12 reports the first rank alone: it has to compare by itself, as one that has no checksums. A reply
 * that contradicts itself is an error. */
static int choose_means(struct reset *s, struct ws_err *err)
{
	struct again *a = &s->a;
	again_ask(a, a->before, NULL);
	for (size_t i = 0; i < a->opts->n_endpoints; i++) {
		struct ws_err *e = &a->errs[i];
		if (ws_endpoint_check_tp(&a->infos[i], err))
			return -1;
		s->summed[i] = e->code == WS_OK && ws_checksums_whole(&a->before[i], &a->infos[i], NULL) == 0;
		if (e->code == WS_OK || (e->code == WS_EREFUSED && !a->before[i].contradicts))
			continue;
		again_fail(a, i, e);
		*err = a->results[i].err;
		return -1;
	}
	return 0;
}

static int remember(struct reset *s, struct ws_err *err)
{
	if (!act(s, WS_WEIGHTS_SNAPSHOT, err))
		return 0;
	for (size_t k = 0; k < select_silent(s); k++)
		if (s->a.answers[k].err.code != WS_OK)
			again_fail(&s->a, s->index[k], &s->a.answers[k].err);
	return hint_at_need(err);
}

/* ---- was it reset? ---- */

static size_t count_changed(const struct ws_checksum_rank *before, const struct ws_checksum_rank *after)
{
	size_t n = before->n != after->n;
	for (size_t i = 0; i < before->n && i < after->n; i++)
		n += before->items[i].value != after->items[i].value;
	return n;
}

static int refuse_reset(struct again *a, size_t i, const char *of, struct ws_err *err)
{
	struct ws_err why = WS_ERR_INIT;
	ws_err_set(&why, WS_EREFUSED, "%s: reset_tensors changed nothing%s", a->results[i].url, of);
	ws_err_hint(&why, "a push cannot show that it restores what was not reset; perhaps a proxy answered");
	again_fail(a, i, &why);
	if (err && err->code == WS_OK)
		*err = a->results[i].err;
	return -1;
}

/* Compares before with after, sorted by rank and name. A parameter that is not random now proves nothing later. */
static int check_endpoint(struct reset *s, size_t i, struct ws_err *err)
{
	struct again *a = &s->a;
	const struct ws_checksums *before = &a->before[i], *after = &a->after[i];
	size_t changed = 0, all = 0;
	int still = -1;
	for (size_t k = 0; k < before->n_ranks && k < after->n_ranks; k++) {
		const size_t n = count_changed(&before->ranks[k], &after->ranks[k]);
		all += before->ranks[k].n;
		changed += n;
		still = n == 0 && still < 0 ? before->ranks[k].rank : still;
	}
	char of[48] = "";
	s->intact[i] = changed == 0 && after->n_ranks == before->n_ranks;
	if (!s->intact[i])
		snprintf(of, sizeof of, " on rank %d", still);
	if (still >= 0)
		return refuse_reset(a, i, of, err);
	if (changed < all) {
		char text[160];
		snprintf(text, sizeof text, "reset_tensors left %zu of %zu parameters as they were: whether a push writes "
		         "them is not known", all - changed, all);
		again_warn(a, a->opts->endpoints[i], text);
	}
	return 0;
}

static int check_checksums(struct reset *s, struct ws_err *err)
{
	struct again *a = &s->a;
	int rc = 0;
	if (!any_summed(s))
		return 0;
	again_ask(a, a->after, NULL);
	for (size_t i = 0; i < a->opts->n_endpoints; i++) {
		struct ws_err why = a->errs[i];
		if (!s->summed[i])
			continue;
		if (why.code != WS_OK || ws_checksums_whole(&a->after[i], &a->infos[i], &why)) {
			again_fail(a, i, &why);
			if (err && err->code == WS_OK)
				*err = a->results[i].err;
			rc = -1;
		} else if (check_endpoint(s, i, err)) {
			rc = -1;
		}
	}
	return rc;
}

/* A comparison of random weights with the snapshot has to fail. */
static int check_comparisons(struct reset *s, struct ws_err *err)
{
	struct again *a = &s->a;
	int rc = 0;
	act(s, WS_WEIGHTS_COMPARE, NULL);
	for (size_t k = 0; k < select_silent(s); k++) {
		const struct ws_err *said = &a->answers[k].err;
		if (said->code == WS_OK) {
			rc = refuse_reset(a, s->index[k], ", by its own comparison", err);
		} else if (said->code != WS_EREFUSED || said->native != 400) {
			again_fail(a, s->index[k], said);
			if (err && err->code == WS_OK)
				*err = a->results[s->index[k]].err;
			rc = -1;
		}
	}
	return rc;
}

static int check_reset(struct reset *s, struct ws_err *err)
{
	const int sums = check_checksums(s, err), own = check_comparisons(s, err);
	return sums || own ? -1 : 0;
}

/* One that refused has perhaps done a part of it: where checksums are as before, it has not. */
static void find_intact(struct reset *s)
{
	struct again *a = &s->a;
	if (!any_summed(s) || again_ask(a, a->after, NULL))
		return;
	for (size_t i = 0; i < a->opts->n_endpoints; i++) {
		const struct ws_checksums *before = &a->before[i], *after = &a->after[i];
		bool same = s->summed[i] && ws_checksums_whole(after, &a->infos[i], NULL) == 0;
		for (size_t k = 0; same && k < before->n_ranks; k++)
			same = count_changed(&before->ranks[k], &after->ranks[k]) == 0;
		s->intact[i] = same;
	}
}

/* ---- after the push ---- */

/* The endpoints are paused already, and stay so until the result is known. */
static int push_paused(const struct again *a, struct ws_err *err)
{
	struct ws_push_opts opts = *a->opts;
	opts.pause = WS_PAUSE_NONE;
	return again_push(a, opts, err);
}

static void say_no(struct again *a, size_t i, const char *words)
{
	struct ws_err why = WS_ERR_INIT;
	ws_err_set(&why, WS_EMISMATCH, "%s: after a push onto random weights it is not what it was: %s",
	           a->results[i].url, words);
	again_fail(a, i, &why);
}

static void judge_checksums(struct reset *s)
{
	struct again *a = &s->a;
	if (!any_summed(s))
		return;
	again_ask(a, a->after, NULL);
	for (size_t i = 0; i < a->opts->n_endpoints; i++) {
		struct ws_verify_result *r = &a->results[i];
		if (!s->summed[i])
			continue;
		again_fail(a, i, &a->errs[i]);
		if (r->err.code != WS_OK || again_compare(a, i))
			continue;
		const size_t bad = r->different + r->missing + r->unexpected;
		char words[64];
		snprintf(words, sizeof words, "%zu of %zu checksums differ", bad, bad + r->equal);
		if (bad)
			say_no(a, i, words);
	}
}

/* A comparison that cannot be made is refused otherwise than by HTTP 400. */
static void judge_comparisons(struct reset *s)
{
	struct again *a = &s->a;
	act(s, WS_WEIGHTS_COMPARE, NULL);
	for (size_t k = 0; k < select_silent(s); k++) {
		const size_t i = s->index[k];
		const struct ws_endpoint_answer *answer = &a->answers[k];
		const struct ws_endpoint_info *info = &a->infos[i];
		a->results[i].ranks = 1;
		a->results[i].unknown_ranks = info->tp_size * info->pp_size - 1;
		if (answer->err.code == WS_EREFUSED && answer->err.native == 400)
			say_no(a, i, answer->message[0] ? answer->message : "it does not say more");
		else
			again_fail(a, i, &answer->err);
	}
}

static void judge_reset(struct reset *s)
{
	for (size_t i = 0; i < s->a.opts->n_endpoints; i++)
		s->a.results[i].means = WS_MEANS_RESET;
	judge_checksums(s);
	judge_comparisons(s);
}

/* ---- a run ---- */

static int run_reset(struct reset *s, struct ws_err *err)
{
	struct again *a = &s->a;
	if (look_first(a, err) || choose_means(s, err) || remember(s, err) || pause(s, err))
		return -1;
	s->random = true;
	if (reset_all(s, err)) {
		find_intact(s);
		return -1;
	}
	if (check_reset(s, err) || push_paused(a, err))
		return -1;
	judge_reset(s);
	return 0;
}

/* Resumes every endpoint but those that may hold random weights and must not answer with them. */
static int finish(struct reset *s, struct ws_err *err)
{
	struct again *a = &s->a;
	size_t n_urls = 0;
	for (size_t i = 0; i < a->opts->n_endpoints; i++) {
		const struct ws_verify_result *r = &a->results[i];
		const bool spoilt = s->random && r->err.code != WS_OK && !s->intact[i];
		const bool stays = s->paused && spoilt && a->opts->on_partial == WS_PARTIAL_PAUSE;
		if (spoilt)
			again_warn(a, r->url, stays ? "left paused: it may hold random weights" :
			           "may hold random weights: push to it before its answers are used");
		if (s->paused && !stays)
			s->urls[n_urls++] = r->url;
	}
	const int rc = ws_endpoint_resume(a->http, s->urls, n_urls, ws_deadline_in(RESUME_NS), NULL,
	                                  a->answers, err);
	if (rc) {
		ws_err_wrap(err, "an endpoint stays paused");
		ws_err_hint(err, "tell it to continue: wsync-ctl resume");
	}
	return rc;
}

static int open_reset(struct reset *s, struct ws_err *err)
{
	const size_t n = s->a.opts->n_endpoints + 1;
	if (again_open(&s->a, err))
		return -1;
	s->summed = calloc(n, sizeof *s->summed);
	s->intact = calloc(n, sizeof *s->intact);
	s->urls = calloc(n, sizeof *s->urls);
	s->index = calloc(n, sizeof *s->index);
	if (!s->summed || !s->intact || !s->urls || !s->index)
		return ws_err_set(err, WS_ESYSTEM, "out of memory");
	return 0;
}

int ws_verify_reset(const struct ws_push_opts *push, const struct ws_push_source *source,
                    struct ws_verify_result *results, struct ws_err *err)
{
	struct reset s = { .a = { .opts = push, .source = source, .results = results } };
	struct ws_err why = WS_ERR_INIT, stuck = WS_ERR_INIT;
	int rc = open_reset(&s, &why);
	if (!rc)
		rc = run_reset(&s, &why);
	if (rc)
		verify_give_up(results, push->n_endpoints, &why);
	else
		rc = verify_sum_up(results, push->n_endpoints, &why);
	if ((s.paused || s.random) && finish(&s, &stuck)) {
		again_warn(&s.a, stuck.endpoint, stuck.msg);
		if (!rc)
			why = stuck;
		rc = -1;
	}
	again_close(&s.a);
	free(s.summed);
	free(s.intact);
	free(s.urls);
	free(s.index);
	if (rc && err)
		*err = why;
	return rc;
}
