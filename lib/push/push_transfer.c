/* SPDX-License-Identifier: Apache-2.0 */
/* push_transfer.c - sends one bucket after the other, by any protocol. While a bucket moves, the
 * transport prepares the next. */
#include "push_protocol.h"

#include "wsync/tool/str.h"

/* True if the GPU computes this output. transform_on can forbid it (link.gpu.compute). */
static bool makes_here(void *ctx, const struct ws_recipe_output *f)
{
	struct ws_push *p = ctx;
	const struct ws_transport *t = p->link.group ? ws_group_transport(p->link.group) : NULL;
	if (!p->link.gpu.compute)
		return false;
	const bool here = p->protocol->makes ? p->protocol->makes(p, f) :
	                                       t && t->ops->makes && t->ops->makes(t, f);
	p->run.n_made[here]++;
	return here;
}

static int open_payloads(struct ws_push *p, size_t b, struct push_bucket *k, struct ws_err *err)
{
	const bool on_gpu = p->link.transport->makes || p->protocol->makes;
	return on_gpu ? ws_plan_payloads_for_gpu(p->from.plan, b, makes_here, p, &k->payloads,
	                                         &k->n_payloads, err) :
	                ws_plan_payloads(p->from.plan, b, &k->payloads, &k->n_payloads, err);
}

static void say_where(const struct ws_push *p)
{
	if (p->link.gpu.compute && (p->run.n_made[0] || p->run.n_made[1]))
		ws_log(p->opts.log, 1, "transform: %zu tensors made on the GPU, %zu on the CPU",
		       p->run.n_made[1], p->run.n_made[0]);
}

static int open_bucket(struct ws_push *p, size_t b, struct push_bucket *k, struct ws_err *err)
{
	*k = (struct push_bucket){ .b = b, .last = b + 1 == p->from.plan->n_buckets };
	const enum ws_push_flush when = push_flush_when(p);
	k->flush = when == WS_FLUSH_EVERY || (when == WS_FLUSH_LAST && k->last);
	if (open_payloads(p, b, k, err))
		return -1;
	return p->checks.hashes.work.begun && p->checks.hashes.but_made ?
	               ws_plan_payloads_watch(k->payloads, p->checks.hashes.values, err) :
	               0;
}

static void close_bucket(struct push_bucket *k)
{
	ws_plan_payloads_free(k->payloads, k->n_payloads);
	*k = (struct push_bucket){ 0 };
}

static int move_bucket(struct ws_push *p, const struct push_bucket *k, struct ws_err *err)
{
	const struct ws_plan_bucket *bucket = &p->from.plan->buckets[k->b];
	const uint64_t span = push_trace_bucket(p, k->b, p->from.plan->n_buckets);
	const int64_t since = ws_now_ns();
	const int rc = p->protocol->bucket(p, k, err);
	push_trace_bucket_end(p, span, bucket->bytes, rc, err);
	if (rc == 0)
		ws_pace_took(&p->pace, bucket->limit, bucket->bytes, ws_now_ns() - since);
	return rc;
}

bool push_follows_pace(const struct ws_push *p)
{
	return !p->opts.bucket_size && !p->link.transport->memory && p->protocol->one_by_one &&
	       p->protocol->one_by_one(p);
}

/* Cuts the buckets from b on, of `left` bytes, for the size that the last ones suggest. Bucket b is
 * about to be prepared, and the one before it to be sent. False: they keep the best size, because
 * they cannot be cut otherwise. */
static bool follow_pace(struct ws_push *p, size_t b, uint64_t left)
{
	struct ws_plan *plan = p->from.plan;
	const uint64_t size = ws_pace_size(&p->pace, left);
	char best[32], next[32];
	if (size == plan->buckets[b].limit)
		return true;
	ws_plan_recut(plan, b, size);
	ws_log(p->opts.log, 2, "bucket %zu: at most %s, the best size so far is %s", b + 1,
	       ws_format_size(next, sizeof next, plan->buckets[b].limit),
	       ws_format_size(best, sizeof best, p->pace.best));
	return size == plan->buckets[b].limit || plan->buckets[b].limit != p->pace.best;
}

static void stage(struct ws_push *p, const struct ws_payload *payloads, size_t n)
{
	struct ws_transport *t = p->link.group ? ws_group_transport(p->link.group) : NULL;
	if (p->protocol->stage)
		p->protocol->stage(p, payloads, n);
	else if (t && t->ops->stage)
		t->ops->stage(t, payloads, n);
}

/* Detects early that a trainer overwrites its checkpoint. The last bucket is sent only if no
 * source has changed until then. */
static int check_bucket(struct ws_push *p, size_t b, struct ws_err *err)
{
	const int rc = ws_plan_check_bucket(p->from.plan, b, err);
	p->run.commits_void |= rc != 0;
	return rc;
}

int push_check_sources(struct ws_push *p, struct ws_err *err)
{
	if (!p->from.input.catalog || (p->protocol->has_copy && p->protocol->has_copy(p)))
		return 0;
	const int rc = ws_catalog_check(p->from.input.catalog, err);
	p->run.commits_void |= rc != 0;
	return rc;
}

static int move_all(struct ws_push *p, struct ws_err *err)
{
	struct push_bucket now = { 0 }, next = { 0 };
	bool follows = push_follows_pace(p) && push_takes_any_buckets(p);
	uint64_t left = p->from.plan->bytes;
	p->run.n_made[0] = p->run.n_made[1] = 0;
	int rc = open_bucket(p, 0, &next, err);
	for (size_t b = 0; rc == 0 && b < p->from.plan->n_buckets; b++) {
		p->run.bucket = b;
		push_alive_until(p, ws_deadline_in(p->opts.bucket_ns));
		now = next;
		next = (struct push_bucket){ 0 };
		left -= p->from.plan->buckets[b].bytes;
		if (left && follows)
			follows = follow_pace(p, b + 1, left);
		if (left)
			rc = open_bucket(p, b + 1, &next, err);
		if (rc == 0 && next.payloads)
			stage(p, next.payloads, next.n_payloads);
		if (rc == 0 && now.last)
			rc = push_check_sources(p, err);
		if (rc == 0 && now.last && p->protocol->groupless)
			rc = push_check_instances(p, err);
		if (rc == 0)
			rc = move_bucket(p, &now, err);
		if (rc == 0)
			rc = check_bucket(p, b, err);
		close_bucket(&now);
	}
	if (next.payloads)
		stage(p, NULL, 0);
	close_bucket(&next);
	say_where(p);
	return rc;
}

static int move(struct ws_push *p, struct ws_err *err)
{
	const struct ws_transport *t = p->link.group ? ws_group_transport(p->link.group) : NULL;
	const struct push_protocol *how = p->protocol;
	if (how->transfer)
		return how->transfer(p, err);
	p->run.progress_base = t ? t->ops->progress(t) : 0;
	if (how->begin && how->begin(p, err))
		return -1;
	return move_all(p, err) || (how->end && how->end(p, err)) ? -1 : 0;
}

int push_transfer(struct ws_push *p, struct ws_err *err)
{
	p->run.transfer_since = ws_now_ns();
	if (move(p, err))
		return -1;
	return push_check_sources(p, err) || push_leader_sent(p, err) ? -1 : 0;
}
