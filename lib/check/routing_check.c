/* SPDX-License-Identifier: Apache-2.0 */
/* routing_check.c - finds the shape of a model's expert routing, checks a routing for impossible
 * values, and compares two routings. */
#include "wsync/tool/routing.h"

#include "file.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NPY_MAGIC = 10, NPY_BLOCK = 64, MAX_EXPERTS = 1 << 20 };

/* ---- the shape ---- */

/* The first of these keys that the config has. */
static int64_t find_int(const struct ws_config *config, const char *const *keys)
{
	int64_t value = 0;
	for (; *keys; keys++)
		if (ws_config_int(config, *keys, &value))
			return value;
	return 0;
}

static bool is_dense(const struct ws_config *config, int64_t layer)
{
	int64_t n = 0;
	if (ws_config_int(config, "first_k_dense_replace", &n) && layer < n)
		return true;
	if (ws_config_int(config, "moe_layer_freq", &n) && n > 1 && layer % n)
		return true;
	if (ws_config_int(config, "decoder_sparse_step", &n) && n > 1 && (layer + 1) % n)
		return true;
	return ws_config_has(config, "mlp_only_layers", layer);
}

int ws_routing_shape_of(const struct ws_config *config, struct ws_routing_shape *out,
                        struct ws_err *err)
{
	static const char *const layers[] = { "num_hidden_layers", NULL };
	static const char *const chosen[] = { "num_experts_per_tok", "num_experts_per_token",
		                              "moe_topk", NULL };
	static const char *const all[] = { "num_experts", "n_routed_experts", "num_local_experts",
		                           NULL };
	const int64_t l = find_int(config, layers), k = find_int(config, chosen),
		      e = find_int(config, all);
	memset(out, 0, sizeof *out);
	if (!k && !e)
		return ws_err_set(err, WS_EINPUT, "%s: the model has no experts",
		                  ws_config_path(config));
	if (l < 1 || l > WS_ROUTING_LAYERS || k < 1 || k > WS_ROUTING_K || e < k || e > MAX_EXPERTS)
		return ws_err_set(err, WS_EINPUT,
		                  "%s: %" PRId64 " layers with %" PRId64 " of %" PRId64
		                  " experts: no such routing",
		                  ws_config_path(config), l, k, e);
	out->layers = (size_t)l;
	out->k = (size_t)k;
	out->experts = (size_t)e;
	for (int64_t i = 0; i < l; i++)
		out->n_dense += out->dense[i] = is_dense(config, i);
	return 0;
}

/* ---- impossible values ---- */

/* True if an expert is twice in the row. */
static bool has_twice(const int32_t *row, size_t k)
{
	for (size_t i = 1; i < k; i++)
		for (size_t j = 0; j < i; j++)
			if (row[i] == row[j])
				return true;
	return false;
}

/* NULL: the row is possible. Updates the counters. */
static const char *why_impossible(const int32_t *row, const struct ws_routing_shape *shape,
                                  size_t layer, struct ws_routing_check *out)
{
	for (size_t i = 0; i < shape->k; i++) {
		if (shape->dense[layer] && row[i]) {
			out->dense++;
			return "this layer has no experts, and its row is not zero";
		}
		if (row[i] < 0 || (size_t)row[i] >= shape->experts) {
			out->outside++;
			return "there is no such expert";
		}
	}
	if (shape->dense[layer] || !has_twice(row, shape->k))
		return NULL;
	out->repeated++;
	return "an expert is listed twice";
}

/* "[3, 900, ...]" */
static void spell_row(char *dst, size_t n, const int32_t *row, size_t k)
{
	size_t len = 0;
	dst[0] = '\0';
	for (size_t i = 0; i < k && i < 8; i++)
		len += (size_t)snprintf(dst + len, n - len, "%s%" PRId32, i ? ", " : "", row[i]);
	if (k > 8)
		snprintf(dst + len, n - len, ", ...");
}

void ws_routing_check(const struct ws_routing *r, const struct ws_routing_shape *shape,
                      struct ws_routing_check *out)
{
	char row_text[112];
	*out = (struct ws_routing_check){ 0 };
	for (size_t i = 0; i < r->tokens * r->layers; i++) {
		const int32_t *row = r->ids + i * r->k;
		const char *why = why_impossible(row, shape, i % r->layers, out);
		if (!why || *out->reason)
			continue;
		out->token = i / r->layers;
		out->layer = i % r->layers;
		spell_row(row_text, sizeof row_text, row, r->k);
		snprintf(out->reason, sizeof out->reason, "[%.90s]: %s", row_text, why);
	}
}

