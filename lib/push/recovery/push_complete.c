/* SPDX-License-Identifier: Apache-2.0 */
/* push_complete.c - does this push complete the failed pushes of earlier runs?
 *
 * A failed push leaves an endpoint with some old and some new weights. A push of a part, or of a
 * smaller source, replaces only some of them, and the rest stays mixed. Such an endpoint stays
 * partial. Its record of the failed push stays as well, so that pushes of other parts can still
 * complete it. */
#include "push_state.h"

#include "journal_core.h"

#include <stdio.h>
#include <string.h>

void push_describe_sent(const struct ws_push *p, struct ws_journal_sent *out)
{
	const struct ws_senders *have;
	const bool alone = p->opts.senders < 2;
	if (p->recovery.staged) {
		const struct ws_journal_record *r = &p->recovery.staged->record;
		*out = (struct ws_journal_sent){
			.digest = r->digest, .tensors = r->tensors, .bytes = r->bytes,
			.whole = r->staged.whole, .checked = r->staged.checked,
		};
		return;
	}
	const struct ws_plan *all = push_leader_plan(p, &have); /* with other senders */
	*out = (struct ws_journal_sent){
		.digest = p->from.plan->digest,
		.tensors = all->n_tensors,
		.bytes = all->bytes,
		.whole = p->from.all_names && (alone || push_is_leader(p)),
		.checked = p->from.all_names && alone && p->checks.names.checked,
	};
}

static void describe(const struct ws_journal_record *left, const struct ws_journal_sent *sent,
                     char *dst, size_t n)
{
	snprintf(dst, n,
	         "process %lld left a push of %llu tensor%s incomplete, and this push of %llu "
	         "tensor%s is %s",
	         (long long)left->process.pid, (unsigned long long)left->tensors,
	         left->tensors == 1 ? "" : "s", (unsigned long long)sent->tensors,
	         sent->tensors == 1 ? "" : "s",
	         sent->whole ? "smaller, without a check of its names" : "another part");
}

/* The first endpoint that stays partial is the error. */
static int keep_partial(struct ws_push *p, size_t i, const struct ws_journal_record *left,
                        const struct ws_journal_sent *sent, struct ws_err *err)
{
	struct push_endpoint *e = &p->to.endpoints[i];
	push_target_event(&e->weights, PUSH_OTHERS_MISSING);
	describe(left, sent, e->message, sizeof e->message);
	if (!err || err->code)
		return -1;
	ws_err_set(err, WS_EPARTIAL, "%s: still has some old and some new weights: %s", e->url,
	           e->message);
	ws_err_where(err, NULL, e->url);
	if (p->turn.has_turn)
		return ws_err_hint(
			err,
			"%sif every sender has sent its part since that push: wsync-ctl repair "
		        "--forget --endpoint %s, then push %s part again. If not: push all parts "
		        "again with another {round}",
			p->turn.not_last ? "this turn counts. If the last turn leaves the endpoint "
		                           "partial: " :
					   "",
			e->url, p->turn.not_last ? "the last" : "this");
	return ws_err_hint(err, "push everything again: %swsync-push SOURCE -e %s%s",
	                   left->directory ? "wsync-ctl repair --again, or " : "", e->url,
	                   sent->whole ? "" : ", without {include}, {exclude} and {sender}");
}

bool push_has_all(const struct push_endpoint *e)
{
	return push_weights_arrived(&e->weights);
}

static int judge_record(struct ws_push *p, const struct ws_journal_record *r,
                        const struct ws_journal_sent *sent, struct ws_err *err)
{
	int rc = 0;
	for (size_t k = 0; k < r->n_endpoints; k++) {
		const struct ws_journal_endpoint *left = &r->endpoints[k];
		const bool mixed = left->state == WS_PARTIAL &&
		                   !(r->by_hand && p->opts.pause == WS_PAUSE_NONE);
		for (size_t i = 0; mixed && i < p->opts.n_endpoints; i++)
			if (push_has_all(&p->to.endpoints[i]) &&
			    ws_journal_is_about(left, p->to.endpoints[i].url, &p->to.infos[i]) &&
			    !ws_journal_completes(sent, r, left))
				rc = keep_partial(p, i, r, sent, err);
	}
	return rc;
}

static int judge_list(struct ws_push *p, const struct ws_journal_list *list,
                      const struct ws_journal_sent *sent, struct ws_err *err)
{
	const char *own = p->recovery.journal ? ws_journal_path(p->recovery.journal) : NULL;
	int rc = 0;
	for (size_t i = 0; i < list->n; i++) {
		const struct ws_journal_entry *e = &list->items[i];
		const bool ours = e->path && own && strcmp(e->path, own) == 0;
		struct ws_journal_record r = e->record;
		if (!e->path)
			r.directory = NULL; /* wsync-ctl repair --again cannot find it */
		if (!e->err.code && !ours && judge_record(p, &r, sent, err))
			rc = -1;
	}
	return rc;
}

int push_complete(struct ws_push *p, struct ws_err *err)
{
	struct ws_err first = WS_ERR_INIT;
	struct ws_journal_sent sent;
	struct ws_journal_list list = { 0 };
	int rc = 0;
	if (!push_select(p, push_has_all) || (!p->from.plan && !p->recovery.staged))
		return 0;
	push_describe_sent(p, &sent);
	if (p->opts.state_dir && ws_journal_list(p->opts.state_dir, &list, NULL) == 0)
		rc = judge_list(p, &list, &sent, &first);
	if (judge_list(p, &p->recovery.left, &sent, &first))
		rc = -1;
	ws_journal_list_free(&list);
	if (rc && err)
		*err = first;
	return rc;
}
