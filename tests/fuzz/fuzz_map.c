/* SPDX-License-Identifier: Apache-2.0 */
/* A --map file. What is accepted must find, rename, match and evaluate without surprise. */
#include "namemap_read.h"
#include "wsync/tool/layout.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

static void require(int true_here)
{
	if (!true_here)
		abort();
}

static struct ws_config *config(void)
{
	static const char text[] =
		"{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"x\",\"hidden_size\":64,"
		"\"intermediate_size\":128,\"num_attention_heads\":4,\"num_hidden_layers\":2,"
		"\"num_key_value_heads\":2,\"vocab_size\":96,\"mlp_only_layers\":[1]}";
	static struct ws_config *c;
	if (!c)
		require(ws_config_parse(text, strlen(text), "config.json", &c, NULL) == 0);
	return c;
}

static void evaluate(const struct ws_expr *e, const struct ws_family *f)
{
	struct ws_err err = WS_ERR_INIT;
	const struct ws_scope outer = { .config = config(), .lets = f->lets, .n_lets = f->n_lets };
	const struct ws_scope inner = { .outer = &outer, .name = "l", .value = 1 };
	int64_t v;
	if (e && ws_expr_eval(e, &inner, &v, &err))
		require(err.code == WS_EINPUT && err.msg[0]);
}

static void try_rules(const struct ws_family *f, const struct ws_rule *rules, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		const struct ws_rule *r = &rules[i];
		require(r->name && r->name[0] && r->text && r->line);
		evaluate(r->when, f);
		evaluate(r->in, f);
		evaluate(r->to, f);
		for (unsigned d = 0; d < r->n_dims; d++)
			evaluate(r->dims[d], f);
		for (size_t p = 0; p < r->n_parts; p++)
			evaluate(r->parts[p].out, f);
		if (r->kind == WS_RULE_GROUP)
			try_rules(f, r->inner, r->n_inner);
		else
			ws_pattern_match(r->name, "model.layers.0.self_attn.rotary_emb.inv_freq",
			                 NULL, 0);
	}
}

static void try_names(const struct ws_family *f)
{
	static const char *const names[] = {
		"model.layers.0.self_attn.q_proj.weight",
		"a.b",
		"a",
		"module._orig_mod.a.b.c",
		"",
		"..",
		"a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a",
	};
	for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
		char wide[512], exact[64];
		const char *to = ws_family_rename(f, names[i], wide, sizeof wide);
		const char *again = ws_family_rename(f, names[i], exact, sizeof exact);
		require(!again || (to && strcmp(to, again) == 0));
	}
	for (size_t i = 0; i < f->n_joins; i++) {
		struct ws_capture caps[WS_MAX_CAPTURES];
		char whole[512];
		for (size_t p = 0; p < f->joins[i].n_parts; p++)
			if (ws_pattern_match(f->joins[i].parts[p], "a.b.c", caps, WS_MAX_CAPTURES))
				require(ws_pattern_fill(f->joins[i].name, caps, WS_MAX_CAPTURES,
				                        whole, sizeof whole) != NULL);
	}
}

/* Is it refused, whatever families there are? Most texts are, and the built-in families take
 * longer to read than they do. */
static bool refused(const char *text, size_t size)
{
	struct ws_namemap *m = calloc(1, sizeof *m);
	struct ws_err err = WS_ERR_INIT;
	require(m != NULL);
	const bool bad = ws_map_read(m, "fuzz", text, size, 0, &err) != 0;
	require(!bad || (err.code == WS_EINPUT && strncmp(err.msg, "fuzz:", 5) == 0));
	ws_namemap_close(m);
	return bad && !strstr(err.msg, "comes before this one");
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
	struct ws_namemap *m = NULL;
	struct ws_err err = WS_ERR_INIT;
	if (refused((const char *)data, size))
		return 0;
	if (ws_namemap_parse((const char *)data, size, "fuzz", &m, &err)) {
		require(err.code == WS_EINPUT && strncmp(err.msg, "fuzz:", 5) == 0);
		return 0;
	}
	const struct ws_family *f = ws_namemap_find(m, config());
	require(!f || f->n_archs || f->n_types);
	for (size_t i = 0; (f = ws_namemap_at(m, i)); i++) {
		require(ws_namemap_named(m, ws_family_name(f)) == f);
		if (strcmp(f->file, "fuzz") != 0)
			break;
		try_names(f);
		evaluate(f->tied, f);
		try_rules(f, f->rules, f->n_rules);
	}
	ws_namemap_close(m);
	return 0;
}
