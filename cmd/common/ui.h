/* SPDX-License-Identifier: Apache-2.0 */
/* ui.h - the sinks: events as text for people, as JSON lines for programs, or not at all.
 *
 * Results go to stdout; warnings, log lines and the progress line to stderr. Text of foreign origin
 * (tensor names, servers' messages) passes ws_printable before it reaches a terminal. run_exit
 * checks once, at the end, whether stdout could be written. */
#ifndef WSYNC_CMD_UI_H
#define WSYNC_CMD_UI_H

#include "opt.h"

#include "wsync/tool/name_check_run.h"
#include "wsync/tool/buf.h"
#include "wsync/clock.h"
#include "wsync/err.h"
#include "wsync/event.h"
#include "wsync/tool/json.h"
#include "wsync/log.h"

struct ui {
	const char *program;  /* "wsync-push" */
	bool json, quiet;
	unsigned verbose;
	bool color, color_err; /* on stdout, on stderr */
	bool progress;         /* draw the progress line */
	struct ws_sink sink;   /* for the library: renders events as the options say */
	struct ws_log log;     /* for the library: -v lines; level 0 without -v */

	/* private */
	struct ws_buf line;
	struct ws_jw jw;
	bool begun, ended;     /* the JSON stream */
	bool muted;            /* the current line is not printed */
	size_t limit;          /* findings about names to show of a group; 0: all */
	bool notes;            /* show notes about names, and the result if there are no errors */
	bool dry_run;
	int64_t drawn_ns;      /* when the progress line was drawn last */
};

void ui_init(struct ui *ui, const char *program, const struct opt_common *common);
void ui_fini(struct ui *ui); /* erases the progress line */

/* ---- for everybody ---- */
enum ui_color { UI_PLAIN, UI_GOOD, UI_BAD, UI_WARN, UI_DIM, UI_BOLD };
/* Escape sequences for stdout, or "" without color: ui_on(ui, UI_BAD), ..., ui_off(ui). */
const char *ui_on(const struct ui *ui, enum ui_color color);
const char *ui_off(const struct ui *ui);
enum ui_color ui_severity(enum ws_severity severity);
/* "wsync-push: warning: url: text" on stderr, and a warning line with --json. url may be NULL. */
void ui_warn(struct ui *ui, const char *url, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* printf to stdout for people: nothing with --json or -q. */
void ui_say(struct ui *ui, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* UI_TEXT_MAX: the longest name that a tensor may have. */
enum { UI_TEXT_MAX = 4096, UI_BUFFER_SIZE = 2 * UI_TEXT_MAX, UI_BUFFERS = 12 };
/* A buffer for one line. The results of this function, ui_text and ui_words last for the thread's
 * next UI_BUFFERS - 1 calls of these three. */
char *ui_buffer(void);
/* Makes foreign text printable and cuts it at UI_TEXT_MAX bytes. */
const char *ui_text(const char *foreign);
/* A sentence of the library with the options of the programs in place of the fields that it names:
 * "use --pause abort" for "use {pause} abort" (err.h). A sentence that names none is returned. */
const char *ui_words(const char *sentence);
/* The same, with these bytes in place of those of ui_words_read; for any thread. */
const char *ui_words_but(const char *sentence, const char *bytes, size_t n);
/* The arguments of the program, and a line or request that it reads. If one of them contains a
 * field in braces, that is the user's text and stays unchanged. The pointers are kept. */
void ui_words_typed(const char *const *words);
void ui_words_read(const char *line, size_t n);
/* "bucket-timeout" for the field "bucket_ns", of which n bytes count; NULL: not an option. */
const char *ui_option(const char *field, size_t n);
/* Columns of the terminal: $COLUMNS, else as the terminal reports, else 80; at least 40. */
int ui_width(int fd);

/* Draws the progress line, only if stderr is a terminal; it stays below all printed
 * lines. NULL: erases it. */
void ui_progress(struct ui *ui, const char *text);

/* ---- JSON lines, for programs without events ----
 * All print nothing without --json, so callers need not check:
 *   ui_begin(ui);                                     {"schema":1,"type":"start", ...}
 *   struct ws_jw *w = ui_line(ui, "endpoint");
 *   ws_jw_str(w, "url", url);
 *   ui_line_end(ui);                                  {"type":"endpoint","url":"http://gpu7:30000"}
 *   ui_end(ui, &err);                                 {"type":"end","ok":true,"exit":0}
 * ui_end begins the stream when nothing did, and does nothing when the stream has ended (by
 * WS_EV_END). To add members to the end: w = ui_end_open(ui, &err), then ui_line_end. */
void ui_begin(struct ui *ui);
struct ws_jw *ui_line(struct ui *ui, const char *type);
void ui_line_end(struct ui *ui);
struct ws_jw *ui_end_open(struct ui *ui, const struct ws_err *err);
void ui_end(struct ui *ui, const struct ws_err *err);
/* The outcome of a check of names, as member "names" of the object that is open. */
void ui_json_name_check(struct ws_jw *w, const struct ws_name_check_run *a);
/* " (12 of 310 tensors left out by --exclude)"; nothing if no needed one was. NULL is fine. */
void ui_text_left_out(const struct ws_findings *f);
/* The member "left_out", if there are globs. */
void ui_json_left_out(struct ws_jw *w, const struct ws_findings *f);
/* A text, or null where it is "" or NULL. */
void ui_json_text(struct ws_jw *w, const char *key, const char *text);
/* The same, after ui_words. */
void ui_json_words(struct ws_jw *w, const char *key, const char *sentence);
/* What a server's own checksums prove: keys of a JSON object, and "proven 399 of 399 parameters on
 * 2 ranks, 100 % of the bytes", written to dst, which is returned. */
void ui_json_proof(struct ws_jw *w, const struct ws_ev_proof *p);
char *ui_proof(char *dst, size_t n, const struct ws_ev_proof *p);
/* Dimensions as a JSON array, and as "[151936, 1024]" into dst. */
void ui_json_shape(struct ws_jw *w, const char *key, unsigned n_dims, const int64_t *dims);
char *ui_shape(char *dst, size_t n, unsigned n_dims, const int64_t *dims);

/* ---- private to ui*.c ---- */
void ui_json_event(struct ui *ui, const struct ws_event *ev);
void ui_text_event(struct ui *ui, const struct ws_event *ev);
/* Every line of text begins with one word in a column of its own. */
void ui_head(struct ui *ui, enum ui_color color, const char *word);
void ui_text_names(struct ui *ui, const struct ws_ev_names *n);
void ui_json_names(struct ui *ui, const struct ws_ev_names *n);
void ui_hang(struct ui *ui, const struct ws_hang *h); /* below the error that is printed next */
void ui_json_hang(struct ui *ui, const struct ws_hang *h);

#endif
