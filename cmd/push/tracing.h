/* SPDX-License-Identifier: Apache-2.0 */
/* tracing.h - --trace: a file that is tried before anybody is spoken to, and
 * written however the push ends. */
#ifndef WSYNC_CMD_TRACING_H
#define WSYNC_CMD_TRACING_H

#include "ui.h"

#include "wsync/trace.h"

struct tracing {
	const char *file;       /* the option's; NULL: nobody wants it */
	struct ws_trace *trace; /* likewise */
	bool written;
};

int tracing_begin(struct tracing *t, struct ws_err *err);
/* Once, before the last line is told: what cannot be written is a warning,
 * for the weights are there. */
void tracing_write(struct tracing *t, struct ui *ui);
/* Nobody records any more. Writes it where nobody did. */
void tracing_end(struct tracing *t, struct ui *ui);

#endif
