/* SPDX-License-Identifier: Apache-2.0 */
/* Views of random tensors, in random orders, against one element at a time. */
#include "view.h"

#include "strided_read.h"
#include "hash.h"
#include "payloads.h"
#include "scratch.h"
#include "test.h"

#include <unistd.h>

enum { FILE_BYTES = 24 << 20, MAX_PIECES = 5 };

static uint64_t seed;

static uint64_t random64(void)
{
	seed += UINT64_C(0x9e3779b97f4a7c15);
	uint64_t z = seed;
	z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
	return z ^ z >> 31;
}

static int64_t pick(int64_t n)
{
	return (int64_t)(random64() % (uint64_t)n);
}

/* ---- a source of random bytes; tensors are made up over it ---- */

static uint8_t *bytes; /* what the file holds */
static struct ws_source *source;

static void open_source(void)
{
	static const char path[] = "x.safetensors";
	const char *paths[] = { path };
	char header[128];
	struct ws_err err = WS_ERR_INIT;
	bytes = malloc(FILE_BYTES);
	assert_non_null(bytes);
	for (size_t i = 0; i < FILE_BYTES; i += 8) {
		const uint64_t word = random64();
		memcpy(bytes + i, &word, 8);
	}
	const int n = snprintf(header, sizeof header, "{\"x\":{\"dtype\":\"U8\",\"shape\":[%u],"
	                       "\"data_offsets\":[0,%u]}}", FILE_BYTES - 128, FILE_BYTES - 128);
	memset(bytes, ' ', 128);
	memset(bytes, 0, 8);
	bytes[0] = 120;
	memcpy(bytes + 8, header, (size_t)n);
	put_bytes(path, bytes, FILE_BYTES);
	assert_ok(ws_source_open(paths, 1, &source, &err), &err);
}

static void close_source(void)
{
	ws_source_close(source);
	free(bytes);
}

/* ---- random views ---- */

struct sample {
	struct ws_item item;
	struct ws_view view;
	struct ws_piece pieces[MAX_PIECES];
	struct ws_tensor tensors[MAX_PIECES];
	unsigned size;
};

/* A tensor that has the piece as a box of it, under a random order of axes; false: it is too
 * large. */
static bool make_piece(struct sample *s, size_t i)
{
	struct ws_piece *p = &s->pieces[i];
	struct ws_tensor *t = &s->tensors[i];
	unsigned order[WS_MAX_DIMS];
	const unsigned n = s->item.n_dims;
	int64_t stride = 1;
	for (unsigned d = 0; d < n; d++)
		order[d] = d;
	if (pick(2))
		for (unsigned d = n; d > 1; d--) {
			const unsigned k = (unsigned)pick(d), was = order[k];
			order[k] = order[d - 1];
			order[d - 1] = was;
		}
	p->source = source;
	p->from = t;
	p->at = 0;
	for (unsigned d = n; d-- > 0;) {
		const bool margin = pick(3) == 0;
		const int64_t before = margin ? pick(4) : 0, behind = margin ? pick(4) : 0;
		p->strides[order[d]] = stride;
		p->at += (uint64_t)(before * stride);
		t->dims[d] = before + p->dims[order[d]] + behind;
		stride *= t->dims[d];
	}
	*t = (struct ws_tensor){ .name = "x",
		                 .dtype = s->item.dtype,
		                 .bytes = (uint64_t)stride * s->size,
		                 .offset = 128 + (uint64_t)pick(9) };
	return t->bytes + t->offset <= FILE_BYTES;
}

