/* SPDX-License-Identifier: Apache-2.0 */
/* verify_logprobs.c - sends the prompts of a comparison of log-probabilities.
 *
 * Sides are the files, then the endpoints. With teacher forcing only the first side draws tokens.
 * The others get each prompt and its drawn tokens as one prompt, and draw one token more. Their
 * values at the prompt's end are those that they would have given when drawing. */
#include "verify_logprobs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *ws_logprobs_how_name(enum ws_logprobs_how how)
{
	static const char *const names[] = { "answers", "teacher-forced", "batched", "cached" };
	return names[how];
}

/* ---- requests ---- */

struct pass {
	struct verify_logprobs *v;
	const struct ws_ask *ask;
	struct logprobs_side *sides; /* of the first URL that is asked */
};

/* Checks that the answer has the tokens that were requested. */
static int check_answer(const struct ws_ask *ask, const struct ws_prompt *x,
                        const struct ws_logprobs *l, struct ws_err *err)
{
	const size_t n = l->part[WS_PREFILL].n, drawn = l->part[WS_DECODE].n;
	if (drawn > ws_ask_most(ask, x))
		return ws_err_set(
			err, WS_EREFUSED,
			"POST /generate: the answer has %zu drawn tokens, where %u were asked for",
			drawn, ws_ask_most(ask, x));
	if (ask->as == WS_ASKED_CACHED || x->text)
		return 0;
	if (n != x->n_ids || memcmp(l->part[WS_PREFILL].ids, x->ids, n * sizeof *x->ids))
		return ws_err_set(
			err, WS_EREFUSED,
			"POST /generate: the answer has other tokens (%zu) than the prompt (%zu)",
			n, x->n_ids);
	return 0;
}

static struct ws_logprobs_list *list_of(struct logprobs_side *s, enum ws_asked_as as)
{
	return as == WS_ASKED_BATCH || as == WS_ASKED_CACHED ? &s->other : &s->answers;
}

static int take(void *ctx, size_t url, size_t prompt, const struct ws_json *answer,
                const struct ws_buf *text, struct ws_err *err)
{
	struct pass *p = ctx;
	struct ws_logprobs *l = &list_of(&p->sides[url], p->ask->as)->items[prompt];
	if (ws_logprobs_take(answer, "POST /generate", l, err))
		return -1;
	if (check_answer(p->ask, &p->ask->prompts->items[prompt], l, err))
		return -1;
	if (p->v->ask->save && !url && p->ask->as == WS_ASKED_ALONE)
		return ws_ask_keep(&p->v->saved, prompt, p->ask->prompts->n, text, err);
	return 0;
}

/* Sends the prompts to the `n` sides from `from` on, which must be endpoints. */
static int ask(struct verify_logprobs *v, size_t from, size_t n, const struct ws_prompts *prompts,
               enum ws_asked_as as, struct ws_err *err)
{
	struct pass p = { .v = v, .sides = v->sides + from };
	const struct ws_ask a = {
		.opts = v->ask, .urls = v->ask->endpoints + (from - v->ask->n_files), .n_urls = n,
		.prompts = prompts, .as = as, .logprobs = true, .take = take, .ctx = &p,
	};
	p.ask = &a;
	for (size_t i = 0; i < n; i++) {
		struct ws_logprobs_list *list = list_of(&p.sides[i], as);
		ws_logprobs_list_free(list);
		list->items = calloc(prompts->n, sizeof *list->items);
		if (!list->items)
			return ws_oom(err);
		list->n = prompts->n;
	}
	return ws_ask(v->http, &a, err);
}

/* ---- prompts out of answers ---- */

