/* SPDX-License-Identifier: Apache-2.0 */
/* verify_routing.c - checks that the experts that each side chose are possible, and compares them.
 *
 * Sides are the files, then the endpoints. Answers do not contain their shape: it comes from a
 * config, by default from the model path of a server on this machine. */
#include "ask.h"

#include "answer.h"
#include "wsync/tool/name_check_run.h"
#include "wsync/endpoint.h"

#include <stdio.h>
#include <stdlib.h>

struct routing_side {
	const char *name;
	struct ws_routing_list answers;
};

struct verify_routing {
	const struct ws_verify_routing_opts *opts;
	const struct ws_ask_opts *ask;
	struct ws_http *http;
	struct ws_routing_shape shape;
	struct ws_prompts own;
	const struct ws_prompts *prompts;
	struct routing_side *sides;
	size_t n_sides;
	struct ws_ask_saved saved;
};

/* ---- the shape ---- */

/* The model's directory, if it can be read here. It points into *info, which the caller frees. */
static const char *find_model(struct verify_routing *v, struct ws_endpoint_info *info,
                              struct ws_err *err)
{
	struct ws_err e = WS_ERR_INIT;
	const int64_t ns = v->ask->connect_ns > 0 ? v->ask->connect_ns : 10 * WS_NS_PER_S;
	const struct ws_call to = { v->http, v->ask->endpoints, 1, ws_deadline_in(ns),
		                    v->ask->cancel, NULL };
	if (ws_endpoint_probe_all(&to, info, &e, err))
		return NULL;
	const char *dir = ws_name_check_model_dir(info);
	if (dir)
		return dir;
	ws_err_set(
		err, WS_EUSAGE,
		"the model path of %s, '%.300s', cannot be read here: its config.json is needed, "
		"because answers do not contain their shape",
		v->ask->endpoints[0], info->model_path);
	ws_err_hint(err, "name it with {config}");
	return NULL;
}

static int find_shape(struct verify_routing *v, struct ws_err *err)
{
	struct ws_endpoint_info *info = calloc(1, sizeof *info);
	struct ws_config *config = NULL;
	const char *dir = v->opts->config;
	int rc = info ? 0 : ws_oom(err);
	if (!rc && !dir && !(dir = find_model(v, info, err)))
		rc = -1;
	if (!rc)
		rc = ws_config_open(dir, &config, err);
	if (!rc)
		rc = ws_routing_shape_of(config, &v->shape, err);
	ws_config_free(config);
	free(info);
	return rc;
}

/* ---- requests ---- */

static int take_routing(void *ctx, size_t url, size_t prompt, const struct ws_json *answer,
                        const struct ws_buf *text, struct ws_err *err)
{
	struct verify_routing *v = ctx;
	struct ws_routing_list *list = &v->sides[v->ask->n_files + url].answers;
	if (ws_routing_take(answer, "POST /generate", &v->shape, &list->items[prompt], err))
		return -1;
	if (v->ask->save && !url)
		return ws_ask_keep(&v->saved, prompt, v->prompts->n, text, err);
	return 0;
}

static int ask_all(struct verify_routing *v, struct ws_err *err)
{
	v->prompts = v->ask->prompts && v->ask->prompts->n ? v->ask->prompts : &v->own;
	if (v->prompts == &v->own && ws_prompts_add_usual(&v->own, err))
		return -1;
	if (v->opts->npy && v->prompts->n > 1)
		return ws_err_set(err, WS_EUSAGE,
		                  "%s: is for one answer, and there are %zu prompts", v->opts->npy,
		                  v->prompts->n);
	for (size_t i = v->ask->n_files; i < v->n_sides; i++) {
		struct ws_routing_list *list = &v->sides[i].answers;
		list->items = calloc(v->prompts->n, sizeof *list->items);
		if (!list->items)
			return ws_oom(err);
		list->n = v->prompts->n;
	}
	const struct ws_ask a = {
		.opts = v->ask,
		.urls = v->ask->endpoints,
		.n_urls = v->ask->n_endpoints,
		.prompts = v->prompts,
		.as = WS_ASKED_ALONE,
		.experts = true,
		.take = take_routing,
		.ctx = v,
	};
	if (ws_ask(v->http, &a, err))
		return -1;
	return v->ask->save ? ws_ask_write(&v->saved, v->ask->save, err) : 0;
}

