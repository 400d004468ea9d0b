/* SPDX-License-Identifier: Apache-2.0 */
/* push_open.c - opens and closes a push: checks its options, and allocates and frees its state. */
#include "push_protocol.h"

#include "ipc_export.h"
#include "nccl_library.h"

#include "wsync/tool/str.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Sets the transport, the protocol and the bucket size. */
static void choose_backend(struct ws_push *p)
{
	struct ws_push_opts *o = &p->opts;
	const uint64_t first = ws_push_bucket_size(o->write_dir ? WS_BACKEND_DISK : o->backend);
	p->link.transport = &ws_transport_gloo;
	if (o->stage && o->backend != WS_BACKEND_DISK)
		o->protocol = WS_PROTOCOL_TWO_PHASE;
	p->protocol = push_protocol_asked(o->protocol);
	if (o->write_dir) {
		p->link.transport = &push_disk_transport;
		p->protocol = &push_write;
		o->bucket_size = o->bucket_size ? o->bucket_size : first;
		return;
	}
	switch (o->backend) {
	case WS_BACKEND_NCCL:
		p->link.transport = &ws_transport_nccl;
		break;
	case WS_BACKEND_TENSOR:
		p->link.transport = &push_tensor_transport;
		p->protocol = &push_tensor;
		if (!o->bucket_size || o->bucket_size > first)
			o->bucket_size = first;
		break;
	case WS_BACKEND_IPC:
		p->link.transport = &push_ipc_transport;
		p->protocol = &push_ipc;
		o->bucket_size = o->bucket_size ? o->bucket_size : first;
		break;
	case WS_BACKEND_DISK:
		p->link.transport = &push_disk_transport;
		p->protocol = &push_disk;
		o->bucket_size = !o->disk_dir ? UINT64_MAX : /* servers read the whole source */
		                 o->bucket_size ? o->bucket_size :
		                                  first;
		break;
	default:
		break;
	}
}

/* --include '*' matches every tensor, so it is no filter. */
static bool includes_all(const struct ws_push_opts *o)
{
	for (size_t i = 0; i < o->n_include; i++)
		if (o->include[i][0] && strspn(o->include[i], "*") == strlen(o->include[i]))
			return true;
	return false;
}

void ws_push_opts_init(struct ws_push_opts *opts)
{
	*opts = (struct ws_push_opts){
		.disk_keep = WS_PUSH_DISK_KEEP,
		.connect_ns = WS_PUSH_CONNECT_NS, .init_ns = WS_PUSH_INIT_NS,
		.bucket_ns = WS_PUSH_BUCKET_NS,
	};
}

static int take_opts(struct ws_push *p, const struct ws_push_opts *opts, struct ws_err *err)
{
	p->opts = *opts;
	p->turn.fd = -1;
	if (includes_all(opts))
		p->opts.n_include = 0;
	p->from.all_names = !p->opts.n_include && !opts->n_exclude;
	p->opts.connect_ns = opts->connect_ns > 0 ? opts->connect_ns : WS_PUSH_CONNECT_NS;
	p->opts.init_ns = opts->init_ns > 0 ? opts->init_ns : WS_PUSH_INIT_NS;
	p->opts.bucket_ns = opts->bucket_ns > 0 ? opts->bucket_ns : WS_PUSH_BUCKET_NS;
	p->opts.state_required |= opts->stage || opts->complete;
	choose_backend(p);
	if (push_targets_open(p, err))
		return -1;
	for (size_t i = 0; i < opts->n_endpoints; i++)
		p->to.endpoints[i].url = opts->endpoints[i];
	if (push_is_worker(p))
		p->opts.n_endpoints = 0; /* only sender 1 sends requests to them */
	return 0;
}

/* Checks the options of several senders in one group, which sender 1 opens. */
static int check_together(const struct ws_push_opts *o, struct ws_err *err)
{
	if (o->backend != WS_BACKEND_AUTO && o->backend != WS_BACKEND_GLOO)
		return ws_err_set(err, WS_EUSAGE,
		                  "several senders of one group need {backend} gloo");
	if (o->sender == 1 && o->n_endpoints == 0)
		return ws_err_set(err, WS_EUSAGE,
		                  "sender 1 of %u needs the endpoints, also for {dry_run}: their "
		                  "sizes determine the share of each sender",
		                  o->senders);
	if (o->master_port && (o->master_address || o->sender == 1))
		return 0;
	ws_err_set(err, WS_EUSAGE, "sender %u of %u: the senders meet at the first one's %s",
	           o->sender, o->senders, o->master_port ? "address" : "port");
	return ws_err_hint(err,
	                   "give all of them the same {master_address} ADDRESS {master_port} PORT");
}

