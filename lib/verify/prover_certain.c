/* SPDX-License-Identifier: Apache-2.0 */
/* prover_certain.c - when does an unequal checksum prove wrong weights, and what are they then?
 *
 * A kind of parameters is certain at a server if one of that kind was equal there: now, in an
 * earlier run (equal_kinds.h), or by the files from which the server started, if they can be read
 * here. Without that it is certain only if no backend is known to rearrange such parameters.
 * Rearranged are (SGLang 0.5.12 to 0.5.23): linear layers and heads on CPUs with AMX; experts, by
 * the runner of the MoE; everything quantized. Of vLLM only norms are certain by documentation: its
 * kernels on a CPU may keep linear layers in another form, and then report no bytes. */
#include "prover_core.h"

#include "equal_kinds.h"
#include "hashes.h"
#include "verify_kind.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ---- certain by documentation ---- */

static bool has_usual_dtype(const struct ws_layout *l, const struct ws_param *param)
{
	for (size_t i = 0; i < param->n_parts; i++) {
		const struct ws_part *part = ws_layout_part(l, param->first + i);
		if (part->exact || part->dtype != ws_layout_dtype(l))
			return false;
	}
	return true;
}

bool prover_has_experts(const struct ws_layout *l, const struct ws_param *param)
{
	for (size_t i = 0; i < param->n_parts; i++) {
		const struct ws_part *part = ws_layout_part(l, param->first + i);
		if (part->split == WS_SPLIT_EXPERT || part->ep)
			return true;
	}
	return false;
}

static bool is_vllm(const struct prover_server *s)
{
	return ws_lineage_family(s->info->lineage) == WS_FAMILY_VLLM;
}

/* The releases whose checksums and layouts were read: SGLang's 0.5.12 to 0.5.23, vLLM's 0.32 and
 * 0.33. */
static bool is_known_release(const struct ws_endpoint_info *info)
{
	unsigned minor;
	if (ws_lineage_family(info->lineage) == WS_FAMILY_VLLM)
		return sscanf(info->version, "0.%2u", &minor) == 1 && minor >= 32 && minor <= 33;
	return sscanf(info->version, "0.5.%2u", &minor) == 1 && minor >= 12 && minor <= 23;
}

/* Does the server keep what it loads, as far as its arguments say? */
static bool is_plain(const struct ws_endpoint_info *info)
{
	static const char *const plain[] = { "", "auto", "safetensors", "pt", "dummy" };
	size_t i = 0;
	while (i < sizeof plain / sizeof plain[0] && strcmp(info->load_format, plain[i]))
		i++;
	return i < sizeof plain / sizeof plain[0] && !info->quantization[0] &&
	       !info->quant_override;
}

/* The dtype must be the server's, not that of a trainer's checkpoint. Norms are never rearranged.
 * Data-parallel attention and pipelines divide some parameters in ways that the layout does not
 * know; DeepSeek's loaders compute some from others; a checkpoint on a hub may be quantized. */
static bool is_documented(const struct prover_server *s, const struct ws_param *param)
{
	const struct prover_table *t = s->table;
	const struct ws_layout *l = t->layout;
	enum ws_dtype dtype;
	const bool own_dtype = t->own_config || ws_dtype_from_torch(s->info->dtype, &dtype);
	if (!is_known_release(s->info) || !is_plain(s->info) || !own_dtype ||
	    t->dtype == WS_DTYPE_COUNT || !has_usual_dtype(l, param))
		return false;
	if (param->n_dims == 1 && param->n_parts == 1)
		return prover_is_replicated(l, param);
	return strcmp(s->info->device, "cuda") == 0 && !is_vllm(s) && t->own_config &&
	       s->info->pp_size <= 1 &&
	       !s->info->dp_attention && s->info->attention_cp <= 1 &&
	       ws_layout_options(l)->ep <= 1 &&
	       strncmp(ws_layout_family(l), "deepseek", 8) != 0 && !prover_has_experts(l, param);
}

/* ---- certain by experience ---- */

/* Which start of which server, model and layout: a line. Not the model's path: an update from disk
 * changes it. False: it cannot be told from another start with other arguments. */
