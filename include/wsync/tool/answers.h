/* SPDX-License-Identifier: Apache-2.0 */
/* answers.h - sends the same prompts to endpoints, or reads saved answers, and compares
 * the answers.
 *
 * All prompts are sent at temperature 0. The other sides are compared with the first: the first
 * file of saved answers, else the first endpoint. Servers that compute in another order give
 * slightly different numbers. After the first drawn token that differs, nothing can be compared.
 * With teacher forcing every side scores the same tokens: those that the first side drew. */
#ifndef WSYNC_ANSWERS_H
#define WSYNC_ANSWERS_H

#include "wsync/cancel.h"
#include "wsync/clock.h"
#include "wsync/event.h"
#include "wsync/log.h"
#include "wsync/tool/logprobs.h"
#include "wsync/tool/prompts.h"
#include "wsync/tool/routing.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { WS_ASK_PARALLEL = 64 };

/* How the prompts were sent to an endpoint, which has answered all of them. */
enum ws_asked_as { WS_ASKED_ALONE, WS_ASKED_SCORED, WS_ASKED_BATCH, WS_ASKED_CACHED };
const char *ws_asked_as_name(enum ws_asked_as as); /* "alone", "scored", "batch", "cached" */

struct ws_asked {
	const char *url;
	enum ws_asked_as as;
	size_t prompts;
	int64_t prompt_tokens, completion_tokens; /* of all prompts, where reported */
	/* computed by an earlier pass, perhaps with other weights */
	int64_t cached_tokens, cached_prompts;
	char weight_version[128]; /* of the last answer; "": not reported */
	bool version_changed;     /* an earlier answer had another version */
	int64_t ns;
};

struct ws_ask_opts {
	const char *const *endpoints; /* URLs as ws_endpoint_normalize leaves them */
	size_t n_endpoints;
	const char *const *files;     /* saved answers */
	size_t n_files;
	/* empty: those of the saved answers, else the built-in ones */
	const struct ws_prompts *prompts;
	unsigned max_new_tokens;      /* of prompts without a number; 0: 16 */
	unsigned parallel;            /* prompts that an endpoint gets at the same time; 0: 1 */
	/* flush the endpoints' caches before the first prompt */
	bool flush_first;
	/* file for the first endpoint's answers, one array; NULL: none */
	const char *save;
	const char *api_key;          /* NULL: none */
	const char *ca_file;          /* as ws_client_opts */
	int64_t connect_ns;           /* 0: 10 s */
	int64_t timeout_ns;           /* of one answer; 0: 60 s */
	void (*asked)(void *ctx, const struct ws_asked *asked); /* may be NULL */
	void *ctx;
	struct ws_sink sink;          /* gets WS_EV_WARNING */
	const struct ws_log *log;
	const struct ws_cancel *cancel;
};

/* ---- probabilities ---- */

enum ws_logprobs_how {
	WS_HOW_ANSWERS, /* answers of the sides to the same prompts */
	WS_HOW_FORCED,  /* all sides score the prompt and drawn tokens of the first side; a single
	                 * endpoint compares its prefill with its own decode */
	/* for each endpoint: single prompts against all of them in one request */
	WS_HOW_BATCHED,
	WS_HOW_CACHED /* for each endpoint: tokens drawn after prompts that are computed anew,
	               * against tokens drawn with the prefix cache */
};
const char *ws_logprobs_how_name(enum ws_logprobs_how how); /* "answers", "teacher-forced",
                                                             * "batched", "cached" */

struct ws_compared {
	const char *first, *second;   /* URL or file */
	enum ws_logprobs_how how;
	size_t prompt;                /* from 1; 0: the sum of all prompts */
	size_t prompts;               /* that are compared */
	size_t bad;                   /* in a sum: prompts that are not good */
	enum ws_logprob_part part;
	const struct ws_logprobs_diff *diff; /* of a sum over one prompt, all of it */
	bool good;
	const char *why;              /* if not good, the reason, half a sentence; else "" */
};

struct ws_verify_logprobs_opts {
	struct ws_ask_opts ask;
	enum ws_logprobs_how how;
	/* WS_HOW_BATCHED: nothing may differ at all */
	struct ws_logprobs_limits limits[WS_LOGPROB_PARTS];
	/* may be NULL; ctx is ask.ctx */
	void (*compared)(void *ctx, const struct ws_compared *row);
};

/* 0: all differences are within the limits, or the answers were only saved. Else *err is
 * WS_EMISMATCH and names the first excess, or is the failure. */
int ws_verify_logprobs(const struct ws_verify_logprobs_opts *opts, struct ws_err *err);

/* ---- experts ---- */

struct ws_routing_told {          /* one answer */
	const char *name;             /* URL or file */
	size_t prompt, prompts;       /* from 1; how many there are */
	const struct ws_routing_shape *shape;
	const struct ws_routing *routing;
	const struct ws_routing_check *check;
};

struct ws_routing_held {          /* two answers */
	const char *first, *second;
	size_t prompt, prompts;       /* prompt 0: the sum of all prompts, which comes last */
	const struct ws_routing_shape *shape;
	const struct ws_routing_diff *diff;
	double share;                 /* of the rows that are equal */
	bool good;
};

struct ws_verify_routing_opts {
	struct ws_ask_opts ask;
	/* config.json or its directory; NULL: that of the first endpoint's model path */
	const char *config;
	double min_equal;             /* share of all rows */
	const char *npy;              /* file for the experts of the only answer; NULL: none */
	/* may be NULL; ctx is ask.ctx */
	void (*told)(void *ctx, const struct ws_routing_told *t);
	void (*held)(void *ctx, const struct ws_routing_held *h);
};

/* As ws_verify_logprobs. */
int ws_verify_routing(const struct ws_verify_routing_opts *opts, struct ws_err *err);

/* ---- caches ---- */

enum ws_cached_verdict { WS_CACHED_NONE, WS_CACHED_SOME, WS_CACHED_UNKNOWN };

/* One endpoint. Tokens are counts of the prompt's; -1: not reported. */
struct ws_cache_checked {
	const char *url;
	int64_t prompt, before, after; /* cached before and after {between} */
	enum ws_cached_verdict verdict;
	const char *why;               /* if unknown, the reason; else "" */
};

struct ws_verify_caches_opts {
	struct ws_ask_opts ask;        /* its prompts are not used */
	unsigned tokens;               /* of the prompt, which is random; 0: 200 */
	/* runs what must clear the caches; ctx is ask.ctx */
	int (*between)(void *ctx, struct ws_err *err);
	void (*checked)(void *ctx, const struct ws_cache_checked *c); /* may be NULL */
};

/* Sends one new prompt twice, runs {between}, and sends it again. 0: no endpoint used cached tokens
 * then. WS_EMISMATCH: one did. WS_EUNKNOWN: none did, but one does not report cached tokens, or had
 * none before. An error of {between} is returned as it is. */
int ws_verify_caches(const struct ws_verify_caches_opts *opts, struct ws_err *err);

#ifdef __cplusplus
}
#endif
#endif
