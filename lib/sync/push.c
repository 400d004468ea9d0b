/* SPDX-License-Identifier: Apache-2.0 */
/* push.c - the life of a push: phases in order, and what is owed to the endpoints when one fails.
 *
 * The books: every nanosecond of a run belongs to exactly one phase, so the phases add up to the
 * total. Clean-up has deadlines of its own, because the run's may be what has passed. */
#include "push_protocol.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const int64_t DESTROY_NS = 10 * WS_NS_PER_S;
/* An endpoint that a deadline has just passed for is given a tenth of that for each step of the clean-up,
 * and no less than this: of ending its update, of leaving the group, of resuming. All three together stay
 * below the two seconds that a push takes at most beyond a short deadline. */
static const int64_t SILENT_NS = 400 * WS_NS_PER_MS;

/* ---- books and events --------------------------------------------------------------------------- */

void push_enter(struct ws_push *p, enum ws_phase phase)
{
	const int64_t now = ws_now_ns();
	p->ns[p->phase] += now - p->phase_since;
	p->phase = phase;
	p->phase_since = now;
	push_hang_phase(p);
}

void push_note_silence(struct ws_push *p, size_t i, const struct ws_err *said)
{
	p->endpoints[i].lost = said->code == WS_EREACH;
	p->endpoints[i].silent = said->code == WS_ETIMEOUT;
}

ws_deadline push_patience(const struct ws_push *p, int64_t most)
{
	int64_t little = p->opts.bucket_ns / 10;
	little = little < SILENT_NS ? SILENT_NS : little;
	for (size_t i = 0; i < p->opts.n_endpoints; i++)
		if (p->endpoints[i].silent && little < most)
			most = little;
	return ws_deadline_in(most);
}

void push_emit(struct ws_push *p, const struct ws_event *ev)
{
	if (ev->type != WS_EV_PROGRESS)
		ws_explain_heard(p->explain);
	if (p->opts.sink.event)
		p->opts.sink.event(p->opts.sink.ctx, ev);
}

void push_warn(struct ws_push *p, const char *url, const char *fmt, ...)
{
	char text[1024];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	const struct ws_event ev = { .type = WS_EV_WARNING,
		                     .warning = { .url = url ? url : "", .message = text } };
	push_emit(p, &ev);
}

size_t push_select(struct ws_push *p, bool (*wanted)(const struct push_endpoint *))
{
	size_t n = 0;
	for (size_t i = 0; i < p->opts.n_endpoints; i++) {
		if (wanted && !wanted(&p->endpoints[i]))
			continue;
		p->urls[n] = p->endpoints[i].url;
		p->index[n++] = i;
	}
	return n;
}

/* ---- plan --------------------------------------------------------------------------------------- */

static void name_source(struct ws_push *p, const struct ws_push_source *s)
{
	size_t used = 0;
	p->source_name[0] = 0;
	for (size_t i = 0; i < s->n_paths && used + 1 < sizeof p->source_name; i++) {
		const int n = snprintf(p->source_name + used, sizeof p->source_name - used, "%s%s",
		                       i ? " " : "", s->paths[i]);
		used += n > 0 ? (size_t)n : 0;
	}
}

int push_make_plan(struct ws_push *p, const struct ws_push_source *s, const char *fallback,
                   struct ws_err *err)
{
	const struct ws_plan_opts opts = {
		.bucket_size = p->opts.bucket_size,
		.format = p->format,
		.include = p->opts.include,
		.n_include = p->opts.n_include,
		.exclude = p->opts.exclude,
		.n_exclude = p->opts.n_exclude,
	};
	struct ws_transform_opts transform = { 0 };
	const struct ws_input_opts input = {
		.paths = s->paths, .n_paths = s->n_paths, .map = p->opts.map, .config = p->opts.config,
		.fallback = fallback,
		.sharded_tp = p->opts.sharded_tp, .sharded_ep = p->opts.sharded_ep,
		.transform = p->opts.transform ? &transform : NULL,
	};
	if (p->opts.transform)
		transform = *p->opts.transform;
	if (p->server && !transform.quant)
		transform.quant = ws_config_quant(p->server);
	if (ws_input_open(&input, &p->input, err))
		return -1;
	return ws_plan_make(p->input.catalog, &opts, &p->plan, err);
}

