/* SPDX-License-Identifier: Apache-2.0 */
/* look_gpu.h - numbers in the memory of GPUs are looked at where they are
 * (lib/transform/look.h). */
#ifndef WS_STAGING_LOOK_GPU_H
#define WS_STAGING_LOOK_GPU_H

#include "look.h"
#include "wsync/log.h"

struct ws_look_gpu {
	const char *library;      /* of the driver; NULL: libcuda.so.1 */
	const struct ws_log *log; /* NULL: nobody wants to know */
	size_t seen;              /* out: looks */
};

/* ctx: one of these. What keeps a GPU from it is logged, and left to who asked. */
ws_look_fn ws_look_on_gpu;
/* The most memory of a GPU, and pinned memory, that it takes; of each GPU that has numbers. */
void ws_look_gpu_memory(uint64_t *gpu, uint64_t *pinned);

#endif
