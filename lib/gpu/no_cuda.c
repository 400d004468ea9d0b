/* SPDX-License-Identifier: Apache-2.0 */
/* no_cuda.c - cuda_driver.h in a build without the CUDA Toolkit. ws_cuda_open fails, so the
 * functions that take a ws_cuda or a ws_gpu are never reached. */
#include "cuda_driver.h"
#include "wsync/version.h"

static int refuse(struct ws_err *err)
{
	ws_err_set(err, WS_EDEVICE, "this wsync was built without CUDA");
	return ws_err_hint(
		err, "build it where nvcc and cuda.h are found (make CUDA_HOME=/usr/local/cuda)");
}

bool ws_cuda_built(void)
{
	return false;
}

int ws_cuda_open(const struct ws_cuda_opts *opts, struct ws_cuda **out, struct ws_err *err)
{
	(void)opts, (void)out;
	return refuse(err);
}

const char *ws_gpu_library(void)
{
	return "built without CUDA";
}

const void *ws_cuda_image(const char *name, size_t *bytes)
{
	(void)name, (void)bytes;
	return NULL;
}

/* ---- never reached ---- */

#pragma GCC diagnostic ignored "-Wunused-parameter"

#define REFUSE(...) \
	__VA_ARGS__ \
	{ \
		return refuse(err); \
	}
#define IGNORE(...) \
	__VA_ARGS__ \
	{ \
	}

IGNORE(void ws_cuda_close(struct ws_cuda *c))
REFUSE(int ws_cuda_device(const struct ws_cuda *c, int ordinal, struct ws_cuda_device *out,
                          struct ws_err *err))
REFUSE(int ws_gpu_open(struct ws_cuda *c, int ordinal, struct ws_gpu **out, struct ws_err *err))
IGNORE(void ws_gpu_close(struct ws_gpu *g))
REFUSE(int ws_gpu_use(struct ws_gpu *g, struct ws_err *err))
REFUSE(int ws_gpu_memory(struct ws_gpu *g, uint64_t *free_bytes, uint64_t *all_bytes,
                         struct ws_err *err))
REFUSE(int ws_gpu_alloc(struct ws_gpu *g, uint64_t bytes, ws_devptr *out, struct ws_err *err))
IGNORE(void ws_gpu_free(struct ws_gpu *g, ws_devptr p))
REFUSE(int ws_gpu_alloc_pinned(struct ws_gpu *g, uint64_t bytes, void **out, struct ws_err *err))
IGNORE(void ws_gpu_free_pinned(struct ws_gpu *g, void *p))
REFUSE(int ws_gpu_ipc_export(struct ws_gpu *g, ws_devptr p,
                             unsigned char handle[WS_IPC_HANDLE_BYTES], struct ws_err *err))
REFUSE(int ws_gpu_ipc_open(struct ws_gpu *g, const unsigned char handle[WS_IPC_HANDLE_BYTES],
                           ws_devptr *out, struct ws_err *err))
IGNORE(void ws_gpu_ipc_close(struct ws_gpu *g, ws_devptr p))
REFUSE(int ws_gpu_ipc_wait(struct ws_gpu *g, const unsigned char event[WS_IPC_HANDLE_BYTES],
                           ws_deadline until, const struct ws_cancel *cancel, struct ws_err *err))
REFUSE(int ws_stream_new(struct ws_gpu *g, struct ws_stream **out, struct ws_err *err))
IGNORE(void ws_stream_free(struct ws_gpu *g, struct ws_stream *s))
REFUSE(int ws_stream_wait(struct ws_gpu *g, struct ws_stream *s, ws_deadline until,
                          const struct ws_cancel *cancel, struct ws_err *err))
REFUSE(int ws_gpu_event_new(struct ws_gpu *g, struct ws_gpu_event **out, struct ws_err *err))
REFUSE(int ws_gpu_timer_new(struct ws_gpu *g, struct ws_gpu_event **out, struct ws_err *err))
IGNORE(void ws_gpu_event_free(struct ws_gpu *g, struct ws_gpu_event *m))
REFUSE(int ws_gpu_event_record(struct ws_gpu *g, struct ws_gpu_event *m, struct ws_stream *s,
                               struct ws_err *err))
REFUSE(int ws_gpu_event_query(struct ws_gpu *g, struct ws_gpu_event *m, bool *reached,
                              struct ws_err *err))
REFUSE(int ws_gpu_event_wait(struct ws_gpu *g, struct ws_gpu_event *m, ws_deadline until,
                             const struct ws_cancel *cancel, struct ws_err *err))
REFUSE(int ws_stream_wait_event(struct ws_gpu *g, struct ws_stream *s, struct ws_gpu_event *m,
                                struct ws_err *err))
REFUSE(int ws_gpu_event_elapsed(struct ws_gpu *g, struct ws_gpu_event *from,
                                struct ws_gpu_event *to, int64_t *ns, struct ws_err *err))
REFUSE(int ws_gpu_size(struct ws_gpu *g, ws_devptr p, uint64_t *bytes, struct ws_err *err))
REFUSE(int ws_gpu_copy_in(struct ws_gpu *g, ws_devptr dst, const void *src, uint64_t bytes,
                          struct ws_stream *s, struct ws_err *err))
REFUSE(int ws_gpu_copy_out(struct ws_gpu *g, void *dst, ws_devptr src, uint64_t bytes,
                           struct ws_stream *s, struct ws_err *err))
REFUSE(int ws_gpu_copy(struct ws_gpu *g, ws_devptr dst, ws_devptr src, uint64_t bytes,
                       struct ws_stream *s, struct ws_err *err))
REFUSE(int ws_gpu_fill(struct ws_gpu *g, ws_devptr dst, uint8_t byte, uint64_t bytes,
                       struct ws_stream *s, struct ws_err *err))
REFUSE(int ws_module_load(struct ws_gpu *g, const void *image, const char *what,
                          struct ws_module **out, struct ws_err *err))
IGNORE(void ws_module_free(struct ws_gpu *g, struct ws_module *m))
REFUSE(int ws_module_kernel(struct ws_gpu *g, struct ws_module *m, const char *name,
                            struct ws_kernel **out, struct ws_err *err))
REFUSE(int ws_gpu_launch(struct ws_gpu *g, const struct ws_launch *l, struct ws_stream *s,
                         struct ws_err *err))

REFUSE(int ws_cuda_find(const struct ws_cuda *c, const char *uuid, int *ordinal,
                        struct ws_err *err))

bool ws_stream_settle(struct ws_gpu *g, struct ws_stream *s)
{
	return true;
}

int ws_cuda_version(const struct ws_cuda *c)
{
	return 0;
}

int ws_cuda_count(const struct ws_cuda *c)
{
	return 0;
}

const struct ws_cuda_device *ws_gpu_device(const struct ws_gpu *g)
{
	return NULL;
}
