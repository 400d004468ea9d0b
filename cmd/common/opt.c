/* SPDX-License-Identifier: Apache-2.0 */
/* opt.c - parses the command line with getopt_long, from the program's table.
 *
 * getopt_long permutes and abbreviates. All messages are ours, because getopt's messages name
 * neither the kind of value nor the valid values. */
#include "opt.h"

#include "wsync/tool/str.h"

#include <assert.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const opt_color_names[] = { "auto", "always", "never", NULL };
const char *const opt_progress_names[] = { "auto", "none", NULL };
const char *const opt_help_names[] = { "all", NULL };

/* getopt's values: a long option is FIRST + its row, its --no- form FIRST_NO + its row. */
enum { MAX_ROWS = 160, FIRST = 256, FIRST_NO = FIRST + MAX_ROWS };

static bool is_flag(const struct opt *o)
{
	return o->kind == OPT_KIND_FLAG || o->kind == OPT_KIND_SWITCH;
}

static bool takes_value(const struct opt *o)
{
	return o->kind != OPT_KIND_HELP && (o->arg || o->kind == OPT_KIND_CHOICE);
}

static int complain(const struct opt_program *p, const char *text)
{
	fprintf(stderr, "%s: %s\nTry '%s --help'.\n", p->name, text, p->name);
	return WS_EUSAGE;
}

int opt_usage(const struct opt_program *p, const char *fmt, ...)
{
	char text[768], shown[768];
	va_list ap;
	va_start(ap, fmt);
	const int n = vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	ws_hide_passwords(text, n >= (int)sizeof text);
	return complain(p, ws_printable(shown, sizeof shown, text, strlen(text)));
}

/* ---- the name nearest to a mistyped one ---- */

static const char *nearest_option(const struct opt_program *p, const char *typed, size_t len)
{
	char name[64];
	const char *best = NULL;
	size_t edits = SIZE_MAX;
	if (len >= sizeof name)
		return NULL;
	memcpy(name, typed, len);
	name[len] = 0;
	for (const struct opt *o = p->opts; o->kind != OPT_KIND_END; o++)
		if (o->kind != OPT_KIND_GROUP)
			opt_nearer(name, o->name, &best, &edits);
	return best;
}

static const struct opt_command *find_command(const struct opt_program *p, const char *name,
                                              const char **nearest)
{
	size_t edits = SIZE_MAX;
	*nearest = NULL;
	for (const struct opt_command *c = p->commands; c && c->name; c++) {
		if (strcmp(c->name, name) == 0)
			return c;
		opt_nearer(name, c->name, nearest, &edits);
	}
	return NULL;
}

/* ---- getopt's form of the table ---- */

struct tables {
	char letters[2 * MAX_ROWS + 2];
	struct option longs[2 * MAX_ROWS + 1];
	char no_names[MAX_ROWS][40];
	bool given[MAX_ROWS];
};

static void build_tables(const struct opt_program *p, struct tables *t)
{
	size_t n_letters = 0, n_longs = 0;
	memset(t, 0, sizeof *t);
	t->letters[n_letters++] = ':'; /* getopt then returns ':' if a value is missing */
	for (int i = 0; p->opts[i].kind != OPT_KIND_END; i++) {
		const struct opt *o = &p->opts[i];
		assert(i < MAX_ROWS);
		if (o->kind == OPT_KIND_GROUP)
			continue;
		const int arg = o->kind == OPT_KIND_HELP ? optional_argument :
		                takes_value(o) ? required_argument : no_argument;
		if (o->letter) {
			t->letters[n_letters++] = o->letter;
			if (arg == required_argument)
				t->letters[n_letters++] = ':';
		}
		t->longs[n_longs++] = (struct option){ o->name, arg, NULL, FIRST + i };
		if (is_flag(o)) {
			snprintf(t->no_names[i], sizeof t->no_names[i], "no-%s", o->name);
			t->longs[n_longs++] =
				(struct option){ t->no_names[i], no_argument, NULL, FIRST_NO + i };
		}
	}
}

static int row_of(const struct opt_program *p, int found)
{
	if (found >= FIRST_NO)
		return found - FIRST_NO;
	if (found >= FIRST)
		return found - FIRST;
	for (int i = 0; p->opts[i].kind != OPT_KIND_END; i++)
		if (p->opts[i].kind != OPT_KIND_GROUP && p->opts[i].letter == found)
			return i;
	return -1;
}

/* Reports getopt's error: optopt is a letter, a value of `longs`, or 0 for a long name that is
 * unknown or ambiguous. */
