/* SPDX-License-Identifier: Apache-2.0 */
/* plan_cut.h - where a bucket ends. See the rules in plan.h. */
#ifndef WS_MODEL_PLAN_CUT_H
#define WS_MODEL_PLAN_CUT_H

#include "wsync/tool/plan.h"

/* Appends buckets of the tensors from `first` on, one group of partners after the other. -1: out of
 * memory. */
int ws_plan_cut(struct ws_plan *p, size_t first, uint64_t size);
/* Does each of these tensors, one behind the other, begin at a multiple of its element size? Types
 * of less than a byte count as bytes: their tensors are whole bytes. */
bool ws_plan_aligned(const struct ws_plan_tensor *t, size_t n);

#endif
