/* SPDX-License-Identifier: Apache-2.0 */
/* serve_model_names.c - decides which names are loaded, ignored or refused, like each model's
 * loader in SGLang (load_weights of python/sglang/srt/models).
 *
 * The layout knows all names of the checkpoint. Other names are treated differently by each model,
 * mostly by accident, and senders must know how:
 *   - a loader looks for fragments ("q_proj") anywhere in a name, replaces them by the fused one
 *     ("qkv_proj") and looks the result up. If it is not found, most loaders raise a KeyError; the
 *     MoE loaders of Qwen continue silently.
 *   - if the fragment is written without its dot, a fused name contains a fragment too:
 *     "gate_up_proj" becomes "gate_gate_up_proj", which does not exist.
 *   - an unknown name without any fragment is logged, or ignored silently. */
#include "serve_model.h"
#include "wsync/tool/str.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct fragment {
	const char *from, *to;
};

enum {
	STRICT = 1, /* an unknown replaced name is a KeyError; else it is skipped */
	SAYS = 2    /* other unknown names are logged; else skipped */
};

struct ws_serve_loader_rules {
	const char *families[8];
	unsigned is;
	struct fragment fragments[6]; /* in the loader's order, ended by NULL */
};

#define QKV(dot) { dot "q_proj", dot "qkv_proj" }, { dot "k_proj", dot "qkv_proj" }, \
                 { dot "v_proj", dot "qkv_proj" }
#define GATE_UP(dot) { dot "gate_proj", dot "gate_up_proj" }, { dot "up_proj", dot "gate_up_proj" }

static const struct ws_serve_loader_rules rules[] = {
	/* the first row is also the default for models that are not in the table */
	{ { "llama", "mistral" }, STRICT | SAYS, { QKV("."), GATE_UP(".") } },
	{ { "qwen2", "qwen3" }, STRICT | SAYS, { QKV(""), GATE_UP("") } },
	{ { "qwen2_moe" }, SAYS, { QKV(""), GATE_UP("") } },
	{ { "qwen3_moe", "glm4_moe" }, 0, { QKV(""), GATE_UP("") } },
	{ { "deepseek_v2", "deepseek_v3", "kimi_k2" }, STRICT | SAYS, { GATE_UP("") } },
	{ { "gpt_oss" }, STRICT | SAYS, { QKV("") } },
};

const struct ws_serve_loader_rules *ws_serve_loader_rules_of(const char *family)
{
	for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++)
		for (size_t k = 0; rules[i].families[k]; k++)
			if (strcmp(rules[i].families[k], family) == 0)
				return &rules[i];
	return &rules[0];
}

__attribute__((format(printf, 3, 4))) static void
decide(struct ws_serve_load_decision *v, enum ws_serve_load_action action, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(v->why, sizeof v->why, fmt, ap);
	va_end(ap);
	v->action = action;
}

static bool has(const char *text, const char *part)
{
	return strstr(text, part) != NULL;
}

/* ---- known names ---- */

/* Loaders of latent attention collect q_a_proj and kv_a_proj_with_mqa, and load them only when both
 * are in one request. A single one is dropped. */
static bool waits_for_partner(const char *param)
{
	return has(param, ".fused_qkv_a_proj_with_mqa.");
}

static bool is_read_only(const struct ws_serve_model *m, const struct ws_param *param)
{
	return m->read_only && m->read_only[param - ws_layout_param(m->layout, 0)];
}

/* A read-only parameter has no weight_loader. A load that needs one fails: that of a part of a
 * fused parameter, or of an expert. */
static void mark_read_only(const struct ws_serve_model *m, const struct ws_param *param, bool whole,
                        struct ws_serve_load_decision *v)
{
	v->read_only = is_read_only(m, param);
	if (!v->read_only)
		return;
	if (param->n_parts > 1 && !whole)
		decide(v, WS_ACTION_REFUSE, "'Parameter' object has no attribute 'weight_loader'");
}

static void decide_part(const struct ws_serve_model *m, size_t i, struct ws_serve_load_decision *v)
{
	const struct ws_part *part = ws_layout_part(m->layout, i);
	const struct ws_param *param = ws_layout_param(m->layout, part->param);
	if (param->tied_to) {
		decide(v, WS_ACTION_IGNORE, "%.200s is tied to %.200s", part->name, param->tied_to);
		return;
	}
	v->first = i;
	v->n = 1;
	v->alone = waits_for_partner(param->name) && !m->refuses_unknown;
	mark_read_only(m, param, false, v);
}

