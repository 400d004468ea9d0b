/* SPDX-License-Identifier: Apache-2.0 */
/* wsync-verify - answers yes or no, with a reason. One file for each command, in cmd/verify/. */
#include "verify/verify_cmd.h"

#include "main.h"
#include "outlet.h"
#include "run.h"

static struct verify_config cfg = {
	.limit = 3,
	.common.connect_ns = WS_PUSH_CONNECT_NS,
	.samples = 32,
	.min_equal = 1,
	.limits = { WS_LOGPROBS_NO_LIMITS, WS_LOGPROBS_NO_LIMITS },
	.max_new_tokens = 16,
	.parallel = 1,
	.tokens = 200,
	.pushing = PUSHING_DEFAULTS,
};

static const struct opt_command commands[] = {
	{ "names", "SOURCE...", "check names, shapes and dtypes against the server", 1,
	  OPT_MANY, verify_names },
	{ "weights", "SOURCE...", "compare the weights of endpoints with SOURCE", 1, OPT_MANY,
	  verify_weights },
	{ "scales", "[SOURCE...]", "check quantization scales of SOURCE or a server", 0,
	  OPT_MANY, verify_scales },
	{ "flags", "[FILE]", "compare settings with FILE or between endpoints", 0, 1,
	  verify_flags },
	{ "routing", "[FILE [OTHER]]", "check and compare the experts of each token", 0, 2,
	  verify_routing },
	{ "logprobs", "[FILE [OTHER]]", "compare token probabilities of endpoints or files", 0, 2,
	  verify_logprobs },
	{ "caches", "", "check that a command clears the prefix cache", 0, 0,
	  verify_caches },
	{ 0 },
};

