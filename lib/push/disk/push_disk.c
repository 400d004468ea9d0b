/* SPDX-License-Identifier: Apache-2.0 */
/* push_disk.c - the servers load a checkpoint that they can read.
 *
 *   POST /update_weights_from_disk
 *   {"model_path","load_format","flush_cache","abort_all_requests"}, and with it
 *   "recapture_cuda_graph":true if a server is quantized: its parameters may move then
 *   answered by {"success","message","num_paused_requests"}
 *
 *   vLLM: POST /collective_rpc {"method":"reload_weights","kwargs":{"weights_path"}}
 *   answered by {"results":[null, one per worker]}. It empties the layers before it opens the
 *   path: after any failure it has no weights, and dies of the next prompt (vLLM 0.32).
 *
 * Without --disk-dir this is the source, if servers load from it exactly what would be sent. With
 * --disk-dir a checkpoint is written there while the servers still work (push_disk_write.c). Once
 * loaded, it is the server's model. So it stays on the disk until the same endpoints have loaded a
 * newer one. A checkpoint that no endpoint was asked to load is removed at once.
 *
 * {stage} writes the checkpoint and ends; {complete} has it loaded, as the record says.
 *
 * Only the first rank of a server answers. A load cannot be stopped: after a timeout the server may
 * still be loading. */
#include "push_disk.h"

#include "disk_files.h"

#include "name_index.h"
#include "plan_files.h"
#include "wsync/tool/hub.h"
#include "wsync/tool/memory.h"
#include "wsync/tool/str.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

char *push_disk_join(const char *dir, const char *name)
{
	char *path;
	const size_t n = strlen(dir);
	return asprintf(&path, "%s%s%s", dir, n && dir[n - 1] == '/' ? "" : "/", name) < 0 ? NULL :
	                                                                                     path;
}

void push_disk_forget(struct ws_push *p, bool ended)
{
	struct push_disk *d = push_disk_of(p);
	if (!d || (p->opts.stage && !ended)) /* the record of a staged update needs the paths */
		return;
	ws_disk_end(&d->store);
	free(d->dir);
	free(d->path);
	free(d->model_path);
	free(d->name);
	free(d);
	p->own = NULL;
}

/* ---- what is loaded ---- */

/* Returns the name of a tensor that is sent in another form than the source has. NULL: every tensor
 * is sent as it is. */
static const char *find_changed(const struct ws_push *p)
{
	for (size_t i = 0; i < p->from.plan->n_tensors; i++) {
		const struct ws_plan_tensor *t = &p->from.plan->tensors[i];
		if (t->op != WS_OP_COPY || strcmp(t->name, t->item->from->name) != 0)
			return t->name;
	}
	return NULL;
}

/* SGLang's loader takes *.safetensors, without names that begin with a dot. */
static bool is_loaded(const char *name)
{
	const size_t n = strlen(name), k = strlen(".safetensors");
	return name[0] != '.' && n >= k && strcmp(name + n - k, ".safetensors") == 0;
}

static const char *file_of(const char *path)
{
	const char *slash = strrchr(path, '/');
	return slash ? slash + 1 : path;
}

static bool is_pushed(const struct ws_source *s, const char *name)
{
	for (size_t i = 0; i < ws_source_file_count(s); i++)
		if (strcmp(file_of(ws_source_file_name(s, i)), name) == 0)
			return true;
	return false;
}

/* With model.safetensors.index.json SGLang skips files that the index does not name. The exception
 * is mtp.safetensors: models of the Glm4Moe architectures load it without an entry in the index
 * (SGLang of 2026). */
static bool is_skipped(const struct ws_push *p, const char *name)
{
	const char *arch =
		p->from.input.config ? ws_config_architecture(p->from.input.config) : "Glm";
	return strcmp(name, "mtp.safetensors") != 0 || strncmp(arch, "Glm", 3) != 0;
}

/* The source's directory: of hf:ORG/NAME that of its files, because the cache may change. NULL: out
 * of memory. */
