/* SPDX-License-Identifier: Apache-2.0 */
/* A registry that was read is printed, and what was printed is read again as the same. */
#include "registry_file.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
	struct ws_registry r, again;
	struct ws_err err;
	struct ws_buf text;
	if (registry_parse("fuzz", (const char *)data, size, &r, &err))
		return 0;
	ws_buf_init(&text, 0);
	if (!registry_print("fuzz", &r, &text, &err)) {
		if (registry_parse("again", text.data, text.len, &again, &err) || again.n != r.n)
			abort();
		for (size_t i = 0; i < r.n; i++)
			if (strcmp(r.items[i].url, again.items[i].url) ||
			    strcmp(r.items[i].pool, again.items[i].pool))
				abort();
		ws_registry_free(&again);
	}
	ws_buf_free(&text);
	ws_registry_free(&r);
	return 0;
}
