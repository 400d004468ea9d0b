/* SPDX-License-Identifier: Apache-2.0 */
/* The guards around cJSON, and the writer. */
#include "wsync/tool/json_read.h"
#include "test.h"

#include <math.h>

static struct ws_json *parse(const char *text, struct ws_err *err)
{
	return ws_json_parse(text, strlen(text), "reply", err);
}

static void refuses(const char *text, size_t len, const char *words)
{
	struct ws_err err = WS_ERR_INIT;
	assert_null(ws_json_parse(text, len, "reply", &err));
	assert_int_equal(err.code, WS_EINPUT);
	if (!strstr(err.msg, words))
		fail_msg("\"%s\" does not say \"%s\"", err.msg, words);
}

TEST(what_is_not_one_value_is_refused)
{
	refuses("", 0, "byte 0");
	refuses("{", 1, "byte");
	refuses("{} x", 4, "byte 3: text after the value");
	refuses("{}{}", 4, "text after");
	refuses("{\"a\":1,}", 8, "byte");
	refuses("nul", 3, "byte");
	refuses("{\"a\":\"b\0c\"}", 11, "byte 7: NUL");
	refuses("{\"a\":\"b\\u0000c\"}", 16, "byte 7: NUL");
	refuses("{\"a\xe9\":1,\"a\xe8\":2}", 15, "byte 3: not UTF-8");
	refuses("{\"a\":\"\\\xe9\"}", 10, "byte 6");
	refuses("[\"\xed\xa0\x80\"]", 7, "byte 2: not UTF-8"); /* a surrogate */
	refuses("[\"\xc3\"]", 5, "byte 2: not UTF-8");
	struct ws_json *ok = parse(" {\"a\":\"b\\\\u0000\"} \n", NULL);
	assert_string_equal(ws_json_get_string(ok, "a", ""), "b\\u0000");
	ws_json_free(ok);
}

TEST(depth_has_a_limit)
{
	enum { N = 100000 };
	char *deep = malloc(N);
	memset(deep, '[', N);
	refuses(deep, N, "not JSON");
	free(deep);
}

TEST(the_text_need_not_end_in_nul)
{
	char *exact = malloc(2); /* a sanitizer sees a read past it */
	memcpy(exact, "12", 2);
	struct ws_json *j = ws_json_parse(exact, 2, "reply", NULL);
	int64_t n = 0;
	assert_true(ws_json_int(j, &n));
	assert_int_equal(n, 12);
	ws_json_free(j);
	free(exact);
}

TEST(integers_are_exact_or_refused)
{
	struct ws_json *j =
		parse("{\"big\":9007199254740991,\"over\":9007199254740993,\"half\":1.5,"
	              "\"neg\":-9007199254740991,\"huge\":1e300,\"text\":\"7\",\"e\":1e3}",
	              NULL);
	int64_t n = 0;
	assert_true(ws_json_int(ws_json_get(j, "big"), &n));
	assert_true(n == INT64_C(9007199254740991));
	assert_true(ws_json_int(ws_json_get(j, "neg"), &n));
	assert_false(ws_json_int(ws_json_get(j, "over"), &n));
	assert_false(ws_json_int(ws_json_get(j, "half"), &n));
	assert_false(ws_json_int(ws_json_get(j, "huge"), &n));
	assert_false(ws_json_int(ws_json_get(j, "text"), &n));
	assert_false(ws_json_int(NULL, &n));
	assert_int_equal(ws_json_get_int(j, "e", 0), 1000);
	assert_int_equal(ws_json_get_int(j, "absent", -3), -3);
	ws_json_free(j);
}

TEST(keys_are_case_sensitive_and_doubles_are_found)
{
	struct ws_json *j = parse("{\"Name\":1,\"name\":2,\"x\":{\"name\":3,\"name\":4}}", NULL);
	assert_int_equal(ws_json_get_int(j, "name", 0), 2);
	assert_null(ws_json_get(j, "NAME"));
	assert_null(ws_json_duplicate(j));
	assert_string_equal(ws_json_duplicate(ws_json_get(j, "x")), "name");
	assert_null(ws_json_get(ws_json_get(j, "name"), "of a number"));
	assert_int_equal(ws_json_count(j), 3);
	assert_int_equal(ws_json_type(NULL), WS_JSON_NULL);
	ws_json_free(j);
}

