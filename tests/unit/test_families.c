/* SPDX-License-Identifier: Apache-2.0 */
/* The built-in families against lists that owe nothing to them: what the models' checkpoints hold,
 * and what SGLang's modules come to (tests/data/names; tests/tools/runtime_names.py). */
#include "golden_layout.h"
#include "synthetic.h"

static const char *const models[] = {
	"qwen3-0.6b",        "qwen3-30b-a3b",    "qwen3-30b-a3b-fp8", "qwen2.5-7b",
	"qwen1.5-moe-a2.7b", "llama-3.1-8b",     "mistral-7b-v0.3",   "deepseek-v2-lite",
	"deepseek-v3",       "deepseek-v3.2",    "kimi-k2",           "glm-4.5-air",
	"gpt-oss-20b",       "gpt-oss-20b-bf16",
};
enum { N_MODELS = sizeof models / sizeof models[0] };

static const char *find_trouble(const struct ws_layout *l)
{
	for (size_t i = 0; i < ws_layout_param_count(l); i++)
		if (ws_layout_param(l, i)->trouble)
			return ws_layout_param(l, i)->trouble;
	return NULL;
}

static bool same_dims(unsigned n, const int64_t *dims, const struct golden_name *g,
                      const char *what)
{
	char have[128], want[128];
	golden_shape(n, dims, have);
	golden_shape(g->n_dims, g->dims, want);
	if (strcmp(have, want) == 0)
		return true;
	print_error("%s %s is %s and not %s\n", what, g->name, have, want);
	return false;
}

/* ---- checkpoints -----------------------------------------------------------------------------*/

struct covering {
	const struct ws_layout *layout;
	size_t found, skipped;
	bool bare;                /* scales are left out: the layout is unquantized */
};

static bool leads_somewhere(void *ctx, const struct golden_name *g)
{
	struct covering *c = ctx;
	const struct ws_part *p = ws_layout_find_part(c->layout, g->name);
	const size_t n = strlen(g->name);
	if (c->bare && n > 10 && strcmp(g->name + n - 10, "_scale_inv") == 0)
		return p == NULL;
	if (!p) {
		c->skipped++;
		if (!ws_layout_skips(c->layout, g->name))
			print_error("no part for %s\n", g->name);
		return ws_layout_skips(c->layout, g->name) != NULL;
	}
	c->found++;
	if (ws_layout_skips(c->layout, g->name)) {
		print_error("%s is skipped and is not\n", g->name);
		return false;
	}
	if (p->exact && !c->bare && strcmp(ws_dtype_safetensors(p->dtype), g->dtype) != 0) {
		print_error("part %s is %s and not %s\n", g->name, ws_dtype_safetensors(p->dtype),
		            g->dtype);
		return false;
	}
	return same_dims(p->n_dims, p->dims, g, "part");
}

static bool check_part_line(char *line, void *ctx)
{
	return golden_line(line, leads_somewhere, ctx);
}

/* Both ways: every tensor has a part or is skipped, and every part a tensor. */
static size_t hold_against_checkpoint(const char *model, const char *list,
                                      const struct ws_layout_opts *opts)
{
	char file[128];
	struct ws_layout *l = make_layout(model, 0, opts);
	struct covering c = { .layout = l, .bare = opts->unquantized };
	snprintf(file, sizeof file, "%s.hf", list);
	if (!golden_each(file, check_part_line, &c))
		fail_msg("%s does not hold", file);
	assert_int_equal(c.found, ws_layout_part_count(l));
	ws_layout_free(l);
	return c.skipped;
}

TEST(every_tensor_of_a_checkpoint_is_a_part_and_every_part_a_tensor)
{
	for (size_t i = 0; i < N_MODELS; i++)
		hold_against_checkpoint(models[i], models[i], &(struct ws_layout_opts){ .tp = 1 });
}

TEST(next_token_layers_are_skipped_unless_asked_for)
{
	const struct ws_layout_opts target = { .tp = 8 }, draft = { .tp = 8, .nextn = true };
	/* 256 experts with scales, attention, shared experts, gate and what
	 * comes of the layer itself. */
	assert_int_equal(hold_against_checkpoint("deepseek-v3", "deepseek-v3", &target), 1564);
	assert_int_equal(hold_against_checkpoint("deepseek-v3", "deepseek-v3", &draft), 2);
	assert_int_equal(hold_against_checkpoint("glm-4.5-air", "glm-4.5-air", &draft), 2);
	assert_int_equal(hold_against_checkpoint("kimi-k2", "kimi-k2", &target), 0);
}

