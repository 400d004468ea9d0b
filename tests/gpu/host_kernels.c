/* SPDX-License-Identifier: Apache-2.0 */
/* host_kernels.c - the kernels by name. */
#include "host_run.h"

#include "args.h"

#include <stddef.h>
#include <string.h>

#define KERNELS(K) \
	K(fp8_block_bf16, ws_fp8_args) K(fp8_block_f32, ws_fp8_args) \
	K(merge_bf16, ws_merge_args) K(merges_bf16, ws_merge_args) \
	K(unpack_fp8, ws_unpack_args) K(unpack_nvfp4, ws_unpack_args) \
	K(unpack_nf4, ws_unpack_args) \
	K(gather_1, ws_gather_args) K(gather_2, ws_gather_args) K(gather_4, ws_gather_args) \
	K(gather_8, ws_gather_args) K(gather_16, ws_gather_args) \
	K(transpose_1, ws_gather_args) K(transpose_2, ws_gather_args) \
	K(transpose_4, ws_gather_args) K(transpose_8, ws_gather_args) \
	K(largest_1, ws_values_args) K(largest_2, ws_values_args) K(largest_4, ws_values_args)

#define CALL(kernel, type) \
	void kernel(const struct type args); \
	static void call_##kernel(const void *args) \
	{ \
		struct type a; \
		memcpy(&a, args, sizeof a); \
		kernel(a); \
	}
KERNELS(CALL)

#define ENTRY(kernel, type) { #kernel, sizeof(struct type), call_##kernel },
static const struct host_kernel kernels[] = { KERNELS(ENTRY) };

const struct host_kernel *host_kernel_find(const char *name)
{
	for (size_t i = 0; i < sizeof kernels / sizeof kernels[0]; i++)
		if (strcmp(kernels[i].name, name) == 0)
			return &kernels[i];
	return NULL;
}
