/* SPDX-License-Identifier: Apache-2.0 */
/* serve_model.c - lists the parameters, places them in each rank's memory, and reads them back.
 *
 * The memory of a rank is one anonymous mapping, so pages that were never written cost nothing and
 * read as zeros. This includes the padding of vocabularies, which no tensor covers. */
#include "serve_model.h"
#include "hash.h"

#include "wsync/tool/str.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { ALIGN = 64, CHUNK = 256 * 1024 };

/* ---- the list ---- */

/* Returns the model's dtype, with the same default as the layout. */
static enum ws_dtype config_dtype(const struct ws_config *c)
{
	const char *text = ws_config_string(c, "torch_dtype");
	enum ws_dtype dtype = WS_DTYPE_BF16;
	if (!text)
		text = ws_config_string(c, "dtype"); /* the name in transformers 5 */
	return text && ws_dtype_from_torch(text, &dtype) ? dtype : WS_DTYPE_BF16;
}

static int choose_dtype(struct ws_serve_model *m, const char *name, struct ws_err *err)
{
	m->dtype = config_dtype(m->config);
	if (name && !ws_dtype_from_torch(name, &m->dtype))
		return ws_err_set(err, WS_EUSAGE, "dtype '%.40s': not a dtype of torch",
		                  name);
	if (ws_dtype_bits(m->dtype) < 16 || !ws_serve_converts(m->dtype, WS_DTYPE_I8))
		return ws_err_set(err, name ? WS_EUSAGE : WS_EINPUT,
		                  "dtype %s: parameters need a floating type of 16 bits or more",
		                  ws_dtype_torch(m->dtype));
	return 0;
}

static int make_layout(struct ws_serve_model *m, const char *quantization, struct ws_err *err)
{
	const struct ws_family *f = ws_namemap_find(m->map, m->config);
	if (!f || !ws_family_has_params(f))
		return ws_err_set(err, WS_EINPUT, "%s: no rules for architecture '%.100s'",
		                  ws_config_path(m->config), ws_config_architecture(m->config));
	const bool read_only = ws_serve_model_is_read_only(m->config, quantization);
	const struct ws_layout_opts opts = { .tp = m->tp, .ep = m->ep, .unquantized = read_only };
	if (ws_layout_make(f, m->config, &opts, &m->layout, err))
		return -1;
	m->rules = ws_serve_loader_rules_of(ws_family_name(f));
	for (size_t i = 0; i < ws_layout_param_count(m->layout); i++) {
		const struct ws_param *p = ws_layout_param(m->layout, i);
		if (p->trouble)
			return ws_err_set(err, WS_EINPUT, "%s at tp %u, ep %u: %s: %s",
			                  ws_config_path(m->config), m->tp, m->ep, p->name,
			                  p->trouble);
	}
	return 0;
}

/* A param has its parts' dtype if that is exact, or not the config's dtype; else m->dtype. */
static int type_params(struct ws_serve_model *m, struct ws_err *err)
{
	const size_t n = ws_layout_param_count(m->layout);
	const enum ws_dtype usual = config_dtype(m->config);
	m->dtypes = calloc(n + 1, sizeof *m->dtypes);
	if (!m->dtypes)
		return ws_oom(err);
	for (size_t i = 0; i < n; i++) {
		const struct ws_param *p = ws_layout_param(m->layout, i);
		const struct ws_part *part =
			p->n_parts ? ws_layout_part(m->layout, p->first) : NULL;
		const bool own = part && (part->exact || part->dtype != usual);
		m->dtypes[i] = own ? part->dtype : m->dtype;
		if (ws_dtype_bits(m->dtypes[i]) % 8)
			return ws_err_set(err, WS_EINPUT, "%s: elements of %u bits cannot be kept",
			                  p->name, ws_dtype_bits(m->dtypes[i]));
	}
	return 0;
}

/* ---- places in memory ---- */

static int place_param(struct ws_serve_model *m, size_t i, unsigned rank, struct ws_err *err)
{
	const struct ws_param *p = ws_layout_param(m->layout, i);
	int64_t dims[WS_MAX_DIMS];
	uint64_t bytes = 0;
	if (p->tied_to)
		return 0;
	ws_layout_dims(m->layout, p, rank, dims);
	if (!ws_dtype_bytes(m->dtypes[i], p->n_dims, dims, &bytes) ||
	    m->rank_bytes[rank] + bytes > UINT64_C(1) << 62)
		return ws_err_set(err, WS_EINPUT, "%s: too large", p->name);
	m->offsets[i * m->tp + rank] = m->rank_bytes[rank];
	m->rank_bytes[rank] += (bytes + ALIGN - 1) / ALIGN * ALIGN;
	return 0;
}

