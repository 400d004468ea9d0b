/* SPDX-License-Identifier: Apache-2.0 */
/* For every family: what the layout divides among ranks is joined again, under the names of the
 * checkpoint and under those of the server. Divided here element by element, by the layout's
 * boxes. */
#include "scratch.h"
#include "tensor_file.h"
#include "test.h"
#include "wsync/tool/catalog.h"

enum { MAX_TP = 8 };

struct model {
	const char *title, *config;
	unsigned tp, ep;
};

/* ---- tensors ---- */

struct tensor {
	const char *name;
	enum ws_dtype dtype;
	unsigned n;
	int64_t dims[WS_MAX_DIMS];
	uint8_t *bytes;
};

static uint64_t size_of(const struct tensor *t)
{
	uint64_t bytes;
	assert_true(ws_dtype_bytes(t->dtype, t->n, t->dims, &bytes));
	return bytes;
}

static struct tensor make(const char *name, enum ws_dtype dtype, unsigned n, const int64_t *dims)
{
	struct tensor t = { .name = name, .dtype = dtype, .n = n };
	memcpy(t.dims, dims, n * sizeof *dims);
	t.bytes = calloc(1, size_of(&t) + 1);
	assert_non_null(t.bytes);
	return t;
}

static struct tensor random_tensor(const struct ws_part *p)
{
	struct tensor t = make(p->name, p->exact ? p->dtype : WS_DTYPE_BF16, p->n_dims, p->dims);
	uint64_t x = 0x9e3779b97f4a7c15u;
	for (const char *s = p->name; *s; s++)
		x = (x ^ (uint64_t)*s) * 1099511628211u;
	for (uint64_t i = 0; i < size_of(&t); i++) {
		x = x * 6364136223846793005u + 1442695040888963407u;
		t.bytes[i] = (uint8_t)(x >> 33);
	}
	return t;
}

static uint8_t *element(const struct tensor *t, const int64_t *at)
{
	uint64_t i = 0;
	for (unsigned d = 0; d < t->n; d++) {
		assert_true(at[d] >= 0 && at[d] < t->dims[d]);
		i = i * (uint64_t)t->dims[d] + (uint64_t)at[d];
	}
	return t->bytes + i * (ws_dtype_bits(t->dtype) / 8);
}

/* The index of element i of a box, counted in row-major order; with swapped last axes. */
static void index_of(const struct ws_box *b, uint64_t i, bool swapped, int64_t *at)
{
	for (unsigned k = b->n_dims; k-- > 0;) {
		unsigned d = k;
		if (swapped && k + 2 >= b->n_dims)
			d = 2 * b->n_dims - 3 - k;
		at[d] = b->at[d] + (int64_t)(i % (uint64_t)b->size[d]);
		i /= (uint64_t)b->size[d];
	}
}

static uint64_t count(const struct ws_box *b)
{
	uint64_t n = 1;
	for (unsigned d = 0; d < b->n_dims; d++)
		n *= (uint64_t)b->size[d];
	return n;
}

static void copy_box(const struct tensor *to, const struct ws_box *b, bool swapped,
                     const struct tensor *from, const struct ws_box *a)
{
	assert_true(count(a) == count(b));
	for (uint64_t i = 0; i < count(a); i++) {
		int64_t x[WS_MAX_DIMS], y[WS_MAX_DIMS];
		index_of(a, i, false, x);
		index_of(b, i, swapped, y);
		memcpy(element(to, y), element(from, x), ws_dtype_bits(from->dtype) / 8);
	}
}

static void write_file(const char *path, const struct tensor *v, size_t n)
{
	struct tensor_file out = tensor_file_begin(path);
	for (size_t i = 0; i < n; i++)
		tensor_file_add(&out, v[i].name, v[i].dtype, v[i].n, v[i].dims);
	tensor_file_data(&out);
	for (size_t i = 0; i < n; i++)
		fwrite(v[i].bytes, 1, size_of(&v[i]), out.f);
	tensor_file_end(&out);
}

/* ---- dividing ---- */

static struct ws_namemap *maps;
static struct ws_config *config;
static const struct ws_family *family;
static struct ws_layout *layout;
static struct tensor *whole;  /* by part */

static bool is_empty(const struct ws_box *b)
{
	return b->n_dims > 0 && count(b) == 0;
}

