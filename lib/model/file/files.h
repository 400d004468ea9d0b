/* SPDX-License-Identifier: Apache-2.0 */
/* files.h - from the paths a user names to the safetensors files that are meant. */
#ifndef WS_MODEL_FILES_H
#define WS_MODEL_FILES_H

#include "index.h"

struct ws_file_list {
	char **paths;
	size_t n_paths;
	struct ws_index *indices;
	size_t *first_of_index; /* paths[first_of_index[i] ...] are the shards of indices[i] */
	size_t n_indices;
	char *config_dir;       /* the first directory with a config.json; NULL: none */
	/* one sentence for each directory that other programs read differently */
	char **warnings;
	size_t n_warnings;
};

#define WS_FILE_LIST_INIT { 0, 0, 0, 0, 0, 0, 0, 0 }

/* Adds what one path stands for: a file, an index, or a directory. */
int ws_files_add(struct ws_file_list *list, const char *path, struct ws_err *err);
void ws_files_free(struct ws_file_list *list); /* NULL is fine */

#endif
