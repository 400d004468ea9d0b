/* SPDX-License-Identifier: Apache-2.0 */
/* What a server is compared with: its sizes and listing, told apart from those of others. */
#include "wsync/tool/name_check_run.h"

#include "scratch.h"
#include "test.h"
#include "tensor_file.h"
#include "tiny_http.h"

static const char config_text[] =
	"{\"architectures\": [\"LlamaForCausalLM\"], \"hidden_size\": 64, \"intermediate_size\": "
	"128, \"num_hidden_layers\": 1, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, "
	"\"vocab_size\": 128}";

static struct ws_weight weights[] = {
	{ .name = "model.norm.weight", .n_dims = 1, .dims = { 64 }, .dtype = "" },
	{ .name = "lm_head.weight", .n_dims = 2, .dims = { 128, 64 }, .dtype = "" },
};

static struct ws_name_check_target target(unsigned tp)
{
	return (struct ws_name_check_target){ .tp = tp, .listed = "a file",
		                         .listing = { .items = weights, .n = 2 } };
}

TEST(same_answer_for_same_sizes_and_listing)
{
	struct ws_name_check_target a = target(2), b = target(2);
	assert_true(ws_name_check_same(&a, &b));
	snprintf(b.url, sizeof b.url, "http://b:1");
	assert_true(ws_name_check_same(&a, &b));
	snprintf(b.model_type, sizeof b.model_type, "qwen3");
	assert_false(ws_name_check_same(&a, &b));
	*b.model_type = '\0';
	snprintf(b.differs, sizeof b.differs, "the server has a model.layers.2");
	assert_false(ws_name_check_same(&a, &b));
	*b.differs = '\0';
	b.tp = 4;
	assert_false(ws_name_check_same(&a, &b));
	b = target(2);
	b.listing.n = 1;
	assert_false(ws_name_check_same(&a, &b));
	struct ws_weight other[2] = { weights[0], weights[1] };
	b = target(2);
	b.listing.items = other;
	assert_true(ws_name_check_same(&a, &b));
	other[1].dims[0] = 64;
	assert_false(ws_name_check_same(&a, &b));
}

static void open_config(struct ws_input *in)
{
	struct ws_err err = WS_ERR_INIT;
	const struct ws_input_opts opts = { .config = "config.json" };
	put_text("config.json", config_text);
	assert_int_equal(ws_input_open(&opts, in, &err), 0);
}

SCRATCH_TEST(a_layout_is_of_the_servers_sizes)
{
	struct ws_err err = WS_ERR_INIT;
	struct ws_input in;
	struct ws_layout *l;
	struct ws_name_check_target t = target(2);
	open_config(&in);
	assert_int_equal(ws_name_check_layout(&in, &t, &l, NULL, 0, &err), 0);
	assert_int_equal(ws_layout_options(l)->tp, 2);
	assert_int_equal(ws_layout_find_param(l, "lm_head.weight")->dims[0], 64);
	ws_layout_free(l);
	ws_input_close(&in);
}

TEST(without_a_config_there_is_no_layout_and_a_reason)
{
	struct ws_err err = WS_ERR_INIT;
	struct ws_input in;
	struct ws_layout *l;
	char why[128] = "";
	const struct ws_input_opts none = { 0 };
	struct ws_name_check_target t = target(1);
	assert_int_equal(ws_input_open(&none, &in, &err), 0);
	assert_int_equal(ws_name_check_layout(&in, &t, &l, why, sizeof why, &err), 0);
	assert_null(l);
	assert_string_equal(why, "there is no config.json");
	ws_input_close(&in);
}

TEST(a_servers_own_config_is_used_where_the_source_has_none)
{
	struct ws_err err = WS_ERR_INIT;
	struct ws_input in;
	struct ws_layout *l;
	const struct ws_input_opts none = { 0 };
	struct ws_name_check_target t = target(4);
	assert_int_equal(ws_input_open(&none, &in, &err), 0);
	assert_ok(ws_config_parse(config_text, sizeof config_text - 1, "theirs", &t.config, &err),
	          &err);
	assert_int_equal(ws_name_check_layout(&in, &t, &l, NULL, 0, &err), 0);
	assert_string_equal(ws_layout_family(l), "llama");
	ws_layout_free(l);
	ws_config_free(t.config);
	ws_input_close(&in);
}

static int64_t rows_of(const struct ws_input *in, const struct ws_name_check_target *t, char *why,
                       size_t n)
{
	struct ws_err err = WS_ERR_INIT;
	struct ws_layout *l;
	assert_int_equal(ws_name_check_layout(in, t, &l, why, n, &err), 0);
	if (!l)
		return -1;
	const int64_t rows = ws_layout_find_part(l, "model.layers.0.mlp.gate_proj.weight")->dims[0];
	ws_layout_free(l);
	return rows;
}

