/* SPDX-License-Identifier: Apache-2.0 */
/* "Did you mean": what is near, what is not, and that it stays quick among 90,000 names. */
#include "suggest.h"
#include "test.h"
#include "wsync/clock.h"
#include "wsync/tool/source.h"

/* clang-format off */
static const char *const names[] = {
	"model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight",
	"model.layers.0.self_attn.k_proj.weight", "model.layers.0.self_attn.q_norm.weight",
	"model.layers.0.mlp.gate_proj.weight", "model.layers.0.mlp.up_proj.weight",
	"model.layers.1.mlp.experts.0.up_proj.weight",
	"model.layers.1.mlp.experts.127.up_proj.weight",
	"model.layers.1.mlp.experts.127.up_proj.weight_scale_inv",
	"model.layers.1.mlp.gate_up_proj.weight", "model.layers.7.mlp.gate_up_proj.weight",
	"model.norm.weight", "lm_head.weight"
};
/* clang-format on */
enum { N = sizeof names / sizeof names[0] };

static struct ws_suggest *make(const char *const *list, size_t n)
{
	struct ws_suggest *s = NULL;
	struct ws_err err;
	assert_int_equal(ws_suggest_make(list, n, &s, &err), 0);
	return s;
}

TEST(near_names_are_found)
{
	static const char *const asked[][2] = {
		/* misspelt */
		{ "model.layers.0.self_attn.q_prj.weight",
		  "model.layers.0.self_attn.q_proj.weight" },
		{ "model.layers.0.self_attn.qnorm.weight",
		  "model.layers.0.self_attn.q_norm.weight" },
		{ "lm_haed.weight", "lm_head.weight" },
		{ "model.layers.1.mlp.gate_gate_up_proj.weight",
		  "model.layers.1.mlp.gate_up_proj.weight" },
		/* a first segment too few, too many, or another */
		{ "layers.0.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.weight" },
		{ "embed_tokens.weight", "model.embed_tokens.weight" },
		{ "language_model.model.layers.0.mlp.up_proj.weight",
		  "model.layers.0.mlp.up_proj.weight" },
		{ "transformer.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.weight" },
		{ "model.language_model.layers.0.mlp.up_proj.weight",
		  "model.layers.0.mlp.up_proj.weight" },
		/* a segment in the middle */
		{ "model.layers.0.mlp.up_proj.base_layer.weight",
		  "model.layers.0.mlp.up_proj.weight" },
		/* numbers */
		{ "model.layers.1.mlp.experts.128.up_proj.weight",
		  "model.layers.1.mlp.experts.127.up_proj.weight" },
		{ "model.layers.5.mlp.gate_up_proj.weight",
		  "model.layers.7.mlp.gate_up_proj.weight" },
		{ "model.layers.1.mlp.experts.127.up_proj.weight_scale",
		  "model.layers.1.mlp.experts.127.up_proj.weight_scale_inv" },
		/* itself */
		{ "model.norm.weight", "model.norm.weight" },
	};
	struct ws_suggest *s = make(names, N);
	for (size_t i = 0; i < sizeof asked / sizeof asked[0]; i++) {
		const char *near = ws_suggest_nearest(s, asked[i][0]);
		if (!near || strcmp(near, asked[i][1]))
			fail_msg("%s: %s, not %s", asked[i][0], near ? near : "nothing",
			         asked[i][1]);
	}
	ws_suggest_free(s);
}

TEST(what_is_far_has_no_suggestion)
{
	static const char *const asked[] = {
		"", ".", "optimizer.state.0.exp_avg", "step", "visual.blocks.3.attn.qkv.bias",
		"a.b.c.d.e.f.g.h.i.j.k.l.m.n.o.p.q.r.s.t.u.v.w.x.y.z", "0.1.2.3.4.5.6.7.8.9",
	};
	struct ws_suggest *s = make(names, N);
	for (size_t i = 0; i < sizeof asked / sizeof asked[0]; i++)
		if (ws_suggest_nearest(s, asked[i]))
			fail_msg("%s: %s", asked[i], ws_suggest_nearest(s, asked[i]));
	ws_suggest_free(s);
}

