/* SPDX-License-Identifier: Apache-2.0 */
/* list.h - shared by the files of wsync-list-weights. */
#ifndef WSYNC_CMD_LIST_H
#define WSYNC_CMD_LIST_H

#include "naming.h"
#include "tensors.h"
#include "transforming.h"

#include "wsync/tool/layout.h"
#include "wsync/tool/predict.h"

/* --checksum: of a SOURCE's parameters one that servers compute (enum ws_checksum_fn and 1), of
 * endpoints those that they report. */
enum { LIST_CHECKSUM_NONE, LIST_CHECKSUM_REPORTED = WS_CHECKSUM_SHA256 + 2 };
extern const char *const list_checksum_names[];

struct list_config {
	struct opt_common common;
	struct naming naming;
	struct transforming transforming;
	unsigned format, checksum;
	bool hash, as_sent, runtime, headers_only;
	const char *prefix;
	uint64_t rank, tp, ep, attention_tp; /* 0: not given, for tp, ep and attention_tp */
	int64_t timeout_ns;
};

struct list_job {
	const struct list_config *cfg;
	struct ui *ui;
	struct tensors list;
	const struct ws_layout *layout; /* with --runtime */
	size_t tensors; /* of every listing so far */
	uint64_t bytes;
};

/* Adds a row, unless --include or --exclude omits it. */
void list_add(struct list_job *job, const struct tensors_row *row);
/* The same for a parameter. dtype is torch's name, and may be unknown. origin: the caller's. */
void list_add_param(struct list_job *job, const char *name, const char *dtype, unsigned n_dims,
                    const int64_t *dims, const void *origin);
/* Prints the sum below the rows, and adds it to that of the run. */
void list_finish(struct list_job *job);

int list_source(struct list_job *job, const struct opt_args *args, struct ws_err *err);
/* Lists the tensors as sent: without wrappers' segments, fused tensors split, shards joined. */
int list_as_sent(struct list_job *job, const struct opt_args *args, struct ws_err *err);
/* Lists the parameters of a server that is started with the config. */
int list_runtime(struct list_job *job, const struct opt_args *args, struct ws_err *err);
int list_endpoints(struct list_job *job, struct ws_err *err);

#endif
