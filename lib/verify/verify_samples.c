/* SPDX-License-Identifier: Apache-2.0 */
/* verify_samples.c - compares samples of numbers, for servers without xxh3-64 checksums.
 *
 * A server returns the first rows of a parameter by its checkpoint name, in its own dtype. The
 * source's numbers, rounded to that dtype, must be equal bit by bit. With tensor parallelism it may
 * return the share of its first rank: fewer rows, or the beginning of each row. A quantized server
 * returns codes for weights: these count neither as equal nor as different. */
#include "verify_state.h"

#include "endpoint_weights.h"
#include "number.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A number is about 20 bytes of JSON. */
enum { ABOUT = 16384, MOST_ROWS = 100 };

/* ---- the source's numbers ---- */

struct sample {
	const struct ws_plan_tensor *tensor;
	uint64_t rows;
	size_t n;        /* elements of these rows */
	double *numbers;
};

static int read_sample(struct sample *s, const struct ws_plan_tensor *t, struct ws_err *err)
{
	const uint64_t row = verify_row(t), fit = ABOUT / (row ? row : 1);
	const uint64_t rows = fit < 1 ? 1 : fit > MOST_ROWS ? MOST_ROWS : fit;
	*s = (struct sample){ .tensor = t };
	s->rows = rows < (uint64_t)t->dims[0] ? rows : (uint64_t)t->dims[0];
	s->n = (size_t)(s->rows * row);
	const size_t bytes = s->n * (ws_dtype_bits(t->dtype) / 8);
	void *raw = malloc(bytes);
	s->numbers = malloc(s->n * sizeof *s->numbers);
	int rc = raw && s->numbers ? ws_item_read(t->item, 0, raw, bytes, err) : ws_oom(err);
	if (!rc)
		ws_number_read(t->dtype, raw, s->n, s->numbers);
	free(raw);
	return rc;
}

/* ---- comparing ---- */

/* The types that this server may have rounded our numbers to. */
static size_t list_types(const char *dtype, enum ws_dtype types[4])
{
	enum ws_dtype its;
	size_t n = 0;
	types[n++] = WS_DTYPE_F64; /* no rounding */
	types[n++] = WS_DTYPE_F32;
	if (!ws_dtype_from_torch(dtype, &its)) { /* "auto", or unknown */
		types[n++] = WS_DTYPE_BF16;
		types[n++] = WS_DTYPE_F16;
	} else if (its == WS_DTYPE_BF16 || its == WS_DTYPE_F16) {
		types[n++] = its;
	}
	return n;
}

/* The numbers that one replica returned; n_dims is the tensor's. */
struct shown {
	const int64_t *dims;
	const double *numbers;
};

/* True if the shapes fit. sharded: a first rank may have only the beginning of a dimension. */
static bool fits(const struct sample *s, const struct shown *x, bool sharded)
{
	const int64_t rows = (int64_t)s->rows;
	if (x->dims[0] < rows ? !sharded : x->dims[0] > rows && x->dims[0] > s->tensor->dims[0])
		return false;
	for (unsigned d = 1; d < s->tensor->n_dims; d++) {
		const int64_t ours = s->tensor->dims[d], theirs = x->dims[d];
		if (theirs != ours && (!sharded || theirs <= 0 || ours % theirs))
			return false;
	}
	return x->dims[0] > 0;
}

/* The index in s->numbers of the server's element i. */
static size_t place_of(const struct sample *s, const struct shown *x, size_t i)
{
	size_t at = 0, stride = 1;
	for (unsigned d = s->tensor->n_dims; d-- > 0;) {
		at += i % (size_t)x->dims[d] * stride;
		i /= (size_t)x->dims[d];
		stride *= d ? (size_t)s->tensor->dims[d] : 1;
	}
	return at;
}

static bool same(double ours, double shown)
{
	/* null stands for NaN and for both infinities */
	return isnan(shown) ? !isfinite(ours) : ours == shown;
}

struct difference {
	size_t n, of;
	size_t first;     /* index in the server's numbers */
};

static struct difference compare_as(enum ws_dtype type, const struct sample *s,
                                    const struct shown *x)
{
	struct difference d = { .of = (size_t)(x->dims[0] < (int64_t)s->rows ? x->dims[0] :
		                                                               (int64_t)s->rows) };
	for (unsigned k = 1; k < s->tensor->n_dims; k++)
		d.of *= (size_t)x->dims[k];
	for (size_t i = 0; i < d.of; i++) {
		const double ours = s->numbers[place_of(s, x, i)];
		if (same(ours, x->numbers[i]) || same(ws_number_round(type, ours), x->numbers[i]))
			continue;
		if (!d.n++)
			d.first = i;
	}
	return d;
}

