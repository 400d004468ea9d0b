/* SPDX-License-Identifier: Apache-2.0 */
/* host_run.h - runs a kernel that host_shim.h made a function of, block by block. */
#ifndef TESTS_GPU_HOST_RUN_H
#define TESTS_GPU_HOST_RUN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { HOST_MAX_THREADS = 1024 };

/* A kernel by its name. call takes the address of its argument. */
struct host_kernel {
	const char *name;
	size_t bytes; /* of the argument */
	void (*call)(const void *args);
};
const struct host_kernel *host_kernel_find(const char *name); /* NULL: none */

/* False: threads of a block stood at different barriers, or one had ended and another had not. */
bool host_kernel_run(const struct host_kernel *k, uint32_t blocks, uint32_t threads,
                     const void *args);

#endif
