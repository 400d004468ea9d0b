/* SPDX-License-Identifier: Apache-2.0 */
/* The check of names with --include and --exclude: what they leave out is right, on both sides, and
 * everything else that is missing is an error, with rules and without, at SGLang and at vLLM. */
#include "name_list.h"

static char root[4096];

enum { MAX_GLOBS = 20 };

/* A source, spoilt, a choice, and the errors of the check. */
struct choice {
	const char *model;
	const char *drop[3];      /* the source lacks names that hold one of these */
	const char *include[3], *exclude[MAX_GLOBS];
	size_t errors;
	bool vllm, biases;        /* at a vLLM; one that keeps biases */
	const char *elsewhere;    /* another sender sends names that hold this */
	size_t left;              /* of needed tensors, by all globs; 0: not compared here */
};

static size_t count(const char *const *list)
{
	size_t n = 0;
	while (list[n])
		n++;
	return n;
}

static bool is_elsewhere(const void *ctx, const char *name)
{
	return strstr(name, ctx);
}

static struct ws_namecheck_opts opts_of(const struct choice *t)
{
	return (struct ws_namecheck_opts){
		.include = t->include, .n_include = count(t->include),
		.exclude = t->exclude, .n_exclude = count(t->exclude),
		.whole_modules = t->vllm, .keeps_biases = t->biases,
		.elsewhere = t->elsewhere ? is_elsewhere : NULL, .elsewhere_ctx = t->elsewhere,
	};
}

static size_t left_out(const struct ws_findings *f)
{
	size_t n = 0;
	for (size_t i = 0; i < f->n_left_out; i++)
		n += f->left_out[i].needed;
	return n;
}

/* listing: the server's parameters, without rules for them; NULL: by the rules. */
static void run(const struct choice *t, const struct ws_weight_list *listing)
{
	struct list l = list_read(root, t->model, 3);
	const struct ws_layout_opts one = { .tp = 1 };
	struct ws_namecheck_opts o = opts_of(t);
	struct checked k;
	struct ws_err err;
	for (size_t i = 0; i < 3 && t->drop[i]; i++)
		assert_true(list_drop(&l, t->drop[i]) > 0);
	checked_open(&k, &l, config_read(root, t->model, 3, NULL), &one);
	if (listing) {
		o.listing = listing;
		o.items = k.items;
		o.family = ws_namemap_generic(k.map);
		assert_ok(ws_namecheck(&o, &k.f, &err), &err);
	} else {
		checked_run(&k, &o);
	}
	if ((k.f.errors > 0) != (t->errors > 0) || (!listing && k.f.errors != t->errors) ||
	    (t->left && !listing && left_out(&k.f) != t->left)) {
		print_findings(&k.f);
		fail_msg("%s, drop %s, include %s, exclude %s: %zu errors, %zu left out%s",
		         t->model, t->drop[0], t->include[0], t->exclude[0], k.f.errors,
		         left_out(&k.f), listing ? ", without rules" : "");
	}
	checked_free(&k);
	list_free(&l);
}

/* The parameters that the rules of the whole model give, as a server lists them. */
static void run_without_rules(const struct choice *t)
{
	struct list l = list_read(root, t->model, 3);
	const struct ws_layout_opts one = { .tp = 1 };
	struct checked k;
	checked_open(&k, &l, config_read(root, t->model, 3, NULL), &one);
	struct ws_weight_list shown = { 0 };
	shown.items = calloc(ws_layout_param_count(k.layout) + 1, sizeof *shown.items);
	for (size_t i = 0; i < ws_layout_param_count(k.layout); i++) {
		const struct ws_param *p = ws_layout_param(k.layout, i);
		if (p->tied_to)
			continue;
		struct ws_weight *w = &shown.items[shown.n++];
		*w = (struct ws_weight){ .name = p->name, .dtype = "", .n_dims = p->n_dims };
		memcpy(w->dims, p->dims, sizeof p->dims);
	}
	run(t, &shown);
	free(shown.items);
	checked_free(&k);
	list_free(&l);
}

static const char llama[] = "llama-3.1-8b", qwen2[] = "qwen2.5-7b", qwen3[] = "qwen3-0.6b",
                  moe[] = "qwen3-30b-a3b", fp8[] = "qwen3-30b-a3b-fp8",
                  qwen_moe[] = "qwen1.5-moe-a2.7b", v2[] = "deepseek-v2-lite",
                  v3[] = "deepseek-v3", v32[] = "deepseek-v3.2",
                  glm[] = "glm-4.5-air", gpt[] = "gpt-oss-20b", gpt16[] = "gpt-oss-20b-bf16",
                  mistral[] = "mistral-7b-v0.3";
