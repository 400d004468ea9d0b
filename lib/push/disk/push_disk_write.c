/* SPDX-License-Identifier: Apache-2.0 */
/* push_disk_write.c - writes the plan as a checkpoint that servers load, and can start from.
 *
 *   model-0000i-of-0000n.safetensors   the buckets
 *   model.safetensors.index.json       if there are several
 *   config.json                        the source's, with the quantization of the written weights
 *   tokenizer.json, ...                the small files beside the source's config.json, without
 *                                      weights */
#include "push_disk.h"

#include "checkpoint.h"
#include "wsync/tool/config.h"
#include "file.h"
#include "name_index.h"
#include "plan_files.h"
#include "transform_core.h"
#include "wsync/tool/str.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SMALL_FILE = 64 << 20, SMALL_FILES = 256, CONFIG_MAX = 64 << 20 };
static const int64_t TICK_NS = 100 * WS_NS_PER_MS;

/* ---- weights ---- */

/* A ws_plan_files_tick. */
static int tick(void *ctx, uint64_t bytes, struct ws_err *err)
{
	struct ws_push *p = ctx;
	const int64_t now = ws_now_ns();
	p->run.posted += bytes;
	if (ws_cancelled(p->opts.cancel))
		return ws_err_set(err, WS_ECANCELLED, "cancelled while the checkpoint was written");
	if (ws_deadline_passed(p->run.until))
		return ws_err_set(err, WS_ETIMEOUT,
		                  "the deadline passed while the checkpoint was written");
	if (now - push_disk_of(p)->told_ns < TICK_NS)
		return 0;
	push_disk_of(p)->told_ns = now;
	const struct ws_event ev = {
		.type = WS_EV_PROGRESS,
		.progress = { .phase = WS_PHASE_TRANSFER,
		              .done = p->run.posted,
		              .total = p->from.plan->bytes,
		              .bucket = p->run.bucket,
		              .buckets = p->from.plan->n_buckets,
		              .ns = now - p->run.transfer_since },
	};
	push_emit(p, &ev);
	return 0;
}

static int write_bucket(struct ws_push *p, size_t b, struct ws_err *err)
{
	const int64_t start = ws_now_ns();
	const uint64_t posted = p->run.posted;
	struct push_bucket k = { .b = b };
	p->run.bucket = b;
	if (ws_plan_payloads(p->from.plan, b, &k.payloads, &k.n_payloads, err))
		return -1;
	int rc = p->checks.hashes.work.begun ?
	                 ws_plan_payloads_watch(k.payloads, p->checks.hashes.values, err) :
	                 0;
	if (rc == 0)
		rc = ws_plan_file_write(p->from.plan, b, k.payloads, k.n_payloads,
		                        push_disk_of(p)->store.tmp, tick, p, err);
	ws_plan_payloads_free(k.payloads, k.n_payloads);
	push_trace_posted(p, "disk", b, start, p->run.posted - posted);
	if (rc == 0) {
		const struct push_moved m = { .over = true, .ns = ws_now_ns() - start,
			                      .wire_ns = ws_now_ns() - start };
		push_moved_emit(p, &k, &m);
	}
	return rc;
}

static int trace_bucket(struct ws_push *p, size_t b, struct ws_err *err)
{
	const uint64_t span = push_trace_bucket(p, b, p->from.plan->n_buckets);
	const int rc = write_bucket(p, b, err);
	push_trace_bucket_end(p, span, p->from.plan->buckets[b].bytes, rc, err);
	return rc;
}

/* ---- config.json ---- */

static bool is_codes(enum ws_dtype dtype)
{
	return dtype == WS_DTYPE_F8_E4M3 || dtype == WS_DTYPE_F8_E5M2;
}

/* Sets *module to the length of the module's name; false: it is not a matrix, or FP8. */
static bool is_dense(const struct ws_plan_tensor *t, size_t *module)
{
	static const char end[] = ".weight";
	const size_t n = strlen(t->name), k = sizeof end - 1;
	if (t->n_dims < 2 || is_codes(t->dtype) || n <= k || strcmp(t->name + n - k, end) != 0)
		return false;
	*module = n - k;
	return true;
}

/* The caller frees the list and its items, also after an error. */
static int list_dense(const struct ws_plan *plan, char ***out, size_t *n, struct ws_err *err)
{
	char **list = calloc(plan->n_tensors + 1, sizeof *list);
	*out = list;
	*n = 0;
	for (size_t i = 0; list && i < plan->n_tensors; i++) {
		size_t len;
		if (!is_dense(&plan->tensors[i], &len))
			continue;
		list[*n] = strndup(plan->tensors[i].name, len);
		if (!list[*n]) /* a missing module would count as FP8 */
			return ws_oom(err);
		++*n;
	}
	return list ? 0 : ws_oom(err);
}

