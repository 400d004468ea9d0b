/* SPDX-License-Identifier: Apache-2.0 */
/* prover.h - do servers have the tensors of a plan? Their own checksums (/weights_checker) are
 * compared with what they must be (predict.h).
 *
 * A rule of a layout may be wrong for a server: a backend may have rearranged the parameter. So an
 * unequal checksum means "different" only where the rule is certain: it is documented for that
 * device, or a parameter of the same kind was equal at that server. Otherwise the parameter is
 * opaque: it is not proven, and it is not a mismatch. */
#ifndef WS_VERIFY_PROVER_H
#define WS_VERIFY_PROVER_H

#include "http.h"
#include "wsync/event.h"
#include "wsync/tool/checksums.h"
#include "wsync/tool/input.h"
#include "wsync/tool/name_check_run.h"
#include "wsync/tool/plan.h"
#include "wsync/trace.h"

struct ws_prover; /* for several servers */

/* All of it is borrowed until the end. */
struct ws_prover_opts {
	const struct ws_input *input;
	const struct ws_plan *plan;
	/* No other sender sends parameters that get none of the plan's tensors. */
	bool whole;
	/* The globs of the plan: parameters that they leave out are not compared. */
	const char *const *include, *const *exclude;
	size_t n_include, n_exclude;
	unsigned threads;         /* as of ws_parallel_begin */
	unsigned min_coverage;    /* percent of the bytes that must be proven; 0: 100 */
	const char *state_dir;    /* remembers the kinds that were equal; NULL: nothing */
	const struct ws_cancel *cancel;
	struct ws_trace *trace;   /* NULL: none */
	struct ws_sink sink;      /* gets WS_EV_MISMATCH and WS_EV_PROOF */
};

int ws_prover_open(const struct ws_prover_opts *opts, size_t n, struct ws_prover **out,
                   struct ws_err *err);
void ws_prover_close(struct ws_prover *p); /* cancels unfinished work; NULL is fine */

/* Are these checksums of a named function, which servers' own are not? Then nothing can be
 * predicted: -1, WS_EREFUSED. */
int ws_prover_refuses(const struct ws_checksums *sums, const char *url, struct ws_err *err);
/* Adds server i of n, at most once each. WS_EREFUSED: nothing about it can be proven. Reads no
 * tensor. */
int ws_prover_add(struct ws_prover *p, size_t i, const struct ws_endpoint_info *info,
                  const struct ws_name_check_target *target, struct ws_err *err);
/* Could min_coverage be proven at server i? Reads no tensor. */
int ws_prover_check(const struct ws_prover *p, size_t i, struct ws_err *err);
bool ws_prover_has(const struct ws_prover *p, size_t i);
/* The checksums of server i before the weights are sent, for better reasons and more certainty.
 * Takes *sums over. */
void ws_prover_before(struct ws_prover *p, size_t i, struct ws_checksums *sums);

/* Computes in the background what the checksums of all added servers must be. A second call does
 * nothing. */
int ws_prover_begin(struct ws_prover *p, struct ws_err *err);
int ws_prover_wait(struct ws_prover *p, struct ws_http *http, ws_deadline until,
                   const struct ws_sink *progress, struct ws_err *err);

/* Compares server i, and emits what it finds. 0: enough of it is proven. WS_EMISMATCH: a parameter
 * differs. WS_EREFUSED: nothing differs, but not enough is proven. */
int ws_prover_compare(struct ws_prover *p, size_t i, const struct ws_checksums *sums,
                      struct ws_ev_proof *out, struct ws_err *err);

#endif
