/* SPDX-License-Identifier: Apache-2.0 */
/* Names and shapes that a trainer may have saved, against the layout of a small model: whatever
 * is made of them lies within the tensors, and an item has the bytes that its pieces have.
 *
 *   one character: an even one is a checkpoint, an odd one what both of two ranks saved
 *   then lines: NAME DIM DIM ... */
#include "view.h"
#include "wsync/tool/namemap.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { TENSORS_MAX = 64 };

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

static const struct ws_family *family;
static struct ws_layout *layouts[2];

static void require(int true_here)
{
	if (!true_here)
		abort();
}

static void make_layouts(void)
{
	static const char json[] =
		"{\"model_type\":\"qwen3_moe\",\"hidden_size\":8,\"intermediate_size\":8,"
		"\"moe_intermediate_size\":4,\"num_hidden_layers\":2,\"num_attention_heads\":4,"
		"\"num_key_value_heads\":2,\"head_dim\":2,\"num_experts\":2,\"mlp_only_layers\":[0]"
	        ","
		"\"vocab_size\":10,\"attention_bias\":true}";
	static struct ws_namemap *maps;
	static struct ws_config *config;
	struct ws_err err = WS_ERR_INIT;
	require(ws_namemap_open(NULL, &maps, &err) == 0);
	require(ws_config_parse(json, sizeof json - 1, "fuzz", &config, &err) == 0);
	family = ws_namemap_find(maps, config);
	for (unsigned tp = 1; tp <= 2; tp++) {
		const struct ws_layout_opts opts = { .tp = tp };
		require(ws_layout_make(family, config, &opts, &layouts[tp - 1], &err) == 0);
	}
}

/* A line as an entry of a header; where its bytes end, or at, when it is none. */
static uint64_t write_entry(char *line, FILE *header, uint64_t at)
{
	int64_t dims[WS_MAX_DIMS];
	unsigned n = 0;
	uint64_t bytes;
	char *save = NULL, *name = strtok_r(line, " ", &save), *word;
	while (n < WS_MAX_DIMS && (word = strtok_r(NULL, " ", &save)))
		dims[n++] = atoll(word);
	if (!name || strpbrk(name, "\"\\") || !ws_dtype_bytes(WS_DTYPE_BF16, n, dims, &bytes) ||
	    bytes > UINT64_C(1) << 40)
		return at;
	fprintf(header, "%s\"%s\":{\"dtype\":\"BF16\",\"shape\":[", ftell(header) > 9 ? "," : "",
	        name);
	for (unsigned d = 0; d < n; d++)
		fprintf(header, "%s%lld", d ? "," : "", (long long)dims[d]);
	fprintf(header, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)at,
	        (unsigned long long)(at + bytes));
	return at + bytes;
}

/* A file in memory, all holes behind its header; NULL: the names are none for a header. */
static struct ws_source *open_text(char *text)
{
	struct ws_err err = WS_ERR_INIT;
	struct ws_source *s = NULL;
	char path[64], *save = NULL;
	uint64_t at = 0;
	int n = 0;
	const int fd = memfd_create("fuzz", 0);
	FILE *header = fdopen(fd, "w+");
	require(header != NULL);
	fwrite("\0\0\0\0\0\0\0\0{", 1, 9, header);
	for (char *line = strtok_r(text, "\n", &save); line && n < TENSORS_MAX; n++) {
		at = write_entry(line, header, at);
		line = strtok_r(NULL, "\n", &save);
	}
	fputc('}', header);
	const uint64_t length = (uint64_t)ftell(header) - 8;
	rewind(header);
	fwrite(&length, 1, 8, header);
	fflush(header);
	require(ftruncate(fd, (off_t)(8 + length + at)) == 0);
	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	const char *paths[] = { path };
	(void)ws_source_open(paths, 1, &s, &err);
	fclose(header);
	return s;
}

static void check_piece(const struct ws_item *item, const struct ws_piece *p)
{
	uint64_t last = p->at;
	for (unsigned d = 0; d < item->n_dims; d++) {
		require(p->dims[d] > 0 && (p->dims[d] == 1 || p->strides[d] > 0));
		require(d == item->view->axis || p->dims[d] == item->dims[d]);
		last += (uint64_t)((p->dims[d] - 1) * p->strides[d]);
	}
	require((last + 1) * 2 <= p->from->bytes);
}

static void check_items(const struct ws_catalog *c)
{
	for (size_t i = 0; i < ws_catalog_count(c); i++) {
		const struct ws_item *item = ws_catalog_item(c, i);
		struct ws_err err = WS_ERR_INIT;
		uint64_t hash;
		int64_t along = 0;
		require(ws_catalog_find(c, item->name) == item);
		for (size_t k = 0; item->view && k < item->view->n_pieces; k++) {
			check_piece(item, &item->view->pieces[k]);
			along += item->view->pieces[k].dims[item->view->axis];
		}
		require(!item->view || item->n_dims == 0 || along == item->dims[item->view->axis]);
		if (item->bytes < 1 << 16)
			require(ws_item_hash(item, &hash, &err) == 0);
	}
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
	if (!family)
		make_layouts();
	if (size < 2 || size > 1 << 16)
		return 0;
	const bool sharded = data[0] % 2;
	char *text = strndup((const char *)data + 1, size - 1);
	require(text != NULL);
	struct ws_source *s = open_text(text);
	free(text);
	if (!s)
		return 0;
	const struct ws_source *const sources[] = { s, s };
	const struct ws_catalog_opts opts = { .family = family, .layout = layouts[0],
		                              .sharded = sharded ? layouts[1] : NULL };
	struct ws_err err = WS_ERR_INIT;
	struct ws_catalog *c = NULL;
	if (ws_catalog_make(sources, sharded ? 2 : 1, &opts, &c, &err) == 0)
		check_items(c);
	else
		require(err.code == WS_EINPUT && err.msg[0]);
	ws_catalog_free(c);
	ws_source_close(s);
	return 0;
}
