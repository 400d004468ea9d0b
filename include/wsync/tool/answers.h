/* SPDX-License-Identifier: Apache-2.0 */
/* answers.h - the same prompts asked of endpoints, or asked earlier and saved, and how
 * what they answer compares.
 *
 * Everything is asked at temperature 0. The first side is what the others are compared with:
 * the first file of saved answers, else the first endpoint. Servers that compute in another
 * order give slightly other numbers, and after the first drawn token that is another, nothing
 * can be compared any more: teacher forcing has every side say what it thinks of the same
 * tokens, those that the first one drew. */
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

/* What happened when one endpoint had answered everything. */
enum ws_asked_as { WS_ASKED_ALONE, WS_ASKED_SCORED, WS_ASKED_BATCH, WS_ASKED_CACHED };
const char *ws_asked_as_name(enum ws_asked_as as); /* "alone", "scored", "batch", "cached" */

struct ws_asked {
	const char *url;
	enum ws_asked_as as;
	size_t prompts;
	int64_t prompt_tokens, completion_tokens; /* of all prompts, where they are told */
	/* computed by an earlier pass, perhaps of other weights */
	int64_t cached_tokens, cached_prompts;
	char weight_version[128]; /* "" not told; of the last answer */
	bool version_changed;     /* and another of an earlier one */
	int64_t ns;
};

struct ws_ask_opts {
	const char *const *endpoints; /* URLs as ws_endpoint_normalize leaves them */
	size_t n_endpoints;
	const char *const *files;     /* saved answers */
	size_t n_files;
	/* none: those of the saved answers, else the usual ones */
	const struct ws_prompts *prompts;
	unsigned max_new_tokens;      /* where a prompt does not say; 0: 16 */
	unsigned parallel;            /* prompts that an endpoint gets at the same time; 0: 1 */
	/* have the endpoints drop their cache before they are asked */
	bool flush_first;
	/* the first endpoint's answers, in one array; NULL: nowhere */
	const char *save;
	const char *api_key;          /* NULL: none */
	const char *ca_file;          /* as ws_client_opts */
	int64_t connect_ns;           /* 0: 10 s */
	int64_t timeout_ns;           /* of one answer; 0: 60 s */
	void (*asked)(void *ctx, const struct ws_asked *asked); /* NULL: nobody listens */
	void *ctx;
	struct ws_sink sink;          /* gets WS_EV_WARNING */
	const struct ws_log *log;
	const struct ws_cancel *cancel;
};

/* ---- probabilities ---- */

enum ws_logprobs_how {
	WS_HOW_ANSWERS, /* what each side answers to the same prompts */
	WS_HOW_FORCED,  /* what each side says of the first one's prompt and drawn tokens; with one
	                 * endpoint alone, its prefill is compared with its own decode */
	/* prompts alone against all of them in one request, of each endpoint */
	WS_HOW_BATCHED,
	WS_HOW_CACHED /* what is drawn after prompts that are computed anew against what is drawn
	               * with the help of the cache of prefixes, of each endpoint */
};
const char *ws_logprobs_how_name(enum ws_logprobs_how how); /* "answers", "teacher-forced",
                                                             * "batched", "cached" */

struct ws_compared {
	const char *first, *second;   /* URL or file */
	enum ws_logprobs_how how;
	size_t prompt;                /* from 1; 0: the sum of all prompts */
	size_t prompts;               /* that are compared */
	size_t bad;                   /* of a sum: how many are not good */
	enum ws_logprob_part part;
	const struct ws_logprobs_diff *diff; /* of a sum over one prompt, all of it */
	bool good;
	const char *why;              /* not good: half a sentence; else "" */
};

struct ws_verify_logprobs_opts {
	struct ws_ask_opts ask;
	enum ws_logprobs_how how;
	/* WS_HOW_BATCHED: nothing may differ at all */
	struct ws_logprobs_limits limits[WS_LOGPROB_PARTS];
	/* NULL: nobody listens; ctx is ask.ctx */
	void (*compared)(void *ctx, const struct ws_compared *row);
};

/* 0: everything compared is within the limits, or there was only something to save. Else *err is
 * WS_EMISMATCH with the first that is not, or tells what failed. */
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
	size_t prompt, prompts;       /* 0: the sum of all prompts, which is told last */
	const struct ws_routing_shape *shape;
	const struct ws_routing_diff *diff;
	double share;                 /* of the rows that are equal */
	bool good;
};

struct ws_verify_routing_opts {
	struct ws_ask_opts ask;
	/* its directory or file; NULL: that of the first endpoint's model path */
	const char *config;
	double min_equal;             /* share of all rows */
	const char *npy;              /* of the only answer there is; NULL: nowhere */
	/* NULL: nobody listens; ctx is ask.ctx */
	void (*told)(void *ctx, const struct ws_routing_told *t);
	void (*held)(void *ctx, const struct ws_routing_held *h);
};

/* As ws_verify_logprobs. */
int ws_verify_routing(const struct ws_verify_routing_opts *opts, struct ws_err *err);

#ifdef __cplusplus
}
#endif
#endif
