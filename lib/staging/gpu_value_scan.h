/* SPDX-License-Identifier: Apache-2.0 */
/* gpu_value_scan.h - scans weights in GPU memory in place (lib/transform/value_scan.h). */
#ifndef WS_STAGING_GPU_VALUE_SCAN_H
#define WS_STAGING_GPU_VALUE_SCAN_H

#include "value_scan.h"
#include "wsync/log.h"

struct ws_gpu_value_scan {
	const char *library;      /* of the driver; NULL: libcuda.so.1 */
	const struct ws_log *log; /* NULL: none */
	size_t seen;              /* out: scans that were done */
};

/* ctx: a ws_gpu_value_scan. Failures are logged; the caller then reads the weights itself. */
ws_value_scan_fn ws_gpu_value_scan_run;
/* The most device and pinned memory of a run, for each GPU that has weights. */
void ws_gpu_value_scan_memory(uint64_t *gpu, uint64_t *pinned);

#endif
