/* SPDX-License-Identifier: Apache-2.0 */
/* pushing.h - the options of how a push is made, for every command that makes one. */
#ifndef WSYNC_CMD_PUSHING_H
#define WSYNC_CMD_PUSHING_H

#include "opt.h"
#include "targets.h"
#include "ui.h"

#include "wsync/push.h"

struct pushing {
	const char *master_address, *group_name, *state_dir, *nccl_lib, *nccl_from;
	const char *disk_dir, *disk_path;
	uint64_t master_port, bucket_size, gpu, disk_keep;
	unsigned backend, transform_on, protocol, two_phase, format, flush, pause, partial, lineage; /* the library's enums */
	int64_t init_ns, bucket_ns, lock_wait_ns;
	bool ipc_by_ordinal;
	unsigned ipc_ordinal;
};

#define PUSHING_DEFAULTS { .bucket_size = UINT64_C(512) << 20, .init_ns = 600 * WS_NS_PER_S, \
	                   .bucket_ns = 600 * WS_NS_PER_S, .disk_keep = 1 }

extern const char *const pushing_backends[], *const pushing_protocols[], *const pushing_formats[];
extern const char *const pushing_two_phases[], *const pushing_transform_ons[];
extern const char *const pushing_flushes[], *const pushing_pauses[], *const pushing_partials[];

#define OPT_PUSHING(p) \
	OPT_PUSHING_BACKEND(p), \
	OPT_UINT(0, "gpu", "N", 0, 255, &(p)->gpu, "the GPU that nccl sends from, or whose memory ipc lends (0)"), \
	OPT_PUSHING_NCCL(p), OPT_PUSHING_WHERE(p), OPT_PUSHING_REST(p)
#define OPT_PUSHING_BACKEND(p) \
	OPT_CHOICE(0, "backend", pushing_backends, &(p)->backend, \
		"the data plane (auto: gloo; nccl: from a GPU of this machine; ipc: servers of this machine read a GPU's memory; tensor: none, for small models; disk: files that servers can read)")
#define OPT_PUSHING_NCCL(p) \
	OPT_STRING(0, "nccl-lib", "FILE", &(p)->nccl_lib, \
		"the servers' own libnccl.so.2 (default: $WSYNC_NCCL_LIB, else found)"), \
	OPT_STRING(0, "nccl-from", "PYTHON", &(p)->nccl_from, \
		"or that of the torch of this interpreter or virtual environment")
#define OPT_PUSHING_WHERE(p) \
	OPT_CHOICE(0, "transform-on", pushing_transform_ons, &(p)->transform_on, \
		"where merging, unpacking and FP8 are done (auto: on the GPU that it is sent from)")
#define OPT_PUSHING_REST(p) OPT_PUSHING_PLACES(p), OPT_PUSHING_SHAPE(p), OPT_PUSHING_SERVERS(p)
#define OPT_PUSHING_PLACES(p) \
	OPT_CALL(0, "ipc-device", "uuid|N", pushing_ipc_device, (p), \
		"how ipc tells servers which GPU that is: by its UUID, or as number N of those they see (uuid)"), \
	OPT_STRING(0, "disk-dir", "DIR", &(p)->disk_dir, \
		"of disk: write what is sent there first, as a checkpoint (default: the servers load SOURCE)"), \
	OPT_STRING(0, "disk-path", "PATH", &(p)->disk_path, \
		"what the servers call that directory (default: as it is called here)"), \
	OPT_UINT(0, "disk-keep", "N", 0, 1000000, &(p)->disk_keep, \
		"checkpoints for these servers that stay in it after a success (1)")
#define OPT_PUSHING_SHAPE(p) \
	OPT_CHOICE(0, "protocol", pushing_protocols, &(p)->protocol, \
		"the servers' routes (auto: what all of them have)"), \
	OPT_CHOICE(0, "two-phase", pushing_two_phases, &(p)->two_phase, \
		"of protocol two-phase: bucket by bucket, or the whole update at once (bucket)"), \
	OPT_SIZE(0, "bucket-size", &(p)->bucket_size, "most bytes of one request (512MiB)"), \
	OPT_CHOICE(0, "load-format", pushing_formats, &(p)->format, \
		"none: a broadcast for each tensor; auto: flattened_bucket; of disk: auto or safetensors")
#define OPT_PUSHING_SERVERS(p) \
	OPT_CHOICE(0, "flush", pushing_flushes, &(p)->flush, \
		"which request tells the servers to drop their cache (last)"), \
	OPT_CHOICE(0, "pause", pushing_pauses, &(p)->pause, "what becomes of requests in flight (abort)"), \
	OPT_CHOICE(0, "on-partial", pushing_partials, &(p)->partial, \
		"partially updated servers: stay paused or resume (pause)"), \
	OPT_STRING(0, "master-address", "ADDRESS", &(p)->master_address, \
		"this machine as the servers reach it (default: found)"), \
	OPT_UINT(0, "master-port", "PORT", 0, 65535, &(p)->master_port, "port of the rendezvous (0: any)"), \
	OPT_STRING(0, "group-name", "NAME", &(p)->group_name, \
		"name of the process group (default: wsync-<8 hex>, fresh)"), \
	OPT_LINEAGE(&(p)->lineage), \
	OPT_STATE_DIR(&(p)->state_dir)
#define OPT_PUSHING_TIMES(p) \
	OPT_LIMIT(0, "init-timeout", &(p)->init_ns, "to form the group (10m)"), \
	OPT_LIMIT(0, "bucket-timeout", &(p)->bucket_ns, "for one bucket, pause or flush (10m)"), \
	OPT_DURATION(0, "lock-wait", &(p)->lock_wait_ns, "for another push at the same server to end (0: refuse at once)")

int pushing_ipc_device(void *pushing, const char *value, struct ws_err *err); /* an opt_call */
/* The NCCL to load, as the options or the environment say; NULL: where it usually is, or as nccl_from says.
 * Sets for it what inference servers set for theirs. */
const char *pushing_nccl(const struct pushing *p);
/* Only what these options say; the rest of *opts is the caller's. */
void pushing_apply(const struct pushing *p, struct ws_push_opts *opts);
/* The state directory: path, of PUSHING_PATH bytes, outlives the push. Without a place for one there is
 * none, and a warning. */
enum { PUSHING_PATH = 4096 };
int pushing_find_state(const struct pushing *p, char *path, struct ws_push_opts *opts, struct ui *ui,
                       struct ws_err *err);

#endif