static bool make_sample(struct sample *s, int64_t most_elements)
{
	static const enum ws_dtype dtypes[] = { WS_DTYPE_U8, WS_DTYPE_BF16, WS_DTYPE_F32,
		                                WS_DTYPE_I64 };
	*s = (struct sample){ .view.pieces = s->pieces };
	struct ws_item *item = &s->item;
	item->name = "x";
	item->dtype = dtypes[pick(4)];
	item->n_dims = (unsigned)pick(6);
	item->view = &s->view;
	s->size = ws_dtype_bits(item->dtype) / 8;
	const unsigned n = item->n_dims;
	s->view.axis = n ? (unsigned)pick(n) : 0;
	s->view.n_pieces = n ? 1 + (size_t)pick(MAX_PIECES) : 1;
	int64_t elements = 1;
	for (unsigned d = 0; d < n; d++) {
		const int64_t room = most_elements / elements / MAX_PIECES;
		item->dims[d] = 1 + pick(pick(3) || room < 1 ? 7 : room);
		elements *= item->dims[d];
	}
	if (n)
		item->dims[s->view.axis] = 0;
	for (size_t i = 0; i < s->view.n_pieces; i++) {
		struct ws_piece *p = &s->pieces[i];
		memcpy(p->dims, item->dims, sizeof p->dims);
		if (n) {
			p->dims[s->view.axis] = 1 + pick(pick(2) ? 5 : 1000);
			item->dims[s->view.axis] += p->dims[s->view.axis];
		}
		if (!make_piece(s, i))
			return false;
	}
	if (!ws_dtype_bytes(item->dtype, n, item->dims, &item->bytes))
		return false;
	s->view.n_dims = n;
	memcpy(s->view.dims, item->dims, sizeof s->view.dims);
	item->source = source;
	item->from = &s->tensors[0];
	return item->bytes <= (uint64_t)most_elements * 8;
}

/* The oracle: every element by its index. */
static uint8_t *by_element(const struct sample *s)
{
	const struct ws_item *item = &s->item;
	uint8_t *out = malloc(item->bytes), *to = out;
	int64_t index[WS_MAX_DIMS] = { 0 };
	assert_non_null(out);
	for (; to < out + item->bytes; to += s->size) {
		size_t piece = 0;
		int64_t before = 0;
		if (item->n_dims)
			for (; index[s->view.axis] >= before + s->pieces[piece].dims[s->view.axis];
			     piece++)
				before += s->pieces[piece].dims[s->view.axis];
		const struct ws_piece *p = &s->pieces[piece];
		uint64_t at = p->at;
		for (unsigned d = 0; d < item->n_dims; d++)
			at += (uint64_t)((index[d] - (d == s->view.axis ? before : 0)) *
			                 p->strides[d]);
		memcpy(to, bytes + p->from->offset + at * s->size, s->size);
		for (unsigned d = item->n_dims; d-- > 0;) {
			if (++index[d] < item->dims[d])
				break;
			index[d] = 0;
		}
	}
	return out;
}

/* ---- ways to read ---- */

static void check_reads(const struct sample *s, const uint8_t *want, uint8_t *got)
{
	struct ws_err err = WS_ERR_INIT;
	const uint64_t bytes_in_all = s->item.bytes;
	for (uint64_t at = 0, n; at < bytes_in_all; at += n) {
		n = 1 + (uint64_t)pick((int64_t)bytes_in_all);
		n = n < bytes_in_all - at ? n : bytes_in_all - at;
		assert_int_equal(ws_item_read(&s->item, at, got + at, n, &err), 0);
	}
	assert_memory_equal(got, want, bytes_in_all);
	for (int i = 0; i < 4; i++) {
		const uint64_t at = (uint64_t)pick((int64_t)bytes_in_all);
		const uint64_t n = (uint64_t)pick((int64_t)(bytes_in_all - at) + 1);
		assert_int_equal(ws_item_read(&s->item, at, got, n, &err), 0);
		assert_memory_equal(got, want + at, n);
	}
	uint64_t hash;
	assert_int_equal(ws_item_hash(&s->item, &hash, &err), 0);
	assert_true(hash == ws_hash64(want, bytes_in_all));
}

static void check_span(const struct ws_span *span, uint8_t *got)
{
	struct ws_err err = WS_ERR_INIT;
	if (span->fd >= 0) {
		assert_int_equal(pread(span->fd, got, span->length, (off_t)span->offset),
		                 span->length);
		return;
	}
	for (uint64_t at = 0, n; at < span->length; at += n) {
		n = span->length - at < 100001 ? span->length - at : 100001;
		assert_int_equal(span->fill(span->ctx, at, got + at, n, &err), 0);
	}
}

