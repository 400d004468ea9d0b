/* SPDX-License-Identifier: Apache-2.0 */
/* The check of names by a reference, over the families of tests/data/census: right checkpoints in
 * every spelling pass, and each mistake is named. */
#include "census.h"
#include "tensor_file.h"

#include "wsync/tool/name_check_run.h"

#include <sys/stat.h>

static char root[64];

/* ---- files ----------------------------------------------------------------------------------- */

static void path_of(char dst[256], const char *dir, const char *file)
{
	snprintf(dst, 256, "%s/%s/%s", root, dir, file);
}

static void write_model(const char *dir, const struct census_list *l, const char *config)
{
	char path[256];
	snprintf(path, sizeof path, "%s/%s", root, dir);
	mkdir(path, 0700);
	path_of(path, dir, "model.safetensors");
	struct tensor_file f = tensor_file_begin(path);
	for (size_t i = 0; i < l->n; i++)
		tensor_file_add(&f, l->t[i].name, l->t[i].dtype, l->t[i].n_dims, l->t[i].dims);
	tensor_file_end(&f);
	path_of(path, dir, "config.json");
	FILE *out = fopen(path, "we");
	assert_non_null(out);
	fputs(config, out);
	assert_int_equal(fclose(out), 0);
}

/* ---- checking -------------------------------------------------------------------------------- */

struct outcome {
	int rc;
	size_t errors, warnings, notes, rules;
	char name[512], near[512], reason[512]; /* of the first finding */
	char error[768];                        /* of the input */
};

static struct outcome check(const char *source, const char *like)
{
	char paths[2][256];
	struct ws_input in;
	struct ws_err err = WS_ERR_INIT;
	struct outcome o = { 0 };
	snprintf(paths[0], 256, "%s/%s", root, source);
	snprintf(paths[1], 256, "%s/%s", root, like);
	const char *path = paths[0];
	const struct ws_input_opts opts = { .paths = &path, .n_paths = 1, .like = paths[1] };
	if (ws_input_open(&opts, &in, &err)) {
		o.rc = err.code;
		snprintf(o.error, sizeof o.error, "%s", err.msg);
		return o;
	}
	const struct ws_name_check_target nobody = { .tp = 1 };
	const struct ws_name_check_run_opts run = { .input = &in, .tied_later = true };
	struct ws_name_check_run r;
	assert_ok(ws_name_check_run(&run, &nobody, &r, &err), &err);
	assert_true(r.found.errors || (r.checked && r.by_reference));
	o.errors = r.found.errors;
	o.warnings = r.found.warnings;
	o.notes = r.found.notes;
	o.rules = in.related.n_rules;
	if (r.found.n) {
		snprintf(o.name, sizeof o.name, "%s", r.found.items[0].name);
		snprintf(o.near, sizeof o.near, "%s", r.found.items[0].near);
		snprintf(o.reason, sizeof o.reason, "%s", r.found.items[0].reason);
	}
	ws_name_check_run_free(&r);
	ws_input_close(&in);
	return o;
}

/* ---- lists ----------------------------------------------------------------------------------- */

static void put(struct census_list *l, const struct census_tensor *t, const char *name)
{
	struct golden_name g = { .name = name, .n_dims = t->n_dims };
	snprintf(g.dtype, sizeof g.dtype, "%s", ws_dtype_safetensors(t->dtype));
	memcpy(g.dims, t->dims, sizeof g.dims);
	assert_true(census_add(l, &g));
}

static void copy(const struct census_list *from, struct census_list *to)
{
	for (size_t i = 0; i < from->n; i++)
		put(to, &from->t[i], from->t[i].name);
}

static void rename_tensor(struct census_tensor *t, const char *name)
{
	free(t->name);
	t->name = strdup(name);
	assert_non_null(t->name);
}

static void drop(struct census_list *l, size_t i)
{
	free(l->t[i].name);
	memmove(&l->t[i], &l->t[i + 1], (l->n-- - i - 1) * sizeof *l->t);
}

static bool ends_with(const char *s, const char *end)
{
	return strlen(s) >= strlen(end) && strcmp(s + strlen(s) - strlen(end), end) == 0;
}

/* ---- spellings ------------------------------------------------------------------------------- */

typedef bool respell_fn(struct census_list *l); /* false: the model cannot be spelled so */

/* As in front of every layer by FSDP, and of the whole by torch.compile. */
static bool by_wrappers(struct census_list *l)
{
	for (size_t i = 0; i < l->n; i++) {
		char name[512];
		const char *at = strstr(l->t[i].name, "layers.0.");
		if (at)
			snprintf(name, sizeof name,
			         "_orig_mod.%.*slayers.0._fsdp_wrapped_module.%s",
			         (int)(at - l->t[i].name), l->t[i].name, at + 9);
		else
			snprintf(name, sizeof name, "_orig_mod.%s", l->t[i].name);
		rename_tensor(&l->t[i], name);
	}
	return true;
}

