/* SPDX-License-Identifier: Apache-2.0 */
/* wsync-ctl - sends one lifecycle call to every endpoint at once. It keeps no state: an endpoint
 * that it pauses stays paused until it is resumed. Only complete and repair resume what they
 * pause. */
#include "ctl/ctl.h"
#include "main.h"
#include "outlet.h"

static struct ctl_config cfg = {
	.common.connect_ns = 10 * WS_NS_PER_S,
	.timeout_ns = CTL_NO_TIMEOUT,
	.wait_ns = 60 * WS_NS_PER_S,
};

static const char *const mode_names[] = { "abort", "retract", "in_place", "wait", NULL };
static const char *const flush_names[] = { "last", "never", NULL };
static const char *const verify_names[] = { "none", "hash", NULL };

static const struct opt_command commands[] = {
	{ "info", "", "show version, model, ranks and weight version", 0, 0, ctl_info },
	{ "health", "", "check that the endpoints are up", 0, 0, ctl_health },
	{ "status", "", "show which endpoints are ready, and the last push", 0, 0, ctl_status },
	{ "ready", "[SOURCE...]", "check that they may get traffic", 0,
	  OPT_MANY, ctl_ready },
	{ "wait", "[SOURCE...]", "wait until they may get traffic", 0, OPT_MANY, ctl_wait },
	{ "pause", "", "stop generation", 0, 0, ctl_pause },
	{ "resume", "", "resume generation", 0, 0, ctl_resume },
	{ "flush", "", "drop the prefix cache", 0, 0, ctl_flush },
	{ "repair", "", "clean up after pushes that died", 0, 0, ctl_repair },
	{ "complete", "[SOURCE...]", "load what wsync-push --stage has sent", 0, OPT_MANY,
	  ctl_complete },
	{ "discard", "", "drop what wsync-push --stage has sent", 0, 0, ctl_discard },
	{ "sleep", "", "release GPU memory", 0, 0, ctl_sleep },
	{ "wake", "", "take released memory back", 0, 0, ctl_wake },
	{ "init-group", "[NAME]", "form a process group as a test", 0, 1, ctl_init_group },
	{ "destroy-group", "NAME", "make endpoints leave a group", 1, 1, ctl_destroy_group },
	{ "version", "[VERSION]", "show or set the weight version", 0, 1, ctl_version },
	{ 0 },
};

static const struct opt opts[] = {
	OPT_GROUP("Endpoints"),
	OPT_LIST('e', "endpoint", "URL", &cfg.common.endpoints,
	         "this endpoint; repeatable (registered or recorded)", .basic = true),
	OPT_POOL(&cfg.common),
	OPT_REGISTRY(&cfg.common),
	OPT_KEYS(&cfg.common),
	OPT_CONNECT_TIMEOUT(&cfg.common),
	OPT_LIMIT('t', "timeout", &cfg.timeout_ns,
	          "time limit (60s; complete, wait: 10m)",
	          .basic = true),
	OPT_GROUP_FOR("Server family", "info status ready wait pause complete sleep wake"),
	OPT_LINEAGE(&cfg.lineage),
	OPT_GROUP_FOR("Pausing", "pause complete"),
	OPT_CHOICE(0, "mode", mode_names, &cfg.mode,
	           "running requests: abort, requeue, or freeze (abort)"),
	OPT_GROUP_FOR("Resuming", "resume"),
	OPT_FLAG(0, "force", &cfg.force,
	         "also resume endpoints with some old and some new weights"),
	OPT_GROUP_FOR("Memory", "sleep wake"),
	OPT_STRING(0, "tags", "LIST", &cfg.tags,
	           "memory: weights,kv_cache,cuda_graph (all)"),
	OPT_GROUP_FOR("Flushing", "flush sleep"),
	OPT_DURATION(0, "wait", &cfg.wait_ns, "retry a busy endpoint for this long (60s)"),
	OPT_GROUP_FOR("Fleet", "ready wait"),
	OPT_UINT(0, "min-endpoints", "N", 1, 1000000, &cfg.min_endpoints,
	         "say yes if N endpoints are ready (all)"),
	OPT_UINT(0, "min-coverage", "PERCENT", 1, 100, &cfg.min_coverage,
	         "bytes that the server's own checksums must prove (100)"),
	OPT_GROUP_FOR("Watching", "status"),
	OPT_FLAG(0, "watch", &cfg.watch, "show it again every two seconds"),
	OPT_GROUP_FOR("Staged updates", "complete"),
	OPT_FLAG(0, "allow-older", &cfg.allow_older,
	         "allow a weight version lower than the servers' own"),
	OPT_CHOICE(0, "flush", flush_names, &cfg.flush, "flush the servers' cache (last)"),
	OPT_GROUP_FOR("Weights", "complete ready wait"),
	OPT_STRING(0, "weight-version", "V", &cfg.weight_version,
	           "version to require, or to set (that of the stage)", .basic = true),
	OPT_CHOICE(0, "verify", verify_names, &cfg.verify,
	           "hash: compare checksums with SOURCE (none)"),
	OPT_NAMING(&cfg.naming),
	OPT_LIST(0, "include", "GLOB", &cfg.transforming.include,
	         "compare only tensors whose name matches; repeatable"),
	OPT_LIST(0, "exclude", "GLOB", &cfg.transforming.exclude,
	         "do not compare tensors whose name matches; repeatable"),
	OPT_TRANSFORMING(&cfg.transforming),
	OPT_GROUP_FOR("Waiting", "complete discard"),
	OPT_DURATION(0, "lock-wait", &cfg.lock_wait_ns,
	             "wait for another push to the same server (0: refuse at once)"),
	OPT_GROUP_FOR("Forming a group", "init-group"),
	OPT_STRING(0, "master-address", "ADDRESS", &cfg.master_address,
	           "address of this machine for the servers (default: detect)"),
	OPT_UINT(0, "master-port", "PORT", 0, 65535, &cfg.master_port,
	         "rendezvous port (0: any free port)"),
	OPT_FLAG(0, "keep", &cfg.keep, "keep the group until Ctrl-C"),
	OPT_GROUP_FOR("Push records", "info status ready wait health pause resume repair complete "
	                              "discard sleep wake version init-group"),
	OPT_STATE_DIR(&cfg.state_dir),
	OPT_GROUP_FOR("Repairing", "repair"),
	OPT_FLAG(0, "again", &cfg.again, "repeat failed pushes with the same options"),
	OPT_FLAG('n', "dry-run", &cfg.dry_run, "report problems, change nothing"),
	OPT_FLAG(0, "resume-partial", &cfg.resume_partial,
	         "also resume endpoints with some old and some new weights"),
	OPT_FLAG(0, "assume-dead", &cfg.assume_dead,
	         "treat processes of other machines and containers as dead"),
	OPT_FLAG(0, "forget", &cfg.forget, "remove the records without any request"),
	OPT_COMMON(&cfg.common),
	OPT_END,
};

