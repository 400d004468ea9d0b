/* SPDX-License-Identifier: Apache-2.0 */
/* input.c - opens an input as a whole: sources, config, rules, layouts, catalog, transform. */
#include "wsync/tool/input.h"

#include "name_index.h"
#include "relate.h"
#include "transform_core.h"
#include "wsync/tool/shards.h"
#include "wsync/tool/str.h"
#include "wsync/tool/str.h"

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

/* The name of an adapter's factor in PEFT. */
static bool is_factor(const char *name)
{
	static const char *const parts[] = { ".lora_A.", ".lora_B.", ".lora_embedding_A",
		                             ".lora_embedding_B", ".lora_magnitude_vector" };
	for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
		if (strstr(name, parts[i]))
			return true;
	return false;
}

/* An adapter without its base is no checkpoint. It may also have whole modules (modules_to_save),
 * and then its file has the name that PEFT gives it. */
static int refuse_adapter(const struct ws_source *s, struct ws_err *err)
{
	bool adapter = ws_source_count(s) > 0, named = true;
	const char *file = ws_source_file_name(s, 0), *slash = file ? strrchr(file, '/') : NULL;
	for (size_t i = 0; adapter && i < ws_source_count(s); i++)
		adapter = is_factor(ws_source_tensor(s, i)->name);
	for (size_t i = 0; named && i < ws_source_file_count(s); i++) {
		const char *path = ws_source_file_name(s, i), *at = strrchr(path, '/');
		named = strncmp(at ? at + 1 : path, "adapter_model", 13) == 0;
	}
	if (!file || (!adapter && !named))
		return 0;
	char *dir = slash ? strndup(file, (size_t)(slash - file)) : strdup(".");
	if (!dir)
		return ws_oom(err);
	ws_err_set(err, WS_EINPUT, "%s: an adapter, which has no weights of its base", file);
	ws_err_hint(err, "push it with its base: wsync-push BASE --lora %s",
	            ws_shell_word(dir).text);
	free(dir);
	return -1;
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
	return o->n_paths ? refuse_adapter(in->sources[0], err) : 0;
}

/* ---- config ---- */

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

/* ---- reference ---- */

bool ws_input_is_other(const struct ws_config *c, const char *architecture, const char *model_type)
{
	const bool same_type = *model_type && (!strcmp(model_type, ws_config_model_type(c)) ||
	                                       !strcmp(model_type, ws_config_text_model_type(c)));
	return !same_type && *architecture && *ws_config_architecture(c) &&
	       strcmp(architecture, ws_config_architecture(c)) != 0 &&
	       strcmp(architecture, ws_config_text_architecture(c)) != 0;
}

/* Rules of the text model alone, of a model that is more, say nothing of its names. */
static bool is_covered(const struct ws_input *in)
{
	return ws_input_known(in) && !in->unruled &&
	       ws_namemap_covers(in->map, ws_config_architecture(in->config),
	                         ws_config_model_type(in->config));
}

static bool is_ruled(const struct ws_input *in)
{
	return in->layout && is_covered(in);
}

enum { MOST_LAYERS = 4096 };

/* The first number in a name; MOST_LAYERS: none. */
static size_t layer_of(const char *name)
{
	for (const char *p = name; *p; p += strcspn(p, "."), p += *p == '.') {
		const size_t n = strspn(p, "0123456789");
		const long long layer = n && n < 5 && n == strcspn(p, ".") ? atoll(p) : MOST_LAYERS;
		if (layer < MOST_LAYERS)
			return (size_t)layer;
	}
	return MOST_LAYERS;
}

/* A reference that has what the rules do not know makes them wrong for this model: its config.json
 * contradicts it, or the family has changed. What it lacks of their tensors is excused only in a
 * layer that has others instead; else it is not whole. */
