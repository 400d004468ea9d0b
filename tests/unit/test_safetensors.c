/* SPDX-License-Identifier: Apache-2.0 */
/* Every way in which a safetensors file can be wrong, and the sentence that says so. */
#include "safetensors.h"
#include "test.h"

/* A file of this header and n zero bytes of data, judged in an allocation of exactly its size. */
static int parse(const char *header, size_t n, struct ws_safetensors *st, struct ws_err *err)
{
	const size_t len = strlen(header);
	uint8_t *file = calloc(1, 8 + len + n);
	assert_non_null(file);
	for (int i = 0; i < 8; i++)
		file[i] = (uint8_t)((uint64_t)len >> 8 * i);
	memcpy(file + 8, header, len);
	const int rc = ws_safetensors_parse(file, 8 + len + n, "x.safetensors", st, err);
	free(file);
	return rc;
}

static void expect(const char *header, size_t n, const char *sentence)
{
	struct ws_safetensors st = WS_SAFETENSORS_INIT;
	struct ws_err err = WS_ERR_INIT;
	assert_fails_with(parse(header, n, &st, &err), &err, WS_EINPUT, sentence);
	assert_null(st.text);
}

#define ENTRY(dtype, shape, offsets) \
	"{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"
#define A ENTRY("U8", "[2]", "[0,2]")
#define X(why) "x.safetensors: " why
#define XA(why) X("tensor 'a': " why)

TEST(a_sound_file_is_read_in_the_order_of_its_bytes)
{
	struct ws_safetensors st;
	struct ws_err err = WS_ERR_INIT;
	assert_int_equal(parse("{\"b\":" ENTRY("BF16", "[2,3]", "[4,16]") ",\"e\":" ENTRY(
				       "F32", "[0,5]",
				       "[4,4]") ", \"__metadata__\" : {\"format\":\"pt\","
	                                        "\"note\":\"line\\nline\"},"
	                                        "\n\"a\\u00e9\\ud83d\\ude00\":" ENTRY(
							"F32", "[]", "[0,4]") "}   ",
	                       16, &st, &err),
	                 0);
	assert_int_equal(st.n_tensors, 3);
	assert_string_equal(st.tensors[0].name, "a\xc3\xa9\xf0\x9f\x98\x80");
	assert_string_equal(st.tensors[1].name, "e");
	assert_string_equal(st.tensors[2].name, "b");
	assert_int_equal(st.tensors[0].n_dims, 0);
	assert_int_equal(st.tensors[1].bytes, 0);
	const struct ws_tensor *b = &st.tensors[2];
	assert_int_equal(b->dtype, WS_DTYPE_BF16);
	assert_int_equal(b->n_dims, 2);
	assert_int_equal(b->dims[0], 2);
	assert_int_equal(b->dims[1], 3);
	assert_int_equal(b->bytes, 12);
	assert_int_equal(b->offset - st.tensors[0].offset, 4);
	ws_safetensors_free(&st);
}

TEST(a_file_without_tensors_is_sound)
{
	struct ws_safetensors st;
	struct ws_err err = WS_ERR_INIT;
	assert_int_equal(parse("{}", 0, &st, &err), 0);
	assert_int_equal(st.n_tensors, 0);
	ws_safetensors_free(&st);
}

TEST(the_first_bytes_are_judged)
{
	static const struct {
		uint8_t bytes[12];
		size_t n;
		const char *sentence, *hint;
	} cases[] = {
		{ { 0 }, 0, X("has 0 bytes, fewer than the 8 that begin a safetensors file"), "" },
		{ { 2 }, 7, X("has 7 bytes, fewer than the 8 that begin a safetensors file"), "" },
		{ { 0 }, 10, X("the header has length 0"), "" },
		{ { 3, 0, 0, 0, 0, 0, 0, 0, '{', '}' },
		  10,
		  X("the header ends at byte 11, past the end of the file at 10"),
		  "" },
		{ { 1, 0xe1, 0xf5, 5 },
		  12,
		  X("the header has length 100000001, more than the 100000000 of the format"),
		  "" },
		{ { 255, 255, 255, 255, 255, 255, 255, 255 },
		  12,
		  X("the header has length 18446744073709551615, more than the 100000000 of the "
		    "format"),
		  "" },
		{ "version http", 12, X("is a Git LFS pointer, not the file itself"),
		  "fetch the file with git lfs pull" },
		{ "PK\3\4", 12,
		  X("not a safetensors file, but a PyTorch pickle"),
		  "save its tensors as safetensors, with the names of the Hugging Face checkpoint "
		  "(save_file of safetensors)" },
		{ { 2, 0, 0, 0, 0, 0, 0, 0, ' ', '{' },
		  10,
		  X("the header does not begin with '{' at byte 8"),
		  "" },
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		struct ws_safetensors st;
		struct ws_err err = WS_ERR_INIT;
		assert_fails(ws_safetensors_parse(cases[i].bytes, cases[i].n, "x.safetensors", &st,
		                                  &err), &err, WS_EINPUT, "");
		assert_string_equal(err.msg, cases[i].sentence);
		assert_string_equal(err.hint, cases[i].hint);
	}
}

