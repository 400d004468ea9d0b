/* SPDX-License-Identifier: Apache-2.0 */
/* journal.c - writes the record of a push before each step that may need a repair.
 *
 * The record contains everything that may have happened. After a crash at any point it claims too
 * much rather than too little. The file's name has the process id for people, and random digits to
 * be unique. */
#include "journal_core.h"

#include "file.h"
#include "process_id.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct ws_journal {
	char *path; /* NULL: in memory */
	bool written;
	char **sources; /* the record's, owned */
	struct ws_journal_file *files;
	char *version;
	struct ws_journal_record record;
};

/* ---- places ---------------------------------------------------------------------------------- */

static char *under(const char *dir, const char *name)
{
	char *path = NULL;
	return asprintf(&path, "%s/%s", dir, name) < 0 ? NULL : path;
}

char *ws_journal_pushes(const char *state_dir)
{
	return under(state_dir, "pushes");
}

char *ws_journal_locks(const char *state_dir)
{
	return under(state_dir, "locks");
}

static int make_path(const char *state_dir, char **path, struct ws_err *err)
{
	uint32_t id;
	char *pushes = ws_journal_pushes(state_dir);
	int rc = pushes ? 0 : ws_oom(err);
	if (rc == 0)
		rc = ws_file_own_directory(pushes, err);
	if (rc == 0 && getrandom(&id, sizeof id, 0) != sizeof id)
		rc = ws_err_errno(err, "getrandom");
	if (rc == 0 &&
	    asprintf(path, "%s/%ld-%08" PRIx32 ".json", pushes, (long)getpid(), id) < 0) {
		*path = NULL;
		rc = ws_oom(err);
	}
	free(pushes);
	return rc;
}

/* ---- one push -------------------------------------------------------------------------------- */

int ws_journal_open(const char *state_dir, const char *const *urls, size_t n,
                    struct ws_journal **out, struct ws_err *err)
{
	struct ws_journal *l = calloc(1, sizeof *l);
	if (!l || !(l->record.endpoints = calloc(n + 1, sizeof *l->record.endpoints))) {
		free(l);
		return ws_oom(err);
	}
	if (state_dir && make_path(state_dir, &l->path, err)) {
		ws_journal_abandon(l);
		return -1;
	}
	ws_process_self(&l->record.process);
	l->record.began = time(NULL);
	l->record.group = l->record.weight_version = l->record.master_host = "";
	l->record.staged = (struct ws_journal_staged){ .model_path = "", .load_format = "",
		                                       .written = "" };
	l->record.n_endpoints = n;
	for (size_t i = 0; i < n; i++)
		l->record.endpoints[i] =
			(struct ws_journal_endpoint){ .url = urls[i], .version = "" };
	*out = l;
	return 0;
}

struct ws_journal_record *ws_journal_record(struct ws_journal *l)
{
	return &l->record;
}

static void forget_source(struct ws_journal *l)
{
	for (size_t i = 0; i < l->record.n_sources; i++)
		free(l->sources[i]);
	for (size_t i = 0; i < l->record.n_files; i++)
		free((char *)(uintptr_t)l->files[i].path);
	free(l->sources);
	free(l->files);
	free(l->version);
	l->sources = NULL;
	l->files = NULL;
	l->record.files = NULL;
	l->record.n_files = 0;
	l->version = NULL;
	l->record.sources = NULL;
	l->record.n_sources = 0;
	l->record.weight_version = "";
}

int ws_journal_source(struct ws_journal *l, const char *const *paths, size_t n, const char *version,
                      struct ws_err *err)
{
	struct ws_journal_record *r = &l->record;
	forget_source(l);
	l->sources = calloc(n + 1, sizeof *l->sources);
	l->version = strdup(version ? version : "");
	bool ok = l->sources && l->version;
	for (size_t i = 0; ok && i < n; i++)
		ok = (l->sources[r->n_sources++] = strdup(paths[i])) != NULL;
	if (!ok)
		return ws_oom(err);
	r->sources = (const char *const *)l->sources;
	r->weight_version = l->version;
	return 0;
}

int ws_journal_add_file(struct ws_journal *l, const char *path, const uint64_t *id,
                        struct ws_err *err)
{
	struct ws_journal_record *r = &l->record;
	struct ws_journal_file *files = reallocarray(l->files, r->n_files + 1, sizeof *files);
	char *copy = strdup(path);
	if (files)
		r->files = l->files = files;
	if (!files || !copy) {
		free(copy);
		return ws_oom(err);
	}
	files[r->n_files++] =
		(struct ws_journal_file){ .path = copy, .in_memory = !id, .id = id ? *id : 0 };
	return 0;
}

const char *ws_journal_path(const struct ws_journal *l)
{
	return l->path;
}

const struct ws_journal_endpoint *ws_journal_find(const struct ws_journal_endpoint *items, size_t n,
                                                  const char *url)
{
	for (size_t i = 0; i < n; i++)
		if (strcmp(items[i].url, url) == 0)
			return &items[i];
	return NULL;
}

