/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers that servers show: arrays of every shape, and what is none. */
#include "endpoint_call.h"
#include "endpoint_weights.h"
#include "test.h"
#include "tiny_http.h"

#include <locale.h>
#include <math.h>

static int decode(const char *text, size_t most, struct ws_values *v, struct ws_err *err)
{
	*err = (struct ws_err)WS_ERR_INIT;
	return ws_endpoint_decode_values(text, strlen(text), most, v, err);
}

TEST(arrays_of_numbers_are_read_exactly)
{
	struct ws_values v;
	struct ws_err err;
	assert_int_equal(decode(" [ [0.1, -2e-3 ,3],\n[1E2,0,-0.0] ] ", 6, &v, &err), 0);
	assert_int_equal(v.n_dims, 2);
	assert_int_equal(v.dims[0], 2);
	assert_int_equal(v.dims[1], 3);
	assert_int_equal(v.n, 6);
	assert_true(v.numbers[0] == 0.1 && v.numbers[1] == -2e-3 && v.numbers[3] == 100);
	assert_true(signbit(v.numbers[5]));
	ws_values_free(&v);
	assert_int_equal(decode("[0.100000001490116119384765625]", 1, &v, &err), 0);
	assert_true(v.numbers[0] == (double)0.1f);
	ws_values_free(&v);
	assert_int_equal(decode("[[[[[[[[[1]]]]]]]]]", 1, &v, &err), 0);
	assert_int_equal(v.n_dims, 9);
	ws_values_free(&v);
}

TEST(what_is_not_finite_has_many_names)
{
	struct ws_values v;
	struct ws_err err;
	assert_int_equal(decode("[null,NaN,Infinity,-Infinity,1e999]", 5, &v, &err), 0);
	assert_true(isnan(v.numbers[0]) && isnan(v.numbers[1]));
	assert_true(v.numbers[2] == INFINITY && v.numbers[3] == -INFINITY);
	assert_true(v.numbers[4] == INFINITY);
	ws_values_free(&v);
}

TEST(empty_arrays_have_a_shape)
{
	struct ws_values v;
	struct ws_err err;
	assert_int_equal(decode("[]", 5, &v, &err), 0);
	assert_int_equal(v.n_dims, 1);
	assert_int_equal(v.dims[0], 0);
	ws_values_free(&v);
	assert_int_equal(decode("[[],[]]", 5, &v, &err), 0);
	assert_int_equal(v.n_dims, 2);
	assert_int_equal(v.dims[0], 2);
	assert_int_equal(v.n, 0);
	ws_values_free(&v);
}

TEST(what_is_no_array_of_numbers_is_refused)
{
	/* clang-format off */
	static const char *const bad[] = {
		"", " ", "1", "null", "{}", "\"x\"", "[", "[[", "[1", "[1,", "[1,]", "[,1]",
		"[1 2]", "[1]]", "[1][2]", "[1] x", "[\"1\"]", "[true]", "[[1],2]", "[1,[2]]",
		"[[1],[2,3]]", "[[1,2],[3]]", "[[],[1]]", "[[],1]", "[[],[[1]]]", "[[[1]],[2]]",
		"[0x10]", "[1e]", "[--1]", "[1.2.3]", "[nul]", "[+Infinity]", "[inf]", "[{}]",
		"[[[[[[[[[[1]]]]]]]]]]",
		"[0.00000000000000000000000000000000000000000000000000000000000000000001]"
	};
	/* clang-format on */
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		struct ws_values v;
		struct ws_err err;
		if (!decode(bad[i], 100, &v, &err))
			fail_msg("taken: %s", bad[i]);
		assert_int_equal(err.code, WS_EREFUSED);
		assert_non_null(strstr(err.msg, "no array of numbers"));
		assert_null(v.numbers);
	}
	struct ws_values v;
	struct ws_err err;
	assert_int_equal(ws_endpoint_decode_values("[1]\0", 4, 9, &v, &err), -1);
	assert_int_equal(ws_endpoint_decode_values("[1\0]", 4, 9, &v, &err), -1);
}

TEST(more_than_was_asked_for_is_refused)
{
	struct ws_values v;
	struct ws_err err;
	assert_fails(decode("[1,2,3]", 2, &v, &err), &err, WS_EREFUSED, "more than the 2 numbers");
}

TEST(a_million_brackets_are_no_trouble)
{
	struct ws_values v;
	struct ws_err err;
	char *deep = malloc(1000001);
	memset(deep, '[', 1000000);
	deep[1000000] = '\0';
	assert_int_equal(decode(deep, 100, &v, &err), -1);
	free(deep);
}

TEST(numbers_have_a_point_in_every_language)
{
	struct ws_values v;
	struct ws_err err;
	static const char *const commas[] = { "de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8" };
	for (size_t i = 0; i < sizeof commas / sizeof *commas; i++)
		if (setlocale(LC_ALL, commas[i]))
			break;
	assert_int_equal(decode("[1.5]", 1, &v, &err), 0);
	assert_true(v.numbers[0] == 1.5);
	ws_values_free(&v);
	setlocale(LC_ALL, "C");
}

/* ---- calls ---- */

static struct tiny engines[2];
static char last_body[2][256];

static const char *route(struct tiny *t, const char *method, const char *path, const char *body,
                         int *status)
{
	(void)method;
	const int i = t == &engines[1];
	snprintf(last_body[i], sizeof last_body[i], "%s", body);
	if (strcmp(path, "/get_weights_by_name"))
		return NULL;
	if (!i)
		return "[[1,2],[3,4]]";
	*status = 400;
	return "{\"error\":{\"message\":\"Get parameter by name failed\"}}";
}

TEST(each_endpoint_answers_for_itself)
{
	char base[2][64];
	const char *urls[2] = { base[0], base[1] };
	struct ws_http *http;
	struct ws_values v[2];
	struct ws_err errs[2], err;
	for (int i = 0; i < 2; i++) {
		tiny_start(&engines[i]);
		engines[i].route = route;
		tiny_url(&engines[i], "", base[i], sizeof base[i]);
	}
	assert_int_equal(ws_client_open(&(struct ws_client_opts){ .api_key = NULL }, &http, &err),
	                 0);
	const struct ws_call one = { http, urls, 1, ws_deadline_in(5 * WS_NS_PER_S), NULL, NULL };
	struct ws_call both = one;
	both.n = 2;
	assert_int_equal(ws_endpoint_get_weights(&both, "a \"b\"", 2, 4, v, errs, &err), -1);
	assert_string_equal(last_body[0], "{\"name\":\"a \\\"b\\\"\",\"truncate_size\":2}");
	assert_int_equal(errs[0].code, WS_OK);
	assert_int_equal(v[0].n, 4);
	assert_int_equal(errs[1].code, WS_EREFUSED);
	assert_non_null(strstr(err.msg, "Get parameter by name failed"));
	assert_string_equal(err.endpoint, base[1]);
	ws_values_free(&v[0]);
	ws_values_free(&v[1]);
	assert_int_equal(ws_endpoint_get_weights(&one, "a", 2, 3, v, errs, &err), -1);
	assert_string_equal(err.endpoint, base[0]);
	engines[0].route = NULL; /* "hello" */
	assert_int_equal(ws_endpoint_get_weights(&one, "a", 2, 3, v, errs, &err), -1);
	assert_int_equal(err.code, WS_EREFUSED);
	ws_client_close(http);
	tiny_stop(&engines[0]);
	tiny_stop(&engines[1]);
}

RUN_TESTS(NULL, NULL)
