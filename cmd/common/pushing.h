/* SPDX-License-Identifier: Apache-2.0 */
/* pushing.h - options for every command that pushes. */
#ifndef WSYNC_CMD_PUSHING_H
#define WSYNC_CMD_PUSHING_H

#include "naming.h"
#include "opt.h"
#include "targets.h"
#include "ui.h"

#include "wsync/push.h"

struct pushing {
	const char *master_address, *group_name, *state_dir, *nccl_lib, *nccl_from;
	const char *disk_dir, *disk_path;
	const char *gpu_uuid;
	uint64_t master_port, bucket_size, gpu, disk_keep;
	uint64_t min_coverage;           /* 0: not given */
	/* the library's enums */
	unsigned backend, transform_on, protocol, two_phase, format, flush, pause, partial, lineage;
	unsigned verify;
	int64_t init_ns, bucket_ns, lock_wait_ns;
	bool ipc_by_ordinal, allow_older;
	unsigned ipc_ordinal;
	unsigned allow_unknown; /* enum ws_unknown */
	unsigned require;       /* enum ws_require */
};

#define PUSHING_DEFAULTS { .init_ns = WS_PUSH_INIT_NS, .bucket_ns = WS_PUSH_BUCKET_NS, \
	                   .disk_keep = WS_PUSH_DISK_KEEP }

extern const char *const pushing_backends[], *const pushing_protocols[], *const pushing_formats[];
extern const char *const pushing_two_phases[], *const pushing_transform_ons[];
extern const char *const pushing_flushes[], *const pushing_pauses[], *const pushing_partials[];
extern const char *const pushing_verifies[];

#define OPT_PUSHING(p) \
	OPT_PUSHING_BACKEND(p), \
	OPT_CALL(0, "gpu", "N|UUID", pushing_gpu, (p), \
		"GPU that nccl sends from, or that holds the ipc buffer (0)"), \
	OPT_PUSHING_NCCL(p), OPT_PUSHING_WHERE(p), OPT_PUSHING_REST(p)
#define OPT_PUSHING_BACKEND(p)                                                                     \
	OPT_CHOICE(0, "backend", pushing_backends, &(p)->backend,                                  \
	           "send over TCP (gloo; auto), GPU (nccl, ipc), HTTP (tensor) or disk",           \
	           .basic = true)
#define OPT_PUSHING_NCCL(p)                                                                        \
	OPT_STRING(0, "nccl-lib", "FILE", &(p)->nccl_lib,                                          \
	           "the servers' libnccl.so.2 ($WSYNC_NCCL_LIB, else the system's)"),              \
		OPT_STRING(0, "nccl-from", "PYTHON", &(p)->nccl_from,                              \
	                   "use the NCCL of this Python or virtual environment's torch")
#define OPT_PUSHING_WHERE(p)                                                                       \
	OPT_CHOICE(0, "transform-on", pushing_transform_ons, &(p)->transform_on,                   \
	           "processor of transforms (auto: the sending GPU, else the CPU)")
#define OPT_PUSHING_REST(p) OPT_PUSHING_PLACES(p), OPT_PUSHING_SHAPE(p), OPT_PUSHING_SERVERS(p)
#define OPT_PUSHING_PLACES(p)                                                                      \
	OPT_CALL(0, "ipc-device", "uuid|N", pushing_ipc_device, (p),                               \
	         "ipc: GPU by its UUID, or by its number on the servers (uuid)"),                  \
		OPT_STRING(0, "disk-dir", "DIR", &(p)->disk_dir,                                   \
	                   "disk: write a checkpoint here (default: servers load SOURCE)"),        \
		OPT_STRING(0, "disk-path", "PATH", &(p)->disk_path,                                \
	                   "disk: path of DIR on the servers (default: the same)"),                \
		OPT_UINT(0, "disk-keep", "N", 0, 1000000, &(p)->disk_keep,                         \
	                 "disk: checkpoints of these servers to keep after a success (1)")
