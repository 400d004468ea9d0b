/* SPDX-License-Identifier: Apache-2.0 */
/* verify_proof.c - compares the servers' own checksums with those that the source must give. */
#include "verify_state.h"

#include "prover.h"

#include <stdlib.h>
#include <string.h>

struct proving {
	struct verify *v;
	struct ws_prover *prover;
	struct ws_endpoint_info *infos;      /* of the endpoints with these means, as all below */
	struct ws_name_check_target *targets;
	size_t n;
};

/* Nothing is proven at endpoint i: numbers may show something. */
static void take_samples(struct verify *v, size_t i, const struct ws_err *why)
{
	v->unproven[i] = *why;
	v->results[i].means = WS_MEANS_SAMPLES;
}

static int ask_targets(struct proving *x, struct ws_err *err)
{
	struct verify *v = x->v;
	const size_t n = verify_select(v, WS_MEANS_PROOF);
	x->infos = calloc(n + 1, sizeof *x->infos);
	x->targets = calloc(n + 1, sizeof *x->targets);
	if (!x->infos || !x->targets)
		return ws_oom(err);
	for (size_t k = 0; k < n; k++)
		x->infos[k] = v->infos[v->index[k]];
	if (ws_name_check_ask(v->http, x->infos, n, false, v->until, v->opts->cancel, x->targets,
	                      err))
		return -1;
	x->n = n;
	return 0;
}

static int add_servers(struct proving *x, struct ws_err *err)
{
	for (size_t k = 0; k < x->n; k++) {
		struct ws_err why = WS_ERR_INIT;
		const size_t i = x->v->index[k];
		if (ws_prover_add(x->prover, k, &x->infos[k], &x->targets[k], &why) == 0)
			continue;
		if (why.code == WS_ESYSTEM || why.code == WS_ECANCELLED) {
			*err = why;
			return -1;
		}
		if (why.code == WS_EREFUSED)
			take_samples(x->v, i, &why);
		else /* another model */
			x->v->results[i].err = why;
	}
	return 0;
}

static bool chooses(const struct ws_verify_opts *o)
{
	return o->n_include || o->n_exclude;
}

static void compare(struct proving *x, size_t k)
{
	struct verify *v = x->v;
	const size_t i = v->index[k];
	struct ws_verify_result *r = &v->results[i];
	struct ws_err why = WS_ERR_INIT;
	const int rc = ws_prover_compare(x->prover, k, &v->sums[i], &r->proof, &why);
	r->equal = r->proof.proven;
	r->different = r->proof.different;
	r->not_sent = r->proof.not_sent;
	r->drafts = chooses(v->opts) ? 0 : r->proof.drafts; /* like all that was not chosen */
	r->proof.url = r->url;
	/* Ranks that cannot be, or are missing, are no reason to look at numbers instead. */
	const bool little = rc && why.code == WS_EREFUSED &&
	                    ws_checksums_whole(&v->sums[i], &x->infos[k], NULL) == 0;
	if (little && !r->proof.proven) {
		take_samples(v, i, &why);
		return;
	}
	if (rc)
		r->err = why;
	if (little)
		r->err.code = WS_EUNKNOWN;
}

static int prove(struct proving *x, struct ws_err *err)
{
	const struct ws_verify_opts *o = x->v->opts;
	const struct ws_prover_opts opts = {
		.input = o->input, .plan = x->v->plan,
		/* Readers of computed tensors take turns. */
		.threads = o->input->transform ? 1 : o->threads,
		.whole = true,
		.include = o->include, .n_include = o->n_include,
		.exclude = o->exclude, .n_exclude = o->n_exclude, .min_coverage = o->min_coverage,
		.state_dir = o->state_dir, .cancel = o->cancel, .sink = o->sink,
	};
	if (ask_targets(x, err) || ws_prover_open(&opts, x->n, &x->prover, err) ||
	    add_servers(x, err) || ws_prover_begin(x->prover, err) ||
	    ws_prover_wait(x->prover, x->v->http, x->v->until, &o->sink, err))
		return -1;
	for (size_t k = 0; k < x->n; k++)
		if (ws_prover_has(x->prover, k))
			compare(x, k);
	return 0;
}

int verify_proof(struct verify *v, struct ws_err *err)
{
	struct proving x = { .v = v };
	const int rc = verify_select(v, WS_MEANS_PROOF) ? prove(&x, err) : 0;
	ws_prover_close(x.prover);
	for (size_t k = 0; k < x.n; k++)
		ws_name_check_target_free(&x.targets[k]);
	free(x.targets);
	free(x.infos);
	return rc;
}