/* A source that says nothing of its model is of the model that the endpoints run, where their config can
 * be read here. What becomes FP8 is what they keep so, and a bucket is flattened where all understand it. */
static int plan_again(struct ws_push *p, const struct ws_push_source *s, struct ws_err *err)
{
	const char *dir = NULL;
	const bool none = !p->input.config && !p->input.why.code;
	if (push_find_server(p, err))
		return -1;
	for (size_t i = 0; none && !dir && i < p->opts.n_endpoints; i++)
		dir = ws_audit_model_dir(&p->infos[i]);
	const enum ws_load_format format = push_choose_format(p);
	if (!dir && !p->server && format == p->format)
		return 0;
	p->format = format;
	ws_plan_free(p->plan);
	p->plan = NULL;
	ws_input_close(&p->input);
	return push_make_plan(p, s, dir, err);
}

static void tell_memory(const struct ws_push *p, struct ws_ev_plan *ev)
{
	uint64_t bytes = 0;
	size_t payloads = 1;
	for (size_t b = 0; b < p->plan->n_buckets; b++) {
		const struct ws_plan_bucket *bucket = &p->plan->buckets[b];
		bytes = bucket->bytes > bytes ? bucket->bytes : bytes;
		if (p->plan->format != WS_FORMAT_FLATTENED && bucket->n > payloads)
			payloads = bucket->n;
	}
	if (p->transport->memory)
		p->transport->memory(p->plan->n_buckets, bytes, payloads, &ev->gpu_bytes, &ev->pinned_bytes);
}

void push_emit_plan(struct ws_push *p)
{
	unsigned world = 0;
	for (size_t i = 0; p->known && i < p->opts.n_endpoints; i++)
		world += (i == 0) + p->members[i].ranks;
	const struct ws_plan *plan = p->plan;
	const enum ws_push_flush flush = push_flush_when(p);
	struct ws_event ev = {
		.type = WS_EV_PLAN,
		.plan = { .source = p->source_name, .digest = plan->digest, .tensors = plan->n_tensors,
		          .skipped = plan->n_skipped, .buckets = plan->n_buckets, .bytes = plan->bytes,
		          .bucket_size = p->opts.bucket_size == UINT64_MAX ? 0 : plan->bucket_size,
		          .load_format = p->protocol == &push_disk              ? push_disk_format(p)
		                         : plan->format == WS_FORMAT_FLATTENED ? "flattened_bucket" : "none",
		          .disk_path = p->disk ? p->disk->path : NULL,
		          .disk_bytes = p->disk ? p->disk->bytes : 0,
		          .backend = p->transport->name, .protocol = p->protocol->name, .world_size = world,
		          .sender = p->opts.sender, .senders = p->opts.senders,
		          .dry_run = p->opts.dry_run },
	};
	tell_memory(p, &ev.plan);
	push_emit(p, &ev);
	for (size_t b = 0; b < plan->n_buckets; b++) {
		const struct ws_plan_bucket *bucket = &plan->buckets[b];
		for (size_t i = bucket->first; p->opts.list_tensors && i < bucket->first + bucket->n; i++) {
			const struct ws_plan_tensor *t = &plan->tensors[i];
			ev = (struct ws_event){ .type = WS_EV_TENSOR,
				                .tensor = { .bucket = b, .name = t->name, .dtype = t->dtype,
				                            .n_dims = t->n_dims, .dims = t->dims,
				                            .bytes = t->bytes, .recipe = ws_recipe_name(t->recipe) } };
			push_emit(p, &ev);
		}
		if (!p->opts.dry_run)
			continue;
		ev = (struct ws_event){ .type = WS_EV_BUCKET,
			                .bucket = { .index = b, .count = plan->n_buckets,
			                            .tensors = bucket->n, .bytes = bucket->bytes,
			                            .flush = flush == WS_FLUSH_EVERY ||
			                                     (flush == WS_FLUSH_LAST &&
			                                      b + 1 == plan->n_buckets),
			                            .planned = true } };
		push_emit(p, &ev);
	}
}

