/* SPDX-License-Identifier: Apache-2.0 */
/* output.c - see output.h. A device or a pipe is refused: a rename would put a file in its
 * place. */
#include "wsync/tool/output.h"

#include "file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LINKS_MAX = 40 };

/* Follows links, also to a file that does not exist yet. Whoever can make a link there would choose
 * what this user overwrites, so links of others are not followed: NULL with EPERM. The caller frees
 * the path. */
static char *follow(const char *path)
{
	char to[4096];
	ssize_t n;
	struct stat st;
	char *at = strdup(path);
	for (int links = 0; at && links < LINKS_MAX && (n = readlink(at, to, sizeof to)) > 0;
	     links++) {
		if (lstat(at, &st) == 0 && st.st_uid != geteuid() && st.st_uid != 0) {
			free(at);
			errno = EPERM;
			return NULL;
		}
		const char *slash = strrchr(at, '/');
		const int directory = *to != '/' && slash ? (int)(slash + 1 - at) : 0;
		char *next = NULL;
		if ((size_t)n == sizeof to ||
		    asprintf(&next, "%.*s%.*s", directory, at, (int)n, to) < 0)
			next = NULL;
		free(at);
		at = next;
	}
	return at;
}

/* Finds the target and the temporary file beside it; the caller frees both, also on failure. */
static int find_paths(const char *path, char **target, char **tmp, struct ws_err *err)
{
	struct stat st;
	*tmp = NULL;
	*target = realpath(path, NULL);
	if (!*target && errno != ENOENT) /* a new file, or its directory is missing */
		return ws_err_errno(err, "write %s", path);
	free(*target);
	*target = follow(path);
	if (!*target && errno == EPERM)
		return ws_err_set(err, WS_EUSAGE, "write %s: it is a link of another user", path);
	if (!*target)
		return ws_oom(err);
	if (stat(*target, &st) == 0 && !S_ISREG(st.st_mode))
		return ws_err_set(err, WS_ESYSTEM, "write %s: %s", path,
		                  S_ISDIR(st.st_mode) ? "it is a directory" : "not a regular file");
	if (asprintf(tmp, "%s.%d.tmp", *target, (int)getpid()) < 0) {
		*tmp = NULL;
		return ws_oom(err);
	}
	unlink(*tmp); /* left by a dead process with our process id */
	return 0;
}

/* Refuses to replace other kinds of files. mktemp(1) creates an empty file: it may be replaced. */
static int check_contents(const char *path, const char *target, const struct ws_output_kind *kind,
                          struct ws_err *err)
{
	char begins[256] = "";
	const size_t want =
		strlen(kind->begins) < sizeof begins ? strlen(kind->begins) : sizeof begins;
	const int fd = open(target, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0)
		return errno == ENOENT ?
		               0 :
		               ws_err_errno(err, "read %s, which would be replaced", path);
	const ssize_t n = pread(fd, begins, want, 0);
	if (n < 0)
		ws_err_errno(err, "read %s, which would be replaced", path);
	close(fd);
	if (n < 0)
		return -1;
	if (n == 0 || ((size_t)n == want && memcmp(begins, kind->begins, want) == 0))
		return 0;
	ws_err_set(err, WS_EUSAGE, "%s is there and is not %s: it is not replaced", path,
	           kind->name);
	return ws_err_hint(err, "name another file, or remove this one first");
}

int ws_output_check(const char *path, const struct ws_output_kind *kind, struct ws_err *err)
{
	static const struct ws_buf nothing = { 0 };
	char *target = NULL, *tmp = NULL;
	if (!*path)
		return ws_err_set(err, WS_EUSAGE, "the name of the file is empty");
	if (strcmp(path, "-") == 0) {
		ws_err_set(err, WS_EUSAGE, "'-' is no file: standard output has lines of its own");
		return ws_err_hint(err, "name a file, \"./-\" if it is to be called that");
	}
	int rc = find_paths(path, &target, &tmp, err);
	if (rc == 0)
		rc = check_contents(path, target, kind, err);
	if (rc == 0)
		rc = ws_file_make(tmp, ws_buf_str(&nothing), 0, err);
	if (rc == 0)
		unlink(tmp);
	free(target);
	free(tmp);
	return rc;
}

int ws_output_write(const char *path, const struct ws_buf *bytes, struct ws_err *err)
{
	char *target = NULL, *tmp = NULL;
	int rc = find_paths(path, &target, &tmp, err);
	if (rc == 0)
		rc = ws_file_make(tmp, ws_buf_str(bytes), bytes->len, err);
	if (rc == 0 && rename(tmp, target)) {
		rc = ws_err_errno(err, "replace %s", path);
		unlink(tmp);
	}
	free(target);
	free(tmp);
	return rc;
}

int ws_output_read(const char *path, struct ws_buf *out)
{
	return ws_file_read(path, out, NULL);
}
