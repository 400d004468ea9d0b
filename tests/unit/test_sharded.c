/* SPDX-License-Identifier: Apache-2.0 */
/* What ranks saved one by one comes to the checkpoint again; shards are
 * made here element by element. */
#include "rank_shards.h"

#include "shard_list.h"
#include "wsync/tool/input.h"
#include "wsync/tool/shards.h"

#include <sys/stat.h>

/* ---- joining ---- */

static int open_ranks(const struct trainer *how, struct ws_input *in, struct ws_err *err)
{
	static char names[16][32];
	const char *paths[16];
	for (int r = 0; r < how->tp; r++) {
		snprintf(names[r], sizeof names[r], "rank%d.safetensors", r);
		paths[r] = names[r];
	}
	put_text("config.json", moe);
	const struct ws_input_opts opts = { .paths = paths, .n_paths = (size_t)how->tp,
		                            .sharded_tp = (unsigned)how->tp,
		                            .sharded_ep = (unsigned)how->ep };
	return ws_input_open(&opts, in, err);
}

static void save(const struct trainer *how)
{
	char path[32];
	tensors_free(&checkpoint);
	make_checkpoint(&checkpoint);
	for (int r = 0; r < how->tp; r++) {
		make_shard(how, r);
		snprintf(path, sizeof path, "rank%d.safetensors", r);
		tensors_write(&rank_tensors, path);
	}
}

static void assert_joined(const struct trainer *how)
{
	struct ws_err err = WS_ERR_INIT;
	struct ws_input in;
	if (open_ranks(how, &in, &err))
		fail_msg("tp %d ep %d fused %d grouped %d: %s", how->tp, how->ep, how->fused,
		         how->grouped, err.msg);
	assert_int_equal(ws_catalog_count(in.catalog), checkpoint.n);
	for (size_t i = 0; i < checkpoint.n; i++)
		assert_item(in.catalog, &checkpoint.v[i]);
	ws_input_close(&in);
}

static int forget(void **state)
{
	tensors_free(&checkpoint);
	tensors_free(&rank_tensors);
	return scratch_leave(state);
}

#define WITH_SHARDS(test) TEST_BETWEEN(test, scratch_enter, forget)

WITH_SHARDS(shards_of_any_trainer_are_joined)
{
	for (int tp = 1; tp <= 8; tp *= 2)
		for (int ep = 1; ep <= tp && ep <= EXPERTS; ep *= 2)
			for (int kind = 0; kind < 3; kind++) {
				const struct trainer how = { .tp = tp, .ep = ep, .fused = kind == 1,
					                     .grouped = kind == 2,
					                     .vocab = kind ? 128 : 0,
					                     .first_only = tp == 4,
					                     .whole_vocab = tp == 2 };
				save(&how);
				assert_joined(&how);
			}
}

WITH_SHARDS(vocabularies_are_padded_as_trainers_like)
{
	for (int64_t vocab = 104; vocab < 300; vocab += 56) {
		const struct trainer how = { .tp = 8, .ep = 1, .vocab = vocab };
		save(&how);
		assert_joined(&how);
	}
}

WITH_SHARDS(experts_that_are_whole_need_no_ep)
{
	struct trainer how = { .tp = 4, .ep = 4, .vocab = 128 };
	save(&how);
	how.ep = 1;
	assert_joined(&how);
}

WITH_SHARDS(what_is_one_run_of_a_rank_is_not_copied)
{
	const struct trainer how = { .tp = 4, .ep = 1, .vocab = 128 };
	struct ws_err err = WS_ERR_INIT;
	struct ws_input in;
	save(&how);
	assert_int_equal(open_ranks(&how, &in, &err), 0);
	size_t copied;
	const size_t views = count_views(in.catalog, &copied);
	/* Norms and the router are whole; only what is divided along its columns is copied. */
	assert_int_equal(views, checkpoint.n - 9 - 1);
	assert_int_equal(copied, 2 + 1 + EXPERTS);
	const struct ws_item *item =
		ws_catalog_find(in.catalog, "model.layers.0.self_attn.q_proj.weight");
	assert_int_equal(item->view->n_pieces, 4);
	assert_string_equal(
		item->derivation,
		"joined of 4 ranks' model.layers.0.self_attn.q_proj.weight along axis 0");
	item = ws_catalog_find(in.catalog, "model.layers.0.self_attn.k_proj.weight");
	assert_int_equal(item->view->n_pieces, KV);
	ws_input_close(&in);
}

