/* SPDX-License-Identifier: Apache-2.0 */
/* What must hold for every layout, tried on 100,000 random ones of all families compiled in.
 *
 * Nothing here knows a family: which keys of a config it needs is learnt from its complaints and
 * from what its text asks for, so that a family added later is tried too. A failure prints what it
 * was about, and LAYOUT_SEED=N LAYOUT_CASES=N to begin elsewhere or to try more. */
#include "rules.h"
#include "test.h"
#include "wsync/tool/buf.h"
#include "wsync/tool/layout.h"

#include <ctype.h>

#if defined(__SANITIZE_ADDRESS__)
enum { CASES = 20000 };
#else
enum { CASES = 100000 };
#endif
enum { MOST_KEYS = 64, MOST_FAMILIES = 64, MOST_RANKS = 8, MOST_MARKED = 20000 };

/* ---- chance ----------------------------------------------------------------------------------*/

static uint64_t state_of_chance;

static uint64_t draw(void)
{
	uint64_t z = state_of_chance += 0x9e3779b97f4a7c15u;
	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return z ^ z >> 31;
}

static unsigned below(unsigned n)
{
	return (unsigned)(draw() % n);
}

static bool one_in(unsigned n)
{
	return below(n) == 0;
}

/* ---- configs ---------------------------------------------------------------------------------*/

struct keys {
	char names[MOST_KEYS][48];
	size_t n;
};

static struct keys optional;                 /* of all families: what stands before ?? */
static struct keys needed[MOST_FAMILIES];    /* what each complained about */
static struct ws_namemap *maps;

static void add_key(struct keys *k, const char *name, size_t n)
{
	for (size_t i = 0; i < k->n; i++)
		if (strlen(k->names[i]) == n && memcmp(k->names[i], name, n) == 0)
			return;
	assert_true(k->n < MOST_KEYS && n < sizeof k->names[0]);
	memcpy(k->names[k->n], name, n);
	k->names[k->n++][n] = '\0';
}

static bool is_key(char c)
{
	return isalnum((unsigned char)c) || c == '_';
}

static void learn_optional_keys(void)
{
	for (const struct ws_builtin_map *m = ws_builtin_maps; m->name; m++)
		for (const char *at = m->text; (at = strstr(at, " ??")); at += 3) {
			const char *from = at;
			while (from > m->text && is_key(from[-1]))
				from--;
			if (islower((unsigned char)*from))
				add_key(&optional, from, (size_t)(at - from));
		}
}

/* False: it complains about something else. */
static bool learn_needed_key(struct keys *k, const char *complaint)
{
	const char *from = strstr(complaint, "has no \"");
	const char *to = from ? strchr(from + 8, '"') : NULL;
	if (!to)
		return false;
	add_key(k, from + 8, (size_t)(to - from - 8));
	return true;
}

static unsigned pick(const unsigned *values, size_t n)
{
	return values[below((unsigned)n)];
}
#define PICK(...) pick((const unsigned[]){ __VA_ARGS__ }, \
                       sizeof (const unsigned[]){ __VA_ARGS__ } / sizeof(unsigned))

static bool has(const char *text, const char *word)
{
	return strstr(text, word) != NULL;
}

static unsigned choose(const char *key, bool blocks_of_32)
{
	if (has(key, "tie_") || has(key, "bias") || has(key, "use_") || has(key, "nextn"))
		return below(2);
	if (has(key, "freq") || has(key, "step"))
		return 1 + below(2);
	if (has(key, "replace"))
		return below(3);
	if (has(key, "layers"))
		return 1 + below(2);
	if (has(key, "shared") && has(key, "experts"))
		return PICK(0, 1, 1, 2);
	if (has(key, "heads") || has(key, "experts"))
		return PICK(1, 2, 3, 4, 4, 6, 8, 8);
	if (has(key, "vocab"))
		return 1 + below(300);
	if (blocks_of_32 && has(key, "size"))
		return PICK(32, 64, 96);
	return PICK(1, 2, 4, 8, 8, 12, 16, 16, 24, 32, 48, 64, 7);
}

