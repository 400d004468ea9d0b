/* SPDX-License-Identifier: Apache-2.0 */
/* shard_manifest.c - reads a file that assigns shards to ranks:
 *
 *   {"tp": 2, "ep": 1, "shards": [["rank0/a.safetensors", "rank0/b.safetensors"], ["rank1"]]}
 *
 * Shards must be in the manifest's directory or below: other paths would let a downloaded
 * checkpoint read any of the user's files. */
#include "shard_list.h"

#include "file.h"
#include "name_index.h"
#include "wsync/tool/str.h"
#include "wsync/tool/json_read.h"

#include <string.h>

enum { MAX_MANIFEST = 16 << 20 };

static int read_size(const struct ws_json *root, const char *key, const char *path, unsigned *size,
                     struct ws_err *err)
{
	const struct ws_json *node = ws_json_get(root, key);
	int64_t value;
	if (!node)
		return 0;
	if (!ws_json_int(node, &value) || value < 1 || value > WS_SHARDS_MAX)
		return ws_err_set(err, WS_EINPUT, "%s: \"%s\" is no number from 1 to %d", path, key,
		                  WS_SHARDS_MAX);
	if (*size && *size != (uint64_t)value)
		return ws_err_set(err, WS_EUSAGE,
		                  "%s: the checkpoint was saved with %s %lld, not %u", path, key,
		                  (long long)value, *size);
	*size = (unsigned)value;
	return 0;
}

/* Returns NULL for a relative path without "..", else the reason to refuse it. */
static const char *what_is_wrong(const char *file)
{
	char clean[1024];
	const size_t len = strlen(file);
	if (len == 0)
		return "is empty";
	if (len >= sizeof clean)
		return "is longer than 1023 bytes";
	if (strcmp(ws_printable(clean, sizeof clean, file, len), file) != 0)
		return "has a control or hidden character";
	for (const char *s = file;; s += strcspn(s, "/") + 1) {
		const size_t n = strcspn(s, "/");
		if (n == 0 || (n == 2 && memcmp(s, "..", 2) == 0))
			return "is no path below the manifest";
		if (!s[n])
			return NULL;
	}
}

static int add_file(struct ws_shard_list *list, size_t rank, const struct ws_json *node,
                    const char *path, struct ws_err *err)
{
	const char *file = ws_json_string(node);
	const char *why = file ? what_is_wrong(file) : "is no string";
	if (why)
		return ws_err_set(err, WS_EINPUT, "%s: shard '%s' of rank %zu %s", path,
		                  ws_quote(file ? file : "").text, rank, why);
	return ws_shard_add(list, rank, list->dir, file, err);
}

static int read_rank(struct ws_shard_list *list, size_t rank, const struct ws_json *files,
                     const char *path, struct ws_err *err)
{
	if (ws_json_type(files) == WS_JSON_STRING)
		return add_file(list, rank, files, path, err);
	if (ws_json_type(files) != WS_JSON_ARRAY || ws_json_count(files) == 0)
		return ws_err_set(err, WS_EINPUT, "%s: rank %zu has no list of files", path, rank);
	for (const struct ws_json *f = ws_json_first(files); f; f = ws_json_next(f))
		if (add_file(list, rank, f, path, err))
			return -1;
	return 0;
}

static int read_manifest(const struct ws_json *root, const char *path, struct ws_shard_list *list,
                         struct ws_err *err)
{
	const struct ws_json *shards = ws_json_get(root, "shards");
	size_t rank = 0;
	if (ws_json_type(shards) != WS_JSON_ARRAY)
		return ws_err_set(err, WS_EINPUT, "%s: no list of \"shards\" in this manifest",
		                  path);
	if (read_size(root, "tp", path, &list->tp, err) ||
	    read_size(root, "ep", path, &list->ep, err))
		return -1;
	if (list->tp == 0)
		list->tp = ws_json_count(shards) <= WS_SHARDS_MAX ?
		                   (unsigned)ws_json_count(shards) :
		                   0;
	if (list->tp == 0 || ws_json_count(shards) != list->tp)
		return ws_err_set(err, WS_EINPUT, "%s: %zu shards of %u ranks", path,
		                  ws_json_count(shards), list->tp);
	if (ws_shard_make_ranks(list, err))
		return -1;
	for (const struct ws_json *s = ws_json_first(shards); s; s = ws_json_next(s), rank++)
		if (read_rank(list, rank, s, path, err))
			return -1;
	return 0;
}

int ws_shard_manifest_parse(const char *text, size_t n, const char *path,
                            struct ws_shard_list *list, struct ws_err *err)
{
	const char *slash = strrchr(path, '/');
	struct ws_json *root = ws_json_parse(text, n, path, err);
	if (!root)
		return -1;
	list->dir = slash ? ws_arena_text(&list->arena, path,
	                                  slash == path ? 1 : (size_t)(slash - path)) :
	                    ".";
	const int rc = list->dir ? read_manifest(root, path, list, err) : ws_oom(err);
	ws_json_free(root);
	return rc;
}

int ws_shard_manifest(const char *path, struct ws_shard_list *list, struct ws_err *err)
{
	struct ws_buf text;
	ws_buf_init(&text, MAX_MANIFEST);
	int rc = ws_file_read(path, &text, err);
	if (rc == 0)
		rc = ws_shard_manifest_parse(ws_buf_str(&text), text.len, path, list, err);
	ws_buf_free(&text);
	return rc;
}