/* ---- replicas ---- */

static int check_replicas(const struct trainer *how, const struct ws_replica_opts *o,
                          struct ws_err *err)
{
	struct ws_input in;
	*err = (struct ws_err)WS_ERR_INIT;
	assert_ok(open_ranks(how, &in, err), err);
	const int rc = ws_catalog_check_replicas(in.stored, o, err);
	ws_input_close(&in);
	return rc;
}

/* Saves rank r again with the tensor's last byte changed, or as it was. */
static void save_rank(const struct trainer *how, int rank, size_t tensor, bool changed)
{
	char path[32];
	make_shard(how, rank);
	if (changed)
		rank_tensors.v[tensor].bytes[elements(&rank_tensors.v[tensor]) * ELEMENT - 1] ^= 1;
	snprintf(path, sizeof path, "rank%d.safetensors", rank);
	tensors_write(&rank_tensors, path);
}

/* Has another rank a tensor of this name that ends alike? All numbers of the checkpoint are
 * others. */
static bool is_replicated(const struct trainer *how, int rank, size_t tensor)
{
	uint8_t end[8];
	char name[128];
	make_shard(how, rank);
	const struct tensor *t = &rank_tensors.v[tensor];
	strcpy(name, t->name);
	memcpy(end, t->bytes + elements(t) * ELEMENT - 8, sizeof end);
	for (int r = 0; r < how->tp; r++) {
		if (r == rank)
			continue;
		make_shard(how, r);
		for (size_t i = 0; i < rank_tensors.n; i++) {
			t = &rank_tensors.v[i];
			if (!strcmp(t->name, name) &&
			    !memcmp(t->bytes + elements(t) * ELEMENT - 8, end, sizeof end))
				return true;
		}
	}
	return false;
}

WITH_SHARDS(replicas_that_differ_are_found_and_nothing_else)
{
	static const struct trainer hows[] = {
		{ .tp = 2, .ep = 1, .whole_vocab = true },
		{ .tp = 4, .ep = 2 },
		{ .tp = 4, .ep = 1, .fused = true },
		{ .tp = 4, .ep = 1, .grouped = true },
		{ .tp = 8, .ep = 1, .fused = true, .whole_vocab = true },
		{ .tp = 4, .ep = 1, .first_only = true },
	};
	const struct ws_replica_opts all = { .all = true }, some = { 0 };
	struct ws_err err;
	for (size_t h = 0; h < sizeof hows / sizeof hows[0]; h++) {
		const struct trainer *how = &hows[h];
		size_t found = 0;
		save(how);
		assert_int_equal(check_replicas(how, &all, &err), 0);
		for (int r = 0; r < how->tp; r += how->tp - 1) {
			make_shard(how, r);
			const size_t n = rank_tensors.n;
			for (size_t i = 0; i < n; i++) {
				const bool replicated = is_replicated(how, r, i);
				save_rank(how, r, i, true);
				if (check_replicas(how, i % 2 ? &all : &some, &err) !=
				    (replicated ? -1 : 0))
					fail_msg("tp %d, rank %d, %s: %s", how->tp, r,
					         rank_tensors.v[i].name, err.msg);
				assert_int_equal(err.code, replicated ? WS_EINPUT : WS_OK);
				found += replicated;
			}
			save_rank(how, r, 0, false);
		}
		assert_true(found > 10 || how->first_only);
	}
}

