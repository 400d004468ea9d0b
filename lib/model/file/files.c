/* SPDX-License-Identifier: Apache-2.0 */
#include "files.h"

#include "foreign.h"
#include "wsync/tool/hub.h"
#include "wsync/tool/memory.h"
#include "wsync/tool/str.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char index_name[] = "model.safetensors.index.json";
static const char single_name[] = "model.safetensors";

/* dir/name; NULL: out of memory. */
static char *join(const char *dir, const char *name)
{
	char *path = NULL;
	const size_t n = strlen(dir);
	if (asprintf(&path, "%s%s%s", dir, n && dir[n - 1] == '/' ? "" : "/", name) < 0)
		return NULL;
	return path;
}

static char *directory_of(const char *path)
{
	const char *slash = strrchr(path, '/');
	if (!slash)
		return strdup(".");
	return strndup(path, slash == path ? 1 : (size_t)(slash - path));
}

/* Takes ownership of path, which may be NULL. */
static int add_path(struct ws_file_list *list, char *path, struct ws_err *err)
{
	char **p = path ? reallocarray(list->paths, list->n_paths + 1, sizeof *p) : NULL;
	if (!p) {
		free(path);
		return ws_oom(err);
	}
	list->paths = p;
	list->paths[list->n_paths++] = path;
	return 0;
}

__attribute__((format(printf, 3, 4)))
static int add_warning(struct ws_file_list *list, struct ws_err *err, const char *fmt, ...)
{
	char **p = reallocarray(list->warnings, list->n_warnings + 1, sizeof *p);
	if (!p)
		return ws_oom(err);
	list->warnings = p;
	va_list ap;
	va_start(ap, fmt);
	const int rc = vasprintf(&p[list->n_warnings], fmt, ap);
	va_end(ap);
	if (rc < 0)
		return ws_oom(err);
	list->n_warnings++;
	return 0;
}

static int add_index(struct ws_file_list *list, const char *path, const char *dir,
                     struct ws_err *err)
{
	struct ws_index index;
	struct ws_index *p = reallocarray(list->indices, list->n_indices + 1, sizeof *p);
	if (!p)
		return ws_oom(err);
	list->indices = p;
	size_t *first = reallocarray(list->first_of_index, list->n_indices + 1, sizeof *first);
	if (!first)
		return ws_oom(err);
	list->first_of_index = first;
	if (ws_index_read(path, &index, err))
		return -1;
	list->first_of_index[list->n_indices] = list->n_paths;
	list->indices[list->n_indices++] = index;
	size_t missing = 0, first_missing = 0;
	for (size_t i = 0; i < index.n_shards; i++) {
		char *shard = join(dir, index.shards[i]);
		if (shard && access(shard, F_OK) && errno == ENOENT && missing++ == 0)
			first_missing = i;
		if (add_path(list, shard, err))
			return -1;
	}
	if (missing == 0)
		return 0;
	ws_err_set(err, WS_EINPUT, "%s: %zu of %zu shards are missing, the first is %s", path,
	           missing, index.n_shards, index.shards[first_missing]);
	ws_hub_hint(path, err);
	return -1;
}

static int is_safetensors(const struct dirent *e)
{
	return e->d_name[0] != '.' && ws_ends_with(e->d_name, ".safetensors");
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
	return strcmp((*a)->d_name, (*b)->d_name);
}

/* Returns N of "...-00001-of-0000N.safetensors"; 0: another kind of name. */
static unsigned long shards_promised(const char *name)
{
	const char *of = strstr(name, "-of-");
	if (!of || !isdigit((unsigned char)of[4]))
		return 0;
	char *end;
	const unsigned long n = strtoul(of + 4, &end, 10);
	return strcmp(end, ".safetensors") == 0 ? n : 0;
}

static int is_shard(const struct dirent *e)
{
	return is_safetensors(e) && shards_promised(e->d_name) > 0;
}

/* A partial download looks complete unless the shards are counted. */
static int check_complete(const char *dir, struct dirent **entries, int n, struct ws_err *err)
{
	const unsigned long promised = shards_promised(entries[0]->d_name);
	for (int i = 0; i < n; i++)
		if (shards_promised(entries[i]->d_name) != promised)
			return 0;
	if (promised <= (unsigned long)n)
		return 0;
	char *inside = join(dir, index_name);
	ws_err_set(err, WS_EINPUT, "%s: holds %d of %lu shards and no %s", dir, n, promised,
	           index_name);
	if (inside)
		ws_hub_hint(inside, err);
	free(inside);
	return -1;
}

static int add_all_of(struct ws_file_list *list, const char *dir, struct ws_err *err)
{
	struct dirent **entries;
	const int n = scandir(dir, &entries, is_safetensors, by_name);
	if (n < 0)
		return ws_err_errno(err, "list %s", dir);
	int rc = 0;
	if (n == 0)
		rc = ws_foreign_directory(dir, err);
	else
		rc = check_complete(dir, entries, n, err);
	for (int i = 0; i < n; i++) {
		if (rc == 0)
			rc = add_path(list, join(dir, entries[i]->d_name), err);
		free(entries[i]);
	}
	free(entries);
	return rc;
}