static struct difference compare_numbers(const struct sample *s, const struct shown *x,
                                         const char *dtype)
{
	enum ws_dtype types[4];
	const size_t n = list_types(dtype, types);
	struct difference best = compare_as(types[0], s, x);
	for (size_t i = 1; i < n && best.n; i++) {
		const struct difference d = compare_as(types[i], s, x);
		if (d.n < best.n)
			best = d;
	}
	return best;
}

/* ---- one answer ---- */

static void format_dims(char *dst, size_t n, unsigned n_dims, const int64_t *dims)
{
	size_t used = (size_t)snprintf(dst, n, "[");
	for (unsigned d = 0; d < n_dims && used < n; d++)
		used += (size_t)snprintf(dst + used, n - used, "%s%lld", d ? ", " : "",
		                         (long long)dims[d]);
	if (used < n)
		snprintf(dst + used, n - used, "]");
}

static void report(struct verify *v, size_t i, int rank, const struct sample *s, const char *kind,
                   const char *expected, const char *found)
{
	const struct ws_event ev = {
		.type = WS_EV_MISMATCH,
		.mismatch = { .url = v->opts->endpoints[i], .rank = rank, .name = s->tensor->name,
		              .kind = kind, .expected = expected, .found = found },
	};
	if (v->opts->sink.event)
		v->opts->sink.event(v->opts->sink.ctx, &ev);
}

static void report_shape(struct verify *v, size_t i, int rank, const struct sample *s,
                         unsigned n_dims, const int64_t *dims)
{
	char expected[256], found[256];
	int64_t ours[WS_MAX_DIMS];
	memcpy(ours, s->tensor->dims, sizeof ours);
	ours[0] = (int64_t)s->rows;
	format_dims(expected, sizeof expected, s->tensor->n_dims, ours);
	format_dims(found, sizeof found, n_dims, dims);
	report(v, i, rank, s, "shape", expected, found);
}

static void report_value(struct verify *v, size_t i, int rank, const struct sample *s,
                         const struct shown *x, const struct difference *d)
{
	char expected[256], found[256], where[200];
	int64_t at[WS_MAX_DIMS];
	for (size_t k = s->tensor->n_dims, rest = d->first; k-- > 0; rest /= (size_t)x->dims[k])
		at[k] = (int64_t)(rest % (size_t)x->dims[k]);
	format_dims(where, sizeof where, s->tensor->n_dims, at);
	snprintf(expected, sizeof expected, "%.9g at %s", s->numbers[place_of(s, x, d->first)],
	         where);
	snprintf(found, sizeof found, "%.9g, and %zu of %zu numbers differ", x->numbers[d->first],
	         d->n, d->of);
	report(v, i, rank, s, "value", expected, found);
}

/* True for weights that a quantized server keeps as codes. It keeps scales, norms and biases as
 * sent. */
static bool is_quantized_there(const struct ws_endpoint_info *info, const struct ws_plan_tensor *t)
{
	return info->quantization[0] && t->n_dims >= 2 && ws_dtype_bits(t->dtype) > 8;
}

static void judge_answer(struct verify *v, size_t i, const struct sample *s,
                         const struct ws_values *a)
{
	struct ws_verify_result *r = &v->results[i];
	const struct ws_endpoint_info *info = &v->infos[i];
	const unsigned n_dims = s->tensor->n_dims;
	/* One more dimension: one answer per data-parallel rank. */
	const bool replicas = a->n_dims == n_dims + 1;
	const size_t n = replicas ? (size_t)a->dims[0] : 1;
	const bool quantized = is_quantized_there(info, s->tensor);
	bool different = false;
	if (ws_values_empty(a, info->dp_size)) {
		r->unanswered++;
		return;
	}
	for (size_t k = 0; k < n && !(different && quantized); k++) {
		const struct shown x = { a->dims + replicas, a->numbers + k * (a->n / n) };
		const int rank = replicas ? (int)k : -1;
		if (a->n_dims != n_dims + replicas || !fits(s, &x, info->tp_size != 1)) {
			different = true;
			if (!quantized)
				report_shape(v, i, rank, s, a->n_dims - replicas, x.dims);
			continue;
		}
		const struct difference d = compare_numbers(s, &x, info->dtype);
		different |= d.n > 0;
		if (d.n && !quantized)
			report_value(v, i, rank, s, &x, &d);
	}
	r->equal += !different;
	r->different += different && !quantized;
	r->incomparable += different && quantized;
}

/* ---- all of them ---- */

/* Keeps the first refusal of an endpoint, which explains why it returned no numbers. */
static void note_failure(struct verify *v, size_t i, const struct ws_err *why, struct ws_err *first)
{
	struct ws_verify_result *r = &v->results[i];
	if (why->code != WS_EREFUSED) {
		r->err = *why;
		ws_err_where(&r->err, NULL, r->url);
		return;
	}
	r->unanswered++;
	if (first->code == WS_OK)
		*first = *why;
}

