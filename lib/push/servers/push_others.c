/* SPDX-License-Identifier: Apache-2.0 */
/* push_others.c - does another push change our endpoints at the same time?
 *
 * Locks separate pushes that share a state directory. Other pushes, and operators, are detected
 * with ws_endpoint_see (endpoint_seen.h), after our pause, before the request that sets our weight
 * version, and after it. Until then the version must stay as it was after our pause; afterwards it
 * must be ours. An endpoint that was paused before our pause: another push may be working. Not
 * paused after it: another push resumed it.
 *
 * An endpoint that changed in between may have weights of both pushes: it is partial, whatever it
 * answered to us. */
#include "push_protocol.h"

#include "endpoint_seen.h"

#include "wsync/tool/str.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A push that does not pause neither asks for a pause nor judges it. */
static bool asks_pause(const struct ws_push *p)
{
	return p->opts.pause != WS_PAUSE_NONE;
}

/* Asks all endpoints at once; version false: only whether they are paused. *out has one item for
 * each endpoint. The caller frees it, also after an error. */
static int observe(struct ws_push *p, bool version, struct ws_seen **out, struct ws_err *err)
{
	const size_t n = push_select(p, NULL);
	const ws_deadline until = ws_deadline_min(p->run.until, ws_deadline_in(p->opts.connect_ns));
	const struct ws_call to = push_call_made(p, until, p->opts.cancel);
	struct ws_err why = WS_ERR_INIT;
	*out = calloc(n + 1, sizeof **out);
	if (!*out)
		return ws_oom(err);
	if (ws_endpoint_see(&to, p->to.infos,
	                    (version ? WS_SEE_VERSION : 0u) | (asks_pause(p) ? WS_SEE_PAUSE : 0u),
	                    *out, p->to.errs, &why) == 0)
		return 0;
	for (size_t i = 0; why.code != WS_ECANCELLED && why.code != WS_ESYSTEM && i < n; i++) {
		if (p->to.errs[i].code == WS_OK)
			continue;
		push_note_failure(p, i, &p->to.errs[i]);
		push_note_gone(p, i, &p->to.errs[i]);
	}
	if (err)
		*err = why;
	return -1;
}

static int accuse(struct ws_err *err, const char *url, const char *what)
{
	ws_err_set(err, WS_EREFUSED, "%s: %s: somebody else is at work there", url, what);
	ws_err_hint(err, "push again when the other has ended; pushes with one {state_dir} wait "
	                 "for each other ({lock_wait_ns})");
	return ws_err_where(err, NULL, url);
}

static bool told_version(const struct ws_push *p, size_t i, const struct ws_seen *s)
{
	return p->to.infos[i].version_path && *s->version;
}

/* ---- before, between and after --------------------------------------------------------------- */

int push_others_connect(struct ws_push *p, struct ws_err *err)
{
	struct ws_seen *seen = NULL;
	struct ws_err why = WS_ERR_INIT;
	bool any = false;
	for (size_t i = 0; i < p->opts.n_endpoints; i++)
		any = any || (asks_pause(p) && ws_endpoint_tells_pause(&p->to.infos[i]));
	if (!any || p->opts.dry_run)
		return 0;
	const int rc = observe(p, false, &seen, &why);
	for (size_t i = 0; rc == 0 && i < p->opts.n_endpoints; i++) {
		struct push_endpoint *e = &p->to.endpoints[i];
		e->found_stopped =
			seen[i].pause == WS_SEEN_PAUSED && !e->found_paused && !e->paused;
		if (e->found_stopped && !e->hand_paused)
			push_warn(p, e->url,
			          "it is paused, but no push that is recorded here has paused it: "
			          "somebody else may be at work there");
	}
	free(seen);
	if (rc && err)
		*err = why;
	return rc;
}

int push_others_recheck(struct ws_push *p, struct ws_err *err)
{
	struct ws_seen *seen = NULL;
	bool any = false;
	for (size_t i = 0; i < p->opts.n_endpoints; i++)
		any = any || p->to.endpoints[i].found_stopped;
	if (!any)
		return 0;
	const int rc = observe(p, false, &seen, err);
	for (size_t i = 0; rc == 0 && i < p->opts.n_endpoints; i++)
		p->to.endpoints[i].found_stopped =
			p->to.endpoints[i].found_stopped && seen[i].pause == WS_SEEN_PAUSED;
	free(seen);
	return rc;
}

void push_others_refused(struct ws_push *p, struct ws_err *err)
{
	for (size_t i = 0; i < p->opts.n_endpoints; i++) {
		const struct push_endpoint *e = &p->to.endpoints[i];
		if (e->weights.scope_open || !ws_endpoint_said_no(&p->to.errs[i]) ||
		    !strstr(p->to.errs[i].msg, "already open"))
			continue;
		ws_err_hint(err,
		            "another push has begun an update there: push again when it has ended; "
		            "if none is at "
		            "work, end that update: curl -d '{}' %s/end_weight_update",
		            e->url);
	}
}