TEST(text_that_is_not_json_is_refused)
{
	expect("{", 0, X("not JSON at byte 9: the text ends early"));
	expect("{}x", 0, X("not JSON at byte 10: text after the value"));
	expect("{a", 0, X("not JSON at byte 9: expected a key"));
	expect("{\"a", 0, X("not JSON at byte 11: the text ends early"));
	expect("{\"a\"", 0, X("not JSON at byte 12: the text ends early"));
	expect("{\"a\" 1", 0, X("not JSON at byte 13: expected ':'"));
	expect("{\"a\":" A "\"b\"", 2, X("not JSON at byte 60: expected ',' or '}'"));
	expect("{\"a\":" A ",}", 2, X("not JSON at byte 61: expected a key"));
	expect("{\"a\n\":1}", 0, X("not JSON at byte 11: control character in a string"));
	expect("{\"a\\q\":1}", 0, X("not JSON at byte 12: unknown escape"));
	expect("{\"a\\u00g0\":1}", 0, X("not JSON at byte 11: \\u wants four hexadecimal digits"));
	expect("{\"a\\u00", 0, X("not JSON at byte 11: \\u wants four hexadecimal digits"));
	expect("{\"a\\ud800\":1}", 0, X("not JSON at byte 11: half of a surrogate pair"));
	expect("{\"a\\udc00\":1}", 0, X("not JSON at byte 11: half of a surrogate pair"));
	expect("{\"a\\u0000\":1}", 0, X("not JSON at byte 11: NUL character"));
	expect("{\"a\xff\":1}", 0, X("not JSON at byte 11: invalid UTF-8"));
	expect("{\"a\xed\xa0\x80\":1}", 0, X("not JSON at byte 11: invalid UTF-8"));
}

TEST(names_are_judged)
{
	expect("{\"\":" A "}", 2, X("tensor '': the name at byte 9 is empty"));
	expect("{\"a\\u001b[2J\":" A "}", 2,
	       X("tensor 'a?[2J': the name at byte 9 has a control or hidden character"));
	expect("{\"a\\u009b\":" A "}", 2,
	       X("tensor 'a?': the name at byte 9 has a control or hidden character"));
	expect("{\"a\":" ENTRY("U8", "[1]", "[0,1]") ",\"a\":" ENTRY("U8", "[1]", "[1,2]") "}", 2,
	       XA("occurs twice, at byte 0 and at byte 1 of the data"));
	char *long_name = malloc(5000), *sentence;
	assert_non_null(long_name);
	snprintf(long_name, 5000, "{\"%04097d\":" A "}", 7);
	assert_true(asprintf(&sentence,
	                     X("tensor '%0159d...': the name at byte 9 is longer than 4096 bytes"),
	                     0) > 0);
	expect(long_name, 2, sentence);
	free(sentence);
	free(long_name);
}

TEST(entries_have_exactly_their_three_fields)
{
	expect("{\"a\":7}", 0, XA("its entry at byte 13 is no object"));
	expect("{\"a\":[[[[1]]]]}", 0, XA("its entry at byte 13 is no object"));
	expect("{\"a\":{}}", 0, XA("field 'dtype' is missing before byte 15"));
	expect("{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,2]}}", 2,
	       XA("field 'shape' is missing before byte 48"));
	expect("{\"a\":{\"dtype\":\"U8\",\"shape\":[2]}}", 2,
	       XA("field 'data_offsets' is missing before byte 39"));
	expect("{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\"}}", 0,
	       XA("field 'dtype' twice, again before byte 35"));
	expect("{\"a\":{\"strides\":[1]}}", 0, XA("unknown field 'strides' before byte 24"));
	expect("{\"a\":{\"dtype\":3}}", 0, XA("dtype at byte 22 is no string"));
	expect("{\"a\":" ENTRY("BF17", "[1]", "[0,2]") "}", 2, XA("unknown dtype 'BF17'"));
}