static int refuse(const struct opt_program *p, const struct tables *t, bool missing,
                  const char *word)
{
	const int row = optopt ? row_of(p, optopt) : -1;
	if (missing && row >= 0) {
		const struct opt *o = &p->opts[row];
		return opt_usage(p, "--%s: needs a value%s%s", o->name, o->arg ? ": " : "",
		                 o->arg ? o->arg : "");
	}
	if (row >= 0)
		return opt_usage(p, "--%s%s: takes no value", optopt >= FIRST_NO ? "no-" : "",
		                 p->opts[row].name);
	if (optopt)
		return opt_usage(p, "unknown option '-%c'", optopt);
	const char *name = word + 2;
	const size_t len = strcspn(name, "=");
	char candidates[256] = "";
	size_t used = 0;
	for (const struct option *l = t->longs; l->name; l++)
		if (strncmp(l->name, name, len) == 0 && used < sizeof candidates)
			used += (size_t)snprintf(candidates + used, sizeof candidates - used,
			                         "%s--%s", used ? ", " : "", l->name);
	if (used)
		return opt_usage(p, "ambiguous option '--%.*s' (%s)", (int)len, name, candidates);
	for (const struct opt_gone *g = p->gone; g && g->name; g++)
		if (strlen(g->name) == len && strncmp(g->name, name, len) == 0)
			return opt_usage(p, "--%s: %s", g->name, g->text);
	const char *near = nearest_option(p, name, len);
	if (near)
		return opt_usage(p, "unknown option '--%.*s', did you mean '--%s'?", (int)len, name,
		                 near);
	return opt_usage(p, "unknown option '--%.*s'", (int)len, name);
}

/* Prints help on "all" or a command, from --help=TOPIC or the word after --help; otherwise on the
 * command on the line, if there is one. Other words after --help are arguments. */
static int give_help(const struct opt_program *p, int argc, char **argv, const struct tables *t)
{
	const char *near, *topic = optarg ? optarg : optind < argc ? argv[optind] : "";
	const bool all = strcmp(topic, opt_help_names[0]) == 0;
	const struct opt_command *c = find_command(p, topic, &near);
	if (optarg && !all && !c)
		return opt_usage(p, "--help: invalid value '%s', must be all%s", optarg,
		                 p->commands ? " or a command" : "");
	if (!all && !c) {
		while (getopt_long(argc, argv, t->letters, t->longs, NULL) != -1)
			; /* moves the other arguments to the end */
		c = optind < argc ? find_command(p, argv[optind], &near) : NULL;
	}
	opt_print_help(p, c, all);
	return 0;
}

static int parse_options(const struct opt_program *p, int argc, char **argv, struct tables *t)
{
	int found;
	optind = 0; /* glibc: start afresh, so that this can be called twice */
	opterr = 0;
	while ((found = getopt_long(argc, argv, t->letters, t->longs, NULL)) != -1) {
		if (found == '?' || found == ':')
			return refuse(p, t, found == ':', argv[optind - 1]);
		const int row = row_of(p, found);
		const struct opt *o = &p->opts[row];
		struct ws_err err = WS_ERR_INIT;
		if (o->kind == OPT_KIND_HELP)
			return give_help(p, argc, argv, t);
		if (o->kind == OPT_KIND_VERSION) {
			opt_print_version(p);
			return 0;
		}
		if (opt_store(o, optarg, found < FIRST_NO, &err))
			return opt_usage(p, "--%s: %s", o->name, err.msg);
		t->given[row] = true;
	}
	return OPT_GO;
}

/* ---- arguments ---- */

static bool has_word(const char *words, const char *word)
{
	const size_t n = strlen(word);
	for (const char *at = words; (at = strstr(at, word)); at += n)
		if ((at == words || at[-1] == ' ') && (at[n] == ' ' || !at[n]))
			return true;
	return false;
}

bool opt_group_has(const char *commands, const struct opt_command *c)
{
	return !commands || !c || has_word(commands, c->name);
}

static int check_groups(const struct opt_program *p, const struct tables *t,
                        const struct opt_command *c)
{
	const char *only = NULL;
	for (int i = 0; p->opts[i].kind != OPT_KIND_END; i++) {
		const struct opt *o = &p->opts[i];
		if (o->kind == OPT_KIND_GROUP)
			only = o->lenient ? NULL : o->help;
		else if (t->given[i] && !opt_group_has(only, c))
			return opt_usage(p, "--%s: no option of '%s', only of: %s", o->name,
			                 c->name, only);
	}
	return OPT_GO;
}

