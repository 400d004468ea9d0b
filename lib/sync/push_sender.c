/* SPDX-License-Identifier: Apache-2.0 */
/* push_sender.c - one of several processes that push a part of the weights each: pipeline stages, ranks
 * of experts. They take turns by a lock file or a lock service; whoever finds that all the others have had
 * theirs ends the round, and alone says flush and weight version.
 *
 * Which have had theirs stands in a file beside it, FILE.round: "N: I I ...\n", or is kept by the service
 * with the lock. It is read and written under the lock only. What is not understood there is a round that
 * nobody has begun. */
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

enum { ROUND_MAX = 16 * 1024, AGAIN_MS = 100 };

static char *round_path(const struct ws_push *p)
{
	char *path = NULL;
	return asprintf(&path, "%s.round", p->opts.sender_lock) < 0 ? NULL : path;
}

/* The numbers in the file, each marked in had[1..n]. */
static void parse_round(const struct ws_push *p, const char *text, bool *had)
{
	char *end;
	if (strtoul(text, &end, 10) != p->opts.senders || *end != ':')
		return;
	for (const char *at = end + 1;; at = end) {
		const unsigned long i = strtoul(at, &end, 10);
		if (end == at || i < 1 || i > p->opts.senders)
			return;
		had[i] = true;
	}
}

static int read_round(const struct ws_push *p, bool *had, struct ws_err *err)
{
	struct ws_err why = WS_ERR_INIT;
	struct ws_buf text;
	char *path = round_path(p);
	if (!path)
		return ws_err_set(err, WS_ESYSTEM, "out of memory");
	ws_buf_init(&text, ROUND_MAX);
	/* No file: the first round of all. */
	if (ws_file_read(path, &text, &why) == 0)
		parse_round(p, ws_buf_str(&text), had);
	ws_buf_free(&text);
	free(path);
	if (why.code != WS_ESYSTEM)
		return 0;
	if (err)
		*err = why;
	return -1;
}

static int write_round(const struct ws_push *p, const bool *had, struct ws_err *err)
{
	struct ws_buf text;
	char *path = round_path(p);
	int rc = -1;
	if (!path)
		return ws_err_set(err, WS_ESYSTEM, "out of memory");
	ws_buf_init(&text, ROUND_MAX);
	ws_buf_printf(&text, "%u:", p->opts.senders);
	for (unsigned i = 1; had && i <= p->opts.senders; i++)
		if (had[i])
			ws_buf_printf(&text, " %u", i);
	ws_buf_puts(&text, "\n");
	if (ws_buf_check(&text, path, err) == 0)
		rc = ws_file_replace(path, ws_buf_str(&text), text.len, 0600, err);
	ws_buf_free(&text);
	free(path);
	return rc;
}

/* Who had a turn in this round; one that comes again begins another. */
static void look_around(struct ws_push *p, bool *had)
{
	unsigned others = 0;
	if (had[p->opts.sender]) {
		push_warn(p, NULL, "sender %u comes again before all %u had their turn: a new round begins",
		          p->opts.sender, p->opts.senders);
		memset(had, 0, (p->opts.senders + 1) * sizeof *had);
	}
	for (unsigned i = 1; i <= p->opts.senders; i++)
		others += had[i];
	p->not_last = others + 1 < p->opts.senders;
}

/* The file, and who had a turn. */
static int take_file(struct ws_push *p, int64_t wait, struct ws_err *err)
{
	p->sender_fd = ws_lock_take(p->opts.sender_lock, p->turn, wait, p->opts.cancel, err);
	return p->sender_fd < 0 || read_round(p, p->had_turn, err) ? -1 : 0;
}

