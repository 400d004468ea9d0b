/* SPDX-License-Identifier: Apache-2.0 */
/* receive_weights_ep_scatter: two trainers, each with half of the experts, and
 * an endpoint of two ranks. */
#include "serve_rank0.h"

#include "gloo.h"
#include "scratch.h"
#include "serve_model.h"

enum { TRAINERS = 2, TP = 2, EXPERTS = 8, MOST = 64 };

static const char config[] =
	"{\"architectures\":[\"Qwen3MoeForCausalLM\"],\"model_type\":\"qwen3_moe\","
	"\"torch_dtype\":\"bfloat16\",\"hidden_size\":32,\"intermediate_size\":64,\"num_hidden_"
        "layers\":3,"
	"\"num_attention_heads\":8,\"num_key_value_heads\":4,\"head_dim\":4,\"vocab_size\":64,"
	"\"num_experts\":8,\"num_experts_per_tok\":2,\"moe_intermediate_size\":16,"
	"\"mlp_only_layers\":[0],\"decoder_sparse_step\":1,\"tie_word_embeddings\":false}";

static const char *const experts[] = {
	"model.layers.2.mlp.experts.w13_weight", "model.layers.1.mlp.experts.w13_weight",
	"model.layers.2.mlp.experts.w2_weight", "model.layers.1.mlp.experts.w2_weight",
};
static const char *const others[] = {
	"model.norm.weight",
	"model.layers.0.self_attn.qkv_proj.weight",
	"model.layers.0.mlp.down_proj.weight",
};

/* Byte i of a parameter as a rank should have it. */
static uint8_t byte_of(size_t param, unsigned rank, uint64_t i)
{
	return (uint8_t)(i * 7 + (i >> 8) + param * 13 + rank * 101 + 1);
}

struct sent {
	size_t param;
	unsigned rank;
	uint64_t from;
	struct ws_span span;
};

static int fill_param(void *ctx, uint64_t at, void *dst, size_t n, struct ws_err *err)
{
	const struct sent *p = ctx;
	(void)err;
	for (size_t i = 0; i < n; i++)
		((uint8_t *)dst)[i] = byte_of(p->param, p->rank, p->from + at + i);
	return 0;
}

struct trainer {
	unsigned rank;
	int rc;
	struct ws_err err;
	pthread_t thread;
	struct ws_gloo_transfer list[MOST];
	struct sent sent[MOST];
	size_t n;
};

static void add(struct trainer *t, const char *name, unsigned parts, unsigned part)
{
	const struct ws_serve_model *m = serve->model;
	const struct ws_param *p = ws_layout_find_param(m->layout, name);
	const size_t param = (size_t)(p - ws_layout_param(m->layout, 0));
	for (unsigned r = 0; r < TP; r++) {
		struct sent *s = &t->sent[t->n];
		const uint64_t piece = ws_serve_model_bytes(m, param, r) / parts;
		*s = (struct sent){ param, r, part * piece, { 0 } };
		s->span =
			(struct ws_span){ .length = piece, .fd = -1, .fill = fill_param, .ctx = s };
		t->list[t->n++] = (struct ws_gloo_transfer){ .peer = TRAINERS + r,
			                                     .payload = { piece, &s->span, 1 } };
	}
}

static int scatter_send(struct trainer *t, struct ws_gloo *mesh)
{
	for (size_t i = 0; i < 4; i++)
		add(t, experts[i], TRAINERS, t->rank);
	for (size_t i = 0; t->rank == 0 && i < 3; i++)
		add(t, others[i], 1, 0);
	return ws_gloo_exchange(mesh, t->list, t->n, soon(), &cancel, &t->err);
}

static void *train(void *arg)
{
	struct trainer *t = arg;
	struct ws_gloo *mesh = NULL;
	const struct ws_gloo_kv kv = ws_gloo_kv_store(store);
	const struct ws_gloo_opts go = {
		.rank = t->rank, .size = TRAINERS + TP, .prefix = "/s/s//cpu//0/", .kv = &kv,
		.host = "127.0.0.1",
	};
	t->rc = ws_gloo_open(&go, soon(), &cancel, &mesh, &t->err);
	if (t->rc == 0)
		t->rc = scatter_send(t, mesh);
	ws_gloo_close(mesh);
	return NULL;
}

static void start_model(enum ws_serve_keep keep)
{
	struct ws_err err = WS_ERR_INIT;
	put_text("config.json", config);
	const struct ws_serve_opts o = { .listen = "127.0.0.1:0",
		                         .tp = TP,
		                         .model = ".",
		                         .keep = keep,
		                         .lineage = WS_SERVE_XORL_LEGACY,
		                         .receive_ns = 8 * WS_NS_PER_S,
		                         .init_ns = 8 * WS_NS_PER_S };
	if (ws_serve_start(&o, &serve, &err))
		fail_msg("%s", err.msg);
	const struct ws_store_opts so = { .host = "127.0.0.1",
		                          .world_size = TRAINERS + TP,
		                          .group = "s" };
	if (ws_store_open(&so, &store, &err))
		fail_msg("%s", err.msg);
}

