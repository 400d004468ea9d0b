/* SPDX-License-Identifier: Apache-2.0 */
/* What trainers keep, in many layouts, comes to the checkpoint that it was made of, byte by
 * byte. */
#include "tiny_moe.h"

#include "wsync/clock.h"
#include "wsync/tool/plan.h"

static struct ws_namemap *maps;
static struct ws_config *config;
static const struct ws_family *family;
static struct ws_layout *layout;

static int open_family(const char *json)
{
	const struct ws_layout_opts whole = { .tp = 1 };
	struct ws_err err = WS_ERR_INIT;
	if (ws_namemap_open(NULL, &maps, &err) ||
	    ws_config_parse(json, strlen(json), "config.json", &config, &err))
		fail_msg("%s", err.msg);
	family = ws_namemap_find(maps, config);
	if (!family)
		family = ws_namemap_generic(maps);
	if (family != ws_namemap_generic(maps) &&
	    ws_layout_make(family, config, &whole, &layout, &err))
		fail_msg("%s", err.msg);
	return 0;
}

static int enter(void **state)
{
	return scratch_enter(state) || open_family(moe);
}

static int leave(void **state)
{
	ws_layout_free(layout);
	ws_config_free(config);
	ws_namemap_close(maps);
	layout = NULL;
	return scratch_leave(state);
}

#define IN_FAMILY(test) TEST_BETWEEN(test, enter, leave)

/* ---- trainers ---- */

static const struct tensor *get(const struct tensors *set, const char *prefix, const char *rest)
{
	char name[160];
	snprintf(name, sizeof name, "%s%s", prefix, rest);
	return tensors_find(set, name);
}

static void fuse_attention(struct tensors *out, const struct tensors *set, const char *layer,
                           const char *name, int64_t groups)
{
	static const char *const kinds[] = { "weight", "bias" };
	for (int k = 0; k < 2; k++) {
		char q[80], kk[80], v[80], to[160];
		snprintf(q, sizeof q, ".self_attn.q_proj.%s", kinds[k]);
		snprintf(kk, sizeof kk, ".self_attn.k_proj.%s", kinds[k]);
		snprintf(v, sizeof v, ".self_attn.v_proj.%s", kinds[k]);
		snprintf(to, sizeof to, "%s.self_attn.%s.%s", layer, name, kinds[k]);
		const struct tensor *const parts[] = { get(set, layer, q), get(set, layer, kk),
			                               get(set, layer, v) };
		stack(out, to, parts, 3, groups);
	}
}

/* [E, H, 2I] and [E, I, H], or as servers have them: [E, 2I, H] and [E, H, I]. */
static void stack_experts(struct tensors *out, const struct tensors *set, const char *gate_up,
                          const char *down, bool transposed)
{
	const struct tensor *a = transposed ?
	                                 tensors_add(out, gate_up, 3, EXPERTS, HIDDEN, 2 * MID) :
	                                 tensors_add(out, gate_up, 3, EXPERTS, 2 * MID, HIDDEN);
	const struct tensor *b = transposed ? tensors_add(out, down, 3, EXPERTS, MID, HIDDEN) :
	                                      tensors_add(out, down, 3, EXPERTS, HIDDEN, MID);
	for (int64_t e = 0; e < EXPERTS; e++)
		for (int64_t i = 0; i < MID; i++)
			for (int64_t h = 0; h < HIDDEN; h++) {
				copy_element(a, e, transposed ? h : i, transposed ? i : h,
				             expert(set, e, "gate"), i, h, 0);
				copy_element(a, e, transposed ? h : MID + i,
				             transposed ? MID + i : h, expert(set, e, "up"), i, h,
				             0);
				copy_element(b, e, transposed ? i : h, transposed ? h : i,
				             expert(set, e, "down"), h, i, 0);
			}
}

