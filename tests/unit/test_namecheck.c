/* SPDX-License-Identifier: Apache-2.0 */
/* The check of names against what servers show, with and without rules, and
 * how findings are grouped. */
#include "name_list.h"
#include "wsync/clock.h"

static char root[4096];

/* ---- a server that shows the parameters of a layout ---- */

struct server {
	struct ws_weight_list list;
	struct ws_layout *layout;
	struct ws_config *config;
};

/* What the model shows at these sizes; tied duplicates are not shown. */
static struct server server_of(const struct checked *k, const char *model, int depth,
                               const struct ws_layout_opts *sizes, const char *const *edits)
{
	struct server s = { .config = config_read(root, model, depth, edits) };
	struct ws_err err;
	assert_ok(ws_layout_make(k->family, s.config, sizes, &s.layout, &err), &err);
	const size_t n = ws_layout_param_count(s.layout);
	s.list.items = calloc(n + 1, sizeof *s.list.items);
	for (size_t i = 0; i < n; i++) {
		const struct ws_param *p = ws_layout_param(s.layout, i);
		if (p->tied_to)
			continue;
		struct ws_weight *w = &s.list.items[s.list.n++];
		*w = (struct ws_weight){ .name = p->name, .dtype = "", .n_dims = p->n_dims };
		memcpy(w->dims, p->dims, sizeof p->dims);
	}
	return s;
}

static void server_free(struct server *s)
{
	free(s->list.items);
	ws_layout_free(s->layout);
	ws_config_free(s->config);
}

static struct ws_weight *shown(struct server *s, const char *name)
{
	for (size_t i = 0; i < s->list.n; i++)
		if (!strcmp(s->list.items[i].name, name))
			return &s->list.items[i];
	fail_msg("the server does not show %s", name);
	return NULL;
}

static void hide(struct server *s, const char *text)
{
	size_t n = 0;
	for (size_t i = 0; i < s->list.n; i++)
		if (!strstr(s->list.items[i].name, text))
			s->list.items[n++] = s->list.items[i];
	s->list.n = n;
}

/* What a server shows at its sizes, and what is found by a check that assumes others. */
struct scene {
	const char *name, *model;
	int depth;
	struct ws_layout_opts assumed, real;
	size_t errors, warnings;
	const char *says[4];
	void (*spoil)(struct server *s);
	const char *edits[3];        /* of the real config */
	bool tp_known;
	bool no_layout;              /* nor is the config known */
};

/* By a group, or of the first name. */
static bool is_said(const struct ws_findings *f, const char *reason)
{
	for (size_t i = 0; i < f->n_groups; i++)
		if (!strcmp(f->groups[i].reason, reason))
			return true;
	return f->n && !strcmp(f->items[0].reason, reason);
}

static void run_scene(const struct scene *c)
{
	struct list l = list_read(root, c->model, c->depth);
	struct ws_namecheck_opts o = { .tp_known = c->tp_known };
	struct ws_err err = WS_ERR_INIT;
	struct checked k;
	checked_open(&k, &l, config_read(root, c->model, c->depth, NULL), &c->assumed);
	struct server s = server_of(&k, c->model, c->depth, &c->real, c->edits);
	if (c->spoil)
		c->spoil(&s);
	o.listing = &s.list;
	if (!c->no_layout) {
		checked_run(&k, &o);
	} else {
		o.items = k.items;
		o.family = ws_namemap_generic(k.map);
		assert_ok(ws_namecheck(&o, &k.f, &err), &err);
	}
	bool good = k.f.errors == c->errors && k.f.warnings == c->warnings;
	for (size_t i = 0; i < 4 && c->says[i]; i++)
		good &= is_said(&k.f, c->says[i]);
	if (!good) {
		print_findings(&k.f);
		fail_msg("%s (%s): %zu errors, %zu warnings", c->name, c->model, k.f.errors,
		         k.f.warnings);
	}
	server_free(&s);
	checked_free(&k);
	list_free(&l);
}

static void group_with(const struct ws_findings *f, const char *reason)
{
	if (is_said(f, reason))
		return;
	print_findings(f);
	fail_msg("nothing says: %s", reason);
}

static void expect(const struct ws_findings *f, size_t errors, size_t warnings)
{
	if (f->errors == errors && f->warnings == warnings)
		return;
	print_findings(f);
	fail_msg("%zu errors and %zu warnings, not %zu and %zu", f->errors, f->warnings, errors,
	         warnings);
}

/* ---- scenes ---- */

static void pad_otherwise(struct server *s)
{
	shown(s, "model.embed_tokens.weight")->dims[0] = 9500;
}

