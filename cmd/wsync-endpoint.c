/* SPDX-License-Identifier: Apache-2.0 */
/* wsync-endpoint - an embedded inference endpoint: the peer of the tests, the target of the
 * demo, and a conformance server for people who write trainers.
 *
 * It runs until a signal ends it. "ready" is printed when requests are answered. */
#include "main.h"
#include "nccl.h"
#include "outlet.h"
#include "run.h"

#include "wsync/cancel.h"
#include "wsync/clock.h"
#include "wsync/tool/str.h"
#include "wsync/tool/serve.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const keep_names[] = { "memory", "hash", "none", NULL };
static const char *const saver_names[] = { "none", "drop", "backup", NULL };
/* In the order of the library's enums. */
static const char *const backend_names[] = { "gloo", "nccl", "ipc", NULL };
static const char *const nccl_init_names[] = { "auto", "lazy", "eager", NULL };
static const char *const torch_names[] = { "2.6", "1.13", NULL };
/* In the order of enum ws_serve_lineage. */
static const char *const lineage_names[] = { "lenient", "sglang-0.4", "sglang-0.5", "sglang-2026",
	                                     "xorl-legacy", "xorl", "session", "slime",
	                                     "vllm-0.20", "vllm-0.24", "vllm-0.27", "vllm-0.33",
	                                     NULL };

struct config {
	struct opt_common common;
	const char *listen, *model, *model_path, *served_model_name, *dtype, *quantization;
	const char *nccl_lib, *nccl_from;
	uint64_t tp, ep, busy, gpu;
	unsigned keep, torch, lineage, saver, backend, nccl_init;
	bool restart, routed, shared_gpu;
	int64_t init_ns, receive_ns, ready_ns, complete_ns, slow_ns;
	struct opt_list faults;
	bool checksums;
	unsigned device;
};

static struct config cfg = {
	.listen = "127.0.0.1:30000", .tp = 1, .ep = 1,
	.init_ns = 600 * WS_NS_PER_S, .receive_ns = 1800 * WS_NS_PER_S,
	.ready_ns = 60 * WS_NS_PER_S, .complete_ns = 300 * WS_NS_PER_S,
	.slow_ns = 2 * WS_NS_PER_S,
};

/* "none": wsync's own checksums, of the tensors. */
static const char *const device_names[] = { "none", "cpu", "cuda", NULL };