static char *source_directory(const struct ws_push *p)
{
	const char *path = p->from.source->paths[0];
	const char *file = ws_hub_is(path) ? ws_source_file_name(p->from.input.sources[0], 0) :
	                                     NULL;
	const char *slash = file ? strrchr(file, '/') : NULL;
	return slash ? strndup(file, (size_t)(slash - file)) : strdup(path);
}

/* Returns NULL if servers load the files of the source and no others; else why not, perhaps in
 * dst. */
static const char *compare_files(const struct ws_push *p, const char *path, char *dst, size_t n)
{
	const struct ws_source *s = p->from.input.sources[0];
	for (size_t i = 0; i < ws_source_file_count(s); i++) {
		const char *name = file_of(ws_source_file_name(s, i));
		if (!is_loaded(name)) {
			snprintf(dst, n,
			         "they do not load %.255s: it has another name than *.safetensors",
			         name);
			return dst;
		}
	}
	char *index = push_disk_join(path, "model.safetensors.index.json");
	const bool indexed = index && access(index, F_OK) == 0;
	free(index);
	DIR *dir = opendir(path);
	if (!dir)
		return "its files cannot be listed";
	const char *why = NULL;
	for (const struct dirent *e; !why && (e = readdir(dir));) {
		if (!is_loaded(e->d_name) || is_pushed(s, e->d_name) ||
		    (indexed && is_skipped(p, e->d_name)))
			continue;
		const struct ws_quoted name = ws_quote(e->d_name);
		snprintf(dst, n, "they would also load %.255s, which is not pushed", name.text);
		why = dst;
	}
	closedir(dir);
	return why;
}

/* Why servers cannot load the source's directory, path, itself; NULL: they can. */
static const char *why_not(const struct ws_push *p, const char *path, char *dst, size_t n)
{
	const char *changed = find_changed(p);
	struct stat st;
	if (p->from.input.transform)
		return "its weights are changed on their way";
	if (p->opts.n_include || p->opts.n_exclude)
		return "only a part of it is to be loaded";
	if (p->opts.sharded_tp)
		return "it was saved in shards";
	if (p->from.source->n_paths != 1)
		return "several sources are one checkpoint only here";
	if (strncmp(path, "synthetic:", 10) == 0)
		return "it is synthetic";
	if (ws_memory_path(path))
		return "it is memory of a GPU";
	if (stat(path, &st) || !S_ISDIR(st.st_mode))
		return "it is a file, and servers load directories";
	if (!changed)
		return compare_files(p, path, dst, n);
	snprintf(dst, n, "%.400s is not in it under this name and in this form", changed);
	return dst;
}

static int plan_directory(struct ws_push *p, struct push_disk *d, const char *path,
                          struct ws_err *err)
{
	char text[512];
	const char *why = why_not(p, path, text, sizeof text);
	if (why) {
		ws_err_set(err, WS_EUSAGE, "servers cannot load %.300s as it lies there: %s",
		           p->from.name, why);
		return ws_err_hint(
			err,
			"{disk_dir} DIR writes a checkpoint there first, which servers can read");
	}
	/* Resolve links: the checked directory is then the loaded one, even if a link changes
	 * meanwhile. */
	d->path = realpath(path, NULL);
	if (!d->path)
		return ws_err_errno(err, "%s", path);
	d->model_path = strdup(p->opts.disk_path ? p->opts.disk_path : d->path);
	return d->model_path ? ws_check_utf8(d->model_path, "the source", err) : ws_oom(err);
}

static int plan_source(struct ws_push *p, struct push_disk *d, struct ws_err *err)
{
	char *path = source_directory(p);
	const int rc = path ? plan_directory(p, d, path, err) : ws_oom(err);
	free(path);
	return rc;
}

char *push_disk_absolute(const char *path, const char *what, struct ws_err *err)
{
	char *found = realpath(path, NULL), *plain = NULL, *where = NULL;
	if (found)
		return found;
	if (errno == ENOENT && (plain = strdup(path))) {
		for (size_t n = strlen(plain); n > 1 && plain[n - 1] == '/'; n--)
			plain[n - 1] = 0;
		char *slash = strrchr(plain, '/');
		if (slash)
			*slash = 0;
		where = realpath(!slash ? "." : slash == plain ? "/" : plain, NULL);
		found = where ? push_disk_join(where, slash ? slash + 1 : plain) : NULL;
	}
	if (!found)
		ws_err_errno(err, "{%s} %s", what, path);
	free(plain);
	free(where);
	return found;
}

