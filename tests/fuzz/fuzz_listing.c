/* SPDX-License-Identifier: Apache-2.0 */
/* A saved listing is refused with a printable sentence, or every entry is fit to be compared. */
#include "listing_read.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
	struct ws_weight_list list;
	struct ws_err err = WS_ERR_INIT;
	if (ws_weight_list_parse((const char *)data, size, "fuzz", &list, &err)) {
		if (err.code != WS_EINPUT)
			abort();
		for (const unsigned char *p = (const unsigned char *)err.msg; *p; p++)
			if (*p < 0x20 || *p == 0x7f)
				abort();
		return 0;
	}
	for (size_t i = 0; i < list.n; i++) {
		const struct ws_weight *w = &list.items[i];
		if (!ws_weight_name_ok(w->name) || w->n_dims > WS_MAX_DIMS ||
		    (*w->dtype && !ws_weight_name_ok(w->dtype)))
			abort();
		for (unsigned d = 0; d < w->n_dims; d++)
			if (w->dims[d] < 0)
				abort();
	}
	ws_weight_list_free(&list);
	return 0;
}
