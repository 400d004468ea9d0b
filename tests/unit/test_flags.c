/* SPDX-License-Identifier: Apache-2.0 */
/* Settings as people and servers write them, and what two sides of them come to. */
#include "wsync/tool/flags.h"
#include "test.h"

static struct ws_settings pairs(const char *const *given)
{
	struct ws_settings s = { 0 };
	struct ws_err err = WS_ERR_INIT;
	for (; *given; given++)
		assert_ok(ws_settings_add(&s, *given, &err), &err);
	return s;
}

static struct ws_settings members(const char *text)
{
	struct ws_settings s = { 0 };
	struct ws_err err = WS_ERR_INIT;
	struct ws_json *root = ws_json_parse(text, strlen(text), "reply", &err);
	assert_non_null(root);
	assert_int_equal(ws_settings_take(&s, root, false, "reply", &err), 0);
	ws_json_free(root);
	return s;
}

/* One wanted setting against one shown object. */
static enum ws_flag_verdict ask(const char *pair, const char *shown, enum ws_severity *severity)
{
	struct ws_settings want = pairs((const char *const[]){ pair, NULL }), have = members(shown);
	struct ws_flags_report r;
	assert_int_equal(ws_flags_compare(&want, &have, &r, NULL), 0);
	assert_int_equal(r.n, 1);
	assert_int_equal(r.count[r.items[0].verdict], 1);
	assert_int_equal(r.errors, r.items[0].severity == WS_ERROR);
	assert_int_equal(!*r.items[0].reason, r.items[0].verdict == WS_FLAG_EQUAL);
	const enum ws_flag_verdict verdict = r.items[0].verdict;
	*severity = r.items[0].severity;
	ws_flags_report_free(&r);
	ws_settings_free(&want);
	ws_settings_free(&have);
	return verdict;
}

TEST(each_setting_gets_its_verdict)
{
	static const struct {
		const char *want, *have;
		enum ws_flag_verdict verdict;
		enum ws_severity severity;
	} cases[] = {
		{ "tp_size=8", "{\"tp_size\":8}", WS_FLAG_EQUAL, WS_NOTE },
		{ "tp-size=8", "{\"tp_size\":4}", WS_FLAG_DIFFERENT, WS_ERROR },
		{ "tp_size=8", "{}", WS_FLAG_ABSENT, WS_ERROR },
		{ "router_fp32=true", "{\"enable_fp32_router\":true}", WS_FLAG_EQUAL, WS_NOTE },
		{ "router_fp32=True", "{\"enable_fp32_router\":false}", WS_FLAG_DIFFERENT,
		  WS_ERROR },
		{ "router_fp32=true", "{}", WS_FLAG_ABSENT, WS_ERROR },
		{ "router_fp32=false", "{}", WS_FLAG_ABSENT, WS_NOTE },
		{ "lm_head_fp32=false", "{\"enable_fp32_lm_head\":null}", WS_FLAG_EQUAL, WS_NOTE },
		{ "rl_on_policy_target=None", "{\"rl_on_policy_target\":null}", WS_FLAG_EQUAL,
		  WS_NOTE },
		{ "rl_on_policy_target=xorl", "{\"rl_on_policy_target\":null}", WS_FLAG_DIFFERENT,
		  WS_ERROR },
		{ "dtype=torch.bfloat16", "{\"dtype\":\"bf16\"}", WS_FLAG_EQUAL, WS_NOTE },
		{ "dtype=bfloat16", "{\"dtype\":\"auto\"}", WS_FLAG_CHOSEN, WS_WARN },
		{ "attention_backend=fa3", "{\"attention_backend\":null}", WS_FLAG_CHOSEN,
		  WS_WARN },
		{ "attention_backend=fa3", "{\"attention_backend\":\"triton\"}", WS_FLAG_DIFFERENT,
		  WS_ERROR },
		{ "attention_backend=fa3", "{\"attention_backend\":[1]}", WS_FLAG_DIFFERENT,
		  WS_ERROR },
		{ "rmsnorm_mode=native", "{\"rmsnorm_mode\":\"native\"}", WS_FLAG_UNSHOWN,
		  WS_NOTE },
		{ "no_such_thing=1", "{}", WS_FLAG_ABSENT, WS_ERROR },
		{ "mem_fraction_static=0.50", "{\"mem_fraction_static\":0.5}", WS_FLAG_EQUAL,
		  WS_NOTE },
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		enum ws_severity severity;
		if (ask(cases[i].want, cases[i].have, &severity) != cases[i].verdict ||
		    severity != cases[i].severity)
			fail_msg("%s of %s", cases[i].want, cases[i].have);
	}
}

TEST(a_later_pair_replaces_an_earlier_one)
{
	struct ws_settings s = pairs((const char *const[]){ "router_fp32=false", "tp=1",
	                                                    "enable-fp32-router=true", NULL });
	assert_int_equal(s.n, 2);
	assert_string_equal(s.items[0].key, "enable_fp32_router");
	assert_string_equal(s.items[0].given, "enable-fp32-router");
	assert_string_equal(s.items[0].value, "true");
	ws_settings_free(&s);
	ws_settings_free(&s);
}

TEST(what_is_no_pair_is_refused)
{
	static char key[300];
	struct ws_settings s = { 0 };
	struct ws_err err = WS_ERR_INIT;
	memset(key, 'k', sizeof key - 3);
	memcpy(key + sizeof key - 3, "=1", 3);
	assert_fails(ws_settings_add(&s, "tp_size", &err), &err, WS_EUSAGE, "");
	assert_int_equal(ws_settings_add(&s, "=8", &err), -1);
	assert_int_equal(ws_settings_add(&s, key, &err), -1);
	assert_int_equal(s.n, 0);
}

TEST(between_servers_only_what_matters_is_compared)
{
	struct ws_settings one = members(
		"{\"port\":1,\"tp_size\":2,\"dtype\":\"auto\",\"enable_fp32_router\":false}");
	struct ws_settings other = members("{\"port\":2,\"tp_size\":4,\"dtype\":\"auto\"}");
	struct ws_flags_report r;
	assert_int_equal(ws_flags_between(&one, &other, &r, NULL), 0);
	assert_int_equal(r.n, 3);
	assert_int_equal(r.count[WS_FLAG_EQUAL], 1);
	assert_int_equal(r.count[WS_FLAG_DIFFERENT], 1);
	assert_int_equal(r.count[WS_FLAG_ABSENT], 1);
	assert_int_equal(r.errors, 1);
	ws_flags_report_free(&r);
	assert_int_equal(ws_flags_between(&other, &one, &r, NULL), 0);
	assert_int_equal(r.errors, 1);
	ws_flags_report_free(&r);
	ws_settings_free(&one);
	ws_settings_free(&other);
}

RUN_TESTS(NULL, NULL)
