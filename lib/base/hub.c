/* SPDX-License-Identifier: Apache-2.0 */
/* hub.c - finds snapshots in the cache of the Hugging Face Hub.
 *
 * Names come from command lines and from servers, and files of the cache from anywhere: a name is
 * checked before it becomes part of a path, and nothing is read without a limit. */
#include "wsync/tool/hub.h"

#include "file.h"
#include "wsync/tool/str.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char scheme[] = "hf:", folder[] = "models--";

enum {
	MAX_SEGMENT = 96, /* the Hub's limit */
	MAX_REVISION = 200,
	MAX_REF = 256,        /* bytes of a file in refs */
	MIN_PREFIX = 7,       /* digits of a shortened commit, as git prints them */
	MAX_SNAPSHOTS = 4096, /* entries that are read */
	SHOWN = 3
};

static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";

bool ws_hub_is(const char *path)
{
	return strncmp(path, scheme, sizeof scheme - 1) == 0;
}

/* ---- names ---- */

/* Of a repository or a commit: it has no slash, and is neither hidden nor "..". */
static bool is_segment(const char *s, size_t n)
{
	return n > 0 && n <= MAX_SEGMENT && strspn(s, letters) >= n && *s != '.' && *s != '-' &&
	       !memmem(s, n, "..", 2) && !memmem(s, n, "--", 2);
}

/* NAME or ORG/NAME. */
static bool is_repo(const char *s, size_t n)
{
	const char *slash = memchr(s, '/', n);
	const size_t first = slash ? (size_t)(slash - s) : n;
	return is_segment(s, first) && (!slash || is_segment(slash + 1, n - first - 1));
}

/* A branch may have slashes, such as refs/pr/3. No part of it leads out of the directory. */
static bool is_revision(const char *s)
{
	if (!*s || strlen(s) > MAX_REVISION || strstr(s, "//") || *s == '/' ||
	    s[strlen(s) - 1] == '/')
		return false;
	for (const char *p = s; *p; p++)
		if ((unsigned char)*p <= ' ' || *p == 127 || *p == '\\' ||
		    (*p == '.' && (p == s || p[-1] == '/')))
			return false;
	return true;
}

static bool is_short_commit(const char *s)
{
	const size_t n = strlen(s);
	return n >= MIN_PREFIX && strspn(s, "0123456789abcdef") == n;
}

/* ---- the place of the cache ---- */

static const char *variable(const char *name)
{
	const char *value = getenv(name);
	return value && *value ? value : NULL;
}

/* base/name, where a '~' that begins base is the home directory. NULL: out of memory, or there is
 * no home directory. */
static char *place(const char *base, const char *name)
{
	char *path = NULL;
	const char *home = "";
	if (base[0] == '~' && (!base[1] || base[1] == '/')) {
		home = variable("HOME");
		base++;
	}
	return home && asprintf(&path, "%s%s%s", home, base, name) >= 0 ? path : NULL;
}

static char *cache_directory(void)
{
	const char *cache = variable("HF_HUB_CACHE"), *home = variable("HF_HOME");
	if (!cache)
		cache = variable("HUGGINGFACE_HUB_CACHE");
	if (cache)
		return place(cache, "");
	if (home)
		return place(home, "/hub");
	const char *all = variable("XDG_CACHE_HOME");
	return place(all ? all : "~/.cache", "/huggingface/hub");
}

/* ---- snapshots of a repository ---- */

struct wanted {
	const char *spec; /* as messages quote it */
	char repo[2 * MAX_SEGMENT + 2];
	const char *revision; /* NULL: none is given */
	char *root;           /* CACHE/models--ORG--NAME */
};

