/* SPDX-License-Identifier: Apache-2.0 */
/* push_plan.c - makes the plan of a push, and reports it. */
#include "push_protocol.h"

#include "gpu_stage.h"
#include "name_index.h"

#include "wsync/tool/str.h"

#include <stdio.h>

void push_name_source(struct ws_push *p, const struct ws_push_source *s)
{
	size_t used = 0;
	p->from.name[0] = 0;
	for (size_t i = 0; i < s->n_paths && used + 1 < sizeof p->from.name; i++) {
		const int n = snprintf(p->from.name + used, sizeof p->from.name - used, "%s%s",
		                       i ? " " : "", s->paths[i]);
		used += n > 0 ? (size_t)n : 0;
	}
}

/* Servers of torch on a CPU allocate each bucket with malloc. glibc keeps freed memory for the next
 * allocation, but not more than 32 MiB (DEFAULT_MMAP_THRESHOLD_MAX). A larger bucket comes from the
 * kernel and goes back to it, in pages of 4 KiB that it zeroes first. On a virtual machine that
 * took 1.1 s per GB, and receiving 0.35 s. On GPUs torch keeps the memory of buckets. A
 * wsync-endpoint needs none. A request of `tensor` holds its bucket once per rank. */
enum { KEPT_BY_MALLOC = 31 << 20, LEAST = 4 << 20, IN_REQUEST = 16 << 20 };

uint64_t ws_push_bucket_size(enum ws_backend backend)
{
	return backend == WS_BACKEND_TENSOR                               ? IN_REQUEST :
	       backend == WS_BACKEND_AUTO || backend == WS_BACKEND_GLOO ? KEPT_BY_MALLOC :
	                                                                    WS_PUSH_BUCKET_LARGEST;
}

static void begin_pace(struct ws_push *p)
{
	bool ours = p->to.known && p->opts.n_endpoints && push_follows_pace(p);
	for (size_t i = 0; i < p->opts.n_endpoints; i++)
		ours = ours && ws_endpoint_is_ours(&p->to.infos[i]);
	ws_pace_begin(&p->pace,
	              ours ? WS_PUSH_BUCKET_LARGEST : ws_push_bucket_size(p->opts.backend), LEAST,
	              WS_PUSH_BUCKET_LARGEST);
}

/* Plans the buckets. Some servers take flattened buckets of one dtype only, and mixed dtypes are
 * known only after planning. Then the buckets are planned again. */
static int plan_buckets(struct ws_push *p, struct ws_err *err)
{
	begin_pace(p);
	struct ws_plan_opts opts = {
		.bucket_size = p->opts.bucket_size ? p->opts.bucket_size : p->pace.best,
		.large = p->pace.start,
		.together = push_follows_pace(p) ? WS_PUSH_BUCKET_LARGEST : 0,
		.format = push_choose_format(p),
		.whole_layers = push_sends_whole_layers(p),
		.include = p->opts.include,
		.n_include = p->opts.n_include,
		.exclude = p->opts.exclude,
		.n_exclude = p->opts.n_exclude,
	};
	if (ws_plan_make(p->from.input.catalog, &opts, &p->from.plan, err))
		return -1;
	/* Those of files are; {map} may make others. */
	for (size_t i = 0; i < p->from.plan->n_tensors; i++)
		if (ws_check_utf8(p->from.plan->tensors[i].name, "tensor", err))
			return -1;
	p->from.format = push_choose_format(p);
	if (p->from.format == opts.format)
		return 0;
	opts.format = p->from.format;
	ws_plan_free(p->from.plan);
	p->from.plan = NULL;
	return ws_plan_make(p->from.input.catalog, &opts, &p->from.plan, err);
}

/* A server's model directory, if it can be read here, for a source without a config; NULL. */
static const char *find_model_dir(const struct ws_push *p)
{
	const char *dir = NULL;
	for (size_t i = 0; p->to.known && !dir && i < p->opts.n_endpoints; i++)
		dir = ws_name_check_model_dir(&p->to.infos[i]);
	return dir;
}

static int open_source(struct ws_push *p, const struct ws_push_source *s, struct ws_err *err)
{
	struct ws_transform_opts transform = { 0 };
	struct ws_input_opts input = {
		.paths = s->paths,
		.n_paths = s->n_paths,
		.map = p->opts.map,
		.config = p->opts.config,
		.fallback = find_model_dir(p),
		.like = p->opts.like,
		.sharded_tp = p->opts.sharded_tp,
		.sharded_ep = p->opts.sharded_ep,
		.memory = &ws_memory_cuda,
		.cancel = p->opts.cancel,
		.transform = p->opts.transform ? &transform : NULL,
	};
	if (p->to.known)
		input.found = ws_name_check_references(p->to.infos, p->opts.n_endpoints,
		                                       p->opts.state_dir);
	if (p->opts.transform)
		transform = *p->opts.transform;
	transform.trace = p->opts.trace;
	transform.include = p->opts.include;
	transform.n_include = p->opts.n_include;
	transform.exclude = p->opts.exclude;
	transform.n_exclude = p->opts.n_exclude;
	push_find_server_config(p);
	if (p->from.server_config && !transform.quant)
		transform.quant = ws_config_quant(p->from.server_config);
	return ws_input_open(&input, &p->from.input, err);
}

