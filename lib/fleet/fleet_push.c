/* SPDX-License-Identifier: Apache-2.0 */
/* fleet_push.c - pushes to those endpoints of a fleet that lack the weights, the canaries first,
 * and without those that cannot be reached.
 *
 * A push (wsync/push.h) has one group of all its endpoints, so another choice of endpoints is
 * another push. What one of them leaves is in the records, or in memory (ws_push_reopen). */
#include "wsync/tool/fleet.h"

#include "fleet_sum.h"
#include "push_state.h"

#include "wsync/tool/config.h"
#include "wsync/tool/input.h"
#include "wsync/tool/memory.h"
#include "wsync/tool/name_check_run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum fate {
	WAITS,    /* it lacks the weights */
	CURRENT,  /* it had them before this run */
	PUSHED,   /* a push has ended with it, whether it got them or not */
	LEFT_OUT, /* it could not be reached; nothing has changed there */
	LOST      /* it could not be reached after something had changed there, or was paused */
};

struct member {
	const char *url;
	enum fate fate;
	bool canary;
	bool earlier;        /* an earlier push left it with mixed weights, or paused */
	bool unsure;         /* {require} was established of it, perhaps of an earlier start */
	uint64_t push;       /* in the history, which gave it the weights; 0: not known */
	uint64_t digest;     /* of the plan of that push */
	struct ws_ev_endpoint_result result; /* its message is `message` */
	char message[640];
};

struct ws_fleet {
	struct ws_fleet_opts opts;
	struct ws_http *http;
	struct member *members;
	size_t n;
	const char **urls;   /* of the open push */
	size_t n_urls;
	const char **chosen; /* scratch: of the next one */
	size_t n_chosen, *index;
	struct ws_ev_endpoint_result *results;
	struct ws_push *push; /* NULL: none is open */
	const struct ws_push_source *source; /* of this run */
	/* the last question of has_plan: a digest (0: none) and the server */
	uint64_t asked;
	struct ws_endpoint_info asked_of;
	int answer;
	bool retried;        /* after an endpoint was lost during a transfer */
	ws_deadline until;   /* of this run of the fleet */
	enum ws_asleep asleep;
	struct fleet_sum sum;
	struct ws_err failure;
};

static bool is_plain(const struct ws_fleet *f)
{
	if (!f->n)
		return true; /* a dry run without endpoints */
	return !f->opts.only_stale && !f->opts.min_endpoints && !f->opts.canaries;
}

static void emit(const struct ws_fleet *f, const struct ws_event *ev)
{
	if (f->opts.push.sink.event)
		f->opts.push.sink.event(f->opts.push.sink.ctx, ev);
}

static void warn(const struct ws_fleet *f, const char *url, const char *text)
{
	emit(f, &(struct ws_event){ .type = WS_EV_WARNING,
	                            .warning = { .url = url, .message = text } });
}

/* ---- the endpoints --------------------------------------------------------------------------- */

static void free_members(struct ws_fleet *f)
{
	free(f->members);
	free(f->chosen);
	free(f->index);
	free(f->results);
}

int ws_fleet_set_endpoints(struct ws_fleet *f, const char *const *urls, size_t n,
                           struct ws_err *err)
{
	free_members(f);
	f->members = calloc(n + 1, sizeof *f->members);
	f->chosen = calloc(n + 1, sizeof *f->chosen);
	f->index = calloc(n + 1, sizeof *f->index);
	f->results = calloc(n + 1, sizeof *f->results);
	f->n = 0;
	if (!f->members || !f->chosen || !f->index || !f->results)
		return ws_oom(err);
	for (f->n = 0; f->n < n; f->n++)
		f->members[f->n].url = urls[f->n];
	return 0;
}

/* Chooses the members that wait; canaries: those among them only. Returns how many. */
static size_t choose(struct ws_fleet *f, bool canaries)
{
	f->n_chosen = 0;
	for (size_t i = 0; i < f->n; i++) {
		if (f->members[i].fate != WAITS || (canaries && !f->members[i].canary))
			continue;
		f->chosen[f->n_chosen] = f->members[i].url;
		f->index[f->n_chosen++] = i;
	}
	return f->n_chosen;
}

static void set_message(struct member *m, const char *text)
{
	snprintf(m->message, sizeof m->message, "%.600s", text);
	m->result.message = m->message;
}