/* By the config beside a checkpoint the checkpoint is always right. */
SCRATCH_TEST(a_servers_own_config_goes_before_the_sources)
{
	static const char other[] = "{\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":64,"
		"\"intermediate_size\":48,\"num_hidden_layers\":1,\"num_attention_heads\":4,"
		"\"vocab_size\":100}", short_one[] = "{\"architectures\":[\"LlamaForCausalLM\"]}";
	struct ws_err err = WS_ERR_INIT;
	struct ws_input in;
	char why[256] = "";
	struct ws_name_check_target t = target(1);
	open_config(&in);
	assert_int_equal(ws_config_parse(other, sizeof other - 1, "theirs", &t.config, &err), 0);
	assert_int_not_equal(rows_of(&in, &t, NULL, 0), 48); /* --config is the operator's word */
	in.named = false;
	assert_int_equal(rows_of(&in, &t, NULL, 0), 48);
	ws_config_free(t.config);
	assert_ok(ws_config_parse(short_one, sizeof short_one - 1, "theirs", &t.config, &err),
	          &err);
	assert_int_equal(rows_of(&in, &t, why, sizeof why), -1);
	assert_non_null(strstr(why, "theirs has no"));
	ws_config_free(t.config);
	ws_input_close(&in);
}

SCRATCH_TEST(a_model_path_that_is_not_here_is_no_directory)
{
	struct ws_endpoint_info info = { .start_path = "Qwen/Qwen3-8B" };
	assert_null(ws_name_check_model_dir(&info));
	snprintf(info.start_path, sizeof info.start_path, "/nowhere/model");
	assert_null(ws_name_check_model_dir(&info));
	put_text("config.json", config_text);
	assert_non_null(getcwd(info.start_path, sizeof info.start_path));
	assert_string_equal(ws_name_check_model_dir(&info), info.start_path);
}

/* ---- what a server tells of its model ---- */

static const char *family_at(struct ws_input *in, const char *type, const char *architecture,
                             struct ws_err *err)
{
	struct ws_layout *l;
	struct ws_name_check_target t = { .tp = 1, .url = "http://a:1" };
	const char *family = "none";
	snprintf(t.model_type, sizeof t.model_type, "%s", type);
	snprintf(t.architecture, sizeof t.architecture, "%s", architecture);
	*err = (struct ws_err)WS_ERR_INIT;
	if (ws_name_check_layout(in, &t, &l, NULL, 0, err))
		return "failure";
	if (l)
		family = ws_family_name(ws_namemap_named(in->map, ws_layout_family(l)));
	ws_layout_free(l);
	return family;
}

SCRATCH_TEST(a_source_is_compared_with_the_family_that_the_server_tells)
{
	struct ws_err err;
	struct ws_input in;
	open_config(&in);
	/* --config */
	assert_string_equal(family_at(&in, "qwen3", "Qwen3ForCausalLM", &err), "llama");
	in.named = false;
	assert_string_equal(family_at(&in, "", "", &err), "llama");
	assert_string_equal(family_at(&in, "llama", "LlamaForCausalLM", &err), "llama");
	assert_string_equal(family_at(&in, "", "LlamaForCausalLM", &err), "llama");
	assert_string_equal(family_at(&in, "qwen3", "Qwen3ForCausalLM", &err), "qwen3");
	assert_string_equal(family_at(&in, "mistral", "MistralForCausalLM", &err), "mistral");
	assert_string_equal(family_at(&in, "qwen3", "MyQwen3", &err), "qwen3");
	/* Not known: a wrapper may hold the same parameters. */
	assert_string_equal(family_at(&in, "mllama", "MllamaForConditionalGeneration", &err),
	                    "llama");
	assert_string_equal(family_at(&in, "qwen3_moe", "Qwen3MoeForCausalLM", &err), "failure");
	assert_int_equal(err.code, WS_EMISMATCH);
	assert_non_null(
		strstr(err.msg,
	               "the server runs qwen3_moe (Qwen3MoeForCausalLM), and config.json says "
	               "LlamaForCausalLM"));
	ws_input_close(&in);
}

/* ---- rules of another model ---- */

/* Writes a checkpoint of one layer, of config_text. */
static void put_checkpoint(const char *path, const char *more)
{
	struct ws_err err = WS_ERR_INIT;
	struct ws_input in;
	struct ws_layout *l;
	struct ws_name_check_target t = { .tp = 1 };
	struct tensor_file f = tensor_file_begin(path);
	open_config(&in);
	assert_ok(ws_name_check_layout(&in, &t, &l, NULL, 0, &err), &err);
	for (size_t i = 0; i < ws_layout_part_count(l); i++) {
		const struct ws_part *p = ws_layout_part(l, i);
		if (!p->optional)
			tensor_file_add(&f, p->name, WS_DTYPE_BF16, p->n_dims, p->dims);
	}
	if (more)
		tensor_file_add(&f, more, WS_DTYPE_BF16, 1, (const int64_t[]){ 4 });
	tensor_file_end(&f);
	ws_layout_free(l);
	ws_input_close(&in);
}