TEST(what_is_written_is_what_was_given)
{
	struct ws_buf b;
	struct ws_jw w;
	ws_buf_init(&b, 0);
	ws_jw_init(&w, &b);
	ws_jw_object(&w, NULL);
	ws_jw_uint(&w, "u", UINT64_MAX);
	ws_jw_int(&w, "i", INT64_MIN);
	ws_jw_array(&w, "a");
	ws_jw_object(&w, NULL);
	ws_jw_end_object(&w);
	ws_jw_bool(&w, NULL, true);
	ws_jw_null(&w, NULL);
	ws_jw_end_array(&w);
	ws_jw_hex64(&w, "h", 0x1f);
	ws_jw_double(&w, "nan", NAN);
	ws_jw_double(&w, "float", 0.010498046875);
	ws_jw_double(&w, "double", 1.0 / 3.0);
	ws_jw_str(&w, "none", NULL);
	ws_jw_str(&w, "s\"k", "q\"b\\n\nt\tx\x01\x7f\xff" "e");
	ws_jw_strn(&w, "cut", "abc", 2);
	ws_jw_strs(&w, "list", (const char *const[]){ "a", NULL, "b" }, 3);
	ws_jw_strs(&w, "empty", NULL, 0);
	ws_jw_end_object(&w);
	assert_string_equal(
		ws_buf_str(&b),
		"{\"u\":18446744073709551615,\"i\":-9223372036854775808,\"a\":[{},true,null],"
		"\"h\":\"000000000000001f\",\"nan\":null,\"float\":0.010498046875,\"double\":0."
	        "333333333,\"none\":null,"
		"\"s\\\"k\":\"q\\\"b\\\\n\\nt\\tx\\u0001\\u007f\\ufffde\",\"cut\":\"ab\",\"list\":["
	        "\"a\",null,\"b\"],\"empty\":[]}");
	ws_buf_free(&b);
}

/* Nothing that a terminal hides, or that turns the text around it, is written as itself. */
TEST(what_is_not_seen_is_escaped)
{
	static const char text[] = "a\xe2\x80\xae""b\xc2\x9b""c\xf3\xa0\x81\x81""d\xc3\xa9";
	struct ws_buf b;
	struct ws_jw w;
	ws_buf_init(&b, 0);
	ws_jw_init(&w, &b);
	ws_jw_str(&w, NULL, text);
	assert_string_equal(ws_buf_str(&b), "\"a\\u202eb\\u009bc\\udb40\\udc41d\xc3\xa9\"");
	struct ws_json *back = parse(ws_buf_str(&b), NULL);
	assert_string_equal(ws_json_string(back), text);
	ws_json_free(back);
	ws_buf_free(&b);
}

/* N values in all: an array of N - 1 of them. */
static char *array_of(const char *item, size_t n)
{
	const size_t len = strlen(item);
	char *text = malloc(n * (len + 1) + 2);
	text[0] = '[';
	for (size_t i = 0; i + 1 < n; i++)
		memcpy(text + 1 + i * len, item, len);
	strcpy(text + (n - 1) * len, "]"); /* over the last comma */
	return text;
}

