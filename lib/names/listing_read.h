/* SPDX-License-Identifier: Apache-2.0 */
/* listing_read.h - a listing of weights, as servers reply it and as users save it. */
#ifndef WS_NAMES_LISTING_READ_H
#define WS_NAMES_LISTING_READ_H

#include "wsync/tool/listing.h"
#include "wsync/tool/json_read.h"

enum { WS_MAX_SHOWN_NAME = 1024 };

/* True for a name that can be compared and printed: not empty, not too long, no control
 * characters. False for NULL. */
bool ws_weight_name_ok(const char *name);

/* Reads {"name","shape":[int],"dtype"?}; strings are borrowed from the node. -1: the object is not
 * of this kind. */
int ws_weight_from_json(const struct ws_json *node, struct ws_weight *w);

/* True if both have the same names, shapes and dtypes in the same order. */
bool ws_weight_list_same(const struct ws_weight_list *a, const struct ws_weight_list *b);
/* Makes *to share the items. Both lists are freed separately, by one thread at a time. -1: out
 * of memory, *to is unchanged. */
int ws_weight_list_share(struct ws_weight_list *from, struct ws_weight_list *to);

/* Like ws_weight_list_read, from memory; `what` replaces the path in messages. */
int ws_weight_list_parse(const char *text, size_t n, const char *what, struct ws_weight_list *out,
                         struct ws_err *err);

#endif
