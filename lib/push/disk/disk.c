/* SPDX-License-Identifier: Apache-2.0 */
/* disk.c - writes a checkpoint under a hidden name, publishes it, and removes the checkpoints of
 * dead writers. */
#include "disk.h"

#include "disk_files.h"
#include "file.h"
#include "wsync/tool/buf.h"
#include "wsync/tool/json.h"
#include "wsync/tool/str.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { NAMES_TRIED = 10000, LABEL_MAX = 64, HEX = 16 };

static const char hidden[] = ".wsync-", lock_end[] = ".lock";

/* ---- room ---- */

int ws_disk_room(const char *dir, uint64_t bytes, struct ws_err *err)
{
	struct statvfs fs;
	char has[32], takes[32];
	if (statvfs(dir, &fs))
		return errno == ENOENT ? 0 : ws_err_errno(err, "%s", dir);
	const uint64_t room = (uint64_t)fs.f_bavail * fs.f_frsize;
	if (room >= bytes)
		return 0;
	ws_err_set(err, WS_ESYSTEM, "%s has room for %s, and the checkpoint takes %s", dir,
	           ws_format_size(has, sizeof has, room),
	           ws_format_size(takes, sizeof takes, bytes));
	return ws_err_hint(err,
	                   "make room, or name another directory; older checkpoints in {disk_dir} "
	                   "are removed after a success only");
}

/* ---- remains of dead writers ---- */

/* ".wsync-HEX.lock" */
static bool is_lock(const char *name)
{
	const size_t n = sizeof hidden - 1;
	return strlen(name) == n + HEX + sizeof lock_end - 1 && strncmp(name, hidden, n) == 0 &&
	       strspn(name + n, "0123456789abcdef") == HEX && strcmp(name + n + HEX, lock_end) == 0;
}

/* Removes an unfinished checkpoint if its lock is free. Without file locks it stays. */
static void bury(const char *dir, const char *name)
{
	char *lock = NULL, *tmp = NULL;
	int fd = -1;
	if (asprintf(&lock, "%s/%s", dir, name) < 0 ||
	    asprintf(&tmp, "%s/%.*s", dir, (int)(sizeof hidden - 1 + HEX), name) < 0)
		goto out;
	fd = open(lock, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
	if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0 && ws_disk_files_remove(tmp, NULL) == 0)
		unlink(lock);
out:
	if (fd >= 0)
		close(fd);
	free(tmp);
	free(lock);
}

static void bury_the_dead(const char *dir)
{
	DIR *d = opendir(dir);
	for (const struct dirent *e; d && (e = readdir(d));)
		if (is_lock(e->d_name))
			bury(dir, e->d_name);
	if (d)
		closedir(d);
}

/* ---- a hidden name ---- */

static int draw_name(struct ws_disk *d, const char *dir, struct ws_err *err)
{
	uint64_t number;
	if (getrandom(&number, sizeof number, 0) != (ssize_t)sizeof number)
		return ws_err_errno(err, "draw a name");
	free(d->tmp);
	free(d->lock);
	d->tmp = d->lock = NULL;
	if (asprintf(&d->tmp, "%s/%s%016" PRIx64, dir, hidden, number) < 0) {
		d->tmp = NULL;
		return ws_oom(err);
	}
	if (asprintf(&d->lock, "%s%s", d->tmp, lock_end) < 0) {
		d->lock = NULL;
		return ws_oom(err);
	}
	return 0;
}

/* Another process may remove the file as a dead writer's, before this process has locked it. */
static bool still_there(int fd)
{
	struct stat st;
	return fstat(fd, &st) == 0 && st.st_nlink > 0;
}

/* Takes a hidden name. Without locks on the file system the name is ours too, but no process
 * removes it if this one dies. */
