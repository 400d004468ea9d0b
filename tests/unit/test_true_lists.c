/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints as they are published, and as trainers save them, raise no false alarm: not against a
 * server's config, and not against what the server shows. */
#include "trainer_lists.h"
#include "wsync/tool/catalog.h"
#include "wsync/tool/namecheck.h"

/* ---- checks ----------------------------------------------------------------------------------*/

/* A checkpoint in a catalog, to be compared with several servers. */
struct checkpoint {
	const struct model *model;
	int depth;
	char path[64];
	struct ws_config *config;
	struct ws_layout *whole;
	struct ws_source *source;
	struct ws_catalog *items;
	/* while the servers of a list are read */
	struct ws_layout_opts opts;
	struct ws_weight *shown;
	size_t n_shown, cap_shown;
	bool impossible;
	unsigned checks;
};

static void open_checkpoint(struct checkpoint *c, const struct model *m,
                            const struct trainer *trainer, int depth)
{
	struct ws_err err = WS_ERR_INIT;
	*c = (struct checkpoint){ .model = m, .depth = depth };
	snprintf(c->path, sizeof c->path, "/tmp/wsync-test-%d.safetensors", (int)getpid());
	write_list(m, trainer, depth, c->path);
	c->config = read_config(m->name, depth);
	c->whole = make_layout(m->name, depth, &(struct ws_layout_opts){ .tp = 1 });
	const char *const paths[] = { c->path };
	if (ws_source_open(paths, 1, &c->source, &err))
		fail_msg("%s: %s", m->name, err.msg);
	const struct ws_source *const sources[] = { c->source };
	const struct ws_catalog_opts opts = { .family = ws_namemap_find(map, c->config),
		                              .layout = c->whole };
	if (ws_catalog_make(sources, 1, &opts, &c->items, &err))
		fail_msg("%s: %s", m->name, err.msg);
}

static void forget_shown(struct checkpoint *c)
{
	for (size_t i = 0; i < c->n_shown; i++)
		free((char *)(uintptr_t)c->shown[i].name);
	c->n_shown = 0;
}

static void close_checkpoint(struct checkpoint *c)
{
	forget_shown(c);
	free(c->shown);
	ws_catalog_free(c->items);
	ws_source_close(c->source);
	ws_layout_free(c->whole);
	ws_config_free(c->config);
	unlink(c->path);
}

static void expect_nothing(const struct checkpoint *c, const struct ws_findings *f)
{
	if (!f->errors && !f->warnings)
		return;
	const struct ws_finding *first = &f->items[0];
	fail_msg("%s at tp %u ep %u: %zu errors, %zu warnings; %s: %s", c->model->name, c->opts.tp,
	         c->opts.ep, f->errors, f->warnings, first->name, first->reason);
}

static void check(struct checkpoint *c, const struct ws_weight_list *listing)
{
	struct ws_findings f;
	struct ws_err err = WS_ERR_INIT;
	struct ws_layout *server = make_layout(c->model->name, c->depth, &c->opts);
	const struct ws_namecheck_opts opts = { .items = c->items, .layout = server,
		                                .listing = listing,
		                                .family = ws_namemap_find(map, c->config),
		                                .config = c->config };
	if (ws_namecheck(&opts, &f, &err))
		fail_msg("%s: %s", c->model->name, err.msg);
	expect_nothing(c, &f);
	ws_findings_free(&f);
	ws_layout_free(server);
	c->checks++;
}

/* Against the config alone, and with what the server would show. */
static void check_shown(struct checkpoint *c)
{
	const struct ws_weight_list listing = { .items = c->shown, .n = c->n_shown };
	if (!c->n_shown || c->impossible)
		return;
	check(c, NULL);
	check(c, &listing);
}

static bool show(void *ctx, const struct golden_name *g)
{
	struct checkpoint *c = ctx;
	if (c->n_shown == c->cap_shown) {
		c->cap_shown = c->cap_shown ? c->cap_shown * 2 : 256;
		c->shown = realloc(c->shown, c->cap_shown * sizeof *c->shown);
		assert_non_null(c->shown);
	}
	struct ws_weight *w = &c->shown[c->n_shown++];
	*w = (struct ws_weight){ .name = strdup(g->name), .n_dims = g->n_dims, .dtype = "" };
	memcpy(w->dims, g->dims, sizeof w->dims);
	return true;
}