/* Gives a tied parameter the offsets of the parameter that it is tied to. */
static void share_memory(struct ws_serve_model *m, size_t i)
{
	const struct ws_param *p = ws_layout_param(m->layout, i);
	if (!p->tied_to)
		return;
	const struct ws_param *other = ws_layout_find_param(m->layout, p->tied_to);
	const size_t k = other ? (size_t)(other - ws_layout_param(m->layout, 0)) : i;
	memmove(&m->offsets[i * m->tp], &m->offsets[k * m->tp], m->tp * sizeof *m->offsets);
}

static int place_params(struct ws_serve_model *m, struct ws_err *err)
{
	const size_t n = ws_layout_param_count(m->layout);
	m->offsets = calloc(n * m->tp + 1, sizeof *m->offsets);
	m->rank_bytes = calloc(m->tp, sizeof *m->rank_bytes);
	if (!m->offsets || !m->rank_bytes)
		return ws_oom(err);
	for (size_t i = 0; i < n; i++)
		for (unsigned r = 0; r < m->tp; r++)
			if (place_param(m, i, r, err))
				return -1;
	for (size_t i = 0; i < n; i++)
		share_memory(m, i);
	return 0;
}

static int map_memory(struct ws_serve_model *m, struct ws_err *err)
{
	for (unsigned r = 0; r < m->tp; r++) {
		const size_t n = m->rank_bytes[r] ? (size_t)m->rank_bytes[r] : ALIGN;
		void *at =
			mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (at == MAP_FAILED) {
			char size[32];
			ws_err_errno(err, "%s for the parameters of rank %u",
			             ws_format_size(size, sizeof size, n), r);
			return ws_err_hint(
				err,
				"{keep} hash keeps only hashes, not the parameters");
		}
		m->memory[r] = at;
	}
	return 0;
}

static int make_parts(struct ws_serve_model *m, struct ws_err *err)
{
	m->parts = calloc(ws_layout_part_count(m->layout) + 1, sizeof *m->parts);
	return m->parts ? 0 : ws_oom(err);
}

int ws_serve_model_open(const char *dir, unsigned rules, unsigned tp, unsigned ep,
                        const char *dtype,
                        const char *quantization, bool memory, struct ws_serve_model **out,
                        struct ws_err *err)
{
	struct ws_serve_model *m = calloc(1, sizeof *m);
	if (!m || !(m->memory = calloc(tp, sizeof *m->memory))) {
		free(m);
		return ws_oom(err);
	}
	m->tp = tp;
	m->ep = ep;
	m->n_layers = INT64_MAX;
	if (ws_config_open(dir, &m->config, err) == 0)
		ws_config_set_rules(m->config, rules);
	if (!m->config || choose_dtype(m, dtype, err) ||
	    ws_serve_model_check_quant(m->config, quantization, err) ||
	    ws_namemap_open(NULL, &m->map, err) || make_layout(m, quantization, err) ||
	    type_params(m, err) ||
	    (ws_serve_model_is_read_only(m->config, quantization) &&
	     ws_serve_model_find_read_only(m, err)) ||
	    place_params(m, err) || (memory && map_memory(m, err)) || make_parts(m, err)) {
		ws_serve_model_close(m);
		return -1;
	}
	ws_config_int(m->config, "num_hidden_layers", &m->n_layers);
	*out = m;
	return 0;
}

void ws_serve_model_close(struct ws_serve_model *m)
{
	if (!m)
		return;
	for (unsigned r = 0; r < m->tp; r++)
		if (m->memory[r])
			munmap(m->memory[r], m->rank_bytes[r] ? (size_t)m->rank_bytes[r] : ALIGN);
	ws_layout_free(m->layout);
	ws_namemap_close(m->map);
	ws_config_free(m->config);
	free(m->parts);
	free(m->memory);
	free(m->rank_bytes);
	free(m->offsets);
	free(m->dtypes);
	free(m->read_only);
	free(m);
}

uint8_t *ws_serve_model_at(const struct ws_serve_model *m, size_t param, unsigned rank)
{
	return m->memory[rank] ? m->memory[rank] + m->offsets[param * m->tp + rank] : NULL;
}

uint64_t ws_serve_model_bytes(const struct ws_serve_model *m, size_t param, unsigned rank)
{
	const struct ws_param *p = ws_layout_param(m->layout, param);
	int64_t dims[WS_MAX_DIMS];
	uint64_t bytes = 0;
	ws_layout_dims(m->layout, p, rank, dims);
	ws_dtype_bytes(m->dtypes[param], p->n_dims, dims, &bytes); /* place_param checked it */
	return bytes;
}

