/* SPDX-License-Identifier: Apache-2.0 */
#include "naming.h"

#include "run.h"

#include "wsync/tool/str.h"

#include <stdio.h>
#include <string.h>

enum { MOST_RANKS = 1024 };

/* "tp=8": the number behind the key. */
static int size_of(const char *text, size_t len, const char *key, unsigned *out)
{
	char digits[16];
	uint64_t n;
	const size_t skip = strlen(key);
	if (len <= skip || strncmp(text, key, skip) || len - skip >= sizeof digits)
		return -1;
	snprintf(digits, sizeof digits, "%.*s", (int)(len - skip), text + skip);
	if (ws_parse_uint(digits, 1, MOST_RANKS, "", &n, NULL))
		return -1;
	*out = (unsigned)n;
	return 0;
}

int naming_sharded(void *ctx, const char *value, struct ws_err *err)
{
	struct naming *n = ctx;
	const size_t first = strcspn(value, ",");
	unsigned tp, ep = 0; /* 0: a manifest may have it */
	if (size_of(value, first, "tp=", &tp) ||
	    (value[first] && size_of(value + first + 1, strlen(value + first + 1), "ep=", &ep)))
		return ws_err_set(err, WS_EUSAGE,
		                  "invalid value '%s', must be like tp=8 or tp=8,ep=4", value);
	if (ep && tp % ep)
		return ws_err_set(err, WS_EUSAGE, "ep %u does not divide tp %u", ep, tp);
	n->sharded_tp = tp;
	n->sharded_ep = ep;
	return 0;
}

struct ws_input_opts naming_input(const struct naming *n, const struct opt_args *args)
{
	return (struct ws_input_opts){ .paths = args->v, .n_paths = args->n, .map = n->map,
		                       .config = n->config, .like = n->like,
		                       .sharded_tp = n->sharded_tp,
		                       .sharded_ep = n->sharded_ep, .memory = &ws_memory_cuda,
		                       .cancel = &run_cancel };
}

void naming_warn(struct ui *ui, const struct ws_source *source)
{
	const char *warning;
	for (size_t i = 0; (warning = ws_source_warning(source, i)); i++)
		ui_warn(ui, NULL, "%s", warning);
}

int naming_open(struct ui *ui, const struct ws_input_opts *opts, struct ws_input *in,
                struct ws_err *err)
{
	if (ws_input_open(opts, in, err))
		return -1;
	for (size_t i = 0; i < in->n_sources; i++)
		naming_warn(ui, in->sources[i]);
	return 0;
}
