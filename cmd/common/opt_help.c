/* SPDX-License-Identifier: Apache-2.0 */
/* opt_help.c - prints the table for people (--help) and for completions (--dump-options). */
#include "opt.h"
#include "ui.h"

#include "wsync/version.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

enum { INDENT = 2, HELP_COLUMN = 30, WIDEST = 100 };

/* Prints words from column `at` on, breaking before `width` and continuing at column `left`. */
static void wrap(const char *text, size_t at, size_t left, size_t width)
{
	bool first = true;
	for (const char *s = text; *s;) {
		const size_t n = strcspn(s, " ");
		if (!first && at + 1 + n > width) {
			printf("\n%*s", (int)left, "");
			at = left;
		} else if (!first) {
			putchar(' ');
			at++;
		}
		fwrite(s, 1, n, stdout);
		at += n;
		first = false;
		s += n;
		s += strspn(s, " ");
	}
	putchar('\n');
}

/* Prints the left column. Many choices continue on the next line, after a "|",
 * below the first choice. Returns the column. */
static size_t print_left(const char *left, size_t width)
{
	const size_t under =
		INDENT + (strchr(left, '|') ? (size_t)(strrchr(left, ' ') + 1 - left) : 0);
	size_t at = INDENT;
	printf("%*s", INDENT, "");
	for (const char *s = left; *s;) {
		size_t n = strcspn(s, "|");
		n += s[n] == '|';
		if (at + n > width && s > left) {
			printf("\n%*s", (int)under, "");
			at = under;
		}
		fwrite(s, 1, n, stdout);
		at += n;
		s += n;
	}
	return at;
}

static void two_columns(const char *left, const char *right, size_t column, size_t width)
{
	size_t at = print_left(left, width);
	if (at + 2 > column) {
		putchar('\n');
		at = 0;
	}
	printf("%*s", (int)(column - at), "");
	wrap(right, column, column, width);
}

static const char *join_choices(const struct opt *o, char *dst, size_t n)
{
	size_t used = 0;
	dst[0] = 0;
	for (size_t i = 0; o->choices && o->choices[i] && used < n; i++)
		used += (size_t)snprintf(dst + used, n - used, "%s%s", i ? "|" : "", o->choices[i]);
	return dst;
}

static void print_option(const struct opt *o, size_t column, size_t width)
{
	char left[320], choices[256];
	const char *arg = o->arg ? o->arg : join_choices(o, choices, sizeof choices);
	const char letter[] = { o->letter ? '-' : ' ', o->letter ? o->letter : ' ',
	                        o->letter ? ',' : ' ', ' ', 0 };
	snprintf(left, sizeof left, "%s--%s%s%s%s", letter,
	         o->kind == OPT_KIND_SWITCH ? "[no-]" : "", o->name, *arg ? " " : "", arg);
	two_columns(left, o->help, column, width);
}

static void print_commands(const struct opt_program *p, size_t column, size_t width)
{
	char left[320];
	printf("\nCommands:\n");
	for (const struct opt_command *c = p->commands; c->name; c++) {
		snprintf(left, sizeof left, "%s%s%s", c->name, *c->args ? " " : "", c->args);
		two_columns(left, c->summary, column, width);
	}
}

/* The basic options in one list, or all those of command c by groups. The basic list leaves out an
 * option that only one command has: its help shows it. */
static void print_options(const struct opt_program *p, const struct opt_command *c, bool basic,
                          size_t column, size_t width)
{
	const char *commands = NULL;
	if (basic)
		printf("\nOptions%s:\n", p->commands ? " of several commands" : "");
	for (const struct opt *o = p->opts; o->kind != OPT_KIND_END; o++) {
		const bool group = o->kind == OPT_KIND_GROUP;
		commands = group ? o->help : commands;
		const bool of_one = commands && !strchr(commands, ' ');
		if (!opt_group_has(commands, c) || (basic && (group || !o->basic || of_one)))
			continue;
		if (group)
			printf("\n%s:\n", o->name);
		else
			print_option(o, column, width);
	}
}