/* A whole fused parameter under the server's own name. */
static void decide_param(const struct ws_serve_model *m, const struct ws_param *p,
                         struct ws_serve_load_decision *v)
{
	const struct ws_part *first = p->n_parts ? ws_layout_part(m->layout, p->first) : NULL;
	if (p->tied_to || !first)
		decide(v, WS_ACTION_IGNORE, "%.200s is tied to %.200s", p->name,
		       p->tied_to ? p->tied_to : "");
	else if (first->split == WS_SPLIT_EXPERT && !is_read_only(m, p))
		decide(v, WS_ACTION_REFUSE,
		       "FusedMoE.weight_loader() missing 3 required positional arguments: "
		       "'weight_name', 'shard_id', and 'expert_id'");
	else if (waits_for_partner(
			 p->name)) /* the name contains a fragment, but there is no partner */
		decide(v, WS_ACTION_IGNORE, "%.200s waits for a partner that does not exist",
		       p->name);
	v->first = p->first;
	v->n = p->n_parts;
	mark_read_only(m, p, true, v);
}

/* The scales of a read-only parameter are a plain parameter, too.
 * Returns true if name is the name of such scales. */
static bool decide_scale(const struct ws_serve_model *m, const char *name, bool replaced,
                         struct ws_serve_load_decision *v)
{
	const size_t i = ws_serve_read_only_scale(m, name);
	if (i == SIZE_MAX)
		return false;
	const struct ws_param *p = ws_layout_param(m->layout, i);
	v->read_only = v->scale = true;
	v->first = p->first;
	v->n = p->n_parts;
	if (replaced)
		decide(v, WS_ACTION_REFUSE, "'Parameter' object has no attribute 'weight_loader'");
	return true;
}

/* ---- unknown names ---- */

/* Finds the number after the first "layers.", like the loaders. */
static bool layer_of(const char *name, int64_t *layer)
{
	const char *at = strstr(name, "layers.");
	char *end = NULL;
	if (!at || at[7] < '0' || at[7] > '9')
		return false;
	*layer = strtoll(at + 7, &end, 10);
	return *end == '.';
}

/* Python's str.replace. A result that is too long is cut, and then matches no name. */
static void replace(char *dst, size_t n, const char *text, const struct fragment *f)
{
	const size_t from = strlen(f->from), to = strlen(f->to);
	size_t used = 0;
	while (*text && used + to + 1 < n) {
		if (strncmp(text, f->from, from) == 0) {
			memcpy(dst + used, f->to, to);
			used += to;
			text += from;
		} else {
			dst[used++] = *text++;
		}
	}
	dst[used] = 0;
}

/* Returns true if the fragments decided about the name. */
static bool decide_fragments(const struct ws_serve_model *m, const char *name,
                             struct ws_serve_load_decision *v)
{
	char mapped[400];
	const struct fragment *f = m->rules->fragments;
	if (has(name, "mlp.experts"))
		return false;
	while (f->from && !has(name, f->from))
		f++;
	if (!f->from)
		return false;
	replace(mapped, sizeof mapped, name, f);
	if (ws_layout_find_param(m->layout, mapped))
		return false;
	if (decide_scale(m, mapped, true, v))
		return true;
	if (((m->rules->is & STRICT) || m->refuses_unknown) && !ws_ends_with(name, ".bias"))
		decide(v, WS_ACTION_REFUSE, "'%s'", mapped); /* str(KeyError) */
	else
		decide(v, WS_ACTION_IGNORE, "%s", "");
	return true;
}

void ws_serve_model_decide(const struct ws_serve_model *m, const char *name,
                           struct ws_serve_load_decision *v)
{
	*v = (struct ws_serve_load_decision){ .action = WS_ACTION_LOAD };
	int64_t layer = 0;
	const struct ws_part *part = ws_layout_find_part(m->layout, name);
	if (part) {
		decide_part(m, (size_t)(part - ws_layout_part(m->layout, 0)), v);
		return;
	}
	const char *reason = ws_layout_skips(m->layout, name);
	if (reason) {
		decide(v, WS_ACTION_IGNORE, "skipping %.200s: %.200s", name, reason);
		return;
	}
	if (layer_of(name, &layer) && layer >= m->n_layers) {
		decide(v, WS_ACTION_IGNORE, "skipping %.200s: the model has %lld layers", name,
		       (long long)m->n_layers);
		return;
	}
	if (decide_fragments(m, name, v))
		return;
	if (decide_scale(m, name, false, v))
		return;
	const struct ws_param *param = ws_layout_find_param(m->layout, name);
	if (param)
		decide_param(m, param, v);
	else if (m->refuses_unknown)
		decide(v, WS_ACTION_REFUSE, "There is no module or parameter named '%.200s' in %s",
		       name, ws_config_architecture(m->config));
	else if ((m->rules->is & SAYS) && !ws_ends_with(name, ".bias"))
		decide(v, WS_ACTION_IGNORE, "Parameter %.200s not found in params_dict", name);
	else
		decide(v, WS_ACTION_IGNORE, "%s", "");
}