static const char *const models[] = { llama, qwen2, qwen3, moe, fp8, qwen_moe, v2, v3, v32, glm,
	                              gpt, gpt16, mistral };
enum { N_MODELS = sizeof models / sizeof models[0] };

/* ---- honest choices ---- */

SCRATCH_TEST(honest_choices_of_every_family_pass)
{
	static const struct choice choices[] = {
		{ .exclude = { "model.layers.1.*" } },
		{ .exclude = { "model.layers.[12].*" } },
		{ .exclude = { "*norm*" } },
		{ .exclude = { "lm_head*" } },
		{ .include = { "model.layers.0.*" } },
		{ .include = { "model.layers.*" } },
		{ .include = { "model.norm.weight" } },
		{ .include = { "model.layers.*" }, .exclude = { "model.layers.2.*" } },
		{ .exclude = { "*.mlp.*" } },
		/* what the source lacks too is left out on both sides */
		{ .drop = { "model.layers.1." }, .exclude = { "model.layers.1.*" } },
		{ .drop = { "model.norm." }, .exclude = { "model.norm.*" } },
		{ .drop = { "lm_head" }, .exclude = { "lm_head.*" } },
		{ .drop = { "embed_tokens", "model.norm" }, .include = { "model.layers.*" } },
		/* parts of several senders */
		{ .drop = { "model.layers.1." }, .elsewhere = "model.layers.1." },
		{ .include = { "model.layers.0.*" }, .elsewhere = "" },
	};
	for (size_t m = 0; m < N_MODELS; m++)
		for (size_t i = 0; i < sizeof choices / sizeof choices[0]; i++) {
			struct choice t = choices[i];
			t.model = models[m];
			/* these have 256 experts: every other choice is enough */
			if ((models[m] == v3 || models[m] == v32) && (i + (models[m] == v3)) % 2)
				continue;
			/* a tied head has nothing to leave out, or to lack */
			if (models[m] == qwen3 &&
			    (t.drop[0] || t.include[0] || strstr(t.exclude[0], "head")))
				continue;
			run(&t, NULL);
			if (models[m] != gpt && models[m] != gpt16)
				run_without_rules(&t);
		}
}

SCRATCH_TEST(honest_choices_within_layers_pass)
{
	static const struct choice choices[] = {
		{ llama, .exclude = { "*.q_proj.weight" }, .left = 3 },
		{ llama, .drop = { ".q_proj." }, .exclude = { "*.q_proj.weight" }, .left = 3 },
		{ llama, .exclude = { "*.layers.1.mlp.up_proj.*" }, .left = 1 },
		{ qwen2, .exclude = { "*.bias" }, .left = 9 },
		{ moe, .exclude = { "*.experts.7.*" }, .left = 9 },
		{ moe, .exclude = { "*.experts.*" }, .left = 3 * 3 * 128 },
		{ moe, .exclude = { "*.mlp.gate.weight" }, .left = 3 },
		{ moe, .drop = { ".experts.7." }, .exclude = { "*.experts.7.*" }, .left = 9 },
		{ fp8, .exclude = { "*.layers.1.self_attn.q_proj.*" }, .left = 2 },
		{ fp8, .exclude = { "*.experts.7.*" }, .left = 18 },
		{ qwen_moe, .exclude = { "*.shared_expert.*", "*.shared_expert_gate.*" },
		  .left = 12 },
		{ glm, .exclude = { "*e_score_correction_bias" } },
		{ gpt, .exclude = { "*.sinks", "*.mlp.experts.*" } },
		{ llama, .include = { "*.q_proj.weight", "*.o_proj.weight" } },
	};
	for (size_t i = 0; i < sizeof choices / sizeof choices[0]; i++) {
		run(&choices[i], NULL);
		if (choices[i].model != gpt)
			run_without_rules(&choices[i]);
	}
}

/* ---- gaps ---- */