static void write_quantization(struct ws_buf *out, bool mxfp4)
{
	static const char *const modules[] = { "lm_head", "model.layers.0", "mlp.gate", "up_proj",
		                               "model.layers.1.self_attn.o_proj", "experts" };
	if (mxfp4) {
		ws_buf_puts(out, ",\"quantization_config\":{\"quant_method\":\"mxfp4\"}");
		return;
	}
	ws_buf_printf(out,
	              ",\"quantization_config\":{\"quant_method\":\"fp8\","
	              "\"weight_block_size\":[%u,%u],\"modules_to_not_convert\":[",
	              PICK(1, 2, 4, 8), PICK(1, 2, 4, 8));
	for (unsigned i = 0, n = below(3); i < n; i++)
		ws_buf_printf(out, "%s\"%s\"", i ? "," : "", modules[below(6)]);
	ws_buf_puts(out, "]}");
}

static void write_config(struct ws_buf *out, const struct keys *k)
{
	const bool mxfp4 = one_in(6), fp8 = !mxfp4 && one_in(2);
	ws_buf_reset(out);
	ws_buf_puts(out, "{\"model_type\":\"random\"");
	for (size_t i = 0; i < k->n; i++)
		ws_buf_printf(out, ",\"%s\":%u", k->names[i], choose(k->names[i], mxfp4));
	for (size_t i = 0; i < optional.n; i++) {
		bool there = false;
		for (size_t j = 0; j < k->n; j++)
			there |= strcmp(k->names[j], optional.names[i]) == 0;
		if (!there && one_in(2))
			ws_buf_printf(out, ",\"%s\":%u", optional.names[i],
			              choose(optional.names[i], mxfp4));
	}
	if (one_in(3))
		ws_buf_puts(out, ",\"mlp_only_layers\":[0]");
	if (mxfp4 || fp8)
		write_quantization(out, mxfp4);
	ws_buf_puts(out, "}");
}

static unsigned divisor(unsigned n)
{
	unsigned d;
	do
		d = 1 + below(n);
	while (n % d);
	return d;
}

static struct ws_layout_opts draw_options(void)
{
	struct ws_layout_opts o = { .tp = PICK(1, 2, 2, 3, 4, 4, 6, 8, 8) };
	o.ep = divisor(o.tp);
	o.attention_tp = divisor(o.tp);
	o.rank = below(o.tp);
	o.fuse_shared = one_in(2);
	o.unquantized = one_in(8);
	o.nextn = one_in(4);
	return o;
}

/* ---- boxes -----------------------------------------------------------------------------------*/

static const char *subject;                  /* what is being looked at, for messages */

static void expect(bool yes, const char *what)
{
	if (!yes)
		fail_msg("%s: %s", subject, what);
}

static int64_t volume(unsigned n, const int64_t *dims)
{
	int64_t v = 1;
	for (unsigned d = 0; d < n; d++)
		v *= dims[d];
	return v;
}

static bool inside(const struct ws_box *b, unsigned n, const int64_t *dims)
{
	bool yes = b->n_dims == n;
	for (unsigned d = 0; d < n; d++)
		yes &= b->at[d] >= 0 && b->size[d] >= 0 && b->at[d] + b->size[d] <= dims[d];
	return yes;
}

static bool overlap(const struct ws_box *a, const struct ws_box *b)
{
	for (unsigned d = 0; d < a->n_dims; d++)
		if (a->at[d] >= b->at[d] + b->size[d] || b->at[d] >= a->at[d] + a->size[d])
			return false;
	return true;
}

static bool same(const struct ws_box *a, const struct ws_box *b)
{
	return memcmp(a->at, b->at, sizeof a->at) == 0 &&
	       memcmp(a->size, b->size, sizeof a->size) == 0;
}

static bool padded(const struct ws_part *p)
{
	return p->split == WS_SPLIT_VOCAB || p->split == WS_SPLIT_STEPS;
}

