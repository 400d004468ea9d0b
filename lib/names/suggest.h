/* SPDX-License-Identifier: Apache-2.0 */
/* suggest.h - "did you mean": the name of a list that is nearest to a wrong name.
 *
 * Names are compared by segments. A wrong or missing first segment ("model.", "language_model.")
 * costs less than one in the middle; edits inside a word cost less than another word ("q_prj",
 * "q_proj"); numbers are only compared with numbers ("experts.128", "experts.127").
 *
 * The names of a model are few kinds that differ in numbers. Kinds are compared, and the
 * nearest numbers are found by bisection, so 90,000 names cost hardly more than 90. */
#ifndef WS_NAMES_SUGGEST_H
#define WS_NAMES_SUGGEST_H

#include "wsync/err.h"

#include <stddef.h>

struct ws_suggest;

/* Borrows the names. Keeps the first 16,384 kinds. */
int ws_suggest_make(const char *const *names, size_t n, struct ws_suggest **out,
                    struct ws_err *err);
void ws_suggest_free(struct ws_suggest *s); /* NULL is fine */
/* NULL: none is near. A name of the list is nearest to itself. Not thread-safe. */
const char *ws_suggest_nearest(struct ws_suggest *s, const char *name);

/* Insertions, deletions and replacements between two words; at most 63 characters of each count. */
unsigned ws_edit_distance(const char *a, size_t n, const char *b, size_t m);

#endif
