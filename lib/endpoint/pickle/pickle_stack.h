/* SPDX-License-Identifier: Apache-2.0 */
/* pickle_stack.h - operations for the opcodes of pickle_machine.c. They fail with -1 or NULL, and
 * WS_EINPUT with the byte offset. */
#ifndef WS_ENDPOINT_PICKLE_STACK_H
#define WS_ENDPOINT_PICKLE_STACK_H

#include "pickle_machine.h"

int pickle_fail(const struct pickle *p, const char *why, struct ws_err *err);

/* Pushes a new value on the stack. The pointer is valid until the next push. */
struct pickle_value *pickle_push(struct pickle *p, enum pickle_kind kind, struct ws_err *err);
int pickle_drop(struct pickle *p, struct ws_err *err);
/* Returns a pointer to the topmost n values, which must be above the latest mark. */
const uint32_t *pickle_top(struct pickle *p, size_t n, struct ws_err *err);
int pickle_mark(struct pickle *p, struct ws_err *err);

/* wrap: the topmost n values become children of a new value. wrap_marked: the values above the
 * latest mark become a tuple, and the mark is removed. */
int pickle_wrap(struct pickle *p, enum pickle_kind kind, size_t n, struct ws_err *err);
int pickle_wrap_marked(struct pickle *p, struct ws_err *err);
/* Moves the topmost n values, or the values above the latest mark, into the container below. */
int pickle_put_in(struct pickle *p, enum pickle_kind kind, size_t n, struct ws_err *err);
int pickle_put_in_marked(struct pickle *p, enum pickle_kind kind, struct ws_err *err);

/* remember: stores the topmost value, which stays, at a memo number. recall: pushes it again. */
int pickle_remember(struct pickle *p, uint64_t place, struct ws_err *err);
int pickle_recall(struct pickle *p, uint64_t place, struct ws_err *err);

#endif
