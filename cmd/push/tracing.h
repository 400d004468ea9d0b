/* SPDX-License-Identifier: Apache-2.0 */
/* tracing.h - --trace: checks the file before the first request, and writes it
 * after the push, successful or not. */
#ifndef WSYNC_CMD_TRACING_H
#define WSYNC_CMD_TRACING_H

#include "ui.h"

#include "wsync/trace.h"

struct tracing {
	const char *file;       /* of the option; NULL: not given */
	struct ws_trace *trace; /* likewise */
	bool written;
};

int tracing_begin(struct tracing *t, struct ws_err *err);
/* Writes the file, once, before the last line is printed. A failure is only a
 * warning, because the push itself is done. */
void tracing_write(struct tracing *t, struct ui *ui);
/* Ends the recording. Writes the file, unless it is written already. */
void tracing_end(struct tracing *t, struct ui *ui);

#endif