/* Endpoints that can still have the weights in the end. */
static size_t count_left(const struct ws_fleet *f)
{
	size_t n = 0;
	for (size_t i = 0; i < f->n; i++)
		n += f->members[i].fate != LEFT_OUT && f->members[i].fate != LOST;
	return n;
}

static void leave_out(struct ws_fleet *f, struct member *m, const struct ws_err *why)
{
	char text[700];
	m->fate = m->result.state == WS_UNTOUCHED && !m->result.paused ? LEFT_OUT : LOST;
	m->result.left_out = true;
	m->result.ok = false;
	set_message(m, why->msg);
	snprintf(text, sizeof text, "%s: %.600s", m->fate == LOST ? "lost" : "left out", why->msg);
	warn(f, m->url, text);
}

/* Are enough endpoints left? If not, the error that cost them stays, with its code and hint. */
static int check_left(const struct ws_fleet *f, const struct ws_err *why, struct ws_err *err)
{
	const size_t left = count_left(f), need = f->opts.min_endpoints;
	if (left >= need)
		return 0;
	if (why->code)
		*err = *why;
	else
		ws_err_set(err, WS_EREACH, "no more are registered, or given");
	return ws_err_wrap(err, "%zu of %zu endpoint%s %s left, fewer than {min_endpoints} %zu",
	                   left, f->n, f->n == 1 ? "" : "s", left == 1 ? "is" : "are", need);
}

/* ---- one push -------------------------------------------------------------------------------- */

static bool same_endpoints(const struct ws_fleet *f)
{
	bool same = f->push && f->n_chosen == f->n_urls;
	for (size_t i = 0; same && i < f->n_urls; i++)
		same = strcmp(f->urls[i], f->chosen[i]) == 0;
	return same;
}

static void free_urls(const char **urls, size_t n)
{
	for (size_t i = 0; urls && i < n; i++)
		free((void *)(uintptr_t)urls[i]);
	free(urls);
}

/* Opens a push to the chosen endpoints, unless it is open. It outlives the caller's list. */
static int open_push(struct ws_fleet *f, struct ws_err *err)
{
	struct ws_push_opts o = f->opts.push;
	struct ws_push *old = f->push;
	if (same_endpoints(f))
		return 0;
	const char **urls = calloc(f->n_chosen + 1, sizeof *urls);
	size_t n = 0;
	while (urls && n < f->n_chosen && (urls[n] = strdup(f->chosen[n])))
		n++;
	if (!urls || n < f->n_chosen) {
		free_urls(urls, n);
		return ws_oom(err);
	}
	o.endpoints = urls;
	o.n_endpoints = n;
	if (ws_push_reopen(old, &o, &f->push, err)) {
		free_urls(urls, n);
		return -1;
	}
	free_urls(f->urls, f->n_urls); /* `old` is closed */
	f->urls = urls;
	f->n_urls = n;
	return 0;
}

/* Runs a push to the chosen endpoints, and keeps its results. */
static int run_push(struct ws_fleet *f, const struct ws_push_source *source, struct ws_err *err)
{
	struct ws_ev_end end;
	if (open_push(f, err))
		return -1;
	ws_push_set_deadline(f->push, f->until);
	const int rc = ws_push_run(f->push, source, &end, err);
	f->asleep = ws_push_asleep(f->push);
	fleet_sum_add(&f->sum, &end, rc == 0);
	for (size_t k = 0; k < end.n_endpoints && k < f->n_chosen; k++) {
		struct member *m = &f->members[f->index[k]];
		m->result = end.endpoints[k];
		set_message(m, m->result.message ? m->result.message : "");
		m->fate = PUSHED;
		m->push = f->push->recovery.history_id;
		m->digest = end.digest;
	}
	return rc;
}

/* ---- those that cannot be reached ------------------------------------------------------------ */

static bool was_pushed(const struct ws_fleet *f, const char *url, uint64_t digest)
{
	for (size_t i = 0; i < f->n; i++)
		if (f->members[i].push && f->members[i].digest == digest &&
		    strcmp(f->members[i].url, url) == 0)
			return true;
	return false;
}

/* The source is opened only if there is a record that it decides about, and again only for a server
 * with another config. One whose config cannot be read here gets the last answer: pushes to it use
 * the config of another server, too. */
