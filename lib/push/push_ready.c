/* SPDX-License-Identifier: Apache-2.0 */
/* push_ready.c - a push whose bytes lie ready: all of the plan is read and made into a file in
 * memory before anybody is asked for anything, and buckets are ranges of that file. What is left
 * to be measured is the wire.
 *
 * Tensors lie there one behind the other, in the plan's order, so that one file
 * serves every load format. */
#include "push_ready.h"

#include "file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PIECE = 1 << 20 };
static const uint64_t SPARE = UINT64_C(1) << 30; /* of memory, for everybody else */

void ws_push_ready_free(struct ws_push_ready *r)
{
	if (r->fd >= 0)
		close(r->fd);
	r->fd = -1;
	r->digest = 0;
}

/* 0: that cannot be told. */
static uint64_t free_memory(void)
{
	char line[256];
	unsigned long long kib = 0;
	FILE *f = fopen("/proc/meminfo", "re");
	while (f && fgets(line, sizeof line, f))
		if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1)
			break;
	if (f)
		fclose(f);
	return (uint64_t)kib << 10;
}

static const char *why_not(const struct ws_push *p)
{
	const uint64_t room = free_memory();
	if (p->protocol->files)
		return "the servers read files themselves";
	if (p->protocol->transfer)
		return "this protocol moves no buckets";
	if (p->opts.verify == WS_VERIFY_HASH && p->from.input.transform)
		return "what is made is hashed while it is sent";
	if (room && p->from.plan->bytes + SPARE > room)
		return "its bytes do not fit into the memory that is free";
	return NULL;
}

static int write_span(struct ws_push *p, const struct ws_span *s, char *buffer, struct ws_err *err)
{
	for (uint64_t at = 0; at < s->length;) {
		const size_t n = s->length - at < PIECE ? (size_t)(s->length - at) : PIECE;
		if (ws_cancelled(p->opts.cancel))
			return ws_err_set(err, WS_ECANCELLED, "cancelled");
		if (ws_deadline_passed(p->run.until))
			return ws_err_set(err, WS_ETIMEOUT,
			                  "the deadline passed while bytes were made ready");
		if (s->fd >= 0 ? ws_file_pread(s->fd, "a file of the source", s->offset + at,
		                               buffer, n, err) :
		                 s->fill(s->ctx, at, buffer, n, err))
			return -1;
		if (ws_file_write(p->opts.ready->fd, "a file in memory", buffer, n, err))
			return -1;
		at += n;
	}
	return 0;
}

static int write_bucket(struct ws_push *p, size_t b, char *buffer, struct ws_err *err)
{
	struct ws_payload *payloads;
	size_t n;
	int rc = 0;
	if (ws_plan_payloads(p->from.plan, b, &payloads, &n, err))
		return -1;
	for (size_t i = 0; i < n && rc == 0; i++)
		for (size_t k = 0; k < payloads[i].n_spans && rc == 0; k++)
			rc = write_span(p, &payloads[i].spans[k], buffer, err);
	ws_plan_payloads_free(payloads, n);
	return rc;
}

static int write_all(struct ws_push *p, struct ws_err *err)
{
	struct ws_push_ready *r = p->opts.ready;
	char *buffer = malloc(PIECE);
	ws_push_ready_free(r);
	r->fd = memfd_create("wsync-ready", MFD_CLOEXEC);
	int rc = !buffer ? ws_oom(err) : r->fd < 0 ? ws_err_errno(err, "a file in memory") : 0;
	for (size_t b = 0; rc == 0 && b < p->from.plan->n_buckets; b++)
		rc = write_bucket(p, b, buffer, err);
	free(buffer);
	if (rc)
		ws_push_ready_free(r);
	else
		r->digest = p->from.plan->digest;
	return rc;
}

int push_ready_make(struct ws_push *p, struct ws_err *err)
{
	struct ws_push_ready *r = p->opts.ready;
	if (!r || !r->wanted)
		return 0;
	const bool here = r->fd >= 0 && r->digest == p->from.plan->digest;
	r->why = here ? NULL : why_not(p);
	if (here || r->why)
		return 0;
	return write_all(p, err);
}

bool push_is_ready(const struct ws_push *p)
{
	const struct ws_push_ready *r = p->opts.ready;
	return r && r->wanted && r->fd >= 0 && r->digest == p->from.plan->digest;
}

/* ---- a bucket of it ---- */

int push_ready_bucket(const struct ws_push *p, size_t b, struct ws_payload **out, size_t *n_out,
                      struct ws_err *err)
{
	const struct ws_plan_bucket *bucket = &p->from.plan->buckets[b];
	const bool flat = p->from.plan->format == WS_FORMAT_FLATTENED;
	const size_t n = flat ? 1 : bucket->n;
	/* One piece of memory: the payloads, and behind them a span for each. */
	struct ws_payload *payloads = calloc(n, sizeof *payloads + sizeof(struct ws_span));
	if (!payloads)
		return ws_err_set(err, WS_ESYSTEM, "bucket %zu: out of memory", b);
	struct ws_span *spans = (struct ws_span *)(void *)(payloads + n);
	uint64_t at = 0;
	for (size_t i = 0; i < bucket->first; i++)
		at += p->from.plan->tensors[i].bytes;
	for (size_t i = 0; i < n; i++) {
		const uint64_t length =
			flat ? bucket->bytes : p->from.plan->tensors[bucket->first + i].bytes;
		spans[i] =
			(struct ws_span){ .length = length, .fd = p->opts.ready->fd, .offset = at };
		payloads[i] = (struct ws_payload){ .length = length,
			                           .spans = &spans[i],
			                           .n_spans = length > 0 };
		at += length;
	}
	*out = payloads;
	*n_out = n;
	return 0;
}
