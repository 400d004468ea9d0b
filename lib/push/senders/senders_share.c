/* SPDX-License-Identifier: Apache-2.0 */
/* senders_share.c - the share of one sender: its sends, in order.
 *
 *   word   version, 1
 *   word   world size, word 1 for a dry run, text group
 *   word   number of batches, then for each
 *     word   number of sends, then for each
 *       word   rank, word for the number of stripes, then for each
 *         word   index of a tensor in the sender's own list; all ones: zeros, and a word for their
 *                number of bytes
 *         word   for each dimension where its box begins, then for each dimension its length */
#include "senders.h"

#include "senders_wire.h"

#include <stdlib.h>
#include <string.h>

enum { VERSION = 1, WORLD_MAX = 1 << 20 };
#define ZEROS UINT64_MAX

/* ---- writing --------------------------------------------------------------------------------- */

void ws_share_write_head(struct ws_buf *out, unsigned world_size, bool dry_run, const char *group,
                         size_t n_batches)
{
	ws_senders_put_word(out, VERSION);
	ws_senders_put_word(out, world_size);
	ws_senders_put_word(out, dry_run);
	ws_senders_put_text(out, group);
	ws_senders_put_word(out, n_batches);
}

void ws_share_write_batch(struct ws_buf *out, size_t n_sends)
{
	ws_senders_put_word(out, n_sends);
}

static int match_name(const void *name, const void *t)
{
	return strcmp(name, ((const struct ws_plan_tensor *)t)->name);
}

int ws_share_write_send(struct ws_buf *out, unsigned rank, const struct ws_stripe *stripes,
                        size_t n, const struct ws_sender_list *whose, struct ws_err *err)
{
	ws_senders_put_word(out, rank);
	ws_senders_put_word(out, n);
	for (size_t i = 0; i < n; i++) {
		const struct ws_stripe *s = &stripes[i];
		if (!s->tensor) {
			ws_senders_put_word(out, ZEROS);
			ws_senders_put_word(out, s->length);
			continue;
		}
		const struct ws_plan_tensor *t = bsearch(s->tensor->name, whose->tensors, whose->n,
		                                         sizeof *whose->tensors, match_name);
		if (!t)
			return ws_err_set(err, WS_EREFUSED, "sender %u has no tensor %s",
			                  whose->sender, s->tensor->name);
		ws_senders_put_word(out, (uint64_t)(t - whose->tensors));
		for (unsigned d = 0; d < t->n_dims; d++)
			ws_senders_put_word(out, (uint64_t)s->at[d]);
		for (unsigned d = 0; d < t->n_dims; d++)
			ws_senders_put_word(out, (uint64_t)s->size[d]);
	}
	return 0;
}

/* ---- reading --------------------------------------------------------------------------------- */

static void read_stripe(struct ws_senders_cursor *c, const struct ws_sender_list *mine,
                        struct ws_stripe *s)
{
	const uint64_t which = ws_senders_word(c, UINT64_MAX);
	*s = (struct ws_stripe){ 0 };
	if (which == ZEROS) {
		s->length = ws_senders_word(c, INT64_MAX);
		return;
	}
	c->bad = c->bad || which >= mine->n;
	if (c->bad)
		return;
	s->tensor = &mine->tensors[which];
	for (unsigned d = 0; d < s->tensor->n_dims; d++)
		s->at[d] = (int64_t)ws_senders_word(c, (uint64_t)s->tensor->dims[d]);
	for (unsigned d = 0; d < s->tensor->n_dims; d++)
		s->size[d] = (int64_t)ws_senders_word(c, (uint64_t)(s->tensor->dims[d] - s->at[d]));
	ws_stripe_measure(s);
	c->bad = c->bad || !s->length; /* a span is never empty */
}

/* Makes room for one more item. Grows as items arrive, not as their number is announced. */
static void *grow(struct ws_senders_cursor *c, void *items, size_t n, size_t size)
{
	void *more = n & (n - 1) ? items : reallocarray(items, n ? 2 * n : 1, size);
	c->bad = c->bad || !more;
	return more ? more : items;
}

static void read_send(struct ws_senders_cursor *c, const struct ws_sender_list *mine,
                      struct ws_share *x)
{
	x->sends = grow(c, x->sends, x->n_sends, sizeof *x->sends);
	if (c->bad)
		return;
	struct ws_share_send *send = &x->sends[x->n_sends++];
	*send = (struct ws_share_send){ 0 };
	send->rank = (unsigned)ws_senders_word(c, x->world_size - 1);
	send->n = (size_t)ws_senders_word(c, c->left / 8);
	send->first = x->n_stripes;
	for (size_t i = 0; i < send->n && !c->bad; i++) {
		x->stripes = grow(c, x->stripes, x->n_stripes, sizeof *x->stripes);
		if (c->bad)
			return;
		struct ws_stripe *s = &x->stripes[x->n_stripes++];
		read_stripe(c, mine, s);
		c->bad = c->bad || s->length > (uint64_t)INT64_MAX - send->length;
		send->length += s->length;
	}
}

static void read_batches(struct ws_senders_cursor *c, const struct ws_sender_list *mine,
                         struct ws_share *x)
{
	const size_t batches = (size_t)ws_senders_word(c, c->left / 8);
	for (size_t b = 0; b < batches && !c->bad; b++) {
		const size_t n = (size_t)ws_senders_word(c, c->left / 16);
		for (size_t i = 0; i < n && !c->bad; i++)
			read_send(c, mine, x);
		x->ends = grow(c, x->ends, x->n_batches, sizeof *x->ends);
		if (!c->bad)
			x->ends[x->n_batches++] = x->n_sends;
	}
}

int ws_share_read(const void *bytes, size_t n, const struct ws_sender_list *mine,
                  struct ws_share *out, struct ws_err *err)
{
	struct ws_senders_cursor c = { bytes, n, false };
	*out = (struct ws_share){ 0 };
	const uint64_t version = ws_senders_word(&c, UINT64_MAX);
	if (!c.bad && version != VERSION)
		return ws_err_set(err, WS_EDATA, "sender 1 is of another release of wsync");
	out->world_size = (unsigned)ws_senders_word(&c, WORLD_MAX);
	out->dry_run = ws_senders_word(&c, 1);
	ws_senders_text(&c, out->group, sizeof out->group);
	c.bad = c.bad || out->world_size < 2;
	if (!c.bad)
		read_batches(&c, mine, out);
	if (!c.bad && !c.left)
		return 0;
	ws_share_free(out);
	return ws_err_set(err, WS_EDATA, "cannot read the share that sender 1 assigned");
}

void ws_share_free(struct ws_share *s)
{
	free(s->stripes);
	free(s->sends);
	free(s->ends);
	*s = (struct ws_share){ 0 };
}
