/* SPDX-License-Identifier: Apache-2.0 */
/* predict.c - see predict.h. Reads the stripes of a parameter in order and hashes them. */
#include "predict_core.h"

#include "floats.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE = 1 << 20 };

/* ---- tensors by name ------------------------------------------------------------------------- */

static const struct ws_plan_tensor *find(const void *ctx, const struct ws_part *part)
{
	const struct ws_predict *p = ctx;
	return ws_plan_find(p->opts.plan, p->sorted, part->name);
}

int ws_predict_open(const struct ws_predict_opts *opts, struct ws_predict **out,
                    struct ws_err *err)
{
	struct ws_predict *p = calloc(1, sizeof *p);
	if (!p || !(p->sorted = ws_plan_index(opts->plan))) {
		free(p);
		return ws_oom(err);
	}
	p->opts = *opts;
	*out = p;
	return 0;
}

void ws_predict_close(struct ws_predict *p)
{
	if (p)
		free(p->sorted);
	free(p);
}

/* ---- one parameter --------------------------------------------------------------------------- */

/* The server's dtype for a part. */
static enum ws_dtype dtype_of(const struct ws_predict *p, const struct ws_part *part,
                              const struct ws_plan_tensor *t)
{
	const bool own = part->exact || part->dtype != ws_layout_dtype(p->opts.layout);
	return own ? part->dtype : p->opts.dtype ? *p->opts.dtype : t->dtype;
}

/* How much memory it has, also if it cannot be predicted. */
static void guess_bytes(const struct ws_predict *p, struct predict_param *x)
{
	const struct ws_layout *l = p->opts.layout;
	const struct ws_part *part = x->param->n_parts ? ws_layout_part(l, x->param->first) : NULL;
	const bool usual = !part || (!part->exact && part->dtype == ws_layout_dtype(l));
	const enum ws_dtype dtype = !usual ? part->dtype :
	                            p->opts.dtype ? *p->opts.dtype : ws_layout_dtype(l);
	if (!ws_dtype_bytes(dtype, x->param->n_dims, x->dims, &x->bytes))
		x->bytes = 0;
}

static int check_tensor(const struct ws_predict *p, const struct ws_part *part,
                        const struct ws_plan_tensor *t, bool first, struct predict_param *x,
                        struct ws_err *err)
{
	const enum ws_dtype dtype = dtype_of(p, part, t);
	const bool casts = ws_floats_known(t->dtype) && ws_floats_known(dtype);
	if (ws_dtype_bits(dtype) % 8)
		return ws_err_set(err, WS_EREFUSED, "%s has numbers of less than a byte", t->name);
	if (t->dtype != dtype && !casts)
		return ws_err_set(err, WS_EREFUSED, "%s is %s, the parameter is %s", t->name,
		                  ws_dtype_torch(t->dtype), ws_dtype_torch(dtype));
	if (!first && (t->dtype != x->stored || dtype != x->dtype))
		return ws_err_set(err, WS_EREFUSED, "%s has another dtype than the first of its "
		                  "tensors", t->name);
	if (t->n_dims != part->n_dims ||
	    memcmp(t->dims, part->dims, t->n_dims * sizeof *t->dims))
		return ws_err_set(err, WS_EREFUSED, "%s has another shape than expected", t->name);
	x->dtype = dtype;
	x->stored = t->dtype;
	return 0;
}

/* All tensors of the parameter must have one dtype and the shapes that the layout expects: a loader
 * that broadcasts would have other bytes. Loaders cast floats, each to the nearest. */
static int check_tensors(const struct ws_predict *p, struct predict_param *x, struct ws_err *err)
{
	bool first = true;
	for (size_t i = 0; i < x->param->n_parts; i++) {
		const struct ws_part *part = ws_layout_part(p->opts.layout, x->param->first + i);
		const struct ws_plan_tensor *t = find(p, part);
		if (!t && part->optional)
			continue;
		if (!t)
			return ws_err_set(err, WS_EREFUSED, "the source has no %s", part->name);
		if (check_tensor(p, part, t, first, x, err))
			return -1;
		first = false;
	}
	return first ? ws_err_set(err, WS_EREFUSED, "the source has none of its tensors") : 0;
}

