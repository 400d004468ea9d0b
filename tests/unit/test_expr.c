/* SPDX-License-Identifier: Apache-2.0 */
/* Expressions over a config: values, what is not known, what cannot be, and how much is too
 * much. */
#include "expr.h"
#include "test.h"

static struct ws_config *config;

static int open_config(void **state)
{
	static const char text[] = "{\"H\":4096,\"I\":14336,\"Q\":32,\"none\":null,\"s\":\"x\","
	                           "\"yes\":true,\"layers\":[1,5],\"E\":128,\"neg\":-7}";
	(void)state;
	return ws_config_parse(text, strlen(text), "ckpt/config.json", &config, NULL);
}

static int close_config(void **state)
{
	(void)state;
	ws_config_free(config);
	return 0;
}

static int evaluate_in(const struct ws_scope *scope, const char *text, int64_t *out,
                       struct ws_err *err)
{
	struct ws_expr *e = NULL;
	char *exact = malloc(strlen(text) + !*text); /* a sanitizer sees a read past it */
	memcpy(exact, text, strlen(text));
	int rc = ws_expr_parse(exact, strlen(text), &e, err);
	free(exact);
	if (rc == 0)
		rc = ws_expr_eval(e, scope, out, err);
	ws_expr_free(e);
	return rc;
}

static int evaluate(const char *text, int64_t *out, struct ws_err *err)
{
	const struct ws_scope scope = { .config = config };
	return evaluate_in(&scope, text, out, err);
}

static void is(const char *text, int64_t wanted)
{
	struct ws_err err = WS_ERR_INIT;
	int64_t value = 0;
	if (evaluate(text, &value, &err))
		fail_msg("%s: %s", text, err.msg);
	if (value != wanted)
		fail_msg("%s is %lld, not %lld", text, (long long)value, (long long)wanted);
	assert_string_equal(err.msg, "");
}

static void fails(const char *text, const char *message)
{
	struct ws_err err = WS_ERR_INIT;
	int64_t value = 77;
	assert_int_equal(evaluate(text, &value, &err), -1);
	assert_int_equal(value, 77);
	assert_int_equal(err.code, WS_EINPUT);
	assert_string_equal(err.msg, message);
}

TEST(arithmetic_is_what_it_looks_like)
{
	is("1 + 2 * 3", 7);
	is("(1 + 2) * 3", 9);
	is("10 - 3 - 2", 5);
	is("100 / 5 / 2", 10);
	is("2*3%4", 2);
	is("H / Q", 128);
	is("  H/Q  ", 128);
	is("neg % 4", -3);
	is("ceil(5, 2)", 3);
	is("ceil(4, 2)", 2);
	is("ceil(neg, 2)", -3);
	is("ceil(neg, 0 - 2)", 4);
	is("max(H, I)", 14336);
	is("min(H, I)", 4096);
	is("max(1, min(2, 3)) * 2", 4);
	is("9223372036854775807", INT64_MAX);
}

TEST(logic_is_zero_or_one)
{
	is("1 < 2", 1);
	is("2 <= 2", 1);
	is("1 > 2", 0);
	is("1 >= 2", 0);
	is("1 == 1", 1);
	is("1 != 1", 0);
	is("not 5", 0);
	is("not not 5", 1);
	is("3 and 5", 1);
	is("0 or 7", 1);
	is("not 0 and not 0", 1);
	is("1 or 0 and 0", 1);
	is("1 + 1 == 2 and 2 * 2 == 4", 1);
	is("has(layers, 5)", 1);
	is("has(layers, 2 * 3)", 0);
	is("has(none, 1)", 0);
	is("not has(layers, 1) or yes", 1);
}

TEST(the_first_that_is_known_counts)
{
	is("none ?? 5", 5);
	is("absent ?? H", 4096);
	is("absent ?? none ?? 3", 3);
	is("H ?? absent", 4096);
	is("absent * 2 + 1 ?? 9", 9);
	is("(absent ?? 1) == 1", 1);
	is("has(absent, 3)", 0);
	fails("absent ?? missing",
	      "ckpt/config.json has no \"missing\", which \"absent ?? missing\" needs");
	fails("1 / 0 ?? 5", "expression \"1 / 0 ?? 5\" divides by zero");
	fails("s ?? 5", "ckpt/config.json: \"s\" is no integer");
}

