/* SPDX-License-Identifier: Apache-2.0 */
/* disk_files.c - wsync.json, and the files that it does not list.
 *
 * Others may write into the directory, so its contents are not trusted: links are not followed,
 * and names from wsync.json are only compared with those of files. */
#include "disk_files.h"

#include "file.h"
#include "hash.h"
#include "wsync/tool/buf.h"
#include "wsync/tool/str.h"
#include "wsync/tool/json_read.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NOTE_MAX = 16 << 20 };

static const char note_name[] = "wsync.json";

/* NULL: *err says why. */
static DIR *open_directory(const char *path, struct ws_err *err)
{
	const int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
	if (!d)
		ws_err_errno(err, "open %s", path);
	if (!d && fd >= 0)
		close(fd);
	return d;
}

/* The next entry, without the directory itself and its parent. */
static const struct dirent *next_entry(DIR *d)
{
	const struct dirent *e;
	do
		e = readdir(d);
	while (e && (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0));
	return e;
}

int ws_disk_files_id(const char *path, uint64_t *id, struct ws_err *err)
{
	DIR *d = open_directory(path, err);
	int rc = d ? 0 : -1;
	uint64_t sum = 0;
	for (const struct dirent *e; rc == 0 && (e = next_entry(d));) {
		struct stat st;
		if (fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW)) {
			rc = ws_err_errno(err, "%s/%.200s", path, e->d_name);
			continue;
		}
		/* No inode: some network file systems make new ones up. */
		const uint64_t facts[] = { ws_hash64(e->d_name, strlen(e->d_name)),
			                   (uint64_t)st.st_size, (uint64_t)st.st_mtim.tv_sec,
			                   (uint64_t)st.st_mtim.tv_nsec,
			                   (uint64_t)st.st_ctim.tv_sec,
			                   (uint64_t)st.st_ctim.tv_nsec };
		sum += ws_hash64(facts, sizeof facts); /* in any order */
	}
	if (d)
		closedir(d);
	*id = sum ? sum : 1;
	return rc;
}

/* ---- writing ---- */

static int list_files(struct ws_jw *w, const char *path, struct ws_err *err)
{
	DIR *d = open_directory(path, err);
	if (!d)
		return -1;
	ws_jw_array(w, "files");
	for (const struct dirent *e; (e = next_entry(d));)
		ws_jw_str(w, NULL, e->d_name);
	ws_jw_end_array(w);
	closedir(d);
	return 0;
}

int ws_disk_files_note(const char *path, const struct ws_disk_note *note, struct ws_err *err)
{
	struct ws_buf text;
	struct ws_jw w;
	char *file = NULL;
	ws_buf_init(&text, NOTE_MAX);
	ws_jw_init(&w, &text);
	ws_jw_object(&w, NULL);
	ws_jw_int(&w, "schema", 1);
	ws_jw_hex64(&w, "digest", note->digest);
	ws_jw_str(&w, "source", note->source);
	ws_jw_str(&w, "weight_version", note->weight_version);
	ws_jw_strs(&w, "endpoints", note->urls, note->n_urls);
	int rc = list_files(&w, path, err);
	ws_jw_end_object(&w);
	ws_buf_putc(&text, '\n');
	if (rc == 0)
		rc = ws_buf_check(&text, note_name, err);
	if (rc == 0 && asprintf(&file, "%s/%s", path, note_name) < 0) {
		file = NULL;
		rc = ws_oom(err);
	}
	if (rc == 0)
		rc = ws_file_make(file, text.data, text.len, err);
	free(file);
	ws_buf_free(&text);
	return rc;
}

/* ---- reading ---- */

static struct ws_json *read_note(const char *path, struct timespec *when, struct ws_err *err)
{
	struct ws_buf text;
	struct ws_json *root = NULL;
	struct stat st;
	char *file = NULL;
	ws_buf_init(&text, NOTE_MAX);
	if (asprintf(&file, "%s/%s", path, note_name) < 0) {
		ws_oom(err);
		return NULL;
	}
	if (ws_file_read(file, &text, err) == 0)
		root = ws_json_parse(ws_buf_str(&text), text.len, file, err);
	if (root && ws_json_get_int(root, "schema", 0) != 1) {
		ws_err_set(err, WS_EINPUT, "%s: not written by wsync", file);
		ws_json_free(root);
		root = NULL;
	}
	if (root && when)
		*when = lstat(file, &st) == 0 ? st.st_mtim : (struct timespec){ 0 };
	free(file);
	ws_buf_free(&text);
	return root;
}

static bool is_listed(const struct ws_json *list, const char *name)
{
	for (const struct ws_json *j = ws_json_first(list); j; j = ws_json_next(j))
		if (ws_json_string(j) && strcmp(ws_json_string(j), name) == 0)
			return true;
	return false;
}

/* We make no directories there, so a directory is never ours, even if it is listed. */
static bool is_file(DIR *d, const char *name)
{
	struct stat st;
	return fstatat(dirfd(d), name, &st, AT_SYMLINK_NOFOLLOW) == 0 && !S_ISDIR(st.st_mode);
}

int ws_disk_files_are_ours(const char *path, struct ws_err *err)
{
	struct ws_json *note = read_note(path, NULL, err);
	DIR *d = note ? open_directory(path, err) : NULL;
	const struct ws_json *files = note ? ws_json_get(note, "files") : NULL;
	int rc = d ? 0 : -1;
	for (const struct dirent *e; rc == 0 && (e = next_entry(d));) {
		char name[128];
		if (is_file(d, e->d_name) &&
		    (strcmp(e->d_name, note_name) == 0 || is_listed(files, e->d_name)))
			continue;
		ws_printable(name, sizeof name, e->d_name, strlen(e->d_name));
		rc = ws_err_set(err, WS_ESYSTEM,
		                "%s has '%s', which was not written with it: the directory stays",
		                path, name);
	}
	if (d)
		closedir(d);
	ws_json_free(note);
	return rc;
}

bool ws_disk_files_are_for(const char *path, const char *const *urls, size_t n_urls,
                           struct timespec *when)
{
	struct ws_json *note = read_note(path, when, NULL);
	const struct ws_json *list = ws_json_get(note, "endpoints");
	bool all = note && ws_json_first(list);
	for (const struct ws_json *j = ws_json_first(list); all && j; j = ws_json_next(j)) {
		const char *url = ws_json_string(j);
		size_t i = 0;
		while (url && i < n_urls && strcmp(urls[i], url) != 0)
			i++;
		all = url && i < n_urls;
	}
	ws_json_free(note);
	return all;
}

/* ---- removing ---- */

int ws_disk_files_remove(const char *path, struct ws_err *err)
{
	struct stat st;
	if (lstat(path, &st) && errno == ENOENT)
		return 0;
	DIR *d = open_directory(path, err);
	if (!d)
		return -1;
	for (const struct dirent *e; (e = next_entry(d));)
		unlinkat(dirfd(d), e->d_name, 0);
	closedir(d);
	return rmdir(path) ? ws_err_errno(err, "remove %s", path) : 0;
}
