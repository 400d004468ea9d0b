/* SPDX-License-Identifier: Apache-2.0 */
/* push_instance.c - the roll call: are the endpoints still the servers that were detected at first?
 *
 * A server that restarts during a push does not have the earlier buckets, but answers every request
 * with success. So does one of several servers behind a load balancer. All endpoints are asked at
 * once which start of which server they are (identity.h): when they are detected, without a group
 * also before the last bucket, and as the last request of the push, when they answer prompts again.
 * Each is asked MANY times at once, over several connections: a load balancer shows two servers.
 * One that chooses by chance between two is missed once in eight times before the pause, and
 * without a group once in 128 times at the end. In a group, whose connections show a server that
 * was replaced, one request is enough at the end. */
#include "identity.h"
#include "push_protocol.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const int64_t LATE_NS = WS_NS_PER_S;  /* after the deadline of the push */
static const int64_t LEAST_NS = WS_NS_PER_S; /* for one answer */
enum { MANY = 4, PAUSE_MS = 50 };

/* Withdraws the success: the server that answers now does not have all that was sent. */
static void take_back(struct ws_push *p, size_t i, const struct ws_err *why)
{
	struct push_endpoint *e = &p->to.endpoints[i];
	push_target_event(&e->weights, PUSH_WITHDRAWN);
	snprintf(e->message, sizeof e->message, "%.255s", why->msg);
}

static int refuse(struct ws_push *p, size_t i, enum ws_identity_match found, struct ws_err *err)
{
	const char *url = p->to.endpoints[i].url;
	if (found == WS_IDENTITY_OTHER)
		ws_err_set(err, WS_EREACH,
		           "%s: another server answers than at the beginning of the push", url);
	else
		ws_err_set(err, WS_EREFUSED, "%s: GET %s: the reply does not identify the server",
		           url, p->to.infos[i].info_path);
	ws_err_hint(err, "it was restarted, or several servers share this address: give each "
	                 "server its own URL, and push again");
	return ws_err_where(err, NULL, url);
}

/* Reads one answer. Returns -1 if it is no answer, or that of another server. */
static int read_answer(struct ws_push *p, size_t i, struct ws_endpoint_call *call,
                       struct ws_err *err)
{
	struct ws_identity now, *known = &p->to.infos[i].identity;
	const struct ws_json *root;
	if (ws_endpoint_reply(call, &root, NULL, 0, err))
		return ws_err_where(err, NULL, p->to.endpoints[i].url);
	ws_identity_read(root, call->http.date, &now);
	ws_endpoint_call_free(call); /* the next answer is parsed in its memory */
	const enum ws_identity_match found = ws_identity_compare(known, &now);
	enum ws_identity_end *end = &p->to.endpoints[i].end;
	if (found == WS_IDENTITY_OTHER)
		*end = WS_END_OTHER;
	else if (found == WS_IDENTITY_UNTOLD)
		*end = WS_END_UNTOLD;
	else if (*end != WS_END_UNTOLD)
		*end = WS_END_SAME;
	if (found == WS_IDENTITY_SAME || (found == WS_IDENTITY_UNTOLD && (!known->n || now.n)))
		return 0;
	return refuse(p, i, found, err);
}

/* An endpoint that has answered, and not differently from before. */
static bool is_heard(const struct push_endpoint *e)
{
	return e->end == WS_END_SAME || e->end == WS_END_UNTOLD;
}

static int prepare(struct ws_push *p, struct ws_endpoint_call *calls, size_t times,
                   ws_deadline until, struct ws_err *err)
{
	for (size_t i = 0; i < p->opts.n_endpoints; i++)
		for (size_t k = 0; k < times && p->to.infos[i].info_path &&
		                   !is_heard(&p->to.endpoints[i]);
		     k++) {
			struct ws_endpoint_call *call = &calls[i * times + k];
			ws_endpoint_call_free(call);
			*call = (struct ws_endpoint_call){ 0 };
			if (ws_endpoint_prepare(call, p->to.endpoints[i].url, "GET",
			                        p->to.infos[i].info_path, NULL, until, err))
				return -1;
			call->http.fresh = p->to.infos[i].identity.processes > 1;
		}
	return 0;
}

