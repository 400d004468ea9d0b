/* SPDX-License-Identifier: Apache-2.0 */
/* measuring.h - --metrics: checks the file before the first request, and writes it after a push,
 * successful or not; with --stdin after each line. */
#ifndef WSYNC_CMD_MEASURING_H
#define WSYNC_CMD_MEASURING_H

#include "ui.h"

#include "wsync/tool/metrics.h"

struct measuring {
	const char *file; /* of the option; NULL: not given */
	struct ws_metrics *metrics;
	struct ui *ui;
	struct ws_sink sink; /* for the library; passes events on to the ui's sink */
	bool ended;          /* WS_EV_END has come */
};

int measuring_begin(struct measuring *m, struct ui *ui, struct ws_err *err);
/* err: the error of a run that sent no WS_EV_END; dry runs are not measured. */
void measuring_end(struct measuring *m, const struct ws_err *err, bool dry_run);

#endif