#define SIZES "\"hidden_size\":64,\"intermediate_size\":128,\"num_hidden_layers\":1," \
              "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"vocab_size\":128"
#define TEXT "\"text_config\":{\"model_type\":\"llama\"," SIZES "}"
#define VISION "\"vision_config\":{\"hidden_size\":8}"

/* A config, and what it says beside the sizes of a llama; the word of the check of its names. */
struct model {
	const char *config, *told; /* architecture that the server tells; "": none */
	const char *map, *more;    /* another tensor of the source; NULL */
	const char *why;           /* NULL: verified */
};

static void check_model(const struct model *m, bool theirs)
{
	const char *const source = m->more ? "more.safetensors" : "plain.safetensors";
	const struct ws_input_opts opts = { .paths = &source, .n_paths = 1, .map = m->map,
		                            .config = theirs ? NULL : "model.json" };
	struct ws_name_check_target t = { .tp = 1, .url = "http://a:1" };
	struct ws_name_check_run run;
	struct ws_input in;
	struct ws_err err = WS_ERR_INIT;
	put_text("model.json", m->config);
	assert_ok(ws_input_open(&opts, &in, &err), &err);
	if (theirs)
		assert_ok(ws_config_open("model.json", &t.config, &err), &err);
	snprintf(t.architecture, sizeof t.architecture, "%s", m->told);
	const struct ws_name_check_run_opts o = { .input = &in };
	assert_ok(ws_name_check_run(&o, &t, &run, &err), &err);
	if (run.found.errors || run.checked != !m->why || run.own_config ||
	    (m->why && !strstr(run.why, m->why)))
		fail_msg("%s: checked %d, %zu errors, '%s'", m->config, run.checked,
		         run.found.errors, run.why);
	ws_name_check_run_free(&run);
	ws_name_check_target_free(&t);
	ws_input_close(&in);
}

SCRATCH_TEST(names_are_verified_by_rules_of_the_model_itself_alone)
{
	static const char classes[] = "no rules are known for architecture "
	                              "'LlamaForSequenceClassification'",
			  several[] = "is a model with several parts";
	static const struct model models[] = {
		{ "{\"architectures\":[\"LlamaForCausalLM\"]," SIZES "}", "", NULL, NULL, NULL },
		{ "{\"model_type\":\"llama\"," SIZES "}", "", NULL, NULL, NULL },
		{ "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"own\"," TEXT "}",
		  "", NULL, NULL, NULL },
		{ "{\"architectures\":[\"MistralForCausalLM\"]," VISION "," TEXT "}",
		  "MistralForCausalLM", NULL, NULL, NULL },
		{ "{" TEXT "}", "", NULL, NULL, NULL },
		{ "{\"architectures\":[\"MyHead\"],\"model_type\":\"mine\"," SIZES "}", "MyHead",
		  "mine.map", NULL, NULL },
		{ "{\"architectures\":[\"MyVlm\"],\"model_type\":\"vlm\"," VISION "," TEXT "}",
		  "MyVlm", "vlm.map", NULL, NULL },
		{ "{\"architectures\":[\"LlamaForSequenceClassification\"],"
		  "\"model_type\":\"llama\"," SIZES "}", "", NULL, NULL, classes },
		{ "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\"," SIZES "}",
		  "LlamaForSequenceClassification", NULL, NULL, classes },
		{ "{\"architectures\":[\"LlavaForConditionalGeneration\"],\"model_type\":"
		  "\"llava\"," VISION "," TEXT "}", "", NULL, NULL, several },
		{ "{\"architectures\":[\"LlavaForConditionalGeneration\"],\"model_type\":"
		  "\"llava\"," VISION "," TEXT "}", "", NULL, "visual.bias", several },
		{ "{\"architectures\":[\"A\"],\"audio_config\":{},\"text_config\":{"
		  "\"architectures\":[\"LlamaForCausalLM\"]," SIZES "}}", "", NULL, NULL, several },
		{ "{\"model_type\":\"llava\"," VISION "," TEXT "}", "", NULL, NULL, several },
		{ "{\"model_type\":\"llava\"," TEXT "}", "", NULL, NULL,
		  "no rules are known for model_type 'llava'" },
		{ "{" VISION "," TEXT "}", "", NULL, NULL, several },
	};
	put_text("mine.map", "family mine\ntype mine\nlike llama\n");
	put_text("vlm.map", "family vlm\narch MyVlm\nlike llama\n");
	put_checkpoint("plain.safetensors", NULL);
	put_checkpoint("more.safetensors", "visual.bias");
	assert_int_equal(unlink("config.json"), 0);
	for (size_t i = 0; i < sizeof models / sizeof models[0]; i++)
		for (int theirs = 0; theirs < 2; theirs++)
			check_model(&models[i], theirs);
}

