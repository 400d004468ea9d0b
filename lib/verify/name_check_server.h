/* SPDX-License-Identifier: Apache-2.0 */
/* name_check_server.h - compares the config.json that names are checked with, and the model that a
 * server reports.
 *
 * Needed if the server's config.json cannot be read on this machine: every source fits the
 * config.json beside it, even a source of another model. */
#ifndef WS_VERIFY_NAME_CHECK_SERVER_H
#define WS_VERIFY_NAME_CHECK_SERVER_H

#include "wsync/tool/name_check_run.h"

/* The family of models that the server reports, if it is not the input's and its parameters are
 * known; else NULL. */
const struct ws_family *name_check_other_family(const struct ws_input *in,
                                                const struct ws_name_check_target *t);

/* "the server runs qwen3 (Qwen3ForCausalLM), and DIR/config.json says llama (LlamaForCausalLM)".
 * False: the two models agree, or one of them is unknown. */
bool name_check_model_differs(const struct ws_input *in, const struct ws_name_check_target *t,
                              char *dst, size_t n);

#endif
