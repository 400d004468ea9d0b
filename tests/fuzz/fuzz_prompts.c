/* SPDX-License-Identifier: Apache-2.0 */
/* Whatever a file of prompts holds is refused, or is prompts that can be asked. */
#include "wsync/tool/prompts.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
	struct ws_prompts p = { 0 };
	struct ws_err err = WS_ERR_INIT;
	if (ws_prompts_parse(&p, (const char *)data, size, "prompts", &err)) {
		if (err.code != WS_EINPUT)
			abort();
	} else {
		if (!p.n || p.n > WS_PROMPTS_MAX)
			abort();
		for (size_t i = 0; i < p.n; i++)
			if (!p.items[i].text == !p.items[i].ids ||
			    (p.items[i].ids && !p.items[i].n_ids) ||
			    (p.items[i].text && !*p.items[i].text))
				abort();
	}
	ws_prompts_free(&p);
	return 0;
}
