/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_driver.c - loads and starts the driver, describes and opens GPUs, reports errors. */
#include "cuda_core.h"

#include "wsync/tool/str.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const char default_library[] = "libcuda.so.1";

#define WS_GPU_BROKEN "this process cannot use the GPU any more: start the program again"

/* ---- errors ---- */

static void hint_at(CUresult rc, struct ws_err *err)
{
	static const struct {
		CUresult rc;
		const char *remedy;
	} known[] = {
		{ CUDA_ERROR_OUT_OF_MEMORY, "nvidia-smi shows who holds the GPU's memory" },
		{ CUDA_ERROR_NO_BINARY_FOR_GPU,
		  "build for this GPU, for example with make CUDA_ARCHS=90" },
		{ CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
		  "the driver is older than the CUDA Toolkit that this was built with and has to "
		  "compile the kernels for this GPU: name its kind, for example with make "
		  "CUDA_ARCHS=90, or take a newer driver" },
		/* The context stays broken: NCCL holds a reference to it too. */
		{ CUDA_ERROR_ILLEGAL_ADDRESS, WS_GPU_BROKEN },
		{ CUDA_ERROR_ASSERT, WS_GPU_BROKEN },
		{ CUDA_ERROR_LAUNCH_FAILED, WS_GPU_BROKEN },
		{ CUDA_ERROR_STUB_LIBRARY,
		  "this libcuda is the CUDA Toolkit's, for linking only: take its "
		  "directory out of LD_LIBRARY_PATH" },
		{ CUDA_ERROR_SYSTEM_NOT_READY,
		  "GPUs behind an NVSwitch want nvidia-fabricmanager to run on the machine" },
		{ CUDA_ERROR_SYSTEM_DRIVER_MISMATCH,
		  "libcuda and the kernel's driver are of different versions; a "
		  "reboot, or a container's driver mount, sets that right" },
	};
	for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
		if (known[i].rc == rc)
			ws_err_hint(err, "%s", known[i].remedy);
}

/* "what: CUDA_ERROR_X (n): the driver's message" */
static int cuda_fail(const struct ws_cuda *c, CUresult rc, struct ws_err *err, const char *what)
{
	const char *name = NULL, *words = NULL;
	if (c->cu.error_name(rc, &name) != CUDA_SUCCESS || !name)
		name = "an error without a name";
	if (c->cu.error_string(rc, &words) != CUDA_SUCCESS || !words)
		words = "the driver has no message for it";
	ws_err_set(err, WS_EDEVICE, "%s: %s (%d): %s", what, name, (int)rc, words);
	if (err)
		err->native = (int)rc;
	hint_at(rc, err);
	return -1;
}

static int cuda_fail_on(const struct ws_gpu *g, CUresult rc, struct ws_err *err, const char *what)
{
	cuda_fail(g->cuda, rc, err, what);
	return ws_err_wrap(err, "GPU %d (%s)", g->ordinal, g->device.name);
}

int ws_cuda_check(const struct ws_gpu *g, CUresult rc, const char *what, struct ws_err *err)
{
	return rc == CUDA_SUCCESS ? 0 : cuda_fail_on(g, rc, err, what);
}

int ws_cuda_check_bytes(const struct ws_gpu *g, CUresult rc, const char *what, uint64_t bytes,
                        struct ws_err *err)
{
	if (rc == CUDA_SUCCESS)
		return 0;
	char size[32], text[96];
	snprintf(text, sizeof text, "%s %s", what, ws_format_size(size, sizeof size, bytes));
	return cuda_fail_on(g, rc, err, text);
}

/* ---- the driver ---- */

bool ws_cuda_built(void)
{
	return true;
}

static int load_library(struct ws_cuda *c, const char *name, struct ws_err *err)
{
	/* NODELETE: the driver keeps threads, which would crash if the library were unloaded. */
	c->library = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	if (c->library)
		return 0;
	char why[512];
	const char *said = dlerror();
	ws_printable(why, sizeof why, said ? said : "unknown", said ? strlen(said) : 7);
	ws_err_set(err, WS_EDEVICE, "the CUDA driver cannot be loaded: %s", why);
	if (strcmp(name, default_library) == 0)
		ws_err_hint(err, "it comes with NVIDIA's driver, not with the CUDA Toolkit; in a "
		                 "container it is mounted by the runtime (docker run --gpus all)");
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
			           ws_printable(path, sizeof path, name, strlen(name)),
			           wanted[i].symbol);
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
		return cuda_fail(c, rc, err, "the CUDA driver does not start");
	rc = c->cu.version(&c->version);
	if (rc == CUDA_SUCCESS)
		rc = c->cu.count(&c->count);
	return rc == CUDA_SUCCESS ? 0 :
	                            cuda_fail(c, rc, err, "the CUDA driver does not list its GPUs");
}

