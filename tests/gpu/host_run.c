/* SPDX-License-Identifier: Apache-2.0 */
/* host_run.c - the threads of a block as coroutines of one thread, each run to its next barrier. A
 * coroutine outlives its block and then runs the thread of its number in the next one. */
#include "host_run.h"
#include "host_shim.h"

#include <stdlib.h>
#include <ucontext.h>

struct shim_dim threadIdx, blockIdx, blockDim, gridDim;

enum { STACK = 64 << 10, ENDED = -1 };

static struct thread {
	ucontext_t context;
	char *stack;
	int at; /* line of the barrier that it waits at */
	uint32_t value;
} threads[HOST_MAX_THREADS];

static ucontext_t scheduler;
static uint32_t running;
static const struct host_kernel *kernel;
static const void *kernel_args;

static void wait_at(int line)
{
	const uint32_t me = running;
	threads[me].at = line;
	swapcontext(&threads[me].context, &scheduler);
}

static void run_thread(void)
{
	for (;;) {
		kernel->call(kernel_args);
		wait_at(ENDED);
	}
}

void shim_barrier(int line)
{
	wait_at(line);
}

/* The values are read between two barriers, so that nobody's next one comes too early. */
uint32_t shim_warp_max(uint32_t value, int line)
{
	const uint32_t first = running / 32 * 32;
	uint32_t largest = 0;
	threads[running].value = value;
	shim_barrier(line);
	for (uint32_t i = first; i < first + 32 && i < blockDim.x; i++)
		largest = max(largest, threads[i].value);
	shim_barrier(line);
	return largest;
}

static bool prepare(struct thread *t)
{
	if (t->stack)
		return true;
	t->stack = malloc(STACK);
	if (!t->stack || getcontext(&t->context))
		return false;
	t->context.uc_stack.ss_sp = t->stack;
	t->context.uc_stack.ss_size = STACK;
	makecontext(&t->context, run_thread, 0);
	return true;
}

static bool run_block(uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		if (!prepare(&threads[i]))
			return false;
	do {
		for (running = 0; running < n; running++) {
			threadIdx.x = running;
			swapcontext(&scheduler, &threads[running].context);
		}
		for (uint32_t i = 1; i < n; i++)
			if (threads[i].at != threads[0].at)
				return false;
	} while (threads[0].at != ENDED);
	return true;
}

__attribute__((destructor)) static void free_stacks(void)
{
	for (int i = 0; i < HOST_MAX_THREADS; i++)
		free(threads[i].stack);
}

bool host_kernel_run(const struct host_kernel *k, uint32_t blocks, uint32_t n, const void *args)
{
	kernel = k;
	kernel_args = args;
	gridDim.x = blocks;
	blockDim.x = n;
	for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++)
		if (!run_block(n))
			return false;
	return true;
}
