/* SPDX-License-Identifier: Apache-2.0 */
/* wsync-ctl - one lifecycle call at a time, to every endpoint at once. It remembers nothing: what
 * it pauses stays paused until somebody resumes it. */
#include "ctl/ctl.h"
#include "main.h"
#include "outlet.h"

static struct ctl_config cfg = {
	.connect_ns = 10 * WS_NS_PER_S, .timeout_ns = CTL_NO_TIMEOUT, .wait_ns = 60 * WS_NS_PER_S,
};

static const char *const mode_names[] = { "abort", "retract", "in_place", NULL };

static const struct opt_command commands[] = {
	{ "info", "", "show what the endpoints are and which weights they have", 0, 0, ctl_info },
	{ "health", "", "ask whether they are up", 0, 0, ctl_health },
	{ "pause", "", "stop generation", 0, 0, ctl_pause },
	{ "resume", "", "let generation go on", 0, 0, ctl_resume },
	{ "flush", "", "drop the cache of computed prefixes", 0, 0, ctl_flush },
	{ "repair", "", "put in order what pushes that died have left", 0, 0, ctl_repair },
	{ "sleep", "", "let them give away memory", 0, 0, ctl_sleep },
	{ "wake", "", "let them take it back", 0, 0, ctl_wake },
	{ "init-group", "[NAME]", "form a process group, to see whether it does", 0, 1, ctl_init_group },
	{ "destroy-group", "NAME", "have them leave a process group", 1, 1, ctl_destroy_group },
	{ "version", "[VERSION]", "show the weight version, or set it", 0, 1, ctl_version },
	{ 0 },
};

static const struct opt opts[] = {
	OPT_GROUP("Where"),
	OPT_LIST('e', "endpoint", "URL", &cfg.endpoints,
	         "ask this endpoint (every registered one); repeatable"),
	OPT_STRING(0, "pool", "NAME", &cfg.pool,
	           "of the registered endpoints, only those of this pool"),
	OPT_REGISTRY(&cfg.common),
	OPT_API_KEY_FILE(&cfg.common),
	OPT_CA_FILE(&cfg.common),
	OPT_LIMIT(0, "connect-timeout", &cfg.connect_ns, "to connect (10s)"),
	OPT_LIMIT('t', "timeout", &cfg.timeout_ns, "for the answers (60s); for all of repair --again (none)"),
	OPT_GROUP_FOR("What they are", "info pause sleep wake"),
	OPT_LINEAGE(&cfg.lineage),
	OPT_GROUP_FOR("Pausing", "pause"),
	OPT_CHOICE(0, "mode", mode_names, &cfg.mode,
	           "what becomes of running requests: they end, are queued again, or stay (abort)"),
	OPT_GROUP_FOR("Memory", "sleep wake"),
	OPT_STRING(0, "tags", "LIST", &cfg.tags,
	           "which: weights, kv_cache, cuda_graph, joined by commas (all)"),
	OPT_GROUP_FOR("Flushing", "flush sleep"),
	OPT_DURATION(0, "wait", &cfg.wait_ns, "keep asking a busy endpoint for so long (60s)"),
	OPT_GROUP_FOR("Forming a group", "init-group"),
	OPT_STRING(0, "master-address", "ADDRESS", &cfg.master_address,
	           "this machine as the servers reach it (default: found)"),
	OPT_UINT(0, "master-port", "PORT", 0, 65535, &cfg.master_port, "port of the rendezvous (0: any)"),
	OPT_FLAG(0, "keep", &cfg.keep, "hold the group until Ctrl-C, then have them leave it"),
	OPT_GROUP_FOR("What pushes have left", "info repair sleep wake"),
	OPT_STATE_DIR(&cfg.state_dir),
	OPT_GROUP_FOR("Repairing", "repair"),
	OPT_FLAG(0, "again", &cfg.again, "push again what was pushed, with the same options"),
	OPT_FLAG('n', "dry-run", &cfg.dry_run, "ask the endpoints and say what is the matter, change nothing"),
	OPT_FLAG(0, "resume-partial", &cfg.resume_partial,
	         "also resume endpoints that hold old and new weights"),
	OPT_FLAG(0, "assume-dead", &cfg.assume_dead,
	         "also after processes on other machines or in other containers"),
	OPT_FLAG(0, "forget", &cfg.forget, "ask nobody, and forget what is recorded of the endpoints"),
	OPT_COMMON(&cfg.common),
	OPT_END,
};

static const struct opt_program program = {
	.name = "wsync-ctl",
	.args = "COMMAND [ARGUMENT]",
	.summary = "Make one lifecycle call to every endpoint at once.",
	.examples = { "wsync-ctl info",
	              "wsync-ctl pause --mode abort && wsync-ctl flush --wait 30s",
	              "wsync-ctl version 120 --endpoint gpu7:30000",
	              "wsync-ctl repair --again" },
	.commands = commands,
	.opts = opts,
};

static void run(const struct opt_args *args, struct ui *ui, struct ws_err *err)
{
	struct ctl_job job = { .cfg = &cfg, .ui = ui, .until = WS_FOREVER };
	outlet_never_wait();
	if (cfg.timeout_ns == CTL_NO_TIMEOUT)
		cfg.timeout_ns = 60 * WS_NS_PER_S;
	else
		job.until = ws_deadline_in(cfg.timeout_ns);
	ui_begin(ui);
	/* The endpoints of a repair are the recorded ones. */
	const bool all = args->command->run == ctl_repair && !cfg.endpoints.n && !cfg.pool;
	int rc = all ? targets_read_key(&job.to, &cfg.common, ui, err)
	             : targets_find(&job.to, &cfg.endpoints, cfg.pool, &cfg.common, false, ui, err);
	if (!rc)
		rc = targets_connect(&job.to, cfg.connect_ns, ui, &job.http, err);
	if (!rc)
		args->command->run(&job, args, err);
	ws_client_close(job.http);
	targets_free(&job.to);
}

int main(int argc, char **argv)
{
	return main_run(&(struct main_program){ &program, &cfg.common, NULL, run }, argc, argv);
}
