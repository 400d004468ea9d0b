/* SPDX-License-Identifier: Apache-2.0 */
/* lend.c - one allocation, its parts in turn, and a thread that fills the one that is next. */
#include "lend.h"

#include "feed.h"
#include "job.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>

struct bringing {
	const struct ws_payload *payloads; /* NULL: nothing */
	size_t n;
};

struct ws_lend {
	struct ws_cuda *cuda;
	struct ws_gpu *gpu;
	struct ws_feed feed; /* the thread's, while it runs */
	ws_devptr memory;
	uint64_t part;       /* bytes */
	unsigned parts;
	unsigned char handle[WS_IPC_HANDLE_BYTES];
	struct ws_job job;
	struct ws_cancel stop;
	struct bringing now, next;
	unsigned turn;       /* the part of now */
};

/* ---- opening ---- */

static int open_gpu(const struct ws_transport_gpu *gpu, struct ws_lend *l, struct ws_err *err)
{
	const struct ws_cuda_opts driver = { .library = gpu->driver };
	return ws_cuda_open(&driver, &l->cuda, err) ||
	                       ws_gpu_open(l->cuda, gpu->device, &l->gpu, err) ?
	               -1 :
	               0;
}

static struct ws_lend *new_lend(struct ws_err *err)
{
	struct ws_lend *l = calloc(1, sizeof *l);
	if (!l) {
		ws_oom(err);
		return NULL;
	}
	l->job.fd = -1;
	l->stop = (struct ws_cancel)WS_CANCEL_INIT;
	return l;
}

int ws_lend_open(const struct ws_lend_opts *opts, struct ws_lend **out, struct ws_err *err)
{
	const struct ws_transport_gpu *g = &opts->gpu;
	struct ws_lend *l = new_lend(err);
	if (!l)
		return -1;
	if (ws_job_init(&l->job, err) || open_gpu(g, l, err) ||
	    ws_feed_open(&l->feed, l->gpu, err) ||
	    (g->makes && ws_feed_try_to_make(&l->feed, g->must_make, opts->log, err))) {
		ws_lend_close(l);
		return -1;
	}
	ws_feed_trace(&l->feed, opts->trace);
	*out = l;
	return 0;
}

int ws_lend_check(const struct ws_transport_gpu *gpu, struct ws_err *err)
{
	struct ws_lend *l = new_lend(err);
	if (!l)
		return -1;
	const int rc = open_gpu(gpu, l, err);
	ws_lend_close(l);
	return rc;
}

/* What nobody was given leaves its part to what comes instead: the one after it may still be
 * read. */
static void forget(struct ws_lend *l)
{
	if (l->now.payloads)
		l->turn = (l->turn + l->parts - 1) % l->parts;
	l->now = (struct bringing){ 0 };
}

/* What is being brought is let go. */
static void stop(struct ws_lend *l)
{
	ws_cancel_set(&l->stop);
	ws_job_wait(&l->job, NULL);
	l->stop = (struct ws_cancel)WS_CANCEL_INIT;
	forget(l);
}

void ws_lend_close(struct ws_lend *l)
{
	if (!l)
		return;
	stop(l);
	ws_job_fini(&l->job);
	if (l->gpu) {
		/* where it fails, what is here is given back all the same */
		ws_gpu_use(l->gpu, NULL);
		ws_feed_close(&l->feed);
		ws_gpu_free(l->gpu, l->memory);
	}
	ws_gpu_close(l->gpu);
	ws_cuda_close(l->cuda);
	free(l);
}

/* ---- room ---- */

static uint64_t round_up(uint64_t n, uint64_t to)
{
	return (n + to - 1) / to * to;
}

static uint64_t part_of(uint64_t bytes)
{
	return round_up(bytes ? bytes : 1, WS_FEED_ALIGN);
}

static unsigned parts_of(size_t buckets)
{
	return buckets < WS_LEND_PARTS ? (unsigned)buckets + (buckets == 0) : WS_LEND_PARTS;
}

void ws_lend_memory(size_t buckets, uint64_t bytes, size_t payloads, uint64_t *gpu,
                    uint64_t *pinned)
{
	ws_feed_memory(0, bytes, payloads, gpu, pinned);
	*gpu += round_up(parts_of(buckets) * part_of(bytes), WS_IPC_BLOCK);
}

static void give_back(struct ws_lend *l)
{
	ws_gpu_free(l->gpu, l->memory);
	l->memory = 0;
	l->part = 0;
	l->parts = 0;
}

