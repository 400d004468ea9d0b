/* SPDX-License-Identifier: Apache-2.0 */
/* push_targets.c - the endpoints of a push: which of them a call goes to, and how long one is
 * waited for that has been silent. */
#include "push_state.h"

/* Each step of the clean-up (end the update, leave the group, pause again, resume) waits for a
 * silent endpoint a tenth of --bucket-timeout, and at least this long. So a push with a short
 * deadline ends within two seconds of it. If no endpoint is silent, the steps have longer
 * deadlines: pausing again has 2 s. */
static const int64_t SILENT_NS = 400 * WS_NS_PER_MS;

void push_note_silence(struct ws_push *p, size_t i, const struct ws_err *said)
{
	p->to.endpoints[i].lost = said->code == WS_EREACH;
	p->to.endpoints[i].silent = said->code == WS_ETIMEOUT;
}

ws_deadline push_patience(const struct ws_push *p, int64_t most)
{
	int64_t little = p->opts.bucket_ns / 10;
	little = little < SILENT_NS ? SILENT_NS : little;
	for (size_t i = 0; i < p->opts.n_endpoints; i++)
		if (p->to.endpoints[i].silent && little < most)
			most = little;
	return ws_deadline_in(most);
}

size_t push_select(struct ws_push *p, bool (*wanted)(const struct push_endpoint *))
{
	size_t n = 0;
	for (size_t i = 0; i < p->opts.n_endpoints; i++) {
		if (wanted && !wanted(&p->to.endpoints[i]))
			continue;
		p->to.urls[n] = p->to.endpoints[i].url;
		p->to.index[n++] = i;
	}
	return n;
}
