/* SPDX-License-Identifier: Apache-2.0 */
/* A whole safetensors file. What is accepted must tile the file and be found by its names. */
#include "name_index.h"
#include "safetensors.h"

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
	struct ws_safetensors st;
	struct ws_names names;
	struct ws_err err = WS_ERR_INIT;
	size_t twice[2];
	uint64_t end = 0;
	if (ws_safetensors_parse(data, size, "fuzz", &st, &err)) {
		require(err.code == WS_EINPUT && err.msg[0]);
		return 0;
	}
	require(ws_names_init(&names, st.tensors, sizeof *st.tensors, st.n_tensors, twice, &err) ==
	        0);
	for (size_t i = 0; i < st.n_tensors; i++) {
		const struct ws_tensor *t = &st.tensors[i];
		uint64_t bytes;
		require(i == 0 || t->offset == end);
		require(ws_dtype_bytes(t->dtype, t->n_dims, t->dims, &bytes) && bytes == t->bytes);
		require(ws_names_find(&names, t->name) == t);
		end = t->offset + t->bytes;
	}
	require(st.n_tensors == 0 || end == size);
	ws_names_fini(&names);
	ws_safetensors_free(&st);
	return 0;
}
