/* SPDX-License-Identifier: Apache-2.0 */
/* senders_list.c - the tensors of each sender, and of all senders together.
 *
 *   word   version, 2
 *   word   sender, word for the number of senders, word 1 for a dry run
 *   text   ID of its round
 *   word   number of tensors, then by name for each
 *     text   name
 *     text   dtype, as torch calls it
 *     word   dimensions, then a word for each */
#include "senders.h"

#include "senders_wire.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VERSION = 2, TENSORS_MAX = 1 << 22, NAME = 1024, DTYPE = 32, LEAST_BYTES = 32 };

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct ws_plan_tensor *)a)->name,
	              ((const struct ws_plan_tensor *)b)->name);
}

int ws_senders_list(const struct ws_plan *plan, struct ws_sender_list *out, struct ws_err *err)
{
	*out = (struct ws_sender_list){ .n = plan->n_tensors };
	out->tensors = calloc(plan->n_tensors + 1, sizeof *out->tensors);
	if (!out->tensors)
		return ws_oom(err);
	memcpy(out->tensors, plan->tensors, plan->n_tensors * sizeof *out->tensors);
	qsort(out->tensors, out->n, sizeof *out->tensors, by_name);
	return 0;
}

void ws_senders_write_list(const struct ws_sender_list *l, struct ws_buf *out)
{
	ws_senders_put_word(out, VERSION);
	ws_senders_put_word(out, l->sender);
	ws_senders_put_word(out, l->senders);
	ws_senders_put_word(out, l->dry_run);
	ws_senders_put_text(out, l->round);
	ws_senders_put_word(out, l->n);
	for (size_t i = 0; i < l->n; i++) {
		const struct ws_plan_tensor *t = &l->tensors[i];
		ws_senders_put_text(out, t->name);
		ws_senders_put_text(out, ws_dtype_torch(t->dtype));
		ws_senders_put_word(out, t->n_dims);
		for (unsigned d = 0; d < t->n_dims; d++)
			ws_senders_put_word(out, (uint64_t)t->dims[d]);
	}
}

/* Writes the name to *at, and moves *at behind it. */
static void read_tensor(struct ws_senders_cursor *c, struct ws_plan_tensor *t, char **at)
{
	char dtype[DTYPE];
	ws_senders_text(c, *at, NAME);
	t->name = *at;
	*at += strlen(*at) + 1;
	ws_senders_text(c, dtype, sizeof dtype);
	t->n_dims = (unsigned)ws_senders_word(c, WS_MAX_DIMS);
	for (unsigned d = 0; d < t->n_dims; d++)
		t->dims[d] = (int64_t)ws_senders_word(c, INT64_MAX);
	c->bad = c->bad || !t->name[0] || !ws_dtype_from_torch(dtype, &t->dtype) ||
	         !ws_dtype_bytes(t->dtype, t->n_dims, t->dims, &t->bytes);
}

int ws_senders_read_list(const void *bytes, size_t n, struct ws_sender_list *out,
                         struct ws_err *err)
{
	struct ws_senders_cursor c = { bytes, n, false };
	*out = (struct ws_sender_list){ 0 };
	const uint64_t version = ws_senders_word(&c, UINT64_MAX);
	if (!c.bad && version != VERSION)
		return ws_err_set(err, WS_EDATA, "a sender is of another release of wsync");
	out->sender = (unsigned)ws_senders_word(&c, WS_SENDERS_MAX);
	out->senders = (unsigned)ws_senders_word(&c, WS_SENDERS_MAX);
	out->dry_run = ws_senders_word(&c, 1);
	ws_senders_text(&c, out->round, sizeof out->round);
	const size_t count = (size_t)ws_senders_word(&c, TENSORS_MAX);
	if (c.bad || count > c.left / LEAST_BYTES)
		return ws_err_set(err, WS_EDATA, "a sender's list of tensors is cut off");
	/* A name takes more bytes in the text than here. */
	out->tensors = calloc(count + 1, sizeof *out->tensors);
	out->names = malloc(c.left + NAME);
	if (!out->tensors || !out->names) {
		ws_senders_list_free(out);
		return ws_oom(err);
	}
	char *at = out->names;
	for (size_t i = 0; i < count && !c.bad; i++) {
		read_tensor(&c, &out->tensors[i], &at);
		c.bad = c.bad || (i && strcmp(out->tensors[i - 1].name, out->tensors[i].name) >= 0);
	}
	out->n = count;
	if (!c.bad && !c.left)
		return 0;
	ws_senders_list_free(out);
	return ws_err_set(err, WS_EDATA, "a sender's list of tensors is not understood");
}

