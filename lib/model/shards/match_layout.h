/* SPDX-License-Identifier: Apache-2.0 */
/* match_layout.h - a tensor that somebody saved, seen as a server's parameter. */
#ifndef WS_MODEL_MATCH_LAYOUT_H
#define WS_MODEL_MATCH_LAYOUT_H

#include "wsync/tool/catalog.h"

struct ws_layout_match {
	const struct ws_source *source;
	const struct ws_tensor *tensor;
	const struct ws_param *param;
	unsigned order[WS_MAX_DIMS];   /* axis d of the tensor is axis order[d] of the param */
	int64_t strides[WS_MAX_DIMS];  /* of the param's axes, in elements of the tensor */
	int64_t dims[WS_MAX_DIMS];     /* of the param at that rank */
	int64_t groups;                /* rows are interleaved in so many; 0: they are not */
	uint32_t rule;
};

/* Ranks that share a parameter: what groups of rows there are is divided among them. */
struct ws_match_at {
	const struct ws_layout *layout;
	unsigned rank, tp;
};

/* Does the tensor have the param's shape there, by its own name or by an alias (NULL: its own)? */
bool ws_match_layout(const struct ws_source *source, const struct ws_tensor *t,
                const struct ws_param *param, const struct ws_alias *alias,
                const struct ws_match_at *at, struct ws_layout_match *out);
/* All that fit of the meanings of this name, those that come to the same once; at most n.
 * *known: the name has a meaning, whatever its shape. */
size_t ws_match_layouts(const struct ws_source *source, const struct ws_tensor *t, const char *name,
                      const struct ws_match_at *at, struct ws_layout_match *out, size_t n,
                      bool *known);

/* Pieces in a list that grows. */
struct ws_pieces {
	struct ws_piece *v;
	size_t n, cap;
};
/* NULL: out of memory. Free with free(list->v). */
struct ws_piece *ws_pieces_add(struct ws_pieces *list);

/* Adds the piece that the whole tensor is, with another rank's strides left as they are. */
int ws_pieces_add_whole(struct ws_pieces *list, const struct ws_source *source,
                     const struct ws_tensor *t);
/* Adds what box `to` of the param, which is box `from` of the part, is in the tensor: one piece, or
 * one of each group along the part's first axis. 1: it lies in no order that strides
 * can say; -1: out of memory. */
int ws_match_pieces(const struct ws_layout_match *a, const struct ws_part *part,
                    const struct ws_box *from, const struct ws_box *to, struct ws_pieces *list);

/* "rows 0..2047 of NAME", "[3, 0..767, 0..2047] of NAME, transposed". */
void ws_match_text(const struct ws_layout_match *a, const struct ws_box *to, char *dst, size_t n);

/* Why a shape does not decide: "tensor 'NAME' of shape [4, 64, 64] may be RULE with axes 0 2 1, or
 * RULE: ..." and what helps. prefix: "" or "rank 3: ". */
int ws_match_ambiguous(const struct ws_layout *l, const char *prefix,
                         const struct ws_layout_match *a, struct ws_err *err);

/* "[4096, 1024]" */
struct ws_shape_text {
	char text[160];
};
struct ws_shape_text ws_shape_text(unsigned n_dims, const int64_t *dims);

#endif