static int has_plan(void *ctx, const struct ws_endpoint_info *info, uint64_t digest)
{
	struct ws_fleet *f = ctx;
	if (was_pushed(f, info->url, digest))
		return 1;
	if (f->asked == digest &&
	    (!ws_name_check_model_dir(info) || ws_name_check_alike(&f->asked_of, info)))
		return f->answer;
	f->answer = push_has_plan(f->push, f->source, info, digest);
	f->asked = digest;
	f->asked_of = *info;
	return f->answer;
}

static struct ws_fleet_look_opts look_opts(struct ws_fleet *f, const char *const *urls, size_t n)
{
	const struct ws_push_opts *o = &f->opts.push;
	const int64_t ns = o->connect_ns > 0 ? o->connect_ns : WS_PUSH_CONNECT_NS;
	return (struct ws_fleet_look_opts){
		.http = f->http, .endpoints = urls, .n_endpoints = n, .lineage = o->lineage,
		.step_ns = ns, .until = f->until, .sink = o->sink, .cancel = o->cancel,
		.has_plan = has_plan, .plan_ctx = f,
	};
}

/* May this failure come from an endpoint that is gone? */
static bool may_be_gone(const struct ws_err *why)
{
	return why->code == WS_EREACH || why->code == WS_ETIMEOUT || why->code == WS_EDATA ||
	       why->code == WS_EPARTIAL || why->code == WS_EREFUSED;
}

/* After a failed push: leaves out the endpoints that do not answer any more, and the one that the
 * failure names because it did not. *any: there was one. */
static int leave_out_gone(struct ws_fleet *f, const struct ws_err *why, bool *any,
                          struct ws_err *err)
{
	struct ws_fleet_view *views = calloc(f->n_chosen + 1, sizeof *views);
	const struct ws_fleet_look_opts o = look_opts(f, f->chosen, f->n_chosen);
	int rc = views ? ws_fleet_look(&o, views, err) : ws_oom(err);
	*any = false;
	for (size_t k = 0; rc == 0 && k < f->n_chosen; k++) {
		struct member *m = &f->members[f->index[k]];
		const bool named = (why->code == WS_EREACH || why->code == WS_ETIMEOUT) &&
		                   strcmp(why->endpoint, m->url) == 0;
		if (views[k].ready != WS_READY_UNREACHED && !named)
			continue;
		*any = true;
		leave_out(f, m, views[k].ready == WS_READY_UNREACHED ? &views[k].err : why);
	}
	free(views);
	return rc;
}

/* The others wait again. After something had changed they do so once only. */
static bool may_retry(struct ws_fleet *f)
{
	bool changed = false;
	for (size_t k = 0; k < f->n_chosen; k++)
		changed |= f->members[f->index[k]].result.state != WS_UNTOUCHED;
	if (changed && f->retried)
		return false;
	f->retried |= changed;
	for (size_t k = 0; k < f->n_chosen; k++)
		if (f->members[f->index[k]].fate == PUSHED)
			f->members[f->index[k]].fate = WAITS;
	return true;
}

/* If some endpoints have the new weights and some do not, that is the exit status, as of one
 * push. */
static int note_partial(const struct ws_fleet *f, struct ws_err *err)
{
	size_t updated = 0, others = 0;
	for (size_t i = 0; i < f->n; i++) {
		const struct ws_ev_endpoint_result *r = &f->members[i].result;
		const bool has = r->state == WS_COMMITTED &&
		                 r->evidence.end != WS_END_UNANSWERED;
		updated += has;
		others += !has && !r->current;
	}
	if (!updated || !others || err->code == WS_EPARTIAL || err->code == WS_ECANCELLED)
		return -1;
	if (err->endpoint[0] && !strstr(err->msg, err->endpoint))
		ws_err_wrap(err, "%s", err->endpoint);
	ws_err_wrap(err, "%zu of %zu endpoints updated", updated, f->n);
	err->code = WS_EPARTIAL;
	return -1;
}

/* Pushes to the members that wait; canaries: to those only. */
static int push_step(struct ws_fleet *f, const struct ws_push_source *source, bool canaries,
                     struct ws_err *err)
{
	while (choose(f, canaries)) {
		struct ws_err why = WS_ERR_INIT;
		bool any = false;
		if (run_push(f, source, &why) == 0)
			return 0;
		if (f->opts.min_endpoints && may_be_gone(&why) &&
		    !ws_deadline_passed(f->until) && !ws_cancelled(f->opts.push.cancel) &&
		    (leave_out_gone(f, &why, &any, err) || check_left(f, &why, err)))
			return note_partial(f, err);
		if (!any || !may_retry(f)) {
			*err = why;
			return note_partial(f, err);
		}
	}
	return 0;
}

