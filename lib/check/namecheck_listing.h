/* SPDX-License-Identifier: Apache-2.0 */
/* namecheck_listing.h - between the comparison of a listing with a layout and the guess at how
 * the server was really started. */
#ifndef WS_CHECK_NAMECHECK_LISTING_H
#define WS_CHECK_NAMECHECK_LISTING_H

#include "namecheck_core.h"

struct ws_shown {
	struct ws_check *c;
	const struct ws_layout *layout;  /* the caller's, or `made` */
	struct ws_layout *made;          /* of the sizes shown; NULL: as assumed */
	char prefix[128];                /* of every name shown, and of none in the layout */
	bool sizes_unknown;              /* they are others, and no layout of them was made */
	size_t *param_shown;             /* by param: index in the listing, or WS_NONE */
	size_t *shown_param;             /* by entry of the listing: index of the param */
};

/* Finds prefix and sizes, and says each difference once. -1: memory. */
int ws_shown_guess(struct ws_shown *s);
void ws_shown_fini(struct ws_shown *s);
/* How many entries of the listing have no param of their name and shape, and the first of them. */
size_t ws_shown_unexplained(const struct ws_shown *s, const struct ws_weight **first);
/* Relates the listing's entries to the params of s->layout. -1: memory. */
int ws_shown_relate(struct ws_shown *s);
/* The server's name without the prefix. */
const char *ws_shown_name(const struct ws_shown *s, const char *name);

/* Where the shape of a parameter comes from: "(16 q_proj + 2 k_proj + 2 v_proj) heads * 128 =
 * 2560 rows". */
struct ws_text ws_text_arithmetic(const struct ws_layout *l, const struct ws_param *p);
/* What the rows or columns shown are in heads, "" where they are none: "= 10 heads * 128". */
struct ws_text ws_text_heads(const struct ws_layout *l, const struct ws_param *p,
                             const struct ws_weight *w);

#endif
