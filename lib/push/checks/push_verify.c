/* SPDX-License-Identifier: Apache-2.0 */
/* push_verify.c - do the endpoints have the bytes that were sent?
 *
 * Hashes are computed during the transfer. Bytes of files are read again in the background, because
 * the transfer does not pass them through this code. The endpoints' checksums are requested
 * afterwards. Those of wsync-endpoint are XXH3-64 of each tensor, and labeled so: computed tensors
 * are hashed as they are sent, so they are computed once (twice with ep-scatter, which sends other
 * pieces). Those of other servers are of their own parameters, and are predicted (prover.h). */
#include "endpoint_weights.h"
#include "push_protocol.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* This code does not see the bytes that a GPU computes either. The CPU computes them again, so that
 * an equal hash also proves the kernels. */
static bool made_while_sent(const struct ws_push *p)
{
	return (!p->protocol->transfer || p->protocol->files) && !p->link.gpu.compute;
}

/* Such a server was not asked for its checksums, so their kind is not known. */
static bool was_asleep(const struct ws_push *p, size_t i)
{
	return p->to.endpoints[i].asleep & WS_MEMORY_WEIGHTS;
}

/* One thread each: the transfer needs the others. */
int push_hash_begin(struct ws_push *p, struct ws_err *err)
{
	bool raw = false;
	for (size_t i = 0; i < p->opts.n_endpoints; i++)
		raw |= !ws_prover_has(p->checks.prover, i) || was_asleep(p, i);
	if (p->opts.verify != WS_VERIFY_HASH)
		return 0;
	if (p->checks.prover && ws_prover_begin(p->checks.prover, err))
		return -1;
	return raw && !p->checks.hashes.work.begun ?
	               ws_hashes_begin(&p->checks.hashes, p->from.plan, 1, made_while_sent(p),
	                               p->opts.trace, err) :
	               0;
}

void push_hash_end(struct ws_push *p)
{
	ws_hashes_end(&p->checks.hashes);
	ws_prover_close(p->checks.prover);
	p->checks.prover = NULL;
	push_label_end(p);
}

/* Does no other sender send what this push does not? */
static bool is_alone(const struct ws_push *p)
{
	return p->opts.senders < 2;
}

/* Counts the tensors that differ, each once, however many ranks report it. Also counts tensors that
 * were not sent, at the rank with most of them. wsync-endpoint without a model keeps the tensors of
 * earlier pushes, also of other models. */
static int count_wrong(struct ws_push *p, size_t e, struct ws_checksums *c, size_t *wrong,
                       size_t *unsent, size_t *not_sent, struct ws_err *err)
{
	const char *url = p->to.endpoints[e].url;
	const bool whole = is_alone(p) && !p->to.infos[e].keeps_anything;
	struct ws_hash_count count = {
		.wrong = calloc(p->from.plan->n_tensors + 1, sizeof *count.wrong),
		.layout = p->to.infos[e].keeps_anything ? NULL : ws_input_layout(&p->from.input),
		.include = p->opts.include, .n_include = p->opts.n_include,
		.exclude = p->opts.exclude, .n_exclude = p->opts.n_exclude,
	};
	*wrong = *unsent = *not_sent = 0;
	if (!count.wrong)
		return ws_oom(err);
	for (size_t r = 0; r < c->n_ranks; r++) {
		const size_t before = count.unexpected, aside = count.not_sent;
		ws_hashes_compare(&p->checks.hashes, url, c, r, whole, &p->opts.sink, &count);
		if (count.unexpected - before > *unsent)
			*unsent = count.unexpected - before;
		if (count.not_sent - aside > *not_sent && !p->to.infos[e].keeps_anything)
			*not_sent = count.not_sent - aside;
	}
	for (size_t i = 0; i < p->from.plan->n_tensors; i++)
		*wrong += count.wrong[i];
	if (count.drafts && is_alone(p) && p->from.all_names)
		push_warn(
			p, url,
			"%zu checksums of a draft model were not compared: it is not in the source",
			count.drafts);
	free(count.wrong);
	return 0;
}

static void describe_wrong(char *dst, size_t n, size_t wrong, size_t unsent)
{
	size_t used = 0;
	dst[0] = '\0';
	if (wrong)
		used = (size_t)snprintf(dst, n,
		                        wrong == 1 ? "%zu tensor differs from what was sent" :
		                                     "%zu tensors differ from what was sent",
		                        wrong);
	if (unsent)
		snprintf(dst + used, n - used,
		         "%sit holds %zu tensor%s that this push did not send",
		         used ? ", and " : "", unsent, unsent == 1 ? "" : "s");
}

/* ---- can they be compared? ---- */

