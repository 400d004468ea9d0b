/* SPDX-License-Identifier: Apache-2.0 */
/* opt.h - one table per program: parser, --help, usage errors and the dump for completions.
 *
 * The table is the only place where an option is written down. Rows are made with the OPT_ macros,
 * which check the type of the option's variable; its value before parsing is the default.
 * Options may stand before, between and after the other arguments, and -- ends them.
 *
 * --help prints the commands and the options marked .basic, on one screen. COMMAND --help prints
 * the options of that command, and --help all prints every option.
 *
 * The hidden --dump-options, alone on the command line, prints one line per option and command:
 *   name TAB letter TAB argument TAB kind TAB choices TAB help TAB commands
 * where "-" stands for nothing, choices are joined by "|", and commands (joined by ",") are those
 * that use the option when not all do. Kinds: flag switch count string list size duration uint
 * choice call help version, and command for the subcommands, whose argument is their synopsis.
 * A switch is a flag that help shows as --[no-]name; both kinds accept --name and --no-name. */
#ifndef WSYNC_CMD_OPT_H
#define WSYNC_CMD_OPT_H

#include "wsync/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum opt_kind {
	OPT_KIND_END, OPT_KIND_GROUP, OPT_KIND_FLAG, OPT_KIND_SWITCH, OPT_KIND_COUNT,
	OPT_KIND_STRING, OPT_KIND_LIST, OPT_KIND_SIZE, OPT_KIND_DURATION, OPT_KIND_UINT,
	OPT_KIND_CHOICE, OPT_KIND_CALL, OPT_KIND_HELP, OPT_KIND_VERSION
};

/* The values of --list a --list b. The strings are argv's; opt_free frees the array. */
struct opt_list {
	const char **items;
	size_t n;
};

/* Value is NULL for an option without argument. A failure's message follows "--name: ". */
typedef int opt_call(void *ctx, const char *value, struct ws_err *err);

/* An option of an earlier release: its usage error is "--NAME: TEXT". Of a choice, a value of an
 * earlier release: "--OPTION: 'NAME' TEXT". */
struct opt_gone {
	const char *name, *text; /* name NULL ends the table */
};

struct opt {
	enum opt_kind kind;
	char letter;             /* 0: none */
	const char *name;        /* without dashes; of a group: its title */
	const char *arg;         /* "FILE"; NULL: no argument, or for a choice all of them */
	const char *help;        /* lower case, no full stop; of a group: commands it belongs to */
	bool basic;              /* PROGRAM --help shows it, unless one command alone has it */
	bool lenient;            /* of a group: the other commands ignore its options */
	const char *const *choices; /* NULL-terminated */
	const struct opt_gone *gone; /* of a choice; NULL: none */
	uint64_t lo, hi;         /* of an uint; lo, in ns, of a duration too */
	void *ctx;               /* of a call */
	union {
		bool *flag;
		unsigned *count;
		const char **string;
		struct opt_list *list;
		uint64_t *uint;
		int64_t *ns;
		unsigned *choice; /* index into choices */
		opt_call *call;
	} out;
};

/* OPT_GROUP_FOR: every other command refuses the options up to the next group. OPT_GROUP_OF: every
 * other command accepts and ignores them. The commands are separated by single spaces. */
#define OPT_GROUP(title) { .kind = OPT_KIND_GROUP, .name = (title) }
#define OPT_GROUP_FOR(title, cmds) { .kind = OPT_KIND_GROUP, .name = (title), .help = (cmds) }
#define OPT_GROUP_OF(title, cmds) \
	{ .kind = OPT_KIND_GROUP, .name = (title), .help = (cmds), .lenient = true }
/* The last argument of these is the help, which may be followed by ".basic = true". */
#define OPT_ROW(k, l, n, a, ...) \
	.kind = (k), .letter = (l), .name = (n), .arg = (a), .help = __VA_ARGS__
#define OPT_FLAG(l, n, p, ...) { OPT_ROW(OPT_KIND_FLAG, l, n, NULL, __VA_ARGS__), .out.flag = (p) }
#define OPT_SWITCH(l, n, p, ...) \
	{ OPT_ROW(OPT_KIND_SWITCH, l, n, NULL, __VA_ARGS__), .out.flag = (p) }
