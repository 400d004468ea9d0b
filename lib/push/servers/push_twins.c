/* SPDX-License-Identifier: Apache-2.0 */
/* push_twins.c - do two of our URLs lead to one server? It would get two requests to join the
 * group, and the group would never form.
 *
 * Addresses do not show it: a server may have several, and a proxy shows several servers at one.
 * Different instances (identity.h) are different servers. Equal ones are one server, unless it is
 * a seed, which the operator may have set: then all suspects open a session with one fresh ID,
 * which changes nothing:
 *
 *   POST /open_session {"capacity_of_str_len", "session_id"}
 *       200 and the ID, or 400 "... a session with the same id is still open"
 *   POST /close_session {"session_id"}
 *
 * A server that has the ID open already got the request before, by its other URL. A session is the
 * name of a chat's cache; this one is closed at once, unused. */
#include "push_protocol.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const int64_t ANSWER_NS = 5 * WS_NS_PER_S;

enum answer { NOT_TOLD, OPENED, OPEN_ALREADY };

static bool are_alike(const struct ws_endpoint_info *a, const struct ws_endpoint_info *b)
{
	return a->instance && a->instance == b->instance && a->tp_size == b->tp_size &&
	       strcmp(a->version, b->version) == 0 && strcmp(a->model_path, b->model_path) == 0;
}

static bool is_certain(const struct ws_push *p, size_t i)
{
	return p->to.infos[i].instance && p->to.infos[i].identity.unique;
}

/* Finds two endpoints that report the same start, where a start belongs to one server only. *k:
 * n_endpoints if there are none. */
static void find_equal(const struct ws_push *p, size_t *i, size_t *k)
{
	const size_t n = p->opts.n_endpoints;
	for (*i = 1; *i < n; ++*i)
		for (*k = 0; *k < *i; ++*k)
			if (is_certain(p, *i) && is_certain(p, *k) &&
			    p->to.infos[*i].instance == p->to.infos[*k].instance)
				return;
	*k = n;
}

/* With replicas, each replica would answer for itself. */
static bool can_ask(const struct ws_endpoint_info *info)
{
	return info->dp_size == 1;
}

/* Marks the endpoints that look like another endpoint. Returns false if no endpoint does. */
static bool find_suspects(const struct ws_push *p, bool *suspect)
{
	bool any = false;
	for (size_t i = 0; i < p->opts.n_endpoints; i++) {
		for (size_t k = 0; k < p->opts.n_endpoints && !suspect[i]; k++)
			suspect[i] = k != i && are_alike(&p->to.infos[i], &p->to.infos[k]);
		any = any || suspect[i];
	}
	return any;
}

/* ---- asking ---------------------------------------------------------------------------------- */

/* Sends a request to the `wanted` endpoints. Answer k of the push is that of the k-th of them. */
static void post_session(struct ws_push *p, const char *path, const char *id, const bool *wanted)
{
	struct ws_buf body;
	struct ws_jw w;
	push_call_new(p);
	for (size_t i = 0; i < p->opts.n_endpoints; i++) {
		p->to.call.answers[i] = (struct ws_endpoint_answer){ .err = WS_ERR_INIT };
		if (wanted[i])
			push_call_add(p, i);
	}
	ws_buf_init(&body, 1024);
	ws_jw_init(&w, &body);
	ws_jw_object(&w, NULL);
	ws_jw_str(&w, "session_id", id);
	if (strcmp(path, "/open_session") == 0)
		ws_jw_int(&w, "capacity_of_str_len", 1);
	ws_jw_end_object(&w);
	const struct ws_call to = push_call_made(
		p, ws_deadline_min(p->run.until, ws_deadline_in(ANSWER_NS)), p->opts.cancel);
	const struct ws_lifecycle what = {
		.name = "connect", .method = "POST", .path = path, .body = &body
	};
	ws_endpoint_tell(&to, &what, p->to.call.answers, NULL);
	ws_buf_free(&body);
}

