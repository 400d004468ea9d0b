/* SPDX-License-Identifier: Apache-2.0 */
/* fleet_sum.c - see fleet_sum.h. What a step has established holds for its endpoints only, so the
 * result claims what every step has established, and repeats what any step has assumed. */
#include "fleet_sum.h"

#include <string.h>

static size_t most(size_t a, size_t b)
{
	return a > b ? a : b;
}

/* The step whose servers need most of what was left out. */
static void add_left_out(struct ws_findings *sum, const struct ws_findings *step)
{
	if (sum->n_left_out && step->needed <= sum->needed)
		return;
	memcpy(sum->left_out, step->left_out, sizeof sum->left_out);
	sum->n_left_out = step->n_left_out;
	sum->needed = step->needed;
}

static void add_findings(struct ws_findings *sum, const struct ws_findings *step)
{
	for (size_t v = 0; v < WS_NAME_VERDICTS; v++)
		sum->count[v] += step->count[v];
	sum->errors += step->errors;
	sum->warnings += step->warnings;
	sum->notes += step->notes;
	sum->sent = most(sum->sent, step->sent);
	sum->params = most(sum->params, step->params);
	sum->parts = most(sum->parts, step->parts);
	add_left_out(sum, step);
}

static void take_names(struct ws_name_check_run *sum, const struct ws_name_check_run *step)
{
	sum->checked = step->checked;
	sum->layered = step->layered;
	memcpy(sum->why, step->why, sizeof sum->why);
	memcpy(sum->against, step->against, sizeof sum->against);
	memcpy(sum->family, step->family, sizeof sum->family);
}

static void add_names(struct ws_name_check_run *sum, const struct ws_name_check_run *step)
{
	if (!*sum->family)
		take_names(sum, step);
	sum->own_config |= step->own_config;
	sum->layered &= step->layered;
	if (sum->checked && !step->checked) {
		sum->checked = false;
		memcpy(sum->why, step->why, sizeof sum->why);
	}
	add_findings(&sum->found, &step->found);
}

static void add_note(struct fleet_sum *sum, const char *note)
{
	const size_t used = strlen(sum->note), more = note ? strlen(note) : 0;
	if (!more || strstr(sum->note, note) || used + more + 3 > sizeof sum->note)
		return;
	if (used)
		memcpy(sum->note + used, "; ", 2);
	memcpy(sum->note + used + (used ? 2 : 0), note, more + 1);
}

static void add_facts(struct fleet_sum *sum, const struct ws_ev_end *step, size_t not_covered)
{
	struct ws_ev_end *end = &sum->end;
	if (step->names)
		add_names(&sum->names, step->names);
	else if (step->left_out)
		add_left_out(&sum->names.found, step->left_out);
	add_note(sum, step->format_note);
	sum->unlabelled |= !step->weight_version;
	if (!sum->steps++)
		not_covered = 0;
	end->names = *sum->names.family ? &sum->names : NULL;
	end->left_out = sum->names.found.n_left_out ? &sum->names.found : NULL;
	end->format_note = *sum->note ? sum->note : NULL;
	end->weight_version = sum->unlabelled ? NULL : step->weight_version;
	end->not_covered = most(not_covered, step->not_covered);
}

static void take_plan(struct ws_ev_end *to, const struct ws_ev_end *from)
{
	to->bytes = from->bytes;
	to->tensors = from->tensors;
	to->buckets = from->buckets;
	to->digest = from->digest;
	to->bucket_size = from->bucket_size;
}

static void add_times(struct ws_ev_end *end, const struct ws_ev_end *step)
{
	end->total_ns += step->total_ns;
	for (int i = 0; i < WS_PHASE_COUNT; i++)
		end->ns[i] += step->ns[i];
}

void fleet_sum_add_trial(struct fleet_sum *sum, const struct ws_ev_end *trial, bool ok)
{
	add_times(&sum->end, trial);
	if (!ok)
		take_plan(&sum->end, trial);
}

void fleet_sum_add(struct fleet_sum *sum, const struct ws_ev_end *step, bool ok)
{
	const struct ws_ev_end before = sum->end;
	struct ws_ev_end *end = &sum->end;
	*end = *step;
	end->wire_bytes += before.wire_bytes;
	add_times(end, &before);
	if (!step->tensors) { /* it failed before it had a plan */
		take_plan(end, &before);
		end->first_byte_ns = before.first_byte_ns;
	}
	if (ok)
		add_facts(sum, step, before.not_covered);
}
