/* SPDX-License-Identifier: Apache-2.0 */
/* wsync-push.c - options in, one library call, events out. */
#include "main.h"
#include "naming.h"
#include "outlet.h"
#include "push/canary.h"
#include "push/measuring.h"
#include "push/tracing.h"
#include "pushing.h"
#include "run.h"
#include "targets.h"
#include "transforming.h"

#include "wsync/push.h"
#include "wsync/tool/fleet.h"
#include "wsync/tool/str.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LOCK_SERVICE_IS_GONE                                                                       \
	"was removed with the lock service: use --lock FILE on a file system that all senders "    \
	"share"

static struct {
	struct opt_common common;
	struct naming naming;
	struct transforming transforming;
	struct pushing pushing;
	const char *weight_version, *lock, *round, *write;
	unsigned asleep;
	struct tracing tracing;
	struct measuring measuring;
	unsigned sender, senders;
	bool from_stdin, no_follow, only_stale, dry_run, stage;
	uint64_t min_endpoints;
	struct canary canary;
	int64_t timeout_ns; /* 0: none */
} cfg = {
	.pushing = PUSHING_DEFAULTS,
	.common.connect_ns = WS_PUSH_CONNECT_NS,
};

static struct {
	int argc;
	char **argv;
} command_line;

/* "2/4" */
static int take_sender(void *ctx, const char *value, struct ws_err *err)
{
	(void)ctx;
	uint64_t i = 0, n = 0;
	char first[16];
	const size_t at = strcspn(value, "/");
	snprintf(first, sizeof first, "%.*s", (int)(at < 15 ? at : 15), value);
	if (!value[at] || ws_parse_uint(value + at + 1, 1, 1024, "N", &n, NULL) ||
	    ws_parse_uint(first, 1, n, "I", &i, NULL))
		return ws_err_set(err, WS_EUSAGE,
		                  "invalid value '%s', must be like 2/4, of at most 1024", value);
	cfg.sender = (unsigned)i;
	cfg.senders = (unsigned)n;
	return 0;
}

/* "weights,kv_cache" or "recorded" */
static int parse_asleep(const char *text, unsigned *out, struct ws_err *err)
{
	*out = WS_MEMORY_RECORDED;
	return strcmp(text, "recorded") == 0 ? 0 : ws_memory_parse(text, out, err);
}

static int take_asleep(void *ctx, const char *value, struct ws_err *err)
{
	(void)ctx;
	return parse_asleep(value, &cfg.asleep, err);
}

