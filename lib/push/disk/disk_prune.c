/* SPDX-License-Identifier: Apache-2.0 */
/* disk_prune.c - removes checkpoints that no endpoint needs any more.
 *
 * A server reports the path that it loaded as its model, and a repair or restart may load it again.
 * So a checkpoint is old only when all endpoints that it was written for have loaded a newer one.
 * Checkpoints of other pushes in the same directory stay. */
#include "disk.h"

#include "disk_files.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct found {
	char *name;
	bool last; /* written by this push; clocks go back, and a file server has its own */
	struct timespec when;
};

struct finding {
	const char *dir, *last;
	const char *const *urls;
	size_t n_urls;
	struct found *items;
	size_t n, cap;
};

static int newest_first(const void *a, const void *b)
{
	const struct found *x = a, *y = b;
	if (x->last != y->last)
		return x->last ? -1 : 1;
	if (x->when.tv_sec != y->when.tv_sec)
		return x->when.tv_sec > y->when.tv_sec ? -1 : 1;
	if (x->when.tv_nsec != y->when.tv_nsec)
		return x->when.tv_nsec > y->when.tv_nsec ? -1 : 1;
	return strcmp(y->name, x->name);
}

static void look_at(struct finding *f, const char *name)
{
	char *path = NULL;
	struct timespec when;
	if (strncmp(name, "wsync-", 6) != 0 || asprintf(&path, "%s/%s", f->dir, name) < 0)
		return;
	if (ws_disk_files_are_for(path, f->urls, f->n_urls, &when)) {
		if (f->n == f->cap) {
			const size_t cap = f->cap ? 2 * f->cap : 16;
			struct found *p = reallocarray(f->items, cap, sizeof *p);
			f->items = p ? p : f->items;
			f->cap = p ? cap : f->cap;
		}
		char *copy = f->n < f->cap ? strdup(name) : NULL;
		if (copy)
			f->items[f->n++] =
				(struct found){ copy, f->last && strcmp(copy, f->last) == 0, when };
	}
	free(path);
}

void ws_disk_prune(const char *dir, const char *last, size_t keep, const char *const *urls,
                   size_t n_urls, void (*told)(void *ctx, const struct ws_err *why), void *ctx)
{
	struct finding f = { .dir = dir, .last = last, .urls = urls, .n_urls = n_urls };
	DIR *d = opendir(dir);
	for (const struct dirent *e; d && (e = readdir(d));)
		look_at(&f, e->d_name);
	if (d)
		closedir(d);
	if (f.n)
		qsort(f.items, f.n, sizeof *f.items, newest_first);
	for (size_t i = 0; i < f.n; i++) {
		struct ws_err why = WS_ERR_INIT;
		if (i >= keep && ws_disk_remove(dir, f.items[i].name, &why) && told)
			told(ctx, &why);
		free(f.items[i].name);
	}
	free(f.items);
}