static int ask_rules(struct ws_input *in, struct ws_err *err)
{
	const struct ws_layout_opts opts = { .tp = 1, .ep = 1 };
	const struct ws_reference *like = &in->like;
	struct ws_layout *l = NULL;
	size_t needed = 0;
	const char *lacking = NULL;
	bool contradicts = false;
	const struct ws_family *family =
		like->config && ws_namemap_covers(in->map, ws_config_architecture(like->config),
		                                  ws_config_model_type(like->config)) ?
		        ws_namemap_find(in->map, like->config) :
		        NULL;
	if (!family || !ws_family_has_params(family) ||
	    ws_layout_make(family, like->config, &opts, &l, NULL))
		return 0;
	bool other[MOST_LAYERS + 1] = { false }; /* layers with names that the rules do not know */
	for (size_t i = 0; i < like->n; i++) {
		const struct ws_tensor *t = &like->tensors[i];
		const struct ws_part *p = ws_layout_find_part(l, t->name);
		const bool unknown =
			!p && !ws_layout_skips(l, t->name) && !ws_tensor_is_leftover(t);
		contradicts |= unknown || (p && !ws_part_fits(p, t->n_dims, t->dims));
		other[layer_of(t->name)] |= unknown;
		needed += p && !p->optional;
	}
	other[MOST_LAYERS] = false;
	for (size_t i = 0; i < ws_layout_part_count(l); i++)
		needed -= !ws_layout_part(l, i)->optional;
	for (size_t i = 0; needed && !lacking && i < ws_layout_part_count(l); i++) {
		const struct ws_part *p = ws_layout_part(l, i);
		lacking = p->optional || other[layer_of(p->name)] ||
		                          ws_reference_has(like, p->name) ?
		                  NULL :
		                  p->name;
	}
	in->unruled = contradicts && family == in->family;
	if (lacking)
		ws_err_set(err, WS_EINPUT, "%s is no reference: it has no %s, which %s needs",
		           like->name, lacking, ws_family_name(family));
	ws_layout_free(l);
	return lacking ? -1 : 0;
}

static bool is_source(const struct ws_input *in)
{
	for (size_t i = 0; i < in->n_sources; i++)
		if (ws_reference_is(&in->like, in->sources[i]))
			return true;
	return false;
}

static void leave_found(struct ws_input *in, const char *path, const char *why)
{
	snprintf(in->like_unused, sizeof in->like_unused, "%.200s is not used as reference: %.280s",
	         path, why);
	in->unruled = false;
	ws_reference_close(&in->like);
}

static bool has_changed(const struct ws_reference *like, const struct ws_input_found *found)
{
	const int64_t at = found->started ? found->started : found->seen;
	return at && ws_reference_changed(like) > (uint64_t)at;
}

/* A path of another machine may be here by chance, and be another model. */
static void open_found(struct ws_input *in, const struct ws_input_found *found)
{
	struct ws_err why = WS_ERR_INIT;
	char text[320];
	if (ws_reference_open(found->path, ws_namemap_generic(in->map), &in->like, &why) ||
	    ask_rules(in, &why)) {
		leave_found(in, found->path, why.msg);
	} else if (in->like.config && ws_input_is_other(in->like.config, found->architecture,
	                                                found->model_type)) {
		snprintf(text, sizeof text, "it is of %.90s, and the server runs %.90s",
		         ws_config_architecture(in->like.config), found->architecture);
		leave_found(in, found->path, text);
	} else if (!found->cached && has_changed(&in->like, found)) {
		leave_found(in, found->path, "its files have changed since the server's start");
	} else if (!found->cached && !found->started && is_source(in)) {
		leave_found(in, found->path, "it is the source itself, which may have changed "
		            "since the server's start");
	} else {
		snprintf(in->like_of, sizeof in->like_of, "%s", found->of);
		snprintf(in->like.name, sizeof in->like.name, "%s", found->name);
	}
}

/* The user says by a config with weights beside it what the server was started from. */
static void open_beside(struct ws_input *in, const char *config)
{
	struct ws_err why = WS_ERR_INIT;
	if (!ws_reference_at(config))
		return;
	if (ws_reference_open(config, ws_namemap_generic(in->map), &in->like, &why) ||
	    ask_rules(in, &why))
		leave_found(in, config, why.msg);
	else if (is_source(in))
		leave_found(in, config, "it is the source itself");
	in->like_named = in->like.n > 0;
}

static int find_reference(struct ws_input *in, const struct ws_input_opts *o, struct ws_err *err)
{
	if (o->like) {
		in->like_named = true;
		return ws_reference_open(o->like, ws_namemap_generic(in->map), &in->like, err) ||
		                       ask_rules(in, err) ?
		               -1 :
		               0;
	}
	if (*o->found.path)
		open_found(in, &o->found);
	if (!in->like.n && o->config)
		open_beside(in, o->config);
	return 0;
}