/* ---- those that have the weights ------------------------------------------------------------- */

/* The version of this run. */
static const char *version_of(const struct ws_fleet *f, const struct ws_push_source *s)
{
	return s->weight_version ? s->weight_version : f->opts.push.weight_version;
}

/* {require} is about every endpoint, so one of which it is not established gets a push that does.
 * Nothing is established of weights that only a label names. */
static bool lacks_facts(const struct ws_fleet *f, const struct ws_fleet_view *v, char *dst,
                        size_t n)
{
	static const char *const names[] = { "names", "format", "bytes", "caches", "values" };
	const unsigned lacks = f->opts.push.require & ~v->established;
	size_t used = (size_t)snprintf(dst, n, "nothing has established its");
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (lacks & 1U << i)
			used += (size_t)snprintf(dst + used, n - used, " %s", names[i]);
	snprintf(dst + used, n - used, " ({require})%s",
	         v->current == WS_CURRENT_BY_LABEL ? ": it has the weights by its label alone" :
	                                             "");
	return lacks;
}

static int judge(struct ws_fleet *f, struct member *m, const struct ws_fleet_view *v,
                 struct ws_err *err)
{
	char lacks[256];
	if (v->ready == WS_READY_UNREACHED && f->opts.min_endpoints) {
		/* A record may know that it was left like that. */
		m->result.state = v->mixed ? WS_PARTIAL : WS_UNTOUCHED;
		m->result.paused = v->held;
		m->earlier = v->mixed || v->held;
		leave_out(f, m, &v->err);
		return check_left(f, &v->err, err);
	}
	if (v->ready == WS_READY_UNREACHED) {
		*err = v->err;
		return ws_err_where(err, NULL, m->url);
	}
	if (!f->opts.only_stale)
		return 0;
	const bool other = ws_ready_lacks(v->ready);
	const bool stale = other || lacks_facts(f, v, lacks, sizeof lacks);
	const char *by = stale ? NULL : ws_current_name(v->current);
	emit(f, &(struct ws_event){ .type = WS_EV_STALE,
	                            .stale = { .url = m->url, .stale = stale,
	                                       .why = stale && !other ? lacks : v->why,
	                                       .current_by = by } });
	if (v->ready == WS_READY_PAUSED || v->ready == WS_READY_BYTES)
		warn(f, m->url, v->why);
	if (stale)
		return 0;
	m->fate = CURRENT;
	m->push = v->push;
	m->unsure = f->opts.push.require && v->current == WS_CURRENT_BY_LABEL;
	m->result.ok = m->result.current = true;
	m->result.current_by = by;
	m->result.evidence.identity = v->info.identity;
	set_message(m, v->why);
	return 0;
}

static int look(struct ws_fleet *f, struct ws_fleet_look_opts *o, struct ws_err *err)
{
	struct ws_fleet_view *views = calloc(f->n + 1, sizeof *views);
	int rc = views ? ws_fleet_look(o, views, err) : ws_oom(err);
	for (size_t i = 0; rc == 0 && i < f->n; i++)
		rc = judge(f, &f->members[i], &views[i], err);
	free(views);
	return rc;
}

/* The checksums are those of the tensors as a push sends them. */
static int look_with_proof(struct ws_fleet *f, struct ws_fleet_look_opts *o,
                           const struct ws_push_source *s, struct ws_err *err)
{
	const struct ws_push_opts *p = &f->opts.push;
	struct ws_transform_opts transform = { 0 };
	struct ws_input_opts input = {
		.paths = s->paths, .n_paths = s->n_paths, .map = p->map, .config = p->config,
		.like = p->like,
		.sharded_tp = p->sharded_tp, .sharded_ep = p->sharded_ep,
		.memory = &ws_memory_cuda, .cancel = p->cancel,
		.transform = p->transform ? &transform : NULL,
	};
	struct ws_input in = { 0 };
	struct ws_config *quant;
	if (p->transform)
		transform = *p->transform;
	const struct ws_verify_opts proof = {
		.endpoints = f->chosen, .n_endpoints = f->n, .input = &in,
		.include = p->include, .n_include = p->n_include,
		.exclude = p->exclude, .n_exclude = p->n_exclude,
		.min_coverage = p->min_coverage, .state_dir = p->state_dir,
		.api_key = p->api_key, .ca_file = p->ca_file, .connect_ns = p->connect_ns,
		.timeout_ns = f->until == WS_FOREVER ? 0 : ws_deadline_left(f->until) + 1,
		.log = p->log, .cancel = p->cancel,
	};
	if (ws_verify_look(&proof, &transform, &input.found, &quant, err))
		return -1;
	o->proof = &proof;
	const int rc = ws_input_open(&input, &in, err) || look(f, o, err) ? -1 : 0;
	o->proof = NULL;
	ws_input_close(&in);
	ws_config_free(quant);
	return rc;
}

