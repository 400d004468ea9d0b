/* SPDX-License-Identifier: Apache-2.0 */
/* feed.c - read, copied, and the slot is free again. */
#include "feed.h"

#include "file.h"

#include <stdlib.h>
#include <string.h>

int ws_feed_open(struct ws_feed *f, struct ws_gpu *gpu, struct ws_err *err)
{
	memset(f, 0, sizeof *f);
	f->gpu = gpu;
	if (ws_stream_new(gpu, &f->stream, err))
		return -1;
	for (int i = 0; i < WS_FEED_SLOTS; i++)
		if (ws_gpu_alloc_pinned(gpu, WS_FEED_SLOT, &f->slots[i].memory, err) ||
		    ws_mark_new(gpu, &f->slots[i].copied, err))
			return -1;
	return 0;
}

void ws_feed_close(struct ws_feed *f)
{
	if (!f->gpu)
		return;
	ws_stream_free(f->gpu, f->stream);
	for (int i = 0; i < WS_FEED_SLOTS; i++) {
		ws_mark_free(f->gpu, f->slots[i].copied);
		ws_gpu_free_pinned(f->gpu, f->slots[i].memory);
	}
	for (int i = 0; i < WS_FEED_BOXES; i++)
		ws_gpu_free(f->gpu, f->boxes[i].at);
	memset(f, 0, sizeof *f);
}

struct ws_feed_box *ws_feed_box(struct ws_feed *f, const struct ws_payload *payloads, size_t n)
{
	struct ws_feed_box *unused = NULL;
	for (int i = 0; i < WS_FEED_BOXES; i++) {
		struct ws_feed_box *b = &f->boxes[i];
		if (b->payloads == payloads)
			return b;
		if (!b->payloads)
			unused = b;
	}
	if (unused) {
		ws_feed_drop(unused);
		unused->payloads = payloads;
		unused->n_payloads = n;
	}
	return unused;
}

void ws_feed_drop(struct ws_feed_box *b)
{
	b->payloads = NULL;
	b->n_payloads = b->loaded = 0;
	b->place = 0;
}

uint64_t ws_feed_after(uint64_t place, const struct ws_payload *p)
{
	return place + (p->length + WS_FEED_ALIGN - 1) / WS_FEED_ALIGN * WS_FEED_ALIGN;
}

static int make_room(struct ws_feed *f, struct ws_feed_box *b, struct ws_err *err)
{
	uint64_t wants = 0;
	for (size_t i = 0; i < b->n_payloads; i++)
		wants = ws_feed_after(wants, &b->payloads[i]);
	if (wants <= b->capacity)
		return 0;
	ws_gpu_free(f->gpu, b->at);
	b->at = 0;
	b->capacity = 0;
	if (ws_gpu_alloc(f->gpu, wants, &b->at, err)) {
		ws_err_hint(err, "two buckets lie on the GPU at once: a smaller --bucket-size needs less");
		return -1;
	}
	b->capacity = wants;
	return 0;
}

/* A slot's share of a payload: where in which span it goes on. */
struct cursor {
	const struct ws_payload *payload;
	size_t span;
	uint64_t in_span;
};

/* Ends early where a span begins that may be on this GPU. */
static int fill(struct cursor *c, char *to, size_t room, size_t *filled, struct ws_err *err)
{
	for (*filled = 0; *filled < room && c->span < c->payload->n_spans;) {
		const struct ws_span *s = &c->payload->spans[c->span];
		if (s->place && c->in_span == 0 && *filled)
			break;
		const uint64_t left = s->length - c->in_span;
		const size_t n = left < room - *filled ? (size_t)left : room - *filled;
		if (s->fd >= 0 ? ws_file_pread(s->fd, "a file of the source", s->offset + c->in_span, to + *filled,
		                               n, err) :
		                 s->fill(s->ctx, c->in_span, to + *filled, n, err))
			return -1;
		*filled += n;
		c->in_span += n;
		if (c->in_span == s->length) {
			c->span++;
			c->in_span = 0;
		}
	}
	return 0;
}

static int load_slot(struct ws_feed *f, struct cursor *c, ws_devptr to, size_t *n, ws_deadline until,
                     const struct ws_cancel *cancel, struct ws_err *err)
{
	void *memory = f->slots[f->slot].memory;
	struct ws_mark *copied = f->slots[f->slot].copied;
	/* Never set: reached. */
	if (ws_mark_wait(f->gpu, copied, until, cancel, err) || fill(c, memory, WS_FEED_SLOT, n, err) ||
	    ws_gpu_copy_in(f->gpu, to, memory, *n, f->stream, err) ||
	    ws_mark_set(f->gpu, copied, f->stream, err))
		return -1;
	f->slot = (f->slot + 1) % WS_FEED_SLOTS;
	return 0;
}

/* A span that begins here and is on this GPU goes from where it is. *n 0: it does not. */
static int copy_placed(struct ws_feed *f, struct cursor *c, ws_devptr to, size_t *n, struct ws_err *err)
{
	const struct ws_span *s = &c->payload->spans[c->span];
	struct ws_place place;
	*n = 0;
	if (!s->place || c->in_span)
		return 0;
	if (s->place(s->ctx, &place, err))
		return -1;
	if (memcmp(place.gpu, ws_gpu_device(f->gpu)->uuid, sizeof place.gpu) != 0)
		return 0;
	if (ws_gpu_copy(f->gpu, to, place.at, s->length, f->stream, err))
		return -1;
	*n = s->length;
	c->span++;
	return 0;
}

int ws_feed_load(struct ws_feed *f, struct ws_feed_box *b, ws_deadline until, const struct ws_cancel *cancel,
                 struct ws_err *err)
{
	const struct ws_payload *p = &b->payloads[b->loaded];
	struct cursor c = { .payload = p };
	if (b->loaded == 0 && make_room(f, b, err))
		return -1;
	for (uint64_t done = 0; done < p->length;) {
		const ws_devptr to = b->at + b->place + done;
		size_t n;
		if (ws_cancelled(cancel))
			return ws_err_set(err, WS_ECANCELLED, "reading was cancelled");
		if (copy_placed(f, &c, to, &n, err) ||
		    (n == 0 && load_slot(f, &c, to, &n, until, cancel, err)))
			return -1;
		done += n;
	}
	b->place = ws_feed_after(b->place, p);
	b->loaded++;
	return 0;
}
