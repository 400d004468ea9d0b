/* SPDX-License-Identifier: Apache-2.0 */
/* entry.h - checks shared by all lists of tensors: names, shapes, metadata. */
#ifndef WS_MODEL_ENTRY_H
#define WS_MODEL_ENTRY_H

#include "scan.h"
#include "wsync/tool/source.h"

enum { WS_MAX_NAME = 4096 }; /* limit of a tensor's name in bytes */

/* Checks that a name is not empty, not too long, and free of control characters. at: its
 * position in the file. */
int ws_entry_name(const struct ws_scan *s, const char *name, unsigned long long at);
/* Reads an array of at most WS_MAX_DIMS integers. */
int ws_entry_shape(struct ws_scan *s, struct ws_tensor *t);
/* Checks that an object has string values only; `what` names it in messages ("metadata"). */
int ws_entry_texts(struct ws_scan *s, const char *what);
/* Grows an array by one; returns the new pointer, NULL: out of memory. */
void *ws_entry_grow(void *old, size_t n, size_t *cap, size_t element);

#endif
