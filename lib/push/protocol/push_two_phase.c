/* SPDX-License-Identifier: Apache-2.0 */
/* push_two_phase.c - xorl's forks: one request announces the tensors, the broadcasts follow while
 * no request is in flight, and another request loads them.
 *
 *   POST /prepare_weights_update
 *     {"names","dtypes","shapes","group_name","transport","load_format"}, or
 *     {"buckets":[{"names","dtypes","shapes"},..],"num_buckets",..}
 *       a thread of each rank allocates memory and begins to receive
 *   the broadcasts
 *   POST /complete_weights_update
 *     {"group_name","flush_cache","transport","run_post_process_weights","load_format"}
 *       the thread is joined, and the weights are loaded
 *
 * With all buckets in one update a server changes all its weights or none, and needs memory for
 * both. Each prepare needs its complete, also after a failure, or the server refuses the next
 * prepare. Its thread ends with an error once the group is gone; then undo sends the complete.
 *
 * {stage} ends after the broadcasts of a whole update. A complete would now load it. Only
 * wsync-endpoint can drop it: POST /discard_weights_update (journal_open_update.c). */
#include "push_protocol.h"

#include "journal_core.h"
#include "wsync/tool/str.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const int64_t UNDO_NS = 3 * WS_NS_PER_S;

struct two_phase {
	bool moving;    /* the broadcast of the prepared buckets has begun */
	bool completes; /* these buckets are the last */
	bool ours;      /* the broadcast had the bytes of the source */
};

static bool is_whole(const struct ws_push *p)
{
	return p->opts.two_phase == WS_TWO_PHASE_WHOLE || p->opts.stage;
}

static bool is_in_parts(const struct ws_push *p)
{
	return !is_whole(p);
}

static bool is_begun(const struct push_endpoint *e)
{
	return e->weights.scope_open;
}

static ws_deadline soon(const struct ws_push *p)
{
	return ws_deadline_min(p->run.until, ws_deadline_in(p->opts.bucket_ns));
}

/* ---- prepare --------------------------------------------------------------------------------- */

/* The members of both requests. */
static void write_rest(const struct ws_push *p, struct ws_jw *w)
{
	ws_jw_str(w, "group_name", p->link.name);
	ws_jw_str(w, "transport", "nccl_broadcast"); /* means a broadcast, over whatever backend */
	if (p->from.format == WS_FORMAT_FLATTENED)
		ws_jw_str(w, "load_format", "flattened_bucket");
}

static int prepare(struct ws_push *p, size_t b, struct ws_err *err)
{
	struct push_request r;
	int rc = push_request_open(p, &r, "/prepare_weights_update", err);
	if (rc == 0) {
		if (is_whole(p))
			push_write_buckets(&r.w, p->from.plan);
		else
			push_write_tensors(&r.w, p->from.plan, b);
		write_rest(p, &r.w);
		rc = push_request_ask(p, &r, NULL, soon(p), p->opts.cancel, err);
		for (size_t i = 0; i < p->opts.n_endpoints; i++) {
			const struct push_endpoint *e = &p->to.endpoints[i];
			const bool open = e->sent && !ws_endpoint_said_no(&p->to.errs[i]);
			push_target_event(&e->weights,
			                  open ? PUSH_SCOPE_OPENED : PUSH_SCOPE_DROPPED);
		}
		push_request_note(p, &r);
	}
	if (rc) /* then undo completes an update without weights */
		((struct two_phase *)p->own)->ours = false;
	if (rc && err && strstr(err->msg, "already in progress"))
		ws_err_hint(err, "an update before this one was prepared and never completed: POST "
		                 "/complete_weights_update clears that where it can, else restart "
		                 "the server");
	push_request_close(p, &r);
	return rc;
}

/* ---- complete -------------------------------------------------------------------------------- */

static void write_complete(const struct ws_push *p, struct ws_jw *w, bool flush)
{
	ws_jw_bool(w, "flush_cache", flush);
	ws_jw_bool(w, "run_post_process_weights", false);
	write_rest(p, w);
}

/* ours: the broadcast had the bytes of the source; last: no other bucket follows. */
static void report_completes(struct ws_push *p, bool ours, bool last)
{
	for (size_t i = 0; i < p->opts.n_endpoints; i++) {
		struct push_endpoint *e = &p->to.endpoints[i];
		if (!e->weights.scope_open || p->to.errs[i].code != WS_OK)
			continue;
		push_target_event(&e->weights, ours && last ? PUSH_ACKED_LAST : PUSH_BYTES_LEFT);
		push_target_event(&e->weights, PUSH_SCOPE_CLOSED);
	}
}

