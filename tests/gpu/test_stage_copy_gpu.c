/* SPDX-License-Identifier: Apache-2.0 */
/* What is on the GPU already is copied from where it is, between bytes that are read or made; on
 * the double of libcuda, or where WSYNC_TEST_CUDA names the driver, on a GPU. */
#include "on_gpu.h"

#include "gpu_stage.h"
#include "staging_ring.h"
#include "test.h"

enum { PIECE = WS_RING_SLOT + 4097, PIECES = 5, SMALL = 77 };

static struct on_gpu on;
static const struct fake_cuda *fake; /* NULL: it is a GPU */

/* One span's bytes: on this GPU, on another, or nowhere but here. */
static struct piece {
	uint8_t bytes[PIECE];
	ws_devptr at;
	uint8_t gpu[16];
	unsigned filled, placed;
} pieces[PIECES];

static int fill(void *ctx, uint64_t at, void *dst, size_t n, struct ws_err *err)
{
	struct piece *p = ctx;
	(void)err;
	p->filled++;
	memcpy(dst, p->bytes + at, n);
	return 0;
}

static int place(void *ctx, struct ws_gpu_address *out, struct ws_err *err)
{
	struct piece *p = ctx;
	if (p->placed++ == 0 && !p->at)
		return ws_err_set(err, WS_EINPUT, "it is gone");
	memcpy(out->gpu, p->gpu, sizeof out->gpu);
	out->at = p->at;
	return 0;
}

/* Made, here, elsewhere, here, made; each of a length that fills no slot evenly. */
static size_t make_spans(struct ws_span spans[PIECES])
{
	static const size_t lengths[PIECES] = { SMALL, PIECE, PIECE, 1, SMALL };
	size_t length = 0;
	for (size_t i = 0; i < PIECES; i++) {
		struct piece *p = &pieces[i];
		for (size_t k = 0; k < lengths[i]; k++)
			p->bytes[k] = (uint8_t)(k * 31 + k / 251 + i);
		p->filled = p->placed = 0;
		p->at = i == 1 || i == 3 ? on_gpu_put(&on, p->bytes, lengths[i]) : 1;
		memcpy(p->gpu, ws_gpu_device(on.gpu)->uuid, sizeof p->gpu);
		p->gpu[15] = (uint8_t)(p->gpu[15] + (i == 2));
		spans[i] = (struct ws_span){ .length = lengths[i],
			                     .fd = -1,
			                     .fill = fill,
			                     .ctx = p,
			                     .gpu_address = i == 0 || i == 4 ? NULL : place };
		length += lengths[i];
	}
	return length;
}

TEST(each_span_comes_from_where_it_is)
{
	struct ws_gpu_stage stage;
	struct ws_span spans[PIECES];
	const size_t length = make_spans(spans);
	const struct ws_payload payload = { length, spans, PIECES };
	uint8_t *got = malloc(length), *at = got;
	ON_GPU(ws_gpu_stage_open(&stage, on.gpu, &err));
	struct ws_staging_buffer *box = ws_gpu_stage_buffer(&stage, &payload, 1);
	ON_GPU(ws_gpu_stage_load(&stage, box, ws_deadline_in(20 * WS_NS_PER_S), NULL, &err));
	ON_GPU(ws_stream_wait(on.gpu, stage.stream, ws_deadline_in(20 * WS_NS_PER_S), NULL, &err));
	on_gpu_get(&on, got, box->at, length);
	for (size_t i = 0; i < PIECES; at += spans[i++].length)
		assert_memory_equal(at, pieces[i].bytes, spans[i].length);
	assert_int_equal(pieces[1].filled + pieces[3].filled, 0);
	assert_int_equal(pieces[1].placed, 1);
	assert_true(pieces[0].filled && pieces[2].filled && pieces[4].filled);
	ws_gpu_stage_close(&stage);
	free(got);
	on_gpu_release(&on);
}

TEST(a_place_that_is_gone_ends_the_load)
{
	struct ws_gpu_stage stage;
	struct ws_span spans[PIECES];
	const struct ws_payload payload = { make_spans(spans), spans, PIECES };
	struct ws_err told = WS_ERR_INIT;
	pieces[1].at = 0;
	ON_GPU(ws_gpu_stage_open(&stage, on.gpu, &err));
	assert_fails_with(ws_gpu_stage_load(&stage, ws_gpu_stage_buffer(&stage, &payload, 1),
	                                    WS_FOREVER, NULL, &told),
	                  &told, WS_EINPUT, "it is gone");
	ws_gpu_stage_close(&stage);
	on_gpu_release(&on);
}

/* What lies here was copied from, as late as a driver may, when the next place was
 * gone: its owner may take it. */
TEST(nothing_is_read_after_a_failure)
{
	struct ws_gpu_stage stage;
	struct ws_span spans[PIECES];
	struct ws_err told = WS_ERR_INIT;
	if (!fake)
		skip();
	const struct ws_payload payload = { make_spans(spans), spans, PIECES };
	pieces[3].at = 0;
	ON_GPU(ws_gpu_stage_open(&stage, on.gpu, &err));
	fake->defer(true);
	assert_fails_with(ws_gpu_stage_load(&stage, ws_gpu_stage_buffer(&stage, &payload, 1),
	                                    WS_FOREVER, NULL, &told),
	                  &told, WS_EINPUT, "it is gone");
	ws_gpu_free(on.gpu, on.arrays[0]); /* that of pieces[1] */
	on.arrays[0] = 0;
	on_gpu_release(&on);
	assert_string_equal(fake->mistake(), "");
	ws_gpu_stage_close(&stage);
	fake->defer(false);
}

RUN_ON_GPU(on, fake = on.is_double ? on_gpu_double() : NULL)
