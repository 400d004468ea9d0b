/* SPDX-License-Identifier: Apache-2.0 */
/* fake_cuda.c - a recording double of libcuda.so.1, for error paths and for what is asked of a driver.
 *
 * It is no proof that anything works on a GPU. Device memory is memory of the process, streams do at once
 * what they are asked, and kernels run on the CPU (host_shim.h says what that is worth). It refuses what
 * a driver would: addresses that were not given out, copies beyond an allocation, unknown kernels. */
#include "fake_cuda.h"

#include "host_run.h"

#include <cuda.h>

#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#pragma GCC diagnostic ignored "-Wmissing-prototypes"

static struct {
	char record[1 << 16];
	size_t length;
	char failing[64];
	unsigned after;
	CUresult rc;
	int devices;
	unsigned busy;
	size_t live;
} fake = { .devices = 2, .rc = CUDA_SUCCESS };

/* ---- what a test says ---- */

static void reset(void)
{
	fake.length = 0;
	fake.record[0] = '\0';
	fake.rc = CUDA_SUCCESS;
	fake.devices = 2;
	fake.busy = 0;
}

static void refuse(const char *function, unsigned n, int rc)
{
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
	fake.busy = n;
}

static const char *record(void)
{
	return fake.record;
}

static size_t live(void)
{
	return fake.live;
}

EXPORT extern const struct fake_cuda fake_cuda;
const struct fake_cuda fake_cuda = { reset, refuse, set_devices, set_busy, record, live };

/* ---- each call ---- */