static int take_name(struct ws_disk *d, const char *dir, struct ws_err *err)
{
	for (int try = 0; try < 100; try++) {
		if (draw_name(d, dir, err))
			return -1;
		d->lock_fd = ws_file_create(d->lock, 0666, err);
		if (d->lock_fd < 0)
			return -1;
		if ((flock(d->lock_fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) &&
		    still_there(d->lock_fd))
			return 0;
		close(d->lock_fd);
		d->lock_fd = -1;
	}
	return ws_err_set(err, WS_ESYSTEM, "%s: other processes take every name", dir);
}

/* Files may stay (NFS keeps files that a process has open). Then the lock file stays too, so that
 * the next writer in this directory removes both. */
static void release_name(struct ws_disk *d)
{
	struct stat st;
	if (d->lock_fd >= 0) {
		if (lstat(d->tmp, &st))
			unlink(d->lock);
		close(d->lock_fd);
	}
	free(d->tmp);
	free(d->lock);
	d->tmp = d->lock = NULL;
	d->lock_fd = -1;
}

int ws_disk_begin(struct ws_disk *d, const char *dir, struct ws_err *err)
{
	*d = (struct ws_disk)WS_DISK_INIT;
	if (mkdir(dir, 0777) && errno != EEXIST)
		return ws_err_errno(err, "create directory %s", dir);
	bury_the_dead(dir);
	d->dir = strdup(dir);
	if (!d->dir)
		return ws_oom(err);
	if (take_name(d, dir, err)) {
		ws_disk_end(d);
		return -1;
	}
	if (mkdir(d->tmp, 0777) == 0)
		return 0;
	ws_err_errno(err, "create directory %s", d->tmp);
	ws_disk_end(d);
	return -1;
}

void ws_disk_end(struct ws_disk *d)
{
	if (d->tmp)
		ws_disk_files_remove(d->tmp, NULL);
	release_name(d);
	free(d->dir);
	*d = (struct ws_disk)WS_DISK_INIT;
}

/* ---- its own name ---- */

char *ws_disk_name(const struct ws_disk_note *note, char *dst, size_t n)
{
	char label[LABEL_MAX + 1];
	if (note->weight_version && *note->weight_version)
		snprintf(label, sizeof label, "%s", note->weight_version);
	else
		snprintf(label, sizeof label, "%016" PRIx64, note->digest);
	for (char *c = label; *c; c++)
		if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-",
		            *c))
			*c = '_';
	snprintf(dst, n, "wsync-%s", label);
	return dst;
}

/* Returns 1 if the name is taken. rename replaces an empty directory only. */
static int try_name(struct ws_disk *d, const char *name, struct ws_err *err)
{
	char *path = NULL;
	struct stat st;
	if (asprintf(&path, "%s/%s", d->dir, name) < 0)
		return ws_oom(err);
	int rc = lstat(path, &st) == 0 ? 1 : 0;
	if (rc == 0 && rename(d->tmp, path))
		rc = errno == EEXIST || errno == ENOTEMPTY || errno == ENOTDIR ?
		     1 : ws_err_errno(err, "rename %s to %s", d->tmp, path);
	free(path);
	return rc;
}

int ws_disk_publish(struct ws_disk *d, const struct ws_disk_note *note, char **name,
                    struct ws_err *err)
{
	char plain[LABEL_MAX + 16], numbered[LABEL_MAX + 32];
	if (ws_disk_files_note(d->tmp, note, err))
		return -1;
	ws_file_sync_directory(d->tmp);
	ws_disk_name(note, plain, sizeof plain);
	int rc = 1;
	for (int i = 1; rc == 1 && i < NAMES_TRIED; i++) {
		snprintf(numbered, sizeof numbered, i == 1 ? "%s" : "%s-%d", plain, i);
		rc = try_name(d, numbered, err);
	}
	if (rc == 1)
		return ws_err_set(err, WS_ESYSTEM, "%s/%s: %d names like this exist", d->dir,
		                  plain, NAMES_TRIED);
	if (rc)
		return -1;
	ws_file_sync_directory(d->dir);
	release_name(d);
	*name = strdup(numbered);
	return *name ? 0 : ws_oom(err);
}

int ws_disk_publish_as(struct ws_disk *d, const struct ws_disk_note *note, const char *name,
                       struct ws_err *err)
{
	char *path = NULL;
	if (ws_disk_files_note(d->tmp, note, err))
		return -1;
	ws_file_sync_directory(d->tmp);
	if (asprintf(&path, "%s/%s", d->dir, name) < 0)
		return ws_oom(err);
	int rc = 0;
	if (rename(d->tmp, path)) /* replaces an empty directory only */
		rc = ws_err_errno(err, "%s cannot be published: rename %s", path, d->tmp);
	free(path);
	if (rc)
		return -1;
	ws_file_sync_directory(d->dir);
	release_name(d);
	return 0;
}

/* ---- removing ---- */

int ws_disk_remove(const char *dir, const char *name, struct ws_err *err)
{
	struct ws_disk d = WS_DISK_INIT;
	char *path = NULL;
	int rc = -1;
	if (asprintf(&path, "%s/%s", dir, name) < 0) {
		path = NULL;
		ws_oom(err);
		goto out;
	}
	if (ws_disk_files_are_ours(path, err) || take_name(&d, dir, err))
		goto out;
	/* Rename first, so that the published name never has half a checkpoint. */
	rc = rename(path, d.tmp) ? ws_err_errno(err, "remove %s", path) :
	                           ws_disk_files_remove(d.tmp, err);
out:
	release_name(&d);
	free(path);
	return rc;
}
