/* SPDX-License-Identifier: Apache-2.0 */
/* compute_chain.c - merge and FP8 in one call: merges a band of rows at a time into scratch memory
 * and quantizes it from there.
 *
 * The numbers to quantize are exactly those that would be sent without quantization, so the
 * scratch is bf16. The stream does the bands in order; all of them are queued at once. */
#include "compute_core.h"

#include "wsync/tool/str.h"

#include <assert.h>

static int64_t row_stride(const struct ws_chain_job *job)
{
	return (job->merge.w.cols + 7) / 8 * 8; /* 16-byte rows: the kernels' fast path */
}

/* Bands are of whole blocks. */
static int64_t band_rows(const struct ws_chain_job *job)
{
	const int64_t unit = job->fp8.block[0];
	const int64_t fit = (int64_t)(job->scratch_bytes / 2) / row_stride(job);
	return fit >= job->merge.w.rows ? job->merge.w.rows : fit / unit * unit;
}

uint64_t ws_chain_least(const struct ws_chain_job *job)
{
	const int64_t rows = job->merge.w.rows, unit = job->fp8.block[0];
	return 2 * (uint64_t)(unit < rows ? unit : rows) * (uint64_t)row_stride(job);
}

static int one_band(struct ws_compute *c, const struct ws_chain_job *job, int64_t row, int64_t rows,
                    struct ws_stream *s, struct ws_err *err)
{
	const int64_t stride = row_stride(job), cols = job->merge.w.cols;
	const int64_t scales = (cols + job->fp8.block[1] - 1) / job->fp8.block[1];
	struct ws_merge_job m = job->merge;
	struct ws_fp8_job q = job->fp8;
	m.w.rows = rows;
	m.w.at += (uint64_t)(row * m.w.stride) * (m.w.dtype == WS_DTYPE_F32 ? 4 : 2);
	for (unsigned i = 0; i < m.n_terms; i++)
		m.terms[i].b += (uint64_t)(row * m.terms[i].rank) * 4;
	m.out = job->scratch;
	m.out_stride = stride;
	q.x = (struct ws_matrix){ job->scratch, WS_DTYPE_BF16, rows, cols, stride };
	q.codes += (uint64_t)(row * q.codes_stride);
	q.scales += (uint64_t)(row / q.block[0] * scales) * 4;
	q.record = m.record;
	q.row = row;
	return ws_compute_merge(c, &m, s, err) || ws_compute_fp8(c, &q, s, err) ? -1 : 0;
}

int ws_compute_chain(struct ws_compute *c, const struct ws_chain_job *job, struct ws_stream *s,
                     struct ws_err *err)
{
	assert(job->fp8.block[0] > 0 && job->fp8.block[1] > 0 && job->scratch % 16 == 0);
	const int64_t rows = job->merge.w.rows;
	if (rows == 0 || job->merge.w.cols == 0)
		return 0;
	const int64_t band = band_rows(job);
	if (band == 0) {
		char has[32], wants[32];
		return ws_err_set(err, WS_EINPUT,
		                  "merging into FP8: a row of blocks is %s, the scratch %s",
		                  ws_format_size(wants, sizeof wants, ws_chain_least(job)),
		                  ws_format_size(has, sizeof has, job->scratch_bytes));
	}
	for (int64_t row = 0; row < rows; row += band)
		if (one_band(c, job, row, rows - row < band ? rows - row : band, s, err))
			return -1;
	return 0;
}