void ws_serve_model_boxes(const struct ws_serve_model *m, const struct ws_part *p, unsigned rank,
                          struct ws_serve_boxes *out)
{
	const struct ws_param *param = ws_layout_param(m->layout, p->param);
	struct ws_box from, to;
	int64_t dims[WS_MAX_DIMS];
	ws_layout_place(m->layout, p, rank, &from, &to);
	ws_layout_dims(m->layout, param, rank, dims);
	ws_serve_boxes_make(out, p->n_dims, p->dims, &from, param->n_dims, dims, &to,
	                    ws_dtype_bits(m->dtypes[p->param]) / 8, p->transposed);
}

uint64_t ws_serve_model_part_bytes(const struct ws_serve_model *m, const struct ws_part *p)
{
	uint64_t bytes = 0;
	ws_dtype_bytes(m->dtypes[p->param], p->n_dims, p->dims, &bytes);
	return bytes;
}

/* ---- reading them back ---- */

void ws_serve_gather_begin(struct ws_serve_gather *g, const struct ws_serve_model *m,
                           const struct ws_part *p, enum ws_dtype dtype)
{
	uint64_t held = 0;
	g->model = m;
	g->part = p;
	g->dtype = dtype;
	for (unsigned r = 0; r < m->tp; r++) {
		ws_serve_model_boxes(m, p, r, &g->boxes[r]);
		held += g->boxes[r].bytes;
	}
	const uint64_t bytes = ws_serve_model_part_bytes(m, p);
	g->replicated = held != bytes;
	g->bytes = bytes / (ws_dtype_bits(m->dtypes[p->param]) / 8) * (ws_dtype_bits(dtype) / 8);
}

/* Reads bytes in the param's own type. */
static void read_raw(const struct ws_serve_gather *g, unsigned rank, uint64_t at, uint8_t *dst,
                     size_t n)
{
	const struct ws_serve_model *m = g->model;
	const bool all = g->boxes[rank].bytes == ws_serve_model_part_bytes(m, g->part);
	for (unsigned i = all ? m->tp : 1; i <= m->tp; i++) {
		const unsigned r = (rank + i) % m->tp;
		ws_serve_boxes_get(&g->boxes[r], at, dst, n,
		                   ws_serve_model_at(m, g->part->param, r));
	}
}

void ws_serve_gather_read(const struct ws_serve_gather *g, unsigned rank, uint64_t at, uint8_t *dst,
                          size_t n)
{
	uint8_t raw[8192];
	const enum ws_dtype from = g->model->dtypes[g->part->param];
	const size_t in = ws_dtype_bits(from) / 8, out = ws_dtype_bits(g->dtype) / 8;
	if (from == g->dtype) {
		read_raw(g, rank, at, dst, n);
		return;
	}
	size_t left = n / out;
	for (uint64_t i = at / out; left; ) {
		const size_t some = left < sizeof raw / in ? left : sizeof raw / in;
		read_raw(g, rank, i * in, raw, some * in);
		ws_serve_convert(g->dtype, dst, from, raw, some);
		dst += some * out;
		i += some;
		left -= some;
	}
}

static void hash_rank(const struct ws_serve_gather *g, unsigned rank, struct ws_hash *h,
                      uint8_t *chunk)
{
	ws_hash_reset(h);
	for (uint64_t at = 0; at < g->bytes; ) {
		const size_t n = g->bytes - at < CHUNK ? (size_t)(g->bytes - at) : CHUNK;
		ws_serve_gather_read(g, rank, at, chunk, n);
		ws_hash_add(h, chunk, n);
		at += n;
	}
}

/* The padding behind a vocabulary belongs to no tensor. It counts only if it is not zero. */
static void add_padding(const struct ws_serve_gather *g, struct ws_hash *h)
{
	const struct ws_serve_model *m = g->model;
	for (unsigned r = 0; r < m->tp && g->part->split == WS_SPLIT_VOCAB; r++) {
		const uint8_t *at = ws_serve_model_at(m, g->part->param, r);
		const uint64_t end = ws_serve_model_bytes(m, g->part->param, r);
		for (uint64_t i = g->boxes[r].bytes; i < end; i++)
			if (at[i])
				ws_hash_add(h, at + i, 1);
	}
}

int ws_serve_gather_hash(const struct ws_serve_gather *g, uint64_t *hashes)
{
	uint8_t *chunk = malloc(CHUNK);
	struct ws_hash *h = ws_hash_new();
	const int rc = chunk && h ? 0 : -1;
	for (unsigned r = 0; r < g->model->tp && rc == 0; r++) {
		if (r == 0 || g->replicated) {
			hash_rank(g, r, h, chunk);
			add_padding(g, h);
			hashes[r] = ws_hash_digest(h);
		} else {
			hashes[r] = hashes[0];
		}
	}
	ws_hash_free(h);
	free(chunk);
	return rc;
}
