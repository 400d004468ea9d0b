/* SPDX-License-Identifier: Apache-2.0 */
/* push_sender.c - one of several processes that push a part of the weights each: pipeline stages, ranks
 * of experts. They take turns by a lock file or a lock service. The sender that finds that all the others
 * have had a turn in its round ends the round: it alone flushes and sets the weight version.
 *
 * The round (round.h) is kept in FILE.round beside the lock file, or by the service. It is read and written
 * under the lock only. It has an ID, --round or the weight version, so that a half round of an earlier step,
 * or of a job that died, is never completed by another step. A round that has ended stays there: a sender
 * that comes again in it flushes its part by itself, because no other sender follows. */
#include "push_state.h"

#include "file.h"
#include "lease.h"
#include "lock.h"
#include "wsync/str.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { AGAIN_MS = 100 };

static char *round_path(const struct ws_push *p)
{
	char *path = NULL;
	return asprintf(&path, "%s.round", p->opts.sender_lock) < 0 ? NULL : path;
}

static int read_round(struct ws_push *p, struct ws_err *err)
{
	struct ws_err why = WS_ERR_INIT;
	struct ws_buf text;
	char *path = round_path(p);
	if (!path)
		return ws_err_set(err, WS_ESYSTEM, "out of memory");
	ws_buf_init(&text, WS_ROUND_TEXT);
	/* No file: the first round of all. */
	if (ws_file_read(path, &text, &why) == 0)
		ws_round_read(ws_buf_str(&text), text.len, p->round);
	ws_buf_free(&text);
	free(path);
	if (why.code != WS_ESYSTEM)
		return 0;
	if (err)
		*err = why;
	return -1;
}

static int write_round(const struct ws_push *p, struct ws_err *err)
{
	struct ws_buf text;
	struct ws_jw w;
	char *path = round_path(p);
	int rc = -1;
	if (!path)
		return ws_err_set(err, WS_ESYSTEM, "out of memory");
	ws_buf_init(&text, WS_ROUND_TEXT);
	ws_jw_init(&w, &text);
	ws_round_write(&w, NULL, p->round);
	ws_buf_puts(&text, "\n");
	if (ws_buf_check(&text, path, err) == 0)
		rc = ws_file_replace(path, ws_buf_str(&text), text.len, 0600, err);
	ws_buf_free(&text);
	free(path);
	return rc;
}

static void warn_again(struct ws_push *p)
{
	char round[512];
	ws_round_describe(p->round, round, sizeof round);
	push_warn(p, NULL, "sender %u comes again in %s%s: its part is sent again%s. A job that starts again needs "
	          "another --round ID", p->opts.sender, round,
	          ws_round_is_half(p->round) ? "" : ", which had ended",
	          ws_round_is_half(p->round) ? "" : ", and flushed by itself");
}

static void warn_abandoned(struct ws_push *p, const char *id)
{
	char round[512], senders[256];
	ws_round_describe(p->round, round, sizeof round);
	ws_round_list(p->round, senders, sizeof senders);
	push_warn(p, NULL, "round %.200s begins, and %s is abandoned: %s", id, round, senders);
}

/* Enters the round `id`. Parts of an abandoned round were not flushed: this part's flush does it. The round
 * is written when the turn was a success. */
static void join_round(struct ws_push *p, const char *id)
{
	struct ws_round *r = p->round;
	p->flush_too = false;
	if (!ws_round_is(r, id, p->opts.senders)) {
		p->flush_too = ws_round_is_half(r);
		if (p->flush_too)
			warn_abandoned(p, id);
		ws_round_begin(r, id, p->opts.senders);
	} else if (r->had[p->opts.sender]) {
		warn_again(p);
	}
	r->had[p->opts.sender] = true;
	p->not_last = ws_round_count(r) < r->senders;
}

static int take_file(struct ws_push *p, int64_t wait, struct ws_err *err)
{
	p->sender_fd = ws_lock_take(p->opts.sender_lock, p->turn, wait, p->opts.cancel, err);
	return p->sender_fd < 0 || read_round(p, err) ? -1 : 0;
}

static int take_lease(struct ws_push *p, int64_t wait, struct ws_err *err)
{
	const struct ws_lease_opts opts = {
		.url = p->opts.sender_lock, .api_key = p->opts.lock_key, .ca_file = p->opts.ca_file, .what = p->turn,
		.lease_ns = p->opts.lock_lease_ns, .wait_ns = wait, .until = p->until,
		.cancel = p->opts.cancel, .log = p->opts.log,
	};
	return ws_lease_take(&opts, p->round, &p->lease, err);
}

