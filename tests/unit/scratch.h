/* SPDX-License-Identifier: Apache-2.0 */
/* scratch.h - an empty current directory for each test that works with files. */
#ifndef TESTS_SCRATCH_H
#define TESTS_SCRATCH_H

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char scratch_start[4096];

static int scratch_enter(void **state)
{
	char dir[] = "/tmp/wsync-test-XXXXXX";
	if (!getcwd(scratch_start, sizeof scratch_start) || !mkdtemp(dir) || chdir(dir))
		return -1;
	*state = strdup(dir);
	return *state ? 0 : -1;
}

static int scratch_drop(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
	(void)st, (void)flag, (void)ftw;
	return remove(path);
}

static int scratch_leave(void **state)
{
	if (chdir(scratch_start))
		return -1;
	const int rc = nftw(*state, scratch_drop, 16, FTW_DEPTH | FTW_PHYS);
	free(*state);
	return rc;
}

static inline void put_bytes(const char *path, const void *data, size_t n)
{
	FILE *f = fopen(path, "wb");
	if (!f || fwrite(data, 1, n, f) != n || fclose(f)) {
		perror(path);
		abort();
	}
}

static inline void put_text(const char *path, const char *text)
{
	put_bytes(path, text, strlen(text));
}

#define SCRATCH_TEST(name) TEST_BETWEEN(name, scratch_enter, scratch_leave)

#endif