static const struct opt opts[] = {
	OPT_GROUP("Endpoints"),
	OPT_LIST('e', "endpoint", "URL", &cfg.common.endpoints,
	         "push to this server; repeatable (all registered)", .basic = true),
	OPT_POOL(&cfg.common),
	OPT_REGISTRY(&cfg.common),
	OPT_KEYS(&cfg.common),
	OPT_FLAG(0, "only-stale", &cfg.only_stale,
	         "skip servers that have the weight version (hash: the bytes)", .basic = true),
	OPT_UINT(0, "min-endpoints", "N", 1, 1000000, &cfg.min_endpoints,
	         "leave out unreachable servers if N get the weights (all)", .basic = true),
	OPT_UINT(0, "canary", "N", 1, 1000000, &cfg.canary.n,
	         "push to the first N servers, run --canary-check, then to the rest"),
	OPT_STRING(0, "canary-check", "COMMAND", &cfg.canary.command,
	           "shell command with $WSYNC_ENDPOINTS, $WSYNC_VERSION; 0: go on"),
	OPT_LIMIT(0, "canary-timeout", &cfg.canary.timeout_ns,
	          "time limit of the canary check (10m)"),
	OPT_GROUP("Source"),
	OPT_NAMING(&cfg.naming),
	OPT_LIST(0, "include", "GLOB", &cfg.transforming.include,
	         "send only tensors whose name matches; repeatable", .basic = true),
	OPT_LIST(0, "exclude", "GLOB", &cfg.transforming.exclude,
	         "skip tensors whose name matches; repeatable"),
	OPT_STRING(0, "weight-version", "V", &cfg.weight_version,
	           "version label that the servers report", .basic = true),
	OPT_PUSHING_OLDER(&cfg.pushing),
	OPT_PUSHING_UNKNOWN(&cfg.pushing),
	OPT_FLAG(0, "stdin", &cfg.from_stdin,
	         "push lines of stdin: SOURCE[TAB VERSION[TAB MEMORY]]", .basic = true),
	OPT_FLAG(0, "no-follow", &cfg.no_follow,
	         "--stdin: keep the endpoints registered at the start"),
	OPT_FLAG('n', "dry-run", &cfg.dry_run, "print the plan, change nothing", .basic = true),
	OPT_FLAG(0, "stage", &cfg.stage,
	         "send only; wsync-ctl complete loads it"),
	OPT_STRING(0, "write", "DIR", &cfg.write,
	           "write what would be sent as a checkpoint; no endpoint takes part"),
	OPT_GROUP("Transforms"),
	OPT_TRANSFORMING(&cfg.transforming),
	OPT_GROUP("Transport"),
	OPT_PUSHING(&cfg.pushing),
	OPT_CALL(0, "asleep", "LIST", take_asleep, NULL,
	         "memory to wake: weights,kv_cache,cuda_graph or recorded"),
	OPT_CALL(0, "sender", "I/N", take_sender, NULL,
	         "push as sender I of N, each with a part of the weights"),
	OPT_STRING(0, "lock", "FILE", &cfg.lock,
	           "lock file shared by all senders; only the holder sends"),
	OPT_STRING(0, "round", "ID", &cfg.round,
	           "name of the senders' common step (default: the weight version)"),
	OPT_PUSHING_VERIFY(&cfg.pushing),
	OPT_PUSHING_COVERAGE(&cfg.pushing),
	OPT_GROUP("Timeouts"),
	OPT_CONNECT_TIMEOUT(&cfg.common),
	OPT_PUSHING_TIMES(&cfg.pushing),
	OPT_LIMIT('t', "timeout", &cfg.timeout_ns, "time limit of the whole push (none)",
	          .basic = true),
	OPT_GROUP("Output files"),
	OPT_STRING(0, "trace", "FILE", &cfg.tracing.file,
	           "write a trace for Perfetto or chrome://tracing"),
	OPT_STRING(0, "metrics", "FILE", &cfg.measuring.file,
	           "write metrics for Prometheus's textfile collector"),
	OPT_COMMON(&cfg.common),
	OPT_PROGRESS(&cfg.common),
	OPT_END,
};

static const struct opt_gone gone[] = {
	{ "lock-key-file", LOCK_SERVICE_IS_GONE },
	{ "lock-lease", LOCK_SERVICE_IS_GONE },
	{ "prove-flush", "was removed: use wsync-verify caches --between" },
	{ NULL, NULL },
};

static const struct opt_program program = {
	.name = "wsync-push",
	.args = "SOURCE...",
	.summary = "Push model weights into running inference servers. SOURCE is a .safetensors "
	           "file, a checkpoint directory, hf:ORG/NAME (Hugging Face cache), "
	           "cuda-ipc:MANIFEST (GPU memory of a trainer) or synthetic:MODEL[:SEED]; "
	           "several are one checkpoint.",
	.examples = { "wsync-push ckpt/ --weight-version 120",
	              "wsync-push ckpt/ -e gpu7:30000 -e gpu8:30000 --verify hash --json",
	              "wsync-push --dry-run synthetic:deepseek-v3" },
	.min_args = 0,
	.max_args = OPT_MANY,
	.opts = opts,
	.gone = gone,
};

static void emit_start(struct ui *ui, size_t n_endpoints)
{
	const struct ws_event ev = { .type = WS_EV_START,
		                     .start = { .command = "push", .n_endpoints = n_endpoints } };
	ui->sink.event(ui->sink.ctx, &ev);
}

/* The sum of all lines of --stdin. */
static struct ws_ev_end sum = { .ok = true };
static bool has_ended; /* the end was emitted */

static void emit_end(enum ws_event_type type, const struct ws_ev_end *end)
{
	const struct ws_event ev = { .type = type, .end = *end };
	has_ended = type == WS_EV_END;
	cfg.measuring.sink.event(cfg.measuring.sink.ctx, &ev);
}

