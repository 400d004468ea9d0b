/* SPDX-License-Identifier: Apache-2.0 */
/* logprobs.c - do two saved answers give the same tokens the same probabilities? */
#include "verify.h"

#include "run.h"

#include "wsync/logprobs.h"

#include <stdio.h>
#include <stdlib.h>

int verify_max_difference(void *most, const char *value, struct ws_err *err)
{
	char *end = NULL;
	const double x = strtod(value, &end);
	if (*value < '0' || *value > '9' || *end || !(x <= 1000))
		return ws_err_set(err, WS_EUSAGE, "'%.40s' is no difference of logarithms, like 0.01", value);
	*(double *)most = x;
	return 0;
}

static void put_part(struct ui *ui, const char *part, const struct ws_logprobs_diff *d)
{
	struct ws_jw *w = ui_line(ui, "logprobs");
	if (!w)
		return;
	ws_jw_str(w, "part", part);
	ws_jw_uint(w, "tokens", d->tokens);
	ws_jw_double(w, "max", d->max);
	ws_jw_double(w, "mean", d->mean);
	ws_jw_uint(w, "worst", d->worst);
	ws_jw_uint(w, "same", d->same);
	ws_jw_bool(w, "diverges", d->diverges);
	ui_line_end(ui);
}

static void print_part(struct ui *ui, const char *part, const struct ws_logprobs_diff *d, bool good)
{
	if (ui->json || ui->quiet)
		return;
	ui_head(ui, good ? UI_GOOD : UI_BAD, part);
	printf("%zu token%s, mean difference %.3g, largest %.3g", d->tokens, d->tokens == 1 ? "" : "s", d->mean,
	       d->max);
	if (d->max > 0)
		printf(" at token %zu", d->worst);
	if (d->diverges)
		printf(", other tokens from %zu on", d->same);
	putchar('\n');
}

/* A prompt has to be the same; what is drawn may go apart where differences are allowed. */
static int judge(struct ui *ui, const struct ws_logprobs_diff *d, enum ws_logprob_part part, double most,
                 struct ws_err *err)
{
	const char *name = ws_logprob_part_name(part);
	const bool apart = d->diverges && (part == WS_PREFILL || most <= 0);
	const bool good = !apart && !(d->max > most);
	put_part(ui, name, d);
	print_part(ui, name, d, good);
	if (good || err->code)
		return good ? 0 : -1;
	if (apart && !(d->max > most))
		return ws_err_set(err, WS_EMISMATCH, "%s: the tokens differ from %zu on", name, d->same);
	return ws_err_set(err, WS_EMISMATCH, "%s: a difference of %.6g at token %zu, where %.6g is allowed", name,
	                  d->max, d->worst, most);
}

int verify_logprobs(void *ctx, const struct opt_args *args, struct ws_err *err)
{
	const struct verify_job *job = ctx;
	const int64_t since = ws_now_ns();
	struct ws_logprobs a = { 0 }, b = { 0 };
	struct ws_logprobs_diff d[WS_LOGPROB_PARTS];
	int rc = ws_logprobs_read(args->v[0], &a, err);
	if (!rc)
		rc = ws_logprobs_read(args->v[1], &b, err);
	if (!rc) {
		ws_logprobs_compare(&a, &b, d);
		for (unsigned p = 0; p < WS_LOGPROB_PARTS; p++)
			rc |= judge(job->ui, &d[p], (enum ws_logprob_part)p, job->cfg->max_difference, err);
		if (!rc && !d[WS_PREFILL].tokens && !d[WS_DECODE].tokens)
			rc = ws_err_set(err, WS_EINPUT, "%s, %s: no token has a number in both", args->v[0], args->v[1]);
	}
	struct ws_jw *w = ui_end_open(job->ui, err);
	if (w) {
		ws_jw_uint(w, "files", args->n);
		ws_jw_int(w, "ns", ws_now_ns() - since);
		ui_line_end(job->ui);
	}
	ws_logprobs_free(&a);
	ws_logprobs_free(&b);
	return rc;
}
