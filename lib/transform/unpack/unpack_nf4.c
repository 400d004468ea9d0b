/* SPDX-License-Identifier: Apache-2.0 */
/* unpack_nf4.c - bitsandbytes' NF4: sixteen levels, and a scale for each block of the tensor as one
 * long vector. The scales may be quantized, too.
 *
 * bitsandbytes decodes with built-in levels and ignores quant_map. A map with other levels would be
 * ambiguous, so it is refused. */
#include "unpack_core.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_STATE = 64 << 10 };

/* As bitsandbytes writes them; each is the nearest fp32. */
static const float nf4_levels[16] = {
	-1.0f,
	-0.6961928009986877f,
	-0.5250730514526367f,
	-0.39491748809814453f,
	-0.28444138169288635f,
	-0.18477343022823334f,
	-0.09105003625154495f,
	0.0f,
	0.07958029955625534f,
	0.16093020141124725f,
	0.24611230194568634f,
	0.33791524171829224f,
	0.44070982933044434f,
	0.5626170039176941f,
	0.7229568362236023f,
	1.0f,
};

enum part { ABSMAX, QUANT_MAP, QUANT_STATE, NESTED_ABSMAX, NESTED_QUANT_MAP };
static const char *const part_names[] = { ".absmax", ".quant_map", ".quant_state.bitsandbytes__nf4",
	                                  ".nested_absmax", ".nested_quant_map" };

/* ---- find ---- */

static int read_state(struct ws_packed *p, struct ws_nf4 *nf4, struct ws_err *err)
{
	const struct ws_item *s = p->parts[QUANT_STATE];
	char text[160];
	if (s->dtype != WS_DTYPE_U8 || s->n_dims != 1 || s->bytes == 0 || s->bytes > MAX_STATE)
		return ws_err_set(err, WS_EINPUT, "%s is %s; it should be JSON of at most %d bytes",
		                  s->name, ws_unpack_describe(s, text, sizeof text), MAX_STATE);
	char *json = malloc((size_t)s->bytes);
	if (!json)
		return ws_oom(err);
	int rc = ws_item_read(s, 0, json, (size_t)s->bytes, err);
	if (rc == 0)
		rc = ws_nf4_parse(json, (size_t)s->bytes, s->name, nf4, p, err);
	free(json);
	return rc;
}

/* Checks that the part exists and has `count` elements of `dtype`. */
static int expect(const struct ws_packed *p, enum part which, enum ws_dtype dtype, int64_t count,
                  struct ws_err *err)
{
	const struct ws_item *part = p->parts[which];
	char text[160];
	if (!part)
		return ws_err_set(err, WS_EINPUT, "%s (NF4) has no %s%s", p->weight->name,
		                  p->weight->name, part_names[which]);
	if (part->dtype == dtype && ws_unpack_count(part) == (uint64_t)count)
		return 0;
	return ws_err_set(err, WS_EINPUT,
	                  "%s is %s; by its quant_state it should be %s of %" PRId64 " elements",
	                  part->name, ws_unpack_describe(part, text, sizeof text),
	                  ws_dtype_torch(dtype), count);
}

static int read_levels(const struct ws_packed *p, struct ws_nf4 *nf4, struct ws_err *err)
{
	const struct ws_item *map = p->parts[QUANT_MAP];
	if (expect(p, QUANT_MAP, WS_DTYPE_F32, 16, err) ||
	    ws_unpack_floats(map, 0, 16, nf4->levels, err))
		return -1;
	for (int i = 0; i < 16; i++)
		if (nf4->levels[i] != nf4_levels[i])
			return ws_err_set(err, WS_EINPUT,
			                  "%s: level %d is %.9g; NF4 has %.9g there", map->name, i,
			                  (double)nf4->levels[i], (double)nf4_levels[i]);
	return 0;
}

static int read_nested(const struct ws_packed *p, struct ws_nf4 *nf4, struct ws_err *err)
{
	const struct ws_item *map = p->parts[NESTED_QUANT_MAP];
	const int64_t n = nf4->n_blocks, b = nf4->nested_blocksize;
	if (expect(p, ABSMAX, WS_DTYPE_U8, n, err) ||
	    expect(p, NESTED_ABSMAX, WS_DTYPE_F32, n / b + (n % b != 0), err) ||
	    expect(p, NESTED_QUANT_MAP, WS_DTYPE_F32, 256, err) ||
	    ws_unpack_floats(map, 0, 256, nf4->nested_map, err))
		return -1;
	return ws_unpack_check(map, "level", nf4->nested_map, 256, 0, 256, err);
}

static int single_absmax(const struct ws_packed *p, const struct ws_nf4 *nf4, struct ws_err *err)
{
	if (p->parts[NESTED_ABSMAX] || p->parts[NESTED_QUANT_MAP])
		return ws_err_set(
			err, WS_EINPUT, "%s: there is %s, which it does not mention",
			p->parts[QUANT_STATE]->name,
			p->parts[p->parts[NESTED_ABSMAX] ? NESTED_ABSMAX : NESTED_QUANT_MAP]->name);
	return expect(p, ABSMAX, WS_DTYPE_F32, nf4->n_blocks, err);
}

