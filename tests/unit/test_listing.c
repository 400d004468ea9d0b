/* SPDX-License-Identifier: Apache-2.0 */
/* Saved listings in every form that programs print, and what is none. */
#include "listing_read.h"
#include "scratch.h"
#include "test.h"

static struct ws_weight_list read_text(const char *text)
{
	struct ws_weight_list list;
	struct ws_err err;
	assert_ok(ws_weight_list_parse(text, strlen(text), "list", &list, &err), &err);
	return list;
}

static void expect(const struct ws_weight *w, const char *name, const char *dtype, unsigned n_dims,
                   int64_t a, int64_t b)
{
	assert_string_equal(w->name, name);
	assert_string_equal(w->dtype, dtype);
	assert_int_equal(w->n_dims, n_dims);
	assert_false(w->shapeless);
	if (n_dims > 0)
		assert_int_equal(w->dims[0], a);
	if (n_dims > 1)
		assert_int_equal(w->dims[1], b);
}

TEST(the_servers_own_reply_is_read)
{
	struct ws_weight_list list =
		read_text("{\"success\":true,\"message\":\"Found 2 weights\",\"weights\":[\n"
	                  " {\"name\":\"model.norm.weight\",\"shape\":[2048],\"data_ptr\":140},\n"
	                  " {\"name\":\"lm_head.weight\",\"shape\":[64,2048],\"dtype\":\"torch."
	                  "bfloat16\"}]}");
	assert_int_equal(list.n, 2);
	expect(&list.items[0], "model.norm.weight", "", 1, 2048, 0);
	expect(&list.items[1], "lm_head.weight", "bfloat16", 2, 64, 2048);
	assert_false(list.received);
	ws_weight_list_free(&list);
}

TEST(a_reply_says_whether_it_is_of_what_arrived)
{
	struct ws_weight_list list =
		read_text("{\"received\":true,\"weights\":[{\"name\":\"a\",\"shape\":[]}]}");
	assert_true(list.received);
	ws_weight_list_free(&list);
}

TEST(json_lines_are_read)
{
	struct ws_weight_list list = read_text(
		"{\"schema\":1,\"type\":\"start\",\"command\":\"list-weights\"}\n"
		"{\"type\":\"tensor\",\"name\":\"a.weight\",\"dtype\":null,\"shape\":[3,4],"
		"\"bytes\":null}\n"
		"\n"
		"{\"type\":\"tensor\",\"name\":\"step\",\"dtype\":\"int64\",\"shape\":[],\"bytes\":"
	        "8}\r\n"
		"{\"type\":\"end\",\"ok\":true,\"exit\":0}\n");
	assert_int_equal(list.n, 2);
	expect(&list.items[0], "a.weight", "", 2, 3, 4);
	expect(&list.items[1], "step", "int64", 0, 0, 0);
	ws_weight_list_free(&list);
}

TEST(tables_are_read)
{
	struct ws_weight_list list = read_text(
		"==> http://gpu7:30000 <==\n"
		"model.embed_tokens.weight  bfloat16  [32, 16]  1.00 KiB  3250b0faab92455f\n"
		"model.norm.weight          -         [16]            -\n"
		"plain.weight [4,5]\n"
		"step                       int64     []             8 B\n"
		"4 tensors, 2.04 KiB\n");
	assert_int_equal(list.n, 4);
	expect(&list.items[0], "model.embed_tokens.weight", "bfloat16", 2, 32, 16);
	expect(&list.items[1], "model.norm.weight", "", 1, 16, 0);
	expect(&list.items[2], "plain.weight", "", 2, 4, 5);
	expect(&list.items[3], "step", "int64", 0, 0, 0);
	ws_weight_list_free(&list);
}

TEST(tab_separated_lists_are_read)
{
	struct ws_weight_list list = read_text("a.weight\tbfloat16\t64,16\t2048\n"
	                                       "b.weight\t-\t7\t-\n"
	                                       "step\tint64\t-\t8\n");
	assert_int_equal(list.n, 3);
	expect(&list.items[0], "a.weight", "bfloat16", 2, 64, 16);
	expect(&list.items[1], "b.weight", "", 1, 7, 0);
	expect(&list.items[2], "step", "int64", 0, 0, 0);
	ws_weight_list_free(&list);
}

