/* SPDX-License-Identifier: Apache-2.0 */
/* namemap_patterns.c - reads rename and join, and checks that both sides have the same captures. */
#include "family_builder.h"

#include "name_index.h"

#include <string.h>

int ws_builder_rename(struct ws_map_reader *rd)
{
	struct ws_map_line *l = &rd->line;
	struct ws_list *list = &rd->builder.renames;
	struct ws_map_vars vars = { .room = WS_MAP_MAX_CAPTURES };
	struct ws_rename r = { .line = l->number };
	if (ws_map_name(l, "a pattern of names", true, &vars, &r.from))
		return -1;
	if (!ws_map_take(l, "->"))
		return ws_map_bad(l, "'->' is missing: rename FROM -> TO");
	const unsigned from_stars = vars.stars;
	vars.stars = vars.room = 0;
	if (ws_map_name(l, "the new name", true, &vars, &r.to) || ws_map_end(l))
		return -1;
	if (vars.stars != from_stars)
		return ws_map_bad(l,
		                  "both sides need the same number of **");
	for (size_t i = 0; i < list->n; i++)
		if (strcmp(((struct ws_rename *)list->items)[i].from, r.from) == 0)
			return ws_map_bad(l, "'%s' is renamed in line %u already",
			                  ws_quote(r.from).text,
			                  ((struct ws_rename *)list->items)[i].line);
	if (ws_builder_full(rd, list, "renames"))
		return -1;
	r.bits = ws_pattern_bits(r.from);
	struct ws_rename *slot = ws_builder_add(rd, list, sizeof *slot);
	if (!slot)
		return -1;
	*slot = r;
	return 0;
}

int ws_builder_join(struct ws_map_reader *rd)
{
	struct ws_map_line *l = &rd->line;
	struct ws_map_vars vars = { .room = WS_MAP_MAX_CAPTURES };
	struct ws_join j = { .line = l->number };
	struct ws_list parts = { 0 };
	if (ws_map_name(l, "a name", true, &vars, &j.name))
		return -1;
	if (!ws_map_take(l, "<-"))
		return ws_map_bad(l, "'<-' is missing: join NAME <- PART PART...");
	for (l->at += strspn(l->at, " \t"); *l->at; l->at += strspn(l->at, " \t")) {
		/* A part must have every capture of the name: captures identify the partners. */
		struct ws_map_vars mine = { .room = WS_MAP_MAX_CAPTURES };
		const char *part, **slot;
		if (ws_map_name(l, "a part", true, &mine, &part))
			return -1;
		bool same = mine.n == vars.n && mine.stars == vars.stars;
		for (unsigned i = 0; i < mine.n && same; i++)
			for (unsigned k = 0;
			     (same = k < vars.n) && strcmp(mine.names[i], vars.names[k]); k++)
				;
		if (!same)
			return ws_map_bad(l, "'%s' must have the variables and ** of '%s'",
			                  ws_quote(part).text, ws_quote(j.name).text);
		if (ws_builder_full(rd, &parts, "parts") ||
		    !(slot = ws_builder_add(rd, &parts, sizeof(const char *))))
			return -1;
		*slot = part;
	}
	if (parts.n < 2)
		return ws_map_bad(l, "two parts or more are joined, one is a 'rename'");
	j.parts = parts.items;
	j.n_parts = parts.n;
	if (ws_builder_full(rd, &rd->builder.joins, "joins"))
		return -1;
	struct ws_join *slot = ws_builder_add(rd, &rd->builder.joins, sizeof *slot);
	if (!slot)
		return -1;
	*slot = j;
	return 0;
}
