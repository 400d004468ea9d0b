/* SPDX-License-Identifier: Apache-2.0 */
/* namecheck_unknown.h - between the files that find out what an unknown name was meant for.
 *
 * namecheck_unknown.c goes through the names and tries every cause in turn; causes that take
 * other names for the same (fused ones, prefixes) are in files of their own. */
#ifndef WS_CHECK_NAMECHECK_UNKNOWN_H
#define WS_CHECK_NAMECHECK_UNKNOWN_H

#include "namecheck_core.h"

enum { WS_MAX_PAIRS = 32, WS_MAX_RANGES = 8 };

/* A fused parameter and one of its parts, by their modules: gate_up_proj, up_proj. */
struct ws_pair {
	struct ws_text fused, part;
};

/* The highest number behind a word, in names of the layout: experts, 127. */
struct ws_range {
	char word[64];
	int64_t last;
};

struct ws_search {
	struct ws_check *c;
	size_t sent;                /* index of the name at hand */
	const struct ws_item *item;
	char root[128];             /* what stands before "layers.0": "model." */
	struct ws_pair pairs[WS_MAX_PAIRS];
	size_t n_pairs;
	struct ws_range ranges[WS_MAX_RANGES];
	size_t n_ranges;
};

/* ---- namecheck_unknown.c ---- */

size_t ws_segment(const char *p);   /* length of the segment that begins there */
bool ws_is_number(const char *p);   /* it is a number */
/* Has the server something of this name? *part: the part, or the first of that parameter, or
 * WS_NONE. */
bool ws_search_knows(const struct ws_search *s, const char *name, size_t *part);
/* The item that is sent for the part by its own name; NULL: none. */
const struct ws_item *ws_search_sent(const struct ws_search *s, size_t part);
/* A finding about the name at hand, which was meant for that part (WS_NONE: for none). What the
 * part is sent by its own name as well is a second tensor for the same bytes. */
struct ws_new_finding ws_search_said(struct ws_search *s, size_t part);
/* The name was meant for every part. True: some are sent by their own names as well. */
bool ws_search_means(struct ws_search *s, const struct ws_param *p);
const char *
ws_also_sent(const struct ws_new_finding *finding); /* ", which is sent as well", or "" */

/* Causes: true when it was this one, and that is finding. */

/* ---- namecheck_fused.c ---- */
void ws_search_pairs(struct ws_search *s);
bool ws_is_fused(struct ws_search *s);          /* "qkv_proj", experts stacked in one */
bool ws_is_replaced_twice(struct ws_search *s); /* "gate_gate_up_proj" */

/* ---- namecheck_prefix.c ---- */
void ws_search_root(struct ws_search *s);
bool ws_has_wrong_prefix(struct ws_search *s);
bool ws_has_segment_too_many(struct ws_search *s);
bool ws_lacks_weight(struct ws_search *s);

#endif