/* Leaves out the endpoints that cannot be reached, and with {only_stale} finds those that lack the
 * weights. */
static int look_first(struct ws_fleet *f, const struct ws_push_source *s, struct ws_err *err)
{
	const int64_t since = ws_now_ns();
	const char *version = version_of(f, s);
	const bool proof = f->opts.only_stale && f->opts.push.verify == WS_VERIFY_HASH;
	int rc;
	for (size_t i = 0; i < f->n; i++)
		f->chosen[i] = f->members[i].url;
	struct ws_fleet_look_opts o = look_opts(f, f->chosen, f->n);
	o.weight_version = f->opts.only_stale ? version : NULL;
	o.state_dir = f->opts.push.state_dir;
	if (f->opts.only_stale && !version && !proof)
		rc = ws_err_set(err, WS_EUSAGE, "{only_stale} needs {weight_version} or {verify} "
		                "hash, to find the endpoints that lack the weights");
	else
		rc = proof ? look_with_proof(f, &o, s, err) : look(f, &o, err);
	if (rc)
		ws_err_where(err, ws_phase_name(WS_PHASE_CONNECT), NULL);
	f->sum.end.ns[WS_PHASE_CONNECT] += ws_now_ns() - since;
	f->sum.end.total_ns += ws_now_ns() - since;
	return rc;
}

/* ---- canaries -------------------------------------------------------------------------------- */

/* The first endpoints of the list that were reached, whether they lack the weights or not. The
 * first stale endpoints would be others after each failed check. */
static void mark_canaries(struct ws_fleet *f)
{
	size_t n = 0;
	for (size_t i = 0; i < f->n && n < f->opts.canaries; i++) {
		const bool in = f->members[i].fate == WAITS || f->members[i].fate == CURRENT;
		f->members[i].canary = in;
		n += in;
	}
}

/* The canaries that have the weights now. */
static size_t choose_canaries(struct ws_fleet *f)
{
	f->n_chosen = 0;
	for (size_t i = 0; i < f->n; i++) {
		const struct member *m = &f->members[i];
		if (!m->canary || (m->fate != CURRENT && m->fate != PUSHED))
			continue;
		f->chosen[f->n_chosen] = m->url;
		f->index[f->n_chosen++] = i;
	}
	return f->n_chosen;
}

/* Why a member does not have the weights any more; "": it has them. */
static const char *lost_by(struct member *m, const struct ws_fleet_view *v, char *dst, size_t n)
{
	dst[0] = '\0';
	if (ws_ready_lacks(v->ready))
		snprintf(dst, n, "%.500s", v->why);
	else if (m->push && v->push != m->push)
		snprintf(dst, n, "another push has changed its weights");
	else if (ws_identity_compare(&m->result.evidence.identity, &v->info.identity) ==
	         WS_IDENTITY_OTHER)
		snprintf(dst, n, "it was restarted, or another server answers at its URL now");
	return dst;
}

/* Looks once more at the chosen members, which had the weights: a server that was restarted
 * meanwhile has others. *lost: how many do not have them; *first: the first of these. */
static int look_again(struct ws_fleet *f, const char *version, size_t *lost, struct member **first,
                      struct ws_err *err)
{
	struct ws_fleet_view *views = calloc(f->n_chosen + 1, sizeof *views);
	struct ws_fleet_look_opts o = look_opts(f, f->chosen, f->n_chosen);
	char why[600];
	o.weight_version = version;
	o.state_dir = f->opts.push.state_dir;
	const int rc = views ? ws_fleet_look(&o, views, err) : ws_oom(err);
	*lost = 0;
	for (size_t k = 0; rc == 0 && k < f->n_chosen; k++) {
		struct member *m = &f->members[f->index[k]];
		if (!*lost_by(m, &views[k], why, sizeof why))
			continue;
		const bool gone = views[k].ready == WS_READY_UNREACHED;
		m->result.ok = m->result.current = false;
		m->result.state = gone ? m->result.state : WS_UNTOUCHED;
		m->result.evidence.end = gone ? WS_END_UNANSWERED : WS_END_OTHER;
		set_message(m, why);
		if ((*lost)++ == 0)
			*first = m;
	}
	free(views);
	return rc;
}