TEST(names_alone_have_no_shape)
{
	struct ws_weight_list list = read_text("# saved on Monday\na.weight\n\nb.weight");
	assert_int_equal(list.n, 2);
	assert_true(list.items[0].shapeless);
	assert_string_equal(list.items[1].name, "b.weight");
	ws_weight_list_free(&list);
	list = read_text("{\"ranks\":[{\"checksums\":{\"a.weight\":\"00\",\"b.weight\":\"01\"}},"
	                 "{\"checksums\":{}}]}");
	assert_int_equal(list.n, 2);
	assert_true(list.items[1].shapeless);
	ws_weight_list_free(&list);
}

TEST(what_is_no_listing_is_refused_with_its_line)
{
	static const char *const bad[][2] = {
		{ "", "list: lists no parameters" },
		{ "\n\n", "list: lists no parameters" },
		{ "{}",
		  "list:1: an object without \"type\" is no line of wsync-list-weights --json" },
		{ "{\"weights\":[]}", "list: lists no parameters" },
		{ "{\"weights\":[{\"name\":\"a\"}]}",
		  "list: weights[0] has no proper name and shape" },
		{ "{\"weights\":[{\"name\":\"a\",\"shape\":[-1]}]}",
		  "list: weights[0] has no proper name and shape" },
		{ "{\"weights\":[{\"name\":\"\\u0007\",\"shape\":[1]}]}",
		  "list: weights[0] has no proper name and shape" },
		{ "{\"weights\":[{\"name\":\"a\",\"shape\":[1,1,1,1,1,1,1,1,1]}]}",
		  "list: weights[0] has no proper name and shape" },
		{ "a.weight [1]\n{\"type\":\"tensor\"}\n", "list:2: no proper name and shape" },
		{ "a.weight [1]\n{\"type\":\n",
		  "list:2: neither JSON nor the name of a parameter" },
		{ "a.weight [1]\nb.weight [1, x]\n",
		  "list:2: NAME [DTYPE] SHAPE: the shape is not like [4096, 2048] or 4096,2048" },
		{ "a.weight bfloat16\n",
		  "list:1: NAME [DTYPE] SHAPE: the shape is not like [4096, 2048] or 4096,2048" },
		{ "a.weight float7 [1]\n", "list:1: NAME [DTYPE] SHAPE: there is no such type" },
		{ "a.weight [1]x\n", "list:1: NAME [DTYPE] SHAPE: text behind the shape" },
		{ "a.weight [99999999999999999999]\n",
		  "list:1: NAME [DTYPE] SHAPE: the shape is not like [4096, 2048] or 4096,2048" },
		{ "<html>\n<body> Not Found\n",
		  "list:2: NAME [DTYPE] SHAPE: there is no such type" },
		{ "a.weight [1]\na.weight [2]\n", "list: 'a.weight' is listed twice" },
	};
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
		struct ws_weight_list list = { 0 };
		struct ws_err err = WS_ERR_INIT;
		if (!ws_weight_list_parse(bad[i][0], strlen(bad[i][0]), "list", &list, &err))
			fail_msg("%s: read as %zu weights", bad[i][0], list.n);
		assert_int_equal(err.code, WS_EINPUT);
		assert_string_equal(err.msg, bad[i][1]);
	}
}

SCRATCH_TEST(files_are_read_and_missing_ones_named)
{
	struct ws_weight_list list = { 0 };
	struct ws_err err;
	put_text("saved.json", "{\"weights\":[{\"name\":\"a\",\"shape\":[2]}]}");
	assert_int_equal(ws_weight_list_read("saved.json", &list, &err), 0);
	assert_int_equal(list.n, 1);
	ws_weight_list_free(&list);
	assert_fails(ws_weight_list_read("absent.json", &list, &err), &err, WS_EINPUT,
	             "absent.json");
	ws_weight_list_free(&list);
	ws_weight_list_free(NULL);
}

RUN_TESTS(NULL, NULL)
