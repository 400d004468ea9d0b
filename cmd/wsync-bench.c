/* SPDX-License-Identifier: Apache-2.0 */
/* wsync-bench - measures each stage of a push here, and whole pushes. One file for each kind of
 * command, in cmd/bench/; the library measures (bench.h). */
#include "bench/bench_cmd.h"

#include "main.h"
#include "outlet.h"
#include "run.h"

/* Indexes are the values of the library's enums. */
static const char *const devices[] = { "cpu", "gpu", NULL };
static const char *const places[] = { "host", "gpu", NULL };

static struct bench_config cfg = {
	.samples = 9,
	.warmups = 1,
	.most_ns = WS_FOREVER,
	.size = UINT64_C(256) << 20,
	.greatest_size = UINT64_C(256) << 20,
	.factor = 4,
	.local = 1,
	.tp = 1,
	.plan = { .senders = 1, .nics = 1 },
	.common.connect_ns = WS_PUSH_CONNECT_NS,
	.timeout_ns = 60 * WS_NS_PER_S,
	.alone = true,
	.pushing = PUSHING_DEFAULTS,
};

static const struct opt_command commands[] = {
	{ "kernels", "", "measure checksums, FP8, adapters and unpacking", 0, 0, bench_kernels },
	{ "load", "[SOURCE...]", "measure reading a source, transforms too", 0, OPT_MANY,
	  bench_load },
	{ "control", "", "measure request round trips to endpoints", 0, 0, bench_control },
	{ "transport", "", "measure broadcasts to idle receivers", 0, 0, bench_transport },
	{ "push", "[SOURCE...]", "measure whole pushes, phase by phase", 0, OPT_MANY, bench_push },
	{ "sweep", "[SOURCE...]", "find the fastest settings of a push", 0, OPT_MANY, bench_sweep },
	{ "plan", "[SOURCE...]", "estimate the time and bottleneck of a push", 0, OPT_MANY,
	  bench_plan },
	{ 0 },
};