int push_disk_split(struct push_disk *d, struct ws_err *err)
{
	const char *slash = strrchr(d->path, '/');
	d->name = strdup(slash + 1);
	d->dir = slash == d->path ? strdup("/") : strndup(d->path, (size_t)(slash - d->path));
	return d->name && d->dir ? 0 : ws_oom(err);
}

static int plan_written(struct ws_push *p, struct push_disk *d, struct ws_err *err)
{
	const struct ws_disk_note note = { .digest = p->from.plan->digest,
		                           .weight_version = p->from.weight_version };
	char name[128];
	d->dir = push_disk_absolute(p->opts.disk_dir, "disk_dir", err);
	if (!d->dir)
		return -1;
	d->path = push_disk_join(d->dir, ws_disk_name(&note, name, sizeof name));
	d->bytes = ws_plan_files_bytes(p->from.plan);
	if (!d->path)
		return ws_oom(err);
	if (push_disk_check_config(p, err) ||
	    (!p->opts.disk_path && ws_check_utf8(d->path, "{disk_dir}", err)))
		return -1;
	return ws_disk_room(d->dir, d->bytes, err);
}

static int plan_disk(struct ws_push *p, struct ws_err *err)
{
	push_disk_forget(p, true);
	struct push_disk *d = push_own(p, sizeof *d, err);
	if (!d)
		return -1;
	d->store = (struct ws_disk)WS_DISK_INIT;
	d->load_format = p->opts.format == WS_PUSH_FORMAT_SAFETENSORS ? "safetensors" : "auto";
	return p->opts.disk_dir ? plan_written(p, d, err) : plan_source(p, d, err);
}

static void tell_plan(const struct ws_push *p, struct ws_ev_plan *plan)
{
	plan->load_format = push_disk_of(p)->load_format;
	plan->disk_path = push_disk_of(p)->path;
	plan->disk_bytes = push_disk_of(p)->bytes;
}

static bool has_copy(const struct ws_push *p)
{
	return push_disk_of(p) && push_disk_of(p)->name;
}

static int prepare(struct ws_push *p, struct ws_err *err)
{
	struct push_disk *d = push_disk_of(p);
	if (!d->dir)
		return 0;
	if (push_disk_write(p, err))
		return -1;
	free(d->path);
	d->path = push_disk_join(d->dir, d->name);
	d->model_path = push_disk_join(p->opts.disk_path ? p->opts.disk_path : d->dir, d->name);
	if (!d->path || !d->model_path)
		return ws_oom(err);
	return ws_disk_files_id(d->path, &d->id, err);
}

/* SGLang then serves the model under its path (tokenizer_manager.py, 0.4.10 to 0.5.23); vLLM keeps
 * the name. */
static void warn_of_name(struct ws_push *p, size_t i)
{
	const struct ws_endpoint_info *info = &p->to.infos[i];
	if (!push_to_vllm(p, i) && info->served_model[0] &&
	    strcmp(info->served_model, info->model_path) != 0)
		push_warn(p, p->to.endpoints[i].url,
		          "it serves this model as '%s' until now, and as the path of the "
		          "checkpoint afterwards: clients that send the name may be refused",
		          info->served_model);
}

/* One request is sent to all. */
static int check_alike(const struct ws_push *p, struct ws_err *err)
{
	for (size_t i = 1; i < p->opts.n_endpoints; i++) {
		if (push_to_vllm(p, i) == push_to_vllm(p, 0))
			continue;
		ws_err_set(err, WS_EREFUSED, "%s and %s are servers of different kinds",
		           p->to.endpoints[0].url, p->to.endpoints[i].url);
		return ws_err_hint(err, "push to servers of one kind at a time");
	}
	return 0;
}

