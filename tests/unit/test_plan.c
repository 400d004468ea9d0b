/* SPDX-License-Identifier: Apache-2.0 */
/* The rules of a plan, on examples and on a thousand random checkpoints. */
#include "wsync/tool/plan.h"

#include "hash.h"
#include "payloads.h"
#include "scratch.h"
#include "tensor_file.h"
#include "test.h"

#include <unistd.h>

/* A checkpoint is written one tensor at a time; its data is a hole in the file. */
static void begin(struct tensor_file *d)
{
	*d = tensor_file_begin("x.safetensors");
}

static void add(struct tensor_file *d, const char *name, const char *dtype, unsigned bits,
                unsigned elements)
{
	char shape[16];
	snprintf(shape, sizeof shape, "[%u]", elements);
	tensor_file_entry(d, name, dtype, shape, (uint64_t)elements * bits / 8);
}

static struct opened_file finish(struct tensor_file *d)
{
	tensor_file_end(d);
	return open_file("x.safetensors");
}

static struct ws_plan *plan_of(const struct ws_catalog *c, const struct ws_plan_opts *opts)
{
	struct ws_plan *p = NULL;
	struct ws_err err = WS_ERR_INIT;
	assert_ok(ws_plan_make(c, opts, &p, &err), &err);
	return p;
}

/* "a b | c": the plan's names and bucket borders. */
static void assert_order(const struct ws_plan *p, const char *want)
{
	char got[1024] = "";
	for (size_t b = 0; b < p->n_buckets; b++)
		for (size_t i = 0; i < p->buckets[b].n; i++)
			sprintf(got + strlen(got), "%s%s", i ? " " : b ? " | " : "",
			        p->tensors[p->buckets[b].first + i].name);
	assert_string_equal(got, want);
}

SCRATCH_TEST(buckets_are_filled_in_order)
{
	struct tensor_file d;
	begin(&d);
	add(&d, "a", "U8", 8, 6);
	add(&d, "b", "U8", 8, 4);
	add(&d, "c", "U8", 8, 1);
	add(&d, "big", "U8", 8, 11);
	add(&d, "d", "U8", 8, 10);
	struct opened_file s = finish(&d);
	struct ws_plan *p = plan_of(s.catalog, &(struct ws_plan_opts){ .bucket_size = 10 });
	assert_order(p, "a b | c | big | d");
	assert_int_equal(p->bytes, 32);
	assert_int_equal(p->buckets[0].bytes, 10);
	assert_int_equal(p->n_skipped, 0);
	ws_plan_free(p);
	p = plan_of(s.catalog, &(struct ws_plan_opts){ 0 });
	assert_order(p, "a b c big d");
	assert_int_equal(p->bucket_size, 512 << 20);
	ws_plan_free(p);
	ws_plan_free(NULL);
	close_file(&s);
}

SCRATCH_TEST(partners_travel_together)
{
	struct tensor_file d;
	begin(&d);
	add(&d, "l.1.kv_a_proj_with_mqa.weight_scale_inv", "F32", 32, 1);
	add(&d, "x.weight", "F8_E4M3", 8, 4);
	add(&d, "l.2.q_a_proj.weight", "F8_E4M3", 8, 4);
	add(&d, "l.1.q_a_proj.weight", "F8_E4M3", 8, 4);
	add(&d, "x.weight_scale", "F32", 32, 1);
	add(&d, "l.1.q_a_proj.weight_scale_inv", "F32", 32, 1);
	add(&d, "l.1.kv_a_proj_with_mqa.weight", "F8_E4M3", 8, 4);
	add(&d, "x.bias", "F32", 32, 1);
	add(&d, "down_proj_scales", "U8", 8, 4);
	add(&d, "down_proj_bias", "U8", 8, 8);
	add(&d, "down_proj_blocks", "U8", 8, 8);
	struct opened_file s = finish(&d);
	struct ws_plan *p = plan_of(s.catalog, &(struct ws_plan_opts){ .bucket_size = 8 });
	assert_order(p, "l.1.kv_a_proj_with_mqa.weight_scale_inv l.1.q_a_proj.weight "
	             "l.1.q_a_proj.weight_scale_inv l.1.kv_a_proj_with_mqa.weight | "
	             "x.weight x.weight_scale | l.2.q_a_proj.weight x.bias | "
	             "down_proj_scales down_proj_blocks | down_proj_bias");
	ws_plan_free(p);
	p = plan_of(s.catalog,
	            &(struct ws_plan_opts){ .bucket_size = 8, .format = WS_FORMAT_FLATTENED });
	assert_order(p, "l.1.kv_a_proj_with_mqa.weight_scale_inv l.1.q_a_proj.weight "
	             "l.1.q_a_proj.weight_scale_inv l.1.kv_a_proj_with_mqa.weight | "
	             "x.weight x.weight_scale | l.2.q_a_proj.weight x.bias | "
	             "down_proj_scales down_proj_blocks | down_proj_bias");
	ws_plan_free(p);
	close_file(&s);
}