static const struct opt_program program = {
	.name = "wsync-ctl",
	.args = "COMMAND [ARGUMENT]",
	.summary = "Send one lifecycle request to every endpoint at once.",
	.examples = { "wsync-ctl ready --weight-version 120",
	              "wsync-ctl pause --mode abort && wsync-ctl flush --wait 30s",
	              "wsync-ctl repair --again" },
	.commands = commands,
	.opts = opts,
};

int ctl_follow(struct ctl_job *job, struct ws_err *err)
{
	struct targets now = { 0 };
	if (cfg.common.endpoints.n)
		return 0;
	const int rc = targets_find_urls(&now, &cfg.common, true, err);
	if (!rc)
		targets_swap_urls(&job->to, &now);
	targets_free(&now);
	return rc;
}

static void run(const struct opt_args *args, struct ui *ui, struct ws_err *err)
{
	struct ctl_job job = { .cfg = &cfg, .ui = ui, .until = WS_FOREVER };
	outlet_never_wait();
	if (cfg.timeout_ns == CTL_NO_TIMEOUT)
		cfg.timeout_ns = 60 * WS_NS_PER_S;
	else
		job.until = ws_deadline_in(cfg.timeout_ns);
	if (args->command->run == ctl_wait && job.until == WS_FOREVER)
		job.until = ws_deadline_in(600 * WS_NS_PER_S);
	ui_begin(ui);
	const bool recorded = args->command->run == ctl_repair ||
	                      args->command->run == ctl_complete ||
	                      args->command->run == ctl_discard;
	/* The first server may be registered while it runs. */
	const bool follows = args->command->run == ctl_wait ||
	                     (args->command->run == ctl_status && cfg.watch);
	/* A registry that is named chooses, as endpoints do; the usual one does not. */
	const bool all = recorded && !cfg.common.endpoints.n && !cfg.common.pool &&
	                 !cfg.common.registry;
	int rc = all ? targets_read_key(&job.to, &cfg.common, ui, err)
	             : targets_find(&job.to, &cfg.common, follows, ui, err);
	if (!rc)
		rc = targets_connect(&job.to, &cfg.common, ui, err);
	if (!rc)
		args->command->run(&job, args, err);
	targets_free(&job.to);
}

int main(int argc, char **argv)
{
	return main_run(&(struct main_program){ &program, &cfg.common, NULL, run }, argc, argv);
}
