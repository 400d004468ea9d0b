/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes brought out of a GPU by the endpoint's outlet, on the double of libcuda: all of them,
 * and what becomes of the outlet when its GPU does not get done. */
#include "on_gpu.h"

#include "serve_gpu.h"
#include "test.h"

enum { BYTES = 9 << 20 }; /* three pieces */

static const struct fake_cuda *cuda;
static struct on_gpu gpu;
static struct ws_serve_outlet *outlet;
static ws_devptr there;
static uint8_t *bytes, *back;

static int begin(void **state)
{
	(void)state;
	struct ws_err err = WS_ERR_INIT;
	bytes = malloc(BYTES);
	back = calloc(1, BYTES);
	for (size_t i = 0; i < BYTES; i++)
		bytes[i] = (uint8_t)(i * 31 + (i >> 16));
	return ws_gpu_alloc(gpu.gpu, BYTES, &there, &err) ||
	       ws_gpu_copy_in(gpu.gpu, there, bytes, BYTES, gpu.stream, &err) ||
	       ws_stream_wait(gpu.gpu, gpu.stream, WS_FOREVER, NULL, &err) ||
	       ws_serve_outlet_open(gpu.gpu, &outlet, &err) ? -1 : 0;
}

static int end(void **state)
{
	(void)state;
	ws_serve_outlet_close(outlet);
	ws_gpu_free(gpu.gpu, there);
	free(bytes);
	free(back);
	return 0;
}

static int bring(ws_deadline until, struct ws_err *err)
{
	const struct ws_gloo_sink sink = { .length = BYTES, .dst = back };
	return ws_serve_outlet_run(outlet, there, &sink, until, NULL, err);
}

TEST_BETWEEN(every_byte_is_brought_out, begin, end)
{
	ON_GPU(bring(WS_FOREVER, &err));
	assert_memory_equal(back, bytes, BYTES);
}

TEST_BETWEEN(a_gpu_that_is_stuck_holds_nobody_up, begin, end)
{
	struct ws_err told = WS_ERR_INIT;
	const int64_t begun = ws_now_ns();
	cuda->busy(~0u);
	assert_fails(bring(ws_deadline_in(WS_NS_PER_S / 10), &told), &told, WS_ETIMEOUT, "");
	/* its memory is not its own yet */
	assert_fails(bring(ws_deadline_in(WS_NS_PER_S / 10), &told), &told, WS_EDEVICE,
	             "still busy");
	assert_true(ws_now_ns() - begun < 6 * WS_NS_PER_S);
	cuda->busy(0);
	every_byte_is_brought_out(NULL);
}

int main(void)
{
	cuda = on_gpu_double();
	if (!cuda || !on_gpu_open(&gpu))
		return 0;
	const int rc = run_listed(NULL, NULL);
	on_gpu_close(&gpu);
	return rc;
}