/* Prints the examples; if c is not NULL, only those of command c. */
static void print_examples(const struct opt_program *p, const struct opt_command *c)
{
	char start[80];
	const size_t n = (size_t)snprintf(start, sizeof start, "%s %s ", p->name, c ? c->name : "");
	bool first = true;
	for (size_t i = 0; i < sizeof p->examples / sizeof p->examples[0] && p->examples[i]; i++) {
		if (c && strncmp(p->examples[i], start, n) != 0)
			continue;
		printf("%s%*s%s\n", first ? "\nExamples:\n" : "", INDENT, "", p->examples[i]);
		first = false;
	}
}

static void print_usage(const struct opt_program *p, const struct opt_command *c, size_t width)
{
	char text[256];
	const char *args = c ? c->args : p->args;
	printf("Usage: %s%s%s [OPTION]...%s%s\n", p->name, c ? " " : "", c ? c->name : "",
	       *args ? " " : "", args);
	if (c)
		snprintf(text, sizeof text, "%c%s.", toupper(*c->summary), c->summary + 1);
	wrap(c ? text : p->summary, 0, 0, width);
}

static void print_where_the_rest_is(const struct opt_program *p, size_t width)
{
	char text[256];
	snprintf(text, sizeof text, "%s%s%s --help all, man %s", p->commands ? p->name : "",
	         p->commands ? " COMMAND --help, " : "", p->name, p->name);
	printf("\nMore: ");
	wrap(text, 6, 6, width);
}

void opt_print_help(const struct opt_program *p, const struct opt_command *c, bool all)
{
	const bool basic = !c && !all;
	size_t width = (size_t)ui_width(1);
	if (width > WIDEST)
		width = WIDEST;
	const size_t column = width < 2 * HELP_COLUMN ? 10 : HELP_COLUMN;
	print_usage(p, c, width);
	if (p->commands && !c)
		print_commands(p, column, width);
	print_options(p, c, basic, column, width);
	if (p->notes && all) {
		putchar('\n');
		wrap(p->notes, 0, 0, width);
	}
	print_examples(p, c);
	if (basic) {
		print_where_the_rest_is(p, width);
		return;
	}
	putchar('\n');
	wrap("Exit status: 0 done, 1 the answer is no, 2 usage, others by kind of failure; see "
	     "EXIT STATUS in wsync(7).",
	     0, 0, width);
	printf("See %s(1).\n", p->name);
}

void opt_print_version(const struct opt_program *p)
{
	const char *commit = *WSYNC_COMMIT ? "commit " WSYNC_COMMIT ", " : "";
	printf("%s %s\n%s%s\n%s\n%s\n", p->name, ws_version(), commit, ws_build(),
	       ws_http_library(), ws_gpu_library());
}

static const char *kind_name(enum opt_kind kind)
{
	static const char *const names[] = {
		[OPT_KIND_FLAG] = "flag",     [OPT_KIND_SWITCH] = "switch",
		[OPT_KIND_COUNT] = "count",   [OPT_KIND_STRING] = "string",
		[OPT_KIND_LIST] = "list",     [OPT_KIND_SIZE] = "size",
		[OPT_KIND_DURATION] = "duration", [OPT_KIND_UINT] = "uint",
		[OPT_KIND_CHOICE] = "choice", [OPT_KIND_CALL] = "call",
		[OPT_KIND_HELP] = "help",     [OPT_KIND_VERSION] = "version",
	};
	return names[kind];
}

static const char *or_dash(const char *s)
{
	return s && *s ? s : "-";
}

void opt_print_dump(const struct opt_program *p)
{
	char only[160] = "";
	for (const struct opt_command *c = p->commands; c && c->name; c++)
		printf("%s\t-\t%s\tcommand\t-\t%s\t-\n", c->name, or_dash(c->args), c->summary);
	for (const struct opt *o = p->opts; o->kind != OPT_KIND_END; o++) {
		if (o->kind == OPT_KIND_GROUP) {
			snprintf(only, sizeof only, "%s", o->help ? o->help : "");
			for (char *s = only; (s = strchr(s, ' ')); s++)
				*s = ',';
			continue;
		}
		char choices[256];
		const char letter[] = { o->letter ? o->letter : '-', 0 };
		join_choices(o, choices, sizeof choices);
		printf("%s\t%s\t%s\t%s\t%s\t%s\t%s\n", o->name, letter, or_dash(o->arg),
		       kind_name(o->kind), or_dash(choices), o->help, or_dash(only));
	}
}
