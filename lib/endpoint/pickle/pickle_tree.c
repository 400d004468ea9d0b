/* SPDX-License-Identifier: Apache-2.0 */
/* pickle_tree.c - reads the tree of values of a pickle. */
#include "pickle_machine.h"

#include <string.h>

bool pickle_same(const char *text, size_t len, const char *word)
{
	return len == strlen(word) && memcmp(text, word, len) == 0;
}

const struct pickle_value *pickle_at(const struct pickle *p, uint32_t value)
{
	return &((const struct pickle_value *)p->values.items)[value];
}

const struct pickle_value *pickle_child(const struct pickle *p, const struct pickle_value *v,
                                        uint32_t i)
{
	uint32_t at = v && i < v->n ? v->first : PICKLE_NOTHING;
	const struct pickle_cell *cells = p->cells.items;
	while (at != PICKLE_NOTHING && i--)
		at = cells[at].next;
	return at == PICKLE_NOTHING ? NULL : pickle_at(p, cells[at].value);
}

const struct pickle_value *pickle_get(const struct pickle *p, const struct pickle_value *v,
                                      const char *key)
{
	enum { FEW = 64 }; /* cell limit: bounds the time of repeated lookups */
	if (!v || v->kind != PICKLE_DICT || v->n > FEW)
		return NULL;
	const struct pickle_cell *cells = p->cells.items;
	for (uint32_t at = v->first; at != PICKLE_NOTHING; at = cells[cells[at].next].next)
		if (pickle_is_str(pickle_at(p, cells[at].value), key))
			return pickle_at(p, cells[cells[at].next].value);
	return NULL;
}

bool pickle_is_str(const struct pickle_value *v, const char *text)
{
	return v && v->kind == PICKLE_STR && pickle_same(v->text, v->len, text);
}

bool pickle_is_global(const struct pickle_value *v, const char *module, const char *name)
{
	return v && v->kind == PICKLE_GLOBAL && pickle_same(v->text, v->len, module) &&
	       pickle_same(v->name, v->name_len, name);
}

const struct pickle_value *pickle_call_of(const struct pickle *p, const struct pickle_value *v,
                                          const char *module, const char *name)
{
	if (!v || v->kind != PICKLE_CALL || !pickle_is_global(pickle_child(p, v, 0), module, name))
		return NULL;
	return pickle_child(p, v, 1);
}
