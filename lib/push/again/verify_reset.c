/* SPDX-License-Identifier: Apache-2.0 */
/* verify_reset.c - does a push write every parameter? The servers overwrite all parameters with
 * random numbers, then receive the source. A parameter whose checksum then differs from the first
 * was not written.
 *
 *   checksum, pause, reset_tensors, checksum, transfer, checksum, resume: all ranks
 *
 * The second answer must differ from the first on every rank, or nothing was reset. Parameters that
 * are in no checkpoint (buffers that the server computes when it starts) would stay random, and so
 * would a draft model: they are left out of the reset. The servers' own comparison (snapshot,
 * compare) is not used: it tells of the first rank only, and fails on CPUs.
 *
 * This is one run of a push, with three steps of its own (enum push_step). The push locks,
 * records, pauses and resumes the endpoints. From the reset on, an endpoint is partial until it
 * confirms that all parameters are back. */
#include "endpoint_weights.h"
#include "hashes.h"
#include "push_state.h"
#include "verify_again.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_SPARED = 256 };

/* Names of `before` that a reset leaves out, with all names that contain one of them. */
struct spared {
	const char **names;
	size_t n;
	bool drafts;
	size_t kept; /* parameters that were to be reset, and were not */
};

struct reset {
	struct again a;
	struct ws_push *push;
	struct ws_buf *bodies; /* of the request to reset, for each endpoint */
	struct spared *spared; /* what it leaves out, for each endpoint */
	bool judged;           /* each endpoint has its result */
};

/* ---- requests ---- */

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
	                                "checksum and reset_tensors");
}

