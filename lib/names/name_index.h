/* SPDX-License-Identifier: Apache-2.0 */
/* name_index.h - finds tensors, or other structs that begin with a name, by name.
 *
 * Entries are sorted by hash, not by text, because names of a layer differ only at their ends. They
 * are sorted, not in hash slots, so that names chosen to collide cost no more than others. */
#ifndef WS_NAMES_NAME_INDEX_H
#define WS_NAMES_NAME_INDEX_H

#include "wsync/tool/source.h"

struct ws_name_entry {
	uint64_t hash;
	size_t index;
};

struct ws_names {
	/* borrowed: structs whose first member is const char *name */
	const char *first;
	size_t stride;
	struct ws_name_entry *entries;
	size_t n;
};

/* stride: sizeof one struct. Returns 0; 1: a name occurs twice, at the indices twice[]; -1: out
 * of memory. */
int ws_names_init(struct ws_names *names, const void *array, size_t stride, size_t n,
                  size_t twice[2], struct ws_err *err);
void ws_names_fini(struct ws_names *names); /* NULL is fine */
/* Returns the first element with that name; NULL: not found. */
const void *ws_names_find(const struct ws_names *names, const char *name);
/* Returns the i-th element with that name, in array order; NULL: fewer elements. */
const void *ws_names_nth(const struct ws_names *names, const char *name, size_t i);

/* An untrusted name, cut and cleaned for messages. */
struct ws_quoted {
	char text[164];
};
struct ws_quoted ws_quote(const char *name);

#endif
