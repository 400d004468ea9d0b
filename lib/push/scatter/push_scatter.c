/* SPDX-License-Identifier: Apache-2.0 */
/* push_scatter.c - /receive_weights_ep_scatter: sends every rank its own parameters, cut and fused
 * as the rank keeps them, straight into their memory. No loader processes them.
 *
 *   {"weight_names","expert_transfer_plan","non_expert_transfer_plan","non_expert_batch_size",
 *    "training_world_size","num_experts_per_rank","total_num_experts","inference_tp_size",
 *    "group_name",
 *    "master_address","master_port","rank_offset","total_inference_world_size","flush_cache",
 *    "skip_flush_cache","free_kv_cache_before_recv","recapture_cuda_graph"}
 *
 * The request forms the group and receives all parameters, then it is answered. A server skips a
 * name that it does not know and waits for bytes that never come, so only listed names are sent.
 * Values that a loader would compute (DeepSeek's w_kc, scales that were packed again) would stay
 * old: such models are refused. */
#include "push_protocol.h"
#include "scatter.h"

#include "senders.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REQUEST_MAX = 256 << 20 };

/* State for one endpoint. */
struct target {
	struct ws_layout *layout;
	struct ws_scatter *scatter;
	struct ws_buf body;
};

struct push_scatter {
	struct target *targets;
	size_t n, n_batches;
	struct ws_endpoint_call *calls;
	char (*messages)[256];
};

static struct push_scatter *own(const struct ws_push *p)
{
	return p->own;
}

static void drop_calls(struct ws_push *p)
{
	struct push_scatter *s = own(p);
	for (size_t i = 0; s && s->calls && i < s->n; i++) {
		ws_http_drop(p->http, &s->calls[i].http);
		ws_endpoint_call_free(&s->calls[i]);
	}
}

static void forget(struct ws_push *p, bool ended)
{
	struct push_scatter *s = own(p);
	(void)ended;
	if (!s)
		return;
	drop_calls(p);
	for (size_t i = 0; s->targets && i < s->n; i++) {
		ws_scatter_free(s->targets[i].scatter);
		ws_layout_free(s->targets[i].layout);
		ws_buf_free(&s->targets[i].body);
	}
	free(s->targets);
	free(s->calls);
	free(s->messages);
	free(s);
	p->own = NULL;
}

/* ---- before anything is sent ----------------------------------------------------------------- */

static int refuse_scatter(const struct ws_push *p, size_t i, struct ws_err *err, const char *why)
{
	ws_err_set(err, WS_EREFUSED, "cannot send single parameters to %s: %s",
	           p->to.endpoints[i].url, why);
	ws_err_hint(err, "use {protocol} update");
	return ws_err_where(err, NULL, p->to.endpoints[i].url);
}

static enum ws_dtype server_dtype(const struct ws_push *p, size_t i)
{
	const struct ws_config *its = p->to.listed[i].config;
	return ws_name_check_dtype(&p->to.infos[i], its ? its : p->from.input.config);
}

static int check_endpoint(const struct ws_push *p, size_t i, struct ws_err *err)
{
	const struct ws_name_check_target *t = &p->to.listed[i];
	if (p->to.infos[i].quantization[0])
		return refuse_scatter(
			p, i, err,
			"its weights are quantized, and values computed from them would stay old");
	if (!t->listing.n || t->listing.received)
		return refuse_scatter(p, i, err, "it does not list its parameters");
	if (server_dtype(p, i) == WS_DTYPE_COUNT)
		return refuse_scatter(p, i, err, "it does not report the dtype of its weights");
	return 0;
}

static int make_layout(struct ws_push *p, size_t i, struct ws_err *err)
{
	struct target *t = &own(p)->targets[i];
	char why[512] = "its model is not known";
	if (ws_name_check_layout(&p->from.input, &p->to.listed[i], &t->layout, why, sizeof why,
	                         err))
		return -1;
	if (!t->layout)
		return refuse_scatter(p, i, err, why);
	if (strncmp(ws_layout_family(t->layout), "deepseek", 8) == 0)
		return refuse_scatter(p, i, err, "it computes some of them when others are loaded");
	struct ws_scatter_opts opts = {
		.layout = t->layout,
		.listing = &p->to.listed[i].listing,
		.dtype = server_dtype(p, i),
		.senders = push_sending_ranks(p),
		/* Tensors that the first sender does not include may come from others. Tensors that
		 * it excludes are to stay as they are. */
		.complete = p->turn.lead && !p->opts.n_exclude && p->opts.verify != WS_VERIFY_NONE,
	};
	opts.plan = push_leader_plan(p, &opts.have);
	if (ws_scatter_make(&opts, &t->scatter, err)) {
		ws_err_hint(err, "use {protocol} update");
		return ws_err_where(err, NULL, p->to.endpoints[i].url);
	}
	if (t->scatter->n_batches > own(p)->n_batches)
		own(p)->n_batches = t->scatter->n_batches;
	return 0;
}

