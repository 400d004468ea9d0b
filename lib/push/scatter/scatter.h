/* SPDX-License-Identifier: Apache-2.0 */
/* scatter.h - runtime parameters for the ranks of one endpoint, cut and fused as each of them
 * keeps its own, in the batches in which /receive_weights_ep_scatter receives them.
 *
 * First the experts: a batch for each layer, in rising order, each parameter in ranges along
 * its first axis, each of a sender that has it. Then the rest, each from one sender, in
 * batches of so many. Both sides must agree on every transfer, its order and its bytes:
 * nothing else tells them apart. */
#ifndef WS_PUSH_SCATTER_H
#define WS_PUSH_SCATTER_H

#include "scatter_stripe.h"
#include "wsync/tool/json.h"
#include "wsync/tool/layout.h"
#include "wsync/tool/listing.h"
#include "wsync/tool/plan.h"

enum { WS_SCATTER_CHUNK = 50 }; /* parameters of a batch of the rest */

enum { WS_SENDERS_MAX = 1024 };

/* Some of the senders, the first being 0. */
struct ws_senders {
	uint64_t bits[WS_SENDERS_MAX / 64];
};
bool ws_senders_has(const struct ws_senders *set, unsigned sender);
void ws_senders_add(struct ws_senders *set, unsigned sender);

struct ws_scatter_opts {
	const struct ws_layout *layout;       /* the endpoint's */
	const struct ws_plan *plan;           /* what there is to send */
	const struct ws_weight_list *listing; /* what the endpoint's first rank says it has */
	/* of its weights, but where the layout knows better */
	enum ws_dtype dtype;
	unsigned senders;
	bool complete;                        /* every parameter that is listed must be had */
	/* of each tensor of the plan: who has it; NULL: all have all */
	const struct ws_senders *have;
};

struct ws_scatter_entry {
	const struct ws_param *param;
	int64_t layer;            /* of an expert; -1: one of the rest */
	size_t first_range, n_ranges;
};

struct ws_scatter_range {
	int64_t from, to;         /* rows of the parameter; to < 0: all of it */
	unsigned sender;
};

struct ws_scatter_batch {
	size_t first, n;          /* entries */
	uint64_t bytes;           /* to all ranks together */
};

struct ws_scatter {
	struct ws_scatter_opts opts;
	struct ws_scatter_entry *entries; /* in sending order */
	size_t n_entries;
	struct ws_scatter_range *ranges;  /* of each entry, in order */
	size_t n_ranges;
	struct ws_scatter_batch *batches;
	size_t n_batches;
	unsigned tp;
	const struct ws_plan_tensor **sorted; /* the plan's, by name */
};

/* WS_EREFUSED where a parameter is only partly in the plan, is not what the endpoint lists,
 * is of another type, or lies in the server in a way that no row of bytes has. What opts
 * points to must outlive it. */
int ws_scatter_make(const struct ws_scatter_opts *opts, struct ws_scatter **out,
                    struct ws_err *err);
void ws_scatter_free(struct ws_scatter *s); /* NULL is fine */

/* weight_names, the two plans and the numbers that belong to them, as members of w's object. */
void ws_scatter_write(const struct ws_scatter *s, struct ws_jw *w);

struct ws_scatter_send {
	unsigned rank;            /* of the endpoint: 0 to tp - 1 */
	struct ws_payload payload;
};

struct ws_scatter_sends {
	struct ws_scatter_send *items; /* in order for each rank */
	size_t n;
	void *priv;
};

/* What that sender sends in a batch. It borrows from the scatter. */
int ws_scatter_sends(const struct ws_scatter *s, size_t batch, unsigned sender,
                     struct ws_scatter_sends *out, struct ws_err *err);
/* What the i-th of them is made of. */
const struct ws_stripe *ws_scatter_stripes(const struct ws_scatter_sends *sends, size_t i,
                                           size_t *n);
void ws_scatter_sends_free(struct ws_scatter_sends *sends); /* NULL is fine */

#endif