static int push_once(struct ws_fleet *f, const struct opt_args *args, struct ui *ui,
                     struct ws_err *err)
{
	const struct ws_push_source source = { .paths = args->v,
		                               .n_paths = args->n,
		                               .asleep = cfg.asleep };
	struct ws_ev_end end;
	const int rc = ws_fleet_run(f, &source, &end, err);
	ws_fleet_finish(f, &end);
	end.source = NULL;
	tracing_write(&cfg.tracing, ui);
	emit_end(WS_EV_END, &end);
	return rc;
}

static void add_result(const struct ws_ev_end *end)
{
	sum.n_results++;
	sum.bytes += end->bytes;
	sum.wire_bytes += end->wire_bytes;
	sum.tensors += end->tensors;
	sum.buckets += end->buckets;
	sum.bucket_size = end->bucket_size;
	sum.total_ns += end->total_ns; /* without the waits for lines */
	for (int i = 0; i < WS_PHASE_COUNT; i++)
		sum.ns[i] += end->ns[i];
}

/* A write to --trace or --metrics could hang as well, so neither is written. */
static void quit_hung(void *ctx, const struct ws_ev_end *end, const struct ws_err *err)
{
	const struct ui *ui = ctx;
	struct ws_event ev = { .type = WS_EV_RESULT, .end = *end };
	if (!has_ended && cfg.from_stdin) {
		ui->sink.event(ui->sink.ctx, &ev);
		add_result(end);
		ev.end = sum;
		ev.end.ok = false;
		ev.end.err = err;
		ev.end.n_endpoints = end->n_endpoints;
		ev.end.endpoints = end->endpoints;
		ev.end.verify = end->verify;
	}
	ev.type = WS_EV_END;
	ev.end.source = NULL;
	if (!has_ended)
		ui->sink.event(ui->sink.ctx, &ev);
	run_quit(err);
}

enum { LINE_MOST = 1 << 20 };
static char line[LINE_MOST + 1];

/* The writer may have died in the middle of a path, which may be the path of another checkpoint. */
static void refuse_cut_line(struct ws_err *err)
{
	ws_err_set(err, WS_EINPUT,
	           "the last line has no newline: it may be cut short, and was not pushed");
	ws_err_hint(err, "end every line with a newline, the last one too");
}

static void refuse_no_source(struct ws_err *err)
{
	ws_err_set(err, WS_EUSAGE, "the line has no source before its first tab");
	ws_err_hint(err, "is a variable of the shell not set?");
}

/* The next byte of stdin, which another process may have made non-blocking. EOF also
 * when the push is cancelled. */
static int next_byte(void)
{
	int c;
	while ((c = getchar()) == EOF && ferror(stdin) && errno == EAGAIN &&
	       !ws_cancelled(&run_cancel)) {
		struct pollfd ready[] = { { .fd = STDIN_FILENO, .events = POLLIN },
			                  { .fd = ws_cancel_fd(&run_cancel), .events = POLLIN } };
		clearerr(stdin);
		poll(ready, 2, -1);
	}
	return c;
}

/* Reads the next line of stdin, without its newline. Returns false at the end of stdin, and with
 * *err set if stdin cannot be read. A bad line (too long, with a NUL byte, without a source, or
 * without a newline) is read to its end and sets *err. */
static bool read_line(struct ws_err *err)
{
	size_t n = 0;
	bool too_long = false, has_nul = false;
	int c = next_byte();
	if (c == EOF && !ferror(stdin))
		return false;
	for (; c != '\n' && c != EOF; c = next_byte()) {
		too_long = too_long || n == LINE_MOST;
		has_nul = has_nul || c == 0;
		if (!too_long)
			line[n++] = (char)c;
	}
	if (n && line[n - 1] == '\r')
		n--;
	line[n] = 0;
	ui_words_read(line, n);
	if (ferror(stdin)) {
		ws_err_errno(err, "read standard input");
		return false;
	}
	if (too_long)
		ws_err_set(err, WS_EINPUT, "the line is longer than 1 MiB");
	else if (has_nul)
		ws_err_set(err, WS_EINPUT, "the line has a NUL byte");
	else if (c == EOF)
		refuse_cut_line(err);
	else if (line[0] == '\t')
		refuse_no_source(err);
	return true;
}

