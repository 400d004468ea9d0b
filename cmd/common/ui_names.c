/* SPDX-License-Identifier: Apache-2.0 */
/* ui_names.c - findings of a check of names: groups for people, a JSON line for each finding. */
#include "ui.h"

#include <stdio.h>
#include <string.h>

/* ---- text ---- */

enum { INDENT = 22 }; /* the column in which a group's reason begins */

enum ui_color ui_severity(enum ws_severity severity)
{
	return severity == WS_ERROR ? UI_BAD : severity == WS_WARN ? UI_WARN : UI_PLAIN;
}

static void print_finding(const struct ws_finding *it, bool reason)
{
	printf("%*s%s", INDENT, "", ui_text(it->name));
	if (*it->near && it->verdict == WS_NAME_MISSING)
		printf(": the nearest that is sent is %s", ui_text(it->near));
	else if (*it->near)
		printf(": did you mean %s?", ui_text(it->near));
	putchar('\n');
	if (reason)
		printf("%*s  %s\n", INDENT, "", ui_text(ui_words(it->reason)));
}

/* Do the findings have different reasons, apart from the nearest name? */
static bool reasons_differ(const struct ws_finding *items, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (strcmp(items[i].reason, items[0].reason) != 0 &&
		    !(*items[i].near && strstr(items[i].reason, items[i].near)))
			return true;
	return false;
}

/* Numbers are worth a line even when all findings have the same ones. */
static bool has_numbers(const struct ws_finding *it)
{
	return it->verdict == WS_NAME_SHAPE || it->verdict == WS_NAME_DTYPE ||
	       it->verdict == WS_NAME_SERVER;
}

static void print_group(struct ui *ui, const struct ws_findings *f,
                        const struct ws_finding_group *g)
{
	const struct ws_finding *items = &f->items[g->first];
	const bool all = reasons_differ(items, g->n);
	const bool first = has_numbers(&items[0]) && !strstr(g->reason, items[0].reason);
	const size_t shown = ui->limit && g->n > ui->limit ? ui->limit : g->n;
	ui_head(ui, ui_severity(g->severity), ws_severity_name(g->severity));
	printf("%-11s %s\n", ws_verdict_name(g->verdict), ui_text(ui_words(g->reason)));
	if (*g->remedy)
		printf("%*sremedy: %s\n", INDENT, "", ui_text(ui_words(g->remedy)));
	for (size_t i = 0; i < shown; i++)
		print_finding(&items[i], all || (first && i == 0));
	if (shown < g->n)
		printf("%*sand %zu more\n", INDENT, "", g->n - shown);
}

static void print_count(size_t n, const char *what, const char *before)
{
	if (n)
		printf("%s%zu %s%s", before, n, what, n == 1 ? "" : "s");
}

/* What this option leaves out: of the needed tensors, or of the source's if those are not known. */
static size_t count_left_out(const struct ws_findings *f, const char *option, bool *any)
{
	size_t n = 0;
	*any = false;
	for (size_t i = 0; i < f->n_left_out; i++) {
		const struct ws_left_out *l = &f->left_out[i];
		const size_t is = f->needed ? l->needed : l->tensors;
		if (strcmp(l->option, option))
			continue;
		n += is;
		*any |= is > 0;
	}
	return n;
}

void ui_text_left_out(const struct ws_findings *f)
{
	bool include, exclude;
	if (!f)
		return;
	const size_t n = count_left_out(f, "include", &include) +
	                 count_left_out(f, "exclude", &exclude);
	if (!n)
		return;
	printf(" (%zu ", n);
	if (f->needed)
		printf("of %zu tensors", f->needed);
	else
		printf("tensor%s of the source", n == 1 ? "" : "s");
	printf(" left out by %s%s%s)", include ? "--include" : "",
	       include && exclude ? " and " : "", exclude ? "--exclude" : "");
}

static void print_verdict(struct ui *ui, const struct ws_ev_names *n)
{
	const struct ws_name_check_run *a = n->run;
	const struct ws_findings *f = &a->found;
	ui_head(ui, f->errors ? UI_BAD : a->own_config ? UI_WARN : UI_GOOD, "names");
	if (*n->url)
		printf("%s: ", ui_text(n->url));
	printf("%zu tensor%s, ", f->sent, f->sent == 1 ? "" : "s");
	print_count(f->errors, "error", "");
	if (!f->errors)
		printf("no errors");
	print_count(f->warnings, "warning", ", ");
	print_count(f->notes, "note", ", ");
	ui_text_left_out(f);
	if (*a->against)
		printf(", checked against %s", ui_text(a->against));
	if (a->own_config)
		printf(", the source's own (%s)", ui_text(ui_words(a->why)));
	if (n->alike)
		printf("; the same for %zu more endpoint%s", n->alike, n->alike == 1 ? "" : "s");
	putchar('\n');
}

