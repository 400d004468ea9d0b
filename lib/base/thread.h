/* SPDX-License-Identifier: Apache-2.0 */
/* thread.h - threads of the library, which leave signals to the program's.
 *
 * The kernel hands a signal to any thread that does not block it. Which of the program's threads
 * sits in a wait that a signal is to end, the library cannot know; so its own threads take none.
 * Exempt are the signals of a fault, which always go to the thread at fault: blocked, they would
 * kill the process past the handler that could say why. */
#ifndef WS_BASE_THREAD_H
#define WS_BASE_THREAD_H

#include "wsync/err.h"

#include <pthread.h>

/* Runs run(arg) in a thread of its own, which the caller joins or detaches. His own signal mask
 * is left as it is. On failure *thread is undefined and nothing runs. */
int ws_thread_start(pthread_t *thread, void *(*run)(void *), void *arg, struct ws_err *err);

#endif
