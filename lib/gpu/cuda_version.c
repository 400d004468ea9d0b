/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_version.c - apart from the kernels, of which a program that runs none has no copy.
 *
 * The Makefile sets WSYNC_ARCHS to the GPUs that they are built for. */
#include "wsync/version.h"

const char *ws_gpu_library(void)
{
	return "CUDA kernels for " WSYNC_ARCHS;
}
