/* SPDX-License-Identifier: Apache-2.0 */
/* disk_files.h - the files of one checkpoint directory (disk.h). */
#ifndef WS_PUSH_DISK_FILES_H
#define WS_PUSH_DISK_FILES_H

#include "disk.h"

#include <time.h>

/* Writes wsync.json, which lists the other files there. */
int ws_disk_files_note(const char *path, const struct ws_disk_note *note, struct ws_err *err);
/* A number that changes if a file there is replaced, added, removed or changed: of their names,
 * sizes and times. */
int ws_disk_files_id(const char *path, uint64_t *id, struct ws_err *err);
/* 0: the directory has only files that our wsync.json lists. */
int ws_disk_files_are_ours(const char *path, struct ws_err *err);
/* True if its wsync.json names endpoints, and only these. *when: when it was written. */
bool ws_disk_files_are_for(const char *path, const char *const *urls, size_t n_urls,
                           struct timespec *when);
/* Removes the files and the directory. A missing directory is no error. */
int ws_disk_files_remove(const char *path, struct ws_err *err);

#endif