/* Which names were taken for others is always told. */
static void print_related(struct ui *ui, const struct ws_name_check_run *a)
{
	for (size_t i = 0; i < a->n_related; i++) {
		const struct ws_name_check_related *rule = &a->related[i];
		ui_head(ui, UI_PLAIN, "names");
		printf("%zu name%s as in the reference: ", rule->names,
		       rule->names == 1 ? "" : "s");
		if (!*rule->from && !*rule->to)
			puts("another word for the same module");
		else if (!*rule->from)
			printf("with %s\n", ui_text(rule->to));
		else if (!*rule->to)
			printf("without %s\n", ui_text(rule->from));
		else
			printf("%s instead of %s\n", ui_text(rule->to), ui_text(rule->from));
	}
}

void ui_text_names(struct ui *ui, const struct ws_ev_names *n)
{
	const struct ws_name_check_run *a = n->run;
	const struct ws_findings *f = &a->found;
	/* nothing was checked: servers answer "success" to unknown names */
	if (!a->checked && !a->own_config && !f->errors) {
		if (ui->notes && !ui->verbose)
			return; /* the error that follows says it */
		ui_head(ui, UI_PLAIN, "names");
		printf("%s%snot checked: %s\n", ui_text(n->url), *n->url ? ": " : "",
		       ui_text(ui_words(a->why)));
		return;
	}
	/* Notes explain names that look odd and are right: only on request. */
	for (size_t i = 0; i < f->n_groups; i++)
		if (f->groups[i].severity != WS_NOTE || ui->notes || ui->verbose)
			print_group(ui, f, &f->groups[i]);
	print_related(ui, a);
	if (*a->unused && (ui->notes || ui->verbose)) {
		ui_head(ui, UI_PLAIN, "names");
		puts(ui_text(ui_words(a->unused)));
	}
	if (f->errors || f->warnings || ui->notes || ui->verbose)
		print_verdict(ui, n);
}

/* ---- JSON ---- */

static void put_globs(struct ws_jw *w, const struct ws_left_out *l)
{
	char text[1024] = "";
	size_t used = 0;
	for (size_t i = 0; i < l->n_globs && used < sizeof text; i++)
		used += (size_t)snprintf(text + used, sizeof text - used, "%s%s", i ? ", " : "",
		                         l->globs[i]);
	ws_jw_str(w, "glob", text);
}

void ui_json_left_out(struct ws_jw *w, const struct ws_findings *f)
{
	if (!f || !f->n_left_out)
		return;
	ws_jw_array(w, "left_out");
	for (size_t i = 0; i < f->n_left_out; i++) {
		const struct ws_left_out *l = &f->left_out[i];
		ws_jw_object(w, NULL);
		ws_jw_str(w, "option", l->option);
		put_globs(w, l);
		ws_jw_uint(w, "tensors", l->tensors);
		if (f->needed)
			ws_jw_uint(w, "needed", l->needed);
		else
			ws_jw_null(w, "needed");
		ws_jw_end_object(w);
	}
	ws_jw_end_array(w);
}

static void put_finding(struct ws_jw *w, const struct ws_ev_names *n, const struct ws_finding *f)
{
	ui_json_text(w, "url", n->url);
	ws_jw_str(w, "name", f->name);
	ws_jw_str(w, "kind", ws_verdict_name(f->verdict));
	ws_jw_str(w, "severity", ws_severity_name(f->severity));
	ws_jw_str(w, "reason", ui_words(f->reason));
	ui_json_text(w, "param", f->param);
	ui_json_text(w, "near", f->near);
	ui_json_text(w, "rule", f->rule);
	ui_json_words(w, "remedy", n->run->found.groups[f->group].remedy);
	ws_jw_uint(w, "group", f->group);
}

void ui_json_names(struct ui *ui, const struct ws_ev_names *n)
{
	const struct ws_findings *f = &n->run->found;
	for (size_t i = 0; i < f->n; i++) {
		put_finding(ui_line(ui, "mismatch"), n, &f->items[i]);
		ui_line_end(ui);
	}
}

void ui_json_name_check(struct ws_jw *w, const struct ws_name_check_run *a)
{
	const struct ws_findings *f = &a->found;
	ws_jw_object(w, "names");
	ws_jw_bool(w, "checked", a->checked);
	ws_jw_bool(w, "own_config", a->own_config);
	ui_json_words(w, "why", a->why);
	ui_json_text(w, "against", a->against);
	ui_json_text(w, "unused", a->unused);
	ui_json_text(w, "family", a->family);
	ws_jw_array(w, "related");
	for (size_t i = 0; i < a->n_related; i++) {
		ws_jw_object(w, NULL);
		ws_jw_str(w, "from", a->related[i].from);
		ws_jw_str(w, "to", a->related[i].to);
		ws_jw_uint(w, "names", a->related[i].names);
		ws_jw_end_object(w);
	}
	ws_jw_end_array(w);
	ws_jw_uint(w, "sent", f->sent);
	ws_jw_uint(w, "params", f->params);
	ws_jw_uint(w, "parts", f->parts);
	ws_jw_uint(w, "errors", f->errors);
	ws_jw_uint(w, "warnings", f->warnings);
	ws_jw_uint(w, "notes", f->notes);
	ws_jw_object(w, "verdicts");
	for (int v = 0; v < WS_NAME_VERDICTS; v++)
		ws_jw_uint(w, ws_verdict_name((enum ws_verdict)v), f->count[v]);
	ws_jw_end_object(w);
	ws_jw_end_object(w);
}
