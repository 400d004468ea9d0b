/* SPDX-License-Identifier: Apache-2.0 */
/* push_scope.c - requests that some servers expect before and after an update.
 *
 *   POST /begin_weight_update {"selector"}
 *   POST /end_weight_update {}     Servers with sessions refuse an update outside of one, except
 *                                  from disk and by ZeroMQ. The first makes packed weights loadable
 *                                  again, the second packs them. The selector is "target" unless
 *                                  draft tensors are sent: a draft model of which nothing was sent
 *                                  would be packed twice, and its tokens accepted less often.
 *   POST /start_weight_update {}
 *   POST /finish_weight_update {"weight_version"}   vLLM since 0.21 (push_vllm.c). The version,
 *                                  since 0.27, is set here unless the weights are to be proven
 *                                  first.
 *   POST /post_process_weights {"restore_weights_before_load","post_process_quantization"}
 *                                  The same for slime's servers, with compressed-tensors only.
 *
 * A scope that was begun is always ended: a server that never gets the end refuses every later
 * update, and cannot compute with its weights. A vLLM of which something was sent stays paused. */
#include "push_protocol.h"

#include "vllm_workers.h"

#include <stdlib.h>
#include <string.h>

static const int64_t UNDO_NS = 3 * WS_NS_PER_S;

enum push_side { BEGIN, END };

static bool wants_session(const struct push_endpoint *e)
{
	return e->scope == PUSH_SCOPE_SESSION;
}

static bool wants_processing(const struct push_endpoint *e)
{
	return e->scope == PUSH_SCOPE_PROCESS;
}

static bool wants_transfer(const struct push_endpoint *e)
{
	return e->scope == PUSH_SCOPE_TRANSFER;
}

static bool in_transfer(const struct push_endpoint *e)
{
	return e->weights.scope_open && wants_transfer(e);
}

static bool in_session(const struct push_endpoint *e)
{
	return e->weights.scope_open && wants_session(e);
}

static bool in_processing(const struct push_endpoint *e)
{
	return e->weights.scope_open && wants_processing(e);
}

static const struct {
	bool (*wanted[2])(const struct push_endpoint *);
	const char *path[2];
} scopes[] = {
	{ { wants_session, in_session }, { "/begin_weight_update", "/end_weight_update" } },
	{ { wants_processing, in_processing },
	  { "/post_process_weights", "/post_process_weights" } },
	{ { wants_transfer, in_transfer }, { "/start_weight_update", "/finish_weight_update" } },
};
enum { SESSION, PROCESSING, TRANSFER, N_SCOPES };
_Static_assert(sizeof scopes / sizeof *scopes == N_SCOPES, "each has a number");

static bool any_wants(const struct ws_push *p, bool (*wanted)(const struct push_endpoint *))
{
	for (size_t i = 0; i < p->opts.n_endpoints; i++)
		if (wanted(&p->to.endpoints[i]))
			return true;
	return false;
}

static void take_answer(struct ws_push *p, size_t i, enum push_side side)
{
	struct push_endpoint *e = &p->to.endpoints[i];
	const enum ws_code code = p->to.errs[i].code;
	if (side == BEGIN || code == WS_ETIMEOUT)
		push_note_failure(p, i, &p->to.errs[i]);
	if (side == BEGIN) { /* without an answer, the server may still have begun */
		const bool open =
			code == WS_OK || (e->sent && !ws_endpoint_said_no(&p->to.errs[i]));
		push_target_event(&e->weights, open ? PUSH_SCOPE_OPENED : PUSH_SCOPE_DROPPED);
		/* Packed weights were made loadable: the server cannot compute with them until
		 * they are loaded. The layers of a vLLM have no values now, but the end gives
		 * them back while nothing was sent. */
		if (open && p->to.infos[i].quantization[0] && !wants_transfer(e))
			push_target_event(&e->weights, PUSH_VALUES_LOST);
		/* One of its workers may have started: a prompt may crash it. */
		if (wants_transfer(e) && code == WS_EREFUSED && p->to.errs[i].native == 500)
			push_target_event(&e->weights, PUSH_VALUES_LOST);
	} else if (code == WS_OK) {
		push_target_event(&e->weights, PUSH_SCOPE_CLOSED);
	} else if (wants_transfer(e)) { /* a second finish may work, on layers half processed */
		push_target_event(&e->weights, PUSH_WITHDRAWN);
	}
}