/* ---- comparing two ---- */

static bool has(const int32_t *row, size_t k, int32_t id)
{
	for (size_t i = 0; i < k; i++)
		if (row[i] == id)
			return true;
	return false;
}

static bool is_reordered(const int32_t *a, const int32_t *b, size_t k)
{
	for (size_t i = 0; i < k; i++)
		if (!has(a, k, b[i]) || !has(b, k, a[i]))
			return false;
	return true;
}

int ws_routing_compare(const struct ws_routing *a, const struct ws_routing *b,
                       const struct ws_routing_shape *shape, struct ws_routing_diff *out,
                       struct ws_err *err)
{
	const size_t k = shape->k, tokens = a->tokens < b->tokens ? a->tokens : b->tokens;
	*out = (struct ws_routing_diff){ .by_layer = calloc(shape->layers, sizeof *out->by_layer) };
	if (!out->by_layer)
		return ws_oom(err);
	for (size_t i = 0; i < tokens * shape->layers; i++) {
		const size_t layer = i % shape->layers;
		const int32_t *x = a->ids + i * k, *y = b->ids + i * k;
		if (shape->dense[layer])
			continue;
		out->rows++;
		if (!memcmp(x, y, k * sizeof *x)) {
			out->equal++;
			continue;
		}
		out->reordered += is_reordered(x, y, k);
		out->by_layer[layer]++;
		if (out->differs)
			continue;
		out->differs = true;
		out->token = i / shape->layers;
		out->layer = layer;
	}
	return 0;
}

int ws_routing_sum(struct ws_routing_diff *sum, const struct ws_routing_diff *d,
                   const struct ws_routing_shape *shape, struct ws_err *err)
{
	if (!sum->by_layer && !(sum->by_layer = calloc(shape->layers, sizeof *sum->by_layer)))
		return ws_oom(err);
	sum->rows += d->rows;
	sum->equal += d->equal;
	sum->reordered += d->reordered;
	for (size_t i = 0; i < shape->layers; i++)
		sum->by_layer[i] += d->by_layer[i];
	if (d->differs && !sum->differs) {
		sum->differs = true;
		sum->token = d->token;
		sum->layer = d->layer;
	}
	return 0;
}

void ws_routing_diff_free(struct ws_routing_diff *d)
{
	free(d->by_layer);
	*d = (struct ws_routing_diff){ 0 };
}

/* ---- numpy's file ---- */

int ws_routing_write_npy(const struct ws_routing *r, const char *path, struct ws_err *err)
{
	char dict[160];
	struct ws_buf out;
	ws_buf_init(&out, 0);
	const int n = snprintf(dict, sizeof dict, "{'descr': '<i4', 'fortran_order': False, "
	                       "'shape': (%zu, %zu, %zu), }", r->tokens, r->layers, r->k);
	const size_t whole = (NPY_MAGIC + (size_t)n + NPY_BLOCK) / NPY_BLOCK * NPY_BLOCK;
	const size_t rest = whole - NPY_MAGIC;
	const unsigned char magic[NPY_MAGIC] = { 0x93,
		                                 'N',
		                                 'U',
		                                 'M',
		                                 'P',
		                                 'Y',
		                                 1,
		                                 0,
		                                 (unsigned char)(rest & 0xff),
		                                 (unsigned char)(rest >> 8) };
	ws_buf_add(&out, magic, sizeof magic);
	ws_buf_printf(&out, "%-*s\n", (int)(rest - 1), dict);
	for (size_t i = 0; i < r->tokens * r->layers * r->k; i++) {
		const uint32_t id = (uint32_t)r->ids[i];
		const unsigned char bytes[4] = { (unsigned char)id, (unsigned char)(id >> 8),
			                         (unsigned char)(id >> 16),
			                         (unsigned char)(id >> 24) };
		ws_buf_add(&out, bytes, sizeof bytes);
	}
	int rc = ws_buf_check(&out, path, err);
	if (!rc)
		rc = ws_file_replace(path, out.data, out.len, 0666, err);
	ws_buf_free(&out);
	return rc;
}
