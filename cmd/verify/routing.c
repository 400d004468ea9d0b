/* SPDX-License-Identifier: Apache-2.0 */
/* routing.c - checks the chosen experts, and compares the choices of two sides. */
#include "verify_cmd.h"

#include "run.h"

#include "wsync/tool/routing.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FEW = 10 };

/* ---- values of options ---- */

int verify_min_equal(void *share, const char *value, struct ws_err *err)
{
	char *end = NULL;
	const double x = strtod(value, &end);
	const bool digit = *value >= '0' && *value <= '9';
	const double of = end && !strcmp(end, "%") ? 100 : 1;
	if (!digit || (*end && of == 1) || !(x <= of))
		return ws_err_set(err, WS_EUSAGE, "'%.40s' is not a share like 0.99 or 99%%",
		                  value);
	*(double *)share = x / of;
	return 0;
}

struct shown {
	struct verify_job job; /* first, because asking.c casts ctx to it */
	size_t bad, other;     /* counts of impossible answers, and of pairs that differ */
};

/* Of many prompts, only those with a finding are shown, up to --limit of each kind. */
static bool is_shown(const struct shown *s, size_t prompts, bool dull, size_t told)
{
	const size_t limit = (size_t)s->job.cfg->limit;
	const struct ui *ui = s->job.ui;
	return !ui->json && !ui->quiet &&
	       (!limit || (prompts <= FEW && !dull) || (!dull && told <= limit));
}

/* ---- one answer ---- */

static void put_answer(struct ui *ui, const struct ws_routing_told *t)
{
	const struct ws_routing *r = t->routing;
	const struct ws_routing_check *c = t->check;
	struct ws_jw *w = ui_line(ui, "routing");
	ws_jw_str(w, "file", t->name);
	ws_jw_uint(w, "prompt", t->prompt);
	ws_jw_uint(w, "tokens", r->tokens);
	ws_jw_uint(w, "layers", r->layers);
	ws_jw_uint(w, "k", r->k);
	ws_jw_uint(w, "experts", t->shape->experts);
	ws_jw_uint(w, "dense_layers", t->shape->n_dense);
	ws_jw_int(w, "prompt_tokens", r->prompt_tokens);
	ws_jw_int(w, "completion_tokens", r->completion_tokens);
	ws_jw_int(w, "cached_tokens", r->cached_tokens);
	ws_jw_uint(w, "outside", c->outside);
	ws_jw_uint(w, "repeated", c->repeated);
	ws_jw_uint(w, "dense", c->dense);
	ws_jw_str(w, "reason", *c->reason ? c->reason : NULL);
	if (*c->reason) {
		ws_jw_uint(w, "token", c->token);
		ws_jw_uint(w, "layer", c->layer);
	}
	ui_line_end(ui);
}

static void print_answer(struct ui *ui, const struct ws_routing_told *t, size_t bad)
{
	const struct ws_routing *r = t->routing;
	ui_head(ui, bad ? UI_BAD : UI_GOOD, "routing");
	printf("%s: ", ui_text(t->name));
	if (t->prompts > 1)
		printf("prompt %zu: ", t->prompt);
	printf("%zu token%s x %zu layers x %zu of %zu experts", r->tokens,
	       r->tokens == 1 ? "" : "s", r->layers, r->k, t->shape->experts);
	if (t->shape->n_dense)
		printf(", %zu of the layers without", t->shape->n_dense);
	if (r->cached_tokens > 0)
		printf(", %" PRId64 " tokens as an earlier pass chose", r->cached_tokens);
	if (bad)
		printf(", %zu impossible row%s", bad, bad == 1 ? "" : "s");
	putchar('\n');
}

static void take_answer(void *ctx, const struct ws_routing_told *t)
{
	struct shown *s = ctx;
	const size_t bad = t->check->outside + t->check->repeated + t->check->dense;
	put_answer(s->job.ui, t);
	s->bad += bad > 0;
	if (is_shown(s, t->prompts, t->prompts > FEW && !bad, s->bad))
		print_answer(s->job.ui, t, bad);
}

/* ---- two answers ---- */

static void put_agreement(struct ui *ui, const struct ws_routing_held *h)
{
	const struct ws_routing_diff *d = h->diff;
	struct ws_jw *w = ui_line(ui, "agreement");
	ws_jw_str(w, "first", h->first);
	ws_jw_str(w, "second", h->second);
	if (h->prompt)
		ws_jw_uint(w, "prompt", h->prompt);
	ws_jw_uint(w, "rows", d->rows);
	ws_jw_uint(w, "equal", d->equal);
	ws_jw_uint(w, "reordered", d->reordered);
	ws_jw_double(w, "share", h->share);
	if (d->differs) {
		ws_jw_uint(w, "token", d->token);
		ws_jw_uint(w, "layer", d->layer);
	}
	ws_jw_array(w, "different_by_layer");
	for (size_t i = 0; i < h->shape->layers; i++)
		ws_jw_uint(w, NULL, d->by_layer[i]);
	ws_jw_end_array(w);
	ui_line_end(ui);
}

static void print_agreement(struct ui *ui, const struct ws_routing_held *h)
{
	const struct ws_routing_diff *d = h->diff;
	ui_head(ui, h->good ? UI_GOOD : UI_BAD, "equal");
	if (h->prompt)
		printf("prompt %zu: ", h->prompt);
	else if (h->prompts > 1)
		printf("%zu prompts: ", h->prompts);
	printf("%zu of %zu rows (%.4g%%)", d->equal, d->rows, 100 * h->share);
	if (d->reordered)
		printf(", %zu more in another order", d->reordered);
	if (d->differs)
		printf(", the first other at token %zu, layer %zu", d->token, d->layer);
	putchar('\n');
}

static void take_pair(void *ctx, const struct ws_routing_held *h)
{
	struct shown *s = ctx;
	put_agreement(s->job.ui, h);
	s->other += h->prompt && h->diff->differs;
	if (h->prompt ? is_shown(s, h->prompts, !h->diff->differs, s->other) :
	                !s->job.ui->json && !s->job.ui->quiet)
		print_agreement(s->job.ui, h);
}

/* ---- the command ---- */

static int check_usage(const struct verify_config *cfg, const struct opt_args *args,
                       size_t n_endpoints, struct ws_err *err)
{
	if (!cfg->naming.config && !n_endpoints)
		return ws_err_set(err, WS_EUSAGE,
		                  "routing: --config is needed: answers do not contain "
		                  "their shape");
	if (cfg->npy && args->n + n_endpoints > 1)
		return ws_err_set(err, WS_EUSAGE, "--npy: is for one answer");
	return 0;
}

int verify_routing(void *ctx, const struct opt_args *args, struct ws_err *err)
{
	struct shown s = { .job = *(const struct verify_job *)ctx };
	const struct verify_config *cfg = s.job.cfg;
	struct verify_asking asking = { 0 };
	struct ws_verify_routing_opts opts = {
		.config = cfg->naming.config,
		.min_equal = cfg->min_equal,
		.npy = cfg->npy,
		.told = take_answer,
		.held = take_pair,
	};
	int rc = verify_asking_open(&s.job, args, 1, &asking, &opts.ask, err);
	if (!rc)
		rc = check_usage(cfg, args, opts.ask.n_endpoints, err);
	if (!rc)
		rc = ws_verify_routing(&opts, err);
	verify_asking_close(&asking, s.job.ui, err);
	return rc;
}
