/* SPDX-License-Identifier: Apache-2.0 */
/* cargo.c - opens what belongs together: sources, config, family, layouts, catalog. */
#include "wsync/cargo.h"

#include "models.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- sources ---- */

static int open_sources(struct ws_cargo *c, const struct ws_cargo_opts *o, struct ws_err *err)
{
	const size_t n = o->sharded_tp ? o->sharded_tp : o->n_paths ? 1 : 0;
	if (o->sharded_tp && o->n_paths != o->sharded_tp) {
		ws_err_set(err, WS_EUSAGE, "a source sharded by tp %u is %u paths, not %zu", o->sharded_tp,
		           o->sharded_tp, o->n_paths);
		return ws_err_hint(err, "name what each rank saved, rank 0 first");
	}
	c->sources = calloc(n + 1, sizeof *c->sources);
	if (!c->sources)
		return ws_err_set(err, WS_ESYSTEM, "out of memory");
	for (; c->n_sources < n; c->n_sources++)
		if (ws_source_open(&o->paths[c->n_sources], o->sharded_tp ? 1 : o->n_paths,
		                   &c->sources[c->n_sources], err))
			return -1;
	return 0;
}

/* ---- config ---- */

/* spec: MODEL or MODEL:SEED. */
static int open_synthetic_config(const char *spec, struct ws_config **out, struct ws_err *err)
{
	char name[128];
	struct ws_buf text;
	snprintf(name, sizeof name, "%.*s", (int)strcspn(spec, ":"), spec);
	const struct ws_model *m = ws_model_find(name, err);
	if (!m)
		return -1;
	ws_buf_init(&text, 0);
	int rc = ws_model_config(m, &text, err);
	if (!rc)
		rc = ws_config_parse(text.data, text.len, name, out, err);
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
		return open_synthetic_config(name + sizeof scheme - 1, out, err);
	return 0;
}

static int find_config(struct ws_cargo *c, const struct ws_cargo_opts *o, struct ws_err *err)
{
	if (o->config)
		return ws_config_open(o->config, &c->config, err);
	if (c->n_sources == 0 || ws_source_config(c->sources[0], &c->config, err) == 0 || o->lenient)
		return 0;
	return -1;
}

static int find_family(struct ws_cargo *c, const struct ws_cargo_opts *o, struct ws_err *err)
{
	if (ws_namemap_open(o->map, &c->map, err))
		return -1;
	c->family = c->config ? ws_namemap_find(c->map, c->config) : NULL;
	c->generic = !c->family;
	if (c->generic)
		c->family = ws_namemap_generic(c->map);
	return 0;
}

static int make_layouts(struct ws_cargo *c, const struct ws_cargo_opts *o, struct ws_err *err)
{
	const struct ws_layout_opts whole = { .tp = 1, .ep = 1 };
	const struct ws_layout_opts sharded = { .tp = o->sharded_tp,
		                                .ep = o->sharded_ep ? o->sharded_ep : 1 };
	if (c->generic && o->sharded_tp) {
		ws_err_set(err, WS_EINPUT, "shards cannot be joined: %s", c->config ?
		           "no family is known for this config.json" : "there is no config.json");
		return ws_err_hint(err, c->config ? "describe the family in a file: --map FILE" :
		                                    "name one: --config DIR");
	}
	if (c->generic)
		return 0;
	if (ws_layout_make(c->family, c->config, &whole, &c->layout, err))
		return o->lenient && !o->config ? 0 : -1;
	return o->sharded_tp ? ws_layout_make(c->family, c->config, &sharded, &c->sharded, err) : 0;
}

/* ---- all of it ---- */

static int make_items(struct ws_cargo *c, struct ws_err *err)
{
	const struct ws_catalog_opts opts = { .family = c->family, .layout = c->layout,
		                              .sharded = c->sharded };
	return ws_catalog_make((const struct ws_source *const *)c->sources, c->n_sources, &opts,
	                       &c->items, err);
}

int ws_cargo_open(const struct ws_cargo_opts *opts, struct ws_cargo *out, struct ws_err *err)
{
	*out = (struct ws_cargo){ 0 };
	if (open_sources(out, opts, err) || find_config(out, opts, err) ||
	    find_family(out, opts, err) || make_layouts(out, opts, err) ||
	    (!opts->no_items && make_items(out, err))) {
		ws_cargo_close(out);
		return -1;
	}
	return 0;
}

void ws_cargo_close(struct ws_cargo *c)
{
	if (!c)
		return;
	ws_catalog_free(c->items);
	ws_layout_free(c->sharded);
	ws_layout_free(c->layout);
	ws_namemap_close(c->map);
	ws_config_free(c->config);
	for (size_t i = 0; i < c->n_sources; i++)
		ws_source_close(c->sources[i]);
	free(c->sources);
	*c = (struct ws_cargo){ 0 };
}
