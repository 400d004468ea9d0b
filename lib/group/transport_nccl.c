/* SPDX-License-Identifier: Apache-2.0 */
/* transport_nccl.c - the NCCL data plane: struct ws_transport_ops over lib/gpu's NCCL.
 *
 * Eager servers join during the invitation, lazy ones when the first bucket is announced. NCCL
 * joins in the background. So our join ends when the communicator is ready, or when all servers
 * have accepted the invitation. Before the first broadcast nccl_send waits for missing ranks. */
#include "transport_nccl_state.h"

#include "pickle.h"
#include "sock.h"
#include "wsync/tool/buf.h"

#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const int64_t LEAVE_NS = 2 * WS_NS_PER_S;

static struct nccl *of(struct ws_transport *t)
{
	return (struct nccl *)t;
}

static void pause_a_little(void)
{
	static const struct timespec pause = { .tv_nsec = 200000 };
	nanosleep(&pause, NULL);
}

/* ---- joining ---- */

/* vLLM up to 0.29: its workers get the id from the store. */
static int publish_for_vllm(struct nccl *n, struct ws_err *err)
{
	struct ws_buf pickle;
	ws_buf_init(&pickle, 1024);
	ws_pickle_nccl_id(&pickle, n->id.bytes);
	const int rc = ws_buf_check(&pickle, "pickle", err) ||
	                               ws_store_set(n->opts.store, "/broadcast_from/0/0",
	                                            pickle.data, pickle.len, true, err) ?
	                       -1 :
	                       0;
	ws_buf_free(&pickle);
	return rc;
}

static int publish(struct nccl *n, struct ws_err *err)
{
	if (n->opts.vllm)
		return publish_for_vllm(n, err);
	char now[512], once[512]; /* keys of torch 2.0 and later, and of torch before 2.0 */
	snprintf(now, sizeof now, "/%s/%s//cuda//0", n->opts.group, n->opts.group);
	snprintf(once, sizeof once, "/%s/%s/0", n->opts.group, n->opts.group);
	return ws_store_set(n->opts.store, now, n->id.bytes, sizeof n->id.bytes, true, err) ||
	                       ws_store_set(n->opts.store, once, n->id.bytes, sizeof n->id.bytes,
	                                    true, err) ?
	               -1 :
	               0;
}

/* vLLM's workers sum one number as soon as they have joined. Without us they wait, or take the next
 * broadcast for that sum. */
static int warm_up(struct nccl *n, struct ws_err *err)
{
	const struct ws_comm_event done = { .gpu = n->gpu, .event = n->done[0] };
	return ws_gpu_alloc(n->gpu, sizeof(float), &n->number, err) ||
	                       ws_gpu_fill(n->gpu, n->number, 0, sizeof(float), n->wire, err) ||
	                       ws_comm_all_reduce_one(n->comm, n->number, n->wire, n->until,
	                                              &n->stop, err) ||
	                       ws_gpu_event_record(n->gpu, n->done[0], n->wire, err) ||
	                       ws_comm_wait_event(n->comm, &done, n->until, &n->stop, err) ?
	               -1 :
	               0;
}

static int join(void *arg, struct ws_err *err)
{
	struct nccl *n = arg;
	const struct ws_comm_opts opts = {
		.nccl = n->nccl, .id = n->id, .rank = 0, .size = n->opts.world_size
	};
	bool ready = false;
	if (ws_gpu_use(n->gpu, err) || ws_comm_open(&opts, &n->comm, err))
		return -1;
	for (;;) {
		if (ws_comm_ready(n->comm, &ready, err))
			return -1;
		if (ready)
			atomic_store(&n->stands, true);
		if (ready || (atomic_load(&n->agreed) && !n->opts.vllm))
			break;
		if (ws_cancelled(&n->stop))
			return ws_err_set(err, WS_ECANCELLED,
			                  "joining the communicator was cancelled");
		if (ws_deadline_passed(n->until))
			return ws_err_set(err, WS_ETIMEOUT,
			                  "joining the communicator took too long");
		pause_a_little();
	}
	ws_log(n->opts.log, 1, "nccl: %s", ready ? "the communicator is ready" :
	                                           "servers join with the first bucket");
	return n->opts.vllm ? warm_up(n, err) : 0;
}

static void nccl_agreed(struct ws_transport *t)
{
	atomic_store(&of(t)->agreed, true);
}

/* ---- opening ---- */

static int open_device(struct nccl *n, const struct ws_transport_gpu *g, struct ws_err *err)
{
	const struct ws_nccl_opts library = { .library = g->nccl };
	if (ws_transport_gpu_open(g, &n->cuda, &n->gpu, err))
		return -1;
	return ws_nccl_open(&library, &n->nccl, err);
}

