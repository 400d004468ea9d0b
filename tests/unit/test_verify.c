/* SPDX-License-Identifier: Apache-2.0 */
/* Verification against servers of every kind: with checksums of ours, with numbers, with
 * nothing. */
#include "number.h"
#include "scratch.h"
#include "tensor_file.h"
#include "test.h"
#include "tiny_http.h"
#include "wsync/tool/input.h"
#include "verify_state.h"

#include <math.h>

/* ---- a checkpoint: three layers of an 8 x 6 matrix and a norm of 8, in float32 ---- */

enum { LAYERS = 3, ROWS = 8, COLUMNS = 6, PER_LAYER = ROWS * COLUMNS + ROWS };

static float value_of(int layer, int i)
{
	return i == 3 ? NAN : (float)sin(1 + layer * 1000 + i);
}

static void write_checkpoint(const char *path)
{
	struct tensor_file out = tensor_file_begin(path);
	for (int l = 0; l < LAYERS; l++) {
		char name[32];
		snprintf(name, sizeof name, "layers.%d.up.weight", l);
		tensor_file_add(&out, name, WS_DTYPE_F32, 2, (const int64_t[]){ ROWS, COLUMNS });
		snprintf(name, sizeof name, "layers.%d.norm.weight", l);
		tensor_file_add(&out, name, WS_DTYPE_F32, 1, (const int64_t[]){ ROWS });
	}
	tensor_file_data(&out);
	for (int l = 0; l < LAYERS; l++)
		for (int i = 0; i < PER_LAYER; i++) {
			const float v = value_of(l, i);
			fwrite(&v, sizeof v, 1, out.f);
		}
	tensor_file_end(&out);
}

/* ---- servers ---- */

enum shows {
	NOTHING,
	NUMBERS,
	HALF_ROWS,
	HALF_COLUMNS,
	REPLICAS,
	STRINGS,
	DEEP,
	EMPTY,
	WIDE,
	FEW_ROWS,
	ALL_ROWS,
	CODES,
	NULLS
};

struct server {
	struct tiny tiny;
	char url[64];
	const char *info;
	enum shows shows;
	enum ws_dtype dtype;  /* that it keeps */
	int wrong;            /* this layer's number 5 is another */
	bool sums;            /* it has checksums of ours */
};

static struct server servers[2];
static struct ws_source *source;
static struct ws_catalog *items;
static struct ws_input input; /* has the catalog alone */
static struct ws_verify_result results[2];
static struct { char kind[16], name[64], expected[64], found[64]; int rank; } seen[64];
static size_t n_seen;
static struct ws_cancel cancel = WS_CANCEL_INIT;

static struct server *server_of(const struct tiny *t)
{
	return t == &servers[1].tiny ? &servers[1] : &servers[0];
}

static size_t put_numbers(const struct server *s, char *dst, size_t size, int layer, bool norm,
                          int rows)
{
	const int columns = s->shows == HALF_COLUMNS && !norm ? COLUMNS / 2 :
	                    s->shows == WIDE && !norm ? COLUMNS + 1 : COLUMNS;
	size_t n = (size_t)snprintf(dst, size, "[");
	for (int r = 0; r < rows; r++) {
		n += (size_t)snprintf(dst + n, size - n, "%s%s", r ? "," : "", norm ? "" : "[");
		for (int c = 0; c < (norm ? 1 : columns); c++) {
			const int i = norm ? ROWS * COLUMNS + r : r * COLUMNS + c;
			double v = ws_number_round(s->dtype, (double)value_of(layer, i));
			if ((layer == s->wrong && i == 5) || (s->shows == CODES && !norm))
				v += 100;
			n += (size_t)(isnan(v) ?
			                      snprintf(dst + n, size - n, "%snull", c ? "," : "") :
			                      snprintf(dst + n, size - n, "%s%.17g", c ? "," : "",
			                               v));
		}
		n += (size_t)snprintf(dst + n, size - n, "%s", norm ? "" : "]");
	}
	return n + (size_t)snprintf(dst + n, size - n, "]");
}