static bool name_server(const struct prover_server *s, char *dst, size_t n)
{
	const struct prover_table *t = s->table;
	const struct ws_layout_opts *sizes = ws_layout_options(t->layout);
	snprintf(dst, n, "%.500s %016" PRIx64 " version %.60s family %.90s, %zu parameters, %s on "
	         "%s, tp %u ep %u attention %u pp %u, quantization '%s'", s->info->url,
	         s->info->instance, s->info->version,
	         ws_layout_family(t->layout), t->n_params,
	         t->dtype == WS_DTYPE_COUNT ? "" : ws_dtype_torch(t->dtype), s->info->device,
	         sizes->tp, sizes->ep, sizes->attention_tp, s->info->pp_size,
	         s->info->quantization);
	for (char *c = dst; *c; c++)
		if (*c == '\n')
			*c = ' ';
	return s->info->instance != 0;
}

static void take_equal(const struct prover_table *t, const struct ws_checksum_rank *at, bool *seen)
{
	for (size_t i = 0; i < at->n; i++) {
		const struct ws_param *of = ws_layout_find_shown(t->layout, at->items[i].name);
		const size_t param = of ? (size_t)(of - ws_layout_param(t->layout, 0)) : 0;
		const struct prover_cell *cell =
			of ? prover_cell(t, param, prover_tp_rank(t, at)) : NULL;
		if (cell && !cell->constant && prover_same(cell, &at->items[i]))
			seen[t->kinds[param]] = true;
	}
}

static const char *name_kind(const struct prover_table *t, size_t k, char text[PROVER_KIND_MAX])
{
	return prover_kind(t, t->of_kind[k], text);
}

/* Reads what is remembered of this server, whose line goes to server[]. False: nothing can be. */
enum { SERVER_MAX = 2048 };
static bool open_memory(const struct ws_prover *p, const struct prover_server *s,
                        char server[SERVER_MAX], struct ws_buf *text)
{
	ws_buf_init(text, WS_EQUAL_KINDS_MAX);
	if (!p->opts.state_dir || !name_server(s, server, SERVER_MAX))
		return false;
	ws_equal_kinds_read(p->opts.state_dir, server, text);
	return true;
}

static void recall(const struct ws_prover *p, const struct prover_server *s, bool *seen)
{
	char server[SERVER_MAX], kind[PROVER_KIND_MAX];
	struct ws_buf text;
	if (!open_memory(p, s, server, &text))
		return;
	for (size_t k = 0; k < s->table->n_kinds; k++)
		seen[k] |= ws_equal_kinds_has(ws_buf_str(&text), name_kind(s->table, k, kind));
	ws_buf_free(&text);
}

void prover_certain(const struct ws_prover *p, const struct prover_server *s,
                    const struct ws_checksums *sums, bool *seen)
{
	for (size_t r = 0; r < sums->n_ranks; r++)
		take_equal(s->table, &sums->ranks[r], seen);
	recall(p, s, seen);
}

/* Whether a server rewrites the codes may depend on the scales of a checkpoint. */
static bool is_block_fp8(const struct prover_table *t, size_t kind)
{
	const struct ws_param *of = ws_layout_param(t->layout, t->of_kind[kind]);
	const struct ws_part *part = of->n_parts ? ws_layout_part(t->layout, of->first) : NULL;
	return part && ws_dtype_bits(part->dtype) == 8;
}

void prover_remember(const struct ws_prover *p, const struct prover_server *s, const bool *seen)
{
	char server[SERVER_MAX], kind[PROVER_KIND_MAX];
	struct ws_buf text;
	if (!open_memory(p, s, server, &text))
		return;
	const size_t had = text.len;
	for (size_t k = 0; k < s->table->n_kinds; k++)
		if (seen[k] && !is_block_fp8(s->table, k) && !ws_equal_kinds_has(ws_buf_str(&text),
		                                   name_kind(s->table, k, kind)))
			ws_buf_printf(&text, "%s\n", kind);
	if (text.len > had && !ws_buf_check(&text, "kinds", NULL))
		ws_equal_kinds_write(p->opts.state_dir, server, ws_buf_str(&text));
	ws_buf_free(&text);
}

/* ---- certain by the files that the server started from ---- */

