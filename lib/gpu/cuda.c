/* SPDX-License-Identifier: Apache-2.0 */
/* cuda.c - the driver API through a table of functions; the only C file that sees the toolkit's cuda.h.
 *
 * Symbols are named as the driver exports them, by their versions: a newer cuda.h renames functions to
 * versions that older drivers lack (cuEventElapsedTime_v2), and what we ask for must not depend on the
 * toolkit that we were built with. Everything here is in CUDA 11.4 and later. */
#include "cuda.h"

#include "wsync/str.h"

#include <cuda.h>

#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char default_library[] = "libcuda.so.1";

/* member of the table, symbol, arguments */
#define FUNCTIONS(F) \
	F(init, "cuInit", (unsigned)) \
	F(version, "cuDriverGetVersion", (int *)) \
	F(error_name, "cuGetErrorName", (CUresult, const char **)) \
	F(error_string, "cuGetErrorString", (CUresult, const char **)) \
	F(count, "cuDeviceGetCount", (int *)) \
	F(get, "cuDeviceGet", (CUdevice *, int)) \
	F(name, "cuDeviceGetName", (char *, int, CUdevice)) \
	F(uuid, "cuDeviceGetUuid_v2", (CUuuid *, CUdevice)) \
	F(bus, "cuDeviceGetPCIBusId", (char *, int, CUdevice)) \
	F(attribute, "cuDeviceGetAttribute", (int *, CUdevice_attribute, CUdevice)) \
	F(total, "cuDeviceTotalMem_v2", (size_t *, CUdevice)) \
	F(retain, "cuDevicePrimaryCtxRetain", (CUcontext *, CUdevice)) \
	F(release, "cuDevicePrimaryCtxRelease_v2", (CUdevice)) \
	F(use, "cuCtxSetCurrent", (CUcontext)) \
	F(memory, "cuMemGetInfo_v2", (size_t *, size_t *)) \
	F(alloc, "cuMemAlloc_v2", (CUdeviceptr *, size_t)) \
	F(free, "cuMemFree_v2", (CUdeviceptr)) \
	F(alloc_pinned, "cuMemHostAlloc", (void **, size_t, unsigned)) \
	F(free_pinned, "cuMemFreeHost", (void *)) \
	F(copy_in, "cuMemcpyHtoDAsync_v2", (CUdeviceptr, const void *, size_t, CUstream)) \
	F(copy_out, "cuMemcpyDtoHAsync_v2", (void *, CUdeviceptr, size_t, CUstream)) \
	F(copy, "cuMemcpyDtoDAsync_v2", (CUdeviceptr, CUdeviceptr, size_t, CUstream)) \
	F(fill, "cuMemsetD8Async", (CUdeviceptr, unsigned char, size_t, CUstream)) \
	F(stream_new, "cuStreamCreate", (CUstream *, unsigned)) \
	F(stream_free, "cuStreamDestroy_v2", (CUstream)) \
	F(stream_query, "cuStreamQuery", (CUstream)) \
	F(stream_follow, "cuStreamWaitEvent", (CUstream, CUevent, unsigned)) \
	F(mark_new, "cuEventCreate", (CUevent *, unsigned)) \
	F(mark_free, "cuEventDestroy_v2", (CUevent)) \
	F(mark_set, "cuEventRecord", (CUevent, CUstream)) \
	F(mark_query, "cuEventQuery", (CUevent)) \
	F(mark_between, "cuEventElapsedTime", (float *, CUevent, CUevent)) \
	F(module_load, "cuModuleLoadData", (CUmodule *, const void *)) \
	F(module_free, "cuModuleUnload", (CUmodule)) \
	F(module_kernel, "cuModuleGetFunction", (CUfunction *, CUmodule, const char *)) \
	F(launch, "cuLaunchKernel", (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, \
	                             unsigned, CUstream, void **, void **))

struct functions {
#define MEMBER(member, symbol, args) CUresult(CUDAAPI *member) args;
	FUNCTIONS(MEMBER)
#undef MEMBER
};

struct ws_cuda {
	void *library;
	struct functions cu;
	int version, count;
};

struct ws_gpu {
	struct ws_cuda *cuda;
	CUdevice handle;
	CUcontext context;
	int ordinal;
	struct ws_cuda_device device;
};

/* ---- errors ---- */