/* With globs that match nothing, something else, or something near. */
SCRATCH_TEST(gaps_of_every_family_are_errors_under_any_glob)
{
	static const char *const gaps[] = { "model.layers.1.", "k_proj", "model.norm.",
		                            "embed_tokens", "layers.2.input_layernorm",
		                            "o_proj.weight" };
	static const char *const globs[] = { "nothing.here", "model.layers.0.input_layernorm.*",
		                             "model.layers.1", "*.layers.2.mlp.*", "norm" };
	for (size_t m = 0; m < N_MODELS; m++)
		for (size_t g = 0; g < sizeof gaps / sizeof gaps[0]; g++) {
			if (strstr(gaps[g], "k_proj") && strstr(models[m], "deepseek"))
				continue; /* they have none */
			struct list l = list_read(root, models[m], 3);
			const struct ws_layout_opts one = { .tp = 1 };
			struct checked k;
			list_drop(&l, gaps[g]);
			checked_open(&k, &l, config_read(root, models[m], 3, NULL), &one);
			for (size_t i = 0; i < sizeof globs / sizeof globs[0]; i++) {
				struct ws_namecheck_opts o = { .exclude = &globs[i],
					                       .n_exclude = 1 };
				checked_run(&k, &o);
				if (!k.f.errors)
					fail_msg("%s without %s, --exclude %s: no error",
					         models[m], gaps[g], globs[i]);
				ws_findings_free(&k.f);
			}
			checked_free(&k);
			list_free(&l);
		}
}

SCRATCH_TEST(gaps_within_layers_are_errors)
{
	static const struct choice choices[] = {
		{ moe, .drop = { ".experts.7." }, .exclude = { "*.experts.8.*" }, .errors = 9 },
		{ moe, .drop = { ".1.mlp.experts.7.up_proj" }, .exclude = { "no*" }, .errors = 1 },
		/* one expert does not stand for all */
		{ moe, .drop = { ".1.mlp.experts." }, .exclude = { "*.experts.0.*" },
		  .errors = 3 * 127 },
		{ moe, .drop = { ".1.mlp.experts.12" }, .exclude = { "*.experts.0.*" },
		  .errors = 3 * 9 },
		{ moe, .drop = { ".mlp.gate." }, .exclude = { "*.experts.*" }, .errors = 3 },
		{ llama, .drop = { "layers.1.self_attn.k_proj" }, .exclude = { "*.q_proj.*" },
		  .errors = 1 },
		{ llama, .drop = { "layers.1.self_attn.k_proj" },
		  .include = { "model.layers.1.self_attn.*" }, .errors = 1 },
		{ llama, .drop = { "lm_head" }, .exclude = { "model.norm*" }, .errors = 1 },
		{ fp8, .drop = { ".1.self_attn.q_proj.weight_scale_inv" },
		  .exclude = { "lm_head*" }, .errors = 1 },
		/* scales and weights apart */
		{ fp8, .exclude = { "*.1.self_attn.q_proj.weight" }, .errors = 1 },
		{ fp8, .exclude = { "*.1.self_attn.q_proj.weight_scale_inv" }, .errors = 1 },
		/* no sender sends them */
		{ llama, .drop = { "layers.1." }, .elsewhere = "layers.2.", .errors = 9 },
		{ llama, .include = { "*layers.0.*", "*embed*" }, .elsewhere = "layers.1.",
		  .errors = 9 + 2 },
	};
	for (size_t i = 0; i < sizeof choices / sizeof choices[0]; i++) {
		run(&choices[i], NULL);
		run_without_rules(&choices[i]);
	}
}

/* ---- modules of vLLM ---- */

SCRATCH_TEST(vllm_gets_whole_modules_or_none)
{
	static const struct choice choices[] = {
		{ moe, .exclude = { "*.experts.*" }, .vllm = true },
		{ moe, .exclude = { "*.layers.1.mlp.experts.*" }, .vllm = true },
		{ llama, .exclude = { "*.[qkv]_proj.*" }, .vllm = true },
		{ llama, .exclude = { "*.o_proj.*", "*norm*" }, .vllm = true },
		{ glm, .exclude = { "*.mlp.gate.*" }, .vllm = true },
		{ qwen2, .exclude = { "*.bias" }, .vllm = true, .biases = true },
		{ glm, .exclude = { "*.e_score_correction_bias" }, .vllm = true, .biases = true },
		{ glm, .exclude = { "*.mlp.gate.weight" }, .vllm = true, .biases = true },
		/* parts */
		{ llama, .exclude = { "*.q_proj.*" }, .vllm = true, .errors = 3 },
		{ llama, .exclude = { "*.1.mlp.up_proj.*" }, .vllm = true, .errors = 1 },
		{ moe, .exclude = { "*.1.*.experts.7.*" }, .vllm = true, .errors = 3 },
		{ moe, .exclude = { "*.1.*.experts.*.down_proj.*" }, .vllm = true, .errors = 128 },
		{ moe, .include = { "*.1.*.experts.0.*" }, .vllm = true, .errors = 3 * 127 },
		{ moe, .include = { "*.1.*.experts.0.*" }, .vllm = true, .elsewhere = "",
		  .errors = 3 * 127 },
		{ qwen2, .exclude = { "*.bias" }, .vllm = true, .errors = 9 },
		{ qwen2, .include = { "*.bias" }, .vllm = true, .biases = true, .errors = 9 },
		{ glm, .exclude = { "*.e_score_correction_bias" }, .vllm = true, .errors = 2 },
		{ gpt16, .exclude = { "*.router.bias" }, .vllm = true, .errors = 3 },
		{ gpt16, .exclude = { "*.1.mlp.experts.*_bias" }, .vllm = true, .biases = true,
		  .errors = 2 },
		{ fp8, .exclude = { "*.1.mlp.experts.7.*" }, .vllm = true, .errors = 6 },
	};
	for (size_t i = 0; i < sizeof choices / sizeof choices[0]; i++) {
		run(&choices[i], NULL);
		if (choices[i].model != gpt16)
			run_without_rules(&choices[i]);
	}
}

