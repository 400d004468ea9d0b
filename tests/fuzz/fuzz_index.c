/* SPDX-License-Identifier: Apache-2.0 */
/* A model.safetensors.index.json. No shard that is accepted may lead out of its directory. */
#include "files.h"

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
	struct ws_index index;
	struct ws_err err = WS_ERR_INIT;
	if (ws_index_parse((const char *)data, size, "fuzz", &index, &err)) {
		require(err.code == WS_EINPUT && err.msg[0]);
		return 0;
	}
	require(index.n_entries >= index.n_shards && index.n_shards > 0);
	for (size_t i = 0; i < index.n_shards; i++) {
		const char *shard = index.shards[i];
		require(*shard && !strchr(shard, '/') && strcmp(shard, "..") != 0);
		require(i == 0 || strcmp(index.shards[i - 1], shard) < 0);
	}
	ws_index_free(&index);
	return 0;
}