TEST(unquantized_servers_want_the_bf16_form)
{
	const struct ws_layout_opts bare = { .tp = 1, .unquantized = true };
	hold_against_checkpoint("deepseek-v3", "deepseek-v3", &bare);
	hold_against_checkpoint("qwen3-30b-a3b-fp8", "qwen3-30b-a3b", &bare);
	hold_against_checkpoint("gpt-oss-20b", "gpt-oss-20b-bf16", &bare);
}

/* ---- parameters ------------------------------------------------------------------------------*/

struct runtime {
	const char *model;
	struct ws_layout *layout;
	size_t found;
	unsigned divisions, refused;
};

static bool is_a_parameter(void *ctx, const struct golden_name *g)
{
	struct runtime *r = ctx;
	const unsigned tp = ws_layout_options(r->layout)->tp;
	const struct ws_param *p = ws_layout_find_param(r->layout, g->name);
	int64_t last[WS_MAX_DIMS];
	r->found++;
	if (!p) {
		print_error("no parameter %s\n", g->name);
		return false;
	}
	ws_layout_dims(r->layout, p, tp - 1, last);
	return same_dims(p->n_dims, p->dims, g, "param") && same_dims(p->n_dims, last, g, "param");
}

static bool ends_division(struct runtime *r)
{
	size_t own = 0;
	if (!r->layout)
		return true;
	const char *trouble = find_trouble(r->layout);
	for (size_t i = 0; i < ws_layout_param_count(r->layout); i++)
		own += !ws_layout_param(r->layout, i)->tied_to;
	const bool good = trouble ? r->found == 0 : r->found == own;
	if (!good)
		print_error("%zu parameters in the list, %zu in the layout; %s\n", r->found, own,
		            trouble ? trouble : "no trouble");
	ws_layout_free(r->layout);
	r->layout = NULL;
	return good;
}

static bool check_param_line(char *line, void *ctx)
{
	struct runtime *r = ctx;
	struct ws_layout_opts opts = { 0 };
	if (strncmp(line, "impossible ", 11) == 0) {
		r->refused++;
		return find_trouble(r->layout) != NULL;
	}
	if (sscanf(line, "tp %u ep %u attention %u", &opts.tp, &opts.ep, &opts.attention_tp) != 3) {
		if (golden_line(line, is_a_parameter, r))
			return true;
		print_error("at tp %u ep %u\n", ws_layout_options(r->layout)->tp,
		            ws_layout_options(r->layout)->ep);
		return false;
	}
	if (!ends_division(r))
		return false;
	opts.fuse_shared = strstr(line, "fused") != NULL;
	r->layout = make_layout(r->model, GOLDEN_LAYERS, &opts);
	r->found = 0;
	r->divisions++;
	return true;
}

TEST(parameters_are_those_of_the_server_at_every_division)
{
	unsigned divisions = 0, refused = 0;
	for (size_t i = 0; i < N_MODELS; i++) {
		char file[128];
		struct runtime r = { .model = models[i] };
		snprintf(file, sizeof file, "%s.runtime", models[i]);
		if (!golden_each(file, check_param_line, &r) || !ends_division(&r))
			fail_msg("%s does not hold", file);
		divisions += r.divisions;
		refused += r.refused;
	}
	assert_in_range(divisions, 100, 200);
	assert_int_equal(refused, 5);
}

TEST(many_ranks_are_no_trouble_where_the_server_starts_with_them)
{
	static const struct { const char *model; unsigned tp, ep; } cases[] = {
		{ "deepseek-v3", 16, 1 },    { "deepseek-v3", 16, 8 },
		{ "deepseek-v3.2", 16, 16 }, { "kimi-k2", 16, 16 },
		{ "glm-4.5-air", 16, 1 },    { "llama-3.1-8b", 32, 1 },
		{ "qwen3-30b-a3b", 32, 8 },  { "qwen3-30b-a3b-fp8", 8, 4 },
		{ "gpt-oss-20b", 16, 1 },    { "gpt-oss-20b", 32, 32 },
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		const struct ws_layout_opts opts = { .tp = cases[i].tp, .ep = cases[i].ep };
		struct ws_layout *l = make_layout(cases[i].model, GOLDEN_LAYERS, &opts);
		if (find_trouble(l))
			fail_msg("%s at tp %u ep %u: %s", cases[i].model, opts.tp, opts.ep,
			         find_trouble(l));
		ws_layout_free(l);
	}
}

