/* SPDX-License-Identifier: Apache-2.0 */
/* verify.c - chooses the means of comparison for each endpoint, and compares checksums.
 *
 * The source is hashed after the endpoints have answered, and only if one of them has comparable
 * checksums: hashing a terabyte takes minutes. */
#include "prover.h"
#include "verify_state.h"
#include "vllm_workers.h"

#include "wsync/tool/input.h"
#include "wsync/tool/name_check_run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *ws_verify_means_name(enum ws_verify_means means)
{
	static const char *const names[] = { "none",    "checksums", "proof",
		                             "samples", "twice",     "reset" };
	return names[means];
}

void verify_begin(struct ws_verify_result *r, const char *url)
{
	*r = (struct ws_verify_result){ .url = url, .err = WS_ERR_INIT };
}

size_t verify_select(struct verify *v, enum ws_verify_means means)
{
	size_t n = 0;
	for (size_t i = 0; i < v->opts->n_endpoints; i++) {
		if (v->results[i].err.code != WS_OK || v->results[i].means != means)
			continue;
		v->urls[n] = v->opts->endpoints[i];
		v->index[n++] = i;
	}
	return n;
}

int verify_sum_up(const struct ws_verify_result *results, size_t n, struct ws_err *err)
{
	const struct ws_err *worst = NULL;
	for (size_t i = 0; i < n; i++) {
		const struct ws_err *e = &results[i].err;
		if (e->code != WS_OK &&
		    (!worst || (e->code == WS_EMISMATCH && worst->code != WS_EMISMATCH)))
			worst = e;
	}
	if (worst && err)
		*err = *worst;
	return worst ? -1 : 0;
}

void verify_give_up(struct ws_verify_result *results, size_t n, const struct ws_err *why)
{
	for (size_t i = 0; i < n; i++)
		if (results[i].err.code == WS_OK)
			results[i].err = *why;
}

int verify_stopped(const struct verify *v, struct ws_err *err)
{
	return ws_cancelled(v->opts->cancel) ? ws_err_set(err, WS_ECANCELLED, "cancelled") : 0;
}

/* ---- requests ---- */

static void fail_endpoint(struct verify *v, size_t i, const struct ws_err *e)
{
	v->results[i].err = *e;
	ws_err_where(&v->results[i].err, NULL, v->opts->endpoints[i]);
}

static int probe(struct verify *v, struct ws_err *err)
{
	const int64_t connect_ns = v->opts->connect_ns > 0 ? v->opts->connect_ns :
	                                                      WS_ENDPOINT_CONNECT_NS;
	const ws_deadline until = ws_deadline_min(v->until, ws_deadline_in(connect_ns));
	const size_t n = v->opts->n_endpoints;
	const struct ws_call to = { v->http, v->opts->endpoints, n, until, v->opts->cancel, NULL };
	const ws_deadline slow = ws_endpoint_slow_until(v->opts->connect_ns, until, v->until);
	const int rc = ws_endpoint_probe_slow(&to, slow, v->infos, v->errs, err);
	for (size_t i = 0; rc && v->results && i < n; i++)
		if (v->errs[i].code != WS_OK)
			fail_endpoint(v, i, &v->errs[i]);
	return verify_stopped(v, err);
}

/* After a failed request, some workers of a vLLM answer with checksums of an earlier time. */
static int check_steps(struct verify *v, struct ws_err *err)
{
	for (size_t i = 0; i < v->opts->n_endpoints; i++) {
		const struct ws_endpoint_info *info = &v->infos[i];
		const struct ws_call to = { v->http, &v->opts->endpoints[i], 1, v->until,
			                    v->opts->cancel, &info };
		struct ws_err said = WS_ERR_INIT, why = WS_ERR_INIT;
		bool inside;
		if (v->results[i].err.code || !info->can.reload || info->world_size < 2 ||
		    ws_lineage_family(info->lineage) != WS_FAMILY_VLLM)
			continue;
		if (ws_vllm_in_step(&to, &inside, &said, &why))
			fail_endpoint(v, i, &why);
	}
	return verify_stopped(v, err);
}

/* Decides how to compare each endpoint. An endpoint that refuses checksums may still
 * show numbers. A reply that cannot be true (a rank twice) is a failure: samples come
 * from the first rank alone. */
