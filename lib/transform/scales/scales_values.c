/* SPDX-License-Identifier: Apache-2.0 */
/* scales_values.c - plausible values of scales, whatever their origin.
 *
 * A scale alone shows nothing: 0.002 and 500 are both valid floats. But the scale times the largest
 * code of its block is the largest weight of the block, and weights have a size: in a trained model
 * it is typically between 1e-4 and 10. A value of 1000 is implausible; if the inverse is plausible,
 * the file has the inverse scales. */
#include "scales_core.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

static const double ABSURD = 1e3;      /* the typical largest weight of a block is smaller */
static const double PLAUSIBLE_LEAST = 1e-6, PLAUSIBLE_MOST = 100;
static const double HUGE_BLOCK = 1e5, TINY_BLOCK = 1e-9;

bool ws_scale_is_power(float scale)
{
	int e;
	return scale > 0 && isfinite(scale) && frexpf(scale, &e) == 0.5f;
}

/* times: the largest number of a block; over: the same with the inverted scale. */
static void add_block(struct ws_scale_values *v, double times, double over)
{
	if (!v->blocks || times > v->largest)
		v->largest = times;
	if (!v->blocks || times < v->smallest)
		v->smallest = times;
	v->blocks++;
	v->log_times += log(times);
	v->log_over += log(over);
}

void ws_scale_values_add(struct ws_scale_values *v, float first, float second, float code)
{
	const float scale = first * second;
	const double most = code < 0 ? 448 : (double)code;
	v->n++;
	v->nan += isnan(scale) != 0;
	v->infinite += isinf(scale) != 0;
	v->negative += scale < 0;
	v->zero += scale == 0 && code > 0;
	v->dead += scale == 0 && code <= 0;
	if (!(scale > 0) || isinf(scale))
		return;
	v->subnormal += fpclassify(scale) == FP_SUBNORMAL;
	v->powers += ws_scale_is_power(scale);
	if (scale > v->most)
		v->most = scale;
	if (v->least == 0 || scale < v->least)
		v->least = scale;
	if (code != 0)
		add_block(v, most * scale, second == 1 ? most / first : most * first / second);
}

double ws_scale_values_times(const struct ws_scale_values *v)
{
	return v->blocks ? exp(v->log_times / (double)v->blocks) : 0;
}

double ws_scale_values_over(const struct ws_scale_values *v)
{
	return v->blocks ? exp(v->log_over / (double)v->blocks) : 0;
}

bool ws_scale_values_inverted(const struct ws_scale_values *v)
{
	const double over = ws_scale_values_over(v);
	return ws_scale_values_times(v) > ABSURD && over > PLAUSIBLE_LEAST && over < PLAUSIBLE_MOST;
}

static void judge_kinds(const struct ws_scale_values *v, const char *name, size_t order,
                        struct ws_scales_notes *notes)
{
	const struct {
		uint64_t n;
		enum ws_severity severity;
		const char *what;
	} kinds[] = {
		{ v->nan, WS_ERROR, "NaN" },
		{ v->infinite, WS_ERROR, "infinite" },
		{ v->negative, WS_ERROR,
		  "negative (a server fills scales with the most negative float until they "
		  "are loaded)" },
		{ v->zero, WS_ERROR, "zero where the codes are not" },
		{ v->dead, WS_WARN, "zero" },
		{ v->subnormal, WS_WARN, "subnormal: kernels that flush those take them for zero" },
	};
	for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
		if (kinds[i].n)
			ws_scales_say(notes, order, WS_SCALES_VALUES, kinds[i].severity, name,
			              "%" PRIu64 " of %" PRIu64 " scales %s %s", kinds[i].n, v->n,
			              kinds[i].n == 1 ? "is" : "are", kinds[i].what);
}

static void judge_sizes(const struct ws_scale_values *v, const char *name, size_t order,
                        struct ws_scales_notes *notes)
{
	if (ws_scale_values_inverted(v)) {
		ws_scales_say(notes, order, WS_SCALES_RECIPROCAL, WS_ERROR, name,
		              "the largest weight of a block is about %.3g, with 1 / scale it "
		              "would be %.3g: scales multiply, and these divide",
		              ws_scale_values_times(v), ws_scale_values_over(v));
		return;
	}
	if (v->blocks && v->largest > HUGE_BLOCK)
		ws_scales_say(notes, order, WS_SCALES_VALUES, WS_WARN, name,
		              "the scales come up to %.3g and the "
		              "weights to %.3g, which is absurdly large",
		              (double)v->most, v->largest);
	if (v->blocks && v->smallest < TINY_BLOCK)
		ws_scales_say(notes, order, WS_SCALES_VALUES, WS_WARN, name,
		              "the scales come down to %.3g and the "
		              "largest weight of a block to %.3g, which is absurdly small",
		              (double)v->least, v->smallest);
}

void ws_scale_values_judge(const struct ws_scale_values *v, const char *name, size_t order,
                           struct ws_scales_notes *notes)
{
	judge_kinds(v, name, order, notes);
	judge_sizes(v, name, order, notes);
}
