/* SPDX-License-Identifier: Apache-2.0 */
/* Staging gathers views of tensors that are on the GPU: random ones, whole and any range of
 * them, against one element at a time; where they cannot be, their fill is asked. On the double
 * of libcuda, or where WSYNC_TEST_CUDA names the driver, on a GPU. */
#include "on_gpu.h"
#include "hard.h"

#include "gpu_stage.h"
#include "gpu_stage_steps.h"
#include "test.h"

enum { TENSORS = 3, SPACE = 1 << 17, BOXES = 4, SPANS = 12 };

static struct on_gpu on;
static const struct fake_cuda *fake; /* NULL: it is a GPU */

/* Memory of somebody else, of which boxes are taken. */
static struct tensor {
	uint8_t bytes[SPACE];
	ws_devptr at;
	uint8_t gpu[16];
	bool gone;
} tensors[TENSORS];

static int place(void *ctx, struct ws_gpu_address *out, struct ws_err *err)
{
	const struct tensor *t = ctx;
	if (t->gone)
		return ws_err_set(err, WS_EINPUT, "it is gone");
	memcpy(out->gpu, t->gpu, sizeof out->gpu);
	out->at = t->at;
	return 0;
}

static struct view {
	struct ws_strided boxes[BOXES];
	size_t n;
	uint64_t bytes;
	uint8_t want[SPACE];
	unsigned filled;
} views[SPANS];

static int fill(void *ctx, uint64_t at, void *dst, size_t n, struct ws_err *err)
{
	struct view *v = ctx;
	(void)err;
	v->filled++;
	memcpy(dst, v->want + at, n);
	return 0;
}

static int64_t pick(int64_t n)
{
	return (int64_t)(hard_next() % (uint64_t)n);
}

/* ---- views ---- */

static void take_slowly(const struct ws_strided *b, unsigned d, uint64_t read, uint64_t write,
                        uint8_t *out)
{
	if (d == b->n_dims) {
		memcpy(out + write, ((const struct tensor *)b->ctx)->bytes + read, b->size);
		return;
	}
	for (int64_t i = 0; i < b->dims[d]; i++)
		take_slowly(b, d + 1, read + (uint64_t)(i * b->read[d]) * b->size,
		            write + (uint64_t)(i * b->write[d]) * b->size, out);
}

/* A source that is a dense tensor, some axes of which are wider than the box, in any order. */
static void set_strides(struct ws_strided *b)
{
	unsigned order[WS_STRIDED_DIMS];
	int64_t step = 1 + (pick(4) == 0);
	for (unsigned d = 0; d < b->n_dims; d++) {
		const unsigned k = (unsigned)pick(d + 1);
		order[d] = order[k];
		order[k] = d;
	}
	for (unsigned i = b->n_dims; i-- > 0;) {
		b->read[order[i]] = step;
		step *= b->dims[order[i]] + pick(3);
	}
	b->at = (uint64_t)pick(9) * b->size;
}

/* Pieces beside each other along one axis. */
static void make_view(struct view *v, unsigned size, struct tensor *of)
{
	const unsigned n_dims = 1 + (unsigned)pick(4), axis = (unsigned)pick(n_dims);
	int64_t dims[4], step = 1;
	v->n = 1 + (size_t)pick(BOXES);
	v->filled = 0;
	for (unsigned d = 0; d < n_dims; d++)
		dims[d] = 1 + pick(n_dims == 1 ? 900 : n_dims == 2 ? 40 : 7);
	dims[axis] = 0;
	for (size_t i = 0; i < v->n; i++) {
		struct ws_strided *b = &v->boxes[i];
		*b = (struct ws_strided){ .gpu_address = place,
			                  .ctx = of ? of : &tensors[pick(TENSORS)],
			                  .size = size,
			                  .n_dims = n_dims };
		memcpy(b->dims, dims, sizeof dims);
		b->dims[axis] = 1 + pick(n_dims == 1 ? 900 : 20);
		set_strides(b);
		dims[axis] += b->dims[axis];
	}
	for (unsigned d = n_dims; d-- > 0; step *= dims[d])
		for (size_t i = 0; i < v->n; i++)
			v->boxes[i].write[d] = step;
	uint64_t to = 0;
	for (size_t i = 0; i < v->n; i++) {
		struct ws_strided *b = &v->boxes[i];
		b->to = to;
		to += (uint64_t)(b->dims[axis] * b->write[axis]) * size;
		take_slowly(b, 0, b->at, b->to, v->want);
	}
	v->bytes = (uint64_t)step * size;
	assert_true(v->bytes <= SPACE);
}

