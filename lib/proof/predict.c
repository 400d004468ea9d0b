/* SPDX-License-Identifier: Apache-2.0 */
/* predict.c - see predict.h. Reads the stripes of a parameter in order and hashes them. */
#include "predict_core.h"

#include "wsync/tool/str.h"

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

/* All tensors of the parameter must have the server's dtype and the shape that the layout expects:
 * a loader that casts or broadcasts would have other bytes. */
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
		const enum ws_dtype dtype = part->exact ? part->dtype :
		                            p->opts.dtype ? *p->opts.dtype :
		                            first ? t->dtype : x->dtype;
		if (t->dtype != dtype)
			return ws_err_set(err, WS_EREFUSED, "%s is %s, the parameter is %s",
			                  t->name, ws_dtype_torch(t->dtype),
			                  ws_dtype_torch(dtype));
		if (t->n_dims != part->n_dims ||
		    memcmp(t->dims, part->dims, t->n_dims * sizeof *t->dims))
			return ws_err_set(err, WS_EREFUSED, "%s has another shape than expected",
			                  t->name);
		x->dtype = dtype;
		first = false;
	}
	return first ? ws_err_set(err, WS_EREFUSED, "the source has none of its tensors") : 0;
}

int predict_param_open(const struct ws_predict *p, const struct ws_param *param, unsigned rank,
                       struct predict_param *out, struct ws_err *err)
{
	*out = (struct predict_param){ .param = param };
	if (param->trouble)
		return ws_err_set(err, WS_EREFUSED, "%s", param->trouble);
	if (check_tensors(p, out, err))
		return -1;
	ws_layout_dims(p->opts.layout, param, rank, out->dims);
	if (!ws_dtype_bytes(out->dtype, param->n_dims, out->dims, &out->bytes))
		return ws_err_set(err, WS_EREFUSED, "its size is not a whole number of bytes");
	return ws_stripes_add(&out->stripes, p->opts.layout, param, rank, 0, out->bytes, find, p,
	                      err);
}

void predict_param_close(struct predict_param *x)
{
	free(x->stripes.items);
}

int predict_param_read(struct predict_param *x, uint64_t at, void *dst, size_t n,
                       struct ws_err *err)
{
	uint8_t *to = dst;
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
	return 0;
}

static int add_bytes(const struct ws_predict *p, struct predict_param *x, struct ws_digest *d,
                     struct ws_err *err)
{
	void *piece = malloc(PIECE);
	int rc = piece ? 0 : ws_oom(err);
	ws_digest_begin(d, x->bytes);
	for (uint64_t at = 0; rc == 0 && at < x->bytes;) {
		const size_t n = x->bytes - at < PIECE ? (size_t)(x->bytes - at) : PIECE;
		if (ws_cancelled(p->opts.cancel))
			rc = ws_err_set(err, WS_ECANCELLED, "cancelled");
		else
			rc = predict_param_read(x, at, piece, n, err);
		if (rc == 0)
			ws_digest_add(d, piece, n);
		at += n;
	}
	free(piece);
	return rc;
}

/* ---- its checksum ---------------------------------------------------------------------------- */

static int hash_param(const struct ws_predict *p, struct predict_param *x,
                      const struct ws_param *scales, unsigned rank, struct ws_digest *d,
                      struct ws_err *err)
{
	struct predict_param s = { 0 };
	if (!scales)
		return add_bytes(p, x, d, err);
	const int rc = predict_param_open(p, scales, rank, &s, err) ||
	               predict_dequantized(p, x, &s, d, err) ? -1 : 0;
	predict_param_close(&s);
	return rc;
}

/* What the server hashes: the bytes, or the dequantization of block FP8. */
static int predict_one(const struct ws_predict *p, const struct ws_param *param, unsigned rank,
                       struct ws_prediction *out, struct ws_err *err)
{
	const bool sglang = p->opts.fn != WS_CHECKSUM_SHA256;
	const struct ws_param *scales = sglang ? predict_scales_of(p, param) : NULL;
	struct predict_param x;
	struct ws_digest d = { 0 };
	int rc = predict_param_open(p, param, rank, &x, err);
	out->bytes = x.bytes;
	const uint64_t hashed = scales ? 2 * x.bytes : x.bytes;
	if (rc == 0 && p->opts.fn == WS_CHECKSUM_SGLANG_CUDA && hashed >= WS_GPU_HASH_MAX_BYTES)
		rc = ws_err_set(err, WS_EREFUSED, "it has 8 GiB or more");
	if (rc == 0)
		rc = ws_digest_open(&d, p->opts.fn, err);
	if (rc == 0)
		rc = hash_param(p, &x, scales, rank, &d, err);
	if (rc == 0)
		ws_digest_end(&d, out->checksum);
	ws_digest_close(&d);
	predict_param_close(&x);
	return rc;
}

int ws_predict(const struct ws_predict *p, size_t param, unsigned rank, struct ws_prediction *out,
               struct ws_err *err)
{
	const struct ws_param *of = ws_layout_param(p->opts.layout, param);
	struct ws_err why = WS_ERR_INIT;
	*out = (struct ws_prediction){ .state = WS_PREDICT_KNOWN };
	if (of->tied_to || (p->opts.fn != WS_CHECKSUM_SHA256 && predict_is_scales(p, of))) {
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
