/* SPDX-License-Identifier: Apache-2.0 */
/* A manifest of shards. No path that is accepted may lead out of its directory. */
#include "shard_list.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

static void require(int true_here)
{
	if (!true_here)
		abort();
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
	struct ws_shard_list list = { 0 };
	struct ws_err err = WS_ERR_INIT;
	if (ws_shard_manifest_parse((const char *)data, size, "dir/fuzz", &list, &err)) {
		require(err.code == WS_EINPUT && err.msg[0]);
	} else {
		require(list.tp > 0 && list.tp <= WS_SHARDS_MAX && list.ep <= WS_SHARDS_MAX);
		for (size_t r = 0; r < list.tp; r++) {
			const char *const *paths = list.ranks[r].items;
			require(list.ranks[r].n > 0);
			for (size_t i = 0; i < list.ranks[r].n; i++)
				require(strncmp(paths[i], "dir/", 4) == 0 && paths[i][4] != '/' &&
				        !strstr(paths[i], "/../") &&
				        strcmp(paths[i], "dir/..") != 0);
		}
	}
	ws_arena_free(&list.arena);
	return 0;
}
