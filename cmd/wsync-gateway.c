/* SPDX-License-Identifier: Apache-2.0 */
/* wsync-gateway - xorl's HTTP API for weights, for scripts that were written against it.
 *
 * It runs until a signal ends it; a push that is under way then ends as wsync-push does. "ready"
 * is printed when requests are answered. */
#include "main.h"
#include "naming.h"
#include "outlet.h"
#include "pushing.h"
#include "run.h"
#include "targets.h"
#include "transforming.h"

#include "gateway/gateway.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>

static struct {
	struct opt_common common;
	struct naming naming;
	struct transforming transforming;
	struct pushing pushing;
	const char *listen, *key_file;
	struct opt_list sources, roots, hosts;
	int64_t timeout_ns; /* 0: none */
} cfg = {
	.pushing = PUSHING_DEFAULTS,
	.listen = "127.0.0.1:6000",
	.common.connect_ns = WS_PUSH_CONNECT_NS,
};

static const struct opt opts[] = {
	OPT_GROUP("Addresses and keys"),
	OPT_STRING(0, "listen", "HOST:PORT", &cfg.listen,
	           "address to listen on; port 0: any free port (127.0.0.1:6000)", .basic = true),
	OPT_STRING(0, "require-key-file", "FILE", &cfg.key_file, "require the API key in this file",
	           .basic = true),
	OPT_REGISTRY(&cfg.common),
	OPT_KEYS(&cfg.common),
	OPT_GROUP("Sources and hosts"),
	OPT_LIST(0, "source", "SOURCE", &cfg.sources,
	         "SOURCE of requests that name none; several are one checkpoint", .basic = true),
	OPT_LIST(0, "source-root", "DIR", &cfg.roots,
	         "allow only sources below DIR in requests; repeatable", .basic = true),
	OPT_LIST(0, "allow-host", "GLOB", &cfg.hosts,
	         "allow only endpoints on hosts that match; repeatable", .basic = true),
	OPT_GROUP("Names"),
	OPT_NAMING(&cfg.naming),
	OPT_GROUP("Transforms (defaults for requests)"),
	OPT_TRANSFORMING(&cfg.transforming),
	OPT_GROUP("Transport (defaults for requests)"),
	OPT_PUSHING(&cfg.pushing),
	OPT_PUSHING_OLDER(&cfg.pushing),
	OPT_PUSHING_UNKNOWN(&cfg.pushing),
	OPT_PUSHING_VERIFY(&cfg.pushing),
	OPT_PUSHING_COVERAGE(&cfg.pushing),
	OPT_GROUP("Timeouts"),
	OPT_CONNECT_TIMEOUT(&cfg.common),
	OPT_PUSHING_TIMES(&cfg.pushing),
	OPT_LIMIT('t', "timeout", &cfg.timeout_ns, "time limit of a whole push (none)",
	          .basic = true),
	OPT_COMMON(&cfg.common),
	OPT_END,
};

static const struct opt_program program = {
	.name = "wsync-gateway",
	.args = "",
	.summary =
		"Answer the weight-sync requests of xorl's training server, and push checkpoints.",
	.notes = "Routes, also below /api/v1: add_inference_endpoint, list_inference_endpoints, "
		 "remove_inference_endpoint, sync_inference_weights, set_sync_quantization, "
		 "health. A sync request names its checkpoint in \"source\".",
	.examples = { "wsync-gateway --source ckpt/",
	              "curl --json '{\"source\":\"ckpt/\"}' "
	              "http://127.0.0.1:6000/sync_inference_weights" },
	.opts = opts,
};

/* Syncs run one at a time, so one that hangs blocks all later ones: exits, and
 * a supervisor restarts the gateway. */
static void quit_hung(void *ctx, const struct ws_ev_end *end, const struct ws_err *err)
{
	struct ui *ui = ctx;
	const struct ws_event ev = { .type = WS_EV_RESULT, .end = *end };
	if (ui->json)
		ui->sink.event(ui->sink.ctx, &ev);
	ui_end(ui, err);
	run_quit(err);
}

static void say_ready(struct ui *ui, const struct ws_gateway *g)
{
	struct ws_jw *w = ui_line(ui, "ready");
	ws_jw_str(w, "url", ws_gateway_url(g));
	ui_line_end(ui);
	ui_say(ui, "ready at %s\n", ws_gateway_url(g));
}

static void wait_for_signal(void)
{
	struct pollfd p = { .fd = ws_cancel_fd(&run_cancel), .events = POLLIN };
	while (!ws_cancelled(&run_cancel))
		poll(&p, 1, 1000);
}

static int serve(struct ws_gateway_opts *o, struct ui *ui, struct ws_err *err)
{
	struct ws_gateway *g = NULL;
	char *key = NULL;
	if (cfg.key_file && targets_read_file(cfg.key_file, &key, ui, err))
		return -1;
	o->api_key = key;
	const int rc = ws_gateway_start(o, &g, err);
	if (rc == 0) {
		say_ready(ui, g);
		wait_for_signal();
		ws_gateway_stop(g);
	}
	if (key)
		explicit_bzero(key, strlen(key));
	free(key);
	return rc;
}

static int find_paths(struct ws_gateway_opts *o, struct ws_buf *registry, char *state,
                      struct ui *ui, struct ws_err *err)
{
	if (run_registry_path(cfg.common.registry, registry, err) ||
	    pushing_find_state(&cfg.pushing, state, &o->push, ui, err))
		return -1;
	o->registry = ws_buf_str(registry);
	return 0;
}

static void run(const struct opt_args *args, struct ui *ui, struct ws_err *err)
{
	const struct ws_transform_opts transform = transforming_opts(&cfg.transforming);
	struct ws_gateway_opts o = {
		.listen = cfg.listen,
		.sources = cfg.sources.items,
		.n_sources = cfg.sources.n,
		.roots = cfg.roots.items,
		.n_roots = cfg.roots.n,
		.hosts = cfg.hosts.items,
		.n_hosts = cfg.hosts.n,
		.log = &ui->log,
		.cancel = &run_cancel,
		.reads = ui_words_read,
		.words = ui_words_but,
	};
	struct targets t = { 0 };
	struct ws_buf registry;
	char state[PUSHING_PATH];
	(void)args;
	ws_buf_init(&registry, PUSHING_PATH);
	outlet_never_wait();
	ui_begin(ui);
	if (targets_read_key(&t, &cfg.common, ui, err) == 0) {
		o.push = pushing_opts(&cfg.pushing, &cfg.common, &cfg.naming, &transform, &t, ui);
		o.push.timeout_ns = cfg.timeout_ns;
		o.push.sink = ui->sink;
		o.push.hung = quit_hung;
		o.push.hung_ctx = ui;
		if (find_paths(&o, &registry, state, ui, err) == 0)
			serve(&o, ui, err);
	}
	ws_buf_free(&registry);
	targets_free(&t);
}

int main(int argc, char **argv)
{
	return main_run(&(struct main_program){ &program, &cfg.common, NULL, run }, argc, argv);
}
