/* SPDX-License-Identifier: Apache-2.0 */
/* tensor_source.c - one list of tensors, from many files or from memory that other processes
 * export.
 *
 * Files are read with pread(2), never mapped: a trainer may truncate a checkpoint while it is
 * sent, and a mapping would end in SIGBUS instead of an error. A trainer may also overwrite a
 * file, so the identity of each file is recorded before the first read and compared afterwards. */
#include "wsync/tool/source.h"

#include "checkpoint.h"
#include "file.h"
#include "files.h"
#include "hash.h"
#include "name_index.h"
#include "region.h"
#include "synthetic.h"
#include "wsync/tool/hub.h"

#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
	CHUNK = 256 << 10, /* hashing: fits the second-level cache */
	TRACED = 64 << 10
};

struct part {
	char *name;
	int fd;                /* -1: no file */
	struct ws_file_id id;  /* identity of the file before the first read */
	char *text; /* owns the names of its tensors */
	struct ws_exported *exported; /* NULL: a file */
	size_t first; /* index of the part's first tensor */
};

struct ws_source {
	const struct ws_memory_ops *memory; /* NULL: files only */
	const struct ws_cancel *cancel;     /* cancels waits for this memory */
	struct ws_tensor *tensors;
	size_t n_tensors;
	uint64_t bytes;
	struct ws_names names;
	struct part *parts;
	size_t n_parts;
	struct ws_stream *streams; /* synthetic sources: one for each tensor; else NULL */
	char *config_dir;
	char **warnings;           /* from ws_file_list */
	size_t n_warnings;
	struct ws_trace *trace;    /* NULL: none */
};

/* The names alone, which are half of a header. */
static char *keep_names(struct ws_tensor *tensors, size_t n)
{
	size_t bytes = 1;
	for (size_t i = 0; i < n; i++)
		bytes += strlen(tensors[i].name) + 1;
	char *text = malloc(bytes), *at = text;
	for (size_t i = 0; text && i < n; i++) {
		const size_t size = strlen(tensors[i].name) + 1;
		tensors[i].name = memcpy(at, tensors[i].name, size);
		at += size;
	}
	return text;
}

/* Moves the header's contents into the part. */
static int append(struct ws_source *s, struct ws_safetensors *st, struct ws_err *err)
{
	struct part *part = &s->parts[s->n_parts - 1];
	struct ws_tensor *p = reallocarray(s->tensors, s->n_tensors + st->n_tensors + 1, sizeof *p);
	if (!p)
		return ws_oom(err);
	s->tensors = p;
	part->first = s->n_tensors;
	for (size_t i = 0; i < st->n_tensors; i++) {
		struct ws_tensor *t = &s->tensors[s->n_tensors++];
		*t = st->tensors[i];
		t->file = (uint32_t)(s->n_parts - 1);
	}
	part->text = keep_names(&s->tensors[part->first], st->n_tensors);
	return part->text ? 0 : ws_oom(err);
}

/* True for "org/name", the form of Hugging Face Hub names. */
static bool is_hub_name(const char *name)
{
	const char *slash = strchr(name, '/');
	return slash && slash > name && slash[1] && !strchr(slash + 1, '/') && name[0] != '.' &&
	       name[0] != '~' && !strstr(name, ".safetensors");
}

/* True for "http://host" and for "host:30000", but not for a file's URL. */
static bool is_address(const char *name)
{
	const char *port = strrchr(name, ':');
	const bool url = strstr(name, "://") != NULL;
	if (strstr(name, ".safetensors") || (url && strncmp(name, "http", 4)))
		return false;
	return url || (port && port[1] && !port[1 + strspn(port + 1, "0123456789")]);
}

static int explain_open(const char *name, struct ws_err *err)
{
	if (err && err->native == EMFILE)
		return ws_err_hint(err, "allow more open files with ulimit -n");
	if (err && err->native == ENOENT && is_address(name))
		return ws_err_hint(err, "a server is named by {endpoints} %s", name);
	if (err && (err->native == ENOENT || err->native == ENOTDIR) && ws_hub_hint(name, err))
		return -1;
	if (err && err->native == ENOENT && is_hub_name(name))
		return ws_err_hint(err, "a model of the Hugging Face Hub has to be fetched first: "
		                   "hf download %s", name);
	return -1;
}

static int open_file(struct part *part, struct ws_safetensors *st, struct ws_err *err)
{
	part->fd = ws_file_open(part->name, &part->id, err);
	if (part->fd < 0)
		return explain_open(part->name, err);
	return ws_safetensors_read(part->fd, part->name, part->id.size, st, err);
}