/* Under the names of the checkpoint, what a rank has of each. */
static size_t divide_parts(unsigned rank, struct tensor *out)
{
	size_t n = 0;
	for (size_t i = 0; i < ws_layout_part_count(layout); i++) {
		const struct ws_part *p = ws_layout_part(layout, i);
		struct ws_box from, to, all = { .n_dims = p->n_dims };
		ws_layout_place(layout, p, rank, &from, &to);
		if (is_empty(&from))
			continue;
		memcpy(all.size, from.size, sizeof all.size);
		out[n] = make(p->name, whole[i].dtype, p->n_dims, from.size);
		copy_box(&out[n++], &all, false, &whole[i], &from);
	}
	return n;
}

/* Under those of the server: each parameter as it is at that rank. */
static size_t divide_params(unsigned rank, struct tensor *out)
{
	size_t n = 0;
	for (size_t i = 0; i < ws_layout_param_count(layout); i++) {
		const struct ws_param *q = ws_layout_param(layout, i);
		int64_t dims[WS_MAX_DIMS];
		if (q->n_parts == 0)
			continue;
		ws_layout_dims(layout, q, rank, dims);
		out[n] = make(q->name, whole[q->first].dtype, q->n_dims, dims);
		for (size_t k = q->first; k < q->first + q->n_parts; k++) {
			const struct ws_part *p = ws_layout_part(layout, k);
			struct ws_box from, to;
			ws_layout_place(layout, p, rank, &from, &to);
			if (!is_empty(&from))
				copy_box(&out[n], &to, p->transposed, &whole[k], &from);
		}
		n++;
	}
	return n;
}

static void save(unsigned tp, bool params)
{
	struct tensor *v = calloc(ws_layout_part_count(layout) + 1, sizeof *v);
	assert_non_null(v);
	for (unsigned r = 0; r < tp; r++) {
		char path[32];
		const size_t n = params ? divide_params(r, v) : divide_parts(r, v);
		snprintf(path, sizeof path, "%u.safetensors", r);
		write_file(path, v, n);
		for (size_t i = 0; i < n; i++)
			free(v[i].bytes);
	}
	free(v);
}

/* ---- joining ---- */

static void check_item(const struct model *m, const struct ws_catalog *c, const struct tensor *want)
{
	struct ws_err err = WS_ERR_INIT;
	const struct ws_item *item = ws_catalog_find(c, want->name);
	if (!item)
		fail_msg("%s: no %s", m->title, want->name);
	assert_int_equal(item->n_dims, want->n);
	for (unsigned d = 0; d < want->n; d++)
		assert_int_equal(item->dims[d], want->dims[d]);
	assert_int_equal(item->bytes, size_of(want));
	uint8_t *got = malloc(item->bytes + 1);
	assert_non_null(got);
	assert_int_equal(ws_item_read(item, 0, got, item->bytes, &err), 0);
	if (memcmp(got, want->bytes, item->bytes) != 0)
		fail_msg("%s at tp %u, ep %u: %s (%s) has other bytes", m->title, m->tp, m->ep,
		         want->name, item->derivation ? item->derivation : "as it is");
	free(got);
}

static void check_joined(const struct model *m)
{
	struct ws_err err = WS_ERR_INIT;
	struct ws_source *sources[MAX_TP];
	struct ws_catalog *c = NULL;
	for (unsigned r = 0; r < m->tp; r++) {
		char path[32];
		const char *paths[] = { path };
		snprintf(path, sizeof path, "%u.safetensors", r);
		if (ws_source_open(paths, 1, &sources[r], &err))
			fail_msg("%s: %s", m->title, err.msg);
	}
	const struct ws_catalog_opts opts = { .family = family, .sharded = layout };
	if (ws_catalog_make((const struct ws_source *const *)sources, m->tp, &opts, &c, &err))
		fail_msg("%s at tp %u, ep %u: %s", m->title, m->tp, m->ep, err.msg);
	assert_int_equal(ws_catalog_count(c), ws_layout_part_count(layout));
	for (size_t i = 0; i < ws_layout_part_count(layout); i++)
		check_item(m, c, &whole[i]);
	ws_catalog_free(c);
	for (unsigned r = 0; r < m->tp; r++)
		ws_source_close(sources[r]);
}