TEST(values_are_counted_before_they_are_parsed)
{
	enum { MOST = 1000 };
	static const char *const items[] = { "0,", "\"\",", "\"[[[,,,{\\\",,\",", "null,",
		                             "\n1 ," };
	for (size_t i = 0; i < sizeof items / sizeof *items; i++) {
		struct ws_err err = WS_ERR_INIT;
		char *fits = array_of(items[i], MOST), *more = array_of(items[i], MOST + 1);
		struct ws_json *j = ws_json_parse_most(fits, strlen(fits), MOST, "reply", &err);
		assert_int_equal(ws_json_count(j), MOST - 1);
		ws_json_free(j);
		assert_null(ws_json_parse_most(more, strlen(more), MOST, "reply", &err));
		assert_int_equal(err.code, WS_EINPUT);
		assert_string_equal(err.msg,
		                    "reply: has 1001 JSON values and keys, and at most 1000 "
		                    "are read");
		free(fits);
		free(more);
	}
	/* Values inside of others count too. */
	const char nested[] = "{\"a\":[1,{\"b\":[2,3]}],\"c\":4}";
	struct ws_json *j = ws_json_parse_most(nested, sizeof nested - 1, 11, "reply", NULL);
	assert_non_null(j);
	ws_json_free(j);
	assert_null(ws_json_parse_most(nested, sizeof nested - 1, 10, "reply", NULL));
}

/* A member of an object takes as much memory as two elements of an array, also if its key is empty
 * or that of another member. */
TEST(keys_are_counted_as_values_are)
{
	enum { N = 500 };
	static const char *const members[] = { "\"\":0", "\"a\":0", "\"a\":\"b:c\"",
		                               "\"::\" : {}" };
	for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
		struct ws_buf b;
		ws_buf_init(&b, 0);
		for (int k = 0; k < N; k++)
			ws_buf_printf(&b, "%c%s", k ? ',' : '{', members[i]);
		ws_buf_putc(&b, '}');
		const size_t most = 2 * N + 1 + (i == 3 ? N : 0); /* "{" is counted as a value */
		struct ws_json *j = ws_json_parse_most(b.data, b.len, most, "reply", NULL);
		assert_int_equal(ws_json_count(j), N);
		ws_json_free(j);
		assert_null(ws_json_parse_most(b.data, b.len, most - 1, "reply", NULL));
		ws_buf_free(&b);
	}
}

/* As SGLang's /list_weights answers for DeepSeek-V3 in FP8. */
TEST(a_listing_of_a_large_model_fits_an_answer)
{
	enum { TENSORS = 93000 };
	struct ws_buf b;
	ws_buf_init(&b, 0);
	ws_buf_puts(&b, "{\"success\":true,\"weights\":[");
	for (int i = 0; i < TENSORS; i++)
		ws_buf_printf(&b, "%s{\"name\":\"model.layers.%d.mlp.experts.%d.down_proj.weight\","
		              "\"shape\":[7168,2048],\"dtype\":\"torch.float8_e4m3fn\","
		              "\"data_ptr\":140000000000000}", i ? "," : "", i / 1536, i % 256);
	ws_buf_puts(&b, "]}");
	struct ws_json *j = ws_json_parse_most(b.data, b.len, WS_JSON_LARGE, "reply", NULL);
	assert_int_equal(ws_json_count(ws_json_get(j, "weights")), TENSORS);
	ws_json_free(j);
	ws_buf_free(&b);
}

TEST(what_is_written_can_be_read_whatever_the_bytes)
{
	for (unsigned seed = 1; seed <= 2000; seed++) {
		char text[40];
		unsigned x = seed * 2654435761u;
		const size_t n = seed % sizeof text;
		for (size_t i = 0; i < n; i++) {
			x = x * 1664525u + 1013904223u;
			text[i] = (char)(x >> 24);
			if (!text[i])
				text[i] = 1; /* JSON has it, ws_json_parse refuses it */
		}
		struct ws_buf b;
		struct ws_jw w;
		ws_buf_init(&b, 0);
		ws_jw_init(&w, &b);
		ws_jw_array(&w, NULL);
		ws_jw_strn(&w, NULL, text, n);
		ws_jw_end_array(&w);
		struct ws_err err = WS_ERR_INIT;
		struct ws_json *j = ws_json_parse(b.data, b.len, "line", &err);
		if (!j)
			fail_msg("%s: %s", err.msg, b.data);
		assert_int_equal(ws_json_count(j), 1);
		ws_json_free(j);
		ws_buf_free(&b);
	}
}

RUN_TESTS(NULL, NULL)