static struct ws_span span_of(struct view *v)
{
	return (struct ws_span){ .length = v->bytes,
		                 .fd = -1,
		                 .fill = fill,
		                 .ctx = v,
		                 .strided = v->boxes,
		                 .n_strided = v->n };
}

static int begin(void **state)
{
	(void)state;
	for (int i = 0; i < TENSORS; i++) {
		struct tensor *t = &tensors[i];
		for (size_t k = 0; k < SPACE; k++)
			t->bytes[k] = (uint8_t)hard_next();
		t->at = on_gpu_put(&on, t->bytes, SPACE);
		memcpy(t->gpu, ws_gpu_device(on.gpu)->uuid, sizeof t->gpu);
		t->gone = false;
	}
	return 0;
}

static int end(void **state)
{
	(void)state;
	if (fake)
		fake->reset();
	on_gpu_release(&on);
	return 0;
}

#define ON_MEMORY(test) TEST_BETWEEN(test, begin, end)

/* ---- ranges ---- */

struct parts {
	uint64_t from, n;
	uint8_t got[SPACE], times[SPACE];
	unsigned calls;
};

static void count_bytes(const struct ws_strided *b, unsigned d, uint64_t write, uint8_t *times)
{
	if (d == b->n_dims)
		for (unsigned k = 0; k < b->size; k++)
			times[write + k]++;
	else
		for (int64_t i = 0; i < b->dims[d]; i++)
			count_bytes(b, d + 1, write + (uint64_t)(i * b->write[d]) * b->size, times);
}

static int take_part(void *ctx, const struct ws_strided *b, struct ws_err *err)
{
	struct parts *p = ctx;
	(void)err;
	p->calls++;
	take_slowly(b, 0, b->at, b->to, p->got);
	count_bytes(b, 0, b->to, p->times);
	return 0;
}

ON_MEMORY(any_range_of_a_view_is_cut_into_few_boxes)
{
	static struct parts p;
	for (int i = 0; i < 2000; i++) {
		struct view *v = &views[0];
		const unsigned size = 1u << pick(4);
		make_view(v, size, NULL);
		memset(&p, 0, sizeof p);
		p.from = (uint64_t)pick((int64_t)(v->bytes / size)) * size;
		p.n = (1 + (uint64_t)pick((int64_t)((v->bytes - p.from) / size))) * size;
		for (size_t k = 0; k < v->n; k++)
			ON_GPU(ws_strided_cut(&v->boxes[k], p.from, p.n, take_part, &p, &err));
		for (uint64_t k = 0; k < v->bytes; k++)
			if (p.times[k] != (k >= p.from && k - p.from < p.n))
				fail_msg("view %d: byte %d is taken %d times", i, (int)k,
				         p.times[k]);
		assert_memory_equal(p.got + p.from, v->want + p.from, p.n);
		assert_true(p.calls <= v->n * 2 * 4);
	}
}

/* ---- staging ---- */

/* Views of falling sizes of elements, as buckets have them. */
static uint64_t make_spans(struct ws_span spans[SPANS])
{
	uint64_t length = 0;
	for (unsigned i = 0; i < SPANS; i++) {
		make_view(&views[i], 8u >> (i / 3), NULL);
		spans[i] = span_of(&views[i]);
		length += spans[i].length;
	}
	return length;
}

static int load(struct ws_gpu_stage *stage, const struct ws_payload *p, uint8_t *got,
                struct ws_err *err)
{
	struct ws_staging_buffer *box = ws_gpu_stage_buffer(stage, p, 1);
	if (ws_gpu_stage_load(stage, box, ws_deadline_in(20 * WS_NS_PER_S), NULL, err) ||
	    ws_stream_wait(on.gpu, stage->stream, ws_deadline_in(20 * WS_NS_PER_S), NULL, err))
		return -1;
	on_gpu_get(&on, got, box->at, p->length);
	ws_gpu_stage_release(box);
	return 0;
}

static void assert_spans(const uint8_t *got, const struct ws_span *spans, bool filled)
{
	for (size_t i = 0; i < SPANS; got += spans[i++].length) {
		assert_memory_equal(got, views[i].want, spans[i].length);
		assert_int_equal(views[i].filled > 0, filled);
	}
}

