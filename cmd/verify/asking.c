/* SPDX-License-Identifier: Apache-2.0 */
/* asking.c - prompts and endpoints, for the commands that compare servers' answers. */
#include "verify_cmd.h"

#include "run.h"

#include "wsync/tool/str.h"

#include <inttypes.h>
#include <stdio.h>

static void take_asked(void *ctx, const struct ws_asked *a)
{
	struct ui *ui = ((const struct verify_job *)ctx)->ui;
	char took[32];
	struct ws_jw *w = ui_line(ui, "asked");
	ws_jw_str(w, "url", a->url);
	ws_jw_str(w, "how", ws_asked_as_name(a->as));
	ws_jw_uint(w, "prompts", a->prompts);
	ws_jw_int(w, "prompt_tokens", a->prompt_tokens);
	ws_jw_int(w, "completion_tokens", a->completion_tokens);
	ws_jw_int(w, "cached_tokens", a->cached_tokens);
	ws_jw_int(w, "cached_prompts", a->cached_prompts);
	ws_jw_str(w, "weight_version", *a->weight_version ? a->weight_version : NULL);
	ws_jw_bool(w, "version_changed", a->version_changed);
	ws_jw_int(w, "ns", a->ns);
	ui_line_end(ui);
	if (ui->json || ui->quiet)
		return;
	ui_head(ui, UI_PLAIN, ws_asked_as_name(a->as));
	printf("%s: %zu prompt%s, %" PRId64 " tokens and %" PRId64 " drawn, %" PRId64
	       " cached, weight version %s, %s\n",
	       ui_text(a->url), a->prompts, a->prompts == 1 ? "" : "s", a->prompt_tokens,
	       a->completion_tokens, a->cached_tokens,
	       *a->weight_version ? ui_text(a->weight_version) : "unknown",
	       ws_format_duration(took, sizeof took, a->ns));
}

static int find_prompts(const struct verify_config *cfg, struct ws_prompts *p, struct ws_err *err)
{
	for (size_t i = 0; i < cfg->prompts.n; i++)
		if (!*cfg->prompts.items[i])
			return ws_err_set(err, WS_EUSAGE, "--prompt: is empty");
		else if (ws_prompts_add(p, cfg->prompts.items[i], NULL, 0, 0, err))
			return -1;
	return cfg->prompts_file ? ws_prompts_read(p, cfg->prompts_file, err) : 0;
}

static const char *option_for_asking(const struct verify_config *cfg)
{
	return cfg->common.endpoints.n  ? "endpoint" :
	       cfg->common.pool         ? "pool" :
	       cfg->prompts.n    ? "prompt" :
	       cfg->prompts_file ? "prompts" :
	       cfg->save         ? "save" :
	       cfg->flush_first  ? "flush-first" :
	                           NULL;
}

int verify_asking_open(const struct verify_job *job, const struct opt_args *args, size_t enough,
                       struct verify_asking *a, struct ws_ask_opts *out, struct ws_err *err)
{
	const struct verify_config *cfg = job->cfg;
	a->since = ws_now_ns();
	a->n_files = args->n;
	const bool named = cfg->common.endpoints.n || cfg->common.pool;
	const bool asks = args->n < 2 && (args->n < enough || named);
	const char *useless = asks ? NULL : option_for_asking(cfg);
	if (useless)
		return ws_err_set(err, WS_EUSAGE, "--%s: no endpoint is asked with %s", useless,
		                  args->n > 1 ? "two files of answers" :
		                                "a file of answers and no --endpoint");
	if (asks &&
	    (targets_find(&a->to, &cfg->common, false, job->ui, err) ||
	     find_prompts(cfg, &a->prompts, err)))
		return -1;
	*out = (struct ws_ask_opts){
		.endpoints = a->to.urls,
		.n_endpoints = a->to.n,
		.files = args->v,
		.n_files = args->n,
		.prompts = &a->prompts,
		.max_new_tokens = (unsigned)cfg->max_new_tokens,
		.parallel = (unsigned)cfg->parallel,
		.flush_first = cfg->flush_first,
		.save = cfg->save,
		.api_key = a->to.api_key,
		.ca_file = a->to.ca_file,
		.connect_ns = cfg->common.connect_ns,
		.timeout_ns = cfg->timeout_ns,
		.asked = take_asked,
		.ctx = (void *)(uintptr_t)job,
		.sink = job->ui->sink,
		.log = &job->ui->log,
		.cancel = &run_cancel,
	};
	a->n_endpoints = a->to.n;
	return 0;
}

void verify_asking_close(struct verify_asking *a, struct ui *ui, const struct ws_err *err)
{
	struct ws_jw *w = ui_end_open(ui, err);
	ws_jw_uint(w, "files", a->n_files);
	ws_jw_uint(w, "endpoints", a->n_endpoints);
	ws_jw_int(w, "ns", ws_now_ns() - a->since);
	ui_line_end(ui);
	targets_free(&a->to);
	ws_prompts_free(&a->prompts);
}