int push_sender_still(struct ws_push *p, struct ws_err *err)
{
	return p->lease ? ws_lease_check(p->lease, err) : 0;
}

static int let_go(struct ws_push *p, bool keep_round, struct ws_err *err)
{
	int rc = 0;
	if (p->lease)
		rc = ws_lease_release(p->lease, keep_round ? p->round : NULL, err);
	else if (keep_round)
		rc = write_round(p, err);
	ws_lock_drop(p->sender_fd);
	p->sender_fd = -1;
	p->lease = NULL;
	return rc;
}

static int take_either(struct ws_push *p, int64_t wait, struct ws_err *err)
{
	return ws_lease_is_url(p->opts.sender_lock) ? take_lease(p, wait, err) : take_file(p, wait, err);
}

/* The lock is ours, but we had our turn, and another sender has not. */
static int say_missing(const struct ws_push *p, struct ws_err *err)
{
	unsigned i = 1;
	while (i < p->opts.senders && p->round->had[i])
		i++;
	return ws_err_set(err, WS_ETIMEOUT, "%s: sender %u has not had its own", p->turn, i);
}

/* A process with several sources (--stdin) has one turn in a round: the others have theirs first. */
static bool must_wait(const struct ws_push *p)
{
	return p->in_round && p->round->senders == p->opts.senders && p->round->had[p->opts.sender] &&
	       ws_round_is_half(p->round);
}

static int take_turn(struct ws_push *p, int64_t most, struct ws_err *err)
{
	struct push_wait wait;
	push_wait_begin(&wait, most);
	for (;;) {
		struct pollfd cancel = { .fd = ws_cancel_fd(p->opts.cancel), .events = POLLIN };
		struct ws_err why = WS_ERR_INIT;
		*p->round = (struct ws_round){ 0 };
		const int rc = take_either(p, push_wait_piece(&wait), &why);
		if (rc == 0) {
			if (!must_wait(p))
				return 0;
			(void)let_go(p, false, NULL);
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
	const int64_t left = ws_deadline_left(p->until);
	if (wait <= left)
		return wait;
	return left > 0 ? left : 1;
}

int push_round_id(const struct ws_push *p, char id[WS_ROUND_ID], struct ws_err *err)
{
	const char *given = p->opts.round ? p->opts.round : p->weight_version ? p->weight_version : "";
	const size_t n = strlen(given);
	if (n >= WS_ROUND_ID)
		return ws_err_set(err, WS_EUSAGE, "sender %u of %u: the ID of its round has %zu bytes, more than %d",
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
	ws_err_set(err, WS_EUSAGE, "%s: the ID of its round is missing", p->turn);
	return ws_err_hint(err, "give all senders of one step the same --weight-version or --round: without it a "
	                        "round that another step or job left half done would be completed");
}

static void note_round(struct ws_push *p)
{
	const struct ws_round *r = p->round;
	ws_round_describe(r, p->round_text, sizeof p->round_text);
	p->round_event = (struct ws_ev_round){
		.id = r->id, .senders = r->senders, .had = ws_round_count(r), .ended = !p->not_last,
		.begun = r->begun, .pid = r->pid, .host = r->host, .text = p->round_text,
	};
}

int push_sender_enter(struct ws_push *p, struct ws_err *err)
{
	const int64_t wait = push_lock_wait(p, p->opts.lock_wait_ns > 0 ? p->opts.lock_wait_ns : p->opts.bucket_ns);
	char id[WS_ROUND_ID];
	if (p->opts.senders < 2 || push_together(p))
		return 0;
	p->not_last = true;
	if (p->opts.dry_run || !p->opts.n_endpoints)
		return 0;
	snprintf(p->turn, sizeof p->turn, "turn of sender %u of %u", p->opts.sender, p->opts.senders);
	if (name_round(p, id, err))
		return -1;
	if (!p->round && !(p->round = calloc(1, sizeof *p->round)))
		return ws_err_set(err, WS_ESYSTEM, "out of memory");
	if (take_turn(p, wait, err)) {
		ws_lock_drop(p->sender_fd);
		p->sender_fd = -1;
		return -1;
	}
	p->has_turn = true;
	join_round(p, id);
	note_round(p);
	if (p->not_last)
		p->weight_version = NULL;
	return 0;
}

void push_sender_leave(struct ws_push *p, bool ok)
{
	struct ws_err err = WS_ERR_INIT;
	if (!p->has_turn)
		return;
	p->has_turn = false;
	/* A sender that failed had no turn, and may come again. */
	if (let_go(p, ok, &err) && ok)
		push_warn(p, NULL, "the other senders will not know of this one: %s", err.msg);
	p->in_round = ok ? p->not_last : p->in_round;
}
