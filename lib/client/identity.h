/* SPDX-License-Identifier: Apache-2.0 */
/* identity.h - reads which start of a server has answered.
 *
 *   startup_time   duration of the start, phase by phase (SGLang since about 0.5.17): sure
 *   random_seed    SGLang of all versions draws it at the start, unless --random-seed gives one,
 *                  and does not report which: weak
 *   host, port     the listening address, which differs between servers behind one address
 *   vllm_config.instance_id   vLLM sets it at the start: sure. Since about 0.30 it is the clock in
 *                  ns. Each of its API processes has one of its own
 *   vllm_config.parallel_config._api_process_rank, _api_process_count
 *
 * (SGLang 0.5.23 and vLLM 0.32.0 were tried.) model_path, served_model_name and weight_version are
 * no part of it: an update from disk changes them. An SGLang with several tokenizer processes
 * reports nothing reliable: they may differ. */
#ifndef WS_CLIENT_IDENTITY_H
#define WS_CLIENT_IDENTITY_H

#include "wsync/endpoint.h"
#include "wsync/tool/json_read.h"

/* server_info: the reply of the route that tells. date: that reply's Date, or 0. */
void ws_identity_read(const struct ws_json *server_info, int64_t date, struct ws_identity *out);
/* As ws_endpoint_info.instance. 0 as long as a process of the server has not answered. */
uint64_t ws_identity_number(const struct ws_identity *id);

#endif
