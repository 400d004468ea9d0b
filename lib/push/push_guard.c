/* SPDX-License-Identifier: Apache-2.0 */
/* push_guard.c - ends a push whose thread hangs in a file system, where no deadline
 * and no signal reaches it.
 *
 * A read from a dead NFS server or a disk that fails may last forever, in the thread of the push
 * or in a worker that it joins. The endpoints would stay paused for as long. So a second thread,
 * the guard, watches the first one:
 *
 * - The thread of the push calls push_alive before and after every call that may block. While it
 *   waits for HTTP or the data plane, it calls push_alive ten times a second. Each call copies the
 *   state that the guard needs: which endpoints are paused, partial or in the group.
 * - Once a deadline has passed or the push was cancelled, three seconds without such a call mean
 *   that the thread hangs. It also hangs if it uses no processor time for --bucket-timeout.
 * - The guard then takes the lock and never releases it: a thread that wakes up later stops at its
 *   next push_alive and changes nothing. From then on the guard owns the endpoints. It shuts the
 *   connections of the data plane, destroys the group, resumes the endpoints that are whole, and
 *   writes the record. The caller gets the result and ends the process.
 *
 * Silence is counted in turns of the guard and not in time, because a process that was stopped does
 * not hang. */
#include "push_protocol.h"

#include "journal_core.h"
#include "job.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const int64_t TURN_NS = 100 * WS_NS_PER_MS;
static const int64_t SILENCE_NS = 3 * WS_NS_PER_S;
/* silence before the guard takes the process's signals */
static const int64_t SIGNALS_NS = WS_NS_PER_S;
static const int64_t STEP_NS = 3 * WS_NS_PER_S; /* for each step of the clean-up */
enum { RESUME_TRIES = 3, RECORD_MS = 2000 };

struct push_guard {
	struct ws_push *push;      /* read only for members that do not change in a run */
	pthread_t thread;
	/* protects everything below; the guard never releases it after it has taken over */
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool watching, stop;
	sigset_t signals;          /* signal mask of the thread of the push */
	clockid_t cpu;             /* CPU time of that thread */
	uint64_t calls;            /* of push_alive, counted */
	ws_deadline until;         /* of the run */
	ws_deadline due;           /* of the current step */

	/* the last copy that push_alive made */
	enum ws_phase phase;
	struct ws_transport *transport; /* NULL: no data plane is open */
	bool owns, recorded;       /* the run claimed the endpoints; it recorded its plan */
	char failure[512];         /* the error of the push; "": it has not failed */
	bool unsure;               /* a silent thread may wait for something other than a file */
	bool keeps;                /* a staged update: ending it may load it */
	bool waits;                /* it has arrived */
	struct ws_journal_endpoint *endpoints;
	char group[128];
	char *record;              /* its path; NULL: no record is written */
	struct ws_ev_end end;

	/* used by the guard's thread only */
	uint64_t seen_calls;
	int64_t seen_cpu;
	int64_t late_ns, still_ns, silent_ns;
	struct ws_http *http;
	struct ws_job job;
	const char **urls;         /* scratch, like the next two */
	size_t *index;
	struct ws_endpoint_answer *answers;
	struct ws_ev_endpoint_result *results;
};

/* ---- the thread of the push ------------------------------------------------------------------ */

static void copy_endpoint(const struct ws_push *p, size_t i, struct ws_journal_endpoint *out)
{
	const struct push_endpoint *e = &p->to.endpoints[i];
	/* The source was not checked for changes yet: the endpoint may have a mixture of two
	 * sources. */
	const bool unsure =
		e->weights.state == WS_COMMITTED && (p->run.weights_dirty || p->run.commits_void);
	/* vLLM's layers have no values until the end. */
	const bool emptied = e->weights.scope_open && e->scope == PUSH_SCOPE_TRANSFER;
	push_describe(p, i, out);
	out->url = e->url;
	out->state = unsure || emptied ? WS_PARTIAL : e->weights.state;
	if (!e->weights.scope_open && !p->run.weights_dirty && !e->staged)
		out->open_update = WS_UPDATE_NONE;
	out->paused = out->paused && !push_others_stopped(e) &&
	              !(e->found_paused && !e->paused); /* another push has recorded that pause */
}