static const char *show(const struct server *s, const char *body, int *status)
{
	static _Thread_local char text[65536];
	const char *name = strstr(body, "layers.");
	const int layer = name ? name[7] - '0' : 0;
	const bool norm = strstr(body, "norm");
	unsigned asked = 0;
	/* who only asks whether the route is there has none */
	const char *limit = strstr(body, "truncate_size");
	if (limit)
		sscanf(limit, "truncate_size\":%u", &asked);
	const int there = s->shows == HALF_ROWS || s->shows == FEW_ROWS ? ROWS / 2 : ROWS;
	const int rows = (int)asked < there ? (int)asked : there;
	if (s->shows == STRINGS)
		return "[\"0.5\",\"0.25\"]";
	if (s->shows == DEEP)
		return "[[[[[[[[[[[[1]]]]]]]]]]]]";
	if (s->shows == EMPTY)
		return "[]";
	if (s->shows == NULLS)
		return "[null, null]";
	if (s->shows == NOTHING) {
		*status = 400;
		return "{\"error\":{\"message\":\"Get parameter by name failed\"}}";
	}
	size_t n = s->shows == REPLICAS ? (size_t)snprintf(text, sizeof text, "[") : 0;
	n += put_numbers(s, text + n, sizeof text - n, layer, norm, rows);
	if (s->shows == REPLICAS) {
		n += (size_t)snprintf(text + n, sizeof text - n, ",");
		n += put_numbers(s, text + n, sizeof text - n, layer, norm, rows);
		snprintf(text + n, sizeof text - n, "]");
	}
	return text;
}

static const char *sum(void)
{
	static _Thread_local char text[8192];
	size_t n = (size_t)snprintf(text, sizeof text,
	                            "{\"success\":true,\"algorithm\":\"xxh3-64\","
	                            "\"ranks\":[{\"checksums\":{");
	for (size_t i = 0; i < ws_catalog_count(items); i++) {
		const struct ws_item *item = ws_catalog_item(items, i);
		uint64_t hash = 0;
		ws_item_hash(item, &hash, NULL);
		n += (size_t)snprintf(text + n, sizeof text - n, "%s\"%s\":\"%016llx\"",
		                      i ? "," : "", item->name, (unsigned long long)hash);
	}
	snprintf(text + n, sizeof text - n, "},\"parallelism_info\":{\"rank\":0}}]}");
	return text;
}

static const char *route(struct tiny *t, const char *method, const char *path, const char *body,
                         int *status)
{
	const struct server *s = server_of(t);
	(void)method;
	if (!strcmp(path, "/server_info"))
		return s->info;
	if (!strcmp(path, "/model_info"))
		return "{\"model_path\":\"/m\"}";
	if (!strcmp(path, "/get_weights_by_name"))
		return show(s, body, status);
	if (!strcmp(path, "/weights_checker") && s->sums)
		return sum();
	*status = 404;
	return "{\"detail\":\"Not Found\"}";
}

static int set_up(void **state)
{
	struct ws_err err = WS_ERR_INIT;
	if (scratch_enter(state))
		return -1;
	write_checkpoint("c.safetensors");
	const char *path = "c.safetensors";
	const struct ws_catalog_opts as_it_is = { .family = NULL };
	if (ws_source_open(&path, 1, &source, &err) ||
	    ws_catalog_make((const struct ws_source *const *)&source, 1, &as_it_is, &items, &err))
		return -1;
	input = (struct ws_input){ .catalog = items };
	for (int i = 0; i < 2; i++) {
		struct server *s = &servers[i];
		tiny_start(&s->tiny);
		tiny_url(&s->tiny, "", s->url, sizeof s->url);
		s->tiny.route = route;
		s->info = "{\"tp_size\":1,\"dtype\":\"auto\"}";
		s->shows = NOTHING;
		s->dtype = WS_DTYPE_F32;
		s->wrong = -1;
		s->sums = false;
	}
	n_seen = 0;
	return 0;
}