/* Writes the text of config.json with the new quantization. It lists each module not in FP8. */
static int describe_quant(const struct ws_push *p, const char *text, size_t n, const char *what,
                          struct ws_buf *out, struct ws_err *err)
{
	struct ws_quant q = *ws_config_quant(p->from.input.config);
	char **dense = NULL;
	size_t n_dense = 0;
	int rc = *q.method ? list_dense(p->from.plan, &dense, &n_dense, err) : 0;
	q.skip = (const char *const *)dense;
	q.n_skip = n_dense;
	if (rc == 0)
		rc = ws_config_requantize(text, n, what, &q, out, err);
	for (size_t i = 0; i < n_dense; i++)
		free(dense[i]);
	free(dense);
	return rc;
}

/* Also if only tensors that are not sent would be unpacked: the server has the others already. */
static bool is_requantized(const struct ws_push *p)
{
	const struct ws_transform *t = p->from.input.transform;
	return t && (p->opts.transform->quantize != WS_QUANTIZE_NONE || t->unpacks);
}

static char *directory_of(const char *path)
{
	const char *slash = strrchr(path, '/');
	return !slash ? strdup(".") : strndup(path, slash == path ? 1 : (size_t)(slash - path));
}

/* Opens the source's config.json by the rule for the files beside it (copy_file). A file that the
 * user named with {config} may be a link. */