/* Asks the endpoints that were not heard yet. -1: *err names one that is another server, else one
 * that did not answer; or cancelled. */
static int ask(struct ws_push *p, struct ws_endpoint_call *calls, size_t times, ws_deadline until,
               struct ws_err *err)
{
	const size_t n = p->opts.n_endpoints;
	int rc = 0;
	if (prepare(p, calls, times, until, err) ||
	    ws_endpoint_run(p->http, calls, n * times, p->opts.cancel, err))
		return -1;
	for (size_t i = 0; i < n; i++) {
		struct push_endpoint *e = &p->to.endpoints[i];
		if (!p->to.infos[i].info_path || is_heard(e))
			continue;
		for (size_t k = 0; k < times && e->end != WS_END_OTHER; k++) {
			struct ws_err why = WS_ERR_INIT;
			if (read_answer(p, i, &calls[i * times + k], &why) == 0)
				continue;
			if (e->end != WS_END_OTHER)
				e->end = WS_END_UNANSWERED;
			if (rc == 0 || e->end == WS_END_OTHER)
				*err = why;
			rc = -1;
			if (e->end != WS_END_OTHER)
				break;
		}
	}
	return rc;
}

static bool any_is(const struct ws_push *p, enum ws_identity_end end)
{
	for (size_t i = 0; i < p->opts.n_endpoints; i++)
		if (p->to.endpoints[i].end == end)
			return true;
	return false;
}

/* Asks until all endpoints have answered, one is another server, or the deadline passes. */
static int call_roll(struct ws_push *p, size_t times, ws_deadline until, struct ws_err *err)
{
	const size_t n = p->opts.n_endpoints;
	struct ws_endpoint_call *calls = calloc(n * times + 1, sizeof *calls);
	int rc = calls ? -1 : ws_oom(err);
	for (size_t i = 0; i < n; i++)
		p->to.endpoints[i].end = WS_END_UNKNOWN;
	while (calls) {
		/* A request that is lost leaves time for the next. */
		const ws_deadline part = ws_deadline_part(until, 3);
		const ws_deadline least = ws_deadline_in(LEAST_NS);
		*err = (struct ws_err)WS_ERR_INIT;
		rc = ask(p, calls, times, ws_deadline_min(until, part > least ? part : least), err);
		if (!rc || err->code == WS_ECANCELLED || err->code == WS_ESYSTEM ||
		    any_is(p, WS_END_OTHER) || ws_deadline_passed(until))
			break;
		struct pollfd wait = { .fd = ws_cancel_fd(p->opts.cancel), .events = POLLIN };
		poll(&wait, 1, PAUSE_MS);
	}
	for (size_t i = 0; calls && i < n * times; i++)
		ws_endpoint_call_free(&calls[i]);
	free(calls);
	return rc;
}

/* How often servers are asked until each of their processes has answered; 0: all have. Chance gives
 * each connection to one of them: of 16, one is missed in 64 rounds once in a million pushes. */
static unsigned rounds_of(const struct ws_push *p)
{
	unsigned most = 0;
	for (size_t i = 0; i < p->opts.n_endpoints; i++) {
		const struct ws_identity *id = &p->to.infos[i].identity;
		if (id->n < id->processes && id->processes <= WS_IDENTITY_PROCESSES &&
		    most < id->processes)
			most = id->processes;
	}
	return most * MANY;
}

/* From now on the processes of each server are known. */
static int close_identities(struct ws_push *p, ws_deadline until, struct ws_err *err)
{
	const ws_deadline half = ws_deadline_part(until, 2);
	for (unsigned done = 0; done < rounds_of(p) && !ws_deadline_passed(half); done++)
		if (call_roll(p, MANY, until, err))
			return -1;
	for (size_t i = 0; i < p->opts.n_endpoints; i++) {
		struct ws_identity *id = &p->to.infos[i].identity;
		id->closed = id->processes <= WS_IDENTITY_PROCESSES;
		p->to.infos[i].instance = ws_identity_number(id);
	}
	return 0;
}