/* For tensors that only other senders have. Our own names are compared in another check. */
static void warn_of_strangers(struct ws_push *p)
{
	const struct ws_senders *have;
	const struct ws_plan *plan = push_leader_plan(p, &have);
	const struct ws_layout *l = own(p)->targets[0].layout;
	const char *first = NULL;
	size_t n = 0;
	for (size_t i = 0; have && i < plan->n_tensors; i++) {
		const char *name = plan->tensors[i].name;
		if (ws_senders_has(&have[i], 0) || ws_layout_find_part(l, name) ||
		    ws_layout_skips(l, name))
			continue;
		first = n++ ? first : name;
	}
	if (n)
		push_warn(p, NULL,
		          "%zu tensor%s of the other senders %s no place in a server and %s not "
		          "sent, the first %s",
		          n, n == 1 ? "" : "s", n == 1 ? "has" : "have", n == 1 ? "is" : "are",
		          first);
}

static int legal(struct ws_push *p, struct ws_err *err)
{
	const size_t n = p->opts.n_endpoints;
	if (!p->link.transport->send_each)
		return ws_err_set(err, WS_EREFUSED,
		                  "the %s data plane sends to all ranks at once only",
		                  p->link.transport->name);
	if (push_find_targets(p, err))
		return -1;
	forget(p, false);
	struct push_scatter *s = push_own(p, sizeof *s, err);
	if (!s)
		return -1;
	if (!(s->targets = calloc(n, sizeof *s->targets)) ||
	    !(s->calls = calloc(n, sizeof *s->calls)) ||
	    !(s->messages = calloc(n, sizeof *s->messages)))
		return ws_oom(err);
	s->n = n;
	for (size_t i = 0; i < n; i++)
		ws_buf_init(&s->targets[i].body, REQUEST_MAX);
	for (size_t i = 0; i < n; i++)
		if (check_endpoint(p, i, err) || make_layout(p, i, err))
			return -1;
	warn_of_strangers(p);
	return 0;
}

/* ---- shares of the other senders ------------------------------------------------------------- */

static int share_batch(const struct ws_push *p, size_t k, const struct ws_sender_list *whose,
                       struct ws_buf *out, struct ws_err *err)
{
	const size_t n = p->opts.n_endpoints;
	struct ws_scatter_sends *of = calloc(n + 1, sizeof *of);
	size_t sends = 0;
	int rc = of ? 0 : ws_oom(err);
	for (size_t i = 0; rc == 0 && i < n; i++) {
		const struct ws_scatter *s = own(p)->targets[i].scatter;
		if (k < s->n_batches)
			rc = ws_scatter_sends(s, k, whose->sender - 1, &of[i], err);
		sends += of[i].n;
	}
	ws_share_write_batch(out, sends);
	for (size_t i = 0; of && i < n; i++) {
		for (size_t j = 0; rc == 0 && j < of[i].n; j++) {
			size_t count;
			const struct ws_stripe *stripes = ws_scatter_stripes(&of[i], j, &count);
			rc = ws_share_write_send(out,
			                         p->to.members[i].rank_offset + of[i].items[j].rank,
			                         stripes, count, whose, err);
		}
		ws_scatter_sends_free(&of[i]);
	}
	free(of);
	return rc;
}

int push_scatter_share(struct ws_push *p, const struct ws_sender_list *whose, struct ws_buf *out,
                       struct ws_err *err)
{
	int rc = 0;
	ws_share_write_head(out, ws_group_world_size(p->link.group), p->opts.dry_run,
	                    ws_group_name(p->link.group), own(p)->n_batches);
	for (size_t k = 0; rc == 0 && k < own(p)->n_batches; k++)
		rc = share_batch(p, k, whose, out, err);
	return rc;
}