/* A layer behind the last one, or a module for the tokens after the next. */
static bool is_draft(const char *name, int64_t layers)
{
	const char *layer = strstr(name, "layers.");
	return strstr(name, "mtp") || strstr(name, "nextn") || strstr(name, "draft") ||
	       strstr(name, "eagle") ||
	       (layer && strtoll(layer + strlen("layers."), NULL, 10) >= layers);
}

/* How many of the tensors are of this layer, scales not counted. */
static size_t count_layer(const struct ws_plan *plan, int64_t layer)
{
	size_t n = 0;
	for (size_t i = 0; i < plan->n_tensors; i++) {
		const char *at = strstr(plan->tensors[i].name, "layers.");
		n += at && strtoll(at + strlen("layers."), NULL, 10) == layer &&
		     !strstr(at, "_scale");
	}
	return n;
}

/* Of next-token layers, which have all that the last layer of the model has, and more. */
static bool covers_draft(const struct ws_push *p, int64_t layers)
{
	const struct ws_plan *plan = p->from.plan;
	int64_t drafts;
	if (!ws_config_int(p->from.input.config, "num_nextn_predict_layers", &drafts) ||
	    drafts < 1 || layers < 1)
		return false;
	const size_t least = count_layer(plan, layers - 1);
	for (int64_t i = 0; i < drafts; i++)
		if (!least || count_layer(plan, layers + i) < least)
			return false;
	return true;
}

enum drafts { DRAFT_UNKNOWN, DRAFT_NONE, DRAFT_SOME, DRAFT_WHOLE };

/* Which part of a draft model is among the tensors? */
static enum drafts find_draft(const struct ws_push *p)
{
	const struct ws_config *config = p->from.input.config;
	const char *arch = config ? ws_config_architecture(config) : "";
	int64_t layers;
	if (strcasestr(arch, "eagle") || strcasestr(arch, "nextn") || strcasestr(arch, "mtp"))
		return p->from.plan->n_tensors ? DRAFT_WHOLE : DRAFT_NONE;
	if (!config || !ws_config_int(config, "num_hidden_layers", &layers))
		return DRAFT_UNKNOWN;
	for (size_t i = 0; i < p->from.plan->n_tensors; i++)
		if (is_draft(p->from.plan->tensors[i].name, layers))
			return covers_draft(p, layers) ? DRAFT_WHOLE : DRAFT_SOME;
	return DRAFT_NONE;
}

/* Begin and update must agree, so all endpoints must know the selector. */
static bool is_for_target(const struct ws_push *p)
{
	for (size_t i = 0; i < p->opts.n_endpoints; i++)
		if (!push_can(p, i)->selector)
			return false;
	return find_draft(p) == DRAFT_NONE;
}

void push_note_draft(struct ws_push *p, size_t i)
{
	struct push_endpoint *e = &p->to.endpoints[i];
	const bool has = p->to.infos[i].has_draft;
	const enum drafts sent = has ? find_draft(p) : DRAFT_NONE;
	e->draft = !has                                                ? "none" :
	           !push_can(p, i)->selector || sent == DRAFT_NONE ? "old" :
	           sent == DRAFT_WHOLE                                 ? "sent" :
	                                                                 "untold";
	if (p->opts.allow_unknown & WS_UNKNOWN_DRAFT)
		return;
	if (strcmp(e->draft, "old") == 0)
		push_warn(p, e->url, "its draft model, for speculative decoding, keeps its old "
		          "weights: fewer of its tokens will be accepted");
	if (strcmp(e->draft, "untold") == 0)
		push_warn(p, e->url, "it has a draft model, for speculative decoding, and whether "
		          "all weights of that are sent is not known: if not, fewer of its tokens "
		          "will be accepted");
}