/* ---- group -------------------------------------------------------------------------------------- */

/* What left may come back as something else, so its endpoints are then asked anew who they are. */
static void leave_dead_group(struct ws_push *p)
{
	if (!p->group || ws_group_alive(p->group))
		return;
	push_warn(p, NULL, "a peer left group %s since the last push: making a new one",
	          ws_group_name(p->group));
	ws_group_close(p->group, NULL, ws_deadline_in(DESTROY_NS));
	p->group = NULL;
	p->sent_base = 0; /* the new one counts from there */
}

/* It is written down before anybody hears of it. */
static int name_group(struct ws_push *p, struct ws_err *err)
{
	if (p->group)
		return 0;
	if (!p->opts.group_name)
		return ws_group_fresh_name(p->group_name, sizeof p->group_name, err);
	/* Each of several senders is rank 0 of a group of its own. */
	if (p->opts.senders > 1 && !push_together(p))
		snprintf(p->group_name, sizeof p->group_name, "%s-%u", p->opts.group_name, p->opts.sender);
	else
		snprintf(p->group_name, sizeof p->group_name, "%s", p->opts.group_name);
	return 0;
}

static int init_group(struct ws_push *p, struct ws_err *err)
{
	if (p->group || p->protocol->groupless)
		return 0;
	const struct ws_group_opts opts = {
		.http = p->http,
		.members = p->members,
		.n_members = p->opts.n_endpoints,
		.senders = push_together(p) ? p->opts.senders : 1,
		.ops = p->transport,
		.gpu = p->gpu,
		.master_address = p->opts.master_address,
		.master_port = p->opts.master_port,
		.name = p->group_name,
		.own_requests = p->protocol->transfer != NULL,
		.log = p->opts.log,
		.cancel = p->opts.cancel,
		.explain = p->explain,
	};
	if (ws_group_open(&opts, ws_deadline_min(p->until, ws_deadline_in(p->opts.init_ns)), &p->group,
	                  err)) {
		for (size_t i = 0; i < p->opts.n_endpoints; i++)
			p->endpoints[i].grouped = false; /* who had joined was asked to leave */
		return -1;
	}
	if (opts.own_requests)
		return 0; /* nobody has joined it yet */
	for (size_t i = 0; i < p->opts.n_endpoints; i++) {
		const struct ws_event ev = {
			.type = WS_EV_ENDPOINT,
			.endpoint = { .url = p->endpoints[i].url, .phase = WS_PHASE_INIT, .ok = true,
			              .rank_offset = p->members[i].rank_offset,
			              .ranks = p->members[i].ranks, .version = p->infos[i].version,
			              .weight_version = p->infos[i].weight_version, .message = "",
			              .ns = p->members[i].ns },
		};
		push_emit(p, &ev);
	}
	return 0;
}

