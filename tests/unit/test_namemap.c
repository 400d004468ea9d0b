/* SPDX-License-Identifier: Apache-2.0 */
/* The text form of families: what it means, and what is said of text that means nothing. */
#include "namemap_read.h"
#include "wsync/tool/layout.h"

#include "scratch.h"
#include "test.h"

static struct ws_namemap *parse(const char *text)
{
	struct ws_namemap *m = NULL;
	struct ws_err err = WS_ERR_INIT;
	assert_ok(ws_namemap_parse(text, strlen(text), "m.map", &m, &err), &err);
	return m;
}

static struct ws_config *config_of(const char *text)
{
	struct ws_config *c = NULL;
	assert_int_equal(ws_config_parse(text, strlen(text), "config.json", &c, NULL), 0);
	return c;
}

/* The i-th rule of this name, through groups. */
static const struct ws_rule *find(const struct ws_rule *rules, size_t n, const char *name, int *i)
{
	for (size_t k = 0; k < n; k++) {
		const struct ws_rule *r = rules[k].kind == WS_RULE_GROUP ?
		                          find(rules[k].inner, rules[k].n_inner, name, i) : NULL;
		if (r)
			return r;
		if (strcmp(rules[k].name, name) == 0 && (*i)-- == 0)
			return &rules[k];
	}
	return NULL;
}

static const struct ws_rule *rule(const struct ws_family *f, const char *name, int i)
{
	return find(f->rules, f->n_rules, name, &i);
}

static int64_t value(const struct ws_expr *e)
{
	int64_t v;
	assert_non_null(e);
	assert_int_equal(ws_expr_eval(e, &(struct ws_scope){ 0 }, &v, NULL), 0);
	return v;
}

/* ---- what text means ---- */

TEST(the_built_in_families_are_well_formed)
{
	struct ws_namemap *m = NULL;
	struct ws_err err = WS_ERR_INIT;
	assert_ok(ws_namemap_open(NULL, &m, &err), &err);
	assert_non_null(ws_namemap_generic(m));
	for (size_t i = 0; ws_namemap_at(m, i); i++) {
		const struct ws_family *f = ws_namemap_at(m, i);
		assert_ptr_equal(ws_namemap_named(m, ws_family_name(f)), f);
		assert_true(strncmp(f->file, "built-in ", 9) == 0);
	}
	const struct ws_family *moe = ws_namemap_named(m, "qwen3_moe");
	assert_non_null(moe);
	assert_int_equal(rule(moe, "mlp.experts", 0)->kind, WS_RULE_EXPERTS);
	assert_int_equal(rule(moe, "self_attn.qkv_proj", 0)->n_parts, 3);
	ws_namemap_close(m);
	ws_namemap_close(NULL);
}

