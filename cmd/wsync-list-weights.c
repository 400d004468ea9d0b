/* SPDX-License-Identifier: Apache-2.0 */
/* wsync-list-weights - names, dtypes, shapes and bytes of what a checkpoint or an endpoint holds.
 *
 * A source is listed from its headers alone; --hash reads the tensors. An endpoint tells the runtime
 * parameters of one rank (fused names, local shapes) and, unless it is one of ours, no dtypes: then
 * there are no sizes either. */
#include "main.h"
#include "run.h"
#include "targets.h"
#include "tensors.h"

#include "wsync/endpoint.h"
#include "wsync/source.h"
#include "wsync/str.h"

struct config {
	struct opt_common common;
	struct opt_list include, exclude, endpoints;
	unsigned format;
	bool hash;
	const char *prefix, *pool;
	uint64_t rank;
	int64_t connect_ns, timeout_ns;
};

struct job {
	const struct config *cfg;
	struct ui *ui;
	struct tensors list;
	size_t tensors; /* of every listing so far */
	uint64_t bytes;
};

static bool matches(const struct opt_list *globs, const char *name)
{
	for (size_t i = 0; i < globs->n; i++)
		if (ws_glob_match(globs->items[i], name))
			return true;
	return false;
}

static void add_if_wanted(struct job *job, const struct tensors_row *row)
{
	const struct config *cfg = job->cfg;
	if ((cfg->include.n == 0 || matches(&cfg->include, row->name)) &&
	    !matches(&cfg->exclude, row->name))
		tensors_add(&job->list, row);
}

static void finish_list(struct job *job)
{
	tensors_total(&job->list);
	job->tensors += job->list.n;
	job->bytes += job->list.bytes;
}

/* ---- sources ---- */

static int print_source(struct job *job, const struct ws_source *s, struct ws_err *err)
{
	struct tensors *list = &job->list;
	for (size_t i = 0; i < list->n; i++) {
		const struct ws_tensor *t = list->rows[i].origin;
		uint64_t hash;
		if (ws_cancelled(&run_cancel))
			return ws_err_set(err, WS_ECANCELLED, "interrupted");
		if (job->cfg->hash && ws_source_hash(s, t, &hash, err))
			return -1;
		list->from = ws_source_file_name(s, t->file);
		tensors_print(list, &list->rows[i], job->cfg->hash ? &hash : NULL);
	}
	finish_list(job);
	return 0;
}

static int list_source(struct job *job, const struct opt_args *args, struct ws_err *err)
{
	struct ws_source *s = NULL;
	if (ws_source_open(args->v, args->n, &s, err))
		return -1;
	int rc = tensors_start(&job->list, ws_source_count(s), err);
	for (size_t i = 0; rc == 0 && i < ws_source_count(s); i++) {
		const struct ws_tensor *t = ws_source_tensor(s, i);
		add_if_wanted(job, &(struct tensors_row){
			.name = t->name, .dtype = ws_dtype_torch(t->dtype), .n_dims = t->n_dims,
			.dims = t->dims, .sized = true, .bytes = t->bytes, .origin = t,
		});
	}
	job->list.from_key = "file";
	if (rc == 0)
		rc = print_source(job, s, err);
	ws_source_close(s);
	return rc;
}

/* ---- endpoints ---- */

static void add_weight(struct job *job, const struct ws_weight *w)
{
	struct tensors_row row = {
		.name = w->name, .dtype = w->dtype, .n_dims = w->n_dims, .dims = w->dims,
	};
	enum ws_dtype dtype;
	row.sized = ws_dtype_from_torch(w->dtype, &dtype) &&
	            ws_dtype_bytes(dtype, w->n_dims, w->dims, &row.bytes);
	add_if_wanted(job, &row);
}

static int list_endpoint(struct job *job, struct ws_http *http, const char *url, bool alone,
                         struct ws_err *err)
{
	const struct config *cfg = job->cfg;
	struct tensors *list = &job->list;
	struct ws_weight_list weights = { 0 };
	if (ws_endpoint_list_weights(http, url, cfg->prefix, (unsigned)cfg->rank,
	                             ws_deadline_in(cfg->timeout_ns), &run_cancel, &weights, err))
		return ws_err_where(err, NULL, url);
	const int rc = tensors_start(list, weights.n, err);
	for (size_t i = 0; rc == 0 && i < weights.n; i++)
		add_weight(job, &weights.items[i]);
	if (!alone)
		ui_say(job->ui, "%s==> %s <==\n", job->tensors ? "\n" : "", url);
	list->from_key = "endpoint";
	list->from = url;
	for (size_t i = 0; rc == 0 && i < list->n; i++)
		tensors_print(list, &list->rows[i], NULL);
	if (rc == 0)
		finish_list(job);
	ws_weight_list_free(&weights);
	return rc;
}

