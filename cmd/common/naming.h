/* SPDX-License-Identifier: Apache-2.0 */
/* naming.h - the options that say how a source's tensors are named: its config, its rules, its shards. */
#ifndef WSYNC_CMD_NAMING_H
#define WSYNC_CMD_NAMING_H

#include "opt.h"
#include "ui.h"

#include "wsync/input.h"

struct naming {
	const char *config, *map;      /* NULL: not given */
	unsigned sharded_tp, sharded_ep; /* 0: not sharded; not said */
};

#define OPT_NAMING(n) \
	OPT_STRING(0, "config", "DIR", &(n)->config, \
		"the model's config.json, or the directory that holds it (the one beside the source)"), \
	OPT_STRING(0, "map", "FILE", &(n)->map, "more rules for names, see wsync-map(5)"), \
	OPT_CALL(0, "sharded", "tp=N[,ep=M]", naming_sharded, n, \
		"SOURCE is what N ranks of a trainer saved, a path of each, rank 0 first, or one of all")

int naming_sharded(void *naming, const char *value, struct ws_err *err);
struct ws_input_opts naming_input(const struct naming *n, const struct opt_args *args);
/* ws_input_open, then the warnings of its sources. */
int naming_open(struct ui *ui, const struct ws_input_opts *opts, struct ws_input *in,
                struct ws_err *err);
void naming_warn(struct ui *ui, const struct ws_source *source);

#endif
