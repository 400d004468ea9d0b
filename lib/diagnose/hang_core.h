/* SPDX-License-Identifier: Apache-2.0 */
/* hang_core.h - shared by the causes and the text of a hang (wsync/tool/hang.h). */
#ifndef WS_DIAGNOSE_HANG_CORE_H
#define WS_DIAGNOSE_HANG_CORE_H

#include "wsync/tool/hang.h"

#include <string.h>

/* A test of endpoint, rank or peer number i, or of the whole hang, which ignores i. */
typedef bool (*hang_test)(const struct ws_hang *h, size_t i);

#define HANG_TEST_OF(list, item, name, ...) \
	static bool name(const struct ws_hang *h, size_t i) \
	{ \
		const item = &h->list[i]; \
		return __VA_ARGS__; \
	}
#define OF_ENDPOINT(...) HANG_TEST_OF(endpoints, struct ws_hang_endpoint *e, __VA_ARGS__)
#define OF_RANK(...) HANG_TEST_OF(ranks, struct ws_hang_rank *r, __VA_ARGS__)
#define OF_PEER(...) HANG_TEST_OF(peers, struct ws_hang_peer *p, __VA_ARGS__)

static inline bool hang_is_nccl(const struct ws_hang *h)
{
	return strcmp(h->backend, "nccl") == 0;
}

/* A request to the endpoint has no answer: it is pending, or its connection broke. */
static inline bool hang_is_awaited(const struct ws_hang *h, size_t endpoint)
{
	const enum ws_hang_request r = h->endpoints[endpoint].request;
	return r != WS_HANG_NO_REQUEST && r != WS_HANG_ANSWERED;
}

static inline size_t hang_count(const struct ws_hang *h, size_t n, hang_test test)
{
	size_t count = 0;
	for (size_t i = 0; i < n; i++)
		count += test(h, i);
	return count;
}

/* Writes text to dst (n bytes) and replaces {facts}. {who}: ranks that pass, else endpoints. */
void hang_fill(char *dst, size_t n, const struct ws_hang *h, hang_test endpoint, hang_test rank,
               const char *text);

#endif
