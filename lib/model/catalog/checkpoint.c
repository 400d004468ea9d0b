/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint.c - writes a source as a Hugging Face checkpoint (formats: safetensors.c and
 * index.c).
 *
 * Readers may map an old checkpoint while it is rewritten, so files are replaced whole, shards
 * before the index that names them. Within a file tensors are ordered by falling element size,
 * which aligns all of them. */
#include "checkpoint.h"

#include "file.h"
#include "safetensors.h"
#include "wsync/tool/buf.h"
#include "wsync/tool/json.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_INDEX = 256 << 20, CHUNK = 4 << 20 };

static const char index_name[] = "model.safetensors.index.json";

struct shard {
	char name[64];
	size_t first, n; /* of writer.tensors */
	uint64_t bytes;
};

struct writer {
	const struct ws_source *source;
	const char *dir;
	const struct ws_tensor **tensors; /* in the order of the files, shard by shard */
	struct shard *shards;
	size_t n_shards;
	uint8_t *chunk;
};

/* Larger elements first, then the source's order. */
static int by_element(const void *a, const void *b)
{
	const struct ws_tensor *x = *(const struct ws_tensor *const *)a;
	const struct ws_tensor *y = *(const struct ws_tensor *const *)b;
	const unsigned p = ws_dtype_bits(x->dtype), q = ws_dtype_bits(y->dtype);
	if (p != q)
		return p > q ? -1 : 1;
	return (x > y) - (x < y);
}

static void name_shards(struct writer *w)
{
	if (w->n_shards == 1) {
		strcpy(w->shards[0].name, "model.safetensors");
		return;
	}
	for (size_t i = 0; i < w->n_shards; i++)
		snprintf(w->shards[i].name, sizeof w->shards[i].name,
		         "model-%05zu-of-%05zu.safetensors", i + 1, w->n_shards);
}

/* A shard has at most shard_bytes of data unless one tensor alone has more. */
static void lay_out(struct writer *w, uint64_t shard_bytes)
{
	struct shard *shard = w->shards;
	for (size_t i = 0; i < ws_source_count(w->source); i++) {
		const struct ws_tensor *t = ws_source_tensor(w->source, i);
		const uint64_t most = shard_bytes ? shard_bytes : UINT64_MAX;
		if (shard->n && (t->bytes > most || shard->bytes > most - t->bytes))
			*++shard = (struct shard){ .first = i };
		w->tensors[i] = t;
		shard->n++;
		shard->bytes += t->bytes;
	}
	w->n_shards = (size_t)(shard - w->shards) + 1;
	for (shard = w->shards; shard < w->shards + w->n_shards; shard++)
		qsort(w->tensors + shard->first, shard->n, sizeof *w->tensors, by_element);
	name_shards(w);
}

static int make_header(const struct writer *w, const struct shard *shard, struct ws_buf *out,
                       struct ws_err *err)
{
	struct ws_head head;
	ws_head_begin(&head, out);
	for (size_t i = shard->first; i < shard->first + shard->n; i++) {
		const struct ws_tensor *t = w->tensors[i];
		ws_head_add(&head, t->name, t->dtype, t->n_dims, t->dims, t->bytes);
	}
	return ws_head_end(&head, err) ? ws_err_wrap(err, "%s/%s", w->dir, shard->name) : 0;
}

static int write_tensor(const struct writer *w, const struct ws_tensor *t, int fd, const char *path,
                        struct ws_err *err)
{
	for (uint64_t at = 0; at < t->bytes;) {
		const size_t n = t->bytes - at < CHUNK ? (size_t)(t->bytes - at) : CHUNK;
		if (ws_source_read(w->source, t, at, w->chunk, n, err) ||
		    ws_file_write(fd, path, w->chunk, n, err))
			return -1;
		at += n;
	}
	return 0;
}

static int write_bytes(const struct writer *w, const struct shard *shard, int fd, const char *path,
                       struct ws_err *err)
{
	struct ws_buf header;
	int rc = make_header(w, shard, &header, err);
	if (rc == 0)
		rc = ws_file_reserve(fd, path, header.len + shard->bytes, err);
	if (rc == 0)
		rc = ws_file_write(fd, path, header.data, header.len, err);
	ws_buf_free(&header);
	for (size_t i = shard->first; i < shard->first + shard->n && rc == 0; i++)
		rc = write_tensor(w, w->tensors[i], fd, path, err);
	return rc;
}