WITH_SHARDS(both_files_of_a_replica_are_named)
{
	static const char *const norms[] = { "*norm*" };
	const struct trainer how = { .tp = 2, .ep = 1 };
	struct ws_cancel cancel = WS_CANCEL_INIT;
	struct ws_err err;
	save(&how);
	make_shard(&how, 1);
	size_t i = 0;
	while (strcmp(rank_tensors.v[i].name, "model.norm.weight") != 0)
		i++;
	save_rank(&how, 1, i, true);
	assert_fails_with(check_replicas(&how, &(struct ws_replica_opts){ 0 }, &err), &err,
	                  WS_EINPUT,
	                  "tensor 'model.norm.weight': rank 1 and rank 0 have different bytes of "
	                  "the same part (rank1.safetensors, rank0.safetensors)");
	assert_int_equal(
		check_replicas(&how, &(struct ws_replica_opts){ .include = norms, .n_include = 1 },
	                       &err),
		-1);
	assert_ok(check_replicas(&how,
	                         &(struct ws_replica_opts){ .exclude = norms, .n_exclude = 1 },
	                         &err), &err);
	ws_cancel_set(&cancel);
	assert_fails(check_replicas(&how, &(struct ws_replica_opts){ .cancel = &cancel }, &err),
	             &err, WS_ECANCELLED, "");
}

/* Rank 0 has all columns, of which rank 1 has the second half. */
WITH_SHARDS(a_part_of_what_another_rank_has_whole_is_compared)
{
	static const char name[] = "model.layers.0.self_attn.o_proj.weight";
	const struct trainer how = { .tp = 2, .ep = 1 };
	const struct ws_replica_opts all = { .all = true };
	struct ws_err err;
	size_t i = 0;
	save(&how);
	make_shard(&how, 0);
	while (strcmp(rank_tensors.v[i].name, name) != 0)
		i++;
	rank_tensors.v[i].name[0] = 'x';
	const struct tensor *whole = tensors_find(&checkpoint, name);
	cut(name, whole, 0, 0, whole->dims[0]);
	free(rank_tensors.v[i].bytes);
	rank_tensors.v[i] = rank_tensors.v[--rank_tensors.n];
	tensors_write(&rank_tensors, "rank0.safetensors");
	assert_joined(&how);
	assert_int_equal(check_replicas(&how, &all, &err), 0);
	save_rank(&how, 1, i, true);
	assert_fails(check_replicas(&how, &all, &err), &err, WS_EINPUT, name);
}

/* The router of a model of many experts: 1 MiB and a row. */
WITH_SHARDS(large_replicas_are_compared_at_both_ends_or_all_over)
{
	enum { ROWS = 513, COLS = 1024 };
	static const char config[] =
		"{\"architectures\":[\"Qwen3MoeForCausalLM\"],\"model_type\":\"qwen3_moe\","
		"\"hidden_size\":1024,\"intermediate_size\":64,\"moe_intermediate_size\":64,"
		"\"num_hidden_layers\":1,\"num_attention_heads\":8,\"num_key_value_heads\":2,"
		"\"head_dim\":8,\"num_experts\":513,\"mlp_only_layers\":[],"
		"\"decoder_sparse_step\":1,\"vocab_size\":100}";
	/* clang-format off */
	static const size_t places[] = {
		0, (64 << 10) - 1, 64 << 10, 512 << 10, ROWS * COLS * 2 - (64 << 10) - 1,
		ROWS * COLS * 2 - (64 << 10), ROWS * COLS * 2 - 1
	};
	/* clang-format on */
	static const char *const paths[] = { "a.safetensors", "b.safetensors" };
	const struct ws_input_opts opts = {
		.paths = paths, .n_paths = 2, .sharded_tp = 2, .sharded_ep = 1
	};
	put_text("config.json", config);
	tensors_free(&rank_tensors);
	struct tensor *t =
		tensors_random(&rank_tensors, "model.layers.0.mlp.gate.weight", 2, ROWS, COLS, 0);
	tensors_write(&rank_tensors, paths[0]);
	for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
		struct ws_err err = WS_ERR_INIT;
		struct ws_input in;
		t->bytes[places[i]] ^= 1;
		tensors_write(&rank_tensors, paths[1]);
		t->bytes[places[i]] ^= 1;
		assert_ok(ws_input_open(&opts, &in, &err), &err);
		assert_int_equal(ws_catalog_replicas(in.stored), 1);
		const bool end = i < 2 || i > 4;
		assert_int_equal(ws_catalog_check_replicas(in.stored,
		                                           &(struct ws_replica_opts){ 0 }, &err),
		                 end ? -1 : 0);
		assert_int_equal(ws_catalog_check_replicas(in.stored,
		                                           &(struct ws_replica_opts){ .all = true },
		                                           &err),
		                 -1);
		ws_input_close(&in);
	}
}