/* At one rank: every element of the parameter comes from exactly one part, or is padding. */
static void check_cover(const struct ws_layout *l, const struct ws_param *q, unsigned rank)
{
	struct ws_box to[128], from;
	int64_t dims[WS_MAX_DIMS], sum = 0;
	bool may_be_padded = false;
	ws_layout_dims(l, q, rank, dims);
	assert_true(q->n_parts <= 128);
	for (size_t i = 0; i < q->n_parts; i++) {
		const struct ws_part *p = ws_layout_part(l, q->first + i);
		ws_layout_place(l, p, rank, &from, &to[i]);
		expect(inside(&from, p->n_dims, p->dims), "source box outside");
		expect(inside(&to[i], q->n_dims, dims), "destination box outside");
		const int64_t n = volume(to[i].n_dims, to[i].size);
		expect(n == volume(from.n_dims, from.size), "boxes of different sizes");
		may_be_padded |= padded(p);
		sum += n;
		for (size_t j = 0; n && j < i; j++)
			expect(!overlap(&to[i], &to[j]), "two parts in one place");
	}
	const int64_t all = volume(q->n_dims, dims);
	expect(sum == all || (may_be_padded && sum < all), "not covered");
}

/* Over the ranks: every element of the part is somewhere. */
static void check_use(const struct ws_layout *l, const struct ws_part *p, unsigned tp)
{
	struct ws_box from[MOST_RANKS], to;
	int64_t sum = 0;
	for (unsigned r = 0; r < tp; r++) {
		ws_layout_place(l, p, r, &from[r], &to);
		const int64_t n = volume(from[r].n_dims, from[r].size);
		bool fresh = n > 0;
		for (unsigned o = 0; fresh && o < r; o++) {
			if (same(&from[r], &from[o]))
				fresh = false;
			else
				expect(!overlap(&from[r], &from[o]), "pieces that overlap in part");
		}
		sum += fresh ? n : 0;
	}
	expect(sum == volume(p->n_dims, p->dims), "elements that no rank has");
}

/* ---- elements --------------------------------------------------------------------------------*/

static uint32_t local[MOST_MARKED], back[MOST_MARKED];

/* Calls that walk both boxes in the same order: the i-th element's index in either tensor. */
static int64_t element(const struct ws_box *b, const int64_t *dims, int64_t i)
{
	int64_t at[WS_MAX_DIMS] = { 0 }, index = 0;
	for (unsigned d = b->n_dims; d-- > 0;) {
		at[d] = b->at[d] + i % b->size[d];
		i /= b->size[d];
	}
	for (unsigned d = 0; d < b->n_dims; d++)
		index = index * dims[d] + at[d];
	return index;
}

/* The same for a part whose last two axes are swapped in the parameter. */
static int64_t turned_element(const struct ws_box *b, const int64_t *dims, int64_t i)
{
	const unsigned x = b->n_dims - 1, y = x - 1;
	const int64_t plane = b->size[x] * b->size[y], in = i % plane;
	return element(b, dims, i - in + in % b->size[y] * b->size[x] + in / b->size[y]);
}

static int64_t source_element(const struct ws_part *p, const struct ws_box *from, int64_t i)
{
	return p->transposed ? turned_element(from, p->dims, i) : element(from, p->dims, i);
}

/* Elements by number through one rank's parameter: 0 is what nobody wrote. */
static void scatter(const struct ws_layout *l, const struct ws_param *q, unsigned rank)
{
	uint32_t base = 1;
	int64_t dims[WS_MAX_DIMS];
	ws_layout_dims(l, q, rank, dims);
	memset(local, 0, (size_t)volume(q->n_dims, dims) * sizeof *local);
	for (size_t i = 0; i < q->n_parts; i++) {
		const struct ws_part *p = ws_layout_part(l, q->first + i);
		struct ws_box from, to;
		ws_layout_place(l, p, rank, &from, &to);
		for (int64_t e = 0, n = volume(to.n_dims, to.size); e < n; e++) {
			uint32_t *slot = &local[element(&to, dims, e)];
			expect(*slot == 0, "an element written twice");
			*slot = base + (uint32_t)source_element(p, &from, e);
		}
		base += (uint32_t)volume(p->n_dims, p->dims);
	}
}

