/* SPDX-License-Identifier: Apache-2.0 */
/* routing.c - which experts were chosen: can it be, and are two answers the same? */
#include "verify.h"

#include "run.h"

#include "wsync/routing.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- values of options ---- */

int verify_min_equal(void *share, const char *value, struct ws_err *err)
{
	char *end = NULL;
	const double x = strtod(value, &end);
	const bool digit = *value >= '0' && *value <= '9';
	const double of = end && !strcmp(end, "%") ? 100 : 1;
	if (!digit || (*end && of == 1) || !(x <= of))
		return ws_err_set(err, WS_EUSAGE, "'%.40s' is no share of rows, like 0.99 or 99%%", value);
	*(double *)share = x / of;
	return 0;
}

/* ---- one answer ---- */

static void put_answer(struct ui *ui, const char *path, const struct ws_routing *r,
                       const struct ws_routing_shape *shape, const struct ws_routing_check *c)
{
	struct ws_jw *w = ui_line(ui, "routing");
	if (!w)
		return;
	ws_jw_str(w, "file", path);
	ws_jw_uint(w, "tokens", r->tokens);
	ws_jw_uint(w, "layers", r->layers);
	ws_jw_uint(w, "k", r->k);
	ws_jw_uint(w, "experts", shape->experts);
	ws_jw_uint(w, "dense_layers", shape->n_dense);
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

static void print_answer(struct ui *ui, const char *path, const struct ws_routing *r,
                         const struct ws_routing_shape *shape, size_t bad)
{
	if (ui->json || ui->quiet)
		return;
	ui_head(ui, bad ? UI_BAD : UI_GOOD, "routing");
	printf("%s: %zu token%s x %zu layers x %zu of %zu experts", ui_text(path), r->tokens,
	       r->tokens == 1 ? "" : "s", r->layers, r->k, shape->experts);
	if (shape->n_dense)
		printf(", %zu of the layers without", shape->n_dense);
	if (r->cached_tokens > 0)
		printf(", %" PRId64 " tokens as an earlier pass chose", r->cached_tokens);
	if (bad)
		printf(", %zu rows that cannot be", bad);
	putchar('\n');
}

static int check_answer(struct ui *ui, const char *path, const struct ws_routing_shape *shape,
                        struct ws_routing *r, struct ws_err *err)
{
	struct ws_routing_check c;
	if (ws_routing_read(path, shape, r, err))
		return -1;
	ws_routing_check(r, shape, &c);
	const size_t bad = c.outside + c.repeated + c.dense;
	put_answer(ui, path, r, shape, &c);
	print_answer(ui, path, r, shape, bad);
	return bad ? ws_err_set(err, WS_EMISMATCH, "%s: %zu row%s cannot be, the first at token %zu, layer %zu: %s",
	                        path, bad, bad == 1 ? "" : "s", c.token, c.layer, c.reason)
	           : 0;
}

/* ---- two answers ---- */

static double share_of(const struct ws_routing_diff *d)
{
	return d->rows ? (double)d->equal / (double)d->rows : 1;
}

static void put_agreement(struct ui *ui, const struct opt_args *args, const struct ws_routing_diff *d,
                          size_t layers)
{
	struct ws_jw *w = ui_line(ui, "agreement");
	if (!w)
		return;
	ws_jw_str(w, "first", args->v[0]);
	ws_jw_str(w, "second", args->v[1]);
	ws_jw_uint(w, "rows", d->rows);
	ws_jw_uint(w, "equal", d->equal);
	ws_jw_uint(w, "reordered", d->reordered);
	ws_jw_double(w, "share", share_of(d));
	if (d->differs) {
		ws_jw_uint(w, "token", d->token);
		ws_jw_uint(w, "layer", d->layer);
	}
	ws_jw_array(w, "different_by_layer");
	for (size_t i = 0; i < layers; i++)
		ws_jw_uint(w, NULL, d->by_layer[i]);
	ws_jw_end_array(w);
	ui_line_end(ui);
}

static void print_agreement(struct ui *ui, const struct ws_routing_diff *d, bool enough)
{
	if (ui->json || ui->quiet)
		return;
	ui_head(ui, enough ? UI_GOOD : UI_BAD, "equal");
	printf("%zu of %zu rows (%.4g%%)", d->equal, d->rows, 100 * share_of(d));
	if (d->reordered)
		printf(", %zu more in another order", d->reordered);
	if (d->differs)
		printf(", the first other at token %zu, layer %zu", d->token, d->layer);
	putchar('\n');
}

static int compare(const struct verify_job *job, const struct opt_args *args, const struct ws_routing *r,
                   const struct ws_routing_shape *shape, struct ws_err *err)
{
	const double least = job->cfg->min_equal;
	struct ws_routing_diff d = { 0 };
	if (ws_routing_compare(&r[0], &r[1], shape, &d, err))
		return -1;
	const bool enough = share_of(&d) >= least;
	put_agreement(job->ui, args, &d, shape->layers);
	print_agreement(job->ui, &d, enough);
	int rc = 0;
	if (r[0].tokens != r[1].tokens)
		rc = ws_err_set(err, WS_EMISMATCH, "%s has %zu tokens, %s %zu", args->v[0], r[0].tokens, args->v[1],
		                r[1].tokens);
	else if (!enough)
		rc = ws_err_set(err, WS_EMISMATCH, "%zu of %zu rows are equal, %.6g%% where %.6g%% are wanted, the first "
		                "other at token %zu, layer %zu", d.equal, d.rows, 100 * share_of(&d), 100 * least,
		                d.token, d.layer);
	ws_routing_diff_free(&d);
	return rc;
}

/* ---- the command ---- */

static int check_usage(const struct verify_config *cfg, const struct opt_args *args, struct ws_err *err)
{
	if (!cfg->naming.config)
		return ws_err_set(err, WS_EUSAGE, "routing: --config is needed: answers do not tell their shape");
	if (cfg->npy && args->n > 1)
		return ws_err_set(err, WS_EUSAGE, "--npy: is for one answer");
	return 0;
}

static int find_shape(const struct verify_config *cfg, struct ws_routing_shape *shape, struct ws_err *err)
{
	struct ws_config *config = NULL;
	int rc = ws_config_open(cfg->naming.config, &config, err);
	if (!rc)
		rc = ws_routing_shape_of(config, shape, err);
	ws_config_free(config);
	return rc;
}

int verify_routing(void *ctx, const struct opt_args *args, struct ws_err *err)
{
	const struct verify_job *job = ctx;
	const int64_t since = ws_now_ns();
	struct ws_routing_shape shape;
	struct ws_routing r[2] = { 0 };
	struct ws_jw *w;
	int rc = check_usage(job->cfg, args, err);
	if (!rc)
		rc = find_shape(job->cfg, &shape, err);
	for (size_t i = 0; !rc && i < args->n; i++)
		rc = check_answer(job->ui, args->v[i], &shape, &r[i], err);
	if (job->cfg->npy && r[0].ids && ws_routing_write_npy(&r[0], job->cfg->npy, rc ? NULL : err))
		rc = -1;
	if (!rc && args->n == 2)
		rc = compare(job, args, r, &shape, err);
	w = ui_end_open(job->ui, err);
	if (w) {
		ws_jw_uint(w, "files", args->n);
		ws_jw_int(w, "ns", ws_now_ns() - since);
		ui_line_end(job->ui);
	}
	ws_routing_free(&r[0]);
	ws_routing_free(&r[1]);
	return rc;
}