static void hint_at(CUresult rc, struct ws_err *err)
{
	if (rc == CUDA_ERROR_OUT_OF_MEMORY)
		ws_err_hint(err, "nvidia-smi shows who holds the GPU's memory");
	else if (rc == CUDA_ERROR_NO_BINARY_FOR_GPU)
		ws_err_hint(err, "build for this GPU, for example with make CUDA_ARCHS=90");
	else if (rc == CUDA_ERROR_SYSTEM_DRIVER_MISMATCH)
		ws_err_hint(err, "libcuda and the kernel's driver are of different versions; a reboot, or a "
		                 "container's driver mount, sets that right");
}

/* "what: CUDA_ERROR_X: its own words" */
static int refuse(const struct ws_cuda *c, CUresult rc, struct ws_err *err, const char *what)
{
	const char *name = NULL, *words = NULL;
	if (c->cu.error_name(rc, &name) != CUDA_SUCCESS || !name)
		name = "an error without a name";
	if (c->cu.error_string(rc, &words) != CUDA_SUCCESS || !words)
		words = "no more is known";
	ws_err_set(err, WS_EDEVICE, "%s: %s (%d): %s", what, name, (int)rc, words);
	if (err)
		err->native = (int)rc;
	hint_at(rc, err);
	return -1;
}

static int refuse_on(const struct ws_gpu *g, CUresult rc, struct ws_err *err, const char *what)
{
	refuse(g->cuda, rc, err, what);
	return ws_err_wrap(err, "GPU %d (%s)", g->ordinal, g->device.name);
}

static int check(const struct ws_gpu *g, CUresult rc, const char *what, struct ws_err *err)
{
	return rc == CUDA_SUCCESS ? 0 : refuse_on(g, rc, err, what);
}

static int check_bytes(const struct ws_gpu *g, CUresult rc, const char *what, uint64_t bytes,
                       struct ws_err *err)
{
	if (rc == CUDA_SUCCESS)
		return 0;
	char size[32], text[96];
	snprintf(text, sizeof text, "%s %s", what, ws_format_size(size, sizeof size, bytes));
	return refuse_on(g, rc, err, text);
}

/* ---- the driver ---- */

bool ws_cuda_built(void)
{
	return true;
}

static int load_library(struct ws_cuda *c, const char *name, struct ws_err *err)
{
	/* NODELETE: the driver keeps threads of its own, which an unloaded library would end badly. */
	c->library = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	if (c->library)
		return 0;
	char why[512];
	const char *said = dlerror();
	ws_printable(why, sizeof why, said ? said : "unknown", said ? strlen(said) : 7);
	ws_err_set(err, WS_EDEVICE, "the CUDA driver cannot be loaded: %s", why);
	if (strcmp(name, default_library) == 0)
		ws_err_hint(err, "it comes with NVIDIA's driver, not with the CUDA Toolkit; in a container it is "
		                 "mounted by the runtime (docker run --gpus all)");
	return -1;
}

static int find_functions(struct ws_cuda *c, const char *name, struct ws_err *err)
{
	const struct {
		void *place;
		const char *symbol;
	} wanted[] = {
#define WANTED(member, symbol, args) { &c->cu.member, symbol },
		FUNCTIONS(WANTED)
#undef WANTED
	};
	for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
		void *f = dlsym(c->library, wanted[i].symbol);
		if (!f) {
			char path[256];
			ws_err_set(err, WS_EDEVICE, "%s has no function %s",
			           ws_printable(path, sizeof path, name, strlen(name)), wanted[i].symbol);
			return ws_err_hint(err, "a driver of CUDA 11.4 or later is needed");
		}
		memcpy(wanted[i].place, &f, sizeof f);
	}
	return 0;
}

static int start(struct ws_cuda *c, struct ws_err *err)
{
	CUresult rc = c->cu.init(0);
	if (rc == CUDA_ERROR_NO_DEVICE)
		return 0;
	if (rc != CUDA_SUCCESS)
		return refuse(c, rc, err, "the CUDA driver does not start");
	rc = c->cu.version(&c->version);
	if (rc == CUDA_SUCCESS)
		rc = c->cu.count(&c->count);
	return rc == CUDA_SUCCESS ? 0 : refuse(c, rc, err, "the CUDA driver does not list its GPUs");
}