/* A config named by an exporting process takes precedence over a config beside a file. */
static int open_memory(struct ws_source *s, struct part *part, struct ws_safetensors *st,
                       struct ws_err *err)
{
	char *config;
	if (ws_exported_open(part->name, s->memory, s->cancel, &part->exported, st, &config, err))
		return -1;
	if (s->config_dir)
		free(config);
	else
		s->config_dir = config;
	return 0;
}

/* Takes ownership of name. The part belongs to the source even if reading it fails. */
static int open_part(struct ws_source *s, char *name, struct ws_err *err)
{
	struct part *part = &s->parts[s->n_parts++];
	struct ws_safetensors st = WS_SAFETENSORS_INIT;
	*part = (struct part){ .name = name, .fd = -1 };
	int rc = ws_memory_path(name) ? open_memory(s, part, &st, err) : open_file(part, &st, err);
	if (rc == 0)
		rc = append(s, &st, err);
	ws_safetensors_free(&st);
	return rc;
}

static int build_names(struct ws_source *s, struct ws_err *err)
{
	size_t twice[2];
	const int rc = ws_names_init(&s->names, s->tensors, sizeof *s->tensors, s->n_tensors,
	                             twice, err);
	if (rc <= 0)
		return rc;
	const struct ws_tensor *a = &s->tensors[twice[0]], *b = &s->tensors[twice[1]];
	return ws_err_set(err, WS_EINPUT, "tensor '%s' is in both %s and %s",
	                  ws_quote(a->name).text, s->parts[a->file].name, s->parts[b->file].name);
}

/* Checks one entry of an index against the tensors; marks it in seen[]. */
static int check_entry(const struct ws_source *s, const struct ws_index *index, size_t first,
                       const struct ws_index_entry *e, bool *seen, struct ws_err *err)
{
	const struct ws_tensor *t = ws_names_find(&s->names, e->name);
	if (!t || t->file < first || t->file >= first + index->n_shards ||
	    strcmp(index->shards[t->file - first], e->shard) != 0)
		return ws_err_set(err, WS_EINPUT, "%s: tensor '%s' is not in %s, where the index "
		                  "has it", index->path, ws_quote(e->name).text, e->shard);
	if (seen[t - s->tensors])
		return ws_err_set(err, WS_EINPUT, "%s: tensor '%s' is in weight_map twice",
		                  index->path, ws_quote(e->name).text);
	seen[t - s->tensors] = true;
	return 0;
}

/* Checks that an index and its shards agree on every tensor. */
static int check_index(const struct ws_source *s, const struct ws_index *index, size_t first,
                       struct ws_err *err)
{
	bool *seen = calloc(s->n_tensors + 1, sizeof *seen);
	int rc = seen ? 0 : ws_oom(err);
	for (size_t i = 0; i < index->n_entries && rc == 0; i++)
		rc = check_entry(s, index, first, &index->entries[i], seen, err);
	for (size_t i = 0; i < s->n_tensors && rc == 0; i++) {
		const struct ws_tensor *t = &s->tensors[i];
		if (t->file >= first && t->file < first + index->n_shards && !seen[i])
			rc = ws_err_set(err, WS_EINPUT, "%s: tensor '%s' of %s is not in the index",
			                index->path, ws_quote(t->name).text,
			                index->shards[t->file - first]);
	}
	free(seen);
	return rc;
}

static int open_files(struct ws_source *s, const char *const *paths, size_t n, struct ws_err *err)
{
	struct ws_file_list list = WS_FILE_LIST_INIT;
	int rc = 0;
	for (size_t i = 0; i < n && rc == 0; i++)
		rc = ws_files_add(&list, paths[i], err);
	if (rc == 0) {
		s->parts = calloc(list.n_paths, sizeof *s->parts);
		rc = s->parts ? 0 : ws_oom(err);
	}
	for (size_t i = 0; i < list.n_paths && rc == 0; i++) {
		rc = open_part(s, list.paths[i], err);
		list.paths[i] = NULL;
	}
	if (rc == 0)
		rc = build_names(s, err);
	for (size_t i = 0; i < list.n_indices && rc == 0; i++)
		rc = check_index(s, &list.indices[i], list.first_of_index[i], err);
	if (!s->config_dir) {
		s->config_dir = list.config_dir;
		list.config_dir = NULL;
	}
	s->warnings = list.warnings;
	s->n_warnings = list.n_warnings;
	list.warnings = NULL;
	list.n_warnings = 0;
	ws_files_free(&list);
	return rc;
}

