/* SPDX-License-Identifier: Apache-2.0 */
#include "synthetic.h"

#include "checkpoint.h"
#include "wsync/tool/str.h"

#include <stdlib.h>
#include <string.h>

struct count {
	size_t tensors, text;
};

static void count(void *ctx, const char *name, enum ws_dtype dtype, unsigned n_dims,
                  const int64_t *dims)
{
	struct count *c = ctx;
	(void)dtype, (void)n_dims, (void)dims;
	c->tensors++;
	c->text += strlen(name) + 1;
}

struct fill {
	struct ws_synthetic *syn;
	uint64_t seed;
	char *text;    /* place of the next name */
	uint64_t at;   /* offset of the next tensor */
};

static void fill(void *ctx, const char *name, enum ws_dtype dtype, unsigned n_dims,
                 const int64_t *dims)
{
	struct fill *f = ctx;
	const size_t len = strlen(name) + 1, i = f->syn->n++;
	struct ws_tensor *t = &f->syn->tensors[i];
	*t = (struct ws_tensor){
		.name = memcpy(f->text, name, len),
		.dtype = dtype,
		.n_dims = n_dims,
		.offset = f->at,
	};
	memcpy(t->dims, dims, n_dims * sizeof *dims);
	(void)ws_dtype_bytes(dtype, t->n_dims, t->dims, &t->bytes);
	f->syn->streams[i] = ws_stream_make(f->seed, name, dtype);
	f->text += len;
	f->at += t->bytes;
}

/* Splits "MODEL[:SEED]". */
static int parse(const char *spec, const struct ws_model **model, uint64_t *seed,
                 struct ws_err *err)
{
	const char *colon = strchr(spec, ':');
	char *name = colon ? strndup(spec, (size_t)(colon - spec)) : strdup(spec);
	if (!name)
		return ws_oom(err);
	*model = ws_model_find(name, err);
	free(name);
	*seed = 0;
	if (!*model)
		return -1;
	return colon ? ws_parse_uint(colon + 1, 0, UINT64_MAX, "SEED", seed, err) : 0;
}

int ws_synthetic_make(const char *spec, struct ws_synthetic *out, struct ws_err *err)
{
	const struct ws_model *model = NULL;
	struct ws_synthetic syn = WS_SYNTHETIC_INIT;
	struct fill f = { .syn = &syn };
	struct count c = { 0 };
	if (parse(spec, &model, &f.seed, err))
		return -1;
	ws_model_walk(model, count, &c);
	syn.tensors = calloc(c.tensors, sizeof *syn.tensors);
	syn.streams = calloc(c.tensors, sizeof *syn.streams);
	f.text = syn.names = malloc(c.text);
	if (!syn.tensors || !syn.streams || !syn.names) {
		ws_synthetic_free(&syn);
		return ws_oom(err);
	}
	ws_model_walk(model, fill, &f);
	*out = syn;
	return 0;
}

void ws_synthetic_free(struct ws_synthetic *syn)
{
	if (!syn)
		return;
	free(syn->tensors);
	free(syn->streams);
	free(syn->names);
	*syn = (struct ws_synthetic)WS_SYNTHETIC_INIT;
}

int ws_synthetic_config(const char *model, struct ws_buf *out, struct ws_err *err)
{
	const struct ws_model *m = ws_model_find(model, err);
	return m ? ws_model_config(m, out, err) : -1;
}

const char *ws_synthetic_name(size_t i)
{
	const struct ws_model *model = ws_model_at(i);
	return model ? model->name : NULL;
}