/* The state dict of a model in PEFT's wrapper, whose adapters are merged. */
static bool by_peft(struct census_list *l)
{
	for (size_t i = 0; i < l->n; i++) {
		char name[512];
		const char *old = l->t[i].name;
		if (ends_with(old, "o_proj.weight"))
			snprintf(name, sizeof name, "base_model.model.%.*s.base_layer.weight",
			         (int)(strlen(old) - 7), old);
		else
			snprintf(name, sizeof name, "base_model.model.%s", old);
		rename_tensor(&l->t[i], name);
	}
	return true;
}

static bool by_prefix(struct census_list *l)
{
	for (size_t i = 0; i < l->n; i++) {
		char name[512];
		snprintf(name, sizeof name, "policy.net.%s", l->t[i].name);
		rename_tensor(&l->t[i], name);
	}
	return true;
}

static size_t find(const struct census_list *l, const char *name)
{
	for (size_t i = 0; i < l->n; i++)
		if (strcmp(l->t[i].name, name) == 0)
			return i;
	return SIZE_MAX;
}

/* gate above up, and q above k above v, in one tensor. */
static bool by_fusing(struct census_list *l)
{
	static const char *const sets[][4] = { { "gate_up_proj", "gate_proj", "up_proj" },
		                               { "qkv_proj", "q_proj", "k_proj", "v_proj" } };
	bool any = false;
	for (size_t s = 0; s < 2; s++)
		for (size_t i = 0; i < l->n; i++) {
			char name[512], first[32];
			snprintf(first, sizeof first, ".%s.weight", sets[s][1]);
			if (!ends_with(l->t[i].name, first) || l->t[i].n_dims > 2 ||
			    strstr(l->t[i].name, "experts.") || strstr(l->t[i].name, "vis"))
				continue;
			const int n = (int)(strlen(l->t[i].name) - strlen(first));
			int64_t rows = 0;
			bool all = true;
			char stem[512];
			snprintf(stem, sizeof stem, "%.*s", n, l->t[i].name);
			for (size_t k = 1; k < 4 && sets[s][k]; k++) {
				snprintf(name, sizeof name, "%.400s.%s.weight", stem, sets[s][k]);
				const size_t at = find(l, name);
				all &= at != SIZE_MAX;
				rows += all ? l->t[at].dims[0] : 0;
			}
			if (!all)
				continue;
			for (size_t k = 2; k < 4 && sets[s][k]; k++) {
				snprintf(name, sizeof name, "%.400s.%s.weight", stem, sets[s][k]);
				drop(l, find(l, name));
			}
			snprintf(name, sizeof name, "%.400s.%s.weight", stem, sets[s][1]);
			struct census_tensor *t = &l->t[find(l, name)];
			snprintf(name, sizeof name, "%.400s.%s.weight", stem, sets[s][0]);
			t->dims[0] = rows;
			rename_tensor(t, name);
			any = true;
			i = (size_t)-1;
		}
	return any;
}

static void put_share(struct census_list *l, const struct census_tensor *t, const char *name,
                      int64_t rows)
{
	struct census_tensor part = *t;
	if (part.n_dims == 3) {
		part.dims[1] = part.dims[2];
		part.n_dims = 2;
	}
	part.dims[0] = rows;
	put(l, &part, name);
}

/* One tensor for each expert, and q, k, v, gate and up apart, where the checkpoint has stacks. */
static bool by_parts(struct census_list *l)
{
	bool any = false;
	for (size_t i = l->n; i-- > 0;) {
		const struct census_tensor *t = &l->t[i];
		char stem[400], name[512];
		const char *at = strstr(t->name, ".experts.gate_up_proj");
		const char *fused = strstr(t->name, ".gate_up_proj.weight");
		fused = fused ? fused : strstr(t->name, ".qkv_proj.weight");
		if (at && !at[21] && t->dims[2] == 64) {
			snprintf(stem, sizeof stem, "%.*s", (int)(at - t->name), t->name);
			for (int64_t e = 0; e < t->dims[0]; e++)
				for (int k = 0; k < 2; k++) {
					snprintf(name, sizeof name,
					         "%s.experts.%" PRId64 ".%s_proj.weight", stem, e,
					         k ? "up" : "gate");
					put_share(l, &l->t[i], name, l->t[i].dims[1] / 2);
				}
		} else if (fused && t->n_dims == 2) {
			const bool q = fused[1] == 'q';
			snprintf(stem, sizeof stem, "%.*s", (int)(fused - t->name), t->name);
			for (int k = 0; k < (q ? 3 : 2); k++) {
				snprintf(name, sizeof name, "%s.%s_proj.weight", stem,
				         q ? (k == 0 ? "q" :
				              k == 1 ? "k" :
				                       "v") :
				         k ? "up" :
				             "gate");
				put_share(l, &l->t[i], name, l->t[i].dims[0] / (q && k ? 4 : 2));
			}
		} else {
			continue;
		}
		drop(l, i);
		any = true;
	}
	return any;
}