static int complete(struct ws_push *p, const struct push_bucket *k, const struct push_moved *m,
                    struct ws_err *err)
{
	const int64_t start = ws_now_ns();
	struct push_request r;
	int rc = push_request_open(p, &r, "/complete_weights_update", err);
	if (rc == 0) {
		r.changes = true;
		write_complete(p, &r.w, k->flush);
		rc = push_request_ask(p, &r, NULL, soon(p), p->opts.cancel, err);
		report_completes(p, push_moved_source(m), k->last);
		push_request_note(p, &r);
	}
	push_request_close(p, &r);
	push_trace_apply(p, k->b, start);
	push_applied(p, ws_now_ns() - start);
	return rc;
}

/* ---- staged updates -------------------------------------------------------------------------- */

static bool says_none(const char *text, size_t n)
{
	char part[256];
	snprintf(part, sizeof part, "%.*s", (int)(n < sizeof part ? n : sizeof part - 1), text);
	return strcasestr(part, "no weight update") ||
	       strstr(part, "does not match completion group");
}

/* True if the server says that it has no such update, in the words of xorl's two kinds of servers.
 * One message joins those of several schedulers: all must say so. */
static bool has_none(const struct ws_err *said)
{
	const char *text = said->msg, *end;
	bool none = ws_endpoint_said_no(said);
	for (; none && (end = strstr(text, " | ")); text = end + 3)
		none = says_none(text, (size_t)(end - text));
	return none && says_none(text, strlen(text));
}

static void explain(const struct ws_push *p, struct ws_err *err)
{
	for (size_t i = 0; i < p->opts.n_endpoints; i++) {
		const char *url = p->to.endpoints[i].url;
		if (strcmp(err->endpoint, url) != 0)
			continue;
		if (has_none(&p->to.errs[i]))
			ws_err_hint(err, "it was restarted, or its update was ended before: push "
			                 "to it: wsync-push SOURCE -e %s", url);
		else if (strstr(p->to.errs[i].msg, "timed out after"))
			ws_err_hint(err, "it did not receive everything: restart it, and push to "
			                 "it");
	}
}

static int load_staged(struct ws_push *p, struct ws_err *err)
{
	const int64_t start = ws_now_ns();
	struct push_request r;
	int rc = push_request_open(p, &r, "/complete_weights_update", err);
	if (rc == 0) {
		r.changes = true;
		write_complete(p, &r.w, push_flush_when(p) != WS_FLUSH_NEVER);
		/* Set with the weights, the label shows after a crash that they were loaded. */
		p->run.labelled = p->from.weight_version && p->opts.verify != WS_VERIFY_HASH;
		if (p->run.labelled)
			ws_jw_str(&r.w, "weight_version", p->from.weight_version);
		rc = push_request_ask(p, &r, NULL, soon(p), p->opts.cancel, err);
		report_completes(p, true, true);
		push_request_note(p, &r);
	}
	for (size_t i = 0; i < p->opts.n_endpoints; i++) {
		const bool lost = rc && has_none(&p->to.errs[i]);
		if (lost)
			push_target_event(&p->to.endpoints[i].weights, PUSH_REFUSED_UNSENT);
		if (lost || push_has_all(&p->to.endpoints[i]))
			push_staged_over(p, i);
	}
	if (rc && err)
		explain(p, err);
	push_request_close(p, &r);
	push_applied(p, ws_now_ns() - start);
	return rc;
}

/* Everything may have arrived: then it can only be dropped, and not ended. */
static void undo_stage(struct ws_push *p)
{
	const size_t n = p->opts.n_endpoints;
	struct ws_journal_endpoint *those = calloc(n, sizeof *those);
	struct ws_err *errs = calloc(n, sizeof *errs);
	for (size_t i = 0; those && i < n; i++)
		those[i] = (struct ws_journal_endpoint){
			.url = p->to.endpoints[i].url,
			.open_update = is_begun(&p->to.endpoints[i]) ? WS_UPDATE_TWO_PHASE_FLAT :
			                                               WS_UPDATE_NONE,
		};
	if (those && errs)
		ws_journal_drop_updates(p->http, those, n, p->link.name,
		                        push_cleanup_deadline(p, UNDO_NS), NULL, errs, NULL);
	for (size_t i = 0; those && i < n; i++) {
		struct push_endpoint *e = &p->to.endpoints[i];
		if (is_begun(e) && !those[i].open_update)
			push_target_event(&e->weights, PUSH_SCOPE_DROPPED);
		else if (is_begun(e) && p->recovery.stage == WS_STAGE_LAST)
			push_warn(p, e->url,
			          "it may have received everything, and cannot drop it: push "
			          "without {stage}, or restart it");
	}
	free(those);
	free(errs);
}

/* ---- the protocol ---------------------------------------------------------------------------- */