static int tear_down(void **state)
{
	tiny_stop(&servers[0].tiny);
	tiny_stop(&servers[1].tiny);
	ws_catalog_free(items);
	ws_source_close(source);
	items = NULL;
	source = NULL;
	return scratch_leave(state);
}

#define CALL(f) TEST_BETWEEN(f, set_up, tear_down)

static void take_event(void *ctx, const struct ws_event *ev)
{
	(void)ctx;
	if (ev->type != WS_EV_MISMATCH || n_seen == sizeof seen / sizeof *seen)
		return;
	snprintf(seen[n_seen].kind, sizeof seen->kind, "%s", ev->mismatch.kind);
	snprintf(seen[n_seen].name, sizeof seen->name, "%s", ev->mismatch.name);
	snprintf(seen[n_seen].expected, sizeof seen->expected, "%s", ev->mismatch.expected);
	snprintf(seen[n_seen].found, sizeof seen->found, "%s", ev->mismatch.found);
	seen[n_seen++].rank = ev->mismatch.rank;
}

static int verify_n(size_t n, int64_t timeout_ns, struct ws_err *err)
{
	const char *urls[2] = { servers[0].url, servers[1].url };
	const struct ws_verify_opts opts = {
		.endpoints = urls, .n_endpoints = n, .input = &input, .samples = 32, .seed = 1,
		.timeout_ns = timeout_ns, .sink = { .event = take_event }, .cancel = &cancel,
	};
	n_seen = 0;
	*err = (struct ws_err)WS_ERR_INIT;
	return ws_verify_weights(&opts, results, err);
}

static int verify_one(struct ws_err *err)
{
	return verify_n(1, 5 * WS_NS_PER_S, err);
}

/* ---- samples ---- */

CALL(a_server_shows_its_numbers_in_its_own_type)
{
	static const enum ws_dtype types[] = { WS_DTYPE_F32, WS_DTYPE_BF16, WS_DTYPE_F16 };
	struct ws_err err;
	servers[0].shows = NUMBERS;
	for (size_t i = 0; i < 3; i++) {
		servers[0].dtype = types[i];
		assert_ok(verify_one(&err), &err);
		assert_int_equal(results[0].means, WS_MEANS_SAMPLES);
		assert_int_equal(results[0].equal, 2 * LAYERS);
		assert_int_equal(n_seen, 0);
	}
	/* A server that says float32 has no business to show bfloat16. */
	servers[0].info = "{\"tp_size\":1,\"dtype\":\"torch.float32\"}";
	servers[0].dtype = WS_DTYPE_BF16;
	assert_fails(verify_one(&err), &err, WS_EMISMATCH, "");
}

CALL(a_wrong_number_is_found_and_placed)
{
	struct ws_err err;
	servers[0].shows = NUMBERS;
	servers[0].wrong = 1;
	assert_fails(verify_one(&err), &err, WS_EMISMATCH, "1 of 6 sampled parameters differ");
	assert_string_equal(err.endpoint, servers[0].url);
	assert_int_equal(results[0].different, 1);
	assert_int_equal(results[0].equal, 5);
	assert_int_equal(n_seen, 1);
	assert_string_equal(seen[0].kind, "value");
	assert_string_equal(seen[0].name, "layers.1.up.weight");
	assert_non_null(strstr(seen[0].expected, "at [0, 5]"));
	assert_non_null(strstr(seen[0].found, "1 of 48 numbers differ"));
}

CALL(a_first_rank_may_show_its_shard)
{
	struct ws_err err;
	servers[0].info = "{\"tp_size\":2}";
	servers[0].shows = HALF_ROWS;
	assert_ok(verify_one(&err), &err);
	servers[0].shows = HALF_COLUMNS;
	servers[0].dtype = WS_DTYPE_BF16;
	assert_ok(verify_one(&err), &err);
	assert_int_equal(results[0].equal, 2 * LAYERS);
	servers[0].wrong = 0; /* number 5 is the last of its row, which another rank has */
	assert_int_equal(verify_one(&err), 0);
}

