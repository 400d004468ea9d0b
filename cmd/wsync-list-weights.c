/* SPDX-License-Identifier: Apache-2.0 */
/* wsync-list-weights - lists names, dtypes, shapes and bytes: of a checkpoint, of the tensors sent
 * from it, of an endpoint's parameters, real or expected. cmd/list-weights/ has a file for each. */
#include "list-weights/list.h"

#include "main.h"

#include "wsync/clock.h"
#include "wsync/tool/str.h"

void list_add(struct list_job *job, const struct tensors_row *row)
{
	const struct transforming *t = &job->cfg->transforming;
	if (ws_glob_choose(t->include.items, t->include.n, t->exclude.items, t->exclude.n,
	                   row->name))
		tensors_add(&job->list, row);
}

void list_add_param(struct list_job *job, const char *name, const char *dtype, unsigned n_dims,
                    const int64_t *dims, const void *origin)
{
	struct tensors_row row = { .name = name, .dtype = dtype, .n_dims = n_dims, .dims = dims,
	                           .origin = origin };
	enum ws_dtype known;
	row.sized = ws_dtype_from_torch(dtype, &known) &&
	            ws_dtype_bytes(known, n_dims, dims, &row.bytes);
	list_add(job, &row);
}

void list_finish(struct list_job *job)
{
	tensors_total(&job->list);
	job->tensors += job->list.n;
	job->bytes += job->list.bytes;
}

const char *const list_checksum_names[] = {
	"none", "sglang-cpu", "sglang-cuda", "sglang-cuda-ue8m0", "sha256", "reported", NULL,
};

static struct list_config cfg = {
	.common.connect_ns = 10 * WS_NS_PER_S, .timeout_ns = 60 * WS_NS_PER_S,
};

static const struct opt opts[] = {
	OPT_GROUP("List"),
	OPT_LIST(0, "include", "GLOB", &cfg.transforming.include,
	         "list only names that match; repeatable", .basic = true),
	OPT_LIST(0, "exclude", "GLOB", &cfg.transforming.exclude,
	         "skip names that match; repeatable", .basic = true),
	OPT_CHOICE(0, "format", tensors_format_names, &cfg.format,
	           "aligned, names only, or tab-separated with exact bytes (table)", .basic = true),
	OPT_FLAG(0, "hash", &cfg.hash, "add the XXH3-64 checksum of each tensor of SOURCE",
	         .basic = true),
	OPT_FLAG(0, "headers-only", &cfg.headers_only,
	         "print names, shapes and config.json of SOURCE as JSON lines, for --like FILE",
	         .basic = true),
	OPT_FLAG(0, "as-sent", &cfg.as_sent, "list the tensors that wsync-push sends",
	         .basic = true),
	OPT_FLAG(0, "runtime", &cfg.runtime,
	         "list the parameters that a server of this config should have", .basic = true),
	OPT_CHOICE(0, "checksum", list_checksum_names, &cfg.checksum,
	           "with --runtime SOURCE: add the checksum that a server computes of each "
	           "parameter; of endpoints: the one that they report (none)", .basic = true),
	OPT_NAMING(&cfg.naming),
	OPT_GROUP("Transforms (--as-sent, --checksum)"),
	OPT_TRANSFORMING(&cfg.transforming),
	OPT_GROUP("Server (--runtime)"),
	OPT_UINT(0, "tp", "N", 1, 1024, &cfg.tp, "with --runtime: tensor-parallel size (1)",
	         .basic = true),
	OPT_UINT(0, "ep", "N", 1, 1024, &cfg.ep, "with --runtime: expert-parallel size (1)",
	         .basic = true),
	OPT_UINT(0, "attention-tp", "N", 1, 1024, &cfg.attention_tp,
	         "ranks that share attention: tp / dp with dp attention (tp)"),
	OPT_UINT(0, "rank", "N", 0, 65535, &cfg.rank,
	         "tensor-parallel rank to list, with --runtime or of endpoints (0)", .basic = true),
	OPT_GROUP("Endpoints"),
	OPT_LIST('e', "endpoint", "URL", &cfg.common.endpoints,
	         "list this endpoint; repeatable (all registered)", .basic = true),
	OPT_POOL(&cfg.common),
	OPT_STRING(0, "prefix", "PREFIX", &cfg.prefix,
	           "ask endpoints only for names that begin with PREFIX"),
	OPT_REGISTRY(&cfg.common),
	OPT_KEYS(&cfg.common),
	OPT_CONNECT_TIMEOUT(&cfg.common),
	OPT_LIMIT('t', "timeout", &cfg.timeout_ns, "time limit of one endpoint (60s)"),
	OPT_COMMON(&cfg.common),
	OPT_END,
};

