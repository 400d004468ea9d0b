/* SPDX-License-Identifier: Apache-2.0 */
/* spans.h - the bytes of an item that is read, as spans for whoever takes them from
 * where they lie: ranges of files, memory of GPUs, or boxes of that; what lies
 * nowhere so is read by a fill. */
#ifndef WS_TRANSFORM_SPANS_H
#define WS_TRANSFORM_SPANS_H

#include "payload.h"
#include "wsync/tool/catalog.h"

struct ws_spans {
	struct ws_span *list;
	size_t n, cap;
	struct ws_strided *strided; /* of the one span of a view of what is on GPUs */
};

int ws_spans_add(struct ws_spans *s, const struct ws_span *span, struct ws_err *err);
/* All of the item, which is not made; s is empty. It borrows from the item and its sources. */
int ws_spans_add_item(struct ws_spans *s, const struct ws_item *item, struct ws_err *err);
struct ws_payload ws_spans_payload(const struct ws_spans *s);
void ws_spans_free(struct ws_spans *s); /* zeros are fine */

#endif