/* Which adapters are loaded is not asked: each was trained for the weights of its time. */
void push_note_adapters(struct ws_push *p, size_t i)
{
	const char *adapters = p->to.infos[i].adapters;
	p->to.endpoints[i].adapters = adapters;
	if (adapters && strcmp(adapters, "kept") == 0)
		push_warn(p, p->to.endpoints[i].url, "it serves LoRA adapters: those that it has "
		          "loaded stay as they are, and apply to the new weights");
}

void push_write_selector(const struct ws_push *p, struct ws_jw *w)
{
	if (p->from.target_only)
		ws_jw_str(w, "selector", "target");
}

/* Everything arrived, and nothing will be proven: the label can come with the end. */
static bool is_labelled_here(const struct ws_push *p)
{
	for (size_t i = 0; i < p->opts.n_endpoints; i++)
		if (!push_can(p, i)->set_version || !p->to.endpoints[i].weights.fully_sent)
			return false;
	return p->from.weight_version && p->opts.verify != WS_VERIFY_HASH;
}

static void write_scope(struct ws_push *p, size_t kind, enum push_side side, struct ws_jw *w)
{
	if (kind == SESSION && side == BEGIN)
		push_write_selector(p, w);
	if (kind == PROCESSING) {
		ws_jw_bool(w, "restore_weights_before_load", side == BEGIN);
		ws_jw_bool(w, "post_process_quantization", side == END);
	}
	if (kind == TRANSFER && side == END && is_labelled_here(p)) {
		ws_jw_str(w, "weight_version", p->from.weight_version);
		p->run.labelled = true;
	}
}

/* Sends the request of one kind of scope to the endpoints that expect it. */
static int send_scope(struct ws_push *p, size_t kind, enum push_side side,
                      bool (*wanted)(const struct push_endpoint *), ws_deadline until,
                      const struct ws_cancel *cancel, struct ws_err *err)
{
	struct push_request r;
	if (!any_wants(p, wanted))
		return 0;
	int rc = push_request_open(p, &r, scopes[kind].path[side], err);
	if (rc == 0) {
		write_scope(p, kind, side, &r.w);
		rc = push_request_ask(p, &r, wanted, until, cancel, err);
		for (size_t i = 0; i < p->opts.n_endpoints; i++)
			if (p->to.endpoints[i].asked)
				take_answer(p, i, side);
	}
	push_request_close(p, &r);
	return rc;
}

enum push_scope push_scope_of(const struct ws_push *p, size_t i)
{
	const struct ws_capabilities *can = push_can(p, i);
	if (push_speaks_vllm(p))
		return can->transfer_session ? PUSH_SCOPE_TRANSFER : PUSH_SCOPE_NONE;
	/* A load from disk makes packed weights loadable and packs them. The end of a session would
	 * pack them again (sglang 0.5.21 to 0.5.23, which need none there). */
	if (can->session)
		return p->protocol->files ? PUSH_SCOPE_NONE : PUSH_SCOPE_SESSION;
	return can->post_process && strcmp(p->to.infos[i].quantization, "compressed-tensors") == 0 ?
	               PUSH_SCOPE_PROCESS :
	               PUSH_SCOPE_NONE;
}

static bool holds_parts(const struct push_endpoint *e)
{
	return e->holds_parts && in_transfer(e);
}

static bool was_finished(const struct push_endpoint *e)
{
	return e->holds_parts && wants_transfer(e) && !e->weights.scope_open;
}

/* A finish makes layers forget the parts that a failed update left there (push_in_step.c). */
static int begin_transfer(struct ws_push *p, ws_deadline until, struct ws_err *err)
{
	const struct ws_cancel *cancel = p->opts.cancel;
	if (push_finish_left_open(p, until, err))
		return -1;
	int rc = send_scope(p, TRANSFER, BEGIN, wants_transfer, until, cancel, err);
	for (size_t i = 0; rc == 0 && i < p->opts.n_endpoints; i++)
		if (holds_parts(&p->to.endpoints[i])) /* the rest of such layers becomes random */
			push_target_event(&p->to.endpoints[i].weights, PUSH_VALUES_LOST);
	if (rc == 0 && any_wants(p, holds_parts))
		rc = send_scope(p, TRANSFER, END, holds_parts, until, cancel, err) ||
		                     send_scope(p, TRANSFER, BEGIN, was_finished, until,
		                                cancel, err) ?
		             -1 :
		             0;
	for (size_t i = 0; rc && i < p->opts.n_endpoints; i++)
		if (strcmp(err->endpoint, p->to.endpoints[i].url) == 0)
			push_vllm_hint(p, i, err);
	return rc;
}

