/* SPDX-License-Identifier: Apache-2.0 */
/* Quantized weights: which tensors they are made of, and every number of them. The numbers are held
 * against bitsandbytes' own here, and against torch's in tests/peers/test_unpack_oracle.py. */
#include "packed_file.h"

#include "floats.h"
#include "simd.h"
#include "unpack_core.h"

#include <math.h>
#include <pthread.h>

#define COUNT(a) (sizeof(a) / sizeof *(a))

static uint64_t seed = 5;

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

/* ---- whole weights ---- */

/* All numbers, had in random runs of rows. */
static float *all_rows(const struct ws_packed *p)
{
	struct ws_buf scratch = { .max = 0 };
	struct ws_err err = WS_ERR_INIT;
	float *x = malloc((size_t)(p->rows * p->cols) * sizeof *x);
	assert_non_null(x);
	for (int64_t row = 0; row < p->rows;) {
		const int64_t n = 1 + pick(p->rows - row);
		assert_ok(ws_packed_rows(p, row, n, x + row * p->cols, &scratch, &err), &err);
		row += n;
	}
	ws_buf_free(&scratch);
	return x;
}

static void assert_same(const char *what, const float *got, const float *want, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (memcmp(&got[i], &want[i], sizeof *got) != 0)
			fail_msg("%s: element %zu is %.9g, not %.9g", what, i, (double)got[i],
			         (double)want[i]);
}

/* As the numbers of a weight are rounded before they are sent. */
static void round_to(enum ws_dtype dtype, float *x, size_t n)
{
	void *stored = malloc(n * sizeof *x + 1);
	assert_non_null(stored);
	ws_floats_write(dtype, x, n, stored);
	ws_floats_read(dtype, stored, n, x);
	free(stored);
}

TEST(bitsandbytes_own_bytes_come_to_its_own_numbers)
{
	static const char *const names[] = { "plain.weight", "twice.weight", "half.weight" };
	static const char *const levels[] = { "scalar", "avx2" };
	struct opened_file f;
	struct ws_err err = WS_ERR_INIT;
	f = open_file("tests/data/unpack/bitsandbytes.safetensors");
	for (size_t i = 0; i < COUNT(names) * COUNT(levels); i++) {
		const char *name = names[i / COUNT(levels)];
		struct ws_packed p, expected;
		char want[64];
		if (!ws_simd_set_level(levels[i % COUNT(levels)]))
			continue;
		snprintf(want, sizeof want, "expected.%s", name);
		if (find_packed(&f, name, NULL, &p, &err) ||
		    find_packed(&f, want, NULL, &expected, &err))
			fail_msg("%s", err.msg);
		assert_int_equal(p.packing, WS_PACK_NF4);
		assert_int_equal(p.n_dims, 2);
		assert_int_equal(p.rows, expected.rows);
		assert_int_equal(p.cols, expected.cols);
		assert_int_equal(p.dtype, expected.dtype);
		float *x = all_rows(&p), *y = all_rows(&expected);
		round_to(p.dtype, x, (size_t)(p.rows * p.cols));
		assert_same(name, x, y, (size_t)(p.rows * p.cols));
		free(x);
		free(y);
		ws_packed_free(&p);
		ws_packed_free(&expected);
	}
	close_file(&f);
}

