/* SPDX-License-Identifier: Apache-2.0 */
/* input.c - opens an input as a whole: sources, config, rules, layouts, catalog, transform. */
#include "wsync/tool/input.h"

#include "synthetic.h"
#include "transform_core.h"
#include "wsync/tool/shards.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- sources ---- */

/* *config_dir: the caller frees it; NULL: the sources' directory. */
static int open_shards(struct ws_input *in, const struct ws_input_opts *o, char **config_dir,
                       struct ws_err *err)
{
	struct ws_shards shards;
	const struct ws_source_opts opts = { .memory = o->memory, .cancel = o->cancel };
	if (ws_shards_open_with(&opts, o->paths, o->n_paths, o->sharded_tp, o->sharded_ep, &shards,
	                        err))
		return -1;
	in->sources = shards.sources;
	in->n_sources = shards.n;
	in->sharded_tp = shards.tp;
	in->sharded_ep = shards.ep;
	*config_dir = shards.config_dir;
	return 0;
}

static int open_sources(struct ws_input *in, const struct ws_input_opts *o, char **config_dir,
                        struct ws_err *err)
{
	if (o->sharded_tp)
		return open_shards(in, o, config_dir, err);
	in->sources = calloc(1, sizeof *in->sources);
	if (!in->sources)
		return ws_oom(err);
	const struct ws_source_opts opts = { .memory = o->memory, .cancel = o->cancel };
	if (o->n_paths && ws_source_open_with(&opts, o->paths, o->n_paths, &in->sources[0], err))
		return -1;
	in->n_sources = o->n_paths > 0;
	return 0;
}

/* ---- config ---- */

/* source: synthetic:MODEL or synthetic:MODEL:SEED. */
static int open_synthetic_config(const char *source, struct ws_config **out, struct ws_err *err)
{
	char name[128];
	struct ws_buf text;
	const char *model = strchr(source, ':') + 1;
	snprintf(name, sizeof name, "%.*s", (int)strcspn(model, ":"), model);
	const struct ws_model *m = ws_model_find(name, err);
	if (!m)
		return -1;
	ws_buf_init(&text, 0);
	int rc = ws_model_config(m, &text, err);
	if (!rc)
		rc = ws_config_parse(text.data, text.len, source, out, err);
	ws_buf_free(&text);
	return rc;
}

int ws_source_config(const struct ws_source *s, struct ws_config **out, struct ws_err *err)
{
	static const char scheme[] = "synthetic:";
	const char *dir = ws_source_config_dir(s);
	const char *name = ws_source_file_name(s, 0);
	*out = NULL;
	if (dir)
		return ws_config_open(dir, out, err);
	if (name && !strncmp(name, scheme, sizeof scheme - 1))
		return open_synthetic_config(name, out, err);
	return 0;
}

static int find_config(struct ws_input *in, const struct ws_input_opts *o, const char *dir,
                       struct ws_err *err)
{
	in->named = o->config != NULL;
	if (o->config)
		return ws_config_open(o->config, &in->config, err);
	if (dir ? ws_config_open(dir, &in->config, &in->why) :
	          in->n_sources && ws_source_config(in->sources[0], &in->config, &in->why))
		in->config = NULL;
	if (in->config || in->why.code || !o->fallback)
		return 0;
	in->fallback = true;
	if (ws_config_open(o->fallback, &in->config, &in->why))
		in->config = NULL;
	return 0;
}

static int find_family(struct ws_input *in, const struct ws_input_opts *o, struct ws_err *err)
{
	if (ws_namemap_open(o->map, &in->map, err))
		return -1;
	in->family = in->config ? ws_namemap_find(in->map, in->config) : NULL;
	if (!in->family)
		in->family = ws_namemap_generic(in->map);
	return 0;
}

bool ws_input_known(const struct ws_input *in)
{
	return in->config && ws_family_has_params(in->family);
}

static int refuse_shards(const struct ws_input *in, struct ws_err *err)
{
	if (in->why.code) {
		*err = in->why;
		return ws_err_wrap(err, "shards cannot be joined");
	}
	ws_err_set(err, WS_EINPUT, "shards cannot be joined: %s", in->config ?
	           "no family is known for this config.json" : "there is no config.json");
	return ws_err_hint(err, in->config ? "describe the family in a file: {map} FILE" :
	                                     "name one: {config} DIR");
}

static bool will_unpack(const struct ws_input *in, const struct ws_input_opts *o)
{
	const char *method = in->config ? ws_config_quant(in->config)->method : "";
	return o->transform && ws_transform_wanted(o->transform) && *method &&
	       strcmp(method, "fp8") && strcmp(method, "mxfp4");
}