#define OPT_PUSHING_SHAPE(p)                                                                       \
	OPT_CHOICE(0, "protocol", pushing_protocols, &(p)->protocol,                               \
	           "update protocol (auto: the first that all servers support)"),                  \
		OPT_CHOICE(0, "two-phase", pushing_two_phases, &(p)->two_phase,                    \
	                   "two-phase: prepare each bucket, or the whole update (bucket)"),        \
		OPT_CALL(0, "bucket-size", "auto|SIZE", pushing_bucket_size, &(p)->bucket_size,    \
	                 "maximum bytes per request (auto: the fastest, tried while sending)"),    \
		OPT_CHOICE(0, "load-format", pushing_formats, &(p)->format,                        \
	                   "broadcast buckets (auto) or tensors (none); disk: safetensors")
#define OPT_PUSHING_SERVERS(p)                                                                     \
	OPT_CHOICE(0, "flush", pushing_flushes, &(p)->flush,                                       \
	           "requests that flush the servers' cache (last)"),                               \
		OPT_CHOICE(0, "pause", pushing_pauses, &(p)->pause,                                \
	                   "running requests: abort, requeue, freeze, or finish (abort)",          \
	                   .basic = true),                                                         \
		OPT_CHOICE(0, "on-partial", pushing_partials, &(p)->partial,                       \
	                   "keep partially updated servers paused, or resume them (pause)"),       \
		OPT_STRING(0, "master-address", "ADDRESS", &(p)->master_address,                   \
	                   "address of this machine for the servers (default: detect)"),           \
		OPT_UINT(0, "master-port", "PORT", 0, 65535, &(p)->master_port,                    \
	                 "rendezvous port (0: any free port)"),                                    \
		OPT_STRING(0, "group-name", "NAME", &(p)->group_name,                              \
	                   "process group name (default: wsync-<8 hex digits>, random)"),          \
		OPT_LINEAGE(&(p)->lineage), OPT_STATE_DIR(&(p)->state_dir)
#define OPT_PUSHING_VERIFY(p)                                                                      \
	OPT_CHOICE(0, "verify", pushing_verifies, &(p)->verify,                                    \
	           "check names first; hash: also compare checksums after (names)", .basic = true)
#define OPT_PUSHING_COVERAGE(p)                                                                    \
	OPT_UINT(0, "min-coverage", "PERCENT", 1, 100, &(p)->min_coverage,                         \
	         "bytes that the server's own checksums must prove (100)")
#define OPT_PUSHING_OLDER(p)                                                                       \
	OPT_FLAG(0, "allow-older", &(p)->allow_older,                                              \
	         "allow a weight version lower than the servers' own")
#define OPT_PUSHING_UNKNOWN(p)                                                                     \
	OPT_CALL(0, "allow-unknown", "format|names|draft|cache", pushing_allow_unknown, (p),      \
	         "push though this is not known; repeatable"),                                     \
		OPT_CALL(0, "require", "names|format|bytes|caches|values", pushing_require, (p),   \
	                 "refuse unless this is established; repeatable")
#define OPT_PUSHING_TIMES(p) \
	OPT_LIMIT(0, "init-timeout", &(p)->init_ns, "time limit to form the process group (10m)"), \
	OPT_LIMIT(0, "bucket-timeout", &(p)->bucket_ns, \
		"time limit of one bucket, pause or flush (10m)"), \
	OPT_DURATION(0, "lock-wait", &(p)->lock_wait_ns, \
		"wait for another push to the same server (0: refuse at once)")

/* "auto", which is 0, or a size; an opt_call. */
int pushing_bucket_size(void *bytes, const char *value, struct ws_err *err);
int pushing_gpu(void *pushing, const char *value, struct ws_err *err); /* an opt_call */
int pushing_ipc_device(void *pushing, const char *value, struct ws_err *err); /* an opt_call */
int pushing_allow_unknown(void *pushing, const char *value, struct ws_err *err); /* likewise */
int pushing_require(void *pushing, const char *value, struct ws_err *err);       /* likewise */
/* The library's options of a push to these endpoints. The caller sets the sink, the timeout and its
 * own fields; everything that the arguments point to must outlive the push. */
struct ws_push_opts pushing_opts(const struct pushing *p, const struct opt_common *common,
                                 const struct naming *naming,
                                 const struct ws_transform_opts *transform,
                                 const struct targets *to, const struct ui *ui);
/* Finds the state directory. path, of PUSHING_PATH bytes, must outlive the push. If there is no
 * place for the directory, warns, and the push uses none. */
enum { PUSHING_PATH = 4096 };
int pushing_find_state(const struct pushing *p, char *path, struct ws_push_opts *opts,
                       struct ui *ui, struct ws_err *err);

#endif