/* ---- what is wrong with shards ---- */

static void assert_refused(const struct trainer *how, const char *message)
{
	struct ws_err err = WS_ERR_INIT;
	struct ws_input in;
	assert_fails_with(open_ranks(how, &in, &err), &err, WS_EINPUT, message);
}

/* Saves rank r again with one tensor under another name, or without it. */
static void spoil(const struct trainer *how, int rank, const char *name, const char *other)
{
	char path[32];
	make_shard(how, rank);
	for (size_t i = 0; i < rank_tensors.n; i++) {
		struct tensor *t = &rank_tensors.v[i];
		if (strcmp(t->name, name) != 0)
			continue;
		if (other) {
			strcpy(t->name, other);
		} else {
			free(t->bytes);
			*t = rank_tensors.v[--rank_tensors.n];
		}
	}
	snprintf(path, sizeof path, "rank%d.safetensors", rank);
	tensors_write(&rank_tensors, path);
}

WITH_SHARDS(missing_shards_are_named)
{
	struct trainer how = { .tp = 4, .ep = 1, .vocab = 128 };
	save(&how);
	spoil(&how, 2, "model.layers.0.self_attn.q_proj.weight", NULL);
	assert_refused(
		&how,
		"rank 2: tensor 'model.layers.0.self_attn.q_proj.weight' of shape [12, 32], its "
		"share of [48, 32], is missing");
	spoil(&how, 2, "model.layers.0.self_attn.q_proj.weight", "what.is.this");
	assert_refused(
		&how,
		"rank 2: tensor 'what.is.this' is not in the qwen3_moe rules, so its division "
		"among the ranks is unknown");
	/* One of two that have the same head may lack it. */
	spoil(&how, 2, "model.layers.0.self_attn.k_proj.weight", NULL);
	assert_joined(&how);
	/* Somebody else's rank 2. */
	how.tp = 2;
	spoil(&how, 1, "", NULL);
	rename("rank1.safetensors", "rank2.safetensors");
	how.tp = 4;
	spoil(&how, 1, "", NULL);
	assert_refused(
		&how,
		"rank 2: tensor 'model.layers.0.self_attn.q_proj.weight' is [24, 32], and its "
		"share of [48, 32] at tp 4 is [12, 32]");
	how.fused = true;
	save(&how);
	spoil(&how, 3, "model.layers.0.mlp.down_proj.weight",
	      "model.layers.0.mlp.gate_up_proj.bias");
	assert_refused(
		&how,
		"rank 3: tensor 'model.layers.0.mlp.gate_up_proj.bias' is not in the qwen3_moe "
		"rules, so its division among the ranks is unknown");
	spoil(&how, 3, "model.layers.0.mlp.down_proj.weight",
	      "model.layers.0.mlp.gate_proj.weight");
	assert_refused(&how,
	               "rank 3: tensor 'model.layers.0.mlp.gate_proj.weight' is there twice: as "
	               "'model.layers.0.mlp.gate_proj.weight' and within "
	               "'model.layers.0.mlp.gate_up_proj.weight'");
	spoil(&how, 3, "model.layers.0.self_attn.qkv_proj.weight",
	      "model.layers.1.mlp.experts.gate_up_proj");
	assert_refused(&how,
	               "rank 3: tensor 'model.layers.1.mlp.experts.gate_up_proj' is [24, 32], and "
	               "model.layers.1.mlp.experts.w13_weight at tp 4 is [4, 12, 32]");
}

WITH_SHARDS(another_ep_is_noticed)
{
	struct trainer how = { .tp = 4, .ep = 2, .vocab = 128 };
	save(&how);
	how.ep = 1;
	assert_refused(
		&how,
		"rank 0: tensor 'model.layers.1.mlp.experts.0.gate_proj.weight' is [12, 32], and "
		"its share of [24, 32] at tp 4 is [6, 32]");
	how.ep = 4;
	assert_refused(
		&how,
		"rank 1: tensor 'model.layers.1.mlp.experts.0.gate_proj.weight' [12, 32] is of an "
		"expert of another rank at tp 4, ep 4");
}

/* ---- which files are whose ---- */

