/* SPDX-License-Identifier: Apache-2.0 */
/* host_run.c - the threads of a block as coroutines of one thread, each run to its next barrier. A
 * coroutine outlives its block and then runs the thread of its number in the next one.
 *
 * swapcontext makes a system call to switch the signal mask, which would be most of a kernel's
 * time, so it only starts a coroutine. Jumps between stacks confuse the address sanitizer. */
#undef _FORTIFY_SOURCE /* it forbids such jumps */
#include "host_run.h"
#include "host_shim.h"

#include <setjmp.h>
#include <stdlib.h>
#include <ucontext.h>

struct shim_dim threadIdx, blockIdx, blockDim, gridDim;

enum { STACK = 64 << 10, ENDED = -1 };

#if defined(__SANITIZE_ADDRESS__)
enum { JUMPS = 0 };
#elif defined(__has_feature)
enum { JUMPS = !__has_feature(address_sanitizer) };
#else
enum { JUMPS = 1 };
#endif

struct coroutine {
	ucontext_t context;
	jmp_buf jump;
	bool begun;
};

static struct thread {
	struct coroutine at_work;
	char *stack;
	int at; /* line of the barrier that it waits at */
	uint32_t value;
} threads[HOST_MAX_THREADS];

static struct coroutine scheduler = { .begun = true };
static uint32_t running;
static const struct host_kernel *kernel;
static const void *kernel_args;

static void go_on(struct coroutine *from, struct coroutine *to)
{
	if (JUMPS && to->begun) {
		if (_setjmp(from->jump) == 0)
			_longjmp(to->jump, 1);
	} else if (!JUMPS || _setjmp(from->jump) == 0) {
		to->begun = true;
		swapcontext(&from->context, &to->context);
	}
}

static void wait_at(int line)
{
	const uint32_t me = running;
	threads[me].at = line;
	go_on(&threads[me].at_work, &scheduler);
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
	ucontext_t *c = &t->at_work.context;
	if (!t->stack || getcontext(c))
		return false;
	c->uc_stack.ss_sp = t->stack;
	c->uc_stack.ss_size = STACK;
	makecontext(c, run_thread, 0);
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
			go_on(&scheduler, &threads[running].at_work);
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
