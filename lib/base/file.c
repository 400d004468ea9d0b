/* SPDX-License-Identifier: Apache-2.0 */
#include "file.h"

#include "hash.h"
#include "wsync/tool/str.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <linux/magic.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

/* There is no such file to read: the user named a wrong one. */
static int refuse_open(const char *path, struct ws_err *err)
{
	struct stat st;
	const int why = errno;
	const bool dangling = why == ENOENT && lstat(path, &st) == 0 && S_ISLNK(st.st_mode);
	errno = why;
	ws_err_errno(err, dangling ? "open %s, a link whose file is missing" : "open %s", path);
	if (err && (err->native == ENOENT || err->native == ENOTDIR || err->native == ELOOP ||
	            err->native == ENAMETOOLONG))
		err->code = WS_EINPUT;
	return -1;
}

static int open_regular(const char *path, struct stat *st, struct ws_err *err)
{
	/* O_NONBLOCK: a FIFO in the place of a file must not hang us. */
	const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0)
		return refuse_open(path, err);
	if (fstat(fd, st) == 0 && S_ISREG(st->st_mode))
		return fd;
	close(fd);
	return ws_err_set(err, WS_EINPUT, "%s: not a regular file", path);
}

static bool is_later(const struct timespec *a, const struct timespec *b)
{
	return a->tv_sec != b->tv_sec ? a->tv_sec > b->tv_sec : a->tv_nsec > b->tv_nsec;
}

/* File times have the resolution of the kernel's tick: a second write within the same tick leaves
 * no trace. Waits until the tick of the last change is over. For a time in the future (another
 * machine's clock) it waits only a few ticks. */
static int wait_for_tick(int fd, struct stat *st)
{
	struct timespec now, tick = { .tv_nsec = 10000000 };
	clock_getres(CLOCK_REALTIME_COARSE, &tick);
	for (int i = 0; i < 5; i++) {
		clock_gettime(CLOCK_REALTIME_COARSE, &now);
		if (fstat(fd, st))
			return -1;
		if (is_later(&now, &st->st_ctim))
			break;
		nanosleep(&tick, NULL);
	}
	return 0;
}

int ws_file_open(const char *path, struct ws_file_id *id, struct ws_err *err)
{
	struct stat st;
	const int fd = open_regular(path, &st, err);
	if (fd < 0)
		return -1;
	if (wait_for_tick(fd, &st)) {
		ws_err_errno(err, "open %s", path);
		close(fd);
		return -1;
	}
	*id = (struct ws_file_id){ .dev = st.st_dev, .ino = st.st_ino, .size = (uint64_t)st.st_size,
		                   .modified = st.st_mtim, .changed = st.st_ctim };
	return fd;
}

static bool is_equal(const struct timespec *a, const struct timespec *b)
{
	return a->tv_sec == b->tv_sec && a->tv_nsec == b->tv_nsec;
}

static int compare_id(const struct stat *st, const char *path, const struct ws_file_id *id,
                      struct ws_err *err)
{
	const bool same_file = st->st_dev == id->dev && st->st_ino == id->ino;
	if (same_file && (uint64_t)st->st_size == id->size &&
	    is_equal(&st->st_mtim, &id->modified) && is_equal(&st->st_ctim, &id->changed))
		return 0;
	if (!same_file || st->st_nlink == 0)
		ws_err_set(err, WS_EINPUT,
		           "%s: the file was replaced or removed while it was in use", path);
	else if ((uint64_t)st->st_size != id->size)
		ws_err_set(err, WS_EINPUT,
		           "%s: the file changed from %llu to %llu bytes while it was in use", path,
		           (unsigned long long)id->size, (unsigned long long)st->st_size);
	else if (!is_equal(&st->st_mtim, &id->modified))
		ws_err_set(err, WS_EINPUT, "%s: the file was overwritten while it was in use",
		           path);
	else
		ws_err_set(err, WS_EINPUT,
		           "%s: the file's links or attributes changed while it was in use", path);
	return ws_err_hint(
		err,
		"leave a checkpoint as it is until wsync ends; save each one to a new directory");
}

int ws_file_check(int fd, const char *path, const struct ws_file_id *id, struct ws_err *err)
{
	struct stat st;
	return fstat(fd, &st) ? ws_err_errno(err, "check %s", path) :
	                        compare_id(&st, path, id, err);
}

