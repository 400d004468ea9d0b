/* SPDX-License-Identifier: Apache-2.0 */
/* listing_read.h - a listing as servers reply it and people save it. */
#ifndef WS_NAMES_LISTING_READ_H
#define WS_NAMES_LISTING_READ_H

#include "wsync/tool/listing.h"
#include "wsync/tool/json_read.h"

enum { WS_MAX_SHOWN_NAME = 1024 };

/* Fit to be compared and printed: not empty, not over-long, no control characters. NULL is not. */
bool ws_weight_name_ok(const char *name);

/* {"name","shape":[int],"dtype"?}; strings are borrowed from the node. -1: not such an object. */
int ws_weight_from_json(const struct ws_json *node, struct ws_weight *w);

/* The same names, shapes and types in the same order. */
bool ws_weight_list_same(const struct ws_weight_list *a, const struct ws_weight_list *b);
/* *to is another list of the same items, and each is freed for itself; by one thread at a time.
 * -1: out of memory, *to is as it was. */
int ws_weight_list_share(struct ws_weight_list *from, struct ws_weight_list *to);

/* As ws_weight_list_read; `what` stands for the path in messages. */
int ws_weight_list_parse(const char *text, size_t n, const char *what, struct ws_weight_list *out,
                         struct ws_err *err);

#endif
