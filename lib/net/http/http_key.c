/* SPDX-License-Identifier: Apache-2.0 */
/* http_key.c - reads a key from a file or a pipe, such as `<(pass show gpu7)`. */
#include "http.h"

#include "file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_KEY = 4096 };

/* Reads the first line of fd, at most `room` bytes, and ignores the rest. */
static ssize_t read_line(int fd, char *dst, size_t room)
{
	size_t n = 0;
	while (n < room && !memchr(dst, '\n', n)) {
		const ssize_t got = read(fd, dst + n, room - n);
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return -1;
		if (got == 0)
			break;
		n += (size_t)got;
	}
	const char *end = memchr(dst, '\n', n);
	return end ? end - dst : (ssize_t)n;
}

static int trim_key(const char *path, const char *line, size_t n, char **secret, struct ws_err *err)
{
	if (n > MAX_KEY)
		return ws_err_set(err, WS_EINPUT, "%s: first line is longer than %d bytes", path,
		                  MAX_KEY);
	while (n && strchr(" \t\r", line[n - 1]) && line[n - 1])
		n--;
	while (n && (*line == ' ' || *line == '\t'))
		line++, n--;
	if (!n)
		return ws_err_set(err, WS_EINPUT, "%s: holds no key", path);
	for (size_t i = 0; i < n; i++)
		if ((unsigned char)line[i] < 0x20 || line[i] == 0x7f)
			return ws_err_set(err, WS_EINPUT, "%s: key has control characters", path);
	*secret = strndup(line, n);
	return *secret ? 0 : ws_oom(err);
}

int ws_http_read_key(const char *path, char **secret, bool *loose, struct ws_err *err)
{
	char line[MAX_KEY + 256];
	const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
	if (fd < 0) {
		const int missing = errno == ENOENT;
		ws_err_errno(err, "API key file %s", path);
		if (missing && err)
			err->code = WS_EINPUT;
		return -1;
	}
	struct stat st = { 0 };
	int rc = -1;
	if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && ws_file_check_places(fd, path, err)) {
		close(fd);
		return -1;
	}
	const ssize_t n = read_line(fd, line, sizeof line);
	if (n < 0)
		ws_err_errno(err, "read %s", path);
	else
		rc = trim_key(path, line, (size_t)n, secret, err);
	if (!rc && loose)
		*loose = S_ISREG(st.st_mode) && (st.st_mode & (S_IRGRP | S_IROTH));
	explicit_bzero(line, sizeof line);
	close(fd);
	return rc;
}
