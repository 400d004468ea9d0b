/* SPDX-License-Identifier: Apache-2.0 */
/* hang_list.h - what the judgement and the text of a hang (wsync/tool/hang.h) both say: who. */
#ifndef WS_DIAGNOSE_HANG_LIST_H
#define WS_DIAGNOSE_HANG_LIST_H

#include "wsync/tool/hang.h"

typedef bool (*hang_of_rank)(const struct ws_hang *h, size_t i);
typedef bool (*hang_of_endpoint)(const struct ws_hang *h, size_t i);

/* "ranks 3 to 5 of http://a; rank 9 of http://b" of those that pass. Returns how many did. */
size_t hang_list_ranks(const struct ws_hang *h, hang_of_rank pass, struct ws_buf *out);
/* "http://a, http://b and 3 more". out may be NULL: only counts. */
size_t hang_list_endpoints(const struct ws_hang *h, hang_of_endpoint pass, struct ws_buf *out);

bool hang_any_rank(const struct ws_hang *h, hang_of_rank pass);
/* The text with its {facts} in place; those that pass are its {who}. */
void hang_fill(char *dst, size_t n, const struct ws_hang *h, hang_of_endpoint endpoint,
               hang_of_rank rank, const char *text);

bool hang_is_nccl(const struct ws_hang *h);
/* It was asked and has not answered: the answer is still to come, or was broken off. */
bool hang_is_awaited(const struct ws_hang *h, size_t endpoint);
/* How many of its ranks are at the store. */
unsigned hang_present(const struct ws_hang *h, size_t endpoint);
bool hang_nobody_came(const struct ws_hang *h);

#endif
