/* SPDX-License-Identifier: Apache-2.0 */
/* push_sender.c - one of several processes that push a part of the weights each, for example
 * pipeline stages or ranks of experts. They take turns by a lock file. The sender that finds that
 * all others have had a turn in its round ends the round. Only this sender flushes and sets the
 * weight version.
 *
 * The round (round.h, kept by push_round.c) has an ID, --round or the weight version. So a half
 * round of an earlier step, or of a job that died, is never completed by another step. An ended
 * round stays in its file: a sender that comes again in it flushes its part itself.
 *
 * The round also lists the tensors that its turns have sent (parts.h). So the sender that ends it
 * detects tensors that no --include has chosen. Every sender detects a server that was restarted
 * since, and has lost the earlier parts. */
#include "push_state.h"

#include "wsync/tool/str.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { AGAIN_MS = 100 };

static void warn_again(struct ws_push *p)
{
	char round[512];
	ws_round_describe(p->turn.round, round, sizeof round);
	push_warn(p, NULL,
	          "sender %u comes again in %s%s: its part is sent again%s. A job that starts "
	          "again needs another {round} ID",
	          p->opts.sender, round, ws_round_is_half(p->turn.round) ? "" : ", which had ended",
	          ws_round_is_half(p->turn.round) ? "" : ", and flushed by itself");
}

static void warn_abandoned(struct ws_push *p, const char *id)
{
	char round[512], senders[256];
	ws_round_describe(p->turn.round, round, sizeof round);
	ws_round_list(p->turn.round, senders, sizeof senders);
	push_warn(p, NULL, "round %.200s begins, and %s is abandoned: %s", id, round, senders);
}

/* Enters the round `id`. Parts of an abandoned round were not flushed, so this turn flushes too.
 * A round whose parts cannot be read cannot be completed. */
static void join_round(struct ws_push *p, const char *id)
{
	struct ws_round *r = p->turn.round;
	const bool same = ws_round_is(r, id, p->opts.senders);
	const bool unknown = ws_round_count(r) && !p->turn.parts.n_tensors;
	p->turn.flush_too = false;
	if (!same || unknown) {
		p->turn.flush_too = ws_round_is_half(r) || (same && unknown);
		if (p->turn.flush_too)
			warn_abandoned(p, id);
		ws_round_begin(r, id, p->opts.senders);
		ws_parts_free(&p->turn.parts);
	} else if (r->had[p->opts.sender]) {
		warn_again(p);
	}
	r->had[p->opts.sender] = true;
	p->turn.not_last = ws_round_count(r) < r->senders;
}

/* We have the lock and have had our turn, but another sender has not. */
static int say_missing(const struct ws_push *p, struct ws_err *err)
{
	unsigned i = 1;
	while (i < p->opts.senders && p->turn.round->had[i])
		i++;
	return ws_err_set(err, WS_ETIMEOUT, "%s: sender %u has not had its turn", p->turn.text, i);
}

/* A process with several sources (--stdin) has one turn in a round. It waits until the others have
 * had theirs. */
static bool must_wait(const struct ws_push *p)
{
	return p->turn.in_round && p->turn.round->senders == p->opts.senders &&
	       p->turn.round->had[p->opts.sender] && ws_round_is_half(p->turn.round);
}

static int take_turn(struct ws_push *p, const char *id, int64_t most, struct ws_err *err)
{
	struct push_wait wait;
	push_wait_begin(&wait, most);
	for (;;) {
		struct pollfd cancel = { .fd = ws_cancel_fd(p->opts.cancel), .events = POLLIN };
		struct ws_err why = WS_ERR_INIT;
		const int rc = push_round_take(p, id, push_wait_piece(&wait), &why);
		if (rc == 0) {
			if (!must_wait(p))
				return 0;
			(void)push_round_drop(p, false, NULL);
			say_missing(p, &why);
		}
		if ((rc && why.native != EWOULDBLOCK) || !push_wait_on(p, &wait, &why)) {
			if (err)
				*err = why;
			return -1;
		}
		if (rc == 0)
			poll(&cancel, 1, AGAIN_MS);
	}
}

int64_t push_lock_wait(const struct ws_push *p, int64_t wait)
{
	const int64_t left = ws_deadline_left(p->run.until);
	if (wait <= left)
		return wait;
	return left > 0 ? left : 1;
}

