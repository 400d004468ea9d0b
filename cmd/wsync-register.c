/* SPDX-License-Identifier: Apache-2.0 */
/* wsync-register - keeps the registry: the endpoints, with their detected properties. */
#include "main.h"
#include "run.h"
#include "table.h"
#include "targets.h"

#include "wsync/endpoint.h"
#include "wsync/tool/registry_json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct config {
	struct opt_common common;
	uint64_t world_size; /* 0: the endpoint's */
	bool no_check;
	int64_t timeout_ns;
};

struct job {
	const struct config *cfg;
	struct ui *ui;
	struct ws_buf path; /* of the registry */
};

/* Changing the registry takes milliseconds; a longer wait is for a process that hangs. */
static ws_deadline lock_deadline(void)
{
	return ws_deadline_in(10 * WS_NS_PER_S);
}

/* ---- asking endpoints ---- */

/* Finds the typed URLs, or without any the registered endpoints. */
static int find_targets(struct job *job, const struct opt_args *args, struct targets *to,
                        struct ws_err *err)
{
	struct opt_list given = { calloc(args->n + 1, sizeof *given.items), args->n };
	if (!given.items)
		return ws_oom(err);
	for (size_t i = 0; i < args->n; i++)
		given.items[i] = args->v[i];
	struct opt_common common = job->cfg->common;
	common.endpoints = given;
	common.pool = args->n ? NULL : common.pool;
	const int rc = targets_find(to, &common, true, job->ui, err);
	free(given.items);
	return rc;
}

/* Returns 0 also if endpoints failed: see errs. */
static int ask(struct job *job, struct targets *to, struct ws_err *err)
{
	const struct config *cfg = job->cfg;
	if (targets_connect(to, &cfg->common, job->ui, err))
		return -1;
	const int rc = targets_probe(to, ws_deadline_in(cfg->timeout_ns), err);
	if (!rc || (err->code != WS_ECANCELLED && err->code != WS_ESYSTEM)) {
		*err = (struct ws_err)WS_ERR_INIT;
		return 0;
	}
	return -1;
}

/* ---- add ---- */

static int fill_entry(const struct job *job, const struct targets *to, size_t i,
                      struct ws_registry_entry *e, struct ws_err *err)
{
	const struct config *cfg = job->cfg;
	*e = (struct ws_registry_entry){ .world_size = (unsigned)cfg->world_size };
	snprintf(e->url, sizeof e->url, "%s", to->urls[i]);
	snprintf(e->pool, sizeof e->pool, "%s", cfg->common.pool ? cfg->common.pool : "");
	if (cfg->no_check)
		return 0;
	if (to->errs[i].code) {
		*err = to->errs[i];
		if (!err->hint[0])
			ws_err_hint(err,
			            "--no-check registers an endpoint that does not answer yet");
		return -1;
	}
	ws_registry_describe(e, &to->infos[i]);
	if (!e->world_size)
		e->world_size = e->tp_size;
	if (e->world_size == e->tp_size || !e->tp_size)
		return 0;
	ws_err_set(err, WS_EUSAGE, "%s: --world-size %u, but the server has tp_size %u", e->url,
	           e->world_size, e->tp_size);
	return ws_err_hint(err, "leave --world-size out to take the server's");
}

static void tell_added(struct ui *ui, const struct ws_registry_entry *e, bool updated)
{
	struct ws_jw *w = ui_line(ui, "endpoint");
	ws_registry_put(w, e);
	ws_jw_bool(w, "updated", updated);
	ui_line_end(ui);
	ui_say(ui, "%s %s in pool %s", updated ? "updated" : "added", e->url, e->pool);
	if (e->tp_size)
		ui_say(ui, ": %s, tp %u, %s%s%s%s%s", ui_text(e->lineage), e->tp_size,
		       *e->dtype ? ui_text(e->dtype) : "dtype unknown", *e->quantization ? "/" : "",
		       ui_text(e->quantization), *e->served_model ? ", " : "",
		       ui_text(e->served_model));
	ui_say(ui, "\n");
}

/* A key is for the servers of the pool that it was given with. */
static bool may_ask(const void *ctx, const struct ws_registry_entry *e)
{
	const char *pool = ctx;
	return !pool || strcmp(e->pool, pool) == 0;
}

static int check_twins(const struct job *job, const struct targets *to, struct ws_err *err)
{
	struct ws_registry r;
	int rc = ws_registry_load(job->path.data, &r, err);
	if (rc)
		return -1;
	for (size_t i = 0; !rc && i < to->n; i++)
		rc = ws_registry_check_twin(&r, job->path.data, to->urls[i], err);
	ws_registry_free(&r);
	if (rc || job->cfg->no_check)
		return rc;
	const struct ws_call asked = { to->http, to->urls, to->n,
		                       ws_deadline_in(job->cfg->timeout_ns), &run_cancel, NULL };
	const char *pool = job->cfg->common.pool ? job->cfg->common.pool : WS_POOL_DEFAULT;
	return ws_registry_check_instances(job->path.data, &asked, to->infos, may_ask,
	                                   to->api_key ? pool : NULL, err);
}