void push_drop_group(struct ws_push *p)
{
	bool *lost = calloc(p->opts.n_endpoints, sizeof *lost);
	char name[128];
	snprintf(name, sizeof name, "%s", ws_group_name(p->group));
	for (size_t i = 0; lost && i < p->opts.n_endpoints; i++)
		lost[i] = p->endpoints[i].lost;
	/* To leave takes no longer than to join may. */
	ws_group_close(p->group, lost,
	               push_patience(p, p->opts.init_ns < DESTROY_NS ? p->opts.init_ns : DESTROY_NS));
	p->group = NULL;
	for (size_t i = 0; i < p->opts.n_endpoints; i++)
		p->endpoints[i].grouped = lost && lost[i];
	for (size_t i = 0; i < p->opts.n_endpoints; i++)
		if (p->members[i].stays)
			push_warn(p, p->endpoints[i].url, "refused to leave group %s, and keeps its memory", name);
	for (size_t i = 0; lost && i < p->opts.n_endpoints; i++)
		if (lost[i] && !p->endpoints[i].lost)
			push_warn(p, p->endpoints[i].url, "did not answer the request to leave group "
			          "%s: it may be stuck", name);
	free(lost);
}

static uint64_t sent(const struct ws_push *p)
{
	const struct ws_transport *t = ws_group_transport(p->group);
	return t ? t->ops->sent(t, NULL) : 0;
}

/* From the start of the run; 0: no payload byte has left. */
static int64_t first_byte(const struct ws_push *p)
{
	const struct ws_transport *t = ws_group_transport(p->group);
	int64_t at = 0;
	if (t)
		t->ops->sent(t, &at);
	return at > p->run_since ? at - p->run_since : 0;
}

/* ---- one run ------------------------------------------------------------------------------------ */

/* Nobody but the other senders hears of the group yet. */
static int meet_senders(struct ws_push *p, struct ws_err *err)
{
	push_enter(p, WS_PHASE_INIT);
	if (name_group(p, err) || init_group(p, err) || push_lead_gather(p, err))
		return -1;
	push_enter(p, WS_PHASE_PLAN);
	return 0;
}

static int run_phases(struct ws_push *p, const struct ws_push_source *s, struct ws_err *err)
{
	push_enter(p, WS_PHASE_CONNECT);
	if (push_check_files(p, err) || push_sender_enter(p, err) || push_claim(p, err))
		return -1;
	push_enter(p, WS_PHASE_PLAN);
	p->format = push_choose_format(p);
	if (push_make_plan(p, s, NULL, err))
		return -1;
	if (p->opts.n_endpoints) {
		push_enter(p, WS_PHASE_DESTROY);
		leave_dead_group(p);
		push_enter(p, WS_PHASE_CONNECT);
		if (push_connect(p, err) || push_choose(p, err))
			return -1;
	}
	push_enter(p, WS_PHASE_PLAN);
	if (plan_again(p, s, err) || (p->protocol->planned && p->protocol->planned(p, err)))
		return -1;
	push_emit_plan(p);
	if (push_leads(p) && meet_senders(p, err))
		return -1;
	if (push_legal(p, err) || push_check_plan(p, err) || push_check_fp8(p, err))
		return -1;
	push_enter(p, WS_PHASE_VERIFY);
	if (push_values_begin(p, err) || push_names(p, err) || push_lead_share(p, err))
		return -1;
	if (p->opts.dry_run)
		return 0;
	if (push_prove_before(p, err))
		return -1;
	push_enter(p, WS_PHASE_INIT);
	if (push_check_ranks_files(p, err) || name_group(p, err) || push_record_begin(p, s, err))
		return -1;
	/* What torch the servers run is known once they joined, and with it what they cannot take. */
	if (init_group(p, err) || push_check_plan(p, err))
		return -1;
	push_enter(p, WS_PHASE_VERIFY);
	if (push_values(p, err))
		return -1;
	if (p->protocol->prepare) {
		push_enter(p, WS_PHASE_TRANSFER);
		if (p->protocol->prepare(p, err))
			return -1;
	}
	push_enter(p, WS_PHASE_PAUSE);
	if (push_sender_still(p, err) || push_record(p, err) || push_pause(p, err) || push_wake_weights(p, err))
		return -1;
	push_enter(p, WS_PHASE_FLUSH);
	if (push_flush(p, err))
		return -1;
	push_enter(p, WS_PHASE_TRANSFER);
	if (push_record(p, err))
		return -1;
	p->spoilt = true;
	if (push_hash_begin(p, err) || push_transfer(p, err))
		return -1;
	p->spoilt = false;
	push_enter(p, WS_PHASE_VERIFY);
	(void)push_record(p, NULL);
	if (push_verify(p, err) || push_sender_still(p, err) || push_set_version(p, err))
		return -1;
	push_enter(p, WS_PHASE_RESUME);
	return push_wake_caches(p, err);
}

