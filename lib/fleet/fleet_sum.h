/* SPDX-License-Identifier: Apache-2.0 */
/* fleet_sum.h - the result of a run that pushes in steps, of which each has an end of its own. */
#ifndef WS_FLEET_SUM_H
#define WS_FLEET_SUM_H

#include "wsync/event.h"
#include "wsync/tool/name_check_run.h"

struct fleet_sum {
	/* all but the endpoints; points into this struct, and into the last step's end */
	struct ws_ev_end end;
	struct ws_name_check_run names; /* of all steps; owns nothing */
	char note[256];                 /* the format notes of all steps, each once */
	bool unlabelled;                /* a step has not set the weight version */
	size_t steps;                   /* that have succeeded */
};

/* Adds a step. After a success the result says what holds for all steps that have succeeded; after
 * a failure what the failed step says. */
void fleet_sum_add(struct fleet_sum *sum, const struct ws_ev_end *step, bool ok);
/* Adds the times of a dry run; a failed one has the plan that the result shows. */
void fleet_sum_add_trial(struct fleet_sum *sum, const struct ws_ev_end *trial, bool ok);

#endif