int push_scope_begin(struct ws_push *p, struct ws_err *err)
{
	const ws_deadline until = ws_deadline_min(p->run.until, ws_deadline_in(p->opts.bucket_ns));
	p->from.target_only = is_for_target(p);
	for (size_t i = 0; i < p->opts.n_endpoints; i++)
		p->to.endpoints[i].scope = push_scope_of(p, i);
	for (size_t kind = 0; kind < N_SCOPES; kind++) {
		const int rc = kind == TRANSFER ?
		                       begin_transfer(p, until, err) :
		                       send_scope(p, kind, BEGIN, scopes[kind].wanted[BEGIN],
		                                  until, p->opts.cancel, err);
		if (rc) {
			push_others_refused(p, err);
			return -1;
		}
	}
	return 0;
}

int push_scope_end(struct ws_push *p, struct ws_err *err)
{
	const ws_deadline until = ws_deadline_min(p->run.until, ws_deadline_in(p->opts.bucket_ns));
	const int64_t start = ws_now_ns();
	int rc = 0;
	for (size_t kind = 0; kind < N_SCOPES && rc == 0; kind++)
		rc = send_scope(p, kind, END, scopes[kind].wanted[END], until, p->opts.cancel,
		                err);
	push_applied(p, ws_now_ns() - start);
	return rc;
}

static void note_not_ended(struct ws_push *p, size_t i)
{
	struct push_endpoint *e = &p->to.endpoints[i];
	if (!e->timed_out && ws_endpoint_said_no(&p->to.errs[i]))
		push_target_event(&e->weights, PUSH_SCOPE_DROPPED);
	else
		push_warn(p, e->url, "may still wait for the end of its weight update: %s",
		          p->to.errs[i].msg);
}

/* A vLLM ends its update itself when a request fails; then its layers stay empty. One that has not
 * answered may still begin, although it says now that it is in no update. */
static void undo_transfer(struct ws_push *p, ws_deadline until)
{
	struct ws_endpoint_answer *answers = p->to.call.answers;
	const size_t n = push_select(p, in_transfer);
	const struct ws_call to = push_call_made(p, until, NULL);
	if (n)
		ws_vllm_end_updates(&to, answers, NULL);
	for (size_t k = 0; k < n; k++) {
		const size_t i = p->to.call.index[k];
		const struct push_weights *w = &p->to.endpoints[i].weights;
		const bool ended = answers[k].err.code == WS_OK;
		const bool finished = ended && answers[k].sent;
		if (!finished)
			push_target_event(w, PUSH_VALUES_LOST);
		if (finished)
			push_target_event(w, PUSH_SCOPE_CLOSED);
		else if (ended && !p->to.endpoints[i].timed_out)
			push_target_event(w, PUSH_SCOPE_DROPPED);
		if (!ended)
			push_warn(p, p->to.endpoints[i].url,
			          "may still wait for the end of its weight update: %s",
			          answers[k].err.msg);
	}
}

void push_scope_undo(struct ws_push *p)
{
	const ws_deadline until = push_cleanup_deadline(p, UNDO_NS);
	for (size_t kind = 0; kind < TRANSFER; kind++) {
		bool (*wanted)(const struct push_endpoint *) = scopes[kind].wanted[END];
		send_scope(p, kind, END, wanted, until, NULL, NULL);
		/* Read the answers before the next kind replaces them. A server that refuses has
		 * ended the update, or never began. A silent server may still begin. */
		for (size_t i = 0; i < p->opts.n_endpoints; i++)
			if (wanted(&p->to.endpoints[i]))
				note_not_ended(p, i);
	}
	undo_transfer(p, until);
}
