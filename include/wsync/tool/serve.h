/* SPDX-License-Identifier: Apache-2.0 */
/* serve.h - the embedded inference endpoint: it speaks the weight-update protocols of SGLang's
 * servers, of related ones, and of vLLM's. It keeps the tensors that it receives, and fails on
 * request.
 *
 * The tests and the demo push to it, and authors of trainers can test against it: routes, fields,
 * defaults, status codes and the order of side effects are those of the real servers. Generated
 * tokens are a hash of the prompt and of all weights. With a model's config.json the endpoint has
 * that model's parameters and loads into them as the servers do. Without one it keeps each tensor
 * under the name that it was sent with. Real servers lack two routes: GET /wsync/journal lists
 * the requests so far, and GET /wsync/checksums answers as /weights_checker does. */
#ifndef WSYNC_TOOL_SERVE_H
#define WSYNC_TOOL_SERVE_H

#include "wsync/cancel.h"
#include "wsync/err.h"
#include "wsync/log.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ws_serve; /* opaque */

enum ws_serve_keep {
	WS_KEEP_MEMORY, /* one copy of every tensor, owned by tensor-parallel rank 0; with a model,
	                 * each rank's own share of every parameter */
	WS_KEEP_HASH,   /* XXH3-64 of every tensor, computed while the bytes pass */
	WS_KEEP_NONE    /* counts only */
};

enum ws_serve_torch {
	WS_TORCH_2_6, /* store epoch C, gloo layout G2b */
	WS_TORCH_1_13 /* store epoch A, gloo layout G1, fewer dtypes */
};

/* The servers to emulate, with their routes, fields, answers and crashes. */
enum ws_serve_lineage {
	/* upstream of 2026 that survives every request, with /list_weights */
	WS_SERVE_LENIENT,
	WS_SERVE_SGLANG_0_4,
	WS_SERVE_SGLANG_0_5,   /* about 0.5.4 */
	WS_SERVE_SGLANG_2026,
	WS_SERVE_XORL_LEGACY,
	WS_SERVE_XORL,
	WS_SERVE_SESSION,      /* upstream whose updates need a session around them */
	WS_SERVE_SLIME,        /* upstream with slime's patch */
	WS_SERVE_VLLM_0_20,    /* vLLM 0.20.2: an update is one call */
	WS_SERVE_VLLM_0_24,    /* 0.24.0: updates need a start and a finish */
	WS_SERVE_VLLM_0_27,    /* 0.27.1: and versions of weights */
	WS_SERVE_VLLM_0_33,    /* 0.33.0: packing is agreed on at the init */
	WS_SERVE_N_LINEAGES
};

enum ws_serve_backend {
	WS_SERVE_GLOO,
	WS_SERVE_NCCL, /* gloo, and NCCL into its GPUs and from there to host memory; also IPC */
	/* maps tensors that processes export on its GPUs (/update_weights_from_tensor) */
	WS_SERVE_IPC
};

enum ws_serve_nccl_init {
	WS_SERVE_NCCL_AUTO,  /* as servers of the lineage */
	WS_SERVE_NCCL_LAZY,  /* joins when a first bucket is announced */
	WS_SERVE_NCCL_EAGER  /* joins while the group is made */
};

