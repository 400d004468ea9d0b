/* SPDX-License-Identifier: Apache-2.0 */
/* Whatever a server answers is refused or is an array whose dimensions multiply to its numbers. */
#include "endpoint_call.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
	struct ws_values v;
	struct ws_err err = WS_ERR_INIT;
	enum { MOST = 4096 };
	if (ws_endpoint_decode_values((const char *)data, size, MOST, &v, &err)) {
		if (err.code != WS_EREFUSED || v.numbers)
			abort();
		return 0;
	}
	uint64_t n = 1;
	for (unsigned d = 0; d < v.n_dims; d++)
		n *= (uint64_t)v.dims[d];
	if (!v.n_dims || v.n_dims > WS_MAX_DIMS + 1 || n != v.n || n > MOST)
		abort();
	ws_values_free(&v);
	return 0;
}