static void reset_run(struct ws_push *p, const struct ws_push_source *s)
{
	p->run_since = p->phase_since = ws_now_ns();
	p->phase = WS_PHASE_PLAN;
	memset(p->ns, 0, sizeof p->ns);
	p->sent_base = p->group ? sent(p) : 0;
	p->posted = 0;
	p->spoilt = false;
	p->names = (struct ws_audit){ 0 };
	p->until = p->opts.timeout_ns > 0 ? ws_deadline_in(p->opts.timeout_ns) : WS_FOREVER;
	p->weight_version = s->weight_version ? s->weight_version : p->opts.weight_version;
	for (size_t i = 0; i < p->opts.n_endpoints; i++) {
		if (p->endpoints[i].state != WS_PARTIAL)
			p->endpoints[i].state = WS_UNTOUCHED;
		p->endpoints[i].before = p->endpoints[i].state;
		p->endpoints[i].lost = p->endpoints[i].silent = false;
		p->endpoints[i].begun = p->endpoints[i].arrived = false;
		p->endpoints[i].message[0] = 0;
	}
	p->source = s;
	name_source(p, s);
}

void push_forget_run(struct ws_push *p)
{
	push_hash_end(p);
	push_values_end(p);
	push_scatter_free(p);
	push_lead_free(p);
	push_disk_free(p);
	p->source = NULL;
	ws_plan_free(p->plan);
	p->plan = NULL;
	ws_input_close(&p->input);
	ws_config_free(p->server);
	p->server = NULL;
}

/* Some have the new weights and some do not: that is what a scheduler must see, whatever the cause. */
static void judge_partial(const struct ws_push *p, struct ws_err *err)
{
	size_t committed = 0;
	for (size_t i = 0; i < p->opts.n_endpoints; i++)
		committed += p->endpoints[i].state == WS_COMMITTED;
	if (!committed || committed == p->opts.n_endpoints || err->code == WS_ECANCELLED)
		return;
	if (err->endpoint[0] && !strstr(err->msg, err->endpoint))
		ws_err_wrap(err, "%s", err->endpoint);
	ws_err_wrap(err, "%zu of %zu endpoints updated", committed, p->opts.n_endpoints);
	err->code = WS_EPARTIAL;
}

static void list_endpoints(struct ws_push *p)
{
	for (size_t i = 0; i < p->opts.n_endpoints; i++) {
		const struct push_endpoint *e = &p->endpoints[i];
		p->results[i] = (struct ws_ev_endpoint_result){
			.url = e->url, .ok = e->state == WS_COMMITTED, .state = e->state,
			.paused = e->paused || e->found_paused, .message = e->message,
		};
	}
}

static const char *verify_name(enum ws_push_verify verify)
{
	return verify == WS_VERIFY_HASH ? "hash" : verify == WS_VERIFY_NAMES ? "names" : "none";
}

