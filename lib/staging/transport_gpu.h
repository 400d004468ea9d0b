/* SPDX-License-Identifier: Apache-2.0 */
/* transport_gpu.h - options of everything that sends from a GPU: NCCL, and memory that servers
 * map. */
#ifndef WS_STAGING_TRANSPORT_GPU_H
#define WS_STAGING_TRANSPORT_GPU_H

#include <stdbool.h>
#include <stdint.h>

struct ws_transport_gpu {
	const char *driver; /* libcuda; NULL: as the loader finds it */
	const char *nccl;   /* libnccl; NULL: where it usually is */
	int device;
	uint64_t box;       /* the most that a bucket takes there; 0: not known */
	bool makes;         /* what is computed is computed there, as far as there are kernels */
	bool must_make;     /* or it is not opened */
};

#endif