static int add_sequence(struct ws_prompts *out, const struct ws_logprobs *l, bool drawn,
                        struct ws_err *err)
{
	const size_t n = l->part[WS_PREFILL].n, more = drawn ? l->part[WS_DECODE].n : 0;
	const size_t new = drawn ? 1 : l->part[WS_DECODE].n;
	if (!n || n + more > WS_PROMPT_TOKENS) {
		ws_err_set(err, WS_EINPUT,
		           "an answer has %zu tokens of its prompt and %zu more", n, more);
		return ws_err_hint(err, "name the prompts with {prompts}");
	}
	int64_t *ids = malloc((n + more) * sizeof *ids);
	if (!ids)
		return ws_oom(err);
	memcpy(ids, l->part[WS_PREFILL].ids, n * sizeof *ids);
	if (more)
		memcpy(ids + n, l->part[WS_DECODE].ids, more * sizeof *ids);
	const int rc = ws_prompts_add(out, NULL, ids, n + more, new ? (unsigned)new : 1, err);
	free(ids);
	return rc;
}

/* Makes a prompt of each answer: its prompt and drawn tokens, or only its prompt, to draw again. */
static int make_prompts(const struct ws_logprobs_list *answers, bool drawn, struct ws_prompts *out,
                        struct ws_err *err)
{
	for (size_t i = 0; i < answers->n; i++)
		if (add_sequence(out, &answers->items[i], drawn, err))
			return -1;
	return 0;
}

static int choose_prompts(struct verify_logprobs *v, struct ws_err *err)
{
	v->prompts = v->ask->prompts;
	if (v->prompts && v->prompts->n)
		return 0;
	v->prompts = &v->own;
	return v->ask->n_files ? make_prompts(&v->sides[0].answers, false, &v->own, err)
	                       : ws_prompts_add_usual(&v->own, err);
}

/* ---- teacher forcing ---- */

/* Moves the values at the end of the scored prompt, which are those of drawn tokens, to the decode
 * part. */
static int split(const struct ws_logprobs *from, struct ws_logprobs *l, struct ws_err *err)
{
	const size_t n = from->part[WS_PREFILL].n, more = from->part[WS_DECODE].n;
	int64_t *ids = calloc(more + 1, sizeof *ids);
	double *values = calloc(more + 1, sizeof *values);
	if (!ids || !values) {
		free(ids);
		free(values);
		return ws_oom(err);
	}
	free(l->part[WS_DECODE].ids);
	free(l->part[WS_DECODE].values);
	memcpy(ids, l->part[WS_PREFILL].ids + n, more * sizeof *ids);
	memcpy(values, l->part[WS_PREFILL].values + n, more * sizeof *values);
	l->part[WS_PREFILL].n = n;
	l->part[WS_DECODE].ids = ids;
	l->part[WS_DECODE].values = values;
	l->part[WS_DECODE].n = more;
	return 0;
}

/* Replaces the answers of all sides but the first by scored ones. A lone endpoint becomes two
 * sides. */
static int score(struct verify_logprobs *v, struct ws_err *err)
{
	const size_t from = v->n_sides > 1 ? 1 : 0;
	struct logprobs_side lone = { .name = v->sides[0].name, .answers = v->sides[0].answers };
	struct ws_prompts sequences = { 0 };
	int rc = make_prompts(&lone.answers, true, &sequences, err);
	if (!from)
		v->sides[0].answers = (struct ws_logprobs_list){ 0 };
	if (!rc)
		rc = ask(v, from, v->n_sides - from, &sequences, WS_ASKED_SCORED, err);
	for (size_t s = from; !rc && s < v->n_sides; s++)
		for (size_t i = 0; !rc && i < v->sides[s].answers.n; i++)
			rc = split(&lone.answers.items[i], &v->sides[s].answers.items[i], err);
	if (!from) { /* its drawn answers first, then its scored ones */
		v->sides[1] = v->sides[0];
		v->sides[0] = lone;
		v->n_sides = 2;
	}
	ws_prompts_free(&sequences);
	return rc;
}

/* ---- all of it ---- */