static bool with_tied_head(struct census_list *l)
{
	for (size_t i = 0; i < l->n; i++)
		if (strcmp(l->t[i].name, "model.embed_tokens.weight") == 0 &&
		    find(l, "lm_head.weight") == SIZE_MAX) {
			put(l, &l->t[i], "lm_head.weight");
			return true;
		}
	return false;
}

/* ---- every family ---------------------------------------------------------------------------- */

static void expect_right(const struct census *c, const char *spelling, const struct outcome *o)
{
	if (o->rc || o->errors)
		fail_msg("%s %s: %zu errors, %s%s: %s", c->name, spelling, o->errors, o->error,
		         o->name, o->reason);
}

static void expect_itself(const struct census *c)
{
	write_model("ref", &c->checkpoint, c->config);
	const struct outcome o = check("ref", "ref");
	expect_right(c, "itself", &o);
	assert_int_equal(o.rules, 0);
	assert_int_equal(o.warnings, 0);
}

TEST(a_checkpoint_fits_itself)
{
	assert_true(census_each(expect_itself) >= 45);
}

static const struct {
	const char *name;
	respell_fn *respell;
} spellings[] = {
	{ "in wrappers", by_wrappers },      { "by PEFT", by_peft },
	{ "with a prefix", by_prefix },      { "fused", by_fusing },
	{ "with its head", with_tied_head }, { "in parts", by_parts },
};
enum { N_SPELLINGS = sizeof spellings / sizeof *spellings };
static unsigned spelled[N_SPELLINGS];

static void expect_spellings(const struct census *c)
{
	write_model("ref", &c->checkpoint, c->config);
	for (size_t i = 0; i < N_SPELLINGS; i++) {
		struct census_list l = { 0 };
		copy(&c->checkpoint, &l);
		if (spellings[i].respell(&l)) {
			write_model("src", &l, c->config);
			const struct outcome o = check("src", "ref");
			expect_right(c, spellings[i].name, &o);
			spelled[i]++;
		}
		census_list_free(&l);
	}
}

TEST(a_checkpoint_in_other_spellings_fits)
{
	assert_true(census_each(expect_spellings) >= 45);
	assert_true(spelled[3] >= 30);
	assert_true(spelled[4] >= 8);
	assert_true(spelled[5] >= 4);
}

/* ---- transformers in memory ------------------------------------------------------------------ */

/* In memory they have rows in another order, or names that say nothing of those in the checkpoint:
 * nothing is guessed. */
static const char *const unrelated[] = { "deepseek_v4", "ernie4_5_vl_moe", "kimi_k25",
	                                 "kimi_linear", "step3p7" };

static bool is_unrelated(const struct census *c)
{
	for (size_t i = 0; i < sizeof unrelated / sizeof *unrelated; i++)
		if (strcmp(c->name, unrelated[i]) == 0)
			return true;
	return false;
}

static void expect_in_memory(const struct census *c)
{
	write_model("ref", &c->checkpoint, c->config);
	write_model("src", &c->memory, c->config);
	const struct outcome o = check("src", "ref");
	if (!is_unrelated(c))
		expect_right(c, "in memory", &o);
	else if (!o.rc && !o.errors)
		fail_msg("%s in memory: related, and cannot be", c->name);
}

TEST(a_model_in_memory_fits_its_checkpoint)
{
	assert_true(census_each(expect_in_memory) >= 45);
}

/* ---- mistakes -------------------------------------------------------------------------------- */

/* A weight of a layer whose shape tells its transpose apart. */
static size_t choose(const struct census_list *l)
{
	size_t found = SIZE_MAX;
	for (size_t i = 0; i < l->n; i++)
		if (strstr(l->t[i].name, "layers.1.") && l->t[i].n_dims == 2 &&
		    l->t[i].dims[0] != l->t[i].dims[1] && ends_with(l->t[i].name, ".weight") &&
		    !strstr(l->t[i].name, "vis") && !strstr(l->t[i].name, "experts."))
			found = i;
	return found;
}

/* "layers.1.mlp.down_proj.weight": the end that spellings have in common. */
static bool names(const struct outcome *o, const char *name)
{
	const char *end = name + strlen(name);
	for (int dots = 0; end > name && (dots += end[-1] == '.') < 2; end--)
		;
	return ends_with(o->name, end) || ends_with(o->near, end);
}