SCRATCH_TEST(every_tensor_is_a_weight_or_a_part_of_one)
{
	const struct part parts[] = {
		{ "a.weight", "F8_E4M3", "[4,4]", NULL, 16 },
		{ "a.weight_scale_inv", "BF16", "[1,1]", NULL, 2 },
		{ "a.input_scale", "F32", "[]", NULL, 4 },
		{ "b.weight", "U8", "[4,8]", NULL, 32 },
		{ "b.weight_scale", "F8_E4M3", "[4,1]", NULL, 4 },
		{ "b.weight_scale_2", "F32", "[]", NULL, 4 },
		{ "b.input_scale", "F32", "[1]", NULL, 4 },
		{ "b.bias", "BF16", "[4]", NULL, 8 },
		{ "c.weight", "BF16", "[2,2]", NULL, 8 },
		{ "c.weight_scale", "F32", "[2]", NULL, 8 },
		{ "c.input_scale", "F32", "[]", NULL, 4 },
		{ "e.k_scale", "F32", "[]", NULL, 4 },
		{ "d_blocks", "U8", "[2,1,16]", NULL, 32 },
		{ "d_scales", "U8", "[2,1]", NULL, 2 },
		{ "ids", "I64", "[3]", NULL, 24 },
	};
	static const char want[] = "F..N..."        /* FP8 and its parts, NVFP4 and its */
	                           "-----"          /* what has no packing, whatever it is called */
	                           "---";           /* MXFP4 and integers, as they are */
	struct opened_file f;
	struct ws_packed p;
	struct ws_err err = WS_ERR_INIT;
	write_packed(&f, parts, COUNT(parts));
	for (size_t i = 0; i < COUNT(parts); i++) {
		assert_ok(find_packed(&f, parts[i].name, NULL, &p, &err), &err);
		const char got = !p.weight ? '.' : "-FN4"[p.packing];
		if (got != want[i])
			fail_msg("%s is %c, not %c", parts[i].name, got, want[i]);
		ws_packed_free(&p);
	}
	assert_int_equal(find_packed(&f, "b.weight", NULL, &p, &err), 0);
	assert_int_equal(p.cols, 16);
	assert_string_equal(p.parts[0]->name, "b.weight_scale");
	assert_string_equal(p.parts[1]->name, "b.weight_scale_2");
	assert_string_equal(p.parts[2]->name, "b.input_scale");
	assert_null(p.parts[3]);
	close_file(&f);
}

SCRATCH_TEST(blocks_are_as_large_as_config_or_shapes_say)
{
	static const struct { const char *shape, *scales; int64_t told, bn, bk; } cases[] = {
		{ "[256,384]", "[2,3]", 0, 128, 128 }, { "[256,384]", "[2,3]", 128, 128, 128 },
		{ "[256,384]", "[4,6]", 0, 64, 64 },   { "[256,384]", "[4,6]", 64, 64, 64 },
		{ "[100,130]", "[4,2]", 0, 32, 128 },  { "[64,300]", "[1,1]", 0, 128, 300 },
		{ "[256,384]", "[256,1]", 0, 1, 384 }, { "[256,384]", "[1,12]", 0, 256, 32 },
		{ "[64,64]", "[1,1]", 128, 128, 128 },
		{ "[2,64,300]", "[2,1,3]", 0, 128, 128 },
	};
	for (size_t i = 0; i < COUNT(cases); i++) {
		struct part parts[] = { { "x.weight", "F8_E4M3", cases[i].shape, NULL, 0 },
			                { "x.weight_scale_inv", "F32", cases[i].scales, NULL, 0 } };
		for (int k = 0; k < 2; k++) {
			long long d[3] = { 1, 1, 1 };
			sscanf(parts[k].shape, "[%lld,%lld,%lld]", &d[0], &d[1], &d[2]);
			parts[k].n = (size_t)(d[0] * d[1] * d[2]) * (k ? 4 : 1);
		}
		const struct ws_quant config = { .block = { cases[i].told, cases[i].told } };
		struct opened_file f;
		struct ws_packed p;
		struct ws_err err = WS_ERR_INIT;
		write_packed(&f, parts, 2);
		assert_ok(find_packed(&f, "x.weight", &config, &p, &err), &err);
		if (p.bn != cases[i].bn || p.bk != cases[i].bk)
			fail_msg("%s %s: %ld x %ld", cases[i].shape, cases[i].scales, (long)p.bn,
			         (long)p.bk);
		close_file(&f);
	}
}

SCRATCH_TEST(empty_tensors_have_no_rows_to_read)
{
	const struct part parts[] = {
		{ "a.weight", "BF16", "[4,0]", NULL, 0 },
		{ "b.weight", "BF16", "[1099511627776,1099511627776,1099511627776,0]", NULL, 0 },
		{ "c.weight", "U8", "[0,8]", NULL, 0 },
		{ "c.weight_scale", "F8_E4M3", "[0,1]", NULL, 0 },
		{ "c.weight_scale_2", "F32", "[]", NULL, 4 },
		{ "d.weight", "F8_E4M3", "[0,8]", NULL, 0 },
		{ "d.weight_scale", "F32", "[]", NULL, 4 },
	};
	struct opened_file f;
	struct ws_buf scratch = { .max = 0 };
	struct ws_err err = WS_ERR_INIT;
	write_packed(&f, parts, COUNT(parts));
	for (size_t i = 0; i < COUNT(parts); i++) {
		struct ws_packed p;
		assert_ok(find_packed(&f, parts[i].name, NULL, &p, &err), &err);
		if (p.weight && ws_packed_rows(&p, 0, p.rows, NULL, &scratch, &err))
			fail_msg("%s", err.msg);
		ws_packed_free(&p);
	}
	close_file(&f);
}