int predict_param_open(const struct ws_predict *p, const struct ws_param *param, unsigned rank,
                       struct predict_param *out, struct ws_err *err)
{
	*out = (struct predict_param){ .param = param };
	ws_layout_dims(p->opts.layout, param, rank, out->dims);
	guess_bytes(p, out);
	if (param->trouble)
		return ws_err_set(err, WS_EREFUSED, "%s", param->trouble);
	if (check_tensors(p, out, err))
		return -1;
	if (!ws_dtype_bytes(out->dtype, param->n_dims, out->dims, &out->bytes) ||
	    !ws_dtype_bytes(out->stored, param->n_dims, out->dims, &out->stored_bytes))
		return ws_err_set(err, WS_EREFUSED, "its size is not a whole number of bytes");
	return ws_stripes_add(&out->stripes, p->opts.layout, param, rank, 0, out->stored_bytes,
	                      find, p, err);
}

void predict_param_close(struct predict_param *x)
{
	free(x->stripes.items);
}

int predict_param_read(struct predict_param *x, uint64_t at, void *dst, size_t n,
                       struct ws_err *err)
{
	uint8_t *to = dst;
	const uint8_t *const whole = dst;
	const size_t count = n;
	const struct ws_stripe *all = x->stripes.items;
	while (x->at > 0 && all[x->at].to > at)
		x->at--;
	while (n > 0) {
		while (at >= all[x->at].to + all[x->at].length)
			x->at++;
		const struct ws_stripe *s = &all[x->at];
		const uint64_t room = s->to + s->length - at;
		const size_t some = n < room ? n : (size_t)room;
		if (ws_stripe_read(s, at - s->to, to, some, err))
			return -1;
		to += some;
		at += some;
		n -= some;
	}
	const size_t item = ws_dtype_bits(x->stored) / 8;
	if (!x->varies && count >= item && item <= sizeof x->first) {
		if (!x->read)
			memcpy(x->first, whole, item);
		x->varies = memcmp(whole, x->first, item) ||
		            memcmp(whole, whole + item, count - item);
		x->read = true;
	}
	return 0;
}

/* Adds stored bytes as the server has them. numbers: memory for a piece in fp32. */
static int add_cast(const struct predict_param *x, void *piece, size_t n, float *numbers,
                    struct ws_digest *d, struct ws_err *err)
{
	const size_t count = n * 8 / ws_dtype_bits(x->stored);
	if (x->dtype == x->stored) {
		ws_digest_add(d, piece, n);
		return 0;
	}
	ws_floats_read(x->stored, piece, count, numbers);
	for (size_t i = 0; i < count; i++)
		if (isnan(numbers[i]))
			return ws_err_set(err, WS_EREFUSED, "it has a NaN, which is cast");
	ws_floats_write(x->dtype, numbers, count, piece);
	ws_digest_add(d, piece, count * ws_dtype_bits(x->dtype) / 8);
	return 0;
}

/* Adds stored bytes [at, to). */
static int add_range(const struct ws_predict *p, struct predict_param *x, uint64_t at, uint64_t to,
                     struct ws_digest *d, struct ws_err *err)
{
	/* A cast may double the bytes of a piece, which are 2 or 4 for each number. */
	void *piece = malloc(2 * PIECE);
	float *numbers = x->dtype == x->stored ? NULL : malloc(2 * PIECE);
	int rc = piece && (numbers || x->dtype == x->stored) ? 0 : ws_oom(err);
	while (rc == 0 && at < to) {
		const size_t n = to - at < PIECE ? (size_t)(to - at) : PIECE;
		if (ws_cancelled(p->opts.cancel))
			rc = ws_err_set(err, WS_ECANCELLED, "cancelled");
		else
			rc = predict_param_read(x, at, piece, n, err);
		if (rc == 0)
			rc = add_cast(x, piece, n, numbers, d, err);
		at += n;
	}
	free(numbers);
	free(piece);
	return rc;
}

