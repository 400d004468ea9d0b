/* SPDX-License-Identifier: Apache-2.0 */
/* endpoint_caches.h - reads which caches a server has; see ws_endpoint_clear_caches. */
#ifndef WS_CLIENT_ENDPOINT_CACHES_H
#define WS_CLIENT_ENDPOINT_CACHES_H

#include "wsync/endpoint.h"
#include "wsync/tool/json_read.h"

/* vllm_config of /server_info. After info->has_draft and the version are known. */
void ws_caches_of_vllm(const struct ws_json *config, struct ws_endpoint_info *info);
/* /server_info of SGLang, after the same; then its /model_info. */
void ws_caches_of_sglang(const struct ws_json *root, struct ws_endpoint_info *info);
void ws_caches_of_sglang_model(const struct ws_json *root, struct ws_endpoint_info *info);

#endif