static bool is_directory(const char *path)
{
	struct stat st;
	return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* The directory of this snapshot, or NULL if there is none. */
static char *snapshot(const char *root, const char *commit)
{
	char *dir = NULL;
	if (asprintf(&dir, "%s/snapshots/%s", root, commit) < 0)
		return NULL;
	if (is_directory(dir))
		return dir;
	free(dir);
	return NULL;
}

struct names {
	char name[SHOWN][MAX_SEGMENT + 1];
	size_t n; /* found; no more than SHOWN are kept */
};

/* Counts the snapshots whose names have this prefix. */
static void list_snapshots(const char *root, const char *prefix, struct names *out)
{
	char *path = NULL;
	*out = (struct names){ .n = 0 };
	DIR *dir = asprintf(&path, "%s/snapshots", root) < 0 ? NULL : opendir(path);
	const struct dirent *e;
	for (int i = 0; dir && i < MAX_SNAPSHOTS && (e = readdir(dir)); i++) {
		if (!is_segment(e->d_name, strlen(e->d_name)) ||
		    strncmp(e->d_name, prefix, strlen(prefix)) != 0)
			continue;
		char *found = snapshot(root, e->d_name);
		if (found && out->n++ < SHOWN)
			memcpy(out->name[out->n - 1], e->d_name, strlen(e->d_name) + 1);
		free(found);
	}
	if (dir)
		closedir(dir);
	free(path);
}

/* "a, b, c, ..." */
static const char *join_names(const struct names *names, char *dst, size_t n)
{
	size_t used = 0;
	*dst = 0;
	for (size_t i = 0; i < names->n && i < SHOWN && used < n; i++)
		used += (size_t)snprintf(dst + used, n - used, "%s%s", i ? ", " : "",
		                         names->name[i]);
	if (names->n > SHOWN && used < n)
		snprintf(dst + used, n - used, ", ...");
	return dst;
}

static int hint_download(const struct wanted *w, struct ws_err *err)
{
	if (!w->revision)
		return ws_err_hint(err, "fetch it first: hf download %s", w->repo);
	return ws_err_hint(err, "fetch it first: hf download %s --revision %s", w->repo,
	                   ws_shell_word(w->revision).text);
}

/* Reads refs/REF into commit. Returns 1: there is no such ref. */
static int read_ref(const struct wanted *w, const char *ref, char commit[MAX_SEGMENT + 1],
                    struct ws_err *err)
{
	char *path = NULL;
	struct ws_buf text;
	struct stat st;
	if (asprintf(&path, "%s/refs/%s", w->root, ref) < 0)
		return ws_oom(err);
	int rc = 1;
	ws_buf_init(&text, MAX_REF);
	if (stat(path, &st) == 0 && !S_ISDIR(st.st_mode))
		rc = ws_file_read(path, &text, err);
	if (rc == 0) {
		const char *s = ws_buf_str(&text);
		const size_t n = strcspn(s, "\r\n \t");
		if (is_segment(s, n) && !s[n + strspn(s + n, "\r\n \t")])
			snprintf(commit, MAX_SEGMENT + 1, "%.*s", (int)n, s);
		else
			rc = ws_err_set(err, WS_EINPUT, "%s: does not name a commit", path);
	}
	ws_buf_free(&text);
	free(path);
	return rc;
}

static int several(const struct wanted *w, const struct names *names, struct ws_err *err)
{
	char list[SHOWN * (MAX_SEGMENT + 2) + 8];
	ws_err_set(err, WS_EINPUT, "%s: %zu snapshots are in the cache, and %s%s: %s", w->spec,
	           names->n, w->revision ? "all begin with " : "none is called main",
	           w->revision ? w->revision : "", join_names(names, list, sizeof list));
	return ws_err_hint(err, "name one of them: hf:%s@%s", w->repo, names->name[0]);
}

/* No ref has that name. A revision may be a commit; without one a single snapshot is clear. */
static int find_commit(const struct wanted *w, char **dir, struct ws_err *err)
{
	struct names names = { .n = 0 };
	const char *commit = w->revision;
	if (!commit || is_short_commit(commit))
		list_snapshots(w->root, commit ? commit : "", &names);
	*dir = commit && is_segment(commit, strlen(commit)) ? snapshot(w->root, commit) : NULL;
	if (!*dir && names.n == 1)
		*dir = snapshot(w->root, names.name[0]);
	if (*dir)
		return 0;
	if (names.n > 1)
		return several(w, &names, err);
	if (commit)
		ws_err_set(err, WS_EINPUT, "%s: the cache has no such revision of %s in %s",
		           w->spec, w->repo, w->root);
	else
		ws_err_set(err, WS_EINPUT, "%s: the cache has no snapshot of it in %s", w->spec,
		           w->root);
	return hint_download(w, err);
}

static int find_snapshot(const struct wanted *w, char **dir, struct ws_err *err)
{
	const char *ref = w->revision ? w->revision : "main";
	char commit[MAX_SEGMENT + 1];
	const int rc = read_ref(w, ref, commit, err);
	if (rc)
		return rc < 0 ? -1 : find_commit(w, dir, err);
	*dir = snapshot(w->root, commit);
	if (*dir)
		return 0;
	ws_err_set(err, WS_EINPUT, "%s: %s is the snapshot %s, which is not in %s/snapshots",
	           w->spec, ref, commit, w->root);
	return hint_download(w, err);
}

static int find_root(struct wanted *w, struct ws_err *err)
{
	char *cache = cache_directory();
	const char *slash = strchr(w->repo, '/');
	const int org = slash ? (int)(slash - w->repo) : 0;
	if (!cache)
		return ws_err_set(err, WS_EINPUT,
		                  "%s: the place of the Hugging Face cache is not "
		                  "known: neither HF_HOME nor HOME is set",
		                  w->spec);
	if (asprintf(&w->root, "%s/%s%.*s%s%s", cache, folder, org, w->repo, slash ? "--" : "",
	             slash ? slash + 1 : w->repo) < 0) {
		w->root = NULL;
		free(cache);
		return ws_oom(err);
	}
	const bool there = is_directory(w->root);
	if (!there)
		ws_err_set(err, WS_EINPUT,
		           "%s: this machine's Hugging Face cache does not have it: looked in %s",
		           w->spec, cache);
	free(cache);
	return there ? 0 : hint_download(w, err);
}

static int find(struct wanted *w, char **dir, struct ws_err *err)
{
	const int rc = find_root(w, err) || find_snapshot(w, dir, err) ? -1 : 0;
	free(w->root);
	return rc;
}

int ws_hub_resolve(const char *spec, char **dir, struct ws_err *err)
{
	const char *repo = spec + sizeof scheme - 1, *at = strchr(repo, '@');
	const size_t n = at ? (size_t)(at - repo) : strlen(repo);
	char shown[128];
	struct wanted w = { .spec = ws_printable(shown, sizeof shown, spec, strlen(spec)),
		            .revision = at ? at + 1 : NULL };
	if (!is_repo(repo, n) || (at && !is_revision(at + 1))) {
		ws_err_set(err, WS_EUSAGE, "%s: not the name of a model of the Hugging Face Hub",
		           shown);
		return ws_err_hint(err, "hf:ORG/NAME or hf:ORG/NAME@REVISION, without a file");
	}
	snprintf(w.repo, sizeof w.repo, "%.*s", (int)n, repo);
	return find(&w, dir, err);
}

char *ws_hub_find(const char *repo, const char *revision)
{
	char *dir = NULL;
	struct wanted w = { .spec = repo, .revision = revision };
	if (!is_repo(repo, strlen(repo)) || (revision && !is_revision(revision)))
		return NULL;
	snprintf(w.repo, sizeof w.repo, "%s", repo);
	return find(&w, &dir, NULL) ? NULL : dir;
}

/* ---- paths into a cache ---- */

/* The repository of a path whose part is "models--ORG--NAME" and ends before end. */
static bool repo_of(const char *part, const char *end, char *repo, size_t n)
{
	const size_t k = sizeof folder - 1;
	if ((size_t)(end - part) <= k || strncmp(part, folder, k) != 0)
		return false;
	snprintf(repo, n, "%.*s", (int)(end - part - (long)k), part + k);
	char *dashes = strstr(repo, "--");
	if (dashes) {
		*dashes = '/';
		memmove(dashes + 1, dashes + 2, strlen(dashes + 2) + 1);
	}
	return is_repo(repo, strlen(repo));
}

static int hint_snapshot(const char *dir, const char *repo, struct ws_err *err)
{
	struct names names;
	char commit[MAX_SEGMENT + 1], list[SHOWN * (MAX_SEGMENT + 2) + 8];
	struct wanted w = { .spec = dir, .root = (char *)(uintptr_t)dir };
	char *one = read_ref(&w, "main", commit, NULL) ? NULL : snapshot(dir, commit);
	list_snapshots(dir, "", &names);
	if (!one && names.n == 1)
		one = snapshot(dir, names.name[0]);
	char *named = *repo ? ws_hub_find(repo, NULL) : NULL, *same = NULL, *real = NULL;
	if (one && named && (same = realpath(named, NULL)) && (real = realpath(one, NULL)) &&
	    strcmp(same, real) == 0)
		ws_err_hint(err, "name its snapshot: hf:%s, or %s", repo, ws_shell_word(one).text);
	else if (one)
		ws_err_hint(err, "name its snapshot: %s", ws_shell_word(one).text);
	else if (names.n)
		ws_err_hint(err, "name one of its snapshots: %s",
		            join_names(&names, list, sizeof list));
	else if (*repo)
		ws_err_hint(err, "no snapshot is there: hf download %s", repo);
	free(one);
	free(named);
	free(same);
	free(real);
	return -1;
}

int ws_hub_check_root(const char *dir, struct ws_err *err)
{
	static const char *const parts[] = { "snapshots", "refs", "blobs" };
	bool has[3];
	char repo[2 * MAX_SEGMENT + 2] = "";
	for (size_t i = 0; i < 3; i++) {
		char *path = NULL;
		has[i] = asprintf(&path, "%s/%s", dir, parts[i]) >= 0 && is_directory(path);
		free(path);
	}
	char *real = has[0] ? realpath(dir, NULL) : NULL;
	const char *slash = real ? strrchr(real, '/') : NULL;
	const bool named = slash && repo_of(slash + 1, slash + strlen(slash), repo, sizeof repo);
	free(real);
	if (!has[0] || !(named || has[1] || has[2]))
		return 0;
	ws_err_set(err, WS_EINPUT,
	           "%s: the Hugging Face cache of a repository, whose files are in "
	           "snapshots/COMMIT below",
	           dir);
	return hint_snapshot(dir, named ? repo : "", err);
}

bool ws_hub_hint(const char *path, struct ws_err *err)
{
	char repo[2 * MAX_SEGMENT + 2];
	for (const char *p = path; (p = strstr(p, folder)); p++) {
		const char *end = p + strcspn(p, "/");
		if ((p != path && p[-1] != '/') || strncmp(end, "/snapshots/", 11) != 0 ||
		    !repo_of(p, end, repo, sizeof repo))
			continue;
		ws_err_hint(err, "the cache does not have all of it: hf download %s", repo);
		return true;
	}
	char *dir = ws_hub_find(path, NULL);
	if (dir)
		ws_err_hint(err, "it is in this machine's cache: hf:%s", path);
	free(dir);
	return dir != NULL;
}
