/* SPDX-License-Identifier: Apache-2.0 */
/* name_check_server.c - compares the source's config with a server whose config.json is on another
 * machine: by model type and architecture (/model_info), and by the number of layers and the width
 * of its parameters.
 *
 *   POST /get_weights_by_name {"name": "model.layers.N.input_layernorm.weight",
 *                              "truncate_size": rows}
 *
 * Only norms are requested: to return one row, a server converts the whole parameter to Python
 * numbers. The head is not requested: SGLang returns the embedding if they are tied. Many models of
 * SGLang do not support this request at all (qwen3 in 0.5.23); then nothing is concluded. */
#include "name_check_server.h"
#include "endpoint_weights.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- model type and architecture ---- */

static const struct ws_family *told_family(const struct ws_input *in,
                                           const struct ws_name_check_target *t)
{
	return ws_namemap_claimed(in->map, t->architecture, t->model_type);
}

const struct ws_family *name_check_other_family(const struct ws_input *in,
                                                const struct ws_name_check_target *t)
{
	const struct ws_family *told = told_family(in, t);
	return told && told != in->family && !in->named && ws_family_has_params(told) ? told : NULL;
}

/* A multimodal model has another name in text_config; a server of the text model reports that. */
static bool is_named(const struct ws_config *c, const char *word)
{
	return *word && (!strcmp(word, ws_config_architecture(c)) ||
	                 !strcmp(word, ws_config_model_type(c)) ||
	                 !strcmp(word, ws_config_text_architecture(c)) ||
	                 !strcmp(word, ws_config_text_model_type(c)));
}

static void name_model(char *dst, size_t n, const char *type, const char *architecture)
{
	if (*type && *architecture)
		snprintf(dst, n, "%.60s (%.90s)", type, architecture);
	else
		snprintf(dst, n, "%.90s", *type ? type : architecture);
}

bool name_check_model_differs(const struct ws_input *in, const struct ws_name_check_target *t,
                              char *dst, size_t n)
{
	const struct ws_config *c = in->config;
	char theirs[192], ours[192];
	if (!c || (!*t->model_type && !*t->architecture) ||
	    (!*ws_config_model_type(c) && !*ws_config_architecture(c)))
		return false;
	if (is_named(c, t->architecture) || is_named(c, t->model_type) ||
	    told_family(in, t) == in->family)
		return false;
	name_model(theirs, sizeof theirs, t->model_type, t->architecture);
	name_model(ours, sizeof ours, ws_config_model_type(c), ws_config_architecture(c));
	snprintf(dst, n, "the server runs %s, and %.300s says %s", theirs, ws_config_path(c), ours);
	return true;
}

/* ---- layers and width ---- */

enum { MOST_LAYERS = 100000, MOST_WIDTH = 1 << 18, MOST_NUMBERS = 1 << 20 };
enum answer { SHOWN, ABSENT, UNKNOWN };

struct measuring {
	struct ws_http *http;
	struct ws_name_check_target *targets;
	const char *config; /* path */
	int64_t layers, width;
	bool *on;          /* by target: it is still queried */
	const char **urls; /* of the queried targets */
	size_t *index;
	size_t n;
	struct ws_values *values;
	struct ws_err *errs;
	ws_deadline until;
	const struct ws_cancel *cancel;
};

/* A server with data-parallel replicas answers [null, null] for a name that it does not have. */
static enum answer read_values(const struct ws_name_check_target *t, const struct ws_values *v,
                               const struct ws_err *e)
{
	bool number = false;
	if (e->code == WS_EREFUSED && e->native == 400)
		return ABSENT;
	if (e->code != WS_OK)
		return UNKNOWN;
	for (size_t i = 0; i < v->n && !number; i++)
		number = isfinite(v->numbers[i]);
	if (!number)
		return v->n ? ABSENT : UNKNOWN;
	return v->n_dims == (t->replicas > 1 ? 2u : 1u) ? SHOWN : UNKNOWN;
}

static void note(struct ws_name_check_target *t, const char *key, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
static void note(struct ws_name_check_target *t, const char *key, const char *fmt, ...)
{
	va_list args;
	va_start(args, fmt);
	t->differs_key = key;
	vsnprintf(t->differs, sizeof t->differs, fmt, args);
	va_end(args);
}

static void judge_first(struct measuring *m, struct ws_name_check_target *t, enum answer a,
                        const struct ws_values *v)
{
	const int64_t width = a == SHOWN ? v->dims[v->n_dims - 1] : 0;
	if (a == SHOWN && width != m->width)
		note(t, "hidden_size",
		     "the server's norms have %s%" PRId64
		     " numbers, and %.300s says hidden_size %" PRId64,
		     width > m->width ? "more than " : "", width > m->width ? m->width : width,
		     m->config, m->width);
}

static void judge_last(struct measuring *m, struct ws_name_check_target *t, enum answer a)
{
	if (a == ABSENT)
		note(t, "num_hidden_layers",
		     "the server has model.layers.0 and no model.layers.%" PRId64
		     ", and %.300s says num_hidden_layers %" PRId64,
		     m->layers - 1, m->config, m->layers);
}

static void judge_beyond(struct measuring *m, struct ws_name_check_target *t, enum answer a)
{
	if (a == SHOWN)
		note(t, "num_hidden_layers",
		     "the server has a model.layers.%" PRId64 ", and %.300s says "
		     "num_hidden_layers %" PRId64,
		     m->layers, m->config, m->layers);
}

/* Chooses the targets that were not compared with these numbers before. */
static void begin_measure(struct measuring *m, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		struct ws_name_check_target *t = &m->targets[i];
		m->on[i] = t->askable && (t->layers != m->layers || t->width != m->width);
		if (!m->on[i])
			continue;
		t->layers = m->layers;
		t->width = m->width;
		*t->differs = '\0';
	}
}

