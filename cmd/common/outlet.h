/* SPDX-License-Identifier: Apache-2.0 */
/* outlet.h - stdout and stderr of every program. Printing appends to a queue; a
 * thread of each outlet writes.
 *
 * write(2) to a terminal after Ctrl-S, or to a full pipe, blocks until the reader goes on, perhaps
 * for ever. Only these threads call write(2), and they hold no lock meanwhile, so a slow reader
 * blocks nothing else.
 *
 * stdout and stderr are replaced by streams of the C library (fopencookie) that feed the queues.
 * Descriptors 1 and 2 stay unchanged: a sanitizer's report or a message of malloc, which go
 * there, are not lost in a queue, and child processes inherit the terminal. Libraries that print
 * (NCCL, libmicrohttpd) use these streams, too. */
#ifndef WSYNC_CMD_OUTLET_H
#define WSYNC_CMD_OUTLET_H

#include <stdbool.h>
#include <stdio.h>

/* Replaces stdout and stderr. Without threads they stay as they were, and block. The name is
 * kept. */
void outlet_start(const char *program);
/* stdout carries JSON lines: a warning about dropped lines is one of them. */
void outlet_json(void);

/* At first, printing to a full queue waits for the reader, as cat(1) does, until a signal comes.
 * After this call printing never waits: lines that do not fit are dropped, and a warning in their
 * place gives their number once the reader continues. For programs that pause servers or have
 * deadlines. */
void outlet_never_wait(void);

/* The progress line, below all other lines; "" removes it. It is not queued: a new
 * one replaces the old one. */
void outlet_progress(const char *text);
/* Opens one more stream to stderr, for a thread whose lines may arrive in
 * parts. NULL: failure. */
FILE *outlet_stderr(void);

/* Prints on stderr that a signal came, and ends all waits for readers. Async-signal-safe. */
void outlet_interrupt(void);
/* True once writing to stdout has failed. Later output is lost, too. */
bool outlet_failed(void);
/* Waits at most ms until everything printed so far is written. Async-signal-safe. */
void outlet_settle(int ms);

/* Writes the rest. Gives up on a reader that takes nothing for a second, or if nothing is written
 * for half a minute although there is room; before outlet_never_wait only after a signal. Returns
 * -1 if output was dropped here or writing to stdout failed, after a message on stderr. If a reader
 * closed its pipe, there is no message. */
int outlet_finish(void);

#endif