/* Splits the line at its tabs. false: it is empty. */
static bool split_line(char **path, char **version, char **asleep)
{
	char *tab = strchr(line, '\t'), *next = tab ? strchr(tab + 1, '\t') : NULL;
	if (tab)
		*tab = 0;
	if (next)
		*next = 0;
	*path = line;
	*version = tab && (tab[1] || !next) ? tab + 1 : NULL;
	*asleep = next && next[1] ? next + 1 : NULL;
	return line[0] != 0;
}

/* Reads the registry again: new endpoints join, and removed ones leave. Not with --endpoint. */
static int follow(struct ws_fleet *f, struct targets *targets, struct ws_err *err)
{
	struct targets now = { 0 };
	if (cfg.no_follow || cfg.common.endpoints.n || !targets->n)
		return 0;
	if (targets_find_urls(&now, &cfg.common, false, err) ||
	    ws_fleet_set_endpoints(f, now.urls, now.n, err)) {
		targets_free(&now);
		return -1;
	}
	targets_swap_urls(targets, &now);
	targets_free(&now);
	return 0;
}

/* Pushes the source of one line. An empty line has no source and no result. A line that cannot be
 * read fills *refused instead of *end. *asleep is the released memory of lines without a third
 * field: --asleep at first; after a line has recorded it, WS_MEMORY_RECORDED. Memory that no line
 * has recorded yet is added to the lists of later lines. If a record has contradicted it, a line
 * with "recorded" drops it. */
static int push_line(struct ws_fleet *f, struct targets *targets, unsigned *asleep,
                     struct ws_ev_end *end, struct ws_ev_end *refused, struct ws_err *err)
{
	char *path, *version, *list;
	unsigned pending = *asleep & WS_MEMORY_ALL;
	unsigned listed = *asleep;
	end->source = NULL;
	if (!split_line(&path, &version, &list))
		return 0;
	if ((list && parse_asleep(list, &listed, err)) || follow(f, targets, err)) {
		refused->source = path;
		return -1;
	}
	if (list && listed == WS_MEMORY_RECORDED && ws_fleet_asleep(f) == WS_ASLEEP_CONTRADICTED)
		pending = 0;
	const char *const paths[] = { path };
	const struct ws_push_source source = {
		.paths = paths, .n_paths = 1, .weight_version = version, .asleep = listed | pending,
	};
	const int rc = ws_fleet_run(f, &source, end, err);
	switch (ws_fleet_asleep(f)) {
	case WS_ASLEEP_RECORDED:
		*asleep = WS_MEMORY_RECORDED;
		break;
	case WS_ASLEEP_PENDING:
		if (list)
			*asleep = WS_MEMORY_RECORDED | listed | pending;
		break;
	case WS_ASLEEP_REFUSED:
	case WS_ASLEEP_CONTRADICTED:
		break;
	}
	return rc;
}

/* A line that fails does not end the loop: its result says so, and the next line gets a new
 * group. The exit code is the last failure's. */
static int push_lines(struct ws_fleet *f, struct targets *targets, struct ui *ui,
                      struct ws_err *err)
{
	struct ws_ev_end end = { .ok = true };
	size_t failed = 0;
	enum ws_code code = WS_OK;
	unsigned asleep = cfg.asleep;
	for (unsigned long long n = 1; !ws_cancelled(&run_cancel); n++) {
		struct ws_err e = WS_ERR_INIT;
		char where[40];
		snprintf(where, sizeof where, "line %llu of stdin", n);
		struct ws_ev_end refused = { .err = &e,
			                     .verify = pushing_verifies[cfg.pushing.verify] };
		if (!read_line(&e)) {
			*err = e;
			break;
		}
		if (e.code)
			refused.source = where;
		if (e.code || push_line(f, targets, &asleep, &end, &refused, &e)) {
			failed++;
			code = e.code;
		} else if (!end.source) {
			continue;
		}
		const struct ws_ev_end *result = refused.source ? &refused : &end;
		emit_end(WS_EV_RESULT, result);
		add_result(result);
		if (ws_err_gpu_broken(&e)) { /* no later line could be pushed */
			*err = e;
			break;
		}
	}
	ws_fleet_finish(f, &sum);
	sum.n_endpoints = end.n_endpoints;
	sum.endpoints = end.endpoints;
	sum.verify = pushing_verifies[cfg.pushing.verify];
	const bool cancelled = ws_cancelled(&run_cancel);
	if (failed && (!err->code || cancelled))
		ws_err_set(err, code, "%zu of %zu sources were not pushed", failed, sum.n_results);
	else if (cancelled) /* further lines might have come */
		ws_err_set(err, WS_ECANCELLED, "cancelled after %zu sources", sum.n_results);
	sum.ok = err->code == WS_OK;
	sum.err = sum.ok ? NULL : err;
	tracing_write(&cfg.tracing, ui);
	emit_end(WS_EV_END, &sum);
	return sum.ok ? 0 : -1;
}

