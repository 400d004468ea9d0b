/* SPDX-License-Identifier: Apache-2.0 */
/* What a server is held against: its sizes and listing, told apart from those of others. */
#include "wsync/audit.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "scratch.h"

static const char config_text[] =
	"{\"architectures\": [\"LlamaForCausalLM\"], \"hidden_size\": 64, \"intermediate_size\": 128,"
	" \"num_hidden_layers\": 1, \"num_attention_heads\": 4, \"num_key_value_heads\": 2,"
	" \"vocab_size\": 128}";

static struct ws_weight weights[] = {
	{ .name = "model.norm.weight", .n_dims = 1, .dims = { 64 }, .dtype = "" },
	{ .name = "lm_head.weight", .n_dims = 2, .dims = { 128, 64 }, .dtype = "" },
};

static struct ws_audit_target target(unsigned tp)
{
	return (struct ws_audit_target){ .tp = tp, .listed = "a file",
		                         .listing = { .items = weights, .n = 2 } };
}

static void same_answer_for_same_sizes_and_listing(void **state)
{
	(void)state;
	struct ws_audit_target a = target(2), b = target(2);
	assert_true(ws_audit_same(&a, &b));
	snprintf(b.url, sizeof b.url, "http://b:1");
	assert_true(ws_audit_same(&a, &b));
	b.tp = 4;
	assert_false(ws_audit_same(&a, &b));
	b = target(2);
	b.listing.n = 1;
	assert_false(ws_audit_same(&a, &b));
	struct ws_weight other[2] = { weights[0], weights[1] };
	b = target(2);
	b.listing.items = other;
	assert_true(ws_audit_same(&a, &b));
	other[1].dims[0] = 64;
	assert_false(ws_audit_same(&a, &b));
}

static void write_config(void)
{
	FILE *f = fopen("config.json", "w");
	assert_non_null(f);
	fputs(config_text, f);
	assert_int_equal(fclose(f), 0);
}

static void open_config(struct ws_input *in)
{
	struct ws_err err = WS_ERR_INIT;
	const struct ws_input_opts opts = { .config = "config.json" };
	write_config();
	assert_int_equal(ws_input_open(&opts, in, &err), 0);
}

static void a_layout_is_of_the_servers_sizes(void **state)
{
	(void)state;
	struct ws_err err = WS_ERR_INIT;
	struct ws_input in;
	struct ws_layout *l;
	struct ws_audit_target t = target(2);
	open_config(&in);
	assert_int_equal(ws_audit_layout(&in, &t, &l, NULL, 0, &err), 0);
	assert_int_equal(ws_layout_options(l)->tp, 2);
	assert_int_equal(ws_layout_find_param(l, "lm_head.weight")->dims[0], 64);
	ws_layout_free(l);
	ws_input_close(&in);
}

static void without_a_config_there_is_no_layout_and_a_reason(void **state)
{
	(void)state;
	struct ws_err err = WS_ERR_INIT;
	struct ws_input in;
	struct ws_layout *l;
	char why[128] = "";
	const struct ws_input_opts none = { 0 };
	struct ws_audit_target t = target(1);
	assert_int_equal(ws_input_open(&none, &in, &err), 0);
	assert_int_equal(ws_audit_layout(&in, &t, &l, why, sizeof why, &err), 0);
	assert_null(l);
	assert_string_equal(why, "there is no config.json");
	ws_input_close(&in);
}

static void a_servers_own_config_is_used_where_the_source_has_none(void **state)
{
	(void)state;
	struct ws_err err = WS_ERR_INIT;
	struct ws_input in;
	struct ws_layout *l;
	const struct ws_input_opts none = { 0 };
	struct ws_audit_target t = target(4);
	assert_int_equal(ws_input_open(&none, &in, &err), 0);
	assert_int_equal(ws_config_parse(config_text, sizeof config_text - 1, "theirs", &t.config, &err), 0);
	assert_int_equal(ws_audit_layout(&in, &t, &l, NULL, 0, &err), 0);
	assert_string_equal(ws_layout_family(l), "llama");
	ws_layout_free(l);
	ws_config_free(t.config);
	ws_input_close(&in);
}

static int64_t rows_of(const struct ws_input *in, const struct ws_audit_target *t, char *why, size_t n)
{
	struct ws_err err = WS_ERR_INIT;
	struct ws_layout *l;
	assert_int_equal(ws_audit_layout(in, t, &l, why, n, &err), 0);
	if (!l)
		return -1;
	const int64_t rows = ws_layout_find_part(l, "model.layers.0.mlp.gate_proj.weight")->dims[0];
	ws_layout_free(l);
	return rows;
}

/* By the config beside a checkpoint the checkpoint is always right. */
static void a_servers_own_config_goes_before_the_sources(void **state)
{
	static const char other[] = "{\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":64,"
		"\"intermediate_size\":48,\"num_hidden_layers\":1,\"num_attention_heads\":4,"
		"\"vocab_size\":100}", short_one[] = "{\"architectures\":[\"LlamaForCausalLM\"]}";
	(void)state;
	struct ws_err err = WS_ERR_INIT;
	struct ws_input in;
	char why[256] = "";
	struct ws_audit_target t = target(1);
	open_config(&in);
	assert_int_equal(ws_config_parse(other, sizeof other - 1, "theirs", &t.config, &err), 0);
	assert_int_not_equal(rows_of(&in, &t, NULL, 0), 48); /* --config is the operator's word */
	in.named = false;
	assert_int_equal(rows_of(&in, &t, NULL, 0), 48);
	ws_config_free(t.config);
	assert_int_equal(ws_config_parse(short_one, sizeof short_one - 1, "theirs", &t.config, &err), 0);
	assert_int_equal(rows_of(&in, &t, why, sizeof why), -1);
	assert_non_null(strstr(why, "theirs has no"));
	ws_config_free(t.config);
	ws_input_close(&in);
}

static void a_model_path_that_is_not_here_is_no_directory(void **state)
{
	(void)state;
	struct ws_endpoint_info info = { .model_path = "Qwen/Qwen3-8B" };
	assert_null(ws_audit_model_dir(&info));
	snprintf(info.model_path, sizeof info.model_path, "/nowhere/model");
	assert_null(ws_audit_model_dir(&info));
	write_config();
	assert_non_null(getcwd(info.model_path, sizeof info.model_path));
	assert_string_equal(ws_audit_model_dir(&info), info.model_path);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(same_answer_for_same_sizes_and_listing),
		IN_SCRATCH(a_layout_is_of_the_servers_sizes),
		cmocka_unit_test(without_a_config_there_is_no_layout_and_a_reason),
		cmocka_unit_test(a_servers_own_config_is_used_where_the_source_has_none),
		IN_SCRATCH(a_servers_own_config_goes_before_the_sources),
		IN_SCRATCH(a_model_path_that_is_not_here_is_no_directory),
	};
	return cmocka_run_group_tests_name("audit", tests, NULL, NULL);
}