static int ask_sample(struct verify *v, const struct sample *s, struct ws_values *answers,
                      struct ws_err *first, struct ws_err *err)
{
	const size_t n = verify_select(v, WS_MEANS_SAMPLES);
	unsigned replicas = 1;
	for (size_t k = 0; k < n; k++)
		if (v->infos[v->index[k]].dp_size > replicas)
			replicas = v->infos[v->index[k]].dp_size;
	/* Room for more numbers than expected, so that a wrong shape can be reported. */
	const size_t most = 4 * s->n * replicas + 4096;
	const struct ws_call to = { v->http, v->urls, n, v->until, v->opts->cancel, NULL };
	ws_endpoint_get_weights(&to, s->tensor->name, s->rows, most, answers, v->errs, err);
	for (size_t k = 0; k < n; k++) {
		if (v->errs[k].code == WS_OK)
			judge_answer(v, v->index[k], s, &answers[k]);
		else
			note_failure(v, v->index[k], &v->errs[k], &first[v->index[k]]);
		ws_values_free(&answers[k]);
	}
	return verify_stopped(v, err);
}

/* unproven: why its checksums prove nothing; it begins with the URL. */
static int say_nothing_to_compare(struct ws_verify_result *r, bool vllm,
                                  const struct ws_err *unproven, const struct ws_err *first)
{
	char sums[512] = "it reports no checksums", samples[512] = "no parameter was sampled";
	const size_t url = strlen(r->url) + 2;
	const size_t asked = r->incomparable + r->unanswered;
	if (unproven->code)
		snprintf(sums, sizeof sums, "%.511s",
		         strlen(unproven->msg) > url ? unproven->msg + url : unproven->msg);
	if (asked)
		snprintf(samples, sizeof samples,
		         "of %zu sampled parameters it showed %zu, quantized%s%.300s", asked,
		         r->incomparable, first->code ? ": " : "", first->msg);
	if (asked && !r->incomparable)
		snprintf(samples, sizeof samples,
		         "it showed none of %zu sampled parameters: %.300s", asked,
		         first->code ? first->msg : "the answers are empty");
	r->means = WS_MEANS_NONE;
	ws_err_set(&r->err, WS_EUNKNOWN, "%s: cannot compare: %s, and %s", r->url, sums,
	           samples);
	return ws_err_hint(&r->err,
	                   vllm && !unproven->code ?
	                   "vLLM reports checksums since 0.32; wsync-verify logprobs compares what "
	                   "it computes" :
	                   "{twice} checks whether a second push changes anything; the "
	                   "server's own checksums are enough for that");
}

static void judge_samples(struct ws_verify_result *r, bool vllm, const struct ws_err *unproven,
                          const struct ws_err *first)
{
	const size_t asked = r->equal + r->different + r->incomparable + r->unanswered;
	if (r->err.code != WS_OK)
		return;
	if (r->different)
		ws_err_set(&r->err, WS_EMISMATCH,
		           "%s: it does not hold these weights: %zu of %zu sampled "
		           "parameters differ",
		           r->url, r->different, asked);
	else if (!r->equal)
		say_nothing_to_compare(r, vllm, unproven, first);
	ws_err_where(&r->err, NULL, r->url);
}

int verify_samples(struct verify *v, struct ws_err *err)
{
	const size_t n_endpoints = v->opts->n_endpoints;
	if (!verify_select(v, WS_MEANS_SAMPLES))
		return 0;
	const size_t most =
		v->opts->samples < v->plan->n_tensors ? v->opts->samples : v->plan->n_tensors;
	size_t *chosen = calloc(most + 1, sizeof *chosen);
	struct ws_values *answers = calloc(n_endpoints, sizeof *answers);
	struct ws_err *first = calloc(n_endpoints, sizeof *first);
	const size_t n = chosen ? verify_choose(v->plan, most, v->opts->seed, chosen) : SIZE_MAX;
	int rc = n != SIZE_MAX && answers && first ? 0 : ws_oom(err);
	for (size_t k = 0; !rc && k < n; k++) {
		struct sample s;
		rc = read_sample(&s, &v->plan->tensors[chosen[k]], err);
		if (!rc)
			rc = ask_sample(v, &s, answers, first, err);
		free(s.numbers);
	}
	for (size_t i = 0; !rc && i < n_endpoints; i++)
		if (v->results[i].means == WS_MEANS_SAMPLES)
			judge_samples(&v->results[i],
			              ws_lineage_family(v->infos[i].lineage) == WS_FAMILY_VLLM,
			              &v->unproven[i], &first[i]);
	free(chosen);
	free(answers);
	free(first);
	return rc;
}