/* The servers' loaders rearrange some weights, and cannot load into them again. */
static int legal(struct ws_push *p, struct ws_err *err)
{
	if (check_alike(p, err))
		return -1;
	for (size_t i = 0; i < p->opts.n_endpoints; i++)
		if (push_check_partial(p, i, err))
			return -1;
	if (p->from.input.packed_scales) {
		ws_err_set(err, WS_EUSAGE, "{packed_scales}: no server loads packed scales from a "
		           "checkpoint");
		return ws_err_hint(err, "send it: {backend} nccl or gloo");
	}
	const struct ws_config *config = p->from.server_config;
	const bool powers = config && strcmp(ws_config_quant(config)->scale_fmt, "ue8m0") == 0;
	for (size_t i = 0; i < p->opts.n_endpoints; i++) {
		const bool packed = strcmp(p->to.infos[i].quantization, "compressed-tensors") == 0;
		if (packed || powers)
			push_warn(p, p->to.endpoints[i].url,
			          "servers are known that load %s from disk wrongly once "
			          "they run: check its answers afterwards",
			          packed ? "compressed-tensors" :
			                   "FP8 whose scales are powers of two");
		warn_of_name(p, i);
	}
	return 0;
}

/* ---- the request ---- */

static bool any_quantized(const struct ws_push *p)
{
	for (size_t i = 0; i < p->opts.n_endpoints; i++)
		if (p->to.infos[i].quantization[0])
			return true;
	return false;
}

static void write_reload(const struct ws_push *p, struct ws_jw *w)
{
	ws_jw_str(w, "method", "reload_weights");
	ws_jw_object(w, "kwargs");
	ws_jw_str(w, "weights_path", push_disk_of(p)->model_path);
	ws_jw_end_object(w);
}

static void write_body(const struct ws_push *p, struct ws_jw *w)
{
	if (push_to_vllm(p, 0)) {
		write_reload(p, w);
		return;
	}
	ws_jw_str(w, "model_path", push_disk_of(p)->model_path);
	/* a server's default may load no file */
	ws_jw_str(w, "load_format", push_disk_of(p)->load_format);
	ws_jw_bool(w, "flush_cache", push_flush_when(p) != WS_FLUSH_NEVER);
	ws_jw_bool(w, "abort_all_requests", false);
	if (any_quantized(p))
		ws_jw_bool(w, "recapture_cuda_graph", true);
}

/* ---- answers ---- */

static bool begins(const char *text, const char *with)
{
	return strncmp(text, with, strlen(with)) == 0;
}

/* With several data-parallel schedulers, one message joins the messages of all. */
static bool found_nothing(const char *said)
{
	return begins(said, "Failed to get weights iterator") && !strstr(said, "Succeeded") &&
	       !strstr(said, "Failed to update");
}

/* True if the server refused before it changed anything. After "Rolling back to original weights"
 * the weights are unknown: servers read the originals from the new path. */
static bool is_unchanged(const struct ws_err *e, const struct ws_json *answer, const char *said)
{
	if (e->code != WS_EREFUSED)
		return false;
	if (e->native == 401 || e->native == 403 || e->native == 404 || e->native == 405 ||
	    e->native == 422)
		return true;
	return e->native == 400 &&
	       (found_nothing(said) || begins(said, "Failed to get model loader") ||
	        strcmp(ws_json_get_string(answer, "object", ""), "error") == 0);
}

static void explain(const struct ws_push *p, struct ws_err *e, const char *said)
{
	const char *path = push_disk_of(p)->model_path;
	if (e->code == WS_EREFUSED && found_nothing(said)) {
		ws_err_wrap(e, "the server finds no checkpoint at %.300s", path);
		ws_err_hint(e, "every node of the server must be able to read it; where it has "
		               "another name there, say so with {disk_path}");
	} else if (e->code == WS_ETIMEOUT) {
		ws_err_wrap(e, "the server may still be loading %.300s", path);
		ws_err_hint(e, "a load cannot be stopped: push again when the server answers, and "
		               "give it longer with {bucket_ns}");
	} else if (e->code == WS_EREACH) {
		ws_err_wrap(e, "while the server was loading %.300s", path);
	}
}