static void cut_vocabulary(struct server *s)
{
	shown(s, "model.embed_tokens.weight")->dims[0] = 9400;
}

static void show_twice_the_vocabulary(struct server *s)
{
	shown(s, "model.embed_tokens.weight")->dims[0] *= 2;
}

static void hide_stage(struct server *s)
{
	hide(s, "layers.2.");
	hide(s, "layers.3.");
}

static void show_more(struct server *s)
{
	shown(s, "model.layers.3.mlp.down_proj.weight")->name =
		"model.layers.0.self_attn.attn.k_scale";
	shown(s, "model.norm.weight")->name = "model.layers.0.mlp.extra";
}

static void show_names_alone(struct server *s)
{
	for (size_t i = 0; i < s->list.n; i++)
		s->list.items[i].shapeless = true;
	hide(s, "_scale_inv"); /* checksums are of dequantized weights in some servers */
}

static char prefixed[256][128];

static void show_as_part_of_more(struct server *s)
{
	for (size_t i = 0; i < s->list.n; i++) {
		snprintf(prefixed[i], sizeof prefixed[i], "language_model.%s",
		         s->list.items[i].name);
		s->list.items[i].name = prefixed[i];
	}
}

static void say_types(struct server *s)
{
	for (size_t i = 0; i < s->list.n; i++)
		s->list.items[i].dtype = "float8_e4m3fn";
}

static void grow(struct server *s)
{
	shown(s, "model.layers.0.mlp.down_proj.weight")->dims[1] = 15000;
	shown(s, "model.layers.1.mlp.down_proj.weight")->dims[1] = 10000;
	shown(s, "model.norm.weight")->name = "model.final_norm.weight";
}

/* clang-format off */
static const struct scene scenes[] = {
	{ "another tp", "llama-3.1-8b", 4, { .tp = 2 }, { .tp = 4 }, 0, 1, .says = {
	  "the server's shapes are for tp 4, not 2: [4096, 3584] shown = 14336 / 4 columns" } },
	{ "ep is read off the experts", "qwen3-30b-a3b", 2, { .tp = 8 }, { .tp = 8, .ep = 4 },
	  0, 1, .says = {
	  "the server's shapes are for ep 4, not 1: [32, 2048, 384] shown = 128 / 4 experts" } },
	{ "attention tp is read off its outputs", "deepseek-v3", 4, { .tp = 8 },
	  { .tp = 8, .attention_tp = 2 }, 0, 1, .says = {
	  "the server's shapes are for attention tp 2, not 8: [7168, 8192] shown = 16384 / 2 "
	  "columns" } },
	{ "fused shared experts", "deepseek-v3", 4, { .tp = 2 }, { .tp = 2, .fuse_shared = true },
	  0, 0, .says = {
	  "the server shows the shared experts as further experts behind the routed ones" } },
	{ "no scales", "deepseek-v3", 4, { .tp = 2 }, { .tp = 2, .unquantized = true }, 1600, 1,
	  .says = {
	  "the server shows no FP8 scale, though config.json says that weights are in FP8: it was "
	  "started unquantized",
	  "800 weights are sent in float8_e4m3fn, and the server keeps them unquantized: it would "
	  "copy them without their scales" } },
	{ "shapes are compared", "qwen3-30b-a3b", 2, { .tp = 2 }, { .tp = 2 }, 4, 0,
	  .says = {
	  "[2048, 2048] shown; config.json at tp 2 gives [2560, 2048]" },
	  .edits = { "num_attention_heads", "24" } },
	{ "another model", "llama-3.1-8b", 4, { .tp = 2 }, { .tp = 2 }, 1, 0, .says = {
	  "the server shows another model than config.json gives: 27 of its 27 parameters have "
	  "another name or shape, the first [64128, 8192], and config.json gives [64128, 4096]" },
	  .edits = { "hidden_size", "8192" } },
	{ "another padding", "qwen3-0.6b", 2, { .tp = 16 }, { .tp = 16 }, 0, 1, .says = {
	  "[9500, 1024] shown * tp 16 = 152000 rows, and vocab_size 151936 padded to a multiple of "
	  "64 is 151936: the server pads otherwise" }, .spoil = pad_otherwise },
	{ "a smaller vocabulary", "qwen3-0.6b", 2, { .tp = 16 }, { .tp = 16 }, 1, 0,
	  .spoil = cut_vocabulary },
	{ "more rows than any padding", "qwen3-0.6b", 2, { .tp = 16 }, { .tp = 16 }, 1, 0,
	  .spoil = show_twice_the_vocabulary },
	/* Half of the inner size looks like tp 2 with dp attention, unless the server says that it
	 * is at tp 1. */
	{ "another inner size at tp 1", "qwen3-0.6b", 2, { .tp = 1 }, { .tp = 1 }, 4, 0,
	  .edits = { "intermediate_size", "1536" }, .tp_known = true },
	{ "another inner size", "qwen3-0.6b", 2, { .tp = 1 }, { .tp = 1 }, 0, 2, .says = {
	  "the server's shapes are for attention tp 1, not 2: [1024, 2048] shown = 2048 / 1 "
	  "columns" }, .edits = { "intermediate_size", "1536" } },
	{ "layers of another stage", "llama-3.1-8b", 4, { .tp = 2 }, { .tp = 2 }, 12, 0, .says = {
	  "12 parameters are of layers that the server does not show: 2 and 3" },
	  .spoil = hide_stage },
	{ "what only the server has", "llama-3.1-8b", 4, { .tp = 2 }, { .tp = 2 }, 3, 0, .says = {
	  "the server shows it as [4096], the rules of llama do not have it, and nothing is sent "
	  "for it",
	  "on the server but not in the checkpoint: a scale of the server's own KV cache" },
	  .spoil = show_more },
	{ "names alone", "qwen3-30b-a3b-fp8", 2, { .tp = 2 }, { .tp = 4, .unquantized = true },
	  0, 0, .spoil = show_names_alone },
	{ "a prefix of all that is shown", "qwen3-0.6b", 2, { .tp = 2 }, { .tp = 2 }, 0, 0,
	  .says = {
	  "the server's own names begin with language_model., which is left out in the "
	  "comparison" }, .spoil = show_as_part_of_more },
	{ "types", "qwen3-0.6b", 1, { .tp = 2 }, { .tp = 2 }, 10, 0, .says = {
	  "10 parameters are float8_e4m3fn at the server, and config.json gives unquantized ones" },
	  .spoil = say_types },
	{ "elements without a layout", "llama-3.1-8b", 2, { .tp = 1 }, { .tp = 2 }, 3, 2, .says = {
	  "[4096, 15000] shown = 61440000 elements at one rank, and 58720256 are sent for all",
	  "[4096, 10000] shown = 40960000 elements at one rank, and the 58720256 sent are no "
	  "multiple",
	  "the server shows no parameter that this could be or be a part of",
	  "the server shows it, and nothing is sent for it" }, .spoil = grow, .no_layout = true },
	{ "another stage without a layout", "llama-3.1-8b", 4, { .tp = 2 }, { .tp = 2 }, 18, 1,
	  .says = { "18 names are of layers that the server does not show: 2 and 3" },
	  .spoil = hide_stage, .no_layout = true },
};
/* clang-format on */

