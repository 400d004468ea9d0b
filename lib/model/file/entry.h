/* SPDX-License-Identifier: Apache-2.0 */
/* entry.h - what all lists of tensors say in the same words: a tensor's
 * name and shape, and metadata. */
#ifndef WS_MODEL_ENTRY_H
#define WS_MODEL_ENTRY_H

#include "scan.h"
#include "wsync/tool/source.h"

struct ws_pair {
	const char *key, *value;
};

enum { WS_MAX_NAME = 4096 }; /* bytes of a tensor's name */

/* It is neither empty nor too long and has no control characters; at: where it stands in the
 * file. */
int ws_entry_name(const struct ws_scan *s, const char *name, unsigned long long at);
/* An array of at most WS_MAX_DIMS integers, to dims and n_dims. */
int ws_entry_shape(struct ws_scan *s, struct ws_tensor *t);
/* An object of texts; `what` names it, "metadata" as a rule. *pairs is to be
 * freed, after a failure too. */
int ws_entry_pairs(struct ws_scan *s, const char *what, struct ws_pair **pairs, size_t *n);
/* Room for one more; the new pointer, NULL: out of memory. */
void *ws_entry_grow(void *old, size_t n, size_t *cap, size_t element);

#endif
