/* SPDX-License-Identifier: Apache-2.0 */
/* weights.c - compares the weights of endpoints with a source.
 *
 * People see the first few differences of each kind; programs get all of them. */
#include "verify_cmd.h"

#include "run.h"

#include "wsync/tool/str.h"
#include "wsync/tool/verify.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const kinds[] = { "hash",  "missing", "unexpected", "value",
	                             "shape", "dtype",   "changed" };
enum { KINDS = sizeof kinds / sizeof kinds[0] };

struct shown {
	const struct verify_job *job;
	struct targets *to;
	size_t (*counts)[KINDS]; /* of each endpoint */
};

/* ---- differences ---- */

static size_t *count_of(struct shown *s, const struct ws_ev_mismatch *m)
{
	for (size_t i = 0; i < s->to->n; i++)
		for (size_t k = 0; k < KINDS; k++)
			if (!strcmp(s->to->urls[i], m->url) && !strcmp(kinds[k], m->kind))
				return &s->counts[i][k];
	return NULL;
}

/* Events of a push about its phases and buckets are shown only with -v. */
static bool is_wanted(struct shown *s, const struct ws_event *ev)
{
	const struct ui *ui = s->job->ui;
	switch (ev->type) {
	case WS_EV_MISMATCH: {
		size_t *count = count_of(s, &ev->mismatch);
		return !count || (*count)++ < s->job->cfg->limit || !s->job->cfg->limit || ui->json;
	}
	case WS_EV_WARNING:
	case WS_EV_PROGRESS:
		return true;
	case WS_EV_PROOF: /* the answer has it */
		return false;
	default:
		return ui->verbose && !ui->json;
	}
}

static void take_event(void *ctx, const struct ws_event *ev)
{
	struct shown *s = ctx;
	const struct ws_sink *sink = &s->job->ui->sink;
	if (is_wanted(s, ev))
		sink->event(sink->ctx, ev);
}

static void say_what_was_left_out(const struct shown *s, size_t i)
{
	const size_t limit = (size_t)s->job->cfg->limit;
	for (size_t k = 0; limit && k < KINDS; k++)
		if (s->counts[i][k] > limit)
			ui_say(s->job->ui,
			       "          ... and %zu more of kind %s; --limit 0 shows all\n",
			       s->counts[i][k] - limit, kinds[k]);
}

/* ---- answers ---- */

static const char *answer_of(const struct ws_verify_result *r)
{
	return r->err.code == WS_OK ? "yes" : r->err.code == WS_EMISMATCH ? "no" : "unknown";
}

static const char *describe(const struct ws_verify_result *r, char *dst, size_t n)
{
	char ranks[48] = "";
	int used;
	if (r->ranks)
		snprintf(ranks, sizeof ranks, " of %u rank%s", r->ranks, r->ranks == 1 ? "" : "s");
	switch (r->means) {
	case WS_MEANS_CHECKSUMS:
		used = snprintf(dst, n, "%zu checksums%s are those of the source", r->equal, ranks);
		if (r->not_sent && used > 0 && (size_t)used < n)
			snprintf(dst + used, n - (size_t)used, "; %zu were left out and are not "
			         "covered", r->not_sent);
		break;
	case WS_MEANS_PROOF:
		ui_proof(dst, n, &r->proof);
		break;
	case WS_MEANS_SAMPLES:
		snprintf(dst, n,
		         "%zu sampled parameters are those of the source, %zu not shown, %zu "
		         "quantized",
		         r->equal, r->unanswered, r->incomparable);
		break;
	case WS_MEANS_TWICE:
		snprintf(dst, n, "a second push changed none of %zu checksums%s", r->equal, ranks);
		break;
	case WS_MEANS_RESET:
		snprintf(dst, n, "a push onto random weights restored every parameter%s", ranks);
		if (r->incomparable)
			snprintf(dst, n, "a push onto random weights restored every parameter%s "
			         "but %zu that are in no checkpoint and were left out", ranks,
			         r->incomparable);
		break;
	default:
		dst[0] = '\0';
	}
	return dst;
}

