/* SPDX-License-Identifier: Apache-2.0 */
/* wsync-verify - answers yes or no, with a reason. One file for each command, in cmd/verify/. */
#include "verify/verify.h"

#include "main.h"
#include "outlet.h"
#include "run.h"

static struct verify_config cfg = {
	.limit = 3, .connect_ns = 10 * WS_NS_PER_S, .timeout_ns = VERIFY_NO_TIMEOUT, .samples = 32, .min_equal = 1,
	.limits = { WS_LOGPROBS_NO_LIMITS, WS_LOGPROBS_NO_LIMITS }, .max_new_tokens = 16, .parallel = 1,
	.pushing = PUSHING_DEFAULTS,
};

static const struct opt_command commands[] = {
	{ "names", "SOURCE...", "would every parameter of the server get its bytes from this source?", 1,
	  OPT_MANY, verify_names },
	{ "weights", "SOURCE...", "do the endpoints hold the bytes of this source?", 1, OPT_MANY,
	  verify_weights },
	{ "scales", "[SOURCE...]", "do the scales of a quantized checkpoint, or server, make sense?", 0,
	  OPT_MANY, verify_scales },
	{ "flags", "[FILE]", "do the endpoints compute as the trainer does, or one as the other?", 0, 1,
	  verify_flags },
	{ "routing", "[FILE [OTHER]]", "can the experts of an answer be, and are those of two the same?", 0, 2,
	  verify_routing },
	{ "logprobs", "[FILE [OTHER]]", "do endpoints, or saved answers, give the same tokens the same probabilities?", 0, 2,
	  verify_logprobs },
	{ 0 },
};