static void warn_of_lacking(struct ws_push *p)
{
	struct ws_transform_report r;
	if (!p->from.input.transform)
		return;
	ws_transform_report(p->from.input.transform, &r);
	if (r.lacking)
		push_warn(p, NULL, "the adapter's file has no factors for %zu of the modules that "
		          "its adapter_config.json names and the base has, the first is that of "
		          "'%s': they stay as in the base", r.lacking,
		          ws_quote(r.lacking_first).text);
}

/* Ranks that have no part of a tensor may save it without elements. */
static void warn_of_empty(struct ws_push *p)
{
	const struct ws_catalog *c = p->from.input.catalog;
	const char *first = NULL;
	size_t n = 0;
	for (size_t i = 0; i < ws_catalog_count(c); i++) {
		const struct ws_item *item = ws_catalog_item(c, i);
		if (item->bytes || !ws_glob_choose(p->opts.include, p->opts.n_include,
		                                   p->opts.exclude, p->opts.n_exclude, item->name))
			continue;
		first = first ? first : item->name;
		n++;
	}
	if (n)
		push_warn(p, NULL, "%zu tensor%s of the source %s no elements and %s not sent, the "
		          "first is '%s'", n, n == 1 ? "" : "s", n == 1 ? "has" : "have",
		          n == 1 ? "is" : "are", ws_quote(first).text);
}

int push_make_plan(struct ws_push *p, const struct ws_push_source *s, struct ws_err *err)
{
	if (open_source(p, s, err) ||
	    ws_input_check_globs(&p->from.input, "include", p->opts.include, p->opts.n_include,
	                         err) ||
	    ws_input_check_globs(&p->from.input, "exclude", p->opts.exclude, p->opts.n_exclude,
	                         err))
		return -1;
	warn_of_lacking(p);
	for (size_t i = 0; i < p->from.input.n_sources; i++)
		ws_source_trace(p->from.input.sources[i], p->opts.trace);
	if (plan_buckets(p, err))
		return -1;
	warn_of_empty(p);
	/* The tensors that an adapter changes may be in the part of another sender. */
	return p->from.input.transform && p->opts.senders < 2 ?
	               ws_transform_sends(p->from.input.transform, err) :
	               0;
}

static bool makes(const struct ws_push *p, bool whole_layers, uint64_t digest)
{
	const struct ws_plan_opts opts = {
		.whole_layers = whole_layers,
		.include = p->opts.include, .n_include = p->opts.n_include,
		.exclude = p->opts.exclude, .n_exclude = p->opts.n_exclude,
	};
	struct ws_plan *plan = NULL;
	const bool same = ws_plan_make(p->from.input.catalog, &opts, &plan, NULL) == 0 &&
	                  plan->digest == digest;
	ws_plan_free(plan);
	return same;
}

/* The protocol, which is not chosen yet, decides whether layers stay whole: that changes the order
 * of the tensors, and so the digest. */
int push_has_plan(struct ws_push *p, const struct ws_push_source *s,
                  const struct ws_endpoint_info *info, uint64_t digest)
{
	const struct ws_endpoint_info was = p->to.infos[0];
	const size_t n = p->opts.n_endpoints;
	const bool known = p->to.known;
	struct ws_err err = WS_ERR_INIT;
	int same = -1;
	p->to.infos[0] = *info;
	p->to.known = true;
	p->opts.n_endpoints = 1;
	if (open_source(p, s, &err) == 0)
		same = makes(p, false, digest) || makes(p, true, digest);
	ws_input_close(&p->from.input);
	ws_config_free(p->from.server_config);
	p->from.server_config = NULL;
	p->to.infos[0] = was;
	p->to.known = known;
	p->opts.n_endpoints = n;
	return same;
}

static void find_largest(const struct ws_push *p, uint64_t *bytes, size_t *payloads)
{
	*bytes = 0;
	*payloads = 1;
	for (size_t b = 0; b < p->from.plan->n_buckets; b++) {
		const struct ws_plan_bucket *bucket = &p->from.plan->buckets[b];
		*bytes = bucket->bytes > *bytes ? bucket->bytes : *bytes;
		if (p->from.plan->format != WS_FORMAT_FLATTENED && bucket->n > *payloads)
			*payloads = bucket->n;
	}
}

uint64_t push_largest_staging(const struct ws_push *p)
{
	uint64_t bytes, one, pinned;
	size_t payloads;
	find_largest(p, &bytes, &payloads);
	ws_gpu_stage_memory(1, bytes, payloads, &one, &pinned);
	return one;
}