static int read_files(struct verify_routing *v, struct ws_err *err)
{
	for (size_t i = 0; i < v->ask->n_files; i++)
		if (ws_routing_read_all(v->ask->files[i], &v->shape, &v->sides[i].answers, err))
			return -1;
	return 0;
}

/* ---- impossible values ---- */

static const char *name_prompt(char *dst, size_t n, size_t prompt, size_t prompts)
{
	*dst = '\0';
	if (prompts > 1)
		snprintf(dst, n, "prompt %zu: ", prompt);
	return dst;
}

static int check_side(struct verify_routing *v, const struct routing_side *s, size_t i,
                      struct ws_err *err)
{
	struct ws_routing_check c;
	char which[32];
	ws_routing_check(&s->answers.items[i], &v->shape, &c);
	if (v->opts->told)
		v->opts->told(v->ask->ctx,
		              &(struct ws_routing_told){ s->name, i + 1, s->answers.n, &v->shape,
		                                         &s->answers.items[i], &c });
	const size_t bad = c.outside + c.repeated + c.dense;
	if (!bad || err->code)
		return bad ? -1 : 0;
	return ws_err_set(err, WS_EMISMATCH,
	                  "%.300s: %s%zu row%s cannot be, the first at token %zu, layer %zu: %s",
	                  s->name, name_prompt(which, sizeof which, i + 1, s->answers.n), bad,
	                  bad == 1 ? "" : "s", c.token, c.layer, c.reason);
}

static int check_all(struct verify_routing *v, struct ws_err *err)
{
	int rc = 0;
	for (size_t s = 0; s < v->n_sides; s++)
		for (size_t i = 0; i < v->sides[s].answers.n; i++)
			if (check_side(v, &v->sides[s], i, err))
				rc = -1;
	return rc;
}

/* ---- differences ---- */

static bool report_diff(struct verify_routing *v, const struct routing_side *b, size_t prompt,
                        const struct ws_routing_diff *d)
{
	const double share = d->rows ? (double)d->equal / (double)d->rows : 1;
	const bool good = share >= v->opts->min_equal;
	if (v->opts->held)
		v->opts->held(v->ask->ctx,
		              &(struct ws_routing_held){ v->sides[0].name, b->name, prompt,
		                                         b->answers.n, &v->shape, d, share, good });
	return good;
}

/* Refuses answers to other prompts, or with other numbers of drawn tokens: they are not
 * comparable. */
static int compare_tokens(const struct routing_side *a, const struct routing_side *b, size_t i,
                          struct ws_err *err)
{
	const struct ws_routing *x = &a->answers.items[i], *y = &b->answers.items[i];
	char which[32];
	if (x->tokens == y->tokens &&
	    (x->prompt_tokens == y->prompt_tokens || x->prompt_tokens < 0 || y->prompt_tokens < 0))
		return 0;
	if (err->code)
		return -1;
	name_prompt(which, sizeof which, i + 1, a->answers.n);
	if (x->tokens != y->tokens)
		return ws_err_set(err, WS_EMISMATCH, "%s%.200s has %zu tokens, %.200s %zu", which,
		                  a->name, x->tokens, b->name, y->tokens);
	return ws_err_set(err, WS_EMISMATCH, "%s%.200s has a prompt of %lld tokens, %.200s of %lld",
	                  which, a->name, (long long)x->prompt_tokens, b->name,
	                  (long long)y->prompt_tokens);
}

static int compare_prompts(struct verify_routing *v, const struct routing_side *b,
                           struct ws_routing_diff *sum, struct ws_err *err)
{
	const struct routing_side *a = &v->sides[0];
	int rc = 0;
	for (size_t i = 0; i < a->answers.n; i++) {
		struct ws_routing_diff d = { 0 };
		if (ws_routing_compare(&a->answers.items[i], &b->answers.items[i], &v->shape, &d,
		                       err) ||
		    ws_routing_sum(sum, &d, &v->shape, err)) {
			ws_routing_diff_free(&d);
			return -1;
		}
		if (a->answers.n > 1)
			report_diff(v, b, i + 1, &d);
		ws_routing_diff_free(&d);
		if (compare_tokens(a, b, i, err))
			rc = -1;
	}
	return rc;
}

