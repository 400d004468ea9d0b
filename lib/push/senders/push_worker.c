/* SPDX-License-Identifier: Apache-2.0 */
/* push_worker.c - a sender that is not the first. It lists its tensors to the first sender, sends
 * its share, and reads how the push ended. It reaches endpoints through the group only.
 *
 * Another thread sends. Meanwhile this thread waits for the end, so it detects early that another
 * sender has failed. */
#include "push_channel.h"

#include "gloo.h"
#include "sock.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct follow {
	struct ws_push *p;
	struct push_channel talk;
	struct ws_sender_list list;
	struct ws_share share;
	struct ws_span *spans;              /* one for each stripe */
	struct ws_gloo_transfer *transfers; /* one for each send */
	struct ws_job job;
	struct ws_cancel stop;
	struct ws_gloo *mesh; /* used by the job only */
	atomic_size_t done;   /* batches sent */
	int64_t *took_ns;     /* time of each batch */
	size_t told;          /* batches reported as events */
};

static const int64_t SLICE_NS = 200 * WS_NS_PER_MS;
static const int64_t ASK_NS = 10 * WS_NS_PER_S; /* the store answers at once */
/* for the first sender to report why a peer of ours disconnected */
static const int64_t EXPLAIN_NS = 5 * WS_NS_PER_S;

/* ---- the share ------------------------------------------------------------------------------- */

static int make_transfers(struct follow *f, struct ws_err *err)
{
	struct ws_share *s = &f->share;
	f->spans = calloc(s->n_stripes + 1, sizeof *f->spans);
	f->transfers = calloc(s->n_sends + 1, sizeof *f->transfers);
	f->took_ns = calloc(s->n_batches + 1, sizeof *f->took_ns);
	if (!f->spans || !f->transfers || !f->took_ns)
		return ws_oom(err);
	for (size_t i = 0; i < s->n_stripes; i++)
		ws_stripe_span(&s->stripes[i], &f->spans[i]);
	for (size_t i = 0; i < s->n_sends; i++) {
		const struct ws_share_send *send = &s->sends[i];
		if (send->rank < f->p->opts.senders)
			return ws_err_set(err, WS_EDATA,
			                  "sender 1 assigned a send to rank %u, which is a sender",
			                  send->rank);
		f->transfers[i] = (struct ws_gloo_transfer){
			.peer = send->rank,
			.payload = { .length = send->length,
			             .spans = f->spans + send->first,
			             .n_spans = send->n },
		};
	}
	return 0;
}

static int count_share(struct follow *f, struct ws_err *err)
{
	bool *seen = calloc(f->list.n + 1, sizeof *seen);
	if (!seen)
		return ws_oom(err);
	f->p->turn.n_batches = f->share.n_batches;
	f->p->turn.n_shared = 0;
	for (size_t i = 0; i < f->share.n_stripes; i++) {
		const struct ws_plan_tensor *t = f->share.stripes[i].tensor;
		f->p->turn.n_shared += t && !seen[t - f->list.tensors];
		if (t)
			seen[t - f->list.tensors] = true;
	}
	free(seen);
	return 0;
}

static int learn_share(struct follow *f, struct ws_err *err)
{
	const struct ws_push *p = f->p;
	const ws_deadline until = ws_deadline_min(p->run.until, ws_deadline_in(p->opts.init_ns));
	struct ws_buf text;
	ws_buf_init(&text, 0);
	int rc = push_channel_share(&f->talk, &f->list, until, &text, err);
	if (rc == 0 && !text.len) /* the first sender gave up, or wrote an empty share */
		rc = push_channel_end(&f->talk, ws_deadline_in(ASK_NS), err) ?
		             -1 :
		             ws_err_set(err, WS_EDATA,
		                        "sender 1 assigned an empty share");
	if (rc == 0)
		rc = ws_share_read(text.data, text.len, &f->list, &f->share, err);
	if (rc == 0 && f->share.world_size <= p->opts.senders)
		rc = ws_err_set(err, WS_EDATA, "sender 1 has %u ranks for %u senders",
		                f->share.world_size, p->opts.senders);
	ws_buf_free(&text);
	return rc || make_transfers(f, err) || count_share(f, err) ? -1 : 0;
}

