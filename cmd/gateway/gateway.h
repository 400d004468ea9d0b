/* SPDX-License-Identifier: Apache-2.0 */
/* gateway.h - the HTTP API for weights of xorl's training server, over the library's interface. A
 * script that registers endpoints there and requests syncs can push a checkpoint with it.
 *
 *   POST /add_inference_endpoint     {host, port, worker_port, world_size, pool, sync_weights}
 *   GET  /list_inference_endpoints
 *   POST /remove_inference_endpoint  {host, port}
 *   POST /sync_inference_weights     {source, pools, weight_version, pause_mode, flush_cache, ...}
 *   POST /set_sync_quantization      {quantization}
 *   GET  /metrics
 *   GET  /health
 *
 * Each route also exists below /api/v1.
 *
 * xorl's server sends the weights of its running trainer. The gateway has none: a sync names its
 * "source", or the gateway's own sources are pushed. Endpoints are those of the registry
 * (registry.h). Fields, defaults and answers are those of togethercomputer/xorl,
 * src/xorl/server/api_server. */
#ifndef WSYNC_CMD_GATEWAY_H
#define WSYNC_CMD_GATEWAY_H

#include "wsync/push.h"

struct ws_gateway_opts {
	const char *listen;        /* HOST:PORT; port 0: any */
	const char *registry;      /* path */
	const char *api_key;       /* that requests must have; NULL: none */
	const char *const *sources; /* of a sync without a source; n_sources 0: it must have one */
	size_t n_sources;
	/* Directories that the sources of requests must be in, links resolved; none: anywhere. */
	const char *const *roots;
	size_t n_roots;
	/* Globs of hosts that may be registered and asked; none: any, but not with an API key of
	 * the endpoints. */
	const char *const *hosts;
	size_t n_hosts;
	/* Defaults for keys that a request omits; endpoints are ignored. The sink receives the
	 * events of each push, one push at a time, from threads of the gateway; the last is
	 * WS_EV_RESULT. */
	struct ws_push_opts push;
	const struct ws_log *log;
	const struct ws_cancel *cancel; /* ends the look-up of the name in `listen` */
	/* Called with the body of a request when its push begins, and with "" when the push has
	 * ended: events between them may quote the body. */
	void (*reads)(const char *body, size_t n);
	/* Writes options for the fields in a sentence of the library, unless the body has them.
	 * The result lasts for a few calls by the thread. */
	const char *(*words)(const char *sentence, const char *body, size_t n);
};

struct ws_gateway; /* opaque */

/* Starts to answer, in threads of its own. The pointers of opts must outlive the gateway. */
int ws_gateway_start(const struct ws_gateway_opts *opts, struct ws_gateway **out,
                     struct ws_err *err);
const char *ws_gateway_url(const struct ws_gateway *g);
/* Ends a running push as Ctrl-C does. NULL is fine. */
void ws_gateway_stop(struct ws_gateway *g);

#endif