/* A canary that was restarted during the check may have served other weights. */
static int check_kept(struct ws_fleet *f, const char *version, struct ws_err *err)
{
	struct member *first = NULL;
	size_t lost;
	if (look_again(f, version, &lost, &first, err))
		return -1;
	if (!lost)
		return 0;
	ws_err_set(err, WS_EMISMATCH, "%s has lost the weights during the check: %s", first->url,
	           first->message);
	return ws_err_where(err, NULL, first->url);
}

static int check_canaries(struct ws_fleet *f, const char *version, struct ws_err *err)
{
	/* The check may take long, and the rest forms another group. */
	ws_fleet_finish(f, &f->sum.end);
	const int64_t since = ws_now_ns();
	const size_t n = choose_canaries(f);
	int rc = n ? 0 : ws_err_set(err, WS_EREACH, "no canary is left");
	if (!rc)
		rc = f->opts.check(f->opts.check_ctx, f->chosen, n, version, f->until, err);
	if (!rc)
		rc = check_kept(f, version, err);
	const int64_t ns = ws_now_ns() - since;
	if (n)
		emit(f, &(struct ws_event){ .type = WS_EV_CANARY,
	                            .canary = { .urls = f->chosen, .n_urls = n, .ok = rc == 0,
	                                        .why = rc ? err->msg : "", .ns = ns } });
	f->sum.end.ns[WS_PHASE_VERIFY] += ns;
	f->sum.end.total_ns += ns;
	for (size_t i = 0; rc && n && i < f->n; i++)
		if (f->members[i].fate == WAITS)
			set_message(&f->members[i], "not pushed: the canary check failed");
	return rc;
}

/* Of a check that changes nothing, only what is wrong with the names is told: the push says the
 * rest. */
static void tell_names(void *ctx, const struct ws_event *ev)
{
	const struct ws_fleet *f = ctx;
	if (ev->type == WS_EV_NAMES && ev->names.run->found.errors)
		emit(f, ev);
}

/* Does the dry run for the chosen members. */
static int try_push(struct ws_fleet *f, const struct ws_push_source *source, struct ws_err *err)
{
	struct ws_push_opts o = f->opts.push;
	struct ws_push *push = NULL;
	struct ws_ev_end end;
	o.endpoints = f->chosen;
	o.n_endpoints = f->n_chosen;
	o.dry_run = true;
	o.require &= WS_REQUIRE_NAMES | WS_REQUIRE_FORMAT; /* the rest is established later */
	o.sink = (struct ws_sink){ tell_names, f };
	if (ws_push_open(&o, &push, err))
		return -1;
	ws_push_set_deadline(push, f->until);
	const int rc = ws_push_run(push, source, &end, err);
	fleet_sum_add_trial(&f->sum, &end, rc == 0);
	for (size_t k = 0; rc && k < end.n_endpoints; k++)
		set_message(&f->members[f->index[k]],
		            end.endpoints[k].message ? end.endpoints[k].message : "");
	ws_push_close(push);
	return rc;
}

/* What cannot work at the others ends the run before the canaries change. */
static int check_others(struct ws_fleet *f, const struct ws_push_source *source,
                        struct ws_err *err)
{
	size_t n = 0;
	choose(f, false);
	for (size_t k = 0; k < f->n_chosen; k++)
		if (!f->members[f->index[k]].canary) {
			f->chosen[n] = f->chosen[k];
			f->index[n++] = f->index[k];
		}
	f->n_chosen = n;
	if (!n || try_push(f, source, err) == 0)
		return 0;
	/* One that is gone since the look is left out at its step. */
	if (!f->opts.min_endpoints || (err->code != WS_EREACH && err->code != WS_ETIMEOUT))
		return -1;
	*err = (struct ws_err)WS_ERR_INIT;
	return 0;
}