static bool is_fused(const char *name)
{
	return strstr(name, ".q_proj.") || strstr(name, ".k_proj.") || strstr(name, ".v_proj.") ||
	       strstr(name, ".gate_proj.") || strstr(name, ".up_proj.") ||
	       strstr(name, ".experts.");
}

/* What no trainer changes, under a prefix. */
static void keep_rest(struct tensors *out, const struct tensors *set)
{
	for (size_t i = 0; i < set->n; i++) {
		const struct tensor *t = &set->v[i];
		if (is_fused(t->name))
			continue;
		const struct tensor *to =
			tensors_add(out, t->name, t->n, t->dims[0], t->dims[1], 0);
		memcpy(to->bytes, t->bytes, (size_t)elements(t) * ELEMENT);
	}
}

static void fuse_dense(struct tensors *out, const struct tensors *set)
{
	const struct tensor *const parts[] = { get(set, "model.layers.0", ".mlp.gate_proj.weight"),
		                               get(set, "model.layers.0", ".mlp.up_proj.weight") };
	stack(out, "model.layers.0.mlp.gate_up_proj.weight", parts, 2, 1);
}

/* ---- catalogs ---- */

struct opened {
	struct ws_source *source;
	struct ws_catalog *catalog;
};

static int open_catalog(const struct tensors *set, struct opened *o, struct ws_err *err)
{
	const char *path = "x.safetensors";
	const struct ws_catalog_opts opts = { .family = family, .layout = layout };
	*o = (struct opened){ 0 };
	tensors_write(set, path);
	assert_ok(ws_source_open(&path, 1, &o->source, err), err);
	return ws_catalog_make((const struct ws_source *const *)&o->source, 1, &opts, &o->catalog,
	                       err);
}

static void close_catalog(struct opened *o)
{
	ws_catalog_free(o->catalog);
	ws_source_close(o->source);
}

static struct tensors checkpoint, trainer;

static void assert_same(const struct tensors *saved)
{
	struct ws_err err = WS_ERR_INIT;
	struct opened o;
	assert_ok(open_catalog(saved, &o, &err), &err);
	assert_int_equal(ws_catalog_count(o.catalog), checkpoint.n);
	for (size_t i = 0; i < checkpoint.n; i++)
		assert_item(o.catalog, &checkpoint.v[i]);
	close_catalog(&o);
}

static void assert_refused(const char *message, const char *hint)
{
	struct ws_err err = WS_ERR_INIT;
	struct opened o;
	assert_fails_with(open_catalog(&trainer, &o, &err), &err, WS_EINPUT, message);
	assert_true(strstr(err.hint, hint) != NULL);
	close_catalog(&o);
	tensors_free(&trainer);
}

IN_FAMILY(a_checkpoint_is_its_own_catalog)
{
	struct ws_err err = WS_ERR_INIT;
	struct opened o;
	make_checkpoint(&checkpoint);
	assert_same(&checkpoint);
	assert_int_equal(open_catalog(&checkpoint, &o, &err), 0);
	size_t copied;
	assert_int_equal(count_views(o.catalog, &copied), 0);
	assert_null(ws_catalog_find(o.catalog, "model.layers.0"));
	assert_null(ws_catalog_item(o.catalog, checkpoint.n));
	for (size_t i = 0; i < checkpoint.n; i++)
		assert_null(ws_catalog_item(o.catalog, i)->derivation);
	close_catalog(&o);
	tensors_free(&checkpoint);
}

