/* SPDX-License-Identifier: Apache-2.0 */
/* pickle_stack.h - what the opcodes of pickle_machine.c work on. -1 and NULL:
 * WS_EINPUT, with the byte. */
#ifndef WS_ENDPOINT_PICKLE_STACK_H
#define WS_ENDPOINT_PICKLE_STACK_H

#include "pickle_machine.h"

int pickle_fail(const struct pickle *p, const char *why, struct ws_err *err);

/* A new value, on top of the stack; it stays where it is until the next one. */
struct pickle_value *pickle_push(struct pickle *p, enum pickle_kind kind, struct ws_err *err);
int pickle_drop(struct pickle *p, struct ws_err *err);
/* The last n values above the mark, the first of them. */
const uint32_t *pickle_top(struct pickle *p, size_t n, struct ws_err *err);
int pickle_mark(struct pickle *p, struct ws_err *err);

/* The topmost n values become children of a new one; those above the latest mark
 * become a tuple, and end it. */
int pickle_wrap(struct pickle *p, enum pickle_kind kind, size_t n, struct ws_err *err);
int pickle_wrap_marked(struct pickle *p, struct ws_err *err);
/* The topmost n values, or those above the latest mark, go into the container under them. */
int pickle_put_in(struct pickle *p, enum pickle_kind kind, size_t n, struct ws_err *err);
int pickle_put_in_marked(struct pickle *p, enum pickle_kind kind, struct ws_err *err);

/* The topmost value stays and is named by a number; that of a number is pushed again. */
int pickle_remember(struct pickle *p, uint64_t place, struct ws_err *err);
int pickle_recall(struct pickle *p, uint64_t place, struct ws_err *err);

#endif