int ws_cuda_open(const struct ws_cuda_opts *opts, struct ws_cuda **out, struct ws_err *err)
{
	const char *name = opts && opts->library ? opts->library : default_library;
	struct ws_cuda *c = calloc(1, sizeof *c);
	if (!c)
		return ws_oom(err);
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

static CUresult describe(const struct ws_cuda *c, int ordinal, CUdevice *handle,
                         struct ws_cuda_device *d)
{
	char name[sizeof d->name] = "";
	size_t bytes = 0;
	CUuuid uuid;
	CUresult rc = c->cu.get(handle, ordinal);
	if (rc == CUDA_SUCCESS)
		rc = c->cu.name(name, sizeof name, *handle);
	if (rc == CUDA_SUCCESS)
		rc = c->cu.attribute(&d->major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
		                     *handle);
	if (rc == CUDA_SUCCESS)
		rc = c->cu.attribute(&d->minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
		                     *handle);
	if (rc == CUDA_SUCCESS)
		rc = c->cu.attribute(&d->multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
		                     *handle);
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

static int look_up(const struct ws_cuda *c, int ordinal, CUdevice *handle,
                   struct ws_cuda_device *out, struct ws_err *err)
{
	if (ordinal < 0 || ordinal >= c->count) {
		if (c->count == 0)
			return ws_err_set(err, WS_EDEVICE, "there is no GPU that CUDA could use");
		return ws_err_set(err, WS_EDEVICE, "there is no GPU %d: they are numbered 0 to %d",
		                  ordinal, c->count - 1);
	}
	struct ws_cuda_device d = { .ordinal = ordinal };
	const CUresult rc = describe(c, ordinal, handle, &d);
	if (rc != CUDA_SUCCESS) {
		char what[32];
		snprintf(what, sizeof what, "GPU %d", ordinal);
		return cuda_fail(c, rc, err, what);
	}
	*out = d;
	return 0;
}

int ws_cuda_device(const struct ws_cuda *c, int ordinal, struct ws_cuda_device *out,
                   struct ws_err *err)
{
	CUdevice handle;
	return look_up(c, ordinal, &handle, out, err);
}

int ws_cuda_find(const struct ws_cuda *c, const char *uuid, int *ordinal, struct ws_err *err)
{
	const size_t n = strlen(uuid);
	char text[WS_CUDA_UUID_TEXT], name[2 * WS_CUDA_UUID_TEXT];
	int found = 0, which = -1;
	ws_printable(name, sizeof name, uuid, n);
	for (int i = 0; i < c->count; i++) {
		struct ws_cuda_device d;
		if (ws_cuda_device(c, i, &d, err))
			return -1;
		if (n <= WS_CUDA_UUID_KIND || strncasecmp(ws_cuda_uuid_text(&d, text), uuid, n))
			continue;
		which = i;
		found++;
	}
	if (found == 1) {
		*ordinal = which;
		return 0;
	}
	ws_err_set(err, WS_EDEVICE, found ? "%d GPUs have a UUID that begins with %s" :
	                                    "%d GPUs have the UUID %s", found, name);
	return ws_err_hint(err, "nvidia-smi -L lists the UUIDs");
}

/* ---- one GPU ---- */

int ws_gpu_open(struct ws_cuda *c, int ordinal, struct ws_gpu **out, struct ws_err *err)
{
	struct ws_gpu *g = calloc(1, sizeof *g);
	if (!g)
		return ws_oom(err);
	g->cuda = c;
	g->ordinal = ordinal;
	if (look_up(c, ordinal, &g->handle, &g->device, err) ||
	    ws_cuda_check(g, c->cu.used(&g->before), "asking for this thread's context", err) ||
	    ws_cuda_check(g, c->cu.retain(&g->context, g->handle), "opening it", err) ||
	    ws_gpu_use(g, err)) {
		ws_gpu_close(g);
		return -1;
	}
	*out = g;
	return 0;
}

/* A released context must not stay current on this thread. */
static void leave(struct ws_gpu *g)
{
	CUcontext current = NULL;
	if (g->cuda->cu.used(&current) == CUDA_SUCCESS && current == g->context)
		g->cuda->cu.use(g->before);
}

void ws_gpu_close(struct ws_gpu *g)
{
	if (!g)
		return;
	if (g->context) {
		leave(g);
		g->cuda->cu.release(g->handle);
	}
	free(g);
}

int ws_gpu_use(struct ws_gpu *g, struct ws_err *err)
{
	return ws_cuda_check(g, g->cuda->cu.use(g->context), "making it this thread's", err);
}

const struct ws_cuda_device *ws_gpu_device(const struct ws_gpu *g)
{
	return &g->device;
}
