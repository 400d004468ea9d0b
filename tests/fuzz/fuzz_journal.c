/* SPDX-License-Identifier: Apache-2.0 */
/* A record of a push that was believed is printed, and what was printed is believed again as the
 * same. The same bytes are also taken for /proc/PID/stat. */
#include "journal_core.h"
#include "process_id.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

static void compare(const struct ws_journal_record *a, const struct ws_journal_record *b)
{
	if (a->n_endpoints != b->n_endpoints || a->n_sources != b->n_sources ||
	    (b->directory && a->n_args != b->n_args) || (!a->directory && b->directory) ||
	    a->digest != b->digest || a->ended != b->ended || a->process.pid != b->process.pid ||
	    a->n_files != b->n_files)
		abort();
	for (size_t i = 0; i < a->n_endpoints; i++) {
		const struct ws_journal_endpoint *x = &a->endpoints[i], *y = &b->endpoints[i];
		if (strcmp(x->url, y->url) || x->state != y->state || x->phase != y->phase ||
		    x->slept != y->slept || x->inherited != y->inherited ||
		    x->asleep != y->asleep || ws_journal_owes(x) != ws_journal_owes(y))
			abort();
	}
}

static void try_stat(const unsigned char *data, size_t size)
{
	char text[1024], state;
	uint64_t ticks;
	const size_t n = size < sizeof text ? size : sizeof text - 1;
	memcpy(text, data, n);
	text[n] = 0;
	(void)ws_process_stat(text, &state, &ticks);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
	struct ws_journal_record r, again;
	struct ws_err err = WS_ERR_INIT;
	struct ws_buf text;
	void *priv, *priv_again;
	try_stat(data, size);
	if (ws_journal_parse("fuzz", (const char *)data, size, &r, &priv, &err))
		return err.msg[0] ? 0 : (abort(), 0);
	(void)ws_process_fate(&r.process);
	ws_buf_init(&text, 0);
	ws_journal_print(&r, &text);
	if (!ws_buf_check(&text, "record", &err)) {
		if (ws_journal_parse("again", text.data, text.len, &again, &priv_again, &err))
			abort();
		compare(&r, &again);
		ws_journal_drop(&again, priv_again);
	}
	ws_buf_free(&text);
	ws_journal_drop(&r, priv);
	return 0;
}
