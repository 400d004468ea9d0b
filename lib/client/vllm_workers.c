/* SPDX-License-Identifier: Apache-2.0 */
#include "vllm_workers.h"

#include "endpoint_words.h"

#include <stdlib.h>
#include <string.h>

enum question { UPDATING, TASKS, HEALTH };
static const char *const questions[] = {
	[UPDATING] = "{\"method\":\"__getattr__\",\"args\":[\"_weight_update_active\"]}",
	[TASKS] = "{\"method\":\"get_supported_tasks\"}",
	[HEALTH] = "{\"method\":\"check_health\"}",
};

/* The answers of one server's workers. */
struct told {
	size_t n, updating;
};

static int accuse(const char *url, struct ws_err *err)
{
	ws_err_set(err, WS_EREFUSED, "%s: its workers answer earlier requests instead of the last "
	           "one, so their answers prove nothing", url);
	ws_err_hint(err, "restart the server: this vLLM never recovers from a request that failed "
	                 "at one of several workers");
	return ws_err_where(err, NULL, url);
}

/* vLLM makes text of what is no object, array or null: a tuple too, with
 * VLLM_ALLOW_INSECURE_SERIALIZATION=1. */
static bool fits(const struct ws_json *r, enum question q)
{
	const char *text = ws_json_string(r);
	const bool is_bool = text && (strcmp(text, "True") == 0 || strcmp(text, "False") == 0);
	return q == UPDATING ? is_bool :
	       q == HEALTH   ? ws_json_type(r) == WS_JSON_NULL :
	                       ws_json_type(r) != WS_JSON_NULL && !is_bool;
}

static int read_results(const struct ws_json *reply, enum question q, const char *url,
                        struct told *out, struct ws_err *err)
{
	const struct ws_json *r = ws_json_first(ws_json_get(reply, "results"));
	*out = (struct told){ 0 };
	for (; r; r = ws_json_next(r), out->n++) {
		if (!fits(r, q)) {
			out->updating = 0;
			return accuse(url, err);
		}
		out->updating += q == UPDATING && strcmp(ws_json_string(r), "True") == 0;
	}
	/* If only some workers are inside an update, it failed at the others: do not finish it. */
	if (out->n && (!out->updating || out->updating == out->n))
		return 0;
	out->updating = 0;
	return accuse(url, err);
}

/* Asks question q[i] at server i; told[i] and errs[i] get its answer. */
static int ask(const struct ws_call *to, const enum question *q, struct told *told,
               struct ws_err *errs, struct ws_err *err)
{
	struct ws_endpoint_call *calls = calloc(to->n + 1, sizeof *calls);
	struct ws_buf bodies[sizeof questions / sizeof *questions];
	const size_t n_bodies = sizeof bodies / sizeof *bodies;
	int rc = calls ? 0 : ws_oom(err);
	for (size_t k = 0; k < n_bodies; k++) {
		ws_buf_init(&bodies[k], 256);
		ws_buf_puts(&bodies[k], questions[k]);
	}
	for (size_t i = 0; rc == 0 && i < to->n; i++)
		rc = ws_endpoint_prepare(&calls[i], to->urls[i], "POST", "/collective_rpc",
		                         &bodies[q[i]], to->until, err);
	if (rc == 0)
		rc = ws_endpoint_run(to->http, calls, to->n, to->cancel, err);
	for (size_t i = 0; rc == 0 && i < to->n; i++) {
		const struct ws_json *reply;
		if (ws_endpoint_reply(&calls[i], &reply, NULL, 0, &errs[i]) == 0)
			(void)read_results(reply, q[i], to->urls[i], &told[i], &errs[i]);
	}
	for (size_t i = 0; calls && i < to->n; i++)
		ws_endpoint_call_free(&calls[i]);
	for (size_t k = 0; k < n_bodies; k++)
		ws_buf_free(&bodies[k]);
	free(calls);
	return rc;
}

