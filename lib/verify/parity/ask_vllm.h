/* SPDX-License-Identifier: Apache-2.0 */
/* ask_vllm.h - prompts to a vLLM, which has no /generate, and its answers in the form of /generate.
 *
 *   POST /v1/completions  {"prompt": text or ids, or an array of these, "max_tokens",
 *                          "temperature": 0, "logprobs": 0, "prompt_logprobs": 0,
 *                          "return_token_ids": true}
 *   {"choices": [{"index", "text", "finish_reason", "token_ids", "prompt_token_ids",
 *                 "logprobs": {"token_logprobs": [number]},
 *                 "prompt_logprobs": [null, {"5": {"logprob"}}, ...]}],
 *    "usage": {"prompt_tokens", "completion_tokens",
 *              "prompt_tokens_details": {"cached_tokens"}}} */
#ifndef WS_VERIFY_ASK_VLLM_H
#define WS_VERIFY_ASK_VLLM_H

#include "ask.h"

/* As ws_ask_write_body. WS_EREFUSED: a vLLM does not tell what is asked for. */
int ws_ask_vllm_body(struct ws_buf *body, const struct ws_ask *ask, size_t from, size_t n,
                     struct ws_err *err);
/* Fills *text with the answer, as /generate would give it: an array of a batch. */
int ws_ask_vllm_answer(const struct ws_ask *ask, const struct ws_json *root, struct ws_buf *text,
                       struct ws_err *err);

#endif
