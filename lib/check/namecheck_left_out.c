/* SPDX-License-Identifier: Apache-2.0 */
/* namecheck_left_out.c - what the caller's globs leave out: of the source, and of the tensors that
 * the server needs.
 *
 * The globs name checkpoint tensors, and so do the parts of a layout: the same globs decide on both
 * sides. A tensor that the server needs may be missing only if they leave out its name, whether the
 * source has it or not. A fused tensor of the source ("qkv_proj") leaves out all of its parts. */
#include "namecheck_core.h"

#include <string.h>

static bool is_chosen(const struct ws_namecheck_opts *o, const char *name)
{
	return ws_glob_choose(o->include, o->n_include, o->exclude, o->n_exclude, name);
}

bool ws_check_chosen(const struct ws_check *c, const char *name)
{
	return is_chosen(c->opts, name);
}

/* One entry for all {include}, then one for each {exclude}. */
static size_t begin(const struct ws_namecheck_opts *o, struct ws_left_out *list)
{
	size_t n = 0;
	if (o->n_include)
		list[n++] = (struct ws_left_out){ "include", o->include, o->n_include, 0, 0 };
	for (size_t i = 0; i < o->n_exclude; i++) {
		if (n == WS_LEFT_OUT_MAX) {
			list[n - 1].n_globs++;
			continue;
		}
		list[n++] = (struct ws_left_out){ "exclude", &o->exclude[i], 1, 0, 0 };
	}
	return n;
}

/* The entry that leaves the name out; NULL: none. */
static struct ws_left_out *find(const struct ws_namecheck_opts *o, struct ws_left_out *list,
                                size_t n, const char *name)
{
	for (size_t i = 0; i < n; i++) {
		const bool include = i == 0 && o->n_include;
		if (ws_glob_any(list[i].globs, list[i].n_globs, name) != include)
			return &list[i];
	}
	return NULL;
}

static void count_items(const struct ws_namecheck_opts *o, struct ws_left_out *list, size_t n)
{
	for (size_t i = 0; n && i < ws_catalog_count(o->items); i++) {
		const struct ws_item *item = ws_catalog_item(o->items, i);
		struct ws_left_out *by = item->bytes ? find(o, list, n, item->name) : NULL;
		if (by)
			by->tensors++;
	}
}

void ws_namecheck_left_out(const struct ws_namecheck_opts *o, struct ws_findings *out)
{
	out->n_left_out = begin(o, out->left_out);
	count_items(o, out->left_out, out->n_left_out);
}

static void leave_params(struct ws_check *c, const char *name)
{
	const struct ws_param *p = ws_layout_find_param(c->layout, name);
	const struct ws_alias *a = p ? NULL : ws_layout_find_alias(c->layout, name, 0);
	if (a)
		p = ws_layout_param(c->layout, a->param);
	for (size_t i = 0; p && i < p->n_parts; i++)
		c->part_left[p->first + i] = true;
}

void ws_check_count_left(struct ws_check *c)
{
	c->n_left_out = begin(c->opts, c->left_out);
	count_items(c->opts, c->left_out, c->n_left_out);
	for (size_t i = 0; c->layout && c->n_left_out && i < c->n_items; i++) {
		const char *name = ws_catalog_item(c->items, i)->name;
		if (!is_chosen(c->opts, name) && ws_check_part(c, name) == WS_NONE)
			leave_params(c, name);
	}
}

bool ws_check_need(struct ws_check *c, const char *name)
{
	struct ws_left_out *by = find(c->opts, c->left_out, c->n_left_out, name);
	c->needed++;
	if (by)
		by->needed++;
	return by;
}

const char *ws_check_may_lack(const struct ws_check *c, const char *name)
{
	const struct ws_namecheck_opts *o = c->opts;
	/* An {include} of one of several senders does not mean that no sender sends the rest. */
	if (o->elsewhere && ws_glob_any(o->exclude, o->n_exclude, name))
		return "left out by {exclude}";
	if (o->elsewhere)
		return o->elsewhere(o->elsewhere_ctx, name) ? "sent by another sender" : NULL;
	if (is_chosen(o, name))
		return NULL;
	return ws_glob_any(o->exclude, o->n_exclude, name) ? "left out by {exclude}"
	                                                   : "left out by {include}";
}