static int push_canaries(struct ws_fleet *f, const struct ws_push_source *source,
                         struct ws_err *err)
{
	mark_canaries(f);
	if (!f->opts.canaries || f->opts.push.dry_run || !choose(f, false))
		return 0;
	if (check_others(f, source, err))
		return -1;
	return push_step(f, source, true, err) ? -1 : check_canaries(f, version_of(f, source), err);
}

/* ---- a run ----------------------------------------------------------------------------------- */

static void begin(struct ws_fleet *f, const struct ws_push_source *s)
{
	const int64_t most = f->opts.push.timeout_ns;
	f->until = most > 0 ? ws_deadline_in(most) : WS_FOREVER;
	f->retried = false;
	f->asleep = WS_ASLEEP_PENDING;
	f->failure = (struct ws_err)WS_ERR_INIT;
	f->source = s;
	f->asked = 0;
	f->sum = (struct fleet_sum){ 0 };
	f->sum.end = (struct ws_ev_end){
		.source = s->n_paths ? s->paths[0] : "",
		.weight_version = version_of(f, s),
		.verify = f->opts.push.verify == WS_VERIFY_HASH  ? "hash" :
		          f->opts.push.verify == WS_VERIFY_NAMES ? "names" :
		                                                   "none",
		.dry_run = f->opts.push.dry_run,
	};
	for (size_t i = 0; i < f->n; i++) {
		struct member *m = &f->members[i];
		*m = (struct member){ .url = m->url };
		m->result = (struct ws_ev_endpoint_result){ .url = m->url, .message = m->message };
	}
}

/* Endpoints that were lost in a transfer are partial, although the others have the weights. */
static int check_lost(const struct ws_fleet *f, struct ws_err *err)
{
	size_t lost = 0;
	for (size_t i = 0; i < f->n; i++) {
		const struct member *m = &f->members[i];
		if (m->fate != LOST)
			continue;
		if (!lost++ && m->earlier) {
			ws_err_set(err, WS_EPARTIAL, "%s cannot be reached, and a record lists it "
			           "as left by an earlier push: %s", m->url, m->message);
			ws_err_hint(err, "if it is gone for good: wsync-ctl repair --forget -e %s",
			            m->url);
		} else if (lost == 1) {
			ws_err_set(err, WS_EPARTIAL, "%s was lost during the push: %s", m->url,
			           m->message);
		}
		ws_err_where(err, NULL, m->url);
	}
	if (lost > 1)
		ws_err_wrap(err, "%zu endpoints", lost);
	return lost ? -1 : 0;
}

static void end_run(struct ws_fleet *f, int rc, struct ws_ev_end *result)
{
	for (size_t i = 0; i < f->n; i++) {
		struct member *m = &f->members[i];
		m->result.url = m->url;
		m->result.message = m->message;
		f->results[i] = m->result;
	}
	f->sum.end.ok = rc == 0;
	f->sum.end.err = rc ? &f->failure : NULL;
	f->sum.end.endpoints = f->results;
	f->sum.end.n_endpoints = f->n;
	*result = f->sum.end;
}

/* The roll call of all that should have the weights: those that had them, and those that got them
 * at an earlier step. */
static int check_all(struct ws_fleet *f, const char *version, struct ws_err *err)
{
	struct member *first = NULL;
	size_t lost, earlier = 0;
	f->n_chosen = 0;
	for (size_t i = 0; i < f->n; i++) {
		const struct member *m = &f->members[i];
		if (!m->result.ok)
			continue;
		earlier += m->fate == CURRENT || m->canary;
		f->chosen[f->n_chosen] = m->url;
		f->index[f->n_chosen++] = i;
	}
	if (!earlier || f->opts.push.dry_run) /* the one push has called the roll */
		return 0;
	if (look_again(f, version, &lost, &first, err))
		return -1;
	if (!lost)
		return 0;
	ws_err_set(err, lost < f->n_chosen ? WS_EPARTIAL : WS_EREACH,
	           "%s does not have the weights any more: %s", first->url, first->message);
	if (lost > 1)
		ws_err_wrap(err, "%zu endpoints", lost);
	ws_err_hint(err, "push again with {only_stale}");
	return ws_err_where(err, NULL, first->url);
}

/* A list is about all endpoints, and these runs are about some. */
static int check_asleep(struct ws_fleet *f, const struct ws_push_source *s, struct ws_err *err)
{
	if (!(s->asleep & WS_MEMORY_ALL))
		return 0;
	f->asleep = WS_ASLEEP_REFUSED;
	ws_err_set(err, WS_EUSAGE, "{asleep} LIST is about all endpoints: {only_stale}, "
	           "{min_endpoints} and {canaries} take no list");
	return ws_err_hint(err, "use {asleep} recorded");
}