/* ---- what is refused ---- */

static void expect_sentence(const struct part *parts, size_t n, const struct ws_quant *config,
                            const char *sentence)
{
	struct opened_file f;
	struct ws_packed p = { .packing = WS_PACK_NONE };
	struct ws_err err = WS_ERR_INIT;
	write_packed(&f, parts, n);
	if (find_packed(&f, parts[0].name, config, &p, &err) == 0)
		fail_msg("%s was taken, not: %s", parts[0].name, sentence);
	assert_int_equal(err.code, WS_EINPUT);
	assert_string_equal(err.msg, sentence);
	close_file(&f);
}

#define EXPECT(sentence, ...) \
	do { \
		const struct part these[] = { __VA_ARGS__ }; \
		expect_sentence(these, COUNT(these), NULL, sentence); \
	} while (0)

SCRATCH_TEST(packings_that_are_not_unpacked_are_named)
{
	EXPECT("l.qweight (int32 [1, 2]) is packed as GPTQ, which is not unpacked",
	       { "l.qweight", "I32", "[1,2]", NULL, 8 }, { "l.g_idx", "I32", "[1]", NULL, 4 });
	EXPECT("l.scales (float16 [1]) is packed as AWQ, which is not unpacked",
	       { "l.scales", "F16", "[1]", NULL, 2 }, { "l.qweight", "I32", "[1,2]", NULL, 8 });
	EXPECT("l.weight_packed (int32 [1]) is packed as int4 by compressed-tensors, which is not "
	       "unpacked",
	       { "l.weight_packed", "I32", "[1]", NULL, 4 });
	EXPECT("l.weight_packed (uint8 [1]) is packed as NVFP4 by compressed-tensors (whose global "
	       "scale divides), which is not unpacked",
	       { "l.weight_packed", "U8", "[1]", NULL, 1 });
	EXPECT("l.weight (int8 [1]) is packed as int8 by bitsandbytes, which is not unpacked",
	       { "l.weight", "I8", "[1]", NULL, 1 }, { "l.SCB", "F32", "[1]", NULL, 4 });
	EXPECT("l.weight (uint8 [1, 1]) is packed as FP4 by bitsandbytes, which is not unpacked",
	       { "l.weight", "U8", "[1,1]", NULL, 1 },
	       { "l.weight.quant_state.bitsandbytes__fp4", "U8", "[2]", "{}", 2 });
	EXPECT("l.weight (uint8 [1]) is packed as bytes with nothing beside them that says how, "
	       "which is not unpacked",
	       { "l.weight", "U8", "[1]", NULL, 1 });
	EXPECT("l.weight (float8_e5m2 [1]) is packed as FP8 of the kind E5M2, which is not "
	       "unpacked",
	       { "l.weight", "F8_E5M2", "[1]", NULL, 1 },
	       { "l.weight_scale", "F32", "[]", NULL, 4 });
}

SCRATCH_TEST(missing_parts_are_named)
{
	EXPECT("l.weight (float8_e4m3fn [1]) is packed as FP8 without weight_scale_inv or "
	       "weight_scale, which is not unpacked",
	       { "l.weight", "F8_E4M3", "[1]", NULL, 1 });
	EXPECT("l.weight (uint8 [1, 8]) is packed as 4 bits with scales and without "
	       "weight_scale_2, which is not unpacked",
	       { "l.weight", "U8", "[1,8]", NULL, 8 },
	       { "l.weight_scale", "F8_E4M3", "[1,1]", NULL, 1 });
	EXPECT("l.weight.absmax: there is no l.weight that it could belong to",
	       { "l.weight.absmax", "F32", "[1]", NULL, 4 });
	EXPECT("l.weight_scale_inv: l.weight is bfloat16 [1], which no scale_inv goes with",
	       { "l.weight_scale_inv", "F32", "[1]", NULL, 4 },
	       { "l.weight", "BF16", "[1]", NULL, 2 });
	EXPECT("l.weight.absmax: there is no l.weight that it could belong to",
	       { "l.weight.absmax", "F32", "[1]", NULL, 4 },
	       { "m.weight", "BF16", "[1]", NULL, 2 });
}