TEST(every_rule_is_read)
{
	struct ws_namemap *m = parse(
		"  # indented comment\r\n"
		"family all # said behind a rule\r\n"
		"arch A1 A2\n"
		"type t1\n"
		"\ttied 1\n"
		"let X = 6\n"
		"vocab emb cols 4 rows 3 optional\n"
		"group layers.{l} for l in 2 .. 5 when 7\n"
		"  column attn.qkv in 1 bias 9 attention when 2\n"
		"  + q out 10 heads 11\n"
		"  + kv out 12\n"
		"  column up out 5 heads 6 in 7\n"
		"  row o in 1 out 2 heads 3 unquantized\n"
		"  group ffn\n"
		"    replicated gate in 1 out 2\n"
		"    whole corr.bias [3,4]float32 when 1\n"
		"    whole scale []\n"
		"    split sinks [5] heads 6\n"
		"    stack w13 [2, 3] uint8 <- blocks [6, 1] bfloat16 axis 1 step 4 ep transposed\n"
		"    experts experts count 8 in 9 mid 10 nongated\n"
		"    shared se count 1 in 2 mid 3 into experts\n"
		"    alias experts.gate_up of experts.w13_weight order 0 2 1 groups 4\n"
		"    alias experts.gate_up of experts.w13_weight\n"
		"    skip {name}.{l}.inv_freq \"computed, # and more\" when 3\n"
		"  end\n"
		"end");
	const struct ws_family *f = ws_namemap_at(m, 0);
	assert_string_equal(f->name, "all");
	assert_string_equal(f->file, "m.map");
	assert_int_equal(f->n_archs, 2);
	assert_string_equal(f->archs[1], "A2");
	assert_int_equal(f->n_types, 1);
	assert_int_equal(value(f->tied), 1);
	assert_int_equal(f->n_lets, 1);

	const struct ws_rule *r = rule(f, "emb", 0);
	assert_int_equal(r->kind, WS_RULE_VOCAB);
	assert_int_equal(r->n_dims, 2);
	assert_true(value(r->dims[0]) == 3 && value(r->dims[1]) == 4 && r->optional);

	r = rule(f, "layers.{l}", 0);
	assert_int_equal(r->kind, WS_RULE_GROUP);
	assert_string_equal(r->var, "l");
	assert_true(value(r->from) == 2 && value(r->to) == 5 && value(r->when) == 7);
	assert_int_equal(r->n_inner, 4);
	assert_int_equal(r->line, 8);

	r = rule(f, "attn.qkv", 0);
	assert_string_equal(r->text, "column attn.qkv in 1 bias 9 attention when 2");
	assert_true(value(r->bias) == 9 && r->attention && value(r->when) == 2 && !r->out);
	assert_int_equal(r->n_parts, 2);
	assert_string_equal(r->parts[0].name, "q");
	assert_true(value(r->parts[0].out) == 10 && value(r->parts[0].heads) == 11);
	assert_true(value(r->parts[1].out) == 12 && !r->parts[1].heads);
	r = rule(f, "up", 0);
	assert_true(r->n_parts == 0 && value(r->out) == 5 && value(r->heads) == 6);
	r = rule(f, "o", 0);
	assert_true(r->kind == WS_RULE_ROW && value(r->heads) == 3 && r->unquantized);

	r = rule(f, "corr.bias", 0);
	assert_true(r->n_dims == 2 && value(r->dims[1]) == 4);
	assert_true(r->has_dtype && r->dtype == WS_DTYPE_F32);
	r = rule(f, "scale", 0);
	assert_true(r->n_dims == 0 && !r->has_dtype);
	r = rule(f, "w13", 0);
	assert_true(r->kind == WS_RULE_STACK && r->dtype == WS_DTYPE_U8);
	assert_string_equal(r->of, "blocks");
	assert_true(r->n_of_dims == 2 && r->of_dtype == WS_DTYPE_BF16 && r->axis == 1);
	assert_true(value(r->step) == 4 && r->ep && r->transposed);
	r = rule(f, "experts", 0);
	assert_true(r->nongated && value(r->count) == 8 && value(r->mid) == 10);
	r = rule(f, "se", 0);
	assert_string_equal(r->of, "experts");
	r = rule(f, "experts.gate_up", 0);
	assert_string_equal(r->of, "experts.w13_weight");
	assert_true(r->n_order == 3 && r->order[1] == 2 && value(r->groups) == 4);
	assert_int_equal(rule(f, "experts.gate_up", 1)->n_order, 0);
	r = rule(f, "{name}.{l}.inv_freq", 0);
	assert_string_equal(r->of, "computed, # and more");
	ws_namemap_close(m);
}

TEST(like_takes_all_but_what_the_family_has_itself)
{
	struct ws_namemap *m = parse(
		"family a\narch A\ntype a\n"
		"let H = 100\nlet I = H * 4\ntied 1\n"
		"strip wrap\nrename x.** -> y.**\nrename p -> q\njoin j <- j1 j2\n"
		"group layers.{l} for l < 4\n"
		"whole norm [H]\ncolumn up in H out I\nwhole gone [1]\n"
		"alias up2 of up.weight\nskip up \"never sent\"\n"
		"end\n"
		"group only.{l} for l < 4\nwhole gone [1]\nend\n"
		"family b\nlike a\n"
		"let I = I / 2\nlet H = 10\nstrip wrap other\nrename p -> r\n"
		"group layers.{i} for i < 2\n"
		"whole norm [7]\nwhole norm2 [1]\n"
		"end\n"
		"group only.{k} for k < 9\nwhole gone [2] when 0\nend\n");
	const struct ws_family *b = ws_namemap_named(m, "b");
	assert_true(b->n_archs == 0 && b->n_types == 0);
	assert_int_equal(value(b->tied), 1);
	/* layers of a, layers of b, only of b, what the generic family skips. */
	assert_int_equal(b->n_rules, 3 + ws_namemap_generic(m)->n_rules);
	assert_int_equal(b->rules[0].line, 11);
	assert_int_equal(b->rules[0].n_inner, 4);
	assert_null(rule(b, "norm", 1));
	assert_int_equal(value(rule(b, "norm", 0)->dims[0]), 7);
	assert_int_equal(rule(b, "up", 0)->kind, WS_RULE_COLUMN);
	assert_int_equal(rule(b, "up", 1)->kind, WS_RULE_SKIP);
	assert_null(rule(b, "only.{l}", 0));
	assert_non_null(rule(b, "gone", 1)->when);
	/* Its own I is half of what I is in a, with its own H. */
	const struct ws_scope scope = { .lets = b->lets, .n_lets = b->n_lets };
	struct ws_expr *e;
	int64_t v;
	assert_int_equal(ws_expr_parse("I", 1, &e, NULL), 0);
	assert_int_equal(ws_expr_eval(e, &scope, &v, NULL), 0);
	assert_int_equal(v, 20);
	ws_expr_free(e);
	assert_string_equal(b->strips[0], "wrap");
	assert_string_equal(b->strips[1], "other");
	assert_string_equal(b->renames[0].to, "r");
	assert_string_equal(b->renames[1].from, "x.**");
	assert_int_equal(b->n_renames, 2 + ws_namemap_generic(m)->n_renames);
	assert_int_equal(b->n_joins, 1 + ws_namemap_generic(m)->n_joins);
	ws_namemap_close(m);
}