int ws_cuda_open(const struct ws_cuda_opts *opts, struct ws_cuda **out, struct ws_err *err)
{
	const char *name = opts && opts->library ? opts->library : default_library;
	struct ws_cuda *c = calloc(1, sizeof *c);
	if (!c)
		return ws_err_set(err, WS_ESYSTEM, "the CUDA driver: out of memory");
	if (load_library(c, name, err) || find_functions(c, name, err) || start(c, err)) {
		ws_cuda_close(c);
		return -1;
	}
	*out = c;
	return 0;
}

void ws_cuda_close(struct ws_cuda *c)
{
	if (!c)
		return;
	if (c->library)
		dlclose(c->library);
	free(c);
}

int ws_cuda_version(const struct ws_cuda *c)
{
	return c->version;
}

int ws_cuda_count(const struct ws_cuda *c)
{
	return c->count;
}

static CUresult describe(const struct ws_cuda *c, int ordinal, CUdevice *handle, struct ws_cuda_device *d)
{
	char name[sizeof d->name] = "";
	size_t bytes = 0;
	CUuuid uuid;
	CUresult rc = c->cu.get(handle, ordinal);
	if (rc == CUDA_SUCCESS)
		rc = c->cu.name(name, sizeof name, *handle);
	if (rc == CUDA_SUCCESS)
		rc = c->cu.attribute(&d->major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, *handle);
	if (rc == CUDA_SUCCESS)
		rc = c->cu.attribute(&d->minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, *handle);
	if (rc == CUDA_SUCCESS)
		rc = c->cu.attribute(&d->multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, *handle);
	if (rc == CUDA_SUCCESS)
		rc = c->cu.total(&bytes, *handle);
	if (rc == CUDA_SUCCESS)
		rc = c->cu.uuid(&uuid, *handle);
	if (rc == CUDA_SUCCESS)
		rc = c->cu.bus(d->bus, sizeof d->bus, *handle);
	if (rc != CUDA_SUCCESS)
		return rc;
	ws_printable(d->name, sizeof d->name, name, strnlen(name, sizeof name));
	d->bus[sizeof d->bus - 1] = '\0';
	d->memory = bytes;
	memcpy(d->uuid, uuid.bytes, sizeof d->uuid);
	return rc;
}

static int look_up(const struct ws_cuda *c, int ordinal, CUdevice *handle, struct ws_cuda_device *out,
                   struct ws_err *err)
{
	if (ordinal < 0 || ordinal >= c->count) {
		if (c->count == 0)
			return ws_err_set(err, WS_EDEVICE, "there is no GPU that CUDA could use");
		return ws_err_set(err, WS_EDEVICE, "there is no GPU %d: they are numbered 0 to %d", ordinal,
		                  c->count - 1);
	}
	struct ws_cuda_device d = { .name = "" };
	const CUresult rc = describe(c, ordinal, handle, &d);
	if (rc != CUDA_SUCCESS) {
		char what[32];
		snprintf(what, sizeof what, "GPU %d", ordinal);
		return refuse(c, rc, err, what);
	}
	*out = d;
	return 0;
}

int ws_cuda_device(const struct ws_cuda *c, int ordinal, struct ws_cuda_device *out, struct ws_err *err)
{
	CUdevice handle;
	return look_up(c, ordinal, &handle, out, err);
}

/* ---- one GPU ---- */

int ws_gpu_open(struct ws_cuda *c, int ordinal, struct ws_gpu **out, struct ws_err *err)
{
	struct ws_gpu *g = calloc(1, sizeof *g);
	if (!g)
		return ws_err_set(err, WS_ESYSTEM, "GPU %d: out of memory", ordinal);
	g->cuda = c;
	g->ordinal = ordinal;
	if (look_up(c, ordinal, &g->handle, &g->device, err) ||
	    check(g, c->cu.retain(&g->context, g->handle), "opening it", err) || ws_gpu_use(g, err)) {
		ws_gpu_close(g);
		return -1;
	}
	*out = g;
	return 0;
}

void ws_gpu_close(struct ws_gpu *g)
{
	if (!g)
		return;
	if (g->context)
		g->cuda->cu.release(g->handle);
	free(g);
}

int ws_gpu_use(struct ws_gpu *g, struct ws_err *err)
{
	return check(g, g->cuda->cu.use(g->context), "making it this thread's", err);
}

