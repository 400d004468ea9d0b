/* SPDX-License-Identifier: Apache-2.0 */
/* trainer_lists.h - the lists of tests/data/names as files, under the names that trainers use.
 *
 * What is fused is only added up: names and shapes are true, and there are no bytes. */
#ifndef WS_TESTS_TRAINER_LISTS_H
#define WS_TESTS_TRAINER_LISTS_H

#include "golden_layout.h"
#include "tensor_file.h"

static const struct model {
	const char *name;
	unsigned ep;              /* at 8 ranks */
	int64_t experts;          /* that a trainer may stack; 0: none, or stacked already */
} models[] = {
	{ "qwen3-0.6b", 1, 0 }, { "qwen3-30b-a3b", 1, 128 }, { "qwen3-30b-a3b-fp8", 4, 128 },
	{ "qwen1.5-moe-a2.7b", 2, 60 }, { "llama-3.1-8b", 1, 0 }, { "mistral-7b-v0.3", 1, 0 },
	{ "deepseek-v2-lite", 8, 64 }, { "deepseek-v3", 1, 256 }, { "deepseek-v3.2", 8, 256 },
	{ "kimi-k2", 8, 384 }, { "glm-4.5-air", 1, 128 }, { "gpt-oss-20b", 2, 0 },
	{ "gpt-oss-20b-bf16", 1, 0 }, { "qwen2.5-7b", 1, 0 },
};
enum { N_MODELS = sizeof models / sizeof models[0], LAYERS = GOLDEN_LAYERS };

static const struct model *find_model(const char *name)
{
	for (size_t i = 0; i < N_MODELS; i++)
		if (strcmp(models[i].name, name) == 0)
			return &models[i];
	fail_msg("no model %s", name);
	return NULL;
}

/* What a trainer calls the tensors whose names end so; {e} is an expert. Those that get the same
 * name are one tensor, their rows one below the other. */
struct saying {
	const char *end, *said;
};

struct trainer {
	const char *prefix, *layers; /* "module.", "decoder.layers" */
	const struct saying *sayings; /* ended by a NULL end */
	bool turned;              /* stacked experts have their input first */
};

struct tensor {
	char name[320], dtype[16];
	unsigned n_dims;
	int64_t dims[WS_MAX_DIMS];
	bool stacked;
};

struct list {
	const struct model *model;
	const struct trainer *trainer;
	int layers, depth;        /* those of the model; those wanted, 0: all */
	struct tensor *t;
	size_t n, cap;
};

/* Where the ending begins in name; NULL: it ends otherwise. */
static const char *find_end(const char *name, const char *end)
{
	const char *mark = strstr(end, "{e}"), *tail = mark ? mark + 3 : end;
	if (strlen(name) < strlen(tail))
		return NULL;
	const char *at = name + strlen(name) - strlen(tail);
	if (strcmp(at, tail) != 0 || !mark)
		return strcmp(at, tail) == 0 ? at : NULL;
	while (at > name && at[-1] >= '0' && at[-1] <= '9')
		at--;
	const size_t head = (size_t)(mark - end);
	return (size_t)(at - name) >= head && memcmp(at - head, end, head) == 0 ? at - head : NULL;
}

static const struct saying *find_saying(const struct trainer *t, const char *name, const char **at)
{
	for (const struct saying *s = t->sayings; s && s->end; s++)
		if ((*at = find_end(name, s->end)))
			return s;
	*at = name + strlen(name);
	return NULL;
}

/* The layer's number in a model of fewer layers, whose next-token layers are behind; -1: not
 * there. */
static int place_layer(const struct list *l, int layer)
{
	if (!l->depth || layer < l->depth)
		return layer;
	return layer < l->layers ? -1 : layer - l->layers + l->depth;
}

static struct tensor *find_or_add(struct list *l, const char *name)
{
	for (size_t i = l->n; l->trainer->sayings && i-- > 0;)
		if (strcmp(l->t[i].name, name) == 0)
			return &l->t[i];
	if (l->n == l->cap) {
		l->cap = l->cap ? l->cap * 2 : 1024;
		l->t = realloc(l->t, l->cap * sizeof *l->t);
		assert_non_null(l->t);
	}
	struct tensor *t = &l->t[l->n++];
	*t = (struct tensor){ 0 };
	snprintf(t->name, sizeof t->name, "%s", name);
	return t;
}

static bool add_tensor(void *ctx, const struct golden_name *g)
{
	struct list *l = ctx;
	char name[320], layers[64] = "";
	const char *rest = g->name, *at;
	int layer = 0, n = 0;
	if (sscanf(g->name, "model.layers.%d%n", &layer, &n) == 1 && n) {
		layer = place_layer(l, layer);
		if (layer < 0)
			return true;
		snprintf(layers, sizeof layers, "%s.%d", l->trainer->layers, layer);
		rest += n;
	}
	const struct saying *s = find_saying(l->trainer, rest, &at);
	snprintf(name, sizeof name, "%s%s%.*s%s", l->trainer->prefix, layers, (int)(at - rest),
	         rest, s ? s->said : "");
	struct tensor *t = find_or_add(l, name);
	const int64_t rows = t->dims[0];
	t->n_dims = g->n_dims;
	memcpy(t->dims, g->dims, sizeof t->dims);
	t->dims[0] += rows;
	t->stacked = s && strstr(s->end, "{e}");
	snprintf(t->dtype, sizeof t->dtype, "%s", g->dtype);
	return true;
}

static bool add_line(char *line, void *ctx)
{
	return golden_line(line, add_tensor, ctx);
}

/* [experts * rows, columns] to [experts, rows, columns], or its other form. */
static void stack_tensor(const struct list *l, struct tensor *t)
{
	const int64_t rows = t->dims[0] / l->model->experts, cols = t->dims[1];
	t->n_dims = 3;
	t->dims[0] = l->model->experts;
	t->dims[1] = l->trainer->turned ? cols : rows;
	t->dims[2] = l->trainer->turned ? rows : cols;
}

static void write_list(const struct model *m, const struct trainer *trainer, int depth,
                       const char *path)
{
	char file[128];
	int64_t layers;
	struct list l = { .model = m, .trainer = trainer, .depth = depth };
	struct ws_config *config = read_config(m->name, 0);
	assert_true(ws_config_int(config, "num_hidden_layers", &layers));
	ws_config_free(config);
	l.layers = (int)layers;
	snprintf(file, sizeof file, "%s.hf", m->name);
	assert_true(golden_each(file, add_line, &l));
	struct tensor_file out = tensor_file_begin(path);
	for (size_t i = 0; i < l.n; i++) {
		if (l.t[i].stacked)
			stack_tensor(&l, &l.t[i]);
		enum ws_dtype dtype;
		assert_true(ws_dtype_from_safetensors(l.t[i].dtype, &dtype));
		tensor_file_add(&out, l.t[i].name, dtype, l.t[i].n_dims, l.t[i].dims);
	}
	tensor_file_end(&out);
	free(l.t);
}

#endif