static void print_result(const struct shown *s, const struct ws_verify_result *r)
{
	struct ui *ui = s->job->ui;
	char text[256];
	const bool yes = r->err.code == WS_OK, no = r->err.code == WS_EMISMATCH;
	if (ui->json || ui->quiet)
		return;
	if (r->drafts && r->means != WS_MEANS_PROOF) {
		ui_head(ui, UI_WARN, "note");
		printf("%s: %zu checksums of a draft model were not compared: it is not in the "
		       "source\n",
		       ui_text(r->url), r->drafts);
	}
	ui_head(ui, yes ? UI_GOOD : no ? UI_BAD : UI_WARN, answer_of(r));
	if (yes)
		printf("%s: %s\n", ui_text(r->url), describe(r, text, sizeof text));
	else
		printf("%s%s%s\n", strstr(r->err.msg, r->url) ? "" : ui_text(r->url),
		       strstr(r->err.msg, r->url) ? "" : ": ", ui_text(ui_words(r->err.msg)));
}

static void put_counts(struct ws_jw *w, const struct ws_verify_result *r)
{
	ws_jw_uint(w, "equal", r->equal);
	ws_jw_uint(w, "different", r->different);
	ws_jw_uint(w, "missing", r->missing);
	ws_jw_uint(w, "unexpected", r->unexpected);
	ws_jw_uint(w, "not_sent", r->not_sent);
	ws_jw_uint(w, "drafts", r->drafts);
	ws_jw_uint(w, "unanswered", r->unanswered);
	ws_jw_uint(w, "incomparable", r->incomparable);
}

static void put_result(struct ui *ui, const struct ws_verify_result *r)
{
	struct ws_jw *w = ui_line(ui, "weights");
	ws_jw_str(w, "url", r->url);
	ws_jw_str(w, "answer", answer_of(r));
	ws_jw_str(w, "means", ws_verify_means_name(r->means));
	ws_jw_str(w, "algorithm", r->algorithm[0] ? r->algorithm : NULL);
	ws_jw_uint(w, "ranks", r->ranks);
	put_counts(w, r);
	if (r->means == WS_MEANS_PROOF)
		ui_json_proof(w, &r->proof);
	ui_json_words(w, "message", r->err.code == WS_OK ? NULL : r->err.msg);
	ui_line_end(ui);
}

static void put_end(struct ui *ui, const struct ws_verify_result *results, size_t n, int64_t ns,
                    const struct ws_err *err)
{
	struct ws_verify_result sum = { .url = NULL };
	for (size_t i = 0; results && i < n; i++) {
		sum.equal += results[i].equal;
		sum.different += results[i].different;
		sum.missing += results[i].missing;
		sum.unexpected += results[i].unexpected;
		sum.not_sent += results[i].not_sent;
		sum.drafts += results[i].drafts;
		sum.unanswered += results[i].unanswered;
		sum.incomparable += results[i].incomparable;
	}
	struct ws_jw *w = ui_end_open(ui, err);
	ws_jw_uint(w, "endpoints", n);
	put_counts(w, &sum);
	ws_jw_int(w, "ns", ns);
	ui_line_end(ui);
}

/* ---- asking ---- */

static int look(struct shown *s, const struct opt_args *args, struct ws_verify_result *results,
                struct ws_err *err)
{
	const struct verify_config *cfg = s->job->cfg;
	struct ws_transform_opts transform = transforming_opts(&cfg->transforming);
	struct ws_input in = { 0 };
	struct ws_config *quant;
	struct ws_buf state;
	ws_buf_init(&state, PUSHING_PATH);
	const bool found = run_state_dir(cfg->pushing.state_dir, &state, NULL) == 0;
	const struct ws_verify_opts opts = {
		.endpoints = s->to->urls,
		.n_endpoints = s->to->n,
		.input = &in,
		TRANSFORMING_CHOICE(&cfg->transforming),
		.min_coverage = (unsigned)cfg->pushing.min_coverage,
		.state_dir = found ? ws_buf_str(&state) : NULL,
		.samples = (size_t)cfg->samples,
		.seed = cfg->seed,
		.threads = (unsigned)cfg->threads,
		.api_key = s->to->api_key,
		.ca_file = s->to->ca_file,
		.connect_ns = cfg->common.connect_ns,
		.timeout_ns = cfg->timeout_ns,
		.sink = { take_event, s },
		.log = &s->job->ui->log,
		.cancel = &run_cancel,
	};
	struct ws_input_found like;
	int rc = ws_verify_look(&opts, &transform, &like, &quant, err);
	if (!rc)
		rc = verify_open_source(s->job, args, NULL, &like, transform.quant, &in, err) ||
		                     verify_replicas(s->job, &in, err) ?
		             -1 :
		             ws_verify_weights(&opts, results, err);
	ws_input_close(&in);
	ws_config_free(quant);
	ws_buf_free(&state);
	return rc;
}