/* The names fit into the body of a post. */
static void begin_call(struct post *p)
{
	char names[512];
	int n = 0;
	for (size_t i = 0; i < 7; i++)
		n += snprintf(names + n, sizeof names - (size_t)n, "%s\"%s\"", i ? "," : "",
		              i < 4 ? experts[i] : others[i - 4]);
	begin(p, "POST", "/receive_weights_ep_scatter",
	      "{\"weight_names\":[%s],\"group_name\":\"s\",\"training_world_size\":2,"
	      "\"num_experts_per_rank\":4,\"master_address\":\"127.0.0.1\",\"master_port\":%u}",
	      names, (unsigned)ws_store_port(store));
}

static void assert_param(const char *name)
{
	const struct ws_serve_model *m = serve->model;
	const struct ws_param *p = ws_layout_find_param(m->layout, name);
	const size_t param = (size_t)(p - ws_layout_param(m->layout, 0));
	for (unsigned r = 0; r < TP; r++) {
		const uint8_t *at = ws_serve_model_at(m, param, r);
		const uint64_t n = ws_serve_model_bytes(m, param, r);
		assert_true(n > 0);
		for (uint64_t i = 0; i < n; i++)
			if (at[i] != byte_of(param, r, i))
				fail_msg("%s, rank %u, byte %llu", name, r, (unsigned long long)i);
	}
}

static char *dir;

static int enter(void **state)
{
	void *scratch = NULL;
	if (set_up(state) || scratch_enter(&scratch))
		return -1;
	dir = scratch;
	return 0;
}

static int leave(void **state)
{
	void *scratch = dir;
	return tear_down(state) || scratch_leave(&scratch) ? -1 : 0;
}

#define SCATTER_TEST(name) TEST_BETWEEN(name, enter, leave)

/* With plans see push-protocols.bats and test_endpoint_torch.py. */
SCATTER_TEST(without_plans_experts_are_cut_evenly)
{
	struct trainer trainers[TRAINERS];
	struct post p;
	start_model(WS_KEEP_MEMORY);
	begin_call(&p);
	for (unsigned r = 0; r < TRAINERS; r++) {
		trainers[r] = (struct trainer){ .rank = r };
		assert_int_equal(pthread_create(&trainers[r].thread, NULL, train, &trainers[r]), 0);
	}
	for (unsigned r = 0; r < TRAINERS; r++) {
		pthread_join(trainers[r].thread, NULL);
		if (trainers[r].rc)
			print_error("trainer %u: %s\n", r, trainers[r].err.msg);
	}
	end(&p, 200, "Updated 7 params in-place from 2 EP ranks (2-phase batched)");
	for (size_t i = 0; i < 4; i++)
		assert_param(experts[i]);
	for (size_t i = 0; i < 3; i++)
		assert_param(others[i]);
	assert_int_equal(serve->journal.updates, 1);
	assert_int_equal(serve->journal.tensors, 7);
	assert_true(serve->model->n_loaded > 4 * EXPERTS);
}

SCATTER_TEST(requests_are_checked_before_anybody_is_waited_for)
{
	static const struct {
		const char *body, *says;
	} rows[] = {
		{ "{}", "body.weight_names: Field required" },
		{ "{\"weight_names\":[1]}", "body.weight_names: Input should be a valid string" },
		{ "{\"weight_names\":[],\"training_world_size\":0}", "body.training_world_size" },
		{ "{\"weight_names\":[],\"expert_transfer_plan\":{}}",
		  "Input should be a valid list" },
		{ "{\"weight_names\":[],\"expert_transfer_plan\":[{\"weight_name\":"
		  "\"model.layers.1.mlp.experts.w2_weight\"}]}",
		  "body.expert_ranges: Field required" },
		{ "{\"weight_names\":[],\"expert_transfer_plan\":[{\"weight_name\":"
		  "\"model.layers.1.mlp.experts.w2_weight\",\"expert_ranges\":{\"0\":{\"start\":0,"
		  "\"end\":4,"
		  "\"source_nccl_rank\":8}}}]}",
		  "body.source_nccl_rank" },
		{ "{\"weight_names\":[],\"non_expert_transfer_plan\":[{\"weight_name\":\"model."
		  "norm.weight\","
		  "\"source_nccl_rank\":-1}]}",
		  "no such training rank" },
		{ "{\"weight_names\":[\"model.norm.weight\"]}",
		  "master_address and master_port are needed" },
	};
	start_model(WS_KEEP_MEMORY);
	for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
		post("/receive_weights_ep_scatter", rows[i].body, 400, rows[i].says);
}

SCATTER_TEST(without_parameters_nothing_can_be_received)
{
	start_model(WS_KEEP_HASH);
	post("/receive_weights_ep_scatter", "{\"weight_names\":[]}", 400, "has no parameters");
}

RUN_TESTS(NULL, NULL)
