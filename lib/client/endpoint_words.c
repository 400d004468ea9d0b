/* SPDX-License-Identifier: Apache-2.0 */
/* endpoint_words.c - sends one request to many endpoints, and reads their answers; keeps no
 * state. */
#include "endpoint_words.h"

#include <stdlib.h>

enum { BODY_MAX = 64 * 1024 };

int ws_endpoint_sum_up(const char *what, size_t n, const struct ws_endpoint_answer *answers,
                       struct ws_err *err)
{
	size_t failed = 0;
	const struct ws_err *first = NULL;
	for (size_t i = 0; i < n; i++) {
		if (answers[i].err.code == WS_OK)
			continue;
		failed++;
		if (!first)
			first = &answers[i].err;
	}
	if (!failed)
		return 0;
	if (failed == n || !err) {
		if (err)
			*err = *first;
		return -1;
	}
	ws_err_set(err, WS_EPARTIAL, "%s: failed on %zu of %zu endpoints: %s", what, failed, n,
	           first->msg);
	ws_err_hint(err, "%s", first->hint);
	return ws_err_where(err, what, first->endpoint);
}

static void read_answer(struct ws_endpoint_call *call, const char *what,
                        struct ws_endpoint_answer *answer)
{
	*answer = (struct ws_endpoint_answer){ .err = WS_ERR_INIT, .sent = call->http.sent,
		                               .ns = call->http.ns };
	if (ws_endpoint_reply(call, NULL, answer->message, sizeof answer->message, &answer->err))
		ws_err_where(&answer->err, what, NULL);
}

void ws_asking_cut_off(const struct ws_asking *a, const struct ws_err *why,
                       struct ws_endpoint_answer *answers)
{
	for (size_t i = 0; i < a->to->n; i++) {
		struct ws_endpoint_call *call = a->calls ? &a->calls[i] : NULL;
		if (call && call->http.done)
			read_answer(call, a->name, &answers[i]);
		else
			answers[i] = (struct ws_endpoint_answer){ .err = *why,
				                                  .sent = call && call->http.sent };
	}
}

/* ---- one request ---- */

int ws_asking_open(struct ws_asking *a, struct ws_err *err)
{
	const size_t n = a->to->n;
	a->calls = calloc(n + 1, sizeof *a->calls);
	a->bodies = calloc(n + 1, sizeof *a->bodies);
	a->family = calloc(n + 1, sizeof *a->family);
	a->guessed = calloc(n + 1, sizeof *a->guessed);
	if (!a->calls || !a->bodies || !a->family || !a->guessed)
		return ws_oom(err);
	for (size_t i = 0; i < n; i++) {
		const struct ws_endpoint_info *info = a->to->infos ? a->to->infos[i] : NULL;
		ws_buf_init(&a->bodies[i], BODY_MAX);
		a->family[i] = info ? ws_lineage_family(info->lineage) : WS_FAMILY_SGLANG;
		a->guessed[i] = !info;
	}
	return 0;
}

void ws_asking_close(struct ws_asking *a)
{
	for (size_t i = 0; i < a->to->n; i++) {
		if (a->calls)
			ws_endpoint_call_free(&a->calls[i]);
		if (a->bodies)
			ws_buf_free(&a->bodies[i]);
	}
	free(a->calls);
	free(a->bodies);
	free(a->family);
	free(a->guessed);
}

static int prepare_one(struct ws_asking *a, size_t i, struct ws_err *err)
{
	const struct ws_words *w = &a->words[a->family[i]];
	ws_buf_reset(&a->bodies[i]);
	if (w->body)
		ws_buf_puts(&a->bodies[i], w->body);
	if (ws_buf_check(&a->bodies[i], a->name, err))
		return -1;
	if (ws_endpoint_prepare(&a->calls[i], a->to->urls[i], w->method, w->path, &a->bodies[i],
	                        a->to->until, err))
		return -1;
	/* vLLM has some of SGLang's paths, but no such key. */
	if (a->family[i] != WS_FAMILY_SGLANG || a->guessed[i])
		a->calls[i].http.admin = false;
	return 0;
}

/* True if the server has no route of SGLang's, so it gets the words of vLLM. */
static bool turn_to_vllm(struct ws_asking *a, size_t i, const struct ws_err *said)
{
	if (!a->guessed[i] || said->code != WS_EREFUSED || said->native != 404 ||
	    !a->words[WS_FAMILY_VLLM].path)
		return false;
	a->guessed[i] = false;
	a->family[i] = WS_FAMILY_VLLM;
	return true;
}

/* True if the server wants a key on a route of SGLang's, so it gets the admin key: a vLLM, which
 * wants none there, must not. */
