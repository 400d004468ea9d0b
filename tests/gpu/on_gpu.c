/* SPDX-License-Identifier: Apache-2.0 */
#include "on_gpu.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const char *double_of_it(void)
{
	static char path[4096];
	const ssize_t n = readlink("/proc/self/exe", path, sizeof path - 32);
	if (n <= 0)
		return "";
	path[n] = '\0';
	strcpy(strrchr(path, '/') + 1, "fake_cuda.so");
	return path;
}

const char *on_gpu_library(void)
{
	const char *named = getenv("WSYNC_TEST_CUDA");
	return named && *named ? named : double_of_it();
}

void on_gpu_check(int rc, const struct ws_err *err)
{
	if (rc)
		fail_msg("%s", err->msg);
}

static bool open_all(struct on_gpu *g, struct ws_err *err)
{
	const struct ws_cuda_opts opts = { .library = on_gpu_library() };
	if (ws_cuda_open(&opts, &g->cuda, err))
		return false;
	if (ws_cuda_count(g->cuda) == 0) {
		ws_err_set(err, WS_EDEVICE, "there is no GPU that CUDA could use");
		return false;
	}
	return !ws_gpu_open(g->cuda, 0, &g->gpu, err) && !ws_compute_open(g->gpu, &g->compute, err) &&
	       !ws_stream_new(g->gpu, &g->stream, err);
}

/* A driver that is there and has a GPU must work: only their absence is a reason to skip. */
bool on_gpu_open(struct on_gpu *g)
{
	struct ws_err err = WS_ERR_INIT;
	*g = (struct on_gpu){ .is_double = strstr(on_gpu_library(), "fake_cuda") != NULL };
	if (open_all(g, &err))
		return true;
	if (g->cuda && ws_cuda_count(g->cuda) > 0)
		printf("1..1\nnot ok 1 - the GPU is opened\n# %s\n", err.msg);
	else
		printf("1..0 # SKIP %s\n", err.msg);
	on_gpu_close(g);
	return false;
}

void on_gpu_close(struct on_gpu *g)
{
	if (g->gpu) {
		on_gpu_release(g);
		ws_stream_free(g->gpu, g->stream);
		ws_compute_close(g->compute);
	}
	ws_gpu_close(g->gpu);
	ws_cuda_close(g->cuda);
}

ws_devptr on_gpu_new(struct on_gpu *g, size_t bytes)
{
	assert_true(g->n_arrays < ON_GPU_ARRAYS);
	ON_GPU(ws_gpu_alloc(g->gpu, bytes ? bytes : 1, &g->arrays[g->n_arrays], &err));
	return g->arrays[g->n_arrays++];
}

static void wait_for_it(struct on_gpu *g)
{
	ON_GPU(ws_stream_wait(g->gpu, g->stream, ws_deadline_in(60 * WS_NS_PER_S), NULL, &err));
}

ws_devptr on_gpu_put(struct on_gpu *g, const void *src, size_t bytes)
{
	const ws_devptr p = on_gpu_new(g, bytes);
	ON_GPU(ws_gpu_copy_in(g->gpu, p, src, bytes, g->stream, &err));
	wait_for_it(g);
	return p;
}

void on_gpu_get(struct on_gpu *g, void *dst, ws_devptr src, size_t bytes)
{
	ON_GPU(ws_gpu_copy_out(g->gpu, dst, src, bytes, g->stream, &err));
	wait_for_it(g);
}

void on_gpu_release(struct on_gpu *g)
{
	while (g->n_arrays > 0)
		ws_gpu_free(g->gpu, g->arrays[--g->n_arrays]);
}

ws_devptr on_gpu_record(struct on_gpu *g)
{
	const ws_devptr record = on_gpu_new(g, WS_RECORD_BYTES);
	ON_GPU(ws_record_clear(g->compute, record, g->stream, &err));
	return record;
}

struct ws_record on_gpu_read_record(struct on_gpu *g, ws_devptr record, int64_t cols)
{
	char bytes[WS_RECORD_BYTES];
	struct ws_record r;
	on_gpu_get(g, bytes, record, sizeof bytes);
	ws_record_read(bytes, cols, &r);
	return r;
}