const struct ws_cuda_device *ws_gpu_device(const struct ws_gpu *g)
{
	return &g->device;
}

int ws_gpu_memory(struct ws_gpu *g, uint64_t *free_bytes, uint64_t *all_bytes, struct ws_err *err)
{
	size_t left, all;
	if (check(g, g->cuda->cu.memory(&left, &all), "asking for its free memory", err))
		return -1;
	*free_bytes = left;
	*all_bytes = all;
	return 0;
}

int ws_gpu_alloc(struct ws_gpu *g, uint64_t bytes, ws_devptr *out, struct ws_err *err)
{
	CUdeviceptr p;
	if (check_bytes(g, g->cuda->cu.alloc(&p, bytes), "allocating", bytes, err))
		return -1;
	*out = p;
	return 0;
}

void ws_gpu_free(struct ws_gpu *g, ws_devptr p)
{
	if (p)
		g->cuda->cu.free(p);
}

int ws_gpu_alloc_pinned(struct ws_gpu *g, uint64_t bytes, void **out, struct ws_err *err)
{
	void *p;
	/* Portable: for every thread's context, as reader threads fill what another sends. */
	const CUresult rc = g->cuda->cu.alloc_pinned(&p, bytes, CU_MEMHOSTALLOC_PORTABLE);
	if (check_bytes(g, rc, "pinning", bytes, err))
		return -1;
	*out = p;
	return 0;
}

void ws_gpu_free_pinned(struct ws_gpu *g, void *p)
{
	if (p)
		g->cuda->cu.free_pinned(p);
}

/* ---- streams and marks ---- */

static CUstream of_stream(struct ws_stream *s)
{
	return (CUstream)(void *)s;
}

static CUevent of_mark(struct ws_mark *m)
{
	return (CUevent)(void *)m;
}

int ws_stream_new(struct ws_gpu *g, struct ws_stream **out, struct ws_err *err)
{
	CUstream s;
	if (check(g, g->cuda->cu.stream_new(&s, CU_STREAM_NON_BLOCKING), "making a stream", err))
		return -1;
	*out = (struct ws_stream *)(void *)s;
	return 0;
}

void ws_stream_free(struct ws_gpu *g, struct ws_stream *s)
{
	if (s)
		g->cuda->cu.stream_free(of_stream(s));
}

/* The driver waits without an end, so we ask again and again: a few times at once, as most waits are
 * short, and then with pauses that are short beside a bucket. */
static int wait_for(struct ws_gpu *g, struct ws_stream *s, struct ws_mark *m, ws_deadline until,
                    const struct ws_cancel *cancel, struct ws_err *err)
{
	static const struct timespec pause = { .tv_nsec = 50000 };
	for (unsigned asked = 0;; asked++) {
		const CUresult rc = m ? g->cuda->cu.mark_query(of_mark(m)) :
		                        g->cuda->cu.stream_query(of_stream(s));
		if (rc != CUDA_ERROR_NOT_READY)
			return check(g, rc, "what was asked of it", err);
		if (ws_cancelled(cancel))
			return ws_err_set(err, WS_ECANCELLED, "waiting for GPU %d was cancelled", g->ordinal);
		if (ws_deadline_passed(until))
			return ws_err_set(err, WS_ETIMEOUT, "GPU %d (%s) is not done in time", g->ordinal,
			                  g->device.name);
		if (asked > 100)
			nanosleep(&pause, NULL);
	}
}

int ws_stream_wait(struct ws_gpu *g, struct ws_stream *s, ws_deadline until,
                   const struct ws_cancel *cancel, struct ws_err *err)
{
	return wait_for(g, s, NULL, until, cancel, err);
}

int ws_mark_new(struct ws_gpu *g, struct ws_mark **out, struct ws_err *err)
{
	CUevent m;
	if (check(g, g->cuda->cu.mark_new(&m, CU_EVENT_DEFAULT), "making an event", err))
		return -1;
	*out = (struct ws_mark *)(void *)m;
	return 0;
}

void ws_mark_free(struct ws_gpu *g, struct ws_mark *m)
{
	if (m)
		g->cuda->cu.mark_free(of_mark(m));
}

int ws_mark_set(struct ws_gpu *g, struct ws_mark *m, struct ws_stream *s, struct ws_err *err)
{
	return check(g, g->cuda->cu.mark_set(of_mark(m), of_stream(s)), "recording an event", err);
}