static void tell_memory(const struct ws_push *p, struct ws_ev_plan *ev)
{
	uint64_t bytes;
	size_t payloads;
	find_largest(p, &bytes, &payloads);
	if (p->link.transport->memory)
		p->link.transport->memory(p->from.plan->n_buckets, bytes, payloads, &ev->gpu_bytes,
		                          &ev->pinned_bytes);
	for (size_t i = 0; i < p->from.input.n_sources; i++)
		ev->pinned_bytes += ws_source_pinned(p->from.input.sources[i]);
	if (p->link.gpu.compute)
		ws_gpu_stage_kernel_memory(&ev->gpu_bytes, &ev->pinned_bytes);
	push_values_memory(p, &ev->gpu_bytes, &ev->pinned_bytes);
}

static void warn_of_sources(struct ws_push *p)
{
	const char *warning;
	for (size_t s = 0; s < p->from.input.n_sources; s++)
		for (size_t i = 0; (warning = ws_source_warning(p->from.input.sources[s], i)); i++)
			push_warn(p, NULL, "%s", warning);
}

/* A pattern without a match in this sender's part may match tensors of another sender. */
static void warn_unused(struct ws_push *p)
{
	size_t next = 0;
	const char *unused;
	while (p->opts.senders < 2 &&
	       (unused = ws_plan_unused(p->from.input.catalog, p->opts.exclude, p->opts.n_exclude,
	                                &next)))
		push_warn(p, NULL, "{exclude} %.200s matches no tensor of the source", unused);
}

static void emit_tensors(struct ws_push *p, size_t b)
{
	const struct ws_plan_bucket *bucket = &p->from.plan->buckets[b];
	for (size_t i = bucket->first; i < bucket->first + bucket->n; i++) {
		const struct ws_plan_tensor *t = &p->from.plan->tensors[i];
		const struct ws_event ev = { .type = WS_EV_TENSOR,
			                     .tensor = { .bucket = b,
			                                 .name = t->name,
			                                 .dtype = t->dtype,
			                                 .n_dims = t->n_dims,
			                                 .dims = t->dims,
			                                 .bytes = t->bytes,
			                                 .recipe = ws_transform_op_name(t->op) } };
		push_emit(p, &ev);
	}
}

uint64_t push_bucket_limit(const struct ws_push *p, size_t b)
{
	const bool none = p->protocol->files ? p->opts.bucket_size == UINT64_MAX :
	                                       p->protocol->transfer != NULL;
	return none || !p->from.plan ? 0 : p->from.plan->buckets[b].limit;
}

uint64_t push_last_bucket_limit(const struct ws_push *p)
{
	return p->from.plan ? push_bucket_limit(p, p->from.plan->n_buckets - 1) : 0;
}

static void emit_planned_bucket(struct ws_push *p, size_t b)
{
	const struct ws_plan *plan = p->from.plan;
	const enum ws_push_flush flush = push_flush_when(p);
	const bool last = b + 1 == plan->n_buckets;
	const struct ws_event ev = {
		.type = WS_EV_BUCKET,
		.bucket = { .index = b, .count = plan->n_buckets,
		            .tensors = plan->buckets[b].n, .bytes = plan->buckets[b].bytes,
		            .bucket_size = push_bucket_limit(p, b),
		            .flush = !p->opts.write_dir &&
		                     (flush == WS_FLUSH_EVERY || (flush == WS_FLUSH_LAST && last)),
		            .planned = true }
	};
	push_emit(p, &ev);
}

void push_emit_plan(struct ws_push *p)
{
	const struct ws_member *last =
		p->to.known && p->opts.n_endpoints ? &p->to.members[p->opts.n_endpoints - 1] : NULL;
	warn_unused(p);
	const struct ws_plan *plan = p->from.plan;
	struct ws_event ev = {
		.type = WS_EV_PLAN,
		.plan = { .source = p->from.name,
		          .digest = plan->digest,
		          .tensors = plan->n_tensors,
		          .skipped = plan->n_skipped,
		          .buckets = plan->n_buckets,
		          .bytes = plan->bytes,
		          .bucket_size = push_bucket_limit(p, 0),
		          .bucket_size_auto = push_follows_pace(p) && push_takes_any_buckets(p),
		          .load_format =
		                  plan->format == WS_FORMAT_FLATTENED ? "flattened_bucket" : "none",
		          .backend = p->link.transport->name,
		          .protocol = p->protocol->name,
		          .world_size = last ? last->rank_offset + last->ranks : 0,
		          .sender = p->opts.sender,
		          .senders = p->opts.senders,
		          .dry_run = p->opts.dry_run },
	};
	if (p->protocol->tell_plan)
		p->protocol->tell_plan(p, &ev.plan);
	tell_memory(p, &ev.plan);
	warn_of_sources(p);
	push_emit(p, &ev);
	for (size_t b = 0; b < plan->n_buckets; b++) {
		if (p->opts.list_tensors)
			emit_tensors(p, b);
		if (p->opts.dry_run)
			emit_planned_bucket(p, b);
	}
}