SCRATCH_TEST(only_a_bucket_with_misplaced_views_is_put_in_another_order)
{
	struct tensor_file d;
	begin(&d);
	add(&d, "a.weight", "F8_E4M3", 8, 8);
	add(&d, "a.weight_scale_inv", "F32", 32, 1);
	add(&d, "b.weight", "F8_E4M3", 8, 7);
	add(&d, "b.weight_scale_inv", "F32", 32, 1);
	struct opened_file s = finish(&d);
	struct ws_plan *p =
		plan_of(s.catalog,
	                &(struct ws_plan_opts){ .bucket_size = 12, .format = WS_FORMAT_FLATTENED });
	assert_order(p, "a.weight a.weight_scale_inv | b.weight_scale_inv b.weight");
	ws_plan_free(p);
	p = plan_of(s.catalog, &(struct ws_plan_opts){ .format = WS_FORMAT_FLATTENED });
	assert_order(p, "a.weight_scale_inv b.weight_scale_inv a.weight b.weight");
	ws_plan_free(p);
	close_file(&s);
}

SCRATCH_TEST(patterns_choose_and_empty_tensors_stay)
{
	struct tensor_file d;
	begin(&d);
	add(&d, "model.a.weight", "BF16", 16, 2);
	add(&d, "model.b.weight", "BF16", 16, 2);
	add(&d, "model.none", "BF16", 16, 0);
	add(&d, "odd", "F4", 4, 4);
	struct opened_file s = finish(&d);
	static const char *const model[] = { "model.*" }, *const b[] = { "*.b.*" },
				 *const all[] = { "*" };
	static const char *const typo[] = { "model.*", "modle.*" };
	struct ws_plan *p =
		plan_of(s.catalog,
	                &(struct ws_plan_opts){
				.include = model, .n_include = 1, .exclude = b, .n_exclude = 1 });
	assert_order(p, "model.a.weight");
	assert_int_equal(p->n_skipped, 3);
	ws_plan_free(p);

	struct ws_err err = WS_ERR_INIT;
	struct ws_plan_opts opts = { .include = typo, .n_include = 2 };
	assert_fails_with(ws_plan_make(s.catalog, &opts, &p, &err), &err, WS_EUSAGE,
	                  "include 'modle.*' matches none of the 4 tensors");
	opts = (struct ws_plan_opts){ .exclude = all, .n_exclude = 1 };
	assert_fails_with(ws_plan_make(s.catalog, &opts, &p, &err), &err, WS_EUSAGE,
	                  "no tensor is left to send: all 4 are excluded or empty");
	opts = (struct ws_plan_opts){ 0 };
	assert_fails_with(ws_plan_make(s.catalog, &opts, &p, &err), &err, WS_EINPUT,
	                  "tensor 'odd': no server can receive F4: torch has no such type");
	assert_string_equal(err.hint, "leave it out with an exclude pattern");
	close_file(&s);
}

static uint64_t digest_of(const struct ws_catalog *c, struct ws_plan_opts opts)
{
	struct ws_plan *p = plan_of(c, &opts);
	const uint64_t digest = p->digest;
	ws_plan_free(p);
	return digest;
}

