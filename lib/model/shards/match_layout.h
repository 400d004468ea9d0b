/* SPDX-License-Identifier: Apache-2.0 */
/* match_layout.h - matches a saved tensor with a server parameter. */
#ifndef WS_MODEL_MATCH_LAYOUT_H
#define WS_MODEL_MATCH_LAYOUT_H

#include "wsync/tool/catalog.h"

struct ws_layout_match {
	const struct ws_source *source;
	const struct ws_tensor *tensor;
	const struct ws_param *param;
	unsigned order[WS_MAX_DIMS];   /* axis d of the tensor is axis order[d] of the param */
	int64_t strides[WS_MAX_DIMS];  /* of the param's axes, in elements of the tensor */
	int64_t dims[WS_MAX_DIMS];     /* of the param at this rank */
	/* rows are interleaved in this many groups; 0: not interleaved */
	int64_t groups;
	uint32_t rule;
};

/* The rank of the tensors, and the number of ranks among which groups of rows are divided. */
struct ws_match_at {
	const struct ws_layout *layout;
	unsigned rank, tp;
};

/* Matches a tensor with a param's shape at a rank. alias: the alias that names the tensor; NULL:
 * the param's own name. False: the shapes differ. */
bool ws_match_layout(const struct ws_source *source, const struct ws_tensor *t,
                const struct ws_param *param, const struct ws_alias *alias,
                const struct ws_match_at *at, struct ws_layout_match *out);
/* Finds all matches of this name, without equivalent ones. Returns their number, at most n. *known:
 * the name is known, with any shape. */
size_t ws_match_layouts(const struct ws_source *source, const struct ws_tensor *t, const char *name,
                      const struct ws_match_at *at, struct ws_layout_match *out, size_t n,
                      bool *known);

/* A growing list of pieces. */
struct ws_pieces {
	struct ws_piece *v;
	size_t n, cap;
	unsigned n_dims; /* of the shape in which they lie; 0: the item's */
	int64_t dims[WS_MAX_DIMS];
};
/* NULL: out of memory. Free with free(list->v). */
struct ws_piece *ws_pieces_add(struct ws_pieces *list);

/* Adds the whole tensor as one piece. The caller may reduce dims; the strides stay valid. */
int ws_pieces_add_whole(struct ws_pieces *list, const struct ws_source *source,
                     const struct ws_tensor *t);
/* May this tensor be one of n_parts of the whole (ws_layout_find_join), by its shape? */
bool ws_join_fits(const struct ws_part *whole, size_t n_parts, const struct ws_tensor *t);
/* Adds the tensor's pieces for box `to` of the param, which is box `from` of the part: one piece,
 * or one for each group along the part's first axis. 1: strides cannot express the box; -1: out of
 * memory. */
int ws_match_pieces(const struct ws_layout_match *a, const struct ws_part *part,
                    const struct ws_box *from, const struct ws_box *to, struct ws_pieces *list);

/* Describes a piece: "rows 0..2047 of NAME", "[3, 0..767, 0..2047] of NAME, transposed". */
void ws_match_text(const struct ws_layout_match *a, const struct ws_box *to, char *dst, size_t n);

/* Sets the error that several rules fit the shape: "tensor 'NAME' of shape [4, 64, 64] may be
 * RULE with axes 0 2 1, or RULE: ...", with a hint. prefix: "" or "rank 3: ". */
int ws_match_ambiguous(const struct ws_layout *l, const char *prefix,
                         const struct ws_layout_match *a, struct ws_err *err);

/* "[4096, 1024]" */
struct ws_shape_text {
	char text[160];
};
struct ws_shape_text ws_shape_text(unsigned n_dims, const int64_t *dims);

#endif