/* Two codes in each byte, in one column; the bytes may be stored as elements of any type. */
static int check_codes(const struct ws_packed *p, struct ws_err *err)
{
	const struct ws_item *w = p->weight;
	const uint64_t n = (uint64_t)p->rows * (uint64_t)p->cols;
	char text[160];
	if (w->bytes != n / 2 + n % 2)
		return ws_err_set(err, WS_EINPUT,
		                  "%s is %s; for %" PRIu64
		                  " codes, as its quant_state has it, there "
		                  "should be %" PRIu64 " bytes",
		                  w->name, ws_unpack_describe(w, text, sizeof text), n,
		                  n / 2 + n % 2);
	if (w->n_dims == 2 && w->dims[0] == 1 && w->dims[1] > 1)
		return ws_err_set(err, WS_EINPUT,
		                  "%s is %s: NF4 that was transposed is not unpacked", w->name,
		                  ws_unpack_describe(w, text, sizeof text));
	return 0;
}

int ws_unpack_find_nf4(const struct ws_catalog *c, struct ws_packed *p, struct ws_err *err)
{
	struct ws_nf4 *nf4 = calloc(1, sizeof *nf4);
	p->priv = nf4;
	if (!nf4)
		return ws_oom(err);
	for (int i = 0; i < 5; i++)
		p->parts[i] = ws_unpack_part(c, p->weight->name, part_names[i]);
	if (read_state(p, nf4, err) || check_codes(p, err) || read_levels(p, nf4, err))
		return -1;
	p->bn = 1;
	p->bk = nf4->blocksize;
	return nf4->nested_blocksize ? read_nested(p, nf4, err) : single_absmax(p, nf4, err);
}

/* ---- rows ---- */

/* Decodes absmax of blocks [first, first+n), stored as codes. Their scales are few and read one run
 * at a time. */
static int read_twice(const struct ws_packed *p, const struct ws_nf4 *nf4, int64_t first, size_t n,
                      bool judge, float *scales, struct ws_err *err)
{
	uint8_t *codes = (uint8_t *)scales + n * 3; /* overwritten only after use */
	const int64_t size = nf4->nested_blocksize;
	float nested = 0;
	int64_t have = -1;
	if (ws_item_read(p->parts[ABSMAX], (uint64_t)first, codes, n, err))
		return -1;
	for (size_t i = 0; i < n; i++) {
		const int64_t want = (first + (int64_t)i) / size;
		if (want != have &&
		    (ws_unpack_floats(p->parts[NESTED_ABSMAX], (uint64_t)want, 1, &nested, err) ||
		     (judge &&
		      ws_unpack_check(p->parts[NESTED_ABSMAX], "scale", &nested, 1, want, 1, err))))
			return -1;
		have = want;
		const float product = nf4->nested_map[codes[i]] * nested;
		scales[i] = product + nf4->nested_offset;
	}
	return 0;
}

static int read_absmax(const struct ws_packed *p, int64_t first, size_t n, bool judge,
                       float *scales, struct ws_err *err)
{
	const struct ws_nf4 *nf4 = p->priv;
	if (nf4->nested_blocksize ?
	            read_twice(p, nf4, first, n, judge, scales, err) :
	            ws_unpack_floats(p->parts[ABSMAX], (uint64_t)first, n, scales, err))
		return -1;
	return judge ? ws_unpack_check(p->parts[ABSMAX], "scale", scales, n, first, 1, err) : 0;
}

int ws_nf4_scales(const struct ws_packed *p, int64_t first, size_t n, float *out,
                  struct ws_err *err)
{
	return read_absmax(p, first, n, false, out, err);
}

/* Decodes elements [at, at+n) of the long vector. */
static int decode_run(const struct ws_packed *p, int64_t at, int64_t n, float *out,
                      struct ws_buf *scratch, struct ws_err *err)
{
	const struct ws_nf4 *nf4 = p->priv;
	const int64_t block = nf4->blocksize, first = at / block, begin = first * block;
	const size_t n_scales = (size_t)((at + n - 1) / block - first + 1);
	const size_t n_codes = (size_t)((at + n - begin + 1) / 2);
	uint8_t *mem = ws_unpack_scratch(scratch, n_scales * sizeof(float) + n_codes, err);
	float *scales = (float *)(void *)mem;
	uint8_t *codes = mem + n_scales * sizeof(float);
	if (!mem || read_absmax(p, first, n_scales, true, scales, err) ||
	    ws_item_read(p->weight, (uint64_t)begin / 2, codes, n_codes, err))
		return -1;
	const struct ws_nibbles s = { .codes = codes, .high_first = true, .levels = nf4->levels,
		                      .scales = scales, .block = block };
	ws_unpack_kernels()->nibbles(&s, at - begin, n, out);
	return 0;
}

int ws_unpack_rows_nf4(const struct ws_packed *p, int64_t row, int64_t n, float *out,
                       struct ws_buf *scratch, struct ws_err *err)
{
	const int64_t count = n * p->cols;
	for (int64_t done = 0; done < count;) {
		const int64_t left = count - done,
			      m = left < 2 * WS_UNPACK_CHUNK ? left : 2 * WS_UNPACK_CHUNK;
		if (decode_run(p, row * p->cols + done, m, out + done, scratch, err))
			return -1;
		done += m;
	}
	return ws_unpack_check(p->weight, "element", out, (size_t)count, row, p->cols, err);
}