SCRATCH_TEST(the_digest_covers_all_but_bytes_and_buckets)
{
	struct tensor_file d;
	begin(&d);
	add(&d, "a", "BF16", 16, 2);
	add(&d, "b", "BF16", 16, 2);
	struct opened_file s = finish(&d);
	const struct ws_plan_opts opts = { .bucket_size = 8 };
	const uint64_t first = digest_of(s.catalog, opts);
	assert_true(first == digest_of(s.catalog, opts));
	assert_true(first == digest_of(s.catalog, (struct ws_plan_opts){ .bucket_size = 9 }));
	assert_true(first == digest_of(s.catalog, (struct ws_plan_opts){ .bucket_size = 4 }));
	assert_true(first ==
	            digest_of(s.catalog, (struct ws_plan_opts){ .format = WS_FORMAT_FLATTENED }));
	close_file(&s);
	static const struct {
		const char *name, *dtype;
		unsigned bits, n;
	} others[] = { { "c", "BF16", 16, 2 }, { "b", "F16", 16, 2 }, { "b", "F32", 32, 1 },
		       { "b", "BF16", 16, 3 } };
	for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
		begin(&d);
		add(&d, "a", "BF16", 16, 2);
		add(&d, others[i].name, others[i].dtype, others[i].bits, others[i].n);
		s = finish(&d);
		assert_true(first != digest_of(s.catalog, opts));
		close_file(&s);
	}
}

SCRATCH_TEST(neighbours_in_a_file_become_one_span)
{
	struct tensor_file d;
	begin(&d);
	add(&d, "a", "F32", 32, 1);
	add(&d, "b", "U8", 8, 3);
	add(&d, "c", "F32", 32, 1);
	struct opened_file s = finish(&d);
	struct ws_plan *p =
		plan_of(s.catalog, &(struct ws_plan_opts){ .format = WS_FORMAT_FLATTENED });
	struct ws_payload *payloads;
	size_t n;
	assert_order(p, "a c b");
	assert_int_equal(ws_plan_payloads(p, 0, &payloads, &n, NULL), 0);
	assert_int_equal(n, 1);
	assert_int_equal(payloads[0].length, 11);
	assert_int_equal(payloads[0].n_spans, 3);
	ws_plan_payloads_free(payloads, n);
	static const char *const ab[] = { "[ab]" };
	ws_plan_free(p);
	p = plan_of(s.catalog, &(struct ws_plan_opts){ .format = WS_FORMAT_FLATTENED, .include = ab,
	                                       .n_include = 1 });
	assert_int_equal(ws_plan_payloads(p, 0, &payloads, &n, NULL), 0);
	assert_int_equal(payloads[0].n_spans, 1);
	assert_int_equal(payloads[0].spans[0].length, 7);
	ws_plan_payloads_free(payloads, n);
	ws_plan_free(p);
	p = plan_of(s.catalog, &(struct ws_plan_opts){ 0 });
	assert_int_equal(ws_plan_payloads(p, 0, &payloads, &n, NULL), 0);
	assert_int_equal(n, 3);
	assert_int_equal(payloads[1].length, 3);
	assert_int_equal(payloads[2].spans[0].offset - payloads[0].spans[0].offset, 7);
	uint64_t hash;
	assert_int_equal(ws_plan_hash(p, 1, &hash, NULL), 0);
	assert_true(hash == ws_hash64("\0\0", 3));
	ws_plan_payloads_free(payloads, n);
	ws_plan_free(p);
	close_file(&s);
}

/* ---- random checkpoints ---- */

static uint32_t seed;

static uint32_t pick(uint32_t n)
{
	seed = seed * 1664525 + 1013904223;
	return (seed >> 8) % n;
}

static struct opened_file random_source(struct tensor_file *d)
{
	static const struct {
		const char *name;
		unsigned bits;
	} types[] = { { "BF16", 16 }, { "F32", 32 }, { "F8_E4M3", 8 }, { "I64", 64 }, { "U8", 8 } };
	static const char *const leaves[] = { "q_a_proj.weight", "kv_a_proj_with_mqa.weight",
		"q_a_proj.weight_scale_inv", "kv_a_proj_with_mqa.weight_scale_inv", "w.weight",
		"w.weight_scale", "norm", "bias" };
	enum { MODULES = 6, LEAVES = 8 };
	bool used[MODULES][LEAVES] = { { false } };
	begin(d);
	for (uint32_t i = 0, n = 1 + pick(40); i < n; i++) {
		const uint32_t m = pick(MODULES), l = pick(LEAVES), t = pick(5);
		char name[80];
		if (used[m][l])
			continue;
		used[m][l] = true;
		snprintf(name, sizeof name, "m.%u.%s", m, leaves[l]);
		add(d, name, types[t].name, types[t].bits, pick(30));
	}
	add(d, "last", "U8", 8, 1); /* so that something is left */
	return finish(d);
}

/* The members of one group by name: "m.3.A" for the first four leaves,
 * "m.3.w" for the scaled weight. */
