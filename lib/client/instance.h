/* SPDX-License-Identifier: Apache-2.0 */
/* instance.h - one start of a server, told apart from its other starts and from other servers.
 *
 * From /server_info. All of it stays the same while a server runs:
 *
 *   random_seed    SGLang of all versions draws it at start, unless --random-seed gives one
 *   startup_time   what the start took, phase by phase (SGLang since 2026)
 *   host, port     that it listens at, which tells servers behind one address apart
 *
 * Of a server with several tokenizer processes nothing is taken: it is not known
 * that they all say the same. */
#ifndef WS_CLIENT_INSTANCE_H
#define WS_CLIENT_INSTANCE_H

#include "wsync/tool/json_read.h"

#include <stdint.h>

/* A number that differs where the replies come from different starts or servers; 0: the reply
 * does not tell. Equal numbers are no proof: servers on two machines may be started alike, with
 * one --random-seed, and one that was given a seed starts again with the same. */
uint64_t ws_instance_of(const struct ws_json *server_info);

#endif