static void copy_end(const struct ws_push *p, struct ws_ev_end *end)
{
	*end = (struct ws_ev_end){ .weight_version = p->from.weight_version,
		                   .dry_run = p->opts.dry_run,
		                   .written = p->opts.write_dir,
		                   .staged = p->opts.stage,
		                   .completed = p->opts.complete,
		                   .source = p->from.name,
		                   .verify = push_verify_name(p) };
	end->bytes = p->from.plan ? p->from.plan->bytes : 0;
	end->tensors = p->from.plan ? p->from.plan->n_tensors : 0;
	end->buckets = p->from.plan ? p->from.plan->n_buckets : 0;
	end->digest = p->from.plan ? p->from.plan->digest : 0;
	end->bucket_size = push_last_bucket_limit(p);
	end->wire_bytes = p->link.group ? push_sent(p) - p->run.sent_base : p->run.posted;
	end->first_byte_ns = p->link.group ? push_first_byte(p) : 0;
	memcpy(end->ns, p->run.ns, sizeof end->ns);
	end->ns[p->run.phase] += ws_now_ns() - p->run.phase_since;
}

static void copy_record(struct push_guard *g, const struct ws_journal *journal)
{
	const char *path = journal ? ws_journal_path(journal) : NULL;
	if (path && g->record && strcmp(path, g->record) == 0)
		return;
	free(g->record);
	g->record = path ? strdup(path) : NULL;
}

static void copy(struct push_guard *g, const struct ws_push *p)
{
	g->phase = p->run.phase;
	g->until = p->run.until;
	g->owns = p->recovery.claimed;
	g->recorded = p->recovery.recorded;
	snprintf(g->failure, sizeof g->failure, "%s", p->run.failed_why ? p->run.failed_why : "");
	g->transport = p->link.group ? ws_group_transport(p->link.group) : NULL;
	/* After a failure the push joins workers, and GPU libraries may take long to abort. */
	g->unsure = p->run.failed_why || p->link.nccl_version[0] || p->protocol->exports;
	g->keeps = p->opts.complete || p->recovery.stage > WS_STAGE_SENDING;
	g->waits = p->recovery.stage >= WS_STAGE_DONE;
	snprintf(g->group, sizeof g->group, "%s", p->link.name);
	for (size_t i = 0; i < p->opts.n_endpoints; i++)
		copy_endpoint(p, i, &g->endpoints[i]);
	copy_record(g, p->recovery.journal);
	copy_end(p, &g->end);
}

void push_alive(struct ws_push *p)
{
	struct push_guard *g = p->watch.guard;
	if (!g)
		return;
	pthread_mutex_lock(&g->lock);
	g->calls++;
	copy(g, p);
	pthread_mutex_unlock(&g->lock);
}

void push_alive_until(struct ws_push *p, ws_deadline due)
{
	struct push_guard *g = p->watch.guard;
	if (!g)
		return;
	pthread_mutex_lock(&g->lock);
	g->due = due;
	pthread_mutex_unlock(&g->lock);
	push_alive(p);
}

void push_guard_watch(struct ws_push *p, bool on)
{
	struct push_guard *g = p->watch.guard;
	if (!g)
		return;
	push_alive(p);
	pthread_mutex_lock(&g->lock);
	g->watching = on && pthread_getcpuclockid(pthread_self(), &g->cpu) == 0 &&
	              pthread_sigmask(SIG_SETMASK, NULL, &g->signals) == 0;
	g->late_ns = g->still_ns = g->silent_ns = 0;
	pthread_cond_signal(&g->changed);
	pthread_mutex_unlock(&g->lock);
}

/* ---- the clean-up ---------------------------------------------------------------------------- */

/* A server with released memory would crash at the first prompt, so it stays paused. */
static bool is_to_resume(const struct push_guard *g, const struct ws_journal_endpoint *e)
{
	return g->owns && e->paused && !e->asleep && !e->unsure &&
	       (e->state != WS_PARTIAL || g->push->opts.on_partial == WS_PARTIAL_RESUME);
}

static size_t choose_paused(struct push_guard *g)
{
	size_t n = 0;
	for (size_t i = 0; i < g->push->opts.n_endpoints; i++)
		if (is_to_resume(g, &g->endpoints[i])) {
			g->urls[n] = g->endpoints[i].url;
			g->index[n++] = i;
		}
	return n;
}

static void resume(struct push_guard *g)
{
	size_t n;
	for (int try = 0; try < RESUME_TRIES && (n = choose_paused(g)) > 0; try++) {
		const struct ws_call to = { .http = g->http, .urls = g->urls, .n = n,
			                    .until = ws_deadline_in(STEP_NS) };
		ws_endpoint_resume(&to, g->answers, NULL);
		for (size_t k = 0; k < n; k++)
			g->endpoints[g->index[k]].paused = g->answers[k].err.code != WS_OK;
	}
}

