/* SPDX-License-Identifier: Apache-2.0 */
/* push_round.c - where the round of several senders is kept: in FILE.round beside the lock file, or by the lock
 * service. It is read and written only while the lock is held. */
#include "push_state.h"

#include "file.h"
#include "lease.h"
#include "lock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
		ws_round_read(ws_buf_str(&text), text.len, p->round, &p->parts);
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
	ws_round_write(&w, NULL, p->round, &p->parts);
	ws_buf_puts(&text, "\n");
	if (ws_buf_check(&text, path, err) == 0)
		rc = ws_file_replace(path, ws_buf_str(&text), text.len, 0600, err);
	ws_buf_free(&text);
	free(path);
	return rc;
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
	return ws_lease_take(&opts, p->round, &p->parts, &p->lease, err);
}

int push_round_take(struct ws_push *p, int64_t wait, struct ws_err *err)
{
	*p->round = (struct ws_round){ 0 };
	ws_parts_free(&p->parts);
	if ((ws_lease_is_url(p->opts.sender_lock) ? take_lease : take_file)(p, wait, err) == 0)
		return 0;
	(void)push_round_drop(p, false, NULL);
	return -1;
}

int push_sender_still(struct ws_push *p, struct ws_err *err)
{
	return p->lease ? ws_lease_check(p->lease, err) : 0;
}

int push_round_drop(struct ws_push *p, bool keep, struct ws_err *err)
{
	int rc = 0;
	if (p->lease)
		rc = ws_lease_release(p->lease, keep ? p->round : NULL, &p->parts, err);
	else if (keep)
		rc = write_round(p, err);
	ws_lock_drop(p->sender_fd);
	p->sender_fd = -1;
	p->lease = NULL;
	return rc;
}
