/* SPDX-License-Identifier: Apache-2.0 */
/* The largest magnitude of boxes on a GPU against loops over one element at a time. */
#include "on_gpu.h"
#include "hard.h"
#include "test.h"

static struct on_gpu gpu;

enum { SPACE = 1 << 18 };
static uint8_t source[SPACE];
static ws_devptr space;

static uint32_t element(const struct ws_largest_job *j, int64_t at)
{
	uint32_t x = 0;
	memcpy(&x, source + ((size_t)at * j->size), j->size);
	return x & j->mask;
}

static uint32_t look_slowly(const struct ws_largest_job *j, unsigned d, int64_t at)
{
	if (d == j->n_dims)
		return element(j, at);
	uint32_t most = 0;
	for (int64_t i = 0; i < j->dims[d]; i++) {
		const uint32_t one = look_slowly(j, d + 1, at + i * j->read[d]);
		most = one > most ? one : most;
	}
	return most;
}

static uint32_t look(struct ws_largest_job job)
{
	uint32_t found = 0;
	const int64_t at = (int64_t)job.src;
	const uint32_t want = look_slowly(&job, 0, at);
	job.found = on_gpu_put(&gpu, &found, sizeof found);
	job.src = space + (uint64_t)at * job.size;
	ON_GPU(ws_compute_largest(gpu.compute, &job, gpu.stream, &err));
	on_gpu_get(&gpu, &found, job.found, sizeof found);
	assert_int_equal(found, want);
	ws_gpu_free(gpu.gpu, gpu.arrays[--gpu.n_arrays]);
	return found;
}

static const uint32_t masks[5] = { 0, 0x7f, 0x7fff, 0, 0x7fffffff };

/* src: elements. */
static struct ws_largest_job job_of(unsigned size, int64_t at, int64_t rows, int64_t cols,
                                    int64_t stride)
{
	return (struct ws_largest_job){ .src = (uint64_t)at, .size = size, .mask = masks[size],
		                        .n_dims = 2, .dims = { rows, cols },
		                        .read = { stride, 1 } };
}

static int begin(void **state)
{
	(void)state;
	for (size_t i = 0; i < SPACE; i++)
		source[i] = (uint8_t)hard_next();
	/* Few are large, so that each of them decides. */
	for (size_t i = 0; i < SPACE; i++)
		source[i] &= i % 4 == 3 ? 0xbf : hard_next() % 64 ? 0x0f : 0x7f;
	space = on_gpu_put(&gpu, source, SPACE);
	return 0;
}

static int end(void **state)
{
	(void)state;
	on_gpu_release(&gpu);
	return 0;
}

#define ON_SPACE(test) TEST_BETWEEN(test, begin, end)

ON_SPACE(rows_of_any_length)
{
	static const int64_t shapes[][3] = { { 1, 1, 1 },         { 1, 7, 7 },
		                             { 1, 32767, 32767 }, { 1, 32769, 32769 },
		                             { 3, 9000, 9001 },   { 40, 1000, 1024 },
		                             { 100, 255, 300 },   { 3000, 5, 17 },
		                             { 9000, 1, 3 },      { 2, 1, 7 } };
	for (unsigned size = 1; size <= 4; size *= 2)
		for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
			for (int64_t at = 0; at < 20; at += 1 + (int64_t)(hard_next() % 5))
				look(job_of(size, at, shapes[i][0], shapes[i][1], shapes[i][2]));
}

ON_SPACE(boxes_in_any_order)
{
	for (unsigned size = 1; size <= 4; size *= 2) {
		struct ws_largest_job turned = { .src = 5, .size = size, .mask = masks[size],
			                         .n_dims = 2, .dims = { 200, 150 },
			                         .read = { 1, 200 } };
		struct ws_largest_job apart = { .src = 2, .size = size, .mask = masks[size],
			                        .n_dims = 4, .dims = { 3, 1, 7, 50 },
			                        .read = { 3000, 9, 2, 16 } };
		struct ws_largest_job three = { .src = 1, .size = size, .mask = masks[size],
			                        .n_dims = 3, .dims = { 5, 6, 70 },
			                        .read = { 5000, 500, 1 } };
		struct ws_largest_job one = { .src = 77, .size = size, .mask = masks[size] };
		look(turned);
		look(apart);
		look(three);
		look(one);
	}
}

/* Wherever it is: in a head, among vectors, in a tail, at the edge of a chunk; and
 * never what is beside the box. */
ON_SPACE(one_that_is_larger_is_found_and_none_beside)
{
	enum { COLS = 20000, ROWS = 3, STRIDE = 20011, AT = 3 };
	const uint16_t nan = 0xffff;
	static const int64_t places[] = {
		0, 1, 4, 5, 6, 12, 13, 16383, 16384, 16385, COLS - 2, COLS - 1, COLS, STRIDE - 1
	};
	for (size_t i = 0; i < sizeof places / sizeof places[0]; i++)
		for (int64_t row = 0; row < ROWS; row++) {
			const uint64_t at = (uint64_t)(AT + row * STRIDE + places[i]) * sizeof nan;
			uint16_t kept;
			memcpy(&kept, source + at, sizeof kept);
			memcpy(source + at, &nan, sizeof nan);
			ON_GPU(ws_gpu_copy_in(gpu.gpu, space + at, &nan, sizeof nan, gpu.stream,
			                      &err));
			const uint32_t found = look(job_of(2, AT, ROWS, COLS, STRIDE));
			assert_int_equal(found == 0x7fff, places[i] < COLS);
			memcpy(source + at, &kept, sizeof kept);
			ON_GPU(ws_gpu_copy_in(gpu.gpu, space + at, &kept, sizeof kept, gpu.stream,
			                      &err));
		}
}

ON_SPACE(a_record_is_only_raised)
{
	uint32_t found = 0x7f800001;
	struct ws_largest_job job = job_of(4, 0, 1, 1000, 1000);
	job.src = space;
	job.found = on_gpu_put(&gpu, &found, sizeof found);
	ON_GPU(ws_compute_largest(gpu.compute, &job, gpu.stream, &err));
	on_gpu_get(&gpu, &found, job.found, sizeof found);
	assert_int_equal(found, 0x7f800001);
}

RUN_ON_GPU(gpu)
