/* SPDX-License-Identifier: Apache-2.0 */
/* related.h - the names that the tensors of a source have at a reference, and by which rules. */
#ifndef WSYNC_RELATED_H
#define WSYNC_RELATED_H

#include <stddef.h>

struct ws_related_rule {
	const char *from, *to; /* segments; "" none */
	size_t names;          /* that it renames */
};

struct ws_related {
	const char **names; /* by tensor of the source; NULL: as the family renames them */
	struct ws_related_rule *rules;
	size_t n_rules;
	struct ws_arena *arena; /* owns the strings */
};

#endif