static int check_usage(const struct ws_verify_logprobs_opts *o, struct ws_err *err)
{
	const struct ws_ask_opts *a = &o->ask;
	const size_t n = a->n_files + a->n_endpoints;
	if (a->n_endpoints && a->n_files > 1)
		return ws_err_set(err, WS_EUSAGE,
		                  "endpoints are compared with one file of answers, not %zu",
		                  a->n_files);
	if (verify_logprobs_alone(o->how) && a->n_files)
		return ws_err_set(
			err, WS_EUSAGE,
			"saved answers cannot be asked again, in a batch or with a cache");
	if (o->how == WS_HOW_CACHED && a->flush_first)
		return ws_err_set(err, WS_EUSAGE, "a cache that is flushed first cannot be tested");
	if (o->how != WS_HOW_ANSWERS && !a->n_endpoints)
		return ws_err_set(err, WS_EUSAGE,
		                  "saved answers alone can only be compared with each other");
	if (a->save && o->how == WS_HOW_FORCED && a->n_files)
		return ws_err_set(
			err, WS_EUSAGE,
			"with saved answers and teacher forcing nothing is drawn that could "
			"be saved");
	if (a->save && a->n_endpoints != 1)
		return ws_err_set(err, WS_EUSAGE,
		                  "the answers of one endpoint can be saved, not of %zu",
		                  a->n_endpoints);
	if (n < 2 && o->how == WS_HOW_ANSWERS && !a->save)
		return ws_err_set(err, WS_EUSAGE, "nothing to compare %s with",
		                  n ? "the answers" : "an answer");
	return 0;
}

static int read_files(struct verify_logprobs *v, struct ws_err *err)
{
	v->n_sides = v->ask->n_files + v->ask->n_endpoints;
	v->sides = calloc(v->n_sides + 1, sizeof *v->sides);
	if (!v->sides)
		return ws_oom(err);
	for (size_t i = 0; i < v->n_sides; i++)
		v->sides[i].name = i < v->ask->n_files ? v->ask->files[i] :
		                                         v->ask->endpoints[i - v->ask->n_files];
	for (size_t i = 0; i < v->ask->n_files; i++)
		if (ws_logprobs_read_all(v->ask->files[i], &v->sides[i].answers, err))
			return -1;
	return 0;
}

static int ask_all(struct verify_logprobs *v, struct ws_err *err)
{
	const size_t n_files = v->ask->n_files, n = v->ask->n_endpoints;
	const bool forced = v->opts->how == WS_HOW_FORCED, batched = v->opts->how == WS_HOW_BATCHED;
	const size_t draw = !forced ? n : n_files ? 0 : 1;
	int rc = 0;
	if (draw)
		rc = choose_prompts(v, err);
	if (!rc && batched && v->prompts->n < 2)
		rc = ws_err_set(err, WS_EUSAGE, "one prompt is no batch");
	if (!rc && v->opts->how == WS_HOW_CACHED)
		rc = ask(v, n_files, n, v->prompts, WS_ASKED_CACHED,
		         err); /* first: requests fill the cache */
	if (!rc && draw)
		rc = ask(v, n_files, draw, v->prompts, WS_ASKED_ALONE, err);
	if (!rc && forced)
		rc = score(v, err);
	if (!rc && batched)
		rc = ask(v, n_files, n, v->prompts, WS_ASKED_BATCH, err);
	if (!rc && v->ask->save)
		rc = ws_ask_write(&v->saved, v->ask->save, err);
	return rc ? -1 : 0;
}

int ws_verify_logprobs(const struct ws_verify_logprobs_opts *opts, struct ws_err *err)
{
	struct verify_logprobs v = { .opts = opts, .ask = &opts->ask };
	struct ws_err own = WS_ERR_INIT;
	struct ws_err *e = err ? err : &own; /* what is remembered in it decides */
	int rc = check_usage(opts, e);
	if (!rc)
		rc = read_files(&v, e);
	if (!rc && v.ask->n_endpoints)
		rc = ws_ask_open(v.ask, &v.http, e) || ask_all(&v, e);
	if (!rc)
		rc = verify_logprobs_compare(&v, e);
	if (rc)
		verify_logprobs_explain(&v, e);
	for (size_t i = 0; v.sides && i < v.n_sides; i++) {
		ws_logprobs_list_free(&v.sides[i].answers);
		ws_logprobs_list_free(&v.sides[i].other);
	}
	free(v.sides);
	ws_ask_forget(&v.saved);
	ws_prompts_free(&v.own);
	ws_client_close(v.http);
	return rc ? -1 : 0;
}