static void clean_up(struct push_guard *g, struct ws_err *why)
{
	const struct ws_push_opts *o = &g->push->opts;
	const struct ws_client_opts client = { .api_key = o->api_key, .ca_file = o->ca_file,
		                               .connect_ns = o->connect_ns };
	if (g->transport && g->transport->ops->cut)
		g->transport->ops->cut(g->transport);
	if (o->n_endpoints == 0)
		return;
	if (ws_client_open(&client, &g->http, why)) {
		ws_err_wrap(why, "the endpoints were not cleaned up");
		return;
	}
	if (!g->keeps)
		ws_journal_leave_group(g->http, g->endpoints, o->n_endpoints, g->group,
		                       ws_deadline_in(STEP_NS), NULL);
	if (g->owns && !g->keeps)
		ws_journal_end_updates(g->http, g->endpoints, o->n_endpoints, g->group,
		                       ws_deadline_in(STEP_NS), NULL, NULL, NULL);
	resume(g);
	ws_client_close(g->http);
}

static int update_record(void *guard, struct ws_err *err)
{
	struct push_guard *g = guard;
	return ws_journal_update(g->record, g->endpoints, g->push->opts.n_endpoints, err);
}

/* The state directory may be on the file system that hangs. The record then still
 * lists endpoints that were cleaned up. */
static void write_record(struct push_guard *g)
{
	/* Until the run has recorded its plan, the record is that of an earlier run. */
	if (!g->record || !g->recorded || ws_job_init(&g->job, NULL))
		return;
	/* Not joined: it may hang, and the process is about to end. */
	if (ws_job_start(&g->job, update_record, g, NULL) == 0)
		poll(&(struct pollfd){ .fd = g->job.fd, .events = POLLIN }, 1, RECORD_MS);
}

/* ---- the result ------------------------------------------------------------------------------ */

static void explain(const struct push_guard *g, struct ws_err *why)
{
	const struct ws_push_opts *o = &g->push->opts;
	const char *what = g->unsure ? "does not respond" : "hangs in a file system";
	if (ws_cancelled(o->cancel))
		ws_err_set(why, WS_ECANCELLED, "cancelled while this process %s", what);
	else
		ws_err_set(why, WS_ETIMEOUT, "the deadline passed while this process %s", what);
	if (*g->failure)
		ws_err_wrap(why, "%s; then", g->failure);
	const char *also = o->write_dir ? o->write_dir : o->state_dir;
	ws_err_hint(why, "check the disk or the network file system of %s%s%s", g->end.source,
	            also ? " and of " : "", also ? also : "");
	ws_err_where(why, ws_phase_name(g->phase), NULL);
}

static void fill_result(struct push_guard *g, struct ws_err *why)
{
	const size_t n = g->push->opts.n_endpoints;
	size_t committed = 0, left = 0;
	for (size_t i = 0; i < n; i++) {
		const struct ws_journal_endpoint *e = &g->endpoints[i];
		committed += e->state == WS_COMMITTED;
		const bool paused = e->paused || push_others_stopped(&g->push->to.endpoints[i]);
		left += paused;
		g->results[i] = (struct ws_ev_endpoint_result){
			.url = e->url,
			.ok = e->state == WS_COMMITTED,
			.state = e->state,
			.paused = paused,
			.unflushed = g->push->to.endpoints[i].unflushed,
			.staged = e->open_update && g->waits,
			.message = "",
		};
	}
	if (committed && committed < n && why->code != WS_ECANCELLED) {
		ws_err_wrap(why, "%zu of %zu endpoints updated", committed, n);
		why->code = WS_EPARTIAL;
	}
	if (left)
		ws_err_wrap(why, "%zu of %zu endpoints stay paused", left, n);
	g->end.err = why;
	g->end.n_endpoints = n;
	g->end.endpoints = g->results;
	g->end.total_ns = ws_now_ns() - g->push->run.since;
}

/* Call it with the lock, which is never released. */
static void take_over(struct push_guard *g)
{
	struct ws_err why = WS_ERR_INIT;
	const int64_t since = ws_now_ns();
	explain(g, &why);
	clean_up(g, &why);
	g->end.ns[WS_PHASE_RESUME] += ws_now_ns() - since;
	write_record(g);
	fill_result(g, &why);
	g->push->opts.hung(g->push->opts.hung_ctx, &g->end, &why);
	for (;;)
		pause();
}

/* ---- watching -------------------------------------------------------------------------------- */