static const struct opt opts[] = {
	OPT_GROUP("Address and key"),
	OPT_STRING(0, "listen", "HOST:PORT", &cfg.listen,
	           "address to listen on; port 0: any free port (127.0.0.1:30000)", .basic = true),
	OPT_STRING(0, "api-key-file", "FILE", &cfg.common.api_key_file,
	           "file with the required API key ($WSYNC_API_KEY_FILE, else none)",
	           .basic = true),
	OPT_STRING(0, "admin-api-key-file", "FILE", &cfg.common.admin_api_key_file,
	           "file with SGLang's admin key ($WSYNC_ADMIN_API_KEY_FILE)"),
	OPT_GROUP("Server"),
	OPT_UINT(0, "tp", "N", 1, 64, &cfg.tp, "tensor-parallel ranks (1)", .basic = true),
	OPT_UINT(0, "ep", "M", 1, 64, &cfg.ep, "expert-parallel groups of these ranks (1)",
	         .basic = true),
	OPT_STRING(0, "model", "DIR", &cfg.model,
	           "load weights like a server of the model with this config.json", .basic = true),
	/* Too many for one row of choices. */
	{ OPT_ROW(OPT_KIND_CHOICE, 0, "lineage", "NAME",
	          "server family to emulate: lenient, sglang-0.4, sglang-0.5, sglang-2026, "
	          "xorl-legacy, xorl, session, slime, vllm-0.20, vllm-0.24, vllm-0.27, vllm-0.33 "
	          "(lenient)",
	          .basic = true),
	  .choices = lineage_names, .out.choice = &cfg.lineage },
	OPT_CHOICE(0, "backend", backend_names, &cfg.backend,
	           "also join NCCL groups (nccl), or map GPU memory (ipc) (gloo)", .basic = true),
	OPT_UINT(0, "gpu", "N", 0, 255, &cfg.gpu,
	         "GPU of rank 0; each further rank has the next one (0)"),
	OPT_FLAG(0, "shared-gpu", &cfg.shared_gpu,
	         "share the GPU with another process: NCCL sees another machine"),
	OPT_CHOICE(0, "nccl-init", nccl_init_names, &cfg.nccl_init,
	           "create NCCL's communicator at the first bucket or on joining"),
	OPT_STRING(0, "nccl-lib", "FILE", &cfg.nccl_lib,
	           "the peers' libnccl.so.2 ($WSYNC_NCCL_LIB, else the system's)"),
	OPT_STRING(0, "nccl-from", "PYTHON", &cfg.nccl_from,
	           "use the NCCL of this Python or virtual environment's torch"),
	OPT_CHOICE(0, "keep", keep_names, &cfg.keep,
	           "keep received weights, only their checksums, or nothing (memory)",
	           .basic = true),
	OPT_CHOICE(0, "torch", torch_names, &cfg.torch, "torch release to emulate (2.6)"),
	OPT_FLAG(0, "checksums", &cfg.checksums,
	         "report checksums even if this server family does not", .basic = true),
	OPT_CHOICE(0, "device", device_names, &cfg.device,
	           "play a stock server on this device: its checksums are of its parameters"),
	OPT_STRING(0, "model-path", "NAME", &cfg.model_path,
	           "model path to report (default: from --model)"),
	OPT_STRING(0, "served-model-name", "NAME", &cfg.served_model_name,
	           "name under /v1/models (default: the model path)"),
	OPT_STRING(0, "dtype", "DTYPE", &cfg.dtype,
	           "dtype of parameters (default: from --model, else bfloat16)"),
	OPT_STRING(0, "quantization", "NAME", &cfg.quantization,
	           "quantization to report; fp8 quantizes a 16-bit --model"),
	OPT_CHOICE(0, "memory-saver", saver_names, &cfg.saver,
	           "released weights stay, are lost, or are restored (none)"),
	OPT_FLAG(0, "return-routed-experts", &cfg.routed,
	         "report the experts of each token on request"),
	OPT_LIMIT(0, "init-timeout", &cfg.init_ns, "time limit to form a group (10m)"),
	OPT_LIMIT(0, "receive-timeout", &cfg.receive_ns,
	          "time limit of the bytes of one update (30m)"),
	OPT_LIMIT(0, "ready-timeout", &cfg.ready_ns,
	          "time limit for a prepared receive to begin (1m)"),
	OPT_LIMIT(0, "complete-timeout", &cfg.complete_ns,
	          "time limit for a prepared receive to end after complete (5m)"),
	OPT_GROUP("Faults"),
	OPT_UINT(0, "busy", "N", 0, 1000000, &cfg.busy, "emulate N running requests (0)",
	         .basic = true),
	OPT_LIST(0, "fault", "KIND:ROUTE:K[:WHAT]", &cfg.faults,
	         "fail at call K of ROUTE: refuse, hang, drop, die, flip, slow, garbage, "
	         "wrong-length, corrupt, batch-variant or stale; repeatable",
	         .basic = true),
	OPT_DURATION(0, "fault-delay", &cfg.slow_ns, "delay of a slow call (2s)"),
	OPT_FLAG(0, "restart-on-death", &cfg.restart,
	         "restart empty after a crash, as under a supervisor", .basic = true),
	OPT_COMMON(&cfg.common),
	OPT_END
};