/* Every endpoint is asked; the first failure is the run's, the others are said on the way. */
static int ask_endpoints(struct job *job, struct ws_http *http, const struct targets *to,
                         struct ws_err *err)
{
	int rc = 0;
	for (size_t i = 0; i < to->n && !ws_cancelled(&run_cancel); i++) {
		struct ws_err one = WS_ERR_INIT;
		if (list_endpoint(job, http, to->urls[i], to->n == 1, &one) == 0)
			continue;
		if (rc == 0)
			*err = one;
		else
			ui_warn(job->ui, one.endpoint, "%s", one.msg);
		rc = -1;
	}
	return rc;
}

static int list_endpoints(struct job *job, struct ws_err *err)
{
	const struct config *cfg = job->cfg;
	struct targets to = { 0 };
	struct ws_http *http = NULL;
	int rc = targets_find(&to, &cfg->endpoints, cfg->pool, &cfg->common, false, job->ui, err);
	if (rc == 0)
		rc = targets_connect(&to, cfg->connect_ns, job->ui, &http, err);
	if (rc == 0)
		rc = ask_endpoints(job, http, &to, err);
	ws_client_close(http);
	targets_free(&to);
	return rc;
}

static struct config cfg = { .connect_ns = 10 * WS_NS_PER_S, .timeout_ns = 60 * WS_NS_PER_S };

static const struct opt opts[] = {
	OPT_GROUP("What"),
	OPT_LIST(0, "include", "GLOB", &cfg.include, "list only names like this; repeatable"),
	OPT_LIST(0, "exclude", "GLOB", &cfg.exclude, "leave out names like this; repeatable"),
	OPT_CHOICE(0, "format", tensors_format_names, &cfg.format,
	           "aligned, names alone, or tab-separated with exact bytes (table)"),
	OPT_FLAG(0, "hash", &cfg.hash, "add the XXH3-64 of the bytes, of a SOURCE; reads every tensor"),
	OPT_GROUP("Endpoints"),
	OPT_LIST('e', "endpoint", "URL", &cfg.endpoints, "list what this endpoint holds (without SOURCE, every registered one); repeatable"),
	OPT_STRING(0, "pool", "NAME", &cfg.pool, "of the registered endpoints, only those of this pool"),
	OPT_UINT(0, "rank", "N", 0, 65535, &cfg.rank, "of this tensor-parallel rank (0)"),
	OPT_STRING(0, "prefix", "PREFIX", &cfg.prefix, "ask only for names that begin so"),
	OPT_REGISTRY(&cfg.common),
	OPT_API_KEY_FILE(&cfg.common),
	OPT_DURATION(0, "connect-timeout", &cfg.connect_ns, "to connect (10s)"),
	OPT_DURATION('t', "timeout", &cfg.timeout_ns, "for one endpoint's answer (60s)"),
	OPT_COMMON(&cfg.common),
	OPT_END,
};

static const struct opt_program program = {
	.name = "wsync-list-weights",
	.args = "[SOURCE]...",
	.summary = "List the tensors of a safetensors file, a checkpoint directory, "
	           "synthetic:MODEL[:SEED]; without one, those of the running endpoints.",
	.examples = { "wsync-list-weights ckpt/ --include '*.layers.0.*' --hash",
	              "wsync-list-weights --endpoint gpu7:30000 --format names" },
	.max_args = OPT_MANY,
	.opts = opts,
};

static int check_usage(const struct opt_args *args)
{
	if (args->n && (cfg.endpoints.n || cfg.pool))
		return opt_usage(&program, "either SOURCE or endpoints, not both");
	if (cfg.hash && !args->n)
		return opt_usage(&program, "--hash: of a SOURCE only");
	return OPT_GO;
}

static void run(const struct opt_args *args, struct ui *ui, struct ws_err *err)
{
	struct job job = { .cfg = &cfg, .ui = ui, .list = { .ui = ui, .format = cfg.format } };
	ui_begin(ui);
	if (args->n)
		list_source(&job, args, err);
	else
		list_endpoints(&job, err);
	struct ws_jw *w = ui_end_open(ui, err);
	if (w) {
		ws_jw_uint(w, "tensors", job.tensors);
		ws_jw_uint(w, "bytes", job.bytes);
		ui_line_end(ui);
	}
	tensors_free(&job.list);
}

int main(int argc, char **argv)
{
	return main_run(&(struct main_program){ &program, &cfg.common, check_usage, run }, argc, argv);
}