CALL(an_only_rank_shows_all_of_it)
{
	static const enum shows shapes[] = { HALF_COLUMNS, FEW_ROWS, WIDE };
	struct ws_err err;
	for (size_t i = 0; i < 3; i++) {
		servers[0].shows = shapes[i];
		assert_fails(verify_one(&err), &err, WS_EMISMATCH, "");
		assert_string_equal(seen[0].kind, "shape");
	}
	assert_string_equal(seen[0].expected, "[8, 6]");
	assert_string_equal(seen[0].found, "[8, 7]");
}

CALL(every_replica_is_compared)
{
	struct ws_err err;
	servers[0].info = "{\"tp_size\":1,\"dp_size\":2}";
	servers[0].shows = REPLICAS;
	assert_ok(verify_one(&err), &err);
	servers[0].wrong = 2;
	assert_int_equal(verify_one(&err), -1);
	assert_int_equal(n_seen, 2);
	assert_int_equal(seen[0].rank, 0);
	assert_int_equal(seen[1].rank, 1);
	assert_int_equal(results[0].different, 1);
}

/* SGLang's answer with dp_size 2 for a parameter that it does not show. */
CALL(nulls_of_replicas_are_no_answer)
{
	struct ws_err err;
	servers[0].info = "{\"tp_size\":1,\"dp_size\":2}";
	servers[0].shows = NULLS;
	assert_fails(verify_one(&err), &err, WS_EUNKNOWN,
	             "it showed none of 6 sampled parameters: the answers are empty");
	assert_int_equal(results[0].different, 0);
	assert_int_equal(n_seen, 0);
	/* A server without replicas shows a norm of NaN like this. */
	servers[0].info = "{\"tp_size\":1,\"dp_size\":1}";
	assert_fails(verify_one(&err), &err, WS_EMISMATCH, "");
}

CALL(a_quantized_server_is_compared_where_it_can_be)
{
	struct ws_err err;
	servers[0].info = "{\"tp_size\":1,\"quantization\":\"fp8\"}";
	servers[0].shows = CODES;
	assert_ok(verify_one(&err), &err);
	assert_int_equal(results[0].equal, LAYERS);
	assert_int_equal(results[0].incomparable, LAYERS);
	assert_int_equal(n_seen, 0);
}

CALL(nothing_shown_is_no_success)
{
	static const enum shows none[] = { NOTHING, STRINGS, DEEP, EMPTY };
	struct ws_err err;
	for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
		servers[0].shows = none[i];
		assert_fails(verify_one(&err), &err, WS_EUNKNOWN,
		             "it reports no checksums, and it showed none of 6");
		assert_non_null(strstr(err.hint, "{twice}"));
		assert_int_equal(results[0].means, WS_MEANS_NONE);
		assert_int_equal(results[0].unanswered, 2 * LAYERS);
	}
	servers[0].shows = NOTHING;
	verify_one(&err);
	assert_non_null(strstr(err.msg, "Get parameter by name failed"));
}

/* ---- checksums ---- */

TEST(a_tied_head_is_the_embedding)
{
	struct ws_plan_tensor embedding = { .name = "model.embed_tokens.weight" };
	const struct ws_plan plan = { .tensors = &embedding, .n_tensors = 1 };
	uint64_t value = 7;
	size_t first = 0;
	const struct ws_hashes h = { .plan = &plan, .values = &value, .sorted = &first };
	struct ws_checksum sums[] = { { .name = "model.embed_tokens.weight", .value = 7 },
		                      { .name = "lm_head.weight", .value = 7 } };
	struct ws_checksum_rank rank = { .items = sums, .n = 2 };
	struct ws_checksums all = { .ranks = &rank, .n_ranks = 1 };
	const struct ws_sink nobody = { .event = NULL };
	struct ws_hash_count count = { 0 };
	ws_hashes_compare(&h, "http://x", &all, 0, true, &nobody, &count);
	assert_int_equal(count.equal, 1);
	assert_int_equal(count.unexpected, 0);
	sums[0].value = 8; /* sorted: the head */
	ws_hashes_compare(&h, "http://x", &all, 0, true, &nobody, &count);
	assert_int_equal(count.unexpected, 1);
}