static void write_one(const char *path, const char *name)
{
	static struct tensors one;
	char dir[128];
	snprintf(dir, sizeof dir, "%s", path);
	for (char *slash = strchr(dir, '/'); slash; slash = strchr(slash + 1, '/')) {
		*slash = 0;
		mkdir(dir, 0700);
		*slash = '/';
	}
	tensors_free(&one);
	tensors_random(&one, name, 1, 4, 0, 0);
	tensors_write(&one, path);
	tensors_free(&one);
}

/* "a+b c": tensors of rank 0 and of rank 1. */
static void assert_ranks(const char *path, unsigned tp, const char *want)
{
	struct ws_err err = WS_ERR_INIT;
	struct ws_shards s;
	char got[256] = "";
	assert_ok(ws_shards_open(&path, 1, tp, 0, &s, &err), &err);
	for (size_t r = 0; r < s.n; r++)
		for (size_t i = 0; i < ws_source_count(s.sources[r]); i++)
			sprintf(got + strlen(got), "%s%s", i ? "+" : r ? " " : "",
			        ws_source_tensor(s.sources[r], i)->name);
	assert_string_equal(got, want);
	ws_shards_close(&s);
}

static void assert_unclear(const char *path, unsigned tp, const char *message)
{
	struct ws_err err = WS_ERR_INIT;
	struct ws_shards s;
	assert_int_equal(ws_shards_open(&path, 1, tp, 0, &s, &err), -1);
	assert_string_equal(err.msg, message);
}

WITH_SHARDS(numbers_in_names_are_ranks)
{
	write_one("a/rank_00/model.safetensors", "zero");
	write_one("a/rank_01/model.safetensors", "one");
	write_one("a/step_100/model.safetensors", "other");
	assert_ranks("a", 2, "zero one");
	assert_unclear("a", 3,
	               "a: cannot find all of the 3 ranks among rank_00, rank_01, step_100");
	write_one("b/mp_rank_00_000/x.safetensors", "a");
	write_one("b/mp_rank_00_001/x.safetensors", "b");
	write_one("b/mp_rank_01_000/x.safetensors", "c");
	write_one("b/mp_rank_01_001/x.safetensors", "d");
	assert_ranks("b", 2, "a+b c+d");
	for (int r = 0; r < 12; r++) {
		char path[64], name[16];
		snprintf(path, sizeof path, "c/model-rank-%d-part-0.safetensors", r);
		snprintf(name, sizeof name, "t%d", r);
		write_one(path, name);
	}
	assert_ranks("c", 12, "t0 t1 t2 t3 t4 t5 t6 t7 t8 t9 t10 t11");
	assert_unclear("c", 8,
	               "c: there are more than the 8 ranks among model-rank-0-part-0.safetensors, "
	               "model-rank-1-part-0.safetensors, model-rank-10-part-0.safetensors, "
	               "model-rank-11-part-0.safetensors and 8 more");
	write_one("d/shard0.safetensors", "a");
	write_one("d/shard1.safetensors", "b");
	assert_ranks("d", 2, "a b");
	write_one("e/dp0_tp1/x.safetensors", "b");
	write_one("e/dp0_tp0/x.safetensors", "a");
	assert_ranks("e", 2, "a b");
}

WITH_SHARDS(names_that_say_two_things_are_refused)
{
	write_one("a/model-00001-of-00002.safetensors", "a");
	write_one("a/model-00002-of-00002.safetensors", "b");
	assert_unclear("a", 2, "a: cannot find the 2 ranks among model-00001-of-00002.safetensors, "
	               "model-00002-of-00002.safetensors");
	write_one("b/0-1.safetensors", "a");
	write_one("b/1-0.safetensors", "b");
	assert_unclear("b", 2, "b: cannot find the 2 ranks among 0-1.safetensors, 1-0.safetensors");
	mkdir("c", 0700);
	assert_unclear("c", 2, "c: no name there has the number of one of 2 ranks");
	write_one("d/rank0.safetensors", "a");
	write_one("d/rank1/x.safetensors", "b");
	assert_unclear("d", 2,
	               "d: both files and directories may be the 2 ranks among rank0.safetensors, "
	               "rank1");
	write_one("e/rank0.safetensors", "a");
	write_one("e/1.safetensors", "b");
	assert_unclear("e", 2, "e: cannot find the 2 ranks among 1.safetensors, rank0.safetensors");
}