static bool turn_to_admin(struct ws_asking *a, size_t i, const struct ws_err *said)
{
	if (!a->guessed[i] || said->code != WS_EREFUSED || said->native != 401 ||
	    !ws_http_has_admin_key(a->to->http) || !ws_http_wants_admin(a->calls[i].path))
		return false;
	a->guessed[i] = false;
	return true;
}

/* The answers of the calls that are done; *again: some servers get another request. */
static int read_answers(struct ws_asking *a, bool *asked, struct ws_endpoint_answer *answers,
                        bool *again, struct ws_err *err)
{
	*again = false;
	for (size_t i = 0; i < a->to->n; i++) {
		if (!asked[i])
			continue;
		const struct ws_err first = answers[i].err;
		const bool second = a->family[i] == WS_FAMILY_VLLM && first.native == 404;
		read_answer(&a->calls[i], a->name, &answers[i]);
		asked[i] = turn_to_vllm(a, i, &answers[i].err) ||
		           turn_to_admin(a, i, &answers[i].err);
		if (asked[i] && prepare_one(a, i, err))
			return -1;
		if (asked[i])
			a->calls[i].http.until = ws_endpoint_later(a->to->until);
		*again |= asked[i];
		if (second && !asked[i] && answers[i].err.native == 404) {
			answers[i].err = first; /* it knows neither */
			ws_err_hint(&answers[i].err, "this server, or its version, cannot do that; "
			            "a vLLM can if it is started with VLLM_SERVER_DEV_MODE=1");
		}
	}
	return 0;
}

static int ask(struct ws_asking *a, bool *asked, struct ws_endpoint_answer *answers,
               struct ws_err *err)
{
	const struct ws_call *to = a->to;
	for (size_t i = 0; i < to->n; i++)
		if (asked[i] && prepare_one(a, i, err))
			return -1;
	for (bool again = true; again;)
		if (ws_endpoint_run(to->http, a->calls, to->n, to->cancel, err) ||
		    read_answers(a, asked, answers, &again, err))
			return -1;
	return 0;
}

int ws_asking_round(struct ws_asking *a, bool (*wanted)(const struct ws_err *last),
                    struct ws_endpoint_answer *answers, struct ws_err *err)
{
	bool *asked = calloc(a->to->n + 1, sizeof *asked);
	if (!asked)
		return ws_oom(err);
	for (size_t i = 0; i < a->to->n; i++) {
		if (wanted && !wanted(&answers[i].err))
			continue;
		answers[i] = (struct ws_endpoint_answer){ .err = WS_ERR_INIT };
		asked[i] = a->words[a->family[i]].path != NULL;
	}
	const int rc = ask(a, asked, answers, err);
	free(asked);
	return rc;
}

int ws_endpoint_tell_in_words(const struct ws_call *to, const char *name, struct ws_words sglang,
                              struct ws_words vllm, struct ws_endpoint_answer *answers,
                              struct ws_err *err)
{
	struct ws_err why = WS_ERR_INIT;
	struct ws_asking a = { .to = to, .name = name, .words = { sglang, vllm } };
	int rc = ws_asking_open(&a, &why) || ws_asking_round(&a, NULL, answers, &why) ? -1 : 0;
	if (rc) {
		ws_asking_cut_off(&a, &why, answers);
		if (err)
			*err = why;
	} else {
		rc = ws_endpoint_sum_up(name, to->n, answers, err);
	}
	ws_asking_close(&a);
	return rc;
}

/* ---- one request without families ---- */

/* One request to each endpoint. */
static int send_requests(const struct ws_call *to, const struct ws_lifecycle *what,
                         struct ws_endpoint_call *calls, struct ws_err *err)
{
	for (size_t i = 0; i < to->n; i++)
		if (ws_endpoint_prepare(&calls[i], to->urls[i], what->method,
		                        what->paths ? what->paths[i] : what->path,
		                        what->bodies ? &what->bodies[i] : what->body,
		                        to->until, err))
			return -1;
	return ws_endpoint_run(to->http, calls, to->n, to->cancel, err);
}

int ws_endpoint_tell(const struct ws_call *to, const struct ws_lifecycle *what,
                     struct ws_endpoint_answer *answers, struct ws_err *err)
{
	struct ws_err why = WS_ERR_INIT;
	struct ws_asking a = { .to = to, .name = what->name };
	int rc = ws_asking_open(&a, &why) || send_requests(to, what, a.calls, &why) ? -1 : 0;
	if (rc) {
		ws_asking_cut_off(&a, &why, answers);
		if (err)
			*err = why;
	} else {
		for (size_t i = 0; i < to->n; i++)
			read_answer(&a.calls[i], what->name, &answers[i]);
		rc = ws_endpoint_sum_up(what->name, to->n, answers, err);
	}
	ws_asking_close(&a);
	return rc;
}
