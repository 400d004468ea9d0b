/* SPDX-License-Identifier: Apache-2.0 */
/* fake_core.h - what the parts of the double of libcuda share: its lock, its record, its things. */
#ifndef TESTS_GPU_FAKE_CORE_H
#define TESTS_GPU_FAKE_CORE_H

#include "fake_cuda.h"

#include <cuda.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

/* Each exported function begins with one of these. CALLED: noted, refused where a test said so
 * or where the driver is not started; ON_CONTEXT: refused too where this thread has no context;
 * GIVEN_BACK: noted, never refused. The lock is held to the function's end. */
void fake_lock(void);
void fake_unlock(const int *held);
#define LOCKED                                                                                     \
	__attribute__((cleanup(fake_unlock))) const int locked_ = (fake_lock(), 0);                \
	(void)locked_
#define CHECKED(call) \
	do { \
		const CUresult rc_ = (call); \
		if (rc_ != CUDA_SUCCESS) \
			return rc_; \
	} while (0)
#define CALLED(...) LOCKED; CHECKED(fake_called(__func__, __VA_ARGS__))
#define ON_CONTEXT(...) CALLED(__VA_ARGS__); CHECKED(fake_has_context())
#define GIVEN_BACK LOCKED; fake_note(__func__, "%s", "")

void fake_note(const char *function, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
CUresult fake_called(const char *function, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
CUresult fake_has_context(void);
int fake_device(void); /* of this thread; -1: none */
/* Something that would harm a real driver, or that it would not notice. The first is kept. */
void fake_mistake(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* What was made and has not been given back, so that no handle is believed. */
enum fake_kind {
	FAKE_DEVICE_MEMORY,
	FAKE_OPENED_MEMORY,
	FAKE_PINNED_MEMORY,
	FAKE_STREAM,
	FAKE_EVENT,
	FAKE_MODULE,
	FAKE_FUNCTION
};
struct fake_thing {
	struct fake_thing *next;
	enum fake_kind kind;
	uint64_t handle; /* or address */
	size_t bytes;    /* of memory */
	const struct fake_thing *of; /* of a function: its module, */
	const void *kernel;          /* and what runs it */
	int fd;          /* of device memory: the file that it is */
	unsigned opened; /* how often, of other processes' memory */
	unsigned char ipc[64]; /* and its handle */
};
/* NULL: out of memory. */
struct fake_thing *fake_make(enum fake_kind kind, uint64_t handle, size_t bytes);
struct fake_thing *fake_find(enum fake_kind kind, uint64_t handle);
struct fake_thing *fake_next(const struct fake_thing *t); /* of NULL: the first */
void fake_unmake(const struct fake_thing *t); /* and what is of it */
bool fake_is_within(enum fake_kind kind, uint64_t at, size_t bytes);

/* Of the device, our own or another process's that was opened here. */
bool fake_is_on_device(uint64_t at, size_t bytes);

/* fake_ipc.c: a file that processes can map. NULL: there is none to be had. */
void *fake_map_new(size_t bytes, int *fd);
void fake_unmap(void *p, size_t bytes, int fd);

/* fake_stream.c: one piece of work, to be done in its stream's turn. */
struct fake_work {
	struct fake_work *next;
	void (*run)(struct fake_work *w);
	uint64_t dst, src;
	size_t bytes;
	uint8_t byte;
	const void *kernel;
	unsigned blocks, threads;
	struct fake_event *event;
	unsigned turn;          /* which record of the event */
	bool hangs;
	bool (*done)(void *arg); /* asked in its turn; NULL: it is */
	void (*call)(void *arg);
	void *arg;
	char args[512];         /* of a kernel */
};
/* fake_ptx.c: kernels by their PTX. NULL: they are not run so. */
const char *fake_ptx_dir(void);
void fake_ptx_run(const struct fake_work *w);

/* Does it, or puts it behind the stream's other work. A copy of *w is kept. */
CUresult fake_do(CUstream s, const struct fake_work *w);
void fake_finish_all(void); /* of this thread's device, else of all */
void fake_let_go(void);
bool fake_touches(uint64_t at, size_t bytes); /* does work that is not done? */
void fake_defer(bool on);
void fake_busy(unsigned n);

#endif
