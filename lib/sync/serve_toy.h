/* SPDX-License-Identifier: Apache-2.0 */
/* serve_toy.h - what the embedded endpoint generates with: a toy, but one that reads its weights.
 *
 *   serve_toy.c          token by token through the layers, to a distribution of the next one
 *   serve_toy_math.c     powers and logarithms in integers
 *   serve_toy_weights.c  from the tensors that the endpoint holds to the few words that the toy needs
 *
 * It has what a checker of servers looks at: layers that each depend on all numbers of their tensors,
 * a state that later tokens see of earlier ones (so that a cache can hold what old weights made), a
 * distribution that sums to one, experts by router. All of it is integer arithmetic, so that compilers
 * and machines agree to the last bit. */
#ifndef WS_SYNC_SERVE_TOY_H
#define WS_SYNC_SERVE_TOY_H

#include "serve_core.h"

#include "wsync/routing.h"

enum {
	WS_TOY_LAYERS = WS_ROUTING_LAYERS,
	WS_TOY_CLASSES = 256,      /* tokens of one class are equally likely */
	WS_TOY_VOCAB = 1 << 20     /* at most */
};

/* ---- powers and logarithms, in 1/2^30 ---- */

#define WS_TOY_ONE (INT64_C(1) << 30)
uint64_t ws_toy_power(int64_t below);   /* 2^(12 - below), in 1/2^30; below >= 0 */
int64_t ws_toy_log2(uint64_t x);        /* of x / 2^42; x > 0 */

/* ---- the weights ---- */

/* All that the toy knows of one state of the weights. */
struct ws_toy {
	struct ws_toy *next;       /* older */
	size_t n_layers;
	uint64_t embed, head;      /* what stands before the layers, and behind */
	uint64_t layer[WS_TOY_LAYERS], router[WS_TOY_LAYERS];
};

/* In the scheduler. NULL: out of memory. The newest state, which the list owns. */
const struct ws_toy *ws_serve_toy(struct ws_serve *s);
void ws_serve_toys_free(struct ws_serve *s);

/* ---- running it ---- */

struct ws_toy_shape {
	size_t vocab, classes;
	struct ws_routing_shape routing; /* layers 0: there are no experts */
};
void ws_serve_toy_shape(const struct ws_serve *s, struct ws_toy_shape *out);

/* What later tokens see of earlier ones. */
struct ws_toy_state {
	size_t at;                 /* tokens so far */
	uint64_t hidden;           /* of the last one, behind all layers */
	uint64_t seen[WS_TOY_LAYERS];
};
/* experts: [layers, k] of the routing shape, or NULL. */
void ws_toy_step(const struct ws_toy *toy, struct ws_toy_state *st, int32_t token,
                 const struct ws_toy_shape *shape, int32_t *experts);

/* The distribution of the token behind the last one. */
struct ws_toy_row {
	int64_t below[WS_TOY_CLASSES];   /* the best class's logarithm to base 2, less this one's */
	uint64_t weight[WS_TOY_CLASSES]; /* of one token of the class */
	uint64_t sum;                    /* over all tokens */
	int64_t log_sum;
};
/* temperature: in 1/65536; 65536 leaves the scores as they are. */
void ws_toy_predict(const struct ws_toy_state *st, const struct ws_toy_shape *shape,
                    uint64_t temperature, struct ws_toy_row *out);
/* A float, as servers have it. */
double ws_toy_logprob(const struct ws_toy_row *row, const struct ws_toy_shape *shape, int32_t token);
int32_t ws_toy_best(const struct ws_toy_row *row);
int32_t ws_toy_draw(const struct ws_toy_row *row, const struct ws_toy_shape *shape, uint64_t seed,
                    uint64_t step);
/* The n best tokens, the lower number first where they are equally likely; n <= vocab. */
void ws_toy_top(const struct ws_toy_row *row, const struct ws_toy_shape *shape, size_t n, int32_t *out);

#endif