static int predict_start(const struct ws_prover *p, const struct prover_server *s, const char *dir,
                         size_t param, unsigned rank, struct ws_prediction *is)
{
	const struct ws_input_opts from = { .paths = &dir, .n_paths = 1,
		                            .cancel = p->opts.cancel };
	struct ws_predict_opts opts = {
		.layout = s->table->layout, .fn = s->table->fn, .cancel = p->opts.cancel,
		.dtype = s->table->dtype == WS_DTYPE_COUNT ? NULL : &s->table->dtype,
	};
	struct ws_input in;
	struct ws_plan *plan = NULL;
	struct ws_predict *predict = NULL;
	if (ws_input_open(&from, &in, NULL))
		return -1;
	int rc = ws_plan_make(in.catalog, &(struct ws_plan_opts){ 0 }, &plan, NULL);
	opts.plan = plan;
	if (rc == 0)
		rc = ws_predict_open(&opts, &predict, NULL);
	if (rc == 0)
		rc = ws_predict(predict, param, rank, is, NULL);
	ws_predict_close(predict);
	ws_plan_free(plan);
	ws_input_close(&in);
	return rc;
}

static const struct ws_checksum *find_before(const struct prover_server *s, unsigned rank,
                                             const char *name)
{
	const struct ws_checksum *found;
	for (size_t r = 0; r < s->before.n_ranks; r++)
		if (prover_tp_rank(s->table, &s->before.ranks[r]) == rank &&
		    (found = prover_find(&s->before.ranks[r], name)))
			return found;
	return NULL;
}

/* Was, or is, the parameter what these files must give? */
static bool equals_start(const struct ws_prover *p, const struct prover_server *s, size_t param,
                         unsigned rank, const struct ws_checksum *found)
{
	const char *dir = ws_name_check_model_dir(s->info);
	const struct ws_checksum *before =
		find_before(s, rank, ws_layout_param(s->table->layout, param)->name);
	struct ws_prediction is;
	return dir && predict_start(p, s, dir, param, rank, &is) == 0 &&
	       is.state == WS_PREDICT_KNOWN && !is.constant &&
	       (prover_gives(is.checksum, is.rewritten, found) ||
	        (before && prover_gives(is.checksum, is.rewritten, before)));
}

bool prover_accuses(const struct ws_prover *p, const struct prover_server *s, size_t param,
                    unsigned rank, const struct ws_checksum *found, bool *seen, bool *tried)
{
	const struct ws_layout *l = s->table->layout;
	const struct ws_param *of = ws_layout_param(l, param);
	of = of->tied_to ? ws_layout_find_param(l, of->tied_to) : of;
	param = (size_t)(of - ws_layout_param(l, 0));
	const uint32_t kind = s->table->kinds[param];
	if (seen[kind] || is_documented(s, of))
		return true;
	if (!tried[kind])
		seen[kind] = equals_start(p, s, param, rank, found);
	tried[kind] = true;
	return seen[kind];
}

/* ---- what a wrong checksum may be ---- */

/* Another parameter, or another rank's slice. */
static bool find_elsewhere(const struct prover_table *t, size_t param,
                           const struct ws_checksum *found, char *dst, size_t n)
{
	const struct ws_param *of = ws_layout_param(t->layout, param);
	for (size_t k = 0; k < t->n_params * t->tp; k++) {
		/* this parameter first */
		const size_t i = (param * t->tp + k) % (t->n_params * t->tp);
		const struct ws_param *other = ws_layout_param(t->layout, i / t->tp);
		if (!prover_same(&t->cells[i], found))
			continue;
		if (other == of)
			snprintf(dst, n, "it is the slice of rank %zu", i % t->tp);
		else
			snprintf(dst, n, "it is %.120s", other->name);
		return true;
	}
	return false;
}

void prover_cause(const struct prover_server *s, size_t param, const struct ws_checksum_rank *at,
                  const struct ws_checksum *found, char *dst, size_t n)
{
	const struct prover_table *t = s->table;
	const struct ws_param *of = ws_layout_param(t->layout, param);
	const unsigned rank = prover_tp_rank(t, at);
	const struct ws_checksum *before = find_before(s, rank, of->name);
	char swapped[WS_CHECKSUM_TEXT];
	bool known;
	dst[0] = '\0';
	if (before && strcasecmp(before->text, found->text) == 0)
		snprintf(dst, n, "it is as before the push");
	else if (!find_elsewhere(t, param, found, dst, n) &&
	         ws_predict_swapped(t->predict, param, rank, &known, swapped, NULL) == 0 &&
	         known && strcasecmp(swapped, found->text) == 0)
		snprintf(dst, n, "its two halves are swapped");
}