static const struct opt opts[] = {
	OPT_GROUP_OF("Model", "names weights scales routing"),
	OPT_NAMING_CONFIG(&cfg.naming),
	OPT_GROUP_OF("Source", "names weights scales"),
	OPT_NAMING_SOURCE(&cfg.naming),
	OPT_LIST(0, "include", "GLOB", &cfg.transforming.include,
	         "check only tensors whose name matches; repeatable", .basic = true),
	OPT_LIST(0, "exclude", "GLOB", &cfg.transforming.exclude,
	         "skip tensors whose name matches; repeatable"),
	OPT_GROUP_FOR("Transforms", "names weights scales"),
	OPT_TRANSFORMING(&cfg.transforming),
	OPT_GROUP("Endpoints"),
	OPT_LIST('e', "endpoint", "URL", &cfg.common.endpoints,
	         "use this endpoint; repeatable (all registered)", .basic = true),
	OPT_POOL(&cfg.common),
	OPT_REGISTRY(&cfg.common),
	OPT_KEYS(&cfg.common),
	OPT_CONNECT_TIMEOUT(&cfg.common),
	OPT_LIMIT('t', "timeout", &cfg.timeout_ns,
	          "time limit of the requests (60s; weights: none)", .basic = true),
	OPT_GROUP_FOR("Server, instead of --endpoint", "names"),
	OPT_UINT(0, "tp", "N", 1, 1024, &cfg.tp, "tensor-parallel size (1)"),
	OPT_UINT(0, "ep", "N", 1, 1024, &cfg.ep, "expert-parallel size (1)"),
	OPT_UINT(0, "attention-tp", "N", 1, 1024, &cfg.attention_tp,
	         "ranks that share attention: tp / dp with dp attention (tp)"),
	OPT_STRING(0, "list", "FILE", &cfg.list,
	           "saved list of the server's parameters; - is standard input"),
	OPT_GROUP_FOR("Scales", "scales"),
	OPT_LIST(0, "against", "SOURCE", &cfg.against,
	         "compare with these unquantized weights; repeatable"),
	OPT_CALL(0, "max-error", "SHARE", verify_max_error, &cfg.max_error,
	         "limit of the relative RMS error (8 bits: 5%, 4 bits: 15%)"),
	OPT_GROUP_FOR("Names", "names"),
	OPT_FLAG(0, "scan", &cfg.scan, "read every tensor to find NaN, infinity and all zeros"),
	OPT_GROUP_FOR("Weights and scales", "weights scales"),
	OPT_UINT(0, "samples", "N", 0, 100000, &cfg.samples,
	         "parameters, or tensors of scales, to sample (32)"),
	OPT_UINT(0, "threads", "N", 1, 16, &cfg.threads,
	         "threads that read SOURCE (one per processor, at most 8)"),
	OPT_GROUP_FOR("Weights", "weights"),
	OPT_PUSHING_COVERAGE(&cfg.pushing),
	OPT_UINT(0, "seed", "N", 0, UINT64_MAX, &cfg.seed,
	         "random seed of the choice of samples (0)"),
	OPT_FLAG(0, "twice", &cfg.twice, "push SOURCE again: no checksum may change"),
	OPT_FLAG(0, "reset", &cfg.reset,
	         "overwrite weights with random numbers, push, compare (--yes)"),
	OPT_FLAG(0, "yes", &cfg.yes, "allow --reset to remove the endpoints' weights for a while"),
	OPT_GROUP_FOR("Flags", "flags"),
	OPT_LIST(0, "expect", "KEY=VALUE", &cfg.expect, "require this setting; repeatable"),
	OPT_GROUP_FOR("Routing", "routing"),
	OPT_STRING(0, "npy", "FILE", &cfg.npy, "write the experts to FILE for numpy.load"),
	OPT_CALL(0, "min-equal", "SHARE", verify_min_equal, &cfg.min_equal,
	         "share of rows that must be equal: 0.99 or 99% (100%)"),
	OPT_GROUP_FOR("Prompts", "routing logprobs"),
	OPT_LIST(0, "prompt", "TEXT", &cfg.prompts,
	         "send this prompt; repeatable (six built-in ones)", .basic = true),
	OPT_STRING(0, "prompts", "FILE", &cfg.prompts_file,
	           "file of prompts: lines of text, or JSON with text or input_ids", .basic = true),
	OPT_UINT(0, "max-new-tokens", "N", 1, 65536, &cfg.max_new_tokens,
	         "tokens to generate per prompt (16)"),
	OPT_UINT(0, "parallel", "N", 1, WS_ASK_PARALLEL, &cfg.parallel,
	         "prompts to send to an endpoint at the same time (1)"),
	OPT_FLAG(0, "flush-first", &cfg.flush_first,
	         "drop the prefix cache of the endpoints first"),
	OPT_STRING(0, "save", "FILE", &cfg.save, "save the answers to FILE, for a later comparison",
	           .basic = true),
	OPT_GROUP_FOR("Logprobs", "logprobs"),
	OPT_CALL(0, "max-difference", "[PART=]NUMBER", verify_limit, &cfg.limits->max,
	         "limit of the difference of two logprobs (0)"),
	OPT_CALL(0, "mean-difference", "[PART=]NUMBER", verify_limit, &cfg.limits->mean,
	         "limit of the mean difference of a prompt (none)"),
	OPT_CALL(0, "max-k3", "[PART=]NUMBER", verify_limit, &cfg.limits->k3,
	         "limit of the k3 estimate of the KL divergence (none)"),
	OPT_FLAG(0, "teacher-forced", &cfg.teacher_forced,
	         "score the tokens of the first side on the others, or on itself"),
	OPT_FLAG(0, "batched", &cfg.batched,
	         "compare each prompt alone and in a batch, bit by bit"),
	OPT_FLAG(0, "cached", &cfg.cached,
	         "compare tokens generated with and without the prefix cache"),
	OPT_GROUP_FOR("Caches", "caches"),
	OPT_STRING(0, "between", "COMMAND", &cfg.between,
	           "command for sh -c that must clear the prefix cache", .basic = true),
	OPT_UINT(0, "tokens", "N", 2, WS_PROMPT_TOKENS, &cfg.tokens,
	         "tokens of the prompt (200)"),
	OPT_GROUP_FOR("Pushing (--twice, --reset)", "weights"),
	OPT_PUSHING(&cfg.pushing),
	OPT_PUSHING_TIMES(&cfg.pushing),
	OPT_GROUP_OF("Findings", "names weights scales routing logprobs"),
	OPT_UINT(0, "limit", "N", 0, 1000000, &cfg.limit, "findings to show per reason; 0: all (3)",
	         .basic = true),
	OPT_GROUP_OF("Progress", "weights scales"),
	OPT_PROGRESS(&cfg.common),
	OPT_COMMON(&cfg.common),
	OPT_END,
};

static const struct opt_program program = {
	.name = "wsync-verify",
	.args = "COMMAND [SOURCE|FILE]...",
	.summary = "Check weights before or after a push; exit status 0 means yes, 1 means no.",
	.examples = { "wsync-verify names ckpt/ --endpoint gpu7:30000",
	              "wsync-verify names ckpt/ --tp 8 --ep 8",
	              "wsync-verify weights ckpt/ --endpoint gpu7:30000",
	              "wsync-verify logprobs -e gpu7:30000 -e gpu8:30000 --max-difference 0.05" },
	.commands = commands,
	.opts = opts,
};

static int check_usage(const struct opt_args *args)
{
	(void)args;
	if (cfg.common.endpoints.n && (cfg.list || cfg.tp || cfg.ep || cfg.attention_tp))
		return opt_usage(&program, "--%s: not with --endpoint, which reports it",
		                 cfg.list ? "list" :
		                 cfg.tp   ? "tp" :
		                 cfg.ep   ? "ep" :
		                            "attention-tp");
	if (transforming_lacks(&cfg.transforming))
		return opt_usage(&program, "%s", transforming_lacks(&cfg.transforming));
	return OPT_GO;
}

static void run(const struct opt_args *args, struct ui *ui, struct ws_err *err)
{
	struct verify_job job = { .cfg = &cfg, .ui = ui };
	if (args->command->run != verify_names)
		outlet_never_wait();
	ui_begin(ui);
	args->command->run(&job, args, err);
}

int main(int argc, char **argv)
{
	return main_run(&(struct main_program){ &program, &cfg.common, check_usage, run }, argc,
	                argv);
}