/* The thread of the push hangs in a file system, so this process ends without answers. */
static void quit_hung(void *ctx, const struct ws_ev_end *end, const struct ws_err *err)
{
	const struct shown *s = ctx;
	put_end(s->job->ui, NULL, s->to->n, end->total_ns, err);
	run_quit(err);
}

static int push_again(struct shown *s, const struct opt_args *args,
                      struct ws_verify_result *results, struct ws_err *err)
{
	const struct verify_config *cfg = s->job->cfg;
	const struct ws_transform_opts transform = transforming_opts(&cfg->transforming);
	struct ws_push_opts opts = pushing_opts(&cfg->pushing, &cfg->common, &cfg->naming,
	                                        &transform, s->to, s->job->ui);
	const struct ws_push_source source = { .paths = args->v, .n_paths = args->n };
	char state[PUSHING_PATH];
	opts.verify = WS_VERIFY_NONE;
	opts.timeout_ns = cfg->timeout_ns;
	opts.sink = (struct ws_sink){ take_event, s };
	opts.hung = quit_hung;
	opts.hung_ctx = s;
	if (pushing_find_state(&cfg->pushing, state, &opts, s->job->ui, err))
		return -1;
	return cfg->twice ? ws_verify_twice(&opts, &source, results, err)
	                  : ws_verify_reset(&opts, &source, results, err);
}

static int check_choice(const struct verify_config *cfg, struct ws_err *err)
{
	if (cfg->twice && cfg->reset)
		return ws_err_set(err, WS_EUSAGE, "--twice and --reset: one at a time");
	if (!cfg->reset || cfg->yes)
		return 0;
	ws_err_set(err, WS_EUSAGE,
	           "--reset overwrites all weights of the endpoints with random numbers "
	           "before it pushes the source");
	return ws_err_hint(
		err, "add --yes if the endpoints may be without their weights during a push");
}

static int ask(struct shown *s, const struct opt_args *args, struct ws_err *err)
{
	const struct verify_config *cfg = s->job->cfg;
	const int64_t since = ws_now_ns();
	struct ws_verify_result *results = calloc(s->to->n, sizeof *results);
	s->counts = calloc(s->to->n, sizeof *s->counts);
	int rc = results && s->counts ? 0 : ws_oom(err);
	if (!rc && !cfg->reset)
		rc = targets_connect(s->to, &cfg->common, s->job->ui, err) ||
		                     targets_check_readable(s->to, cfg->pushing.state_dir,
		                                            ws_deadline_in(verify_timeout(cfg)),
		                                            err) ?
		             -1 :
		             0;
	if (!rc)
		rc = cfg->twice || cfg->reset ? push_again(s, args, results, err) :
		                                look(s, args, results, err);
	for (size_t i = 0; results && s->counts && i < s->to->n; i++) {
		if (!results[i].url)
			continue; /* this endpoint was not checked */
		say_what_was_left_out(s, i);
		print_result(s, &results[i]);
		put_result(s->job->ui, &results[i]);
	}
	if (results)
		put_end(s->job->ui, results, s->to->n, ws_now_ns() - since, err);
	free(s->counts);
	free(results);
	return rc;
}

int verify_weights(void *ctx, const struct opt_args *args, struct ws_err *err)
{
	struct verify_job *job = ctx;
	const struct verify_config *cfg = job->cfg;
	struct targets to = { 0 };
	struct shown s = { .job = job, .to = &to };
	int rc = check_choice(cfg, err);
	if (!rc)
		rc = targets_find(&to, &cfg->common, false, job->ui, err);
	if (!rc)
		rc = ask(&s, args, err);
	targets_free(&to);
	return rc;
}