/* ---- sending: the job ------------------------------------------------------------------------ */

static int meet(struct follow *f, struct ws_err *err)
{
	const struct ws_push *p = f->p;
	/* The first sender pauses the endpoints before it sends the join requests. */
	const ws_deadline until =
		ws_deadline_min(p->run.until, ws_deadline_in(p->opts.init_ns + p->opts.bucket_ns));
	struct ws_store_client_opts opts = push_channel_place(p);
	struct ws_store_client *own = NULL;
	char host[64];
	struct ws_buf where;
	ws_buf_init(&where, 1024);
	opts.no_join = true;
	int rc = ws_store_connect(&opts, until, &f->stop, &own, err);
	if (rc == 0)
		rc = ws_store_client_get(own, WS_TRANSPORT_MEETING, until, &f->stop, &where, err);
	if (rc == 0 && where.len < 2)
		rc = ws_err_set(err, WS_EDATA, "sender 1 wrote no address of the group");
	/* Connect as the endpoints do: the first sender derives their gloo's layout from that. */
	ws_store_disconnect(own);
	own = NULL;
	opts.epoch = rc == 0 ? where.data[0] : 'C';
	if (rc == 0 && (ws_store_connect(&opts, until, &f->stop, &own, err) ||
	                ws_host_local_toward(opts.host, until, &f->stop, host, sizeof host,
	                                     err)))
		rc = -1;
	if (rc == 0) {
		const struct ws_gloo_kv kv = ws_gloo_kv_client(own);
		const struct ws_gloo_opts o = {
			.rank = p->opts.sender - 1,
			.size = f->share.world_size,
			.prefix = where.data + 1,
			.layout = opts.epoch == 'A' ? WS_GLOO_G1 : WS_GLOO_G2B,
			.kv = &kv,
			.host = host,
			.log = p->opts.log,
			.trace = p->opts.trace,
		};
		rc = ws_gloo_open(&o, until, &f->stop, &f->mesh, err);
	}
	ws_store_disconnect(own);
	ws_buf_free(&where);
	return rc;
}

static int send_all(void *ctx, struct ws_err *err)
{
	struct follow *f = ctx;
	const struct ws_push *p = f->p;
	int rc = meet(f, err);
	for (size_t b = 0, at = 0; rc == 0 && b < f->share.n_batches; b++) {
		const size_t end = f->share.ends[b];
		const ws_deadline until =
			ws_deadline_min(p->run.until, ws_deadline_in(p->opts.bucket_ns));
		const int64_t start = ws_now_ns();
		rc = ws_gloo_exchange(f->mesh, f->transfers + at, end - at, until, &f->stop, err);
		if (rc) {
			ws_err_wrap(err, "batch %zu of %zu", b + 1, f->share.n_batches);
			break;
		}
		f->took_ns[b] = ws_now_ns() - start;
		atomic_store(&f->done, b + 1);
		at = end;
	}
	if (rc == 0)
		rc = ws_catalog_check(p->from.input.catalog, err);
	/* Close the connections, so that a peer that waits for our bytes fails at once. */
	if (rc && f->mesh)
		ws_gloo_abort(f->mesh);
	return rc;
}

/* ---- waiting for the end --------------------------------------------------------------------- */

static void tell_batches(struct follow *f)
{
	const size_t done = atomic_load(&f->done);
	for (; f->told < done; f->told++) {
		struct ws_event ev = { .type = WS_EV_BUCKET,
			               .bucket = { .index = f->told,
			                           .count = f->share.n_batches,
			                           .ns = f->took_ns[f->told],
			                           .wire_ns = f->took_ns[f->told] } };
		for (size_t i = f->told ? f->share.ends[f->told - 1] : 0;
		     i < f->share.ends[f->told]; i++) {
			ev.bucket.tensors += f->share.sends[i].n;
			ev.bucket.bytes += f->share.sends[i].length;
		}
		f->p->run.posted += ev.bucket.bytes;
		push_emit(f->p, &ev);
	}
}

