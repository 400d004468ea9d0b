/* SPDX-License-Identifier: Apache-2.0 */
/* fleet_sum.c - see fleet_sum.h. What a step has established holds for its endpoints only, so the
 * result claims what every step has established, and repeats what any step has assumed. */
#include "fleet_sum.h"

#include <string.h>

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
		ws_name_check_run_add(&sum->names, step->names);
	else if (step->left_out)
		ws_name_check_take_left_out(&sum->names.found, step->left_out);
	add_note(sum, step->format_note);
	sum->unlabelled |= !step->weight_version;
	if (!sum->steps++)
		not_covered = 0;
	end->names = *sum->names.family ? &sum->names : NULL;
	end->left_out = sum->names.found.n_left_out ? &sum->names.found : NULL;
	end->format_note = *sum->note ? sum->note : NULL;
	end->weight_version = sum->unlabelled ? NULL : step->weight_version;
	end->not_covered =
		step->not_covered > not_covered ? step->not_covered : not_covered;
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