/* ---- counts ---- */

SCRATCH_TEST(what_is_left_out_is_counted_by_glob)
{
	static const struct choice t = { llama, .include = { "model.*" },
		                         .exclude = { "*.q_proj.*", "nothing", "*layers.1.*" } };
	struct list l = list_read(root, llama, 3);
	const struct ws_layout_opts one = { .tp = 1 };
	struct ws_namecheck_opts o = opts_of(&t);
	struct checked k;
	list_drop(&l, "layers.0.self_attn.q_proj");
	checked_open(&k, &l, config_read(root, llama, 3, NULL), &one);
	checked_run(&k, &o);
	assert_int_equal(k.f.errors, 0);
	assert_int_equal(k.f.needed, 3 * 9 + 3);
	assert_int_equal(k.f.n_left_out, 4);
	assert_string_equal(k.f.left_out[0].option, "include");
	assert_string_equal(k.f.left_out[1].globs[0], "*.q_proj.*");
	static const size_t tensors[] = { 1, 2, 0, 8 }, needed[] = { 1, 3, 0, 8 };
	for (size_t i = 0; i < 4; i++) {
		assert_int_equal(k.f.left_out[i].tensors, tensors[i]);
		assert_int_equal(k.f.left_out[i].needed, needed[i]);
	}
	ws_findings_free(&k.f);
	ws_namecheck_left_out(&o, &k.f); /* nothing to compare with */
	assert_int_equal(k.f.left_out[1].tensors, 2);
	assert_int_equal(k.f.needed, 0);
	checked_free(&k);
	list_free(&l);
}

SCRATCH_TEST(many_globs_share_the_last_count)
{
	struct choice t = { .model = llama };
	struct list l = list_read(root, llama, 3);
	struct checked k;
	for (size_t i = 0; i < MAX_GLOBS - 1; i++)
		t.exclude[i] = i + 2 < MAX_GLOBS ? "nothing" : "lm_head.*";
	const struct ws_layout_opts one = { .tp = 1 };
	struct ws_namecheck_opts o = opts_of(&t);
	checked_open(&k, &l, config_read(root, llama, 3, NULL), &one);
	checked_run(&k, &o);
	assert_int_equal(k.f.n_left_out, WS_LEFT_OUT_MAX);
	assert_int_equal(k.f.left_out[WS_LEFT_OUT_MAX - 1].needed, 1);
	assert_int_equal(k.f.left_out[WS_LEFT_OUT_MAX - 1].n_globs, MAX_GLOBS - WS_LEFT_OUT_MAX);
	checked_free(&k);
	list_free(&l);
}

/* ---- other names ---- */

/* The parameters of the rules as vLLM names them, and one that it computes. */
static struct ws_weight_list list_of_vllm(const struct checked *k, char (*names)[256])
{
	const size_t n = ws_layout_param_count(k->layout);
	struct ws_weight_list shown = { .items = calloc(n + 1, sizeof *shown.items), .n = n + 1 };
	for (size_t i = 0; i < n; i++) {
		const char *name = ws_layout_param(k->layout, i)->name;
		const char *at = strstr(name, ".experts."), *bias = strstr(name, "_weight_bias");
		const int used = at ? (int)(at + 9 - name) : 0;
		snprintf(names[i], sizeof names[i], "%.*s%s%.*s%s", used, name,
		         at ? "routed_experts." : "", bias ? (int)(bias - name) - used : 255,
		         name + used, bias ? "_bias" : "");
	}
	snprintf(names[n], sizeof names[n], "model.layers.0.self_attn.attn.W_UK_T");
	for (size_t i = 0; i <= n; i++)
		shown.items[i] = (struct ws_weight){ .name = names[i], .dtype = "",
			                             .shapeless = true };
	return shown;
}