SCRATCH_TEST(shapes_that_disagree_are_named)
{
	EXPECT("l.weight_scale_inv is float32 [2, 3] and does not fit l.weight, which is "
	       "float8_e4m3fn [4, 4]",
	       { "l.weight", "F8_E4M3", "[4,4]", NULL, 16 },
	       { "l.weight_scale_inv", "F32", "[2,3]", NULL, 24 });
	EXPECT("l.weight_scale_inv is float32 [0, 4] and does not fit l.weight, which is "
	       "float8_e4m3fn [4, 4]",
	       { "l.weight", "F8_E4M3", "[4,4]", NULL, 16 },
	       { "l.weight_scale_inv", "F32", "[0,4]", NULL, 0 });
	EXPECT("l.weight_scale_inv is uint8 [1, 1] and does not fit l.weight, which is "
	       "float8_e4m3fn [4, 4]",
	       { "l.weight", "F8_E4M3", "[4,4]", NULL, 16 },
	       { "l.weight_scale_inv", "U8", "[1,1]", NULL, 1 });
	EXPECT("l.weight has both l.weight_scale_inv and l.weight_scale, and which of them "
	       "multiplies is not known",
	       { "l.weight", "F8_E4M3", "[1]", NULL, 1 },
	       { "l.weight_scale_inv", "F32", "[1]", NULL, 4 },
	       { "l.weight_scale", "F32", "[1]", NULL, 4 });
	EXPECT("l.weight_scale is float8_e4m3fn [2, 2] and does not fit l.weight, which is uint8 "
	       "[2, 8] (NVFP4)",
	       { "l.weight", "U8", "[2,8]", NULL, 16 },
	       { "l.weight_scale", "F8_E4M3", "[2,2]", NULL, 4 },
	       { "l.weight_scale_2", "F32", "[]", NULL, 4 });
	EXPECT("l.weight_scale_2 is float32 [2] and does not fit l.weight, which is uint8 [2, 8] "
	       "(NVFP4)",
	       { "l.weight", "U8", "[2,8]", NULL, 16 },
	       { "l.weight_scale", "F8_E4M3", "[2,1]", NULL, 2 },
	       { "l.weight_scale_2", "F32", "[2]", NULL, 8 });
	const struct part told[] = { { "l.weight", "F8_E4M3", "[4,4]", NULL, 16 },
		                     { "l.weight_scale_inv", "F32", "[1,1]", NULL, 4 } };
	const struct ws_quant config = { .block = { 2, INT64_MAX } };
	expect_sentence(told, 2, &config,
	                "l.weight_scale_inv is float32 [1, 1] and does not fit l.weight, which is "
	                "float8_e4m3fn [4, 4]");
}

#define STATE "w.quant_state.bitsandbytes__nf4"
#define REST "\"dtype\":\"bfloat16\",\"shape\":[2,3]"