static int open_config(const struct ws_push *p, const char *path, struct ws_err *err)
{
	const char *slash = strrchr(path, '/');
	enum ws_file_place place = WS_FILE_NO_FILE;
	struct ws_file_id id;
	struct ws_err why = WS_ERR_INIT;
	struct stat st;
	if (p->opts.config && strcmp(p->opts.config, path) == 0)
		return ws_file_open(path, &id, err);
	char *where = directory_of(path);
	const int dir = where ? open(where, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
	const int fd = dir < 0 ? -1 :
	               ws_file_open_inside(dir, slash ? slash + 1 : path, CONFIG_MAX, &st, &place,
	                                   &why);
	free(where);
	if (dir >= 0)
		close(dir);
	if (fd >= 0)
		return fd;
	if (place != WS_FILE_OUTSIDE)
		return ws_err_set(err, WS_EINPUT, "%s: cannot be read again", path);
	ws_err_set(err, WS_EINPUT, "%s is a link to a file outside of the source: it is not copied "
	           "into a checkpoint", path);
	return ws_err_hint(err, "put the file itself there, or name it: {config} FILE");
}

static const char synthetic[] = "synthetic:";

int push_disk_check_config(const struct ws_push *p, struct ws_err *err)
{
	const char *path = p->from.input.config ? ws_config_path(p->from.input.config) : synthetic;
	if (strncmp(path, synthetic, sizeof synthetic - 1) == 0)
		return 0;
	const int fd = open_config(p, path, err);
	if (fd >= 0)
		close(fd);
	return fd < 0 ? -1 : 0;
}

/* Reads the source's config.json. A synthetic model has a name and no file. */
static int read_config(const struct ws_push *p, struct ws_buf *text, struct ws_err *err)
{
	const char *path = ws_config_path(p->from.input.config);
	char model[128];
	if (strncmp(path, synthetic, sizeof synthetic - 1) != 0) {
		const int fd = open_config(p, path, err);
		return fd < 0 ? -1 : ws_file_read_fd(fd, path, text, err);
	}
	path += sizeof synthetic - 1;
	snprintf(model, sizeof model, "%.*s", (int)strcspn(path, ":"), path);
	return ws_synthetic_config(model, text, err);
}

static int write_config(const struct ws_push *p, struct ws_err *err)
{
	struct ws_buf text, changed;
	if (!p->from.input.config)
		return 0;
	ws_buf_init(&text, CONFIG_MAX);
	ws_buf_init(&changed, CONFIG_MAX);
	char *path = push_disk_join(push_disk_of(p)->store.tmp, "config.json");
	int rc = path ? read_config(p, &text, err) : ws_oom(err);
	const bool change = rc == 0 && is_requantized(p);
	if (change)
		rc = describe_quant(p, ws_buf_str(&text), text.len,
		                    ws_config_path(p->from.input.config), &changed, err);
	const struct ws_buf *out = change ? &changed : &text;
	if (rc == 0)
		rc = ws_file_make(path, ws_buf_str(out), out->len, err);
	free(path);
	ws_buf_free(&text);
	ws_buf_free(&changed);
	return rc;
}

/* ---- small files ---- */

static bool is_small(const char *name)
{
	static const char *const others[] = {
		".*",
		"*.safetensors",
		"*.safetensors.index.json",
		"*.bin",
		"*.bin.index.json",
		"*.pt",
		"*.pth",
		"*.ckpt",
		"*.gguf",
		"*.h5",
		"*.msgpack",
		"*.onnx",
		"*.npz",
		"*.tmp",
		"config.json",
		"wsync.json",
	};
	for (size_t i = 0; i < sizeof others / sizeof *others; i++)
		if (fnmatch(others[i], name, 0) == 0)
			return false;
	return true;
}

/* wsync.json lists the names of a checkpoint's files, so that it can be removed. JSON cannot hold
 * every name. */
static bool has_plain_name(struct ws_push *p, const char *name)
{
	struct ws_err why = WS_ERR_INIT;
	if (ws_check_label(name, "file", NAME_MAX, &why) == 0)
		return true;
	push_warn(p, NULL, "not copied: %s", why.msg);
	return false;
}

/* Whom the source's file or the umask keeps from reading or writing is kept from it here too. */
static int make_like(const struct stat *like, const char *to, const struct ws_buf *bytes,
                     struct ws_err *err)
{
	const int fd = ws_file_create(to, like->st_mode & 0777, err);
	if (fd < 0)
		return -1;
	if (ws_file_write(fd, to, ws_buf_str(bytes), bytes->len, err)) {
		close(fd);
		return -1;
	}
	return ws_file_finish(fd, to, err);
}

/* The source may be somebody else's, and what is written is often shown to others: a link to
 * another file of this user must not bring its contents there. */
static int copy_file(struct ws_push *p, int dir, const char *name, const char *to,
                     struct ws_err *err)
{
	struct ws_err why = WS_ERR_INIT;
	enum ws_file_place place;
	struct ws_buf bytes;
	struct stat st;
	const int fd = ws_file_open_inside(dir, name, SMALL_FILE, &st, &place, &why);
	if (place == WS_FILE_OUTSIDE)
		push_warn(p, NULL, "%s is not copied: it is a link to a file outside of the source",
		          ws_quote(name).text);
	if (fd < 0 && why.code && err)
		*err = why;
	if (fd < 0)
		return why.code ? -1 : 0;
	ws_buf_init(&bytes, SMALL_FILE);
	int rc = ws_file_read_fd(fd, name, &bytes, err);
	if (rc == 0)
		rc = make_like(&st, to, &bytes, err);
	ws_buf_free(&bytes);
	return rc;
}

/* What it says of the source is not true of other formats; config.json says theirs. */
static bool tells_quant(const char *name)
{
	return strcmp(name, "hf_quant_config.json") == 0 ||
	       strcmp(name, "quant_model_description.json") == 0;
}

static int copy_small(struct ws_push *p, const char *dir, struct ws_err *err)
{
	DIR *d = opendir(dir);
	int rc = d ? 0 : ws_err_errno(err, "read %s", dir);
	size_t n = 0;
	for (const struct dirent *e; rc == 0 && n < SMALL_FILES && (e = readdir(d));) {
		if (!is_small(e->d_name) || !has_plain_name(p, e->d_name) ||
		    (is_requantized(p) && tells_quant(e->d_name)))
			continue;
		char *to = push_disk_join(push_disk_of(p)->store.tmp, e->d_name);
		rc = to ? copy_file(p, dirfd(d), e->d_name, to, err) : ws_oom(err);
		free(to);
		n++;
	}
	if (d)
		closedir(d);
	return rc;
}

/* Copies the small files beside the source's config.json. */
static int copy_others(struct ws_push *p, struct ws_err *err)
{
	const char *path = p->from.input.config ? ws_config_path(p->from.input.config) : synthetic;
	if (strncmp(path, synthetic, sizeof synthetic - 1) == 0)
		return 0;
	char *dir = directory_of(path);
	const int rc = dir ? copy_small(p, dir, err) : ws_oom(err);
	free(dir);
	return rc;
}

/* ---- all of it ---- */

int push_disk_write(struct ws_push *p, struct ws_err *err)
{
	struct push_disk *d = push_disk_of(p);
	const struct ws_disk_note note = {
		.digest = p->from.plan->digest,
		.source = p->from.name,
		.weight_version = p->from.weight_version,
		.urls = p->opts.endpoints,
		.n_urls = p->opts.n_endpoints,
	};
	p->run.transfer_since = ws_now_ns();
	if (push_hash_begin(p, err) || ws_disk_begin(&d->store, d->dir, err) ||
	    ws_disk_room(d->dir, d->bytes, err))
		return -1;
	for (size_t b = 0; b < p->from.plan->n_buckets; b++)
		if (trace_bucket(p, b, err))
			return -1;
	if (push_hash_wait(p, p->run.until, err))
		return -1; /* hashes read the source, whose last check follows */
	if (push_check_sources(p, err) || ws_plan_index_write(p->from.plan, d->store.tmp, err) ||
	    write_config(p, err) || copy_others(p, err))
		return -1;
	return p->opts.write_dir ? ws_disk_publish_as(&d->store, &note, d->name, err) :
	                           ws_disk_publish(&d->store, &note, &d->name, err);
}