static void note_paused(struct push_request *r, size_t i)
{
	const int64_t n = ws_json_get_int(r->calls[i].root, "num_paused_requests", 0);
	const size_t used = strlen(r->messages[i]);
	if (n > 0)
		snprintf(r->messages[i] + used, sizeof r->messages[i] - used,
		         " (%lld requests were paused)", (long long)n);
}

/* A worker that has loaded answers null. */
static void check_workers(const struct ws_endpoint_info *info, const struct ws_json *answer,
                          struct ws_err *said)
{
	const struct ws_json *results = ws_json_get(answer, "results");
	bool all = info->dp_size > 1 || ws_json_count(results) == info->world_size;
	for (const struct ws_json *r = ws_json_first(results); r; r = ws_json_next(r))
		all = all && ws_json_type(r) == WS_JSON_NULL;
	if (said->code || all)
		return;
	ws_err_set(said, WS_EREFUSED, "POST /collective_rpc: the reply does not say that every "
	           "worker has loaded");
	ws_err_where(said, NULL, info->url);
}

static void report_answer(struct ws_push *p, struct push_request *r, size_t i)
{
	struct push_endpoint *e = &p->to.endpoints[i];
	struct ws_err *said = &p->to.errs[i];
	const struct ws_json *answer = r->calls[i].root;
	/* not truncated */
	const char *words = ws_json_get_string(answer, "message", r->messages[i]);
	/* SGLang 0.5.22 and 0.5.23 replace the failure of a draft model by that of the flush. */
	if (r->calls[i].unflushed && p->to.infos[i].has_draft)
		ws_err_set(said, WS_EREFUSED,
		           "%s does not report whether its draft model was loaded: \"%s\"",
		           e->url, words);
	if (push_to_vllm(p, i))
		check_workers(&p->to.infos[i], answer, said);
	if (said->code == WS_OK) {
		push_target_event(&e->weights, PUSH_ACKED_LAST);
		note_paused(r, i);
	} else if (push_request_unloaded(p, r, i) || is_unchanged(said, answer, words)) {
		push_target_event(&e->weights, PUSH_REFUSED_UNSENT);
	} else if (e->weights.state == WS_PARTIAL && said->code == WS_ECANCELLED) {
		push_warn(p, e->url, "it may still be loading %s: that cannot be stopped",
		          push_disk_of(p)->model_path);
	}
	if (push_to_vllm(p, i))
		push_vllm_hint(p, i, said);
	explain(p, said, words);
}

/* Sets *err to the error of the first endpoint that failed, unless the push was cancelled. */
static void choose_cause(const struct ws_push *p, struct ws_err *err)
{
	for (size_t i = 0; err && err->code != WS_ECANCELLED && i < p->opts.n_endpoints; i++)
		if (p->to.errs[i].code != WS_OK) {
			*err = p->to.errs[i];
			return;
		}
}

static void tell_loaded(struct ws_push *p, int64_t ns)
{
	const struct push_bucket k = { .flush = push_flush_when(p) != WS_FLUSH_NEVER };
	const struct push_moved m = { .over = true, .ns = ns };
	/* else each bucket was reported when it was written */
	if (!push_disk_of(p)->dir && !p->opts.complete)
		push_moved_emit(p, &k, &m);
}

static int load(struct ws_push *p, struct ws_err *err)
{
	const ws_deadline until = ws_deadline_min(p->run.until, ws_deadline_in(p->opts.bucket_ns));
	const int64_t start = ws_now_ns();
	struct push_request r;
	int rc = push_request_open(
		p, &r, push_to_vllm(p, 0) ? "/collective_rpc" : "/update_weights_from_disk", err);
	if (rc == 0) {
		write_body(p, &r.w);
		r.changes = true;
		push_disk_of(p)->asked = true;
		rc = push_request_ask(p, &r, NULL, until, p->opts.cancel, err);
		for (size_t i = 0; i < p->opts.n_endpoints; i++) {
			report_answer(p, &r, i);
			if (p->to.errs[i].code != WS_OK)
				rc = -1;
		}
		push_request_note(p, &r);
		if (rc)
			choose_cause(p, err);
		else
			tell_loaded(p, ws_now_ns() - start);
	}
	push_request_close(p, &r);
	push_trace_apply(p, 0, start);
	push_applied(p, ws_now_ns() - start);
	return rc;
}

