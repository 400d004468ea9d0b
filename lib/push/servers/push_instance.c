/* SPDX-License-Identifier: Apache-2.0 */
/* push_instance.c - are the endpoints still the servers that were detected at first?
 *
 * A server that restarts during a push does not have the earlier buckets, but answers every request
 * with success. So does one of several servers behind a load balancer. In a process group their
 * connections break. Without a group only the server's own report shows it: GET /server_info is
 * sent before the last bucket, and again when the server answers requests again. */
#include "instance.h"
#include "push_protocol.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const int64_t LATE_NS = WS_NS_PER_S;           /* after the deadline of the push */
enum { TIMES = 2 }; /* a load balancer that takes turns shows two servers */

/* Withdraws the success: the server that answers now does not have all that was sent. */
static void take_back(struct ws_push *p, size_t i, const struct ws_err *why)
{
	struct push_endpoint *e = &p->to.endpoints[i];
	push_target_event(&e->weights, PUSH_WITHDRAWN);
	snprintf(e->message, sizeof e->message, "%.255s", why->msg);
}

static int read_instance(struct ws_push *p, size_t i, struct ws_endpoint_call *call,
                         struct ws_err *err)
{
	const char *url = p->to.endpoints[i].url;
	const struct ws_json *root;
	if (ws_endpoint_reply(call, &root, NULL, 0, err) == 0) {
		const uint64_t instance = ws_instance_of(root);
		if (instance == p->to.infos[i].instance)
			return 0;
		if (instance)
			ws_err_set(err, WS_EREACH,
			           "%s: another server answers than at the beginning of the push",
			           url);
		else
			ws_err_set(err, WS_EREFUSED,
			           "%s: GET %s: the reply does not identify the server", url,
			           p->to.infos[i].info_path);
		ws_err_hint(err, "it was restarted, or several servers share this address: give "
		                 "each server its own URL, and push again");
	}
	ws_err_where(err, NULL, url);
	push_note_failure(p, i, err);
	if (err->code != WS_ETIMEOUT && err->code != WS_ECANCELLED)
		take_back(p, i, err);
	return -1;
}

/* The server reported its instance at first, and no other instance has answered since. */
static bool is_known(const struct ws_push *p, size_t i)
{
	return p->to.infos[i].instance && !p->to.endpoints[i].replaced;
}

static int ask_all_once(struct ws_push *p, struct ws_endpoint_call *calls, ws_deadline until,
                        struct ws_err *err)
{
	const size_t n = p->opts.n_endpoints;
	struct ws_err first = WS_ERR_INIT;
	int rc = 0;
	for (size_t i = 0; i < n; i++)
		if (is_known(p, i) &&
		    ws_endpoint_prepare(&calls[i], p->to.endpoints[i].url, "GET",
		                        p->to.infos[i].info_path, NULL, until, err))
			return -1;
	if (ws_endpoint_run(p->http, calls, n, p->opts.cancel, err))
		return -1;
	for (size_t i = 0; i < n; i++) {
		struct ws_err why = WS_ERR_INIT;
		if (!is_known(p, i) || read_instance(p, i, &calls[i], &why) == 0)
			continue;
		p->to.endpoints[i].replaced = true;
		if (rc == 0 || first.code == WS_ETIMEOUT) /* prefer other errors */
			first = why;
		rc = -1;
	}
	if (rc && err)
		*err = first;
	return rc;
}

static int ask_all(struct ws_push *p, ws_deadline until, struct ws_err *err)
{
	const size_t n = p->opts.n_endpoints;
	struct ws_endpoint_call *calls = calloc(n + 1, sizeof *calls);
	for (size_t i = 0; i < n; i++)
		p->to.endpoints[i].replaced = false;
	int rc = calls ? 0 : ws_oom(err);
	for (int k = 0; k < TIMES && rc == 0; k++)
		rc = ask_all_once(p, calls, until, err);
	for (size_t i = 0; calls && i < n; i++)
		ws_endpoint_call_free(&calls[i]);
	free(calls);
	return rc;
}

int push_check_instances(struct ws_push *p, struct ws_err *err)
{
	const ws_deadline until = ws_deadline_min(p->run.until, ws_deadline_in(p->opts.connect_ns));
	return ask_all(p, until, err);
}

/* Finds the endpoint that left the group, if it can be found. */
static int find_leaver(struct ws_push *p, ws_deadline until, struct ws_err *err)
{
	struct ws_err which = WS_ERR_INIT;
	ws_err_set(err, WS_EREACH, "a server left group %s before the end of the push",
	           ws_group_name(p->link.group));
	ws_err_hint(err, "it was restarted or failed, and its new weights are lost: push again");
	if (ask_all(p, until, &which) && which.code == WS_EREACH) {
		*err = which;
		return -1;
	}
	for (size_t i = 0; i < p->opts.n_endpoints; i++)
		take_back(p, i, err);
	return -1;
}

/* All weights were confirmed. So a timeout or a cancel here does not withdraw that. */
int push_check_end(struct ws_push *p, struct ws_err *err)
{
	const ws_deadline last = p->run.until == WS_FOREVER ? WS_FOREVER : p->run.until + LATE_NS;
	const ws_deadline until = ws_deadline_min(last, ws_deadline_in(p->opts.connect_ns));
	struct ws_err why = WS_ERR_INIT;
	if (!p->to.known || p->opts.dry_run || (p->link.group && ws_group_alive(p->link.group)))
		return 0;
	const int rc = p->link.group ? find_leaver(p, until, &why) : ask_all(p, until, &why);
	if (rc && why.code == WS_ETIMEOUT)
		push_warn(p, why.endpoint,
		          "cannot check that it is still the same server: %s",
		          why.msg);
	if (!rc || why.code == WS_ETIMEOUT || why.code == WS_ECANCELLED)
		return 0;
	if (err)
		*err = why;
	return -1;
}
