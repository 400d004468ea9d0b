/* SPDX-License-Identifier: Apache-2.0 */
/* Whatever a saved answer holds is refused or has all the experts of its tokens. */
#include "wsync/tool/routing.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
	static const struct ws_routing_shape shape = {
		.layers = 2, .k = 2, .experts = 4, .dense = { true, false }, .n_dense = 1,
	};
	struct ws_routing r;
	struct ws_routing_check c;
	struct ws_routing_diff d;
	struct ws_err err = WS_ERR_INIT;
	if (ws_routing_parse((const char *)data, size, "answer", &shape, &r, &err)) {
		if ((err.code != WS_EINPUT && err.code != WS_EMISMATCH) || r.ids)
			abort();
		return 0;
	}
	ws_routing_check(&r, &shape, &c);
	if (c.outside + c.repeated + c.dense > r.tokens * r.layers)
		abort();
	if (ws_routing_compare(&r, &r, &shape, &d, &err) || d.equal != r.tokens)
		abort();
	ws_routing_diff_free(&d);
	ws_routing_free(&r);
	return 0;
}