SCRATCH_TEST(quant_states_are_judged)
{
	static const struct { const char *json, *sentence; } cases[] = {
		{ "[]", "it is not an object" },
		{ "{" REST ",\"blocksize\":0}", "blocksize is not a power of two from 32 to 4096" },
		{ "{" REST ",\"blocksize\":-64}",
		  "blocksize is not a power of two from 32 to 4096" },
		{ "{" REST ",\"blocksize\":96}",
		  "blocksize is not a power of two from 32 to 4096" },
		{ "{" REST ",\"blocksize\":64.5}",
		  "blocksize is not a power of two from 32 to 4096" },
		{ "{" REST "}", "blocksize is not a power of two from 32 to 4096" },
		{ "{" REST ",\"blocksize\":64,\"blocksize\":128}", "a key is there twice" },
		{ "{" REST ",\"blocksize\":64,\"quant_type\":\"fp4\"}", "quant_type is 'fp4'" },
		{ "{\"dtype\":\"int8\",\"shape\":[2,3]}",
		  "dtype is 'int8', not bfloat16, float16 or float32" },
		{ "{\"dtype\":\"\\u001b[31m\"}",
		  "dtype is '?[31m', not bfloat16, float16 or float32" },
		{ "{\"dtype\":\"float16\",\"shape\":null}",
		  "shape is not a list of one to eight sizes" },
		{ "{\"dtype\":\"float16\",\"shape\":[]}",
		  "shape is not a list of one to eight sizes" },
		{ "{\"dtype\":\"float16\",\"shape\":[1,1,1,1,1,1,1,1,6]}",
		  "shape is not a list of one to eight sizes" },
		{ "{\"dtype\":\"float16\",\"shape\":[2,-3]}",
		  "shape is not a list of sizes above 0" },
		{ "{\"dtype\":\"float16\",\"shape\":[0,3]}",
		  "shape is not a list of sizes above 0" },
		{ "{\"dtype\":\"float16\",\"shape\":[4294967296,4294967296]}",
		  "shape is not of a tensor that memory could hold" },
		{ "{" REST ",\"blocksize\":64,\"nested_blocksize\":256}",
		  "nested_offset is not a finite number" },
		{ "{" REST ",\"blocksize\":64,\"nested_offset\":1}",
		  "nested_blocksize is not a number above 0" },
		{ "{" REST ",\"blocksize\":64,\"nested_offset\":1e99,\"nested_blocksize\":256}",
		  "nested_offset is not a finite number" },
		{ "{" REST ",\"blocksize\":64,\"nested_offset\":1,\"nested_blocksize\":0}",
		  "nested_blocksize is not a number above 0" },
		{ "{" REST ",\"blocksize\":64,\"nested_offset\":1,\"nested_blocksize\":4,"
		  "\"nested_dtype\":\"bfloat16\"}",
		  "nested_dtype is not float32" },
	};
	for (size_t i = 0; i < COUNT(cases); i++) {
		char shape[32], sentence[256];
		snprintf(shape, sizeof shape, "[%zu]", strlen(cases[i].json));
		snprintf(sentence, sizeof sentence, STATE ": %s", cases[i].sentence);
		EXPECT(sentence, { "w", "U8", "[3,1]", NULL, 3 },
		       { STATE, "U8", shape, cases[i].json, strlen(cases[i].json) });
	}
	EXPECT(STATE " is uint8 [0]; it should be JSON of at most 65536 bytes",
	       { "w", "U8", "[3,1]", NULL, 3 }, { STATE, "U8", "[0]", NULL, 0 });
}

SCRATCH_TEST(nf4_is_held_against_its_state)
{
	static const char single[] = "{" REST ",\"blocksize\":64}";
	static const char nested[] =
		"{" REST ",\"blocksize\":64,\"nested_blocksize\":256,\"nested_offset\":0}";
	static const float levels[16] = { 0 };
	char n_single[16], n_nested[16];
	snprintf(n_single, sizeof n_single, "[%zu]", strlen(single));
	snprintf(n_nested, sizeof n_nested, "[%zu]", strlen(nested));
	const struct part one = { STATE, "U8", n_single, single, strlen(single) };
	const struct part two = { STATE, "U8", n_nested, nested, strlen(nested) };
	const struct part w = { "w", "U8", "[3,1]", NULL, 3 },
			  map = { "w.quant_map", "F32", "[16]", levels, 64 };
	EXPECT("w is uint8 [4, 1]; for 6 codes, as its quant_state has it, there should be 3 bytes",
	       { "w", "U8", "[4,1]", NULL, 4 }, one);
	EXPECT("w is uint8 [1, 3]: NF4 that was transposed is not unpacked",
	       { "w", "U8", "[1,3]", NULL, 3 }, one);
	EXPECT("w (NF4) has no w.quant_map", w, one);
	EXPECT("w.quant_map is float32 [15]; by its quant_state it should be float32 of 16 "
	       "elements",
	       w, one, { "w.quant_map", "F32", "[15]", NULL, 60 });
	EXPECT("w.quant_map: level 0 is 0; NF4 has -1 there", w, one, map);
	EXPECT("w.quant_map: level 0 is 0; NF4 has -1 there", w, two, map);
}

SCRATCH_TEST(mxfp4_is_sent_as_it_is_and_has_no_numbers)
{
	const struct part parts[] = { { "e.down_proj_blocks", "U8", "[2,16]", NULL, 32 },
		                      { "e.down_proj_scales", "U8", "[2,1]", NULL, 2 } };
	struct opened_file f;
	struct ws_packed p;
	struct ws_buf scratch = { .max = 0 };
	struct ws_err err = WS_ERR_INIT;
	float x[32];
	write_packed(&f, parts, 2);
	assert_int_equal(find_packed(&f, "e.down_proj_blocks", NULL, &p, &err), 0);
	assert_fails_with(ws_packed_rows(&p, 0, 2, x, &scratch, &err), &err, WS_EINPUT,
	                  "e.down_proj_blocks is uint8 [2, 16], whose numbers are not known: MXFP4 "
	                  "is sent as it is");
	close_file(&f);
}

