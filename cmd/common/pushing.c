/* SPDX-License-Identifier: Apache-2.0 */
#include "pushing.h"

#include "nccl.h"
#include "run.h"

#include "wsync/tool/str.h"

#include <string.h>

/* Indexes are the values of the library's enums. */
const char *const pushing_backends[] = { "auto", "gloo", "nccl", "tensor", "disk", "ipc", NULL };
const char *const pushing_protocols[] = { "auto",    "update",     "session", "two-phase",
	                                  "receive", "ep-scatter", NULL };
const char *const pushing_two_phases[] = { "bucket", "whole", NULL };
const char *const pushing_transform_ons[] = { "auto", "cpu", "gpu", NULL };
const char *const pushing_formats[] = { "auto", "none", "flattened_bucket", "safetensors", NULL };
const char *const pushing_flushes[] = { "last", "never", "every", NULL };
const char *const pushing_pauses[] = { "abort", "retract", "in_place", "none", NULL };
const char *const pushing_partials[] = { "pause", "resume", NULL };

const char *pushing_nccl(const struct pushing *p)
{
	return nccl_prepare(p->nccl_lib, p->nccl_from);
}

int pushing_ipc_device(void *pushing, const char *value, struct ws_err *err)
{
	struct pushing *p = pushing;
	uint64_t n = 0;
	p->ipc_by_ordinal = strcmp(value, "uuid") != 0;
	if (p->ipc_by_ordinal && ws_parse_uint(value, 0, 255, "N", &n, NULL))
		return ws_err_set(err, WS_EUSAGE, "invalid GPU '%s', must be uuid or 0 to 255",
		                  value);
	p->ipc_ordinal = (unsigned)n;
	return 0;
}

void pushing_apply(const struct pushing *p, struct ws_push_opts *opts)
{
	opts->backend = p->backend;
	opts->protocol = p->protocol;
	opts->two_phase = p->two_phase;
	opts->format = p->format;
	opts->flush = p->flush;
	opts->pause = p->pause;
	opts->on_partial = p->partial;
	opts->lineage = p->lineage;
	opts->nccl_from = p->nccl_from;
	opts->nccl_library = p->backend == WS_BACKEND_NCCL ? pushing_nccl(p) : p->nccl_lib;
	opts->gpu = (unsigned)p->gpu;
	opts->ipc_by_ordinal = p->ipc_by_ordinal;
	opts->ipc_ordinal = p->ipc_ordinal;
	opts->transform_on = p->transform_on;
	opts->disk_dir = p->disk_dir;
	opts->disk_path = p->disk_path;
	opts->disk_keep = (unsigned)p->disk_keep;
	opts->master_address = p->master_address;
	opts->master_port = (uint16_t)p->master_port;
	opts->group_name = p->group_name;
	opts->bucket_size = p->bucket_size;
	opts->init_ns = p->init_ns;
	opts->bucket_ns = p->bucket_ns;
	opts->lock_wait_ns = p->lock_wait_ns;
}

int pushing_find_state(const struct pushing *p, char *path, struct ws_push_opts *opts,
                       struct ui *ui, struct ws_err *err)
{
	struct ws_err why = WS_ERR_INIT;
	struct ws_buf found;
	ws_buf_init(&found, PUSHING_PATH - 1);
	const int rc = run_state_dir(p->state_dir, &found, &why);
	if (rc == 0) {
		memcpy(path, ws_buf_str(&found), found.len + 1);
		opts->state_dir = path;
		opts->state_required = p->state_dir != NULL;
	}
	ws_buf_free(&found);
	if (rc && p->state_dir) {
		*err = why;
		return -1;
	}
	if (rc)
		ui_warn(ui, NULL, "%s: nothing is recorded, and other pushes are not kept away",
		        why.msg);
	return 0;
}