static int open_synthetic(struct ws_source *s, const char *path, const char *spec,
                          struct ws_err *err)
{
	struct ws_synthetic syn;
	s->parts = calloc(1, sizeof *s->parts);
	if (!s->parts)
		return ws_oom(err);
	s->n_parts = 1;
	s->parts[0] = (struct part){ .name = strdup(path), .fd = -1 };
	if (!s->parts[0].name)
		return ws_oom(err);
	if (ws_synthetic_make(spec, &syn, err))
		return -1;
	s->tensors = syn.tensors;
	s->n_tensors = syn.n;
	s->streams = syn.streams;
	s->parts[0].text = syn.names;
	return build_names(s, err);
}

/* Returns the text after "synthetic:", or NULL for other paths. */
static const char *synthetic_spec(const char *path)
{
	static const char scheme[] = "synthetic:";
	return strncmp(path, scheme, sizeof scheme - 1) == 0 ? path + sizeof scheme - 1 : NULL;
}

int ws_source_open(const char *const *paths, size_t n_paths, struct ws_source **out,
                   struct ws_err *err)
{
	return ws_source_open_with(&(struct ws_source_opts){ 0 }, paths, n_paths, out, err);
}

int ws_source_open_with(const struct ws_source_opts *opts, const char *const *paths, size_t n_paths,
                        struct ws_source **out, struct ws_err *err)
{
	if (n_paths == 0)
		return ws_err_set(err, WS_EUSAGE, "no checkpoint was named");
	for (size_t i = 0; i < n_paths; i++)
		if (n_paths > 1 && synthetic_spec(paths[i]))
			return ws_err_set(err, WS_EUSAGE, "%s cannot be combined with other "
			                  "sources", paths[i]);
	struct ws_source *s = calloc(1, sizeof *s);
	if (!s)
		return ws_oom(err);
	s->memory = opts->memory;
	s->cancel = opts->cancel;
	const char *spec = synthetic_spec(paths[0]);
	if (spec ? open_synthetic(s, paths[0], spec, err) : open_files(s, paths, n_paths, err)) {
		ws_source_close(s);
		return -1;
	}
	for (size_t i = 0; i < s->n_tensors; i++)
		s->bytes += s->tensors[i].bytes;
	*out = s;
	return 0;
}

void ws_source_close(struct ws_source *s)
{
	if (!s)
		return;
	for (size_t i = 0; i < s->n_parts; i++) {
		if (s->parts[i].fd >= 0)
			close(s->parts[i].fd);
		ws_exported_close(s->parts[i].exported);
		free(s->parts[i].name);
		free(s->parts[i].text);
	}
	for (size_t i = 0; i < s->n_warnings; i++)
		free(s->warnings[i]);
	free(s->warnings);
	ws_names_fini(&s->names);
	free(s->parts);
	free(s->tensors);
	free(s->streams);
	free(s->config_dir);
	free(s);
}

size_t ws_source_count(const struct ws_source *s)
{
	return s->n_tensors;
}

const struct ws_tensor *ws_source_tensor(const struct ws_source *s, size_t i)
{
	return i < s->n_tensors ? &s->tensors[i] : NULL;
}

const struct ws_tensor *ws_source_find(const struct ws_source *s, const char *name)
{
	return ws_names_find(&s->names, name);
}

uint64_t ws_source_bytes(const struct ws_source *s)
{
	return s->bytes;
}

size_t ws_source_file_count(const struct ws_source *s)
{
	return s->n_parts;
}

const char *ws_source_file_name(const struct ws_source *s, size_t i)
{
	return i < s->n_parts ? s->parts[i].name : NULL;
}

bool ws_source_file_id(const struct ws_source *s, size_t i, uint64_t *id)
{
	if (i >= s->n_parts || s->parts[i].fd < 0)
		return false;
	*id = ws_file_id_hash(&s->parts[i].id);
	return true;
}

uint64_t ws_source_changed(const struct ws_source *s)
{
	uint64_t newest = 0;
	for (size_t i = 0; i < s->n_parts; i++) {
		const struct timespec *t = &s->parts[i].id.changed;
		const uint64_t at = (uint64_t)t->tv_sec * 1000000000 + (uint64_t)t->tv_nsec;
		if (s->parts[i].fd >= 0 && at > newest)
			newest = at;
	}
	return newest;
}

