/* SPDX-License-Identifier: Apache-2.0 */
/* vllm_workers.h - asks the workers of a vLLM in which state they are.
 *
 * vLLM reads one answer of each worker for each request. If a worker fails, it does not read those
 * of the workers after it (multiproc_executor.py, 0.32 and 0.33). From then on these are one answer
 * behind: a request that fails there is confirmed, and the next one gets its error. Only a restart
 * ends that. Two requests that change nothing show it, because their answers differ:
 *
 *   POST /collective_rpc {"method":"__getattr__","args":["_weight_update_active"]}
 *                                                           {"results":["False", one per worker]}
 *   POST /collective_rpc {"method":"check_health"}          {"results":[null, ...]}
 *
 * The first reads an attribute of the worker (worker_base.py, all versions): is it inside an
 * update, between start and finish? Before 0.21 there is no such attribute, and the request is
 *
 *   POST /collective_rpc {"method":"get_supported_tasks"}   {"results":[["generate"], ...]}
 *
 * With data parallelism vLLM asks all engines, and passes on the answers of the first. */
#ifndef WS_CLIENT_VLLM_WORKERS_H
#define WS_CLIENT_VLLM_WORKERS_H

#include "wsync/endpoint.h"

/* Asks servers that are vLLMs; to->infos must be given. errs[i]: WS_EREFUSED if the answers are not
 * those to the requests; inside[i]: its workers are inside an update. -1: *err is the first
 * error. */
int ws_vllm_in_step(const struct ws_call *to, bool *inside, struct ws_err *errs,
                    struct ws_err *err);

/* Do all workers of this one server pack weights again after an update (pack_again of
 * lib/vllm/wsync_vllm.py)? Our extension tells so among the names that a worker has:
 *
 *   POST /collective_rpc {"method":"__dir__"}               {"results":[["wsync_packs", ...], ...]}
 *
 * False too if it does not answer. -1: cancelled, or a system error. */
int ws_vllm_packs(const struct ws_call *to, bool *out, struct ws_err *err);

/* Finishes the updates of vLLMs since 0.21 that are inside one, and does nothing at the others.
 * Incomplete layers become those that the server has, so it must stay paused. to->infos is not
 * needed. answers[i].err is WS_OK if the server is in no update now. Returns as ws_endpoint_tell
 * does. */
int ws_vllm_end_updates(const struct ws_call *to, struct ws_endpoint_answer *answers,
                        struct ws_err *err);

#endif
