/* SPDX-License-Identifier: Apache-2.0 */
/* instance.h - a number that identifies one start of a server.
 *
 * It is computed from fields of /server_info that do not change while a server runs:
 *
 *   random_seed    SGLang of all versions draws it at start, unless --random-seed gives one
 *   startup_time   duration of the start, phase by phase (SGLang since 2026)
 *   host, port     the listening address, which differs between servers behind one address
 *   vllm_config.instance_id   vLLM draws it at start
 *
 * A server with several tokenizer processes gets 0: its processes may report different values. */
#ifndef WS_CLIENT_INSTANCE_H
#define WS_CLIENT_INSTANCE_H

#include "wsync/tool/json_read.h"

#include <stdint.h>

/* Different numbers mean different starts or servers; 0: unknown. Equal numbers are no proof: two
 * servers, or two starts of one server, may have the same --random-seed. */
uint64_t ws_instance_of(const struct ws_json *server_info);

#endif