int ws_file_check_path(const char *path, const struct ws_file_id *id, struct ws_err *err)
{
	struct ws_err why = WS_ERR_INIT;
	struct stat st;
	const int fd = open_regular(path, &st, &why);
	if (fd >= 0) {
		close(fd);
		return compare_id(&st, path, id, err);
	}
	if (why.code == WS_EINPUT)
		return compare_id(&(struct stat){ 0 }, path, id, err);
	if (err)
		*err = why;
	return -1;
}

uint64_t ws_file_id_hash(const struct ws_file_id *id)
{
	const uint64_t all[] = { id->ino,
		                 id->size,
		                 (uint64_t)id->modified.tv_sec,
		                 (uint64_t)id->modified.tv_nsec,
		                 (uint64_t)id->changed.tv_sec,
		                 (uint64_t)id->changed.tv_nsec };
	return ws_hash64(all, sizeof all);
}

int ws_file_pread(int fd, const char *path, uint64_t at, void *dst, size_t n, struct ws_err *err)
{
	char *p = dst;
	while (n) {
		const ssize_t k = pread(fd, p, n, (off_t)at);
		if (k < 0 && errno == EINTR)
			continue;
		if (k < 0)
			return ws_err_errno(err, "read %s", path);
		if (k == 0)
			return ws_err_set(err, WS_EINPUT, "%s: ends at byte %llu, %zu bytes early: "
			                  "it was cut short while in use", path,
			                  (unsigned long long)at, n);
		p += k;
		at += (uint64_t)k;
		n -= (size_t)k;
	}
	return 0;
}

int ws_file_read_fd(int fd, const char *path, struct ws_buf *out, struct ws_err *err)
{
	int rc = -1;
	for (;;) {
		char chunk[65536];
		const ssize_t n = read(fd, chunk, sizeof chunk);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0) {
			ws_err_errno(err, "read %s", path);
			break;
		}
		if (n == 0) {
			rc = 0;
			break;
		}
		if (ws_buf_add(out, chunk, (size_t)n)) {
			ws_err_set(err, WS_EINPUT, "%s: larger than the %zu bytes it may have",
			           path, out->max);
			break;
		}
	}
	close(fd);
	return rc;
}

int ws_file_read(const char *path, struct ws_buf *out, struct ws_err *err)
{
	struct stat st;
	const int fd = open_regular(path, &st, err);
	return fd < 0 ? -1 : ws_file_read_fd(fd, path, out, err);
}

/* ---- files that only this user writes ---- */

enum { NOBODY = 65534 };

static int distrust(struct ws_err *err, const char *path, const char *why)
{
	ws_err_set(err, WS_EINPUT, "%s: %s", path, why);
	if (err)
		err->native = EPERM;
	return -1;
}

static bool is_of(uid_t owner, enum ws_file_owner who)
{
	const uid_t self = geteuid();
	if (owner == self)
		return true;
	/* NFS shows the files that root makes as those of nobody. */
	return (who == WS_FILE_OWN_OR_ROOTS && owner == 0) ||
	       (who == WS_FILE_LOCK && self == 0 && owner == NOBODY);
}

/* The directory of a file: "a" for "a/b", "/" for "/b", "." for "b". */
static bool find_directory(const char *path, char dir[PATH_MAX], struct stat *st)
{
	const char *slash = strrchr(path, '/');
	const int n = !slash ? 0 : slash == path ? 1 : (int)(slash - path);
	return snprintf(dir, PATH_MAX, "%.*s", n ? n : 1, n ? path : ".") < PATH_MAX &&
	       stat(dir, st) == 0;
}

/* Does the same user own its directory, and can no other user write there? */
static bool is_at_home(const char *path, uid_t owner)
{
	char dir[PATH_MAX];
	struct stat st;
	return find_directory(path, dir, &st) && st.st_uid == owner && !(st.st_mode & 022);
}

/* Root may read the registry of a user whom it runs for, and what it wrote to NFS itself. */
static bool is_for_root(int fd, const struct stat *st, const char *path)
{
	struct statfs fs;
	if (geteuid() != 0)
		return false;
	return is_at_home(path, st->st_uid) ||
	       (st->st_uid == NOBODY && !fstatfs(fd, &fs) && fs.f_type == NFS_SUPER_MAGIC);
}