SCRATCH_TEST(every_scene_has_its_findings)
{
	for (size_t i = 0; i < sizeof scenes / sizeof *scenes; i++)
		run_scene(&scenes[i]);
}

SCRATCH_TEST(a_server_that_shows_what_its_config_gives_is_fine)
{
	static const char *const models[] = { "qwen3-0.6b", "qwen3-30b-a3b-fp8", "deepseek-v3",
		                              "gpt-oss-20b", "glm-4.5-air" };
	for (size_t i = 0; i < sizeof models / sizeof models[0]; i++)
		run_scene(&(struct scene){ "fine", models[i], 4, { .tp = 2 }, { .tp = 2 },
			                   .errors = 0 });
}

SCRATCH_TEST(unknown_families_are_related_by_common_stacks)
{
	static const char *const models[] = { "qwen3-0.6b",    "llama-3.1-8b",
		                              "qwen3-30b-a3b", "qwen3-30b-a3b-fp8",
		                              "deepseek-v3",   "gpt-oss-20b-bf16",
		                              "glm-4.5-air" };
	static const char warning[] =
		"the server's config.json is not known: names are related by the stacked tensors "
		"that most servers have, and shapes by their number of elements only";
	for (size_t i = 0; i < sizeof models / sizeof models[0]; i++)
		run_scene(&(struct scene){ "generic", models[i], 4, { .tp = 1 }, { .tp = 2 }, 0, 1,
			                   .says = { warning }, .no_layout = true });
}

SCRATCH_TEST(a_head_that_is_shown_apart_is_not_tied)
{
	static const char *const edits[] = { "tie_word_embeddings", "false", NULL };
	const struct ws_layout_opts sizes = { .tp = 2 };
	struct list l = list_read(root, "qwen3-0.6b", 2);
	struct ws_namecheck_opts o = { 0 };
	struct checked k;
	list_drop(&l, "lm_head");
	checked_open(&k, &l, config_read(root, "qwen3-0.6b", 2, NULL), &sizes);
	struct server s = server_of(&k, "qwen3-0.6b", 2, &sizes, edits);
	o.listing = &s.list;
	checked_run(&k, &o);
	expect(&k.f, 1, 0);
	group_with(&k.f, "the server shows a head of its own, which by config.json is tied to the "
	                 "embedding, and nothing is sent for it: it keeps what it has");
	server_free(&s);
	checked_free(&k);
	list_free(&l);
}