static bool is_follower(const struct ws_push_opts *o)
{
	return o->senders > 1 && o->sender > 1 && !o->sender_lock &&
	       o->protocol == WS_PROTOCOL_EP_SCATTER;
}

static int check_senders(const struct ws_push_opts *o, struct ws_err *err)
{
	if (o->round &&
	    (o->senders < 2 || (!o->sender_lock && o->protocol != WS_PROTOCOL_EP_SCATTER)))
		return ws_err_set(err, WS_EUSAGE,
		                  "{round} is for several senders: {sender} I/N with "
		                  "{sender_lock} FILE or {protocol} ep-scatter");
	if (o->senders < 2)
		return 0;
	if (!o->sender || o->sender > o->senders || o->senders > 1024)
		return ws_err_set(err, WS_EUSAGE,
		                  "sender %u of %u: 1 to 1024 senders, the first is 1", o->sender,
		                  o->senders);
	if (o->round && !*o->round) {
		ws_err_set(err, WS_EUSAGE, "{round}: the ID is empty");
		return ws_err_hint(err, "is a variable of the shell not set?");
	}
	if (o->protocol == WS_PROTOCOL_EP_SCATTER && !o->sender_lock)
		return check_together(o, err);
	if (o->sender_lock || o->dry_run)
		return 0;
	ws_err_set(err, WS_EUSAGE, "several senders need a lock to take turns");
	return ws_err_hint(err, "give all of them the same {sender_lock} FILE, or let them send at "
	                        "once with {protocol} ep-scatter");
}

static int check_disk(const struct ws_push_opts *o, struct ws_err *err)
{
	if (o->backend != WS_BACKEND_DISK) {
		if (o->disk_dir || o->disk_path)
			return ws_err_set(err, WS_EUSAGE,
			                  "{disk_dir} and {disk_path} are for {backend} disk");
		return o->format != WS_PUSH_FORMAT_SAFETENSORS || o->write_dir ?
		               0 :
		               ws_err_set(err, WS_EUSAGE,
		                          "{format} safetensors is for {backend} disk");
	}
	if (o->protocol != WS_PROTOCOL_AUTO)
		return ws_err_set(err, WS_EUSAGE, "{backend} disk has a protocol of its own");
	if (o->format != WS_PUSH_FORMAT_AUTO && o->format != WS_PUSH_FORMAT_SAFETENSORS)
		return ws_err_set(err, WS_EUSAGE,
		                  "{backend} disk takes {format} auto and safetensors");
	if (o->senders > 1)
		return ws_err_set(err, WS_EUSAGE,
		                  "{backend} disk loads a whole checkpoint: one sender");
	if (o->disk_dir && !*o->disk_dir)
		return ws_err_set(err, WS_EUSAGE, "{disk_dir}: the name is empty");
	if (!o->disk_path || o->disk_path[0] == '/')
		return 0;
	ws_err_set(err, WS_EUSAGE, "{disk_path} '%s' is not an absolute path", o->disk_path);
	return ws_err_hint(
		err, "a server takes a relative path for a name on the Hugging Face Hub, or for a "
		     "path in its own directory");
}

/* {write_dir} writes files: options about sending them are mistakes. */
static int check_write(const struct ws_push_opts *o, struct ws_err *err)
{
	const char *wrong = o->n_endpoints                          ? "takes no endpoint" :
	                    o->backend != WS_BACKEND_AUTO           ? "takes no {backend}" :
	                    o->protocol != WS_PROTOCOL_AUTO         ? "takes no {protocol}" :
	                    o->senders                              ? "takes no {sender}" :
	                    o->verify == WS_VERIFY_HASH             ? "takes no {verify} hash" :
	                    o->format != WS_PUSH_FORMAT_AUTO &&
	                    o->format != WS_PUSH_FORMAT_SAFETENSORS ? "writes safetensors only" :
	                    !*o->write_dir                          ? "needs a name" :
	                                                              NULL;
	return wrong ? ws_err_set(err, WS_EUSAGE, "{write_dir} %s", wrong) : 0;
}