static void expect_mistake(const struct census *c, const char *what, const struct census_list *l,
                           const char *name)
{
	write_model("src", l, c->config);
	const struct outcome o = check("src", "ref");
	if (!o.errors || !names(&o, name))
		fail_msg("%s, %s %s: %zu errors, first %s (near %s): %s %s", c->name, name, what,
		         o.errors, o.name, o.near, o.reason, o.error);
}

static void try_mistakes(const struct census *c, const struct census_list *right)
{
	const size_t at = choose(right);
	struct census_list l = { 0 };
	char name[512], other[600];
	if (at == SIZE_MAX)
		return;
	copy(right, &l);
	snprintf(name, sizeof name, "%s", l.t[at].name);
	const int64_t rows = l.t[at].dims[0];
	l.t[at].dims[0] = l.t[at].dims[1];
	l.t[at].dims[1] = rows;
	expect_mistake(c, "transposed", &l, name);
	l.t[at].dims[1] = l.t[at].dims[0];
	l.t[at].dims[0] = rows;
	snprintf(other, sizeof other, "%.*sx.weight", (int)(strlen(name) - 7), name);
	rename_tensor(&l.t[at], other);
	expect_mistake(c, "renamed", &l, name);
	drop(&l, at);
	expect_mistake(c, "missing", &l, name);
	census_list_free(&l);
}

static void expect_mistakes(const struct census *c)
{
	write_model("ref", &c->checkpoint, c->config);
	try_mistakes(c, &c->checkpoint);
	if (!is_unrelated(c))
		try_mistakes(c, &c->memory);
}

TEST(one_wrong_tensor_is_named)
{
	assert_true(census_each(expect_mistakes) >= 45);
}

/* ---- layers ---------------------------------------------------------------------------------- */

static void expect_layer_too_many(const struct census *c)
{
	struct census_list l = { 0 };
	int64_t last = -1;
	char from[64], name[512];
	write_model("ref", &c->checkpoint, c->config);
	copy(&c->checkpoint, &l);
	for (size_t i = 0; i < l.n; i++) {
		const char *p = strncmp(l.t[i].name, "model.layers.", 13) ? NULL : l.t[i].name + 13;
		last = p && atoll(p) > last ? atoll(p) : last;
	}
	if (last < 1) {
		census_list_free(&l);
		return;
	}
	snprintf(from, sizeof from, "model.layers.%" PRId64 ".", last);
	const size_t n = l.n;
	for (size_t i = 0; i < n; i++)
		if (strncmp(l.t[i].name, from, strlen(from)) == 0) {
			snprintf(name, sizeof name, "model.layers.%" PRId64 ".%s", last + 1,
			         l.t[i].name + strlen(from));
			put(&l, &l.t[i], name);
		}
	write_model("src", &l, c->config);
	const struct outcome o = check("src", "ref");
	snprintf(from, sizeof from, "model.layers.%" PRId64 ".", last + 1);
	if (!o.errors || strncmp(o.name, from, strlen(from)) != 0)
		fail_msg("%s: a layer too many: %zu errors, first %s: %s", c->name, o.errors,
		         o.name, o.reason);
	census_list_free(&l);
}

TEST(a_layer_too_many_is_named)
{
	assert_true(census_each(expect_layer_too_many) >= 45);
}

/* ---- types ----------------------------------------------------------------------------------- */

static void set_type(struct census_list *l, enum ws_dtype from, enum ws_dtype to)
{
	for (size_t i = 0; i < l->n; i++)
		if (l->t[i].dtype == from)
			l->t[i].dtype = to;
}

static void expect_types(const struct census *c)
{
	struct census_list l = { 0 };
	copy(&c->checkpoint, &l);
	write_model("ref", &l, c->config);
	set_type(&l, WS_DTYPE_BF16, WS_DTYPE_F32);
	write_model("src", &l, c->config);
	struct outcome o = check("src", "ref");
	if (o.errors || o.warnings || !o.notes)
		fail_msg("%s in float32: %zu errors, %zu warnings, %zu notes, %s: %s", c->name,
		         o.errors, o.warnings, o.notes, o.name, o.reason);
	set_type(&l, WS_DTYPE_F32, WS_DTYPE_F16);
	write_model("like", &l, c->config);
	o = check("ref", "like");
	if (!o.errors)
		fail_msg("%s: bfloat16 into float16", c->name);
	census_list_free(&l);
}

TEST(types_that_lose_more_than_a_rounding_are_errors)
{
	assert_true(census_each(expect_types) >= 45);
}

/* ---- set-up ---------------------------------------------------------------------------------- */

static int make_root(void **state)
{
	(void)state;
	strcpy(root, "/tmp/wsync-census-XXXXXX");
	return mkdtemp(root) ? 0 : -1;
}

static int drop_root(void **state)
{
	(void)state;
	char command[128];
	snprintf(command, sizeof command, "rm -r %s", root);
	return system(command);
}

RUN_TESTS(make_root, drop_root)