static int add_all(struct job *job, const struct targets *to, struct ws_err *err)
{
	struct ws_registry_entry e;
	bool updated;
	/* All or none: checks every endpoint before it changes the file. */
	for (size_t i = 0; i < to->n; i++)
		if (fill_entry(job, to, i, &e, err))
			return -1;
	if (check_twins(job, to, err))
		return -1;
	for (size_t i = 0; i < to->n; i++) {
		if (fill_entry(job, to, i, &e, err) ||
		    ws_registry_add(job->path.data, &e, lock_deadline(), &run_cancel, &updated,
		                    err))
			return -1;
		if (to->infos && to->infos[i].pp_size > 1)
			ui_warn(job->ui, e.url, "pp_size %u: wsync-push will refuse it",
			        to->infos[i].pp_size);
		tell_added(job->ui, &e, updated);
	}
	return 0;
}

static int do_add(void *ctx, const struct opt_args *args, struct ws_err *err)
{
	struct job *job = ctx;
	struct targets to = { 0 };
	int rc = job->cfg->common.pool ? ws_registry_check_pool(job->cfg->common.pool, err) : 0;
	if (!rc)
		rc = find_targets(job, args, &to, err);
	if (!rc && !job->cfg->no_check)
		rc = ask(job, &to, err);
	if (!rc)
		rc = add_all(job, &to, err);
	targets_free(&to);
	return rc;
}

/* ---- remove and list ---- */

static int do_remove(void *ctx, const struct opt_args *args, struct ws_err *err)
{
	struct job *job = ctx;
	char url[WS_URL_MAX];
	int rc = 0;
	for (size_t i = 0; !rc && i < args->n; i++) {
		rc = ws_endpoint_normalize(args->v[i], url, sizeof url, err);
		if (!rc)
			rc = ws_registry_remove(job->path.data, url, lock_deadline(), &run_cancel,
			                        err);
		if (rc)
			break;
		struct ws_jw *w = ui_line(job->ui, "endpoint");
		ws_jw_str(w, "url", url);
		ws_jw_bool(w, "removed", true);
		ui_line_end(job->ui);
		ui_say(job->ui, "removed %s\n", url);
	}
	return rc;
}

static void list_row(struct table *t, const struct ws_registry_entry *e)
{
	char world[16] = "";
	if (e->world_size)
		snprintf(world, sizeof world, "%u", e->world_size);
	table_add(t, UI_PLAIN, e->url, e->pool, world, e->dtype, e->quantization, e->lineage,
	          e->version, e->served_model);
}

static int do_list(void *ctx, const struct opt_args *args, struct ws_err *err)
{
	struct job *job = ctx;
	const char *pool = job->cfg->common.pool;
	struct table t = { .n_columns = 8 };
	struct ws_registry r;
	(void)args;
	if ((pool && ws_registry_check_pool(pool, err)) ||
	    ws_registry_load(job->path.data, &r, err))
		return -1;
	table_add(&t, UI_DIM, "ENDPOINT", "POOL", "RANKS", "DTYPE", "QUANTIZATION", "LINEAGE",
	          "VERSION", "MODEL");
	for (size_t i = 0; i < r.n; i++) {
		if (pool && strcmp(pool, r.items[i].pool))
			continue;
		ws_registry_put(ui_line(job->ui, "endpoint"), &r.items[i]);
		ui_line_end(job->ui);
		list_row(&t, &r.items[i]);
	}
	if (t.n > 1)
		table_print(&t, job->ui);
	else
		ui_say(job->ui, "no endpoint is registered%s%s in %s\n", pool ? " in pool " : "",
		       pool ? pool : "", ui_text(job->path.data));
	table_free(&t);
	ws_registry_free(&r);
	return 0;
}

/* ---- check ---- */

static void note(char *dst, size_t n, const char *what, const char *was, const char *is)
{
	const size_t used = strlen(dst);
	if (strcmp(was, is))
		snprintf(dst + used, n - used, "%s%s '%s', registered as '%s'", used ? "; " : "",
		         what, is, was);
}

/* Writes the differences; "": none. Of an entry that was never detected, compares only the size. */
static void compare(const struct ws_registry_entry *was, const struct ws_endpoint_info *info,
                    char *dst, size_t n)
{
	struct ws_registry_entry is = { 0 };
	char sizes[2][16];
	dst[0] = '\0';
	ws_registry_describe(&is, info);
	snprintf(sizes[0], sizeof sizes[0], "%u", was->tp_size ? was->tp_size : was->world_size);
	snprintf(sizes[1], sizeof sizes[1], "%u", is.tp_size);
	if (!is.tp_size)
		snprintf(sizes[1], sizeof sizes[1], "unknown");
	if (was->tp_size || was->world_size)
		note(dst, n, "tp_size", sizes[0], sizes[1]);
	if (!was->tp_size)
		return;
	note(dst, n, "dtype", was->dtype, is.dtype);
	note(dst, n, "quantization", was->quantization, is.quantization);
	note(dst, n, "model", was->served_model, is.served_model);
	note(dst, n, "version", was->version, is.version);
	if (*was->lineage) /* absent in older registries */
		note(dst, n, "lineage", was->lineage, is.lineage);
}