TEST(the_generic_family_holds_for_all)
{
	struct ws_namemap *m = parse("family mine\nwhole x [1]\nstrip here\n");
	const struct ws_family *f = ws_namemap_named(m, "mine");
	char dst[64];
	assert_string_equal(ws_family_rename(f, "_orig_mod.here.x", dst, sizeof dst), "x");
	assert_int_equal(f->rules[f->n_rules - 1].kind, WS_RULE_SKIP);
	ws_namemap_close(m);
	/* A line before any family is for all of them, whatever families follow. */
	m = parse("rename policy.** -> **\nskip **.step \"a counter\"\nfamily mine\nlike llama\n");
	f = ws_namemap_named(m, "llama");
	assert_string_equal(ws_family_rename(f, "module.policy.a.b", dst, sizeof dst), "a.b");
	f = ws_namemap_named(m, "mine");
	assert_string_equal(ws_family_rename(f, "policy.a.b", dst, sizeof dst), "a.b");
	ws_namemap_close(m);
	/* A file's own generic family reaches the built-in ones. */
	m = parse("family generic\nlike generic\nstrip actor\nskip **.step \"a counter\"\n");
	f = ws_namemap_named(m, "llama");
	assert_string_equal(ws_family_rename(f, "actor.module.x", dst, sizeof dst), "x");
	assert_string_equal(f->rules[f->n_rules - 1].name, "**.step");
	ws_namemap_close(m);
}

TEST(a_file_comes_first)
{
	struct ws_namemap *builtin = parse(""), *m = parse(
		"family llama\nlike llama\narch LlamaForCausalLM NewForCausalLM\n"
		"family vlm\nlike llama\narch VlmForCausalLM\ntype qwen3\n");
	size_t n = 0;
	while (ws_namemap_at(builtin, n))
		n++;
	assert_non_null(ws_namemap_at(m, n));
	assert_null(ws_namemap_at(m, n + 1));
	const struct ws_family *llama = ws_namemap_named(m, "llama");
	assert_ptr_equal(ws_namemap_at(m, 0), llama);
	assert_string_equal(llama->file, "m.map");
	assert_int_equal(llama->n_rules, ws_namemap_named(builtin, "llama")->n_rules);
	static const struct { const char *config, *family;
	} cases[] = {
		{ "{\"architectures\":[\"NewForCausalLM\"]}", "llama" },
		{ "{\"architectures\":[\"Qwen3ForCausalLM\"]}", "qwen3" },
		{ "{\"architectures\":[\"Other\"],\"model_type\":\"qwen3\"}", "vlm" },
		{ "{\"architectures\":[\"Qwen3ForCausalLM\"],"
		  "\"text_config\":{\"architectures\":[\"VlmForCausalLM\"]}}",
		  "vlm" },
		{ "{\"model_type\":\"llama\",\"text_config\":{\"model_type\":\"qwen3_moe\"}}",
		  "qwen3_moe" },
		{ "{\"architectures\":[\"Qwen3MoeForCausalLM\"],\"text_config\":{\"model_type\":"
		  "\"llama\"}}",
		  "qwen3_moe" },
		{ "{\"architectures\":[\"\"],\"model_type\":\"\"}", NULL },
		{ "{}", NULL },
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		struct ws_config *c = config_of(cases[i].config);
		const struct ws_family *f = ws_namemap_find(m, c);
		if (cases[i].family)
			assert_string_equal(ws_family_name(f), cases[i].family);
		else
			assert_null(f);
		ws_config_free(c);
	}
	assert_null(ws_namemap_named(m, "nothing"));
	ws_namemap_close(m);
	ws_namemap_close(builtin);
}

SCRATCH_TEST(a_map_is_read_from_a_file)
{
	struct ws_namemap *m = NULL;
	struct ws_err err = WS_ERR_INIT;
	assert_fails(ws_namemap_open("absent.map", &m, &err), &err, WS_EINPUT, "");
	put_text("own.map", "family own\nwhole x [2]\n");
	assert_int_equal(ws_namemap_open("own.map", &m, &err), 0);
	assert_string_equal(ws_family_name(ws_namemap_at(m, 0)), "own");
	ws_namemap_close(m);
	FILE *f = fopen("own.map", "w");
	for (int i = 0; i <= 1 << 20; i++)
		fputc('\n', f);
	fclose(f);
	assert_fails_with(ws_namemap_open("own.map", &m, &err), &err, WS_EINPUT,
	                  "own.map: larger than the 1048576 bytes it may have");
}

