/* SPDX-License-Identifier: Apache-2.0 */
/* verify_logprobs_compare.c - compares answers, and explains differences. */
#include "verify_logprobs.h"

#include <stdio.h>
#include <string.h>

bool verify_logprobs_alone(enum ws_logprobs_how how)
{
	return how == WS_HOW_BATCHED || how == WS_HOW_CACHED;
}

static void report_row(struct verify_logprobs *v, const struct ws_compared *row)
{
	if (v->opts->compared)
		v->opts->compared(v->ask->ctx, row);
}

/* Reports the first bad row in *err. */
static void remember(const struct ws_compared *row, size_t n_prompts, struct ws_err *err)
{
	char which[32] = "";
	if (row->good || !err || err->code)
		return;
	if (n_prompts > 1)
		snprintf(which, sizeof which, "prompt %zu: ", row->prompt);
	ws_err_set(err, WS_EMISMATCH, "%.200s: %s%s: %s", row->second, which,
	           ws_logprob_part_name(row->part), row->why);
}

struct pair {
	const char *first, *second;
	const struct ws_logprobs_list *a, *b;
	struct ws_logprobs_diff sums[WS_LOGPROB_PARTS];
	size_t bad[WS_LOGPROB_PARTS];
};

/* First part to compare: with a cache, answers have no log-probabilities of the prompt. */
static unsigned first_part(enum ws_logprobs_how how)
{
	return how == WS_HOW_CACHED ? WS_DECODE : WS_PREFILL;
}

static void compare_prompt(struct verify_logprobs *v, struct pair *x, size_t i, struct ws_err *err)
{
	static const struct ws_logprobs_limits exact = { 0, NAN, NAN };
	const enum ws_logprobs_how how = v->opts->how;
	struct ws_logprobs_diff d[WS_LOGPROB_PARTS];
	ws_logprobs_compare(&x->a->items[i], &x->b->items[i], d);
	if (!v->ask->n_endpoints)
		d[WS_DECODE].apart = 0; /* the temperature of saved answers is unknown */
	for (unsigned p = first_part(how); p < WS_LOGPROB_PARTS; p++) {
		char why[256] = "";
		struct ws_compared row = {
			x->first,        x->second,          how,
			.prompt = i + 1, .prompts = x->a->n, .part = (enum ws_logprob_part)p,
			.diff = &d[p],   .why = why
		};
		row.good = ws_logprobs_within(&d[p], row.part,
		                              how == WS_HOW_BATCHED ? &exact : &v->opts->limits[p],
		                              why, sizeof why);
		x->bad[p] += !row.good;
		ws_logprobs_sum(&x->sums[p], &d[p]);
		x->sums[p].same = d[p].same;
		report_row(v, &row);
		remember(&row, x->a->n, err);
	}
}

static int compare_pair(struct verify_logprobs *v, struct pair x, struct ws_err *err)
{
	const size_t n = x.a->n;
	if (n != x.b->n)
		return ws_err_set(err, WS_EMISMATCH, "%s has answers to %zu prompt%s, %s to %zu",
		                  x.first, n, n == 1 ? "" : "s", x.second, x.b->n);
	for (size_t i = 0; i < n; i++)
		compare_prompt(v, &x, i, err);
	for (unsigned p = first_part(v->opts->how); p < WS_LOGPROB_PARTS; p++) {
		v->tokens += x.sums[p].tokens;
		report_row(v, &(struct ws_compared){ x.first, x.second, v->opts->how, 0, n,
		                                     x.bad[p], (enum ws_logprob_part)p, &x.sums[p],
		                                     !x.bad[p], "" });
	}
	return x.bad[WS_PREFILL] || x.bad[WS_DECODE] ? -1 : 0;
}

static int compare(struct verify_logprobs *v, const struct logprobs_side *s, struct ws_err *err)
{
	const bool own = verify_logprobs_alone(v->opts->how);
	const struct logprobs_side *first = own ? s : v->sides;
	const struct pair x = { .first = first->name, .second = s->name, .a = &first->answers,
		                .b = own ? &s->other : &s->answers };
	const int rc = compare_pair(v, x, err);
	if (rc && !v->blamed)
		v->blamed = s;
	return rc;
}

/* An answer without cached tokens does not test the cache. */
static int check_cached(const struct verify_logprobs *v, struct ws_err *err)
{
	for (size_t i = 0; v->opts->how == WS_HOW_CACHED && i < v->n_sides; i++) {
		const struct logprobs_side *s = &v->sides[i];
		bool cached = false, told = false;
		for (size_t k = 0; k < s->other.n; k++) {
			cached = cached || s->other.items[k].cached_tokens > 0;
			told = told || s->other.items[k].cached_tokens >= 0;
		}
		if (cached)
			continue;
		ws_err_set(err, WS_EUNKNOWN, "%s: nothing was tested: %s", s->name,
		           told ? "no token of the prompts came from its cache"
		                : "it does not report how many tokens came from its cache");
		ws_err_hint(err, told ? "run it again: the prompts are in its cache now, unless it "
		                        "was started with --disable-radix-cache" :
		                        "\"meta_info\" of its answers has no \"cached_tokens\"");
		return ws_err_where(err, NULL, s->name);
	}
	return 0;
}

int verify_logprobs_compare(struct verify_logprobs *v, struct ws_err *err)
{
	const struct logprobs_side *s = v->sides;
	int rc = 0;
	for (size_t i = verify_logprobs_alone(v->opts->how) ? 0 : 1; i < v->n_sides; i++)
		if (compare(v, &s[i], err))
			rc = -1;
	if (!rc && !v->tokens && (v->n_sides > 1 || verify_logprobs_alone(v->opts->how)))
		rc = ws_err_set(err, WS_EUNKNOWN, "%s, %s: no token has a number in both",
		                s[0].name, s[v->n_sides > 1].name);
	return rc ? rc : check_cached(v, err);
}

static const char stale_hint[] = "its prefix cache gives other numbers than its weights: the "
                                 "cache has results of older weights, or its kernels differ "
                                 "({limits} decode=...); wsync-ctl flush drops it, wsync-push "
                                 "--flush last too";

void verify_logprobs_explain(const struct verify_logprobs *v, struct ws_err *err)
{
	const struct logprobs_side *a = v->sides, *b = v->blamed;
	if (err->code != WS_EMISMATCH || *err->hint || !b || !a->answers.n || !b->answers.n)
		return;
	const char *x = a->answers.items[0].weight_version, *y = b->answers.items[0].weight_version;
	if (v->opts->how == WS_HOW_BATCHED)
		ws_err_hint(err, "this server's numbers depend on the rest of the batch: servers "
		                 "that promise otherwise are started with "
		                 "--enable-deterministic-inference");
	else if (v->opts->how == WS_HOW_CACHED)
		ws_err_hint(err, "%s", stale_hint);
	else if (strcmp(x, y))
		ws_err_hint(err, "%.100s answers with weight version '%s', %.100s with '%s'",
		            a->name, x, b->name, y);
	else if (v->ask->n_endpoints && a != b && strcmp(a->name, b->name))
		ws_err_hint(err,
		            "both report weight version '%s': wsync-verify weights compares their "
		            "bytes, wsync-verify flags their settings",
		            x);
}