/* A head that the server has is loaded, whatever it is. */
SCRATCH_TEST(a_head_that_is_shown_apart_may_differ)
{
	static const char *const edits[] = { "tie_word_embeddings", "false", NULL };
	const struct ws_layout_opts sizes = { .tp = 2 };
	for (int apart = 0; apart < 2; apart++) {
		struct list l = list_read(root, "qwen3-0.6b", 2);
		struct ws_namecheck_opts o = { .tied_later = true };
		struct checked k;
		checked_open(&k, &l, config_read(root, "qwen3-0.6b", 2, NULL), &sizes);
		struct server s = server_of(&k, "qwen3-0.6b", 2, &sizes, apart ? edits : NULL);
		o.listing = &s.list;
		checked_run(&k, &o);
		expect(&k.f, 0, 0);
		assert_int_equal(k.f.n_tied, !apart);
		server_free(&s);
		checked_free(&k);
		list_free(&l);
	}
}

/* Sent without up_proj, with a name that is nowhere near, and with another prefix. */
SCRATCH_TEST(generic_parts_and_prefixes_are_told)
{
	struct list l = list_read(root, "llama-3.1-8b", 2);
	struct ws_namecheck_opts o = { 0 };
	struct ws_err err;
	struct checked k;
	list_drop(&l, "layers.0.mlp.up_proj");
	list_replace(&l, "model.layers.1.mlp", "transformer.layers.1.mlp");
	checked_open(&k, &l, config_read(root, "llama-3.1-8b", 2, NULL), NULL);
	struct server s =
		server_of(&k, "llama-3.1-8b", 2, &(struct ws_layout_opts){ .tp = 2 }, NULL);
	o.items = k.items;
	o.listing = &s.list;
	assert_int_equal(ws_namecheck(&o, &k.f, &err), 0);
	group_with(&k.f, "a part only is sent, without up_proj");
	group_with(&k.f, "3 names begin with transformer. where the server has model., and with "
	                 "that they match");
	server_free(&s);
	checked_free(&k);
	list_free(&l);
}

/* Of no known family, at tp 2 or ep 2 the elements would do. */
static void expect_generic(const char *model, const char *drop, bool with_config,
                           const struct ws_layout_opts *sizes, const char *reason)
{
	struct list l = list_read(root, model, 2);
	struct ws_namecheck_opts o = { 0 };
	struct ws_err err;
	struct checked k;
	list_drop(&l, drop);
	checked_open(&k, &l, config_read(root, model, 2, NULL), NULL);
	struct server s = server_of(&k, model, 2, sizes, NULL);
	o.items = k.items;
	o.listing = &s.list;
	o.config = with_config ? k.config : NULL;
	assert_int_equal(ws_namecheck(&o, &k.f, &err), 0);
	group_with(&k.f, reason);
	assert_true(k.f.errors > 0);
	server_free(&s);
	checked_free(&k);
	list_free(&l);
}

SCRATCH_TEST(generic_experts_are_counted)
{
	expect_generic("qwen3-30b-a3b", "layers.0.mlp.experts.5.", false,
	               &(struct ws_layout_opts){ .tp = 2 },
	               "experts up to number 127 are sent, and of their 256 tensors only 254");
	expect_generic("qwen3-30b-a3b", "layers.0.mlp.experts.127.", true,
	               &(struct ws_layout_opts){ .tp = 2, .ep = 2 },
	               "127 experts are sent, and config.json gives 128");
}

SCRATCH_TEST(without_anything_to_compare_with_it_is_refused)
{
	struct list l = list_read(root, "qwen3-0.6b", 1);
	struct ws_namecheck_opts o = { 0 };
	struct ws_err err;
	struct checked k;
	checked_open(&k, &l, config_read(root, "qwen3-0.6b", 1, NULL), NULL);
	o.items = k.items;
	assert_fails(ws_namecheck(&o, &k.f, &err), &err, WS_EUSAGE, "");
	checked_free(&k);
	list_free(&l);
}

/* ---- what is chosen ---- */

