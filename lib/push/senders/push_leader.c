/* SPDX-License-Identifier: Apache-2.0 */
/* push_leader.c - the first of several senders of one group. It hosts their store, collects their
 * lists, assigns the shares, and reports how the push ended. It alone calls the endpoints.
 *
 * A sender is lost when its connection to the store closes. So each sender keeps its connection
 * until it has read the end. */
#include "push_protocol.h"

#include "senders.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct push_leader {
	struct ws_gloo_kv kv;
	struct ws_sender_list *lists; /* of each sender */
	struct ws_sender_union all;
};

static const int64_t SLICE_NS = 200 * WS_NS_PER_MS;
static const int64_t LEAVE_NS = 2 * WS_NS_PER_S; /* for the others to read the end */

bool push_together(const struct ws_push *p)
{
	return p->opts.senders > 1 && !p->opts.sender_lock &&
	       p->opts.protocol == WS_PROTOCOL_EP_SCATTER;
}

unsigned push_sending_ranks(const struct ws_push *p)
{
	return push_together(p) ? p->opts.senders : 1;
}

bool push_is_leader(const struct ws_push *p)
{
	return push_together(p) && p->opts.sender == 1;
}

bool push_is_worker(const struct ws_push *p)
{
	return push_together(p) && p->opts.sender > 1;
}

const struct ws_plan *push_leader_plan(const struct ws_push *p, const struct ws_senders **have)
{
	*have = p->turn.lead ? p->turn.lead->all.have : NULL;
	return p->turn.lead ? &p->turn.lead->all.plan : p->from.plan;
}

void push_leader_free(struct ws_push *p)
{
	struct push_leader *x = p->turn.lead;
	if (!x)
		return;
	for (unsigned i = 0; x->lists && i < p->opts.senders; i++)
		ws_senders_list_free(&x->lists[i]);
	free(x->lists);
	ws_senders_union_free(&x->all);
	free(x);
	p->turn.lead = NULL;
}

/* ---- failures of other senders --------------------------------------------------------------- */

static bool there(const struct push_leader *x, const char *key, struct ws_buf *value)
{
	return ws_senders_get(&x->kv, key, ws_deadline_in(0), NULL, value, NULL) == 0;
}

static int read_failure(const struct push_leader *x, unsigned i, struct ws_err *err)
{
	char key[WS_SENDERS_KEY];
	struct ws_buf text;
	int rc = 0;
	ws_buf_init(&text, 1 << 20);
	ws_senders_key(key, i, "failed");
	if (there(x, key, &text) && (rc = ws_senders_read_end(text.data, text.len, err)))
		ws_err_wrap(err, "sender %u", i);
	ws_buf_free(&text);
	return rc;
}

int push_leader_watch(void *ctx, struct ws_err *err)
{
	struct ws_push *p = ctx;
	for (unsigned i = 2; p->turn.lead && i <= p->opts.senders; i++)
		if (read_failure(p->turn.lead, i, err)) {
			p->run.commits_void = true; /* its share may have been wrong, whatever the
			                       endpoints confirm */
			return -1;
		}
	return p->turn.lead ? ws_store_lost_sender(ws_group_store(p->link.group), err) : 0;
}

/* ---- lists of tensors ------------------------------------------------------------------------ */

static int name_missing(struct ws_push *p, int64_t waited_ns, struct ws_err *err)
{
	char who[256] = "";
	unsigned n = 0;
	size_t used = 0;
	for (unsigned i = 2; i <= p->opts.senders; i++) {
		if (p->turn.lead->lists[i - 1].sender)
			continue;
		if (n++ < 8)
			used += (size_t)snprintf(who + used, sizeof who - used, "%s%u",
			                         n > 1 ? ", " : "", i);
	}
	uint16_t port;
	const char *host = ws_group_master(p->link.group, &port);
	ws_err_set(err, WS_ETIMEOUT, "sender%s %s%s of %u did not come within %.0f s",
	           n == 1 ? "" : "s", who, n > 8 ? " and others" : "", p->opts.senders,
	           (double)waited_ns / WS_NS_PER_S);
	return ws_err_hint(
		err,
		"start them with {master_address} %s {master_port} %u, which they must be able "
		"to reach",
		host, port);
}

/* Senders of two steps must not meet in one push. Compares a sender with the first sender whose
 * list names its round. */
