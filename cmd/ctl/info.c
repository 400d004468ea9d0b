/* SPDX-License-Identifier: Apache-2.0 */
/* info.c - shows the endpoints' versions, lineages, capabilities and weight
 * versions. */
#include "ctl.h"
#include "run.h"

#include "wsync/tool/capabilities.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void put_info(struct ws_jw *w, const struct ws_endpoint_info *info)
{
	ws_jw_str(w, "version", info->version);
	ws_jw_str(w, "lineage", ws_lineage_name(info->lineage));
	ws_jw_str(w, "weight_version", info->weight_version);
	if (info->tp_size)
		ws_jw_uint(w, "tp_size", info->tp_size);
	else
		ws_jw_null(w, "tp_size");
	ws_jw_uint(w, "dp_size", info->dp_size);
	ws_jw_uint(w, "pp_size", info->pp_size);
	ws_jw_uint(w, "ep_size", info->ep_size);
	ws_jw_bool(w, "dp_attention", info->dp_attention);
	ws_jw_str(w, "dtype", info->dtype);
	ws_jw_str(w, "quantization", info->quantization);
	ws_jw_str(w, "kv_cache_dtype", info->kv_cache_dtype);
	ws_jw_str(w, "model_path", info->model_path);
	ws_jw_str(w, "served_model", info->served_model);
	ws_jw_str(w, "model_type", info->model_type);
	ws_jw_object(w, "capabilities");
	for (size_t i = 0; i < ws_capability_count(); i++)
		ws_jw_bool(w, ws_capability_name(i), ws_capability_get(&info->can, i));
	ws_jw_end_object(w);
	ws_jw_int(w, "ns", info->ns);
}

static void put_endpoint(struct ctl_job *job, size_t i)
{
	struct ws_jw *w = ui_line(job->ui, "endpoint");
	const struct record_at at = record_at(job, i);
	ws_jw_str(w, "url", job->to.urls[i]);
	ws_jw_bool(w, "ok", !job->to.errs[i].code);
	if (job->to.errs[i].code)
		ctl_put_failure(w, &job->to.errs[i]);
	else
		put_info(w, &job->to.infos[i]);
	if (job->records) {
		record_put_pause(w, ws_known(job->records, at.url, at.info).paused);
		record_put_staged(w, job, i);
	}
	ui_line_end(job->ui);
}

/* "8", "8 dp 2", "4 pp 2 ep 4", "?": tp first, the others where there is more than one. */
static void format_ranks(char *dst, size_t n, const struct ws_endpoint_info *info)
{
	const struct { const char *name; unsigned size; } more[] = {
		{ "dp", info->dp_size }, { "pp", info->pp_size }, { "ep", info->ep_size },
	};
	size_t used = (size_t)(info->tp_size ? snprintf(dst, n, "%u", info->tp_size) :
	                                       snprintf(dst, n, "?"));
	for (size_t i = 0; i < sizeof more / sizeof *more; i++)
		if (more[i].size > 1 && used < n)
			used += (size_t)snprintf(dst + used, n - used, " %s %u", more[i].name,
			                         more[i].size);
}

/* Prints the capabilities of one kind in a line: "beware: dies_of_flush dies_of_release". */
static void say_kind(struct ui *ui, const struct ws_capabilities *can, const char *kind)
{
	bool any = false;
	for (size_t i = 0; i < ws_capability_count(); i++) {
		if (strcmp(ws_capability_kind(i), kind) || !ws_capability_get(can, i))
			continue;
		if (!any)
			ui_say(ui, "  %-9s", kind);
		ui_say(ui, " %s", ws_capability_name(i));
		any = true;
	}
	if (any)
		ui_say(ui, "\n");
}

static bool same(const struct ws_endpoint_info *a, const struct ws_endpoint_info *b)
{
	return a->lineage == b->lineage && !memcmp(&a->can, &b->can, sizeof a->can);
}

