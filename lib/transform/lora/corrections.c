/* SPDX-License-Identifier: Apache-2.0 */
/* corrections.c - one more low-rank term for some tensors, from its own safetensors file.
 *
 *   X.correction_U [R, k] with X.correction_V or X.correction_B [k, C]: X.weight [R, C] += U @ V
 */
#include "transform_core.h"

#include "catalog_build.h"
#include "floats.h"
#include "wsync/tool/str.h"

#include <stdio.h>
#include <string.h>

static const char u_leaf[] = ".correction_U";

static int refuse(const struct ws_item *item, const char *why, struct ws_err *err)
{
	return ws_err_set(err, WS_EINPUT, "correction '%s': %s", ws_quote(item->name).text, why);
}

/* The other half of X.correction_U. */
static const struct ws_item *find_half(const struct ws_catalog *c, const char *module)
{
	static const char *const leaves[] = { "correction_V", "correction_B" };
	char name[1100];
	const struct ws_item *half = NULL;
	for (size_t i = 0; !half && i < 2; i++) {
		snprintf(name, sizeof name, "%s.%s", module, leaves[i]);
		half = ws_catalog_find(c, name);
	}
	return half;
}

static int bind(struct ws_transform *t, const struct ws_item *u, struct ws_correction *out,
                struct ws_err *err)
{
	char module[1024], name[1100];
	snprintf(module, sizeof module, "%.*s", (int)(strlen(u->name) - strlen(u_leaf)), u->name);
	snprintf(name, sizeof name, "%s.weight", module);
	const struct ws_item *v = find_half(t->correction, module),
			     *base = ws_catalog_find(t->base, name);
	const struct ws_item *first = ws_catalog_item(t->base, 0);
	if (!v)
		return refuse(u, "there is no correction_V or correction_B with it", err);
	if (!base || !t->found[base - first].weight)
		return refuse(u, "the checkpoint has no such module", err);
	const struct ws_packed *p = &t->found[base - first];
	if (u->n_dims != 2 || v->n_dims != 2 || u->dims[0] != p->rows || v->dims[1] != p->cols ||
	    u->dims[1] != v->dims[0] || u->dims[1] < 1)
		return ws_err_set(err, WS_EINPUT,
		                  "correction '%s': its product would be [%lld, %lld], the "
		                  "tensor is [%lld, %lld]",
		                  ws_quote(u->name).text, (long long)u->dims[0],
		                  (long long)v->dims[1], (long long)p->rows, (long long)p->cols);
	if (!ws_floats_known(u->dtype) || !ws_floats_known(v->dtype))
		return refuse(u, "factors are BF16, F16 or F32", err);
	out[base - first] = (struct ws_correction){ .bound = true, .delta = {
		.a = v, .b = u, .a_row = v->dims[1], .a_col = 1, .b_row = u->dims[1], .b_col = 1,
		.rows = p->rows, .cols = p->cols, .rank = u->dims[1], .scale = 1 } };
	return 0;
}

int ws_corrections_open(struct ws_transform *t, const char *path, struct ws_correction **out,
                        struct ws_err *err)
{
	size_t bound = 0;
	*out = ws_arena_alloc(&t->catalog->arena, (ws_catalog_count(t->base) + 1) * sizeof **out);
	if (!*out)
		return ws_oom(err);
	if (!path)
		return 0;
	if (ws_source_open(&path, 1, &t->correction_source, err) ||
	    ws_catalog_use(t->catalog, t->correction_source, err) ||
	    ws_catalog_make((const struct ws_source *const *)&t->correction_source, 1,
	                    &(struct ws_catalog_opts){ 0 }, &t->correction, err))
		return -1;
	for (size_t i = 0; i < ws_catalog_count(t->correction); i++) {
		const struct ws_item *item = ws_catalog_item(t->correction, i);
		if (!ws_ends_with(item->name, u_leaf))
			continue;
		if (bind(t, item, *out, err))
			return -1;
		bound++;
	}
	if (2 * bound == ws_catalog_count(t->correction))
		return 0;
	return ws_err_set(err, WS_EINPUT,
	                  "%s: %zu tensors are no pairs X.correction_U and X.correction_V", path,
	                  ws_catalog_count(t->correction) - 2 * bound);
}
