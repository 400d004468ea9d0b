/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_version.c - in a file of its own, so that a program without kernels does not link them.
 *
 * The Makefile sets WSYNC_ARCHS to the GPUs that they are built for. */
#include "wsync/version.h"

const char *ws_gpu_library(void)
{
	return "CUDA kernels for " WSYNC_ARCHS;
}
