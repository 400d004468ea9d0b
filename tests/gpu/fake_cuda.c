/* SPDX-License-Identifier: Apache-2.0 */
/* fake_cuda.c - a recording double of libcuda.so.1, for error paths and for
 * what is asked of a driver.
 *
 * It is no proof that anything works on a GPU. Device memory is memory of the process, which
 * others can map (fake_ipc.c), work is done by the CPU, at once or as late as can be
 * (fake_stream.c), and kernels run on the CPU too (host_shim.h says what that is worth), or from
 * their PTX (fake_ptx.c). It refuses what the driver API's manual says is refused: calls before
 * cuInit or without a context, handles and addresses that were not given out, copies beyond an
 * allocation, unknown kernels; and what a driver may not notice it remembers as a mistake. */
#include "fake_core.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#pragma GCC diagnostic ignored "-Wmissing-prototypes"

enum { MOST_DEVICES = 8 };

static struct {
	pthread_mutex_t lock;
	char record[1 << 16];
	size_t length;
	char failing[64];
	unsigned after;
	CUresult rc;
	char mistake[256];
	int devices;
	bool started;
	unsigned retained[MOST_DEVICES];
	struct fake_thing *things;
} fake = { .lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP, .devices = 2, .rc = CUDA_SUCCESS };

static _Thread_local CUcontext current;

void fake_lock(void)
{
	pthread_mutex_lock(&fake.lock);
}

void fake_unlock(const int *held)
{
	(void)held;
	pthread_mutex_unlock(&fake.lock);
}

/* ---- what a test says ---- */

static void reset(void)
{
	LOCKED;
	fake.length = 0;
	fake.record[0] = '\0';
	fake.rc = CUDA_SUCCESS;
	fake.devices = 2;
	if (fake_has_context() != CUDA_SUCCESS)
		current = NULL; /* of a driver that had refused to change it */
	fake_busy(0);
	fake_defer(false);
}

static void refuse(const char *function, unsigned n, int rc)
{
	LOCKED;
	snprintf(fake.failing, sizeof fake.failing, "%s", function);
	fake.after = n;
	fake.rc = (CUresult)rc;
}

static void set_devices(int n)
{
	fake.devices = n;
}

static void set_busy(unsigned n)
{
	LOCKED;
	fake_busy(n);
}

static void set_deferred(bool on)
{
	LOCKED;
	fake_defer(on);
}

static const char *record(void)
{
	return fake.record;
}

static const char *mistake(void)
{
	static char told[sizeof fake.mistake];
	LOCKED;
	memcpy(told, fake.mistake, sizeof told);
	fake.mistake[0] = '\0';
	return told;
}

static size_t live(void)
{
	LOCKED;
	size_t n = 0;
	for (const struct fake_thing *t = fake.things; t; t = t->next)
		n += t->kind != FAKE_FUNCTION;
	for (int i = 0; i < MOST_DEVICES; i++)
		n += fake.retained[i];
	return n;
}

static bool owns(uint64_t at, size_t bytes)
{
	LOCKED;
	return fake_is_on_device(at, bytes);
}

static void call_it(struct fake_work *w)
{
	if (w->call)
		w->call(w->arg);
}

static bool enqueue(void *stream, void (*call)(void *arg), void *arg)
{
	LOCKED;
	const struct fake_work w = { .run = call_it, .call = call, .arg = arg };
	return fake_do((CUstream)stream, &w) == CUDA_SUCCESS;
}

static bool enqueue_until(void *stream, bool (*done)(void *arg), void (*call)(void *arg), void *arg)
{
	LOCKED;
	const struct fake_work w = { .run = call_it, .done = done, .call = call, .arg = arg };
	return fake_do((CUstream)stream, &w) == CUDA_SUCCESS;
}

static bool has_context(void)
{
	LOCKED;
	return fake_has_context() == CUDA_SUCCESS;
}

static bool hang(void *stream)
{
	LOCKED;
	const struct fake_work w = { .run = call_it, .hangs = true };
	return fake_do((CUstream)stream, &w) == CUDA_SUCCESS;
}

static void let_go(void)
{
	LOCKED;
	fake_let_go();
}


EXPORT extern const struct fake_cuda fake_cuda;
const struct fake_cuda fake_cuda = { reset, refuse, set_devices, set_busy, set_deferred,
	                             record, live, mistake, owns, enqueue, has_context, hang,
	                             let_go, enqueue_until, fake_device };

/* ---- each call ---- */

