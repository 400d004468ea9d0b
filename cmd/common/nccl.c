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
	/* It would overrule how our communicators are made, and no deadline holds in one that blocks. */
	setenv("NCCL_COMM_BLOCKING", "0", 1);
	return file || python || !usual || !usual[0] ? file : usual;
}