/* ---- patterns and names ---- */

TEST(patterns_match_segments)
{
	static const struct { const char *pattern, *name; bool matches; } cases[] = {
		{ "a.b", "a.b", true },          { "a.b", "a.b.c", false },
		{ "a.b", "a", false },           { "a.b", "aa.b", false },
		{ "a.{x}", "a.7", true },        { "a.{x}", "a.7.b", false },
		{ "a.{x}", "a.", false },        { "{x}.{x}", "3.3", true },
		{ "{x}.{x}", "3.4", false },     { "{x}.{y}", "3.4", true },
		{ "**", "a.b.c", true },         { "a.**", "a.b.c", true },
		{ "a.**", "a", true },           { "a.**", "ab.c", false },
		{ "**.c", "a.b.c", true },       { "**.c", "c", true },
		{ "**.c", "a.bc", false },       { "**.c", "c.d", false },
		{ "**.b.**", "a.b.c", true },    { "**.b.**", "b", true },
		{ "**.b.**", "a.c", false },     { "**.{x}.c.**", "a.b.c.c.d", true },
		{ "**.l.{l}.m.{l}", "l.1.m.2.l.3.m.3", true },
		{ "gate", "gate_proj", false },
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
		if (ws_pattern_match(cases[i].pattern, cases[i].name, NULL, 0) != cases[i].matches)
			fail_msg("\"%s\" and \"%s\"", cases[i].pattern, cases[i].name);
	/* Bits rule out nothing that matches. */
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
		if (cases[i].matches)
			assert_false(ws_pattern_bits(cases[i].pattern) &
			             ~ws_pattern_bits(cases[i].name));
	assert_true(ws_pattern_bits("gate") & ~ws_pattern_bits("gate_proj"));
}

TEST(captures_fill_patterns)
{
	static const struct { const char *from, *name, *to, *result; } cases[] = {
		{ "model.**", "model.a.b", "backbone.**", "backbone.a.b" },
		{ "model.**", "model", "backbone.**", "backbone" },
		{ "actor.**", "actor.a.b", "**", "a.b" },
		{ "**.q", "a.b.q", "**.wq", "a.b.wq" },
		{ "**.q", "q", "**.wq", "wq" },
		{ "**.m.{e}.**", "a.m.3.b.c", "**.n.{e}.**", "a.n.3.b.c" },
		{ "l.{i}.x.{j}", "l.1.x.2", "{j}.{i}", "2.1" },
		{ "**.x.**", "x.x.x", "**.y.**", "y.x.x" },
	};
	struct ws_capture caps[WS_MAX_CAPTURES];
	char dst[32];
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		assert_true(ws_pattern_match(cases[i].from, cases[i].name, caps, WS_MAX_CAPTURES));
		const size_t n = strlen(cases[i].result);
		assert_string_equal(ws_pattern_fill(cases[i].to, caps, WS_MAX_CAPTURES, dst, n + 1),
		                    cases[i].result);
		assert_null(ws_pattern_fill(cases[i].to, caps, WS_MAX_CAPTURES, dst, n));
	}
	assert_null(ws_pattern_fill("{nobody}", caps, WS_MAX_CAPTURES, dst, sizeof dst));
	assert_null(ws_pattern_fill("a", caps, WS_MAX_CAPTURES, dst, 0));
	/* Fewer places than captures: the rest is lost, not written. */
	assert_true(ws_pattern_match("{a}.{b}", "1.2", caps, 1));
	assert_null(ws_pattern_fill("{b}", caps, 1, dst, sizeof dst));
}

TEST(renames_follow_each_other)
{
	struct ws_namemap *m = parse(
		"family base\n"
		"rename transformer.h.{l}.** -> model.layers.{l}.**\n"
		"rename **.Wq.weight -> **.q_proj.weight\n"
		"family trainer\nlike base\n"
		"rename actor.** -> **\n"
		"rename drop.** -> **\n");
	const struct ws_family *f = ws_namemap_named(m, "trainer");
	static const struct { const char *name, *result; } cases[] = {
		{ "actor.transformer.h.3.attn.Wq.weight", "model.layers.3.attn.q_proj.weight" },
		{ "module.actor._orig_mod.x", "x" },
		{ "model.x", "model.x" },
		{ "module", "module" },
		{ "module.module", "module" },
		{ "modules.x", "modules.x" },
		{ "actor", "actor" },
		{ "drop.actor.x", "actor.x" },
		{ "", "" },
	};
	char dst[64];
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		const char *result = ws_family_rename(f, cases[i].name, dst, sizeof dst);
		assert_non_null(result);
		assert_string_equal(result, cases[i].result);
	}
	assert_null(ws_family_rename(f, "transformer.h.3.attn.Wq.weight", dst, 20));
	assert_null(ws_family_rename(f, "abc", dst, 3));
	assert_non_null(ws_family_rename(f, "abc", dst, 4));
	assert_null(ws_family_rename(f, "a.b", dst, 2));
	assert_null(ws_family_rename(f, "a", dst, 0));
	ws_namemap_close(m);
}