static bool read_server(char *line, void *ctx)
{
	struct checkpoint *c = ctx;
	struct ws_layout_opts opts = { 0 };
	if (sscanf(line, "tp %u ep %u attention %u", &opts.tp, &opts.ep, &opts.attention_tp) != 3) {
		c->impossible |= strncmp(line, "impossible ", 11) == 0;
		return c->impossible || golden_line(line, show, c);
	}
	check_shown(c);
	forget_shown(c);
	opts.fuse_shared = strstr(line, "fused") != NULL;
	c->opts = opts;
	c->impossible = false;
	return true;
}

static const struct trainer published = { .prefix = "", .layers = "model.layers" };

TEST(published_checkpoints_fit_every_division_of_their_servers)
{
	unsigned checks = 0;
	for (size_t i = 0; i < N_MODELS; i++) {
		struct checkpoint c;
		char file[128];
		open_checkpoint(&c, &models[i], &published, LAYERS);
		snprintf(file, sizeof file, "%s.runtime", models[i].name);
		assert_true(golden_each(file, read_server, &c));
		check_shown(&c);
		checks += c.checks;
		close_checkpoint(&c);
	}
	assert_in_range(checks, 200, 400);
}

TEST(published_checkpoints_fit_at_their_full_depth)
{
	static const char *const names[] = {
		"qwen3-0.6b", "qwen3-30b-a3b", "qwen3-30b-a3b-fp8", "llama-3.1-8b", "deepseek-v3",
		"mistral-7b-v0.3", "glm-4.5-air", "gpt-oss-20b",
	};
	for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
		struct checkpoint c;
		const struct model *m = find_model(names[i]);
		open_checkpoint(&c, m, &published, 0);
		const struct ws_item *item;
		for (size_t k = 0; (item = ws_catalog_item(c.items, k)); k++)
			assert_null(item->view);
		c.opts = (struct ws_layout_opts){ .tp = 8, .ep = m->ep };
		check(&c, NULL);
		close_checkpoint(&c);
	}
}

/* ---- trainers --------------------------------------------------------------------------------*/

static const struct saying fused[] = {
	{ ".q_proj.weight", ".qkv_proj.weight" }, { ".k_proj.weight", ".qkv_proj.weight" },
	{ ".v_proj.weight", ".qkv_proj.weight" }, { ".q_proj.bias", ".qkv_proj.bias" },
	{ ".k_proj.bias", ".qkv_proj.bias" }, { ".v_proj.bias", ".qkv_proj.bias" },
	{ "mlp.gate_proj.weight", "mlp.gate_up_proj.weight" },
	{ "mlp.up_proj.weight", "mlp.gate_up_proj.weight" }, { NULL, NULL }
};

