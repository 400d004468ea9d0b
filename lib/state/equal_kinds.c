/* SPDX-License-Identifier: Apache-2.0 */
#include "equal_kinds.h"

#include "file.h"
#include "hash.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

static bool find_path(const char *state_dir, const char *server, char *dir, char *path)
{
	const uint64_t hash = ws_hash64(server, strlen(server));
	return snprintf(dir, PATH_MAX, "%s/equal", state_dir) < PATH_MAX &&
	       snprintf(path, PATH_MAX, "%s/%016" PRIx64, dir, hash) < PATH_MAX;
}

void ws_equal_kinds_read(const char *state_dir, const char *server, struct ws_buf *out)
{
	char dir[PATH_MAX], path[PATH_MAX];
	struct ws_buf text;
	const size_t n = strlen(server);
	ws_buf_init(&text, WS_EQUAL_KINDS_MAX);
	if (find_path(state_dir, server, dir, path) &&
	    ws_file_read_owned(path, WS_FILE_OWN, &text, NULL) == 0) {
		const char *all = ws_buf_str(&text);
		if (strncmp(all, server, n) == 0 && all[n] == '\n')
			ws_buf_puts(out, all + n + 1);
	}
	ws_buf_free(&text);
}

void ws_equal_kinds_write(const char *state_dir, const char *server, const char *kinds)
{
	char dir[PATH_MAX], path[PATH_MAX];
	struct ws_buf text;
	ws_buf_init(&text, WS_EQUAL_KINDS_MAX);
	ws_buf_printf(&text, "%s\n%s", server, kinds);
	if (find_path(state_dir, server, dir, path) && !ws_buf_check(&text, path, NULL) &&
	    !ws_file_own_directory(dir, NULL))
		(void)ws_file_replace(path, text.data, text.len, 0600, NULL);
	ws_buf_free(&text);
}

bool ws_equal_kinds_has(const char *kinds, const char *kind)
{
	const size_t n = strlen(kind);
	for (const char *line = kinds; *line;) {
		const char *end = strchrnul(line, '\n');
		if ((size_t)(end - line) == n && memcmp(line, kind, n) == 0)
			return true;
		line = *end ? end + 1 : end;
	}
	return false;
}
