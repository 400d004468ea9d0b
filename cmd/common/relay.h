/* SPDX-License-Identifier: Apache-2.0 */
/* relay.h - for programs that serve others: what they print does not wait for whoever reads it.
 *
 * A pipe that nobody reads is full after 64 KiB, and the next line would hold up a push that has endpoints
 * paused. */
#ifndef WSYNC_CMD_RELAY_H
#define WSYNC_CMD_RELAY_H

#include "ui.h"

/* From here on stdout and stderr, where they are pipes or sockets, are written by a thread, and in order where
 * both are the same. Lines for which
 * there is no room any more are left out, and a warning in their place says how many, once there is. A relay
 * that cannot be had is none. */
void relay_start(const struct ui *ui);
/* What is left is written, within a second; run_exit calls it. */
void relay_finish(void);

#endif