int push_round_id(const struct ws_push *p, char id[WS_ROUND_ID], struct ws_err *err)
{
	const char *given = p->opts.round          ? p->opts.round :
	                    p->from.weight_version ? p->from.weight_version :
	                                             "";
	const size_t n = strlen(given);
	if (n >= WS_ROUND_ID)
		return ws_err_set(
			err, WS_EUSAGE,
			"sender %u of %u: the ID of its round has %zu bytes, more than %d",
			p->opts.sender, p->opts.senders, n, WS_ROUND_ID - 1);
	ws_printable(id, WS_ROUND_ID, given, n);
	return 0;
}

static int name_round(const struct ws_push *p, char id[WS_ROUND_ID], struct ws_err *err)
{
	if (push_round_id(p, id, err))
		return -1;
	if (*id)
		return 0;
	ws_err_set(err, WS_EUSAGE, "%s: the ID of its round is missing", p->turn.text);
	return ws_err_hint(
		err,
		"give all senders of one step the same {weight_version} or {round}: without it a "
		"round that another step or job left half done would be completed");
}

static void note_round(struct ws_push *p)
{
	const struct ws_round *r = p->turn.round;
	ws_round_describe(r, p->turn.event_text, sizeof p->turn.event_text);
	p->turn.event = (struct ws_ev_round){
		.id = r->id,
		.senders = r->senders,
		.had = ws_round_count(r),
		.ended = !p->turn.not_last,
		.begun = r->begun,
		.pid = r->pid,
		.host = r->host,
		.text = p->turn.event_text,
	};
}

int push_sender_enter(struct ws_push *p, struct ws_err *err)
{
	const int64_t wait = push_lock_wait(p, p->opts.lock_wait_ns > 0 ? p->opts.lock_wait_ns :
	                                                                  p->opts.bucket_ns);
	char id[WS_ROUND_ID];
	if (p->opts.senders < 2 || push_together(p))
		return 0;
	p->turn.not_last = true;
	p->turn.version = NULL;
	if (p->opts.dry_run || !p->opts.n_endpoints)
		return 0;
	snprintf(p->turn.text, sizeof p->turn.text, "turn of sender %u of %u", p->opts.sender,
	         p->opts.senders);
	if (name_round(p, id, err))
		return -1;
	if ((!p->turn.round && !(p->turn.round = calloc(1, sizeof *p->turn.round))) ||
	    (!p->turn.known_round &&
	     !(p->turn.known_round = calloc(1, sizeof *p->turn.known_round))))
		return ws_oom(err);
	p->turn.anew = false;
	if (take_turn(p, id, wait, err))
		return -1;
	p->turn.has_turn = true;
	join_round(p, id);
	note_round(p);
	p->turn.version = p->from.weight_version;
	if (p->turn.not_last)
		p->from.weight_version = NULL;
	return 0;
}

/* ---- the parts ------------------------------------------------------------------------------- */

/* Adds this sender's tensors. Tensors that its --include omits are left for another sender. Tensors
 * in its --exclude are not listed: no sender has to send them, unless another one lists them. */
static int add_part(struct ws_push *p, struct ws_err *err)
{
	const struct ws_push_opts *o = &p->opts;
	const struct ws_catalog *c = p->from.input.catalog;
	for (size_t i = 0; i < ws_catalog_count(c); i++) {
		const struct ws_item *t = ws_catalog_item(c, i);
		if (!t->bytes || ws_glob_any(o->exclude, o->n_exclude, t->name))
			continue;
		const bool sent = !o->n_include || ws_glob_any(o->include, o->n_include, t->name);
		if (ws_parts_add(&p->turn.parts, t->name, sent, err))
			return -1;
	}
	for (size_t i = 0; i < o->n_endpoints; i++)
		if (ws_parts_set_server(&p->turn.parts, p->to.endpoints[i].url,
		                        p->to.infos[i].instance, err))
			return -1;
	ws_parts_merge(&p->turn.parts);
	return 0;
}

/* Why the server lacks the parts of other senders: it was restarted since, or got none of them, or
 * a push of other weights has replaced them; "": it has all parts. */
