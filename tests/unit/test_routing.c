/* SPDX-License-Identifier: Apache-2.0 */
/* Experts in every form that answers have, right and wrong. */
#include "wsync/tool/routing.h"
#include "test.h"

/* Two layers, the first without experts; two of four experts. */
static struct ws_routing_shape small(void)
{
	static const char text[] =
		"{\"num_hidden_layers\":2,\"num_experts_per_tok\":2,\"n_routed_experts\":4,"
		"\"first_k_dense_replace\":1}";
	struct ws_routing_shape shape = { 0 };
	struct ws_config *config = NULL;
	struct ws_err err = WS_ERR_INIT;
	if (ws_config_parse(text, strlen(text), "config", &config, &err) ||
	    ws_routing_shape_of(config, &shape, &err))
		fail_msg("%s", err.msg);
	ws_config_free(config);
	return shape;
}

static enum ws_code read_text(const char *text, struct ws_routing *r)
{
	const struct ws_routing_shape shape = small();
	struct ws_err err = WS_ERR_INIT;
	const int rc = ws_routing_parse(text, strlen(text), "answer", &shape, r, &err);
	assert_int_equal(rc, err.code == WS_OK ? 0 : -1);
	assert_true(!rc || !r->ids);
	return err.code;
}

/* One token: zeros, then experts 3 and 1. */
#define ONE "AAAAAAAAAAADAAAAAQAAAA=="
#define META "\"prompt_tokens\":1,\"completion_tokens\":1"

TEST(every_form_gives_the_same)
{
	static const char *const forms[] = {
		"{\"meta_info\":{\"routed_experts\":\"" ONE "\"," META "}}",
		"[{\"meta_info\":{\"routed_experts\":\"" ONE "\"}}]",
		"{\"meta_info\":{\"routed_experts\":[[[0,0],[3,1]]]," META "}}",
		"{\"meta_info\":{\"routed_experts\":{\"data\":\"" ONE
		"\",\"shape\":[1,2,2],\"rows\":1}}}",
		"{\"choices\":[{\"routed_experts\":\"" ONE "\"}],\"usage\":{" META "}}",
		"{\"choices\":[{\"sglext\":{\"routed_experts\":\"" ONE "\"}}],\"usage\":{" META
		"}}",
	};
	const struct ws_routing_shape shape = small();
	for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
		struct ws_routing r;
		struct ws_routing_check c;
		assert_int_equal(read_text(forms[i], &r), WS_OK);
		assert_int_equal(r.tokens, 1);
		assert_memory_equal(r.ids, ((const int32_t[]){ 0, 0, 3, 1 }), 16);
		ws_routing_check(&r, &shape, &c);
		assert_string_equal(c.reason, "");
		ws_routing_free(&r);
	}
}

TEST(what_is_no_routing_is_refused)
{
	static const struct { const char *value; enum ws_code code; } cases[] = {
		{ "null", WS_EINPUT },
		{ "7", WS_EINPUT },
		{ "{\"schema\":\"sglang.routed_experts.file.v1\"}", WS_EINPUT },
		{ "\"AAA\"", WS_EINPUT },
		{ "\"AA-A\"", WS_EINPUT },
		{ "\"A===\"", WS_EINPUT },
		{ "\"=AAA\"", WS_EINPUT },
		{ "\"====\"", WS_EINPUT },
		{ "\"AAAA\"", WS_EINPUT },
		{ "\"AAAAAA==\"", WS_EMISMATCH },
		{ "\"\"", WS_EMISMATCH },
		{ "\"AwAAAAEAAAA=\"", WS_EMISMATCH }, /* without the layer that has no experts */
		{ "\"AAAAAAAAAAADAAAAAQAAAAAAAAAAAAAAAwAAAAEAAAA=\"", WS_EMISMATCH },
		{ "[]", WS_EMISMATCH },
		{ "[[[0,0]]]", WS_EMISMATCH },
		{ "[[[0,0],[3]]]", WS_EMISMATCH },
		{ "[[[0,0],3]]", WS_EMISMATCH },
		{ "[[[0,0],[3,1.5]]]", WS_EINPUT },
		{ "[[[0,0],[3,4294967296]]]", WS_EINPUT },
		{ "{\"data\":\"" ONE "\",\"shape\":[2,1,2]}", WS_EMISMATCH },
		{ "{\"data\":\"" ONE "\",\"shape\":[1,2]}", WS_EMISMATCH },
		{ "{\"data\":\"" ONE "\",\"rows\":2}", WS_EMISMATCH },
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		char text[512];
		struct ws_routing r;
		snprintf(text, sizeof text, "{\"meta_info\":{\"routed_experts\":%s," META "}}",
		         cases[i].value);
		if (read_text(text, &r) != cases[i].code)
			fail_msg("%s", cases[i].value);
	}
	struct ws_routing r;
	assert_int_equal(read_text("[]", &r), WS_EINPUT);
	assert_int_equal(read_text("[{},{}]", &r), WS_EINPUT);
	assert_int_equal(read_text("{\"meta_info\":{\"routed_experts\":\"\",\"prompt_tokens\":0,"
	                           "\"completion_tokens\":0}}", &r), WS_EMISMATCH);
}

TEST(the_shape_of_a_model_comes_from_its_config)
{
	static const struct {
		const char *config, *dense; /* NULL: refused */
	} cases[] = {
		{ "{\"num_hidden_layers\":4,\"num_experts_per_tok\":8,\"num_experts\":128}",
		  "...." },
		{ "{\"num_hidden_layers\":4,\"num_experts_per_tok\":2,\"num_experts\":8,\"decoder_"
		  "sparse_step\":2,\"mlp_only_layers\":[3]}",
		  "d.dd" },
		{ "{\"num_hidden_layers\":4,\"num_experts_per_tok\":2,\"n_routed_experts\":8,\"moe_"
		  "layer_freq\":2,\"first_k_dense_replace\":1}",
		  "dd.d" },
		{ "{\"num_hidden_layers\":2,\"num_experts_per_tok\":4,\"num_local_experts\":4}",
		  ".." },
		{ "{\"num_hidden_layers\":4}", NULL },
		{ "{\"num_hidden_layers\":4,\"num_experts_per_tok\":9,\"num_experts\":8}", NULL },
		{ "{\"num_hidden_layers\":40000,\"num_experts_per_tok\":2,\"num_experts\":8}",
		  NULL },
		{ "{\"num_hidden_layers\":-1,\"num_experts_per_tok\":2,\"num_experts\":8}", NULL },
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct ws_config *config = NULL;
		struct ws_routing_shape shape;
		assert_false(ws_config_parse(cases[i].config, strlen(cases[i].config), "c", &config,
		                             NULL));
		const int rc = ws_routing_shape_of(config, &shape, NULL);
		ws_config_free(config);
		if (rc != (cases[i].dense ? 0 : -1))
			fail_msg("%s", cases[i].config);
		for (size_t l = 0; !rc && l < shape.layers; l++)
			if (shape.dense[l] != (cases[i].dense[l] == 'd'))
				fail_msg("%s: layer %zu", cases[i].config, l);
	}
}

RUN_TESTS(NULL, NULL)