static bool transforms(const struct ws_input_opts *o)
{
	return o->transform && ws_transform_wanted(o->transform);
}

/* The names of a source that has the tensors of the reference need no rules; but it proves nothing
 * to be the same as itself. */
static bool is_same(const struct ws_input *in, const struct ws_input_opts *o)
{
	return in->like.n && in->n_sources == 1 && !in->sharded_tp && !transforms(o) &&
	       (!ws_input_known(in) || !is_source(in)) &&
	       ws_reference_same(&in->like, in->sources[0]);
}

static int relate_names(struct ws_input *in, struct ws_err *err)
{
	if (!in->like.n || in->same || in->n_sources != 1 || in->sharded)
		return 0;
	const struct ws_layout *like = ws_reference_layout(&in->like, err);
	return like ? ws_relate_source(in->sources[0], in->family, is_ruled(in) ? in->layout : NULL,
	                               like, &in->related, err) :
	              -1;
}

/* ---- items ---- */

static int make_items(struct ws_input *in, struct ws_err *err)
{
	const bool like = in->like.n && !in->sharded && !is_ruled(in);
	const struct ws_catalog_opts opts = { .family = in->same ? NULL : in->family,
		                              .layout = in->same ? NULL :
		                                        like     ? in->like.layout :
		                                                   in->layout,
		                              .names = in->related.names,
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
	return transforms(o) ?
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
	if (!rc)
		rc = find_family(out, opts, err) || find_reference(out, opts, err) ? -1 : 0;
	out->same = !rc && is_same(out, opts);
	if (rc || (!out->same && make_layouts(out, opts, err)) || relate_names(out, err) ||
	    make_catalog(out, opts, err)) {
		ws_input_close(out);
		return -1;
	}
	return 0;
}

const struct ws_layout *ws_input_layout(struct ws_input *in)
{
	const struct ws_layout_opts whole = { .tp = 1, .ep = 1 };
	if (in->same && !in->layout && ws_input_known(in) &&
	    ws_layout_make(in->family, in->config, &whole, &in->layout, &in->why))
		in->layout = NULL;
	return in->layout;
}

void ws_input_close(struct ws_input *in)
{
	if (!in)
		return;
	ws_transform_free(in->transform);
	ws_catalog_free(in->stored);
	ws_related_free(&in->related);
	ws_reference_close(&in->like);
	ws_layout_free(in->sharded);
	ws_layout_free(in->layout);
	ws_namemap_close(in->map);
	ws_config_free(in->config);
	for (size_t i = 0; i < in->n_sources; i++)
		ws_source_close(in->sources[i]);
	free(in->sources);
	*in = (struct ws_input){ 0 };
}

static bool matches_sent(const struct ws_input *in, const char *glob)
{
	for (size_t i = 0; i < ws_catalog_count(in->catalog); i++)
		if (ws_glob_any(&glob, 1, ws_catalog_item(in->catalog, i)->name))
			return true;
	return false;
}

int ws_input_check_globs(const struct ws_input *in, const char *option, const char *const *globs,
                         size_t n, struct ws_err *err)
{
	for (size_t i = 0; in->related.names && i < n; i++) {
		if (matches_sent(in, globs[i]))
			continue;
		for (size_t k = 0; k < ws_source_count(in->sources[0]); k++) {
			const char *name = ws_source_tensor(in->sources[0], k)->name;
			if (!ws_glob_any(&globs[i], 1, name))
				continue;
			ws_err_set(err, WS_EUSAGE, "{%s} %.200s: it matches %.200s, which is sent "
			           "as %.200s", option, globs[i], ws_quote(name).text,
			           in->related.names[k]);
			return ws_err_hint(err, "write it for the names of the reference");
		}
	}
	return 0;
}

bool ws_input_open_found(const struct ws_input *in, const struct ws_input_found *found,
                         struct ws_reference *out, char *why, size_t n)
{
	struct ws_input one = { .map = in->map, .family = in->family, .sources = in->sources,
		                .n_sources = in->n_sources };
	if (*found->path)
		open_found(&one, found);
	snprintf(why, n, "%s", one.like_unused);
	*out = one.like;
	return one.like.n > 0;
}