#define OPT_COUNT(l, n, p, ...) \
	{ OPT_ROW(OPT_KIND_COUNT, l, n, NULL, __VA_ARGS__), .out.count = (p) }
#define OPT_STRING(l, n, a, p, ...) \
	{ OPT_ROW(OPT_KIND_STRING, l, n, a, __VA_ARGS__), .out.string = (p) }
#define OPT_LIST(l, n, a, p, ...) { OPT_ROW(OPT_KIND_LIST, l, n, a, __VA_ARGS__), .out.list = (p) }
#define OPT_SIZE(l, n, p, ...) \
	{ OPT_ROW(OPT_KIND_SIZE, l, n, "SIZE", __VA_ARGS__), .out.uint = (p) }
/* ns; "none" is INT64_MAX, which ws_deadline_in understands. */
#define OPT_DURATION(l, n, p, ...) \
	{ OPT_ROW(OPT_KIND_DURATION, l, n, "DURATION", __VA_ARGS__), .out.ns = (p) }
/* A deadline: a duration of more than 0. */
#define OPT_LIMIT(l, n, p, ...) \
	{ OPT_ROW(OPT_KIND_DURATION, l, n, "DURATION", __VA_ARGS__), .lo = 1, .out.ns = (p) }
#define OPT_UINT(l, n, a, low, high, p, ...) \
	{ OPT_ROW(OPT_KIND_UINT, l, n, a, __VA_ARGS__), .lo = (low), .hi = (high), .out.uint = (p) }
#define OPT_CHOICE(l, n, names, p, ...) \
	{ OPT_ROW(OPT_KIND_CHOICE, l, n, NULL, __VA_ARGS__), .choices = (names), .out.choice = (p) }
#define OPT_CALL(l, n, a, fn, c, ...) \
	{ OPT_ROW(OPT_KIND_CALL, l, n, a, __VA_ARGS__), .ctx = (c), .out.call = (fn) }
#define OPT_END { .kind = OPT_KIND_END }

/* The options that are the same in every program. Color and progress index their choices. */
enum opt_color { OPT_COLOR_AUTO, OPT_COLOR_ALWAYS, OPT_COLOR_NEVER };
enum opt_progress { OPT_PROGRESS_AUTO, OPT_PROGRESS_NONE };
extern const char *const opt_color_names[];
extern const char *const opt_progress_names[];
extern const char *const opt_help_names[];

struct opt_common {
	bool json, quiet;
	unsigned verbose;
	unsigned color;    /* enum opt_color */
	unsigned progress; /* enum opt_progress */
	const char *registry;     /* --registry; NULL: run_registry_path finds it */
	const char *api_key_file; /* --api-key-file; NULL: none */
	const char *admin_api_key_file; /* --admin-api-key-file; NULL: none */
	const char *ca_file;      /* --ca-file; NULL: none */
	struct opt_list endpoints; /* --endpoint; empty: the registered ones */
	const char *pool;          /* --pool: only registered ones of this pool; NULL: all */
	int64_t connect_ns;        /* --connect-timeout */
};

#define OPT_COMMON(c) \
	OPT_GROUP("Common"), \
	OPT_FLAG(0, "json", &(c)->json, "print one JSON object per line, see wsync-json(5)", \
	.basic = true), \
	OPT_FLAG('q', "quiet", &(c)->quiet, "print only errors", .basic = true), \
	OPT_COUNT('v', "verbose", &(c)->verbose, \
		"log requests to stderr; twice: log every step", .basic = true), \
	OPT_CHOICE(0, "color", opt_color_names, &(c)->color, \
		"color the output (auto: on a terminal without NO_COLOR)"), \
	{ OPT_ROW(OPT_KIND_HELP, 'h', "help", "[all]", "print help; all: every option", \
		  .basic = true), .choices = opt_help_names }, \
	{ OPT_ROW(OPT_KIND_VERSION, 'V', "version", NULL, "print the version", .basic = true) }
#define OPT_PROGRESS(c) \
	OPT_CHOICE(0, "progress", opt_progress_names, &(c)->progress, \
		"show progress on stderr (auto: on a terminal)")
