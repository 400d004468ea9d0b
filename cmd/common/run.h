/* SPDX-License-Identifier: Apache-2.0 */
/* run.h - start and end of a program: descriptors, signals, errors on stderr, exit status. main.c
 * calls these in their order. */
#ifndef WSYNC_CMD_RUN_H
#define WSYNC_CMD_RUN_H

#include "wsync/tool/buf.h"
#include "wsync/cancel.h"
#include "wsync/err.h"

/* Set by the first signal that would end the program; the second one kills. A signal that was
 * ignored when the program started (nohup, a background job of a script) stays ignored. */
extern struct ws_cancel run_cancel;

/* Makes sure that descriptors 0 to 2 exist (so that no socket takes their place),
 * replaces stdout and stderr (outlet.h), ignores SIGPIPE and SIGXFSZ and installs
 * the handlers. name is kept. */
void run_start(const char *name);

/* Ends the output and returns the exit status: the given one, or 8 if that was 0 and output was
 * lost. Does not return after a signal: the process dies by that signal. */
int run_exit(int status);

/* Prints the error and its hint on stderr, then run_exit with its code. NULL or WS_OK: success. */
int run_finish(const struct ws_err *err);

/* The same from another thread, while the first one hangs: ends the process at once. */
void run_quit(const struct ws_err *err) __attribute__((noreturn));

/* "wsync-push: <message>" and "hint: ..." on stderr, as run_finish does. */
void run_print_error(const struct ws_err *err);
/* Lines to print below the next error. They contain `hint`, which is then not printed again.
 * Copied. */
void run_explain_error(const char *paragraph, const char *hint);

/* The path of the program of this name in the directory of this one. -1 and errno: not found. */
int run_beside(const char *name, char *path, size_t n);

/* The path of the registry: the given one, else $WSYNC_REGISTRY, else wsync/registry.json under
 * $XDG_STATE_HOME (when absolute) or ~/.local/state. */
int run_registry_path(const char *given, struct ws_buf *path, struct ws_err *err);
/* The state directory, where pushes are recorded: the given one, else wsync under
 * $XDG_STATE_HOME (when absolute) or ~/.local/state. */
int run_state_dir(const char *given, struct ws_buf *path, struct ws_err *err);
/* The given path, else $WSYNC_ADMIN_API_KEY_FILE, else NULL. */
const char *run_admin_api_key_file(const char *given);
/* The given path, else $WSYNC_API_KEY_FILE, else NULL. */
const char *run_api_key_file(const char *given);
const char *run_ca_file(const char *given); /* likewise, $WSYNC_CA_FILE */

#endif