static void group_of(const char *name, char *group)
{
	strcpy(group, name);
	if (strstr(name, "_a_proj"))
		strcpy(strchr(strchr(group, '.') + 1, '.'), ".A");
	else if (strstr(name, ".w."))
		strcpy(strstr(group, ".w."), ".w");
}

static void check_bucket(const struct ws_plan *p, const struct ws_plan_bucket *b)
{
	uint64_t at = 0;
	bool one_group = true, large = false;
	char first[80], group[80];
	group_of(p->tensors[b->first].name, first);
	for (size_t i = b->first; i < b->first + b->n; i++) {
		const struct ws_plan_tensor *t = &p->tensors[i];
		group_of(t->name, group);
		one_group &= strcmp(first, group) == 0;
		if (p->format == WS_FORMAT_FLATTENED)
			assert_int_equal(at % (ws_dtype_bits(t->dtype) / 8), 0);
		at += t->bytes;
		uint64_t together = 0;
		for (size_t k = b->first; k < b->first + b->n; k++)
			together += p->tensors[k].group == t->group ? p->tensors[k].bytes : 0;
		large |= together > b->limit && together > p->large;
	}
	assert_int_equal(at, b->bytes);
	assert_true(at <= b->limit || one_group || (large && at <= p->together));
}

static void check_plan(const struct ws_catalog *c, const struct ws_plan *p)
{
	size_t seen = 0, empty = 0;
	uint64_t bytes = 0;
	for (size_t i = 0; i < ws_catalog_count(c); i++)
		empty += ws_catalog_item(c, i)->bytes == 0;
	assert_int_equal(p->n_skipped, empty);
	assert_int_equal(p->n_tensors + empty, ws_catalog_count(c));
	for (size_t b = 0; b < p->n_buckets; b++) {
		assert_int_equal(p->buckets[b].first, seen);
		assert_true(p->buckets[b].n > 0);
		check_bucket(p, &p->buckets[b]);
		seen += p->buckets[b].n;
		bytes += p->buckets[b].bytes;
	}
	assert_int_equal(seen, p->n_tensors);
	assert_int_equal(bytes, p->bytes);
}

/* Every tensor once; partners in one bucket. */
static void check_members(const struct ws_plan *p)
{
	size_t bucket_of[64], b = 0;
	assert_true(p->n_tensors <= 64);
	for (size_t i = 0; i < p->n_tensors; i++) {
		char mine[80], other[80];
		b += i >= p->buckets[b].first + p->buckets[b].n;
		bucket_of[i] = b;
		group_of(p->tensors[i].name, mine);
		for (size_t k = 0; k < i; k++) {
			assert_ptr_not_equal(p->tensors[k].item, p->tensors[i].item);
			group_of(p->tensors[k].name, other);
			if (strcmp(mine, other) == 0)
				assert_int_equal(bucket_of[k], b);
		}
	}
}

/* "a b | c" again, after the buckets from `first` on were cut for this size. */
static void assert_recut(struct ws_plan *p, size_t first, uint64_t size, const char *want)
{
	ws_plan_recut(p, first, size);
	assert_order(p, want);
}

SCRATCH_TEST(later_buckets_can_be_cut_again)
{
	struct tensor_file d;
	begin(&d);
	for (unsigned i = 0; i < 6; i++)
		add(&d, (const char *[]){ "a", "b", "c", "d", "e.weight", "e.weight_scale" }[i],
		    "U8", 8, 4);
	struct opened_file s = finish(&d);
	struct ws_plan *p = plan_of(s.catalog, &(struct ws_plan_opts){ .bucket_size = 8 });
	assert_order(p, "a b | c d | e.weight e.weight_scale");
	assert_int_equal(p->buckets[1].limit, 8);
	assert_recut(p, 1, 4, "a b | c | d | e.weight e.weight_scale");
	assert_int_equal(p->buckets[0].limit, 8);
	assert_int_equal(p->buckets[1].limit, 4);
	assert_recut(p, 2, 100, "a b | c | d e.weight e.weight_scale");
	assert_recut(p, 0, 12, "a b c | d e.weight e.weight_scale");
	assert_recut(p, 2, 4, "a b c | d e.weight e.weight_scale");
	ws_plan_free(p);
	close_file(&s);
}

