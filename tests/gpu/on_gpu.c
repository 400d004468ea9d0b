/* SPDX-License-Identifier: Apache-2.0 */
#include "on_gpu.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* A library next to the test program. */
static const char *beside_us(char path[ON_GPU_PATH], const char *name)
{
	const ssize_t n = readlink("/proc/self/exe", path, ON_GPU_PATH - 32);
	if (n <= 0)
		return "";
	path[n] = '\0';
	strcpy(strrchr(path, '/') + 1, name);
	return path;
}

const char *on_gpu_library(void)
{
	static char path[ON_GPU_PATH];
	const char *named = getenv("WSYNC_TEST_CUDA");
	return named && *named ? named : beside_us(path, "fake_cuda.so");
}

static bool is_double(const char *library)
{
	return strstr(library, "fake_cuda") != NULL;
}

static const void *find(const char *library, const char *symbol)
{
	void *it = dlopen(library, RTLD_NOW | RTLD_LOCAL);
	const void *found = it ? dlsym(it, symbol) : NULL;
	if (!found)
		printf("1..1\nnot ok 1 - there is a %s\n# %s\n", symbol, dlerror());
	return found;
}

const struct fake_cuda *on_gpu_double(void)
{
	if (!ws_cuda_built()) {
		printf("1..0 # SKIP this wsync was built without CUDA\n");
		return NULL;
	}
	if (!is_double(on_gpu_library()))
		unsetenv("WSYNC_TEST_CUDA");
	return find(on_gpu_library(), "fake_cuda");
}

const struct fake_nccl *on_gpu_double_of_nccl(char path[ON_GPU_PATH])
{
	return find(beside_us(path, "fake_nccl.so"), "fake_nccl");
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
	return !ws_gpu_open(g->cuda, 0, &g->gpu, err) &&
	       !ws_compute_open(g->gpu, &g->compute, err) &&
	       !ws_stream_new(g->gpu, &g->stream, err);
}

/* A driver that is there and has a GPU must work: only their absence is a reason to skip. */
bool on_gpu_open(struct on_gpu *g)
{
	struct ws_err err = WS_ERR_INIT;
	*g = (struct on_gpu){ .is_double = is_double(on_gpu_library()) };
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