static int legal(struct ws_push *p, struct ws_err *err)
{
	char bytes[32];
	for (size_t i = 0; is_whole(p) && i < p->opts.n_endpoints; i++) {
		if (push_can(p, i)->two_phase_whole)
			continue;
		ws_err_set(err, WS_EREFUSED, "%s prepares one bucket at a time",
		           p->to.endpoints[i].url);
		ws_err_where(err, NULL, p->to.endpoints[i].url);
		return ws_err_hint(err, "%s",
		                   p->opts.stage ? "use {backend} disk, or push without {stage}" :
		                                   "use {two_phase} bucket");
	}
	/* SGLang's internal_states have the memory that is used, and not the memory that is free */
	if (p->opts.stage)
		ws_log(p->opts.log, 1,
		       "stage: each rank needs %s of memory until the update is loaded",
		       ws_format_size(bytes, sizeof bytes, p->from.plan->bytes));
	else if (is_whole(p) && p->from.plan && p->from.plan->n_buckets > 1)
		push_warn(
			p, NULL,
			"all %zu buckets stay in the servers' memory, beside the weights that they "
			"replace, until the last has come",
			p->from.plan->n_buckets);
	return 0;
}

static int begin_update(struct ws_push *p, struct ws_err *err)
{
	struct two_phase *t = push_own(p, sizeof *t, err);
	if (!t)
		return -1;
	t->ours = true;
	return is_whole(p) ? prepare(p, 0, err) : 0;
}

static int move_bucket(struct ws_push *p, const struct push_bucket *k, struct ws_err *err)
{
	struct two_phase *t = p->own;
	struct push_moved m;
	t->completes = k->last || is_whole(p);
	t->moving = is_whole(p) && k->b > 0;
	if (!is_whole(p) && prepare(p, k->b, err))
		return -1;
	t->moving = true;
	if (k->last && p->opts.stage) {
		p->recovery.stage = WS_STAGE_LAST;
		if (push_record(p, err))
			return -1;
	}
	const int rc = push_move(p, NULL, k, false, &m, err);
	t->ours = t->ours && push_moved_source(&m);
	if (rc)
		return -1;
	if ((k->last || !is_whole(p)) && !p->opts.stage && complete(p, k, &m, err))
		return -1;
	push_moved_emit(p, k, &m);
	return 0;
}

/* The endpoint did not complete the prepared update. Usually its thread ended with an error, and
 * the weights are unchanged. */
static void give_up(struct ws_push *p, size_t i, bool moving)
{
	struct push_endpoint *e = &p->to.endpoints[i];
	if (!ws_endpoint_said_no(&p->to.errs[i]) && moving)
		push_target_event(&e->weights, PUSH_BYTES_LEFT);
	if (p->to.errs[i].code == WS_EREACH)
		return; /* the server is gone, and the update with it */
	if (push_can(p, i)->stuck_prepare)
		push_warn(p, e->url,
		          "a prepared update could not be completed: if it refuses the next one as "
		          "already in progress, only a restart of the server ends that");
	else if (e->timed_out || !ws_endpoint_said_no(&p->to.errs[i]))
		push_warn(p, e->url, "a prepared update could not be completed: %s",
		          p->to.errs[i].msg);
}

/* Afterwards an endpoint that had received everything has the new weights. The other endpoints of
 * that update have their old ones. */
static void undo(struct ws_push *p)
{
	const struct two_phase none = { 0 }, *t = p->own ? p->own : &none;
	struct push_request r;
	if (p->opts.stage)
		undo_stage(p);
	if (p->opts.stage && p->recovery.stage == WS_STAGE_LAST)
		return;
	if (push_request_open(p, &r, "/complete_weights_update", NULL) == 0) {
		write_complete(p, &r.w, false);
		push_request_ask(p, &r, is_begun, push_cleanup_deadline(p, UNDO_NS), NULL, NULL);
		for (size_t i = 0; i < p->opts.n_endpoints; i++)
			if (p->to.endpoints[i].weights.scope_open && p->to.errs[i].code != WS_OK)
				give_up(p, i, t->moving);
		report_completes(p, t->ours, t->completes);
	}
	push_request_close(p, &r);
	/* A silent endpoint may still begin to complete: the record keeps the update. */
	for (size_t i = 0; i < p->opts.n_endpoints; i++) {
		struct push_endpoint *e = &p->to.endpoints[i];
		if (!e->timed_out || p->to.errs[i].code == WS_EREACH)
			push_target_event(&e->weights, PUSH_SCOPE_DROPPED);
	}
}

static bool takes(const struct ws_capabilities *can)
{
	return can->two_phase;
}

const struct push_protocol push_two_phase = {
	.name = "two-phase",
	.routes = "/prepare_weights_update",
	.takes = takes,
	.prepares = true,
	.needs_pause = true,
	.one_by_one = is_in_parts,
	.legal = legal,
	.begin = begin_update,
	.bucket = move_bucket,
	.load = load_staged,
	.undo = undo,
};