static void gather(const struct ws_layout *l, const struct ws_param *q, unsigned rank)
{
	size_t base = 0;
	int64_t dims[WS_MAX_DIMS];
	ws_layout_dims(l, q, rank, dims);
	for (size_t i = 0; i < q->n_parts; i++) {
		const struct ws_part *p = ws_layout_part(l, q->first + i);
		struct ws_box from, to;
		ws_layout_place(l, p, rank, &from, &to);
		for (int64_t e = 0, n = volume(to.n_dims, to.size); e < n; e++)
			back[base + (size_t)source_element(p, &from, e)] =
				local[element(&to, dims, e)];
		base += (size_t)volume(p->n_dims, p->dims);
	}
}

static void check_round_trip(const struct ws_layout *l, const struct ws_param *q, unsigned tp)
{
	int64_t all = 0;
	for (size_t i = 0; i < q->n_parts; i++) {
		const struct ws_part *p = ws_layout_part(l, q->first + i);
		all += volume(p->n_dims, p->dims);
	}
	if (all > MOST_MARKED || volume(q->n_dims, q->dims) > MOST_MARKED)
		return;
	memset(back, 0, (size_t)all * sizeof *back);
	for (unsigned r = 0; r < tp; r++) {
		scatter(l, q, r);
		gather(l, q, r);
	}
	for (int64_t e = 0; e < all; e++)
		expect(back[e] == (uint32_t)e + 1, "an element that did not come back");
}

/* ---- one layout ------------------------------------------------------------------------------*/

struct tally {
	size_t layouts, params, troubled, refused;
};

static void check_layout(const struct ws_layout *l, struct tally *tally)
{
	const unsigned tp = ws_layout_options(l)->tp;
	const size_t n = ws_layout_param_count(l);
	size_t parts = 0;
	for (size_t i = 0; i < n; i++) {
		const struct ws_param *q = ws_layout_param(l, i);
		subject = q->name;
		expect(ws_layout_find_param(l, q->name) == q, "is not found");
		expect(q->first == parts && q->n_parts > 0, "its parts do not follow");
		parts += q->n_parts;
		tally->troubled += q->trouble != NULL;
		for (unsigned r = 0; r < tp; r++)
			check_cover(l, q, r);
	}
	expect(parts == ws_layout_part_count(l), "parts of no parameter");
	for (size_t i = 0; i < parts; i++) {
		const struct ws_part *p = ws_layout_part(l, i);
		subject = p->name;
		expect(ws_layout_find_part(l, p->name) == p, "is not found");
		expect(p->split != WS_SPLIT_HEADS || p->dims[p->axis] % p->units == 0,
		       "parts of heads");
		check_use(l, p, tp);
	}
	tally->layouts++;
	tally->params += n;
	if (n && tally->layouts % 4 == 0) {
		const struct ws_param *q = ws_layout_param(l, below((unsigned)n));
		subject = q->name;
		check_round_trip(l, q, tp);
	}
}

static struct {
	uint64_t seed;
	const struct ws_family *family;
	struct ws_layout_opts opts;
	struct ws_buf config;
} now;

/* So that a case is the same whichever came before it. False: a key was unknown. */
static bool knows_its_keys(const struct ws_family *f, struct keys *k)
{
	const struct ws_layout_opts opts = { .nextn = one_in(2), .unquantized = one_in(2) };
	struct ws_config *c = NULL;
	struct ws_layout *l = NULL;
	struct ws_err err = WS_ERR_INIT;
	write_config(&now.config, k);
	assert_int_equal(ws_config_parse(now.config.data, now.config.len, "random", &c, &err), 0);
	const bool learnt = ws_layout_make(f, c, &opts, &l, &err) && learn_needed_key(k, err.msg);
	ws_layout_free(l);
	ws_config_free(c);
	return !learnt;
}

