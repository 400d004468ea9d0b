/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_gloo.c - what other ranks can make us read: their value in the store, and their messages
 * while we are the root, or a rank in the middle of the tree.
 *
 * The first byte chooses; messages come through a socket pair whose other end then closes, so every
 * run ends by itself. */
#include "gloo_peer.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

enum { MOST = 90 * 1000 }; /* fits a socket's buffer: nobody reads the other end */

static int take(void *ctx, const void *bytes, size_t n, struct ws_err *err)
{
	(void)err;
	for (size_t i = 0; i < n; i++) /* a sanitizer sees every byte */
		*(unsigned *)ctx += ((const unsigned char *)bytes)[i];
	return 0;
}

static int fill(void *ctx, uint64_t at, void *dst, size_t n, struct ws_err *err)
{
	(void)ctx, (void)at, (void)err;
	memset(dst, 'x', n);
	return 0;
}

/* Connects rank r with a peer that says these bytes and then nothing more. Returns the far end. */
static int speak(struct ws_gloo *g, unsigned r, const unsigned char *data, size_t n)
{
	int ends[2];
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends))
		abort();
	if (n && send(ends[1], data, n, MSG_NOSIGNAL) != (ssize_t)n)
		abort();
	shutdown(ends[1], SHUT_WR);
	g->peers[r].fd = ends[0];
	return ends[1];
}

static void be_root(struct ws_gloo *g)
{
	const struct ws_span spans[] = { { .length = 20, .fd = -1, .fill = fill },
		                         { .length = 20000, .fd = -1, .fill = fill } };
	const struct ws_payload items[] = { { 20, &spans[0], 1 },
		                            { 0, NULL, 0 },
		                            { 20000, &spans[1], 1 } };
	ws_gloo_send(g, items, 3, ws_deadline_in(5 * WS_NS_PER_S), NULL, NULL);
}

static void be_in_the_middle(struct ws_gloo *g)
{
	static unsigned sum;
	static unsigned char dst[1000];
	const struct ws_gloo_sink sinks[] = {
		{ 16, dst, NULL, NULL }, { 0, NULL, NULL, NULL }, { 300, NULL, take, &sum },
		{ 70000, NULL, take, &sum }, { 1000, dst, take, &sum },
	};
	ws_gloo_recv(g, 0, sinks, 5, ws_deadline_in(5 * WS_NS_PER_S), NULL, NULL);
}

static void converse(bool root, const unsigned char *data, size_t n)
{
	const struct ws_gloo_opts opts = { .rank = root ? 0 : 1, .size = 4, .ring_bytes = 8192 };
	struct ws_gloo *g = ws_gloo_new(&opts, NULL);
	if (!g)
		abort();
	const int a = speak(g, root ? 1 : 0, data, n);
	const int b = speak(g, root ? 2 : 3, data + n / 2, n - n / 2);
	if (root)
		be_root(g);
	else
		be_in_the_middle(g);
	ws_gloo_close(g);
	close(a);
	close(b);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
	struct ws_gloo_card card;
	struct ws_err err;
	if (size < 1 || size > MOST)
		return 0;
	switch (data[0] % 4) {
	case 0:
		ws_gloo_card_unpack(data + 1, size - 1, 2 + data[0] / 4 % 8, data[0] / 4 % 2, &card,
		                    &err);
		break;
	case 1:
		ws_gloo_list_unpack(data + 1, size - 1, 2 + data[0] / 4 % 8, 0, 1, &card, &err);
		break;
	default:
		converse(data[0] % 4 == 2, data + 1, size - 1);
	}
	return 0;
}