static int take_lease(struct ws_push *p, int64_t wait, struct ws_err *err)
{
	const struct ws_lease_opts opts = {
		.url = p->opts.sender_lock, .api_key = p->opts.lock_key, .ca_file = p->opts.ca_file, .what = p->turn,
		.lease_ns = p->opts.lock_lease_ns, .wait_ns = wait, .until = p->until,
		.cancel = p->opts.cancel, .log = p->opts.log,
	};
	return ws_lease_take(&opts, p->had_turn, p->opts.senders, &p->lease, err);
}

int push_sender_still(struct ws_push *p, struct ws_err *err)
{
	return p->lease ? ws_lease_check(p->lease, err) : 0;
}

static int let_go(struct ws_push *p, const bool *had, bool keep_round, struct ws_err *err)
{
	int rc = 0;
	if (p->lease)
		rc = ws_lease_release(p->lease, had, keep_round ? p->opts.senders : 0, err);
	else if (keep_round)
		rc = write_round(p, had, err);
	ws_lock_drop(p->sender_fd);
	p->sender_fd = -1;
	p->lease = NULL;
	return rc;
}

static int take_either(struct ws_push *p, int64_t wait, struct ws_err *err)
{
	return ws_lease_is_url(p->opts.sender_lock) ? take_lease(p, wait, err) : take_file(p, wait, err);
}

/* The turn is ours, for whom another round has not begun. */
static int say_missing(const struct ws_push *p, struct ws_err *err)
{
	unsigned i = 1;
	while (i < p->opts.senders && p->had_turn[i])
		i++;
	return ws_err_set(err, WS_ETIMEOUT, "%s: sender %u has not had its own", p->turn, i);
}

/* Whoever has had a turn already leaves the others theirs: one process may have another source at once. */
static int take_turn(struct ws_push *p, int64_t most, struct ws_err *err)
{
	struct push_wait wait;
	push_wait_begin(&wait, most);
	for (;;) {
		struct pollfd cancel = { .fd = ws_cancel_fd(p->opts.cancel), .events = POLLIN };
		struct ws_err why = WS_ERR_INIT;
		memset(p->had_turn, 0, (p->opts.senders + 1) * sizeof *p->had_turn);
		const int rc = take_either(p, push_wait_piece(&wait), &why);
		if (rc == 0) {
			if (!p->in_round || !p->had_turn[p->opts.sender])
				return 0;
			(void)let_go(p, NULL, false, NULL);
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

int push_sender_enter(struct ws_push *p, struct ws_err *err)
{
	const int64_t wait = push_lock_wait(p, p->opts.lock_wait_ns > 0 ? p->opts.lock_wait_ns : p->opts.bucket_ns);
	if (p->opts.senders < 2 || push_together(p))
		return 0;
	p->not_last = true;
	if (p->opts.dry_run || !p->opts.n_endpoints)
		return 0;
	snprintf(p->turn, sizeof p->turn, "turn of sender %u of %u", p->opts.sender, p->opts.senders);
	p->had_turn = calloc(p->opts.senders + 1, sizeof *p->had_turn);
	if (!p->had_turn)
		return ws_err_set(err, WS_ESYSTEM, "out of memory");
	if (take_turn(p, wait, err)) {
		ws_lock_drop(p->sender_fd);
		p->sender_fd = -1;
		free(p->had_turn);
		p->had_turn = NULL;
		return -1;
	}
	look_around(p, p->had_turn);
	if (p->not_last)
		p->weight_version = NULL;
	return 0;
}

void push_sender_leave(struct ws_push *p, bool ok)
{
	struct ws_err err = WS_ERR_INIT;
	if (!p->had_turn)
		return;
	/* The round is over, or one more has had its turn; one that failed may come again. */
	if (ok)
		p->had_turn[p->opts.sender] = true;
	if (let_go(p, p->not_last ? p->had_turn : NULL, ok, &err) && ok)
		push_warn(p, NULL, "the other senders will not know of this one: %s", err.msg);
	p->in_round = ok ? p->not_last : p->in_round;
	free(p->had_turn);
	p->had_turn = NULL;
}