int ws_mark_reached(struct ws_gpu *g, struct ws_mark *m, bool *reached, struct ws_err *err)
{
	const CUresult rc = g->cuda->cu.mark_query(of_mark(m));
	if (rc != CUDA_ERROR_NOT_READY && check(g, rc, "what was asked of it", err))
		return -1;
	*reached = rc == CUDA_SUCCESS;
	return 0;
}

int ws_mark_wait(struct ws_gpu *g, struct ws_mark *m, ws_deadline until, const struct ws_cancel *cancel,
                 struct ws_err *err)
{
	return wait_for(g, NULL, m, until, cancel, err);
}

int ws_stream_follow(struct ws_gpu *g, struct ws_stream *s, struct ws_mark *m, struct ws_err *err)
{
	return check(g, g->cuda->cu.stream_follow(of_stream(s), of_mark(m), 0), "ordering two streams", err);
}

int ws_mark_between(struct ws_gpu *g, struct ws_mark *from, struct ws_mark *to, int64_t *ns,
                    struct ws_err *err)
{
	float ms;
	const CUresult rc = g->cuda->cu.mark_between(&ms, of_mark(from), of_mark(to));
	if (check(g, rc, "timing", err))
		return -1;
	*ns = (int64_t)((double)ms * 1e6);
	return 0;
}

/* ---- copies ---- */

int ws_gpu_copy_in(struct ws_gpu *g, ws_devptr dst, const void *src, uint64_t bytes, struct ws_stream *s,
                   struct ws_err *err)
{
	return check_bytes(g, g->cuda->cu.copy_in(dst, src, bytes, of_stream(s)), "copying to it", bytes, err);
}

int ws_gpu_copy_out(struct ws_gpu *g, void *dst, ws_devptr src, uint64_t bytes, struct ws_stream *s,
                    struct ws_err *err)
{
	return check_bytes(g, g->cuda->cu.copy_out(dst, src, bytes, of_stream(s)), "copying from it", bytes, err);
}

int ws_gpu_copy(struct ws_gpu *g, ws_devptr dst, ws_devptr src, uint64_t bytes, struct ws_stream *s,
                struct ws_err *err)
{
	return check_bytes(g, g->cuda->cu.copy(dst, src, bytes, of_stream(s)), "copying within it", bytes, err);
}

int ws_gpu_fill(struct ws_gpu *g, ws_devptr dst, uint8_t byte, uint64_t bytes, struct ws_stream *s,
                struct ws_err *err)
{
	return check_bytes(g, g->cuda->cu.fill(dst, byte, bytes, of_stream(s)), "filling", bytes, err);
}

/* ---- kernels ---- */

int ws_module_load(struct ws_gpu *g, const void *image, const char *what, struct ws_module **out,
                   struct ws_err *err)
{
	CUmodule m;
	char text[96];
	snprintf(text, sizeof text, "loading the kernels of %s", what);
	if (check(g, g->cuda->cu.module_load(&m, image), text, err))
		return -1;
	*out = (struct ws_module *)(void *)m;
	return 0;
}

void ws_module_free(struct ws_gpu *g, struct ws_module *m)
{
	if (m)
		g->cuda->cu.module_free((CUmodule)(void *)m);
}

int ws_module_kernel(struct ws_gpu *g, struct ws_module *m, const char *name, struct ws_kernel **out,
                     struct ws_err *err)
{
	CUfunction f;
	char text[96];
	snprintf(text, sizeof text, "kernel %s", name);
	if (check(g, g->cuda->cu.module_kernel(&f, (CUmodule)(void *)m, name), text, err))
		return -1;
	*out = (struct ws_kernel *)(void *)f;
	return 0;
}

int ws_gpu_launch(struct ws_gpu *g, const struct ws_launch *l, struct ws_stream *s, struct ws_err *err)
{
	void *args[] = { (void *)(uintptr_t)l->args };
	const CUfunction f = (CUfunction)(void *)(uintptr_t)l->kernel;
	const CUresult rc = g->cuda->cu.launch(f, l->blocks, 1, 1, l->threads, 1, 1, 0, of_stream(s), args, NULL);
	if (rc == CUDA_SUCCESS)
		return 0;
	char text[96];
	snprintf(text, sizeof text, "starting kernel %s", l->name);
	return refuse_on(g, rc, err, text);
}