/* The layout of a Llama. */
static struct ws_layout *layout_of(bool tied, struct ws_namemap **map)
{
	char text[512];
	struct ws_config *config;
	struct ws_layout *layout;
	struct ws_err err;
	snprintf(text, sizeof text,
	         "{\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":8,"
	         "\"intermediate_size\":8,\"vocab_size\":8,\"num_attention_heads\":1,"
	         "\"num_hidden_layers\":1,\"tie_word_embeddings\":%s}", tied ? "true" : "false");
	assert_ok(ws_config_parse(text, strlen(text), "config.json", &config, &err), &err);
	assert_ok(ws_namemap_open(NULL, map, &err), &err);
	const struct ws_family *f = ws_namemap_find(*map, config);
	const struct ws_layout_opts opts = { .tp = 1 };
	assert_ok(ws_layout_make(f, config, &opts, &layout, &err), &err);
	ws_config_free(config);
	return layout;
}

TEST(the_model_decides_about_names_that_only_one_side_has)
{
	struct ws_plan_tensor ignored = { .name = "model.layers.0.self_attn.rotary_emb.inv_freq" };
	const struct ws_plan plan = { .tensors = &ignored, .n_tensors = 1 };
	uint64_t value = 7;
	size_t first = 0;
	const struct ws_hashes h = { .plan = &plan, .values = &value, .sorted = &first };
	struct ws_checksum sum = { .name = "lm_head.weight", .value = 7 };
	struct ws_checksum_rank rank = { .items = &sum, .n = 1 };
	struct ws_checksums all = { .ranks = &rank, .n_ranks = 1 };
	const struct ws_sink nobody = { .event = NULL };
	for (int tied = 0; tied < 2; tied++) {
		struct ws_namemap *map;
		struct ws_layout *layout = layout_of(tied, &map);
		struct ws_hash_count count = { .layout = layout }, blind = { 0 };
		ws_hashes_compare(&h, "http://x", &all, 0, true, &nobody, &count);
		assert_int_equal(count.missing, 0);
		assert_int_equal(count.unexpected, !tied);
		ws_hashes_compare(&h, "http://x", &all, 0, true, &nobody, &blind);
		assert_int_equal(blind.missing, 1);
		assert_int_equal(blind.unexpected, 1);
		ws_layout_free(layout);
		ws_namemap_close(map);
	}
}

TEST(equal_bytes_of_another_type_or_shape_are_different)
{
	struct ws_plan_tensor tensor = {
		.name = "a", .dtype = WS_DTYPE_BF16, .n_dims = 2, .dims = { 4, 6 }
	};
	const struct ws_plan plan = { .tensors = &tensor, .n_tensors = 1 };
	uint64_t value = 7;
	size_t first = 0;
	const struct ws_hashes h = { .plan = &plan, .values = &value, .sorted = &first };
	struct ws_checksum sum = { .name = "a", .value = 7 };
	struct ws_checksum_rank rank = { .items = &sum, .n = 1 };
	struct ws_checksum_kind kind = {
		.name = "a", .dtype = "bfloat16", .n_dims = 2, .dims = { 4, 6 }
	};
	struct ws_checksums all = { .ranks = &rank, .n_ranks = 1, .kinds = &kind, .n_kinds = 1 };
	const struct ws_sink nobody = { .event = NULL };
	struct ws_hash_count count = { 0 };
	ws_hashes_compare(&h, "http://x", &all, 0, true, &nobody, &count);
	assert_int_equal(count.equal, 1);
	kind.dtype = "float16";
	ws_hashes_compare(&h, "http://x", &all, 0, true, &nobody, &count);
	assert_int_equal(count.different, 1);
	kind.dtype = "bfloat16";
	kind.dims[0] = 6;
	kind.dims[1] = 4;
	ws_hashes_compare(&h, "http://x", &all, 0, true, &nobody, &count);
	assert_int_equal(count.different, 2);
	kind.n_dims = tensor.n_dims = 1;
	kind.dims[0] = tensor.dims[0] = 1;
	tensor.n_dims = 0;
	ws_hashes_compare(&h, "http://x", &all, 0, true, &nobody, &count);
	assert_int_equal(count.equal, 2);
}