int ws_lend_reserve(struct ws_lend *l, size_t buckets, uint64_t bytes, struct ws_err *err)
{
	const uint64_t part = part_of(bytes);
	const unsigned parts = parts_of(buckets);
	stop(l);
	if (part <= l->part && parts <= l->parts)
		return 0;
	/* Another push of the same process may come from another thread. */
	if (ws_gpu_use(l->gpu, err))
		return -1;
	give_back(l);
	if (bytes > UINT64_MAX / 8)
		return ws_err_set(err, WS_EINPUT, "a bucket is larger than any GPU");
	if (ws_gpu_alloc(l->gpu, round_up(parts * part, WS_IPC_BLOCK), &l->memory, err)) {
		ws_err_hint(err,
		            "%u buckets lie on the GPU at once, beside what the servers have "
		            "there: a smaller "
		            "--bucket-size needs less",
		            parts);
		return -1;
	}
	if (ws_gpu_ipc_export(l->gpu, l->memory, l->handle, err)) {
		give_back(l);
		return -1;
	}
	l->part = part;
	l->parts = parts;
	return 0;
}

const unsigned char *ws_lend_handle(const struct ws_lend *l)
{
	return l->handle;
}

uint64_t ws_lend_room(const struct ws_lend *l)
{
	return l->part;
}

bool ws_lend_makes(const struct ws_lend *l, const struct ws_formula_out *f)
{
	return ws_feed_makes(&l->feed, f);
}

const struct ws_cuda_device *ws_lend_device(const struct ws_lend *l)
{
	return ws_gpu_device(l->gpu);
}

/* ---- bringing ---- */

static int load_all(struct ws_lend *l, struct ws_feed_box *box, struct ws_err *err)
{
	while (box->loaded < box->n_payloads)
		if (ws_feed_load(&l->feed, box, WS_FOREVER, &l->stop, err))
			return -1;
	/* Who opens the memory does not see our stream: the bytes must be there. */
	const int rc = ws_stream_wait(l->gpu, l->feed.stream, WS_FOREVER, &l->stop, err);
	ws_feed_notice(&l->feed);
	if (rc)
		ws_feed_settle(&l->feed);
	return rc;
}

static int bring(void *arg, struct ws_err *err)
{
	struct ws_lend *l = arg;
	if (ws_gpu_use(l->gpu, err))
		return -1;
	struct ws_feed_box *box = ws_feed_box(&l->feed, l->now.payloads, l->now.n);
	ws_feed_lend(box, l->memory + l->turn * l->part, l->part);
	const int rc = load_all(l, box, err);
	ws_feed_drop(box);
	return rc;
}

static int begin(struct ws_lend *l, const struct bringing *what, struct ws_err *err)
{
	l->now = *what;
	l->turn = (l->turn + 1) % l->parts;
	return ws_job_start(&l->job, bring, l, err);
}

void ws_lend_next(struct ws_lend *l, const struct ws_payload *payloads, size_t n)
{
	l->next = (struct bringing){ payloads, n };
	if (!payloads)
		stop(l);
}

/* The thread has no deadline of its own. */
static int await(struct ws_lend *l, ws_deadline until, const struct ws_cancel *cancel,
                 struct ws_err *err)
{
	struct pollfd p[2] = { { .fd = l->job.fd, .events = POLLIN },
		               { .fd = ws_cancel_fd(cancel), .events = POLLIN } };
	while (l->job.running && !ws_job_over(&l->job) && !ws_cancelled(cancel) &&
	       !ws_deadline_passed(until))
		poll(p, 2, ws_deadline_poll_ms(until, 1000));
	if (!l->job.running || ws_job_over(&l->job))
		return ws_job_wait(&l->job, err);
	stop(l);
	return ws_cancelled(cancel) ? ws_err_set(err, WS_ECANCELLED, "reading was cancelled") :
	       ws_err_set(err, WS_ETIMEOUT, "the source was not read in time");
}

int ws_lend_take(struct ws_lend *l, const struct ws_payload *payloads, size_t n, ws_deadline until,
                 const struct ws_cancel *cancel, uint64_t *at, struct ws_err *err)
{
	const struct bringing wanted = { payloads, n };
	if (l->now.payloads != payloads) {
		stop(l);
		if (begin(l, &wanted, err))
			return -1;
	}
	if (await(l, until, cancel, err)) {
		forget(l);
		return -1;
	}
	l->now = (struct bringing){ 0 };
	*at = l->turn * l->part;
	const struct bringing next = l->next;
	l->next = (struct bringing){ 0 };
	return next.payloads && next.payloads != payloads ? begin(l, &next, err) : 0;
}
