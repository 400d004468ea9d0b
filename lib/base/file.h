/* SPDX-License-Identifier: Apache-2.0 */
/* file.h - files that are read by position, files that are replaced whole, files that are locked.
 *
 * Nothing is mapped: if somebody truncates a mapped file, its reader dies of SIGBUS. The bytes of
 * tensors go from the page cache to the socket without a mapping, too, by sendfile(2). */
#ifndef WS_BASE_FILE_H
#define WS_BASE_FILE_H

#include "wsync/tool/buf.h"
#include "wsync/cancel.h"
#include "wsync/clock.h"
#include "wsync/err.h"

#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>

/* Which file was opened and its last change, as fstat(2) reports them. Any write, truncation,
 * rename, link, unlink, chmod or utimes changes one of these fields. Stores through a mapping of
 * somebody else may not: on tmpfs they change no time at all. */
struct ws_file_id {
	uint64_t dev, ino, size;
	struct timespec modified, changed; /* mtime, ctime */
};

/* Opens a regular file for reading: returns its descriptor, or -1, and fills *id. If the file
 * changed within the current tick of the clock, waits for the next (some milliseconds), so that
 * every later change gets another time. Not found, a directory, a FIFO and the like: WS_EINPUT;
 * permission and the rest: WS_ESYSTEM. */
int ws_file_open(const char *path, struct ws_file_id *id, struct ws_err *err);
/* Is fd still the file that *id describes? WS_EINPUT says how it changed. */
int ws_file_check(int fd, const char *path, const struct ws_file_id *id, struct ws_err *err);
/* Likewise for the file that is at this path now. Opens it, because NFS reports
 * fresh attributes only then. */
int ws_file_check_path(const char *path, const struct ws_file_id *id, struct ws_err *err);
/* A hash of all but the device: that number differs between hosts, and from mount to mount. */
uint64_t ws_file_id_hash(const struct ws_file_id *id);
/* Reads exactly n bytes at `at`. A file that ends before that is WS_EINPUT, never SIGBUS. */
int ws_file_pread(int fd, const char *path, uint64_t at, void *dst, size_t n, struct ws_err *err);

/* Appends the whole file, which may have at most out->max bytes, to *out. Errors as above. */
int ws_file_read(const char *path, struct ws_buf *out, struct ws_err *err);

/* Files that decide what is done in the user's name, such as records, registries and locks, must be
 * plain files of this user that nobody else can write. */
enum ws_file_owner {
	WS_FILE_OWN,          /* reached by no symbolic link, and with one name */
	/* Also root's, and through a link that is this user's or root's. Root also reads a file
	 * whose owner owns its directory. On NFS it reads files of user "nobody", because NFS shows
	 * root's files as that user's. */
	WS_FILE_OWN_OR_ROOTS,
	WS_FILE_LOCK,         /* as OWN; where root's files are shown as nobody's, root's */
};
/* open(2), with mode 0600 for a new file. WS_EINPUT with a native EPERM: it is not trusted; a
 * missing file, or a directory and the like: as ws_file_open. */
int ws_file_open_owned(const char *path, int flags, enum ws_file_owner who, struct ws_err *err);
int ws_file_read_owned(const char *path, enum ws_file_owner who, struct ws_buf *out,
                       struct ws_err *err);
/* Is the directory of this file safe? It must be this user's or root's (root may use any user's).
 * If all users can write there, it must be sticky, as /tmp is. ws_file_open_owned checks that, but
 * not for WS_FILE_LOCK. Errors as above. */
int ws_file_check_place(const char *path, struct ws_err *err);
/* The same for the path, and for the place of the open file fd, to which a link may have led. */
int ws_file_check_places(int fd, const char *path, struct ws_err *err);
/* Is it a directory of this user, no link, where nobody else can write? The directory that holds it
 * is checked as by ws_file_check_place. Errors as above. */
int ws_file_check_directory(const char *path, struct ws_err *err);
int ws_file_own_directory(const char *path, struct ws_err *err); /* creates it, and checks it */

enum ws_file_place { WS_FILE_INSIDE, WS_FILE_OUTSIDE, WS_FILE_TOO_LARGE, WS_FILE_NO_FILE };
/* Opens a file of a checkpoint, which others may have made, for reading: the entry `name` of a
 * directory, if it is a regular file of at most `most` bytes that lies in there. A link out of it
 * is refused, unless it leads to the blobs of the same repository in a cache of the Hugging Face
 * Hub. -1 with *place, which says why; *err is set only if place is NO_FILE, and may stay unset. */
int ws_file_open_inside(int dir, const char *name, uint64_t most, struct stat *st,
                        enum ws_file_place *place, struct ws_err *err);
/* Reads to the end of the file, and closes fd. */
int ws_file_read_fd(int fd, const char *path, struct ws_buf *out, struct ws_err *err);

/* Replaces path by a file with these bytes and this mode, less the umask: temporary file beside it,
 * fsync, rename, fsync of the directory. Either the old or the new file is there at any time.
 * A device, pipe or socket is not replaced (WS_ESYSTEM). */
int ws_file_replace(const char *path, const void *bytes, size_t n, mode_t mode, struct ws_err *err);

/* Creates a new file for writing, with this mode, less the user's umask; fails if it exists.
 * Returns its descriptor, or -1. */
int ws_file_create(const char *path, mode_t mode, struct ws_err *err);
int ws_file_write(int fd, const char *path, const void *bytes, size_t n, struct ws_err *err);
/* Reserves space, so that a full disk fails now. Some file systems can only fail while we write. */
int ws_file_reserve(int fd, const char *path, uint64_t bytes, struct ws_err *err);
/* Syncs the file to the disk, and closes fd also on failure. */
int ws_file_finish(int fd, const char *path, struct ws_err *err);
/* Creates, writes and finishes a small file; removes it on failure. */
int ws_file_make(const char *path, const void *bytes, size_t n, struct ws_err *err);
void ws_file_sync_directory(const char *path); /* as far as its file system can */

/* mkdir -p with mode 0700 for what is missing; path is a directory. */
int ws_file_mkdirs(const char *path, struct ws_err *err);

/* Exclusive advisory lock on path (created 0600 when missing), held until ws_file_unlock or exit.
 * Waits until the deadline: WS_ETIMEOUT. Returns the descriptor, or -1. */
int ws_file_lock(const char *path, enum ws_file_owner who, ws_deadline until,
                 const struct ws_cancel *cancel, struct ws_err *err);
void ws_file_unlock(int fd); /* -1 is fine */

#endif
