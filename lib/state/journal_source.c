/* SPDX-License-Identifier: Apache-2.0 */
/* journal_source.c - checks that a push can be repeated: its source must be unchanged.
 *
 * A trainer saves the next checkpoint to the same path. A repeated push would send these weights
 * under the version of the record. Files are compared by inode, size, mtime and ctime. The
 * contents of memory cannot be compared, and synthetic models never change. */
#include "journal_core.h"

#include "file.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Replaces the hint by a command to type, for the first endpoint that needs it. */
static int hint_by_hand(const struct ws_journal_record *r, struct ws_err *err)
{
	const struct ws_journal_endpoint *e = r->n_endpoints ? &r->endpoints[0] : NULL;
	if (!err)
		return -1;
	for (size_t i = 0; i < r->n_endpoints; i++)
		if (r->endpoints[i].state == WS_PARTIAL) {
			e = &r->endpoints[i];
			break;
		}
	err->hint[0] = 0;
	return ws_err_hint(err,
	                   "push the version that you mean: wsync-push SOURCE -e %s "
	                   "--weight-version VERSION%s",
	                   e ? e->url : "URL", e && e->slept ? " --asleep recorded" : "");
}

static void describe_push(const struct ws_journal_record *r, char *dst, size_t n)
{
	snprintf(dst, n, "process %lld pushed it%s%.128s", (long long)r->process.pid,
	         *r->weight_version ? " as version " : "", r->weight_version);
}

static int compare_id(const char *path, uint64_t *id, struct ws_err *err)
{
	struct ws_file_id now;
	const int fd = ws_file_open(path, &now, err);
	if (fd < 0)
		return -1;
	close(fd);
	*id = ws_file_id_hash(&now);
	return 0;
}

static int check_file(const struct ws_journal_record *r, const struct ws_journal_file *f,
                      struct ws_err *err)
{
	char pushed[256], *path = NULL;
	const bool absolute = *f->path == '/' || !r->directory;
	uint64_t id;
	describe_push(r, pushed, sizeof pushed);
	if (f->in_memory)
		return ws_err_set(err, WS_EINPUT,
		                  "%s: the memory may hold other weights than when %s", f->path,
		                  pushed);
	if (asprintf(&path, "%s%s%s", absolute ? "" : r->directory, absolute ? "" : "/", f->path) <
	    0)
		return ws_oom(err);
	int rc = compare_id(path, &id, err);
	if (rc == 0 && id != f->id)
		rc = ws_err_set(err, WS_EINPUT, "%s: the file changed after %s", path, pushed);
	free(path);
	return rc;
}

int ws_journal_check_source(const struct ws_journal_record *r, struct ws_err *err)
{
	int rc = 0;
	for (size_t i = 0; rc == 0 && i < r->n_files; i++)
		rc = check_file(r, &r->files[i], err);
	return rc ? hint_by_hand(r, err) : 0;
}