static bool holds_parts(const struct push_endpoint *e)
{
	return e->holds_parts;
}

/* Does any server not answer? A refusal is an answer. */
static bool any_silent(const struct ws_push *p)
{
	for (size_t i = 0; i < p->opts.n_endpoints; i++)
		if (holds_parts(&p->to.endpoints[i]) && p->to.errs[i].code != WS_OK &&
		    p->to.errs[i].code != WS_EREFUSED)
			return true;
	return false;
}

/* Layers of a vLLM that an earlier update left with some parts are only right after the second
 * load (push_in_step.c). The first one may be refused, because parameters of such layers have lost
 * what loads them ("no attribute 'weight_loader'", 0.32); after that refusal they have it again. */
static int load_first(struct ws_push *p, struct ws_err *err)
{
	const ws_deadline until = ws_deadline_min(p->run.until, ws_deadline_in(p->opts.bucket_ns));
	struct push_request r;
	bool any = false;
	for (size_t i = 0; i < p->opts.n_endpoints; i++)
		any = any || holds_parts(&p->to.endpoints[i]);
	if (!any)
		return 0;
	int rc = push_request_open(p, &r, "/collective_rpc", err);
	if (rc == 0) {
		write_reload(p, &r.w);
		r.changes = true;
		push_disk_of(p)->asked = true;
		rc = push_request_ask(p, &r, holds_parts, until, p->opts.cancel, err);
		push_request_note(p, &r);
		if (rc && err->code == WS_EREFUSED && !any_silent(p)) {
			*err = (struct ws_err)WS_ERR_INIT;
			rc = 0;
		}
	}
	for (size_t i = 0; rc && i < p->opts.n_endpoints; i++)
		if (strcmp(err->endpoint, p->to.endpoints[i].url) == 0)
			push_vllm_hint(p, i, err);
	push_request_close(p, &r);
	return rc;
}

/* A directory with many writers may lose a checkpoint to another push, which prunes it, and get one
 * of the same name. */
static int check_written(struct ws_push *p, const char *path, uint64_t id, struct ws_err *err)
{
	uint64_t now;
	if (!id)
		return 0;
	const int rc = ws_disk_files_id(path, &now, err);
	if (rc == 0 && now == id)
		return 0;
	p->run.commits_void = true;
	if (push_disk_of(p)) /* not yet, before a completion */
		push_disk_of(p)->foreign = true;
	if (rc)
		return ws_err_hint(err, "the checkpoint that was written there is gone: push "
		                        "again");
	ws_err_set(err, WS_EINPUT, "%s: these files are not those that this push has written",
	           path);
	return ws_err_hint(err, "somebody else changes them: give each push a {disk_dir} of its "
	                        "own, and push again");
}

static int transfer(struct ws_push *p, struct ws_err *err)
{
	const struct push_disk *d = push_disk_of(p);
	if (check_written(p, d->path, d->id, err))
		return -1;
	if (push_scope_begin(p, err) || load_first(p, err) || load(p, err) ||
	    push_scope_end(p, err))
		return -1;
	push_alive(p); /* the check may hang: the servers have other weights now */
	return check_written(p, d->path, d->id, err);
}

/* ---- staged checkpoints ---- */

static void add_to_record(const struct ws_push *p, struct ws_journal_staged *out)
{
	const struct push_disk *d = push_disk_of(p);
	if (d->dir && !d->name)
		return; /* not written yet */
	out->model_path = d->model_path;
	out->load_format = d->load_format;
	out->written = d->dir ? d->path : "";
	out->written_id = d->id;
}

/* What the servers load must not change. */
static int check_source(struct ws_push *p, struct ws_err *err)
{
	const struct ws_journal_record *r = &p->recovery.staged->record;
	if (*r->staged.written)
		return check_written(p, r->staged.written, r->staged.written_id, err);
	if (ws_journal_check_source(r, err) == 0)
		return 0;
	p->run.commits_void = true;
	return ws_err_hint(err, "it changed after it was staged: wsync-ctl discard, then stage "
	                        "again");
}

