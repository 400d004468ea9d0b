/* SPDX-License-Identifier: Apache-2.0 */
/* cancel.h - a flag that also wakes poll(2).
 *
 * ws_cancel_set may be called from a signal handler or another thread. Waits poll ws_cancel_fd
 * (readable once set, for ever) next to their own descriptors and return WS_ECANCELLED. */
#ifndef WSYNC_CANCEL_H
#define WSYNC_CANCEL_H

#include "wsync/err.h"

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ws_cancel {
	int set; /* accessed atomically, by the functions below (C++ has no atomic_int) */
	int fd;  /* eventfd; -1: not initialised, then only the flag works */
};

#define WS_CANCEL_INIT { 0, -1 }

int ws_cancel_init(struct ws_cancel *c, struct ws_err *err);
void ws_cancel_fini(struct ws_cancel *c); /* NULL is fine */
void ws_cancel_set(struct ws_cancel *c);  /* async-signal-safe */
/* NULL never cancels: -1 and false. */
int ws_cancel_fd(const struct ws_cancel *c);
bool ws_cancelled(const struct ws_cancel *c);

#ifdef __cplusplus
}
#endif
#endif
