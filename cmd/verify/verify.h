/* SPDX-License-Identifier: Apache-2.0 */
/* verify.h - what the commands of wsync-verify share. */
#ifndef WSYNC_CMD_VERIFY_H
#define WSYNC_CMD_VERIFY_H

#include "naming.h"
#include "targets.h"

struct verify_config {
	struct opt_common common;
	struct naming naming;
	struct opt_list endpoints, include, exclude;
	const char *pool, *list;
	uint64_t tp, ep, attention_tp; /* 0: not given */
	uint64_t limit;
	bool scan;
	int64_t connect_ns, timeout_ns;
};

struct verify_job {
	const struct verify_config *cfg;
	struct ui *ui;
};

/* The commands: ctx is a verify_job. They end the stream of JSON lines themselves. */
int verify_names(void *ctx, const struct opt_args *args, struct ws_err *err);

#endif
