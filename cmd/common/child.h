/* SPDX-License-Identifier: Apache-2.0 */
/* child.h - runs another program and waits for it. */
#ifndef WSYNC_CMD_CHILD_H
#define WSYNC_CMD_CHILD_H

#include "wsync/clock.h"
#include "wsync/err.h"

#include <stdbool.h>

struct child {
	const char *program;      /* a path, without a search */
	char *const *words;       /* its arguments, the first is its name; NULL-terminated */
	char *const *environment; /* NULL: ours */
	const char *directory;    /* NULL: ours */
	bool mute;                /* its standard output goes to /dev/null, */
	bool to_stderr;           /* or to our standard error */
	bool group;               /* signals go to it and to all that it starts */
	ws_deadline until;
	int64_t grace_ns;         /* after SIGTERM or the deadline, until it is killed */
};

struct child_end {
	int status;               /* as of waitpid(2) */
	bool late;                /* it got SIGTERM at the deadline */
};

/* Its standard input is empty. If this program is cancelled, the child gets SIGTERM once; without
 * `group` it is then waited for without a limit, because it ends by itself. At the deadline it gets
 * SIGTERM if `group`, else it has a deadline of its own. After
 * a signal or the deadline, what is left of a group after grace_ns is killed. */
int child_run(const struct child *c, struct child_end *how, struct ws_err *err);

#endif