/* Options that a staged update cannot have. */
static int check_stage(const struct ws_push_opts *o, struct ws_err *err)
{
	const bool disk = o->backend == WS_BACKEND_DISK;
	const bool group = o->backend == WS_BACKEND_AUTO || o->backend == WS_BACKEND_GLOO ||
	                   o->backend == WS_BACKEND_NCCL;
	const bool two_phase =
		o->protocol == WS_PROTOCOL_AUTO || o->protocol == WS_PROTOCOL_TWO_PHASE;
	const char *wrong = o->write_dir          ? "sends, and {write_dir} only writes" :
	                    o->senders            ? "takes no {sender}" :
	                    !disk && !group       ? "takes {backend} gloo, nccl or disk" :
	                    !disk && !two_phase   ? "takes {protocol} two-phase or {backend} disk" :
	                                            NULL;
	if (wrong)
		return ws_err_set(err, WS_EUSAGE, "{stage} %s", wrong);
	if (o->flush != WS_FLUSH_LAST || o->pause != WS_PAUSE_ABORT)
		return ws_err_set(err, WS_EUSAGE,
		                  "{stage} takes no {flush} and {pause}: they belong to wsync-ctl "
		                  "complete");
	if (o->verify == WS_VERIFY_HASH)
		return ws_err_set(err, WS_EUSAGE,
		                  "{stage} takes no {verify} hash: nothing is loaded yet, so give "
		                  "it to wsync-ctl complete");
	if (o->state_dir || o->dry_run)
		return 0;
	ws_err_set(err, WS_EUSAGE, "{stage} needs a state directory: what was sent can only be "
	           "completed with its record");
	return ws_err_hint(err, "{state_dir} names a directory that this user can write");
}

/* {complete} sends nothing. */
static int check_complete(const struct ws_push_opts *o, struct ws_err *err)
{
	const bool sends = o->stage || o->write_dir || o->senders || o->dry_run || o->disk_dir ||
	                   o->backend != WS_BACKEND_AUTO || o->protocol != WS_PROTOCOL_AUTO;
	if (sends || !o->state_dir || o->pause == WS_PAUSE_NONE)
		return ws_err_set(err, WS_EUSAGE, "a completion needs {state_dir} and {pause}, and "
		                  "takes no options about sending");
	return 0;
}

enum { ROUND_MOST = 1024 }; /* bytes */

/* What servers are told, and what senders tell each other. */
static int check_texts(const struct ws_push_opts *o, struct ws_err *err)
{
	if (o->group_name && !*o->group_name)
		return ws_err_set(err, WS_EUSAGE, "{group_name}: the name is empty");
	if (ws_endpoint_check_version(o->weight_version, err) ||
	    ws_check_label(o->group_name, "{group_name}", WS_GROUP_NAME_MAX, err) ||
	    ws_check_label(o->round, "{round}", ROUND_MOST, err) ||
	    ws_check_utf8(o->master_address, "{master_address}", err) ||
	    ws_check_utf8(o->disk_path, "{disk_path}", err))
		return -1;
	return o->disk_path ? 0 : ws_check_utf8(o->disk_dir, "{disk_dir}", err);
}