/* The options for `wsync-ctl repair --again`: without sources, endpoints and those of one run. */
struct again {
	char directory[PUSHING_PATH];
	struct opt_list words;
};

static int find_again(struct again *a, struct ws_push_opts *o, struct ws_err *err)
{
	/* The record has the weight version, except for a turn that does not set it;
	 * in such a turn the option names the round. */
	const char *const but[] = { "endpoint",  "pool",    "registry",
		                    "only-stale", "min-endpoints", "canary",
		                    "canary-check", "canary-timeout", "no-follow",
		                    "stdin",     "dry-run", "group-name",
		                    "state-dir", "asleep",  "json",
		                    "quiet",     "verbose", "color",
		                    "progress",  "trace",   cfg.lock ? NULL : "weight-version",
		                    NULL };
	if (opt_repeat(&program, command_line.argc, command_line.argv, but, &a->words, err))
		return -1;
	if (!getcwd(a->directory, sizeof a->directory))
		return 0; /* the directory was removed: the push cannot be repeated */
	o->again_directory = a->directory;
	o->again_args = a->words.items;
	o->n_again_args = a->words.n;
	return 0;
}

static void free_again(struct again *a)
{
	for (size_t i = 0; i < a->words.n; i++)
		free((void *)(uintptr_t)a->words.items[i]);
	free(a->words.items);
}

static int push(const struct opt_args *args, struct targets *targets, struct ui *ui,
                struct ws_err *err)
{
	const struct ws_transform_opts transform = transforming_opts(&cfg.transforming);
	struct ws_push_opts o = pushing_opts(&cfg.pushing, &cfg.common, &cfg.naming, &transform,
	                                     targets, ui);
	struct ws_fleet *f = NULL;
	struct again again = { 0 };
	char state[PUSHING_PATH];
	o.sender = cfg.sender;
	o.senders = cfg.senders;
	o.sender_lock = cfg.lock;
	o.round = cfg.round;
	o.weight_version = cfg.weight_version;
	o.write_dir = cfg.write;
	o.stage = cfg.stage;
	o.dry_run = cfg.dry_run;
	o.list_tensors = cfg.dry_run || cfg.common.verbose > 0;
	o.timeout_ns = cfg.timeout_ns;
	o.sink = cfg.measuring.sink;
	o.trace = cfg.tracing.trace;
	o.hung = quit_hung;
	o.hung_ctx = ui;
	int rc = pushing_find_state(&cfg.pushing, state, &o, ui, err);
	if (!rc)
		rc = find_again(&again, &o, err);
	const struct ws_fleet_opts fleet = { .push = o,
		                             .only_stale = cfg.only_stale,
		                             .min_endpoints = (size_t)cfg.min_endpoints,
		                             .canaries = (size_t)cfg.canary.n,
		                             .check = canary_check,
		                             .check_ctx = &cfg.canary };
	if (!rc)
		rc = ws_fleet_open(&fleet, &f, err);
	if (!rc)
		rc = cfg.from_stdin ? push_lines(f, targets, ui, err) :
		                      push_once(f, args, ui, err);
	ws_fleet_close(f);
	free_again(&again);
	return rc;
}

