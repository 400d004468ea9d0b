/* SPDX-License-Identifier: Apache-2.0 */
/* namecheck_modules.c - modules of which only a part is sent, at servers that load a module anew
 * when any part of it comes (vLLM's layerwise reload).
 *
 * Such a server takes the parameters away from every module. A module that got nothing takes its
 * old ones back. A module that got only a part is loaded into new memory, and the rest of it is
 * what that memory held before. A module is what directly holds a parameter: qkv_proj has weight,
 * bias and scales; experts has w13_weight and w2_weight, with all experts in each.
 *
 * vLLM 0.32 leaves two parameters of a module in place (SKIP_TENSORS of its reload/meta.py): a
 * `bias` keeps its values when the weight beside it comes, and loads the module anew when it comes
 * itself; an `e_score_correction_bias` has nothing to do with its module. */
#include "namecheck_core.h"

#include <stdlib.h>
#include <string.h>

struct named {
	const char *name;
	size_t length, i; /* of the module's name; of the parameter */
};

static size_t module_length(const char *name)
{
	const char *dot = strrchr(name, '.');
	return dot ? (size_t)(dot - name) : 0;
}

static const char *leaf_of(const char *name)
{
	const size_t n = module_length(name);
	return name + n + (name[n] == '.');
}

static int by_module(const void *a, const void *b)
{
	const struct named *x = a, *y = b;
	if (x->length != y->length)
		return x->length < y->length ? -1 : 1;
	return memcmp(x->name, y->name, x->length);
}

int ws_modules_make(struct ws_check *c, const char *(*name)(const struct ws_check *c, size_t i),
                    size_t n)
{
	struct ws_modules *m = &c->modules;
	struct named *all = calloc(n + 1, sizeof *all);
	m->of = calloc(n + 1, sizeof *m->of);
	m->gets = calloc(n + 1, sizeof *m->gets);
	if (!all || !m->of || !m->gets) {
		free(all);
		return ws_oom(c->err);
	}
	for (size_t i = 0; i < n; i++)
		all[i] = (struct named){ name(c, i), module_length(name(c, i)), i };
	qsort(all, n, sizeof *all, by_module);
	for (size_t i = 0; i < n; i++) {
		m->n += i == 0 || by_module(&all[i - 1], &all[i]);
		m->of[all[i].i] = m->n - 1;
	}
	free(all);
	return 0;
}

void ws_modules_fini(struct ws_modules *m)
{
	free(m->of);
	free(m->gets);
}

static bool stays(const struct ws_check *c, const char *leaf)
{
	return c->opts->keeps_biases && !strcmp(leaf, "e_score_correction_bias");
}

void ws_modules_send(struct ws_check *c, size_t i, const char *name)
{
	if (c->modules.of && !stays(c, leaf_of(name)))
		c->modules.gets[c->modules.of[i]] = true;
}

bool ws_modules_torn(const struct ws_check *c, size_t i, const char *name)
{
	const char *leaf = leaf_of(name);
	return c->modules.of && c->modules.gets[c->modules.of[i]] && !stays(c, leaf) &&
	       !(c->opts->keeps_biases && !strcmp(leaf, "bias"));
}

struct ws_text ws_text_of_module(const char *param)
{
	return ws_textf("%.*s", (int)module_length(param), param);
}
