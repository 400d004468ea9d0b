/* SPDX-License-Identifier: Apache-2.0 */
/* files.h - finds the safetensors files for the paths that a user gives. */
#ifndef WS_MODEL_FILES_H
#define WS_MODEL_FILES_H

#include "wsync/err.h"

#include <stddef.h>

struct ws_file_list {
	char **paths;
	size_t n_paths;
	struct ws_index *indices;
	size_t *first_of_index; /* paths[first_of_index[i] ...] are the shards of indices[i] */
	size_t n_indices;
	char *config_dir;       /* the first directory with a config.json; NULL: none */
	/* a warning for each directory that other programs read differently */
	char **warnings;
	size_t n_warnings;
};

#define WS_FILE_LIST_INIT { 0, 0, 0, 0, 0, 0, 0, 0 }

/* Adds the files of one path: a file, an index, a directory, or hf:ORG/NAME (hub.h). */
int ws_files_add(struct ws_file_list *list, const char *path, struct ws_err *err);
void ws_files_free(struct ws_file_list *list); /* NULL is fine */

/* model.safetensors.index.json: maps tensors to shards. */
struct ws_index_entry {
	const char *name, *shard;
};

struct ws_index {
	char *path;                     /* of the index itself */
	char *text;                     /* names and shards point into it */
	struct ws_index_entry *entries; /* as in the file; may contain duplicate names */
	size_t n_entries;
	const char **shards;            /* each once, sorted: plain file names beside the index */
	size_t n_shards;
};

#define WS_INDEX_INIT { 0, 0, 0, 0, 0, 0 }

int ws_index_read(const char *path, struct ws_index *out, struct ws_err *err);
/* The same for a text in memory, which is copied. */
int ws_index_parse(const char *text, size_t len, const char *path, struct ws_index *out,
                   struct ws_err *err);
void ws_index_free(struct ws_index *index); /* NULL is fine */

#endif