static int check_trust(const struct stat *st, const char *path, enum ws_file_owner who, int fd,
                       struct ws_err *err)
{
	if (!is_of(st->st_uid, who) &&
	    !(who == WS_FILE_OWN_OR_ROOTS && is_for_root(fd, st, path))) {
		distrust(err, path, "belongs to another user, so it is not trusted");
		return who != WS_FILE_OWN_OR_ROOTS ? -1 :
		       ws_err_hint(err, "check what it holds, then run: chown %u %s",
		                   (unsigned)geteuid(), ws_shell_word(path).text);
	}
	if (!(st->st_mode & 022))
		return 0;
	distrust(err, path,
	         S_ISDIR(st->st_mode) ? "others can write there, so its files are not trusted" :
	                                "others can write it, so it is not trusted");
	return ws_err_hint(err, "check what it holds, then run: chmod go-w %s",
	                   ws_shell_word(path).text);
}

/* May files in a directory of this owner decide for us? Root may work for the user whose directory
 * it is, as in a container. */
static bool is_owner_trusted(uid_t owner)
{
	return owner == geteuid() || owner == 0 || geteuid() == 0;
}

int ws_file_check_place(const char *path, struct ws_err *err)
{
	char dir[PATH_MAX];
	struct stat st;
	if (!find_directory(path, dir, &st))
		return 0; /* then the file cannot be opened either */
	if (!is_owner_trusted(st.st_uid)) {
		distrust(err, dir, "belongs to another user, so its files are not trusted");
		return ws_err_hint(err, "use a directory of your own");
	}
	/* A group often has one user only, so its write permission is no danger (umask 002). In a
	 * sticky directory like /tmp nobody can replace the files of others. */
	if (!(st.st_mode & S_IWOTH) || st.st_mode & S_ISVTX)
		return 0;
	distrust(err, dir, "others can write there, so its files are not trusted");
	return ws_err_hint(err, "use a directory of your own, or check what this one holds, then "
	                        "run: chmod o-w %s", ws_shell_word(dir).text);
}

/* What the descriptor was opened as, without links; "": unknown. */
static void real_path(int fd, char *path)
{
	char link[32];
	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	const ssize_t n = readlink(link, path, PATH_MAX - 1);
	path[n > 0 && path[0] == '/' ? n : 0] = 0;
}

int ws_file_check_places(int fd, const char *path, struct ws_err *err)
{
	char real[PATH_MAX];
	real_path(fd, real);
	return ws_file_check_place(path, err) || (*real && ws_file_check_place(real, err)) ? -1 : 0;
}

/* May this link be followed? Whoever can make one where we read or write would choose our file. */
static bool is_trusted_link(const char *path)
{
	struct stat st;
	return lstat(path, &st) || !S_ISLNK(st.st_mode) || is_of(st.st_uid, WS_FILE_OWN_OR_ROOTS);
}

int ws_file_open_owned(const char *path, int flags, enum ws_file_owner who, struct ws_err *err)
{
	const bool follow = who == WS_FILE_OWN_OR_ROOTS && is_trusted_link(path);
	struct stat st;
	/* O_NONBLOCK: a FIFO in the place of a file must not hang us. */
	const int fd = open(path,
	                    flags | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | (follow ? 0 : O_NOFOLLOW),
	                    0600);
	if (fd < 0 && errno == ELOOP)
		return distrust(err, path, "is a symbolic link, so it is not trusted");
	if (fd < 0)
		return flags & O_CREAT ? ws_err_errno(err, "open %s", path) :
		                         refuse_open(path, err);
	if (fstat(fd, &st))
		ws_err_errno(err, "open %s", path);
	else if (!S_ISREG(st.st_mode))
		ws_err_set(err, WS_EINPUT, "%s: is not a plain file", path);
	else if (st.st_nlink > 1 && !follow)
		distrust(err, path, "has another name, so it is not trusted");
	else if (check_trust(&st, path, who, fd, err) == 0 &&
	         (who == WS_FILE_LOCK || ws_file_check_places(fd, path, err) == 0))
		return fd;
	close(fd);
	return -1;
}

