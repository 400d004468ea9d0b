/* SPDX-License-Identifier: Apache-2.0 */
/* process.h - identifies the process that wrote a record. */
#ifndef WSYNC_PROCESS_H
#define WSYNC_PROCESS_H

#include <stdint.h>

/* A process number alone is reused sooner or later; all fields together identify one
 * process among all machines. */
struct ws_process {
	int64_t pid;
	uint64_t start_ticks;     /* since boot; 0: not known */
	char boot_id[40];
	char pid_namespace[32];
	char host[65];
};

enum ws_process_fate {
	WS_PROCESS_DEAD,
	WS_PROCESS_ALIVE,
	/* on another machine or in another container: not visible from here */
	WS_PROCESS_ELSEWHERE
};

#endif