int push_roll_call(struct ws_push *p, struct ws_err *err)
{
	const ws_deadline until = ws_deadline_min(p->run.until, ws_deadline_in(p->opts.connect_ns));
	struct ws_err why = WS_ERR_INIT;
	if (!p->to.probed)
		return 0;
	if (call_roll(p, MANY, until, &why) == 0 && close_identities(p, until, &why) == 0)
		return 0;
	if (any_is(p, WS_END_OTHER)) {
		ws_err_set(err, WS_EREACH, "%s: several servers answer at this address",
		           why.endpoint);
		ws_err_hint(err, "give each server its own URL: behind a load balancer, each "
		                 "request would reach another one");
		return ws_err_where(err, NULL, why.endpoint);
	}
	*err = why;
	return -1;
}

/* Withdraws what endpoints confirmed that are not the same server any more. */
static void take_back_others(struct ws_push *p, const struct ws_err *why)
{
	for (size_t i = 0; i < p->opts.n_endpoints; i++) {
		if (p->to.endpoints[i].end != WS_END_OTHER)
			continue;
		push_note_failure(p, i, why);
		take_back(p, i, why);
	}
}

int push_check_instances(struct ws_push *p, struct ws_err *err)
{
	const ws_deadline until = ws_deadline_min(p->run.until, ws_deadline_in(p->opts.connect_ns));
	struct ws_err why = WS_ERR_INIT;
	if (call_roll(p, MANY, until, &why) == 0)
		return 0;
	take_back_others(p, &why);
	*err = why;
	return -1;
}

/* Finds the endpoint that left the group, if it can be found. */
static int find_leaver(struct ws_push *p, ws_deadline until, struct ws_err *err)
{
	struct ws_err which = WS_ERR_INIT;
	ws_err_set(err, WS_EREACH, "a server left group %s before the end of the push",
	           ws_group_name(p->link.group));
	ws_err_hint(err, "it was restarted or failed, and its new weights are lost: push again");
	if (call_roll(p, MANY, until, &which) && any_is(p, WS_END_OTHER)) {
		take_back_others(p, &which);
		*err = which;
		return -1;
	}
	for (size_t i = 0; i < p->opts.n_endpoints; i++)
		take_back(p, i, err);
	return -1;
}

/* All weights were confirmed. A cancel here does not withdraw that. */
int push_check_end(struct ws_push *p, struct ws_err *err)
{
	const ws_deadline last = p->run.until == WS_FOREVER ? WS_FOREVER : p->run.until + LATE_NS;
	const ws_deadline until = ws_deadline_min(last, ws_deadline_in(p->opts.connect_ns));
	struct ws_err why = WS_ERR_INIT;
	if (!p->to.known || p->opts.dry_run)
		return 0;
	const bool left = p->link.group && !ws_group_alive(p->link.group);
	const int rc = left ? find_leaver(p, until, &why) :
	                      call_roll(p, p->link.group ? 1 : MANY, until, &why);
	if (!rc || why.code == WS_ECANCELLED)
		return 0;
	take_back_others(p, &why);
	for (size_t i = 0; i < p->opts.n_endpoints; i++)
		if (p->to.endpoints[i].end == WS_END_UNANSWERED)
			push_note_gone(p, i, &why);
	if (err && !any_is(p, WS_END_UNANSWERED))
		*err = why;
	else if (err) {
		ws_err_set(err, WS_EREACH, "%s has confirmed the weights and does not answer any "
		           "more: %.400s", why.endpoint, why.msg);
		ws_err_hint(err, "ask it again, then compare the bytes: wsync-verify weights "
		                 "SOURCE -e %s", why.endpoint);
		ws_err_where(err, NULL, why.endpoint);
	}
	return -1;
}
