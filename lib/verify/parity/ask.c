/* SPDX-License-Identifier: Apache-2.0 */
/* ask.c - sends prompts to each endpoint, several at a time, until each prompt has its answer.
 *
 *   POST /generate  {"text" | "input_ids", "sampling_params": {"max_new_tokens", "temperature": 0},
 *                    "return_logprob": true, "logprob_start_len": 0, "return_routed_experts": true}
 *                   with arrays of texts or of ids: a batch, answered by an array
 *   {"text", "meta_info": {"prompt_tokens", "completion_tokens", "cached_tokens", "weight_version",
 *                          "finish_reason": {"type": "stop" | "length" | "abort", "message"}, ...}}
 *
 * If the log-probabilities of the whole prompt are requested, servers compute all of it. If only
 * those of drawn tokens are requested, servers use their prefix cache.
 *
 * A server without this route may be a vLLM (ask_vllm.h).
 *
 * A pause in mode abort ends requests in flight with status 200 and the tokens drawn so far. Such
 * an answer is refused. */
#include "ask.h"

#include "ask_body.h"
#include "ask_vllm.h"
#include "endpoint_call.h"
#include "wsync/tool/str.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const int64_t PATIENCE_NS = 60 * WS_NS_PER_S;

struct slot { /* one request */
	struct ws_endpoint_call call;
	struct ws_buf body;
	size_t url, prompt;
	bool busy;
	bool vllm; /* its request is that of a vLLM */
};

struct pass {
	const struct ws_ask *ask;
	struct ws_http *http;
	struct slot *slots;     /* `each` slots per endpoint */
	size_t each, busy;
	size_t *next;           /* the prompt that each endpoint gets next */
	bool *vllm;             /* of each endpoint: it has no /generate */
	struct ws_asked *asked; /* one for each endpoint */
};

const char *ws_asked_as_name(enum ws_asked_as as)
{
	static const char *const names[] = { "alone", "scored", "batch", "cached" };
	return names[as];
}

/* ---- one answer ---- */

static void note_version(struct ws_asked *a, const struct ws_json *meta)
{
	const char *version = ws_json_get_string(meta, "weight_version", NULL);
	char text[sizeof a->weight_version];
	if (!version)
		return;
	ws_printable(text, sizeof text, version, strlen(version));
	a->version_changed |= *a->weight_version && strcmp(text, a->weight_version);
	memcpy(a->weight_version, text, sizeof text);
}

static int64_t count_of(const struct ws_json *meta, const char *key)
{
	const int64_t n = ws_json_get_int(meta, key, 0);
	return n > 0 && n <= INT32_MAX ? n : 0;
}

static void note(struct ws_asked *a, const struct ws_json *meta)
{
	const int64_t cached = count_of(meta, "cached_tokens");
	a->prompts++;
	a->prompt_tokens += count_of(meta, "prompt_tokens");
	a->completion_tokens += count_of(meta, "completion_tokens");
	a->cached_tokens += cached;
	a->cached_prompts += cached > 0;
	note_version(a, meta);
}

static int refuse_aborted(const struct ws_json *meta, struct ws_err *err)
{
	const struct ws_json *reason = ws_json_get(meta, "finish_reason");
	const char *words = ws_json_get_string(reason, "message", "");
	char text[200];
	if (strcmp(ws_json_get_string(reason, "type", ""), "abort"))
		return 0;
	ws_printable(text, sizeof text, words, strlen(words));
	ws_err_set(err, WS_EREFUSED, "POST /generate: the server aborted the request%s%s%s",
	           *text ? ": \"" : "", text, *text ? "\"" : "");
	return ws_err_hint(err, "a pause of mode abort does that to requests in flight: ask again");
}

static int take_answer(struct pass *p, const struct slot *s, size_t prompt,
                       const struct ws_json *answer, const struct ws_buf *text, struct ws_err *err)
{
	const struct ws_json *meta = ws_json_get(answer, "meta_info");
	int rc = refuse_aborted(meta, err);
	if (!rc)
		rc = p->ask->take(p->ask->ctx, s->url, prompt, answer, text, err);
	if (!rc)
		note(&p->asked[s->url], meta);
	if (rc && err && err->code == WS_EINPUT)
		err->code = WS_EREFUSED; /* the server sent it */
	return rc;
}

static int take_batch(struct pass *p, const struct slot *s, const struct ws_json *root,
                      struct ws_err *err)
{
	const size_t n = p->ask->prompts->n;
	size_t i = 0;
	if (ws_json_type(root) != WS_JSON_ARRAY || ws_json_count(root) != n)
		return ws_err_set(
			err, WS_EREFUSED,
			"POST /generate: the answer to a batch of %zu prompts is no array of "
			"%zu answers",
			n, n);
	for (const struct ws_json *x = ws_json_first(root); x; x = ws_json_next(x), i++)
		if (take_answer(p, s, i, x, NULL, err))
			return -1;
	return 0;
}

