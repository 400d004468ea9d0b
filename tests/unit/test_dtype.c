/* SPDX-License-Identifier: Apache-2.0 */
#include "wsync/dtype.h"

#include "dims.h"
#include "test.h"

TEST(every_type_is_read_back_from_its_names)
{
	for (int i = 0; i < WS_DTYPE_COUNT; i++) {
		const enum ws_dtype dtype = (enum ws_dtype)i;
		enum ws_dtype back = WS_DTYPE_COUNT;
		assert_true(ws_dtype_from_safetensors(ws_dtype_safetensors(dtype), &back));
		assert_int_equal(back, dtype);
		if (!*ws_dtype_torch(dtype))
			continue;
		assert_true(ws_dtype_from_torch(ws_dtype_torch(dtype), &back));
		assert_int_equal(back, dtype);
	}
}

TEST(names_are_those_of_torch_and_of_the_format)
{
	assert_string_equal(ws_dtype_torch(WS_DTYPE_BF16), "bfloat16");
	assert_string_equal(ws_dtype_torch(WS_DTYPE_F8_E4M3), "float8_e4m3fn");
	assert_string_equal(ws_dtype_torch(WS_DTYPE_F8_E8M0), "float8_e8m0fnu");
	assert_string_equal(ws_dtype_torch(WS_DTYPE_F4), "");
	assert_string_equal(ws_dtype_safetensors(WS_DTYPE_F8_E4M3), "F8_E4M3");
	assert_string_equal(ws_dtype_safetensors(WS_DTYPE_F6_E2M3), "F6_E2M3");
	assert_string_equal(ws_dtype_torch(WS_DTYPE_COUNT), "");
	assert_string_equal(ws_dtype_safetensors((enum ws_dtype)99), "");
}

TEST(torch_aliases_are_read_and_other_names_are_not)
{
	enum ws_dtype t;
	assert_true(ws_dtype_from_torch("half", &t) && t == WS_DTYPE_F16);
	assert_true(ws_dtype_from_torch("float", &t) && t == WS_DTYPE_F32);
	assert_true(ws_dtype_from_torch("long", &t) && t == WS_DTYPE_I64);
	assert_false(ws_dtype_from_torch("", &t));
	assert_false(ws_dtype_from_torch("torch.bfloat16", &t));
	assert_false(ws_dtype_from_torch("BF16", &t));
	assert_false(ws_dtype_from_safetensors("bf16", &t));
	assert_false(ws_dtype_from_safetensors("", &t));
}

TEST(sizes_are_those_of_dense_arrays)
{
	uint64_t n = 0;
	const int64_t a[] = { 151936, 1024 }, nothing[] = { 3, 0, INT64_MAX }, odd[] = { 3 };
	assert_true(ws_dtype_bytes(WS_DTYPE_BF16, 2, a, &n));
	assert_int_equal(n, 311164928);
	assert_true(ws_dtype_bytes(WS_DTYPE_F32, 0, NULL, &n)); /* a scalar */
	assert_int_equal(n, 4);
	assert_true(ws_dtype_bytes(WS_DTYPE_F32, 3, nothing, &n));
	assert_int_equal(n, 0);
	assert_false(ws_dtype_bytes(WS_DTYPE_F4, 1, odd, &n));
	assert_true(ws_dtype_bytes(WS_DTYPE_F4, 2, a, &n));
	assert_int_equal(n, 77791232);
}

TEST(sizes_that_overflow_are_refused)
{
	uint64_t n;
	const int64_t a[] = { INT64_C(1) << 32, INT64_C(1) << 32 }, b[] = { INT64_MAX },
		      c[] = { -1 };
	const int64_t many[WS_MAX_DIMS + 1] = { 1 };
	assert_false(ws_dtype_bytes(WS_DTYPE_U8, 2, a, &n));
	assert_false(ws_dtype_bytes(WS_DTYPE_U8, 1, b, &n));
	assert_false(ws_dtype_bytes(WS_DTYPE_U8, 1, c, &n));
	assert_false(ws_dtype_bytes(WS_DTYPE_U8, WS_MAX_DIMS + 1, many, &n));
	assert_false(ws_dtype_bytes(WS_DTYPE_COUNT, 1, many, &n));
}

TEST(dimensions_are_multiplied_and_told)
{
	static const int64_t dims[] = { 2, -1, INT64_MAX }, none[] = { INT64_MAX, 2, 0 };
	char text[32], cut[5];
	assert_int_equal(ws_dims_product(0, NULL), 1);
	assert_int_equal(ws_dims_product(2, dims), -2);
	assert_int_equal(ws_dims_product(3, none), -1);
	assert_string_equal(ws_dims_text(text, sizeof text, 0, NULL), "[]");
	assert_string_equal(ws_dims_text(text, sizeof text, 3, dims),
	                    "[2, -1, 9223372036854775807]");
	assert_string_equal(ws_dims_text(cut, sizeof cut, 3, dims), "[2, ");
}

RUN_TESTS(NULL, NULL)