static int compare(struct verify_routing *v, const struct routing_side *b, struct ws_err *err)
{
	const size_t n = v->sides[0].answers.n;
	struct ws_routing_diff sum = { 0 };
	if (n != b->answers.n)
		return ws_err_set(err, WS_EMISMATCH,
		                  "%.200s has answers to %zu prompts, %.200s to %zu",
		                  v->sides[0].name, n, b->name, b->answers.n);
	int rc = compare_prompts(v, b, &sum, err);
	const bool enough = sum.by_layer && report_diff(v, b, 0, &sum);
	if (!rc && !enough)
		rc = ws_err_set(
			err, WS_EMISMATCH,
			"%s%s%zu of %zu rows are equal, %.6g%% where %.6g%% are wanted, the first "
			"other at token %zu, layer %zu",
			v->ask->n_endpoints ? b->name : "", v->ask->n_endpoints ? ": " : "",
			sum.equal, sum.rows, 100 * (double)sum.equal / (double)sum.rows,
			100 * v->opts->min_equal, sum.token, sum.layer);
	ws_routing_diff_free(&sum);
	return rc;
}

static int compare_all(struct verify_routing *v, struct ws_err *err)
{
	int rc = 0;
	for (size_t i = 1; i < v->n_sides; i++)
		if (compare(v, &v->sides[i], rc ? &(struct ws_err)WS_ERR_INIT : err))
			rc = -1;
	return rc;
}

/* ---- all of it ---- */

static int begin_routing(struct verify_routing *v, struct ws_err *err)
{
	const struct ws_ask_opts *a = v->ask;
	v->n_sides = a->n_files + a->n_endpoints;
	v->sides = calloc(v->n_sides + 1, sizeof *v->sides);
	if (!v->sides)
		return ws_oom(err);
	for (size_t i = 0; i < v->n_sides; i++)
		v->sides[i].name = i < a->n_files ? a->files[i] : a->endpoints[i - a->n_files];
	if (a->n_endpoints && a->n_files > 1)
		return ws_err_set(err, WS_EUSAGE,
		                  "endpoints are compared with one file of answers, not %zu",
		                  a->n_files);
	if (a->save && a->n_endpoints != 1)
		return ws_err_set(err, WS_EUSAGE,
		                  "the answers of one endpoint can be saved, not of %zu",
		                  a->n_endpoints);
	if (v->opts->npy && v->n_sides > 1)
		return ws_err_set(err, WS_EUSAGE, "%s: is for one answer", v->opts->npy);
	return a->n_endpoints ? ws_ask_open(a, &v->http, err) : 0;
}

/* Also writes an impossible routing, which is worth a closer check. */
static int write_npy(struct verify_routing *v, struct ws_err *err)
{
	const struct ws_routing_list *answers = &v->sides[0].answers;
	if (!v->opts->npy)
		return 0;
	if (answers->n != 1)
		return ws_err_set(err, WS_EUSAGE, "%s: is for one answer, not %zu", v->opts->npy,
		                  answers->n);
	return ws_routing_write_npy(&answers->items[0], v->opts->npy, err);
}

int ws_verify_routing(const struct ws_verify_routing_opts *opts, struct ws_err *err)
{
	struct verify_routing v = { .opts = opts, .ask = &opts->ask };
	struct ws_err own = WS_ERR_INIT;
	struct ws_err *e = err ? err : &own; /* what is remembered in it decides */
	int rc = begin_routing(&v, e);
	if (!rc)
		rc = find_shape(&v, e);
	if (!rc)
		rc = read_files(&v, e);
	if (!rc && v.ask->n_endpoints)
		rc = ask_all(&v, e);
	if (!rc)
		rc = write_npy(&v, e) || check_all(&v, e) || compare_all(&v, e);
	for (size_t i = 0; v.sides && i < v.n_sides; i++)
		ws_routing_list_free(&v.sides[i].answers);
	free(v.sides);
	ws_ask_forget(&v.saved);
	ws_prompts_free(&v.own);
	ws_client_close(v.http);
	return rc ? -1 : 0;
}