/* Adds a hint why a running server does not answer, or refuses. */
static void explain(const struct ws_ask *ask, struct ws_err *err)
{
	if (*err->hint)
		return;
	if (err->code == WS_ETIMEOUT)
		ws_err_hint(err, "a server that is paused or asleep keeps prompts waiting, until "
		                 "wsync-ctl resume or wake; {timeout_ns} waits longer");
	else if (err->code == WS_EREFUSED && err->native == 400 && ask->experts)
		ws_err_hint(err, "start the server with --enable-return-routed-experts");
	else if (err->code == WS_EREFUSED && err->native == 400 && ask->logprobs)
		ws_err_hint(err, "the server, or its version, does not return the logarithms of "
		                 "probabilities of a "
		                 "prompt (\"return_logprob\", \"logprob_start_len\": 0)");
}

static int take_reply(struct pass *p, const struct slot *s, const struct ws_json *root,
                      const struct ws_buf *text, struct ws_err *err)
{
	if (p->ask->as == WS_ASKED_BATCH)
		return take_batch(p, s, root, err);
	if (ws_json_type(root) == WS_JSON_ARRAY && ws_json_count(root) == 1)
		root = ws_json_first(root);
	return take_answer(p, s, s->prompt, root, text, err);
}

/* The answer of a vLLM, in the form of /generate. */
static int take_vllm(struct pass *p, const struct slot *s, const struct ws_json *reply,
                     struct ws_err *err)
{
	struct ws_buf text = { 0 };
	struct ws_json *root = NULL;
	int rc = ws_ask_vllm_answer(p->ask, reply, &text, err);
	if (!rc &&
	    !(root = ws_json_parse_most(text.data, text.len, WS_JSON_LARGE, "reply", err)))
		rc = -1;
	if (!rc)
		rc = take_reply(p, s, root, &text, err);
	ws_json_free(root);
	ws_buf_free(&text);
	return rc;
}

static int start_slot(struct pass *p, struct slot *s, struct ws_err *err);

/* True if the server is a vLLM, which gets the prompt again. */
static bool turns_to_vllm(struct pass *p, struct slot *s)
{
	if (s->call.http.err.code || s->call.http.status != 404 || s->vllm)
		return false;
	p->vllm[s->url] = true;
	ws_endpoint_call_free(&s->call);
	ws_buf_free(&s->body);
	return true;
}

static int finish(struct pass *p, struct slot *s, struct ws_err *err)
{
	const struct ws_json *root;
	if (turns_to_vllm(p, s))
		return start_slot(p, s, err);
	int rc = ws_endpoint_reply(&s->call, &root, NULL, 0, err);
	if (!rc)
		rc = s->vllm ? take_vllm(p, s, root, err) :
		               take_reply(p, s, root, &s->call.http.reply, err);
	if (rc && err) {
		explain(p->ask, err);
		ws_err_where(err, NULL, p->ask->urls[s->url]);
		if (p->ask->as != WS_ASKED_BATCH && p->ask->prompts->n > 1) {
			char which[32];
			snprintf(which, sizeof which, "prompt %zu", s->prompt + 1);
			ws_err_wrap(err, "%s", which);
		}
	}
	s->busy = false;
	p->busy--;
	ws_endpoint_call_free(&s->call);
	ws_buf_free(&s->body);
	return rc;
}

/* ---- all of them ---- */

static size_t count_at_once(const struct ws_ask *ask)
{
	return ask->as == WS_ASKED_BATCH ? ask->prompts->n : 1;
}

/* Sends the slot's prompts. */
static int start_slot(struct pass *p, struct slot *s, struct ws_err *err)
{
	const struct ws_ask *ask = p->ask;
	const int64_t ns = ask->opts->timeout_ns > 0 ? ask->opts->timeout_ns : PATIENCE_NS;
	s->vllm = p->vllm[s->url];
	return (s->vllm ? ws_ask_vllm_body : ws_ask_write_body)(&s->body, ask, s->prompt,
	                                                         count_at_once(ask), err) ||
	                       ws_endpoint_start(p->http, &s->call, ask->urls[s->url], "POST",
	                                         s->vllm ? "/v1/completions" : "/generate",
	                                         &s->body, ws_deadline_in(ns), err) ?
	               -1 :
	               0;
}

static int start_call(struct pass *p, struct slot *s, struct ws_err *err)
{
	s->prompt = p->next[s->url];
	if (start_slot(p, s, err))
		return -1;
	p->next[s->url] += count_at_once(p->ask);
	s->busy = true;
	p->busy++;
	return 0;
}