static int check_round(const struct ws_push *p, unsigned i, struct ws_err *err)
{
	const struct ws_sender_list *lists = p->turn.lead->lists, *mine = &lists[i - 1];
	unsigned k = 1;
	while (k < i && !lists[k - 1].round[0])
		k++;
	const struct ws_sender_list *first = &lists[k - 1];
	if (k == i || !mine->round[0] || strcmp(first->round, mine->round) == 0)
		return 0;
	ws_err_set(err, WS_EUSAGE, "sender %u sends round %.200s, and sender %u sends round %.200s",
	           k, first->round, i, mine->round);
	return ws_err_hint(err, "give all senders of one step the same {weight_version} or "
	                        "{round}, and each step another one");
}

static void warn_unnamed(struct ws_push *p)
{
	const struct ws_sender_list *lists = p->turn.lead->lists, *named = NULL;
	unsigned without = 0, n = 0;
	for (unsigned i = p->opts.senders; i >= 1; i--) {
		if (lists[i - 1].round[0])
			named = &lists[i - 1];
		else
			without = i, n++;
	}
	if (named && n)
		push_warn(p, NULL,
		          "%u of %u senders name no round (the first is sender %u), and sender %u "
		          "sends round "
		          "%.200s: give all of them the same {weight_version} or {round}",
		          n, p->opts.senders, without, (unsigned)(named - lists) + 1, named->round);
}

static int take_list(struct ws_push *p, unsigned i, struct ws_buf *text, struct ws_err *err)
{
	struct ws_sender_list *l = &p->turn.lead->lists[i - 1];
	if (ws_senders_read_list(text->data, text->len, l, err))
		return ws_err_wrap(err, "sender %u", i);
	if (l->sender != i || l->senders != p->opts.senders)
		return ws_err_set(err, WS_EUSAGE, "sender %u of %u is among these %u", l->sender,
		                  l->senders, p->opts.senders);
	if (l->dry_run != p->opts.dry_run)
		return ws_err_set(err, WS_EUSAGE, "sender %u is a dry run and sender %u is not",
		                  l->dry_run ? i : 1, l->dry_run ? 1 : i);
	return check_round(p, i, err);
}

/* Waits for a value of sender i, unless another sender fails meanwhile. */
static int wait_for_value(struct ws_push *p, unsigned i, const char *what, ws_deadline until,
                          struct ws_buf *value, struct ws_err *err)
{
	char key[WS_SENDERS_KEY];
	struct ws_err why;
	ws_senders_key(key, i, what);
	do {
		const ws_deadline slice = ws_deadline_min(until, ws_deadline_in(SLICE_NS));
		why = (struct ws_err)WS_ERR_INIT;
		if (ws_senders_get(&p->turn.lead->kv, key, slice, p->opts.cancel, value, &why) == 0)
			return 0;
		push_alive(p);
		if (push_leader_watch(p, err))
			return -1;
	} while (why.code == WS_ETIMEOUT && !ws_deadline_passed(until));
	if (err)
		*err = why;
	if (why.code == WS_ECANCELLED)
		return -1;
	return ws_err_wrap(err, why.code == WS_ETIMEOUT ? "no answer from sender %u" : "sender %u",
	                   i);
}

/* Senders connect in any order. Marks those that are present, before the missing ones are named. */
static void take_present(struct ws_push *p, struct ws_buf *text)
{
	char key[WS_SENDERS_KEY];
	for (unsigned i = 2; i <= p->opts.senders; i++) {
		ws_senders_key(key, i, "list");
		if (!p->turn.lead->lists[i - 1].sender && there(p->turn.lead, key, text))
			p->turn.lead->lists[i - 1].sender = i;
	}
}

static int check_hash(const struct ws_push *p, struct ws_err *err)
{
	if (p->opts.verify != WS_VERIFY_HASH ||
	    p->turn.lead->lists[0].n == p->turn.lead->all.plan.n_tensors)
		return 0;
	ws_err_set(err, WS_EUSAGE,
	           "{verify} hash: sender 1 has %zu of the %zu tensors, and can check only those",
	           p->turn.lead->lists[0].n, p->turn.lead->all.plan.n_tensors);
	return ws_err_hint(err,
	                   "push without it, then compare all: wsync-verify weights SOURCE...");
}