/* {require} of endpoints that were not pushed to. */
static int check_established(const struct ws_fleet *f, struct ws_err *err)
{
	for (size_t i = 0; i < f->n; i++) {
		const struct member *m = &f->members[i];
		if (m->fate != CURRENT || !m->unsure)
			continue;
		ws_err_set(err, WS_EUNKNOWN, "%s does not report which start of it answers, so it "
		           "is not known whether it still has the weights of which that was "
		           "established ({require})", m->url);
		ws_err_hint(err, "push without {only_stale}, or compare its checksums: {verify} "
		                 "hash");
		return ws_err_where(err, NULL, m->url);
	}
	return 0;
}

static int run_steps(struct ws_fleet *f, const struct ws_push_source *source, struct ws_err *err)
{
	static const struct ws_err none = WS_ERR_INIT;
	/* A canary must be one that can be reached. */
	const bool looks = f->opts.only_stale || (f->opts.canaries && f->opts.min_endpoints);
	if (check_left(f, &none, err) || (looks && look_first(f, source, err)))
		return -1;
	if (push_canaries(f, source, err) || push_step(f, source, false, err) || check_lost(f, err))
		return -1;
	return check_all(f, version_of(f, source), err) || check_established(f, err) ? -1 : 0;
}

int ws_fleet_run(struct ws_fleet *f, const struct ws_push_source *source, struct ws_ev_end *result,
                 struct ws_err *err)
{
	begin(f, source);
	if (is_plain(f)) { /* also with several senders, and without endpoints */
		choose(f, false);
		if (open_push(f, err)) {
			f->failure = *err;
			end_run(f, -1, result);
			return -1;
		}
		const int rc = ws_push_run(f->push, source, result, err);
		f->asleep = ws_push_asleep(f->push);
		return rc;
	}
	const int rc = check_asleep(f, source, &f->failure) || run_steps(f, source, &f->failure) ?
	                       -1 :
	                       0;
	end_run(f, rc, result);
	if (rc && err)
		*err = f->failure;
	return rc;
}

/* ---- open and close -------------------------------------------------------------------------- */

static int check_opts(const struct ws_fleet_opts *o, struct ws_err *err)
{
	const char *special = o->only_stale    ? "{only_stale}" :
	                      o->min_endpoints ? "{min_endpoints}" :
	                      o->canaries      ? "{canaries}" :
	                                         NULL;
	if (special && (o->push.stage || o->push.write_dir || o->push.senders))
		return ws_err_set(err, WS_EUSAGE, "%s takes no %s", special,
		                  o->push.stage     ? "{stage}" :
		                  o->push.write_dir ? "{write_dir}" :
		                                      "{sender}");
	return 0;
}

int ws_fleet_open(const struct ws_fleet_opts *opts, struct ws_fleet **out, struct ws_err *err)
{
	if (check_opts(opts, err))
		return -1;
	struct ws_fleet *f = calloc(1, sizeof *f);
	if (!f)
		return ws_oom(err);
	const struct ws_client_opts client = { .api_key = opts->push.api_key,
		                               .ca_file = opts->push.ca_file,
		                               .connect_ns = opts->push.connect_ns,
		                               .log = opts->push.log, .trace = opts->push.trace };
	f->opts = *opts;
	if (ws_fleet_set_endpoints(f, opts->push.endpoints, opts->push.n_endpoints, err) ||
	    (!is_plain(f) && ws_client_open(&client, &f->http, err))) {
		ws_fleet_close(f);
		return -1;
	}
	choose(f, false);
	/* Mistakes in the options are found now, as without a fleet. */
	if (open_push(f, err)) {
		ws_fleet_close(f);
		return -1;
	}
	*out = f;
	return 0;
}

enum ws_asleep ws_fleet_asleep(const struct ws_fleet *f)
{
	return f->asleep;
}

void ws_fleet_finish(struct ws_fleet *f, struct ws_ev_end *result)
{
	if (f->push)
		ws_push_finish(f->push, result);
}

void ws_fleet_close(struct ws_fleet *f)
{
	if (!f)
		return;
	ws_push_close(f->push);
	free_urls(f->urls, f->n_urls);
	ws_client_close(f->http);
	free_members(f);
	free(f);
}
