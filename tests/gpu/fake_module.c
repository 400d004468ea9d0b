/* SPDX-License-Identifier: Apache-2.0 */
/* fake_module.c - modules and kernels of the double: every image has all of them, by their
 * names. */
#include "fake_core.h"

#include "host_run.h"

#include <string.h>

#pragma GCC diagnostic ignored "-Wmissing-prototypes"

EXPORT CUresult cuModuleLoadData(CUmodule *out, const void *image)
{
	uint32_t magic;
	memcpy(&magic, image, sizeof magic);
	ON_CONTEXT("%x", magic);
	const struct fake_thing *m = fake_make(FAKE_MODULE, 0, 0);
	if (!m)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*out = (CUmodule)(uintptr_t)m->handle;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuModuleUnload(CUmodule handle)
{
	GIVEN_BACK;
	const struct fake_thing *m = fake_find(FAKE_MODULE, (uintptr_t)handle);
	if (!m) {
		fake_mistake("a module is unloaded that is none");
		return CUDA_ERROR_INVALID_HANDLE;
	}
	fake_finish_all();
	fake_unmake(m);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuModuleGetFunction(CUfunction *out, CUmodule handle, const char *name)
{
	ON_CONTEXT("%s", name);
	const struct fake_thing *m = fake_find(FAKE_MODULE, (uintptr_t)handle);
	if (!m)
		return CUDA_ERROR_INVALID_HANDLE;
	const struct host_kernel *k = host_kernel_find(name);
	if (!k)
		return CUDA_ERROR_NOT_FOUND;
	struct fake_thing *f = fake_make(FAKE_FUNCTION, 0, 0);
	if (!f)
		return CUDA_ERROR_OUT_OF_MEMORY;
	f->of = m;
	f->kernel = k;
	*out = (CUfunction)(uintptr_t)f->handle;
	return CUDA_SUCCESS;
}

static void run(struct fake_work *w)
{
	if (fake_ptx_dir())
		fake_ptx_run(w);
	else if (!host_kernel_run(w->kernel, w->blocks, w->threads, w->args))
		fake_mistake("threads of a block of %s stood at different barriers",
		             ((const struct host_kernel *)w->kernel)->name);
}

/* The argument is copied before the call returns, as drivers do. */
EXPORT CUresult cuLaunchKernel(CUfunction handle, unsigned x, unsigned y, unsigned z, unsigned tx,
                               unsigned ty, unsigned tz, unsigned shared, CUstream s, void **args,
                               void **extra)
{
	LOCKED;
	const struct fake_thing *f = fake_find(FAKE_FUNCTION, (uintptr_t)handle);
	const struct host_kernel *k = f ? f->kernel : NULL;
	CHECKED(fake_called(__func__, "%s %u %u", k ? k->name : "?", x, tx));
	CHECKED(fake_has_context());
	if (!k)
		return CUDA_ERROR_INVALID_HANDLE;
	struct fake_work w = { .run = run, .kernel = k, .blocks = x, .threads = tx };
	if (x == 0 || x > INT32_MAX || y != 1 || z != 1 || tx == 0 || tx > HOST_MAX_THREADS ||
	    ty != 1 || tz != 1 || shared || extra || k->bytes > sizeof w.args)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(w.args, args[0], k->bytes);
	return fake_do(s, &w);
}
