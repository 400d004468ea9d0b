/* SPDX-License-Identifier: Apache-2.0 */
/* suggest.h - "did you mean": of a list of parameter names, the one that is nearest to a wrong one.
 *
 * Names are compared by segments. A wrong or missing first segment ("model.", "language_model.")
 * costs less than one in the middle; edits inside a word cost less than another word ("q_prj",
 * "q_proj"); segments that are numbers are only ever compared with numbers ("experts.128",
 * "experts.127").
 *
 * The names of a model are few kinds of names that differ in their numbers. Kinds are compared,
 * and the nearest numbers found by bisection, so that 90,000 names cost hardly more than 90. */
#ifndef WS_NAMES_SUGGEST_H
#define WS_NAMES_SUGGEST_H

#include "wsync/err.h"

#include <stddef.h>

struct ws_suggest;

/* The names are borrowed. Beyond 16,384 kinds of names the rest is left out. */
int ws_suggest_make(const char *const *names, size_t n, struct ws_suggest **out,
                    struct ws_err *err);
void ws_suggest_free(struct ws_suggest *s); /* NULL is fine */
/* NULL: none is near. A name of the list is its own nearest one. Not for several threads at
 * once. */
const char *ws_suggest_nearest(struct ws_suggest *s, const char *name);

/* Edits (insert, drop, replace) between two words; at most 63 characters of each count. */
unsigned ws_edit_distance(const char *a, size_t n, const char *b, size_t m);

#endif
