/* SPDX-License-Identifier: Apache-2.0 */
/* endpoint_words.h - one request to many endpoints, in the words of each endpoint's family.
 *
 * A server that was not detected gets the request of SGLang. If it answers that there is no such
 * route, which no server acts on, it gets the request of vLLM. */
#ifndef WS_CLIENT_ENDPOINT_WORDS_H
#define WS_CLIENT_ENDPOINT_WORDS_H

#include "endpoint_call.h"

/* A request as one family knows it. path NULL: the family has none, and the endpoint counts as
 * done. All text is borrowed. */
struct ws_words {
	const char *method, *path, *body;
};

/* One request to all endpoints of a call. The caller fills the first part. */
struct ws_asking {
	const struct ws_call *to;
	const char *name;          /* the phase of errors: "pause" */
	struct ws_words words[2];  /* by enum ws_server_family */

	struct ws_endpoint_call *calls;
	struct ws_buf *bodies;
	enum ws_server_family *family;
	bool *guessed; /* the server is not known, and has not got the words of vLLM */
};

/* Call ws_asking_close in any case. */
int ws_asking_open(struct ws_asking *a, struct ws_err *err);
void ws_asking_close(struct ws_asking *a);
/* Asks the endpoints whose last answer is `wanted` (NULL: all), and fills their answers. -1: it was
 * cancelled, or a system error. */
int ws_asking_round(struct ws_asking *a, bool (*wanted)(const struct ws_err *last),
                    struct ws_endpoint_answer *answers, struct ws_err *err);
/* *why ended a round early: the endpoints that had not answered get it as their answer. */
void ws_asking_cut_off(const struct ws_asking *a, const struct ws_err *why,
                       struct ws_endpoint_answer *answers);

/* All of the above for one round. Returns as the functions of endpoint.h do. */
int ws_endpoint_tell_in_words(const struct ws_call *to, const char *name, struct ws_words sglang,
                              struct ws_words vllm, struct ws_endpoint_answer *answers,
                              struct ws_err *err);
/* 0: all succeeded; else *err is the first failure if all failed, or WS_EPARTIAL. */
int ws_endpoint_sum_up(const char *what, size_t n, const struct ws_endpoint_answer *answers,
                       struct ws_err *err);

#endif