IN_FAMILY(servers_own_fused_names_are_taken_apart)
{
	struct ws_err err = WS_ERR_INIT;
	struct opened o;
	make_checkpoint(&checkpoint);
	keep_rest(&trainer, &checkpoint);
	fuse_attention(&trainer, &checkpoint, "model.layers.0", "qkv_proj", 1);
	fuse_attention(&trainer, &checkpoint, "model.layers.1", "qkv_proj", 1);
	fuse_dense(&trainer, &checkpoint);
	stack_experts(&trainer, &checkpoint, "model.layers.1.mlp.experts.w13_weight",
	              "model.layers.1.mlp.experts.w2_weight", false);
	assert_same(&trainer);
	assert_int_equal(open_catalog(&trainer, &o, &err), 0);
	assert_string_equal(
		ws_catalog_find(o.catalog, "model.layers.0.self_attn.k_proj.weight")->derivation,
		"rows 48..59 of model.layers.0.self_attn.qkv_proj.weight");
	const char *up = "model.layers.1.mlp.experts.3.up_proj.weight";
	assert_string_equal(
		ws_catalog_find(o.catalog, up)->derivation,
		"[3, 24..47, 0..31] of model.layers.1.mlp.experts.w13_weight");
	size_t copied;
	assert_int_equal(count_views(o.catalog, &copied), 12 + 2 + EXPERTS * 3);
	assert_int_equal(copied, 0);
	close_catalog(&o);
	tensors_free(&trainer);
	tensors_free(&checkpoint);
}

IN_FAMILY(transposed_experts_and_query_groups_are_taken_apart)
{
	struct ws_err err = WS_ERR_INIT;
	struct opened o;
	make_checkpoint(&checkpoint);
	keep_rest(&trainer, &checkpoint);
	fuse_attention(&trainer, &checkpoint, "model.layers.0", "linear_qkv", KV);
	fuse_attention(&trainer, &checkpoint, "model.layers.1", "linear_qkv", KV);
	fuse_dense(&trainer, &checkpoint);
	stack_experts(&trainer, &checkpoint, "model.layers.1.mlp.experts.gate_up_proj",
	              "model.layers.1.mlp.experts.down_proj", true);
	assert_same(&trainer);
	assert_int_equal(open_catalog(&trainer, &o, &err), 0);
	const char *up = "model.layers.1.mlp.experts.3.up_proj.weight";
	assert_string_equal(
		ws_catalog_find(o.catalog, up)->derivation,
		"[3, 0..31, 24..47] of model.layers.1.mlp.experts.gate_up_proj, transposed");
	assert_string_equal(
		ws_catalog_find(o.catalog, "model.layers.0.self_attn.v_proj.bias")->derivation,
		"rows of model.layers.0.self_attn.linear_qkv.bias, where they are interleaved "
		"in 2 groups");
	size_t copied;
	count_views(o.catalog, &copied);
	assert_int_equal(copied, EXPERTS * 3);
	close_catalog(&o);
	tensors_free(&trainer);
	tensors_free(&checkpoint);
}

IN_FAMILY(wrappers_and_paddings_are_left_out)
{
	make_checkpoint(&checkpoint);
	const struct tensor *embed = &checkpoint.v[0];
	struct tensor *padded = tensors_add(&trainer, "_orig_mod.module.model.embed_tokens.weight",
	                                    2, 128, HIDDEN, 0);
	memset(padded->bytes, 0, 128 * HIDDEN * ELEMENT);
	memcpy(padded->bytes, embed->bytes, VOCAB * HIDDEN * ELEMENT);
	for (size_t i = 1; i < checkpoint.n; i++) {
		const struct tensor *t = &checkpoint.v[i];
		char name[160];
		snprintf(name, sizeof name, "_orig_mod.%s", t->name);
		memcpy(tensors_add(&trainer, name, t->n, t->dims[0], t->dims[1], 0)->bytes,
		       t->bytes, (size_t)elements(t) * ELEMENT);
	}
	assert_same(&trainer);
	tensors_free(&trainer);
	tensors_free(&checkpoint);
}