TEST(the_right_side_is_left_alone_where_the_left_one_decides)
{
	is("0 and 1 / 0", 0);
	is("1 or 1 / 0", 1);
	is("0 and absent", 0);
	is("1 or absent", 1);
}

TEST(wrong_numbers_are_errors)
{
	fails("absent", "ckpt/config.json has no \"absent\"");
	fails("H + absent", "ckpt/config.json has no \"absent\", which \"H + absent\" needs");
	fails("s", "ckpt/config.json: \"s\" is no integer");
	fails("H / 0", "expression \"H / 0\" divides by zero");
	fails("H % 0", "expression \"H % 0\" divides by zero");
	fails("ceil(H, 0)", "expression \"ceil(H, 0)\" divides by zero");
	fails("H / 3", "expression \"H / 3\" divides 4096 by 3, which leaves 1");
	fails("9223372036854775807 + 1",
	      "expression \"9223372036854775807 + 1\" comes to more than 64 bits");
	fails("0 - 9223372036854775807 - 2",
	      "expression \"0 - 9223372036854775807 - 2\" comes to more than 64 bits");
	fails("H * 9223372036854775807",
	      "expression \"H * 9223372036854775807\" comes to more than 64 bits");
	fails("(0 - 9223372036854775807 - 1) / (0 - 1)",
	      "expression \"(0 - 9223372036854775807 - 1) / (0 - 1)\" comes to more than 64 bits");
	fails("(0 - 9223372036854775807 - 1) % (0 - 1)",
	      "expression \"(0 - 9223372036854775807 - 1) % (0 - 1)\" comes to more than 64 bits");
}

TEST(what_cannot_be_read_is_quoted)
{
	fails("", "expression \"\" ends where a number or a name should be");
	fails("H +", "expression \"H +\" ends where a number or a name should be");
	fails("* 2", "expression \"* 2\" has '*' where a number or a name should be");
	fails("-1", "expression \"-1\" has '-' where a number or a name should be");
	fails("H H", "expression \"H H\" has 'H' where an operator or the end should be");
	fails("2x", "expression \"2x\" has 'x' where an operator or the end should be");
	fails("1 < 2 < 3",
	      "expression \"1 < 2 < 3\" has '<' where an operator or the end should be");
	fails("(H", "expression \"(H\" ends where ')' should be");
	fails("H)", "expression \"H)\" has ')' where an operator or the end should be");
	fails("max(1)", "expression \"max(1)\" has ')' where ',' should be");
	fails("max(1, 2, 3)", "expression \"max(1, 2, 3)\" has ',' where ')' should be");
	fails("max", "expression \"max\" ends where '(' should be");
	fails("has(3, 1)", "expression \"has(3, 1)\" has '3' where a name should be");
	fails("1 and or 2",
	      "expression \"1 and or 2\" has 'or' where a number or a name should be");
	fails("H = 2", "expression \"H = 2\" has '=' where an operator or the end should be");
	fails("H ? 2", "expression \"H ? 2\" has '?' where an operator or the end should be");
	fails("9223372036854775808", "expression \"9223372036854775808\" has '9223372036854775808' "
	      "where a number of 64 bits should be");
	fails("H \x1b[31m",
	      "expression \"H ?[31m\" has '?' where an operator or the end should be");
}