void ws_senders_list_free(struct ws_sender_list *l)
{
	free(l->tensors);
	free(l->names);
	*l = (struct ws_sender_list){ 0 };
}

/* ---- together -------------------------------------------------------------------------------- */

static int refuse_list(const struct ws_sender_list *a, const struct ws_plan_tensor *x,
                       const struct ws_sender_list *b, const struct ws_plan_tensor *y,
                       struct ws_err *err)
{
	ws_err_set(err, WS_EREFUSED, "tensor %s is %s at sender %u and %s at sender %u%s", x->name,
	           ws_dtype_torch(x->dtype), a->sender, ws_dtype_torch(y->dtype), b->sender,
	           x->dtype == y->dtype ? ", of another shape" : "");
	return ws_err_hint(err, "give all senders checkpoints of one training step");
}

static bool is_alike(const struct ws_plan_tensor *x, const struct ws_plan_tensor *y)
{
	return x->dtype == y->dtype && x->n_dims == y->n_dims &&
	       memcmp(x->dims, y->dims, x->n_dims * sizeof *x->dims) == 0;
}

/* The first name that was not taken yet; NULL: all names were taken. */
static const char *first_name(const struct ws_sender_list *lists, unsigned n, const size_t *next)
{
	const char *name = NULL;
	for (unsigned i = 0; i < n; i++) {
		const char *mine = next[i] < lists[i].n ? lists[i].tensors[next[i]].name : NULL;
		if (mine && (!name || strcmp(mine, name) < 0))
			name = mine;
	}
	return name;
}

int ws_senders_unite(const struct ws_sender_list *lists, unsigned n, struct ws_sender_union *out,
                     struct ws_err *err)
{
	size_t all = 0, *next = calloc(n, sizeof *next);
	for (unsigned i = 0; i < n; i++)
		all += lists[i].n;
	*out = (struct ws_sender_union){ 0 };
	out->plan.tensors = calloc(all + 1, sizeof *out->plan.tensors);
	out->have = calloc(all + 1, sizeof *out->have);
	int rc = next && out->plan.tensors && out->have ? 0 : ws_oom(err);
	for (const char *name; rc == 0 && (name = first_name(lists, n, next));) {
		const size_t k = out->plan.n_tensors++;
		const struct ws_sender_list *first = NULL;
		for (unsigned i = 0; rc == 0 && i < n; i++) {
			const struct ws_plan_tensor *t = &lists[i].tensors[next[i]];
			if (next[i] == lists[i].n || strcmp(t->name, name) != 0)
				continue;
			next[i]++;
			if (!first) {
				first = &lists[i];
				out->plan.tensors[k] = *t;
			} else if (!is_alike(&out->plan.tensors[k], t)) {
				rc = refuse_list(first, &out->plan.tensors[k], &lists[i], t, err);
			}
			ws_senders_add(&out->have[k], i);
		}
		out->plan.bytes += out->plan.tensors[k].bytes;
	}
	free(next);
	if (rc)
		ws_senders_union_free(out);
	return rc;
}

void ws_senders_union_free(struct ws_sender_union *u)
{
	free(u->plan.tensors);
	free(u->have);
	*u = (struct ws_sender_union){ 0 };
}