static const struct opt_program program = {
	.name = "wsync-list-weights",
	.args = "[SOURCE]...",
	.summary = "List tensor names, dtypes and shapes. SOURCE is a .safetensors file, a "
	           "checkpoint directory, hf:ORG/NAME (Hugging Face cache), "
	           "cuda-ipc:MANIFEST (GPU memory of a trainer) or synthetic:MODEL[:SEED]; "
	           "without it, the running endpoints are listed. "
	           "Transforms need --as-sent or --checksum; --config needs --as-sent or "
	           "--runtime.",
	.examples = { "wsync-list-weights ckpt/ --include '*.layers.0.*' --hash",
	              "wsync-list-weights --endpoint gpu7:30000 --format names",
	              "wsync-list-weights ckpt/ --runtime --tp 8 --rank 3 --checksum sglang-cuda" },
	.max_args = OPT_MANY,
	.opts = opts,
};

static int check_checksum(const struct opt_args *args)
{
	const bool reported = cfg.checksum == LIST_CHECKSUM_REPORTED;
	if (!cfg.checksum || (reported ? !args->n && !cfg.runtime : args->n && cfg.runtime))
		return OPT_GO;
	return opt_usage(&program, "--checksum %s: %s", list_checksum_names[cfg.checksum],
	                 reported ? "of endpoints only" : "with --runtime and a SOURCE only");
}

static int check_usage(const struct opt_args *args)
{
	const bool predicts = cfg.runtime && cfg.checksum;
	cfg.common.json |= cfg.headers_only;
	const struct naming *n = &cfg.naming;
	const bool asks = cfg.common.endpoints.n || cfg.common.pool;
	if (asks && (args->n || cfg.runtime))
		return opt_usage(&program, "either %s or endpoints, not both",
		                 args->n ? "SOURCE" : "--runtime");
	struct ws_err why;
	if (cfg.prefix && (args->n || cfg.runtime))
		return opt_usage(&program, "--prefix: of endpoints only");
	if (ws_check_utf8(cfg.prefix, "--prefix", &why))
		return opt_usage(&program, "%s", why.msg);
	if (cfg.as_sent && (cfg.runtime || !args->n))
		return opt_usage(&program, cfg.runtime ? "either --as-sent or --runtime, not both" :
		                                         "--as-sent: of a SOURCE only");
	if (cfg.headers_only && (!args->n || cfg.as_sent || cfg.runtime || cfg.format))
		return opt_usage(&program, "--headers-only: of a SOURCE, as it is, as JSON lines");
	if (cfg.runtime && !args->n && !n->config)
		return opt_usage(&program, "--runtime: needs a SOURCE or --config DIR");
	if (cfg.hash && (!args->n || cfg.runtime))
		return opt_usage(&program, "--hash: of a SOURCE only");
	if (!cfg.runtime && (cfg.tp || cfg.ep || cfg.attention_tp))
		return opt_usage(&program, "--%s: with --runtime only",
		                 cfg.tp ? "tp" : cfg.ep ? "ep" : "attention-tp");
	if (cfg.rank && args->n && !cfg.runtime)
		return opt_usage(&program, "--rank: with --runtime or of endpoints only");
	if (!cfg.runtime && !cfg.as_sent && (n->config || n->map || n->sharded_tp))
		return opt_usage(&program, "--%s: with --runtime or --as-sent only",
		                 n->config ? "config" : n->map ? "map" : "sharded");
	if (n->like && !cfg.as_sent)
		return opt_usage(&program, "--like: with --as-sent only");
	if (!cfg.as_sent && !predicts && transforming_given(&cfg.transforming))
		return opt_usage(&program, "--%s: with --as-sent or --checksum only",
		                 transforming_given(&cfg.transforming));
	if (transforming_lacks(&cfg.transforming))
		return opt_usage(&program, "%s", transforming_lacks(&cfg.transforming));
	return check_checksum(args);
}

static void run(const struct opt_args *args, struct ui *ui, struct ws_err *err)
{
	struct list_job job = { .cfg = &cfg, .ui = ui, .list = { .ui = ui, .format = cfg.format } };
	ui_begin(ui);
	if (cfg.runtime)
		list_runtime(&job, args, err);
	else if (cfg.as_sent)
		list_as_sent(&job, args, err);
	else if (args->n)
		list_source(&job, args, err);
	else
		list_endpoints(&job, err);
	struct ws_jw *w = ui_end_open(ui, err);
	ws_jw_uint(w, "tensors", job.tensors);
	ws_jw_uint(w, "bytes", job.bytes);
	ui_line_end(ui);
	tensors_free(&job.list);
}

int main(int argc, char **argv)
{
	return main_run(&(struct main_program){ &program, &cfg.common, check_usage, run }, argc,
	                argv);
}