TEST(scopes_nest)
{
	struct ws_expr *twice, *again, *sparse;
	assert_int_equal(ws_expr_parse("H * 2", 5, &twice, NULL), 0);
	assert_int_equal(ws_expr_parse("E / 2", 5, &again, NULL), 0);
	assert_int_equal(ws_expr_parse("l >= first", 10, &sparse, NULL), 0);
	const struct ws_let lets[] = { { "E", twice }, { "sparse", sparse }, { "E", again } };
	const struct ws_scope outer = { .config = config, .lets = lets, .n_lets = 3 };
	const struct ws_scope first = { .outer = &outer, .name = "first", .value = 3 };
	const struct ws_scope inner = { .outer = &first, .name = "l", .value = 5 };
	const struct ws_scope hidden = { .outer = &inner, .name = "l", .value = 1 };
	struct ws_err err = WS_ERR_INIT;
	int64_t v;
	/* The later E is half of the earlier, which hides the config's. */
	assert_true(evaluate_in(&inner, "E", &v, &err) == 0 && v == 4096);
	/* A let sees the variables of who asks. */
	assert_true(evaluate_in(&inner, "sparse", &v, &err) == 0 && v == 1);
	assert_true(evaluate_in(&hidden, "sparse", &v, &err) == 0 && v == 0);
	assert_int_equal(evaluate_in(&outer, "sparse", &v, &err), -1);
	assert_string_equal(err.msg, "ckpt/config.json has no \"l\", which \"l >= first\" needs");
	const struct ws_scope bare = { .name = "x", .value = 1 };
	assert_int_equal(evaluate_in(&bare, "y", &v, &err), -1);
	assert_string_equal(err.msg, "config.json has no \"y\"");
	ws_expr_free(twice);
	ws_expr_free(again);
	ws_expr_free(sparse);
}

TEST(lets_in_a_circle_come_to_an_end)
{
	struct ws_expr *a, *b;
	assert_int_equal(ws_expr_parse("b + 1", 5, &a, NULL), 0);
	assert_int_equal(ws_expr_parse("a + 1", 5, &b, NULL), 0);
	const struct ws_let lets[] = { { "a", a }, { "b", b } };
	const struct ws_scope scope = { .config = config, .lets = lets, .n_lets = 2 };
	struct ws_err err = WS_ERR_INIT;
	int64_t v;
	assert_int_equal(evaluate_in(&scope, "a", &v, &err), -1);
	assert_string_equal(err.msg, "ckpt/config.json has no \"a\", which \"a + 1\" needs");
	ws_expr_free(a);
	ws_expr_free(b);
}

TEST(lets_that_double_each_other_run_into_a_limit)
{
	enum { N = 40 };
	struct ws_expr *e[N];
	struct ws_let lets[N];
	char names[N][16], text[32];
	for (int i = 0; i < N; i++) {
		snprintf(names[i], sizeof names[i], "v%d", i);
		snprintf(text, sizeof text, "v%d + v%d", i - 1, i - 1);
		if (i == 0)
			strcpy(text, "1");
		assert_int_equal(ws_expr_parse(text, strlen(text), &e[i], NULL), 0);
		lets[i] = (struct ws_let){ names[i], e[i] };
	}
	const struct ws_scope scope = { .lets = lets, .n_lets = N };
	struct ws_err err = WS_ERR_INIT;
	int64_t v;
	assert_true(evaluate_in(&scope, "v10", &v, &err) == 0 && v == 1024);
	assert_int_equal(evaluate_in(&scope, "v39", &v, &err), -1);
	assert_non_null(strstr(err.msg, "needs too many steps or levels"));
	for (int i = 0; i < N; i++)
		ws_expr_free(e[i]);
}

TEST(length_and_depth_have_limits)
{
	struct ws_err err = WS_ERR_INIT;
	struct ws_expr *e;
	char text[1100];
	int64_t v;
	/* The longest chain of one level still evaluates. */
	for (size_t i = 0; i < 999; i++)
		text[i] = i % 2 ? '+' : '1';
	text[999] = 0;
	assert_true(evaluate(text, &v, &err) == 0 && v == 500);
	memset(text, '1', sizeof text);
	assert_int_equal(ws_expr_parse(text, 1001, &e, &err), -1);
	assert_string_equal(err.msg, "expression of 1001 characters, more than 1000");
	memset(text, '(', sizeof text);
	assert_int_equal(ws_expr_parse(text, 1000, &e, &err), -1);
	assert_string_equal(err.msg, "expression nests brackets deeper than 32");
	memset(text, 'n', sizeof text);
	assert_int_equal(ws_expr_parse(text, 64, &e, &err), -1);
	assert_non_null(strstr(err.msg, "where a shorter name should be"));
	assert_int_equal(ws_expr_parse("1\0+", 3, &e, &err), -1);
	assert_string_equal(err.msg, "expression with a NUL character");
	for (size_t i = 0; i + 4 < 1000; i += 4)
		memcpy(text + i, "not ", 5);
	strcat(text, "1");
	assert_int_equal(evaluate(text, &v, &err), 0);
}

RUN_TESTS(open_config, close_config)