/* ---- what is said of malformed text ---- */

#define F "family f\n"

static const struct { const char *text, *message;
} malformed[] = {
	{ "let H = 1\n", "1: 'let' comes before the first 'family'" },
	{ "\n\nbogus\n", "3: 'bogus' comes before the first 'family'" },
	{ F "kolumn x in 1 out 2\n", "2: unknown rule 'kolumn': did you mean 'column'?" },
	{ F "qqqqqq\n", "2: unknown rule 'qqqqqq'" },
	{ F "\x1b[2J\n", "2: unknown rule '?'" },
	{ "family\n", "1: family is missing" },
	{ "family a b\n", "1: 'b' means nothing here" },
	{ "family a/b\n", "1: 'a/b' is no family: letters, digits and _ . - only" },
	{ F "family g\nfamily f\n", "3: family 'f' is there twice" },
	{ F "arch\n", "2: architecture is missing" },
	{ F "arch A A\n", "2: 'A' is there twice" },
	{ F "arch A\nfamily g\narch B A\n", "4: 'A' is of family 'f' already" },
	{ F "type t\nfamily g\ntype t\n", "4: 't' is of family 'f' already" },
	{ F "like lama\n", "2: no family 'lama' comes before this one: did you mean 'llama'?" },
	{ F "like f\n", "2: no family 'f' comes before this one" },
	{ F "like llama\nlike qwen3\n",
	  "3: a family has only one 'like': this family is like 'llama'" },
	{ F "let = 3\n", "2: '=' cannot name a value: it takes 1 to 63 letters, digits and _" },
	{ F "let\n", "2: a name is missing" },
	{ F "let H\n", "2: '=' is missing: let NAME = EXPR" },
	{ F "let H = \n", "2: a number or an expression must follow '='" },
	{ F "let H = 1\nlet H = 2\n", "3: 'let H' is there twice" },
	{ F "let heads = 3\n", "2: 'heads' cannot name a value: it is a word of rules" },
	{ F "let max = 3\n", "2: 'max' cannot name a value: it is a word of rules" },
	{ F "let H = 1 +\n", "2: expression \"1 +\" ends where a number or a name should be" },
	{ F "let H = a b\n",
	  "2: expression \"a b\" has 'b' where an operator or the end should be" },
	{ F "let H = 1, 2\n", "2: ', 2' means nothing here" },
	{ F "tied\n", "2: a number or an expression must follow 'tied'" },
	{ F "tied 1\ntied 0\n", "3: 'tied' is there twice" },
	{ F "strip\n", "2: segment is missing" },
	{ F "strip a.b\n", "2: 'a.b' has a dot: 'strip' takes single segments" },
	{ F "strip {x}\n", "2: '{x}' is no segment: letters, digits and _ . - only" },
	{ F "rename a b\n", "2: '->' is missing: rename FROM -> TO" },
	{ F "rename\n", "2: a pattern of names is missing" },
	{ F "rename a ->\n", "2: the new name is missing" },
	{ F "rename a.{x} -> b.{y}\n", "2: {y} is not defined here" },
	{ F "rename a.** -> b\n",
	  "2: both sides need the same number of **" },
	{ F "rename **.a.** -> **\n",
	  "2: both sides need the same number of **" },
	{ F "rename a.**.b -> c\n", "2: 'a.**.b': ** is the first or the last segment" },
	{ F "rename a.b* -> c\n", "2: 'b*' in a name: {x} and ** stand for whole segments" },
	{ F "rename a.l{x} -> c\n", "2: 'l{x}' in a name: {x} and ** stand for whole segments" },
	{ F "rename a.{x y} -> c\n", "2: '{x' in a name: {x} and ** stand for whole segments" },
	{ F "rename a.{} -> c\n", "2: {} is no variable: it takes 1 to 15 letters, digits and _" },
	{ F "rename a.{abcdefghijklmnop} -> c\n",
	  "2: {abcdefghijklmnop} is no variable: it takes 1 to 15 letters, digits and _" },
	{ F "rename a..b -> c\n", "2: a name with two dots in a row, or one at its end" },
	{ F "rename a. -> c\n", "2: a name with two dots in a row, or one at its end" },
	{ F "rename **.** -> **.**\n", "2: '**.**' matches any name, or is too long" },
	{ F "rename a -> b\nrename a -> c\n", "3: 'a' is renamed in line 2 already" },
	{ F "rename a -> b c\n", "2: 'c' means nothing here" },
	{ F "rename {a}.{b}.{c}.{d}.{e}.{f}.{g}.{h}.{i} -> x\n",
	  "2: {i} is not defined here" },
	{ F "join a\n", "2: '<-' is missing: join NAME <- PART PART..." },
	{ F "join a <- b\n", "2: two parts or more are joined, one is a 'rename'" },
	{ F "join a.{x} <- b.{x} c\n", "2: 'c' must have the variables and ** of 'a.{x}'" },
	{ F "join a.{x} <- b.{x} c.{y}\n", "2: 'c.{y}' must have the variables and ** of 'a.{x}'" },
	{ F "join a <- **.b c\n", "2: '**.b' must have the variables and ** of 'a'" },
	{ F "skip a\n", "2: a reason in double quotes is missing" },
	{ F "skip a because\n", "2: a reason in double quotes is missing" },
	{ F "skip a \"no end\n", "2: a reason in double quotes is missing" },
	{ F "skip a \"\"\n", "2: a reason in double quotes is missing" },
	{ F "skip a \"x\" then\n", "2: 'then' means nothing to 'skip': did you mean 'when'?" },
	{ F "skip a \"x\" in 3\n", "2: 'in' means nothing to 'skip'" },
	{ F "group\n", "2: the prefix of the group is missing" },
	{ F "group a\n", "2: this group has no 'end'" },
	{ F "group a\nfamily g\n", "2: this group has no 'end'" },
	{ F "group a\ngroup b\nend\n", "2: this group has no 'end'" },
	{ F "end\n", "2: 'end' without a group that is open" },
	{ F "group a\nend\nend\n", "4: 'end' without a group that is open" },
	{ F "group a\nend a\n", "3: 'a' means nothing here" },
	{ F "group a.{l}\n", "2: {l} is not defined here" },
	{ F "group a.{l} for\n", "2: a variable is missing" },
	{ F "group a.{l} for l\n", "2: 'for l' goes on with '< EXPR' or 'in EXPR .. EXPR'" },
	{ F "group a.{l} for l <= 3\n", "2: 'for l' goes on with '< EXPR' or 'in EXPR .. EXPR'" },
	{ F "group a.{l} for l <\n", "2: a number or an expression must follow '<'" },
	{ F "group a.{l} for l in 3\n", "2: '..' is missing: for l in EXPR .. EXPR" },
	{ F "group a.{l} for l in .. 3\n", "2: a number or an expression must follow 'in'" },
	{ F "group a.{l} for l < 3 if 1\n",
	  "2: expression \"3 if 1\" has 'if' where an operator or the end should be" },
	{ F "group a when\n", "2: a number or an expression must follow 'when'" },
	{ F "group a.{l} for l < 3\ngroup b for l < 3\n",
	  "3: a group around this one has the variable l" },
	{ F "group a\ngroup a\ngroup a\ngroup a\ngroup a\ngroup a\ngroup a\ngroup a\ngroup a\n",
	  "10: groups nest deeper than 8" },
	{ F "group a\nlet H = 1\n", "3: 'let' cannot stand in a group: 'end' is missing above it" },
	{ F "group a\nskip **.b \"x\"\n",
	  "3: a pattern in a group cannot begin with **: put it outside" },
	{ F "vocab a rows 1\n", "2: 'cols' is missing: vocab NAME rows EXPR cols EXPR" },
	{ F "vocab\n", "2: a name is missing" },
	{ F "vocab a rows 1 cols 2 rows 3\n", "2: 'rows' is there twice" },
	{ F "vocab a rows 1 cols 2 bias 3\n", "2: 'bias' means nothing to 'vocab'" },
	{ F "column a out 2\n", "2: 'in' is missing: column NAME in EXPR [out EXPR [heads EXPR]]" },
	{ F "column a in 2\n", "2: 'a' has neither 'out' nor lines of '+ PART out EXPR' below it" },
	{ F "column a in 2\nend\n",
	  "2: 'a' has neither 'out' nor lines of '+ PART out EXPR' below it" },
	{ F "column a in 2\nfamily g\n",
	  "2: 'a' has neither 'out' nor lines of '+ PART out EXPR' below it" },
	{ F "column a in 2 out 3\n+ b out 3\n", "2: 'a' has both 'out' and parts" },
	{ F "column a in 2 heads 3\n",
	  "2: 'heads' needs 'out': column NAME in EXPR [out EXPR [heads EXPR]]" },
	{ F "column a in 2 optianal\n",
	  "2: expression \"2 optianal\" has 'optianal' where an operator or the end should be" },
	{ F "column a in 2 optional optional\n", "2: 'optional' is there twice" },
	{ F "column a in out 3\n", "2: a number or an expression must follow 'in'" },
	{ F "column a [2]\n", "2: '[' means nothing to 'column'" },
	{ F "column a.{l} in 1 out 2\n", "2: {l} is not defined here" },
	{ F "column a.** in 1 out 2\n", "2: 'a.**': ** means nothing here" },
	{ F "column a in 1 out 2\ncolumn a in 3 out 4\n", "3: 'a' is there already, in line 2" },
	{ F "whole a [1]\nreplicated a in 3 out 4\n", "3: 'a' is there already, in line 2" },
	{ F "+ a out 3\n", "2: '+' without a 'column' or 'replicated' line above it" },
	{ F "row a in 1 out 2\n+ a out 3\n",
	  "3: '+' without a 'column' or 'replicated' line above it" },
	{ F "column a in 1\n+ b out 3\nlet H = 1\n+ c out 3\n",
	  "5: '+' without a 'column' or 'replicated' line above it" },
	{ F "column a in 1\n+\n", "3: a part's name is missing" },
	{ F "column a in 1\n+ b\n", "3: 'out' is missing: + PART out EXPR [heads EXPR]" },
	{ F "column a in 1\n+ b out\n", "3: a number or an expression must follow 'out'" },
	{ F "column a in 1\n+ b.c out 2\n",
	  "3: 'b.c' has a dot: a part stands for the last segment of the rule's name" },
	{ F "column a in 1\n+ b out 2\n+ b out 2\n", "4: part 'b' is there twice" },
	{ F "column a in 1\n+ b out 2 bias 3\n", "3: 'bias 3' means nothing here" },
	{ F "whole a\n", "2: a shape in square brackets is missing, such as [hidden_size]" },
	{ F "whole a [1\n", "2: ']' is missing behind a shape" },
	{ F "whole a [1,]\n", "2: a number or an expression must follow ','" },
	{ F "whole a [1,1,1,1,1,1,1,1,1]\n", "2: a shape has at most 8 dimensions" },
	{ F "whole a [1] float33\n", "2: 'float33' is no dtype such as float32 or uint8" },
	{ F "whole a [1] float32 float32\n", "2: 'float32' means nothing to 'whole'" },
	{ F "split a [1]\n", "2: 'heads' is missing: split NAME [EXPR, ...] [DTYPE] heads EXPR" },
	{ F "split a [] heads 1\n", "2: a split tensor needs at least one axis" },
	{ F "stack a [1] uint8\n", "2: '<-' and the checkpoint's name are missing" },
	{ F "stack a [1] <- b [1] uint8\n", "2: a dtype such as bfloat16 is missing" },
	{ F "stack a [1] uint8 <-\n", "2: the checkpoint's name is missing" },
	{ F "stack a [1] uint8 <- b [1]\n", "2: a dtype such as bfloat16 is missing" },
	{ F "stack a [1] uint8 <- b [1] uint8 axis 1\n", "2: an axis from 0 to 0 must stand here" },
	{ F "stack a [1] uint8 <- b [] uint8 axis 0\n", "2: a scalar has no axis" },
	{ F "stack a [1] uint8 <- b [1] uint8 axis\n", "2: an axis from 0 to 0 must stand here" },
	{ F "stack a [1] uint8 <- b [1] uint8 step 1\n",
	  "2: 'step' needs 'axis': stack NAME "
	  "[EXPR, ...] DTYPE <- PART [EXPR, ...] DTYPE [axis N [step EXPR]]" },
	{ F "experts a count 1 in 2\n",
	  "2: 'mid' is missing: experts NAME count EXPR in EXPR mid EXPR [nongated]" },
	{ F "experts a count 1 in 2 mid 3 nongate\n",
	  "2: expression \"3 nongate\" has 'nongate' where an operator or the end should be" },
	{ F "shared a count 1 in 2 mid 3\n",
	  "2: 'into' is missing: shared NAME count EXPR in EXPR mid EXPR into EXPERTS" },
	{ F "shared a count 1 in 2 mid 3 into\n", "2: a name is missing" },
	{ F "alias a\n", "2: 'of' is missing: alias NAME of PARAM [order N...] [groups EXPR]" },
	{ F "alias a of b order\n", "2: 'order' takes each axis once, such as 0 2 1" },
	{ F "alias a of b order 0\n", "2: 'order' takes each axis once, such as 0 2 1" },
	{ F "alias a of b order 0 2\n", "2: 'order' takes each axis once, such as 0 2 1" },
	{ F "alias a of b order 1 1\n", "2: 'order' takes each axis once, such as 0 2 1" },
	{ F "alias a of b order 0 9\n", "2: an axis from 0 to 7 must stand here" },
	{ F "alias a of b optional\n", "2: 'optional' means nothing to 'alias'" },
};

