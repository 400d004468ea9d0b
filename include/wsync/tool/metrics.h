/* SPDX-License-Identifier: Apache-2.0 */
/* metrics.h - metrics of the last push as text for Prometheus: gauges named wsync_push_*.
 *
 * They are computed from the events of a push (event.h), for a file for node_exporter's textfile
 * collector, or for an answer to GET /metrics. wsync-push(1) lists the names. */
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
/* Takes the time of the last success from the text of an earlier process. Ignores any other
 * text. */
void ws_metrics_recall(struct ws_metrics *m, const char *text, size_t len);
/* Receives all events of a push, in order, and copies the relevant values. A plan begins a
 * push, a result or an end is its outcome. An end after results is their sum and no
 * outcome. Dry runs are ignored. */
void ws_metrics_hear(struct ws_metrics *m, const struct ws_event *ev);
/* Counts a push that failed before it sent an event. */
void ws_metrics_fail(struct ws_metrics *m, const struct ws_err *err);
/* false: no push has ended yet. */
bool ws_metrics_known(const struct ws_metrics *m);
int ws_metrics_write(const struct ws_metrics *m, struct ws_buf *out, struct ws_err *err);
/* The beginning of every such text. */
#define WS_METRICS_BEGIN "# HELP wsync_build_info "

#ifdef __cplusplus
}
#endif
#endif