int ws_vllm_in_step(const struct ws_call *to, bool *inside, struct ws_err *errs,
                    struct ws_err *err)
{
	enum question *q = calloc(to->n + 1, sizeof *q);
	struct told *told = calloc(to->n + 1, sizeof *told);
	int rc = q && told ? 0 : ws_oom(err);
	for (size_t i = 0; rc == 0 && i < to->n; i++) {
		errs[i] = (struct ws_err)WS_ERR_INIT;
		/* Without an engine there is no update, and workers of plug-ins may lack it. */
		q[i] = to->infos[i]->can.transfer_session && *to->infos[i]->engine ? UPDATING :
		                                                                     TASKS;
	}
	rc = rc || ask(to, q, told, errs, err) ? -1 : 0;
	for (size_t i = 0; rc == 0 && i < to->n; i++) {
		inside[i] = told[i].updating > 0;
		q[i] = HEALTH;
		rc = errs[i].code ? -1 : 0;
		if (rc && err)
			*err = errs[i];
	}
	rc = rc || ask(to, q, told, errs, err) ? -1 : 0;
	for (size_t i = 0; rc == 0 && i < to->n; i++) {
		rc = errs[i].code ? -1 : 0;
		if (rc && err)
			*err = errs[i];
	}
	free(q);
	free(told);
	return rc;
}

static bool has_word(const struct ws_json *list, const char *word)
{
	for (const struct ws_json *w = ws_json_first(list); w; w = ws_json_next(w))
		if (ws_json_string(w) && strcmp(ws_json_string(w), word) == 0)
			return true;
	return false;
}

int ws_vllm_packs(const struct ws_call *to, bool *out, struct ws_err *err)
{
	struct ws_endpoint_call call = { 0 };
	const struct ws_json *reply, *r;
	struct ws_err said = WS_ERR_INIT;
	struct ws_buf body;
	*out = false;
	ws_buf_init(&body, 64);
	ws_buf_puts(&body, "{\"method\":\"__dir__\"}");
	const int rc = ws_endpoint_prepare(&call, to->urls[0], "POST", "/collective_rpc", &body,
	                                   to->until, err) ||
	                               ws_endpoint_run(to->http, &call, 1, to->cancel, err) ?
	                       -1 :
	                       0;
	if (rc == 0 && ws_endpoint_reply(&call, &reply, NULL, 0, &said) == 0) {
		r = ws_json_first(ws_json_get(reply, "results"));
		for (*out = r; r; r = ws_json_next(r))
			*out &= has_word(r, "wsync_packs");
	}
	ws_endpoint_call_free(&call);
	ws_buf_free(&body);
	return rc;
}

/* Finishes the updates of the servers where told[i].updating. */
static int finish(const struct ws_call *to, const struct told *told, struct ws_err *errs,
                  struct ws_endpoint_answer *answers, struct ws_err *err)
{
	static const struct ws_words words = { "POST", "/finish_weight_update", "{}" };
	const char **urls = calloc(to->n + 1, sizeof *urls);
	struct ws_endpoint_answer *said = calloc(to->n + 1, sizeof *said);
	struct ws_call some = *to;
	int rc = urls && said ? 0 : ws_oom(err);
	some.urls = urls;
	some.n = 0;
	some.infos = NULL;
	for (size_t i = 0; rc == 0 && i < to->n; i++)
		if (told[i].updating)
			urls[some.n++] = to->urls[i];
	if (rc == 0 && some.n)
		ws_endpoint_tell_in_words(&some, "finish", words, words, said, NULL);
	for (size_t i = 0, k = 0; rc == 0 && i < to->n; i++)
		answers[i] = told[i].updating ? said[k++] :
		                                (struct ws_endpoint_answer){ .err = errs[i] };
	free(urls);
	free(said);
	return rc;
}

int ws_vllm_end_updates(const struct ws_call *to, struct ws_endpoint_answer *answers,
                        struct ws_err *err)
{
	enum question *q = calloc(to->n + 1, sizeof *q); /* UPDATING for all */
	struct told *told = calloc(to->n + 1, sizeof *told);
	struct ws_err *errs = calloc(to->n + 1, sizeof *errs);
	struct ws_err why = WS_ERR_INIT;
	for (size_t i = 0; errs && i < to->n; i++)
		errs[i] = (struct ws_err)WS_ERR_INIT;
	const int rc = !q || !told || !errs ? ws_oom(&why) :
	               ask(to, q, told, errs, &why) || finish(to, told, errs, answers, &why) ? -1 :
	                                                                                      0;
	for (size_t i = 0; rc && i < to->n; i++)
		answers[i] = (struct ws_endpoint_answer){ .err = why };
	if (rc && err)
		*err = why;
	free(q);
	free(told);
	free(errs);
	return rc ? -1 : ws_endpoint_sum_up("finish", to->n, answers, err);
}