TEST(malformed_text_is_told_where_and_why)
{
	for (size_t i = 0; i < sizeof malformed / sizeof malformed[0]; i++) {
		struct ws_namemap *m = NULL;
		struct ws_err err = WS_ERR_INIT;
		char wanted[256];
		snprintf(wanted, sizeof wanted, "m.map:%s", malformed[i].message);
		if (ws_namemap_parse(malformed[i].text, strlen(malformed[i].text), "m.map", &m,
		                     &err) == 0)
			fail_msg("accepted, and not \"%s\":\n%s", wanted, malformed[i].text);
		assert_int_equal(err.code, WS_EINPUT);
		if (strcmp(err.msg, wanted) != 0)
			fail_msg("\"%s\" instead of \"%s\"", err.msg, wanted);
	}
}

static void refuses(const char *text, size_t n, const char *message)
{
	struct ws_namemap *m = NULL;
	struct ws_err err = WS_ERR_INIT;
	assert_fails_with(ws_namemap_parse(text, n, "m.map", &m, &err), &err, WS_EINPUT, message);
}

TEST(a_mistyped_word_in_an_expression_has_a_hint)
{
	static const char text[] = F "column a in hidden_size haeds 2\n";
	struct ws_namemap *m = NULL;
	struct ws_err err = WS_ERR_INIT;
	assert_fails_with(ws_namemap_parse(text, strlen(text), "m.map", &m, &err), &err, WS_EINPUT,
	                  "m.map:2: expression \"hidden_size haeds 2\" has 'haeds' where an "
	                  "operator or the end should be");
	assert_string_equal(err.hint, "'haeds' in it: did you mean 'heads'?");
}