static int check_staged(struct ws_push *p, struct ws_err *err)
{
	const char *written = p->recovery.staged->record.staged.written;
	if (!*written || access(written, F_OK) == 0)
		return check_source(p, err);
	ws_err_errno(err, "open %s", written);
	err->code = WS_EINPUT;
	return ws_err_hint(err, "the staged checkpoint is gone: wsync-ctl discard, then stage "
	                        "again");
}

static int find_checkpoint(struct ws_push *p, const struct ws_journal_record *r,
                           struct ws_err *err)
{
	if (check_staged(p, err))
		return -1;
	push_disk_forget(p, true);
	struct push_disk *d = push_own(p, sizeof *d, err);
	if (!d)
		return -1;
	d->store = (struct ws_disk)WS_DISK_INIT;
	d->load_format = r->staged.load_format;
	p->opts.disk_keep = r->staged.keep;
	d->model_path = strdup(r->staged.model_path);
	d->path = strdup(*r->staged.written ? r->staged.written : r->staged.model_path);
	if (!d->model_path || !d->path)
		return ws_oom(err);
	return *r->staged.written ? push_disk_split(d, err) : 0;
}

static int load_checkpoint(struct ws_push *p, struct ws_err *err)
{
	if (check_staged(p, err))
		return -1;
	struct ws_err changed = WS_ERR_INIT;
	const int rc = transfer(p, err);
	for (size_t i = 0; i < p->opts.n_endpoints; i++)
		if (push_has_all(&p->to.endpoints[i]))
			p->to.endpoints[i].staged = false;
	push_alive(p); /* the check may hang: the servers have other weights now */
	const int differs = check_source(p, &changed);
	if (rc == 0 && differs)
		*err = changed;
	return rc || differs ? -1 : 0;
}

/* ---- afterwards ---- */

static void warn_kept(void *ctx, const struct ws_err *why)
{
	push_warn(ctx, NULL, "an old checkpoint stays: %s", why->msg);
}

static bool nobody_has_it(const struct ws_push *p)
{
	for (size_t i = 0; push_disk_of(p)->asked && i < p->opts.n_endpoints; i++)
		if (p->to.endpoints[i].weights.state != p->to.endpoints[i].weights.before ||
		    p->to.endpoints[i].weights.state == WS_PARTIAL)
			return false;
	return true;
}

static void disk_done(struct ws_push *p, bool ok)
{
	struct push_disk *d = push_disk_of(p);
	struct ws_err why = WS_ERR_INIT;
	if (!d || !d->name || d->foreign || (ok && p->opts.stage) || (!ok && p->opts.complete))
		return; /* the servers have another checkpoint, or may still load this one */
	if (ok)
		ws_disk_prune(d->dir, d->name, p->opts.disk_keep, p->opts.endpoints,
		              p->opts.n_endpoints, warn_kept, p);
	else if (nobody_has_it(p) && ws_disk_remove(d->dir, d->name, &why))
		warn_kept(p, &why);
	else if (!nobody_has_it(p))
		push_warn(p, NULL, "%s stays: endpoints may have loaded a part, or be loading it",
		          d->path);
}

static bool takes(const struct ws_capabilities *can)
{
	return can->from_disk || can->reload;
}

const struct push_protocol push_disk = {
	.name = "disk",
	.routes = "/update_weights_from_disk",
	.takes = takes,
	.groupless = true,
	.any_ranks = true,
	.files = true,
	.legal = legal,
	.planned = plan_disk,
	.tell_plan = tell_plan,
	.has_copy = has_copy,
	.prepare = prepare,
	.transfer = transfer,
	.stages = add_to_record,
	.found = find_checkpoint,
	.load = load_checkpoint,
	.undo = push_scope_undo,
	.done = disk_done,
	.forget = push_disk_forget,
};

const struct ws_transport_ops push_disk_transport = { .name = "disk" };