TEST(what_does_not_divide_is_said_with_its_numbers)
{
	static const struct { const char *model; unsigned tp, ep; const char *said; } cases[] = {
		{ "qwen2.5-7b", 8, 1, "28" },         { "llama-3.1-8b", 3, 1, "32" },
		{ "llama-3.1-8b", 64, 1, "32" },      { "qwen3-0.6b", 6, 1, "16" },
		{ "qwen3-30b-a3b-fp8", 4, 1, "192" }, { "qwen3-30b-a3b-fp8", 8, 2, "192" },
		{ "qwen1.5-moe-a2.7b", 8, 8, "60" },  { "gpt-oss-20b", 64, 64, "32" },
		{ "glm-4.5-air", 64, 1, "96" },       { "kimi-k2", 128, 1, "64" },
		{ "deepseek-v3", 32, 32, "576" },
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		const struct ws_layout_opts opts = { .tp = cases[i].tp, .ep = cases[i].ep };
		struct ws_layout *l = make_layout(cases[i].model, GOLDEN_LAYERS, &opts);
		const char *trouble = find_trouble(l);
		if (!trouble || !strstr(trouble, cases[i].said))
			fail_msg("%s at tp %u ep %u: %s", cases[i].model, opts.tp, opts.ep,
			         trouble ? trouble : "no trouble");
		ws_layout_free(l);
	}
}

/* Families are written in pieces; what they come to is in the order of the model. */
TEST(the_parameters_of_a_layer_stand_together)
{
	for (size_t i = 0; i < N_MODELS; i++) {
		struct ws_layout *l =
			make_layout(models[i], GOLDEN_LAYERS, &(struct ws_layout_opts){ .tp = 1 });
		const size_t n = ws_layout_param_count(l);
		int last = 0, layer;
		assert_string_equal(ws_layout_param(l, 0)->name, "model.embed_tokens.weight");
		assert_string_equal(ws_layout_param(l, n - 1)->name, "lm_head.weight");
		for (size_t k = 1; k < n - 2; k++) {
			assert_int_equal(sscanf(ws_layout_param(l, k)->name, "model.layers.%d.",
			                        &layer),
			                 1);
			assert_in_range(layer, last, last + 1);
			last = layer;
		}
		ws_layout_free(l);
	}
}

/* ---- synthetic checkpoints -------------------------------------------------------------------*/

static void note(void *ctx, const char *name, enum ws_dtype dtype, unsigned n_dims,
                 const int64_t *dims)
{
	struct covering *c = ctx;
	struct golden_name g = { .name = name, .n_dims = n_dims };
	memcpy(g.dims, dims, n_dims * sizeof *dims);
	snprintf(g.dtype, sizeof g.dtype, "%s", ws_dtype_safetensors(dtype));
	assert_true(leads_somewhere(c, &g));
}

/* Their parts are those of the real checkpoints, whose lists the first test holds against them. */
TEST(synthetic_checkpoints_have_the_tensors_of_real_ones)
{
	static const struct { const char *name; size_t skipped; } cases[] = {
		{ "qwen3-0.6b", 0 }, { "qwen3-30b-a3b", 0 }, { "llama-3.1-8b", 0 },
		{ "deepseek-v3", 1564 }, { "glm-4.5-air", 404 }, { "gpt-oss-20b", 0 },
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		struct ws_layout *l =
			make_layout(cases[i].name, 0, &(struct ws_layout_opts){ .tp = 1 });
		struct covering c = { .layout = l };
		ws_model_walk(ws_model_find(cases[i].name, NULL), note, &c);
		assert_int_equal(c.found + ws_layout_tied(l), ws_layout_part_count(l));
		assert_int_equal(c.skipped, cases[i].skipped);
		ws_layout_free(l);
	}
}

RUN_TESTS(open_map, close_map)
