/* SPDX-License-Identifier: Apache-2.0 */
#include "wsync/tool/shards.h"

#include "shard_list.h"
#include "job.h"
#include "wsync/tool/memory.h"
#include "wsync/tool/str.h"

#include <ctype.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { THREADS = 8 };

/* ---- which paths ----------------------------------------------------------------------------- */

int ws_shard_make_ranks(struct ws_shard_list *list, struct ws_err *err)
{
	list->ranks = ws_arena_alloc(&list->arena, list->tp * sizeof *list->ranks);
	return list->ranks ? 0 : ws_oom(err);
}

int ws_shard_add(struct ws_shard_list *list, size_t rank, const char *dir, const char *name,
                 struct ws_err *err)
{
	const size_t n = dir ? strlen(dir) : 0, size = n + strlen(name) + 2;
	char *path = ws_arena_alloc(&list->arena, size);
	const char **place =
		path ? ws_list_add(&list->arena, &list->ranks[rank], sizeof *place) : NULL;
	if (!place)
		return ws_oom(err);
	snprintf(path, size, "%s%s%s", dir ? dir : "", n && dir[n - 1] != '/' ? "/" : "", name);
	*place = path;
	return 0;
}

static bool is_directory(const char *path)
{
	struct stat st;
	return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* Compares paths that differ in one number only: > 0 if the first path has the higher number. */
static int by_number(const char *a, const char *b)
{
	size_t i = 0;
	char *after_a, *after_b;
	while (a[i] && a[i] == b[i])
		i++;
	while (i > 0 && isdigit((unsigned char)a[i - 1]))
		i--;
	if (!isdigit((unsigned char)a[i]) || !isdigit((unsigned char)b[i]))
		return 0;
	const unsigned long long x = strtoull(a + i, &after_a, 10),
				 y = strtoull(b + i, &after_b, 10);
	return strcmp(after_a, after_b) ? 0 : (x > y) - (x < y);
}

/* Shards merged in the wrong order have the right shapes, so later checks cannot detect this. */
static int check_order(const char *const *paths, size_t n, struct ws_err *err)
{
	for (size_t i = 1; i < n; i++) {
		if (by_number(paths[i - 1], paths[i]) <= 0)
			continue;
		ws_err_set(err, WS_EUSAGE,
		           "shards are not in the order of their numbers: %s comes before %s",
		           paths[i - 1], paths[i]);
		return ws_err_hint(
			err, "name rank 0 first (a shell sorts rank10 before rank2), or give a "
			     "manifest if the numbers are not ranks");
	}
	return 0;
}

static int list_paths(const char *const *paths, size_t n, struct ws_shard_list *list,
                      struct ws_err *err)
{
	if (n == 1 && ws_ends_with(paths[0], ".json") &&
	    !ws_ends_with(paths[0], ".safetensors.index.json") && !ws_memory_path(paths[0]))
		return ws_shard_manifest(paths[0], list, err);
	if (list->tp == 0)
		return ws_err_set(err, WS_EUSAGE, "the number of ranks is not given");
	if (n == 1 && list->tp > 1 && is_directory(paths[0]))
		return ws_shard_names(paths[0], list, err);
	if (n != list->tp) {
		ws_err_set(err, WS_EUSAGE,
		           "a checkpoint sharded by tp %u is %u paths, or one directory or "
		           "manifest, not %zu paths",
		           list->tp, list->tp, n);
		return ws_err_hint(err, "give the paths of all ranks, rank 0 first");
	}
	if (check_order(paths, n, err) || ws_shard_make_ranks(list, err))
		return -1;
	for (size_t i = 0; i < n; i++)
		if (ws_shard_add(list, i, NULL, paths[i], err))
			return -1;
	return 0;
}

struct rank_file {
	dev_t dev;
	ino_t ino;
	size_t rank;
};

static const char *first_path(const struct ws_list *paths)
{
	return *(const char *const *)paths->items;
}

static int by_file(const void *a, const void *b)
{
	const struct rank_file *x = a, *y = b;
	if (x->dev != y->dev)
		return x->dev < y->dev ? -1 : 1;
	if (x->ino != y->ino)
		return x->ino < y->ino ? -1 : 1;
	return x->rank < y->rank ? -1 : 1;
}

/* Refuses one file for two ranks: its shapes are right for both. Ranks with several files may share
 * some of them. */
static int check_distinct(const struct ws_shard_list *list, struct ws_err *err)
{
	struct rank_file *files = calloc(list->tp, sizeof *files);
	size_t n = 0;
	int rc = 0;
	if (!files)
		return ws_oom(err);
	for (size_t r = 0; r < list->tp; r++) {
		struct stat st;
		if (list->ranks[r].n == 1 && stat(first_path(&list->ranks[r]), &st) == 0)
			files[n++] = (struct rank_file){ st.st_dev, st.st_ino, r };
	}
	qsort(files, n, sizeof *files, by_file);
	for (size_t i = 1; i < n && !rc; i++)
		if (files[i].dev == files[i - 1].dev && files[i].ino == files[i - 1].ino)
			rc = ws_err_set(err, WS_EUSAGE, "ranks %zu and %zu are the same: %s",
			                files[i - 1].rank, files[i].rank,
			                first_path(&list->ranks[files[i].rank]));
	free(files);
	return rc;
}

/* ---- opening --------------------------------------------------------------------------------- */

struct opening {
	const struct ws_shard_list *list;
	const struct ws_source_opts *opts;
	struct ws_source **sources;
	atomic_size_t next;
	atomic_bool failed;
	pthread_mutex_t lock;  /* guards the following members */
	size_t bad;            /* lowest rank that failed */
	struct ws_err err;
};

static void *open_some(void *arg)
{
	struct opening *o = arg;
	size_t r;
	while (!atomic_load(&o->failed) && (r = atomic_fetch_add(&o->next, 1)) < o->list->tp) {
		const struct ws_list *paths = &o->list->ranks[r];
		struct ws_err err = WS_ERR_INIT;
		if (ws_source_open_with(o->opts, paths->items, paths->n, &o->sources[r], &err) == 0)
			continue;
		atomic_store(&o->failed, true);
		pthread_mutex_lock(&o->lock);
		if (r < o->bad) {
			o->bad = r;
			o->err = err;
		}
		pthread_mutex_unlock(&o->lock);
	}
	return NULL;
}

/* If a thread cannot be started, fewer threads open the ranks; this thread always does. */
static int open_all(const struct ws_shard_list *list, const struct ws_source_opts *opts,
                    struct ws_source **sources, struct ws_err *err)
{
	struct opening o = {
		.list = list, .opts = opts, .sources = sources, .bad = SIZE_MAX, .err = WS_ERR_INIT
	};
	pthread_t threads[THREADS];
	size_t n = 0;
	pthread_mutex_init(&o.lock, NULL);
	while (n + 1 < list->tp && n < THREADS - 1 &&
	       ws_thread_start(&threads[n], open_some, &o, NULL) == 0)
		n++;
	open_some(&o);
	while (n > 0)
		pthread_join(threads[--n], NULL);
	pthread_mutex_destroy(&o.lock);
	if (o.bad == SIZE_MAX)
		return 0;
	if (err)
		*err = o.err;
	return ws_err_wrap(err, "rank %zu", o.bad);
}

/* *out: a copy of dir if it has a config.json, else NULL. */
static int find_config(const char *dir, char **out, struct ws_err *err)
{
	char *config = NULL;
	*out = NULL;
	if (!dir)
		return 0;
	if (asprintf(&config, "%s/config.json", dir) < 0)
		return ws_oom(err);
	if (access(config, F_OK) == 0)
		*out = strdup(dir);
	free(config);
	return 0;
}

static int open_list(const struct ws_shard_list *list, const struct ws_source_opts *opts,
                     struct ws_shards *out, struct ws_err *err)
{
	out->tp = list->tp;
	out->ep = list->ep ? list->ep : 1;
	out->sources = calloc(list->tp, sizeof *out->sources);
	if (!out->sources)
		return ws_oom(err);
	out->n = list->tp;
	return find_config(list->dir, &out->config_dir, err) ||
	                       open_all(list, opts, out->sources, err) ?
	               -1 :
	               0;
}

int ws_shards_open(const char *const *paths, size_t n_paths, unsigned tp, unsigned ep,
                   struct ws_shards *out, struct ws_err *err)
{
	return ws_shards_open_with(&(struct ws_source_opts){ 0 }, paths, n_paths, tp, ep, out, err);
}

int ws_shards_open_with(const struct ws_source_opts *opts, const char *const *paths, size_t n_paths,
                        unsigned tp, unsigned ep, struct ws_shards *out, struct ws_err *err)
{
	struct ws_shard_list list = { .tp = tp, .ep = ep };
	*out = (struct ws_shards){ 0 };
	if (tp > WS_SHARDS_MAX)
		return ws_err_set(err, WS_EUSAGE, "tp %u: more than %d ranks", tp, WS_SHARDS_MAX);
	int rc = list_paths(paths, n_paths, &list, err);
	if (rc == 0)
		rc = check_distinct(&list, err);
	if (rc == 0)
		rc = open_list(&list, opts, out, err);
	ws_arena_free(&list.arena);
	if (rc)
		ws_shards_close(out);
	return rc;
}

void ws_shards_close(struct ws_shards *s)
{
	if (!s)
		return;
	for (size_t i = 0; i < s->n; i++)
		ws_source_close(s->sources[i]);
	free(s->sources);
	free(s->config_dir);
	*s = (struct ws_shards){ 0 };
}
