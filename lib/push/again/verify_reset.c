/* SPDX-License-Identifier: Apache-2.0 */
/* verify_reset.c - does a push write every parameter? The servers overwrite all parameters with
 * random numbers, then receive the source. A parameter with a changed value was not written.
 *
 *   with checksums      checksum, pause, reset_tensors, checksum, transfer, checksum, resume: all
 *                       ranks
 *   without             snapshot, pause, reset_tensors, compare, transfer, compare, resume: SGLang
 *                       then reports the first rank only
 *
 * The second answer must differ from the first on every rank, or nothing was reset.
 *
 * This is one run of a push, with three steps of its own (enum push_step). The push locks,
 * records, pauses and resumes the endpoints. From the reset on, an endpoint is partial until it
 * confirms that all parameters are back. */
#include "endpoint_weights.h"
#include "push_state.h"
#include "verify_again.h"

#include <stdio.h>
#include <stdlib.h>

struct reset {
	struct again a;
	struct ws_push *push;
	bool *summed; /* for each endpoint: it reports checksums of all ranks */
	bool judged;  /* each endpoint has its result */
};

/* ---- requests ---- */

/* Starts a call of the push to the endpoints without checksums. Returns how many. */
static size_t select_unsummed(struct reset *s)
{
	struct ws_push *p = s->push;
	push_call_new(p);
	for (size_t i = 0; i < p->opts.n_endpoints; i++)
		if (!s->summed[i])
			push_call_add(p, i);
	return p->to.call.n;
}

static bool any_summed(const struct reset *s)
{
	bool any = false;
	for (size_t i = 0; i < s->push->opts.n_endpoints; i++)
		any = any || s->summed[i];
	return any;
}

/* Sends one action to the endpoints without checksums. answers[k] is that of endpoint index[k]. */
static int send_action(struct reset *s, enum ws_weights_action action, struct ws_err *err)
{
	struct ws_push *p = s->push;
	const size_t n = select_unsummed(s);
	if (n == 0)
		return 0;
	const struct ws_call to = { p->http, p->to.call.urls, n, again_step(&s->a),
		                    p->opts.cancel };
	const int rc = ws_endpoint_weights_action(&to, action, p->to.call.answers, err);
	for (size_t k = 0; k < n; k++)
		push_note_failure(p, p->to.call.index[k], &p->to.call.answers[k].err);
	return rc;
}

/* Requests the checksums of all endpoints. a->errs has the errors. */
static void ask_checksums(struct reset *s, struct ws_checksums *sums)
{
	again_ask(&s->a, sums, NULL);
	for (size_t i = 0; i < s->push->opts.n_endpoints; i++)
		push_note_failure(s->push, i, &s->a.errs[i]);
}

static int hint_at_need(struct ws_err *err)
{
	return !ws_endpoint_said_no(err) ?
	               -1 :
	               ws_err_hint(err, "{reset} needs a server whose /weights_checker can "
	                                "reset_tensors, and either checksum, "
	                                "or snapshot and compare");
}

static int reset_all(struct reset *s, struct ws_err *err)
{
	struct ws_push *p = s->push;
	const size_t n = push_select(p, NULL);
	const struct ws_call to = { p->http, p->to.call.urls, n, again_step(&s->a),
		                    p->opts.cancel };
	const int rc = ws_endpoint_weights_action(&to, WS_WEIGHTS_RESET, p->to.call.answers, err);
	for (size_t i = 0; i < n; i++)
		push_note_failure(p, i, &p->to.call.answers[i].err);
	for (size_t i = 0; rc && i < n; i++)
		again_fail(&s->a, i, &p->to.call.answers[i].err);
	return rc ? hint_at_need(err) : 0;
}

/* ---- before the reset ---- */

/* Refuses partial endpoints: their weights before the push are not the expected ones. */
static int refuse_partial(const struct ws_push *p, struct ws_err *err)
{
	for (size_t i = 0; i < p->opts.n_endpoints; i++) {
		const struct push_endpoint *e = &p->to.endpoints[i];
		if (e->weights.state != WS_PARTIAL)
			continue;
		ws_err_set(err, WS_EREFUSED,
		           "%s: an earlier push left its weights incomplete, so {reset} has "
		           "nothing to compare with",
		           e->url);
		ws_err_hint(err, "push the source first: wsync-push SOURCE --endpoint %s", e->url);
		return ws_err_where(err, NULL, e->url);
	}
	return 0;
}