static int write_shard(const struct writer *w, const struct shard *shard, struct ws_err *err)
{
	char *path = NULL, *tmp = NULL;
	int fd = -1, rc = -1;
	if (asprintf(&path, "%s/%s", w->dir, shard->name) < 0 ||
	    asprintf(&tmp, "%s.XXXXXX", path) < 0) {
		ws_err_set(err, WS_ESYSTEM, "write %s: out of memory", w->dir);
		goto out;
	}
	fd = mkostemp(tmp, O_CLOEXEC);
	if (fd < 0 || fchmod(fd, 0644)) {
		ws_err_errno(err, "write %s", path);
		goto out;
	}
	if (write_bytes(w, shard, fd, path, err))
		goto out;
	if (fsync(fd) || rename(tmp, path)) {
		ws_err_errno(err, "write %s", path);
		goto out;
	}
	rc = 0;
out:
	if (rc && fd >= 0)
		unlink(tmp);
	if (fd >= 0)
		close(fd);
	free(tmp);
	free(path);
	return rc;
}

static int write_index(const struct writer *w, struct ws_err *err)
{
	struct ws_buf out;
	struct ws_jw j;
	char *path = NULL;
	ws_buf_init(&out, MAX_INDEX);
	ws_jw_init(&j, &out);
	ws_jw_object(&j, NULL);
	ws_jw_object(&j, "metadata");
	ws_jw_uint(&j, "total_size", ws_source_bytes(w->source));
	ws_jw_end_object(&j);
	ws_jw_object(&j, "weight_map");
	for (size_t i = 0; i < w->n_shards; i++)
		for (size_t k = 0; k < w->shards[i].n; k++)
			ws_jw_str(&j, w->tensors[w->shards[i].first + k]->name, w->shards[i].name);
	ws_jw_end_object(&j);
	ws_jw_end_object(&j);
	ws_buf_putc(&out, '\n');
	int rc = ws_buf_check(&out, index_name, err);
	if (rc == 0 && asprintf(&path, "%s/%s", w->dir, index_name) < 0)
		rc = ws_err_set(err, WS_ESYSTEM, "write %s: out of memory", w->dir);
	if (rc == 0)
		rc = ws_file_replace(path, out.data, out.len, 0644, err);
	free(path);
	ws_buf_free(&out);
	return rc;
}

/* Removes the index of an earlier checkpoint, which would hide a single file. */
static int remove_index(const struct writer *w, struct ws_err *err)
{
	char *path;
	int rc = 0;
	if (asprintf(&path, "%s/%s", w->dir, index_name) < 0)
		return ws_err_set(err, WS_ESYSTEM, "write %s: out of memory", w->dir);
	if (unlink(path) && errno != ENOENT)
		rc = ws_err_errno(err, "remove %s", path);
	free(path);
	return rc;
}

int ws_checkpoint_write(const struct ws_source *s, const char *dir, uint64_t shard_bytes,
                        struct ws_err *err)
{
	const size_t n = ws_source_count(s);
	struct writer w = {
		.source = s,
		.dir = dir,
		.tensors = calloc(n + 1, sizeof *w.tensors),
		.shards = calloc(n + 1, sizeof *w.shards),
		.chunk = malloc(CHUNK),
	};
	int rc;
	if (!w.tensors || !w.shards || !w.chunk)
		rc = ws_err_set(err, WS_ESYSTEM, "write %s: out of memory", dir);
	else
		rc = ws_file_mkdirs(dir, err);
	if (rc == 0)
		lay_out(&w, shard_bytes);
	for (size_t i = 0; i < w.n_shards && rc == 0; i++)
		rc = write_shard(&w, &w.shards[i], err);
	if (rc == 0)
		rc = w.n_shards > 1 ? write_index(&w, err) : remove_index(&w, err);
	free(w.tensors);
	free(w.shards);
	free(w.chunk);
	return rc;
}