TEST(an_empty_list_suggests_nothing)
{
	struct ws_suggest *s = make(names, 0);
	assert_null(ws_suggest_nearest(s, "model.norm.weight"));
	ws_suggest_free(s);
	ws_suggest_free(NULL);
}

/* The names of a source, and a thousand that are wrong in ways of their own. */
struct crowd {
	struct ws_source *source;
	const char **names;
	size_t n;
	char wrong[1000][192];
};

static void spoil(char *dst, size_t n, const char *name, size_t i)
{
	const char *head = strstr(name, "proj");
	switch (i % 4) {
	case 0:
		snprintf(dst, n, "language_model.%s", name);
		break;
	case 1:
		snprintf(dst, n, "%s", strchr(name, '.') + 1);
		break;
	case 2:
		snprintf(dst, n, "%.*s%s", head ? (int)(head - name) : (int)strlen(name), name,
		         head ? "prj.weight" : "s");
		break;
	default:
		snprintf(dst, n, "model.layers.%zu.mlp.experts.%zu.gate_prroj.weight", i, i * 7);
	}
}

/* Compared one by one they take minutes. */
TEST(a_thousand_among_ninety_thousand_take_seconds)
{
	static const char *const paths[] = { "synthetic:deepseek-v3" };
	static struct crowd c;
	struct ws_err err;
	assert_int_equal(ws_source_open(paths, 1, &c.source, &err), 0);
	c.n = ws_source_count(c.source);
	assert_true(c.n > 90000);
	c.names = calloc(c.n, sizeof *c.names);
	for (size_t i = 0; i < c.n; i++)
		c.names[i] = ws_source_tensor(c.source, i)->name;
	for (size_t i = 0; i < 1000; i++)
		spoil(c.wrong[i], sizeof c.wrong[i], c.names[i * 91], i);
	const int64_t start = cpu_ns();
	struct ws_suggest *s = make(c.names, c.n);
	const int64_t made = cpu_ns();
	size_t found = 0;
	for (size_t i = 0; i < 1000; i++)
		found += ws_suggest_nearest(s, c.wrong[i]) != NULL;
	const int64_t end = cpu_ns();
	print_message("# %zu names indexed in %.1f ms, 1000 suggestions in %.1f ms, %zu found\n",
	              c.n, (double)(made - start) / 1e6, (double)(end - made) / 1e6, found);
	assert_true(found > 990);
	assert_true(end - start < 20 * WS_NS_PER_S);
	ws_suggest_free(s);
	free(c.names);
	ws_source_close(c.source);
}

/* Names without anything in common, which no model has: bounded all the same. */
TEST(hostile_lists_are_bounded)
{
	enum { MANY = 40000 };
	char (*text)[48] = calloc(MANY, sizeof *text);
	const char **list = calloc(MANY, sizeof *list);
	for (size_t i = 0; i < MANY; i++) {
		snprintf(text[i], sizeof text[i], "a%zx.b%zx.c%zx.d%zx.weight", i * 7919, i * 31,
		         i * 104729, i);
		list[i] = text[i];
	}
	const int64_t start = cpu_ns();
	struct ws_suggest *s = make(list, MANY);
	for (size_t i = 0; i < 100; i++)
		ws_suggest_nearest(s, "a00.b11.c22.d33.wait");
	assert_true(cpu_ns() - start < 20 * WS_NS_PER_S);
	ws_suggest_free(s);
	free(list);
	free(text);
}

TEST(edits_are_counted)
{
	assert_int_equal(ws_edit_distance("q_prj", 5, "q_proj", 6), 1);
	assert_int_equal(ws_edit_distance("", 0, "abc", 3), 3);
	assert_int_equal(ws_edit_distance("gate", 4, "gate", 4), 0);
	assert_int_equal(ws_edit_distance("kitten", 6, "sitting", 7), 3);
}

RUN_TESTS(NULL, NULL)