CALL(hashing_uses_as_many_threads_as_asked)
{
	const char *url = servers[0].url;
	servers[0].sums = true;
	for (unsigned threads = 0; threads < 20; threads += 3) {
		struct ws_err err = WS_ERR_INIT;
		const struct ws_verify_opts opts = {
			.endpoints = &url, .n_endpoints = 1, .input = &input, .threads = threads
		};
		assert_int_equal(ws_verify_weights(&opts, results, &err), 0);
	}
}

CALL(a_source_that_shrank_is_said_and_nobody_passes)
{
	struct ws_err err;
	servers[0].sums = true;
	assert_int_equal(truncate("c.safetensors", 700), 0);
	assert_fails(verify_one(&err), &err, WS_EINPUT, "hashing the source: ");
	assert_int_equal(results[0].err.code, WS_EINPUT);
}

/* ---- several endpoints, limits ---- */

CALL(a_cancelled_verification_ends)
{
	struct ws_err err;
	ws_cancel_set(&cancel);
	assert_int_equal(verify_one(&err), -1);
	cancel = (struct ws_cancel)WS_CANCEL_INIT;
	assert_int_equal(err.code, WS_ECANCELLED);
	assert_int_equal(results[0].err.code, WS_ECANCELLED);
}

/* ---- which samples ---- */

enum { MANY = 40 * 8 };

static struct ws_plan_tensor many[MANY];
static char names[MANY][64];

/* 40 layers of 8 kinds. */
static struct ws_plan plan_of_many(void)
{
	for (int i = 0; i < MANY; i++) {
		snprintf(names[i], sizeof names[i], "model.layers.%d.kind%c.weight", i / 8,
		         'a' + i % 8);
		many[i] = (struct ws_plan_tensor){ .name = names[i], .dtype = WS_DTYPE_BF16,
			                           .n_dims = 1, .dims = { 4 }, .bytes = 8 };
	}
	return (struct ws_plan){ .tensors = many, .n_tensors = MANY };
}

TEST(samples_are_spread_over_kinds_and_layers)
{
	const struct ws_plan plan = plan_of_many();
	for (uint64_t seed = 0; seed < 50; seed++) {
		size_t chosen[32], again[32];
		unsigned per_kind[8] = { 0 }, quarter[4] = { 0 };
		bool taken[MANY] = { false };
		assert_int_equal(verify_choose(&plan, 32, seed, chosen), 32);
		assert_int_equal(verify_choose(&plan, 32, seed, again), 32);
		assert_memory_equal(chosen, again, sizeof chosen);
		for (int k = 0; k < 32; k++) {
			assert_false(taken[chosen[k]]);
			taken[chosen[k]] = true;
			per_kind[chosen[k] % 8]++;
			quarter[chosen[k] / 8 / 10]++;
		}
		for (int k = 0; k < 8; k++)
			assert_int_equal(per_kind[k], 4);
		for (int k = 0; k < 4; k++)
			assert_true(quarter[k] >= 2);
	}
}

TEST(all_are_chosen_where_there_are_few)
{
	struct ws_plan plan = plan_of_many();
	size_t chosen[MANY];
	plan.n_tensors = 20;
	many[0].dtype = WS_DTYPE_C64;
	many[1].n_dims = 0;
	many[2].n_dims = 2;
	many[2].dims[1] = 1 << 20; /* one row is a megabyte of numbers */
	assert_int_equal(verify_choose(&plan, MANY, 7, chosen), 17);
	assert_int_equal(verify_choose(&plan, 0, 7, chosen), 0);
	plan.n_tensors = 0;
	assert_int_equal(verify_choose(&plan, 5, 7, chosen), 0);
}

RUN_TESTS(NULL, NULL)
