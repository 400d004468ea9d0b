/* SPDX-License-Identifier: Apache-2.0 */
#include "pushing.h"

#include "nccl.h"
#include "run.h"

#include "wsync/tool/str.h"

#include <string.h>
#include <strings.h>

/* Indexes are the values of the library's enums. */
const char *const pushing_backends[] = { "auto", "gloo", "nccl", "tensor", "disk", "ipc", NULL };
const char *const pushing_protocols[] = { "auto",    "update",     "session", "two-phase",
	                                  "receive", "vllm",       "ep-scatter", NULL };
const char *const pushing_two_phases[] = { "bucket", "whole", NULL };
const char *const pushing_transform_ons[] = { "auto", "cpu", "gpu", NULL };
const char *const pushing_formats[] = { "auto", "none", "flattened_bucket", "safetensors", NULL };
const char *const pushing_flushes[] = { "last", "never", "every", NULL };
const char *const pushing_pauses[] = { "abort", "retract", "in_place", "wait", "none", NULL };
const char *const pushing_partials[] = { "pause", "resume", NULL };
const char *const pushing_verifies[] = { "names", "hash", "none", NULL };

/* "GPU-..." or "MIG-...", as nvidia-smi -L shows it. */
static bool is_uuid(const char *text)
{
	return strncasecmp(text, "GPU-", 4) == 0 || strncasecmp(text, "MIG-", 4) == 0;
}

int pushing_gpu(void *pushing, const char *value, struct ws_err *err)
{
	struct pushing *p = pushing;
	p->gpu = 0;
	p->gpu_uuid = is_uuid(value) ? value : NULL;
	if (!p->gpu_uuid && ws_parse_uint(value, 0, 255, "N", &p->gpu, NULL))
		return ws_err_set(err, WS_EUSAGE,
		                  "invalid GPU '%s', must be 0 to 255, or a UUID (GPU-...)", value);
	return 0;
}

/* Sets the bit of one of these words. */
static bool set_bit(const char *value, const char *const *words, size_t n, unsigned *bits)
{
	for (size_t i = 0; i < n; i++)
		if (strcmp(value, words[i]) == 0) {
			*bits |= 1U << i;
			return true;
		}
	return false;
}

int pushing_allow_unknown(void *pushing, const char *value, struct ws_err *err)
{
	static const char *const words[] = { "format", "names", "draft", "cache" };
	if (set_bit(value, words, 4, &((struct pushing *)pushing)->allow_unknown))
		return 0;
	return ws_err_set(err, WS_EUSAGE, "invalid --allow-unknown '%s', must be format, names, "
	                  "draft or cache", value);
}

int pushing_require(void *pushing, const char *value, struct ws_err *err)
{
	static const char *const words[] = { "names", "format", "bytes", "caches", "values" };
	if (set_bit(value, words, 5, &((struct pushing *)pushing)->require))
		return 0;
	return ws_err_set(err, WS_EUSAGE, "invalid --require '%s', must be names, format, bytes, "
	                  "caches or values", value);
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

int pushing_bucket_size(void *bytes, const char *value, struct ws_err *err)
{
	if (strcmp(value, "auto") == 0) {
		*(uint64_t *)bytes = 0;
		return 0;
	}
	if (ws_parse_size(value, bytes, NULL) == 0 && *(uint64_t *)bytes)
		return 0;
	return ws_err_set(err, WS_EUSAGE, "invalid size '%s', must be auto, or like 512MiB",
	                  value);
}

struct ws_push_opts pushing_opts(const struct pushing *p, const struct opt_common *common,
                                 const struct naming *naming,
                                 const struct ws_transform_opts *transform,
                                 const struct targets *to, const struct ui *ui)
{
	return (struct ws_push_opts){
		.endpoints = to->urls, .n_endpoints = to->n,
		.api_key = to->api_key, .ca_file = to->ca_file,
		.map = naming->map, .config = naming->config, .like = naming->like,
		.sharded_tp = naming->sharded_tp, .sharded_ep = naming->sharded_ep,
		.include = transform->include, .n_include = transform->n_include,
		.exclude = transform->exclude, .n_exclude = transform->n_exclude,
		.transform = transform, .transform_on = p->transform_on,
		.backend = p->backend, .protocol = p->protocol, .two_phase = p->two_phase,
		.format = p->format, .flush = p->flush, .pause = p->pause,
		.allow_older = p->allow_older, .allow_unknown = p->allow_unknown,
		.require = p->require,
		.on_partial = p->partial, .lineage = p->lineage,
		.verify = p->verify, .min_coverage = (unsigned)p->min_coverage,
		.nccl_library = p->backend == WS_BACKEND_NCCL ?
		                        nccl_prepare(p->nccl_lib, p->nccl_from) :
		                        p->nccl_lib,
		.nccl_from = p->nccl_from, .nccl_settings = nccl_set, .gpu = (unsigned)p->gpu,
		.gpu_uuid = p->gpu_uuid,
		.ipc_by_ordinal = p->ipc_by_ordinal, .ipc_ordinal = p->ipc_ordinal,
		.disk_dir = p->disk_dir, .disk_path = p->disk_path,
		.disk_keep = (unsigned)p->disk_keep, .bucket_size = p->bucket_size,
		.master_address = p->master_address, .master_port = (uint16_t)p->master_port,
		.group_name = p->group_name, .connect_ns = common->connect_ns,
		.init_ns = p->init_ns, .bucket_ns = p->bucket_ns, .lock_wait_ns = p->lock_wait_ns,
		.log = &ui->log, .cancel = &run_cancel,
	};
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