static CUresult called(const char *function, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static CUresult called(const char *function, const char *fmt, ...)
{
	char args[128];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(args, sizeof args, fmt, ap);
	va_end(ap);
	const size_t left = sizeof fake.record - fake.length;
	const int n = snprintf(fake.record + fake.length, left, "%s%s%s\n", function, args[0] ? " " : "", args);
	if (n > 0 && (size_t)n < left)
		fake.length += (size_t)n;
	if (fake.rc == CUDA_SUCCESS || (fake.failing[0] && strcmp(fake.failing, function) != 0))
		return CUDA_SUCCESS;
	if (fake.after == 0)
		return fake.rc;
	fake.after--;
	return CUDA_SUCCESS;
}

/* Things that are given back: never refused, as a driver that fails has no better answer. */
static CUresult freed(const char *function, void *p)
{
	if (fake.failing[0] == '\0') {
		const CUresult rc = fake.rc;
		fake.rc = CUDA_SUCCESS;
		called(function, "%s", "");
		fake.rc = rc;
	} else {
		called(function, "%s", "");
	}
	free(p);
	fake.live--;
	return CUDA_SUCCESS;
}

#define CALLED(...) \
	do { \
		const CUresult rc_ = called(__func__, __VA_ARGS__); \
		if (rc_ != CUDA_SUCCESS) \
			return rc_; \
	} while (0)

/* ---- the driver ---- */

EXPORT CUresult cuInit(unsigned flags)
{
	CALLED("%u", flags);
	return fake.devices ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

EXPORT CUresult cuDriverGetVersion(int *version)
{
	CALLED("%s", "");
	*version = 13000;
	return CUDA_SUCCESS;
}

static const struct {
	CUresult rc;
	const char *name, *string;
} errors[] = {
	{ CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument" },
	{ CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory" },
	{ CUDA_ERROR_NO_BINARY_FOR_GPU, "CUDA_ERROR_NO_BINARY_FOR_GPU",
	  "no kernel image is available for execution on the device" },
	{ CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found" },
	{ CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered" },
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

EXPORT CUresult cuDeviceGetCount(int *n)
{
	CALLED("%s", "");
	*n = fake.devices;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
	CALLED("%d", ordinal);
	*device = ordinal;
	return ordinal < fake.devices ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuDeviceGetName(char *name, int n, CUdevice device)
{
	CALLED("%d", device);
	snprintf(name, (size_t)n, "Double %d\x1b[31m", device);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
	CALLED("%d", device);
	memset(uuid->bytes, 0x40 + device, sizeof uuid->bytes);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetPCIBusId(char *id, int n, CUdevice device)
{
	CALLED("%d", device);
	snprintf(id, (size_t)n, "0000:%02x:00.0", 0x1b + device);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
	CALLED("%d %d", (int)attribute, device);
	*value = attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR ? 9 :
	         attribute == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT      ? 132 :
	                                                                       0;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
	CALLED("%d", device);
	*bytes = (size_t)80 << 30;
	return CUDA_SUCCESS;
}

/* ---- contexts ---- */

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
	CALLED("%d", device);
	*context = (CUcontext)(void *)&fake;
	fake.live++;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
	(void)device;
	return freed(__func__, NULL);
}

EXPORT CUresult cuCtxSetCurrent(CUcontext context)
{
	CALLED("%s", "");
	return context ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---- memory ---- */

enum { MOST = 256 };
static struct allocation {
	uint64_t at;
	size_t bytes;
} allocations[MOST];

static bool is_within(CUdeviceptr p, size_t bytes)
{
	for (int i = 0; i < MOST; i++)
		if (allocations[i].at && p >= allocations[i].at && bytes <= allocations[i].bytes &&
		    p - allocations[i].at <= allocations[i].bytes - bytes)
			return true;
	return false;
}

EXPORT CUresult cuMemGetInfo_v2(size_t *left, size_t *all)
{
	CALLED("%s", "");
	*left = (size_t)79 << 30;
	*all = (size_t)80 << 30;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t bytes)
{
	CALLED("%zu", bytes);
	int i = 0;
	while (i < MOST && allocations[i].at)
		i++;
	if (bytes == 0)
		return CUDA_ERROR_INVALID_VALUE;
	void *p = i < MOST && bytes <= (size_t)1 << 30 ? aligned_alloc(256, (bytes + 255) / 256 * 256) : NULL;
	if (!p)
		return CUDA_ERROR_OUT_OF_MEMORY;
	memset(p, 0xa5, bytes);
	allocations[i] = (struct allocation){ (uintptr_t)p, bytes };
	*out = allocations[i].at;
	fake.live++;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr p)
{
	for (int i = 0; i < MOST; i++)
		if (p && allocations[i].at == p) {
			allocations[i].at = 0;
			return freed(__func__, (void *)(uintptr_t)p);
		}
	return CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuMemHostAlloc(void **out, size_t bytes, unsigned flags)
{
	CALLED("%zu %u", bytes, flags);
	*out = malloc(bytes);
	if (!*out)
		return CUDA_ERROR_OUT_OF_MEMORY;
	fake.live++;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuMemFreeHost(void *p)
{
	return freed(__func__, p);
}

EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void *src, size_t bytes, CUstream s)
{
	(void)s;
	CALLED("%zu", bytes);
	if (!is_within(dst, bytes))
		return CUDA_ERROR_INVALID_VALUE;
	memcpy((void *)(uintptr_t)dst, src, bytes);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuMemcpyDtoHAsync_v2(void *dst, CUdeviceptr src, size_t bytes, CUstream s)
{
	(void)s;
	CALLED("%zu", bytes);
	if (!is_within(src, bytes))
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(dst, (const void *)(uintptr_t)src, bytes);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream s)
{
	(void)s;
	CALLED("%zu", bytes);
	if (!is_within(src, bytes) || !is_within(dst, bytes))
		return CUDA_ERROR_INVALID_VALUE;
	memmove((void *)(uintptr_t)dst, (const void *)(uintptr_t)src, bytes);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuMemsetD8Async(CUdeviceptr dst, unsigned char byte, size_t bytes, CUstream s)
{
	(void)s;
	CALLED("%u %zu", byte, bytes);
	if (!is_within(dst, bytes))
		return CUDA_ERROR_INVALID_VALUE;
	memset((void *)(uintptr_t)dst, byte, bytes);
	return CUDA_SUCCESS;
}

/* ---- streams and events ---- */

static CUresult make(void **out)
{
	*out = malloc(1);
	fake.live++;
	return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult query(void)
{
	if (!fake.busy)
		return CUDA_SUCCESS;
	if (fake.busy != UINT32_MAX)
		fake.busy--;
	return CUDA_ERROR_NOT_READY;
}

EXPORT CUresult cuStreamCreate(CUstream *out, unsigned flags)
{
	CALLED("%u", flags);
	return make((void **)(void *)out);
}

EXPORT CUresult cuStreamDestroy_v2(CUstream s)
{
	return freed(__func__, (void *)s);
}

EXPORT CUresult cuStreamQuery(CUstream s)
{
	(void)s;
	CALLED("%s", "");
	return query();
}

EXPORT CUresult cuStreamWaitEvent(CUstream s, CUevent e, unsigned flags)
{
	(void)s;
	CALLED("%u", flags);
	return e ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuEventCreate(CUevent *out, unsigned flags)
{
	CALLED("%u", flags);
	return make((void **)(void *)out);
}

EXPORT CUresult cuEventDestroy_v2(CUevent e)
{
	return freed(__func__, (void *)e);
}

EXPORT CUresult cuEventRecord(CUevent e, CUstream s)
{
	(void)s;
	CALLED("%s", "");
	return e ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuEventQuery(CUevent e)
{
	CALLED("%s", "");
	return e ? query() : CUDA_ERROR_INVALID_VALUE;
}

/* The toolkit renames this one to a version that older drivers do not have. */
#undef cuEventElapsedTime
EXPORT CUresult cuEventElapsedTime(float *ms, CUevent from, CUevent to)
{
	CALLED("%s", "");
	*ms = 1.5f;
	return from && to ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---- kernels ---- */

EXPORT CUresult cuModuleLoadData(CUmodule *out, const void *image)
{
	uint32_t magic;
	memcpy(&magic, image, sizeof magic);
	CALLED("%x", magic);
	return make((void **)(void *)out);
}

EXPORT CUresult cuModuleUnload(CUmodule m)
{
	return freed(__func__, (void *)m);
}

EXPORT CUresult cuModuleGetFunction(CUfunction *out, CUmodule m, const char *name)
{
	CALLED("%s", name);
	const struct host_kernel *k = m ? host_kernel_find(name) : NULL;
	*out = (CUfunction)(void *)(uintptr_t)k;
	return k ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

#ifndef FAKE_CUDA_OLD
EXPORT CUresult cuLaunchKernel(CUfunction f, unsigned x, unsigned y, unsigned z, unsigned tx, unsigned ty,
                               unsigned tz, unsigned shared, CUstream s, void **args, void **extra)
{
	const struct host_kernel *k = (const struct host_kernel *)(void *)f;
	(void)s;
	CALLED("%s %u %u", k->name, x, tx);
	if (x == 0 || x > INT32_MAX || y != 1 || z != 1 || tx == 0 || tx > HOST_MAX_THREADS || ty != 1 ||
	    tz != 1 || shared || extra)
		return CUDA_ERROR_INVALID_VALUE;
	return host_kernel_run(k, x, tx, args[0]) ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
}
#endif