static int reset_all(struct reset *s, struct ws_err *err)
{
	struct ws_push *p = s->push;
	const size_t n = push_select(p, NULL);
	const struct ws_call to = push_call_made(p, again_step(&s->a), p->opts.cancel);
	const int rc = ws_endpoint_reset_weights(&to, s->bodies, p->to.call.answers, err);
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

/* SGLang 0.5.12 reports the first rank alone. */
static int check_reports(struct reset *s, struct ws_err *err)
{
	struct again *a = &s->a;
	ask_checksums(s, a->before);
	for (size_t i = 0; i < a->opts->n_endpoints; i++) {
		struct ws_err *e = &a->errs[i];
		if (e->code == WS_OK && !ws_checksums_whole(&a->before[i], &a->infos[i], e))
			continue;
		again_fail(a, i, e);
		*err = a->results[i].err;
		return hint_at_need(err);
	}
	return 0;
}

/* Is it in no checkpoint? wsync-endpoint's names are those of tensors. */
static bool is_buffer(const struct ws_layout *l, const struct ws_checksum *item)
{
	return !ws_checksum_is_draft(item) && !ws_layout_find_shown(l, item->name) &&
	       !ws_layout_find_part(l, item->name);
}

static bool is_spared(const struct spared *x, const struct ws_checksum *item)
{
	if (ws_checksum_is_draft(item))
		return x->drafts;
	for (size_t i = 0; i < x->n; i++)
		if (strstr(item->name, x->names[i]))
			return true;
	return false;
}

static int refuse(const struct ws_endpoint_info *info, const char *why, struct ws_err *err)
{
	ws_err_set(err, WS_EREFUSED, "%s: a reset would lose what no push restores: %s", info->url,
	           why);
	return ws_err_where(err, NULL, info->url);
}

/* Finds the buffers in the checksums of all ranks, each once. */
static int find_spared(struct reset *s, size_t i, const struct ws_layout *l, struct ws_err *err)
{
	const struct ws_checksums *sums = &s->a.before[i];
	const struct ws_endpoint_info *info = &s->a.infos[i];
	struct spared *x = &s->spared[i];
	size_t all = 0;
	x->names = calloc(MAX_SPARED, sizeof *x->names);
	if (!x->names)
		return ws_oom(err);
	for (size_t r = 0; r < sums->n_ranks; r++) {
		for (size_t k = 0; k < sums->ranks[r].n; k++) {
			const struct ws_checksum *item = &sums->ranks[r].items[k];
			x->drafts = x->drafts || ws_checksum_is_draft(item);
			all += r == 0;
			if (!l || !is_buffer(l, item) || is_spared(x, item))
				continue;
			if (x->n == MAX_SPARED)
				return refuse(info, "many of its parameters are in no checkpoint "
				              "that is known", err);
			x->names[x->n++] = item->name;
		}
	}
	return 4 * x->n <= all ? 0 : refuse(info, "many of its parameters are in no checkpoint "
	                                    "that is known", err);
}

/* The server leaves out all names that contain a text. */
static bool spares_params(const struct spared *x, const struct ws_layout *l)
{
	for (size_t p = 0; l && p < ws_layout_param_count(l); p++)
		for (size_t i = 0; i < x->n; i++)
			if (strstr(ws_layout_param(l, p)->name, x->names[i]))
				return true;
	return false;
}

static int check_spared(const struct reset *s, size_t i, const struct ws_layout *l, const char *why,
                        struct ws_err *err)
{
	const struct ws_endpoint_info *info = &s->a.infos[i];
	const struct spared *x = &s->spared[i];
	char text[512];
	if (!l && !ws_checksums_are_ours(&s->a.before[i]))
		return refuse(info, why, err);
	snprintf(text, sizeof text,
	         "%.300s is in no checkpoint, and the server cannot leave it out",
	         x->n ? x->names[0] : "a draft model");
	if ((x->n && !info->can.skip_tensors) || (x->drafts && !info->can.selector) ||
	    spares_params(x, l))
		return refuse(info, text, err);
	return 0;
}

static int write_body(struct reset *s, size_t i, struct ws_err *err)
{
	const struct spared *x = &s->spared[i];
	struct ws_jw w;
	ws_jw_init(&w, &s->bodies[i]);
	ws_jw_object(&w, NULL);
	ws_jw_str(&w, "action", "reset_tensors");
	if (x->drafts)
		ws_jw_str(&w, "selector", "target");
	if (x->n)
		ws_jw_array(&w, "skip_tensor_list");
	for (size_t k = 0; k < x->n; k++)
		ws_jw_str(&w, NULL, x->names[k]);
	if (x->n)
		ws_jw_end_array(&w);
	ws_jw_end_object(&w);
	return ws_buf_check(&s->bodies[i], "reset_tensors", err);
}

static int write_bodies(struct reset *s, struct ws_push *p, struct ws_err *err)
{
	if (push_find_targets(p, err))
		return -1;
	for (size_t i = 0; i < p->opts.n_endpoints; i++) {
		struct ws_layout *l = NULL;
		char why[512] = "its model is not known";
		ws_buf_init(&s->bodies[i], 0);
		int rc = ws_name_check_layout(&p->from.input, &p->to.listed[i], &l, why,
		                              sizeof why, err);
		if (rc == 0)
			rc = find_spared(s, i, l, err) || check_spared(s, i, l, why, err) ||
			                     write_body(s, i, err) ? -1 : 0;
		ws_layout_free(l);
		if (rc) {
			again_fail(&s->a, i, err);
			return -1;
		}
	}
	return 0;
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

/* Parameters that were to be reset: how many, and how many are as before. */
static void count_kept(const struct spared *x, const struct ws_checksum_rank *before,
                       const struct ws_checksum_rank *after, size_t *all, size_t *kept)
{
	*all = *kept = 0;
	for (size_t i = 0; i < before->n && i < after->n; i++) {
		if (is_spared(x, &before->items[i]))
			continue;
		*all += 1;
		*kept += before->items[i].value == after->items[i].value;
	}
}

/* Compares before with after, both sorted by rank and name. A parameter that the reset did not
 * change proves nothing later. */
static int check_endpoint(struct reset *s, size_t i, struct ws_err *err)
{
	struct again *a = &s->a;
	const struct ws_checksums *before = &a->before[i], *after = &a->after[i];
	struct spared *x = &s->spared[i];
	size_t changed = 0;
	int still = -1;
	x->kept = 0;
	for (size_t k = 0; k < before->n_ranks && k < after->n_ranks; k++) {
		size_t all, kept;
		count_kept(x, &before->ranks[k], &after->ranks[k], &all, &kept);
		changed += all - kept;
		x->kept += kept;
		still = all == kept && still < 0 ? before->ranks[k].rank : still;
	}
	char of[48] = "";
	if (changed == 0 && after->n_ranks == before->n_ranks)
		push_target_event(&s->push->to.endpoints[i].weights, PUSH_RESET_REFUSED);
	else
		snprintf(of, sizeof of, " on rank %d", still);
	return still >= 0 ? refuse_reset(a, i, of, err) : 0;
}

static int check_reset(struct reset *s, struct ws_err *err)
{
	struct again *a = &s->a;
	int rc = 0;
	ask_checksums(s, a->after);
	for (size_t i = 0; i < a->opts->n_endpoints; i++) {
		struct ws_err why = a->errs[i];
		if (why.code == WS_OK && !ws_checksums_whole(&a->after[i], &a->infos[i], &why)) {
			rc = check_endpoint(s, i, err) ? -1 : rc;
			continue;
		}
		again_fail(a, i, &why);
		if (err && err->code == WS_OK)
			*err = a->results[i].err;
		rc = -1;
	}
	return rc;
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
	bool all = true;
	for (size_t i = 0; i < p->opts.n_endpoints; i++)
		all = all && is_answered(&p->to.call.answers[i].err);
	if (!all)
		return;
	ask_checksums(s, a->after);
	for (size_t i = 0; i < p->opts.n_endpoints; i++) {
		const struct ws_checksums *before = &a->before[i], *after = &a->after[i];
		bool same = a->errs[i].code == WS_OK &&
		            ws_checksums_whole(after, &a->infos[i], NULL) == 0;
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
	ask_checksums(s, a->after);
	for (size_t i = 0; i < a->opts->n_endpoints; i++) {
		struct ws_verify_result *r = &a->results[i];
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

/* ---- the steps ---- */

static int prepare(struct reset *s, struct ws_push *p, struct ws_err *err)
{
	s->a.opts = &p->opts;
	s->a.http = p->http;
	s->a.infos = p->to.infos;
	s->a.errs = p->to.errs;
	s->a.until = p->run.until;
	return refuse_partial(p, err) || check_reports(s, err) || write_bodies(s, p, err) ? -1 : 0;
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
	s->judged = true;
	for (size_t i = 0; i < p->opts.n_endpoints; i++) {
		struct ws_verify_result *r = &s->a.results[i];
		const struct spared *x = &s->spared[i];
		if (r->err.code != WS_OK)
			continue;
		push_target_event(&p->to.endpoints[i].weights, PUSH_RESET_UNDONE);
		r->incomparable = x->n;
		if (x->kept)
			ws_err_set(&r->err, WS_EUNKNOWN, "%s: reset_tensors left %zu parameters as "
			           "they were, so it is not known whether a push writes them",
			           r->url, x->kept);
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
	s->bodies = calloc(opts->n_endpoints, sizeof *s->bodies);
	s->spared = calloc(opts->n_endpoints, sizeof *s->spared);
	if (!s->bodies || !s->spared)
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
	for (size_t i = 0; s.bodies && i < push->n_endpoints; i++)
		ws_buf_free(&s.bodies[i]);
	for (size_t i = 0; s.spared && i < push->n_endpoints; i++)
		free(s.spared[i].names);
	free(s.bodies);
	free(s.spared);
	if (rc && err)
		*err = why;
	return rc;
}
