/* SPDX-License-Identifier: Apache-2.0 */
/* serve_toy.h - what the embedded endpoint generates with: a toy, but one that reads its weights.
 *
 *   serve_toy.c          token by token through the layers, to a distribution of the next one
 *   serve_toy_math.c     powers and logarithms in integers
 *   serve_toy_weights.c  the tensors that the endpoint holds, and where each belongs
 *   serve_toy_sketch.c   from the numbers of one tensor to the few that the toy needs
 *
 * It has what a checker of servers looks at: answers that are off as far as the weights are, and
 * never the same where one bit is another; a state that later tokens see of earlier ones, so that a
 * cache can hold what old weights made; a distribution that sums to one; experts by router. All of
 * it is integer arithmetic, so that compilers and machines agree to the last bit. */
#ifndef WS_ENDPOINT_SERVE_TOY_H
#define WS_ENDPOINT_SERVE_TOY_H

#include "serve_model.h"

#include "wsync/tool/routing.h"

enum {
	WS_TOY_LAYERS = WS_ROUTING_LAYERS,
	WS_TOY_WIDTH = 8,
	WS_TOY_CLASSES = 256,      /* tokens of one class are equally likely */
	WS_TOY_VOCAB = 1 << 20     /* at most */
};

/* ---- powers and logarithms, in 1/2^30 ---- */

#define WS_TOY_ONE (INT64_C(1) << 30)
uint64_t ws_toy_power(int64_t below);   /* 2^(12 - below), in 1/2^30; below >= 0 */
int64_t ws_toy_log2(uint64_t x);        /* of x / 2^42; x > 0 */

/* Bits that each depend on all of a and b. */
uint64_t ws_toy_mix(uint64_t a, uint64_t b);

/* ---- the weights ---- */

/* A few sums of a tensor's numbers, as long as those of any other tensor, in 1/65536. */
struct ws_toy_sketch {
	int32_t v[WS_TOY_WIDTH];
};

/* All that the toy knows of one state of the weights. */
struct ws_toy {
	struct ws_toy *next;       /* older */
	size_t n_layers;
	uint64_t body, head_body;  /* hashes of all that a cache depends on, and of the rest */
	struct ws_toy_sketch embed, head, layer[WS_TOY_LAYERS], router[WS_TOY_LAYERS];
};

/* A tensor whose numbers can be read. */
struct ws_toy_tensor {
	const char *name;
	enum ws_dtype dtype;
	unsigned n_dims;
	const int64_t *dims;
	uint64_t n;                /* elements */
	const uint8_t *data;       /* NULL: gathered */
	const struct ws_serve_gather *gather;
};
/* scales: of blocks of an FP8 matrix; NULL: there are none. -1: out of memory. */
int ws_toy_sketch(const struct ws_toy_tensor *t, const struct ws_toy_tensor *scales,
                  struct ws_toy_sketch *out);
/* Of a tensor of which only the hash is known, or that is not made of numbers. */
void ws_toy_sketch_hash(uint64_t hash, struct ws_toy_sketch *out);

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
	uint64_t context;          /* which they were, whatever the weights */
	int64_t v[WS_TOY_WIDTH];   /* what the weights made of them */
	uint64_t trace;            /* which weights those were, to the bit */
	int64_t out[WS_TOY_WIDTH]; /* of the last one, behind the head */
	uint64_t out_trace;
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
double ws_toy_logprob(const struct ws_toy_row *row, const struct ws_toy_shape *shape,
                      int32_t token);
int32_t ws_toy_best(const struct ws_toy_row *row);
int32_t ws_toy_draw(const struct ws_toy_row *row, const struct ws_toy_shape *shape, uint64_t seed,
                    uint64_t step);
/* The n best tokens, the lower number first where they are equally likely; n <= vocab. */
void ws_toy_top(const struct ws_toy_row *row, const struct ws_toy_shape *shape, size_t n,
                int32_t *out);

#endif