static const struct opt opts[] = {
	OPT_GROUP_FOR("Samples", "kernels load control transport push sweep"),
	OPT_UINT(0, "samples", "N", 1, WS_BENCH_SAMPLES_MAX, &cfg.samples,
	         "samples per measurement (9)", .basic = true),
	OPT_UINT(0, "warmup", "N", 0, 1000, &cfg.warmups, "samples to drop first (1)"),
	OPT_PROGRESS(&cfg.common),
	OPT_FLAG(0, "csv", &cfg.csv, "print comma-separated values instead of a table",
	         .basic = true),
	OPT_GROUP_FOR("Time per measurement", "kernels load control push sweep"),
	OPT_DURATION(0, "time", &cfg.most_ns,
	             "start no sample of a measurement after this time (no limit)"),
	OPT_GROUP_FOR("Checking", "kernels transport"),
	OPT_FLAG(0, "check", &cfg.check, "verify the results, outside the timed part"),
	OPT_GROUP_FOR("Kernels", "kernels"),
	OPT_SIZE(0, "size", &cfg.size, "input bytes of a kernel (256MiB)"),
	OPT_CHOICE(0, "on", devices, &cfg.on, "processor that runs the kernels (cpu)"),
	OPT_GROUP_FOR("Source", "load push sweep plan"),
	OPT_STRING(0, "model", "NAME", &cfg.model, "same as SOURCE synthetic:NAME", .basic = true),
	OPT_GROUP_FOR("Transforms", "load push sweep plan"),
	OPT_TRANSFORMING(&cfg.transforming),
	OPT_PUSHING_WHERE(&cfg.pushing),
	OPT_GROUP_FOR("Loading", "load"),
	OPT_FLAG(0, "cold", &cfg.cold, "drop the files from the page cache before each sample"),
	OPT_SIZE(0, "most", &cfg.most, "read about this much of SOURCE (all)"),
	OPT_CHOICE(0, "to", places, &cfg.to, "read into host memory, or on into GPU memory (host)"),
	OPT_GROUP_FOR("GPU", "kernels load transport push sweep"),
	OPT_UINT(0, "gpu", "N", 0, 255, &cfg.pushing.gpu,
	         "GPU to measure, or that nccl sends from (0)"),
	OPT_PUSHING_NCCL(&cfg.pushing),
	OPT_GROUP_FOR("Endpoints", "control push sweep"),
	OPT_LIST('e', "endpoint", "URL", &cfg.common.endpoints,
	         "measure this endpoint, replace its weights; repeatable (--local)", .basic = true),
	OPT_STRING(0, "pool", "NAME", &cfg.common.pool,
	           "use only registered endpoints of this pool"),
	OPT_REGISTRY(&cfg.common),
	OPT_KEYS(&cfg.common),
	OPT_UINT(0, "local", "N", 1, LOCAL_MAX, &cfg.local,
	         "start N local endpoints if none are given (1)", .basic = true),
	OPT_CHOICE(0, "keep", local_keeps, &cfg.keep,
	           "part of the weights that local endpoints keep (none)"),
	OPT_CONNECT_TIMEOUT(&cfg.common),
	OPT_GROUP_FOR("Ranks", "control push sweep plan"),
	OPT_UINT(0, "tp", "N", 1, 64, &cfg.tp, "tensor-parallel ranks of local endpoints (1)",
	         .basic = true),
	OPT_GROUP_FOR("Timeouts", "control transport"),
	OPT_LIMIT('t', "timeout", &cfg.timeout_ns,
	          "time limit of a request, a broadcast, or forming the group (60s)"),
	OPT_GROUP_FOR("Receivers", "transport plan"),
	OPT_UINT(0, "receivers", "N", 1, 4096, &cfg.receivers,
	         "local receivers, or those of plan (1)", .basic = true),
	OPT_GROUP_FOR("Transport", "transport"),
	OPT_UINT(0, "remote", "N", 0, 4096, &cfg.remote,
	         "receivers that join from other machines with --join"),
	OPT_STRING(0, "listen", "ADDRESS:PORT", &cfg.listen,
	           "address at which remote receivers join"),
	OPT_STRING(0, "join", "HOST:PORT", &cfg.join,
	           "be a receiver of the wsync-bench that listens there"),
	OPT_STRING(0, "host", "ADDRESS", &cfg.host, "own address, with --join (default: detect)"),
	OPT_SIZE(0, "min-size", &cfg.least_size,
	         "smallest bucket (1MiB, or --max-size if smaller)"),
	OPT_SIZE(0, "max-size", &cfg.greatest_size, "largest bucket (256MiB)"),
	OPT_UINT(0, "count", "N", 1, 4096, &cfg.count,
	         "broadcasts in a row; a sample is their mean time (1; nccl: 8)"),
	OPT_SIZE(0, "total", &cfg.total, "send this many bytes in a row, instead of --count"),
	OPT_UINT(0, "factor", "N", 2, 1024, &cfg.factor, "factor from one size to the next (4)"),
	OPT_GROUP_FOR("Data plane", "transport push sweep"),
	OPT_PUSHING_BACKEND(&cfg.pushing),
	OPT_GROUP_FOR("Requests", "push sweep plan"),
	OPT_PUSHING_SHAPE(&cfg.pushing),
	OPT_GROUP_FOR("Pushing", "push sweep"),
	OPT_PUSHING_PLACES(&cfg.pushing),
	OPT_PUSHING_SERVERS(&cfg.pushing),
	OPT_GROUP_FOR("Measuring a push", "push sweep"),
	OPT_PUSHING_TIMES(&cfg.pushing),
	OPT_CHOICE(0, "verify", pushing_verifies, &cfg.pushing.verify,
	           "checks of each push, as in wsync-push (names)"),
	OPT_FLAG(0, "keep-group", &cfg.keep_group, "use one process group for all samples"),
	OPT_SWITCH(0, "alone", &cfg.alone, "also measure the source alone (yes)"),
	OPT_GROUP_FOR("Staging", "push"),
	OPT_FLAG(0, "stage", &cfg.stage,
	         "compare the pauses of a push and of wsync-ctl complete"),
	OPT_GROUP_FOR("Sweep", "sweep"),
	OPT_LIST(0, "buckets", "auto|SIZE", &cfg.buckets,
	         "bucket size to try; repeatable (auto 32MiB 64MiB 512MiB)"),
	OPT_LIST(0, "formats", "NAME", &cfg.formats,
	         "load format to try; repeatable (flattened_bucket)"),
	OPT_LIST(0, "quantizations", "NAME", &cfg.quantize,
	         "value of --quantize to try; repeatable (none)"),
	OPT_GROUP_FOR("Plan", "plan"),
	OPT_CALL(0, "link", "RATE", bench_rate, &cfg.plan.link,
	         "rate of each link, one way: 400Gb or 50GB per second"),
	OPT_UINT(0, "senders", "N", 1, 4096, &cfg.plan.senders,
	         "senders with a link each, in turns except with ep-scatter (1)"),
	OPT_FLAG(0, "at-once", &cfg.plan.at_once,
	         "let broadcasting senders send at once, not in turns"),
	OPT_UINT(0, "endpoints", "N", 1, 4096, &cfg.plan.endpoints,
	         "endpoints that receive the weights (1)"),
	OPT_UINT(0, "nics", "N", 1, 256, &cfg.plan.nics, "links per endpoint (1)"),
	OPT_CALL(0, "source-rate", "RATE", bench_rate, &cfg.plan.source,
	         "read rate of a sender (no limit; see load)"),
	OPT_CALL(0, "make-rate", "RATE", bench_rate, &cfg.plan.make,
	         "transform rate of a sender (no limit; see load, kernels)"),
	OPT_CALL(0, "apply-rate", "RATE", bench_rate, &cfg.plan.apply,
	         "load rate of a rank (no limit; see push)"),
	OPT_DURATION(0, "per-bucket", &cfg.plan.bucket_ns,
	             "fixed time per bucket (0; see transport, control)"),
	OPT_DURATION(0, "fixed", &cfg.plan.fixed_ns,
	             "time to connect, pause, flush and resume (0; see push)"),
	OPT_FLAG(0, "tree", &cfg.plan.tree, "broadcast along gloo's tree, not NCCL's ring"),
	OPT_FLAG(0, "no-pipelining", &cfg.plan.serial, "run the stages one after the other"),
	OPT_COMMON(&cfg.common),
	OPT_END,
};