int push_leader_gather(struct ws_push *p, struct ws_err *err)
{
	const ws_deadline until = ws_deadline_min(p->run.until, ws_deadline_in(p->opts.init_ns));
	const int64_t start = ws_now_ns();
	struct ws_buf text;
	push_leader_free(p);
	p->turn.lead = calloc(1, sizeof *p->turn.lead);
	if (!p->turn.lead ||
	    !(p->turn.lead->lists = calloc(p->opts.senders, sizeof *p->turn.lead->lists)))
		return ws_oom(err);
	p->turn.lead->kv = ws_gloo_kv_store(ws_group_store(p->link.group));
	if (ws_senders_list(p->from.plan, &p->turn.lead->lists[0], err))
		return -1;
	p->turn.lead->lists[0].sender = 1;
	if (push_round_id(p, p->turn.lead->lists[0].round, err))
		return -1;
	ws_buf_init(&text, 0);
	int rc = 0;
	for (unsigned i = 2; rc == 0 && i <= p->opts.senders; i++) {
		rc = wait_for_value(p, i, "list", until, &text, err) ||
		                     take_list(p, i, &text, err) ? -1 : 0;
		if (rc && err && err->code == WS_ETIMEOUT && ws_deadline_passed(until)) {
			take_present(p, &text);
			rc = name_missing(p, ws_now_ns() - start, err);
		}
	}
	ws_buf_free(&text);
	if (rc == 0)
		warn_unnamed(p);
	return rc ||
	                       ws_senders_unite(p->turn.lead->lists, p->opts.senders,
	                                        &p->turn.lead->all, err) ||
	                       check_hash(p, err) ?
	               -1 :
	               0;
}

/* ---- shares, and the end --------------------------------------------------------------------- */

int push_leader_share(struct ws_push *p, struct ws_err *err)
{
	struct ws_buf text;
	int rc = 0;
	ws_buf_init(&text, 0);
	for (unsigned i = 2; p->turn.lead && rc == 0 && i <= p->opts.senders; i++) {
		char key[WS_SENDERS_KEY];
		ws_senders_share_key(key, i);
		ws_buf_reset(&text);
		rc = push_scatter_share(p, &p->turn.lead->lists[i - 1], &text, err);
		if (rc == 0)
			rc = ws_senders_put(&p->turn.lead->kv, key, &text, p->run.until, err);
	}
	ws_buf_free(&text);
	return rc;
}

int push_leader_sent(struct ws_push *p, struct ws_err *err)
{
	const ws_deadline until = ws_deadline_min(p->run.until, ws_deadline_in(p->opts.bucket_ns));
	struct ws_buf text;
	int rc = 0;
	ws_buf_init(&text, 0);
	for (unsigned i = 2; p->turn.lead && rc == 0 && i <= p->opts.senders; i++)
		rc = wait_for_value(p, i, "sent", until, &text, err);
	p->run.commits_void |= rc != 0;
	ws_buf_free(&text);
	return rc;
}

/* True if sender i has read the end, or has disconnected. */
static bool has_left(const struct ws_push *p, unsigned i, const struct ws_store_report *r,
                     struct ws_buf *text)
{
	char key[WS_SENDERS_KEY];
	bool connected = false;
	ws_senders_key(key, i, "bye");
	for (size_t k = 0; k < r->n_peers; k++)
		connected = connected || (r->peers[k].sender == i && r->peers[k].connected);
	return !connected || there(p->turn.lead, key, text);
}

static void see_off(const struct ws_push *p)
{
	const ws_deadline until = ws_deadline_in(LEAVE_NS);
	struct ws_buf text;
	bool all = false;
	ws_buf_init(&text, 1 << 20);
	while (!all && !ws_deadline_passed(until)) {
		struct ws_store_report r = { 0 };
		all = true;
		if (ws_store_report(ws_group_store(p->link.group), &r, NULL))
			break;
		for (unsigned i = 2; i <= p->opts.senders; i++)
			all = all && has_left(p, i, &r, &text);
		ws_store_report_fini(&r);
		if (!all)
			poll(NULL, 0, 10);
	}
	ws_buf_free(&text);
}

void push_leader_end(struct ws_push *p, const struct ws_err *why)
{
	struct ws_buf text, nothing;
	if (!p->turn.lead || !p->link.group)
		return;
	ws_buf_init(&text, 0);
	ws_buf_init(&nothing, 0);
	ws_senders_write_end(&text, why);
	ws_senders_put(&p->turn.lead->kv, WS_SENDERS_END, &text, WS_FOREVER, NULL);
	/* Senders that wait for their share get an empty one, then read the end. */
	for (unsigned i = 2; why->code && i <= p->opts.senders; i++) {
		char key[WS_SENDERS_KEY];
		ws_senders_share_key(key, i);
		ws_senders_put(&p->turn.lead->kv, key, &nothing, WS_FOREVER, NULL);
	}
	ws_buf_free(&text);
	see_off(p);
	push_leader_free(p);
}
