/* SPDX-License-Identifier: Apache-2.0 */
/* push_round.c - the round of several senders, kept in FILE.round beside the lock file. It is
 * read and written only while the lock is held.
 *
 * FILE.round may be removed. So a half round is also noted: in the state directory, for the senders
 * of this machine, or without a state directory in the process. A note may be older than the round.
 * So a round is lost only if the note has a turn that the round does not have. */
#include "push_state.h"

#include "file.h"
#include "hash.h"
#include "lock.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NOTE_MAX = 32 * 1024 };

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
		return ws_oom(err);
	ws_buf_init(&text, WS_ROUND_TEXT);
	/* Without a file this is the first round. */
	if (ws_file_read_owned(path, WS_FILE_LOCK, &text, &why) == 0)
		ws_round_read(ws_buf_str(&text), text.len, p->turn.round, &p->turn.parts);
	ws_buf_free(&text);
	free(path);
	if (!why.code || why.native == ENOENT || (why.code == WS_EINPUT && why.native != EPERM))
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
		return ws_oom(err);
	ws_buf_init(&text, WS_ROUND_TEXT);
	ws_jw_init(&w, &text);
	ws_round_write(&w, p->turn.round, &p->turn.parts);
	ws_buf_puts(&text, "\n");
	if (ws_buf_check(&text, path, err) == 0)
		rc = ws_file_replace(path, ws_buf_str(&text), text.len, 0600, err);
	ws_buf_free(&text);
	free(path);
	return rc;
}

/* ---- the note -------------------------------------------------------------------------------- */

/* Returns STATE/rounds/HASH. HASH is of the host name and the lock's absolute path, because another
 * machine may have another file there. NULL: no note is kept. */
static char *note_path(const struct ws_push *p, bool make)
{
	char host[65] = "", *dir = NULL, *path = NULL, *key = NULL;
	const char *lock = p->opts.sender_lock;
	gethostname(host, sizeof host - 1);
	char *real = realpath(lock, NULL);
	if (real && p->opts.state_dir && asprintf(&dir, "%s/rounds", p->opts.state_dir) >= 0 &&
	    (!make || ws_file_own_directory(dir, NULL) == 0) &&
	    asprintf(&key, "%s %s", host, real) >= 0 &&
	    asprintf(&path, "%s/%016" PRIx64, dir, ws_hash64(key, strlen(key))) < 0)
		path = NULL;
	free(real);
	free(dir);
	free(key);
	return path;
}

static void read_note(struct ws_push *p)
{
	struct ws_buf text;
	char *path = note_path(p, false);
	if (!path)
		return; /* keep the round that this process knows */
	*p->turn.known_round = (struct ws_round){ 0 };
	ws_buf_init(&text, NOTE_MAX);
	if (ws_file_read_owned(path, WS_FILE_OWN, &text, NULL) == 0)
		ws_round_read(ws_buf_str(&text), text.len, p->turn.known_round, NULL);
	ws_buf_free(&text);
	free(path);
}

static void write_note(struct ws_push *p)
{
	const bool half = ws_round_is_half(p->turn.round);
	char *path = note_path(p, half);
	struct ws_buf text;
	struct ws_jw w;
	struct ws_err why = WS_ERR_INIT;
	*p->turn.known_round = half ? *p->turn.round : (struct ws_round){ 0 };
	ws_buf_init(&text, NOTE_MAX);
	ws_jw_init(&w, &text);
	ws_round_write(&w, p->turn.round, NULL);
	if (path && !half)
		unlink(path);
	else if (path && (ws_buf_check(&text, path, &why) ||
	                  ws_file_replace(path, ws_buf_str(&text), text.len, 0600, &why)))
		ws_log(p->opts.log, 1, "%s", why.msg);
	ws_buf_free(&text);
	free(path);
}

static bool is_lost(const struct ws_push *p)
{
	const struct ws_round *k = p->turn.known_round, *r = p->turn.round;
	/* Another round has begun since, or this one has begun again. */
	if (!ws_round_is_half(k) ||
	    (r->senders && (!ws_round_is(r, k->id, k->senders) || !ws_round_count(r))))
		return false;
	for (unsigned i = 1; i <= k->senders; i++)
		if (k->had[i] && !r->had[i])
			return true;
	return false;
}

static int say_lost(const struct ws_push *p, struct ws_err *err)
{
	char round[512], senders[256];
	ws_round_describe(p->turn.known_round, round, sizeof round);
	ws_round_list(p->turn.known_round, senders, sizeof senders);
	ws_err_set(err, WS_EPARTIAL, "%s: %s was lost; as far as is known here, %s", p->turn.text,
	           round, senders);
	return ws_err_hint(err,
	                   "%s.round was removed or replaced: push the parts of all senders again; "
	                   "the round begins anew",
	                   p->opts.sender_lock);
}

void push_round_anew(struct ws_push *p, const char *id)
{
	char copy[WS_ROUND_ID];
	snprintf(copy, sizeof copy, "%s", id); /* it may point into p->turn.round */
	ws_round_begin(p->turn.round, copy, p->opts.senders);
	ws_parts_free(&p->turn.parts);
}

/* The round in the file may lack turns that the note has. If this sender's turn belongs to the
 * noted round, or follows a turn in it, no sender will end that round: it begins again. Otherwise
 * the noted round was abandoned. */
static int find_lost(struct ws_push *p, const char *id, struct ws_err *err)
{
	read_note(p);
	if (!is_lost(p))
		return 0;
	if (!p->turn.in_round && !ws_round_is(p->turn.known_round, id, p->opts.senders)) {
		*p->turn.round = *p->turn.known_round;
		ws_parts_free(&p->turn.parts);
		return 0;
	}
	say_lost(p, err);
	push_round_anew(p, p->turn.known_round->id);
	p->turn.in_round = false;
	(void)push_round_drop(p, true, NULL);
	return -1;
}

/* ---- the lock -------------------------------------------------------------------------------- */

int push_round_take(struct ws_push *p, const char *id, int64_t wait, struct ws_err *err)
{
	*p->turn.round = (struct ws_round){ 0 };
	ws_parts_free(&p->turn.parts);
	p->turn.fd = ws_lock_take(p->opts.sender_lock, p->turn.text, wait, p->opts.cancel, err);
	if (p->turn.fd >= 0 && read_round(p, err) == 0)
		return find_lost(p, id, err);
	(void)push_round_drop(p, false, NULL);
	return -1;
}

int push_round_drop(struct ws_push *p, bool keep, struct ws_err *err)
{
	int rc = 0;
	if (keep)
		write_note(p); /* first: another sender may take the lock at once */
	if (keep)
		rc = write_round(p, err);
	ws_lock_drop(p->turn.fd);
	p->turn.fd = -1;
	return rc;
}
