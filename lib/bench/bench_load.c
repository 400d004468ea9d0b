/* SPDX-License-Identifier: Apache-2.0 */
/* bench_load.c - times reading a source into a buffer, bucket by bucket in one thread, as a data
 * plane does. Reference: read(2) of the same files in sequence into the same buffer. */
#include "bench_load.h"

#include "file.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PAGE = 4096, PIECE = 1 << 20, BUCKET = 64 << 20, FILES_MAX = 65536 };

void bench_load_close(struct bench_load *l)
{
	ws_plan_free(l->plan);
	ws_input_close(&l->input);
	for (size_t i = 0; i < l->n_files; i++)
		close(l->files[i]);
	free(l->files);
	free(l->sizes);
	free(l->buffer);
	memset(l, 0, sizeof *l);
}

/* Opens all files of all sources. */
static int open_files(struct bench_load *l, struct ws_err *err)
{
	size_t n = 0;
	for (size_t s = 0; s < l->input.n_sources; s++)
		n += ws_source_file_count(l->input.sources[s]);
	if (n > FILES_MAX)
		return ws_err_set(err, WS_EINPUT, "%zu files are too many to measure", n);
	l->files = calloc(n + 1, sizeof *l->files);
	l->sizes = calloc(n + 1, sizeof *l->sizes);
	if (!l->files || !l->sizes)
		return ws_oom(err);
	for (size_t s = 0; s < l->input.n_sources; s++) {
		const struct ws_source *source = l->input.sources[s];
		for (size_t i = 0; i < ws_source_file_count(source); i++) {
			struct ws_err why = WS_ERR_INIT;
			struct ws_file_id id;
			const int fd = ws_file_open(ws_source_file_name(source, i), &id, &why);
			if (fd < 0)
				continue; /* a synthetic source has a name but no file */
			l->sizes[l->n_files] = id.size;
			l->files[l->n_files++] = fd;
		}
	}
	return 0;
}

int bench_load_open(struct bench_load *l, const struct ws_bench_load *what,
                    const struct ws_cancel *cancel, struct ws_err *err)
{
	struct ws_transform_opts transform = { 0 };
	if (what->transform)
		transform = *what->transform;
	const struct ws_input_opts input = { .paths = what->paths, .n_paths = what->n_paths,
		                             .memory = &ws_memory_cuda, .cancel = cancel,
		                             .transform = what->transform ? &transform : NULL };
	const struct ws_plan_opts plan = { .bucket_size =
		                                   what->bucket_size ? what->bucket_size : BUCKET,
		                           .format = WS_FORMAT_FLATTENED };
	memset(l, 0, sizeof *l);
	l->cancel = cancel;
	/* Aligned to a page. malloc would return 16 bytes after the start of a page. A
	 * copy to there runs at a third of the speed: to the processor, its stores
	 * seem to overlap the next loads. */
	l->buffer = aligned_alloc(PAGE, PIECE);
	if (!l->buffer)
		return ws_oom(err);
	if (ws_input_open(&input, &l->input, err) ||
	    ws_plan_make(l->input.catalog, &plan, &l->plan, err) || open_files(l, err))
		return -1;
	for (; l->n_buckets < l->plan->n_buckets; l->n_buckets++) {
		if (what->most && l->bytes >= what->most)
			break;
		l->bytes += l->plan->buckets[l->n_buckets].bytes;
	}
	for (size_t i = 0; i < l->n_files; i++)
		l->file_bytes += l->sizes[i];
	return 0;
}

void bench_load_drop_caches(const struct bench_load *l)
{
	for (size_t i = 0; i < l->n_files; i++)
		posix_fadvise(l->files[i], 0, 0, POSIX_FADV_DONTNEED);
}

const char *bench_load_name(const struct bench_load *l)
{
	return l->input.transform ? "read and made" : "read";
}

const char *bench_load_cache(const struct bench_load *l)
{
	return l->cold ? "page cache empty" : "page cache warm";
}

/* ---- timed work ------------------------------------------------------------------------------ */

static int take_span(struct bench_load *l, const struct ws_span *s, struct ws_err *err)
{
	for (uint64_t at = 0; at < s->length;) {
		const size_t n = s->length - at < PIECE ? (size_t)(s->length - at) : PIECE;
		if (s->fd >= 0 ? ws_file_pread(s->fd, "source", s->offset + at, l->buffer, n, err)
		               : s->fill(s->ctx, at, l->buffer, n, err))
			return -1;
		at += n;
	}
	return 0;
}

