/* SPDX-License-Identifier: Apache-2.0 */
/* whole.h - whole pushes as the options say: to measure one way of it, or several to find the
 * best. */
#ifndef WSYNC_CMD_BENCH_WHOLE_H
#define WSYNC_CMD_BENCH_WHOLE_H

#include "bench.h"

struct whole {
	struct bench_job *job;
	/* all but its bucket size, format and quantization, where those are swept */
	struct ws_push_opts push;
	struct ws_transform_opts transform;
	const char **paths; /* owned */
	size_t n_paths;
	char synthetic[256], state[PUSHING_PATH];
};

int whole_open(struct whole *w, struct bench_job *job, const struct opt_args *args,
               struct ws_err *err);

#endif