static const char *lacks_parts(const struct ws_push *p, const struct ws_history *h, size_t i)
{
	const struct ws_part_server *was = ws_parts_server(&p->turn.parts, p->to.endpoints[i].url);
	if (was && push_history_intrudes(p, h, i))
		return "another push has changed its weights since the turns before in";
	if (was)
		return was->instance && p->to.infos[i].instance &&
		                       was->instance != p->to.infos[i].instance ?
		               "another server answers than at the turns before in" :
		               "";
	return "it got nothing at the turns before in";
}

static int check_servers(struct ws_push *p, struct ws_err *err)
{
	char round[512], senders[256];
	const char *what = "";
	struct ws_history history = { 0 };
	size_t i = 0;
	if (p->opts.state_dir && ws_history_read(p->opts.state_dir, &history, err))
		return -1;
	while (i < p->opts.n_endpoints && !*(what = lacks_parts(p, &history, i)))
		i++;
	ws_history_free(&history);
	if (i == p->opts.n_endpoints)
		return 0;
	p->turn.round->had[p->opts.sender] = false;
	ws_round_describe(p->turn.round, round, sizeof round);
	ws_round_list(p->turn.round, senders, sizeof senders);
	ws_err_set(err, WS_EPARTIAL, "%s: %s %s: %s", p->to.endpoints[i].url, what, round, senders);
	ws_err_hint(err, "it does not have what they sent: push the parts of all senders again, "
	                 "with the same endpoints; the round begins anew");
	push_round_anew(p, p->turn.round->id);
	p->turn.anew = true;
	return ws_err_where(err, NULL, p->to.endpoints[i].url);
}

/* This turn would end a round in which some tensors were sent by no sender. It is refused before an
 * endpoint is paused, so the round goes on: a sender with a wider --include may come again. */
static int check_left(struct ws_push *p, struct ws_err *err)
{
	const char *first;
	const size_t n = p->turn.not_last ? 0 : ws_parts_left(&p->turn.parts, &first);
	if (!n)
		return 0;
	p->turn.round->had[p->opts.sender] = false;
	ws_err_set(err, WS_EPARTIAL,
	           "round %.200s of %u senders leaves out %zu tensor%s, the first is %.300s: no "
	           "sender has sent %s",
	           p->turn.round->id, p->turn.round->senders, n, n == 1 ? "" : "s", first,
	           n == 1 ? "it" : "them");
	return ws_err_hint(
		err, "widen the {include} of a sender and let it come again, then this one; or, to "
	             "leave tensors "
		     "out deliberately, give all senders the same {exclude} and another {round}");
}

int push_sender_part(struct ws_push *p, struct ws_err *err)
{
	struct ws_buf text;
	if (!p->turn.has_turn)
		return 0;
	/* If only this sender had turns, its earlier part may be overwritten: forget it. */
	if (!ws_round_has_others(p->turn.round, p->opts.sender))
		ws_parts_free(&p->turn.parts);
	else if (check_servers(p, err))
		return -1;
	if (add_part(p, err) || check_left(p, err))
		return -1;
	/* Check the size now: after the transfer it would be too late. */
	ws_buf_init(&text, WS_PARTS_TEXT);
	ws_parts_write(&p->turn.parts, &text);
	const int rc =
		ws_buf_check(&text, "the list of tensors that a round has sent", err);
	ws_buf_free(&text);
	return rc;
}

int push_sender_leave(struct ws_push *p, bool ok, struct ws_err *err)
{
	struct ws_err why = WS_ERR_INIT;
	/* A failed sender had no turn, and may come again. But its turn counts if only an earlier
	 * push has left the endpoint incomplete: all of its part was sent. */
	const bool counts = ok || (p->run.incomplete && p->turn.not_last);
	if (!p->turn.has_turn)
		return 0;
	p->turn.has_turn = false;
	const int rc = push_round_drop(p, counts || p->turn.anew, &why);
	p->turn.in_round = counts ? p->turn.not_last : p->turn.in_round;
	if (!rc || !ok)
		return 0;
	if (!p->turn.not_last) {
		push_warn(p, NULL, "the other senders will not know that this round has ended: %s",
		          why.msg);
		return 0;
	}
	ws_err_set(err, WS_EPARTIAL,
	           "%s: its part was sent, but the other senders will not know of it: %s",
	           p->turn.text, why.msg);
	ws_err_hint(err, "push this part again");
	return ws_err_where(err, ws_phase_name(p->run.phase), NULL);
}
