/* SPDX-License-Identifier: Apache-2.0 */
#include "plan_files.h"

#include "file.h"
#include "safetensors.h"
#include "wsync/tool/buf.h"
#include "wsync/tool/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
	CHUNK = 4 << 20,
	MAX_INDEX = 256 << 20,
	/* bytes of a tensor in header and index, without its name */
	ABOUT_TENSOR = 256
};

const char ws_plan_index_name[] = "model.safetensors.index.json";

char *ws_plan_file_name(const struct ws_plan *p, size_t bucket, char dst[WS_PLAN_FILE_NAME])
{
	if (p->n_buckets == 1)
		snprintf(dst, WS_PLAN_FILE_NAME, "model.safetensors");
	else
		snprintf(dst, WS_PLAN_FILE_NAME, "model-%05zu-of-%05zu.safetensors", bucket + 1,
		         p->n_buckets);
	return dst;
}

uint64_t ws_plan_files_bytes(const struct ws_plan *p)
{
	uint64_t bytes = p->bytes + p->n_buckets * 4096;
	for (size_t i = 0; i < p->n_tensors; i++)
		bytes += ABOUT_TENSOR + 2 * strlen(p->tensors[i].name);
	return bytes;
}

struct writing {
	int fd;
	const char *path;
	uint8_t *chunk;
	ws_plan_files_tick *tick;
	void *ctx;
};

static int write_span(const struct writing *w, const struct ws_span *s, struct ws_err *err)
{
	for (uint64_t at = 0; at < s->length;) {
		const size_t n = s->length - at < CHUNK ? (size_t)(s->length - at) : CHUNK;
		if (s->fd >= 0 ?
		            ws_file_pread(s->fd, "the source", s->offset + at, w->chunk, n, err) :
		            s->fill(s->ctx, at, w->chunk, n, err))
			return -1;
		if (ws_file_write(w->fd, w->path, w->chunk, n, err) || w->tick(w->ctx, n, err))
			return -1;
		at += n;
	}
	return 0;
}

static int write_head(const struct writing *w, const struct ws_plan *p,
                      const struct ws_plan_bucket *b, struct ws_err *err)
{
	struct ws_head head;
	struct ws_buf text;
	ws_head_begin(&head, &text);
	for (size_t i = b->first; i < b->first + b->n; i++) {
		const struct ws_plan_tensor *t = &p->tensors[i];
		ws_head_add(&head, t->name, t->dtype, t->n_dims, t->dims, t->bytes);
	}
	int rc = ws_head_end(&head, err) ? ws_err_wrap(err, "%s", w->path) : 0;
	if (rc == 0)
		rc = ws_file_reserve(w->fd, w->path, text.len + b->bytes, err);
	if (rc == 0)
		rc = ws_file_write(w->fd, w->path, text.data, text.len, err);
	ws_buf_free(&text);
	return rc;
}

static int write_payloads(const struct writing *w, const struct ws_payload *payloads, size_t n,
                          struct ws_err *err)
{
	for (size_t i = 0; i < n; i++)
		for (size_t k = 0; k < payloads[i].n_spans; k++)
			if (write_span(w, &payloads[i].spans[k], err))
				return -1;
	return 0;
}

int ws_plan_file_write(const struct ws_plan *p, size_t bucket, const struct ws_payload *payloads,
                       size_t n_payloads, const char *dir, ws_plan_files_tick *tick, void *ctx,
                       struct ws_err *err)
{
	char name[WS_PLAN_FILE_NAME], *path = NULL;
	struct writing w = { .fd = -1, .chunk = malloc(CHUNK), .tick = tick, .ctx = ctx };
	int rc = -1;
	if (!w.chunk || asprintf(&path, "%s/%s", dir, ws_plan_file_name(p, bucket, name)) < 0) {
		path = NULL;
		ws_oom(err);
		goto out;
	}
	w.path = path;
	w.fd = ws_file_create(path, 0666, err);
	if (w.fd < 0 || write_head(&w, p, &p->buckets[bucket], err) ||
	    write_payloads(&w, payloads, n_payloads, err))
		goto out;
	rc = ws_file_finish(w.fd, path, err);
	w.fd = -1;
out:
	if (w.fd >= 0)
		close(w.fd);
	free(w.chunk);
	free(path);
	return rc;
}

static void describe_index(const struct ws_plan *p, struct ws_buf *out)
{
	struct ws_jw w;
	char name[WS_PLAN_FILE_NAME];
	ws_jw_init(&w, out);
	ws_jw_object(&w, NULL);
	ws_jw_object(&w, "metadata");
	ws_jw_uint(&w, "total_size", p->bytes);
	ws_jw_end_object(&w);
	ws_jw_object(&w, "weight_map");
	for (size_t b = 0; b < p->n_buckets; b++) {
		ws_plan_file_name(p, b, name);
		for (size_t i = 0; i < p->buckets[b].n; i++)
			ws_jw_str(&w, p->tensors[p->buckets[b].first + i].name, name);
	}
	ws_jw_end_object(&w);
	ws_jw_end_object(&w);
	ws_buf_putc(out, '\n');
}

int ws_plan_index_write(const struct ws_plan *p, const char *dir, struct ws_err *err)
{
	struct ws_buf text;
	char *path = NULL;
	if (p->n_buckets == 1)
		return 0;
	ws_buf_init(&text, MAX_INDEX);
	describe_index(p, &text);
	int rc = ws_buf_check(&text, ws_plan_index_name, err);
	if (rc == 0 && asprintf(&path, "%s/%s", dir, ws_plan_index_name) < 0) {
		path = NULL;
		rc = ws_oom(err);
	}
	if (rc == 0)
		rc = ws_file_make(path, text.data, text.len, err);
	ws_buf_free(&text);
	free(path);
	return rc;
}