/* Zero is the default. Strings are borrowed until ws_serve_start returns. */
struct ws_serve_opts {
	const char *listen; /* "HOST:PORT", "[::1]:PORT"; NULL: 127.0.0.1:30000; port 0: any */
	unsigned tp;              /* tensor-parallel ranks per group, at most 64; 0: 1 */
	unsigned ep;              /* expert-parallel groups that they form, a divisor of tp; 0: 1 */
	enum ws_serve_lineage lineage;
	enum ws_serve_keep keep;
	const char *model;        /* a directory with config.json, or that file; NULL: none */
	enum ws_serve_torch torch;
	enum ws_serve_backend backend;
	unsigned gpu;             /* of rank 0; each other rank has the next one */
	enum ws_serve_nccl_init nccl_init;
	/* libnccl.so.2: a path, or a name for the loader; NULL: where it usually is */
	const char *nccl_library;
	/* or that of this Python, a program or a virtual environment; NULL: none */
	const char *nccl_from;
	const char *const *faults; /* "KIND:ROUTE:K[:WHAT]", see ws_serve_start */
	size_t n_faults;
	bool checksums;           /* /weights_checker reports them, whatever the lineage */
	/* "cpu" or "cuda": plays a stock server on that device, whose checksums are of its
	 * parameters. Needs a model and WS_KEEP_MEMORY. NULL: checksums of the tensors */
	const char *device;
	bool memory_saver;        /* released weights are gone; else they only count as released */
	bool cpu_backup;          /* ... and are restored when they are resumed */
	bool routed_experts;      /* /generate reports the experts of each token on request */
	unsigned busy;            /* emulated running requests */
	const char *api_key_file; /* NULL: open to everybody */
	const char *admin_api_key_file; /* of SGLang's --admin-api-key; NULL: none */
	const char *model_path;   /* NULL: model, else "wsync-endpoint" */
	const char *served_model_name; /* NULL: model_path */
	const char *dtype;        /* NULL: as the model's config says, else "bfloat16" */
	/* To report; NULL: as the model's config says, else none. "fp8" of a model in 16 bits:
	 * its linear layers are made FP8 while they are loaded, and cannot be updated. */
	const char *quantization;
	int64_t init_ns;          /* for all ranks to join a group; 0: 600 s */
	int64_t receive_ns;       /* for one update; 0: 30 min, torch's own limit */
	int64_t slow_ns;          /* delay of fault "slow"; 0: 2 s */
	int64_t ready_ns;         /* for a two-phase receive to begin; 0: 60 s */
	int64_t complete_ns;      /* and, from the request to complete on, to end; 0: 300 s */
	const struct ws_log *log; /* borrowed until ws_serve_stop */
	const struct ws_cancel *cancel; /* ends the look-up of the name in `listen`; may be NULL */
	void (*warn)(void *ctx, const char *text); /* during ws_serve_start only; may be NULL */
	void (*die)(void *ctx); /* action of fault "die", from any thread; does not return. NULL:
	                         * as crash; without that, the fault drops the connection */
	void (*crash)(void *ctx, const char *why); /* called, from any thread, when a request killed
	                                            * the emulated scheduler: all connections drop
	                                            * from then on. May be NULL */
	void *ctx;
};

/* Listens and answers in threads of its own. Faults, K being the K-th call (from 1) of the route,
 * which is a path without its first slash:
 *   refuse        answered with 400
 *   hang          never answered while the endpoint lives
 *   drop          the connection is closed without an answer
 *   die           opts.die is called
 *   slow          begun only after opts.slow_ns
 *   garbage       done, and answered with bytes that are no text
 *   wrong-length  done, and answered with less than was announced
 *   batch-variant from then on, batches are answered a little differently from their prompts;
 *                 generate and v1/completions only
 *   stale         answered with success, without a flush; flush_cache, reset_prefix_cache and pause
 *                 only
 *   corrupt       loaded weights change as the fourth part says, see wsync-endpoint(1); only routes
 *                 that load
 *   flip          one bit of loaded weights changes, in a tensor that matches the fourth part
 * If the request receives tensors, drop and die strike when half the bytes have arrived: the
 * group's sockets close with the connection. Three steps of the wire have faults as if they were
 * routes, all kinds but flip and corrupt: wire/store, wire/connect, and wire/payload, which cannot
 * refuse. */
int ws_serve_start(const struct ws_serve_opts *opts, struct ws_serve **out, struct ws_err *err);
/* Do servers of this family have --admin-api-key? */
bool ws_serve_has_admin_key(enum ws_serve_lineage lineage);
/* Aborts running requests, closes every connection, joins the threads. NULL is fine. */
void ws_serve_stop(struct ws_serve *s);

const char *ws_serve_url(const struct ws_serve *s); /* "http://127.0.0.1:30000" */

/* The size of the emulated model. */
struct ws_serve_size {
	const char *family;       /* whose rules apply; NULL: there is no model */
	size_t params;
	uint64_t bytes;           /* of all ranks together */
	bool kept;                /* this much memory is reserved, and allocated when written */
};
void ws_serve_measure(const struct ws_serve *s, struct ws_serve_size *out);

#endif