static int ask_checksums(struct verify *v, struct ws_err *err)
{
	const size_t n = verify_select(v, WS_MEANS_NONE);
	struct ws_checksums *sums = calloc(n + 1, sizeof *sums);
	const struct ws_endpoint_info **infos = calloc(n + 1, sizeof *infos);
	if (!sums || !infos) {
		free(sums);
		free(infos);
		return ws_oom(err);
	}
	for (size_t k = 0; k < n; k++)
		infos[k] = &v->infos[v->index[k]];
	const struct ws_call to = { v->http, v->urls, n, v->until, v->opts->cancel, infos };
	ws_endpoint_checksums(&to, sums, v->errs, err);
	free(infos);
	for (size_t k = 0; k < n; k++) {
		const size_t i = v->index[k];
		struct ws_verify_result *r = &v->results[i];
		v->sums[i] = sums[k];
		snprintf(r->algorithm, sizeof r->algorithm, "%s", sums[k].algorithm);
		r->ranks = (unsigned)sums[k].n_ranks;
		if (v->errs[k].code == WS_OK && ws_checksums_are_ours(&sums[k]))
			r->means = WS_MEANS_CHECKSUMS;
		else if (v->errs[k].code == WS_OK && !ws_prover_refuses(&sums[k], r->url,
		                                                        &v->unproven[i]))
			r->means = WS_MEANS_PROOF;
		else if (v->errs[k].code == WS_OK)
			r->means = WS_MEANS_SAMPLES;
		else if (v->errs[k].code == WS_EREFUSED && !sums[k].contradicts)
			r->means = WS_MEANS_SAMPLES;
		else
			fail_endpoint(v, i, &v->errs[k]);
	}
	free(sums);
	return verify_stopped(v, err);
}

/* ---- comparing ---- */

static int judge_hashes(const struct ws_hash_count *c, const struct ws_endpoint_info *info,
                        struct ws_checksums *sums, struct ws_verify_result *r)
{
	const size_t bad = c->different + c->missing + c->unexpected;
	r->equal = c->equal;
	r->different = c->different;
	r->missing = c->missing;
	r->unexpected = c->unexpected;
	r->drafts = c->drafts;
	r->not_sent = c->not_sent;
	if (bad)
		return ws_err_set(&r->err, WS_EMISMATCH,
		                  "%s: it does not hold these weights: %zu "
		                  "tensors equal, %zu different, %zu missing, %zu unexpected",
		                  r->url, c->equal, c->different, c->missing, c->unexpected);
	return ws_checksums_whole(sums, info, &r->err);
}

static bool chooses(const struct ws_verify_opts *o)
{
	return o->n_include || o->n_exclude;
}

static void compare_endpoint(struct verify *v, const struct ws_hashes *h, size_t i)
{
	const bool whole = !v->infos[i].keeps_anything || !chooses(v->opts);
	struct ws_checksums *sums = &v->sums[i];
	struct ws_hash_count count = {
		.layout = v->infos[i].keeps_anything ? NULL : ws_input_layout(v->opts->input),
		.include = v->opts->include, .n_include = v->opts->n_include,
		.exclude = v->opts->exclude, .n_exclude = v->opts->n_exclude,
	};
	for (size_t k = 0; k < sums->n_ranks; k++)
		ws_hashes_compare(h, v->opts->endpoints[i], sums, k, whole, &v->opts->sink, &count);
	if (chooses(v->opts))
		count.drafts = 0; /* like all tensors that were not chosen */
	if (judge_hashes(&count, &v->infos[i], sums, &v->results[i]))
		ws_err_where(&v->results[i].err, NULL, v->opts->endpoints[i]);
}

static int compare_checksums(struct verify *v, struct ws_err *err)
{
	struct ws_hashes h = { 0 };
	const size_t n = verify_select(v, WS_MEANS_CHECKSUMS);
	if (!n)
		return 0;
	int rc = ws_hashes_begin(&h, v->plan, v->opts->threads, false, NULL, err);
	if (!rc)
		rc = ws_hashes_wait(&h, v->http, v->until, v->opts->cancel, &v->opts->sink, err);
	for (size_t k = 0; !rc && k < n; k++)
		compare_endpoint(v, &h, v->index[k]);
	ws_hashes_end(&h);
	return rc;
}

/* ---- a run ---- */