/* The server of the next test: so many layers of that width. */
static struct {
	int layers, width;
	bool replicas, refuses;
	int asked;
} server;

static const char *show(struct tiny *t, const char *method, const char *path, const char *body,
                        int *status)
{
	static char answer[4096];
	const char *layer = strstr(body, "model.layers."), *rows = strstr(body, "truncate_size");
	(void)t, (void)method, (void)path;
	server.asked++;
	if (!layer || !rows || server.refuses || atoi(layer + 13) >= server.layers) {
		*status = server.replicas ? 200 : 400;
		return server.replicas ?
		               "[null, null]" :
		               "{\"error\": {\"message\": \"Get parameter by name failed\"}}";
	}
	int n = atoi(rows + 15),
	    used = snprintf(answer, sizeof answer, server.replicas ? "[[" : "[");
	n = n < server.width ? n : server.width;
	for (int half = 0; half <= server.replicas; half++) {
		for (int i = 0; i < n; i++)
			used += snprintf(answer + used, sizeof answer - (size_t)used, "%s0.5",
			                 i ? "," : "");
		used += snprintf(answer + used, sizeof answer - (size_t)used,
		                 server.replicas && !half ? "],[" : server.replicas ? "]]" : "]");
	}
	return answer;
}

static void expect_difference(struct ws_http *http, struct ws_input *in,
                              struct ws_name_check_target *t, const char *difference)
{
	struct ws_err err = WS_ERR_INIT;
	t->layers = 0; /* as if never asked */
	assert_ok(ws_name_check_measure(http, in, t, 1, ws_deadline_in(20 * WS_NS_PER_S), NULL,
	                                &err), &err);
	if (!*difference)
		assert_string_equal(t->differs, "");
	else if (!strstr(t->differs, difference))
		assert_string_equal(t->differs, difference);
}

SCRATCH_TEST(layers_and_width_of_a_server_are_compared)
{
	static const char two[] = "{\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":8,"
				  "\"intermediate_size\":48,\"num_hidden_layers\":2,\"num_"
	                          "attention_heads\":4,\"vocab_size\":100}";
	struct ws_err err = WS_ERR_INIT;
	struct ws_input in;
	struct tiny tiny;
	struct ws_http *http;
	struct ws_name_check_target t = { .tp = 1, .askable = true };
	open_config(&in);
	ws_config_free(in.config);
	assert_int_equal(ws_config_parse(two, sizeof two - 1, "ours", &in.config, &err), 0);
	in.named = false;
	tiny_start(&tiny);
	tiny.route = show;
	snprintf(t.url, sizeof t.url, "http://127.0.0.1:%u", (unsigned)tiny.port);
	assert_int_equal(ws_client_open(&(struct ws_client_opts){ 0 }, &http, &err), 0);
	for (unsigned replicas = 1; replicas <= 2; replicas++) {
		t.replicas = replicas;
		server.replicas = replicas > 1;
		server.refuses = false;
		server.layers = 2, server.width = 8;
		expect_difference(http, &in, &t, "");
		server.layers = 3;
		expect_difference(
			http, &in, &t,
			"the server has a model.layers.2, and ours says num_hidden_layers 2");
		assert_string_equal(t.differs_key, "num_hidden_layers");
		server.layers = 1;
		expect_difference(http, &in, &t,
		                  "the server has model.layers.0 and no model.layers.1, and ours");
		server.layers = 2, server.width = 4;
		expect_difference(http, &in, &t,
		                  "the server's norms have 4 numbers, and ours says hidden_size 8");
		assert_string_equal(t.differs_key, "hidden_size");
		server.width = 99;
		expect_difference(http, &in, &t, "more than 8 numbers");
		server.refuses = true; /* one that shows nothing */
		expect_difference(http, &in, &t, "");
	}
	server.refuses = false, server.width = 8, server.asked = 0;
	expect_difference(http, &in, &t, "");
	assert_int_equal(server.asked, 3);
	assert_ok(ws_name_check_measure(http, &in, &t, 1, ws_deadline_in(20 * WS_NS_PER_S), NULL,
	                                &err), &err);
	assert_int_equal(server.asked, 3); /* of one source once */
	in.named = true; /* a config that the caller names is compared too */
	server.layers = 3;
	expect_difference(http, &in, &t,
	                  "the server has a model.layers.2, and ours says num_hidden_layers 2");
	ws_client_close(http);
	tiny_stop(&tiny);
	ws_input_close(&in);
}

RUN_TESTS(NULL, NULL)