static int check_opts(const struct ws_push_opts *o, struct ws_err *err)
{
	if ((o->stage && check_stage(o, err)) || (o->complete && check_complete(o, err)))
		return -1;
	if (o->write_dir && check_write(o, err))
		return -1;
	if (o->n_endpoints == 0 && !o->dry_run && !o->write_dir && !is_follower(o))
		return ws_err_set(err, WS_EUSAGE, "no endpoint to push to");
	if (check_texts(o, err))
		return -1;
	if ((o->nccl_library || o->nccl_from) && o->backend != WS_BACKEND_NCCL)
		return ws_err_set(err, WS_EUSAGE,
		                  "{nccl_library} and {nccl_from} are for {backend} nccl");
	if ((o->backend == WS_BACKEND_TENSOR || o->backend == WS_BACKEND_IPC) &&
	    (o->protocol != WS_PROTOCOL_AUTO || o->format == WS_PUSH_FORMAT_NONE))
		return ws_err_set(err, WS_EUSAGE,
		                  "{backend} %s has a protocol of its own, and sends flattened "
		                  "buckets only",
		                  o->backend == WS_BACKEND_IPC ? "ipc" : "tensor");
	if ((o->gpu || o->gpu_uuid) && o->backend != WS_BACKEND_NCCL &&
	    o->backend != WS_BACKEND_IPC)
		return ws_err_set(err, WS_EUSAGE,
		                  "{gpu} is for {backend} nccl or ipc: no other sends from a GPU");
	if (o->ipc_by_ordinal && o->backend != WS_BACKEND_IPC)
		return ws_err_set(err, WS_EUSAGE, "{ipc_by_ordinal} is for {backend} ipc");
	if (o->require & WS_REQUIRE_BYTES && o->verify != WS_VERIFY_HASH)
		return ws_err_set(err, WS_EUSAGE, "{require} bytes needs {verify} hash");
	if (o->require & WS_REQUIRE_VALUES && o->transform && o->transform->trust_values)
		return ws_err_set(err, WS_EUSAGE,
		                  "{require} values and {trust_values} contradict");
	if (o->require & WS_REQUIRE_NAMES && o->verify == WS_VERIFY_NONE)
		return ws_err_set(err, WS_EUSAGE, "{require} names and {verify} none contradict");
	if (check_disk(o, err))
		return -1;
	if (o->nccl_library && o->nccl_from)
		return ws_err_set(err, WS_EUSAGE,
		                  "{nccl_library} and {nccl_from} name a library each: give one");
	const char *remedy = "",
		   *why = ws_push_refuses(NULL, o->pause, o->flush, true, false, &remedy);
	if (why) {
		ws_err_set(err, WS_EUSAGE, "%s", why);
		return ws_err_hint(err, "%s", remedy);
	}
	size_t first, again;
	if (ws_endpoint_find_twice(o->endpoints, o->n_endpoints, &first, &again, err))
		return -1;
	return check_senders(o, err);
}

/* Records the version of the local NCCL, to compare it with those of the endpoints. */
static int note_nccl(struct ws_push *p, struct ws_err *err)
{
	const struct ws_nccl_opts opts = { .library = p->link.gpu.nccl };
	struct ws_nccl *nccl = NULL;
	if (p->opts.backend != WS_BACKEND_NCCL)
		return 0;
	if (ws_nccl_open(&opts, &nccl, err))
		return -1;
	snprintf(p->link.nccl_version, sizeof p->link.nccl_version, "%s",
	         ws_nccl_version_text(nccl));
	ws_nccl_close(nccl);
	return 0;
}

/* Decides whether the GPU that sends computes the transforms. */
static int choose_maker(struct ws_push *p, struct ws_err *err)
{
	const struct ws_push_opts *o = &p->opts;
	const bool must = o->transform_on == WS_TRANSFORM_ON_GPU,
		   can = p->link.transport->makes || p->protocol->makes;
	if (must && !can)
		return ws_err_set(err, WS_EUSAGE,
		                  "{transform_on} gpu: the data plane %s sends from no GPU",
		                  p->link.transport->name);
	p->link.gpu.compute = can && o->transform_on != WS_TRANSFORM_ON_CPU && o->transform &&
	                      ws_transform_wanted(o->transform);
	p->link.gpu.must_compute = must;
	return 0;
}

static void warn_of_gpu(void *push, const char *text)
{
	push_warn(push, NULL, "%s", text);
}