static void note(const char *function, const char *fmt, va_list ap)
{
	char args[128];
	vsnprintf(args, sizeof args, fmt, ap);
	const size_t left = sizeof fake.record - fake.length;
	const int n = snprintf(fake.record + fake.length, left, "%s%s%s\n", function,
	                       args[0] ? " " : "", args);
	if (n > 0 && (size_t)n < left)
		fake.length += (size_t)n;
}

void fake_note(const char *function, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	note(function, fmt, ap);
	va_end(ap);
}

static bool is_before_all(const char *function)
{
	return strcmp(function, "cuInit") == 0 || strcmp(function, "cuDriverGetVersion") == 0;
}

CUresult fake_called(const char *function, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	note(function, fmt, ap);
	va_end(ap);
	if (fake.rc != CUDA_SUCCESS && (!fake.failing[0] || strcmp(fake.failing, function) == 0)) {
		if (fake.after == 0)
			return fake.rc;
		fake.after--;
	}
	return fake.started || is_before_all(function) ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

static int device_of(CUcontext context)
{
	const unsigned *of = (const unsigned *)(void *)context;
	return of >= fake.retained && of < fake.retained + MOST_DEVICES ?
	               (int)(of - fake.retained) :
	               -1;
}

int fake_device(void)
{
	return device_of(current);
}

CUresult fake_has_context(void)
{
	const int device = device_of(current);
	if (device < 0)
		return CUDA_ERROR_INVALID_CONTEXT;
	return fake.retained[device] ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

void fake_mistake(const char *fmt, ...)
{
	if (fake.mistake[0])
		return;
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(fake.mistake, sizeof fake.mistake, fmt, ap);
	va_end(ap);
}

/* ---- things ---- */

struct fake_thing *fake_make(enum fake_kind kind, uint64_t handle, size_t bytes)
{
	struct fake_thing *t = calloc(1, sizeof *t);
	if (!t)
		return NULL;
	t->kind = kind;
	t->handle = handle ? handle : (uintptr_t)t;
	t->bytes = bytes;
	t->next = fake.things;
	fake.things = t;
	return t;
}

struct fake_thing *fake_find(enum fake_kind kind, uint64_t handle)
{
	struct fake_thing *t = fake.things;
	while (t && (t->kind != kind || t->handle != handle))
		t = t->next;
	return t;
}

struct fake_thing *fake_next(const struct fake_thing *t)
{
	return t ? t->next : fake.things;
}

void fake_unmake(const struct fake_thing *t)
{
	for (struct fake_thing **at = &fake.things; *at;) {
		struct fake_thing *one = *at;
		if (one != t && one->of != t) {
			at = &one->next;
			continue;
		}
		*at = one->next;
		free(one);
	}
}

bool fake_is_within(enum fake_kind kind, uint64_t at, size_t bytes)
{
	for (const struct fake_thing *t = fake.things; t; t = t->next)
		if (t->kind == kind && at >= t->handle && bytes <= t->bytes &&
		    at - t->handle <= t->bytes - bytes)
			return true;
	return false;
}

bool fake_is_on_device(uint64_t at, size_t bytes)
{
	return fake_is_within(FAKE_DEVICE_MEMORY, at, bytes) ||
	       fake_is_within(FAKE_OPENED_MEMORY, at, bytes);
}

/* ---- the driver ---- */

EXPORT CUresult cuInit(unsigned flags)
{
	CALLED("%u", flags);
	fake.started = fake.devices > 0;
	return fake.started ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

EXPORT CUresult cuDriverGetVersion(int *version)
{
	CALLED("%s", "");
	const char *told = getenv("FAKE_CUDA_VERSION");
	*version = told ? atoi(told) : 13000;
	return CUDA_SUCCESS;
}

static const struct { CUresult rc; const char *name, *string; } errors[] = {
	{ CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument" },
	{ CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory" },
	{ CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context" },
	{ CUDA_ERROR_NO_BINARY_FOR_GPU, "CUDA_ERROR_NO_BINARY_FOR_GPU",
	  "no kernel image is available for execution on the device" },
	{ CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found" },
	{ CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS",
	  "an illegal memory access was encountered" },
	{ CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error" },
};

EXPORT CUresult cuGetErrorName(CUresult rc, const char **out)
{
	for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++)
		if (errors[i].rc == rc) {
			*out = errors[i].name;
			return CUDA_SUCCESS;
		}
	return CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuGetErrorString(CUresult rc, const char **out)
{
	for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++)
		if (errors[i].rc == rc) {
			*out = errors[i].string;
			return CUDA_SUCCESS;
		}
	return CUDA_ERROR_INVALID_VALUE;
}

/* ---- devices ---- */

#define IS_DEVICE(device) \
	do { \
		if ((device) < 0 || (device) >= fake.devices) \
			return CUDA_ERROR_INVALID_DEVICE; \
	} while (0)

EXPORT CUresult cuDeviceGetCount(int *n)
{
	CALLED("%s", "");
	*n = fake.devices;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
	CALLED("%d", ordinal);
	IS_DEVICE(ordinal);
	*device = ordinal;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetName(char *name, int n, CUdevice device)
{
	CALLED("%d", device);
	IS_DEVICE(device);
	snprintf(name, (size_t)n, "Double %d%s\x1b[31m", device,
	         getenv("FAKE_CUDA_MIG") ? " MIG 1g.10gb" : "");
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
	CALLED("%d", device);
	IS_DEVICE(device);
	memset(uuid->bytes, 0x40 + device, sizeof uuid->bytes);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetPCIBusId(char *id, int n, CUdevice device)
{
	CALLED("%d", device);
	IS_DEVICE(device);
	snprintf(id, (size_t)n, "0000:%02x:00.0", 0x1b + device);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
	CALLED("%d %d", (int)attribute, device);
	IS_DEVICE(device);
	*value = attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR ? 9 :
	         attribute == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT      ? 132 :
	                                                                       0;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
	CALLED("%d", device);
	IS_DEVICE(device);
	*bytes = (size_t)80 << 30;
	return CUDA_SUCCESS;
}

/* ---- contexts ---- */

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
	CALLED("%d", device);
	IS_DEVICE(device);
	fake.retained[device]++;
	*context = (CUcontext)(void *)&fake.retained[device];
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
	GIVEN_BACK;
	if (device < 0 || device >= MOST_DEVICES || !fake.retained[device]) {
		fake_mistake("a context is released that nobody retained");
		return CUDA_ERROR_INVALID_CONTEXT;
	}
	if (--fake.retained[device] == 0 && device_of(current) == device && fake.rc == CUDA_SUCCESS)
		fake_mistake("a context that is current is destroyed");
	unsigned left = 0; /* what is here may be another device's */
	for (int i = 0; i < MOST_DEVICES; i++)
		left += fake.retained[i];
	if (left == 0 && fake.things)
		fake_mistake("a context is destroyed with something in it");
	return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSetCurrent(CUcontext context)
{
	CALLED("%s", context ? "" : "none");
	if (context && device_of(context) < 0)
		return CUDA_ERROR_INVALID_CONTEXT;
	current = context;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetCurrent(CUcontext *context)
{
	CALLED("%s", "");
	*context = current;
	return CUDA_SUCCESS;
}

/* Ours never asks, but who shares memory with us does. */
EXPORT CUresult cuCtxGetDevice(CUdevice *device)
{
	ON_CONTEXT("%s", "");
	*device = device_of(current);
	return CUDA_SUCCESS;
}

/* ---- memory ---- */

/* Pages come into being when they are touched: a test may have rows gigabytes apart. */
static const size_t LARGE = (size_t)8 << 20, ALL = (size_t)80 << 30, LEFT = (size_t)79 << 30;

static void *new_memory(enum fake_kind kind, size_t bytes, int *fd)
{
	*fd = -1;
	if (bytes > LEFT)
		return NULL;
	if (kind == FAKE_PINNED_MEMORY)
		return aligned_alloc(256, (bytes + 255) / 256 * 256);
	return fake_map_new(bytes, fd);
}

static void free_memory(void *p, size_t bytes, int fd)
{
	if (fd < 0)
		free(p);
	else
		fake_unmap(p, bytes, fd);
}

static CUresult allocate(enum fake_kind kind, size_t bytes, uint64_t *out)
{
	if (bytes == 0)
		return CUDA_ERROR_INVALID_VALUE;
	int fd;
	void *p = new_memory(kind, bytes, &fd);
	struct fake_thing *t = p ? fake_make(kind, (uintptr_t)p, bytes) : NULL;
	if (!t) {
		if (p)
			free_memory(p, bytes, fd);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	t->fd = fd;
	if (bytes < LARGE)
		memset(p, 0xa5, bytes);
	*out = (uintptr_t)p;
	return CUDA_SUCCESS;
}

static CUresult deallocate(enum fake_kind kind, uint64_t at, const char *what)
{
	struct fake_thing *t = fake_find(kind, at);
	if (!t) {
		fake_mistake("%s is freed that is none", what);
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (fake_touches(at, t->bytes))
		fake_mistake("%s is freed while a copy waits for it", what);
	fake_finish_all();
	free_memory((void *)(uintptr_t)at, t->bytes, t->fd);
	fake_unmake(t);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuMemGetInfo_v2(size_t *left, size_t *all)
{
	ON_CONTEXT("%s", "");
	*left = LEFT;
	*all = ALL;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t bytes)
{
	ON_CONTEXT("%zu", bytes);
	uint64_t at = 0;
	CHECKED(allocate(FAKE_DEVICE_MEMORY, bytes, &at));
	*out = (CUdeviceptr)at;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr p)
{
	GIVEN_BACK;
	return deallocate(FAKE_DEVICE_MEMORY, p, "device memory");
}

EXPORT CUresult cuMemHostAlloc(void **out, size_t bytes, unsigned flags)
{
	ON_CONTEXT("%zu %u", bytes, flags);
	uint64_t at = 0;
	CHECKED(allocate(FAKE_PINNED_MEMORY, bytes, &at));
	*out = (void *)(uintptr_t)at;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuMemFreeHost(void *p)
{
	GIVEN_BACK;
	return deallocate(FAKE_PINNED_MEMORY, (uintptr_t)p, "pinned memory");
}

static void copy(struct fake_work *w)
{
	memcpy((void *)(uintptr_t)w->dst, (const void *)(uintptr_t)w->src, w->bytes);
}

/* Copies out of memory that is not pinned read it before they return, as drivers do. */
EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void *src, size_t bytes, CUstream s)
{
	ON_CONTEXT("%zu", bytes);
	if (!fake_is_on_device(dst, bytes))
		return CUDA_ERROR_INVALID_VALUE;
	const struct fake_work w = {
		.run = copy, .dst = dst, .src = (uintptr_t)src, .bytes = bytes
	};
	CHECKED(fake_do(s, &w));
	if (!fake_is_within(FAKE_PINNED_MEMORY, (uintptr_t)src, bytes))
		fake_finish_all();
	return CUDA_SUCCESS;
}

EXPORT CUresult cuMemcpyDtoHAsync_v2(void *dst, CUdeviceptr src, size_t bytes, CUstream s)
{
	ON_CONTEXT("%zu", bytes);
	if (!fake_is_on_device(src, bytes))
		return CUDA_ERROR_INVALID_VALUE;
	const struct fake_work w = {
		.run = copy, .dst = (uintptr_t)dst, .src = src, .bytes = bytes
	};
	return fake_do(s, &w);
}

EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream s)
{
	ON_CONTEXT("%zu", bytes);
	if (!fake_is_on_device(src, bytes) || !fake_is_on_device(dst, bytes))
		return CUDA_ERROR_INVALID_VALUE;
	if (src < dst + bytes && dst < src + bytes)
		fake_mistake("a copy onto itself");
	const struct fake_work w = { .run = copy, .dst = dst, .src = src, .bytes = bytes };
	return fake_do(s, &w);
}

static void fill(struct fake_work *w)
{
	memset((void *)(uintptr_t)w->dst, w->byte, w->bytes);
}

EXPORT CUresult cuMemsetD8Async(CUdeviceptr dst, unsigned char byte, size_t bytes, CUstream s)
{
	ON_CONTEXT("%u %zu", byte, bytes);
	if (!fake_is_on_device(dst, bytes))
		return CUDA_ERROR_INVALID_VALUE;
	const struct fake_work w = { .run = fill, .dst = dst, .byte = byte, .bytes = bytes };
	return fake_do(s, &w);
}

/* A process forked by one whose other threads are at work has none of them, and none of their
 * locks. */
static void unlock_parent(void)
{
	pthread_mutex_unlock(&fake.lock);
}

static void unlock_child(void)
{
	const pthread_mutex_t fresh = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
	memcpy(&fake.lock, &fresh, sizeof fresh);
}

__attribute__((constructor)) static void mind_forks(void)
{
	pthread_atfork(fake_lock, unlock_parent, unlock_child);
}

/* For programs, which no test can speak to: FAKE_CUDA_REFUSE="cuMemAlloc_v2 3 2" is refuse() of
 * that, and "*" any function. FAKE_CUDA_MIG: the GPUs are parts of some. FAKE_CUDA_VERSION: the
 * driver's. */
__attribute__((constructor)) static void read_environment(void)
{
	const char *text = getenv("FAKE_CUDA_REFUSE");
	char function[64] = "";
	unsigned n = 0;
	int rc = 0;
	if (text && sscanf(text, "%63s %u %d", function, &n, &rc) == 3)
		refuse(strcmp(function, "*") == 0 ? "" : function, n, rc);
}

/* A test that did not ask must not pass all the same. */
__attribute__((destructor)) static void judge(void)
{
	const size_t n = live();
	if (!fake.mistake[0] && n == 0)
		return;
	fprintf(stderr, "# the double of libcuda: %s (%zu things not given back)\n",
	        fake.mistake[0] ? fake.mistake : "something is left", n);
	_exit(99);
}