TEST(a_byte_order_mark_is_no_text)
{
	struct ws_namemap *m = parse("\xef\xbb\xbf" F);
	assert_string_equal(ws_family_name(ws_namemap_at(m, 0)), "f");
	ws_namemap_close(m);
}

TEST(no_nul_hides_text)
{
	refuses("family f\nlet H = 1\0\n", 20, "m.map:2: a NUL character: this is no text");
}

/* line, n times, with a number in the place of %d. */
static char *lines(const char *before, const char *line, int n)
{
	const size_t each = strlen(line) + 16;
	char *text = malloc(strlen(before) + each * (size_t)n + 1), *p = stpcpy(text, before);
	for (int i = 0; i < n; i++)
		p += snprintf(p, each, line, i, i);
	return text;
}

TEST(lists_have_limits)
{
	static const struct { const char *before, *line, *message; } cases[] = {
		{ "", "family f%d\n", "m.map:257: more than 256 families" },
		{ F, "let h%d = 1\n", "m.map:252: more than 250 lets" },
		{ F, "rename a%d -> b\n", "m.map:252: more than 250 renames" },
		{ F, "join a%d <- b c\n", "m.map:252: more than 250 joins" },
		{ F, "strip a%d\n", "m.map:252: more than 250 words" },
		{ F "column a in 1\n", "+ p%d out 1\n", "m.map:253: more than 250 parts" },
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		char *text = lines(cases[i].before, cases[i].line, 300);
		refuses(text, strlen(text), cases[i].message);
		free(text);
	}
	char *text = lines(F "join a <-", " p%d", 300);
	refuses(text, strlen(text), "m.map:2: more than 250 parts");
	free(text);
	text = lines(F "whole ", "a", 401);
	strcat(text, " [1]\n");
	struct ws_namemap *m;
	struct ws_err err = WS_ERR_INIT;
	assert_int_equal(ws_namemap_parse(text, strlen(text), "m.map", &m, &err), -1);
	assert_non_null(strstr(err.msg, "matches any name, or is too long"));
	free(text);
}

TEST(copies_count_as_rules)
{
	char *first = lines("family f0\n", "whole a%d [1]\n", 1000);
	char *all = lines(first, "family f\nlike f0\n", 1);
	char *text = lines(first, "family g%d\nlike f0\n", 20);
	struct ws_namemap *m;
	struct ws_err err = WS_ERR_INIT;
	assert_int_equal(ws_namemap_parse(all, strlen(all), "m.map", &m, &err), 0);
	ws_namemap_close(m);
	assert_int_equal(ws_namemap_parse(text, strlen(text), "m.map", &m, &err), -1);
	assert_non_null(strstr(err.msg, "more than 10000 rules, inherited ones included"));
	free(first);
	free(all);
	free(text);
}

RUN_TESTS(NULL, NULL)