/* Checks GPU, libraries and hosts, before the first request. */
static int check_transport(struct ws_push *p, struct ws_err *err)
{
	static const int64_t ASKING_NS = 30 * WS_NS_PER_S;
	p->link.gpu = (struct ws_transport_gpu){ .nccl = p->opts.nccl_library,
		                                 .nccl_set = p->opts.nccl_settings,
		                                 .uuid = p->opts.gpu_uuid,
		                                 .device = (int)p->opts.gpu,
		                                 .warn = warn_of_gpu, .warn_ctx = p };
	if (choose_maker(p, err))
		return -1;
	if (!p->link.transport->check)
		return 0;
	if (p->opts.nccl_from) {
		p->link.nccl_path = malloc(WS_NCCL_PATH_MAX);
		if (!p->link.nccl_path)
			return ws_oom(err);
		if (ws_nccl_find(p->opts.nccl_from, ws_deadline_in(ASKING_NS), p->opts.cancel,
		                 p->link.nccl_path, err))
			return -1;
		p->link.gpu.nccl = p->link.nccl_path;
	}
	if (push_ipc_check_hosts(p, err))
		return -1;
	if (p->link.transport->check(&p->link.gpu, err) == 0)
		return note_nccl(p, err);
	if (err && !err->hint[0])
		ws_err_hint(err,
		            "{backend} gloo needs no GPU here and feeds servers with GPUs too");
	return -1;
}

int ws_push_open(const struct ws_push_opts *opts, struct ws_push **out, struct ws_err *err)
{
	if (check_opts(opts, err))
		return -1;
	struct ws_push *p = calloc(1, sizeof *p);
	if (!p)
		return ws_oom(err);
	const struct ws_client_opts copts = { .api_key = opts->api_key, .ca_file = opts->ca_file,
		                              .connect_ns = opts->connect_ns,
		                              .log = opts->log, .trace = opts->trace };
	if (take_opts(p, opts, err) || check_transport(p, err) ||
	    ws_client_open(&copts, &p->http, err) || push_watchdog_open(p, err) ||
	    push_guard_open(p, err)) {
		ws_push_close(p);
		return -1;
	}
	*out = p;
	return 0;
}

/* The servers of a staged update stay in the group until it is completed. */
static void close_our_side(struct ws_push *p)
{
	bool *grouped = calloc(p->opts.n_endpoints, sizeof *grouped);
	for (size_t i = 0; grouped && i < p->opts.n_endpoints; i++)
		grouped[i] = p->to.endpoints[i].grouped;
	ws_group_forget(p->link.group);
	push_drop_group(p);
	for (size_t i = 0; grouped && i < p->opts.n_endpoints; i++)
		p->to.endpoints[i].grouped = grouped[i];
	free(grouped);
}

void ws_push_finish(struct ws_push *p, struct ws_ev_end *result)
{
	if (!p->link.group)
		return;
	const int64_t start = ws_now_ns();
	p->run.phase = WS_PHASE_DESTROY;
	p->run.phase_since = start;
	push_guard_watch(p, true);
	push_trace_leave(p);
	if (p->recovery.stage == WS_STAGE_DONE)
		close_our_side(p);
	else
		push_end_group(p);
	push_trace_left(p);
	push_guard_watch(p, false);
	if (!result)
		return;
	result->ns[WS_PHASE_DESTROY] += ws_now_ns() - start;
	result->total_ns += ws_now_ns() - start;
}

void ws_push_set_deadline(struct ws_push *p, ws_deadline until)
{
	p->deadline = until;
}

int ws_push_reopen(struct ws_push *old, const struct ws_push_opts *opts, struct ws_push **out,
                   struct ws_err *err)
{
	struct ws_push *new = NULL;
	if (ws_push_open(opts, &new, err))
		return -1;
	if (old) {
		ws_push_finish(old, NULL);
		new->recovery.left = old->recovery.left;
		old->recovery.left = (struct ws_journal_list){ 0 };
		new->recovery.unrecorded = old->recovery.unrecorded;
		new->pace = old->pace;
	}
	ws_push_close(old);
	*out = new;
	return 0;
}

void ws_push_close(struct ws_push *p)
{
	if (!p)
		return;
	push_forget_run(p);
	ws_push_finish(p, NULL);
	push_guard_watch(p, true);
	push_record_end(p);
	push_staged_forget(p);
	push_guard_close(p);
	ws_watchdog_close(p->watch.watchdog);
	ws_client_close(p->http);
	push_forget_own(p, true);
	free(p->link.nccl_path);
	free(p->turn.round);
	free(p->turn.known_round);
	ws_parts_free(&p->turn.parts);
	push_targets_close(p);
	free(p);
}
