/* SPDX-License-Identifier: Apache-2.0 */
/* logprobs_compare.c - two answers to the same prompt, and whether they are near enough.
 *
 * Of drawn tokens only those count that have the same past: those before the first that is
 * another. */
#include "wsync/tool/logprobs.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

/* NaN: a side has no number. */
static void add_token(struct ws_logprobs_diff *d, size_t token, int64_t id, double a, double b)
{
	const double x = b - a;
	if (isnan(a) != isnan(b))
		d->missing++;
	if (isnan(x))
		return;
	d->tokens++;
	d->mean += fabs(x);
	d->k3 += expm1(x) - x;
	if (fabs(x) > d->max) {
		d->max = fabs(x);
		d->worst = token;
		d->worst_id = id;
		d->first = a;
		d->second = b;
	}
}

/* Both are the most probable of their side, so they are no further apart than the sides are. */
static double go_apart(const struct ws_logprobs *a, const struct ws_logprobs *b, size_t token)
{
	const bool both = token < a->part[WS_DECODE].n && token < b->part[WS_DECODE].n;
	const double x =
		both ? a->part[WS_DECODE].values[token] - b->part[WS_DECODE].values[token] : 0;
	return isnan(x) ? 0 : fabs(x);
}

void ws_logprobs_compare(const struct ws_logprobs *a, const struct ws_logprobs *b,
                         struct ws_logprobs_diff out[WS_LOGPROB_PARTS])
{
	for (unsigned p = 0; p < WS_LOGPROB_PARTS; p++) {
		struct ws_logprobs_diff *d = &out[p];
		*d = (struct ws_logprobs_diff){ 0 };
		for (; d->same < a->part[p].n && d->same < b->part[p].n &&
		       a->part[p].ids[d->same] == b->part[p].ids[d->same]; d->same++)
			add_token(d, d->same, a->part[p].ids[d->same], a->part[p].values[d->same],
			          b->part[p].values[d->same]);
		d->diverges = d->same < a->part[p].n || d->same < b->part[p].n;
		d->apart = p == WS_DECODE ? go_apart(a, b, d->same) : 0;
		d->mean /= d->tokens ? (double)d->tokens : 1;
		d->k3 /= d->tokens ? (double)d->tokens : 1;
	}
}

void ws_logprobs_sum(struct ws_logprobs_diff *sum, const struct ws_logprobs_diff *d)
{
	const size_t tokens = sum->tokens + d->tokens;
	if (tokens) {
		const double share = (double)d->tokens / (double)tokens;
		sum->mean = sum->mean * (1 - share) + d->mean * share;
		sum->k3 = sum->k3 * (1 - share) + d->k3 * share;
	}
	sum->tokens = tokens;
	sum->missing += d->missing;
	sum->diverges |= d->diverges;
	sum->apart = d->apart > sum->apart ? d->apart : sum->apart;
	if (d->max > sum->max) {
		sum->max = d->max;
		sum->worst = d->worst;
		sum->worst_id = d->worst_id;
		sum->first = d->first;
		sum->second = d->second;
	}
}

/* ---- limits ---- */

/* Beyond it, also where it is no number. */
static bool exceeds(double value, double limit)
{
	return !isnan(limit) && !(value <= limit);
}

bool ws_logprobs_within(const struct ws_logprobs_diff *d, enum ws_logprob_part part,
                        const struct ws_logprobs_limits *limits, char *why, size_t n)
{
	struct ws_logprobs_limits l = *limits;
	if (isnan(l.max) && isnan(l.mean) && isnan(l.k3))
		l.max = 0;
	if (exceeds(d->max, l.max))
		snprintf(why, n,
		         "a difference of %.6g at token %zu, where %.6g is allowed (%.9g and %.9g, "
		         "of token "
		         "id %" PRId64 ")",
		         d->max, d->worst, l.max, d->first, d->second, d->worst_id);
	else if (exceeds(d->mean, l.mean))
		snprintf(why, n, "a mean difference of %.6g, where %.6g is allowed", d->mean,
		         l.mean);
	else if (exceeds(d->k3, l.k3))
		snprintf(why, n, "a k3 of %.6g, where %.6g is allowed", d->k3, l.k3);
	else if (d->missing)
		snprintf(why, n, "only one side has a number for %zu token%s", d->missing,
		         d->missing == 1 ? "" : "s");
	else if (d->diverges && (part == WS_PREFILL || l.max <= 0))
		snprintf(why, n, "the tokens differ from %zu on", d->same);
	else if (exceeds(d->apart, l.max))
		snprintf(why, n,
		         "they go apart at token %zu with tokens whose probabilities differ by "
		         "%.6g, where %.6g is "
		         "allowed",
		         d->same, d->apart, l.max);
	else if (d->diverges && !d->tokens && isnan(l.max))
		snprintf(why, n, "the first drawn token is another, so nothing can be compared");
	else
		return true;
	return false;
}