SCRATCH_TEST(what_the_globs_leave_out_is_a_note)
{
	static const char *const include[] = { "*.q_proj.weight" };
	struct list l = list_read(root, "llama-3.1-8b", 2);
	struct ws_namecheck_opts o = { .include = include, .n_include = 1 };
	const struct ws_layout_opts sizes = { .tp = 2 };
	struct checked k;
	checked_open(&k, &l, config_read(root, "llama-3.1-8b", 2, NULL), &sizes);
	checked_run(&k, &o);
	expect(&k.f, 0, 0);
	assert_int_equal(k.f.sent, 2);
	assert_int_equal(k.f.notes, l.n - 2);
	checked_free(&k);
	list_free(&l);
}

SCRATCH_TEST(a_latent_projection_alone_is_lost)
{
	static const char *const include[] = { "*.kv_a_proj_with_mqa.*" };
	struct list l = list_read(root, "deepseek-v3", 2);
	struct ws_namecheck_opts o = { .include = include, .n_include = 1 };
	const struct ws_layout_opts sizes = { .tp = 2 };
	struct checked k;
	checked_open(&k, &l, config_read(root, "deepseek-v3", 2, NULL), &sizes);
	checked_run(&k, &o);
	expect(&k.f, 4, 0); /* q_a_proj of two layers, and its scales */
	assert_int_equal(k.f.count[WS_NAME_PARTIAL], 4);
	checked_free(&k);
	list_free(&l);
}

/* ---- groups ---- */

SCRATCH_TEST(ninety_thousand_wrong_names_are_one_group)
{
	struct list l = list_read(root, "deepseek-v3", 0);
	const struct ws_layout_opts sizes = { .tp = 8 };
	struct ws_namecheck_opts o = { 0 };
	struct checked k;
	for (size_t i = 0; i < l.n; i++) {
		char old[256];
		memcpy(old, l.e[i].name, sizeof old);
		snprintf(l.e[i].name, sizeof old, "language_model.%.200s", old);
		/* a file of 670 GB, even a hole, is too large for some systems */
		l.e[i].n_dims = 0;
	}
	checked_open(&k, &l, config_read(root, "deepseek-v3", 0, NULL), &sizes);
	const int64_t start = ws_now_ns();
	checked_run(&k, &o);
	print_message("# %zu wrong names in %.0f ms\n", k.f.sent,
	              (double)(ws_now_ns() - start) / 1e6);
	assert_int_equal(k.f.n_groups, 2);
	assert_string_equal(k.f.groups[0].reason,
	                    "91,991 names begin with language_model., and without it they match");
	assert_int_equal(k.f.groups[0].verdict, WS_NAME_UNEXPECTED);
	assert_int_equal(k.f.groups[1].verdict, WS_NAME_MISSING);
	assert_int_equal(k.f.count[WS_NAME_UNEXPECTED], 91991);
	checked_free(&k);
	list_free(&l);
}

SCRATCH_TEST(groups_are_by_severity_and_size)
{
	struct list l = list_read(root, "deepseek-v3", 4);
	const struct ws_layout_opts sizes = { .tp = 2 };
	struct ws_namecheck_opts o = { 0 };
	struct checked k;
	list_drop(&l, "layers.1.");
	list_drop(&l, "lm_head");
	checked_open(&k, &l, config_read(root, "deepseek-v3", 4, NULL), &sizes);
	checked_run(&k, &o);
	const struct ws_findings *f = &k.f;
	size_t at = 0, sum = 0;
	for (size_t g = 0; g < f->n_groups; g++) {
		assert_int_equal(f->groups[g].first, at);
		at += f->groups[g].n;
		for (size_t i = f->groups[g].first; i < at; i++)
			assert_int_equal(f->items[i].group, g);
		if (g && f->groups[g].severity == f->groups[g - 1].severity)
			assert_true(f->groups[g].n <= f->groups[g - 1].n);
		else if (g)
			assert_true(f->groups[g].severity < f->groups[g - 1].severity);
	}
	for (size_t v = 0; v < WS_NAME_VERDICTS; v++)
		sum += f->count[v];
	assert_int_equal(at, f->n);
	assert_int_equal(sum, f->n);
	assert_int_equal(f->errors + f->warnings + f->notes, f->n);
	checked_free(&k);
	list_free(&l);
}

TEST(names_of_verdicts_are_distinct)
{
	for (int i = 0; i < WS_NAME_VERDICTS; i++)
		for (int j = 0; j < i; j++)
			assert_string_not_equal(ws_verdict_name((enum ws_verdict)i),
			                        ws_verdict_name((enum ws_verdict)j));
	assert_string_equal(ws_severity_name(WS_WARN), "warning");
}

int main(void)
{
	if (!getcwd(root, sizeof root))
		return 1;
	return run_listed(NULL, NULL);
}
