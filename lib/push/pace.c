/* SPDX-License-Identifier: Apache-2.0 */
#include "pace.h"

static const uint64_t SHARE = 16;    /* a trial takes at most 1/16 of the bytes that are left */
static const double GAIN = 1.05;     /* a smaller gain is not worth another size */
static const double HOPELESS = 0.75; /* a trial that begins so slowly ends at once */
enum { BEST, TRIAL, HOPELESS_AFTER = 2 };

void ws_pace_begin(struct ws_pace *p, uint64_t start, uint64_t least, uint64_t most)
{
	const bool again = p->best && p->start == start;
	*p = (struct ws_pace){
		.best = again ? p->best : start, .start = start, .least = least, .most = most
	};
}

static uint64_t candidate(const struct ws_pace *p, uint64_t left)
{
	const uint64_t most = left / SHARE / WS_PACE_TRIES;
	if (!p->no_larger && p->best <= p->most / 2 && p->best * 2 <= most)
		return p->best * 2;
	if (!p->no_smaller && p->best / 2 >= p->least && p->best / 2 <= most)
		return p->best / 2;
	return 0;
}

/* A larger size that gains is followed by the next larger one, and a smaller one likewise. */
static void end_trial(struct ws_pace *p, bool gains)
{
	const bool larger = p->trial > p->best;
	p->no_larger |= larger != gains;
	p->no_smaller |= larger == gains;
	if (gains)
		p->best = p->trial;
	p->trial = 0;
}

uint64_t ws_pace_size(struct ws_pace *p, uint64_t left)
{
	/* Too few of them were full. The size of a bucket is asked for before the one in front of
	 * it is measured. */
	if (p->trial && p->turn == 2 * WS_PACE_TRIES + 1)
		end_trial(p, false);
	if (!p->trial) {
		p->trial = candidate(p, left);
		p->n[BEST] = p->n[TRIAL] = p->turn = 0;
	}
	return p->trial && p->turn++ % 2 ? p->trial : p->best;
}

static void sort(double *rates, unsigned n)
{
	for (unsigned i = 1; i < n; i++)
		for (unsigned k = i; k > 0 && rates[k] < rates[k - 1]; k--) {
			const double faster = rates[k - 1];
			rates[k - 1] = rates[k];
			rates[k] = faster;
		}
}

/* It gains if the three fastest of the trial are faster than all of the best size, by 5 %. */
static void judge(struct ws_pace *p)
{
	const double *best = p->rates[BEST], *trial = p->rates[TRIAL];
	const unsigned n = p->n[BEST], m = p->n[TRIAL];
	sort(p->rates[BEST], n);
	sort(p->rates[TRIAL], m);
	if (n == WS_PACE_SAMPLES && m == WS_PACE_SAMPLES)
		end_trial(p, trial[1] > GAIN * best[n - 1]);
	else if (n >= HOPELESS_AFTER && m >= HOPELESS_AFTER && trial[m - 1] < HOPELESS * best[0])
		end_trial(p, false);
}

void ws_pace_took(struct ws_pace *p, uint64_t size, uint64_t bytes, int64_t ns)
{
	const int which = size == p->trial ? TRIAL : BEST;
	if (!p->trial || (which == BEST && size != p->best) || p->n[which] == WS_PACE_SAMPLES)
		return;
	if (bytes > size || bytes < size / 2 || ns <= 0)
		return;
	p->rates[which][p->n[which]++] = (double)bytes / (double)ns * 1e9;
	judge(p);
}
