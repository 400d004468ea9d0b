/* SPDX-License-Identifier: Apache-2.0 */
/* fake_cuda_old.c - the double of a driver that lacks a function, and runs nothing. */
#define FAKE_CUDA_OLD
#include "fake_cuda.c"

const struct host_kernel *host_kernel_find(const char *name)
{
	(void)name;
	return NULL;
}
