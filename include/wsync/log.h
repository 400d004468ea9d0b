/* SPDX-License-Identifier: Apache-2.0 */
/* log.h - log lines of library calls: level 1 for -v, level 2 (wire level) for -vv.
 *
 * The library never prints: it calls the caller's function, from any of its threads. */
#ifndef WSYNC_LOG_H
#define WSYNC_LOG_H

#ifdef __cplusplus
extern "C" {
#endif

struct ws_log {
	int level; /* highest level wanted; 0: nothing */
	void (*fn)(void *ctx, int level, const char *text); /* text: one line, no newline */
	void *ctx;
};

/* NULL log is fine. */
void ws_log(const struct ws_log *log, int level, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

#ifdef __cplusplus
}
#endif
#endif