/* SGLang 0.5.12 reports the first rank alone. It must compare by itself, like a server without
 * checksums. A reply that contradicts itself is an error. */
static int choose_means(struct reset *s, struct ws_err *err)
{
	struct again *a = &s->a;
	ask_checksums(s, a->before);
	for (size_t i = 0; i < a->opts->n_endpoints; i++) {
		struct ws_err *e = &a->errs[i];
		if (ws_endpoint_check_tp(&a->infos[i], err))
			return -1;
		s->summed[i] = e->code == WS_OK &&
		               ws_checksums_whole(&a->before[i], &a->infos[i], NULL) == 0;
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
	if (!send_action(s, WS_WEIGHTS_SNAPSHOT, err))
		return 0;
	for (size_t k = 0; k < select_unsummed(s); k++)
		if (s->push->to.call.answers[k].err.code != WS_OK)
			again_fail(&s->a, s->push->to.call.index[k],
			           &s->push->to.call.answers[k].err);
	return hint_at_need(err);
}

/* ---- was it reset? ---- */

static size_t count_changed(const struct ws_checksum_rank *before,
                            const struct ws_checksum_rank *after)
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
	ws_err_hint(
		&why,
		"without a reset this check proves nothing; perhaps a proxy answered");
	again_fail(a, i, &why);
	if (err && err->code == WS_OK)
		*err = a->results[i].err;
	return -1;
}

/* Compares before with after, both sorted by rank and name. A parameter that the reset did not
 * change proves nothing later. */
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
	if (changed == 0 && after->n_ranks == before->n_ranks)
		push_target_event(&s->push->to.endpoints[i].weights, PUSH_RESET_REFUSED);
	else
		snprintf(of, sizeof of, " on rank %d", still);
	if (still >= 0)
		return refuse_reset(a, i, of, err);
	if (changed < all)
		push_warn(s->push, a->opts->endpoints[i],
		          "reset_tensors left %zu of %zu parameters as they were: whether a "
		          "push writes them is not known",
		          all - changed, all);
	return 0;
}