ON_MEMORY(views_are_gathered_where_they_are)
{
	struct ws_span spans[SPANS];
	uint8_t *got = malloc(SPANS * SPACE);
	for (int i = 0; i < 20; i++) {
		struct ws_gpu_stage stage;
		const struct ws_payload payload = { make_spans(spans), spans, SPANS };
		if (fake)
			fake->defer(i % 2);
		ON_GPU(ws_gpu_stage_open(&stage, on.gpu, &err));
		ON_GPU(load(&stage, &payload, got, &err));
		assert_spans(got, spans, false);
		ws_gpu_stage_close(&stage);
	}
	free(got);
}

/* On another GPU; at a place where no kernel can take numbers from or put them to;
 * on a GPU without kernels. */
ON_MEMORY(what_cannot_be_is_filled)
{
	struct ws_span spans[SPANS];
	uint8_t *got = malloc(SPANS * SPACE);
	for (int i = 0; i < 4; i++) {
		struct ws_gpu_stage stage;
		struct ws_payload payload = { make_spans(spans), spans, SPANS };
		if (i == 3 && !fake)
			break;
		for (size_t k = 0; k < TENSORS; k++) {
			tensors[k].gpu[3] ^= i == 0;
			tensors[k].at += i == 1;
		}
		const struct ws_span odd[2] = {
			{ .length = 1, .fd = -1, .fill = fill, .ctx = &views[11] }, spans[0]
		};
		if (i == 2)
			payload = (struct ws_payload){ 1 + spans[0].length, odd, 2 };
		if (i == 3)
			fake->refuse("cuModuleLoadData", 0, 209);
		/* which may lie anywhere */
		while (i == 1 && spans[payload.n_spans - 1].strided[0].size == 1)
			payload.length -= spans[--payload.n_spans].length;
		ON_GPU(ws_gpu_stage_open(&stage, on.gpu, &err));
		ON_GPU(load(&stage, &payload, got, &err));
		const uint8_t *at = got;
		for (size_t k = 0; k < payload.n_spans; at += payload.spans[k++].length) {
			const struct view *v = payload.spans[k].ctx;
			assert_memory_equal(at, v->want, payload.spans[k].length);
			assert_true(v->filled > 0);
		}
		ws_gpu_stage_close(&stage);
		if (fake)
			fake->reset();
		for (size_t k = 0; k < TENSORS; k++) {
			tensors[k].gpu[3] ^= i == 0;
			tensors[k].at -= i == 1;
		}
	}
	free(got);
}

ON_MEMORY(a_place_that_is_gone_ends_the_load)
{
	struct ws_gpu_stage stage;
	struct ws_span spans[SPANS];
	struct ws_err told = WS_ERR_INIT;
	const struct ws_payload payload = { make_spans(spans), spans, SPANS };
	((struct tensor *)spans[5].strided[0].ctx)->gone = true;
	ON_GPU(ws_gpu_stage_open(&stage, on.gpu, &err));
	assert_fails_with(ws_gpu_stage_load(&stage, ws_gpu_stage_buffer(&stage, &payload, 1),
	                                    WS_FOREVER, NULL, &told),
	                  &told, WS_EINPUT, "it is gone");
	ws_gpu_stage_close(&stage);
}

ON_MEMORY(every_call_of_the_driver_may_fail)
{
	struct ws_span spans[SPANS];
	uint8_t *got = malloc(SPANS * SPACE);
	const struct ws_payload payload = { make_spans(spans), spans, SPANS };
	unsigned n = 0;
	for (int rc = fake ? -1 : 0; rc; n++) {
		struct ws_gpu_stage stage;
		struct ws_err told = WS_ERR_INIT;
		fake->reset();
		fake->refuse("", n, 700);
		rc = ws_gpu_stage_open(&stage, on.gpu, &told);
		if (rc == 0) {
			struct ws_staging_buffer *box = ws_gpu_stage_buffer(&stage, &payload, 1);
			rc = ws_gpu_stage_load(&stage, box, ws_deadline_in(20 * WS_NS_PER_S), NULL,
			                       &told);
			fake->reset();
			if (rc == 0)
				on_gpu_get(&on, got, box->at, payload.length);
		}
		assert_int_equal(told.code, rc ? WS_EDEVICE : WS_OK);
		ws_gpu_stage_close(&stage);
	}
	if (fake)
		assert_spans(got, spans, false);
	free(got);
}

RUN_ON_GPU(on, fake = on.is_double ? on_gpu_double() : NULL)
