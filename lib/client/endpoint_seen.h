/* SPDX-License-Identifier: Apache-2.0 */
/* endpoint_seen.h - asks servers for their weight version, and whether they are paused. The
 * requests change nothing:
 *
 *   GET /model_info   the weight version (each server's version_path)
 *   GET /ready        200, or 503 while the server is paused (sglang since 0.5.20; sent to servers
 *                     with sessions, which came with the next release). vLLM: GET /is_paused,
 *                     {"is_paused": bool} */
#ifndef WS_CLIENT_ENDPOINT_SEEN_H
#define WS_CLIENT_ENDPOINT_SEEN_H

#include "wsync/endpoint.h"

enum ws_seen_pause { WS_SEEN_NOT_TOLD, WS_SEEN_PAUSED, WS_SEEN_RUNS };

struct ws_seen {
	char version[sizeof ((struct ws_endpoint_info *)0)->weight_version]; /* "": unknown */
	enum ws_seen_pause pause;
};

enum { WS_SEE_VERSION = 1, WS_SEE_PAUSE = 2 };

/* Does a route of this server report a pause? */
bool ws_endpoint_tells_pause(const struct ws_endpoint_info *info);
/* Sends all requests at once; `what`: WS_SEE_... flags. infos[i] belongs to to->urls[i], as do
 * out[i] and errs[i]. A server that has no route for a question leaves its field empty. -1: *err is
 * the first error. */
int ws_endpoint_see(const struct ws_call *to, const struct ws_endpoint_info *infos, unsigned what,
                    struct ws_seen *out, struct ws_err *errs, struct ws_err *err);

#endif
