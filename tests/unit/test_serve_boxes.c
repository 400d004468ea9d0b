/* SPDX-License-Identifier: Apache-2.0 */
/* Copying boxes of tensors, whole or in pieces, and rounding their elements. */
#include "number.h"
#include "serve_boxes.h"
#include "test.h"

#include <math.h>

static unsigned noise = 1;
static unsigned next(unsigned below)
{
	noise = noise * 1103515245 + 12345;
	return (noise >> 8) % below;
}

static void make_random_boxes(struct ws_serve_boxes *b, int64_t *dims, struct ws_box *from,
                              int64_t *local, struct ws_box *to, bool transposed)
{
	from->n_dims = to->n_dims = 3;
	for (unsigned d = 0; d < 3; d++) {
		dims[d] = 1 + next(5);
		from->at[d] = next((unsigned)dims[d]);
		from->size[d] = 1 + next((unsigned)(dims[d] - from->at[d]));
	}
	for (unsigned d = 0; d < 3; d++) {
		const unsigned other = transposed && d > 0 ? 3 - d : d;
		to->size[d] = from->size[other];
		local[d] = to->size[d] + next(3);
		to->at[d] = next((unsigned)(local[d] - to->size[d] + 1));
	}
	ws_serve_boxes_make(b, 3, dims, from, 3, local, to, 2, transposed);
}

TEST(any_box_is_copied_in_any_pieces)
{
	uint8_t whole[2 * 125], back[2 * 125], local[2 * 512], want[2 * 512];
	for (int round = 0; round < 20000; round++) {
		struct ws_serve_boxes b;
		struct ws_box from, to;
		int64_t dims[3], at[3];
		const bool transposed = round % 2;
		make_random_boxes(&b, dims, &from, at, &to, transposed);
		for (size_t i = 0; i < sizeof whole; i++)
			whole[i] = (uint8_t)(1 + next(255));
		memset(local, 0, sizeof local);
		memset(want, 0, sizeof want);
		for (int64_t i = 0; i < from.size[0]; i++)
			for (int64_t j = 0; j < from.size[1]; j++)
				for (int64_t k = 0; k < from.size[2]; k++) {
					const int64_t src =
						((from.at[0] + i) * dims[1] + from.at[1] + j) *
							dims[2] +
						from.at[2] + k;
					const int64_t y = to.at[1] + (transposed ? k : j);
					const int64_t x = to.at[2] + (transposed ? j : k);
					memcpy(&want[2 *
					             (((to.at[0] + i) * at[1] + y) * at[2] + x)],
					       &whole[2 * src], 2);
				}
		for (uint64_t done = 0; done < b.total; ) {
			uint64_t n = 1 + next(60);
			n = n < b.total - done ? n : b.total - done;
			ws_serve_boxes_put(&b, done, whole + done, (size_t)n, local);
			done += n;
		}
		assert_memory_equal(local, want, sizeof local);
		memset(back, 0, sizeof back);
		ws_serve_boxes_get(&b, 0, back, (size_t)b.total, local);
		for (uint64_t i = 0; i < b.total; i++)
			assert_true(back[i] == whole[i] || back[i] == 0);
		memset(local, 0, sizeof local);
		ws_serve_boxes_put(&b, 0, back, (size_t)b.total, local);
		assert_memory_equal(local, want, sizeof local);
	}
}

TEST(sixteen_bits_survive_a_round_trip)
{
	static const enum ws_dtype types[] = { WS_DTYPE_F16, WS_DTYPE_BF16, WS_DTYPE_F8_E4M3,
		                               WS_DTYPE_F8_E5M2 };
	for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
		for (uint32_t bits = 0; bits < 1u << ws_dtype_bits(types[i]); bits++) {
			uint16_t back = 0, from = (uint16_t)bits;
			double value = 0;
			ws_serve_convert(WS_DTYPE_F64, &value, types[i], &from, 1);
			ws_serve_convert(types[i], &back, WS_DTYPE_F64, &value, 1);
			double again = 0;
			ws_serve_convert(WS_DTYPE_F64, &again, types[i], &back, 1);
			if (isnan(value) ? !isnan(again) : back != from)
				fail_msg("%s %x became %x", ws_dtype_torch(types[i]), from, back);
		}
}

TEST(rounding_is_to_nearest_even)
{
	for (int i = 0; i < 200000; i++) {
		const uint32_t bits = next(1 << 16) << 16 | next(1 << 16);
		float x;
		uint16_t bf16 = 0, f16 = 0;
		memcpy(&x, &bits, 4);
		ws_serve_convert(WS_DTYPE_BF16, &bf16, WS_DTYPE_F32, &x, 1);
		ws_serve_convert(WS_DTYPE_F16, &f16, WS_DTYPE_F32, &x, 1);
		const double as_bf16 = ws_number_from_bf16(bf16), as_f16 = ws_number_from_f16(f16);
		assert_true(isnan(x) ? isnan(as_bf16)
		                     : as_bf16 == ws_number_round(WS_DTYPE_BF16, (double)x));
		assert_true(isnan(x) ? isnan(as_f16) :
		                       as_f16 == ws_number_round(WS_DTYPE_F16, (double)x));
	}
	const float halves[] = { 1.0f + 0x1p-8f, 1.0f + 0x3p-8f, 448.0f,  464.0f,
		                 465.0f,         -0.0f,          0x1p-10f };
	uint8_t e4m3[7];
	ws_serve_convert(WS_DTYPE_F8_E4M3, e4m3, WS_DTYPE_F32, halves, 7);
	static const uint8_t want[] = { 0x38, 0x38, 0x7e, 0x7e, 0x7f, 0x80, 0x00 };
	assert_memory_equal(e4m3, want, 7);
}

RUN_TESTS(NULL, NULL)