const char *ws_source_config_dir(const struct ws_source *s)
{
	return s->config_dir;
}

const char *ws_source_warning(const struct ws_source *s, size_t i)
{
	return i < s->n_warnings ? s->warnings[i] : NULL;
}

static const struct ws_stream *stream_of(const struct ws_source *s, const struct ws_tensor *t)
{
	assert(t >= s->tensors && t < s->tensors + s->n_tensors);
	return &s->streams[t - s->tensors];
}

void ws_source_trace(struct ws_source *s, struct ws_trace *trace)
{
	s->trace = trace;
}

static uint64_t begin_span(const struct ws_source *s, const struct ws_tensor *t, const char *file,
                           size_t n)
{
	const struct ws_trace_what read = { .row = WS_TRACE_READ, .name = t->name, .about = file };
	return s->trace && n >= TRACED ? ws_trace_begin(s->trace, &read) : 0;
}

static const struct ws_region *region_of(const struct part *part, const struct ws_source *s,
                                         const struct ws_tensor *t)
{
	return &part->exported->regions[(size_t)(t - s->tensors) - part->first];
}

int ws_source_read(const struct ws_source *s, const struct ws_tensor *t, uint64_t at, void *dst,
                   size_t n, struct ws_err *err)
{
	assert(at <= t->bytes && n <= t->bytes - at);
	if (s->streams) {
		ws_stream_fill(stream_of(s, t), at, dst, n);
		return 0;
	}
	const struct part *part = &s->parts[t->file];
	const uint64_t span = begin_span(s, t, part->name, n);
	const int rc = part->exported ?
	                       ws_region_read(region_of(part, s, t), at, dst, n, err) :
	                       ws_file_pread(part->fd, part->name, t->offset + at, dst, n, err);
	ws_trace_end(s->trace, span, &(struct ws_trace_end){ .bytes = n, .unfinished = rc != 0 });
	return rc ? ws_err_wrap(err, "tensor '%s'", ws_quote(t->name).text) : 0;
}

int ws_source_hash(const struct ws_source *s, const struct ws_tensor *t, uint64_t *hash,
                   struct ws_err *err)
{
	struct ws_hash *h = ws_hash_new();
	uint8_t *chunk = malloc(CHUNK);
	int rc = h && chunk ? 0 : ws_oom(err);
	for (uint64_t at = 0; at < t->bytes && rc == 0;) {
		const size_t n = t->bytes - at < CHUNK ? (size_t)(t->bytes - at) : CHUNK;
		rc = ws_source_read(s, t, at, chunk, n, err);
		if (rc == 0)
			ws_hash_add(h, chunk, n);
		at += n;
	}
	if (rc == 0)
		*hash = ws_hash_digest(h);
	free(chunk);
	ws_hash_free(h);
	return rc;
}

static int fill_from_stream(void *ctx, uint64_t at, void *dst, size_t n, struct ws_err *err)
{
	(void)err;
	ws_stream_fill(ctx, at, dst, n);
	return 0;
}

void ws_source_span(const struct ws_source *s, const struct ws_tensor *t, struct ws_span *span)
{
	*span = (struct ws_span){ .length = t->bytes, .fd = -1 };
	if (s->streams) {
		span->fill = fill_from_stream;
		span->ctx = (void *)(uintptr_t)stream_of(s, t);
		return;
	}
	const struct part *part = &s->parts[t->file];
	if (part->exported) {
		ws_region_span(region_of(part, s, t), span);
	} else {
		span->fd = part->fd;
		span->offset = t->offset;
	}
}

int ws_source_check_file(const struct ws_source *s, size_t file, struct ws_err *err)
{
	assert(file < s->n_parts);
	const struct part *part = &s->parts[file];
	if (part->exported)
		return ws_exported_check(part->exported, err);
	return part->fd < 0 ? 0 : ws_file_check(part->fd, part->name, &part->id, err);
}

int ws_source_check(const struct ws_source *s, struct ws_err *err)
{
	for (size_t i = 0; i < s->n_parts; i++) {
		const struct part *part = &s->parts[i];
		if (part->fd >= 0 && ws_file_check_path(part->name, &part->id, err))
			return -1;
		if (ws_source_check_file(s, i, err))
			return -1;
	}
	return 0;
}

uint64_t ws_source_pinned(const struct ws_source *s)
{
	uint64_t bytes = 0;
	for (size_t i = 0; i < s->n_parts; i++)
		bytes += s->parts[i].exported ? s->memory->pinned_bytes : 0;
	return bytes;
}