static void learn_needed_keys(void)
{
	const struct ws_family *f;
	for (size_t i = 0; (f = ws_namemap_at(maps, i)); i++) {
		assert_true(i < MOST_FAMILIES);
		for (int content = 0; content < 50;)
			content = knows_its_keys(f, &needed[i]) ? content + 1 : 0;
	}
}

static const struct ws_family *draw_family(size_t *index)
{
	size_t n = 0;
	while (ws_namemap_at(maps, n))
		n++;
	assert_true(n && n <= MOST_FAMILIES);
	*index = below((unsigned)n);
	return ws_namemap_at(maps, *index);
}

static void print_case(uint64_t seed, const struct ws_family *f, const struct ws_layout_opts *o,
                       const char *config)
{
	print_message("LAYOUT_SEED=%llu: family %s tp %u ep %u attention %u rank %u%s%s%s\n%s\n",
	              (unsigned long long)seed, ws_family_name(f), o->tp, o->ep, o->attention_tp,
	              o->rank, o->fuse_shared ? " fused" : "", o->unquantized ? " unquantized" : "",
	              o->nextn ? " nextn" : "", config);
}

/* One config, several ways to divide it. */
static void try_config(uint64_t seed, struct tally *tally)
{
	size_t family;
	struct ws_config *c = NULL;
	struct ws_err err = WS_ERR_INIT;
	state_of_chance = now.seed = seed;
	now.family = draw_family(&family);
	write_config(&now.config, &needed[family]);
	assert_int_equal(ws_config_parse(now.config.data, now.config.len, "random", &c, &err), 0);
	for (int i = 0; i < 8; i++) {
		struct ws_layout *l = NULL;
		now.opts = draw_options();
		if (ws_layout_make(now.family, c, &now.opts, &l, &err) == 0) {
			check_layout(l, tally);
			ws_layout_free(l);
			continue;
		}
		if (learn_needed_key(&needed[family], err.msg))
			break;
		assert_int_equal(err.code, WS_EINPUT);
		tally->refused++;
	}
	ws_config_free(c);
}

static uint64_t number_from(const char *variable, uint64_t fallback)
{
	const char *text = getenv(variable);
	return text ? strtoull(text, NULL, 10) : fallback;
}

/* cmocka leaves a failed test by longjmp; what it was about is printed afterwards. */
static int say_what_failed(void **state)
{
	(void)state;
	if (now.seed != UINT64_MAX)
		print_case(now.seed, now.family, &now.opts, ws_buf_str(&now.config));
	ws_buf_free(&now.config);
	ws_namemap_close(maps);
	return 0;
}

static int open_maps(void **state)
{
	(void)state;
	struct ws_err err = WS_ERR_INIT;
	ws_buf_init(&now.config, 0);
	now.seed = UINT64_MAX;
	learn_optional_keys();
	if (ws_namemap_open(NULL, &maps, &err) == 0) {
		learn_needed_keys();
		return 0;
	}
	fprintf(stderr, "%s\n", err.msg);
	return -1;
}

TEST_BETWEEN(destinations_are_covered_once_and_sources_are_used, open_maps, say_what_failed)
{
	struct tally tally = { 0 };
	const size_t cases = number_from("LAYOUT_CASES", CASES);
	uint64_t seed = number_from("LAYOUT_SEED", 1);
	size_t configs = 0;
	for (; tally.layouts < cases; configs++) {
		assert_true(configs < cases);
		try_config(seed++, &tally);
	}
	now.seed = UINT64_MAX;
	print_message("%zu layouts of %zu configs, %zu parameters of which %zu do not divide, "
	              "%zu refused\n", tally.layouts, configs, tally.params, tally.troubled,
	              tally.refused);
	assert_true(tally.refused < tally.layouts);
	assert_true(tally.troubled < tally.params / 2);
}

RUN_TESTS(NULL, NULL)