static void assert_paths_refused(const char *const *paths, size_t n, const char *message)
{
	struct ws_err err = WS_ERR_INIT;
	struct ws_shards s;
	assert_fails(ws_shards_open(paths, n, (unsigned)n, 0, &s, &err), &err, WS_EUSAGE, "");
	assert_string_equal(err.msg, message);
}

/* What a shell makes of rank* is joined in the wrong order without anything amiss in shapes. */
WITH_SHARDS(ranks_are_named_in_order_and_once)
{
	static const char *const sorted[] = { "o/rank1", "o/rank10", "o/rank2" };
	static const char *const twice[] = { "o/rank1", "o/rank1" };
	static const char *const apart[] = { "o/rank1", "o/rank2", "o/copy" };
	static const char *const right[] = { "o/rank2", "o/rank010", "o/rank11" };
	struct ws_err err = WS_ERR_INIT;
	struct ws_shards s;
	write_one("o/rank1/x.safetensors", "a");
	write_one("o/rank2/x.safetensors", "b");
	write_one("o/rank010/x.safetensors", "c");
	write_one("o/rank11/x.safetensors", "d");
	assert_paths_refused(
		sorted, 3,
		"shards are not in the order of their numbers: o/rank10 comes before o/rank2");
	assert_paths_refused(twice, 2, "ranks 0 and 1 are the same: o/rank1");
	assert_int_equal(symlink("rank1", "o/copy"), 0);
	assert_paths_refused(apart, 3, "ranks 0 and 2 are the same: o/copy");
	assert_ok(ws_shards_open(right, 3, 3, 0, &s, &err), &err);
	ws_shards_close(&s);
}

WITH_SHARDS(manifests_say_it_all)
{
	struct ws_err err = WS_ERR_INIT;
	struct ws_shards s;
	const char *path = "m/shards.json";
	write_one("m/x/one.safetensors", "a");
	write_one("m/x/two.safetensors", "b");
	write_one("m/y.safetensors", "c");
	put_text(path,
	           "{\"tp\":2,\"ep\":2,\"shards\":[[\"x/one.safetensors\",\"x/two.safetensors\"],"
	           "\"y.safetensors\"]}");
	assert_ranks(path, 2, "a+b c");
	put_text("m/config.json", "{}");
	assert_int_equal(ws_shards_open(&path, 1, 0, 0, &s, &err), 0);
	assert_int_equal(s.tp, 2);
	assert_int_equal(s.ep, 2);
	assert_string_equal(s.config_dir, "m");
	ws_shards_close(&s);
	ws_shards_close(NULL);
	assert_unclear(path, 4, "m/shards.json: the checkpoint was saved with tp 2, not 4");
	static const struct { const char *text, *message; } bad[] = {
		{ "{\"tp\":2}", "m/shards.json: no list of \"shards\" in this manifest" },
		{ "{\"tp\":0,\"shards\":[]}",
		  "m/shards.json: \"tp\" is no number from 1 to 65536" },
		{ "{\"tp\":2,\"shards\":[[\"y\"]]}", "m/shards.json: 1 shards of 2 ranks" },
		{ "{\"shards\":[]}", "m/shards.json: 0 shards of 0 ranks" },
		{ "{\"shards\":[[]]}", "m/shards.json: rank 0 has no list of files" },
		{ "{\"shards\":[[1]]}", "m/shards.json: shard '' of rank 0 is no string" },
		{ "{\"shards\":[\"/etc/passwd\"]}",
		  "m/shards.json: shard '/etc/passwd' of rank 0 is no path below the manifest" },
		{ "{\"shards\":[\"x/../../y\"]}",
		  "m/shards.json: shard 'x/../../y' of rank 0 is no path below the manifest" },
		{ "{\"shards\":[\"a\\u0007\"]}",
		  "m/shards.json: shard 'a?' of rank 0 has a control or hidden character" },
		{ "{\"shards\":[\"y.safetensors\",\"z.safetensors\"]}",
		  "rank 1: open m/z.safetensors: No such file or directory" },
	};
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
		put_text(path, bad[i].text);
		assert_unclear(path, 0, bad[i].message);
	}
}

RUN_TESTS(NULL, NULL)