static int open_prover(struct ws_push *p, struct ws_err *err)
{
	const struct ws_prover_opts opts = {
		.input = &p->from.input, .plan = p->from.plan, .whole = is_alone(p), .threads = 1,
		.include = p->opts.include, .n_include = p->opts.n_include,
		.exclude = p->opts.exclude, .n_exclude = p->opts.n_exclude,
		.min_coverage = p->opts.min_coverage, .state_dir = p->opts.state_dir,
		.cancel = p->opts.cancel, .trace = p->opts.trace, .sink = p->opts.sink,
	};
	return p->checks.prover ? 0 :
	       ws_prover_open(&opts, p->opts.n_endpoints, &p->checks.prover, err);
}

static int add_server(struct ws_push *p, size_t i, struct ws_err *err)
{
	return open_prover(p, err) || push_find_targets(p, err) ||
	                       ws_prover_add(p->checks.prover, i, &p->to.infos[i], &p->to.listed[i],
	                                     err) ||
	                       ws_prover_check(p->checks.prover, i, err) ?
	               -1 :
	               0;
}

/* A failed update leaves a vLLM paused, and some layers without values: a checksum then fails. */
bool push_may_lack_values(const struct ws_push *p, size_t i)
{
	const struct push_endpoint *e = &p->to.endpoints[i];
	return was_asleep(p, i) ||
	       (push_to_vllm(p, i) &&
	        (e->paused || e->found_paused || e->found_stopped || e->left_open ||
	         e->weights.state == WS_PARTIAL));
}

static int check_endpoint(struct ws_push *p, size_t i, struct ws_err *err)
{
	const ws_deadline until = ws_deadline_min(p->run.until, ws_deadline_in(p->opts.bucket_ns));
	const char *url = p->to.endpoints[i].url;
	const struct ws_endpoint_info *info = &p->to.infos[i];
	const struct ws_call to = { p->http, &url, 1, until, p->opts.cancel, &info };
	struct ws_checksums sums = { 0 };
	struct ws_err said = WS_ERR_INIT;
	int rc;
	if (push_may_lack_values(p, i)) {
		rc = add_server(p, i, &said);
		if (rc && said.code != WS_EREFUSED)
			*err = said;
		return rc && said.code != WS_EREFUSED ? -1 : 0;
	}
	rc = ws_endpoint_checksums(&to, &sums, &said, err);
	if (rc == 0 && !ws_checksums_are_ours(&sums)) {
		rc = ws_prover_refuses(&sums, url, err) || add_server(p, i, err) ? -1 : 0;
		if (rc == 0)
			ws_prover_before(p->checks.prover, i, &sums);
	}
	ws_checksums_free(&sums);
	return rc;
}

/* Refuses before anything is sent if the checksums of a server could not prove enough. A
 * wsync-endpoint is known by its version, so it is not asked, unless it emulates a vLLM. Nor is a
 * server whose weights are released: it would read them and crash. */
int push_verify_can(struct ws_push *p, struct ws_err *err)
{
	for (size_t i = 0; p->opts.verify == WS_VERIFY_HASH && i < p->opts.n_endpoints; i++)
		if ((!ws_endpoint_is_ours(&p->to.infos[i]) || push_to_vllm(p, i)) &&
		    check_endpoint(p, i, err))
			return -1;
	return 0;
}

/* ---- afterwards ---- */

/* Tensors that the server needs; it may list only those that it has received. */
static size_t count_left_out(const struct ws_push *p)
{
	const struct ws_findings *f = &p->checks.names.found;
	size_t n = 0;
	for (size_t i = 0; i < f->n_left_out; i++)
		n += f->left_out[i].needed;
	return n;
}

/* Of the server's tensors, in percent; 100 only if all were sent. */
static double share_sent(const struct ws_plan *plan, size_t not_sent)
{
	const double n = (double)plan->n_tensors;
	return not_sent ? (double)(uint64_t)(n / (n + (double)not_sent) * 1000) / 10 : 100;
}