/* ---- the transfer ---------------------------------------------------------------------------- */

static void write_body(struct ws_push *p, size_t i)
{
	struct target *t = &own(p)->targets[i];
	const bool flush = push_flush_when(p) != WS_FLUSH_NEVER;
	struct ws_jw w;
	uint16_t port;
	const char *host = ws_group_master(p->link.group, &port);
	ws_jw_init(&w, &t->body);
	ws_jw_object(&w, NULL);
	ws_scatter_write(t->scatter, &w);
	ws_jw_str(&w, "group_name", ws_group_name(p->link.group));
	ws_jw_str(&w, "master_address", host);
	ws_jw_uint(&w, "master_port", port);
	ws_jw_uint(&w, "rank_offset", p->to.members[i].rank_offset);
	ws_jw_uint(&w, "total_inference_world_size",
	           ws_group_world_size(p->link.group) - push_sending_ranks(p));
	ws_jw_bool(&w, "flush_cache", flush);
	ws_jw_bool(&w, "skip_flush_cache", !flush);
	ws_jw_bool(&w, "free_kv_cache_before_recv", false);
	ws_jw_bool(&w, "recapture_cuda_graph", false);
	ws_jw_end_object(&w);
}

static int start_all(struct ws_push *p, ws_deadline until, struct ws_err *err)
{
	for (size_t i = 0; i < p->opts.n_endpoints; i++) {
		p->to.errs[i] = (struct ws_err)WS_ERR_INIT;
		write_body(p, i);
		if (ws_buf_check(&own(p)->targets[i].body, "request", err) ||
		    ws_endpoint_start(p->http, &own(p)->calls[i], p->to.endpoints[i].url, "POST",
		                      "/receive_weights_ep_scatter", &own(p)->targets[i].body,
		                      until, err))
			return -1;
	}
	return 0;
}

static int join(struct ws_push *p, struct ws_err *err)
{
	const ws_deadline soon = ws_deadline_min(p->run.until, ws_deadline_in(p->opts.init_ns));
	push_enter(p, WS_PHASE_INIT);
	const int rc = start_all(p, p->run.until, err) ||
	               ws_group_join(p->link.group, own(p)->calls, p->to.errs, push_leader_watch, p,
	                             soon, err);
	p->link.place.port = 0;
	if (rc)
		return -1;
	push_enter(p, WS_PHASE_TRANSFER);
	const struct ws_transport *t = ws_group_transport(p->link.group);
	p->run.progress_base = t->ops->progress(t);
	return 0;
}

/* The sends of one batch to all endpoints. */
struct batch {
	struct ws_scatter_sends *of; /* of each endpoint */
	struct ws_transport_send *sends;
	size_t n, n_params;
	uint64_t bytes;
};

static void close_batch(const struct ws_push *p, struct batch *b)
{
	for (size_t i = 0; b->of && i < p->opts.n_endpoints; i++)
		ws_scatter_sends_free(&b->of[i]);
	free(b->of);
	free(b->sends);
}

static int open_batch(struct ws_push *p, size_t k, struct batch *b, struct ws_err *err)
{
	size_t n = 0;
	*b = (struct batch){ .of = calloc(p->opts.n_endpoints, sizeof *b->of) };
	for (size_t i = 0; b->of && i < p->opts.n_endpoints; i++) {
		const struct ws_scatter *s = own(p)->targets[i].scatter;
		if (k >= s->n_batches)
			continue;
		if (ws_scatter_sends(s, k, 0, &b->of[i], err))
			return -1;
		n += b->of[i].n;
		b->n_params = s->batches[k].n;
	}
	b->sends = calloc(n + 1, sizeof *b->sends);
	if (!b->of || !b->sends)
		return ws_oom(err);
	for (size_t i = 0; i < p->opts.n_endpoints; i++)
		for (size_t j = 0; j < b->of[i].n; j++) {
			b->sends[b->n++] = (struct ws_transport_send){
				.rank = p->to.members[i].rank_offset + b->of[i].items[j].rank,
				.payload = b->of[i].items[j].payload,
			};
			b->bytes += b->of[i].items[j].payload.length;
		}
	return 0;
}