int ws_file_read_owned(const char *path, enum ws_file_owner who, struct ws_buf *out,
                       struct ws_err *err)
{
	const int fd = ws_file_open_owned(path, O_RDONLY, who, err);
	return fd < 0 ? -1 : ws_file_read_fd(fd, path, out, err);
}

int ws_file_check_directory(const char *path, struct ws_err *err)
{
	struct stat st;
	if (lstat(path, &st))
		return ws_err_errno(err, "open %s", path);
	if (S_ISLNK(st.st_mode))
		return distrust(err, path, "is a symbolic link, so it is not trusted");
	if (!S_ISDIR(st.st_mode)) {
		errno = ENOTDIR;
		return ws_err_errno(err, "open %s", path);
	}
	return check_trust(&st, path, WS_FILE_OWN, -1, err) || ws_file_check_place(path, err) ? -1 :
	                                                                                         0;
}

int ws_file_own_directory(const char *path, struct ws_err *err)
{
	return ws_file_mkdirs(path, err) || ws_file_check_directory(path, err) ? -1 : 0;
}

/* ---- files of a checkpoint ---- */

static bool is_in(const char *path, const char *dir, size_t n)
{
	return strncmp(path, dir, n) == 0 && path[n] == '/';
}

static bool lies_in(const char *path, const char *dir)
{
	return *dir && is_in(path, dir, strcmp(dir, "/") == 0 ? 0 : strlen(dir));
}

/* A cache of the Hugging Face Hub has its files in REPOSITORY/blobs, and links to them in
 * REPOSITORY/snapshots/COMMIT. */
static bool is_blob_of(const char *path, const char *dir)
{
	static const char snapshots[] = "/snapshots", blobs[] = "/blobs";
	const char *slash = strrchr(dir, '/');
	const size_t n = slash ? (size_t)(slash - dir) : 0, k = sizeof snapshots - 1;
	return n > k && strncmp(slash - k, snapshots, k) == 0 &&
	       strncmp(path, dir, n - k) == 0 && is_in(path + n - k, blobs, sizeof blobs - 1);
}

