/* SPDX-License-Identifier: Apache-2.0 */
/* metrics.h - how the last push went, as Prometheus reads it: a text of gauges named wsync_push_*.
 *
 * It is made from the events of a push (event.h), so whoever sees those can have it: a file for
 * node_exporter's textfile collector, or an answer to GET /metrics. wsync-push(1) lists the
 * names. */
#ifndef WSYNC_METRICS_H
#define WSYNC_METRICS_H

#include "wsync/tool/buf.h"
#include "wsync/event.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ws_metrics; /* opaque; one thread at a time */

int ws_metrics_open(struct ws_metrics **out, struct ws_err *err);
void ws_metrics_close(struct ws_metrics *m); /* NULL is fine */
/* A text of an earlier process, from which the time of the last success is taken over. Anything
 * else than such a text is ignored. */
void ws_metrics_recall(struct ws_metrics *m, const char *text, size_t len);
/* Everything of a push, in order; what is of interest is copied. A plan begins one, a
 * result or an end is its outcome; an end behind results, which is that of all of them, is
 * none. Dry runs are no pushes. */
void ws_metrics_hear(struct ws_metrics *m, const struct ws_event *ev);
/* A push that failed before anybody could tell of it. */
void ws_metrics_fail(struct ws_metrics *m, const struct ws_err *err);
/* false: no push has ended yet. */
bool ws_metrics_known(const struct ws_metrics *m);
int ws_metrics_write(const struct ws_metrics *m, struct ws_buf *out, struct ws_err *err);
/* By which such a text is known. */
#define WS_METRICS_BEGIN "# HELP wsync_build_info "

#ifdef __cplusplus
}
#endif
#endif