static void expect_bad_rows(const struct part *parts, size_t n, const char *sentence)
{
	struct opened_file f;
	struct ws_packed p;
	struct ws_buf scratch = { .max = 0 };
	struct ws_err err = WS_ERR_INIT;
	write_packed(&f, parts, n);
	assert_ok(find_packed(&f, parts[0].name, NULL, &p, &err), &err);
	float *x = malloc((size_t)(p.rows * p.cols) * sizeof *x);
	assert_non_null(x);
	assert_fails(ws_packed_rows(&p, 0, p.rows, x, &scratch, &err), &err, WS_EINPUT, "");
	assert_string_equal(err.msg, sentence);
	free(x);
	ws_buf_free(&scratch);
	ws_packed_free(&p);
	close_file(&f);
}

#define EXPECT_ROWS(sentence, ...) \
	do { \
		const struct part these[] = { __VA_ARGS__ }; \
		expect_bad_rows(these, COUNT(these), sentence); \
	} while (0)

SCRATCH_TEST(what_is_no_number_is_found_with_its_place)
{
	uint8_t codes[600] = { 0 };
	float scales[4] = { 1, 1, NAN, 1 };
	const float one = 1, large = 3e38f;
	const uint16_t bf16[4] = { 0, 0xff80, 0, 0x7fc0 };
	codes[417] = 0xff;
	EXPECT_ROWS("w: element [1, 117] is NaN", { "w", "F8_E4M3", "[2,300]", codes, 600 },
	            { "w_scale", "F32", "[]", &one, 4 });
	codes[417] = 0x40;
	EXPECT_ROWS("w: element [1, 117] is infinity", { "w", "F8_E4M3", "[2,300]", codes, 600 },
	            { "w_scale", "F32", "[]", &large, 4 });
	EXPECT_ROWS("w_scale_inv: scale [1, 0] is NaN", { "w", "F8_E4M3", "[2,300]", codes, 600 },
	            { "w_scale_inv", "F32", "[2,2]", scales, 16 });
	EXPECT_ROWS("w: element [0, 1] is -infinity", { "w", "BF16", "[2,2]", bf16, 8 });
	codes[1] = 0x7f;
	EXPECT_ROWS("w_scale: scale [1, 0] is NaN", { "w", "U8", "[2,8]", codes + 8, 16 },
	            { "w_scale", "F8_E4M3", "[2,1]", codes, 2 },
	            { "w_scale_2", "F32", "[]", &one, 4 });
	EXPECT_ROWS("w_scale_2: scale [0, 0] is NaN", { "w", "U8", "[2,8]", codes + 8, 16 },
	            { "w_scale", "F8_E4M3", "[2,1]", codes + 8, 2 },
	            { "w_scale_2", "F32", "[]", scales + 2, 4 });
}

/* ---- kernels ---- */

TEST(the_level_chooses_the_functions)
{
	assert_true(ws_simd_set_level("scalar"));
	assert_ptr_equal(ws_unpack_kernels(), &ws_unpack_scalar);
	if (ws_simd_set_level("avx2"))
		assert_ptr_not_equal(ws_unpack_kernels(), &ws_unpack_scalar);
}

TEST(both_levels_decode_nibbles_alike)
{
	enum { N = 1 << 14 };
	static uint8_t codes[N / 2];
	static float scales[N / 16], levels[16], a[N], b[N];
	if (!ws_simd_set_level("avx2"))
		return;
	for (size_t i = 0; i < sizeof codes; i++)
		codes[i] = (uint8_t)(i < 256 ? i : random64());
	for (size_t i = 0; i < COUNT(scales); i++)
		scales[i] = ldexpf((float)pick(1 << 24), (int)pick(200) - 160);
	for (size_t i = 0; i < 16; i++)
		levels[i] = (float)pick(1 << 24) / 8388608 - 1;
	for (int round = 0; round < 400; round++) {
		const struct ws_nibbles s = { codes, pick(2), levels, scales,
			                      (int64_t)16 << pick(5) };
		const int64_t first = pick(700), n = pick(round % 8 ? 900 : N - 700);
		ws_unpack_scalar.nibbles(&s, first, n, a);
		ws_unpack_kernels()->nibbles(&s, first, n, b);
		assert_memory_equal(a, b, (size_t)n * sizeof *a);
	}
}