static int make_plan(struct verify *v, struct ws_err *err)
{
	const struct ws_plan_opts opts = {
		.format = WS_FORMAT_FLATTENED,
		.include = v->opts->include, .n_include = v->opts->n_include,
		.exclude = v->opts->exclude, .n_exclude = v->opts->n_exclude,
	};
	return ws_plan_make(v->opts->input->catalog, &opts, &v->plan, err);
}

/* For `probe`. */
static int open_client(struct verify *v, struct ws_err *err)
{
	const size_t n = v->opts->n_endpoints;
	const struct ws_client_opts client = { .api_key = v->opts->api_key,
		                               .ca_file = v->opts->ca_file,
		                               .log = v->opts->log,
		                               .connect_ns = v->opts->connect_ns };
	v->until = v->opts->timeout_ns > 0 ? ws_deadline_in(v->opts->timeout_ns) : WS_FOREVER;
	v->infos = calloc(n, sizeof *v->infos);
	v->errs = calloc(n, sizeof *v->errs);
	return !v->infos || !v->errs ? ws_oom(err) : ws_client_open(&client, &v->http, err);
}

static int open_verify(struct verify *v, struct ws_err *err)
{
	const size_t n = v->opts->n_endpoints;
	for (size_t i = 0; i < n; i++)
		verify_begin(&v->results[i], v->opts->endpoints[i]);
	if (!n)
		return ws_err_set(err, WS_EUSAGE, "no endpoint to verify");
	v->sums = calloc(n, sizeof *v->sums);
	v->unproven = calloc(n, sizeof *v->unproven);
	v->urls = calloc(n, sizeof *v->urls);
	v->index = calloc(n, sizeof *v->index);
	if (!v->sums || !v->unproven || !v->urls || !v->index)
		return ws_oom(err);
	return make_plan(v, err) || open_client(v, err) ? -1 : 0;
}

static void close_verify(struct verify *v)
{
	for (size_t i = 0; v->sums && i < v->opts->n_endpoints; i++)
		ws_checksums_free(&v->sums[i]);
	ws_plan_free(v->plan);
	ws_client_close(v->http);
	free(v->infos);
	free(v->errs);
	free(v->sums);
	free(v->unproven);
	free(v->urls);
	free(v->index);
}

int ws_verify_look(const struct ws_verify_opts *opts, struct ws_transform_opts *t,
                   struct ws_input_found *found, struct ws_config **config, struct ws_err *err)
{
	struct verify v = { .opts = opts };
	*config = NULL;
	*found = (struct ws_input_found){ .started = 0 };
	struct ws_err why = WS_ERR_INIT;
	if (!opts->n_endpoints)
		return 0;
	int rc = open_client(&v, &why) || probe(&v, &why) ? -1 : 0;
	if (!rc) {
		*config = ws_name_check_quant(v.infos, opts->n_endpoints, t);
		*found = ws_name_check_references(v.infos, opts->n_endpoints,
		                                  opts->state_dir);
	}
	if (*config)
		t->quant = ws_config_quant(*config);
	close_verify(&v);
	/* What is asked next says the same of servers that do not answer. */
	if (rc && (t->quantize == WS_QUANTIZE_NONE || t->quant) && why.code != WS_ECANCELLED)
		return 0;
	if (rc && err)
		*err = why;
	return rc;
}

int ws_verify_weights(const struct ws_verify_opts *opts, struct ws_verify_result *results,
                      struct ws_err *err)
{
	struct verify v = { .opts = opts, .results = results };
	struct ws_err why = WS_ERR_INIT;
	int rc = open_verify(&v, &why);
	if (!rc)
		rc = probe(&v, &why) || check_steps(&v, &why) || ask_checksums(&v, &why) ||
		     compare_checksums(&v, &why) ||
		     verify_proof(&v, &why) || verify_samples(&v, &why) ||
		     ws_catalog_check(opts->input->catalog, &why) ? -1 : 0;
	if (rc)
		verify_give_up(results, opts->n_endpoints, &why);
	/* After a timeout, the result of the endpoint that spent the time names it. */
	if (!rc || why.code == WS_ETIMEOUT)
		rc = verify_sum_up(results, opts->n_endpoints, &why);
	close_verify(&v);
	if (rc && err)
		*err = why;
	return rc;
}