static int open_marks(struct nccl *n, struct ws_err *err)
{
	if (ws_stream_new(n->gpu, &n->wire, err) || ws_gpu_event_new(n->gpu, &n->fed, err))
		return -1;
	for (int i = 0; i < IN_FLIGHT; i++)
		if (ws_gpu_event_new(n->gpu, &n->done[i], err))
			return -1;
	return 0;
}

static void nccl_close(struct ws_transport *t);

/* NCCL publishes the first interface that it finds, unless it is told which. */
static int set_environment(const struct ws_transport_opts *o, struct ws_err *err)
{
	struct ws_nccl_settings s = o->gpu.nccl_settings;
	if (!o->gpu.nccl_set)
		return 0;
	ws_host_interface(o->host, s.interface, sizeof s.interface);
	if (o->gpu.nccl_set(&s, err))
		return -1;
	ws_log(o->log, 1, "nccl: settings of %s: NCCL_CUMEM_ENABLE %d, NCCL_NVLS_ENABLE %d%s%s",
	       s.url, s.cumem, s.nvls, *s.interface ? ", interface " : "", s.interface);
	return 0;
}

/* The id holds a number of 8 bytes, then the address at which the ranks meet. */
static void log_meeting(const struct nccl *n)
{
	struct sockaddr_storage at = { 0 };
	char name[80];
	memcpy(&at, n->id.bytes + 8, sizeof(struct sockaddr_in6));
	if (at.ss_family != AF_INET && at.ss_family != AF_INET6)
		return;
	ws_sock_name((const struct sockaddr *)&at, name, sizeof name);
	ws_log(n->opts.log, 1, "nccl: ranks meet at %s", name);
}

static struct nccl *new_transport(struct ws_err *err)
{
	struct nccl *n = calloc(1, sizeof *n);
	if (!n) {
		ws_oom(err);
		return NULL;
	}
	n->base.ops = &ws_transport_nccl;
	n->job.fd = n->loader.fd = -1;
	n->stop = n->enough = (struct ws_cancel)WS_CANCEL_INIT;
	return n;
}

static int nccl_open(const struct ws_transport_opts *opts, ws_deadline until,
                     struct ws_transport **out, struct ws_err *err)
{
	struct nccl *n = new_transport(err);
	if (!n)
		return -1;
	n->opts = *opts;
	n->until = until;
	if (ws_cancel_init(&n->stop, err) || ws_job_init(&n->job, err) ||
	    ws_job_init(&n->loader, err) || open_device(n, &opts->gpu, err) || open_marks(n, err) ||
	    ws_gpu_stage_open(&n->stage, n->gpu, err) ||
	    ws_gpu_stage_try_kernels(&n->stage, &opts->gpu, err) ||
	    set_environment(opts, err) || ws_nccl_id_new(n->nccl, &n->id, err) || publish(n, err))
		goto fail;
	n->stage.least = opts->gpu.staging_bytes;
	ws_gpu_stage_trace(&n->stage, opts->trace);
	ws_log(opts->log, 1, "nccl: %s on GPU %d (%s), from %s", ws_nccl_version_text(n->nccl),
	       ws_gpu_device(n->gpu)->ordinal, ws_gpu_device(n->gpu)->name, ws_nccl_path(n->nccl));
	log_meeting(n);
	if (ws_job_start(&n->job, join, n, err))
		goto fail;
	*out = &n->base;
	return 0;
fail:
	nccl_close(&n->base);
	return -1;
}

static int nccl_check(const struct ws_transport_gpu *gpu, struct ws_err *err)
{
	struct nccl *n = new_transport(err);
	if (!n)
		return -1;
	const int rc = open_device(n, gpu, err);
	nccl_close(&n->base);
	return rc;
}

static const void *nccl_unique_id(const struct ws_transport *t, size_t *n)
{
	const struct nccl *nccl = (const struct nccl *)t;
	*n = sizeof nccl->id.bytes;
	return nccl->id.bytes;
}

static void nccl_memory(size_t buckets, uint64_t bytes, size_t payloads, uint64_t *gpu,
                        uint64_t *pinned)
{
	ws_gpu_stage_memory(buckets, bytes, payloads, gpu, pinned);
}

static bool nccl_makes(const struct ws_transport *t, const struct ws_recipe_output *f)
{
	return ws_gpu_stage_computes(&((const struct nccl *)t)->stage, f);
}

/* ---- sending ---- */

static void nccl_stage(struct ws_transport *t, const struct ws_payload *payloads, size_t count)
{
	struct nccl *n = of(t);
	n->next = (struct sending){ payloads, count };
	if (payloads)
		return; /* loading starts when all payloads of the bucket before are queued */
	nccl_end_loading_ahead(n);
	nccl_drop_boxes_but(n, NULL);
}

