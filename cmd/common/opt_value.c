/* SPDX-License-Identifier: Apache-2.0 */
/* opt_value.c - stores an option's value, and finds the name nearest to a mistyped one. */
#include "opt.h"

#include "wsync/tool/str.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int add_to_list(struct opt_list *list, const char *value, struct ws_err *err)
{
	const char **items = realloc(list->items, (list->n + 1) * sizeof *items);
	if (!items)
		return ws_oom(err);
	list->items = items;
	list->items[list->n++] = value;
	return 0;
}

static int choose(const struct opt *o, const char *value, struct ws_err *err)
{
	char names[256] = "";
	size_t used = 0;
	for (unsigned i = 0; o->choices[i]; i++) {
		if (strcmp(o->choices[i], value) == 0) {
			*o->out.choice = i;
			return 0;
		}
		if (used < sizeof names)
			used += (size_t)snprintf(names + used, sizeof names - used, "%s%s",
			                         i ? ", " : "", o->choices[i]);
	}
	for (const struct opt_gone *g = o->gone; g && g->name; g++)
		if (strcmp(g->name, value) == 0)
			return ws_err_set(err, WS_EUSAGE, "'%s' %s", value, g->text);
	return ws_err_set(err, WS_EUSAGE, "invalid choice '%s', must be one of %s", value, names);
}

static int number(const struct opt *o, const char *value, struct ws_err *err)
{
	if (ws_parse_uint(value, o->lo, o->hi, o->arg, o->out.uint, err) == 0)
		return 0;
	if (o->hi == UINT64_MAX)
		return ws_err_set(err, WS_EUSAGE, "invalid %s '%s', must be at least %llu", o->arg,
		                  value, (unsigned long long)o->lo);
	return ws_err_set(err, WS_EUSAGE, "invalid %s '%s', must be %llu to %llu", o->arg, value,
	                  (unsigned long long)o->lo, (unsigned long long)o->hi);
}

/* Refuses 0: a script that computes the remaining time may get 0, and does not mean "no limit". */
static int duration(const struct opt *o, const char *value, struct ws_err *err)
{
	int64_t ns;
	if (ws_parse_duration(value, &ns, err))
		return -1;
	if ((uint64_t)ns < o->lo)
		return ws_err_set(err, WS_EUSAGE,
		                  "invalid DURATION '%s', must be more than 0; none means no limit",
		                  value);
	*o->out.ns = ns;
	return 0;
}

int opt_store(const struct opt *o, const char *value, bool on, struct ws_err *err)
{
	switch (o->kind) {
	case OPT_KIND_FLAG:
	case OPT_KIND_SWITCH:
		*o->out.flag = on;
		return 0;
	case OPT_KIND_COUNT:
		++*o->out.count;
		return 0;
	case OPT_KIND_STRING:
		*o->out.string = value;
		return 0;
	case OPT_KIND_LIST:
		return add_to_list(o->out.list, value, err);
	case OPT_KIND_SIZE:
		return ws_parse_size(value, o->out.uint, err);
	case OPT_KIND_DURATION:
		return duration(o, value, err);
	case OPT_KIND_UINT:
		return number(o, value, err);
	case OPT_KIND_CHOICE:
		return choose(o, value, err);
	case OPT_KIND_CALL:
		return o->out.call(o->ctx, value, err);
	case OPT_KIND_HELP:
	case OPT_KIND_VERSION:
	case OPT_KIND_GROUP:
	case OPT_KIND_END:
		break;
	}
	return 0;
}

/* Edits (insert, delete, replace) that turn a into b; names beyond 63 characters are far away. */
static size_t distance(const char *a, const char *b)
{
	enum { MOST = 63 };
	size_t row[MOST + 1];
	const size_t n = strlen(b);
	if (n > MOST || strlen(a) > MOST)
		return MOST;
	for (size_t j = 0; j <= n; j++)
		row[j] = j;
	for (size_t i = 1; a[i - 1]; i++) {
		size_t corner = row[0];
		row[0] = i;
		for (size_t j = 1; j <= n; j++) {
			const size_t above = row[j];
			size_t least = corner + (a[i - 1] != b[j - 1]);
			if (above + 1 < least)
				least = above + 1;
			if (row[j - 1] + 1 < least)
				least = row[j - 1] + 1;
			row[j] = least;
			corner = above;
		}
	}
	return row[n];
}

void opt_nearer(const char *typed, const char *name, const char **best, size_t *edits)
{
	const size_t d = distance(typed, name);
	if (d < *edits && d <= 1 + strlen(name) / 4) {
		*edits = d;
		*best = name;
	}
}
