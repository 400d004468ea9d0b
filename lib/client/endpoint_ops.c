/* SPDX-License-Identifier: Apache-2.0 */
/* endpoint_ops.c - sends one lifecycle call to many endpoints at once; keeps no state. */
#include "endpoint_call.h"

#include "wsync/tool/json.h"

#include <stdlib.h>
#include <string.h>

enum { BODY_MAX = 64 * 1024 };

/* 0 if all succeeded, the first failure if all failed, else WS_EPARTIAL. */
static int sum_up(const char *what, size_t n, const struct ws_endpoint_answer *answers,
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

static void read_answer(struct ws_endpoint_call *call, const char *what,
                        struct ws_endpoint_answer *answer)
{
	*answer = (struct ws_endpoint_answer){ .err = WS_ERR_INIT, .sent = call->http.sent,
		                               .ns = call->http.ns };
	if (ws_endpoint_reply(call, NULL, answer->message, sizeof answer->message, &answer->err))
		ws_err_where(&answer->err, what, NULL);
}

/* *why ended the calls early. Reads the answers that had arrived; the other answers get *why. */
static void read_cut_off(struct ws_endpoint_call *calls, size_t n, const char *what,
                         const struct ws_err *why, struct ws_endpoint_answer *answers)
{
	for (size_t i = 0; i < n; i++) {
		if (calls && calls[i].http.done)
			read_answer(&calls[i], what, &answers[i]);
		else
			answers[i] = (struct ws_endpoint_answer){
				.err = *why, .sent = calls && calls[i].http.sent
			};
	}
}

static struct ws_endpoint_call *new_calls(size_t n, struct ws_err *err)
{
	struct ws_endpoint_call *calls = calloc(n ? n : 1, sizeof *calls);
	if (!calls)
		ws_oom(err);
	return calls;
}

static void free_calls(struct ws_endpoint_call *calls, size_t n)
{
	for (size_t i = 0; calls && i < n; i++)
		ws_endpoint_call_free(&calls[i]);
	free(calls);
}

int ws_endpoint_tell(const struct ws_call *to, const struct ws_lifecycle *what,
                     struct ws_endpoint_answer *answers, struct ws_err *err)
{
	struct ws_err why = WS_ERR_INIT;
	struct ws_endpoint_call *calls = new_calls(to->n, &why);
	int rc = calls ? send_requests(to, what, calls, &why) : -1;
	if (rc) {
		read_cut_off(calls, to->n, what->name, &why, answers);
		if (err)
			*err = why;
	} else {
		for (size_t i = 0; i < to->n; i++)
			read_answer(&calls[i], what->name, &answers[i]);
		rc = sum_up(what->name, to->n, answers, err);
	}
	free_calls(calls, to->n);
	return rc;
}

int ws_endpoint_health(const struct ws_call *to, struct ws_endpoint_answer *answers,
                       struct ws_err *err)
{
	const struct ws_lifecycle what = { .name = "health", .method = "GET", .path = "/health" };
	return ws_endpoint_tell(to, &what, answers, err);
}

/* Posts {key: value} to each endpoint; key NULL: {}. */
static int post_each(const struct ws_call *to, const char *name, const char *path, const char *key,
                     const char *value, struct ws_endpoint_answer *answers, struct ws_err *err)
{
	struct ws_buf body;
	struct ws_jw w;
	const struct ws_lifecycle what = {
		.name = name, .method = "POST", .path = path, .body = &body
	};
	ws_buf_init(&body, BODY_MAX);
	ws_jw_init(&w, &body);
	ws_jw_object(&w, NULL);
	if (key)
		ws_jw_str(&w, key, value);
	if (!strcmp(name, "version"))
		ws_jw_bool(&w, "abort_all_requests", false); /* servers default to true */
	ws_jw_end_object(&w);
	struct ws_err why = WS_ERR_INIT;
	int rc = ws_buf_check(&body, name, &why);
	if (rc)
		read_cut_off(NULL, to->n, name, &why, answers);
	else
		rc = ws_endpoint_tell(to, &what, answers, &why);
	if (rc && err)
		*err = why;
	ws_buf_free(&body);
	return rc;
}

int ws_endpoint_pause(const struct ws_call *to, enum ws_pause_mode mode,
                      struct ws_endpoint_answer *answers, struct ws_err *err)
{
	return post_each(to, "pause", "/pause_generation", "mode", ws_pause_mode_name(mode),
	                 answers, err);
}

int ws_endpoint_resume(const struct ws_call *to, struct ws_endpoint_answer *answers,
                       struct ws_err *err)
{
	return post_each(to, "resume", "/continue_generation", NULL, NULL, answers, err);
}

int ws_endpoint_check_version(const char *version, struct ws_err *err)
{
	if (!version || *version)
		return 0;
	ws_err_set(err, WS_EUSAGE, "the weight version is empty");
	return ws_err_hint(err, "is a variable of the shell not set?");
}

int ws_endpoint_set_version(const struct ws_call *to, const char *version,
                            struct ws_endpoint_answer *answers, struct ws_err *err)
{
	return post_each(to, "version", "/update_weight_version", "new_version", version, answers,
	                 err);
}

/* Every known server reports this in its message only. */
bool ws_endpoint_knew_none(const struct ws_endpoint_answer *a)
{
	return strstr(a->message, "does not exist") != NULL;
}

int ws_endpoint_destroy_group(const struct ws_call *to, const char *group_name,
                              struct ws_endpoint_answer *answers, struct ws_err *err)
{
	struct ws_err why = WS_ERR_INIT;
	if (post_each(to, "destroy", "/destroy_weights_update_group", "group_name", group_name,
	              answers, &why) == 0)
		return 0;
	if (why.code == WS_ECANCELLED || why.code == WS_ESYSTEM) {
		if (err)
			*err = why;
		return -1;
	}
	for (size_t i = 0; i < to->n; i++)
		if (answers[i].err.code == WS_EREFUSED && ws_endpoint_knew_none(&answers[i]))
			answers[i].err = (struct ws_err)WS_ERR_INIT;
	return sum_up("destroy", to->n, answers, err);
}

int ws_endpoint_reset_weights(const struct ws_call *to, const struct ws_buf *bodies,
                              struct ws_endpoint_answer *answers, struct ws_err *err)
{
	const struct ws_lifecycle what = { .name = "reset_tensors", .method = "POST",
		                           .path = "/weights_checker", .bodies = bodies };
	return ws_endpoint_tell(to, &what, answers, err);
}

/* ---- flush: refused while requests are running ---- */

static bool is_busy(const struct ws_endpoint_answer *answer)
{
	return answer->err.code == WS_EREFUSED && answer->err.native == 400;
}

/* Sends a flush to the busy endpoints; in the first round to all. */
static int flush_round(const struct ws_call *to, struct ws_endpoint_call *calls, bool first,
                       struct ws_endpoint_answer *answers, struct ws_err *err)
{
	for (size_t i = 0; i < to->n; i++)
		if ((first || is_busy(&answers[i])) &&
		    ws_endpoint_prepare(&calls[i], to->urls[i], "GET", "/flush_cache", NULL,
		                        to->until, err))
			return -1;
	if (ws_endpoint_run(to->http, calls, to->n, to->cancel, err))
		return -1;
	for (size_t i = 0; i < to->n; i++)
		read_answer(&calls[i], "flush", &answers[i]);
	return 0;
}

static bool any_busy(const struct ws_endpoint_answer *answers, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (is_busy(&answers[i]))
			return true;
	return false;
}

int ws_endpoint_flush(const struct ws_call *to, ws_deadline patience,
                      struct ws_endpoint_answer *answers, struct ws_err *err)
{
	struct ws_err why = WS_ERR_INIT;
	struct ws_endpoint_call *calls = new_calls(to->n, &why);
	const ws_deadline last = ws_deadline_min(patience, to->until);
	const int64_t pause_ns = WS_NS_PER_S / 2;
	int rc = calls ? 0 : -1;
	for (bool first = true; !rc; first = false) {
		rc = flush_round(to, calls, first, answers, &why);
		if (rc || !any_busy(answers, to->n) || ws_deadline_left(last) < pause_ns)
			break;
		const ws_deadline again = ws_deadline_in(pause_ns);
		while (!rc && !ws_deadline_passed(again))
			rc = ws_http_wait(to->http, again, to->cancel, -1, &why) < 0 ? -1 : 0;
	}
	if (rc) {
		read_cut_off(calls, to->n, "flush", &why, answers);
		if (err)
			*err = why;
	} else {
		rc = sum_up("flush", to->n, answers, err);
		if (rc && any_busy(answers, to->n))
			ws_err_hint(err, "a server flushes only when nothing runs or waits: pause "
			                 "it in mode abort first, or wait longer");
	}
	free_calls(calls, to->n);
	return rc;
}
