/* SPDX-License-Identifier: Apache-2.0 */
/* family_builder.h - a family under construction, shared by the files that read its lines.
 *
 * The builder has growing lists and a stack of open groups. It becomes a struct ws_family when
 * the next family begins or the text ends. */
#ifndef WS_NAMES_FAMILY_BUILDER_H
#define WS_NAMES_FAMILY_BUILDER_H

#include "namemap_read.h"

struct ws_block {
	struct ws_list rules;        /* struct ws_rule */
	/* the rule that the block becomes at its end; unused in blocks[0], the family's own */
	struct ws_rule group;
	struct ws_list parts;        /* struct ws_rule_part, for the last rule */
	bool open;                   /* the last rule accepts "+" lines */
};

struct ws_family_builder {
	struct ws_family *family;    /* NULL: no family has begun */
	unsigned line;
	const struct ws_family *base;
	struct ws_list archs, types, lets, strips, renames, joins;
	struct ws_block blocks[WS_MAP_MAX_GROUPS + 1];
	unsigned n_groups;
	struct ws_map_vars vars;     /* variables of the open groups */
};

struct ws_map_reader {
	struct ws_map_line line;
	size_t first;                /* index in the set of the first family of this text */
	struct ws_family_builder builder;
};

void *ws_builder_add(struct ws_map_reader *rd, struct ws_list *l, size_t size);
/* Lists are searched linearly, so they are kept short. -1: the list is full. */
int ws_builder_full(struct ws_map_reader *rd, const struct ws_list *l, const char *what);

/* Each function reads the rest of a line after its first word. */
int ws_builder_rename(struct ws_map_reader *rd);
int ws_builder_join(struct ws_map_reader *rd);
int ws_builder_group(struct ws_map_reader *rd);
int ws_builder_end(struct ws_map_reader *rd);
int ws_builder_rule(struct ws_map_reader *rd, const char *word);
int ws_builder_part(struct ws_map_reader *rd);
/* Completes the last rule. Called when the next line is not a "+" line. */
int ws_builder_close_rule(struct ws_map_reader *rd);

#endif