static bool takes_endpoint(const struct opt_program *p, const struct opt_command *c)
{
	const char *commands = NULL;
	for (const struct opt *o = p->opts; o->kind != OPT_KIND_END; o++) {
		if (o->kind == OPT_KIND_GROUP)
			commands = o->help;
		else if (strcmp(o->name, "endpoint") == 0)
			return opt_group_has(commands, c);
	}
	return false;
}

static int refuse_argument(const struct opt_program *p, const struct opt_command *c,
                           const char *word)
{
	const char *prefix = c ? c->name : "", *colon = c ? ": " : "";
	if (strchr(word, ':') && takes_endpoint(p, c))
		return opt_usage(p, "%s%sunexpected argument '%s', did you mean '--endpoint %s'?",
		                 prefix, colon, word, word);
	return opt_usage(p, "%s%sunexpected argument '%s'", prefix, colon, word);
}

static int check_count(const struct opt_program *p, const struct opt_args *args)
{
	const struct opt_command *c = args->command;
	const char *synopsis = c ? c->args : p->args;
	const size_t least = c ? c->min_args : p->min_args;
	const size_t most = c ? c->max_args : p->max_args;
	if (args->n < least)
		return opt_usage(p, "%s%smissing argument: %s", c ? c->name : "", c ? ": " : "",
		                 synopsis);
	return args->n > most ? refuse_argument(p, c, args->v[most]) : OPT_GO;
}

static int parse_arguments(const struct opt_program *p, const struct tables *t,
                           struct opt_args *args)
{
	if (p->commands) {
		const char *near = NULL;
		if (args->n == 0)
			return opt_usage(p, "missing argument: COMMAND");
		args->command = find_command(p, args->v[0], &near);
		if (!args->command && near)
			return opt_usage(p, "unknown command '%s', did you mean '%s'?", args->v[0],
			                 near);
		if (!args->command)
			return opt_usage(p, "unknown command '%s'", args->v[0]);
		args->v++;
		args->n--;
		const int status = check_groups(p, t, args->command);
		if (status != OPT_GO)
			return status;
	}
	return check_count(p, args);
}

int opt_parse(const struct opt_program *p, int argc, char **argv, struct opt_args *args)
{
	struct tables t;
	*args = (struct opt_args){ 0 };
	if (argc == 2 && strcmp(argv[1], "--dump-options") == 0) {
		opt_print_dump(p);
		return 0;
	}
	build_tables(p, &t);
	const int status = parse_options(p, argc, argv, &t);
	if (status != OPT_GO)
		return status;
	if (optind < argc) {
		args->v = (const char *const *)argv + optind;
		args->n = (size_t)(argc - optind);
	}
	return parse_arguments(p, &t, args);
}

static bool is_one_of(const char *name, const char *const *names)
{
	while (*names && strcmp(*names, name) != 0)
		names++;
	return *names;
}

static int repeat_word(const struct opt *o, int found, char **word)
{
	const bool off = found >= FIRST_NO;
	return is_flag(o) || !optarg ? asprintf(word, "--%s%s", off ? "no-" : "", o->name)
	                             : asprintf(word, "--%s=%s", o->name, optarg);
}

int opt_repeat(const struct opt_program *p, int argc, char **argv, const char *const *but,
               struct opt_list *words, struct ws_err *err)
{
	struct tables t;
	int found;
	build_tables(p, &t);
	/* Each option becomes one word, and is at least one byte of the command line. */
	size_t most = 1;
	for (int i = 1; i < argc; i++)
		most += strlen(argv[i]);
	*words = (struct opt_list){ calloc(most, sizeof *words->items), 0 };
	if (!words->items)
		return ws_oom(err);
	optind = 0;
	while ((found = getopt_long(argc, argv, t.letters, t.longs, NULL)) != -1) {
		const int row = found == '?' || found == ':' ? -1 : row_of(p, found);
		if (row < 0 || is_one_of(p->opts[row].name, but))
			continue;
		char *word;
		if (repeat_word(&p->opts[row], found, &word) < 0)
			return ws_oom(err);
		words->items[words->n++] = word;
	}
	return 0;
}

void opt_free(const struct opt_program *p)
{
	for (const struct opt *o = p->opts; o->kind != OPT_KIND_END; o++) {
		if (o->kind == OPT_KIND_LIST) {
			free(o->out.list->items);
			*o->out.list = (struct opt_list){ 0 };
		}
	}
}
