/* SPDX-License-Identifier: Apache-2.0 */
/* gateway.h - the HTTP API of xorl's training server for weights, over this library: a script that
 * registers inference endpoints there and asks it to synchronize them works with a checkpoint, too.
 *
 *   POST /add_inference_endpoint     {host, port, worker_port, world_size, pool, sync_weights}
 *   GET  /list_inference_endpoints
 *   POST /remove_inference_endpoint  {host, port}
 *   POST /sync_inference_weights     {source, pools, weight_version, pause_mode, flush_cache, ...}
 *   POST /set_sync_quantization      {quantization}
 *   GET  /metrics
 *   GET  /health
 *
 * each also below /api/v1.
 *
 * What xorl's server has and we have not is a running trainer, so a sync names its
 * "source", or the gateway has one for those that do not. Endpoints live in the registry (registry.h).
 * Source of fields, defaults and answers: togethercomputer/xorl, src/xorl/server/api_server. */
#ifndef WSYNC_CMD_GATEWAY_H
#define WSYNC_CMD_GATEWAY_H

#include "wsync/push.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ws_gateway_opts {
	const char *listen;        /* HOST:PORT; port 0: any */
	const char *registry;      /* path */
	const char *api_key;       /* asked of whoever calls; NULL: nobody is asked */
	const char *const *sources; /* of a sync that names none; n_sources 0: it must */
	size_t n_sources;
	/* Where requests may have sources from: directories; none: anywhere. A link that leads out is out. */
	const char *const *roots;
	size_t n_roots;
	const char *const *hosts;  /* globs: which hosts may be registered; none: any */
	size_t n_hosts;
	/* How pushes are made, but for what a request says. Endpoints are the registry's. Its sink gets the
	 * events of each push, from threads of the gateway, one push at a time; the last is WS_EV_RESULT. */
	struct ws_push_opts push;
	int64_t ask_ns;            /* to ask an endpoint who it is, or whether it is well; 0: 10 s */
	const struct ws_log *log;
	void (*warn)(void *ctx, const char *text); /* NULL: nobody listens */
	void *ctx;
};

struct ws_gateway; /* opaque */

/* Answers from then on, in threads of its own. What opts points to must outlive the gateway. */
int ws_gateway_start(const struct ws_gateway_opts *opts, struct ws_gateway **out, struct ws_err *err);
const char *ws_gateway_url(const struct ws_gateway *g);
/* Ends the push that is under way as Ctrl-C would: nobody stays paused. NULL is fine. */
void ws_gateway_stop(struct ws_gateway *g);

#ifdef __cplusplus
}
#endif
#endif