static int open_bucket(const struct bench_load *l, size_t b, struct bench_bucket *k,
                       struct ws_err *err)
{
	*k = (struct bench_bucket){ 0 };
	if (b >= l->n_buckets)
		return 0;
	return l->elsewhere ? ws_plan_payloads_for_gpu(l->plan, b, l->elsewhere, l->gpu,
	                                               &k->payloads, &k->n, err) :
	                      ws_plan_payloads(l->plan, b, &k->payloads, &k->n, err);
}

static int take_bucket(void *load, const struct bench_bucket *k, struct ws_err *err)
{
	struct bench_load *l = load;
	int rc = 0;
	for (size_t i = 0; i < k->n && !rc; i++)
		for (size_t s = 0; s < k->payloads[i].n_spans && !rc; s++)
			rc = take_span(l, &k->payloads[i].spans[s], err);
	return rc;
}

/* Opens the next bucket before it takes the current one, as a push does, so that the transform
 * threads compute tensors meanwhile. */
int bench_load_each(struct bench_load *l, bench_load_take *take, struct ws_err *err)
{
	struct bench_bucket now, next;
	int rc = open_bucket(l, 0, &next, err);
	for (size_t b = 0; b < l->n_buckets && !rc; b++) {
		now = next;
		rc = open_bucket(l, b + 1, &next, err);
		if (!rc && ws_cancelled(l->cancel))
			rc = ws_err_set(err, WS_ECANCELLED, "cancelled");
		if (!rc)
			rc = take(l, &now, err);
		ws_plan_payloads_free(now.payloads, now.n);
	}
	ws_plan_payloads_free(next.payloads, next.n);
	return rc;
}

int bench_load_run(void *ctx, int64_t *ns, struct ws_err *err)
{
	struct bench_load *l = ctx;
	if (l->cold)
		bench_load_drop_caches(l);
	const int64_t since = ws_now_ns();
	if (bench_load_each(l, take_bucket, err))
		return -1;
	*ns = ws_now_ns() - since;
	return 0;
}

static int read_files(void *ctx, int64_t *ns, struct ws_err *err)
{
	struct bench_load *l = ctx;
	uint64_t left = l->file_bytes < l->bytes ? l->file_bytes : l->bytes;
	if (l->cold)
		bench_load_drop_caches(l);
	const int64_t since = ws_now_ns();
	for (size_t i = 0; i < l->n_files && left; i++) {
		for (uint64_t at = 0; at < l->sizes[i] && left;) {
			const uint64_t rest = l->sizes[i] - at < left ? l->sizes[i] - at : left;
			const size_t n = rest < PIECE ? (size_t)rest : PIECE;
			if (ws_cancelled(l->cancel))
				return ws_err_set(err, WS_ECANCELLED, "cancelled");
			if (ws_file_pread(l->files[i], "source", at, l->buffer, n, err))
				return -1;
			at += n;
			left -= n;
		}
	}
	*ns = ws_now_ns() - since;
	return 0;
}

static int to_host(const struct ws_bench_opts *opts, struct bench_load *l, struct ws_err *err)
{
	struct ws_bench_row row = {
		.stage = "load",
		.name = bench_load_name(l),
		.detail = bench_load_cache(l),
		.bytes = l->bytes,
		.against = l->n_files ? "read(2)" : NULL,
		.against_bytes = l->file_bytes < l->bytes ? l->file_bytes : l->bytes,
	};
	const struct bench_timed take = { .run = bench_load_run, .ctx = l };
	const struct bench_timed plain = { .run = read_files, .ctx = l };
	return bench_measure(opts, &row, &take, l->n_files ? &plain : NULL, err);
}

int ws_bench_load(const struct ws_bench_opts *opts, const struct ws_bench_load *load,
                  struct ws_err *err)
{
	struct bench_load l;
	if (load->transform_on == WS_TRANSFORM_ON_GPU && !load->to)
		return ws_err_set(err, WS_EUSAGE, "{transform_on} gpu: it goes to no GPU");
	int rc = bench_load_open(&l, load, opts->cancel, err);
	l.cold = load->cold;
	if (!rc)
		rc = to_host(opts, &l, err);
	if (!rc && load->to)
		rc = bench_load_gpu(opts, &l, load, err);
	bench_load_close(&l);
	return rc;
}