static int add_bytes(const struct ws_predict *p, struct predict_param *x, struct ws_digest *d,
                     struct ws_err *err)
{
	ws_digest_begin(d, x->bytes);
	return add_range(p, x, 0, x->stored_bytes, d, err);
}

/* ---- its checksum ---------------------------------------------------------------------------- */

static int hash_fp8(const struct ws_predict *p, struct predict_param *x,
                    const struct ws_param *scales, unsigned rank, struct ws_prediction *out,
                    struct ws_err *err)
{
	struct predict_param s = { 0 };
	struct ws_digest d = { 0 }, rewritten = { 0 };
	bool rewrites = false;
	const int rc = predict_param_open(p, scales, rank, &s, err) ||
	               ws_digest_open(&d, p->opts.fn, err) ||
	               ws_digest_open(&rewritten, p->opts.fn, err) ||
	               predict_dequantized(p, x, &s, &d, &rewritten, &rewrites, err) ? -1 : 0;
	if (rc == 0)
		ws_digest_end(&d, out->checksum);
	if (rc == 0 && rewrites)
		ws_digest_end(&rewritten, out->rewritten);
	if (rc == 0 && rewrites && p->opts.fn == WS_CHECKSUM_SGLANG_CUDA_UE8M0)
		memcpy(out->checksum, out->rewritten, sizeof out->checksum);
	if (strcmp(out->rewritten, out->checksum) == 0)
		out->rewritten[0] = '\0';
	ws_digest_close(&d);
	ws_digest_close(&rewritten);
	predict_param_close(&s);
	return rc;
}

static int hash_bytes(const struct ws_predict *p, struct predict_param *x,
                      struct ws_prediction *out, struct ws_err *err)
{
	struct ws_digest d = { 0 };
	const int rc = ws_digest_open(&d, p->opts.fn, err) || add_bytes(p, x, &d, err) ? -1 : 0;
	if (rc == 0)
		ws_digest_end(&d, out->checksum);
	ws_digest_close(&d);
	return rc;
}

static const struct ws_param *hashed_with(const struct ws_predict *p, const struct ws_param *param)
{
	return p->opts.fn != WS_CHECKSUM_SHA256 ? predict_scales_of(p, param) : NULL;
}

/* The kernel's index has 32 bits. */
static int check_size(const struct ws_predict *p, const struct predict_param *x, bool dequantized,
                      struct ws_err *err)
{
	const uint64_t hashed = dequantized ? 2 * x->bytes : x->bytes;
	return ws_digest_is_gpu(p->opts.fn) && hashed >= WS_GPU_HASH_MAX_BYTES ?
	               ws_err_set(err, WS_EREFUSED, "it has 8 GiB or more") : 0;
}

/* What the server hashes: the bytes, or the dequantization of block FP8. */
static int predict_one(const struct ws_predict *p, const struct ws_param *param, unsigned rank,
                       struct ws_prediction *out, struct ws_err *err)
{
	const struct ws_param *scales = hashed_with(p, param);
	struct predict_param x;
	int rc = predict_param_open(p, param, rank, &x, err);
	out->bytes = x.bytes;
	if (rc == 0)
		rc = check_size(p, &x, scales != NULL, err);
	if (rc == 0)
		rc = scales ? hash_fp8(p, &x, scales, rank, out, err) : hash_bytes(p, &x, out, err);
	out->constant = !x.varies;
	predict_param_close(&x);
	return rc;
}

int ws_predict(const struct ws_predict *p, size_t param, unsigned rank, struct ws_prediction *out,
               struct ws_err *err)
{
	const struct ws_param *of = ws_layout_param(p->opts.layout, param);
	struct ws_err why = WS_ERR_INIT;
	*out = (struct ws_prediction){ .state = WS_PREDICT_KNOWN };
	if (p->opts.fn != WS_CHECKSUM_SHA256 && predict_is_scales(p, of)) {
		out->state = WS_PREDICT_UNLISTED;
		return 0;
	}
	if (predict_one(p, of, rank, out, &why) == 0)
		return 0;
	if (why.code != WS_EREFUSED) {
		if (err)
			*err = why;
		return -1;
	}
	out->state = WS_PREDICT_OPAQUE;
	snprintf(out->why, sizeof out->why, "%.255s", why.msg);
	return 0;
}