/* Warns that the index is used, not model.safetensors, which may be newer. */
static int warn_of_single(struct ws_file_list *list, const char *dir, const char *single,
                          struct ws_err *err)
{
	const struct ws_index *index = &list->indices[list->n_indices - 1];
	if (access(single, F_OK))
		return 0;
	for (size_t i = 0; i < index->n_shards; i++)
		if (strcmp(index->shards[i], single_name) == 0)
			return 0;
	return add_warning(list, err,
	                   "%s has %s and a %s that is not in it: using the index, as SGLang does; "
	                   "transformers reads %s (remove the outdated one)",
	                   dir, index_name, single_name, single_name);
}

/* Warns that only model.safetensors is used, not the shards without an index. */
static int warn_of_shards(struct ws_file_list *list, const char *dir, struct ws_err *err)
{
	struct dirent **entries;
	int rc = 0;
	const int n = scandir(dir, &entries, is_shard, by_name);
	if (n < 0)
		return ws_err_errno(err, "list %s", dir);
	if (n > 0)
		rc = add_warning(
			list, err,
			"%s has %s and %d shard%s without an index, the first is %s: using "
			"%s only, as transformers does; SGLang reads all of them (remove "
			"the outdated ones)",
			dir, single_name, n, n == 1 ? "" : "s", entries[0]->d_name, single_name);
	for (int i = 0; i < n; i++)
		free(entries[i]);
	free(entries);
	return rc;
}

static int add_directory(struct ws_file_list *list, const char *dir, struct ws_err *err)
{
	char *index = join(dir, index_name), *single = join(dir, single_name);
	int rc;
	if (!index || !single)
		rc = ws_oom(err);
	else if (access(index, F_OK) == 0)
		rc = add_index(list, index, dir, err) || warn_of_single(list, dir, single, err) ?
		             -1 :
		             0;
	else if (access(single, F_OK) == 0)
		rc = add_path(list, strdup(single), err) || warn_of_shards(list, dir, err) ? -1 : 0;
	else
		rc = add_all_of(list, dir, err);
	free(index);
	free(single);
	return rc;
}

static int note_config(struct ws_file_list *list, const char *dir, struct ws_err *err)
{
	if (list->config_dir)
		return 0;
	char *config = join(dir, "config.json");
	if (!config)
		return ws_oom(err);
	if (access(config, F_OK) == 0)
		list->config_dir = strdup(dir);
	free(config);
	return 0;
}

/* Adds a memory manifest by its path; the model's config may be beside the manifest. */
static int add_memory(struct ws_file_list *list, const char *path, struct ws_err *err)
{
	char *dir = directory_of(ws_memory_path(path));
	int rc = dir ? add_path(list, strdup(path), err) : ws_oom(err);
	if (rc == 0)
		rc = note_config(list, dir, err);
	free(dir);
	return rc;
}

static int add_on_disk(struct ws_file_list *list, const char *path, struct ws_err *err)
{
	struct stat st;
	/* A missing file is reported when it is opened. */
	const bool directory = stat(path, &st) == 0 && S_ISDIR(st.st_mode);
	char *dir = directory ? strdup(path) : directory_of(path);
	if (!dir)
		return ws_oom(err);
	int rc;
	if (directory)
		rc = add_directory(list, dir, err);
	else if (ws_ends_with(path, ".json"))
		rc = add_index(list, path, dir, err);
	else
		rc = add_path(list, strdup(path), err);
	if (rc == 0)
		rc = note_config(list, dir, err);
	free(dir);
	return rc;
}

int ws_files_add(struct ws_file_list *list, const char *path, struct ws_err *err)
{
	char *snapshot;
	if (!*path) {
		ws_err_set(err, WS_EUSAGE, "the name of a checkpoint is empty");
		return ws_err_hint(err, "is a variable of the shell not set?");
	}
	if (ws_memory_path(path))
		return add_memory(list, path, err);
	if (!ws_hub_is(path))
		return add_on_disk(list, path, err);
	if (ws_hub_resolve(path, &snapshot, err))
		return -1;
	const int rc = add_on_disk(list, snapshot, err);
	free(snapshot);
	return rc;
}

void ws_files_free(struct ws_file_list *list)
{
	if (!list)
		return;
	for (size_t i = 0; i < list->n_paths; i++)
		free(list->paths[i]);
	for (size_t i = 0; i < list->n_indices; i++)
		ws_index_free(&list->indices[i]);
	for (size_t i = 0; i < list->n_warnings; i++)
		free(list->warnings[i]);
	free(list->warnings);
	free(list->paths);
	free(list->indices);
	free(list->first_of_index);
	free(list->config_dir);
	*list = (struct ws_file_list)WS_FILE_LIST_INIT;
}
