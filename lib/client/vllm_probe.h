/* SPDX-License-Identifier: Apache-2.0 */
/* vllm_probe.h - detects vLLM, and servers that are built on it.
 *
 * Nothing here has an effect on a server. */
#ifndef WS_CLIENT_VLLM_PROBE_H
#define WS_CLIENT_VLLM_PROBE_H

#include "wsync/endpoint.h"
#include "wsync/tool/json_read.h"

struct ws_vllm_known {
	const struct ws_json *routes; /* /openapi.json; NULL: not known */
	const char *version;          /* NULL: to be asked */
};

/* Asks the `wanted` endpoints, which have none of SGLang's routes for information. Of a vLLM,
 * infos[i] gets what it reports, and errs[i] becomes WS_OK; vllm[i]: it is one. Others keep their
 * errs[i], or get a better one. -1: cancelled or a system error. */
int ws_vllm_probe(const struct ws_call *to, const bool *wanted,
                  const struct ws_vllm_known *known, ws_deadline slow_until,
                  struct ws_endpoint_info *infos, struct ws_err *errs, bool *vllm,
                  struct ws_err *err);

/* ---- parsing (no connection needed) ---- */

/* Reads /server_info?config_format=json. */
void ws_vllm_decode_config(const struct ws_json *root, struct ws_endpoint_info *info);

#endif
