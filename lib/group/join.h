/* SPDX-License-Identifier: Apache-2.0 */
/* join.h - the requests by which members join a group and leave it, in the words of their family.
 *
 *   SGLang   POST /init_weights_update_group  {"master_address","master_port","rank_offset",
 *                                              "world_size","group_name","backend"}
 *            POST /destroy_weights_update_group  {"group_name"}
 *   vLLM     POST /init_weight_transfer_engine  {"init_info": {"rank_offset","world_size", and
 *                 "master_address","master_port" or, since 0.30 and for NCCL, "nccl_unique_id_b64";
 *                 since 0.28 "packed","packed_buffer_size_bytes","packed_num_buffers"}}
 *                 An unknown key is an error.
 *            POST /collective_rpc {"method":"wsync_leave"} with our worker extension, else, since
 *                 0.32, POST /shutdown_weight_transfer_engine, which fails inside an update; else
 *                 there is no request, and the next join replaces the group. A request that fails
 *                 brings several workers out of step (push_in_step.c), so it is not tried.
 *
 * vLLM's groups have no name: a server is in one at most. */
#ifndef WS_GROUP_JOIN_H
#define WS_GROUP_JOIN_H

#include "group.h"

/* vLLM cuts packed tensors when they exceed this size. Each of our requests is one piece. */
#define WS_VLLM_UNCUT ((uint64_t)1 << 50)

const char *ws_join_path(const struct ws_member *m);
/* Writes the request by which member m joins g. The transport is open. */
void ws_join_write(const struct ws_group *g, const struct ws_member *m, struct ws_buf *body);
/* NULL: the member leaves by itself, when the connections close. */
const char *ws_leave_path(const struct ws_member *m);
void ws_leave_write(const struct ws_group *g, const struct ws_member *m, struct ws_buf *body);

#endif