static int compare_endpoint(struct ws_push *p, size_t i, struct ws_checksums *c, struct ws_err *err)
{
	struct push_endpoint *e = &p->to.endpoints[i];
	struct ws_ev_proof proof = { 0 };
	size_t bad, unsent, not_sent;
	if (!ws_checksums_are_ours(c) && ws_prover_has(p->checks.prover, i)) {
		const int rc = ws_prover_compare(p->checks.prover, i, c, &proof, err);
		e->coverage = proof.percent;
		e->proof = proof;
		e->not_covered = proof.not_sent;
		if (rc == 0)
			return 0;
		snprintf(e->message, sizeof e->message, "%.255s", err->msg);
		return -1;
	}
	if (!ws_checksums_are_ours(c) || !p->checks.hashes.work.begun) {
		ws_err_set(err, WS_EREFUSED,
		           "%s: its checksums are %s, with which what was sent cannot be compared",
		           e->url, c->algorithm[0] ? c->algorithm : "of an unnamed kind");
		return ws_err_where(err, NULL, e->url);
	}
	if (count_wrong(p, i, c, &bad, &unsent, &not_sent, err))
		return -1;
	if (!bad && !unsent) {
		const int rc = ws_checksums_whole(c, &p->to.infos[i], err);
		const size_t left = count_left_out(p);
		e->not_covered = not_sent > left ? not_sent : left;
		e->coverage = rc ? -1 : share_sent(p->from.plan, e->not_covered);
		return rc;
	}
	describe_wrong(e->message, sizeof e->message, bad, unsent);
	return ws_err_set(err, WS_EMISMATCH, "%s: %s", e->url, e->message);
}

int push_hash_wait(struct ws_push *p, ws_deadline until, struct ws_err *err)
{
	if (p->checks.prover && ws_prover_wait(p->checks.prover, p->http, until, NULL, err))
		return -1;
	return p->checks.hashes.work.begun ? ws_hashes_wait(&p->checks.hashes, p->http, until,
	                                                    p->opts.cancel, NULL, err) :
	                                     0;
}

int push_verify(struct ws_push *p, struct ws_err *err)
{
	if (p->opts.verify != WS_VERIFY_HASH)
		return 0;
	const ws_deadline until = ws_deadline_min(p->run.until, ws_deadline_in(p->opts.bucket_ns));
	if (push_hash_wait(p, until, err) || push_check_sources(p, err))
		return -1;
	const size_t n = push_select(p, NULL);
	struct ws_checksums *sums = calloc(n, sizeof *sums);
	if (!sums)
		return ws_oom(err);
	const struct ws_call to = push_call_made(p, until, p->opts.cancel);
	ws_endpoint_checksums(&to, sums, p->to.errs, NULL);
	int rc = 0;
	for (size_t i = 0; i < n; i++) {
		struct ws_err e = p->to.errs[i];
		push_note_failure(p, i, &e);
		if (e.code == WS_OK)
			push_label_compare(p, i, &sums[i]);
		if (e.code == WS_OK && compare_endpoint(p, i, &sums[i], &e) == 0)
			continue;
		ws_err_where(&e, NULL, p->to.endpoints[i].url);
		push_target_event(&p->to.endpoints[i].weights, PUSH_WITHDRAWN);
		if (rc == 0 && err)
			*err = e;
		rc = -1;
	}
	for (size_t i = 0; i < n; i++)
		ws_checksums_free(&sums[i]);
	free(sums);
	return rc;
}

/* If the push sets no version, servers keep the old one, and report it for the new weights.
 * "default" is what SGLang reports for weights that were never named. */
static void warn_of_labels(struct ws_push *p)
{
	for (size_t i = 0; !p->run.label_told && !p->opts.label_stays && i < p->opts.n_endpoints;
	     i++) {
		const char *label = p->to.infos[i].weight_version;
		if (*label && strcmp(label, "default"))
			push_warn(p, p->to.endpoints[i].url,
			          "its weight version stays '%s': {weight_version} gives "
			          "the new weights another",
			          label);
	}
	p->run.label_told = true;
}

int push_set_version(struct ws_push *p, struct ws_err *err)
{
	if (!p->from.weight_version) {
		if (p->opts.senders < 2)
			warn_of_labels(p);
		return 0;
	}
	const size_t n = push_select(p, NULL);
	const ws_deadline until = ws_deadline_min(p->run.until, ws_deadline_in(p->opts.connect_ns));
	const struct ws_call to = push_call_made(p, until, p->opts.cancel);
	const int rc = ws_endpoint_set_version(&to, p->from.weight_version, p->to.call.answers,
	                                       err);
	for (size_t i = 0; i < n; i++)
		p->to.endpoints[p->to.call.index[i]].labelled =
			p->to.call.answers[i].err.code == WS_OK;
	if (rc == 0)
		return 0;
	for (size_t i = 0; i < n; i++) {
		push_note_failure(p, i, &p->to.call.answers[i].err);
		push_note_gone(p, i, &p->to.call.answers[i].err);
	}
	/* All endpoints have the weights: report the first failure, not a partial update. */
	for (size_t i = 0; err && i < n; i++) {
		if (p->to.call.answers[i].err.code == WS_OK)
			continue;
		*err = p->to.call.answers[i].err;
		err->phase[0] = 0; /* the push sets its own phase */
		break;
	}
	return -1;
}
