/* SPDX-License-Identifier: Apache-2.0 */
/* clock.h - deadlines: a point on CLOCK_MONOTONIC, computed once and passed down.
 *
 * Every wait in the library takes a deadline. Relative times appear only where one is computed. */
#ifndef WSYNC_CLOCK_H
#define WSYNC_CLOCK_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef int64_t ws_deadline; /* ns on CLOCK_MONOTONIC */

#define WS_FOREVER INT64_MAX
#define WS_NS_PER_MS INT64_C(1000000)
#define WS_NS_PER_S INT64_C(1000000000)

int64_t ws_now_ns(void);
void ws_sleep(int64_t ns); /* a signal ends it early */
/* ns from now; negative or huge values saturate to now and to WS_FOREVER. */
ws_deadline ws_deadline_in(int64_t ns);
static inline ws_deadline ws_deadline_min(ws_deadline a, ws_deadline b)
{
	return a < b ? a : b;
}
bool ws_deadline_passed(ws_deadline until);
/* ns left, 0 when passed, INT64_MAX for WS_FOREVER. */
int64_t ws_deadline_left(ws_deadline until);
/* The deadline after an n-th of the time that is left. Of WS_FOREVER: that. */
ws_deadline ws_deadline_part(ws_deadline until, int n);
/* For poll(2): ms left, rounded up, at most `most_ms` (which must be >= 0). */
int ws_deadline_poll_ms(ws_deadline until, int most_ms);

#ifdef __cplusplus
}
#endif
#endif