static void fill_result(struct ws_push *p, bool ok, const struct ws_err *err, struct ws_ev_end *r)
{
	p->failure = *err;
	*r = (struct ws_ev_end){
		.source = p->source_name, .ok = ok, .err = ok ? NULL : &p->failure,
		.bytes = p->plan ? p->plan->bytes : 0,
		.wire_bytes = p->group ? sent(p) - p->sent_base : p->posted,
		.tensors = p->plan ? p->plan->n_tensors : 0,
		.buckets = p->plan ? p->plan->n_buckets : 0,
		.digest = p->plan ? p->plan->digest : 0,
		.n_endpoints = p->opts.n_endpoints, .endpoints = p->results,
		.total_ns = ws_now_ns() - p->run_since,
		.first_byte_ns = p->group ? first_byte(p) : 0,
		.weight_version = p->weight_version,
		.verify = verify_name(p->opts.verify),
		.names = *p->names.family ? &p->names : NULL,
		.dry_run = p->opts.dry_run,
	};
	if (push_follows(p)) { /* it has more than its share */
		r->bytes = p->posted;
		r->tensors = p->n_shared;
		r->buckets = p->n_batches;
	}
	if (p->input.transform) {
		ws_transform_report(p->input.transform, &p->report);
		r->transform = &p->report;
	}
	memcpy(r->ns, p->ns, sizeof r->ns);
}

int ws_push_run(struct ws_push *p, const struct ws_push_source *source, struct ws_ev_end *result,
                struct ws_err *err)
{
	struct ws_err local = WS_ERR_INIT;
	reset_run(p, source);
	int rc = push_follows(p) ? push_follow(p, source, &local) : run_phases(p, source, &local);
	if (rc) {
		ws_err_where(&local, ws_phase_name(p->phase), NULL);
		ws_explain_failed(p->explain, &local);
		push_hash_end(p);
		push_values_end(p);
		push_warn_asleep(p, &local);
	}
	for (size_t i = 0; rc == 0 && p->weight_version && !p->opts.dry_run && i < p->opts.n_endpoints; i++)
		snprintf(p->infos[i].weight_version, sizeof p->infos[i].weight_version, "%s",
		         p->weight_version);
	struct ws_ev_end r;
	fill_result(p, rc == 0, &local, &r);
	push_lead_end(p, &local);
	if ((p->spoilt || p->protocol->transfer) && (p->group || p->protocol->groupless)) {
		/* Nobody can say where the ranks stand: the next run makes a new group. This one goes before
		 * anybody is resumed, because a server whose rank still passes bytes on to a rank of another,
		 * which refused them, hears nothing else until that one has left. */
		push_enter(p, WS_PHASE_DESTROY);
		if (p->group)
			push_drop_group(p);
		if (p->spoilt && p->protocol->undo)
			p->protocol->undo(p);
	}
	push_enter(p, WS_PHASE_RESUME);
	push_take_over_pauses(p);
	if (rc)
		(void)push_record(p, NULL);
	/* An endpoint that answers nobody is no success, whatever weights it has. */
	if (push_resume(p, rc ? NULL : &local) && rc == 0) {
		ws_err_where(&local, ws_phase_name(WS_PHASE_RESUME), NULL);
		ws_explain_failed(p->explain, &local);
		r.ok = false;
		r.err = &p->failure;
		rc = -1;
	}
	/* Now that nothing more becomes of it. */
	if (rc) {
		judge_partial(p, &local);
		push_name_remedy(p, &local);
		ws_explain_finish(p->explain, &local);
		p->failure = local;
	}
	list_endpoints(p);
	if (p->protocol->done)
		p->protocol->done(p, rc == 0);
	push_release(p, rc == 0);
	push_sender_leave(p, rc == 0);
	push_enter(p, WS_PHASE_VERIFY);
	if (rc == 0 && push_prove_after(p, &local)) {
		ws_err_where(&local, ws_phase_name(WS_PHASE_VERIFY), NULL);
		p->failure = local;
		r.ok = false;
		r.err = &p->failure;
		rc = -1;
	}
	push_enter(p, WS_PHASE_PLAN);
	memcpy(r.ns, p->ns, sizeof r.ns);
	r.total_ns = ws_now_ns() - p->run_since;
	push_forget_run(p);
	if (result)
		*result = r;
	if (rc && err)
		*err = local;
	return rc;
}
