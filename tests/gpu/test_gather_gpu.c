/* SPDX-License-Identifier: Apache-2.0 */
/* Boxes and buckets put together on a GPU against loops that move one element at a time. */
#include "on_gpu.h"
#include "hard.h"

#include "test.h"

static struct on_gpu gpu;

enum { SPACE = 1 << 18 }; /* bytes on either side */
static uint8_t source[SPACE], want[SPACE], got[SPACE];

static void move_slowly(const struct ws_gather_job *j, unsigned d, int64_t read, int64_t write)
{
	if (d == j->n_dims) {
		memcpy(want + (size_t)write * j->size, source + (size_t)read * j->size, j->size);
		return;
	}
	for (int64_t i = 0; i < j->dims[d]; i++)
		move_slowly(j, d + 1, read + i * j->read[d], write + i * j->write[d]);
}

/* Up to the end of the last element that is read or written. */
static size_t extent(const struct ws_gather_job *j, int64_t first, const int64_t *strides)
{
	for (unsigned d = 0; d < j->n_dims; d++)
		first += (j->dims[d] - 1) * strides[d];
	return (size_t)(first + 1) * j->size;
}

/* src and dst of the job are offsets in elements. Nothing lies behind either side's last
 * element. */
static void compare(struct ws_gather_job job)
{
	const size_t n_read = extent(&job, (int64_t)job.src, job.read);
	const size_t n_written = extent(&job, (int64_t)job.dst, job.write);
	for (size_t i = 0; i < SPACE; i++)
		source[i] = (uint8_t)hard_next();
	memset(want, 0x77, sizeof want);
	move_slowly(&job, 0, (int64_t)job.src, (int64_t)job.dst);
	memset(got, 0x77, sizeof got);
	const ws_devptr dst = on_gpu_put(&gpu, got, n_written);
	job.src = on_gpu_put(&gpu, source, n_read) + job.src * job.size;
	job.dst = dst + job.dst * job.size;
	ON_GPU(ws_compute_gather(gpu.compute, &job, gpu.stream, &err));
	on_gpu_get(&gpu, got, dst, n_written);
	assert_memory_equal(got, want, SPACE);
	on_gpu_release(&gpu);
}

TEST(slices_of_rows_and_columns)
{
	for (unsigned size = 1; size <= 8; size *= 2) {
		compare((struct ws_gather_job){
			16, 32, size, 2, { 100, 64 }, { 256, 1 }, { 64, 1 } });
		compare((struct ws_gather_job){
			3, 5, size, 2, { 100, 63 }, { 257, 1 }, { 65, 1 } });
		compare((struct ws_gather_job){ 0, 1, size, 1, { 30000 }, { 1 }, { 1 } });
		compare((struct ws_gather_job){ 7, 0, size, 1, { 100 }, { 3 }, { 2 } });
		compare((struct ws_gather_job){ 7, 9, size, 0, { 0 }, { 0 }, { 0 } });
	}
}

TEST(transposes)
{
	for (unsigned size = 1; size <= 8; size *= 2) {
		compare((struct ws_gather_job){
			0, 0, size, 2, { 128, 192 }, { 1, 128 }, { 192, 1 } });
		compare((struct ws_gather_job){
			5, 3, size, 2, { 70, 101 }, { 1, 75 }, { 103, 1 } });
		/* experts, each turned */
		compare((struct ws_gather_job){
			0, 9, size, 3, { 5, 66, 40 }, { 66 * 40, 1, 66 }, { 2700, 40, 1 } });
		/* in the middle of four axes */
		compare((struct ws_gather_job){ 2,
		                                1,
		                                size,
		                                4,
		                                { 3, 12, 5, 20 },
		                                { 1200, 1, 240, 12 },
		                                { 1300, 100, 20, 1 } });
		/* too narrow for tiles */
		compare((struct ws_gather_job){
			0, 0, size, 2, { 1000, 3 }, { 1, 1000 }, { 3, 1 } });
	}
}

/* Any order of the axes on either side. */
TEST(random_boxes)
{
	for (int round = 0; round < 60; round++) {
		struct ws_gather_job j = { .size = 1u << hard_next() % 4,
			                   .n_dims = 1 + hard_next() % 5 };
		unsigned order[2][8] = { { 0 } };
		j.src = hard_next() % 9;
		j.dst = hard_next() % 9;
		for (unsigned d = 0; d < j.n_dims; d++) {
			j.dims[d] = 1 + hard_next() % 8;
			for (int k = 0; k < 2; k++) {
				const unsigned at = hard_next() % (d + 1);
				order[k][d] = order[k][at];
				order[k][at] = d;
			}
		}
		for (int k = 0; k < 2; k++) {
			int64_t stride = 1 + (hard_next() % 4 == 0);
			for (unsigned i = 0; i < j.n_dims; i++) {
				(k ? j.write : j.read)[order[k][i]] = stride;
				stride *= j.dims[order[k][i]];
				if (stride < 2000)
					stride += hard_next() % 3;
			}
		}
		compare(j);
	}
}

RUN_ON_GPU(gpu)