IN_FAMILY(what_is_there_twice_is_refused)
{
	tensors_random(&trainer, "model.layers.0.self_attn.k_proj.weight", 2, KV * DIM, HIDDEN, 0);
	tensors_random(&trainer, "model.layers.0.self_attn.qkv_proj.weight", 2,
	               (HEADS + 2 * KV) * DIM, HIDDEN, 0);
	assert_refused(
		"tensor 'model.layers.0.self_attn.k_proj.weight' is there twice: a tensor of that "
		"name, and rows 48..59 of model.layers.0.self_attn.qkv_proj.weight",
		"either fused or in parts");
	tensors_random(&trainer, "model.norm.weight", 1, HIDDEN, 0, 0);
	tensors_random(&trainer, "module.model.norm.weight", 1, HIDDEN, 0, 0);
	assert_refused("tensor 'model.norm.weight' is there twice: a tensor of that name, and "
	               "renamed from module.model.norm.weight",
	               "under one name");
}

IN_FAMILY(shapes_that_fit_nothing_stay_as_they_are)
{
	struct ws_err err = WS_ERR_INIT;
	struct opened o;
	tensors_random(&trainer, "model.layers.0.self_attn.qkv_proj.weight", 2, 7, HIDDEN, 0);
	tensors_random(&trainer, "model.layers.0.self_attn.o_proj.weight", 2, 7, HIDDEN, 0);
	tensors_random(&trainer, "whatever", 1, 7, 0, 0);
	assert_int_equal(open_catalog(&trainer, &o, &err), 0);
	for (size_t i = 0; i < trainer.n; i++)
		assert_item(o.catalog, &trainer.v[i]);
	assert_string_equal(ws_catalog_item(o.catalog, 0)->derivation,
	                    "left as it is: its shape is not a known shape of "
	                    "model.layers.0.self_attn.qkv_proj.weight");
	assert_null(ws_catalog_item(o.catalog, 1)->derivation);
	close_catalog(&o);
	tensors_free(&trainer);
}

IN_FAMILY(a_shape_that_does_not_decide_is_refused)
{
	char square[sizeof moe + 8];
	leave(state);
	scratch_enter(state);
	strcpy(square, moe);
	memcpy(strstr(square, "\"moe_intermediate_size\":24"), "\"moe_intermediate_size\":16", 26);
	open_family(square);
	tensors_random(&trainer, "model.layers.1.mlp.experts.gate_up_proj", 3, EXPERTS, HIDDEN,
	               HIDDEN);
	assert_refused(
		"tensor 'model.layers.1.mlp.experts.gate_up_proj' of shape [4, 32, 32] may be "
		"\"alias mlp.experts.gate_up_proj of mlp.experts.w13_weight\" with axes 0 2 1, or "
		"\"alias mlp.experts.gate_up_proj of mlp.experts.w13_weight\": the shape does not "
		"decide",
		"{map} FILE");
	/* ... where w2 is not square, its shape does. */
	tensors_random(&trainer, "model.layers.1.mlp.experts.down_proj", 3, EXPERTS, HIDDEN, 16);
	struct ws_err err = WS_ERR_INIT;
	struct opened o;
	assert_int_equal(open_catalog(&trainer, &o, &err), 0);
	assert_int_equal(ws_catalog_count(o.catalog), EXPERTS);
	close_catalog(&o);
	tensors_free(&trainer);
}

/* ---- joining by rules ---- */

