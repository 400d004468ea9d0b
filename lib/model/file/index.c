/* SPDX-License-Identifier: Apache-2.0 */
/* index.c - reads the index of a sharded Hugging Face checkpoint:
 *
 *   {"metadata": {"total_size": 123},
 *    "weight_map": {"NAME": "model-00001-of-00002.safetensors", ...}}
 *
 * Only weight_map is read. Shards must be beside the index: other paths would let a downloaded
 * checkpoint read any of the user's files. */
#include "files.h"

#include "entry.h"
#include "name_index.h"
#include "wsync/tool/str.h"

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
		why = "has a control or hidden character";
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
	const char *last = NULL; /* tensors of a shard are usually together */
	int more;
	if (ws_scan_open(s, '{', "weight_map"))
		return -1;
	while ((more = ws_scan_next(s, '}', &n)) > 0) {
		char *name, *shard;
		if (ws_scan_key(s, &name) || ws_scan_string(s, "shard in weight_map", &shard) ||
		    ((!last || strcmp(shard, last)) && check_shard(s, name, shard)))
			return -1;
		last = shard;
		struct ws_index_entry *p =
			ws_entry_grow(index->entries, index->n_entries, &cap, sizeof *p);
		if (!p)
			return ws_oom(s->err);
		index->entries = p;
		p[index->n_entries++] = (struct ws_index_entry){ name, shard };
	}
	return more;
}

static int by_text(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int list_shards(const struct ws_scan *s, struct ws_index *index)
{
	index->shards = calloc(index->n_entries, sizeof *index->shards);
	if (!index->shards)
		return ws_oom(s->err);
	size_t all = 0, n = 0;
	for (size_t i = 0; i < index->n_entries; i++)
		if (all == 0 || strcmp(index->shards[all - 1], index->entries[i].shard) != 0)
			index->shards[all++] = index->entries[i].shard;
	qsort(index->shards, all, sizeof *index->shards, by_text);
	for (size_t i = 0; i < all; i++)
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
	return list_shards(s, index);
}

/* Takes ownership of the text. */
static int parse_index(struct ws_scan *scan, struct ws_index *out)
{
	struct ws_index index = { .path = strdup(scan->path), .text = scan->text };
	const int rc = index.path ? read_index(scan, &index) : ws_oom(scan->err);
	if (rc)
		ws_index_free(&index);
	else
		*out = index;
	return rc;
}

int ws_index_read(const char *path, struct ws_index *out, struct ws_err *err)
{
	struct ws_scan scan;
	return ws_scan_file(path, MAX_INDEX, &scan, err) ? -1 : parse_index(&scan, out);
}

int ws_index_parse(const char *text, size_t len, const char *path, struct ws_index *out,
                   struct ws_err *err)
{
	struct ws_scan scan;
	return ws_scan_copy(text, len, path, &scan, err) ? -1 : parse_index(&scan, out);
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
