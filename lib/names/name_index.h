/* SPDX-License-Identifier: Apache-2.0 */
/* name_index.h - finding a tensor, or whatever else begins with its name, by that name.
 *
 * Sorted by hash rather than by text, because names of a layer differ only at their far end; sorted
 * rather than hashed into slots, because names chosen to collide then cost no more than others. */
#ifndef WS_NAMES_NAME_INDEX_H
#define WS_NAMES_NAME_INDEX_H

#include "wsync/tool/source.h"

struct ws_name_entry {
	uint64_t hash;
	size_t index;
};

struct ws_names {
	/* borrowed: an array of structs whose first member is const char *name */
	const char *first;
	size_t stride;
	struct ws_name_entry *entries;
	size_t n;
};

/* stride: sizeof one of them. 1: a name occurs twice, and twice[] says which two have
 * it; 0; -1: out of memory. */
int ws_names_init(struct ws_names *names, const void *array, size_t stride, size_t n,
                  size_t twice[2], struct ws_err *err);
void ws_names_fini(struct ws_names *names); /* NULL is fine */
/* The element of the array, of several with that name the first; NULL: none. */
const void *ws_names_find(const struct ws_names *names, const char *name);
/* The i-th of those with that name, in the array's order; NULL past the last. */
const void *ws_names_nth(const struct ws_names *names, const char *name, size_t i);

/* A foreign name cut and cleaned for quoting in a message. */
struct ws_quoted {
	char text[164];
};
struct ws_quoted ws_quote(const char *name);

#endif
