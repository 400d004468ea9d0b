/* SPDX-License-Identifier: Apache-2.0 */
/* push_verify.c - are the bytes that the endpoints hold the bytes that we sent?
 *
 * Our own hashes are computed in the background while the buckets travel; the endpoints are asked for
 * theirs afterwards. That works with endpoints whose checksums are XXH3-64 of the raw bytes and say so;
 * SGLang's own checksum is another function over another layout and is not compared. */
#include "push_state.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int hash_all(void *arg, struct ws_err *err)
{
	struct ws_push *p = arg;
	for (size_t i = 0; i < p->plan->n_tensors; i++) {
		if (ws_cancelled(&p->hash_stop))
			return ws_err_set(err, WS_ECANCELLED, "hashing was cancelled");
		if (ws_plan_hash(p->plan, i, &p->hashes[i], err))
			return -1;
	}
	return 0;
}

int push_hash_begin(struct ws_push *p, struct ws_err *err)
{
	if (p->opts.verify != WS_VERIFY_HASH)
		return 0;
	p->hashes = malloc(p->plan->n_tensors * sizeof *p->hashes);
	if (!p->hashes)
		return ws_err_set(err, WS_ESYSTEM, "out of memory");
	return ws_cancel_init(&p->hash_stop, err) || ws_job_init(&p->hash_job, err) ||
	       ws_job_start(&p->hash_job, hash_all, p, err) ? -1 : 0;
}

void push_hash_end(struct ws_push *p)
{
	if (p->hash_job.running)
		ws_cancel_set(&p->hash_stop);
	ws_job_fini(&p->hash_job);
	ws_cancel_fini(&p->hash_stop);
	p->hash_stop = (struct ws_cancel)WS_CANCEL_INIT;
	free(p->hashes);
	p->hashes = NULL;
}

static void mismatch(struct ws_push *p, size_t i, int rank, const char *name, const char *kind,
                     const char *expected, const char *found)
{
	const struct ws_event ev = { .type = WS_EV_MISMATCH,
		                     .mismatch = { .url = p->endpoints[i].url, .rank = rank,
		                                   .name = name, .kind = kind,
		                                   .expected = expected, .found = found } };
	push_emit(p, &ev);
}

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct ws_checksum *)a)->name, ((const struct ws_checksum *)b)->name);
}

/* Compares one rank; returns the number of tensors that are not what was sent. */
static size_t compare_rank(struct ws_push *p, size_t i, struct ws_checksum_rank *r)
{
	size_t bad = 0;
	qsort(r->items, r->n, sizeof *r->items, by_name);
	for (size_t k = 0; k < p->plan->n_tensors; k++) {
		const struct ws_checksum want = { .name = p->plan->tensors[k].name,
			                          .value = p->hashes[k] };
		const struct ws_checksum *have =
			r->n ? bsearch(&want, r->items, r->n, sizeof *r->items, by_name) : NULL;
		if (have && have->value == want.value)
			continue;
		char expected[20], found[20] = "";
		snprintf(expected, sizeof expected, "%016llx", (unsigned long long)want.value);
		if (have)
			snprintf(found, sizeof found, "%016llx", (unsigned long long)have->value);
		mismatch(p, i, r->rank, want.name, have ? "hash" : "missing", expected, found);
		bad++;
	}
	return bad;
}

static int judge(struct ws_push *p, size_t i, const struct ws_checksums *c, struct ws_err *err)
{
	struct push_endpoint *e = &p->endpoints[i];
	if (strcmp(c->algorithm, "xxh3-64")) {
		e->state = WS_PARTIAL;
		ws_err_set(err, WS_EREFUSED, "%s: its checksums are %s, which cannot be compared with "
		           "XXH3-64 of what was sent", e->url,
		           c->algorithm[0] ? c->algorithm : "of an unnamed kind");
		return ws_err_hint(err, "the weights were sent; --verify hash needs an endpoint whose "
		                        "/weights_checker says \"algorithm\": \"xxh3-64\"");
	}
	size_t bad = 0;
	for (size_t r = 0; r < c->n_ranks; r++)
		bad += compare_rank(p, i, &c->ranks[r]);
	if (c->n_ranks != p->members[i].ranks) {
		e->state = WS_PARTIAL;
		return ws_err_set(err, WS_EMISMATCH, "%s: %zu of its %u ranks reported checksums", e->url,
		                  c->n_ranks, p->members[i].ranks);
	}
	if (!bad)
		return 0;
	e->state = WS_PARTIAL;
	snprintf(e->message, sizeof e->message, bad == 1 ? "%zu tensor differs from what was sent" :
	                                                  "%zu tensors differ from what was sent", bad);
	return ws_err_set(err, WS_EMISMATCH, "%s: %s", e->url, e->message);
}

/* Reading a source a second time may take long where it does not fit into the page cache. */
static int wait_for_hashes(struct ws_push *p, ws_deadline until, struct ws_err *err)
{
	struct pollfd over = { .fd = p->hash_job.fd, .events = POLLIN };
	while (poll(&over, 1, 0) <= 0) {
		if (ws_http_wait(p->http, until, p->opts.cancel, over.fd, err) < 0)
			return -1;
		if (ws_deadline_passed(until))
			return ws_err_set(err, WS_ETIMEOUT, "hashing the source: the deadline passed");
	}
	return ws_job_wait(&p->hash_job, err) ? ws_err_wrap(err, "hashing the source") : 0;
}

int push_verify(struct ws_push *p, struct ws_err *err)
{
	if (p->opts.verify != WS_VERIFY_HASH)
		return 0;
	const ws_deadline until = ws_deadline_min(p->until, ws_deadline_in(p->opts.bucket_ns));
	if (wait_for_hashes(p, until, err))
		return -1;
	const size_t n = push_select(p, NULL);
	struct ws_checksums *sums = calloc(n, sizeof *sums);
	if (!sums)
		return ws_err_set(err, WS_ESYSTEM, "out of memory");
	ws_endpoint_checksums(p->http, p->urls, n, until, p->opts.cancel, sums, p->errs, NULL);
	int rc = 0;
	for (size_t i = 0; i < n; i++) {
		struct ws_err e = p->errs[i];
		if (e.code == WS_OK && judge(p, i, &sums[i], &e) == 0)
			continue;
		ws_err_where(&e, NULL, p->endpoints[i].url);
		p->endpoints[i].state = WS_PARTIAL;
		if (rc == 0 && err)
			*err = e;
		rc = -1;
	}
	for (size_t i = 0; i < n; i++)
		ws_checksums_free(&sums[i]);
	free(sums);
	return rc;
}

int push_set_version(struct ws_push *p, struct ws_err *err)
{
	if (!p->weight_version || p->opts.verify == WS_VERIFY_NONE)
		return 0; /* it travelled with the last bucket */
	const size_t n = push_select(p, NULL);
	const ws_deadline until = ws_deadline_min(p->until, ws_deadline_in(p->opts.connect_ns));
	if (ws_endpoint_set_version(p->http, p->urls, n, p->weight_version, until, p->opts.cancel,
	                            p->answers, err) == 0)
		return 0;
	/* The weights are everywhere, so it is the first failure and not "some and some not". */
	for (size_t i = 0; err && i < n; i++) {
		if (p->answers[i].err.code == WS_OK)
			continue;
		*err = p->answers[i].err;
		err->phase[0] = 0; /* part of ours */
		break;
	}
	return -1;
}