IN_FAMILY(parts_of_linear_attention_are_joined)
{
	static const char prefix[] = "model.layers.0.linear_attn";
	leave(state);
	scratch_enter(state);
	open_family("{\"architectures\":[\"Qwen3NextForCausalLM\"],\"model_type\":\"qwen3_next\"}");
	static const char *const names[] = { "q_proj", "k_proj", "v_proj" };
	char name[128];
	for (int i = 0; i < 3; i++) {
		snprintf(name, sizeof name, "%s.%s.weight", prefix, names[i]);
		tensors_random(&trainer, name, 2, 4 + i, HIDDEN, 0);
	}
	snprintf(name, sizeof name, "%s.in_proj_qkv.weight", prefix);
	const struct tensor *const parts[] = { &trainer.v[0], &trainer.v[1], &trainer.v[2] };
	stack(&checkpoint, name, parts, 3, 1);
	snprintf(name, sizeof name, "%s.o_proj.weight", prefix);
	tensors_random(&trainer, name, 2, 4, HIDDEN, 0);
	snprintf(name, sizeof name, "%s.out_proj.weight", prefix);
	memcpy(tensors_add(&checkpoint, name, 2, 4, HIDDEN, 0)->bytes, trainer.v[3].bytes,
	       4 * HIDDEN * ELEMENT);
	assert_same(&trainer);
	/* One of them missing: they stay what they are. */
	struct ws_err err = WS_ERR_INIT;
	struct opened o;
	strcpy(trainer.v[1].name, "other");
	assert_int_equal(open_catalog(&trainer, &o, &err), 0);
	assert_int_equal(ws_catalog_count(o.catalog), 4);
	assert_item(o.catalog, &trainer.v[0]);
	assert_string_equal(
		ws_catalog_find(o.catalog, trainer.v[0].name)->derivation,
		"left as it is: without its part 2, **.linear_attn.k_proj.weight, there is no "
		"model.layers.0.linear_attn.in_proj_qkv.weight");
	close_catalog(&o);
	snprintf(trainer.v[1].name, sizeof name, "%s.k_proj.weight", prefix);
	tensors_random(&trainer, checkpoint.v[0].name, 2, 15, HIDDEN, 0);
	assert_refused(
		"tensor 'model.layers.0.linear_attn.in_proj_qkv.weight' is there twice: joined of "
		"model.layers.0.linear_attn.q_proj.weight, "
	        "model.layers.0.linear_attn.k_proj.weight, "
		"model.layers.0.linear_attn.v_proj.weight, and a tensor of that name",
		"");
	tensors_free(&checkpoint);
}

/* ---- plans ---- */

IN_FAMILY(a_plan_says_what_a_view_is_made_of)
{
	struct ws_err err = WS_ERR_INIT;
	uint64_t digests[2];
	make_checkpoint(&checkpoint);
	for (int k = 0; k < 2; k++) {
		struct opened o;
		struct ws_plan *p = NULL;
		/* Whether groups are interleaved is not in any name or shape. */
		fuse_attention(&trainer, &checkpoint, "model.layers.0",
		               k ? "linear_qkv" : "qkv_proj", 1);
		assert_int_equal(open_catalog(&trainer, &o, &err), 0);
		const struct ws_plan_opts opts = { 0 };
		assert_int_equal(ws_plan_make(o.catalog, &opts, &p, &err), 0);
		assert_int_equal(p->n_tensors, 6);
		assert_int_equal(p->tensors[0].op, WS_OP_VIEW);
		assert_string_equal(ws_transform_op_name(p->tensors[0].op), "view");
		digests[k] = p->digest;
		ws_plan_free(p);
		close_catalog(&o);
		tensors_free(&trainer);
	}
	assert_true(digests[0] != digests[1]);
	tensors_free(&checkpoint);
}

/* Each compared with each they take half a minute. */
TEST(ninety_thousand_tensors_take_milliseconds)
{
	struct ws_err err = WS_ERR_INIT;
	const char *path = "synthetic:deepseek-v3";
	struct ws_source *s = NULL;
	struct ws_catalog *c = NULL;
	const struct ws_catalog_opts none = { 0 };
	assert_ok(ws_source_open(&path, 1, &s, &err), &err);
	const int64_t start = cpu_ns();
	assert_ok(ws_catalog_make((const struct ws_source *const *)&s, 1, &none, &c, &err), &err);
	assert_true(cpu_ns() - start < 5 * WS_NS_PER_S);
	assert_int_equal(ws_catalog_count(c), ws_source_count(s));
	ws_catalog_free(c);
	ws_source_close(s);
}

RUN_TESTS(NULL, NULL)
