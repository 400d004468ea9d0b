/* SPDX-License-Identifier: Apache-2.0 */
/* scatter.h - runtime parameters for the ranks of one endpoint, cut and fused as each rank keeps
 * them, in the batches in which /receive_weights_ep_scatter receives them.
 *
 * First the experts: a batch for each layer, in rising order. Each parameter is cut into ranges
 * along its first axis, and each range comes from a sender that has it. Then the rest, each from
 * one sender, in batches of WS_SCATTER_CHUNK. Both sides must agree on every transfer, its order
 * and its bytes, because transfers carry no names. */
#ifndef WS_PUSH_SCATTER_H
#define WS_PUSH_SCATTER_H

#include "stripe.h"
#include "wsync/tool/json.h"
#include "wsync/tool/layout.h"
#include "wsync/tool/listing.h"
#include "wsync/tool/plan.h"

enum { WS_SCATTER_CHUNK = 50 }; /* parameters in a batch of the rest */

enum { WS_SENDERS_MAX = 1024 };

/* A set of senders. The first sender is 0. */
struct ws_senders {
	uint64_t bits[WS_SENDERS_MAX / 64];
};
bool ws_senders_has(const struct ws_senders *set, unsigned sender);
void ws_senders_add(struct ws_senders *set, unsigned sender);

struct ws_scatter_opts {
	const struct ws_layout *layout;       /* the endpoint's */
	const struct ws_plan *plan;           /* the tensors of all senders */
	const struct ws_weight_list *listing; /* the parameters of the endpoint's first rank */
	/* of its weights, unless the layout has an exact dtype */
	enum ws_dtype dtype;
	unsigned senders;
	bool complete;                        /* every listed parameter must be available */
	/* for each tensor of the plan: the senders that have it; NULL: all senders */
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
	const struct ws_plan_tensor **sorted; /* the plan's tensors, by name */
};

/* WS_EREFUSED: a parameter is only partly in the plan, differs from the endpoint's list, has
 * another dtype, or is not one row of bytes there. Everything that opts points to must outlive
 * *out. */
int ws_scatter_make(const struct ws_scatter_opts *opts, struct ws_scatter **out,
                    struct ws_err *err);
void ws_scatter_free(struct ws_scatter *s); /* NULL is fine */

/* Writes weight_names, the two plans and their numbers, as members of w's object. */
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

/* The sends of this sender in a batch. They borrow from the scatter. */
int ws_scatter_sends(const struct ws_scatter *s, size_t batch, unsigned sender,
                     struct ws_scatter_sends *out, struct ws_err *err);
/* The stripes of the i-th send. */
const struct ws_stripe *ws_scatter_stripes(const struct ws_scatter_sends *sends, size_t i,
                                           size_t *n);
void ws_scatter_sends_free(struct ws_scatter_sends *sends); /* NULL is fine */

#endif
