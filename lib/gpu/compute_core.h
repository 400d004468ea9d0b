/* SPDX-License-Identifier: Apache-2.0 */
/* compute_core.h - the list of kernels, and how to launch one. */
#ifndef WS_GPU_COMPUTE_CORE_H
#define WS_GPU_COMPUTE_CORE_H

#include "compute.h"

/* Each kernel's name and image. */
/* clang-format off */
#define WS_KERNELS(K) \
	K(fp8_block_bf16, FP8)    K(fp8_block_f32, FP8) \
	K(merge_bf16, LOWRANK)    K(merges_bf16, LOWRANK) \
	K(unpack_fp8, UNPACK)     K(unpack_nvfp4, UNPACK)   K(unpack_nf4, UNPACK) \
	K(gather_1, GATHER)       K(gather_2, GATHER)       K(gather_4, GATHER) \
	K(gather_8, GATHER)       K(gather_16, GATHER) \
	K(transpose_1, GATHER)    K(transpose_2, GATHER)    K(transpose_4, GATHER) \
	K(transpose_8, GATHER) \
	K(largest_1, VALUES)      K(largest_2, VALUES)      K(largest_4, VALUES)
/* clang-format on */

enum ws_kernel_id {
#define WS_KERNEL_ID(name, image) WS_KERNEL_##name,
	WS_KERNELS(WS_KERNEL_ID)
#undef WS_KERNEL_ID
	WS_KERNEL_COUNT
};

/* 0 blocks: does nothing. More blocks than a grid has: WS_EINPUT. */
int ws_compute_run(struct ws_compute *c, enum ws_kernel_id id, uint64_t blocks, uint32_t threads,
                   const void *args, struct ws_stream *s, struct ws_err *err);

#endif