static enum answer read_answer(const struct ws_endpoint_answer *a, const char *id)
{
	if (a->err.code == WS_OK)
		return strcmp(a->message, id) == 0 ? OPENED : NOT_TOLD;
	return a->err.code == WS_EREFUSED && strstr(a->message, "same id is still open") ?
	               OPEN_ALREADY :
	               NOT_TOLD;
}

static void open_at(struct ws_push *p, const bool *wanted, enum answer *answers)
{
	char id[32];
	for (size_t i = 0; i < p->opts.n_endpoints; i++)
		answers[i] = NOT_TOLD;
	if (ws_group_fresh_name(id, sizeof id, NULL))
		return;
	post_session(p, "/open_session", id, wanted);
	for (size_t k = 0, i = 0; i < p->opts.n_endpoints; i++)
		if (wanted[i])
			answers[i] = read_answer(&p->to.call.answers[k++], id);
	post_session(p, "/close_session", id, wanted);
}

static int refuse_pair(const struct ws_push *p, size_t i, size_t k, struct ws_err *err)
{
	ws_err_set(err, WS_EUSAGE, "%s and %s are one server", p->to.endpoints[k].url,
	           p->to.endpoints[i].url);
	return ws_err_hint(err, "name it once");
}

/* Finds the endpoint that is the same server as i, which had the ID open; n_endpoints: unknown. */
static size_t find_other(struct ws_push *p, size_t i, enum answer *answers)
{
	bool *pair = calloc(p->opts.n_endpoints + 1, sizeof *pair);
	size_t k = 0;
	for (; pair && k < p->opts.n_endpoints; k++) {
		if (k == i || !are_alike(&p->to.infos[i], &p->to.infos[k]))
			continue;
		pair[i] = pair[k] = true;
		open_at(p, pair, answers);
		pair[k] = false;
		if (answers[i] == OPEN_ALREADY || answers[k] == OPEN_ALREADY)
			break;
	}
	free(pair);
	return pair ? k : p->opts.n_endpoints;
}

/* Asks the suspects that can be asked, and finds the pair: endpoints *i and *k. Without a pair *k
 * is n_endpoints. Returns whether the result is certain for all suspects. */
static bool find_pair(struct ws_push *p, bool *suspect, enum answer *answers, size_t *i, size_t *k)
{
	const size_t n = p->opts.n_endpoints;
	bool known = true;
	for (size_t j = 0; j < n; j++) {
		if (suspect[j])
			p->to.twin = p->to.endpoints[j].url;
		known = known && (!suspect[j] || can_ask(&p->to.infos[j]));
		suspect[j] = suspect[j] && can_ask(&p->to.infos[j]);
	}
	open_at(p, suspect, answers);
	for (size_t j = 0; j < n; j++)
		known = known && (!suspect[j] || answers[j] == OPENED);
	for (*i = 0; *i < n && answers[*i] != OPEN_ALREADY;)
		++*i;
	*k = *i < n ? find_other(p, *i, answers) : n;
	return known;
}

int push_twins(struct ws_push *p, struct ws_err *err)
{
	const size_t n = p->opts.n_endpoints;
	size_t i = n, k = n;
	p->to.twin = NULL;
	if (!p->to.probed || n < 2 || p->opts.dry_run)
		return 0;
	find_equal(p, &i, &k);
	if (k < n)
		return refuse_pair(p, i, k, err);
	bool *suspect = calloc(n, sizeof *suspect);
	enum answer *answers = calloc(n, sizeof *answers);
	int rc = suspect && answers ? 0 : ws_oom(err);
	if (rc == 0 && find_suspects(p, suspect) && find_pair(p, suspect, answers, &i, &k))
		p->to.twin = NULL;
	free(suspect);
	free(answers);
	if (rc == 0 && ws_cancelled(p->opts.cancel))
		rc = ws_err_set(err, WS_ECANCELLED, "cancelled");
	return rc == 0 && k < n ? refuse_pair(p, i, k, err) : rc;
}

void push_twins_suspect(struct ws_push *p)
{
	if (p->to.twin)
		push_warn(p, p->to.twin,
		          "may be the same server as another endpoint: their answers are equal");
}
