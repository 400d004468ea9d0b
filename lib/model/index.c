/* SPDX-License-Identifier: Apache-2.0 */
/* index.c - the index of a sharded Hugging Face checkpoint:
 *
 *   {"metadata": {"total_size": 123},
 *    "weight_map": {"NAME": "model-00001-of-00002.safetensors", ...}}
 *
 * Only weight_map is read. A shard is a file beside the index: a path that leads elsewhere would
 * let a downloaded checkpoint read any file of ours. */
#include "index.h"

#include "file.h"
#include "names.h"
#include "scan.h"
#include "wsync/buf.h"
#include "wsync/str.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_INDEX = 256 << 20 };

static int check_shard(const struct ws_scan *s, const char *name, const char *shard)
{
	char clean[256];
	const size_t len = strlen(shard);
	const char *why = NULL;
	if (len == 0)
		why = "is empty";
	else if (len >= sizeof clean)
		why = "is longer than 255 bytes";
	else if (strcmp(ws_printable(clean, sizeof clean, shard, len), shard) != 0)
		why = "has a control character";
	else if (strchr(shard, '/') || strcmp(shard, "..") == 0 || strcmp(shard, ".") == 0)
		why = "is not the name of a file beside the index";
	if (!why)
		return 0;
	return ws_scan_refuse(s, "weight_map: the shard '%s' of tensor '%s' %s",
	                      ws_quote(shard).text, ws_quote(name).text, why);
}

static int read_weight_map(struct ws_scan *s, struct ws_index *index)
{
	size_t n = 0, cap = 0;
	int more;
	if (ws_scan_open(s, '{', "weight_map"))
		return -1;
	while ((more = ws_scan_next(s, '}', &n)) > 0) {
		char *name, *shard;
		if (ws_scan_key(s, &name) || ws_scan_string(s, "shard in weight_map", &shard) ||
		    check_shard(s, name, shard))
			return -1;
		if (index->n_entries == cap) {
			cap = cap ? cap * 2 : 256;
			void *p = reallocarray(index->entries, cap, sizeof *index->entries);
			if (!p)
				return ws_err_set(s->err, WS_ESYSTEM, "%s: out of memory", s->path);
			index->entries = p;
		}
		index->entries[index->n_entries++] = (struct ws_index_entry){ name, shard };
	}
	return more;
}

static int by_text(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int list_shards(struct ws_index *index, struct ws_err *err)
{
	index->shards = calloc(index->n_entries, sizeof *index->shards);
	if (!index->shards)
		return ws_err_set(err, WS_ESYSTEM, "%s: out of memory", index->path);
	for (size_t i = 0; i < index->n_entries; i++)
		index->shards[i] = index->entries[i].shard;
	qsort(index->shards, index->n_entries, sizeof *index->shards, by_text);
	size_t n = 0;
	for (size_t i = 0; i < index->n_entries; i++)
		if (n == 0 || strcmp(index->shards[n - 1], index->shards[i]) != 0)
			index->shards[n++] = index->shards[i];
	index->n_shards = n;
	return 0;
}

static int read_index(struct ws_scan *s, struct ws_index *index)
{
	size_t n = 0;
	int more;
	bool seen = false;
	if (ws_scan_open(s, '{', "index"))
		return -1;
	while ((more = ws_scan_next(s, '}', &n)) > 0) {
		char *key;
		if (ws_scan_key(s, &key))
			return -1;
		const bool map = strcmp(key, "weight_map") == 0;
		if (map && seen)
			return ws_scan_refuse(s, "weight_map twice");
		seen |= map;
		if (map ? read_weight_map(s, index) : ws_scan_skip(s))
			return -1;
	}
	if (more || ws_scan_end(s))
		return -1;
	if (!seen)
		return ws_scan_refuse(s, "no weight_map in this index");
	if (index->n_entries == 0)
		return ws_scan_refuse(s, "weight_map is empty");
	return list_shards(index, s->err);
}

/* Takes text, which may be NULL when len is 0. */
static int judge(char *text, size_t len, const char *path, struct ws_index *out,
                 struct ws_err *err)
{
	struct ws_index index = { .path = strdup(path), .text = text };
	struct ws_scan scan = { .text = text, .len = len, .path = path, .err = err };
	const int rc = index.path ? read_index(&scan, &index) :
	               ws_err_set(err, WS_ESYSTEM, "%s: out of memory", path);
	if (rc)
		ws_index_free(&index);
	else
		*out = index;
	return rc;
}

int ws_index_read(const char *path, struct ws_index *out, struct ws_err *err)
{
	struct ws_buf text;
	ws_buf_init(&text, MAX_INDEX);
	if (ws_file_read(path, &text, err)) {
		ws_buf_free(&text);
		return -1;
	}
	return judge(text.data, text.len, path, out, err);
}

int ws_index_parse(const char *text, size_t len, const char *path, struct ws_index *out,
                   struct ws_err *err)
{
	char *copy = malloc(len ? len : 1);
	if (!copy)
		return ws_err_set(err, WS_ESYSTEM, "%s: out of memory", path);
	if (len)
		memcpy(copy, text, len);
	return judge(copy, len, path, out, err);
}

void ws_index_free(struct ws_index *index)
{
	if (!index)
		return;
	free(index->path);
	free(index->text);
	free(index->entries);
	free(index->shards);
	*index = (struct ws_index)WS_INDEX_INIT;
}