bool push_others_stopped(const struct push_endpoint *e)
{
	return e->found_stopped && !e->weights.touched && !e->weights.values_lost;
}

void push_others_leave(struct ws_push *p)
{
	for (size_t i = 0; i < p->opts.n_endpoints; i++) {
		struct push_endpoint *e = &p->to.endpoints[i];
		if (!push_others_stopped(e))
			continue;
		e->paused = false;
		e->left_paused = true;
		push_warn(p, e->url, "stays paused, as it was found");
	}
}

int push_others_begin(struct ws_push *p, struct ws_err *err)
{
	struct ws_seen *seen = NULL;
	char what[512];
	int rc = observe(p, true, &seen, err);
	for (size_t i = 0; rc == 0 && i < p->opts.n_endpoints; i++) {
		struct ws_endpoint_info *info = &p->to.infos[i];
		p->to.endpoints[i].confirmed_pause = seen[i].pause == WS_SEEN_PAUSED;
		if (!told_version(p, i, &seen[i]))
			continue;
		/* A version from an earlier run may be older than changes by other pushes. */
		if (p->to.probed && strcmp(info->weight_version, seen[i].version) != 0) {
			snprintf(what, sizeof what,
			         "its weight version changed from '%s' to '%s' before this push "
			         "began to send",
			         info->weight_version, seen[i].version);
			rc = accuse(err, info->url, what);
		}
		memcpy(info->weight_version, seen[i].version, sizeof info->weight_version);
	}
	free(seen);
	return rc;
}

/* Writes to `what` how another push changed endpoint i since our pause; "": no change was seen.
 * Returns false, with a warning, if the endpoint still reports its old version instead of ours. */
static bool compare(struct ws_push *p, size_t i, const struct ws_seen *s, bool ours, char *what,
                    size_t n)
{
	const char *before = p->to.infos[i].weight_version,
		   *version = ours ? p->from.weight_version : before;
	char expected[sizeof s->version];
	/* The request that loaded the weights may have set it. */
	if (!ours && p->run.labelled) {
		ws_printable(expected, sizeof expected, p->from.weight_version,
		             strlen(p->from.weight_version));
		if (strcmp(expected, s->version) == 0)
			version = expected;
	}
	if (version != expected)
		ws_printable(expected, sizeof expected, version, strlen(version));
	what[0] = 0;
	if (ours && told_version(p, i, s) && strcmp(expected, s->version) == 0) {
		p->to.endpoints[i].label_read = true;
		p->to.endpoints[i].label_moved = strcmp(before, s->version) != 0;
	}
	if (told_version(p, i, s) && strcmp(expected, s->version) != 0 &&
	    (!ours || strcmp(before, s->version) != 0))
		snprintf(what, n, "its weight version is '%s', and not '%s'", s->version, expected);
	else if (p->to.endpoints[i].confirmed_pause && s->pause == WS_SEEN_RUNS)
		snprintf(what, n, "it was resumed in the middle of this push");
	else if (told_version(p, i, s) && strcmp(expected, s->version) != 0) {
		push_warn(p, p->to.endpoints[i].url,
		          "it did not take the weight version '%s': it says '%s', as before",
		          expected, s->version);
		return false;
	}
	return true;
}

/* ours: our weight version is set. */
static int check_others(struct ws_push *p, bool ours, struct ws_err *err)
{
	struct ws_seen *seen = NULL;
	int rc = observe(p, true, &seen, err);
	bool none = rc == 0, labeled = true;
	for (size_t i = 0; rc == 0 && i < p->opts.n_endpoints; i++) {
		struct push_endpoint *e = &p->to.endpoints[i];
		char what[512];
		labeled = compare(p, i, &seen[i], ours, what, sizeof what) && labeled;
		if (!*what)
			continue;
		push_target_event(&e->weights, PUSH_WITHDRAWN);
		snprintf(e->message, sizeof e->message, "%.255s", what);
		if (none)
			accuse(err, e->url, what);
		none = false;
	}
	free(seen);
	if (none && !labeled)
		p->from.weight_version = NULL; /* the result must not claim it */
	return none ? 0 : -1;
}

int push_others_end(struct ws_push *p, struct ws_err *err)
{
	if (check_others(p, false, err))
		return -1;
	p->run.incomplete = push_complete(p, err) != 0;
	if (p->run.incomplete || push_flush_again(p, err) || push_clear_caches(p, err) ||
	    push_set_version(p, err))
		return -1;
	return p->from.weight_version ? check_others(p, true, err) : 0;
}