int ws_file_open_inside(int dir, const char *name, uint64_t most, struct stat *st,
                        enum ws_file_place *place, struct ws_err *err)
{
	char at[PATH_MAX], root[PATH_MAX];
	/* The terminal of another program must not become ours. */
	const int fd = openat(dir, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	*place = WS_FILE_NO_FILE;
	if (fd < 0)
		return errno == ENOENT || errno == ELOOP ? -1 : ws_err_errno(err, "open %s", name);
	real_path(fd, at);
	real_path(dir, root);
	if (fstat(fd, st) == 0 && S_ISREG(st->st_mode))
		*place = !lies_in(at, root) && !is_blob_of(at, root) ? WS_FILE_OUTSIDE :
		         (uint64_t)st->st_size > most                ? WS_FILE_TOO_LARGE :
		                                                       WS_FILE_INSIDE;
	if (*place == WS_FILE_INSIDE)
		return fd;
	close(fd);
	return -1;
}

static int write_all(int fd, const char *bytes, size_t n)
{
	while (n) {
		const ssize_t k = write(fd, bytes, n);
		if (k < 0 && errno == EINTR)
			continue;
		if (k < 0)
			return -1;
		bytes += k;
		n -= (size_t)k;
	}
	return 0;
}

void ws_file_sync_directory(const char *path)
{
	const int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return;
	/* Some file systems refuse fsync on a directory; the rename is atomic all the same. */
	(void)fsync(fd);
	close(fd);
}

static void sync_directory_of(const char *path)
{
	char *copy = strdup(path);
	if (copy)
		ws_file_sync_directory(dirname(copy));
	free(copy);
}

/* tmp ends in XXXXXX, which become a name of its own. */
static int make_temporary(char *tmp, mode_t mode)
{
	const int fd = mkostemp(tmp, O_CLOEXEC);
	if (fd < 0 || mode == 0600)
		return fd;
	unlink(tmp); /* only a file that is created with its mode obeys the umask */
	close(fd);
	return open(tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
}

/* A rename would put a regular file in the place of /dev/null, or of the link /dev/stdout. */
static int refuse_special(const char *path, struct ws_err *err)
{
	struct stat st;
	if (stat(path, &st) || S_ISREG(st.st_mode) || S_ISDIR(st.st_mode))
		return 0;
	return ws_err_set(err, WS_ESYSTEM, "write %s: not a regular file", path);
}

int ws_file_replace(const char *path, const void *bytes, size_t n, mode_t mode, struct ws_err *err)
{
	char *tmp = NULL;
	if (refuse_special(path, err))
		return -1;
	if (asprintf(&tmp, "%s.XXXXXX", path) < 0)
		return ws_oom(err);
	int rc = -1;
	int fd = make_temporary(tmp, mode);
	if (fd < 0) {
		ws_err_errno(err, "write %s", path);
		goto out;
	}
	if (write_all(fd, bytes, n) || fsync(fd)) {
		ws_err_errno(err, "write %s", path);
		goto remove;
	}
	if (close(fd)) {
		fd = -1;
		ws_err_errno(err, "write %s", path);
		goto remove;
	}
	fd = -1;
	if (rename(tmp, path)) {
		ws_err_errno(err, "replace %s", path);
		goto remove;
	}
	sync_directory_of(path);
	rc = 0;
	goto out;
remove:
	unlink(tmp);
	if (fd >= 0)
		close(fd);
out:
	free(tmp);
	return rc;
}

int ws_file_create(const char *path, mode_t mode, struct ws_err *err)
{
	const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
	return fd < 0 ? ws_err_errno(err, "create %s", path) : fd;
}

int ws_file_write(int fd, const char *path, const void *bytes, size_t n, struct ws_err *err)
{
	return write_all(fd, bytes, n) ? ws_err_errno(err, "write %s", path) : 0;
}

int ws_file_reserve(int fd, const char *path, uint64_t bytes, struct ws_err *err)
{
	if (fallocate(fd, 0, 0, (off_t)bytes) &&
	    (errno == ENOSPC || errno == EDQUOT || errno == EFBIG))
		return ws_err_errno(err, "write %s", path);
	return 0;
}

int ws_file_finish(int fd, const char *path, struct ws_err *err)
{
	int rc = fsync(fd) ? ws_err_errno(err, "write %s", path) : 0;
	if (close(fd) && rc == 0)
		rc = ws_err_errno(err, "write %s", path);
	return rc;
}

int ws_file_make(const char *path, const void *bytes, size_t n, struct ws_err *err)
{
	const int fd = ws_file_create(path, 0666, err);
	if (fd < 0)
		return -1;
	int rc = ws_file_write(fd, path, bytes, n, err);
	if (rc)
		close(fd);
	else
		rc = ws_file_finish(fd, path, err);
	if (rc)
		unlink(path);
	return rc;
}

int ws_file_mkdirs(const char *path, struct ws_err *err)
{
	char *copy = strdup(path);
	if (!copy)
		return ws_oom(err);
	int rc = 0;
	for (char *p = copy + 1; rc == 0; p++) {
		const char c = *p;
		if (c != '/' && c != 0)
			continue;
		*p = 0;
		if (mkdir(copy, 0700) && errno != EEXIST)
			rc = ws_err_errno(err, "create directory %s", copy);
		*p = c;
		if (c == 0)
			break;
	}
	free(copy);
	return rc;
}

int ws_file_lock(const char *path, enum ws_file_owner who, ws_deadline until,
                 const struct ws_cancel *cancel, struct ws_err *err)
{
	const int fd = ws_file_open_owned(path, O_RDWR | O_CREAT, who, err);
	if (fd < 0)
		return -1;
	while (flock(fd, LOCK_EX | LOCK_NB)) {
		if (errno != EWOULDBLOCK && errno != EINTR) {
			ws_err_errno(err, "lock %s", path);
			goto fail;
		}
		if (ws_cancelled(cancel)) {
			ws_err_set(err, WS_ECANCELLED, "lock %s: cancelled", path);
			goto fail;
		}
		if (ws_deadline_passed(until)) {
			ws_err_set(err, WS_ETIMEOUT, "lock %s: another process holds it", path);
			goto fail;
		}
		/* flock has no timeout; holders keep the lock for milliseconds. */
		struct pollfd p = { .fd = ws_cancel_fd(cancel), .events = POLLIN };
		poll(&p, 1, ws_deadline_poll_ms(until, 10));
	}
	return fd;
fail:
	close(fd);
	return -1;
}

void ws_file_unlock(int fd)
{
	if (fd >= 0)
		close(fd);
}