static void check_model(const struct model *m)
{
	const struct ws_layout_opts opts = { .tp = m->tp, .ep = m->ep };
	struct ws_err err = WS_ERR_INIT;
	assert_ok(ws_config_parse(m->config, strlen(m->config), m->title, &config, &err), &err);
	family = ws_namemap_find(maps, config);
	assert_non_null(family);
	assert_ok(ws_layout_make(family, config, &opts, &layout, &err), &err);
	const size_t n = ws_layout_part_count(layout);
	whole = calloc(n + 1, sizeof *whole);
	assert_non_null(whole);
	for (size_t i = 0; i < n; i++)
		whole[i] = random_tensor(ws_layout_part(layout, i));
	for (int params = 0; params < 2; params++) {
		save(m->tp, params);
		check_joined(m);
	}
	for (size_t i = 0; i < n; i++)
		free(whole[i].bytes);
	free(whole);
	ws_layout_free(layout);
	ws_config_free(config);
}

#define LLAMA                                                                                      \
	"{\"model_type\":\"llama\",\"hidden_size\":16,\"intermediate_size\":24,\"num_hidden_"      \
	"layers\":1,"                                                                              \
	"\"num_attention_heads\":8,\"num_key_value_heads\":2,\"vocab_size\":70}"
#define GLM                                                                                        \
	"{\"model_type\":\"glm4_moe\",\"hidden_size\":16,\"intermediate_size\":24,"                \
	"\"moe_intermediate_size\":8,\"num_hidden_layers\":2,\"num_attention_heads\":8,"           \
	"\"num_key_value_heads\":4,\"head_dim\":4,\"n_routed_experts\":4,\"n_shared_experts\":1,"  \
	"\"first_k_dense_replace\":1,\"vocab_size\":70,\"attention_bias\":true,\"use_qk_norm\":"   \
	"true}"
#define DEEPSEEK                                                                                   \
	"{\"model_type\":\"deepseek_v3\",\"hidden_size\":256,\"intermediate_size\":512,"           \
	"\"moe_intermediate_size\":512,\"num_hidden_layers\":2,\"num_attention_heads\":8,\"q_"     \
	"lora_rank\":128,"                                                                         \
	"\"kv_lora_rank\":64,\"qk_nope_head_dim\":64,\"qk_rope_head_dim\":64,\"v_head_dim\":64,"   \
	"\"n_routed_experts\":4,\"n_shared_experts\":1,\"first_k_dense_replace\":1,\"vocab_"       \
	"size\":70,"                                                                               \
	"\"quantization_config\":{\"quant_method\":\"fp8\",\"weight_block_size\":[128,128]}}"
#define GPT_OSS                                                                                    \
	"{\"model_type\":\"gpt_oss\",\"hidden_size\":64,\"intermediate_size\":160,"                \
	"\"num_hidden_layers\":1,\"num_attention_heads\":8,\"num_key_value_heads\":4,\"head_"      \
	"dim\":8,"                                                                                 \
	"\"num_local_experts\":4,\"vocab_size\":70%s}"
#define MXFP4 ",\"quantization_config\":{\"quant_method\":\"mxfp4\"}"

SCRATCH_TEST(what_a_layout_divides_is_joined)
{
	char bf16[512], mxfp4[512];
	struct ws_err err = WS_ERR_INIT;
	assert_ok(ws_namemap_open(NULL, &maps, &err), &err);
	snprintf(bf16, sizeof bf16, GPT_OSS, "");
	snprintf(mxfp4, sizeof mxfp4, GPT_OSS, MXFP4);
	const struct model models[] = {
		{ "llama", LLAMA, 1, 1 },
		{ "llama", LLAMA, 4, 1 },
		{ "llama", LLAMA, 8, 1 },
		{ "glm", GLM, 2, 1 },
		{ "glm", GLM, 8, 2 },
		{ "glm", GLM, 4, 4 },
		{ "deepseek", DEEPSEEK, 1, 1 },
		{ "deepseek", DEEPSEEK, 2, 1 },
		{ "deepseek", DEEPSEEK, 4, 4 },
		{ "deepseek", DEEPSEEK, 4, 2 },
		{ "gpt-oss", bf16, 2, 1 },
		{ "gpt-oss", bf16, 4, 4 },
		{ "gpt-oss in mxfp4", mxfp4, 1, 1 },
		{ "gpt-oss in mxfp4", mxfp4, 2, 1 },
		{ "gpt-oss in mxfp4", mxfp4, 4, 1 },
		{ "gpt-oss in mxfp4", mxfp4, 4, 4 },
	};
	for (size_t i = 0; i < sizeof models / sizeof models[0]; i++)
		check_model(&models[i]);
	ws_namemap_close(maps);
}

RUN_TESTS(NULL, NULL)