/* What a plan of two such tensors sends; the second time as well. */
static void check_payload(const struct sample *s, const uint8_t *want, uint8_t *got)
{
	struct ws_plan_tensor t[2] = { { .name = "x", .bytes = s->item.bytes, .item = &s->item } };
	t[1] = t[0];
	struct ws_plan_bucket bucket = { .n = 2 };
	struct ws_plan plan = { .tensors = t, .n_tensors = 2, .buckets = &bucket, .n_buckets = 1,
		                .format = (enum ws_load_format)pick(2) };
	struct ws_payload *payloads;
	size_t n;
	struct ws_err err = WS_ERR_INIT;
	assert_int_equal(ws_plan_payloads(&plan, 0, &payloads, &n, &err), 0);
	assert_int_equal(n, plan.format == WS_FORMAT_FLATTENED ? 1 : 2);
	uint64_t at = 0;
	for (size_t i = 0; i < n; i++) {
		uint64_t length = 0;
		for (size_t k = 0; k < payloads[i].n_spans; k++) {
			const struct ws_span *span = &payloads[i].spans[k];
			assert_true(span->length > 0);
			check_span(span, got + at + length);
			length += span->length;
		}
		assert_int_equal(length, payloads[i].length);
		at += length;
	}
	assert_int_equal(at, 2 * s->item.bytes);
	assert_memory_equal(got, want, s->item.bytes);
	assert_memory_equal(got + s->item.bytes, want, s->item.bytes);
	ws_plan_payloads_free(payloads, n);
}

static int count_runs(void *ctx, const struct ws_view_run *s)
{
	size_t *runs = ctx;
	runs[s->piece == NULL]++;
	if (s->piece && s->length < 4096)
		runs[2]++;
	return 0;
}

static void check_stretches(const struct sample *s)
{
	size_t runs[3] = { 0 };
	assert_int_equal(ws_view_walk(&s->item, count_runs, runs), 0);
	assert_int_equal(runs[1] > 0, ws_view_copied(&s->item));
	assert_true(runs[1] <= s->view.n_pieces);
	assert_true(runs[2] <= s->view.n_pieces); /* small runs only where one is a piece */
}

static void check_samples(int rounds, int64_t most_elements)
{
	struct sample s;
	seed = (uint64_t)most_elements;
	open_source();
	for (int round = 0; round < rounds;) {
		if (!make_sample(&s, most_elements))
			continue;
		round++;
		s.view.reader = pick(4) ? ws_reader_new() : NULL;
		uint8_t *want = by_element(&s), *got = malloc(2 * s.item.bytes);
		assert_non_null(got);
		check_stretches(&s);
		check_reads(&s, want, got);
		check_payload(&s, want, got);
		free(want);
		free(got);
		ws_reader_free(s.view.reader);
	}
	close_source();
}

SCRATCH_TEST(small_views_are_what_their_elements_are)
{
	check_samples(4000, 1000);
}

SCRATCH_TEST(large_views_are_what_their_elements_are)
{
	check_samples(60, 1 << 20);
}

/* ---- examples ---- */

/* An item of one piece: rows by cols, each step so many elements. */
static void make_plane(struct sample *s, int64_t rows, int64_t cols, int64_t row, int64_t col)
{
	*s = (struct sample){ .view = { .n_dims = 2, .dims = { rows, cols },
		                        .pieces = s->pieces, .n_pieces = 1 }, .size = 2 };
	s->tensors[0] = (struct ws_tensor){ .name = "x", .dtype = WS_DTYPE_BF16, .offset = 128,
		                            .bytes = FILE_BYTES - 128 };
	s->pieces[0] = (struct ws_piece){ .source = source, .from = s->tensors,
		                          .dims = { rows, cols }, .strides = { row, col } };
	s->item = (struct ws_item){ .name = "x", .dtype = WS_DTYPE_BF16, .n_dims = 2,
		                    .dims = { rows, cols }, .bytes = (uint64_t)(rows * cols) * 2,
		                    .source = source, .from = s->tensors, .view = &s->view };
}

SCRATCH_TEST(rows_of_a_file_are_one_run)
{
	struct sample s;
	size_t runs[3] = { 0 };
	open_source();
	make_plane(&s, 100, 2048, 2048, 1);
	ws_view_walk(&s.item, count_runs, runs);
	assert_int_equal(runs[0], 1);
	make_plane(&s, 100, 2048, 4096, 1); /* half of each row: 4 KiB */
	memset(runs, 0, sizeof runs);
	ws_view_walk(&s.item, count_runs, runs);
	assert_int_equal(runs[0], 100);
	assert_int_equal(runs[1], 0);
	make_plane(&s, 100, 2047, 4096, 1);
	memset(runs, 0, sizeof runs);
	ws_view_walk(&s.item, count_runs, runs);
	assert_int_equal(runs[0], 0);
	assert_int_equal(runs[1], 1);
	close_source();
}

RUN_TESTS(NULL, NULL)
