/* SPDX-License-Identifier: Apache-2.0 */
/* names.h - finding a tensor by its name.
 *
 * Sorted by hash rather than by text, because names of a layer differ only at their far end; sorted
 * rather than hashed into slots, because names chosen to collide then cost no more than others. */
#ifndef WS_MODEL_NAMES_H
#define WS_MODEL_NAMES_H

#include "wsync/source.h"

struct ws_name_entry {
	uint64_t hash;
	size_t tensor;
};

struct ws_names {
	const struct ws_tensor *tensors; /* borrowed */
	struct ws_name_entry *entries;
	size_t n;
};

/* 1: a name occurs twice, and twice[] says which two tensors have it; 0; -1: out of memory. */
int ws_names_init(struct ws_names *names, const struct ws_tensor *tensors, size_t n,
                  size_t twice[2], struct ws_err *err);
void ws_names_fini(struct ws_names *names); /* NULL is fine */
const struct ws_tensor *ws_names_find(const struct ws_names *names, const char *name);

/* A foreign name cut and cleaned for quoting in a message. */
struct ws_quoted {
	char text[164];
};
struct ws_quoted ws_quote(const char *name);

#endif