/* Prefers the first sender's error to ours, if it comes in time: that sender calls endpoints. */
static int explain(struct follow *f, const struct ws_err *why, struct ws_err *err)
{
	struct ws_err said = WS_ERR_INIT;
	const bool told = why->code == WS_EDATA &&
	                  push_channel_end(&f->talk, ws_deadline_in(EXPLAIN_NS), &said) == 1;
	*err = told ? said : *why;
	return -1;
}

/* After the last byte, the endpoints still load it, are verified, and get their version. */
static ws_deadline last_words(const struct ws_push *p)
{
	return ws_deadline_min(p->run.until, ws_deadline_in(3 * p->opts.bucket_ns));
}

static int wait_for_end(struct follow *f, struct ws_err *err)
{
	ws_deadline until = WS_FOREVER; /* the job has deadlines of its own */
	bool running = true;
	for (;;) {
		struct ws_err why = WS_ERR_INIT, own = WS_ERR_INIT;
		const int rc =
			push_channel_end(&f->talk, ws_deadline_min(until, ws_deadline_in(SLICE_NS)),
		                         &why);
		tell_batches(f);
		const bool ended = rc >= 0 || why.code != WS_ETIMEOUT;
		if (running && (ended || ws_job_over(&f->job))) {
			if (rc)
				ws_cancel_set(&f->stop);
			running = false;
			until = last_words(f->p);
			if (ws_job_wait(&f->job, &own) && !ended)
				return explain(f, &own, err);
			if (!ended && push_channel_sent(&f->talk, err))
				return -1;
			tell_batches(f);
			if (rc == 0 && own.code != WS_OK)
				why = own;
		}
		if (ended || (!running && ws_deadline_passed(until))) {
			if (rc < 0 && why.code == WS_ETIMEOUT)
				ws_err_set(&why, WS_ETIMEOUT,
				           "sender 1 did not report how the push ended");
			else if (rc < 0 && push_channel_lost(&why))
				ws_err_wrap(&why, "sender 1 is gone");
			if (why.code != WS_OK)
				*err = why;
			return why.code == WS_OK ? 0 : -1;
		}
	}
}

/* ---- all of it ------------------------------------------------------------------------------- */

static int run_sender(struct follow *f, struct ws_err *err)
{
	struct ws_push *p = f->p;
	if (ws_senders_list(p->from.plan, &f->list, err))
		return -1;
	f->list.sender = p->opts.sender;
	f->list.senders = p->opts.senders;
	f->list.dry_run = p->opts.dry_run;
	if (push_round_id(p, f->list.round, err))
		return -1;
	push_enter(p, WS_PHASE_CONNECT);
	if (learn_share(f, err))
		return -1;
	push_enter(p, WS_PHASE_TRANSFER);
	if (!p->opts.dry_run && ws_job_start(&f->job, send_all, f, err))
		return -1;
	return p->opts.dry_run ? (push_channel_end(&f->talk, last_words(p), err) ? -1 : 0) :
	                         wait_for_end(f, err);
}

int push_worker(struct ws_push *p, const struct ws_push_source *s, struct ws_err *err)
{
	struct follow f = { .p = p, .talk.p = p, .job.fd = -1, .stop = WS_CANCEL_INIT };
	int rc = push_make_plan(p, s, err);
	if (rc == 0) {
		push_emit_plan(p);
		rc = ws_cancel_init(&f.stop, err) || ws_job_init(&f.job, err) ||
		                     run_sender(&f, err) ?
		             -1 :
		             0;
	}
	if (rc)
		push_channel_failure(&f.talk, err);
	push_channel_bye(&f.talk);
	push_channel_disconnect(&f.talk);
	ws_cancel_set(&f.stop);
	ws_job_fini(&f.job);
	ws_gloo_close(f.mesh);
	ws_cancel_fini(&f.stop);
	ws_senders_list_free(&f.list);
	ws_share_free(&f.share);
	free(f.spans);
	free(f.transfers);
	free(f.took_ns);
	return rc;
}
