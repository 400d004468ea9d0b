/* SPDX-License-Identifier: Apache-2.0 */
/* serve_runtime_sums.c - checksums of the runtime parameters, as SGLang's WeightChecker reports
 * them (sglang/srt/utils/weight_checker.py, 0.5.12 to 0.5.23): of each rank, under the server's
 * names, by the function of its device (digest.h). Block FP8 is hashed after dequantization to
 * bf16, under the weight's name; its scales are not listed. Parameters that share memory are listed
 * once.
 *
 * The layout is the endpoint's own (serve_model.h): a push has filled it through the loader. */
#include "digest.h"
#include "serve_call.h"
#include "serve_lineage.h"
#include "serve_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- block FP8 ---- */

static float read_e4m3(uint8_t code)
{
	const int exponent = code >> 3 & 15, fraction = code & 7;
	const float size = (code & 0x7f) == 0x7f ? NAN :
	                   exponent ? ldexpf((float)(8 + fraction), exponent - 10) :
	                              ldexpf((float)fraction, -9);
	return code & 0x80 ? -size : size;
}

/* To the nearest, ties to even. */
static uint16_t round_bf16(float x)
{
	uint32_t bits;
	memcpy(&bits, &x, sizeof bits);
	if (isnan(x))
		return 0xffff;
	return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

struct blocks {
	const uint8_t *codes;
	const float *scales;
	int64_t matrices, rows, cols, scale_rows, scale_cols;
};

static bool find_blocks(const struct ws_serve_model *m, size_t param, unsigned rank,
                        struct blocks *b)
{
	const struct ws_param *p = ws_layout_param(m->layout, param);
	int64_t dims[WS_MAX_DIMS], scale_dims[WS_MAX_DIMS];
	char name[1024];
	snprintf(name, sizeof name, "%s_scale_inv", p->name);
	const struct ws_param *s = ws_layout_find_param(m->layout, name);
	if (!s || p->n_dims < 2)
		return false;
	ws_layout_dims(m->layout, p, rank, dims);
	ws_layout_dims(m->layout, s, rank, scale_dims);
	*b = (struct blocks){
		.codes = ws_serve_model_at(m, param, rank),
		.scales = (const float *)(void *)ws_serve_model_at(
			m, (size_t)(s - ws_layout_param(m->layout, 0)), rank),
		.matrices = p->n_dims == 3 ? dims[0] : 1,
		.rows = dims[p->n_dims - 2], .cols = dims[p->n_dims - 1],
		.scale_rows = scale_dims[p->n_dims - 2], .scale_cols = scale_dims[p->n_dims - 1],
	};
	return true;
}

static int add_dequantized(const struct blocks *b, struct ws_digest *d)
{
	const int64_t block = b->cols / b->scale_cols;
	uint16_t *row = malloc((size_t)b->cols * sizeof *row);
	if (!row)
		return -1;
	ws_digest_begin(d, (uint64_t)(2 * b->matrices * b->rows * b->cols));
	for (int64_t r = 0; r < b->matrices * b->rows; r++) {
		const int64_t band = r / b->rows * b->scale_rows + r % b->rows / block;
		for (int64_t k = 0; k < b->cols; k++)
			row[k] = round_bf16(read_e4m3(b->codes[r * b->cols + k]) *
			                    b->scales[band * b->scale_cols + k / block]);
		ws_digest_add(d, row, (size_t)b->cols * sizeof *row);
	}
	free(row);
	return 0;
}

/* ---- the answer ---- */

static bool is_scale(const struct ws_serve_model *m, const struct ws_param *p)
{
	static const char end[] = "_scale_inv";
	char name[1024];
	const size_t n = strlen(p->name), k = strlen(end);
	if (n <= k || n >= sizeof name || strcmp(p->name + n - k, end) != 0)
		return false;
	snprintf(name, sizeof name, "%.*s", (int)(n - k), p->name);
	return ws_layout_find_param(m->layout, name);
}

static int sum_param(const struct ws_serve_model *m, size_t param, unsigned rank,
                     struct ws_digest *d, char hex[WS_CHECKSUM_TEXT])
{
	struct blocks b;
	const uint64_t bytes = ws_serve_model_bytes(m, param, rank);
	if (find_blocks(m, param, rank, &b)) {
		if (add_dequantized(&b, d))
			return -1;
	} else {
		ws_digest_begin(d, bytes);
		ws_digest_add(d, ws_serve_model_at(m, param, rank), (size_t)bytes);
	}
	ws_digest_end(d, hex);
	return 0;
}

static int by_name(const void *a, const void *b, void *layout)
{
	return strcmp(ws_layout_param(layout, *(const size_t *)a)->name,
	              ws_layout_param(layout, *(const size_t *)b)->name);
}

/* Also fills per_gpu: SHA-256 over the names in order, each followed by its checksum. */
static int write_rank(struct ws_jw *jw, const struct ws_serve_model *m, const size_t *sorted,
                      unsigned rank, struct ws_digest *d, struct ws_digest *of_rank,
                      char per_gpu[WS_CHECKSUM_TEXT])
{
	char hex[WS_CHECKSUM_TEXT];
	ws_jw_object(jw, "checksums");
	for (size_t i = 0; i < ws_layout_param_count(m->layout); i++) {
		const struct ws_param *p = ws_layout_param(m->layout, sorted[i]);
		if (p->tied_to || is_scale(m, p))
			continue;
		if (sum_param(m, sorted[i], rank, d, hex))
			return -1;
		ws_jw_str(jw, p->name, hex);
		ws_digest_add(of_rank, p->name, strlen(p->name));
		ws_digest_add(of_rank, hex, strlen(hex));
	}
	ws_jw_end_object(jw);
	ws_digest_end(of_rank, per_gpu);
	return 0;
}

static int write_ranks(struct ws_serve_call *c, struct ws_jw *jw, const size_t *sorted,
                       struct ws_digest *d, struct ws_digest *sha)
{
	const struct ws_serve *s = c->serve;
	struct ws_digest engine = { 0 };
	char per_gpu[WS_CHECKSUM_TEXT] = "";
	int rc = ws_digest_open(&engine, WS_CHECKSUM_SHA256, NULL);
	ws_jw_array(jw, "ranks");
	for (unsigned r = 0; rc == 0 && r < s->opts.tp; r++) {
		ws_jw_object(jw, NULL);
		rc = write_rank(jw, s->model, sorted, r, d, sha, per_gpu);
		ws_jw_str(jw, "per_gpu_checksum", per_gpu);
		ws_serve_write_parallelism(jw, s, r);
		ws_jw_end_object(jw);
		if (rc == 0)
			ws_digest_add(&engine, per_gpu, strlen(per_gpu));
	}
	ws_jw_end_array(jw);
	if (rc == 0)
		ws_digest_end(&engine, per_gpu);
	ws_digest_close(&engine);
	ws_jw_str(jw, "per_engine_checksum", per_gpu);
	return rc;
}

void ws_serve_answer_runtime_sums(struct ws_serve_call *c)
{
	const struct ws_serve_model *m = c->serve->model;
	const size_t n = ws_layout_param_count(m->layout);
	size_t *sorted = calloc(n + 1, sizeof *sorted);
	struct ws_digest d = { 0 }, sha = { 0 };
	struct ws_jw jw;
	const bool cuda = strcmp(c->serve->opts.device, "cuda") == 0;
	int rc = sorted ? 0 : -1;
	for (size_t i = 0; rc == 0 && i < n; i++)
		sorted[i] = i;
	if (rc == 0)
		qsort_r(sorted, n, sizeof *sorted, by_name, m->layout);
	if (rc == 0)
		rc = ws_digest_open(&d, cuda ? WS_CHECKSUM_SGLANG_CUDA : WS_CHECKSUM_SGLANG_CPU,
		                    NULL) ||
		     ws_digest_open(&sha, WS_CHECKSUM_SHA256, NULL) ? -1 : 0;
	ws_jw_init(&jw, &c->rp->body);
	ws_jw_object(&jw, NULL);
	ws_jw_bool(&jw, "success", true);
	ws_jw_str(&jw, "message", "Success.");
	if (rc == 0)
		rc = write_ranks(c, &jw, sorted, &d, &sha);
	ws_jw_end_object(&jw);
	if (rc) {
		ws_buf_reset(&c->rp->body);
		ws_serve_answer(c, false, "not enough memory");
	}
	ws_digest_close(&d);
	ws_digest_close(&sha);
	free(sorted);
}
