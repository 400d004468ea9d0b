/* SPDX-License-Identifier: Apache-2.0 */
/* serve_model_fp8.c - parameters in FP8 that a server cannot update.
 *
 * Updates of block FP8 work, because its codes and scales have loaders; the layout handles it. They
 * fail if a server quantizes a 16-bit checkpoint when it starts (--quantization fp8), or if the
 * checkpoint has one scale for each tensor. After the load such a server replaces the parameters
 * of each linear layer: codes transposed to [in, out] with scales [1, out] ([out, 1] if the
 * checkpoint is FP8), and those of experts (not transposed, one scale for each). The new parameters
 * are plain: they have no weight_loader. So in a later update
 *   - one of several parts (q_proj, an expert) needs the loader: an AttributeError;
 *   - a single part (o_proj) goes to the default loader, which compares shapes: an AssertionError,
 *     unless they are equal (square). Then the matrix is copied untransposed, without a scale;
 *   - embeddings, norms and the head are unchanged, and load.
 * The exceptions end in a 400 in the middle of a bucket; the tensors before it are loaded.
 * Sources: python/sglang/srt/layers/quantization/fp8.py, process_weights_after_loading;
 * model_loader/weight_utils.py, default_weight_loader. */
#include "serve_model.h"

#include <stdlib.h>
#include <string.h>

static bool said(const char *quantization)
{
	return quantization && *quantization;
}

int ws_serve_model_check_quant(const struct ws_config *c, const char *quantization,
                               struct ws_err *err)
{
	const struct ws_quant *q = ws_config_quant(c);
	if (said(quantization) && *q->method && strcmp(quantization, q->method) != 0)
		return ws_err_set(err, WS_EUSAGE,
		                  "quantization method specified in the model config (%.40s) does "
		                  "not match the quantization method specified in the "
		                  "`quantization` argument (%.40s)",
		                  q->method, quantization);
	if (strcmp(q->method, "fp8") == 0 && q->block[0] && *q->activation &&
	    strcmp(q->activation, "dynamic"))
		return ws_err_set(err, WS_EINPUT,
		                  "%s: the block-wise quantization only supports dynamic "
		                  "activation scheme for now, but got %.40s activation scheme",
		                  ws_config_path(c), q->activation);
	return 0;
}

bool ws_serve_model_is_read_only(const struct ws_config *c, const char *quantization)
{
	const struct ws_quant *q = ws_config_quant(c);
	if (strcmp(q->method, "fp8") == 0)
		return !q->block[0];
	return !*q->method && said(quantization) && strcmp(quantization, "fp8") == 0;
}

/* Creates a layout with FP8 in blocks of one element, which always fit: it shows the FP8 params. */
static int make_probe(const struct ws_serve_model *m, struct ws_config **config,
                      struct ws_layout **out, struct ws_err *err)
{
	const struct ws_quant *own = ws_config_quant(m->config);
	const struct ws_quant ones = { .method = "fp8", .block = { 1, 1 }, .skip = own->skip,
		                       .n_skip = own->n_skip,
		                       .rules = own->rules, .ignored_layers = own->ignored_layers,
		                       .scale_fmt = "", .activation = "" };
	const struct ws_layout_opts opts = { .tp = m->tp, .ep = m->ep };
	if (ws_config_open(ws_config_path(m->config), config, err) ||
	    ws_config_set_quant(*config, &ones, err))
		return -1;
	return ws_layout_make(ws_namemap_find(m->map, m->config), *config, &opts, out, err);
}

static bool is_fp8(const struct ws_layout *l, const struct ws_param *p)
{
	const struct ws_part *first = p && p->n_parts ? ws_layout_part(l, p->first) : NULL;
	return first && first->dtype == WS_DTYPE_F8_E4M3;
}

int ws_serve_model_find_read_only(struct ws_serve_model *m, struct ws_err *err)
{
	const size_t n = ws_layout_param_count(m->layout);
	struct ws_config *config = NULL;
	struct ws_layout *probe = NULL;
	int rc = make_probe(m, &config, &probe, err);
	if (rc == 0 && !(m->read_only = calloc(n + 1, sizeof *m->read_only)))
		rc = ws_oom(err);
	for (size_t i = 0; rc == 0 && i < n; i++) {
		const struct ws_param *p = ws_layout_param(m->layout, i);
		m->read_only[i] = is_fp8(probe, ws_layout_find_param(probe, p->name));
		if (m->read_only[i])
			m->dtypes[i] = WS_DTYPE_F8_E4M3;
	}
	ws_layout_free(probe);
	ws_config_free(config);
	return rc;
}

unsigned ws_serve_read_only_dims(const struct ws_serve_model *m, size_t param, bool scale,
                             unsigned rank, int64_t *dims)
{
	const struct ws_param *p = ws_layout_param(m->layout, param);
	ws_layout_dims(m->layout, p, rank, dims);
	if (p->n_dims != 2) /* experts */
		return scale ? 1 : p->n_dims;
	const int64_t out = dims[0];
	/* scales are a column, else a row */
	const bool stored = *ws_config_quant(m->config)->method;
	dims[0] = !scale ? dims[1] : stored ? out : 1;
	dims[1] = scale && stored ? 1 : out;
	return 2;
}

size_t ws_serve_read_only_scale(const struct ws_serve_model *m, const char *name)
{
	static const char end[] = "_scale";
	char weight[400];
	const size_t n = strlen(name), k = strlen(end);
	if (!m->read_only || n <= k || n >= sizeof weight || strcmp(name + n - k, end) != 0)
		return SIZE_MAX;
	memcpy(weight, name, n - k);
	weight[n - k] = 0;
	const struct ws_param *p = ws_layout_find_param(m->layout, weight);
	const size_t i = p ? (size_t)(p - ws_layout_param(m->layout, 0)) : 0;
	return p && m->read_only[i] ? i : SIZE_MAX;
}
