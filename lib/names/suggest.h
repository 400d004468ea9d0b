/* SPDX-License-Identifier: Apache-2.0 */
/* suggest.h - "did you mean": finds the name of a list that is nearest to a wrong name.
 *
 * Names are compared by segments. A wrong or missing first segment ("model.", "language_model.")
 * costs less than one in the middle. Edits inside a word cost less than another word ("q_prj",
 * "q_proj"). Numbers are only compared with numbers ("experts.128", "experts.127").
 *
 * A model's names are of few kinds, which differ in numbers. Kinds are compared, and the nearest
 * numbers are found by bisection, so 90,000 names cost hardly more than 90. */
#ifndef WS_NAMES_SUGGEST_H
#define WS_NAMES_SUGGEST_H

#include "wsync/err.h"

#include <stddef.h>

struct ws_suggest;

/* Borrows the names. Keeps the first 16,384 kinds. */
int ws_suggest_make(const char *const *names, size_t n, struct ws_suggest **out,
                    struct ws_err *err);
void ws_suggest_free(struct ws_suggest *s); /* NULL is fine */
/* NULL: no name is near. A name of the list is nearest to itself. Not thread-safe. */
const char *ws_suggest_nearest(struct ws_suggest *s, const char *name);

/* Counts insertions, deletions and replacements between the first 63 characters of two words. */
unsigned ws_edit_distance(const char *a, size_t n, const char *b, size_t m);

#endif