TEST(both_levels_decode_e4m3_alike)
{
	static uint8_t codes[2048];
	static float scales[2048], a[2048], b[2048];
	if (!ws_simd_set_level("avx2"))
		return;
	for (size_t i = 0; i < COUNT(scales); i++) {
		codes[i] = (uint8_t)((i & 127) == 127 ? i & 128 : i);
		scales[i] = ldexpf((float)pick(1 << 24), (int)pick(250) - 160);
	}
	for (int round = 0; round < 400; round++) {
		const int64_t n = pick(2048), block = 1 + pick(round % 2 ? 40 : 2048);
		ws_unpack_scalar.e4m3(codes, n, block, scales, a);
		ws_unpack_kernels()->e4m3(codes, n, block, scales, b);
		assert_memory_equal(a, b, (size_t)n * sizeof *a);
	}
	memset(codes, 0xff, 64);
	ws_unpack_kernels()->e4m3(codes, 64, 64, scales, b);
	for (int i = 0; i < 64; i++)
		assert_true(isnan(b[i]));
}

/* All sixteen-bit patterns, read through the upper end of the result as tensors are. */
TEST(both_levels_widen_alike)
{
	enum { N = 65536 + 5 };
	const struct ws_unpack_kernels *const s = &ws_unpack_scalar;
	float *a = malloc(N * sizeof *a), *b = malloc(N * sizeof *b);
	assert_true(a && b);
	if (!ws_simd_set_level("avx2"))
		ws_simd_set_level("scalar");
	const struct ws_unpack_kernels *const k = ws_unpack_kernels();
	for (int half = 0; half < 2; half++) {
		uint8_t *const x = (uint8_t *)(a + N) - 2 * N, *const y =
								       (uint8_t *)(b + N) - 2 * N;
		for (size_t i = 0; i < N; i++) {
			const uint16_t h = (uint16_t)i;
			memcpy(x + 2 * i, &h, 2);
			memcpy(y + 2 * i, &h, 2);
		}
		(half ? s->widen_f16 : s->widen_bf16)(x, N, a);
		(half ? k->widen_f16 : k->widen_bf16)(y, N, b);
		assert_memory_equal(a, b, N * sizeof *a);
	}
	free(a);
	free(b);
}

/* ---- several threads ---- */

struct reader {
	const struct ws_packed *p;
	const float *want;
	uint64_t seed;
	int wrong;
};

static void *read_rows(void *arg)
{
	struct reader *r = arg;
	struct ws_buf scratch = { .max = 0 };
	float *x = malloc((size_t)(r->p->rows * r->p->cols) * sizeof *x);
	for (int i = 0; i < 200 && x; i++) {
		r->seed = r->seed * 6364136223846793005u + 1;
		const int64_t row = (int64_t)(r->seed >> 33) % r->p->rows;
		const int64_t n = (int64_t)(r->seed >> 40) % (r->p->rows - row) + 1,
			      cols = r->p->cols;
		if (ws_packed_rows(r->p, row, n, x, &scratch, NULL) ||
		    memcmp(x, r->want + row * cols, (size_t)(n * cols) * sizeof *x) != 0)
			r->wrong++;
	}
	free(x);
	ws_buf_free(&scratch);
	return NULL;
}

TEST(threads_read_rows_of_one_weight)
{
	struct opened_file f;
	struct ws_packed p;
	struct ws_err err = WS_ERR_INIT;
	struct reader r[4];
	pthread_t t[4];
	f = open_file("tests/data/unpack/bitsandbytes.safetensors");
	assert_int_equal(find_packed(&f, "twice.weight", NULL, &p, &err), 0);
	float *want = all_rows(&p);
	for (int i = 0; i < 4; i++) {
		r[i] = (struct reader){ &p, want, (uint64_t)i, 0 };
		assert_int_equal(pthread_create(&t[i], NULL, read_rows, &r[i]), 0);
	}
	for (int i = 0; i < 4; i++) {
		assert_int_equal(pthread_join(t[i], NULL), 0);
		assert_int_equal(r[i].wrong, 0);
	}
	free(want);
	ws_packed_free(&p);
	close_file(&f);
}

RUN_TESTS(NULL, NULL)