static size_t select_on(struct measuring *m, size_t n)
{
	m->n = 0;
	for (size_t i = 0; i < n; i++) {
		if (!m->on[i])
			continue;
		m->urls[m->n] = m->targets[i].url;
		m->index[m->n++] = i;
	}
	return m->n;
}

static int ask_layer(struct measuring *m, size_t n, int64_t layer, struct ws_err *err)
{
	char name[80];
	struct ws_err why = WS_ERR_INIT;
	if (!select_on(m, n))
		return 0;
	snprintf(name, sizeof name, "model.layers.%" PRId64 ".input_layernorm.weight", layer);
	const struct ws_call to = { m->http, m->urls, m->n, m->until, m->cancel, NULL };
	ws_endpoint_get_weights(&to, name, layer ? 1 : (uint64_t)m->width + 1, MOST_NUMBERS,
	                        m->values, m->errs, &why);
	for (size_t k = 0; k < m->n; k++) {
		struct ws_name_check_target *t = &m->targets[m->index[k]];
		const enum answer a = read_values(t, &m->values[k], &m->errs[k]);
		if (layer == 0)
			judge_first(m, t, a, &m->values[k]);
		else if (layer < m->layers)
			judge_last(m, t, a);
		else
			judge_beyond(m, t, a);
		m->on[m->index[k]] = a == SHOWN && !*t->differs;
		ws_values_free(&m->values[k]);
	}
	if (why.code != WS_ECANCELLED && why.code != WS_ESYSTEM)
		return 0;
	*err = why;
	return -1;
}

/* The config that the caller named, and that of the server. */
static void compare_configs(const struct ws_config *named, struct ws_name_check_target *t)
{
	static const char *const sizes[] = { "num_hidden_layers", "hidden_size", "vocab_size",
		                             "intermediate_size", "num_attention_heads",
		                             "num_key_value_heads" };
	int64_t theirs, ours;
	for (size_t i = 0; t->config && i < sizeof sizes / sizeof sizes[0] && !*t->differs; i++)
		if (ws_config_int(t->config, sizes[i], &theirs) &&
		    ws_config_int(named, sizes[i], &ours) && theirs != ours)
			note(t, sizes[i], "the server was started from %.300s, which says %s %"
			     PRId64 ", and %.300s says %" PRId64, ws_config_path(t->config),
			     sizes[i], theirs, ws_config_path(named), ours);
}

/* A family without rules has the norms of most others, if its source has them. */
static bool can_measure(const struct ws_input *in)
{
	return in->config &&
	       (ws_input_known(in) ||
	        ws_catalog_find(in->catalog, "model.layers.0.input_layernorm.weight"));
}

int ws_name_check_measure(struct ws_http *http, const struct ws_input *in,
                          struct ws_name_check_target *targets, size_t n, ws_deadline until,
                          const struct ws_cancel *cancel, struct ws_err *err)
{
	struct measuring m = { .http = http, .targets = targets, .until = until, .cancel = cancel };
	if (!can_measure(in) || !ws_config_int(in->config, "num_hidden_layers", &m.layers) ||
	    m.layers < 1 || m.layers > MOST_LAYERS ||
	    !ws_config_int(in->config, "hidden_size", &m.width) || m.width < 1 ||
	    m.width > MOST_WIDTH)
		return 0;
	m.config = ws_config_path(in->config);
	for (size_t i = 0; in->named && i < n; i++)
		compare_configs(in->config, &targets[i]);
	m.on = calloc(n + 1, sizeof *m.on);
	m.urls = calloc(n + 1, sizeof *m.urls);
	m.index = calloc(n + 1, sizeof *m.index);
	m.values = calloc(n + 1, sizeof *m.values);
	m.errs = calloc(n + 1, sizeof *m.errs);
	int rc = m.on && m.urls && m.index && m.values && m.errs ? 0 : ws_oom(err);
	if (!rc) {
		begin_measure(&m, n);
		rc = ask_layer(&m, n, 0, err) ||
		                     (m.layers > 1 && ask_layer(&m, n, m.layers - 1, err)) ||
		                     ask_layer(&m, n, m.layers, err) ?
		             -1 :
		             0;
	}
	free(m.on);
	free(m.urls);
	free(m.index);
	free(m.values);
	free(m.errs);
	return rc;
}