/* Shows equal capabilities of several servers only once. */
static void show_capabilities(struct ctl_job *job)
{
	const struct targets *to = &job->to;
	for (size_t i = 0; i < to->n; i++) {
		size_t n = 0;
		bool before = false;
		for (size_t k = 0; k < to->n; k++) {
			if (to->errs[k].code || to->errs[i].code ||
			    !same(&to->infos[i], &to->infos[k]))
				continue;
			before |= k < i;
			n++;
		}
		if (!n || before)
			continue;
		const struct ws_capabilities *can = &to->infos[i].can;
		ui_say(job->ui, "\n%s", ws_lineage_name(to->infos[i].lineage));
		if (to->n > 1)
			ui_say(job->ui, " (%zu of %zu: %s%s)", n, to->n, to->urls[i],
			       n > 1 ? ", ..." : "");
		ui_say(job->ui, "\n");
		for (size_t k = 0; k < ws_capability_count(); k++)
			if (!k || strcmp(ws_capability_kind(k), ws_capability_kind(k - 1)))
				say_kind(job->ui, can, ws_capability_kind(k));
	}
}

static void show_infos(struct ctl_job *job)
{
	struct table t = { .n_columns = 8 };
	struct ws_journal_list records;
	record_read(job, &records);
	job->records = &records;
	table_add(&t, UI_DIM, "ENDPOINT", "WEIGHTS", "TP", "DTYPE", "QUANTIZATION", "LINEAGE",
	          "VERSION", "MODEL");
	for (size_t i = 0; i < job->to.n; i++) {
		const struct ws_endpoint_info *info = &job->to.infos[i];
		const char *model = *info->served_model ? info->served_model : info->model_path;
		char ranks[64];
		put_endpoint(job, i);
		format_ranks(ranks, sizeof ranks, info);
		if (job->to.errs[i].code)
			table_add(&t, UI_BAD, job->to.urls[i], "failed", "", "", "", "",
			          "", ui_words(job->to.errs[i].msg));
		else
			table_add(&t, UI_PLAIN, job->to.urls[i], info->weight_version, ranks,
			          info->dtype, info->quantization,
			          ws_lineage_name(info->lineage), info->version, model);
	}
	ctl_print_unless_said(job, &t, job->to.errs[0].code);
	table_free(&t);
	record_say_pauses(job, &records);
	record_say_staged(job);
	show_capabilities(job);
	job->records = NULL;
	ws_journal_list_free(&records);
}

/* Shows only the weight versions; with a single endpoint a bare line, for scripts. */
static void show_versions(struct ctl_job *job)
{
	struct table t = { .n_columns = 2 };
	for (size_t i = 0; i < job->to.n; i++) {
		const struct ws_err *e = &job->to.errs[i];
		put_endpoint(job, i);
		table_add(&t, UI_PLAIN, job->to.urls[i],
		          e->code ? ui_words(e->msg) : job->to.infos[i].weight_version);
	}
	if (job->to.n > 1)
		table_print(&t, job->ui);
	else if (!job->to.errs[0].code)
		ui_say(job->ui, "%s\n", ui_text(job->to.infos[0].weight_version));
	table_free(&t);
}

/* If some endpoints answered and some failed, the error becomes WS_EPARTIAL. */
static int count_failures(const struct ctl_job *job, struct ws_err *err)
{
	const struct ws_err first = *err;
	size_t failed = 0;
	for (size_t i = 0; i < job->to.n; i++)
		failed += job->to.errs[i].code != WS_OK;
	if (failed && failed < job->to.n) {
		ws_err_set(err, WS_EPARTIAL, "%zu of %zu endpoints failed: %s", failed, job->to.n,
		           first.msg);
		ws_err_hint(err, "%s", first.hint);
		ws_err_where(err, NULL, first.endpoint);
	}
	return failed ? -1 : 0;
}

int ctl_ask(struct ctl_job *job, struct ws_err *err)
{
	const int rc = targets_probe(&job->to, ws_deadline_in(job->cfg->timeout_ns), err);
	for (size_t i = 0; job->to.infos && i < job->to.n; i++)
		ws_endpoint_assume(&job->to.infos[i], (enum ws_lineage)job->cfg->lineage);
	return rc;
}

static int probe(struct ctl_job *job, void (*show)(struct ctl_job *), struct ws_err *err)
{
	ctl_ask(job, err);
	if (err->code == WS_ECANCELLED || err->code == WS_ESYSTEM)
		return -1;
	show(job);
	return count_failures(job, err);
}

int ctl_info(void *ctx, const struct opt_args *args, struct ws_err *err)
{
	(void)args;
	return probe(ctx, show_infos, err);
}

int ctl_version(void *ctx, const struct opt_args *args, struct ws_err *err)
{
	return args->n ? ctl_set_version(ctx, args->v[0], err) : probe(ctx, show_versions, err);
}