static const struct opt_gone gone[] = {
	{ "plot", "was removed: plot what --csv prints" },
	{ NULL, NULL },
};

static const struct opt_program program = {
	.name = "wsync-bench",
	.args = "COMMAND [ARGUMENT]...",
	.summary = "Measure the stages of a push and whole pushes, and find what bounds them.",
	.examples = { "wsync-bench transport --receivers 4 --check",
	              "wsync-bench push --model qwen3-0.6b --local 2",
	              "wsync-bench sweep ckpt/ -e gpu7:30000 --csv",
	              "wsync-bench plan --model qwen3-235b-a22b --endpoints 8 --link 400Gb" },
	.commands = commands,
	.opts = opts,
	.gone = gone,
};

static int check_usage(const struct opt_args *args)
{
	(void)args;
	if (cfg.on && cfg.check)
		return opt_usage(&program,
		                 "--check: not with --on gpu, which make check-gpu checks");
	if (cfg.csv && cfg.common.json)
		return opt_usage(&program, "either --csv or --json, not both");
	if (cfg.join && (cfg.listen || cfg.remote || cfg.receivers))
		return opt_usage(&program,
		                 "--join: --listen, --remote, --receivers are for the other side");
	if (cfg.join && cfg.pushing.backend)
		return opt_usage(&program, "--join: --backend is for the other side");
	if (cfg.receivers && cfg.plan.endpoints)
		return opt_usage(&program, "either --receivers or --endpoints, not both");
	if (cfg.count && cfg.total)
		return opt_usage(&program, "either --count or --total, not both");
	if (cfg.host && !cfg.join)
		return opt_usage(&program, "--host: with --join only");
	if (!cfg.quantize.n && transforming_lacks(&cfg.transforming))
		return opt_usage(&program, "%s", transforming_lacks(&cfg.transforming));
	return OPT_GO;
}

static void run(const struct opt_args *args, struct ui *ui, struct ws_err *err)
{
	struct bench_job job = { .cfg = &cfg, .ui = ui, .report = { .ui = ui, .cfg = &cfg } };
	outlet_never_wait(); /* local endpoints end with this program */
	report_end(&job.report, args->command->run(&job, args, err) == 0 ? err : NULL);
	struct ws_jw *w = ui_end_open(ui, err);
	ws_jw_uint(w, "measures", job.report.n);
	ui_line_end(ui);
	local_stop(&job.local);
	targets_free(&job.targets);
	report_free(&job.report);
}

int main(int argc, char **argv)
{
	return main_run(&(struct main_program){ &program, &cfg.common, check_usage, run }, argc,
	                argv);
}