static void emit_batch(struct ws_push *p, size_t k, const struct batch *b,
                       const struct ws_together *w, int64_t ns)
{
	const bool last = k + 1 == own(p)->n_batches;
	const struct ws_event ev = {
		.type = WS_EV_BUCKET,
		.bucket = { .index = k,
		            .count = own(p)->n_batches,
		            .tensors = b->n_params,
		            .bytes = b->bytes,
		            .flush = last && push_flush_when(p) != WS_FLUSH_NEVER,
		            .ns = ns,
		            .wire_ns = w->wire_ns },
	};
	push_emit(p, &ev);
}

/* Parameters are overwritten as they come. */
static void report_answers(struct ws_push *p, bool last, enum ws_code wire)
{
	for (size_t i = 0; i < p->opts.n_endpoints; i++) {
		struct push_endpoint *e = &p->to.endpoints[i];
		const struct ws_err *said = &p->to.errs[i];
		if (last && said->code == WS_OK && wire != WS_EINPUT && wire != WS_ESYSTEM)
			push_target_event(&e->weights, PUSH_ACKED_LAST);
		push_note_failure(p, i, said);
		snprintf(e->message, sizeof e->message, "%.255s",
		         said->code == WS_OK ? own(p)->messages[i] : said->msg);
	}
}

static int move_batch(struct ws_push *p, size_t k, struct batch *b, struct ws_err *err)
{
	struct ws_transport *t = ws_group_transport(p->link.group);
	const ws_deadline until = ws_deadline_min(p->run.until, ws_deadline_in(p->opts.bucket_ns));
	const bool last = k + 1 == own(p)->n_batches;
	const int64_t start = ws_now_ns();
	char what[64];
	snprintf(what, sizeof what, "batch %zu of %zu", k + 1, own(p)->n_batches);
	ws_watchdog_bucket(p->watch.watchdog, k, own(p)->n_batches, b->bytes,
	                   last && push_flush_when(p) != WS_FLUSH_NEVER);
	if (t->ops->send_each(t, b->sends, b->n, until, err))
		return -1;
	for (size_t i = 0; i < p->opts.n_endpoints; i++)
		push_target_event(&p->to.endpoints[i].weights, PUSH_BYTES_LEFT);
	struct ws_together w = { .group = p->link.group,
		                 .calls = own(p)->calls,
		                 .n = p->opts.n_endpoints,
		                 .later = !last,
		                 .errs = p->to.errs,
		                 .messages = own(p)->messages,
		                 .until = until,
		                 .cancel = p->opts.cancel,
		                 .what = what,
		                 .watch = push_leader_watch,
		                 .tick = push_moved_tick,
		                 .ctx = p };
	const int rc = ws_group_together(&w, err);
	const int64_t ns = ws_now_ns() - start;
	push_trace_apply(p, k, start + w.wire_ns);
	push_applied(p, ns - w.wire_ns);
	if (rc || last)
		report_answers(p, last, w.wire);
	if (rc)
		return err && err->code == WS_ETIMEOUT ? -1 : ws_err_wrap(err, "%s", what);
	ws_watchdog_arrived(p->watch.watchdog);
	emit_batch(p, k, b, &w, ns);
	return 0;
}

static int transfer(struct ws_push *p, struct ws_err *err)
{
	int rc = join(p, err);
	if (rc)
		report_answers(p, false, WS_OK);
	for (size_t k = 0; rc == 0 && k < own(p)->n_batches; k++) {
		struct batch b = { 0 };
		p->run.bucket = k;
		rc = open_batch(p, k, &b, err);
		if (rc == 0 && k + 1 == own(p)->n_batches)
			rc = push_check_sources(p, err);
		if (rc == 0) {
			const uint64_t span = push_trace_bucket(p, k, own(p)->n_batches);
			rc = move_batch(p, k, &b, err);
			push_trace_bucket_end(p, span, b.bytes, rc, err);
		}
		close_batch(p, &b);
	}
	return rc;
}

static bool takes(const struct ws_capabilities *can)
{
	return can->ep_scatter;
}

const struct push_protocol push_ep_scatter = {
	.name = "ep-scatter",
	.routes = "/receive_weights_ep_scatter",
	.takes = takes,
	.tensors_only = true,
	.needs_pause = true,
	.legal = legal,
	.transfer = transfer,
	.undo = drop_calls,
	.forget = forget,
};