void ws_journal_reread(struct ws_journal *l)
{
	static const struct ws_journal_endpoint settled;
	struct ws_journal_entry now = { .path = l->path, .err = WS_ERR_INIT };
	if (!l->written)
		return;
	const bool gone = access(l->path, F_OK) && errno == ENOENT;
	if (!gone)
		ws_journal_read(&now);
	for (size_t i = 0; !now.err.code && i < l->record.n_endpoints; i++) {
		struct ws_journal_endpoint *e = &l->record.endpoints[i];
		const struct ws_journal_endpoint *is =
			ws_journal_find(now.record.endpoints, now.record.n_endpoints, e->url);
		if (!is)
			is = &settled;
		if (is->state != WS_PARTIAL && e->state == WS_PARTIAL)
			e->state = WS_UNTOUCHED;
		if (is->state == WS_PARTIAL && is->slept)
			e->state = WS_PARTIAL; /* its weights were woken */
		e->paused = e->paused && is->paused;
		e->grouped = e->grouped && is->grouped;
		e->open_update = is->open_update ? e->open_update : WS_UPDATE_NONE;
		e->slept = is->slept;
		e->asleep = is->asleep;
		e->unsure = is->unsure;
	}
	ws_journal_drop(&now.record, now.priv);
}

int ws_journal_write(const char *path, const struct ws_journal_record *r, struct ws_err *err)
{
	struct ws_buf text;
	ws_buf_init(&text, JOURNAL_BYTES_MAX);
	ws_journal_print(r, &text);
	int rc = ws_buf_check(&text, "the record of the push", err);
	if (rc == 0)
		rc = ws_file_replace(path, ws_buf_str(&text), text.len, 0600, err);
	ws_buf_free(&text);
	return rc;
}

int ws_journal_save(struct ws_journal *l, struct ws_err *err)
{
	if (!l->path)
		return 0;
	l->record.updated = time(NULL);
	const int rc = ws_journal_write(l->path, &l->record, err);
	l->written = l->written || rc == 0;
	return rc;
}

const char *ws_journal_mixture(const struct ws_journal_endpoint *e)
{
	if (e->unsure & WS_MEMORY_WEIGHTS)
		return "it is not known whether its weights are released";
	if (e->asleep & WS_MEMORY_WEIGHTS)
		return "its weights are released";
	if (e->state != WS_PARTIAL)
		return NULL;
	return e->slept ? "its weights were released and are not complete" :
	                  "it has some old and some new weights";
}

bool ws_journal_owes(const struct ws_journal_endpoint *e)
{
	/* An untouched endpoint that slept before the push, and was not paused, owes nothing. */
	return e->paused || e->grouped || e->open_update || e->unsure || e->state == WS_PARTIAL ||
	       (e->state == WS_COMMITTED && (e->asleep || e->unlabelled));
}

/* Removes the endpoints that owe nothing; returns the number of the others. */
static size_t keep_owing(struct ws_journal_record *r)
{
	size_t n = 0;
	for (size_t i = 0; i < r->n_endpoints; i++)
		if (ws_journal_owes(&r->endpoints[i]))
			r->endpoints[n++] = r->endpoints[i];
	return r->n_endpoints = n;
}

/* Prints and parses the record, so that the copy owns its strings. */
static void copy_to(struct ws_journal_list *left, const struct ws_journal_record *r)
{
	struct ws_buf text;
	struct ws_journal_entry *more = reallocarray(left->items, left->n + 1, sizeof *more);
	if (!more)
		return;
	left->items = more;
	more[left->n] = (struct ws_journal_entry){ .err = WS_ERR_INIT, .fate = WS_PROCESS_DEAD };
	ws_buf_init(&text, JOURNAL_BYTES_MAX);
	ws_journal_print(r, &text);
	if (!ws_buf_check(&text, "the record of the push", NULL) &&
	    !ws_journal_parse("", ws_buf_str(&text), text.len, &more[left->n].record,
	                      &more[left->n].priv, NULL))
		left->n++;
	ws_buf_free(&text);
}

void ws_journal_close(struct ws_journal *l, struct ws_journal_list *left)
{
	if (!l)
		return;
	l->record.ended = true;
	if (l->path && l->written && keep_owing(&l->record)) {
		/* If this fails, the previous file remains. It claims more than is left to repair,
		 * and that the push still runs. */
		if (ws_journal_save(l, NULL) && left)
			copy_to(left, &l->record);
		l->written = false;
	} else if (!l->path && left && keep_owing(&l->record)) {
		copy_to(left, &l->record);
	}
	ws_journal_abandon(l);
}

void ws_journal_to_memory(struct ws_journal *l)
{
	if (l->written)
		unlink(l->path);
	l->written = false;
	free(l->path);
	l->path = NULL;
}

void ws_journal_abandon(struct ws_journal *l)
{
	if (!l)
		return;
	ws_journal_to_memory(l);
	forget_source(l);
	free(l->record.endpoints);
	free(l);
}