static int run_pass(struct pass *p, struct ws_err *err)
{
	const size_t n = p->each * p->ask->n_urls;
	for (;;) {
		for (size_t i = 0; i < n; i++)
			if (!p->slots[i].busy && p->next[p->slots[i].url] < p->ask->prompts->n &&
			    start_call(p, &p->slots[i], err))
				return -1;
		if (!p->busy)
			return 0;
		if (ws_http_wait(p->http, WS_FOREVER, p->ask->opts->cancel, -1, err) < 0)
			return -1;
		for (size_t i = 0; i < n; i++)
			if (p->slots[i].busy && p->slots[i].call.http.done &&
			    finish(p, &p->slots[i], err))
				return -1;
	}
}

static void end_pass(struct pass *p)
{
	for (size_t i = 0; p->slots && i < p->each * p->ask->n_urls; i++) {
		if (p->slots[i].busy)
			ws_http_drop(p->http, &p->slots[i].call.http);
		ws_endpoint_call_free(&p->slots[i].call);
		ws_buf_free(&p->slots[i].body);
	}
	free(p->slots);
	free(p->next);
	free(p->vllm);
	free(p->asked);
}

/* ---- before and after ---- */

static int flush(struct ws_http *http, const struct ws_ask *ask, struct ws_err *err)
{
	const int64_t ns = ask->opts->timeout_ns > 0 ? ask->opts->timeout_ns : PATIENCE_NS;
	const ws_deadline until = ws_deadline_in(ns);
	struct ws_endpoint_answer *answers = calloc(ask->n_urls + 1, sizeof *answers);
	if (!answers)
		return ws_oom(err);
	const struct ws_call to = { http, ask->urls, ask->n_urls, until, ask->opts->cancel, NULL };
	const int rc = ws_endpoint_flush(&to, until, answers, err);
	for (size_t i = 0; rc && i < ask->n_urls; i++)
		if (err && err->code == WS_EPARTIAL && answers[i].err.code) {
			*err = answers[i].err; /* a flush leaves nothing partial */
			break;
		}
	free(answers);
	return rc;
}

/* Warns if answers may come from other weights than the reported version. */
static void warn_of_change(const struct ws_ask *ask, const struct ws_asked *a)
{
	if (a->version_changed)
		ws_ask_warn(ask->opts, a->url,
		            "the weight version changed to '%s' during the requests",
		            a->weight_version);
	if (a->cached_prompts && a->as == WS_ASKED_ALONE)
		ws_ask_warn(
			ask->opts, a->url,
			"%lld tokens of %lld prompt%s came from the cache, which may be of older "
			"weights; {flush_first} drops it",
			(long long)a->cached_tokens, (long long)a->cached_prompts,
			a->cached_prompts == 1 ? "" : "s");
	if (ask->opts->asked)
		ask->opts->asked(ask->opts->ctx, a);
}

static void compare_versions(const struct pass *p)
{
	const struct ws_ask *ask = p->ask;
	const char *first = p->asked[0].weight_version;
	for (size_t i = 1; i < ask->n_urls && ask->as == WS_ASKED_ALONE; i++)
		if (*first && *p->asked[i].weight_version &&
		    strcmp(first, p->asked[i].weight_version))
			ws_ask_warn(ask->opts, ask->urls[i],
			            "answers with weight version '%s', %s with '%s'",
			            p->asked[i].weight_version, ask->urls[0], first);
}

int ws_ask(struct ws_http *http, const struct ws_ask *ask, struct ws_err *err)
{
	const size_t most =
		ask->as == WS_ASKED_BATCH || !ask->opts->parallel ? 1 : ask->opts->parallel;
	struct pass p = { .ask = ask,
		          .http = http,
		          .each = most < WS_ASK_PARALLEL ? most : WS_ASK_PARALLEL };
	const int64_t since = ws_now_ns();
	if (ask->opts->flush_first && flush(http, ask, err))
		return -1;
	p.slots = calloc(p.each * ask->n_urls + 1, sizeof *p.slots);
	p.next = calloc(ask->n_urls + 1, sizeof *p.next);
	p.asked = calloc(ask->n_urls + 1, sizeof *p.asked);
	p.vllm = calloc(ask->n_urls + 1, sizeof *p.vllm);
	int rc = p.slots && p.next && p.asked && p.vllm ? 0 : ws_oom(err);
	for (size_t i = 0; !rc && i < p.each * ask->n_urls; i++)
		p.slots[i].url = i % ask->n_urls;
	if (!rc)
		rc = run_pass(&p, err);
	if (!rc)
		compare_versions(&p);
	for (size_t i = 0; !rc && i < ask->n_urls; i++) {
		p.asked[i].url = ask->urls[i];
		p.asked[i].as = ask->as;
		p.asked[i].ns = ws_now_ns() - since;
		warn_of_change(ask, &p.asked[i]);
	}
	end_pass(&p);
	return rc;
}
