/* SPDX-License-Identifier: Apache-2.0 */
/* on_gpu.h - what the tests of lib/gpu begin with: a GPU, or the double of one, and arrays on it.
 *
 * WSYNC_TEST_CUDA names the driver's library; without it the double next to the test program is
 * taken. A failing call ends the test. */
#ifndef TESTS_GPU_ON_GPU_H
#define TESTS_GPU_ON_GPU_H

#include "compute.h"

#include "fake_cuda.h"
#include "fake_nccl.h"

enum { ON_GPU_ARRAYS = 64, ON_GPU_PATH = 4096 };

struct on_gpu {
	struct ws_cuda *cuda;
	struct ws_gpu *gpu;
	struct ws_compute *compute;
	struct ws_stream *stream;
	bool is_double;
	ws_devptr arrays[ON_GPU_ARRAYS];
	int n_arrays;
};

const char *on_gpu_library(void);
/* The doubles themselves, for what no GPU can be told to do; a driver that
 * WSYNC_TEST_CUDA names is passed over. path: the double of NCCL's. NULL: there is none,
 * and a line of TAP has said so. */
const struct fake_cuda *on_gpu_double(void);
const struct fake_nccl *on_gpu_double_of_nccl(char path[ON_GPU_PATH]);

/* False: there is none, and a line of TAP has said so. */
bool on_gpu_open(struct on_gpu *g);
void on_gpu_close(struct on_gpu *g);

/* Arrays live until on_gpu_release. */
ws_devptr on_gpu_new(struct on_gpu *g, size_t bytes);
ws_devptr on_gpu_put(struct on_gpu *g, const void *src, size_t bytes);
void on_gpu_get(struct on_gpu *g, void *dst, ws_devptr src, size_t bytes);
void on_gpu_release(struct on_gpu *g);
ws_devptr on_gpu_record(struct on_gpu *g); /* cleared */
struct ws_record on_gpu_read_record(struct on_gpu *g, ws_devptr record, int64_t cols);

/* 0, or the test fails with the error's sentence. */
void on_gpu_check(int rc, const struct ws_err *err);
#define ON_GPU(call) \
	do { \
		struct ws_err err = WS_ERR_INIT; \
		on_gpu_check((call), &err); \
	} while (0)

/* The main of tests on a GPU or its double; what follows is done before them. */
#define RUN_ON_GPU(g, ...) \
	int main(void) \
	{ \
		if (!on_gpu_open(&g)) \
			return 0; \
		__VA_ARGS__; \
		const int rc = run_listed(NULL, NULL); \
		on_gpu_close(&g); \
		return rc; \
	}

#endif
