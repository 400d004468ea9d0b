/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_store.c - the store's core, driven by bytes: parser, executor, conclusions, reports.
 *
 * The input is a script of pieces: a byte that picks one of four connections (bits 0-1) and
 * says what happens (bits 2-3: bytes arrive, the same cut into single bytes, a replacement
 * after closing, a tick), a byte with the length, and so many bytes. Closing everything
 * must balance the accounts. */
#include "store_core.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

enum { CONNS = 4, ARRIVE = 0, TRICKLE, REPLACE, TICK };

static void must(int holds)
{
	if (!holds)
		abort();
}

static struct ws_store_conn *open_conn(struct ws_store_core *core, int i)
{
	static const char *const addresses[CONNS] = { "10.0.0.1:1", "10.0.0.1:2", "10.0.0.2:1",
	                                              "[fe80::1%eth0]:1" };
	return ws_store_conn_open(core, addresses[i]);
}

static void arrive(struct ws_store_conn *c, const unsigned char *data, size_t n, size_t piece)
{
	for (size_t at = 0; at < n && !c->doomed; at += piece) {
		ws_buf_add(&c->rx, data + at, n - at < piece ? n - at : piece);
		ws_store_conn_run(c, c->core->now + WS_NS_PER_MS);
		must(c->doomed || c->rx.len == 0 || c->partial_since);
	}
	ws_store_conn_sent(c, c->tx.len / 2);
}

static void read_everything(struct ws_store_core *core)
{
	struct ws_store_report r;
	must(ws_store_core_report(core, &r, NULL) == 0 && r.n_peers >= core->n_conns);
	ws_store_report_fini(&r);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
	static const struct ws_store_opts opts = { .world_size = 3, .group = "g",
	                                           .max_bytes = 1 << 20 };
	struct ws_store_core core;
	struct ws_store_conn *c[CONNS];
	must(ws_store_core_init(&core, &opts, NULL) == 0);
	core.now = 1;
	for (int i = 0; i < CONNS; i++)
		c[i] = open_conn(&core, i);
	while (size >= 2) {
		const int who = data[0] & 3, what = data[0] >> 2 & 3;
		const size_t n = data[1] < size - 2 ? data[1] : size - 2;
		if (what == TICK)
			ws_store_core_tick(&core, core.now + (int64_t)n * WS_NS_PER_S / 16);
		else if (what != REPLACE)
			arrive(c[who], data + 2, n, what == TRICKLE ? 1 : n + 1);
		if (what == REPLACE || c[who]->doomed) {
			ws_store_conn_close(c[who]);
			c[who] = open_conn(&core, who);
		}
		data += 2 + (what == ARRIVE || what == TRICKLE ? n : 0);
		size -= 2 + (what == ARRIVE || what == TRICKLE ? n : 0);
	}
	read_everything(&core);
	must(core.keys.bytes <= core.keys.max_bytes);
	while (core.first)
		ws_store_conn_close(core.first);
	must(core.n_buffered == 0 && core.n_partial == 0 && core.n_undecided == 0 &&
	     core.n_conns == 0);
	ws_store_core_fini(&core);
	return 0;
}