static const struct opt_program program = {
	.name = "wsync-endpoint",
	.args = "",
	.summary = "Run an endpoint that receives weights as SGLang or vLLM does, for tests.",
	.notes = "Server families differ in routes, fields, answers and in the requests that crash "
		 "them: a request that crashes a real scheduler closes all connections and ends "
		 "the process with status 12; lenient survives. Faults: refuse answers 400; hang "
		 "never answers; drop closes the connection; die ends the process; flip changes "
		 "one bit of a loaded tensor, of tensor WHAT if given; corrupt changes loaded "
		 "weights as WHAT says (flip, truncate, drop, swap); slow waits first; garbage and "
		 "wrong-length break the answer; batch-variant (generate and v1/completions, from "
		 "call K on) answers batches differently; stale (flush_cache, reset_prefix_cache, "
		 "pause) flushes nothing. In requests with "
		 "tensors, drop and die strike after half the bytes. wire/store, wire/connect and "
		 "wire/payload are steps that can fail like routes. GET /wsync/journal lists the "
		 "requests in order.",
	.examples = { "wsync-endpoint --tp 2 --lineage xorl",
	              "wsync-endpoint --model qwen3-0.6b/ --tp 4",
	              "wsync-endpoint --backend nccl --nccl-from /venv",
	              "wsync-endpoint --fault drop:update_weights_from_distributed:3" },
	.opts = opts,
};

/* One life of the endpoint, which a request may end. */
struct life {
	struct ui *ui;
	struct ws_cancel died;
	char why[512];
};

static void say_warning(void *ctx, const char *text)
{
	const struct life *life = ctx;
	ui_warn(life->ui, NULL, "%s", text);
}

/* Exits as if killed: no clean-up, sockets closed by the kernel. Only the log is complete. */
static void die(void *ctx)
{
	(void)ctx;
	outlet_settle(200);
	_exit(WS_ESYSTEM);
}

static void crash(void *ctx, const char *why)
{
	struct life *life = ctx;
	snprintf(life->why, sizeof life->why, "%s", why);
	ws_cancel_set(&life->died);
}

static void say_size(struct ui *ui, const struct ws_serve_size *size)
{
	char bytes[32];
	ws_format_size(bytes, sizeof bytes, size->bytes);
	ui_say(ui, size->kept ? "%s: %zu parameters, %s of memory as they are written\n"
	                      : "%s: %zu parameters of %s, which are not kept\n",
	       size->family, size->params, bytes);
}

static void say_ready(struct ui *ui, const struct ws_serve *s)
{
	struct ws_serve_size size;
	ws_serve_measure(s, &size);
	if (size.family)
		say_size(ui, &size);
	struct ws_jw *w = ui_line(ui, "ready");
	ws_jw_str(w, "url", ws_serve_url(s));
	if (size.family) {
		ws_jw_str(w, "family", size.family);
		ws_jw_uint(w, "params", size.params);
		ws_jw_uint(w, "bytes", size.kept ? size.bytes : 0);
	}
	ui_line_end(ui);
	ui_say(ui, "ready at %s\n", ws_serve_url(s));
}

/* True: a request killed the endpoint. False: a signal ended it. */
static bool wait_for_end(const struct life *life)
{
	struct pollfd p[] = { { .fd = ws_cancel_fd(&run_cancel), .events = POLLIN },
		              { .fd = ws_cancel_fd(&life->died), .events = POLLIN } };
	while (!ws_cancelled(&run_cancel) && !ws_cancelled(&life->died))
		poll(p, 2, 1000);
	return !ws_cancelled(&run_cancel);
}

/* WS_ECRASHED: a request killed the endpoint. */
static int live(struct ws_serve_opts *o, struct ui *ui, char *url, size_t n, struct ws_err *err)
{
	struct life life = { .ui = ui };
	struct ws_serve *s = NULL;
	if (ws_cancel_init(&life.died, err))
		return -1;
	o->ctx = &life;
	int rc = ws_serve_start(o, &s, err);
	if (rc == 0) {
		snprintf(url, n, "%s", ws_serve_url(s));
		say_ready(ui, s);
		if (wait_for_end(&life))
			rc = -1;
		ws_serve_stop(s);
		if (rc)
			ws_err_set(err, WS_ECRASHED, "the emulated scheduler hit an exception: %s",
			           life.why);
	}
	ws_cancel_fini(&life.died);
	return rc;
}

/* Nothing listens meanwhile. */
static void wait_a_moment(void)
{
	struct pollfd p = { .fd = ws_cancel_fd(&run_cancel), .events = POLLIN };
	const int ms = 500;
	poll(&p, 1, ms);
}

/* NCCL accepts two ranks on one GPU if they seem to be on two machines, and
 * connects them through sockets. */
