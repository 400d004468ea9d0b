/* SPDX-License-Identifier: Apache-2.0 */
/* journal_list.c - reads the records that pushes have left. Records decide which servers are
 * resumed and which commands run again, so files that other users can write are rejected. */
#include "journal_core.h"

#include "file.h"
#include "process_id.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { ENTRIES_MAX = 100000 };

/* ---- one file -------------------------------------------------------------------------------- */

void ws_journal_read(struct ws_journal_entry *e)
{
	struct ws_buf text;
	ws_buf_init(&text, JOURNAL_BYTES_MAX);
	if (ws_file_read_owned(e->path, WS_FILE_OWN, &text, &e->err) == 0 &&
	    ws_journal_parse(e->path, ws_buf_str(&text), text.len, &e->record, &e->priv, &e->err) ==
	            0)
		e->fate = e->record.ended ? WS_PROCESS_DEAD : ws_process_fate(&e->record.process);
	ws_buf_free(&text);
}

/* ---- all of them ----------------------------------------------------------------------------- */

static bool is_record(const char *name)
{
	const size_t n = strlen(name);
	return name[0] != '.' && n > 5 && strcmp(name + n - 5, ".json") == 0;
}

/* Removes a temporary file of ws_file_replace, PID-XXXXXXXX.json.XXXXXX: its process died before
 * the rename, which takes less than ten minutes. A process of another machine or container may have
 * the number of a live one here: then the file goes when it is a day old. */
static void drop_leftover(int dir, const char *name)
{
	struct stat st;
	const char *json = strstr(name, ".json.");
	const long pid = strtol(name, NULL, 10);
	const bool dead = pid > 0 && kill((pid_t)pid, 0) && errno == ESRCH;
	if (!json || strlen(json) != sizeof ".json.XXXXXX" - 1 || name[0] == '.')
		return;
	if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode) &&
	    st.st_mtime < time(NULL) - (dead ? 600 : 24 * 3600))
		(void)unlinkat(dir, name, 0);
}

static int add_record(struct ws_journal_list *out, const char *pushes, const char *name,
                      struct ws_err *err)
{
	if (out->n >= ENTRIES_MAX)
		return ws_err_set(err, WS_EINPUT, "%s: more than %d files", pushes, ENTRIES_MAX);
	if ((out->n & (out->n - 1)) == 0) {
		void *more = realloc(out->items, (out->n ? 2 * out->n : 1) * sizeof *out->items);
		if (!more)
			return ws_oom(err);
		out->items = more;
	}
	struct ws_journal_entry *e = &out->items[out->n];
	*e = (struct ws_journal_entry){ .err = WS_ERR_INIT };
	if (asprintf(&e->path, "%s/%s", pushes, name) < 0) {
		e->path = NULL;
		return ws_oom(err);
	}
	out->n++;
	ws_journal_read(e);
	return 0;
}

static int by_age(const void *a, const void *b)
{
	const struct ws_journal_entry *x = a, *y = b;
	if (!x->err.code != !y->err.code)
		return x->err.code ? 1 : -1;
	if (x->record.began != y->record.began)
		return x->record.began < y->record.began ? -1 : 1;
	return strcmp(x->path, y->path);
}

/* Drops entries whose push ended, and removed its file, after the directory was read. */
static void drop_vanished(struct ws_journal_list *list)
{
	size_t n = 0;
	for (size_t i = 0; i < list->n; i++) {
		struct ws_journal_entry *e = &list->items[i];
		if (e->err.code && access(e->path, F_OK) && errno == ENOENT)
			free(e->path);
		else
			list->items[n++] = *e;
	}
	list->n = n;
}

int ws_journal_list(const char *state_dir, struct ws_journal_list *out, struct ws_err *err)
{
	*out = (struct ws_journal_list){ 0 };
	char *pushes = ws_journal_pushes(state_dir);
	if (!pushes)
		return ws_oom(err);
	DIR *dir = opendir(pushes);
	int rc = 0;
	if (!dir)
		rc = errno == ENOENT ? 0 : ws_err_errno(err, "open %s", pushes);
	else
		rc = ws_file_check_directory(pushes, err);
	for (struct dirent *d; rc == 0 && dir && (d = readdir(dir));)
		if (is_record(d->d_name))
			rc = add_record(out, pushes, d->d_name, err);
		else
			drop_leftover(dirfd(dir), d->d_name);
	if (dir)
		closedir(dir);
	free(pushes);
	if (rc) {
		ws_journal_list_free(out);
		return -1;
	}
	drop_vanished(out);
	if (out->n)
		qsort(out->items, out->n, sizeof *out->items, by_age);
	return 0;
}

void ws_journal_list_free(struct ws_journal_list *list)
{
	for (size_t i = 0; list && i < list->n; i++) {
		free(list->items[i].path);
		ws_journal_drop(&list->items[i].record, list->items[i].priv);
	}
	if (list) {
		free(list->items);
		*list = (struct ws_journal_list){ 0 };
	}
}
