/* SPDX-License-Identifier: Apache-2.0 */
/* gateway_sources.c - which files a request may name as its source (--source-root).
 *
 * A path is replaced by what it resolves to, so that a link that changes later changes nothing.
 * Files are opened by name inside a checkpoint, so each link there must stay below the roots too,
 * as an index may name only files beside it. Whoever may write below a root can still exchange a
 * file after this check: only the operator's own users should. */
#include "gateway_core.h"

#include "wsync/tool/hub.h"
#include "wsync/tool/memory.h"
#include "wsync/tool/str.h"

#include <dirent.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { DEPTH_MAX = 8, ENTRIES_MAX = 100000 };

struct search {
	const struct ws_gateway *gateway;
	const char *source; /* as requested */
	size_t n;           /* entries seen */
	struct ws_err *err;
};

static bool lies_in(const char *path, const char *root)
{
	const size_t n = strlen(root);
	return strncmp(path, root, n) == 0 &&
	       (path[n] == 0 || path[n] == '/' || (n && root[n - 1] == '/'));
}

static bool lies_in_roots(const struct ws_gateway *g, const char *real)
{
	bool good = false;
	for (size_t i = 0; !good && i < g->opts.n_roots; i++) {
		char *root = realpath(g->opts.roots[i], NULL);
		good = root && lies_in(real, root);
		free(root);
	}
	return good;
}

static int check_directory(struct search *s, const char *dir, int depth);

/* A path that does not exist is no link that leads outside. */
static int check_entry(struct search *s, const char *path, int depth)
{
	struct stat st;
	if (++s->n > ENTRIES_MAX)
		return ws_err_set(s->err, WS_EINPUT, "source '%.300s': more than %d files",
		                  s->source, (int)ENTRIES_MAX);
	if (lstat(path, &st))
		return 0;
	if (S_ISDIR(st.st_mode))
		return check_directory(s, path, depth + 1);
	if (!S_ISLNK(st.st_mode))
		return 0;
	char *real = realpath(path, NULL);
	int rc = 0;
	if (!real || !lies_in_roots(s->gateway, real))
		rc = ws_err_set(s->err, WS_EINPUT,
		                "source '%.300s': the link '%.200s' does not lead to a file below "
		                "a directory that sources may come from",
		                s->source, path);
	else if (stat(real, &st) == 0 && S_ISDIR(st.st_mode))
		rc = check_directory(s, real, depth + 1);
	free(real);
	return rc;
}

static int check_name(struct search *s, const char *dir, const char *name, int depth)
{
	char *path = NULL;
	if (asprintf(&path, "%s/%s", dir, name) < 0)
		return ws_oom(s->err);
	const int rc = check_entry(s, path, depth);
	free(path);
	return rc;
}

static int check_directory(struct search *s, const char *dir, int depth)
{
	DIR *d = depth < DEPTH_MAX ? opendir(dir) : NULL;
	int rc = 0;
	if (depth >= DEPTH_MAX)
		return ws_err_set(s->err, WS_EINPUT, "source '%.300s': more than %d directories "
		                  "deep", s->source, (int)DEPTH_MAX);
	if (!d)
		return 0; /* nor can the push read it */
	for (struct dirent *e; rc == 0 && (e = readdir(d));)
		if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
			rc = check_name(s, dir, e->d_name, depth);
	closedir(d);
	return rc;
}

/* Of a file the config beside it is read, of an index or a manifest also what it names. */
static int check_links(struct search *s, const char *real)
{
	struct stat st;
	if (stat(real, &st))
		return ws_err_errno(s->err, "open %s", s->source);
	if (S_ISDIR(st.st_mode))
		return check_directory(s, real, 0);
	char *copy = strdup(real);
	if (!copy)
		return ws_oom(s->err);
	const char *dir = dirname(copy);
	const int rc = ws_ends_with(real, ".json") ? check_directory(s, dir, 0) :
	                                             check_name(s, dir, "config.json", 0);
	free(copy);
	return rc;
}

int gateway_find_source(const struct ws_gateway *g, const char **path, char **owned,
                        struct ws_err *err)
{
	const char *manifest = ws_memory_path(*path);
	char *snapshot = NULL;
	if (ws_hub_is(*path))
		ws_hub_resolve(*path, &snapshot, NULL);
	char *real = realpath(snapshot ? snapshot : manifest ? manifest : *path, NULL);
	struct search s = { .gateway = g, .source = *path, .err = err };
	int rc = 0;
	*owned = NULL;
	/* The message does not reveal whether the path exists elsewhere. */
	if (!real || !lies_in_roots(g, real))
		rc = ws_err_set(err, WS_EINPUT,
		                "source '%.300s': not below a directory that sources may "
		                "come from", *path);
	else if ((rc = check_links(&s, real)) == 0 &&
	         asprintf(owned, "%.*s%s", manifest ? (int)(manifest - *path) : 0, *path,
	                  real) < 0)
		*owned = NULL, rc = ws_oom(err);
	if (rc == 0)
		*path = *owned;
	free(real);
	free(snapshot);
	return rc;
}
