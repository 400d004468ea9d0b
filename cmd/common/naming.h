/* SPDX-License-Identifier: Apache-2.0 */
/* naming.h - the options that determine the names of a source's tensors: config,
 * rules, shards. */
#ifndef WSYNC_CMD_NAMING_H
#define WSYNC_CMD_NAMING_H

#include "opt.h"
#include "ui.h"

#include "wsync/tool/input.h"

struct naming {
	const char *config, *map, *like; /* NULL: not given */
	unsigned sharded_tp, sharded_ep; /* 0: not sharded; not given */
};

#define OPT_NAMING(n) OPT_NAMING_CONFIG(n), OPT_NAMING_SOURCE(n)
#define OPT_NAMING_CONFIG(n) \
	OPT_STRING(0, "config", "DIR", &(n)->config, \
		"config.json or its directory (beside SOURCE)", .basic = true)
#define OPT_NAMING_SOURCE(n)                                                                       \
	OPT_STRING(0, "map", "FILE", &(n)->map, "additional naming rules, see wsync-map(5)"),      \
		OPT_STRING(0, "like", "DIR", &(n)->like,                                           \
	                   "checkpoint that the server can be started from: compare names and "    \
	                   "shapes with its headers"),                                             \
		OPT_CALL(0, "sharded", "tp=N[,ep=M]", naming_sharded, n,                           \
	                 "SOURCE of N trainer ranks: one path per rank, or one for all")

int naming_sharded(void *naming, const char *value, struct ws_err *err);
struct ws_input_opts naming_input(const struct naming *n, const struct opt_args *args);
/* ws_input_open, then the warnings of its sources. */
int naming_open(struct ui *ui, const struct ws_input_opts *opts, struct ws_input *in,
                struct ws_err *err);
void naming_warn(struct ui *ui, const struct ws_source *source);

#endif
