/* SPDX-License-Identifier: Apache-2.0 */
/* measuring.h - --metrics: a file that is tried before anybody is spoken to, and written when a
 * push has ended, whatever it came to; with --stdin after each line. */
#ifndef WSYNC_CMD_MEASURING_H
#define WSYNC_CMD_MEASURING_H

#include "ui.h"

#include "wsync/tool/metrics.h"

struct measuring {
	const char *file; /* the option's; NULL: nobody wants it */
	struct ws_metrics *metrics;
	struct ui *ui;
	struct ws_sink sink; /* for the library: the ui's, that is listened to */
	bool ended;          /* the end was told */
};

int measuring_begin(struct measuring *m, struct ui *ui, struct ws_err *err);
/* err: what it came to where nothing was told of that; dry runs are not measured. */
void measuring_end(struct measuring *m, const struct ws_err *err, bool dry_run);

#endif