SCRATCH_TEST(a_cut_never_changes_the_order)
{
	struct tensor_file d;
	begin(&d);
	add(&d, "a", "F32", 32, 1);
	add(&d, "b", "U8", 8, 3);
	add(&d, "c", "F32", 32, 1);
	struct opened_file s = finish(&d);
	struct ws_plan *p = plan_of(s.catalog, &(struct ws_plan_opts){
		.bucket_size = 7, .format = WS_FORMAT_FLATTENED });
	assert_order(p, "a b | c");
	assert_recut(p, 0, 11, "a b | c"); /* c would begin at 7 */
	assert_recut(p, 0, 4, "a | b | c");
	ws_plan_free(p);
	p = plan_of(s.catalog, &(struct ws_plan_opts){ .bucket_size = 11,
	                                               .format = WS_FORMAT_FLATTENED });
	assert_order(p, "a c b");
	assert_recut(p, 0, 4, "a c b"); /* partners may no longer be neighbours */
	ws_plan_free(p);
	close_file(&s);
}

SCRATCH_TEST(large_tensors_go_together_with_the_few_small_ones_between)
{
	static const struct { const char *name; unsigned bytes; } tensors[] = {
		{ "tiny", 2 }, { "big", 9 }, { "a", 1 }, { "b", 1 }, { "large", 11 },
		{ "c", 2 }, { "d", 1 }, { "e", 5 }, { "huge", 50 }, { "f", 2 },
	};
	struct tensor_file d;
	begin(&d);
	for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++)
		add(&d, tensors[i].name, "U8", 8, tensors[i].bytes);
	struct opened_file s = finish(&d);
	struct ws_plan_opts opts = { .bucket_size = 8, .large = 8, .together = 30 };
	struct ws_plan *p = plan_of(s.catalog, &opts);
	assert_order(p, "tiny big a b large | c d e | huge | f");
	ws_plan_free(p);
	opts.together = 60;
	p = plan_of(s.catalog, &opts);
	assert_order(p, "tiny big a b large | c d e | huge f");
	ws_plan_free(p);
	opts.together = 8;
	p = plan_of(s.catalog, &opts);
	assert_order(p, "tiny | big | a b | large | c d e | huge | f");
	ws_plan_free(p);
	/* Neither a smaller bucket size nor a larger one makes them large. */
	opts = (struct ws_plan_opts){ .bucket_size = 4, .large = 10, .together = 60 };
	p = plan_of(s.catalog, &opts);
	assert_order(p, "tiny | big | a b large | c d | e | huge f");
	assert_recut(p, 1, 14, "tiny | big a b | large c d | e | huge f");
	ws_plan_free(p);
	close_file(&s);
}

SCRATCH_TEST(a_run_of_small_tensors_is_counted_once)
{
	struct tensor_file d;
	begin(&d);
	add(&d, "large", "U8", 8, 4000000);
	for (unsigned i = 0; i < 100000; i++) {
		char name[16];
		snprintf(name, sizeof name, "t%u", i);
		add(&d, name, "U8", 8, 4);
	}
	struct opened_file s = finish(&d);
	int64_t took[2];
	for (int i = 0; i < 2; i++) {
		const int64_t start = cpu_ns();
		struct ws_plan *p = plan_of(s.catalog, &(struct ws_plan_opts){
			.bucket_size = 2000000, .large = 2000000, .together = i ? 8000000 : 0 });
		took[i] = cpu_ns() - start;
		assert_int_equal(p->n_buckets, i ? 1 : 2);
		ws_plan_free(p);
	}
	assert_true(took[1] < 10 * took[0]); /* counted for each: a hundred times as long */
	close_file(&s);
}

SCRATCH_TEST(random_checkpoints_keep_the_rules)
{
	struct tensor_file d;
	for (uint32_t round = 0; round < 1000; round++) {
		seed = round;
		struct opened_file s = random_source(&d);
		const struct ws_plan_opts opts = { .bucket_size = 1 + pick(500),
			                           .large = pick(200),
			                           .together = pick(2) * pick(2000),
			                           .format = (enum ws_load_format)pick(2) };
		struct ws_plan *p = plan_of(s.catalog, &opts);
		check_plan(s.catalog, p);
		check_members(p);
		assert_true(p->digest == digest_of(s.catalog, opts));
		assert_true(p->digest == digest_of(s.catalog, (struct ws_plan_opts){
			.bucket_size = 1 + pick(500), .format = opts.format }));
		ws_plan_recut(p, pick((uint32_t)p->n_buckets), 1 + pick(500));
		check_plan(s.catalog, p);
		check_members(p);
		ws_plan_free(p);
		close_file(&s);
	}
}

RUN_TESTS(NULL, NULL)
