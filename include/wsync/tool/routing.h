/* SPDX-License-Identifier: Apache-2.0 */
/* routing.h - the experts that a server chose for each token, read from its answers.
 *
 * A server started with --enable-return-routed-experts returns on request the K experts of each of
 * L layers for T tokens (all but the last one drawn) as int32, without a shape. Layers without
 * experts are present and zero. The shape comes from the model's config.json and the
 * token counts. */
#ifndef WSYNC_ROUTING_H
#define WSYNC_ROUTING_H

#include "wsync/tool/config.h"
#include "wsync/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { WS_ROUTING_LAYERS = 1024, WS_ROUTING_K = 1024 };

struct ws_routing_shape {
	size_t layers, k, experts;
	bool dense[WS_ROUTING_LAYERS]; /* layers without experts */
	size_t n_dense;
};

/* A model without experts, or sizes that make no sense: WS_EINPUT. */
int ws_routing_shape_of(const struct ws_config *config, struct ws_routing_shape *out,
                        struct ws_err *err);

struct ws_routing {
	int32_t *ids;                /* owned; [tokens, layers, k] */
	size_t tokens, layers, k;
	int64_t prompt_tokens, completion_tokens; /* -1: not reported */
	int64_t cached_tokens;       /* of the prompt, from an earlier pass; -1: not reported */
};

/* Parses a saved answer of /generate or of the OpenAI routes, of one prompt. ids are base64 of
 * int32, {"data", "shape", "rows"} around that, or nested lists. WS_EINPUT: not such an answer;
 * WS_EMISMATCH: numbers that do not fit the shape. */
int ws_routing_parse(const char *text, size_t n, const char *what,
                     const struct ws_routing_shape *shape, struct ws_routing *out,
                     struct ws_err *err);
void ws_routing_free(struct ws_routing *r);

struct ws_routing_list {             /* zeroed: none */
	struct ws_routing *items;
	size_t n;
};
/* The same for any number of prompts: an array of such answers, or a single one. */
int ws_routing_read_all(const char *path, const struct ws_routing_shape *shape,
                        struct ws_routing_list *out, struct ws_err *err);
void ws_routing_list_free(struct ws_routing_list *list);

/* Impossible rows: an expert that does not exist, one expert twice, or a nonzero value in a layer
 * without experts. */
struct ws_routing_check {
	size_t outside, repeated, dense;
	size_t token, layer;         /* of the first such row */
	char reason[160];            /* "": no such row */
};
void ws_routing_check(const struct ws_routing *r, const struct ws_routing_shape *shape,
                      struct ws_routing_check *out);

/* Compares the tokens that both have; layers without experts do not count. */
struct ws_routing_diff {
	size_t rows, equal;          /* equal: the same experts in the same order */
	size_t reordered;            /* the same experts in another order; not among the equal */
	size_t token, layer;         /* of the first row that is not equal */
	bool differs;                /* token and layer are set */
	size_t *by_layer;            /* owned: rows that are not equal, of each layer */
};
int ws_routing_compare(const struct ws_routing *a, const struct ws_routing *b,
                       const struct ws_routing_shape *shape, struct ws_routing_diff *out,
                       struct ws_err *err);
/* Adds one prompt's to the sum over several: token, layer and differs are of the first that
 * differs. sum is zeroed at first. */
int ws_routing_sum(struct ws_routing_diff *sum, const struct ws_routing_diff *d,
                   const struct ws_routing_shape *shape, struct ws_err *err);
void ws_routing_diff_free(struct ws_routing_diff *d);

/* Writes a file for numpy.load: '<i4', [tokens, layers, k]. Replaces the file. */
int ws_routing_write_npy(const struct ws_routing *r, const char *path, struct ws_err *err);

#ifdef __cplusplus
}
#endif
#endif