static const struct opt opts[] = {
	OPT_GROUP("The source"),
	OPT_NAMING(&cfg.naming),
	OPT_LIST(0, "include", "GLOB", &cfg.include, "only tensors whose name matches; repeatable"),
	OPT_LIST(0, "exclude", "GLOB", &cfg.exclude, "no tensor whose name matches; repeatable"),
	OPT_GROUP_FOR("Changed on its way", "names weights scales"),
	OPT_TRANSFORMING(&cfg.transforming),
	OPT_GROUP("The server"),
	OPT_LIST('e', "endpoint", "URL", &cfg.endpoints,
	         "ask this endpoint (every registered one, unless another option describes the server); "
	         "repeatable"),
	OPT_STRING(0, "pool", "NAME", &cfg.pool, "of the registered endpoints, only those of this pool"),
	OPT_REGISTRY(&cfg.common),
	OPT_API_KEY_FILE(&cfg.common),
	OPT_CA_FILE(&cfg.common),
	OPT_LIMIT(0, "connect-timeout", &cfg.connect_ns, "to connect (10s)"),
	OPT_LIMIT('t', "timeout", &cfg.timeout_ns, "for the endpoints' answers (weights: none; others: 60s)"),
	OPT_GROUP_FOR("A server that is not asked", "names"),
	OPT_UINT(0, "tp", "N", 1, 1024, &cfg.tp, "its tensor-parallel size (1)"),
	OPT_UINT(0, "ep", "N", 1, 1024, &cfg.ep, "its expert-parallel size (1)"),
	OPT_UINT(0, "attention-tp", "N", 1, 1024, &cfg.attention_tp,
	         "with data-parallel attention, tp / dp (tp)"),
	OPT_STRING(0, "list", "FILE", &cfg.list, "what it listed once, saved; - is standard input"),
	OPT_GROUP_FOR("Scales", "scales"),
	OPT_LIST(0, "against", "SOURCE", &cfg.against,
	         "the weights before they were quantized: tells how far off they are; repeatable"),
	OPT_CALL(0, "max-error", "SHARE", verify_max_error, &cfg.max_error,
	         "root mean square allowed, of the source's: 0.05 or 5% (8 bits: 0.05, 4 bits: 0.15)"),
	OPT_GROUP_FOR("Names", "names"),
	OPT_FLAG(0, "scan", &cfg.scan, "read every tensor: all zeros, NaN and infinity are found"),
	OPT_GROUP_FOR("Weights and scales", "weights scales"),
	OPT_UINT(0, "samples", "N", 0, 100000, &cfg.samples,
	         "parameters to look at number by number where a server shows no more (32)"),
	OPT_UINT(0, "threads", "N", 1, 16, &cfg.threads,
	         "that read the source (one for each processor, at most 8)"),
	OPT_GROUP_FOR("Weights", "weights"),
	OPT_UINT(0, "seed", "N", 0, UINT64_MAX, &cfg.seed, "chooses other parameters to look at (0)"),
	OPT_FLAG(0, "twice", &cfg.twice, "push the source once more: no checksum may change"),
	OPT_FLAG(0, "reset", &cfg.reset,
	         "push onto random numbers: the server finds what was not written; needs --yes"),
	OPT_FLAG(0, "yes", &cfg.yes, "the endpoints may be without weights meanwhile"),
	OPT_GROUP_FOR("Flags", "flags"),
	OPT_LIST(0, "expect", "KEY=VALUE", &cfg.expect, "the endpoints must have this setting; repeatable"),
	OPT_GROUP_FOR("Routing", "routing"),
	OPT_STRING(0, "npy", "FILE", &cfg.npy, "write the experts for numpy.load"),
	OPT_CALL(0, "min-equal", "SHARE", verify_min_equal, &cfg.min_equal,
	         "of the rows of two answers: 0.99 or 99% (100%)"),
	OPT_GROUP_FOR("Asking endpoints", "routing logprobs"),
	OPT_LIST(0, "prompt", "TEXT", &cfg.prompts, "ask this; repeatable (a few of different kinds)"),
	OPT_STRING(0, "prompts", "FILE", &cfg.prompts_file,
	           "ask these: lines of text, or of JSON with text or input_ids"),
	OPT_UINT(0, "max-new-tokens", "N", 1, 65536, &cfg.max_new_tokens, "to draw after each prompt (16)"),
	OPT_UINT(0, "parallel", "N", 1, WS_ASK_PARALLEL, &cfg.parallel,
	         "prompts that an endpoint gets at the same time (1)"),
	OPT_FLAG(0, "flush-first", &cfg.flush_first, "have the endpoints drop their cache of prefixes before"),
	OPT_STRING(0, "save", "FILE", &cfg.save, "keep the endpoint's answers, for FILE of a later run"),
	OPT_GROUP_FOR("Logprobs", "logprobs"),
	OPT_CALL(0, "max-difference", "[PART=]NUMBER", verify_max_difference, cfg.limits,
	         "allowed between two logarithms, of prefill, of decode or of both (0)"),
	OPT_CALL(0, "mean-difference", "[PART=]NUMBER", verify_mean_difference, cfg.limits,
	         "allowed on average, then --max-difference is only looked at when given"),
	OPT_CALL(0, "max-k3", "[PART=]NUMBER", verify_max_k3, cfg.limits,
	         "allowed as estimate of the divergence, likewise"),
	OPT_FLAG(0, "teacher-forced", &cfg.teacher_forced,
	         "have the others, or the same one, judge the tokens that the first side drew"),
	OPT_FLAG(0, "batched", &cfg.batched,
	         "each endpoint: prompts alone and all in one request have to agree to the bit"),
	OPT_FLAG(0, "cached", &cfg.cached,
	         "each endpoint: what is drawn with its cache of prefixes and without has to agree"),
	OPT_GROUP_FOR("Pushing (--twice, --reset)", "weights"),
	OPT_PUSHING(&cfg.pushing),
	OPT_PUSHING_TIMES(&cfg.pushing),
	OPT_GROUP("Findings"),
	OPT_UINT(0, "limit", "N", 0, 1000000, &cfg.limit,
	         "to show of those with one reason; 0: all (3)"),
	OPT_COMMON(&cfg.common),
	OPT_PROGRESS(&cfg.common),
	OPT_END,
};

static const struct opt_program program = {
	.name = "wsync-verify",
	.args = "COMMAND [SOURCE|FILE]...",
	.summary = "Answer yes or no, with a reason, before or after weights are pushed.",
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
	if (cfg.endpoints.n && (cfg.list || cfg.tp || cfg.ep || cfg.attention_tp))
		return opt_usage(&program, "--%s: --endpoint tells that itself",
		                 cfg.list ? "list" : cfg.tp ? "tp" : cfg.ep ? "ep" : "attention-tp");
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
	return main_run(&(struct main_program){ &program, &cfg.common, check_usage, run }, argc, argv);
}