static int check_usage(const struct opt_args *args)
{
	if (cfg.lock && strstr(cfg.lock, "://"))
		return opt_usage(&program, "--lock URL: " LOCK_SERVICE_IS_GONE);
	if (cfg.lock && !cfg.sender)
		return opt_usage(&program, "--lock is for several senders: it needs --sender I/N");
	if (cfg.from_stdin && args->n)
		return opt_usage(&program, "--stdin takes no SOURCE");
	if (cfg.from_stdin && cfg.pushing.disk_path && !cfg.pushing.disk_dir)
		return opt_usage(&program,
		                 "--disk-path names one SOURCE: with --stdin it needs --disk-dir");
	if (cfg.from_stdin && (cfg.round || (cfg.lock && cfg.weight_version)))
		return opt_usage(&program, "--round, or --weight-version with --lock, names one "
		                           "round: with --stdin each "
		                           "line has its version, after a tab");
	if (cfg.write && cfg.from_stdin)
		return opt_usage(&program, "--write names the checkpoint of one SOURCE: it takes "
		                           "no --stdin");
	if (cfg.write && (cfg.asleep || cfg.measuring.file))
		return opt_usage(&program, "--write takes no --asleep and --metrics, which are "
		                           "about endpoints");
	if (cfg.write && (cfg.common.endpoints.n || cfg.common.pool || cfg.common.registry))
		return opt_usage(&program, "--write takes no --endpoint, --pool and --registry");
	if (cfg.stage && cfg.pushing.require & WS_REQUIRE_CACHES)
		return opt_usage(&program, "--require caches is not for --stage: caches are "
		                           "cleared when the weights are loaded");
	if (cfg.stage && (cfg.from_stdin || cfg.asleep))
		return opt_usage(&program, "--stage takes no %s",
		                 cfg.from_stdin ? "--stdin" : "--asleep");
	if (cfg.no_follow && (!cfg.from_stdin || cfg.common.endpoints.n))
		return opt_usage(&program, "--no-follow is for --stdin with registered endpoints");
	if (cfg.canary.timeout_ns && !cfg.canary.n)
		return opt_usage(&program, "--canary-timeout needs --canary");
	if (!cfg.canary.n != !cfg.canary.command)
		return opt_usage(&program, "--canary and --canary-check need each other");
	if (cfg.asleep & ~(unsigned)WS_MEMORY_RECORDED &&
	    (cfg.only_stale || cfg.min_endpoints || cfg.canary.n))
		return opt_usage(&program, "--asleep LIST is about all endpoints: with "
		                           "--only-stale, --min-endpoints or --canary use --asleep "
		                           "recorded");
	if (cfg.only_stale && !cfg.from_stdin && !cfg.weight_version &&
	    cfg.pushing.verify != WS_VERIFY_HASH)
		return opt_usage(&program, "--only-stale needs --weight-version or --verify hash, "
		                           "to find the endpoints that lack the weights");
	if (!cfg.from_stdin && !args->n)
		return opt_usage(&program, "missing argument: SOURCE...");
	if (cfg.tracing.file && cfg.measuring.file &&
	    strcmp(cfg.tracing.file, cfg.measuring.file) == 0)
		return opt_usage(&program, "--trace and --metrics name the same file");
	if (transforming_lacks(&cfg.transforming))
		return opt_usage(&program, "%s", transforming_lacks(&cfg.transforming));
	return OPT_GO;
}

static void run(const struct opt_args *args, struct ui *ui, struct ws_err *err)
{
	/* A dry run needs no endpoint, unless --pool or --registry is given. */
	const bool optional = cfg.dry_run && !cfg.common.pool && !cfg.common.registry;
	/* Of the senders of one group, only the first sends requests to endpoints. */
	const bool follows =
		cfg.sender > 1 && !cfg.lock && cfg.pushing.protocol == WS_PROTOCOL_EP_SCATTER;
	struct targets targets = { 0 };
	if (!cfg.dry_run)
		outlet_never_wait();
	int rc = measuring_begin(&cfg.measuring, ui, err) || tracing_begin(&cfg.tracing, err) ? -1 :
	                                                                                        0;
	if (rc == 0)
		rc = follows || cfg.write ? targets_read_key(&targets, &cfg.common, ui, err) :
		               targets_find(&targets, &cfg.common, optional, ui, err);
	if (rc == 0) {
		emit_start(ui, targets.n);
		push(args, &targets, ui, err);
	}
	targets_free(&targets);
	tracing_end(&cfg.tracing, ui);
	measuring_end(&cfg.measuring, err, cfg.dry_run);
}

int main(int argc, char **argv)
{
	command_line.argc = argc;
	command_line.argv = argv;
	return main_run(&(struct main_program){ &program, &cfg.common, check_usage, run }, argc,
	                argv);
}
