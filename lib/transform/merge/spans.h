/* SPDX-License-Identifier: Apache-2.0 */
/* spans.h - the bytes of an item as spans that say where they are: ranges of files, GPU memory, or
 * strided GPU memory. Other bytes are read by a fill. */
#ifndef WS_TRANSFORM_SPANS_H
#define WS_TRANSFORM_SPANS_H

#include "payload.h"
#include "wsync/tool/catalog.h"

struct ws_spans {
	struct ws_span *list;
	size_t n, cap;
	struct ws_strided *strided; /* of the one span of a view of GPU memory */
};

int ws_spans_add(struct ws_spans *s, const struct ws_span *span, struct ws_err *err);
/* Adds all of an item that is not computed; s must be empty. Borrows the item and its sources. */
int ws_spans_add_item(struct ws_spans *s, const struct ws_item *item, struct ws_err *err);
struct ws_payload ws_spans_payload(const struct ws_spans *s);
void ws_spans_free(struct ws_spans *s); /* zeros are fine */

#endif
