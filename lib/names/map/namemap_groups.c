/* SPDX-License-Identifier: Apache-2.0 */
/* namemap_groups.c - groups, the rules in them, and the "+" lines after a rule. */
#include "family_builder.h"

#include "name_index.h"

#include <string.h>

static int read_loop(struct ws_map_line *l, struct ws_map_vars *vars, struct ws_rule *group)
{
	if (ws_map_variable(l, "a variable", WS_MAP_MAX_VARIABLE, &group->var))
		return -1;
	for (unsigned i = 0; i < vars->n; i++)
		if (strcmp(vars->names[i], group->var) == 0)
			return ws_map_bad(l, "a group around this one has the variable %s",
			                  group->var);
	vars->names[vars->n++] = group->var;
	if (ws_map_take(l, "<"))
		return ws_map_expr(l, "<", &group->to);
	if (!ws_map_take(l, "in"))
		return ws_map_bad(l, "'for %s' goes on with '< EXPR' or 'in EXPR .. EXPR'",
		                  group->var);
	if (ws_map_expr(l, "in", &group->from))
		return -1;
	if (!ws_map_take(l, ".."))
		return ws_map_bad(l, "'..' is missing: for %s in EXPR .. EXPR", group->var);
	return ws_map_expr(l, "..", &group->to);
}

int ws_builder_group(struct ws_map_reader *rd)
{
	struct ws_map_line *l = &rd->line;
	struct ws_family_builder *d = &rd->builder;
	struct ws_rule group = { .kind = WS_RULE_GROUP, .text = l->text, .line = l->number };
	if (d->n_groups == WS_MAP_MAX_GROUPS)
		return ws_map_bad(l, "groups nest deeper than %d", WS_MAP_MAX_GROUPS);
	/* The prefix comes before the words that declare its variable, so it is read after them. */
	struct ws_map_line prefix = *l;
	const char *skipped;
	if (ws_map_word(l, &skipped))
		return -1;
	if (ws_map_take(l, "for") && read_loop(l, &d->vars, &group))
		return -1;
	if (ws_map_name(&prefix, "the prefix of the group", false, &d->vars, &group.name))
		return -1;
	if (ws_map_take(l, "when") && ws_map_expr(l, "when", &group.when))
		return -1;
	if (ws_map_end(l))
		return -1;
	d->blocks[++d->n_groups] = (struct ws_block){ .group = group };
	return 0;
}

static int add_rule(struct ws_map_reader *rd, const struct ws_rule *r)
{
	struct ws_block *b = &rd->builder.blocks[rd->builder.n_groups];
	if (ws_map_count_rule(&rd->line))
		return -1;
	struct ws_rule *slot = ws_builder_add(rd, &b->rules, sizeof *slot);
	if (!slot)
		return -1;
	*slot = *r;
	b->open = r->kind == WS_RULE_COLUMN || r->kind == WS_RULE_REPLICATED;
	return 0;
}

int ws_builder_end(struct ws_map_reader *rd)
{
	struct ws_family_builder *d = &rd->builder;
	if (ws_map_end(&rd->line))
		return -1;
	if (d->n_groups == 0)
		return ws_map_bad(&rd->line, "'end' without a group that is open");
	const struct ws_block *b = &d->blocks[d->n_groups--];
	struct ws_rule group = b->group;
	group.inner = b->rules.items;
	group.n_inner = b->rules.n;
	if (group.var)
		d->vars.n--;
	return add_rule(rd, &group);
}

static bool differ(const struct ws_rule *a, const struct ws_rule *b)
{
	return a->when || b->when || a->kind == WS_RULE_ALIAS || b->kind == WS_RULE_ALIAS ||
	       a->kind == WS_RULE_GROUP || b->kind == WS_RULE_GROUP ||
	       (a->kind == WS_RULE_SKIP) != (b->kind == WS_RULE_SKIP) ||
	       strcmp(a->name, b->name) != 0;
}

int ws_builder_rule(struct ws_map_reader *rd, const char *word)
{
	const struct ws_family_builder *d = &rd->builder;
	const struct ws_list *rules = &d->blocks[d->n_groups].rules;
	struct ws_rule r;
	if (ws_map_rule(&rd->line, word, &d->vars, d->n_groups > 0, &r))
		return -1;
	for (size_t i = 0; i < rules->n; i++) {
		const struct ws_rule *before = &((struct ws_rule *)rules->items)[i];
		if (!differ(before, &r))
			return ws_map_bad(&rd->line, "'%s' is there already, in line %u",
			                  ws_quote(r.name).text, before->line);
	}
	return add_rule(rd, &r);
}

int ws_builder_part(struct ws_map_reader *rd)
{
	struct ws_block *b = &rd->builder.blocks[rd->builder.n_groups];
	struct ws_rule_part part;
	if (!b->open)
		return ws_map_bad(&rd->line,
		                  "'+' without a 'column' or 'replicated' line above it");
	if (ws_map_part(&rd->line, &part))
		return -1;
	for (size_t i = 0; i < b->parts.n; i++)
		if (strcmp(((struct ws_rule_part *)b->parts.items)[i].name, part.name) == 0)
			return ws_map_bad(&rd->line, "part '%s' is there twice",
			                  ws_quote(part.name).text);
	if (ws_builder_full(rd, &b->parts, "parts"))
		return -1;
	struct ws_rule_part *slot = ws_builder_add(rd, &b->parts, sizeof *slot);
	if (!slot)
		return -1;
	*slot = part;
	return 0;
}

int ws_builder_close_rule(struct ws_map_reader *rd)
{
	struct ws_block *b = &rd->builder.blocks[rd->builder.n_groups];
	struct ws_map_line at = rd->line;
	if (!b->open)
		return 0;
	struct ws_rule *r = &((struct ws_rule *)b->rules.items)[b->rules.n - 1];
	at.number = r->line;
	if (!r->out && !b->parts.n)
		return ws_map_bad(&at,
		                  "'%s' has neither 'out' nor lines of '+ PART out EXPR' below it",
		                  ws_quote(r->name).text);
	if (r->out && b->parts.n)
		return ws_map_bad(&at, "'%s' has both 'out' and parts",
		                  ws_quote(r->name).text);
	r->parts = b->parts.items;
	r->n_parts = b->parts.n;
	b->parts = (struct ws_list){ 0 };
	b->open = false;
	return 0;
}
