/* SPDX-License-Identifier: Apache-2.0 */
/* push_history.c - notes before and after a run whose weights the endpoints have: for people, and
 * for --only-stale and wsync-ctl ready, which believe a weight version if the last push set it. */
#include "push_state.h"

#include "hash.h"
#include "journal_core.h"

#include "wsync/tool/history.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static void describe(const struct ws_push *p, size_t i, struct ws_history_endpoint *out)
{
	const struct ws_ev_endpoint_result *r = &p->to.results[i];
	*out = (struct ws_history_endpoint){
		.url = r->url,
		.ok = r->ok,
		.state = r->state,
		.coverage = p->to.endpoints[i].coverage,
		.message = r->ok ? "" : r->message,
		.instance = p->to.infos[i].instance,
		.identity = p->to.infos[i].identity,
		.label = p->to.infos[i].weight_version,
		.established = push_established(p, i) |
		               (push_names_listed(p, i) ? WS_HISTORY_LISTED : 0),
	};
}

static bool is_noted(const struct ws_push *p)
{
	return p->recovery.claimed && p->opts.state_dir && !p->opts.stage;
}

static uint64_t round_of(const struct ws_push *p)
{
	return p->turn.has_turn ? ws_hash64(p->turn.round->id, strlen(p->turn.round->id)) | 1 : 0;
}

bool push_history_intrudes(const struct ws_push *p, const struct ws_history *h, size_t i)
{
	const uint64_t round = round_of(p);
	const struct ws_history_endpoint *part;
	bool sure, is_later = false;
	const struct ws_history_push *last = ws_history_last_change(
		h, p->to.endpoints[i].url, &p->to.infos[i], &part, &sure);
	if (!last || !last->id || last->round == round)
		return false;
	/* The turns of other machines are in their histories. */
	is_later = (last->ended ? last->ended : last->began) > p->turn.round->begun;
	for (const struct ws_history_push *q = h->items; q < last && !is_later; q++)
		for (size_t k = 0; q->round == round && k < q->n_endpoints; k++)
			is_later |= q->began >= p->turn.round->begun &&
			            ws_endpoint_same(q->endpoints[k].url, part->url);
	return is_later;
}

static int64_t began(const struct ws_push *p, int64_t now)
{
	return now - (ws_now_ns() - p->run.since) / WS_NS_PER_S;
}

/* The last turn of a round completes what the other senders have sent. */
static void describe_plan(const struct ws_push *p, struct ws_history_push *out)
{
	struct ws_journal_sent sent;
	if (!p->from.plan && !p->recovery.staged)
		return;
	push_describe_sent(p, &sent);
	out->whole = sent.whole ||
	             (p->from.all_names && p->turn.has_turn && !p->turn.not_last);
	out->digest = p->opts.senders < 2 ? sent.digest : 0;
}

void push_history_begin(struct ws_push *p)
{
	const size_t n = p->opts.n_endpoints;
	struct ws_history_endpoint *those =
		is_noted(p) ? calloc(n + 1, sizeof *those) : NULL;
	for (size_t i = 0; those && i < n; i++)
		those[i] = (struct ws_history_endpoint){
			.url = p->to.endpoints[i].url, .state = WS_PARTIAL, .coverage = -1,
			.message = "", .instance = p->to.infos[i].instance,
			.identity = p->to.infos[i].identity,
			.label = p->to.infos[i].weight_version,
		};
	const struct ws_history_push push = {
		.id = p->recovery.history_id,
		.began = began(p, time(NULL)),
		.source = p->from.name,
		.weight_version = p->from.weight_version ? p->from.weight_version : "",
		.verify = push_verify_name(p),
		.round = round_of(p),
		.endpoints = those, .n_endpoints = n,
	};
	if (those)
		(void)ws_history_add(p->opts.state_dir, &push);
	free(those);
}

void push_history(struct ws_push *p, bool ok, const struct ws_err *err)
{
	const size_t n = p->opts.n_endpoints;
	struct ws_history_endpoint *those =
		is_noted(p) ? calloc(n + 1, sizeof *those) : NULL;
	for (size_t i = 0; those && i < n; i++)
		describe(p, i, &those[i]);
	const int64_t now = time(NULL);
	struct ws_history_push push = {
		.id = p->recovery.history_id,
		.began = began(p, now),
		.ended = now,
		.source = p->from.name,
		.weight_version = p->from.weight_version ? p->from.weight_version : "",
		.verify = push_verify_name(p),
		.round = round_of(p),
		.code = ws_code_name(ok ? WS_OK : err->code),
		.message = ok ? "" : err->msg,
		.same = p->opts.label_stays,
		.endpoints = those,
		.n_endpoints = n,
	};
	describe_plan(p, &push);
	if (!those || !ws_history_add(p->opts.state_dir, &push))
		p->recovery.history_id = 0;
	free(those);
}
