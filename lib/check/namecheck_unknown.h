/* SPDX-License-Identifier: Apache-2.0 */
/* namecheck_unknown.h - shared by the files that explain unknown names.
 *
 * namecheck_unknown.c tries the causes in order; prefixes and fused names are in
 * namecheck_renamed.c. */
#ifndef WS_CHECK_NAMECHECK_UNKNOWN_H
#define WS_CHECK_NAMECHECK_UNKNOWN_H

#include "namecheck_core.h"

enum { WS_MAX_PAIRS = 32, WS_MAX_RANGES = 8 };

/* Modules of a fused parameter and of one part: gate_up_proj, up_proj. */
struct ws_pair {
	struct ws_text fused, part;
};

/* The highest number behind a word in the layout's names: experts, 127. */
struct ws_range {
	char word[64];
	int64_t last;
};

struct ws_search {
	struct ws_check *c;
	size_t sent;                /* index of the current item */
	const struct ws_item *item;
	char root[128];             /* prefix of "layers.0": "model." */
	struct ws_pair pairs[WS_MAX_PAIRS];
	size_t n_pairs;
	struct ws_range ranges[WS_MAX_RANGES];
	size_t n_ranges;
};

/* ---- namecheck_unknown.c ---- */

size_t ws_segment(const char *p);   /* length of the segment at p */
bool ws_is_number(const char *p);   /* the segment at p is a number */
/* True if the server has this name. *part: the part, the first part of that parameter, or
 * WS_NONE. */
bool ws_search_knows(const struct ws_search *s, const char *name, size_t *part);
/* The item sent under the part's own name; NULL: none. */
const struct ws_item *ws_search_sent(const struct ws_search *s, size_t part);
/* Begins a finding: the current name was meant for that part (WS_NONE: for none). If the part is
 * also sent under its own name the verdict is WS_NAME_TWICE. */
struct ws_new_finding ws_search_finding(struct ws_search *s, size_t part);
/* Records that the current name was meant for every part of p. True: some are also sent under
 * their own names. */
bool ws_search_mark_parts(struct ws_search *s, const struct ws_param *p);
const char *
ws_also_sent(const struct ws_new_finding *finding); /* ", which is sent as well", or "" */

/* Causes: true if this is the cause, which is then reported. */

/* ---- namecheck_renamed.c ---- */
void ws_search_pairs(struct ws_search *s);
bool ws_is_fused(struct ws_search *s);          /* "qkv_proj", experts stacked in one */
bool ws_is_replaced_twice(struct ws_search *s); /* "gate_gate_up_proj" */
void ws_search_root(struct ws_search *s);
bool ws_has_wrong_prefix(struct ws_search *s);
bool ws_has_segment_too_many(struct ws_search *s);
bool ws_lacks_weight(struct ws_search *s);
bool ws_is_permuted(struct ws_search *s);       /* "experts.up_proj.0" */

#endif