TEST(shapes_are_judged)
{
	static const char no_integer[] =
		XA("shape at byte 36 is no non-negative integer below 2^63");
	expect("{\"a\":" ENTRY("U8", "7", "[0,2]") "}", 2, XA("shape at byte 35 is no array"));
	expect("{\"a\":" ENTRY("U8", "[-1]", "[0,2]") "}", 2, no_integer);
	expect("{\"a\":" ENTRY("U8", "[1.5]", "[0,2]") "}", 2, no_integer);
	expect("{\"a\":" ENTRY("U8", "[2e0]", "[0,2]") "}", 2, no_integer);
	expect("{\"a\":" ENTRY("U8", "[02]", "[0,2]") "}", 2, no_integer);
	expect("{\"a\":" ENTRY("U8", "[\"2\"]", "[0,2]") "}", 2, no_integer);
	expect("{\"a\":" ENTRY("U8", "[9223372036854775808]", "[0,2]") "}", 2, no_integer);
	expect("{\"a\":" ENTRY("U8", "[99999999999999999999999]", "[0,2]") "}", 2, no_integer);
	expect("{\"a\":" ENTRY("U8", "[1,1,1,1,1,1,1,1,2]", "[0,2]") "}", 2,
	       XA("more than 8 dimensions"));
	expect("{\"a\":" ENTRY("U8", "[4294967296,4294967296]", "[0,2]") "}", 2,
	       XA("its shape is too large for any file"));
	expect("{\"a\":" ENTRY("F4", "[3]", "[0,2]") "}", 2,
	       XA("its shape leaves part of a byte"));
}

TEST(offsets_are_judged)
{
	expect("{\"a\":" ENTRY("U8", "[2]", "{}") "}", 2,
	       XA("data_offsets at byte 54 is no array"));
	expect("{\"a\":" ENTRY("U8", "[2]", "[2]") "}", 2, XA("data_offsets are not two integers"));
	expect("{\"a\":" ENTRY("U8", "[2]", "[0,1,2]") "}", 2,
	       XA("data_offsets are not two integers"));
	expect("{\"a\":" ENTRY("U8", "[2]", "[0,-2]") "}", 2,
	       XA("data_offsets at byte 57 is no non-negative integer below 2^63"));
	expect("{\"a\":" ENTRY("U8", "[2]", "[2,0]") "}", 2,
	       XA("data_offsets begin at 2, after their end 0"));
	expect("{\"a\":" ENTRY("U8", "[2]", "[1,3]") "}", 2,
	       XA("data_offsets end at 3, past the 2 bytes of data"));
	/* 2^53 + 1, which a double cannot hold. */
	expect("{\"a\":" ENTRY("U8", "[2]", "[0,9007199254740993]") "}", 2,
	       XA("data_offsets end at 9007199254740993, past the 2 bytes of data"));
	expect("{\"a\":" ENTRY("BF16", "[2]", "[0,2]") "}", 2,
	       XA("has 2 bytes of data where its dtype and shape need 4"));
}

TEST(the_data_is_tiled)
{
	expect("{\"a\":" ENTRY("U8", "[2]", "[1,3]") "}", 3,
	       XA("begins at byte 1 of the data, after a hole of 1 bytes"));
	expect("{\"b\":" A ",\"a\":" ENTRY("U8", "[2]", "[1,3]") "}", 3,
	       XA("begins at byte 1 of the data, inside tensor 'b', which ends at 2"));
	expect("{\"b\":" A ",\"a\":" ENTRY("U8", "[2]", "[0,2]") "}", 2,
	       XA("begins at byte 0 of the data, inside tensor 'b', which ends at 2"));
	expect("{\"b\":" A ",\"a\":" ENTRY("U8", "[1]", "[3,4]") "}", 4,
	       XA("begins at byte 3 of the data, after a hole of 1 bytes"));
	expect("{\"b\":" A ",\"a\":" ENTRY("U8", "[0]", "[1,1]") "}", 2,
	       XA("begins at byte 1 of the data, inside tensor 'b', which ends at 2"));
	expect("{\"a\":" A "}", 5, X("3 bytes from byte 63 on belong to no tensor"));
	expect("{}", 1, X("1 bytes from byte 10 on belong to no tensor"));
}

TEST(metadata_is_a_map_of_strings)
{
	expect("{\"__metadata__\":[]}", 0, X("__metadata__ at byte 24 is no object"));
	expect("{\"__metadata__\":{\"a\":1}}", 0,
	       X("value in __metadata__ at byte 29 is no string"));
	expect("{\"__metadata__\":{},\"__metadata__\":{}}", 0,
	       X("__metadata__ twice, again at byte 42"));
}

/* Seventy thousand tensors: nothing here may be quadratic. */
TEST(a_large_header_is_read)
{
	enum { N = 70000 };
	char *header = malloc(N * 128 + 16), *p = header;
	struct ws_safetensors st;
	struct ws_err err = WS_ERR_INIT;
	assert_non_null(header);
	*p++ = '{';
	for (int i = 0; i < N; i++)
		p += sprintf(p, "%s\"model.layers.%d.mlp.experts.%d.up_proj.weight\":"
		             ENTRY("U8", "[1]", "[%d,%d]"), i ? "," : "", i % 61, i, i, i + 1);
	strcpy(p, "}");
	assert_int_equal(parse(header, N, &st, &err), 0);
	assert_int_equal(st.n_tensors, N);
	ws_safetensors_free(&st);
	free(header);
}

RUN_TESTS(NULL, NULL)