#define OPT_STATE_DIR(p)                                                                           \
	OPT_STRING(0, "state-dir", "DIR", (p),                                                     \
	           "directory of push records and locks (~/.local/state/wsync)")
#define OPT_REGISTRY(c)                                                                            \
	OPT_STRING(0, "registry", "FILE", &(c)->registry,                                          \
	           "registry file ($WSYNC_REGISTRY, else in ~/.local/state/wsync)")
#define OPT_POOL(c) \
	OPT_STRING(0, "pool", "NAME", &(c)->pool, "use only registered endpoints of this pool", \
		.basic = true)
#define OPT_KEYS(c) \
	OPT_STRING(0, "api-key-file", "FILE", &(c)->api_key_file, \
		"file with the endpoints' API key ($WSYNC_API_KEY_FILE)"), \
	OPT_STRING(0, "admin-api-key-file", "FILE", &(c)->admin_api_key_file, \
		"file with SGLang's admin key ($WSYNC_ADMIN_API_KEY_FILE)"), \
	OPT_STRING(0, "ca-file", "FILE", &(c)->ca_file, \
		"PEM file of trusted https certificates ($WSYNC_CA_FILE)")
#define OPT_CONNECT_TIMEOUT(c) \
	OPT_LIMIT(0, "connect-timeout", &(c)->connect_ns, "time limit to connect (10s)")

enum { OPT_MANY = 1 << 30 };

struct opt_args {
	const struct opt_command *command; /* NULL in a program without commands */
	const char *const *v;              /* without options and command */
	size_t n;
};

/* A subcommand. The program calls run, with a ctx of its own. */
struct opt_command {
	const char *name; /* NULL ends the table */
	const char *args; /* "URL...", "" */
	const char *summary;
	size_t min_args, max_args; /* OPT_MANY: no limit */
	int (*run)(void *ctx, const struct opt_args *args, struct ws_err *err);
};

struct opt_program {
	const char *name;    /* "wsync-push" */
	const char *args;    /* "SOURCE..."; with commands: "COMMAND [ARGUMENT]..." */
	const char *summary; /* one sentence, with its full stop */
	const char *notes;   /* one more paragraph, after the options; NULL: none */
	const char *examples[4]; /* whole command lines, up to the first NULL */
	size_t min_args, max_args; /* ignored where there are commands */
	const struct opt_command *commands; /* NULL: none */
	const struct opt *opts;
	const struct opt_gone *gone; /* NULL: none */
};

/* OPT_GO: run. Otherwise the exit status: 0 when help, version or the dump were printed, 2 after a
 * usage error was printed on stderr; pass it to run_exit. May be called again. */
enum { OPT_GO = -1 };
int opt_parse(const struct opt_program *p, int argc, char **argv, struct opt_args *args);
void opt_free(const struct opt_program *p); /* the lists */
/* The options on a command line that opt_parse has accepted, each as one word "--name",
 * "--no-name" or "--name=value", in their order, except those named in `but` (NULL-terminated).
 * Used to run the program again. The caller frees the strings and the array. */
int opt_repeat(const struct opt_program *p, int argc, char **argv, const char *const *but,
               struct opt_list *words, struct ws_err *err);

/* "wsync-push: <text>" and "Try 'wsync-push --help'." on stderr; returns 2. */
int opt_usage(const struct opt_program *p, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

/* ---- private to opt*.c ---- */

/* Are the options of a group for these commands (NULL: all) options of c? c NULL: true. */
bool opt_group_has(const char *commands, const struct opt_command *c);
/* value is NULL for options without a value; on is false for the --no- form. */
int opt_store(const struct opt *o, const char *value, bool on, struct ws_err *err);
/* Sets *best to name if it is few edits away from `typed`, and fewer than *edits. */
void opt_nearer(const char *typed, const char *name, const char **best, size_t *edits);
/* c NULL: PROGRAM --help, or with `all` every option. Otherwise PROGRAM c --help. */
void opt_print_help(const struct opt_program *p, const struct opt_command *c, bool all);
void opt_print_version(const struct opt_program *p);
void opt_print_dump(const struct opt_program *p);

#endif