static int check_checksums(struct reset *s, struct ws_err *err)
{
	struct again *a = &s->a;
	int rc = 0;
	if (!any_summed(s))
		return 0;
	ask_checksums(s, a->after);
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

/* Random weights must differ from the snapshot, so the comparison must fail. */
static int check_comparisons(struct reset *s, struct ws_err *err)
{
	struct ws_push *p = s->push;
	int rc = 0;
	send_action(s, WS_WEIGHTS_COMPARE, NULL);
	for (size_t k = 0; k < select_unsummed(s); k++) {
		const struct ws_err *said = &p->to.call.answers[k].err;
		if (said->code == WS_OK) {
			rc = refuse_reset(&s->a, p->to.call.index[k], ", by its own comparison",
			                  err);
		} else if (said->code != WS_EREFUSED || said->native != 400) {
			again_fail(&s->a, p->to.call.index[k], said);
			if (err && err->code == WS_OK)
				*err = s->a.results[p->to.call.index[k]].err;
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

/* If the server itself did not answer, it may still execute the request later. */
static bool is_answered(const struct ws_err *said)
{
	return said->code == WS_OK || ws_endpoint_said_no(said) ||
	       (said->code == WS_EREFUSED && said->native >= 200 && said->native <= 299);
}

/* A server that refused may have reset some parameters. If all checksums are as before, it has
 * not. */
static void find_intact(struct reset *s)
{
	struct ws_push *p = s->push;
	struct again *a = &s->a;
	bool all = any_summed(s);
	for (size_t i = 0; i < p->opts.n_endpoints; i++)
		all = all && is_answered(&p->to.call.answers[i].err);
	if (!all)
		return;
	ask_checksums(s, a->after);
	for (size_t i = 0; i < p->opts.n_endpoints; i++) {
		const struct ws_checksums *before = &a->before[i], *after = &a->after[i];
		bool same = s->summed[i] && ws_checksums_whole(after, &a->infos[i], NULL) == 0;
		for (size_t k = 0; same && k < before->n_ranks; k++)
			same = count_changed(&before->ranks[k], &after->ranks[k]) == 0;
		if (same)
			push_target_event(&p->to.endpoints[i].weights, PUSH_RESET_REFUSED);
	}
}

/* ---- after the transfer ---- */

static void say_no(struct again *a, size_t i, const char *words)
{
	struct ws_err why = WS_ERR_INIT;
	ws_err_set(&why, WS_EMISMATCH,
	           "%s: after a push onto random weights it is not what it was: %s",
	           a->results[i].url, words);
	again_fail(a, i, &why);
}

static void judge_checksums(struct reset *s)
{
	struct again *a = &s->a;
	if (!any_summed(s))
		return;
	ask_checksums(s, a->after);
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

/* HTTP 400 means a difference. If the comparison itself fails, the status is another one. */
static void judge_comparisons(struct reset *s)
{
	struct ws_push *p = s->push;
	struct again *a = &s->a;
	send_action(s, WS_WEIGHTS_COMPARE, NULL);
	for (size_t k = 0; k < select_unsummed(s); k++) {
		const size_t i = p->to.call.index[k];
		const struct ws_endpoint_answer *answer = &p->to.call.answers[k];
		const struct ws_endpoint_info *info = &a->infos[i];
		a->results[i].ranks = 1;
		a->results[i].unknown_ranks = info->tp_size * info->pp_size - 1;
		if (answer->err.code == WS_EREFUSED && answer->err.native == 400)
			say_no(a, i, answer->message[0] ? answer->message : "it does not say more");
		else
			again_fail(a, i, &answer->err);
	}
}

/* ---- the steps ---- */

static int prepare(struct reset *s, struct ws_push *p, struct ws_err *err)
{
	s->a.opts = &p->opts;
	s->a.http = p->http;
	s->a.infos = p->to.infos;
	s->a.errs = p->to.errs;
	s->a.until = p->run.until;
	return refuse_partial(p, err) || choose_means(s, err) || remember(s, err) ? -1 : 0;
}

static int change(struct reset *s, struct ws_push *p, struct ws_err *err)
{
	for (size_t i = 0; i < p->opts.n_endpoints; i++)
		push_target_event(&p->to.endpoints[i].weights, PUSH_RESET_ASKED);
	push_alive(p);
	if (reset_all(s, err)) {
		find_intact(s);
		return -1;
	}
	return check_reset(s, err);
}

static int compare_after(struct reset *s, struct ws_push *p, struct ws_err *err)
{
	for (size_t i = 0; i < p->opts.n_endpoints; i++)
		s->a.results[i].means = WS_MEANS_RESET;
	judge_checksums(s);
	judge_comparisons(s);
	s->judged = true;
	for (size_t i = 0; i < p->opts.n_endpoints; i++) {
		if (s->a.results[i].err.code != WS_OK)
			continue;
		push_target_event(&p->to.endpoints[i].weights, PUSH_RESET_UNDONE);
	}
	return verify_sum_up(s->a.results, p->opts.n_endpoints, err);
}

static int take_step(void *ctx, struct ws_push *p, enum push_step step, struct ws_err *err)
{
	switch (step) {
	case PUSH_STEP_PREPARE:
		return prepare(ctx, p, err);
	case PUSH_STEP_CHANGE:
		return change(ctx, p, err);
	case PUSH_STEP_JUDGE:
		break;
	}
	return compare_after(ctx, p, err);
}

/* ---- a run ---- */

static int run_reset(struct reset *s, const struct ws_push_opts *opts,
                     const struct ws_push_source *source, struct ws_err *err)
{
	if (again_open(&s->a, err))
		return -1;
	s->summed = calloc(opts->n_endpoints, sizeof *s->summed);
	if (!s->summed)
		return ws_oom(err);
	if (ws_push_open(opts, &s->push, err))
		return -1;
	s->push->watch.step = take_step;
	s->push->watch.step_ctx = s;
	return ws_push_run(s->push, source, NULL, err);
}

int ws_verify_reset(const struct ws_push_opts *push, const struct ws_push_source *source,
                    struct ws_verify_result *results, struct ws_err *err)
{
	struct ws_push_opts opts = *push;
	struct reset s = { .a = { .opts = push, .results = results } };
	struct ws_err why = WS_ERR_INIT;
	opts.label_stays = true; /* the weights are the same */
	const int rc = run_reset(&s, &opts, source, &why);
	/* If the push fails although every endpoint passed, the passes are void: another push may
	 * be working there. */
	if (rc && (!s.judged || verify_sum_up(results, push->n_endpoints, &why) == 0))
		verify_give_up(results, push->n_endpoints, &why);
	ws_push_close(s.push);
	s.a.opts = push;
	again_close(&s.a);
	free(s.summed);
	if (rc && err)
		*err = why;
	return rc;
}
