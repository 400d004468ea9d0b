/* SPDX-License-Identifier: Apache-2.0 */
/* gateway_metrics.c - GET /metrics: metrics of the last push, and counts of all pushes. */
#include "gateway_core.h"

void gateway_hear(struct ws_gateway *g, const struct ws_event *ev)
{
	pthread_mutex_lock(&g->lock);
	ws_metrics_hear(g->metrics, ev);
	pthread_mutex_unlock(&g->lock);
}

void gateway_metrics(struct gateway_call *c)
{
	struct ws_err err = WS_ERR_INIT;
	struct ws_gateway *g = c->gateway;
	ws_buf_free(&c->rp->body);
	pthread_mutex_lock(&g->lock);
	const int rc = ws_metrics_write(g->metrics, &c->rp->body, &err);
	pthread_mutex_unlock(&g->lock);
	if (rc) {
		gateway_fail(c, &err);
		return;
	}
	c->rp->type = "text/plain; version=0.0.4; charset=utf-8";
}
