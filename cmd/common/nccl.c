/* SPDX-License-Identifier: Apache-2.0 */
#include "nccl.h"

#include <stddef.h>
#include <stdlib.h>

const char *nccl_prepare(const char *file, const char *python)
{
	const char *const usual = getenv("WSYNC_NCCL_LIB");
	/* All ranks of a communicator should agree about these. */
	setenv("NCCL_CUMEM_ENABLE", "0", 0);
	setenv("NCCL_NVLS_ENABLE", "0", 0);
	return file || python || !usual || !usual[0] ? file : usual;
}