static void be_another_machine(void)
{
	char name[64];
	snprintf(name, sizeof name, "wsync-endpoint-%ld", (long)getpid());
	setenv("NCCL_HOSTID", name, 0);
}

static const char *prepare_nccl(void)
{
	if (cfg.shared_gpu)
		be_another_machine();
	const char *const library = nccl_prepare(cfg.nccl_lib, cfg.nccl_from);
	/* vLLM leaves both to NCCL. */
	if (cfg.lineage < WS_SERVE_VLLM_0_20)
		nccl_as_sglang();
	return library;
}

static int check_usage(const struct opt_args *args)
{
	const bool nccl = cfg.backend == WS_SERVE_NCCL;
	(void)args;
	if (!nccl && (cfg.nccl_lib || cfg.nccl_from || cfg.shared_gpu || cfg.nccl_init))
		return opt_usage(&program, "--shared-gpu, --nccl-init, --nccl-lib and --nccl-from "
		                           "are for --backend nccl");
	if (cfg.backend == WS_SERVE_GLOO && cfg.gpu)
		return opt_usage(
			&program,
			"--gpu is for --backend nccl or ipc: gloo receives into host memory");
	return OPT_GO;
}

static void run(const struct opt_args *args, struct ui *ui, struct ws_err *err)
{
	char url[320];
	(void)args;
	outlet_never_wait();
	ui_begin(ui);
	struct ws_serve_opts o = {
		.listen = cfg.listen,
		.lineage = (enum ws_serve_lineage)cfg.lineage,
		.tp = (unsigned)cfg.tp,
		.ep = (unsigned)cfg.ep,
		.model = cfg.model,
		.keep = (enum ws_serve_keep)cfg.keep,
		.backend = (enum ws_serve_backend)cfg.backend,
		.gpu = (unsigned)cfg.gpu,
		.nccl_init = (enum ws_serve_nccl_init)cfg.nccl_init,
		.nccl_from = cfg.nccl_from,
		.torch = (enum ws_serve_torch)cfg.torch,
		.faults = cfg.faults.items,
		.n_faults = cfg.faults.n,
		.checksums = cfg.checksums,
		.device = cfg.device ? device_names[cfg.device] : NULL,
		.busy = (unsigned)cfg.busy,
		.api_key_file = run_api_key_file(cfg.common.api_key_file),
		/* The variable is for all programs, also beside servers that have no such key. */
		.admin_api_key_file =
			ws_serve_has_admin_key((enum ws_serve_lineage)cfg.lineage) ?
				run_admin_api_key_file(cfg.common.admin_api_key_file) :
				cfg.common.admin_api_key_file,
		.model_path = cfg.model_path,
		.served_model_name = cfg.served_model_name,
		.dtype = cfg.dtype,
		.quantization = cfg.quantization,
		.init_ns = cfg.init_ns,
		.receive_ns = cfg.receive_ns,
		.routed_experts = cfg.routed,
		.memory_saver = cfg.saver > 0,
		.cpu_backup = cfg.saver == 2,
		.ready_ns = cfg.ready_ns,
		.complete_ns = cfg.complete_ns,
		.slow_ns = cfg.slow_ns,
		.log = &ui->log,
		.cancel = &run_cancel,
		.warn = say_warning,
		.die = cfg.restart ? NULL : die,
		.crash = crash,
	};
	if (o.backend == WS_SERVE_NCCL)
		o.nccl_library = prepare_nccl();
	while (live(&o, ui, url, sizeof url, err) && err->code == WS_ECRASHED && cfg.restart) {
		ui_warn(ui, NULL, "%s: starting anew", err->msg);
		*err = (struct ws_err)WS_ERR_INIT;
		wait_a_moment();
		if (ws_cancelled(&run_cancel))
			return;
		/* the same address, also when any port was requested */
		o.listen = url + strlen("http://");
		o.n_faults = 0;                     /* the faults were for the first life */
	}
}

int main(int argc, char **argv)
{
	return main_run(&(struct main_program){ &program, &cfg.common, check_usage, run }, argc,
	                argv);
}
