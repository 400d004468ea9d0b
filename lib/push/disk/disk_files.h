/* SPDX-License-Identifier: Apache-2.0 */
/* disk_files.h - what lies in one directory of disk.h. */
#ifndef WS_PUSH_DISK_FILES_H
#define WS_PUSH_DISK_FILES_H

#include "disk.h"

#include <time.h>

/* Writes wsync.json, which lists what else lies there. */
int ws_disk_files_note(const char *path, const struct ws_disk_note *note, struct ws_err *err);
/* 0: all that lies there is what our wsync.json lists. */
int ws_disk_files_are_ours(const char *path, struct ws_err *err);
/* Is there a wsync.json that names endpoints, and these only? When was it written? */
bool ws_disk_files_are_for(const char *path, const char *const *urls, size_t n_urls,
                           struct timespec *when);
/* Removes the files in it and the directory itself. One that is not there is removed. */
int ws_disk_files_remove(const char *path, struct ws_err *err);

#endif