static int make_layouts(struct ws_input *in, const struct ws_input_opts *o, struct ws_err *err)
{
	/* Weights that are unpacked have the shapes of unquantized ones. */
	const struct ws_layout_opts whole = { .tp = 1, .ep = 1, .unquantized = will_unpack(in, o) };
	const struct ws_layout_opts sharded = { .tp = in->sharded_tp, .ep = in->sharded_ep };
	if (ws_input_known(in) &&
	    ws_layout_make(in->family, in->config, &whole, &in->layout, &in->why)) {
		in->layout = NULL;
		if (o->config) {
			*err = in->why;
			return -1;
		}
	}
	if (!in->sharded_tp)
		return 0;
	return in->layout ? ws_layout_make(in->family, in->config, &sharded, &in->sharded, err)
	                  : refuse_shards(in, err);
}

/* ---- items ---- */

static int make_items(struct ws_input *in, struct ws_err *err)
{
	const struct ws_catalog_opts opts = { .family = in->family, .layout = in->layout,
		                              .sharded = in->sharded };
	if (ws_catalog_make((const struct ws_source *const *)in->sources, in->n_sources, &opts,
	                    &in->stored, err))
		return -1;
	in->catalog = in->stored;
	return 0;
}

/* ---- transform ---- */

static bool is_fp8(const struct ws_quant *q)
{
	return q && strcmp(q->method, "fp8") == 0;
}

/* Sets the quantization that a server of the transformed weights has in its config.json. Names are
 * checked against it. */
static int say_quant(struct ws_input *in, const struct ws_transform_opts *o, struct ws_err *err)
{
	struct ws_quant q = { .method = "", .scale_fmt = "", .activation = "" };
	if (!in->config || (o->quantize == WS_QUANTIZE_NONE && !in->transform->unpacks))
		return 0;
	/* A config that the user named, and that describes FP8, is the server's. */
	if (in->named && o->quantize != WS_QUANTIZE_NONE && is_fp8(ws_config_quant(in->config)))
		return 0;
	if (o->quantize != WS_QUANTIZE_NONE) {
		const bool listed = o->quant && o->quant->n_skip;
		q.method = "fp8";
		q.scale_fmt = o->ue8m0 || o->packed_scales ? "ue8m0" : "";
		q.skip = listed ? o->quant->skip : o->skip;
		q.n_skip = listed ? o->quant->n_skip : o->n_skip;
		for (int i = 0; i < 2; i++)
			q.block[i] = o->block[i] ? o->block[i] : 128;
	}
	return ws_config_set_quant(in->config, &q, err);
}

static int make_transform(struct ws_input *in, const struct ws_transform_opts *opts,
                          struct ws_err *err)
{
	struct ws_transform_opts o = *opts;
	const struct ws_quant *said = in->config ? ws_config_quant(in->config) : NULL;
	/* the config has the block sizes and the modules to skip */
	if (!in->config && in->why.code && !in->fallback) {
		*err = in->why;
		return ws_err_hint(err, "fix it, or name another: {config} DIR");
	}
	o.family = in->family;
	o.layout = in->layout;
	o.config = in->config;
	o.base = in->fallback ? NULL : said;
	if (!o.quant && is_fp8(said))
		o.quant = said;
	if (!o.block[0] && !o.block[1] && is_fp8(o.quant))
		memcpy(o.block, o.quant->block, sizeof o.block);
	if (ws_transform_make(in->stored, &o, &in->transform, err) || say_quant(in, &o, err))
		return -1;
	in->catalog = ws_transform_catalog(in->transform);
	in->packed_scales = o.packed_scales && o.quantize != WS_QUANTIZE_NONE;
	return 0;
}

static int make_catalog(struct ws_input *in, const struct ws_input_opts *o, struct ws_err *err)
{
	if (!in->n_sources)
		return 0;
	if (make_items(in, err))
		return -1;
	return o->transform && ws_transform_wanted(o->transform) ?
	               make_transform(in, o->transform, err) :
	               0;
}

/* ---- the whole input ---- */

int ws_input_open(const struct ws_input_opts *opts, struct ws_input *out, struct ws_err *err)
{
	char *config_dir = NULL;
	*out = (struct ws_input){ 0 };
	int rc = open_sources(out, opts, &config_dir, err);
	if (rc == 0)
		rc = find_config(out, opts, config_dir, err);
	free(config_dir);
	if (rc || find_family(out, opts, err) || make_layouts(out, opts, err) ||
	    make_catalog(out, opts, err)) {
		ws_input_close(out);
		return -1;
	}
	return 0;
}

void ws_input_close(struct ws_input *in)
{
	if (!in)
		return;
	ws_transform_free(in->transform);
	ws_catalog_free(in->stored);
	ws_layout_free(in->sharded);
	ws_layout_free(in->layout);
	ws_namemap_close(in->map);
	ws_config_free(in->config);
	for (size_t i = 0; i < in->n_sources; i++)
		ws_source_close(in->sources[i]);
	free(in->sources);
	*in = (struct ws_input){ 0 };
}
