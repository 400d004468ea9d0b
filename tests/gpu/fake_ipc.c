/* SPDX-License-Identifier: Apache-2.0 */
/* fake_ipc.c - device memory of the double, which other processes that have it loaded can open.
 *
 * Each allocation is a file without a name (memfd_create), mapped so that it ends, but for the
 * rounding to 256 bytes, where a page begins that cannot be touched. A handle, 64 bytes:
 *	 0   u32  magic, "FAKE"
 *	 4   i32  process and
 *	 8   i32  its descriptor
 *	12   u32  0
 *	16   u64  inode: the descriptor may have become another file's
 *	24   u64  bytes of the allocation
 *	32   u64  where it begins in the file
 * and zeros. Whoever may trace the process may open it, by /proc. */
#include "fake_core.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#pragma GCC diagnostic ignored "-Wmissing-prototypes"

static const uint32_t MAGIC = 0x454b4146;
static const size_t PAGE = 4096;

struct handle {
	uint32_t magic;
	int32_t process, fd;
	uint32_t zero;
	uint64_t inode, bytes, begin, zeros[3];
};

_Static_assert(sizeof(struct handle) == sizeof(CUipcMemHandle), "a handle is 64 bytes");

/* ---- mapping ---- */

static size_t whole(size_t bytes)
{
	return (bytes + PAGE - 1) / PAGE * PAGE;
}

/* Of the allocation in its file. */
static size_t begin_of(size_t bytes)
{
	return whole(bytes) - (bytes + 255) / 256 * 256;
}

static void *map(int fd, size_t bytes)
{
	const size_t n = whole(bytes);
	char *room =
		mmap(NULL, n + PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (room == MAP_FAILED)
		return NULL;
	if (mmap(room, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) != MAP_FAILED)
		return room + begin_of(bytes);
	munmap(room, n + PAGE);
	return NULL;
}

static void unmap(void *p, size_t bytes)
{
	munmap((char *)p - begin_of(bytes), whole(bytes) + PAGE);
}

void *fake_map_new(size_t bytes, int *fd)
{
	*fd = memfd_create("memory of the double", MFD_CLOEXEC);
	if (*fd < 0)
		return NULL;
	void *p = ftruncate(*fd, (off_t)(begin_of(bytes) + bytes)) == 0 ? map(*fd, bytes) : NULL;
	if (!p)
		close(*fd);
	return p;
}

void fake_unmap(void *p, size_t bytes, int fd)
{
	unmap(p, bytes);
	close(fd);
}

/* ---- the driver's calls ---- */

/* By an address anywhere in the allocation, as drivers have it. */
static const struct fake_thing *memory_of(uint64_t at, enum fake_kind kind)
{
	const struct fake_thing *t = fake_next(NULL);
	while (t && (t->kind != kind || at < t->handle || at - t->handle >= t->bytes))
		t = fake_next(t);
	return t;
}

EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr p)
{
	ON_CONTEXT("%s", "");
	const struct fake_thing *t = memory_of(p, FAKE_DEVICE_MEMORY);
	if (!t)
		t = memory_of(p, FAKE_OPENED_MEMORY);
	if (!t)
		return CUDA_ERROR_NOT_FOUND;
	*base = (CUdeviceptr)t->handle;
	*bytes = t->bytes;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuIpcGetMemHandle(CUipcMemHandle *out, CUdeviceptr p)
{
	ON_CONTEXT("%s", "");
	const struct fake_thing *t = memory_of(p, FAKE_DEVICE_MEMORY);
	struct stat file;
	if (!t || fstat(t->fd, &file) != 0)
		return CUDA_ERROR_INVALID_VALUE;
	const struct handle h = {
		.magic = MAGIC,
		.process = getpid(),
		.fd = t->fd,
		.inode = file.st_ino,
		.bytes = t->bytes,
		.begin = begin_of(t->bytes),
	};
	memcpy(out->reserved, &h, sizeof h);
	return CUDA_SUCCESS;
}

static bool is_sound(const struct handle *h)
{
	static const struct handle none;
	return h->magic == MAGIC && h->process > 0 && h->fd >= 0 && h->zero == 0 && h->bytes > 0 &&
	       h->bytes <= (uint64_t)1 << 40 && h->begin == begin_of(h->bytes) &&
	       memcmp(h->zeros, none.zeros, sizeof h->zeros) == 0;
}

/* The file while it is still that allocation. */
static int open_file(const struct handle *h)
{
	char path[64];
	struct stat file;
	snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)h->process, (int)h->fd);
	const int fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd >= 0 && fstat(fd, &file) == 0 && file.st_ino == h->inode &&
	    (uint64_t)file.st_size == h->begin + h->bytes)
		return fd;
	if (fd >= 0)
		close(fd);
	return -1;
}

static struct fake_thing *open_new(const struct handle *h)
{
	const int fd = open_file(h);
	if (fd < 0)
		return NULL;
	void *p = map(fd, h->bytes);
	close(fd);
	struct fake_thing *t = p ? fake_make(FAKE_OPENED_MEMORY, (uintptr_t)p, h->bytes) : NULL;
	if (p && !t)
		unmap(p, h->bytes);
	if (t)
		memcpy(t->ipc, h, sizeof t->ipc);
	return t;
}

/* What is open is given again, as drivers do. */
static struct fake_thing *find_open(const struct handle *h)
{
	struct fake_thing *t = fake_next(NULL);
	while (t && (t->kind != FAKE_OPENED_MEMORY || memcmp(t->ipc, h, sizeof t->ipc) != 0))
		t = fake_next(t);
	return t;
}

EXPORT CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *out, CUipcMemHandle handle, unsigned flags)
{
	ON_CONTEXT("%u", flags);
	struct handle h;
	memcpy(&h, handle.reserved, sizeof h);
	if (!is_sound(&h) || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
		return CUDA_ERROR_INVALID_VALUE;
	if (h.process == getpid())
		return CUDA_ERROR_INVALID_CONTEXT;
	struct fake_thing *t = find_open(&h);
	if (!t)
		t = open_new(&h);
	if (!t)
		return CUDA_ERROR_INVALID_VALUE;
	t->opened++;
	*out = (CUdeviceptr)t->handle;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuIpcCloseMemHandle(CUdeviceptr p)
{
	GIVEN_BACK;
	struct fake_thing *t = fake_find(FAKE_OPENED_MEMORY, p);
	if (!t) {
		fake_mistake("memory is closed that was not opened");
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (--t->opened > 0)
		return CUDA_SUCCESS;
	if (fake_touches(p, t->bytes))
		fake_mistake("opened memory is closed while a copy waits for it");
	fake_finish_all();
	unmap((void *)(uintptr_t)p, t->bytes);
	fake_unmake(t);
	return CUDA_SUCCESS;
}
