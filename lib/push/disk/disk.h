/* SPDX-License-Identifier: Apache-2.0 */
/* disk.h - a directory of checkpoints that we write for servers to load.
 *
 *   DIR/wsync-LABEL/       a whole one; its wsync.json says what we wrote, and for whom:
 *                        {"schema":1,"digest","source","weight_version",
 *                         "endpoints":[URL],"files":[NAME]}
 *   DIR/.wsync-HEX/        being written, or being removed,
 *   DIR/.wsync-HEX.lock    by whoever holds this lock; where nobody does, he has died
 *
 * What stands under its name is whole and on the disk. A directory with anything in it that
 * its wsync.json does not list was not written by us alone, and is left as it is.
 * Directories and files have the modes that the user's umask leaves, so that servers of
 * other users can read them. */
#ifndef WS_PUSH_DISK_H
#define WS_PUSH_DISK_H

#include "wsync/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ws_disk {
	char *dir;  /* owned, like the following */
	char *tmp;  /* being written; NULL: nothing is */
	char *lock; /* of it */
	int lock_fd;
};

#define WS_DISK_INIT { 0, 0, 0, -1 }

/* What dir would have to hold: WS_ESYSTEM where there is no room for so many bytes. A directory
 * that does not exist yet has room. */
int ws_disk_room(const char *dir, uint64_t bytes, struct ws_err *err);

/* Makes dir (not what it lies in) where it is missing, removes what the dead have left there,
 * and makes d->tmp, into which the caller writes files. */
int ws_disk_begin(struct ws_disk *d, const char *dir, struct ws_err *err);

struct ws_disk_note {
	uint64_t digest;
	const char *source, *weight_version; /* NULL: none */
	const char *const *urls;
	size_t n_urls;
};
/* The name that it gets, if it is free: "wsync-120". Returns dst. */
char *ws_disk_name(const struct ws_disk_note *note, char *dst, size_t n);
/* Gives it that name, or with a number behind it. *name is in dir; free it. */
int ws_disk_publish(struct ws_disk *d, const struct ws_disk_note *note, char **name,
                    struct ws_err *err);
void ws_disk_end(struct ws_disk *d); /* what was not published is removed */

/* Of those that were written for these endpoints, and for no others, all are removed but the
 * newest `keep`. The newest is that of name `last`, whatever time its file has; NULL: the times
 * say it. told, which may be NULL, hears of each that cannot be removed. */
void ws_disk_prune(const char *dir, const char *last, size_t keep, const char *const *urls,
                   size_t n_urls, void (*told)(void *ctx, const struct ws_err *why), void *ctx);
/* Removes this one. */
int ws_disk_remove(const char *dir, const char *name, struct ws_err *err);

#endif