/* ---- of wrong weights ------------------------------------------------------------------------ */

/* The matrices of a parameter that has two tensors in each, one above the other; 0: it has not. */
static uint64_t count_pairs(const struct predict_param *x)
{
	const struct ws_param *of = x->param;
	const uint64_t n = of->n_dims == 3 ? (uint64_t)x->dims[0] : 1;
	const bool even = of->n_dims >= 2 && x->dims[of->n_dims - 2] % 2 == 0;
	return even && n && x->stored_bytes % (2 * n) == 0 && of->n_parts % 2 == 0 &&
	       (n == 1 ? of->n_parts == 2 : of->n_parts % (2 * n) == 0) ? n : 0;
}

int ws_predict_swapped(const struct ws_predict *p, size_t param, unsigned rank, bool *known,
                       char checksum[WS_CHECKSUM_TEXT], struct ws_err *err)
{
	const struct ws_param *of = ws_layout_param(p->opts.layout, param);
	struct predict_param x;
	struct ws_digest d = { 0 };
	*known = false;
	int rc = predict_param_open(p, of, rank, &x, err);
	const uint64_t n = rc == 0 && !predict_scales_of(p, of) ? count_pairs(&x) : 0;
	const uint64_t half = n ? x.stored_bytes / n / 2 : 0;
	if (half)
		rc = ws_digest_open(&d, p->opts.fn, err);
	if (half && rc == 0)
		ws_digest_begin(&d, x.bytes);
	for (uint64_t at = 0; half && rc == 0 && at < x.stored_bytes; at += 2 * half)
		rc = add_range(p, &x, at + half, at + 2 * half, &d, err) ||
		                     add_range(p, &x, at, at + half, &d, err) ? -1 : 0;
	if (half && rc == 0) {
		ws_digest_end(&d, checksum);
		*known = true;
	}
	ws_digest_close(&d);
	predict_param_close(&x);
	return rc;
}

/* ---- without reading ------------------------------------------------------------------------- */

size_t ws_predict_tensors(const struct ws_predict *p, size_t param)
{
	const struct ws_param *of = ws_layout_param(p->opts.layout, param);
	size_t n = 0;
	for (size_t i = 0; i < of->n_parts; i++)
		n += find(p, ws_layout_part(p->opts.layout, of->first + i)) != NULL;
	return n;
}

static int check_scales(const struct ws_predict *p, const struct predict_param *codes,
                        const struct ws_param *scales, unsigned rank, struct ws_err *err)
{
	struct predict_param s = { 0 };
	const int rc = predict_param_open(p, scales, rank, &s, err) ||
	               predict_check_blocks(codes, &s, err) ? -1 : 0;
	predict_param_close(&s);
	return rc;
}

bool ws_predict_can(const struct ws_predict *p, size_t param, unsigned rank, char *why,
                    uint64_t *bytes)
{
	const struct ws_param *of = ws_layout_param(p->opts.layout, param);
	const struct ws_param *scales = hashed_with(p, of);
	struct ws_err no = WS_ERR_INIT;
	struct predict_param x;
	*bytes = 0;
	*why = '\0';
	if (p->opts.fn != WS_CHECKSUM_SHA256 && predict_is_scales(p, of))
		return true;
	const bool can = predict_param_open(p, of, rank, &x, &no) == 0 &&
	                 check_size(p, &x, scales != NULL, &no) == 0 &&
	                 (!scales || check_scales(p, &x, scales, rank, &no) == 0);
	*bytes = x.bytes;
	predict_param_close(&x);
	snprintf(why, 256, "%.255s", no.msg);
	return can;
}