static const struct saying megatron[] = {
	{ "model.embed_tokens.weight", "embedding.word_embeddings.weight" },
	{ "model.norm.weight", "decoder.final_layernorm.weight" },
	{ "lm_head.weight", "output_layer.weight" },
	{ ".self_attn.q_proj.weight", ".self_attention.linear_qkv.weight" },
	{ ".self_attn.k_proj.weight", ".self_attention.linear_qkv.weight" },
	{ ".self_attn.v_proj.weight", ".self_attention.linear_qkv.weight" },
	{ ".self_attn.q_proj.bias", ".self_attention.linear_qkv.bias" },
	{ ".self_attn.k_proj.bias", ".self_attention.linear_qkv.bias" },
	{ ".self_attn.v_proj.bias", ".self_attention.linear_qkv.bias" },
	{ ".self_attn.o_proj.weight", ".self_attention.linear_proj.weight" },
	{ ".self_attn.q_norm.weight", ".self_attention.q_layernorm.weight" },
	{ ".self_attn.k_norm.weight", ".self_attention.k_layernorm.weight" },
	{ ".input_layernorm.weight", ".self_attention.linear_qkv.layer_norm_weight" },
	{ ".post_attention_layernorm.weight", ".pre_mlp_layernorm.weight" },
	{ ".mlp.gate_proj.weight", ".mlp.linear_fc1.weight" },
	{ ".mlp.up_proj.weight", ".mlp.linear_fc1.weight" },
	{ ".mlp.down_proj.weight", ".mlp.linear_fc2.weight" },
	{ ".mlp.gate.weight", ".mlp.router.weight" },
	{ ".mlp.gate.e_score_correction_bias", ".mlp.router.expert_bias" },
	{ ".shared_experts.gate_proj.weight", ".shared_experts.linear_fc1.weight" },
	{ ".shared_experts.up_proj.weight", ".shared_experts.linear_fc1.weight" },
	{ ".shared_experts.down_proj.weight", ".shared_experts.linear_fc2.weight" },
	{ ".shared_expert.gate_proj.weight", ".shared_experts.linear_fc1.weight" },
	{ ".shared_expert.up_proj.weight", ".shared_experts.linear_fc1.weight" },
	{ ".shared_expert.down_proj.weight", ".shared_experts.linear_fc2.weight" },
	{ ".shared_expert_gate.weight", ".shared_experts.gate_weight" }, { NULL, NULL }
};

static const struct saying stacked[] = {
	{ ".experts.{e}.gate_proj.weight", ".experts.gate_up_proj" },
	{ ".experts.{e}.up_proj.weight", ".experts.gate_up_proj" },
	{ ".experts.{e}.down_proj.weight", ".experts.down_proj" },
	{ ".experts.{e}.gate_proj.weight_scale_inv", ".experts.gate_up_proj_scale_inv" },
	{ ".experts.{e}.up_proj.weight_scale_inv", ".experts.gate_up_proj_scale_inv" },
	{ ".experts.{e}.down_proj.weight_scale_inv", ".experts.down_proj_scale_inv" },
	{ NULL, NULL }
};

static void expect_fit(const struct model *m, const struct trainer *trainer)
{
	struct checkpoint c;
	open_checkpoint(&c, m, trainer, LAYERS);
	c.opts = (struct ws_layout_opts){ .tp = 8, .ep = m->ep };
	check(&c, NULL);
	close_checkpoint(&c);
}

TEST(wrapped_and_fused_checkpoints_fit)
{
	static const struct trainer trainers[] = {
		{ "_orig_mod.", "model.layers", NULL, false },
		{ "module._fsdp_wrapped_module.", "model._orig_mod.layers", NULL, false },
		{ "", "model.layers", fused, false },
	};
	static const char *const names[] = { "llama-3.1-8b", "qwen3-30b-a3b", "glm-4.5-air",
		                             "gpt-oss-20b", "qwen1.5-moe-a2.7b" };
	for (size_t i = 0; i < sizeof trainers / sizeof trainers[0]; i++)
		for (size_t k = 0; k < sizeof names / sizeof names[0]; k++)
			expect_fit(find_model(names[k]), &trainers[i]);
}

TEST(megatrons_checkpoints_fit)
{
	static const struct trainer core = { "module.module.", "decoder.layers", megatron, false };
	static const char *const names[] = { "llama-3.1-8b", "mistral-7b-v0.3", "qwen3-0.6b",
		                             "qwen3-30b-a3b", "qwen1.5-moe-a2.7b", "glm-4.5-air" };
	for (size_t k = 0; k < sizeof names / sizeof names[0]; k++)
		expect_fit(find_model(names[k]), &core);
}

TEST(stacked_experts_fit_in_both_orders)
{
	static const struct trainer rows = { "", "model.layers", stacked, false },
	                            turned = { "", "model.layers", stacked, true };
	for (size_t i = 0; i < N_MODELS; i++) {
		if (!models[i].experts)
			continue;
		expect_fit(&models[i], &rows);
		/* The order of scales is never turned. */
		if (strncmp(models[i].name, "q", 1) == 0 && !strstr(models[i].name, "fp8"))
			expect_fit(&models[i], &turned);
	}
	expect_fit(find_model("glm-4.5-air"), &turned);
}

RUN_TESTS(open_map, close_map)