/* With and without rules. */
SCRATCH_TEST(names_of_vllm_are_known)
{
	static const char *const of[] = { moe, gpt, gpt16 };
	for (size_t m = 0; m < sizeof of / sizeof of[0]; m++) {
		struct list l = list_read(root, of[m], 2);
		struct checked k;
		struct ws_err err;
		checked_open(&k, &l, config_read(root, of[m], 2, NULL),
		             &(struct ws_layout_opts){ .tp = 1 });
		char (*names)[256] = calloc(ws_layout_param_count(k.layout) + 1, sizeof *names);
		struct ws_weight_list shown = list_of_vllm(&k, names);
		struct ws_namecheck_opts o = { .listing = &shown, .whole_modules = true };
		checked_run(&k, &o);
		if (k.f.errors)
			print_findings(&k.f);
		assert_int_equal(k.f.errors, 0);
		ws_findings_free(&k.f);
		struct ws_namecheck_opts plain = { .listing = &shown, .whole_modules = true,
			                           .items = k.items,
			                           .family = ws_namemap_generic(k.map) };
		assert_ok(ws_namecheck(&plain, &k.f, &err), &err);
		if (k.f.errors)
			print_findings(&k.f);
		assert_int_equal(k.f.errors, 0);
		free(names);
		free(shown.items);
		checked_free(&k);
		list_free(&l);
	}
}

/* Gemma 2 and Ernie 4.5 at SGLang have no rules. */
SCRATCH_TEST(names_that_only_servers_have_are_no_errors)
{
	static const char *const shown[] = { "model.layers.0.input_layernorm.weight",
		                             "model.layers.0.input_layernorm.gemma_weight",
		                             "model.layers.0.mlp.gate.weight",
		                             "model.layers.0.mlp.gate.e_score_correction_bias" };
	struct ws_weight items[4] = { { 0 } };
	const struct ws_weight_list listing = { .items = items, .n = 4 };
	struct list l = { 0 };
	struct checked k;
	struct ws_err err;
	for (size_t i = 0; i < 4; i++)
		items[i] = (struct ws_weight){ .name = shown[i], .dtype = "", .shapeless = true };
	list_add(&l, shown[0], WS_DTYPE_BF16, 1, 64, 0);
	list_add(&l, shown[2], WS_DTYPE_BF16, 2, 8, 64);
	list_add(&l, "model.layers.0.mlp.moe_statics.e_score_correction_bias", WS_DTYPE_F32, 1, 8,
	         0);
	checked_open(&k, &l, config_read(root, llama, 1, NULL), NULL);
	struct ws_namecheck_opts o = { .listing = &listing, .items = k.items,
		                       .family = ws_namemap_generic(k.map) };
	assert_ok(ws_namecheck(&o, &k.f, &err), &err);
	assert_int_equal(k.f.errors, 0);
	checked_free(&k);
	list_free(&l);
}

/* An endpoint without a model keeps the shapes of what it has. */
SCRATCH_TEST(shapes_of_received_tensors_are_compared)
{
	struct list l = list_read(root, llama, 1);
	struct ws_weight items[2] = {
		{ .name = "model.norm.weight", .dtype = "", .n_dims = 1, .dims = { 1024 } },
		{ .name = "other", .dtype = "", .n_dims = 1, .dims = { 1 } },
	};
	const struct ws_weight_list listing = { .items = items, .n = 2, .received = true };
	struct checked k;
	struct ws_err err;
	checked_open(&k, &l, config_read(root, llama, 1, NULL), NULL);
	struct ws_namecheck_opts o = { .listing = &listing, .items = k.items };
	assert_ok(ws_namecheck(&o, &k.f, &err), &err);
	assert_int_equal(k.f.errors, 1);
	assert_int_equal(k.f.received, 1);
	ws_findings_free(&k.f);
	items[0].dims[0] = 4096;
	assert_ok(ws_namecheck(&o, &k.f, &err), &err);
	assert_int_equal(k.f.errors, 0);
	checked_free(&k);
	list_free(&l);
}

int main(void)
{
	if (!getcwd(root, sizeof root))
		return 1;
	return run_listed(NULL, NULL);
}
