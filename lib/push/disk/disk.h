/* SPDX-License-Identifier: Apache-2.0 */
/* disk.h - a directory of checkpoints that we write for servers to load.
 *
 *   DIR/wsync-LABEL/       a complete checkpoint; its wsync.json lists our files and the endpoints:
 *                        {"schema":1,"digest","source","weight_version",
 *                         "endpoints":[URL],"files":[NAME]}
 *   DIR/.wsync-HEX/        being written, or being removed,
 *   DIR/.wsync-HEX.lock    by the process that holds this lock; if it is free, the writer has died
 *
 * A published checkpoint is complete and on the disk. A directory with a file that its wsync.json
 * does not list has files of others, and is left as it is. Directories and files have the modes of
 * the user's umask, so that servers of other users can read them. */
#ifndef WS_PUSH_DISK_H
#define WS_PUSH_DISK_H

#include "wsync/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ws_disk {
	char *dir;  /* owned, like the following */
	char *tmp;  /* being written; NULL: no checkpoint is */
	char *lock; /* the lock file of tmp */
	int lock_fd;
};

#define WS_DISK_INIT { 0, 0, 0, -1 }

/* WS_ESYSTEM: the file system of dir has less than `bytes` free. If the directory does not exist
 * yet, this is not checked. */
int ws_disk_room(const char *dir, uint64_t bytes, struct ws_err *err);

/* Creates dir (but not its parents) if it is missing, removes unfinished checkpoints of dead
 * writers, and creates d->tmp. The caller writes files into d->tmp. */
int ws_disk_begin(struct ws_disk *d, const char *dir, struct ws_err *err);

struct ws_disk_note {
	uint64_t digest;
	const char *source, *weight_version; /* NULL: none */
	const char *const *urls;
	size_t n_urls;
};
/* The name of the checkpoint, if that is free: "wsync-120". Returns dst. */
char *ws_disk_name(const struct ws_disk_note *note, char *dst, size_t n);
/* Publishes it under that name, or with a number appended. *name is in dir; the caller frees it. */
int ws_disk_publish(struct ws_disk *d, const struct ws_disk_note *note, char **name,
                    struct ws_err *err);
/* Publishes it under exactly this name, which must be free. */
int ws_disk_publish_as(struct ws_disk *d, const struct ws_disk_note *note, const char *name,
                       struct ws_err *err);
void ws_disk_end(struct ws_disk *d); /* removes an unpublished checkpoint */

/* Removes the checkpoints that were written for these endpoints and no others, except the newest
 * `keep`. The checkpoint `last` counts as the newest, at any time stamp (NULL: time stamps decide).
 * told, which may be NULL, is called for each checkpoint that cannot be removed. */
void ws_disk_prune(const char *dir, const char *last, size_t keep, const char *const *urls,
                   size_t n_urls, void (*told)(void *ctx, const struct ws_err *why), void *ctx);
/* Removes this checkpoint. */
int ws_disk_remove(const char *dir, const char *name, struct ws_err *err);

#endif