static int nccl_send_bucket(struct ws_transport *t, const struct ws_payload *payloads, size_t count,
                            ws_deadline until, struct ws_err *err)
{
	struct nccl *n = of(t);
	n->now = (struct sending){ payloads, count };
	if (n->next.payloads == payloads) /* the bucket after this one is not known */
		n->next = (struct sending){ NULL, 0 };
	n->until = until;
	return ws_job_start(&n->job, nccl_send, n, err);
}

static int nccl_fd(const struct ws_transport *t)
{
	return ((const struct nccl *)t)->job.fd;
}

/* Peers notice only an abort: until then their servers answer no request. */
static void give_up(struct nccl *n)
{
	ws_gpu_use(n->gpu, NULL);
	if (n->comm)
		ws_comm_abort(n->comm);
}

static int nccl_wait(struct ws_transport *t, struct ws_err *err)
{
	struct nccl *n = of(t);
	const int rc = ws_job_wait(&n->job, err);
	if (rc || ws_cancelled(&n->stop))
		give_up(n);
	return rc;
}

/* NCCL reports only whether the communicator is ready, and not which ranks have joined. */
static void nccl_look(const struct ws_transport *t, unsigned rank, struct ws_rank_status *out,
                      int64_t *starved_ns)
{
	const struct nccl *n = (const struct nccl *)t;
	(void)rank;
	*out = (struct ws_rank_status){ .link = atomic_load(&n->stands) ? WS_HANG_LINKED :
		                                                              WS_HANG_APART };
	*starved_ns = 0;
}

/* Only the thread that uses the communicator may abort it, and does so unless it hangs. */
static void nccl_cut(struct ws_transport *t)
{
	ws_cancel_set(&of(t)->stop);
}

static void nccl_abort(struct ws_transport *t)
{
	struct nccl *n = of(t);
	ws_cancel_set(&n->stop);
	if (!n->job.running)
		give_up(n);
}

/* ---- the rest ---- */

static uint64_t nccl_progress(const struct ws_transport *t)
{
	return atomic_load(&((const struct nccl *)t)->taken);
}

static uint64_t nccl_sent(const struct ws_transport *t, int64_t *first_ns)
{
	const struct nccl *n = (const struct nccl *)t;
	if (first_ns)
		*first_ns = atomic_load(&n->first_ns);
	return atomic_load(&n->sent);
}

/* The servers broadcast with the declared dtype; torch has no NCCL type for these dtypes. */
static const char *nccl_refuses(const struct ws_transport *t, const char *torch_dtype,
                                bool flattened)
{
	static const char *const none[] = { "int16", "uint16", "uint32", "uint64", NULL };
	(void)t;
	for (size_t i = 0; !flattened && none[i]; i++)
		if (strcmp(torch_dtype, none[i]) == 0)
			return "torch's NCCL backend broadcasts no tensor of this dtype";
	return NULL;
}

static void nccl_close(struct ws_transport *t)
{
	if (!t)
		return;
	struct nccl *n = of(t);
	if (n->job.running)
		ws_cancel_set(&n->stop);
	ws_job_fini(&n->job);
	nccl_end_loading_ahead(n);
	ws_job_fini(&n->loader);
	if (n->gpu) {
		/* if this fails, everything is freed all the same */
		ws_gpu_use(n->gpu, NULL);
		ws_comm_close(n->comm, ws_deadline_in(ws_cancelled(&n->stop) ? 0 : LEAVE_NS));
		ws_gpu_free(n->gpu, n->number);
		ws_stream_free(n->gpu, n->wire);
		ws_gpu_event_free(n->gpu, n->fed);
		for (int i = 0; i < IN_FLIGHT; i++)
			ws_gpu_event_free(n->gpu, n->done[i]);
		ws_gpu_stage_close(&n->stage);
	}
	ws_nccl_close(n->nccl);
	ws_gpu_close(n->gpu);
	ws_cuda_close(n->cuda);
	ws_cancel_fini(&n->stop);
	free(n);
}

const struct ws_transport_ops ws_transport_nccl = {
	.name = "nccl",
	.has_error_detail = true,
	.check = nccl_check,
	.memory = nccl_memory,
	.open = nccl_open,
	.unique_id = nccl_unique_id,
	.makes = nccl_makes,
	.agreed = nccl_agreed,
	.stage = nccl_stage,
	.send_bucket = nccl_send_bucket,
	.fd = nccl_fd,
	.wait = nccl_wait,
	.progress = nccl_progress,
	.sent = nccl_sent,
	.look = nccl_look,
	.refuses = nccl_refuses,
	.cut = nccl_cut,
	.abort = nccl_abort,
	.close = nccl_close,
};