/* A thread in an uninterruptible call handles no signals, but the kernel gives it the signals of
 * the process first. A thread that unblocks them gets the pending ones. */
static void take_signals(const struct push_guard *g)
{
	sigset_t mine;
	if (pthread_sigmask(SIG_SETMASK, &g->signals, &mine) == 0)
		pthread_sigmask(SIG_SETMASK, &mine, NULL);
}

static int64_t cpu_ns(const struct push_guard *g)
{
	struct timespec used = { 0, 0 };
	clock_gettime(g->cpu, &used);
	return (int64_t)used.tv_sec * WS_NS_PER_S + used.tv_nsec;
}

static bool hangs(struct push_guard *g)
{
	const struct ws_push_opts *o = &g->push->opts;
	const int64_t cpu = cpu_ns(g);
	const bool idle = cpu == g->seen_cpu;
	g->seen_cpu = cpu;
	if (g->calls != g->seen_calls) {
		g->seen_calls = g->calls;
		g->late_ns = g->still_ns = g->silent_ns = 0;
		return false;
	}
	g->silent_ns += TURN_NS;
	if (g->silent_ns >= SIGNALS_NS)
		take_signals(g);
	const bool late = ws_deadline_passed(g->until) || ws_deadline_passed(g->due) ||
	                  ws_cancelled(o->cancel);
	g->late_ns = late ? g->late_ns + TURN_NS : 0;
	g->still_ns = idle ? g->still_ns + TURN_NS : 0;
	return g->late_ns >= SILENCE_NS || g->still_ns - SILENCE_NS >= o->bucket_ns;
}

static void await_turn(struct push_guard *g)
{
	struct timespec at;
	clock_gettime(CLOCK_MONOTONIC, &at);
	at.tv_nsec += TURN_NS;
	at.tv_sec += at.tv_nsec / WS_NS_PER_S;
	at.tv_nsec %= WS_NS_PER_S;
	pthread_cond_timedwait(&g->changed, &g->lock, &at);
}

static void *watch(void *arg)
{
	struct push_guard *g = arg;
	pthread_mutex_lock(&g->lock);
	while (!g->stop) {
		if (!g->watching)
			pthread_cond_wait(&g->changed, &g->lock);
		else
			await_turn(g);
		if (g->watching && !g->stop && hangs(g))
			take_over(g);
	}
	pthread_mutex_unlock(&g->lock);
	return NULL;
}

/* ---- opening and closing --------------------------------------------------------------------- */

static void free_guard(struct push_guard *g)
{
	free(g->endpoints);
	free(g->urls);
	free(g->index);
	free(g->answers);
	free(g->results);
	free(g->record);
	free(g);
}

static struct push_guard *new_guard(size_t n)
{
	struct push_guard *g = calloc(1, sizeof *g);
	if (!g)
		return NULL;
	g->until = g->due = WS_FOREVER;
	g->endpoints = calloc(n + 1, sizeof *g->endpoints);
	g->urls = calloc(n + 1, sizeof *g->urls);
	g->index = calloc(n + 1, sizeof *g->index);
	g->answers = calloc(n + 1, sizeof *g->answers);
	g->results = calloc(n + 1, sizeof *g->results);
	if (g->endpoints && g->urls && g->index && g->answers && g->results)
		return g;
	free_guard(g);
	return NULL;
}

int push_guard_open(struct ws_push *p, struct ws_err *err)
{
	/* A dry run has nothing to clean up. It may also wait for its reader with stdout locked,
	 * and the guard needs that lock for the result. */
	if (!p->opts.hung || p->opts.dry_run)
		return 0;
	struct push_guard *g = new_guard(p->opts.n_endpoints);
	if (!g)
		return ws_oom(err);
	pthread_condattr_t attr;
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&g->changed, &attr);
	pthread_condattr_destroy(&attr);
	pthread_mutex_init(&g->lock, NULL);
	g->push = p;
	if (ws_thread_start(&g->thread, watch, g, err)) {
		free_guard(g);
		return -1;
	}
	p->watch.guard = g;
	return 0;
}

void push_guard_close(struct ws_push *p)
{
	struct push_guard *g = p->watch.guard;
	if (!g)
		return;
	pthread_mutex_lock(&g->lock);
	g->stop = true;
	pthread_cond_signal(&g->changed);
	pthread_mutex_unlock(&g->lock);
	pthread_join(g->thread, NULL);
	pthread_cond_destroy(&g->changed);
	pthread_mutex_destroy(&g->lock);
	free_guard(g);
	p->watch.guard = NULL;
}