static bool check_one(struct job *job, struct table *t, const struct ws_registry_entry *e,
                      const struct ws_endpoint_info *info, const struct ws_err *failure)
{
	char text[1024];
	if (failure->code)
		snprintf(text, sizeof text, "%s", ui_words(failure->msg));
	else
		compare(e, info, text, sizeof text);
	const char *state = failure->code ? "down" : *text ? "differs" : "ok";
	struct ws_jw *w = ui_line(job->ui, "endpoint");
	ws_jw_str(w, "url", e->url);
	ws_jw_bool(w, "ok", !*text);
	ws_jw_str(w, "state", state);
	ws_jw_str(w, "message", *text ? text : NULL);
	ws_jw_int(w, "ns", info->ns);
	ui_line_end(job->ui);
	table_add(t, *text ? UI_BAD : UI_GOOD, e->url, state, text);
	return !*text;
}

static int check_all(struct job *job, const struct ws_registry *r, const struct targets *to,
                     struct ws_err *err)
{
	struct table t = { .n_columns = 3 };
	size_t bad = 0;
	for (size_t i = 0; i < to->n; i++) {
		const struct ws_registry_entry *e = ws_registry_find(r, to->urls[i]);
		/* Another process may have removed the entry since. */
		bad += e && !check_one(job, &t, e, &to->infos[i], &to->errs[i]);
	}
	table_print(&t, job->ui);
	table_free(&t);
	if (!bad)
		return 0;
	ws_err_set(err, WS_EMISMATCH, "%zu of %zu endpoints are down or not what is registered",
	           bad, to->n);
	return ws_err_hint(err, "wsync-register add URL registers an endpoint as it is now");
}

static int do_check(void *ctx, const struct opt_args *args, struct ws_err *err)
{
	struct job *job = ctx;
	struct targets to = { 0 };
	struct ws_registry r = { 0 };
	int rc = find_targets(job, args, &to, err);
	if (!rc)
		rc = ask(job, &to, err);
	if (!rc)
		rc = ws_registry_load(job->path.data, &r, err);
	if (!rc)
		rc = check_all(job, &r, &to, err);
	if (!rc && !to.n)
		ui_say(job->ui, "no endpoint is registered in %s\n", ui_text(job->path.data));
	ws_registry_free(&r);
	targets_free(&to);
	return rc;
}

/* ---- the program ---- */

static struct config cfg = { .common.connect_ns = 10 * WS_NS_PER_S,
	                     .timeout_ns = 30 * WS_NS_PER_S };

static const struct opt_command commands[] = {
	{ "add", "URL...", "detect endpoints and register them, all or none", 1, OPT_MANY, do_add },
	{ "remove", "URL...", "remove endpoints from the registry", 1, OPT_MANY, do_remove },
	{ "list", "", "list the registered endpoints", 0, 0, do_list },
	{ "check", "", "compare the endpoints with the registry", 0, 0, do_check },
	{ 0 },
};

static const struct opt opts[] = {
	OPT_GROUP_FOR("Adding", "add"),
	OPT_UINT(0, "world-size", "N", 1, 65536, &cfg.world_size,
	         "ranks of the endpoint, equal to its tp_size (default: detect)"),
	OPT_FLAG(0, "no-check", &cfg.no_check,
	         "register without a request: the endpoint may be down"),
	OPT_GROUP_FOR("Pool", "add list check"),
	OPT_STRING(0, "pool", "NAME", &cfg.common.pool,
	           "pool to add to (present one, else " WS_POOL_DEFAULT "), to list, to check",
	           .basic = true),
	OPT_GROUP_FOR("Requests", "add check"),
	OPT_KEYS(&cfg.common),
	OPT_CONNECT_TIMEOUT(&cfg.common),
	OPT_LIMIT('t', "timeout", &cfg.timeout_ns, "time limit of all requests (30s)",
	          .basic = true),
	OPT_GROUP("Registry"),
	OPT_REGISTRY(&cfg.common),
	OPT_COMMON(&cfg.common),
	OPT_END,
};

static const struct opt_program program = {
	.name = "wsync-register",
	.args = "COMMAND [URL]...",
	.summary = "Manage the registry of endpoints that the other programs use by default.",
	.examples = { "wsync-register add gpu7:30000 gpu8:30000 --pool blue",
	              "wsync-register check" },
	.commands = commands,
	.opts = opts,
};

static void run(const struct opt_args *args, struct ui *ui, struct ws_err *err)
{
	struct job job = { .cfg = &cfg, .ui = ui };
	ws_buf_init(&job.path, 0);
	ui_begin(ui);
	if (!run_registry_path(cfg.common.registry, &job.path, err))
		args->command->run(&job, args, err);
	ws_buf_free(&job.path);
}

int main(int argc, char **argv)
{
	return main_run(&(struct main_program){ &program, &cfg.common, NULL, run }, argc, argv);
}
