/* SPDX-License-Identifier: Apache-2.0 */
/* What stands for CUDA in a build without it: it says why there is none, wherever it is asked. */
#include "compute.h"
#include "test.h"

TEST(it_cannot_be_opened_and_says_how_to_get_it)
{
	static const struct ws_cuda_opts named = { .library = "/nowhere/libcuda.so.1" };
	const struct ws_cuda_opts *const opts[] = { NULL, &named };
	for (size_t i = 0; i < 2; i++) {
		struct ws_err told = WS_ERR_INIT;
		struct ws_cuda *cuda = NULL;
		assert_int_equal(ws_cuda_open(opts[i], &cuda, &told), -1);
		assert_null(cuda);
		assert_int_equal(told.code, WS_EDEVICE);
		assert_string_equal(told.msg, "this wsync was built without CUDA");
		assert_non_null(strstr(told.hint, "nvcc"));
		/* nobody needs to listen */
		assert_int_equal(ws_cuda_open(opts[i], &cuda, NULL), -1);
	}
}

TEST(whatever_is_asked_of_it_is_refused_alike)
{
	struct ws_err told = WS_ERR_INIT;
	struct ws_gpu *gpu = NULL;
	struct ws_cuda_device device;
	ws_devptr at = 0;
	void *pinned = NULL;
	assert_int_equal(ws_cuda_device(NULL, 0, &device, &told), -1);
	assert_int_equal(ws_gpu_open(NULL, 0, &gpu, &told), -1);
	assert_int_equal(ws_gpu_alloc(NULL, 1, &at, &told), -1);
	assert_int_equal(ws_gpu_alloc_pinned(NULL, 1, &pinned, &told), -1);
	assert_true(!gpu && !at && !pinned);
	assert_int_equal(told.code, WS_EDEVICE);
}

TEST(there_is_nothing_and_that_can_be_closed)
{
	size_t bytes = 7;
	assert_int_equal(ws_cuda_count(NULL), 0);
	assert_int_equal(ws_cuda_version(NULL), 0);
	assert_null(ws_cuda_image("fp8", &bytes));
	ws_compute_close(NULL);
	ws_stream_free(NULL, NULL);
	ws_gpu_event_free(NULL, NULL);
	ws_gpu_free(NULL, 0);
	ws_gpu_free_pinned(NULL, NULL);
	ws_gpu_close(NULL);
	ws_cuda_close(NULL);
}

int main(void)
{
	if (ws_cuda_built()) {
		printf("1..0 # SKIP this wsync was built with CUDA\n");
		return 0;
	}
	return run_listed(NULL, NULL);
}
